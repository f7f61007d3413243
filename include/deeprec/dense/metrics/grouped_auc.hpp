// Grouped AUC (GAUC): how well scores order the rows of one user, or of one session, on average.
//
//   grouped_auc area;
//   for (batch) area.add(scores, labels, user_ids);
//   area.merge(other_part);      area.value(), area.groups(), area.groups_left_out()
//
//            sum over groups of  n_g AUC_g             n_g: rows of the group, or the sum of their weights
//   GAUC  =  -----------------------------
//            sum over groups of  n_g
//
// A group with one class only has no AUC: it is left out of both sums. The value is the same, bit for bit,
// however the rows were split, ordered or merged.
// Source: Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction", arXiv:1706.06978.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/metrics/detail/scored.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The mean of the groups' areas under the ROC curve, weighted by their rows, or where samples have weights
/// by the sums of these. In a group a tie counts one half, and a pair the product of its weights, as in auc.
///
/// @threads one thread at a time
class grouped_auc {
 public:
  explicit grouped_auc(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : scored_(memory) {}

  /// Adds a batch. Any increasing function of the probability serves as a score; rows of a group may come in
  /// any number of batches.
  ///
  /// @shape   scores (B,1), not NaN · labels (B,1), 0 or 1 · groups (B), any ids
  /// @cost    O(B); keeps 16 bytes a row
  /// @threads one thread at a time
  /// @error   shape_mismatch · invalid_value (its row) · out_of_memory; nothing was added then
  /// @example @snippet tests/dense/grouped_auc_test.cpp grouped_auc
  [[nodiscard]] status add(matrix_view<const float> scores, matrix_view<const float> labels,
                           array_view<const std::int64_t> groups) {
    return add_rows(scores, labels, groups, {});
  }
  /// Adds a batch whose samples have weights; one with a weight of 0 is left out.
  ///
  /// @shape   scores (B,1), not NaN · labels (B,1), 0 or 1 · groups (B), any ids · weights (B,1), in
  ///          [0, 2^20]
  /// @cost    O(B); keeps 16 bytes a row
  /// @threads one thread at a time
  /// @error   shape_mismatch · invalid_value (its row) · out_of_memory; nothing was added then
  [[nodiscard]] status add(matrix_view<const float> scores, matrix_view<const float> labels,
                           array_view<const std::int64_t> groups, matrix_view<const float> weights) {
    if (const status bad = detail::check_weights(weights, scores.extent(0)); !bad) return bad;
    return add_rows(scores, labels, groups, weights);
  }

  /// Adds all rows of `other`.
  ///
  /// @cost    O(N)
  /// @threads one thread at a time
  /// @error   bad_alloc; nothing was added then
  void merge(const grouped_auc& other) {
    const std::size_t rows = other.scored_.size();  // other may be *this
    make_room(rows);
    for (std::size_t i = 0; i < rows; ++i) scored_.push_back(other.scored_[i]);
    all_ones_ = all_ones_ && other.all_ones_;
  }

  /// The weighted mean; NaN while no group has rows of both classes.
  ///
  /// @numerics while all weights are 1, pairs are counted exactly; n_g AUC_g is rounded to double twice, and
  ///           added in the order of the groups' ids. With others all sums are doubles, in the order of
  ///           scores and weights: the relative error is below N 2^-51
  /// @cost     O(N log N): sorts what was kept; O(1) where nothing was added since the last call
  /// @threads  one thread at a time
  /// @error    none
  [[nodiscard]] double value() {
    count_groups();
    return weight_ == 0 ? std::numeric_limits<double>::quiet_NaN() : sum_ / weight_;
  }

  /// Groups with rows of both classes.
  ///
  /// @cost    as value()
  /// @threads one thread at a time
  /// @error   none
  [[nodiscard]] index_t groups() {
    count_groups();
    return groups_;
  }

  /// Groups with rows of one class only: they are not in the mean.
  ///
  /// @cost    as value()
  /// @threads one thread at a time
  /// @error   none
  [[nodiscard]] index_t groups_left_out() {
    count_groups();
    return left_out_;
  }

  /// Rows added, of every group, without those of weight 0.
  [[nodiscard]] index_t rows() const noexcept { return static_cast<index_t>(scored_.size()); }

 private:
  struct scored_row {
    std::int64_t group;
    float score;
    float weight;  // of a negative: minus it
  };

  [[nodiscard]] status add_rows(matrix_view<const float> scores, matrix_view<const float> labels,
                                array_view<const std::int64_t> groups, matrix_view<const float> weights) {
    if (const status bad = detail::check_scored(scores, labels); !bad) return bad;
    const index_t batch = labels.extent(0);
    if (const status bad =
            detail::expect_size(groups.size(), batch, "grouped_auc: groups.size() must be scores.extent(0)");
        !bad) {
      return bad;
    }
    if (!groups.valid()) return {errc::shape_mismatch, "grouped_auc: groups must not be null"};
    for (index_t i = 0; i < batch; ++i) {
      if (*labels.row(i) != 0 && *labels.row(i) != 1) {
        return {errc::invalid_value, "grouped_auc: a label must be 0 or 1", {.row = i}};
      }
    }
    return detail::or_out_of_memory("grouped_auc::add", [&]() -> status {
      make_room(static_cast<std::size_t>(batch));
      for (index_t i = 0; i < batch; ++i) {
        const float weight = weights.extent(0) > 0 ? *weights.row(i) : 1.0F;
        if (weight == 0) continue;
        scored_.push_back({groups[i], *scores.row(i), *labels.row(i) != 0 ? weight : -weight});
        all_ones_ = all_ones_ && weight == 1;
      }
      return {};
    });
  }
  void make_room(std::size_t more) {
    if (more == 0) return;
    const std::size_t needed = scored_.size() + more;
    if (needed > scored_.capacity()) scored_.reserve((std::max)(needed, 2 * scored_.capacity()));
    counted_ = false;
  }

  void count_groups() {
    if (counted_) return;
    std::sort(scored_.begin(), scored_.end(), [](const scored_row& a, const scored_row& b) {
      if (a.group != b.group) return a.group < b.group;
      return a.score != b.score ? a.score < b.score : a.weight < b.weight;
    });
    if (all_ones_) {
      sum_groups<std::uint64_t, unsigned __int128>();
    } else {
      sum_groups<double, double>();
    }
    counted_ = true;
  }
  /// Weight: the sums of weights; Pairs: of products of two.
  template <class Weight, class Pairs>
  void sum_groups() noexcept {
    sum_ = weight_ = 0;
    groups_ = left_out_ = 0;
    for (auto at = scored_.cbegin(); at != scored_.cend();) {
      const std::int64_t group = at->group;
      Weight positives = 0, negatives = 0;
      Pairs half_wins = 0;
      while (at != scored_.cend() && at->group == group) {
        const float score = at->score;
        Weight tied_positives = 0, tied_negatives = 0;
        for (; at != scored_.cend() && at->group == group && at->score == score; ++at) {
          (at->weight > 0 ? tied_positives : tied_negatives) += static_cast<Weight>(std::abs(at->weight));
        }
        half_wins += static_cast<Pairs>(tied_positives) * (2 * negatives + tied_negatives);
        positives += tied_positives;
        negatives += tied_negatives;
      }
      if (positives == 0 || negatives == 0) {
        ++left_out_;
        continue;
      }
      ++groups_;
      weight_ += static_cast<double>(positives + negatives);
      const Pairs weighted = half_wins * (positives + negatives);
      const Pairs pairs = static_cast<Pairs>(positives) * negatives;
      sum_ += static_cast<double>(weighted) / static_cast<double>(2 * pairs);
    }
  }

  std::pmr::vector<scored_row> scored_;
  double sum_ = 0;     // of n_g AUC_g
  double weight_ = 0;  // of n_g
  index_t groups_ = 0;
  index_t left_out_ = 0;
  bool all_ones_ = true;  // the weights
  bool counted_ = true;
};

}}  // namespace deeprec::DEEPREC_ABI
