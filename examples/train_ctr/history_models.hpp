// The models of histories, by their names.
#pragma once

#include <array>
#include <atomic>
#include <string_view>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

namespace ctr {

struct options;
struct data_facts;
struct score;
class run_journal;
class saved_model;

inline constexpr std::array<const char*, 2> history_models = {"din", "dssm"};
inline bool is_history_model(std::string_view name) {
  for (const char* model : history_models) {
    if (name == model) return true;
  }
  return false;
}

/// Trains and tests the models that the options name; their scores are added. Throws a failure.
data_facts run_history_models(deeprec::thread_pool& pool, const options& o, run_journal& journal,
                              std::vector<score>& scores, const std::atomic<bool>& interrupted);
/// Writes for each row of a file, a history and an item, the probability of din or the cosine of dssm, in its
/// order, one a line. Throws a failure.
void predict_histories(deeprec::thread_pool& pool, const options& o, const saved_model& saved,
                       const std::atomic<bool>& interrupted);
/// How good a saved model is for the rows of a file, which have labels. Throws a failure.
score evaluate_histories(deeprec::thread_pool& pool, const options& o, const saved_model& saved,
                         const std::atomic<bool>& interrupted);

}  // namespace ctr
