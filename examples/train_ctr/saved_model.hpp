// A model and where its training stands, in a file and back: training goes on as if it had never stopped.
//
//   --epochs 2   =   --epochs 1 --save FILE,  then  --load FILE --epochs 1        bit for bit
//
// The rows' order follows from the seed and the size of a window, so the file needs to know only how many
// rows were trained on. A step is whole: a file may stand between any two.
#pragma once

#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/table_file.hpp>

namespace train_ctr {

using deeprec::index_t;

struct training_place {
  index_t seed = 0;
  index_t data_rows = 0;
  index_t train_rows = 0;
  index_t window = 0;   ///< rows that are shuffled at a time; 0: all
  index_t hash = 0;     ///< of all rows
  index_t trained = 0;  ///< rows, in all epochs
  index_t steps = 0;
};

/// An empty string, or why not.
template <class Model>
std::string save_model(const std::string& path, Model& model, const training_place& at) {
  deeprec::training_state state;
  state.step = static_cast<std::uint64_t>(at.steps);
  state.numbers = {{"seed", at.seed},
                   {"rows of data", at.data_rows},
                   {"rows to train", at.train_rows},
                   {"rows of a window", at.window},
                   {"hash of the rows", at.hash},
                   {"rows trained", at.trained}};
  const std::vector<deeprec::named_table> parts = model.parts();
  const std::vector<deeprec::const_named_table> read_only(parts.begin(), parts.end());
  const auto saved = save_tables(path, read_only, state);
  return saved ? std::string() : saved.fault().message();
}

/// Fills the model and `at.trained`, `at.steps`; an empty string, or why not.
template <class Model>
std::string load_model(const std::string& path, Model& model, training_place& at) {
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
  const std::vector<deeprec::named_table> parts = model.parts();
  const auto loaded = load_tables(path, parts);
  if (!loaded) return loaded.fault().message();
  at.trained = loaded.value().whole("rows trained").value_or(0);
  at.steps = static_cast<index_t>(loaded.value().step);
  return {};
}

}  // namespace train_ctr
