// How the batches of a feed become steps of a model.
//
//   by lanes         parts of at most 128 samples, each on one thread from its lookup to the gradient of its
//                    rows;
//                    then one update: the default
//   whole            read ──> look up, compute, update              reading ahead in a thread of its own
//   in parts         look up of part m + 1 beside compute of part m, then one update
//   stale window W   W lookups on their way, beside compute and update; lookup t sees the updates up to t - W
//
// The stacks are always stepped between two batches; only rows can be stale. A model takes part with these
// members, and a Model::step for what they pass on:
//
//   begin(rows, step)               room for a batch
//   admit(batch, step)              begins a step of raw keys: evictions, and rows for new keys
//   look_up(batch, step)            rows of the batch's ids, from the tables; look_up_part() of some samples
//   forward, backward(batch, step)  of a batch, or with a pass of its own of a part: logits(), and the
//                                   gradients of all weights; no table is read or written
//   step_stacks(), update_rows(batch, step)
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "ctr_rows.hpp"
#include "models/ctr_data.hpp"
#include "models/model.hpp"
#include "models/step_by_lanes.hpp"
#include "options.hpp"
#include "rate_schedule.hpp"
#include "step_scratch.hpp"
#include "stopwatch.hpp"

namespace ctr {

using deeprec::thread_pool;

/// Forward and backward pass of a batch, or of a part of one, that was looked up.
template <class Model>
[[nodiscard]] status compute(const step_context& on, Model& model, const ctr_batch& batch,
                             typename Model::step& step, stopwatch& watch) {
  watch.lap(part::lookup);
  if (const status s = model.forward(on, batch, step); !s) return s;
  watch.lap(part::forward);
  const status s = model.backward(on, batch, step);
  watch.lap(part::backward);
  return s;
}

/// A step of a whole batch.
///
/// @pre model.begin(batch.rows(), step)
template <class Model>
[[nodiscard]] status train(const step_context& on, Model& model, const ctr_batch& batch,
                           typename Model::step& step, stopwatch& watch) {
  if (const status s = model.look_up(on, batch, step); !s) return s;
  if (const status s = compute(on, model, batch, step, watch); !s) return s;
  if (const status s = model.step_stacks(on); !s) return s;
  const status s = model.update_rows(on, batch, step);
  watch.lap(part::update);
  return s;
}

/// A step whose batch is cut into parts. Rows are looked up part by part, unless they have been looked up.
template <class Model>
class step_in_parts {
 public:
  enum class rows_are : unsigned char { looked_up_here, looked_up_before };

  /// @param scratch  memory of the step: chunk 0 of the updates, 1 of the lookups, 2 of the rest; null: the
  ///        default
  step_in_parts(thread_pool& pool, Model& model, index_t parts, rows_are rows,
                deeprec::planned_resource* scratch = nullptr)
      : pool_(&pool), model_(&model), step_(parts), parts_(static_cast<std::size_t>(parts)) {
    if (scratch != nullptr) {
      on_pool_.memory = scratch;
      on_this_thread_.memory = scratch->chunk(1);
      computing_.memory = scratch->chunk(2);
    }
    if (rows == rows_are::looked_up_here) {
      step_.stage("look up", 1, [this](const deeprec::micro_chunk& chunk) {
        part_state& some = begin(chunk);
        return model_->look_up_part(on_this_thread_, some.batch, *some.step);
      });
    }
    step_.stage("compute", 0, [this, rows](const deeprec::micro_chunk& chunk) {
      part_state& some =
          rows == rows_are::looked_up_here ? parts_[static_cast<std::size_t>(chunk.number)] : begin(chunk);
      return compute(computing_, *model_, some.batch, *some.step, *watch_);
    });
    model_->for_each_stack([this](const char* name, deeprec::mlp<>& stack) {
      step_.layer(name, stack);
      step_.sum_gradient("compute", [&stack] { return stack.gradients(); });
    });
    Model::for_each_row_gradient(
        [this](auto of) { step_.sample_gradient("compute", [this, of] { return of(*whole_); }); });
    step_.update("stacks", model_->stack_optimizer(), [this] { return model_->step_stacks(on_pool_); });
    if (rows == rows_are::looked_up_here) {
      step_.update("rows", model_->row_optimizer(),
                   [this] { return model_->update_rows(on_pool_, *batch_, *whole_); });
    }
  }
  step_in_parts(const step_in_parts&) = delete;
  step_in_parts& operator=(const step_in_parts&) = delete;

