// Passes over rows that don't train, between two steps: the journal has each, and with --patience the weights
// of the best one are saved.
#pragma once

#include <utility>

#include "evaluation.hpp"
#include "report.hpp"
#include "run_journal.hpp"
#include "saved_model.hpp"

namespace ctr {

/// @param Save  saves the model and its place
template <class Save>
class kept_passes {
 public:
  /// All outlive it. `patience` passes that are no better end the training; 0: none does, and none is kept.
  kept_passes(score& result, training_place& place, run_journal& journal, index_t patience, Save save)
      : result_(&result), place_(&place), journal_(&journal), patience_(patience), save_(std::move(save)) {
    if (!place.best || patience == 0) return;
    best_.begin(*place.best);  // what was loaded is the best so far
    keep();
  }
  /// Whether this step has no pass yet; a second one at the same step can only end the epoch.
  [[nodiscard]] bool is_due(bool ends_epoch) {
    if (std::exchange(last_, place_->steps) != place_->steps) return true;
    if (!result_->passes.empty()) result_->passes.back().ends_epoch |= ends_epoch;
    return false;
  }
  /// True: the last `patience` passes were no better than the best one.
  bool add(const evaluation& pass) {
    journal_->pass(pass);
    result_->passes.push_back(pass);
    const bool is_better = best_.add(pass.found);
    if (patience_ == 0) return false;
    if (is_better) {
      place_->best = best_.score();
      keep();
    }
    return best_.passes_since() >= patience_;
  }

 private:
  void keep() {
    result_->kept_step = place_->steps;
    save_();
  }

  score* result_;
  training_place* place_;
  run_journal* journal_;
  index_t patience_;
  Save save_;
  best_pass best_;
  index_t last_ = -1;  // the step of the last pass
};

}  // namespace ctr
