// A model and where its training stands, in a file and back: training goes on as if it had never stopped, and
// predictions need nothing but the file.
//
//   --epochs 2   =   --epochs 1 --save FILE,  then  --load FILE --epochs 1        bit for bit
//   --load FILE --new-data --data NEXT            from the first of other rows, with its weights
//
// The file holds the model's parts, its sizes, and its vocabulary: what the rows of its tables stand for. Of
// raw keys it holds neither candidates nor ages of rows: with --admit, --ttl or --capacity a run that goes on
// counts anew, and is another one. The rows' order follows from the seed and the size of a window, so the
// place of the training is the number of rows trained on. A step is whole: a file may stand between any two.
//
// A vocabulary has for_each_size(visit), as the options of a model, and parts(), as a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/table_file.hpp>

#include "evaluation.hpp"
#include "models/ctr_data.hpp"
#include "models/slot_tables.hpp"

namespace ctr {

inline constexpr const char* validation_score = "score of the validation";
inline constexpr const char* validation_hash = "hash of the rows that validate";

struct training_place {
  index_t seed = 0;
  index_t data_rows = 0;
  index_t train_rows = 0;
  index_t window = 0;      ///< rows that are shuffled at a time; 0: all
  index_t hash = 0;        ///< of all data
  index_t valid_hash = 0;  ///< of the rows that validate
  index_t trained = 0;     ///< rows, in all epochs
  index_t steps = 0;
  std::optional<double> best{};  ///< the score of the validation that is kept
};

/// Of a click log: the ids of each column, and which tokens are known; or that their keys are raw, which are
/// parts of the model.
struct token_vocabulary {
  static constexpr const char* raw_mark = "bits of a raw key";
  static constexpr std::string_view schema_mark = "schema ";  // behind it its text, in the name of a number

  bool is_raw = false;
  ctr_columns columns;
  std::vector<index_t> ids;
  std::vector<std::uint64_t> known;  // a bit for each row of the tables

  /// Of sizes that get_sizes() fills.
  explicit token_vocabulary(const ctr_columns& of) : columns(of), ids(static_cast<std::size_t>(of.tokens)) {}
  explicit token_vocabulary(const ctr_tables& tables)
      : is_raw(tables.raw.has_value()), columns(tables.columns) {
    if (is_raw) return;
    known = tables.known();
    for (index_t t = 0; t < columns.tokens; ++t) ids.push_back(tables.ids(columns.integers + t));
  }
  template <class Visit>
  void for_each_size(Visit&& visit) {
    if (is_raw) {
      index_t bits = 64;
      visit(raw_mark, bits);
      return;
    }
    for (std::size_t t = 0; t < ids.size(); ++t) visit("ids of C" + std::to_string(t + 1), ids[t]);
  }
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    if (is_raw) return {};
    return {deeprec::name_keys("known tokens", std::span(known))};
  }
};

/// The numbers of a size, of a list of sizes, or of a choice.
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

inline void add_size(std::vector<deeprec::named_number>& to, std::string_view name, bool choice) {
  add_size(to, name, index_t{choice});
}

/// Those of a model and of its vocabulary. `from`, where not empty: a file that they are loaded from.
template <class Model, class Vocabulary>
model_parts parts_of(Model& model, Vocabulary& vocabulary, const std::string& from = {}) {
  model_parts all;
  if constexpr (requires { model.parts(from); }) {
    all = model.parts(from);
  } else {
    all = model.parts();
  }
  const std::vector<deeprec::named_table> more = vocabulary.parts();
  all.tables.insert(all.tables.end(), more.begin(), more.end());
  return all;
}

/// The text of the schema that a model was trained with; empty: none.
inline std::string schema_in(const deeprec::table_file_info& info) {
  for (const deeprec::named_number& number : info.state.numbers) {
    if (number.name.starts_with(token_vocabulary::schema_mark))
      return number.name.substr(token_vocabulary::schema_mark.size());
  }
  return {};
}

/// The model that a file holds: its parts are named after it. Empty: the file has no parts.
inline std::string model_name(const deeprec::table_file_info& info) {
  return info.tables.empty() ? std::string()
                             : info.tables.front().name.substr(0, info.tables.front().name.find(','));
}

/// Whether the floats of all tables are finite.
inline bool is_finite(const std::vector<deeprec::named_table>& tables) {
  bool is = true;
  for (const deeprec::named_table& table : tables) {
    if (table.format != "f32") continue;
    for (index_t r = 0; r < table.rows; ++r) {
      const std::byte* const row =
          table.addresses != nullptr ? table.addresses[r] : table.data + r * table.stride_bytes;
      const auto* const floats = reinterpret_cast<const float*>(row);
      // The difference of what is not finite with itself is NaN.
      float sum = 0;
      for (index_t i = 0; i < table.width; ++i) sum += floats[i] - floats[i];
      is = is && sum == 0;
    }
  }
  return is;
}

/// An empty string, or why not. Throws a failure, and leaves the file as it is, where weights are not finite.
template <class Model, class Vocabulary>
std::string save_model(const std::string& path, Model& model, typename Model::options how,
                       Vocabulary vocabulary, const training_place& at) {
  deeprec::training_state state;
  state.step = static_cast<std::uint64_t>(at.steps);
  state.numbers = {{"seed", at.seed},
                   {"rows of data", at.data_rows},
                   {"rows to train", at.train_rows},
                   {"rows of a window", at.window},
                   {"hash of the rows", at.hash},
                   {"rows trained", at.trained}};
  const auto add = [&](std::string_view name, const auto& size) { add_size(state.numbers, name, size); };
  if (at.best) {
    state.numbers.push_back({validation_score, *at.best});
    state.numbers.push_back({validation_hash, at.valid_hash});
  }
  how.for_each_size(add);
  vocabulary.for_each_size(add);
  if constexpr (requires { vocabulary.columns; }) {
    const std::string& schema = vocabulary.columns.schema;
    if (!schema.empty()) state.numbers.push_back({std::string(Vocabulary::schema_mark) + schema, index_t{1}});
  }
  const model_parts parts = parts_of(model, vocabulary);
  if (!is_finite(parts.tables))
    throw diverged(path + " is not written: weights after step " + std::to_string(at.steps));
  const std::vector<deeprec::const_named_table> all(parts.tables.begin(), parts.tables.end());
  const auto saved = save_tables(path, all, state);
  return saved ? std::string() : saved.fault().message();
}

