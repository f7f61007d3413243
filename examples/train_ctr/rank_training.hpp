// A step of a model over ranks: each takes its slice of a batch, looks rows up at all ranks, and steps with
// the gradients of all.
//
//   batch of n B rows   | rank 0 | rank 1 | ...     the rows of one process with batches of n B
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/statistics.hpp>
#include <deeprec/schedule/micro_chunk.hpp>

#include "ctr_rows.hpp"
#include "models/ctr_data.hpp"
#include "models/model.hpp"
#include "options.hpp"
#include "rank_run.hpp"
#include "stopwatch.hpp"
#include "training.hpp"

namespace ctr {

template <class Model>
class by_ranks {
 public:
  /// All ranks make one, with models that have the same weights.
  by_ranks(rank_run& ranks, thread_pool& pool, Model& model, const options& o)
      : ranks_(&ranks),
        pool_(&pool),
        pool_ref_(pool),
        on_(pool_ref_),
        model_(&model),
        options_(&o),
        pass_(model.make_pass()) {
    model.for_each_table([&](slot_tables& tables) {
      tables.share(on_, ranks.rank(), ranks.size(),
                   [&](std::span<const rank_part> parts) { return ranks.tables(parts); });
    });
    model.for_each_stack([&](const char*, auto& stack) { tensors_.push_back({stack.parameters(), {}}); });
    std::size_t next = 0;
    model.for_each_gradient(
        [&](const char*, const auto& of, const auto&...) { tensors_[next++].gradient = of(pass_); });
    model.settle();
    stacks_ = ranks.stacks(tensors_);
  }

  /// As by_hand::run; `interrupted` at any rank ends all of them behind the same step.
  template <class Over, class Trained>
  deeprec::pipeline_statistics run(row_feed& feed, const ctr_tables& tables, std::atomic<index_t>& begun,
                                   const std::atomic<bool>& interrupted, const Over& over,
                                   const Trained& trained, stopwatch& watch) {
    const index_t all = options_->batch_size * ranks_->size();
    return for_each_batch(
        *pool_, feed, all, id_order::by_slot, tables, options_->prefetch, [&] { return ended_ || over(); },
        [&](const ctr_batch& batch) {
          watch.lap(part::read);
          ++begun;
          step(batch, interrupted, watch);
          if (!ended_) trained(batch.rows());
        });
  }
  [[nodiscard]] bool ended() const { return ended_; }

  /// All ranks look at all rows, and have the same figures.
  void test(row_feed& feed, const ctr_tables& tables, deeprec::auc& area, deeprec::log_loss& loss) {
    gathered_rows rows(ctr_rows::chunk_rows, id_order::by_slot, tables.columns);
    Model::for_each_stack_pass(
        pass_, [](const char*, deeprec::mlp_pass& pass) { set_stack_dropout(pass, {}).or_throw(); });
    for (;;) {
      feed.gather(rows, ctr_rows::chunk_rows, tables);
      const ctr_batch batch = rows.view();
      if (batch.rows() == 0) return;
      model_->begin(batch.rows(), step_);
      model_->look_up(on_, batch, step_).or_throw();
      model_->forward(on_, pass_, batch, step_).or_throw();
      add_to(area, model_->logits(pass_), batch.labels, batch.weights).or_throw();
      add_to(loss, model_->logits(pass_), batch.labels, batch.weights).or_throw();
    }
  }

 private:
  void step(const ctr_batch& whole, const std::atomic<bool>& interrupted, stopwatch& watch) {
    const index_t n = ranks_->size(), r = ranks_->rank();
    const index_t first = whole.rows() * r / n, count = whole.rows() * (r + 1) / n - first;
    const ctr_batch batch = whole.part({.number = r, .chunks = n, .first = first, .count = count}, by_slot_);
    model_->begin(count, step_);
    model_->look_up(on_, batch, step_).or_throw();
    watch.lap(part::lookup);
    status mine;
    if (count > 0) {
      mine = train_forward(on_, *model_, pass_, batch, step_);
      watch.lap(part::forward);
      const float share = static_cast<float>(count) / static_cast<float>(whole.rows());
      if (mine.ok()) mine = model_->backward(on_, pass_, batch, step_, share);
    } else {
      model_->for_each_gradient([&](const char*, const auto& of, const auto&...) {
        const matrix_view<float> g = of(pass_);
        std::fill_n(g.data_handle(), g.extent(1), 0.0F);
      });
    }
    watch.lap(part::backward);
    if (mine.ok() && interrupted) mine = {deeprec::errc::stopped, "interrupted"};
    const status stepped = stacks_->step(on_, model_->stack_optimizer(), mine);
    ended_ = stepped.code() == deeprec::errc::stopped;
    if (ended_) return;
    stepped.or_throw();
    model_->settle();  // the weights were written
    model_->update_rows(on_, batch, step_).or_throw();
    watch.lap(part::update);
  }

  rank_run* ranks_;
  thread_pool* pool_;
  deeprec::executor_ref pool_ref_;
  step_context on_;
  Model* model_;
  const options* options_;
  typename Model::pass pass_;
  typename Model::step step_;
  slot_lists by_slot_;
  std::vector<deeprec::dense_tensor> tensors_;
  std::unique_ptr<rank_stacks> stacks_;
  std::atomic<bool> ended_{false};  // the thread that reads looks too
};

}  // namespace ctr
