// The default executor: a fixed set of workers for bulk work, and threads on demand for tasks that
// may block. A framework's own pool can take its place (core/executor.hpp).
//
//   parallel_for(n, grain, body)     the caller is worker 0 and works too; workers 1 .. c-1 join in
//   fork(work), call_helpers, join   idle workers are called to work that goes on, and nobody waits for them
//   post(task, stop, handle)         each accepted task has a thread to itself until it ends, so a blocked
//                                    task holds up neither bulk work nor another task; at the limit of
//                                    threads post returns would_block, and the caller keeps the task
//
//   const awake scope(pool);         for the verbs of a step: between them idle workers poll and don't sleep
//
// Task threads are created on demand and kept for later tasks until the pool is destroyed.
// Nested parallel_for calls are safe: a caller always finishes its own pieces, and waits only for
// pieces that other threads are already running. Not here: work stealing, priorities, task graphs.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/process_mark.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/exec/detail/affinity.hpp>
#include <deeprec/exec/detail/bulk_board.hpp>
#include <deeprec/exec/detail/cpu_quota.hpp>
#include <deeprec/exec/detail/task_threads.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The processors that this process may run on (its affinity mask), in order, however many.
///
/// @cost    one system call; several where the system has more than 1024 processors
/// @threads thread-safe
/// @error   none; {0} where the mask can't be read
inline std::vector<int> usable_cpus() {
  return detail::cpus_of_affinity(
      [](std::size_t bytes, cpu_set_t* mask) { return sched_getaffinity(0, bytes, mask); });
}

/// Processors' worth of time that the control groups of this process grant (version 2: cpu.max; version 1:
/// cpu.cfs_quota_us), the smallest of its own group and those above it, rounded up. 0: no limit.
///
/// @cost    reads some files of /proc and /sys
/// @threads thread-safe
/// @error   none; 0 where the files can't be read
[[nodiscard]] inline int cpu_quota() { return detail::cpu_quota(std::string()); }

namespace detail {
inline int default_concurrency(std::size_t cpus, int quota) {
  const int all = static_cast<int>(cpus);
  return quota > 0 && quota < all ? quota : all;
}
}  // namespace detail

/// The default number of threads of a thread_pool: one for each of usable_cpus(), fewer where cpu_quota()
/// grants less time; at least 1.
///
/// @cost    as usable_cpus and cpu_quota
/// @threads thread-safe
/// @error   none
[[nodiscard]] inline int default_concurrency() {
  return detail::default_concurrency(usable_cpus().size(), cpu_quota());
}

struct thread_pool_options {
  enum class pinning : unsigned char {
    none,      ///< the scheduler places workers anywhere in the affinity mask
    one_each,  ///< worker i runs on processor i of the mask, round robin; the caller is not pinned
  };

  int threads = 0;  ///< concurrency(), the caller included; 0: default_concurrency()
  pinning pin = pinning::none;
  /// The time for which an idle worker polls before it sleeps; up to 200 us more while calls come that often,
  /// up to 5 ms where an `awake` exists.
  std::chrono::microseconds spin{20};
  /// Bulk work on all threads, also on more than default_concurrency(), where they only take each other's
  /// time: for tests of what runs at once.
  bool oversubscribe = false;
  int task_threads = 64;  ///< the most tasks that run at once, each on a thread of its own
};

/// Bulk and task executor. A child that fork() made has none of the threads of a pool that it inherits: calls
/// that need one are refused there, and the destructor leaves threads, locks and tasks alone.
///
/// A worker that finds itself on its caller's processor narrows its affinity mask for a moment, to leave it.
///
/// @threads parallel_for and post may be called from any thread, from bodies and tasks as well
/// @error   the constructor throws std::system_error when the system refuses a thread, after joining those it
///          started (without exceptions: ends the program)
class thread_pool {
 public:
  explicit thread_pool(int threads = 0) : thread_pool(thread_pool_options{.threads = threads}) {}

  explicit thread_pool(const thread_pool_options& options)
      : thread_pool(options, usable_cpus(), cpu_quota()) {}

  /// Triggers the stop tokens of posted tasks, waits for them and for the tasks they still post, then joins
  /// all threads. Handles of tasks may be joined later. In a child of the pool's process it does nothing.
  ~thread_pool() {
    if (made_in_.is_inherited()) {
      leave_alone();
      return;
    }
    tasks_.end();
    stop_workers();
#if DEEPREC_EXCEPTIONS
    if (tasks_.has_failed()) {
      std::fputs("deeprec::thread_pool: a posted task threw, and wait_tasks() was not called\n", stderr);
    }
#endif
  }

  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;

