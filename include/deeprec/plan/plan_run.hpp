// Runs a task_plan: on the calling thread, or on the threads of an executor.
//
//   run_inline(env, plan, &step)     read  hash hash hash  lookup lookup      no allocation, no atomics
//
//   plan_run run(plan);              thread 0   read  hash   lookup           the op that ends another's last
//   run_on(pool, run, &step)         thread 1         hash  hash  lookup      wait runs it or hands it on
//
// One plan, any number of runs in flight: each with a plan_run of its own on threads, with none inline.
// Not here: streams (stream_plan.hpp); work stealing, priorities.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory_resource>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/plan/detail/watched_ops.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/queue/event_count.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

#if DEEPREC_EXCEPTIONS
/// The exception of a task, as run_inline and run_on throw it; the task's own is nested in it
/// (std::rethrow_if_nested).
class task_error : public error, public std::nested_exception {
 public:
  /// Nests the exception that is being handled.
  task_error(const char* task, index_t op, errc code, const char* said)
      : error(code, "task_plan: " + std::string(task) + " threw (op " + std::to_string(op) + "): " + said),
        op_(op) {}
  /// The op's number in the plan.
  [[nodiscard]] index_t op() const noexcept { return op_; }

 private:
  index_t op_;
};
#endif

namespace detail {

#if DEEPREC_EXCEPTIONS
/// Throws a task_error with the exception of an op.
[[noreturn]] inline void throw_task_error(const task_plan& plan, index_t op,
                                          const std::exception_ptr& thrown) {
  const char* const task = plan.name(op);
  try {
    std::rethrow_exception(thrown);
  } catch (const error& e) {
    throw task_error(task, op, e.code(), e.what());
  } catch (const std::bad_alloc& e) {
    throw task_error(task, op, errc::out_of_memory, e.what());
  } catch (const std::exception& e) {
    throw task_error(task, op, errc::producer_failed, e.what());
  } catch (...) {
    throw task_error(task, op, errc::producer_failed, "no std::exception");
  }
}
#endif

}  // namespace detail

/// Runs every op of a plan on the calling thread, in plan.order().
///
/// @param env a context, for its stop token and its trace sink; nothing of it is allocated from
/// @param step what the tasks receive as task_call::step
/// @post     ok: every task ran once, after those that it depends on. Else those before the failed one in
///           plan.order() ran, and no other
/// @cost     no allocation, lock or atomic. A task is a call that is inlined into a loop over its kind, and
///           each change of the kind an indirect call, which costs 5 to 8 ns where it is not predicted. With
///           a stop token or a trace sink every task is an indirect call
/// @threads  thread-safe: any number of runs of one plan at once
/// @error    the status of the first task that fails, with the op's name in the text and its number as
///           place().item; stopped, where the token requested it before an op. Throws task_error for the
///           exception of a task
[[nodiscard]] inline result<void> run_inline(const environment& env, const task_plan& plan,
                                             void* step = nullptr) {
  detail::row_failure failure;
  const std::int32_t* row_ops = nullptr;
  const bool watched = env.stop != nullptr || env.trace != nullptr;
  bool ok = true;
#if DEEPREC_EXCEPTIONS
  try {
#endif
    if (!watched) [[likely]] {
      ok = plan.for_each_group(step, [&](detail::row_runner run, const detail::task_row& row) {
        row_ops = row.ops;
        return run(row, failure);
      });
    } else {
      detail::op_spans spans(plan, env.trace);
      ok = plan.for_each_group(step, [&](detail::row_runner run, const detail::task_row& row) {
        row_ops = row.ops;
        return detail::run_watched(env, spans, run, row, failure);
      });
    }
#if DEEPREC_EXCEPTIONS
  } catch (...) {
    detail::throw_task_error(plan, row_ops[failure.at], std::current_exception());
  }
#endif
  if (ok) [[likely]]
    return {};
  if (failure.why.ok()) return status(errc::stopped, {.operation = "run_inline"});
  return detail::task_fault(plan, row_ops[failure.at], failure.why);
}

class plan_run;
template <class C>
[[nodiscard]] result<void> run_on(C&& on, plan_run& run, void* step = nullptr);

struct plan_run_options {
  /// How long a thread without work polls before it leaves the run, or, the caller's, before it sleeps. A
  /// thread that has left is called back when an op makes several others ready.
  std::chrono::microseconds spin{20};
};

/// The state of one run of a plan on threads: used for one run after another.
///
/// @threads one run at a time; plan_runs of one plan run at once
class plan_run {
 public:
  /// @param plan outlives this, and is not moved
  /// @cost    one allocation of 8 bytes for each op
  /// @threads reentrant
  /// @error   throws std::bad_alloc, or what the resource throws
  explicit plan_run(const task_plan& plan,
                    std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
                    const plan_run_options& options = {})
      : plan_(&plan),
        spin_(options.spin),
        block_(memory, 2 * detail::scratch_block::bytes_of<number>(plan.size())),
        missing_(block_.take<number>(plan.size())),
        ready_(block_.take<number>(plan.size())) {
    for (number& n : missing_) ::new (&n) number(0);
  }
  plan_run(const plan_run&) = delete;
  plan_run& operator=(const plan_run&) = delete;

