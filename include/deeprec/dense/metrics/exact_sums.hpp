// Sums over the rows of batches that depend neither on their order nor on threads: what a streaming metric is
// made of.
//
//   class brier_score : public exact_sums<brier_score> {
//    public:
//     double value() const noexcept { return first() / second(); }     the mean of (p - y)^2
//
//    private:
//     friend exact_sums;
//     static terms terms_of(double logit, double label) noexcept {
//       const double off = sigmoid(logit) - label;
//       return {off * off, 1};
//     }
//   };
//
// Sums are integers of 128 bits that count 2^-60: they add exactly, so in any order.
// Source: the long accumulator of Kulisch, "Computer Arithmetic and Validity" (de Gruyter, 2008), here of 128
// bits.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/metrics/detail/scored.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Two sums over rows, the base of a metric: Metric::terms_of(logit, label) returns what a row adds to
/// first() and to second(). A row with a weight adds the weight times that.
///
/// @pre     terms are not negative, and neither sum reaches 2^68
/// @threads one thread at a time
/// @example @snippet tests/dense/metrics_test.cpp exact_sums
template <class Metric>
class exact_sums {
 public:
  /// Adds a batch.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1]
  /// @numerics a term is truncated to a multiple of 2^-60 and added exactly: the sums are the same, bit for
  ///           bit, however the rows were split, ordered or merged
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels) {
    if (const status bad = detail::check_scored(logits, labels); !bad) return bad;
    for (index_t i = 0; i < logits.extent(0); ++i) add_row(*logits.row(i), *labels.row(i), 1.0);
    return {};
  }
  /// Adds a batch whose samples have weights. Weights of 1 give the bits of a batch without.
  ///
  /// @shape    logits (B,1), not NaN · labels (B,1), in [0, 1] · weights (B,1), in [0, 2^20]
  /// @numerics a weight times a term is rounded to double; then as without weights
  /// @cost     O(B); keeps nothing
  /// @threads  one thread at a time
  /// @error    shape_mismatch · invalid_value (its row); nothing was added then
  [[nodiscard]] status add(matrix_view<const float> logits, matrix_view<const float> labels,
                           matrix_view<const float> weights) {
    if (const status bad = detail::check_scored(logits, labels); !bad) return bad;
    if (const status bad = detail::check_weights(weights, logits.extent(0)); !bad) return bad;
    for (index_t i = 0; i < logits.extent(0); ++i) {
      add_row(*logits.row(i), *labels.row(i), static_cast<double>(*weights.row(i)));
    }
    return {};
  }
  /// Adds all rows of `other`.
  ///
  /// @numerics exact
  /// @cost     O(1)
  /// @threads  one thread at a time
  /// @error    none
  void merge(const exact_sums& other) noexcept {
    first_ += other.first_;
    second_ += other.second_;
    rows_ += other.rows_;
  }
  /// Rows added.
  [[nodiscard]] index_t rows() const noexcept { return rows_; }

 protected:
  /// What a row with a weight of 1 adds to each sum.
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

}}  // namespace deeprec::DEEPREC_ABI
