// The models of a click log, by their names.
#pragma once

#include <array>
#include <atomic>
#include <string_view>

#include <deeprec/exec/thread_pool.hpp>

namespace ctr {

struct options;
struct ctr_input;
struct score;
struct skipped_rows;
class saved_model;

/// Throw a failure.
struct click_model_runs {
  const char* name;
  score (*train)(deeprec::thread_pool&, ctr_input&, const options&, const std::atomic<bool>& interrupted);
  void (*predict)(deeprec::thread_pool&, const options&, const saved_model&,
                  const std::atomic<bool>& interrupted);
  score (*evaluate)(deeprec::thread_pool&, const options&, const saved_model&,
                    const std::atomic<bool>& interrupted, skipped_rows& skipped);
};

extern const click_model_runs dlrm_runs, wide_deep_runs, logistic_regression_runs, deepfm_runs, dcn_runs;
inline constexpr std::array<const click_model_runs*, 5> click_models = {
    &dlrm_runs, &wide_deep_runs, &deepfm_runs, &dcn_runs, &logistic_regression_runs};

/// Null where there is none.
const click_model_runs* find_click_model(std::string_view name);

}  // namespace ctr
