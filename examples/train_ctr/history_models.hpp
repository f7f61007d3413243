// The models of histories, by their names.
#pragma once

#include <array>
#include <atomic>
#include <string_view>

#include <deeprec/exec/thread_pool.hpp>

namespace ctr {

struct options;
class saved_model;

inline constexpr std::array<const char*, 2> history_models = {"din", "dssm"};
inline bool is_history_model(std::string_view name) {
  for (const char* model : history_models) {
    if (name == model) return true;
  }
  return false;
}

/// Trains and tests the models that the options name, and prints how good they are. Throws a failure.
void run_history_models(deeprec::thread_pool& pool, const options& o, const std::atomic<bool>& interrupted);
/// Writes for each row of a file, a history and an item, the probability of din or the cosine of dssm, in its
/// order, one a line. Throws a failure.
void predict_histories(deeprec::thread_pool& pool, const options& o, const saved_model& saved,
                       const std::atomic<bool>& interrupted);

}  // namespace ctr
