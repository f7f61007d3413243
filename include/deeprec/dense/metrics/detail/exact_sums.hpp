// What metrics share: the checks of scores, and sums that depend neither on order nor on threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Checks that no score is NaN and that labels are in [0, 1]; the error has the first row that fails.
inline status check_scored(matrix_view<const float> scores, matrix_view<const float> labels) {
  if (!well_formed(scores) || scores.extent(1) != 1) {
    return {errc::shape_mismatch, "metric: scores must be (B,1)"};
  }
  if (!well_formed(labels) || !has_shape(labels, scores.extent(0), 1)) {
    return {errc::shape_mismatch, "metric: labels must be (B,1)"};
  }
  for (index_t i = 0; i < scores.extent(0); ++i) {
    if (std::isnan(*scores.row(i))) {
      return {errc::invalid_value, "metric: a score must not be NaN", {.row = i}};
    }
    const float label = *labels.row(i);
    if (!(label >= 0 && label <= 1)) {
      return {errc::invalid_value, "metric: a label must be in [0, 1]", {.row = i}};
    }
  }
  return {};
}

/// Checks that weights are in [0, 2^20]; the error has the first row that fails.
inline status check_weights(matrix_view<const float> weights, index_t batch) {
  if (!well_formed(weights) || !has_shape(weights, batch, 1)) {
    return {errc::shape_mismatch, "metric: weights must be (B,1)"};
  }
  for (index_t i = 0; i < batch; ++i) {
    if (!(*weights.row(i) >= 0 && *weights.row(i) <= 0x1p20F)) {
      return {errc::invalid_value, "metric: a weight must be in [0, 2^20]", {.row = i}};
    }
  }
  return {};
}

/// Two exact sums over rows, of terms in double that are truncated to multiples of 2^-60.
/// Metric::terms_of(logit, label) returns the two of a row with a weight of 1.
template <class Metric>
class exact_sums {
 public:
  /// Adds a batch.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1]
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels) {
    if (const status bad = check_scored(logits, labels); !bad) return bad;
    for (index_t i = 0; i < logits.extent(0); ++i) add_row(*logits.row(i), *labels.row(i), 1.0);
    return {};
  }
  /// Adds a batch whose samples have weights. Weights of 1 give the bits of a batch without.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1] · weights (B,1), in [0, 2^20]
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels,
                           matrix_view<const float> weights) {
    if (const status bad = check_scored(logits, labels); !bad) return bad;
    if (const status bad = check_weights(weights, logits.extent(0)); !bad) return bad;
    for (index_t i = 0; i < logits.extent(0); ++i) {
      add_row(*logits.row(i), *labels.row(i), static_cast<double>(*weights.row(i)));
    }
    return {};
  }
  /// Adds all rows of `other`.
  ///
  /// @cost    O(1)
  /// @threads one thread at a time
  /// @error   none
  void merge(const exact_sums& other) noexcept {
    first_ += other.first_;
    second_ += other.second_;
    rows_ += other.rows_;
  }
  [[nodiscard]] index_t rows() const noexcept { return rows_; }

 protected:
  struct terms {
    double first, second;
  };
  [[nodiscard]] double first() const noexcept { return static_cast<double>(first_) * 0x1p-60; }
  [[nodiscard]] double second() const noexcept { return static_cast<double>(second_) * 0x1p-60; }

 private:
  void add_row(float logit, float label, double weight) noexcept {
    const terms of = Metric::terms_of(static_cast<double>(logit), static_cast<double>(label));
    first_ += static_cast<unsigned __int128>(weight * of.first * 0x1p60);
    second_ += static_cast<unsigned __int128>(weight * of.second * 0x1p60);
    ++rows_;
  }

  unsigned __int128 first_ = 0;
  unsigned __int128 second_ = 0;
  index_t rows_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
