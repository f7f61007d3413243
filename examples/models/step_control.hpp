// What a training sets before a step of a model, and takes after it: the scales of its rates, what dropout
// drops, and the loss.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/dense/metrics/metrics.hpp>

namespace ctr {

/// Adds a batch to a metric. Weights without rows: 1 each.
template <class Metric>
[[nodiscard]] deeprec::status add_to(Metric& metric, deeprec::matrix_view<const float> logits,
                                     deeprec::matrix_view<const float> labels,
                                     deeprec::matrix_view<const float> weights) {
  return weights.extent(0) == 0 ? metric.add(logits, labels) : metric.add(logits, labels, weights);
}

/// The mean loss of the samples that were trained on, each with the parameters before its step. Its bits do
/// not depend on the order of the parts of a batch.
///
/// @threads add, take: any; switch_on: before the first step
class loss_meter {
 public:
  void switch_on() { is_on_ = true; }
  void add(deeprec::matrix_view<const float> logits, deeprec::matrix_view<const float> labels,
           deeprec::matrix_view<const float> weights) {
    if (!is_on_) return;
    deeprec::log_loss part;
    // Labels beyond 0 and 1, or a logit of NaN: the step itself finds them.
    if (!add_to(part, logits, labels, weights)) return;
    const std::lock_guard lock(adding_);
    sum_.merge(part);
  }
  /// What was added since the last call.
  [[nodiscard]] deeprec::log_loss take() {
    const std::lock_guard lock(adding_);
    return std::exchange(sum_, {});
  }

 private:
  bool is_on_ = false;
  std::mutex adding_;
  deeprec::log_loss sum_;
};

/// Stacks and rows have a scale each, since with a stale window those of different batches are stepped at
/// once.
struct step_control {
  float stack_scale = 1, row_scale = 1;  ///< of learning rates
  float dropout = 0;                     ///< the rate, of hidden layers
  std::uint64_t dropout_seed = 0;        ///< of a run
  deeprec::index_t number = 0;           ///< of the step, from 0
  loss_meter loss;

  /// What the pass of stack `k` of the model drops, over samples of the batch from `first` on.
  [[nodiscard]] deeprec::mlp_dropout dropout_of(int k, deeprec::index_t first) const {
    const std::uint64_t step = deeprec::mix64(dropout_seed + static_cast<std::uint64_t>(number));
    return {
        .rate = dropout, .seed = deeprec::mix64(step + static_cast<std::uint64_t>(k)), .first_row = first};
  }
};

}  // namespace ctr