  /// @pre model.begin(batch.rows(), whole)
  void train(const ctr_batch& batch, typename Model::step& whole, stopwatch& watch) {
    batch_ = &batch;
    whole_ = &whole;
    watch_ = &watch;
    step_.run(*pool_, batch.rows()).or_throw();
    watch.lap(part::update);
  }

 private:
  struct part_state {
    ctr_batch batch;
    std::optional<typename Model::step> step;
    slot_lists by_slot;
  };
  part_state& begin(const deeprec::micro_chunk& chunk) {
    part_state& some = parts_[static_cast<std::size_t>(chunk.number)];
    some.batch = batch_->part(chunk, some.by_slot);
    some.step.emplace(whole_->part(chunk));
    return some;
  }

  thread_pool* pool_;
  deeprec::executor_ref pool_ref_{*pool_};
  step_context on_pool_{pool_ref_}, computing_{pool_ref_};
  Model* model_;
  deeprec::inline_executor here_;
  deeprec::executor_ref here_ref_{here_};
  step_context on_this_thread_{here_ref_};
  deeprec::micro_batch<> step_;
  std::vector<part_state> parts_;
  const ctr_batch* batch_ = nullptr;
  typename Model::step* whole_ = nullptr;
  stopwatch* watch_ = nullptr;
};

/// Takes the batches of a feed from a thread that reads ahead, `prefetch` of them at most; 0: no such thread.
/// Ends early once stop() is true.
template <class Stop, class Use>
deeprec::pipeline_statistics for_each_batch(thread_pool& pool, row_feed& feed, index_t batch_size,
                                            id_order ids, const ctr_tables& tables, int prefetch,
                                            const Stop& stop, Use&& use) {
  // Beside those that wait, one is gathered and one is used.
  deeprec::staging_pool<gathered_rows> batches(static_cast<std::uint32_t>(prefetch) + 2, [&] {
    return gathered_rows(batch_size, ids, tables.columns);
  });
  using lease = deeprec::staging_pool<gathered_rows>::lease;
  const auto read = [&]() -> std::optional<lease> {
    if (stop()) return std::nullopt;
    lease batch = batches.acquire();
    feed.gather(*batch, batch_size, tables);
    return batch->rows() > 0 ? std::optional(std::move(batch)) : std::nullopt;
  };
  const auto take = [&](lease& batch) {
    if (!stop()) use(batch->view());
  };
  const auto run = [&](auto line) {
    const std::size_t capacity = static_cast<std::size_t>(std::max(prefetch, 1));
    deeprec::pipeline batch_by_batch(pool, std::move(line), {.capacity = capacity});
    try {
      batch_by_batch.run().or_throw();
    } catch (const deeprec::pipeline_error& wrong) {
      wrong.rethrow_nested();  // it says enough by itself
    }
    return batch_by_batch.statistics();
  };
  if (prefetch == 0) return run(deeprec::source("read", read) | deeprec::sink("train", take));
  return run(deeprec::source("read", read) | deeprec::sink("train", take).own_thread());
}

/// How batches of a model have their ids.
template <class Model>
id_order ids_for(const ctr_tables& tables) {
  if (tables.raw) return id_order::by_key;
  return tables.columns.has_bags() ? id_order::by_slot : Model::ids;
}

/// Adds the seconds of a call.
class busy_time {
 public:
  template <class F>
  auto of(const F& call) {
    const auto begun = std::chrono::steady_clock::now();
    auto outcome = call();
    spent_ += std::chrono::steady_clock::now() - begun;
    return outcome;
  }
  [[nodiscard]] std::chrono::nanoseconds spent() const { return spent_; }

