// A training step over parts of a batch: stages of part m run while those of part m + 1 do, and every
// variable gets ONE update, with the gradient of the whole batch.
//
//   by resources                                                  by lanes
//   0   lookup 0 | lookup 1 | lookup 2 |                          lookup 0 tower 0 | lookup 1 tower 1
//   1            | tower 0  | tower 1  | tower 2  |               lookup 2 tower 2 | lookup 3 tower 3
//   then, once: tower's step, the rows' update                    each lane on one thread: three barriers
//
//   micro_batch step(4);                                   parts are views: chunk.of(bags), chunk.of(labels)
//   step.stage("lookup", 0, [&](const micro_chunk& chunk) { ... });
//   step.stage("tower", 1, [&](const micro_chunk& chunk) { ... });
//   step.sum_gradient("tower", [&] { return tower.gradients(); });
//   step.update("tower", optimizer, [&] { return tower.step(pool, optimizer); });
//   step.run(pool, samples).or_throw();
//
// A layer with statistics over the batch is a barrier: step.barrier("dice", ...) runs once, between the
// stages before it and those behind. An optimizer or a layer that can't be treated so is an error that names
// it. Not here: layers.
#pragma once

#include <algorithm>
#include <atomic>
#include <concepts>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/schedule/detail/chunk_schedule.hpp>
#include <deeprec/schedule/detail/chunk_sum.hpp>
#include <deeprec/schedule/detail/first_failure.hpp>
#include <deeprec/schedule/detail/micro_stages.hpp>
#include <deeprec/schedule/detail/resource_threads.hpp>
#include <deeprec/schedule/detail/type_name.hpp>
#include <deeprec/schedule/micro_chunk.hpp>
#include <deeprec/support/bulk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How the last run of a micro_batch ended.
struct micro_report {
  std::string_view part{};  ///< the stage or the variable that failed first; empty: none
  index_t chunk = -1;       ///< the part of the batch in which a stage failed; -1: a barrier or an update
  index_t chunks = 0;       ///< parts of the batch
};

/// Stages, gradients and updates of a training step. Stages, gradients and updates are added once; then run()
/// is called for each batch. It refers to what the callables refer to.
///
/// @threads one thread at a time
template <class Wait = adaptive_wait>
class micro_batch {
 public:
  /// @param chunks  the number of parts that a batch is cut into
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   none
  explicit micro_batch(index_t chunks, loss_reduction reduction = loss_reduction::mean)
      : wanted_(chunks), reduction_(reduction) {
    declared_.expect_from_1("micro_batch: chunks must be at least 1", chunks);
  }
  /// Every part runs all of its stages on one thread: what they leave for each other stays in a core's
  /// caches, and nobody waits between them. Resources are ignored. Parts and bits depend on the number of
  /// samples alone.
  ///
  /// @error   none here; run() returns invalid_value for a member of `lanes` below 1
  explicit micro_batch(const micro_lanes& lanes, loss_reduction reduction = loss_reduction::mean)
      : wanted_(1), lanes_(lanes), reduction_(reduction) {
    for (const index_t of : {lanes.most, lanes.fewest, lanes.samples})
      declared_.expect_from_1("micro_batch: members of micro_lanes must be at least 1", of);
  }
  micro_batch(const micro_batch&) = delete;
  micro_batch& operator=(const micro_batch&) = delete;

  /// Adds a stage after those that were added before: stage s of part m runs when stage s - 1 of part m and
  /// stage s of part m - 1 have ended and the resource is free. A resource runs one stage at a time.
  ///
  /// @param name      tells the stage from the others
  /// @param resource  from 0. Resource 0 is the caller of run(); each other one is a thread of the executor
  /// @param work      takes a micro_chunk, returns nothing or a status; uses what it likes. What a stage
  ///                  leaves for the next one lies in memory of the chunk, as stages of several chunks run
  ///                  at once
  /// @cost    O(stages)
  /// @threads one at a time, not during run()
  /// @error   none here; run() returns invalid_value for a name that another stage has
  template <class Work>
  void stage(std::string name, index_t resource, Work&& work) {
    static_assert(std::invocable<Work&, const micro_chunk&>,
                  "deeprec::micro_batch: a stage does not take a chunk. Fix: [&](const micro_chunk& chunk) "
                  "{ ... }.");
    declared_.stage(std::move(name), resource, std::forward<Work>(work));
  }
  /// Adds a stage that runs once for a batch: when every part has ended in the stages before it, and before
  /// any begins in those behind it. For layers that need the whole batch, such as Dice.
  ///
  /// @param name  tells it from the stages
  /// @param work  takes a micro_chunk of all samples, returns nothing or a status; called by the caller of
  ///              run(), whose executor does nothing else meanwhile
  /// @post    what a part leaves for stages behind a barrier must outlast the other parts: each part is a
  ///          lane of its own
  /// @cost    O(stages); by lanes a further parallel_for in each run
  /// @threads one at a time, not during run()
  /// @error   none here; run() returns invalid_value for a name that a stage has
  template <class Work>
  void barrier(std::string name, Work&& work) {
    static_assert(std::invocable<Work&, const micro_chunk&>,
                  "deeprec::micro_batch: a barrier does not take a chunk. Fix: [&](const micro_chunk& all) "
                  "{ ... }.");
    declared_.barrier(std::move(name), std::forward<Work>(work));
  }