  [[nodiscard]] int concurrency() const noexcept { return concurrency_; }
  /// How many of them run at once: no more than default_concurrency() at construction. A call wakes no more,
  /// and with 1 it runs on its thread alone.
  [[nodiscard]] int processors() const noexcept { return processors_; }
  /// True unless all workers sleep, which they do on one processor; after a call they poll for a while.
  [[nodiscard]] bool polls() const noexcept { return processors_ > 1 && board_.polls(); }
  /// For `awake`: between these two, which nest, idle workers poll for longer.
  void stay_awake() noexcept { board_.stay_awake(); }
  void may_sleep() noexcept { board_.may_sleep(); }
  /// The affinity mask at construction.
  [[nodiscard]] const std::vector<int>& cpus() const noexcept { return cpus_; }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    no allocation; about 0.1 us when n <= grain, some us to wake other workers
  /// @threads thread-safe; may be nested
  /// @error   when bodies throw, the exception of the smallest begin is rethrown here, once no body
  ///          runs any more; pieces that had not begun are dropped. unsupported, thrown (without exceptions:
  ///          ends the program), for several pieces in a child of the pool's process
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    DEEPREC_EXPECTS(grain > 0);
    if (n <= 0) return;
    const int self = worker_of(this);
    const index_t pieces = n <= grain ? 1 : (n - 1) / grain + 1;
    if (pieces == 1 || processors_ == 1) {
      for (index_t piece = 0; piece < pieces; ++piece) {
        const index_t begin = piece * grain;
        body(begin, n - begin > grain ? begin + grain : n, self);
      }
      return;
    }
    if (made_in_.is_inherited()) refuse("thread_pool::parallel_for");
    using plain_body = std::remove_reference_t<Body>;
    board_.run([](const void* callee, index_t begin, index_t end,
                  int worker) { (*static_cast<plain_body*>(const_cast<void*>(callee)))(begin, end, worker); },
               std::addressof(body), n, grain, self, fork_of_this_thread());
  }

  /// See ForkingExecutor: workers may be called to `work` from here on.
  ///
  /// @cost    some 10 ns; call_helpers some 50 ns, and some us for each worker that it wakes; no allocation
  /// @threads thread-safe; from bodies and tasks as well. call_helpers: the thread that forked, and helpers;
  ///          help_bulk and join: the thread that forked
  /// @error   false: on one processor, where as many calls are shared as the pool has places for, and in a
  ///          child of the pool's process
  [[nodiscard]] bool fork(forked_work& work) noexcept {
    if (processors_ == 1 || made_in_.is_inherited()) return false;
    work.place = board_.open_fork(
        [](const void* forked, index_t, index_t, int worker) {
          auto& to = *static_cast<forked_work*>(const_cast<void*>(forked));
          forked_work* const outer = std::exchange(this_thread().inside, &to);
          to.help(to.body, worker);
          this_thread().inside = outer;
        },
        &work);
    if (work.place < 0) return false;
    work.executor = this;
    work.outer = std::exchange(this_thread().inside, &work);
    return true;
  }
  /// @pre     calls > 0
  void call_helpers(forked_work& work, int calls) noexcept { board_.call_fork(work.place, calls); }
  /// Takes pieces of a parallel_for that a thread of the fork has called. False: there is none.
  [[nodiscard]] bool help_bulk(forked_work& work) { return board_.help(worker_of(this), &work); }
  /// Waits for the helpers that are inside; the calls that none has taken are dropped.
  void join(forked_work& work) noexcept {
    this_thread().inside = work.outer;
    board_.end_fork(work.place);
  }

  /// Runs the task at once on a thread of its own, an idle one or a new one: it waits for no other task. Its
  /// stop token is triggered by `stop` and by the pool's destructor.
  ///
  /// @param task moved from only when it is accepted, or when its own move throws
  /// @post    ok: the task runs once. Any error: it never runs, and the caller keeps it
  /// @cost    one allocation, two with a `stop`; a new thread (about 20 us, and its allocations) when no task
  ///          thread is idle
  /// @threads thread-safe
  /// @error   would_block when as many tasks run as thread_pool_options::task_threads, or no thread is idle
  ///          and the system refuses one (without exceptions that ends the program); out_of_memory;
  ///          unsupported in a child of the pool's process. The first exception of a task is kept and
  ///          rethrown by wait_tasks()
  template <class Task>
    requires detail::task_returning<std::decay_t<Task>, void>
  status post(Task&& task, std::stop_token stop = {}) {
    return accept(std::forward<Task>(task), std::move(stop), nullptr);
  }
  /// The same, with a handle: its request_stop() triggers the token as well, and its join() returns the
  /// status or rethrows the exception of the task, which wait_tasks() then does not.
  ///
  /// @pre     !handle.joinable()
  /// @post    when join() has returned, the thread of the task is free for another one
  /// @cost    as above; two allocations when the task takes a token, else one
  /// @threads thread-safe
  /// @error   as above; on an error the handle stays empty
  template <class Task>
    requires TaskWork<std::decay_t<Task>>
  status post(Task&& task, std::stop_token stop, task_handle& handle) {
    return accept(std::forward<Task>(task), std::move(stop), &handle);
  }

  /// Waits until no posted task is left, then rethrows the first exception of one without a handle.
  ///
  /// @pre     not called from a task
  /// @cost    blocks
  /// @threads thread-safe
  /// @error   rethrows; unsupported, thrown, in a child of the pool's process
  void wait_tasks() {
    if (made_in_.is_inherited()) refuse("thread_pool::wait_tasks");
    tasks_.wait();
  }

 private:
  thread_pool(const thread_pool_options& options, std::vector<int> cpus, int quota)
      : cpus_(std::move(cpus)),
        concurrency_(options.threads > 0 ? options.threads
                                         : detail::default_concurrency(cpus_.size(), quota)),
        processors_(options.oversubscribe
                        ? concurrency_
                        : (std::min)(concurrency_, detail::default_concurrency(cpus_.size(), quota))),
        board_(concurrency_ - 1, processors_ - 1,
               detail::default_concurrency(cpus_.size(), quota) > 1 ? options.spin
                                                                    : std::chrono::microseconds{0}),
        tasks_(options.task_threads > 0 ? static_cast<std::size_t>(options.task_threads) : 0) {
    workers_.reserve(static_cast<std::size_t>(concurrency_ - 1));
#if DEEPREC_EXCEPTIONS
    try {
      start_workers(options.pin);
    } catch (...) {  // the system refused a thread: end those that run
      stop_workers();
      throw;
    }
#else
    start_workers(options.pin);
#endif
  }

  // In a child: threads, and who waits, are those of the parent at the fork, perhaps in the middle of a
  // change. Whatever has a destructor that looks at them is replaced by an empty one, and its memory is not
  // freed.
  void leave_alone() noexcept {
    ::new (static_cast<void*>(&workers_)) std::vector<std::thread>();
    tasks_.leave_alone();
  }
  [[noreturn]] static void refuse(const char* function) {
    detail::raise(errc::unsupported,
                  std::string(function) + ": must be called in the pool's process (called in a child of it)");
  }

  template <class Task>
  status accept(Task&& task, std::stop_token stop, task_handle* handle) {
    if (made_in_.is_inherited()) {
      return {errc::unsupported,
              "thread_pool::post: must be called in the pool's process (called in a child of it)"};
    }
    return tasks_.post(std::forward<Task>(task), std::move(stop), handle);
  }

  // The pool and the worker number of the current thread.
  struct identity {
    const thread_pool* pool = nullptr;
    int worker = 0;
    forked_work* inside = nullptr;  // of any pool
  };
  static identity& this_thread() noexcept {
    static thread_local identity self;
    return self;
  }
  static int worker_of(const thread_pool* pool) noexcept {
    const identity& self = this_thread();
    return self.pool == pool ? self.worker : 0;
  }

  forked_work* fork_of_this_thread() const noexcept {
    forked_work* const inside = this_thread().inside;
    return inside != nullptr && inside->executor == this ? inside : nullptr;
  }

  void start_workers(thread_pool_options::pinning pin) {
    for (int id = 1; id < concurrency_; ++id) {
      workers_.emplace_back([this, id, pin] {
        if (pin == thread_pool_options::pinning::one_each) {
          detail::pin_this_thread(cpus_[static_cast<std::size_t>(id) % cpus_.size()]);
        }
        this_thread() = {this, id, nullptr};
        board_.work(id);
      });
    }
  }
  void stop_workers() {
    board_.stop();
    for (std::thread& worker : workers_) worker.join();
  }

  const std::vector<int> cpus_;
  const int concurrency_;
  const int processors_;
  const process_mark made_in_;

  detail::bulk_board<> board_;
  std::vector<std::thread> workers_;

  detail::task_threads tasks_;
};

static_assert(ForkingExecutor<thread_pool> && TaskExecutor<thread_pool>);

}}  // namespace deeprec::DEEPREC_ABI