 private:
  std::chrono::nanoseconds spent_{};
};

/// Trains with the batches of a feed, `window` lookups on their way at once. `in_parts`, where not null,
/// computes. The scales of rates are those of the batches. trained(rows) follows the update of each batch, on
/// a thread of the pool. Ends early once stop() is true, which is called before a batch is read.
template <class Model, class Stop, class Trained>
deeprec::pipeline_statistics train_in_window(thread_pool& pool, row_feed& feed, index_t batch_size,
                                             const ctr_tables& tables, Model& model, index_t window,
                                             step_in_parts<Model>* in_parts, const run_rates& rates,
                                             stopwatch& watch, const Stop& stop, Trained&& trained) {
  struct slot_state {
    gathered_rows rows;
    ctr_batch batch{};
    typename Model::step step{};
    busy_time look_up{};
  };
  deeprec::stale_window versions(window);
  deeprec::stale_loop loop(versions);
  std::vector<slot_state> slot_states;
  for (index_t k = 0; k < loop.slots(); ++k)
    slot_states.push_back({gathered_rows(batch_size, ids_for<Model>(tables), tables.columns)});
  const auto at = [&](deeprec::stale_step step) -> slot_state& {
    return slot_states[static_cast<std::size_t>(step.slot)];
  };
  deeprec::inline_executor this_thread;
  deeprec::executor_ref here(this_thread), on_pool(pool);
  busy_time reading, computing, updating;
  const auto begun = std::chrono::steady_clock::now();
  const auto next = [&](deeprec::stale_step step) {
    return !stop() && reading.of([&] {
      slot_state& slot = at(step);
      feed.gather(slot.rows, batch_size, tables);
      slot.batch = slot.rows.view();
      if (slot.rows.rows() == 0) return false;
      model.begin(slot.batch.rows(), slot.step);
      model.admit(here, slot.batch, slot.step).or_throw();  // in the order of batches
      return true;
    });
  };
  const auto fetch = [&](deeprec::stale_step step) -> status {
    slot_state& slot = at(step);
    const auto read = versions.read(step.number);
    if (!read) return read.outcome();
    return slot.look_up.of([&] { return model.look_up(here, slot.batch, slot.step); });
  };
  const auto computed = [&](deeprec::stale_step step) {
    return computing.of([&]() -> status {
      slot_state& slot = at(step);
      model.control().stack_scale = rates.of(step.number);
      model.control().number = rates.number_of(step.number);
      if (in_parts != nullptr) {
        in_parts->train(slot.batch, slot.step, watch);
        return {};
      }
      if (const status s = compute(on_pool, model, slot.batch, slot.step, watch); !s) return s;
      return model.step_stacks(on_pool);
    });
  };
  const auto apply = [&](deeprec::stale_step step) -> status {
    slot_state& slot = at(step);
    const auto write = versions.apply(step.number);
    if (!write) return write.outcome();
    model.control().row_scale = rates.of(step.number);
    const status done = updating.of([&] { return model.update_rows(here, slot.batch, slot.step); });
    if (done.ok()) trained(slot.batch.rows());
    return done;
  };
  watch.start();
  loop.run(pool, next, fetch, computed, apply).or_throw();

  deeprec::pipeline_statistics all{.elapsed = std::chrono::steady_clock::now() - begun, .stages = {}};
  std::chrono::nanoseconds looking_up{};
  for (const slot_state& slot : slot_states) looking_up += slot.look_up.spent();
  const auto add = [&](const char* name, int threads, std::chrono::nanoseconds busy) {
    deeprec::stage_statistics stage{.name = name, .segment = all.stages.size(), .threads = threads};
    stage.items = static_cast<std::uint64_t>(loop.report().steps);
    stage.busy = busy;
    stage.occupancy = static_cast<double>(busy.count()) / static_cast<double>(all.elapsed.count()) / threads;
    all.stages.push_back(stage);
  };
  add("read", 1, reading.spent());
  add("look up", static_cast<int>(window), looking_up);
  add("compute", 1, computing.spent());
  add("update", 1, updating.spent());
  return all;
}

template <class Model>
concept stepped_by_hand = requires(Model& model, const step_context& on) { model.step_stacks(on); };

/// Steps of calls that follow each other, as the options want them.
template <class Model>
class by_hand {
 public:
  by_hand(thread_pool&, Model&, const options&) {}
  [[nodiscard]] memory_use memory() const { return {}; }
};
template <stepped_by_hand Model>
class by_hand<Model> {
 public:
  by_hand(thread_pool& pool, Model& model, const options& o)
      : pool_(&pool), model_(&model), options_(&o), scratch_(o.memory_plan, 3, o.threads) {
    using part_maker = typename step_by_lanes<Model>::part_maker;
    if (o.micro_batch == 0 && o.stale_window == 0) {
      by_lanes_.emplace(deeprec::executor_ref(pool), model, part_maker(), scratch_.memory());
    }
    if (o.micro_batch <= 1) return;
    using rows_are = typename step_in_parts<Model>::rows_are;
    in_parts_.emplace(pool, model, o.micro_batch,
                      o.stale_window > 0 ? rows_are::looked_up_before : rows_are::looked_up_here,
                      scratch_.memory());
  }