  /// Declares a layer that the stages run; not one that a barrier runs.
  ///
  /// @cost    O(1)
  /// @threads one at a time, not during run()
  /// @error   none here; run() returns unsupported, with the layer's name and type, unless
  ///          is_sample_wise<Layer>
  template <class Layer>
  void layer(std::string_view name, const Layer&) {
    if constexpr (!is_sample_wise<Layer>) {
      declared_.refuse(
          detail::micro_stages::untreatable("layer", name, detail::type_name<Layer>(), "sample_wise"));
    }
  }

  /// A gradient that each part overwrites in a stage, such as that of weights: the parts' gradients are
  /// multiplied by their weights and summed in the order of the parts, and the sum takes the gradient's place
  /// before the updates.
  ///
  /// @param gradient  returns the gradient: a matrix_view<float>, or a reference to a value whose
  ///                  batch_traits have accumulate and clear, such as sparse_gradient: duplicates of a row
  ///                  are summed
  /// @numerics float, in the order of the parts: the same bits for any timing. Between the sum over C parts
  ///           and that of the batch |err| <= (C + 2) u sum |weight * gradient|, besides the differences of
  ///           the parts' own sums; exact where all products and sums are; one part: the gradient itself
  /// @cost     O(gradient) for each part; memory for the sum in the first run
  /// @threads  one at a time, not during run()
  /// @error    none here; run() returns invalid_value for a stage that does not exist
  template <class Gradient>
  void sum_gradient(std::string_view of_stage, Gradient&& gradient) {
    if (lanes_) {
      declared_.refuse("micro_batch::sum_gradient: with micro_lanes a gradient must be of a lane", of_stage);
      return;
    }
    declared_.add_sum<detail::overwritten_gradient<std::decay_t<Gradient>>>(of_stage,
                                                                            std::forward<Gradient>(gradient));
  }

  /// The same by lanes: each part overwrites the gradient of its lane. The parts' gradients, multiplied by
  /// their weights, are summed in a tree that depends on their number alone.
  ///
  /// @param gradient  of a micro_chunk: the matrix_view<float> that its stage overwrites, one for each lane
  /// @param into      takes nothing, returns the matrix_view<float> that takes the sum
  /// @numerics float; |err| <= (log2(C) + 2) u sum |weight * gradient| over C parts, besides the differences
  ///           of the parts' own sums; the same bits for any number of threads
  /// @cost     O(gradient) for each part; memory for the parts that wait for a neighbour, in the first run
  /// @threads  one at a time, not during run(); the callables are called by the threads of the lanes
  /// @error    none here; run() returns invalid_value for a stage that does not exist, unsupported where
  ///           parts run by resources
  template <class Gradient, class Into>
  void sum_gradient(std::string_view of_stage, Gradient&& gradient, Into&& into) {
    if (!lanes_) {
      declared_.refuse("micro_batch::sum_gradient: gradients of lanes need micro_lanes", of_stage,
                       errc::unsupported);
      return;
    }
    using sum = detail::tree_of_gradients<std::decay_t<Gradient>, std::decay_t<Into>>;
    declared_.add_sum<sum>(of_stage, std::forward<Gradient>(gradient), std::forward<Into>(into));
  }

  /// A gradient with a row for each sample (B,D), of which a stage writes the rows of its part: that of
  /// pooled rows, which update() takes. Rows are multiplied by their part's weight; duplicates of a table's
  /// row are then summed over the whole batch by update(), before the optimizer.
  ///
  /// @param gradient  returns the matrix_view<float> (B,D) of the batch
  /// @cost    O(gradient)
  /// @threads one at a time, not during run()
  /// @error   none here; run() returns invalid_value for a stage that does not exist
  template <class Gradient>
  void sample_gradient(std::string_view of_stage, Gradient&& gradient) {
    declared_.add_sum<detail::gradient_of_samples<std::decay_t<Gradient>>>(of_stage,
                                                                           std::forward<Gradient>(gradient));
  }