  [[nodiscard]] const task_plan& plan() const noexcept { return *plan_; }

 private:
  template <class C>
  friend result<void> run_on(C&& on, plan_run& run, void* step);

  using number = detail::ready_ops::number;
  using clock = std::chrono::steady_clock;
  static constexpr std::int32_t none = detail::ready_ops::none;
  static constexpr int most_calls_back = 4;  // nested in each other

  template <class Number>
  static std::size_t index(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  template <class E>
  result<void> run(E& executor, const environment& env, void* step) {
    const index_t n = plan_->size();
    env_ = &env;
    step_ = step;
    // relaxed, here and where a run begins: parallel_for publishes them to its bodies
    failed_at_.store((std::numeric_limits<std::int32_t>::max)(), std::memory_order_relaxed);
    stopped_.store(false, std::memory_order_relaxed);
    left_.store(0, std::memory_order_relaxed);
    ready_.restart();
    remaining_.store(static_cast<std::int32_t>(n), std::memory_order_relaxed);
    for (const std::int32_t v : plan_->order()) {
      const auto needs = static_cast<std::int32_t>(plan_->indegree(v));
      missing_[index(v)].store(needs, std::memory_order_relaxed);
      if (needs == 0) ready_.add(v, std::memory_order_relaxed);
    }
    if (n > 0) call_in((std::min)(index_t{executor.concurrency()}, n), executor, 0);
    // Where an executor called no body of the caller's own: what is left.
    if (remaining_.load(std::memory_order_acquire) != 0) work(executor, 0, true);
    return outcome();
  }

  // Works on `threads` threads until none of them finds work, or the run has ended.
  template <class E>
  void call_in(index_t threads, E& executor, int depth) {
    const auto caller = std::this_thread::get_id();
    executor.parallel_for(threads, index_t{1}, [&](index_t begin, index_t end, int) {
      for (index_t piece = begin; piece < end; ++piece) {
        work(executor, depth, std::this_thread::get_id() == caller);
      }
    });
  }

  // The caller of run_on stays until the run has ended; others leave when they find nothing. So no body waits
  // for another one that has not begun.
  template <class E>
  void work(E& executor, int depth, bool is_caller) {
    std::int32_t mine = none;
    while (true) {
      if (mine == none) mine = ready_.claim();
      if (mine == none) mine = wait(is_caller && depth == 0);
      if (mine == none) {
        // relaxed: a hint
        if (!is_caller) left_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      execute(mine);
      mine = finish(mine, executor, depth);
    }
  }

  void publish(std::int32_t op) noexcept {
    ready_.add(op, std::memory_order_release);
    changed_.notify_one();
  }

  [[nodiscard]] bool ended() const noexcept { return remaining_.load(std::memory_order_acquire) == 0; }

  // Polls; then sleeps, if it may, until there is work or the run has ended.
  std::int32_t wait(bool may_sleep) noexcept {
    if (ended()) return none;
    if (spin_.count() > 0) {
      const auto give_up = clock::now() + spin_;
      do {
        for (int i = 0; i < 32; ++i) {
          if (const std::int32_t op = ready_.claim(); op != none || ended()) return op;
#if DEEPREC_X86
          __builtin_ia32_pause();
#endif
        }
      } while (clock::now() < give_up);
    }
    while (may_sleep) {
      const auto key = changed_.prepare();
      const std::int32_t op = ready_.claim();
      if (op != none || ended()) {
        changed_.cancel();
        return op;
      }
      changed_.wait(key);
    }
    return ready_.claim();
  }

  void execute(std::int32_t op) {
    const auto at = static_cast<std::int32_t>(plan_->position(op));
    // relaxed: only a number. What comes before the failure in the order runs, so that the first failure in
    // the order is found, whichever happens first.
    if (at > failed_at_.load(std::memory_order_relaxed)) return;
    if (stopped_.load(std::memory_order_relaxed)) return;
    if (env_->stop != nullptr && env_->stop->stop_requested()) {
      stopped_.store(true, std::memory_order_relaxed);
      return;
    }
    if (!plan_->has_task(op)) return;
    detail::op_spans span(*plan_, env_->trace);
    span.begin(op);
#if DEEPREC_EXCEPTIONS
    try {
      if (const status s = plan_->call(op, step_); !s) note(at, s, nullptr);
    } catch (...) {
      note(at, {}, std::current_exception());
    }
#else
    if (const status s = plan_->call(op, step_); !s) note(at, s, nullptr);
#endif
  }
  void note(std::int32_t at, const status& why, std::exception_ptr thrown) {
    const std::lock_guard lock(mutex_);
    if (at > failed_at_.load(std::memory_order_relaxed)) return;
    why_ = why;
    thrown_ = std::move(thrown);
    failed_at_.store(at, std::memory_order_relaxed);
  }

  // Counts the op for its successors. Returns one that is ready now, hands the others on, and calls threads
  // back that have left.
  template <class E>
  std::int32_t finish(std::int32_t op, E& executor, int depth) {
    std::int32_t next = none;
    index_t handed_on = 0;
    for (const std::int32_t v : plan_->successors(op)) {
      // acq_rel: what the predecessors wrote is visible to the task
      if (missing_[index(v)].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      if (next == none) {
        next = v;
      } else {
        publish(v);
        ++handed_on;
      }
    }
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      changed_.notify_all();
      return none;
    }
    if (handed_on == 0 || depth == most_calls_back) return next;
    const auto away = static_cast<index_t>(left_.load(std::memory_order_relaxed));
    if (away <= 0) return next;
    const index_t called = (std::min)(away, handed_on);
    left_.fetch_sub(static_cast<int>(called), std::memory_order_relaxed);
    publish(next);
#if DEEPREC_EXCEPTIONS
    try {
      call_in(called + 1, executor, depth + 1);
    } catch (...) {  // of the executor: bodies don't throw. What is published is run by those who are here
      left_.fetch_add(static_cast<int>(called), std::memory_order_relaxed);
    }
#else
    call_in(called + 1, executor, depth + 1);
#endif
    return none;
  }

  result<void> outcome() {
    const std::int32_t at = failed_at_.load(std::memory_order_relaxed);
    if (index(at) < plan_->order().size()) {
      const index_t op = plan_->order()[index(at)];
#if DEEPREC_EXCEPTIONS
      if (const std::exception_ptr thrown = std::exchange(thrown_, nullptr)) {
        detail::throw_task_error(*plan_, op, thrown);
      }
#endif
      return detail::task_fault(*plan_, op, why_);
    }
    if (stopped_.load(std::memory_order_relaxed)) return status(errc::stopped, {.operation = "run_on"});
    return {};
  }

  const task_plan* plan_;
  const std::chrono::microseconds spin_;
  detail::scratch_block block_;
  std::span<number> missing_;  // of an op: predecessors that have not ended
  detail::ready_ops ready_;
  const environment* env_ = nullptr;
  void* step_ = nullptr;
  status why_;
  std::exception_ptr thrown_;
  std::mutex mutex_;
  event_count<> changed_;
  alignas(64) number remaining_{0};
  std::atomic<int> left_{0};
  alignas(64) number failed_at_{0};
  std::atomic<bool> stopped_{false};
};

/// Runs every op of a plan on the threads of a bulk executor: an op begins when the last of those that it
/// depends on has ended.
///
/// @param on a context or an executor
/// @param step what the tasks receive as task_call::step
/// @pre     tasks don't wait for each other
/// @post    ok: every task ran once, after those that it depends on. Else no task runs any more, those before
///          the failed one in plan.order() ran, and of the others those that had begun
/// @cost    no allocation. For each op and each edge an atomic operation or two on lines that threads share:
///          some 100 ns for an op, so for ops of some us and more. On an executor with one thread:
///          run_inline. A thread other than the caller's leaves when it finds no op for
///          plan_run_options::spin. The op that then makes several ready calls as many back, by a
///          parallel_for inside of its thread's body, and that thread goes on only when those that it called
///          have left in turn: at the end of the run, where one of them runs the op that ends the phase and
///          what follows. So each change from few ops to many, after a phase longer than `spin`, may cost a
///          thread; four calls deep nobody is called back, and at worst one thread runs the rest. Such a plan
///          takes a longer spin, or a parallel_for for each phase
/// @threads one run at a time for one plan_run; also from a body of the same executor
/// @error   the status of the task that fails first in plan.order(), whichever fails first in time, with the
///          op's name in the text and its number as place().item; stopped, where the token requested it
///          before an op. Throws task_error for the exception of a task, and what the first parallel_for of
///          the executor throws; the plan_run can be used again
template <class C>
result<void> run_on(C&& on, plan_run& run, void* step) {
  const auto ctx = detail::as_context(on);
  static_assert(BulkExecutor<std::remove_pointer_t<decltype(ctx.executor)>>,
                "deeprec::run_on: not a bulk executor. Fix: pass a deeprec::thread_pool or another executor "
                "with parallel_for(n, grain, body) and concurrency(); for streams see plan/stream_plan.hpp.");
  if (ctx.executor->concurrency() == 1) return run_inline(ctx, run.plan(), step);
  return run.run(*ctx.executor, ctx, step);
}

}}  // namespace deeprec::DEEPREC_ABI
