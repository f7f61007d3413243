// Streaming metrics of click models: add batches, merge parts, read the value at the end.
//
//   auc area;  log_loss loss;
//   for (batch) { area.add(logits, labels); loss.add(logits, labels); }
//   area.merge(other_part);      area.value(), loss.value()
//
// Both are exact: the value is the same, bit for bit, however the rows were split, ordered or
// merged. So are grouped_auc (dense/metrics/grouped_auc.hpp), calibration (dense/metrics/calibration.hpp) and
// your own metrics on exact_sums (dense/metrics/exact_sums.hpp).
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
#include <deeprec/dense/metrics/detail/scored.hpp>
#include <deeprec/dense/metrics/exact_sums.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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
class log_loss : public exact_sums<log_loss> {
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