  /// The one update of a variable: called once for a batch, after its last part, in the order of the
  /// declarations, on the caller's thread.
  ///
  /// @param name  of the variable: a table, a stack
  /// @param step  takes nothing, returns nothing or a status
  /// @cost    O(variables)
  /// @threads one at a time, not during run()
  /// @error   none here; run() returns invalid_value for a variable that has an update already, unsupported
  ///          with the optimizer's name and type unless steps_on_sums<Optimizer>
  template <class Optimizer, class Step>
  void update(std::string name, const Optimizer&, Step&& step) {
    if constexpr (!steps_on_sums<Optimizer>) {
      declared_.refuse(detail::micro_stages::untreatable("optimizer of", name, detail::type_name<Optimizer>(),
                                                         "steps_on_sums"));
    }
    declared_.update(std::move(name), std::forward<Step>(step));
  }

  /// The first error of the declarations.
  ///
  /// @cost    O(1)
  /// @threads one at a time
  /// @error   as described at them
  [[nodiscard]] result<void> check() const {
    if (declared_.refused()) return *declared_.refused();
    return {};
  }

  /// Trains one batch: all stages of all parts, then all updates.
  ///
  /// @param samples  B: of every value that the stages split
  /// @pre     no stage calls run(). By resources: the executor runs a task for each resource but the first,
  ///          beside others; it is that of the run before, or that one was destroyed, or a fork() came
  ///          between. It may be destroyed before this
  /// @post    an empty batch: no stage and no update has been called. On an error of a stage no variable has
  ///          been updated; on one of an update, those before it have been
  /// @numerics independent of the timing: sums and updates have a fixed order
  /// @cost    by resources the first run, and the first with another executor, posts a task for each resource
  ///          but 0, which sleep between runs until the destructor; by lanes one parallel_for, and one for
  ///          each gradient. Later ones allocate nothing
  /// @threads one at a time
  /// @error   check(); the status of the stage or update that failed first, which report() names; an
  ///          exception is rethrown here. stopped by the token, with no variable updated; invalid_value for a
  ///          negative B; unsupported when the executor runs tasks on the caller's thread; the status of
  ///          post(), and what it throws but std::bad_alloc. Another run may follow
  /// @example @snippet tests/schedule/micro_batch_test.cpp micro_batch
  template <class Executor>
  [[nodiscard]] result<void> run(Executor& executor, index_t samples, const std::stop_token& stop = {}) {
    static_assert(BulkExecutor<Executor> || TaskExecutor<Executor>,
                  "deeprec::micro_batch: not an executor. Fix: give it parallel_for(n, grain, body) and "
                  "concurrency(), by resources post(task, stop) and post(task, stop, handle) too (see "
                  "deeprec/core/executor.hpp), or pass a thread_pool.");
    report_ = {};
    if (declared_.refused()) return *declared_.refused();
    if (samples < 0) {
      return status(errc::invalid_value, "micro_batch::run: samples must not be negative", {.is = samples});
    }
    if (stop.stop_requested()) return status(errc::stopped, "micro_batch::run");
    if (lanes_) {
      if constexpr (BulkExecutor<Executor>) {
        executor_ref on(executor);
        const awake<executor_ref> scope(on);
        begin_batch(samples, chunk_count(samples, *lanes_));
        if (chunks_ == 0) return {};
        const index_t lanes =
            (std::min)({lanes_->most, chunks_, index_t{(std::max)(1, detail::threads_at_once(on))},
                        index_t{detail::bulk_parts::most}});
        if (const status s = declared_.begin_sums(chunks_); !s) return s;
        run_phases(on, stop, [&] {
          detail::bulk_parts shares(static_cast<int>(lanes), chunks_, 1);
          on.parallel_for(lanes, index_t{1}, [&](index_t begin, index_t end, int) {
            for (index_t lane = begin; lane < end; ++lane) run_lane(shares, lane);
          });
        });
        return finish_batch();
      } else {
        return status(errc::unsupported, "micro_batch::run: lanes need an executor of bulk work");
      }
    }
    inline_executor here;
    if constexpr (TaskExecutor<Executor>) {
      const auto work = [this](index_t thread) { work_of(thread + 1); };
      if (const status s = threads_.start(executor, declared_.resources() - 1, work); !s) return s;
    } else if (declared_.resources() > 1) {
      return status(errc::unsupported, "micro_batch::run: resources need an executor of tasks");
    }
    begin_batch(samples, chunk_count(samples, wanted_));
    if (chunks_ == 0) return {};
    run_phases(here, stop, [&] {
      threads_.begin();
      work_of(0);
      threads_.wait();
    });
    return finish_batch();
  }

