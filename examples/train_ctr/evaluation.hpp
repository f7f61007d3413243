// How good predictions are: the figures of a pass over rows with labels, and which of several passes is best.
//
//   click_metrics of;  of.add(logits, labels);  ...  const figures found = of.read();
//   best_pass best;    if (best.add(found)) save();  if (best.passes_since() >= patience) stop();
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/dense/metrics/calibration.hpp>
#include <deeprec/dense/metrics/grouped_auc.hpp>
#include <deeprec/dense/metrics/metrics.hpp>

#include "models/ctr_data.hpp"
#include "models/step_control.hpp"

namespace ctr {

inline constexpr double undefined = std::numeric_limits<double>::quiet_NaN();

/// Where weights or predictions are not finite.
inline failure diverged(const std::string& what) {
  return failure(what +
                 " must be finite: the training diverged. Fix: a lower --learning-rate and "
                 "--row-learning-rate, or a scale for dense columns");
}

/// NaN: not defined, or not asked for. Where rows have weights, sums and means are weighted by them, a pair
/// of the AUC by the product of its two, and a group by the sum of its.
struct figures {
  index_t rows = 0;  ///< without those of weight 0
  double auc = undefined;
  const char* no_auc = "";  ///< which one class there is; empty: both
  double log_loss = undefined;
  double calibration = undefined;  ///< the sum of predictions over that of labels
  double group_auc = undefined;    ///< the mean over groups, by their rows
  index_t groups = 0, groups_left_out = 0;

  /// What is kept is what has most of it: the AUC, where there is none the log loss.
  [[nodiscard]] double score() const { return std::isnan(auc) ? -log_loss : auc; }
};

inline void set_auc(figures& of, deeprec::auc& area) {
  of.auc = area.value();
  of.no_auc = area.positives() == 0 ? "no clicks" : area.negatives() == 0 ? "clicks only" : "";
}

/// Of logits, with the weights and the groups of rows where there are any.
class click_metrics {
 public:
  void add(matrix_view<const float> logits, matrix_view<const float> labels,
           matrix_view<const float> weights = {}, const std::int64_t* groups = nullptr) {
    for (index_t i = 0; i < logits.extent(0); ++i) {
      if (std::isnan(logits(i, 0))) throw diverged("a prediction");
    }
    add_to(area_, logits, labels, weights).or_throw();
    add_to(loss_, logits, labels, weights).or_throw();
    add_to(ratio_, logits, labels, weights).or_throw();
    if (groups == nullptr) return;
    const deeprec::array_view<const std::int64_t> of(groups, logits.extent(0));
    (weights.extent(0) == 0 ? by_group_.add(logits, labels, of) : by_group_.add(logits, labels, of, weights))
        .or_throw();
  }
  [[nodiscard]] figures read() {
    figures found;
    found.rows = area_.positives() + area_.negatives();
    set_auc(found, area_);
    found.log_loss = loss_.value();
    // Without clicks there is nothing to be calibrated to.
    found.calibration = ratio_.observed() > 0 ? ratio_.value() : undefined;
    if (by_group_.rows() > 0) {
      found.group_auc = by_group_.value();
      found.groups = by_group_.groups();
      found.groups_left_out = by_group_.groups_left_out();
    }
    return found;
  }

 private:
  deeprec::auc area_;
  deeprec::log_loss loss_;
  deeprec::calibration ratio_;
  deeprec::grouped_auc by_group_;
};

/// A pass over rows that don't train, between two steps.
struct evaluation {
  index_t epoch = 0;  ///< that was begun, from 1
  index_t step = 0;   ///< steps done
  bool ends_epoch = false;
  const char* of = "";            ///< valid, or test
  double train_loss = undefined;  ///< the mean since the last pass
  figures found;
};

/// The best of the passes so far.
class best_pass {
 public:
  /// Whether there is none better yet.
  bool add(const figures& found) {
    if (best_ && found.score() <= *best_) {
      ++since_;
      return false;
    }
    best_ = found.score();
    since_ = 0;
    return true;
  }
  /// As if a pass of this score had been the best.
  void begin(double score) { best_ = score; }
  [[nodiscard]] std::optional<double> score() const { return best_; }
  [[nodiscard]] index_t passes_since() const { return since_; }

 private:
  std::optional<double> best_;
  index_t since_ = 0;
};

/// Whether the last epoch is worse than the first, by the AUC.
inline bool is_overfit(const std::vector<evaluation>& passes) {
  const evaluation *first = nullptr, *last = nullptr;
  for (const evaluation& pass : passes) {
    if (!pass.ends_epoch) continue;
    if (first == nullptr) first = &pass;
    last = &pass;
  }
  return first != last && last->found.auc < first->found.auc;
}

}  // namespace ctr
