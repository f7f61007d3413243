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
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/schedule/detail/as_status.hpp>
#include <deeprec/schedule/detail/chunk_schedule.hpp>
#include <deeprec/schedule/detail/chunk_sum.hpp>
#include <deeprec/schedule/detail/resource_threads.hpp>
#include <deeprec/schedule/detail/type_name.hpp>
#include <deeprec/schedule/micro_chunk.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

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
    if (chunks < 1)
      refuse(status(errc::invalid_value, "micro_batch: chunks must be at least 1", {.is = chunks}));
  }
  /// Every part runs all of its stages on one thread: what they leave for each other stays in a core's
  /// caches, and nobody waits between them. Resources are ignored. Parts and bits depend on the number of
  /// samples alone.
  ///
  /// @error   none here; run() returns invalid_value for a member of `lanes` below 1
  explicit micro_batch(const micro_lanes& lanes, loss_reduction reduction = loss_reduction::mean)
      : wanted_(1), lanes_(lanes), reduction_(reduction) {
    for (const index_t of : {lanes.most, lanes.fewest, lanes.samples}) {
      if (of < 1) {
        refuse(status(errc::invalid_value, "micro_batch: members of micro_lanes must be at least 1",
                      {.is = of}));
      }
    }
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
    if (stage_named(name) != nullptr) {
      refuse(named("micro_batch::stage: a name must be of one stage", name));
    }
    if (resource < 0) {
      refuse(
          status(errc::invalid_value, "micro_batch::stage: resource must not be negative", {.is = resource}));
      resource = 0;
    }
    resources_ = (std::max)(resources_, resource + 1);
    add_stage(std::move(name), resource, std::forward<Work>(work));
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
    if (stage_named(name) != nullptr) {
      refuse(named("micro_batch::barrier: a name must be of one stage", name));
    }
    has_barrier_ = true;
    add_stage(std::move(name), barrier_resource, std::forward<Work>(work));
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
      refuse(untreatable("layer", name, detail::type_name<Layer>(), "sample_wise"));
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
      refuse(named("micro_batch::sum_gradient: with micro_lanes a gradient must be of a lane", of_stage));
      return;
    }
    add_sum<detail::overwritten_gradient<std::decay_t<Gradient>>>(of_stage, std::forward<Gradient>(gradient));
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
      refuse(named("micro_batch::sum_gradient: gradients of lanes need micro_lanes", of_stage,
                   errc::unsupported));
      return;
    }
    using sum = detail::tree_of_gradients<std::decay_t<Gradient>, std::decay_t<Into>>;
    add_sum<sum>(of_stage, std::forward<Gradient>(gradient), std::forward<Into>(into));
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
    add_sum<detail::gradient_of_samples<std::decay_t<Gradient>>>(of_stage, std::forward<Gradient>(gradient));
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
      refuse(untreatable("optimizer of", name, detail::type_name<Optimizer>(), "steps_on_sums"));
    }
    for (const auto& other : updates_) {
      if (other.name == name) refuse(named("micro_batch::update: a variable must have one update", name));
    }
    updates_.push_back({std::move(name), detail::as_status<>(std::forward<Step>(step))});
  }

  /// The first error of the declarations.
  ///
  /// @cost    O(1)
  /// @threads one at a time
  /// @error   as described at them
  [[nodiscard]] result<void> check() const {
    if (refused_) return *refused_;
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
    if (refused_) return *refused_;
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
        if (const status s = begin_sums(); !s) return s;
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
      if (const status s = threads_.start(executor, resources_ - 1, work); !s) return s;
    } else if (resources_ > 1) {
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
  static constexpr index_t barrier_resource = -1;
  struct stage_state {
    stage_state(std::string n, index_t r, index_t p, std::function<status(const micro_chunk&)> w)
        : name(std::move(n)), resource(r), place(p), work(std::move(w)) {}
    [[nodiscard]] bool is_barrier() const noexcept { return resource == barrier_resource; }
    std::string name;
    index_t resource;
    index_t place;  // among all stages
    std::function<status(const micro_chunk&)> work;
    alignas(64) std::atomic<index_t> done{0};  // chunks that have ended
  };
  struct sum_state {
    const stage_state* stage;
    std::unique_ptr<detail::chunk_sum> sum;
  };
  struct update_state {
    std::string name;
    std::function<status()> step;
  };

  void begin_batch(index_t samples, index_t chunks) {
    samples_ = samples;
    report_.chunks = chunks_ = chunks;
    outcome_ = {};
    failed_.store(0, std::memory_order_relaxed);
    cancelled_.store(0, std::memory_order_relaxed);
    for (stage_state& s : stages_) s.done.store(0, std::memory_order_relaxed);
  }
  status begin_sums() {
    return detail::or_out_of_memory("micro_batch::run", [&]() -> status {
      for (const sum_state& s : sums_) s.sum->begin(chunks_);
      return {};
    });
  }
  // Barriers on this thread; between them phase() for the stages [first_, end_).
  template <class Phase>
  void run_phases(executor_ref on, const std::stop_token& stop, const Phase& phase) {
    const std::stop_callback stopping(stop, [this]() noexcept { cancel(); });
    const auto all = static_cast<index_t>(stages_.size());
    for (first_ = 0; first_ < all && !was_cancelled(); first_ = end_) {
      end_ = first_ + 1;
      if (stage_at(first_).is_barrier()) {
        run_stage(stage_at(first_), chunk_of(samples_, 1, 0, reduction_));
        continue;
      }
      while (end_ < all && !stage_at(end_).is_barrier()) ++end_;
      phase();
      if (was_cancelled() || (!lanes_ && chunks_ == 1)) continue;
      for (const sum_state& s : sums_) {
        if (first_ <= s.stage->place && s.stage->place < end_) s.sum->put_back(on);
      }
    }
  }
  void run_lane(detail::bulk_parts& shares, index_t lane) {
    shares.take_from(static_cast<int>(lane), [&](index_t begin, index_t end) {
      for (index_t number = begin; number < end; ++number) {
        micro_chunk chunk = chunk_of(samples_, chunks_, number, reduction_);
        if (!has_barrier_) chunk.lane = lane;
        for (index_t s = first_; s < end_; ++s) {
          if (was_cancelled() || !run_stage(stage_at(s), chunk)) return;
        }
      }
    });
  }
  // Of a stage that has a chunk's turn: the stage, and what is summed after it.
  bool run_stage(stage_state& stage, const micro_chunk& chunk) {
    return call(stage.name, stage.is_barrier() ? -1 : chunk.number, [&]() -> status {
      if (const status s = stage.work(chunk); !s) return s;
      for (const sum_state& s : sums_) {
        if (s.stage == &stage && (lanes_ || chunk.chunks > 1)) s.sum->add(chunk);
      }
      return {};
    });
  }
  result<void> finish_batch() {
    if (failed_.load(std::memory_order_relaxed) == 0) {
      if (was_cancelled()) return status(errc::stopped, "micro_batch::run");
      for (const update_state& u : updates_) {
        if (!call(u.name, -1, u.step)) break;
      }
    }
#if DEEPREC_EXCEPTIONS
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
#endif
    return outcome_;
  }

  template <class Work>
  void add_stage(std::string name, index_t resource, Work&& work) {
    stages_.emplace_back(std::move(name), resource, static_cast<index_t>(stages_.size()),
                         detail::as_status<const micro_chunk&>(std::forward<Work>(work)));
  }
  [[nodiscard]] stage_state& stage_at(index_t s) { return stages_[static_cast<std::size_t>(s)]; }
  template <class Sum, class... Gradient>
  void add_sum(std::string_view of_stage, Gradient&&... gradient) {
    const stage_state* const found = stage_named(of_stage);
    if (found == nullptr) {
      refuse(named("micro_batch::sum_gradient: the stage must have been added", of_stage));
      return;
    }
    if (found->is_barrier()) {
      refuse(named("micro_batch::sum_gradient: the stage must run for each part", of_stage));
      return;
    }
    sums_.push_back({found, std::make_unique<Sum>(std::forward<Gradient>(gradient)...)});
  }
  [[nodiscard]] const stage_state* stage_named(std::string_view name) const {
    for (const stage_state& s : stages_) {
      if (s.name == name) return &s;
    }
    return nullptr;
  }

  void refuse(fault why) {
    if (!refused_) refused_ = std::move(why);
  }
  void refuse(const status& why) {
    if (!refused_) refused_.emplace(why);
  }
  static fault named(const char* what, std::string_view name, errc code = errc::invalid_value) {
    return {code, std::string(what) + " (was \"" + std::string(name) + "\")"};
  }
  static fault untreatable(const char* what, std::string_view name, std::string_view type,
                           const char* declaration) {
    return {errc::unsupported, "micro_batch: the " + std::string(what) + " \"" + std::string(name) +
                                   "\" must declare " + declaration + " (was " + std::string(type) +
                                   ", which does not)"};
  }

  // All tasks of a resource, until none is left or the batch is cancelled.
  void work_of(index_t resource) {
    while (true) {
      detail::chunk_task task;
      detail::chunk_choice choice = detail::chunk_choice::none_now;
      threads_.wait_for([&] {
        if (was_cancelled()) {
          choice = detail::chunk_choice::ended;
        } else {
          choice = detail::next_task(
              end_ - first_, chunks_, resource, [&](index_t s) { return stage_at(first_ + s).resource; },
              // acquire: what the stage before wrote
              [&](index_t s) { return stage_at(first_ + s).done.load(std::memory_order_acquire); }, task);
        }
        return choice != detail::chunk_choice::none_now;
      });
      if (choice == detail::chunk_choice::ended) return;
      stage_state& stage = stage_at(first_ + task.stage);
      const micro_chunk chunk = chunk_of(samples_, wanted_, task.chunk, reduction_);
      const bool done = run_stage(stage, chunk);
      if (!done) return;
      // release: for the next stage
      stage.done.store(chunk.number + 1, std::memory_order_release);
      threads_.notify_all();
    }
  }

  [[nodiscard]] bool was_cancelled() const noexcept {
    return cancelled_.load(std::memory_order_relaxed) != 0;
  }
  // relaxed: those who wait look again after the notification, which has a fence
  void cancel() noexcept {
    cancelled_.store(1, std::memory_order_relaxed);
    threads_.notify_all();
  }
  [[nodiscard]] bool first_failure(std::string_view part, index_t chunk) noexcept {
    if (failed_.exchange(1, std::memory_order_relaxed) != 0) return false;
    report_.part = part;
    report_.chunk = chunk;
    return true;
  }
  // Calls a part. The first failure is kept; the caller of run() reads it when no thread works.
  template <class Part>
  bool call(std::string_view name, index_t chunk, const Part& part) {
#if DEEPREC_EXCEPTIONS
    try {
#endif
      const status s = part();
      if (s.ok()) return true;
      if (first_failure(name, chunk)) outcome_ = s.in_operation("micro_batch::run");
#if DEEPREC_EXCEPTIONS
    } catch (...) {
      if (first_failure(name, chunk)) thrown_ = std::current_exception();
    }
#endif
    cancel();
    return false;
  }

  const index_t wanted_;
  const std::optional<micro_lanes> lanes_;
  const loss_reduction reduction_;
  index_t resources_ = 1;
  std::deque<stage_state> stages_;  // stay in place
  std::vector<sum_state> sums_;
  std::vector<update_state> updates_;
  std::optional<fault> refused_;
  bool has_barrier_ = false;

  index_t samples_ = 0;
  index_t chunks_ = 0;
  index_t first_ = 0, end_ = 0;  // the stages of the phase
  std::atomic<int> cancelled_{0};
  std::atomic<int> failed_{0};
  status outcome_;
  micro_report report_;
#if DEEPREC_EXCEPTIONS
  std::exception_ptr thrown_;
#endif
  detail::resource_threads<Wait> threads_;  // of resources 1, 2 ...; the last member: ended first
};

}}  // namespace deeprec::DEEPREC_ABI
