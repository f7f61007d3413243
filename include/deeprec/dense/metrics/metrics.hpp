// Streaming metrics of click models: add batches, merge parts, read the value at the end.
//
//   auc area;  log_loss loss;
//   for (batch) { area.add(logits, labels); loss.add(logits, labels); }
//   area.merge(other_part);      area.value(), loss.value()
//
// Both are exact: the value is the same, bit for bit, however the rows were split, ordered or
// merged. So are grouped_auc (dense/metrics/grouped_auc.hpp) and calibration (dense/metrics/calibration.hpp).
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

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

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

}  // namespace detail

/// Area under the ROC curve: the fraction of pairs (positive, negative) that the scores order correctly; a
/// tie counts one half.
///
/// @threads one thread at a time
class auc {
 public:
  explicit auc(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : positives_(memory), negatives_(memory) {}

  /// Adds a batch. Any increasing function of the probability serves as a score.
  ///
  /// @shape   scores (B,1), not NaN · labels (B,1), 0 or 1
  /// @cost    O(B); keeps 4 bytes a row
  /// @threads one thread at a time
  /// @error   shape_mismatch · invalid_value (its row); nothing was added then. bad_alloc: some rows were
  [[nodiscard]] status add(matrix_view<const float> scores, matrix_view<const float> labels) {
    if (const status bad = detail::check_scored(scores, labels); !bad) return bad;
    for (index_t i = 0; i < labels.extent(0); ++i) {
      if (*labels.row(i) != 0 && *labels.row(i) != 1) {
        return {errc::invalid_value, "auc: a label must be 0 or 1", {.row = i}};
      }
    }
    for (index_t i = 0; i < labels.extent(0); ++i) {
      (*labels.row(i) != 0 ? positives_ : negatives_).push_back(*scores.row(i));
    }
    return {};
  }

  /// Adds all rows of `other`.
  ///
  /// @cost    O(N)
  /// @threads one thread at a time
  /// @error   bad_alloc; some rows were added then
  void merge(const auc& other) {
    positives_.insert(positives_.end(), other.positives_.begin(), other.positives_.end());
    negatives_.insert(negatives_.end(), other.negatives_.begin(), other.negatives_.end());
  }

  /// The area; NaN while one of the classes is absent.
  ///
  /// @numerics pairs are counted exactly; rounded once
  /// @cost     O(N log N): sorts what was kept
  /// @threads  one thread at a time
  /// @error    none
  [[nodiscard]] double value() {
    if (positives_.empty() || negatives_.empty()) return std::numeric_limits<double>::quiet_NaN();
    std::sort(positives_.begin(), positives_.end());
    std::sort(negatives_.begin(), negatives_.end());
    unsigned __int128 half_wins = 0;
    auto below = negatives_.cbegin();
    auto not_above = negatives_.cbegin();
    for (const float score : positives_) {
      while (below != negatives_.cend() && *below < score) ++below;
      while (not_above != negatives_.cend() && *not_above <= score) ++not_above;
      half_wins += static_cast<std::uint64_t>(below - negatives_.cbegin());
      half_wins += static_cast<std::uint64_t>(not_above - negatives_.cbegin());
    }
    const auto pairs = static_cast<unsigned __int128>(positives_.size()) * negatives_.size();
    return static_cast<double>(half_wins) / (2 * static_cast<double>(pairs));
  }

  [[nodiscard]] index_t positives() const noexcept { return static_cast<index_t>(positives_.size()); }
  [[nodiscard]] index_t negatives() const noexcept { return static_cast<index_t>(negatives_.size()); }

 private:
  std::pmr::vector<float> positives_;
  std::pmr::vector<float> negatives_;
};

/// Mean binary cross entropy of logits; where samples have weights, the sum of weight times loss over the
/// sum of the weights. A logit beyond +-2^31 counts as +-2^31. The sums are exact while that of the weights
/// (without weights: the number of rows) is below 2^36.
///
/// @threads one thread at a time
class log_loss : public detail::exact_sums<log_loss> {
 public:
  /// The mean; NaN before the first row, and where all weights are 0.
  ///
  /// @cost    O(1)
  /// @threads one thread at a time
  /// @error   none
  [[nodiscard]] double value() const noexcept { return first() / second(); }

 private:
  friend exact_sums;
  static terms terms_of(double logit, double label) noexcept {
    return {detail::logistic_loss_of(std::clamp(logit, -0x1p31, 0x1p31), label), 1};
  }
};

}}  // namespace deeprec::DEEPREC_ABI
