// Calibration of click models: the predicted click-through rate over the observed one.
//
//   calibration ratio;
//   for (batch) ratio.add(logits, labels);
//   ratio.merge(other_part);      ratio.value()      1: as many clicks as predicted; 1.1: a tenth too many
//
// It is exact: the value is the same, bit for bit, however the rows were split, ordered or merged.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/exact_sums.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The sum of the probabilities 1 / (1 + exp(-logit)) over the sum of the labels; where samples have weights,
/// the sums of weight times probability and of weight times label. They are exact while the sum of the
/// weights is below 2^68.
///
/// @threads one thread at a time
/// @example @snippet tests/dense/calibration_test.cpp calibration
class calibration : public exact_sums<calibration> {
 public:
  /// predicted() / observed(); infinite where every label or its weight was 0; NaN before the first row, and
  /// where both sums are 0.
  ///
  /// @cost    O(1)
  /// @threads one thread at a time
  /// @error   none
  [[nodiscard]] double value() const noexcept { return predicted() / observed(); }

  /// The sum of weight times probability.
  [[nodiscard]] double predicted() const noexcept { return first(); }
  /// The sum of weight times label.
  [[nodiscard]] double observed() const noexcept { return second(); }

 private:
  friend exact_sums;
  static terms terms_of(double logit, double label) noexcept { return {sigmoid(logit), label}; }
};

}}  // namespace deeprec::DEEPREC_ABI
