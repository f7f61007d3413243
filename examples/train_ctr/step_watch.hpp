// Looks at the steps of a training: sets the rates of each, takes their loss, and tells a journal those that
// are due.
#pragma once

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>

#include "models/layers.hpp"
#include "rate_schedule.hpp"
#include "run_journal.hpp"

namespace ctr {

/// @threads one at a time
template <class Model>
class step_watch {
 public:
  /// @param sets_rates  false: who steps sets them
  /// @param takes_loss  also where the journal wants no steps
  template <class Options>
  step_watch(Model& model, const Options& how, rate_schedule rates, run_journal& journal, bool sets_rates,
             bool takes_loss)
      : model_(&model),
        journal_(&journal),
        rates_(std::move(rates)),
        stack_rate_(how.dense_rate),
        row_rate_(how.row_rate),
        initial_squares_(how.initial_squares),
        sets_rates_(sets_rates) {
    if (takes_loss || journal.wants_steps()) model.control().loss.switch_on();
  }
  [[nodiscard]] const rate_schedule& rates() const { return rates_; }

  /// Before the step behind `done` ones.
  void begin(index_t done) {
    if (sets_rates_) begin_step(*model_, rates_, done);
    last_ = done;
    if (journal_->wants_steps()) sums_ = layers();
  }
  /// Behind a step, the one of this number from 1.
  void stepped(index_t step, index_t epoch, index_t rows) {
    if (journal_->is_due(step)) tell(step, epoch, rows);
    if (sets_rates_) begin_step(*model_, rates_, step);
  }
  /// The mean loss since the last call; NaN: it is not taken.
  [[nodiscard]] double take_loss() {
    since_pass_.merge(model_->control().loss.take());
    return std::exchange(since_pass_, {}).value();
  }

 private:
  void tell(index_t step, index_t epoch, index_t rows) {
    const deeprec::log_loss loss = model_->control().loss.take();
    since_pass_.merge(loss);
    const float scale = rates_(step - 1);
    step_facts facts{.step = step, .epoch = epoch, .rows = rows, .loss = loss.value()};
    facts.stack_rate = stack_rate_ * scale;
    facts.row_rate = row_rate_ * scale;
    std::vector<layer_sums> now = layers();
    for (std::size_t l = 0; l < now.size(); ++l) {
      // SGD keeps no squares.
      const double more = now[l].gradients - sums_[l].gradients;
      facts.layers.push_back({now[l].name, std::sqrt(now[l].weights),
                              now[l].gradients > 0
                                  ? std::sqrt(std::fmax(more, 0) / static_cast<double>(step - last_))
                                  : undefined});
    }
    sums_ = std::move(now);
    last_ = step;
    journal_->step(std::move(facts));
  }
  std::vector<layer_sums> layers() {
    std::vector<layer_sums> all;
    model_->for_each_stack(
        [&](const char* name, auto& stack) { add_layers(all, name, stack, initial_squares_); });
    return all;
  }

  Model* model_;
  run_journal* journal_;
  rate_schedule rates_;
  double stack_rate_, row_rate_, initial_squares_;
  bool sets_rates_;
  deeprec::log_loss since_pass_;
  std::vector<layer_sums> sums_;
  index_t last_ = 0;
};

}  // namespace ctr