/// What a file is loaded for.
enum class load_use : std::uint8_t {
  go_on,     ///< with the rows that it was trained with, behind the last one
  new_data,  ///< with others, from the first one
};

/// Fills the model and, to go on, the place of the training; an empty string, or why not.
///
/// @param vocabulary  that of the data; filled with that of the file
template <class Model, class Vocabulary>
std::string load_model(const std::string& path, Model& model, Vocabulary& vocabulary, training_place& at,
                       load_use use = load_use::go_on) {
  const auto info = deeprec::describe_file(path);
  if (!info) return info.fault().message();
  if (const std::string there = model_name(info.value()); !there.empty() && there != Model::name) {
    return path + ": must be a model of " + Model::name + " (is one of " + there + ')';
  }
  if constexpr (requires { vocabulary.columns; }) {
    if (schema_in(info.value()) != vocabulary.columns.schema)
      return path + ": trained with another --schema, or with none";
  }
  const std::pair<const char*, index_t> same[] = {{"seed", at.seed},
                                                  {"rows of data", at.data_rows},
                                                  {"rows to train", at.train_rows},
                                                  {"rows of a window", at.window},
                                                  {"hash of the rows", at.hash}};
  for (const auto& [name, here] : same) {
    const auto there = info.value().state.whole(name);
    if (!there) return path + ": is no model of train_ctr: has no number \"" + name + '"';
    if (*there == here || use == load_use::new_data) continue;
    return path + ": trained with another number: " + name + ' ' + std::to_string(*there) + ", here " +
           std::to_string(here) + " (--new-data trains on with other rows)";
  }
  if constexpr (requires { vocabulary.is_raw; }) {
    const bool is_raw = info.value().state.whole(Vocabulary::raw_mark).has_value();
    if (is_raw != vocabulary.is_raw) {
      const auto keys = [](bool raw) { return std::string(raw ? "raw" : "hashed"); };
      return path + ": must be a model of --keys " + keys(vocabulary.is_raw) + " (is one of --keys " +
             keys(is_raw) + ')';
    }
  }
  const model_parts parts = parts_of(model, vocabulary, path);
  const auto loaded = load_tables(path, parts.tables);
  if (!loaded) {
    const bool is_size = loaded.fault().code() == deeprec::errc::shape_mismatch;
    return loaded.fault().message() +
           (is_size ? ". Fix: the sizes of the run that saved it, such as --width, --top and --table-rows"
                    : "");
  }
  if (use == load_use::new_data) return {};
  at.trained = loaded.value().whole("rows trained").value_or(0);
  at.steps = static_cast<index_t>(loaded.value().step);
  at.best = loaded.value().real(validation_score);
  if (at.best && loaded.value().whole(validation_hash).value_or(0) != at.valid_hash) {
    at.best.reset();
    std::fprintf(stderr, "train_ctr: %s: its best validation was of other rows, and counts no more\n",
                 path.c_str());
  }
  return {};
}

/// A saved model, for predictions. Throws a failure.
class saved_model {
 public:
  explicit saved_model(std::string path) : path_(std::move(path)) {
    auto info = deeprec::describe_file(path_);
    if (!info) throw failure(info.fault().message());
    info_ = std::move(info).value();
    if (info_.tables.empty()) throw failure(path_ + ": is no model of train_ctr: has no tables");
  }
  [[nodiscard]] std::string name() const { return model_name(info_); }
  [[nodiscard]] std::string schema() const { return schema_in(info_); }
  [[nodiscard]] bool has_raw_keys() const {
    return info_.state.whole(token_vocabulary::raw_mark).has_value();
  }

  /// Fills the sizes of a model's options, or of a vocabulary.
  template <class Sized>
  void get_sizes(Sized& of) const {
    of.for_each_size([&](std::string_view name, auto& size) { get(name, size); });
  }
  /// Fills a model and a vocabulary of these sizes.
  template <class Model, class Vocabulary>
  void load(Model& model, Vocabulary& vocabulary) const {
    const model_parts parts = parts_of(model, vocabulary, path_);
    const auto loaded = load_tables(path_, parts.tables);
    if (!loaded) throw failure(loaded.fault().message());
  }

 private:
  static constexpr index_t largest_size = index_t{1} << 31;

  [[nodiscard]] index_t number(std::string_view name, index_t least, index_t most) const {
    const auto there = info_.state.whole(name);
    if (!there)
      throw failure(path_ + ": is no model of train_ctr: has no number \"" + std::string(name) + '"');
    if (*there < least || *there > most) {
      throw failure(path_ + ": is no model of train_ctr: \"" + std::string(name) + "\" is " +
                    std::to_string(*there));
    }
    return *there;
  }
  void get(std::string_view name, bool& choice) const { choice = number(name, 0, 1) == 1; }
  void get(std::string_view name, index_t& size) const { size = number(name, 1, largest_size); }
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

  std::string path_;
  deeprec::table_file_info info_;
};

}  // namespace ctr
