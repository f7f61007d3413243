// Grouped AUC (GAUC): how well scores order the rows of one user, or of one session, on average.
//
//   grouped_auc area;
//   for (batch) area.add(scores, labels, user_ids);
//   area.merge(other_part);      area.value(), area.groups(), area.groups_left_out()
//
//            sum over groups of  n_g AUC_g             n_g: rows of the group
//   GAUC  =  -----------------------------
//            sum over groups of  n_g
//
// A group with one class only has no AUC: it is left out of both sums. The value is the same, bit for bit,
// however the rows were split, ordered or merged.
// Source: Zhou et al. 2018, "Deep Interest Network for Click-Through Rate Prediction", arXiv:1706.06978.
#pragma once

#include <algorithm>
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

/// The mean of the groups' areas under the ROC curve, weighted by their rows. In a group a tie counts one
/// half, as in auc.
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
        scored_.push_back({groups[i], *scores.row(i), *labels.row(i) != 0});
      }
      return {};
    });
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
  }

  /// The weighted mean; NaN while no group has rows of both classes.
  ///
  /// @numerics pairs are counted exactly; n_g AUC_g is rounded to double twice, and added in the order of the
  ///           groups' ids
  /// @cost     O(N log N): sorts what was kept; O(1) where nothing was added since the last call
  /// @threads  one thread at a time
  /// @error    none
  [[nodiscard]] double value() {
    count_groups();
    return rows_counted_ == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : sum_ / static_cast<double>(rows_counted_);
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

  /// Rows added, of every group.
  [[nodiscard]] index_t rows() const noexcept { return static_cast<index_t>(scored_.size()); }

 private:
  struct scored_row {
    std::int64_t group;
    float score;
    bool positive;
  };

  void make_room(std::size_t more) {
    if (more == 0) return;
    const std::size_t needed = scored_.size() + more;
    if (needed > scored_.capacity()) scored_.reserve((std::max)(needed, 2 * scored_.capacity()));
    counted_ = false;
  }

  void count_groups() {
    if (counted_) return;
    std::sort(scored_.begin(), scored_.end(), [](const scored_row& a, const scored_row& b) {
      return a.group != b.group ? a.group < b.group : a.score < b.score;
    });
    sum_ = 0;
    rows_counted_ = groups_ = left_out_ = 0;
    for (auto at = scored_.cbegin(); at != scored_.cend();) {
      const std::int64_t group = at->group;
      std::uint64_t positives = 0, negatives = 0;
      unsigned __int128 half_wins = 0;
      while (at != scored_.cend() && at->group == group) {
        const float score = at->score;
        std::uint64_t tied_positives = 0, tied_negatives = 0;
        for (; at != scored_.cend() && at->group == group && at->score == score; ++at) {
          ++(at->positive ? tied_positives : tied_negatives);
        }
        half_wins += static_cast<unsigned __int128>(tied_positives) * (2 * negatives + tied_negatives);
        positives += tied_positives;
        negatives += tied_negatives;
      }
      if (positives == 0 || negatives == 0) {
        ++left_out_;
        continue;
      }
      ++groups_;
      rows_counted_ += static_cast<index_t>(positives + negatives);
      const auto weighted = half_wins * (positives + negatives);
      const auto pairs = static_cast<unsigned __int128>(positives) * negatives;
      sum_ += static_cast<double>(weighted) / static_cast<double>(2 * pairs);
    }
    counted_ = true;
  }

  std::pmr::vector<scored_row> scored_;
  double sum_ = 0;  // of n_g AUC_g
  index_t rows_counted_ = 0;
  index_t groups_ = 0;
  index_t left_out_ = 0;
  bool counted_ = true;
};

}}  // namespace deeprec::DEEPREC_ABI
