// A model and where its training stands, in a file and back: training goes on as if it had never stopped, and
// predictions need nothing but the file.
//
//   --epochs 2   =   --epochs 1 --save FILE,  then  --load FILE --epochs 1        bit for bit
//
// The file holds the model's parts, its sizes, the ids of each column and which tokens are known. The rows'
// order follows from the seed and the size of a window, so the place of the training is the number of rows
// trained on. A step is whole: a file may stand between any two.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/table_file.hpp>

#include "models/ctr_data.hpp"

namespace ctr {

struct training_place {
  index_t seed = 0;
  index_t data_rows = 0;
  index_t train_rows = 0;
  index_t window = 0;   ///< rows that are shuffled at a time; 0: all
  index_t hash = 0;     ///< of all rows
  index_t trained = 0;  ///< rows, in all epochs
  index_t steps = 0;
};

inline std::string ids_of_column(index_t token) { return "ids of C" + std::to_string(token + 1); }

/// The numbers of a size, or of a list of sizes.
inline void add_size(std::vector<deeprec::named_number>& to, std::string_view name, index_t size) {
  to.push_back({std::string(name), size});
}
inline void add_size(std::vector<deeprec::named_number>& to, std::string_view name,
                     const std::vector<index_t>& sizes) {
  add_size(to, name, static_cast<index_t>(sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    add_size(to, std::string(name) + ' ' + std::to_string(i + 1), sizes[i]);
  }
}

/// An empty string, or why not.
template <class Model>
std::string save_model(const std::string& path, Model& model, typename Model::options how,
                       const ctr_tables& tables, const training_place& at) {
  deeprec::training_state state;
  state.step = static_cast<std::uint64_t>(at.steps);
  state.numbers = {{"seed", at.seed},
                   {"rows of data", at.data_rows},
                   {"rows to train", at.train_rows},
                   {"rows of a window", at.window},
                   {"hash of the rows", at.hash},
                   {"rows trained", at.trained}};
  how.for_each_size([&](std::string_view name, const auto& size) { add_size(state.numbers, name, size); });
  for (index_t t = 0; t < tokens; ++t) {
    add_size(state.numbers, ids_of_column(t), tables.ids(integers + t));
  }
  const std::vector<deeprec::named_table> parts = model.parts();
  std::vector<deeprec::const_named_table> all(parts.begin(), parts.end());
  const std::vector<std::uint64_t> known = tables.known();
  all.push_back(deeprec::name_keys("known tokens", std::span(known)));
  const auto saved = save_tables(path, all, state);
  return saved ? std::string() : saved.fault().message();
}

/// Loads the parts of a model and which tokens are known.
template <class Model>
[[nodiscard]] deeprec::result<deeprec::training_state> load_parts(const std::string& path, Model& model,
                                                                  const ctr_tables& tables,
                                                                  std::vector<std::uint64_t>& known) {
  known = tables.known();
  std::vector<deeprec::named_table> parts = model.parts();
  parts.push_back(deeprec::name_keys("known tokens", std::span(known)));
  return load_tables(path, parts);
}

/// Fills the model and `at.trained`, `at.steps`, so that training goes on; an empty string, or why not.
template <class Model>
std::string load_model(const std::string& path, Model& model, const ctr_tables& tables, training_place& at) {
  const auto info = deeprec::describe_file(path);
  if (!info) return info.fault().message();
  const std::pair<const char*, index_t> same[] = {{"seed", at.seed},
                                                  {"rows of data", at.data_rows},
                                                  {"rows to train", at.train_rows},
                                                  {"rows of a window", at.window},
                                                  {"hash of the rows", at.hash}};
  for (const auto& [name, here] : same) {
    const auto there = info.value().state.whole(name);
    if (!there) return path + ": is no model of train_ctr: has no number \"" + name + '"';
    if (*there == here) continue;
    return path + ": trained with another number: " + name + ' ' + std::to_string(*there) + ", here " +
           std::to_string(here);
  }
  std::vector<std::uint64_t> known;
  const auto loaded = load_parts(path, model, tables, known);
  if (!loaded) return loaded.fault().message();
  at.trained = loaded.value().whole("rows trained").value_or(0);
  at.steps = static_cast<index_t>(loaded.value().step);
  return {};
}

/// A saved model of a click log, for predictions. Throws a failure.
class saved_click_model {
 public:
  explicit saved_click_model(std::string path) : path_(std::move(path)) {
    auto info = deeprec::describe_file(path_);
    if (!info) throw failure(info.fault().message());
    info_ = std::move(info).value();
    if (info_.tables.empty()) throw failure(path_ + ": is no model of train_ctr: has no tables");
    for (index_t t = 0; t < tokens; ++t) {
      get(ids_of_column(t), ids_[static_cast<std::size_t>(t)]);
    }
  }
  /// The model's name: its parts are named after it.
  [[nodiscard]] std::string name() const {
    const std::string& part = info_.tables.front().name;
    return part.substr(0, part.find(','));
  }
  [[nodiscard]] const std::array<index_t, tokens>& ids() const { return ids_; }

  void get(std::string_view name, index_t& size) const {
    const auto there = info_.state.whole(name);
    if (!there)
      throw failure(path_ + ": is no model of train_ctr: has no number \"" + std::string(name) + '"');
    if (*there < 1 || *there > largest_size) {
      throw failure(path_ + ": is no model of train_ctr: \"" + std::string(name) + "\" is " +
                    std::to_string(*there));
    }
    size = *there;
  }
  void get(std::string_view name, std::vector<index_t>& sizes) const {
    index_t count = 0;
    get(name, count);
    if (count > 1000)
      throw failure(path_ + ": is no model of train_ctr: has " + std::to_string(count) + " layers");
    sizes.resize(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      get(std::string(name) + ' ' + std::to_string(i + 1), sizes[i]);
    }
  }
  template <class Model>
  void load(Model& model, ctr_tables& tables) const {
    std::vector<std::uint64_t> known;
    const auto loaded = load_parts(path_, model, tables, known);
    if (!loaded) throw failure(loaded.fault().message());
    tables.set_known(known);
  }

 private:
  static constexpr index_t largest_size = index_t{1} << 31;
  std::string path_;
  deeprec::table_file_info info_;
  std::array<index_t, tokens> ids_{};
};

}  // namespace ctr
