// Calibration of click models: the predicted click-through rate over the observed one.
//
//   calibration ratio;
//   for (batch) ratio.add(logits, labels);
//   ratio.merge(other_part);      ratio.value()      1: as many clicks as predicted; 1.1: a tenth too many
//
// It is exact: the value is the same, bit for bit, however the rows were split, ordered or merged.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/logistic_loss.hpp>
#include <deeprec/dense/metrics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The sum of the probabilities 1 / (1 + exp(-logit)) over the sum of the labels; where samples have weights,
/// the sums of weight times probability and of weight times label.
///
/// @threads one thread at a time
class calibration {
 public:
  /// Adds a batch.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1]
  /// @numerics each row's probability in double; it and the label truncated to multiples of 2^-60; the sums
  ///           of these are exact
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  /// @example  @snippet tests/dense/calibration_test.cpp calibration
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels) {
    return detail::for_each_scored(logits, labels, nullptr, [this](float logit, float label, double weight) {
      add_row(logit, label, weight);
    });
  }
  /// Adds a batch whose samples have weights. Weights of 1 give the bits of a batch without.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1] · weights (B,1), in [0, 2^20]
  /// @numerics weight times probability and weight times label in double, truncated to multiples of 2^-60;
  ///           the sums of these are exact while that of the weights is below 2^68
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels,
                           matrix_view<const float> weights) {
    return detail::for_each_scored(logits, labels, &weights, [this](float logit, float label, double weight) {
      add_row(logit, label, weight);
    });
  }

  /// Adds all rows of `other`.
  ///
  /// @cost    O(1)
  /// @threads one thread at a time
  /// @error   none
  void merge(const calibration& other) noexcept {
    predicted_ += other.predicted_;
    observed_ += other.observed_;
    rows_ += other.rows_;
  }

  /// predicted() / observed(); infinite where every label or its weight was 0; NaN before the first row, and
  /// where both sums are 0.
  ///
  /// @cost    O(1)
  /// @threads one thread at a time
  /// @error   none
  [[nodiscard]] double value() const noexcept { return predicted() / observed(); }

  /// The sum of weight times probability.
  [[nodiscard]] double predicted() const noexcept { return static_cast<double>(predicted_) * 0x1p-60; }
  /// The sum of weight times label.
  [[nodiscard]] double observed() const noexcept { return static_cast<double>(observed_) * 0x1p-60; }
  [[nodiscard]] index_t rows() const noexcept { return rows_; }

 private:
  void add_row(float logit, float label, double weight) noexcept {
    predicted_ += static_cast<unsigned __int128>(weight * sigmoid(static_cast<double>(logit)) * 0x1p60);
    observed_ += static_cast<unsigned __int128>(weight * static_cast<double>(label) * 0x1p60);
    ++rows_;
  }

  unsigned __int128 predicted_ = 0;
  unsigned __int128 observed_ = 0;
  index_t rows_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
