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
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/detail/op_runner.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/plan/detail/watched_ops.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/support/bulk.hpp>
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
  /// How long the caller of run_on polls, when it finds no op, before it sleeps; a thread of an executor that
  /// can't fork, before it leaves the run. A thread that has left is called back when ops become ready.
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
        ready_(block_.take<number>(plan.size())),
        runner_(plan.graph(), block_.take<number>(plan.size()), ready_) {}
  plan_run(const plan_run&) = delete;
  plan_run& operator=(const plan_run&) = delete;

  [[nodiscard]] const task_plan& plan() const noexcept { return *plan_; }

 private:
  template <class C>
  friend result<void> run_on(C&& on, plan_run& run, void* step);

  using ready_set = detail::ready_ops<>;
  using runner = detail::op_runner<ready_set>;
  using number = runner::number;
  using local = runner::local;

  template <class Number>
  static std::size_t index(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  template <class E>
  result<void> run(E& executor, const environment& env, void* step) {
    env_ = &env;
    step_ = step;
    // relaxed, here and where an op fails: the first call of a helper, and its end, publish them
    failed_at_.store((std::numeric_limits<std::int32_t>::max)(), std::memory_order_relaxed);
    stopped_.store(false, std::memory_order_relaxed);
    if (plan_->size() > 0 && !run_forked(executor)) run_nested(executor);
    return outcome();
  }
  [[nodiscard]] int helpers(int threads) const noexcept {
    return static_cast<int>((std::min)(index_t{threads}, plan_->size())) - 1;
  }

  // False: the executor has no fork for it.
  template <class E>
  bool run_forked(E& executor) {
    if constexpr (ForkingExecutor<E>) {
      team_of_fork<E> team(*this, executor);
      if (!executor.fork(team.work)) return false;
      const int first = runner_.restart(helpers(detail::threads_at_once(executor)));
      const int calls = runner_.calls_for(first - 1);
      if (calls > 0) executor.call_helpers(team.work, calls);
      runner_.own(team);
      executor.join(team.work);
      runner_.end();
      return true;
    } else {
      static_cast<void>(executor);
      return false;
    }
  }
  template <class E>
  struct team_of_fork {
    plan_run* run;
    E* executor;
    forked_work work;

    team_of_fork(plan_run& r, E& e) noexcept
        : run(&r),
          executor(&e),
          work{[](void* body, int) noexcept {
                 auto& team = *static_cast<team_of_fork*>(body);
                 team.run->runner_.help(team);
               },
               [](void* body) noexcept { static_cast<team_of_fork*>(body)->run->runner_.bulk_begins(); },
               this} {}
    void execute(std::int32_t op) { run->execute(op); }
    // A helper that leaves is called back in a microsecond while the executor's threads poll, and is free for
    // the bulk work of ops.
    [[nodiscard]] std::chrono::nanoseconds patience(bool is_owner) const noexcept {
      return is_owner ? run->spin_ : (std::min)(run->spin_, std::chrono::microseconds(1));
    }
    void call(local&, int calls) { executor->call_helpers(work, calls); }
    [[nodiscard]] bool help_bulk() { return executor->help_bulk(work); }
  };

  // By a parallel_for whose bodies are the threads of the run. Who calls helpers back waits for them.
  template <class E>
  void run_nested(E& executor) {
    const int calls = helpers(executor.concurrency());
    static_cast<void>(runner_.restart(calls));
    nested_team<E> team{this, &executor, 0};
    const auto caller = std::this_thread::get_id();
    bool has_owner = false;  // of the caller's thread
    std::atomic<int> helping{0};
    const auto piece = [&] {
      if (std::this_thread::get_id() != caller) {
        if (helping.fetch_add(1, std::memory_order_relaxed) == calls)
          runner_.count(1);  // no piece is the caller's
        runner_.help(team);
      } else if (!std::exchange(has_owner, true)) {
        runner_.own(team);
      } else {
        runner_.count(-1);
      }
    };
    if (calls > 0) {
      runner_.count(calls);
      executor.parallel_for(index_t{calls} + 1, index_t{1}, [&](index_t begin, index_t end, int) {
        for (; begin < end; ++begin) piece();
      });
    }
    if (!has_owner) runner_.own(team);
    runner_.end();
  }
  template <class E>
  struct nested_team {
    plan_run* run;
    E* executor;
    int depth;
    static constexpr int most_calls_back = 4;  // nested in each other

    void execute(std::int32_t op) { run->execute(op); }
    [[nodiscard]] std::chrono::nanoseconds patience(bool) const noexcept { return run->spin_; }
    [[nodiscard]] static constexpr bool help_bulk() noexcept { return false; }
    void call(local& mine, int calls) {
      if (depth == most_calls_back) return run->runner_.count(-calls);
      run->runner_.hand_over(mine);
      run->runner_.count(1);  // the caller's own piece
      std::atomic<int> missing{calls + 1};
      nested_team inner{run, executor, depth + 1};
      const auto piece = [&](index_t begin, index_t end, int) {
        for (; begin < end; ++begin) {
          missing.fetch_sub(1, std::memory_order_relaxed);
          run->runner_.help(inner);
        }
      };
#if DEEPREC_EXCEPTIONS
      try {
        executor->parallel_for(index_t{calls} + 1, index_t{1}, piece);
      } catch (...) {  // of the executor: bodies don't throw. What is published is run by those who are here
        run->runner_.count(-missing.load(std::memory_order_relaxed));
      }
#else
      executor->parallel_for(index_t{calls} + 1, index_t{1}, piece);
#endif
    }
  };

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
  ready_set ready_;
  runner runner_;
  const environment* env_ = nullptr;
  void* step_ = nullptr;
  status why_;
  std::exception_ptr thrown_;
  std::mutex mutex_;
  alignas(64) std::atomic<std::int32_t> failed_at_{0};
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
///          run_inline. On an executor that forks (thread_pool) a thread that finds no op leaves to the
///          executor, where it is free for the bulk work of ops, and an op that makes several ready calls as
///          many threads back as are away: some 50 ns, and some us for each that sleeps. Nobody waits for
///          them but the caller, at the end; meanwhile it helps with the bulk work of ops where it has none
///          to run. On another executor the op that makes several ready calls threads back by a parallel_for
///          inside of its thread's body, and that thread goes on only when they have left: so each change
///          from few ops to many, after a phase longer than plan_run_options::spin, may cost a thread; four
///          calls deep nobody is called back, and at worst one thread runs the rest
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
