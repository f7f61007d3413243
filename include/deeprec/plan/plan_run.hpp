// Runs a task_plan: on the calling thread, or on the threads of an executor.
//
//   run_inline(env, plan, &step)     read  hash hash hash  lookup lookup      no allocation, no atomics
//
//   plan_run run(plan);              thread 0   read  hash   lookup           the op that ends another's last
//   run_on(pool, run, &step)         thread 1         hash  hash  lookup      wait runs it or hands it on
//   cost_run run(plan);              the same, the longest way first, and on threads only where that pays
//
// One plan, any number of runs in flight: each with a plan_run of its own on threads, with none inline.
// Not here: streams (stream_plan.hpp).
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
#include <deeprec/plan/detail/ready_of.hpp>
#include <deeprec/plan/detail/run_outcome.hpp>
#include <deeprec/plan/detail/thrown_task.hpp>
#include <deeprec/plan/detail/watched_ops.hpp>
#include <deeprec/plan/op_costs.hpp>
#include <deeprec/plan/ready_sets.hpp>
#include <deeprec/plan/task_error.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

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

template <class Ready>
class basic_plan_run;
template <class C, class Ready>
[[nodiscard]] result<void> run_on(C&& on, basic_plan_run<Ready>& run, void* step = nullptr);

struct plan_run_options {
  /// How long the caller of run_on polls, when it finds no op, before it sleeps; a thread of an executor that
  /// can't fork, before it leaves the run. A thread that has left is called back when ops become ready.
  std::chrono::microseconds spin{20};
};

/// The state of one run of a plan on threads: used for one run after another.
///
///   plan_run first_in_first_out(plan);   stealing_run stealing(plan);   cost_run by_cost(plan);
///
/// @threads one run at a time; runs of one plan with states of their own at once
template <class Ready>
class basic_plan_run {
  using ready_of = detail::ready_of<Ready>;
  using runner = detail::op_runner<typename ready_of::set>;
  using number = typename runner::number;
  using local = typename runner::local;

 public:
  /// @param plan outlives this, and is not moved
  /// @cost    one allocation of 8 bytes for each op; work_stealing: 40 KiB more; cost_model: 36 for each op
  /// @threads reentrant
  /// @error   throws std::bad_alloc, or what the resource throws
  explicit basic_plan_run(const task_plan& plan,
                          std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
                          const plan_run_options& options = {})
      : outcome_(plan),
        spin_(options.spin),
        block_(memory,
               detail::scratch_block::bytes_of<number>(plan.size()) + ready_of::bytes_of(plan.size())),
        ready_(plan, block_),
        runner_(plan.graph(), block_.take<number>(plan.size()), ready_.ready) {}
  basic_plan_run(const basic_plan_run&) = delete;
  basic_plan_run& operator=(const basic_plan_run&) = delete;

  [[nodiscard]] const task_plan& plan() const noexcept { return outcome_.plan(); }
  /// What the runs have learnt; of a cost_run.
  ///
  /// @threads between two runs
  template <class Of = ready_of>
    requires Of::learns
  [[nodiscard]] const op_costs& costs() const noexcept {
    return ready_.costs;
  }

 private:
  template <class C, class R>
  friend result<void> run_on(C&& on, basic_plan_run<R>& run, void* step);

  template <class Context>
  result<void> run(const Context& ctx, void* step) {
    if constexpr (ready_of::learns) {
      const auto way = ready_.costs.begin_run(detail::threads_at_once(*ctx.executor),
                                              static_cast<double>(ctx.tuning->parked_ns));
      timed_ = way.timed;
      if (!way.threads) {
        result<void> done = way.timed ? run_timed(ctx, step) : run_inline(ctx, plan(), step);
        if (done) ready_.costs.end_run();
        return done;
      }
    }
    outcome_.restart(ctx, step);
    if (plan().size() > 0 && !run_forked(*ctx.executor)) run_nested(*ctx.executor);
    result<void> done = outcome_.outcome();
    if constexpr (ready_of::learns) {
      if (done) ready_.costs.end_run();
    }
    return done;
  }
  // On the calling thread, op by op.
  result<void> run_timed(const environment& env, void* step) {
    outcome_.restart(env, step);
    std::int64_t before = ready_.costs.ticks();
    for (const std::int32_t op : plan().order()) {
      outcome_.execute(op);
      const std::int64_t now = ready_.costs.ticks();
      ready_.costs.took(op, now - before);
      before = now;
    }
    return outcome_.outcome();
  }
  void execute(std::int32_t op) {
    if constexpr (ready_of::learns) {
      if (timed_) {
        const std::int64_t before = ready_.costs.ticks();
        outcome_.execute(op);
        return ready_.costs.took(op, ready_.costs.ticks() - before);
      }
    }
    outcome_.execute(op);
  }
  [[nodiscard]] int helpers(int threads) const noexcept {
    return static_cast<int>((std::min)(index_t{threads}, plan().size())) - 1;
  }

  // False: the executor has no fork for it.
  template <class E>
  bool run_forked(E& executor) {
    if constexpr (ForkingExecutor<E>) {
      team_of_fork<E> team(*this, executor);
      if (!executor.fork(team.work)) return false;
      const int first = runner_.restart(helpers(detail::threads_at_once(executor)));
      const int calls = runner_.calls_for(first - 1);
      local none;
      if (calls > 0) team.call(none, calls);
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
    basic_plan_run* run;
    E* executor;
    forked_work work;

    team_of_fork(basic_plan_run& r, E& e) noexcept
        : run(&r),
          executor(&e),
          work{[](void* body, int) noexcept {
                 auto& team = *static_cast<team_of_fork*>(body);
                 if constexpr (ready_of::learns) team.run->ready_.costs.came();
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
    void call(local&, int calls) {
      if constexpr (ready_of::learns) run->ready_.costs.called();
      executor->call_helpers(work, calls);
    }
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
    basic_plan_run* run;
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

  detail::run_outcome outcome_;
  const std::chrono::microseconds spin_;
  bool timed_ = false;
  detail::scratch_block block_;
  ready_of ready_;
  runner runner_;
};

using plan_run = basic_plan_run<ready_set::first_in_first_out>;
using stealing_run = basic_plan_run<ready_set::work_stealing>;
using cost_run = basic_plan_run<ready_set::cost_model>;

/// Runs every op of a plan on the threads of a bulk executor: an op begins when the last of those that it
/// depends on has ended.
///
/// @param on a context or an executor
/// @param step what the tasks receive as task_call::step
/// @pre     tasks don't wait for each other
/// @post    ok: every task ran once, after those that it depends on. Else no task runs any more, those before
///          the failed one in plan.order() ran, and of the others those that had begun
/// @cost    no allocation; a cost_run that stays on its caller's thread: as run_inline, and see op_costs. For
///          each op and each edge an atomic operation or two on lines that threads share:
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
template <class C, class Ready>
result<void> run_on(C&& on, basic_plan_run<Ready>& run, void* step) {
  const auto ctx = detail::as_context(on);
  static_assert(BulkExecutor<std::remove_pointer_t<decltype(ctx.executor)>>,
                "deeprec::run_on: not a bulk executor. Fix: pass a deeprec::thread_pool or another executor "
                "with parallel_for(n, grain, body) and concurrency(); for streams see plan/stream_plan.hpp.");
  if constexpr (!detail::ready_of<Ready>::learns) {
    if (ctx.executor->concurrency() == 1) return run_inline(ctx, run.plan(), step);
  }
  return run.run(ctx, step);
}

}}  // namespace deeprec::DEEPREC_ABI