  /// Of the last run; its text is valid while this is.
  [[nodiscard]] const micro_report& report() const noexcept { return report_; }

 private:
  void begin_batch(index_t samples, index_t chunks) {
    samples_ = samples;
    report_.chunks = chunks_ = chunks;
    failure_.restart();
    for (detail::micro_stage& s : declared_.stages()) s.done.store(0, std::memory_order_relaxed);
  }
  // Barriers on this thread; between them phase() for the stages [first_, end_).
  template <class Phase>
  void run_phases(executor_ref on, const std::stop_token& stop, const Phase& phase) {
    const std::stop_callback stopping(stop, [this]() noexcept { cancel(); });
    const auto all = declared_.size();
    for (first_ = 0; first_ < all && !failure_.was_cancelled(); first_ = end_) {
      end_ = first_ + 1;
      if (declared_[first_].is_barrier()) {
        run_stage(declared_[first_], chunk_of(samples_, 1, 0, reduction_));
        continue;
      }
      while (end_ < all && !declared_[end_].is_barrier()) ++end_;
      phase();
      if (failure_.was_cancelled() || (!lanes_ && chunks_ == 1)) continue;
      declared_.put_sums_back(first_, end_, on);
    }
  }
  void run_lane(detail::bulk_parts& shares, index_t lane) {
    shares.take_from(static_cast<int>(lane), [&](index_t begin, index_t end) {
      for (index_t number = begin; number < end; ++number) {
        micro_chunk chunk = chunk_of(samples_, chunks_, number, reduction_);
        if (!declared_.has_barrier()) chunk.lane = lane;
        for (index_t s = first_; s < end_; ++s) {
          if (failure_.was_cancelled() || !run_stage(declared_[s], chunk)) return;
        }
      }
    });
  }
  // Of a stage that has a chunk's turn: the stage, and what is summed after it.
  bool run_stage(detail::micro_stage& stage, const micro_chunk& chunk) {
    return call(stage.name, stage.is_barrier() ? -1 : chunk.number, [&]() -> status {
      if (const status s = stage.work(chunk); !s) return s;
      if (lanes_ || chunk.chunks > 1) declared_.add_to_sums(stage, chunk);
      return {};
    });
  }
  result<void> finish_batch() {
    if (!failure_.any()) {
      if (failure_.was_cancelled()) return status(errc::stopped, "micro_batch::run");
      for (const detail::micro_update& u : declared_.updates()) {
        if (!call(u.name, -1, u.step)) break;
      }
    }
    return failure_.outcome();
  }

  // All tasks of a resource, until none is left or the batch is cancelled.
  void work_of(index_t resource) {
    while (true) {
      detail::chunk_task task;
      detail::chunk_choice choice = detail::chunk_choice::none_now;
      threads_.wait_for([&] {
        choice = failure_.was_cancelled() ? detail::chunk_choice::ended
                                          : declared_.next(first_, end_, chunks_, resource, task);
        return choice != detail::chunk_choice::none_now;
      });
      if (choice == detail::chunk_choice::ended) return;
      detail::micro_stage& stage = declared_[first_ + task.stage];
      const micro_chunk chunk = chunk_of(samples_, wanted_, task.chunk, reduction_);
      if (!run_stage(stage, chunk)) return;
      // release: for the next stage
      stage.done.store(chunk.number + 1, std::memory_order_release);
      threads_.notify_all();
    }
  }

  void cancel() noexcept {
    failure_.cancel();
    threads_.notify_all();
  }
  // Calls a part. The first failure is kept; the caller of run() reads it when no thread works.
  template <class Part>
  bool call(std::string_view name, index_t chunk, const Part& part) {
    const auto fail = [&](const auto& why) {
      if (failure_.keep(why)) report_.part = name, report_.chunk = chunk;
      cancel();
      return false;
    };
    return detail::caught_by(fail, [&] {
      const status s = part();
      return s.ok() || fail(s.in_operation("micro_batch::run"));
    });
  }

  const index_t wanted_;
  const std::optional<micro_lanes> lanes_;
  const loss_reduction reduction_;
  detail::micro_stages declared_;

  index_t samples_ = 0;
  index_t chunks_ = 0;
  index_t first_ = 0, end_ = 0;  // the stages of the phase
  detail::first_failure failure_;
  micro_report report_;
  detail::resource_threads<Wait> threads_;  // of resources 1, 2 ...; the last member: ended first
};

}}  // namespace deeprec::DEEPREC_ABI
