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
#include <cstddef>
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
/// tie counts one half. Where samples have weights, a pair counts the product of its two.
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
    return add_rows(scores, labels, {});
  }
  /// Adds a batch whose samples have weights; one with a weight of 0 is left out.
  ///
  /// @shape   scores (B,1), not NaN · labels (B,1), 0 or 1 · weights (B,1), in [0, 2^20]
  /// @cost    O(B); keeps 4 bytes a row, 8 where its weight is not 1
  /// @threads one thread at a time
  /// @error   shape_mismatch · invalid_value (its row); nothing was added then. bad_alloc: some rows were
  [[nodiscard]] status add(matrix_view<const float> scores, matrix_view<const float> labels,
                           matrix_view<const float> weights) {
    if (const status bad = detail::check_weights(weights, scores.extent(0)); !bad) return bad;
    return add_rows(scores, labels, weights);
  }

  /// Adds all rows of `other`.
  ///
  /// @cost    O(N)
  /// @threads one thread at a time
  /// @error   bad_alloc; some rows were added then
  void merge(const auc& other) {
    positives_.insert(other.positives_);
    negatives_.insert(other.negatives_);
  }

  /// The area; NaN while one of the classes is absent.
  ///
  /// @numerics while all weights are 1, pairs are counted exactly, and rounded once. With others sums are
  ///           doubles, added in the order of scores and weights: the relative error is below N 2^-51
  /// @cost     O(N log N): sorts what was kept
  /// @threads  one thread at a time
  /// @error    none
  [[nodiscard]] double value() {
    if (positives() == 0 || negatives() == 0) return std::numeric_limits<double>::quiet_NaN();
    positives_.sort();
    negatives_.sort();
    if (!positives_.weighted.empty() || !negatives_.weighted.empty()) return weighted_area();
    const std::pmr::vector<float>& lower = negatives_.of_one;
    unsigned __int128 half_wins = 0;
    auto below = lower.cbegin();
    auto not_above = lower.cbegin();
    for (const float score : positives_.of_one) {
      while (below != lower.cend() && *below < score) ++below;
      while (not_above != lower.cend() && *not_above <= score) ++not_above;
      half_wins += static_cast<std::uint64_t>(below - lower.cbegin());
      half_wins += static_cast<std::uint64_t>(not_above - lower.cbegin());
    }
    const auto pairs = static_cast<unsigned __int128>(positives_.of_one.size()) * lower.size();
    return static_cast<double>(half_wins) / (2 * static_cast<double>(pairs));
  }

  /// Rows of each class that were added, without those of weight 0.
  [[nodiscard]] index_t positives() const noexcept { return positives_.rows(); }
  [[nodiscard]] index_t negatives() const noexcept { return negatives_.rows(); }

 private:
  struct weighted_score {
    float score, weight;
  };
  // The rows of a class: scores of those whose weight is 1, and the others.
  struct scored_class {
    std::pmr::vector<float> of_one;
    std::pmr::vector<weighted_score> weighted;

    explicit scored_class(std::pmr::memory_resource* memory) : of_one(memory), weighted(memory) {}
    [[nodiscard]] index_t rows() const noexcept {
      return static_cast<index_t>(of_one.size() + weighted.size());
    }
    void insert(const scored_class& more) {
      of_one.insert(of_one.end(), more.of_one.begin(), more.of_one.end());
      weighted.insert(weighted.end(), more.weighted.begin(), more.weighted.end());
    }
    void sort() {
      std::sort(of_one.begin(), of_one.end());
      std::sort(weighted.begin(), weighted.end(), [](const weighted_score& a, const weighted_score& b) {
        return a.score != b.score ? a.score < b.score : a.weight < b.weight;
      });
    }
  };
  // The distinct scores of a sorted class, in order.
  struct score_walk {
    const scored_class* of;
    std::size_t one = 0, weighted = 0;  // the next of each

    [[nodiscard]] bool ended() const noexcept {
      return one == of->of_one.size() && weighted == of->weighted.size();
    }
    /// The next score.
    ///
    /// @pre !ended()
    [[nodiscard]] float score() const noexcept {
      if (one == of->of_one.size()) return of->weighted[weighted].score;
      if (weighted == of->weighted.size()) return of->of_one[one];
      return (std::min)(of->of_one[one], of->weighted[weighted].score);
    }
    /// The weight of all rows of this score, which is the next one or between two.
    double take(float score) noexcept {
      const std::size_t first = one;
      while (one < of->of_one.size() && of->of_one[one] == score) ++one;
      auto sum = static_cast<double>(one - first);
      for (; weighted < of->weighted.size() && of->weighted[weighted].score == score; ++weighted)
        sum += static_cast<double>(of->weighted[weighted].weight);
      return sum;
    }
  };

  [[nodiscard]] status add_rows(matrix_view<const float> scores, matrix_view<const float> labels,
                                matrix_view<const float> weights) {
    if (const status bad = detail::check_scored(scores, labels); !bad) return bad;
    for (index_t i = 0; i < labels.extent(0); ++i) {
      if (*labels.row(i) != 0 && *labels.row(i) != 1) {
        return {errc::invalid_value, "auc: a label must be 0 or 1", {.row = i}};
      }
    }
    for (index_t i = 0; i < labels.extent(0); ++i) {
      const float weight = weights.extent(0) > 0 ? *weights.row(i) : 1.0F;
      scored_class& to = *labels.row(i) != 0 ? positives_ : negatives_;
      if (weight == 1) {
        to.of_one.push_back(*scores.row(i));
      } else if (weight > 0) {
        to.weighted.push_back({*scores.row(i), weight});
      }
    }
    return {};
  }
  [[nodiscard]] double weighted_area() const noexcept {
    double wins = 0, positives = 0, negatives = 0;
    score_walk upper{&positives_}, lower{&negatives_};
    while (!upper.ended() || !lower.ended()) {
      const float score = upper.ended()   ? lower.score()
                          : lower.ended() ? upper.score()
                                          : (std::min)(upper.score(), lower.score());
      const double above = upper.take(score), tied = lower.take(score);
      wins += above * (negatives + 0.5 * tied);
      positives += above;
      negatives += tied;
    }
    return wins / (positives * negatives);
  }

  scored_class positives_;
  scored_class negatives_;
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