  /// Trains with the rows of the feed until it ends or over() is true, which the thread that reads calls too.
  /// `begun` counts the steps; trained(rows) follows each.
  template <class Over, class Trained>
  deeprec::pipeline_statistics run(row_feed& feed, const ctr_tables& tables, std::atomic<index_t>& begun,
                                   const run_rates& rates, const Over& over, const Trained& trained,
                                   stopwatch& watch) {
    const options& o = *options_;
    model_->settle();
    if (o.stale_window > 0) {
      const auto stop = [&] { return over() || begun++ < 0; };
      return train_in_window(*pool_, feed, o.batch_size, tables, *model_, o.stale_window,
                             in_parts_ ? &*in_parts_ : nullptr, rates, watch, stop, trained);
    }
    deeprec::executor_ref pool(*pool_);
    step_context on_pool(pool);
    on_pool.memory = scratch_.resource();
    const deeprec::awake scope(*pool_);
    return for_each_batch(*pool_, feed, o.batch_size, ids_for<Model>(tables), tables, o.prefetch, over,
                          [&, step = index_t{0}](const ctr_batch& batch) mutable {
                            watch.lap(part::read);
                            ++begun;
                            begin_step(*model_, *rates.schedule, rates.number_of(step++));
                            scratch_.begin(batch.rows());
                            model_->begin(batch.rows(), step_);
                            model_->admit(on_pool, batch, step_).or_throw();
                            if (by_lanes_ && by_lanes_->shares(batch.rows())) {
                              by_lanes_->train(batch, step_, [&] { watch.lap(part::backward); }).or_throw();
                              watch.lap(part::update);
                            } else if (in_parts_) {
                              in_parts_->train(batch, step_, watch);
                            } else {
                              train(on_pool, *model_, batch, step_, watch).or_throw();
                            }
                            scratch_.end();
                            trained(batch.rows());
                          });
  }

  [[nodiscard]] memory_use memory() const {
    memory_use use;
    scratch_.add_to(use);
    return use;
  }

 private:
  thread_pool* pool_;
  Model* model_;
  const options* options_;
  step_scratch scratch_;
  typename Model::step step_;
  std::optional<step_by_lanes<Model>> by_lanes_;
  std::optional<step_in_parts<Model>> in_parts_;
};

}  // namespace ctr
