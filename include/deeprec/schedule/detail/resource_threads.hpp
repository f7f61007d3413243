// A thread of an executor for each resource of a micro_batch but the caller's. It sleeps between batches.
//
//   start(executor, n, work)    posts what does not run: all at first, later those that ended or were refused
//   begin()  ... wait()         every thread calls work(its number) once; the caller works meanwhile
//
// All of them wait in one place, for a batch and for each other's stages: tasks are few and long.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/process_mark.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads start, begin and wait by one thread at a time; wait_for and notify_all by any
template <class Wait>
class resource_threads {
 public:
  resource_threads() = default;
  resource_threads(const resource_threads&) = delete;
  resource_threads& operator=(const resource_threads&) = delete;
  /// Waits for the threads, which have nothing to do.
  ~resource_threads() {
    if (threads_.empty()) return;
    quit_.store(1, std::memory_order_relaxed);
    board_.notify_all();
    if (!made_in_.is_inherited()) {
      wait_for([this] { return running_.load(std::memory_order_acquire) == 0; });
    }
    for (task_handle& t : threads_) static_cast<void>(t.join());  // it has kept no exception
  }

  /// Posts a task for each of `threads` threads that has none: all at first, later those that a post()
  /// refused, those that ended with their executor, and those that a fork() left in the parent.
  ///
  /// @param work  of a thread's number from 0, for each batch; that of the first call is kept
  template <class Executor, class Work>
  status start(Executor& executor, index_t threads, const Work& work) {
    if (made_in_.is_inherited()) {
      running_.store(0, std::memory_order_relaxed);
      made_in_ = process_mark();
    }
    const status made = or_out_of_memory("micro_batch::run", [&]() -> status {
      threads_.resize(static_cast<std::size_t>(threads));
      if (!work_) work_ = work;
      return {};
    });
    if (!made) return made;
    for (index_t number = 0; number < threads; ++number) {
      task_handle& thread = threads_[static_cast<std::size_t>(number)];
      if (!thread.done()) continue;
      static_cast<void>(thread.join());  // it has kept no exception
      const std::thread::id caller = std::this_thread::get_id();
      const std::uint64_t seen = batches_.load(std::memory_order_relaxed);
      const status posted = post(
          executor,
          [this, number, caller, seen](const std::stop_token& executor_ends) {
            if (std::this_thread::get_id() != caller) run(number, seen, executor_ends);
            running_.fetch_sub(1, std::memory_order_release);
            board_.notify_all();
          },
          thread);
      if (!posted) return posted.in_operation("micro_batch::run");
      if (!thread.joinable()) {
        return {errc::unsupported, "micro_batch::run: the executor must run tasks on threads of their own"};
      }
    }
    return {};
  }

  /// Every thread works for a batch. @pre start() was ok
  void begin() {
    if (threads_.empty()) return;
    at_work_.store(static_cast<index_t>(threads_.size()), std::memory_order_relaxed);
    // release: the threads read what this one has written
    batches_.store(batches_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    board_.notify_all();
  }
  /// Until every thread has returned from work().
  void wait() {
    if (threads_.empty()) return;
    // acquire: what the stages wrote
    wait_for([this] { return at_work_.load(std::memory_order_acquire) == 0; });
  }

  template <class Ready>
  void wait_for(const Ready& ready, const wait_limit& limit = {}) {
    const auto look = [&] { return ready() ? queue_result::ok : queue_result::not_now; };
    if (look() != queue_result::ok) {
      static_cast<void>(board_.wait_for(look, limit, wake_nobody{}));
    }
  }
  /// After what others wait for has changed.
  void notify_all() noexcept { board_.notify_all(); }

 private:
  // ok: the task counts in running_ until it ends; where it has ended, the handle is empty.
  template <class Executor, class Body>
  status post(Executor& executor, const Body& body, task_handle& handle) {
    status posted;
    running_.fetch_add(1, std::memory_order_relaxed);
#if DEEPREC_EXCEPTIONS
    try {
      posted = executor.post(body, std::stop_token{}, handle);
    } catch (const std::bad_alloc&) {
      posted = {errc::out_of_memory, "micro_batch::run"};
    } catch (...) {
      running_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
#else
    posted = executor.post(body, std::stop_token{}, handle);
#endif
    if (posted.ok() && handle.done()) posted = handle.join();  // an error: the executor dropped it
    if (!posted) running_.fetch_sub(1, std::memory_order_relaxed);
    return posted;
  }
  void run(index_t number, std::uint64_t seen, const std::stop_token& executor_ends) {
    while (true) {
      std::uint64_t batch = seen;
      wait_for(
          [&] {
            // acquire: what the caller of begin() has written
            batch = batches_.load(std::memory_order_acquire);
            return batch != seen || quit_.load(std::memory_order_relaxed) != 0;
          },
          {.stop = executor_ends});
      if (batch == seen) return;
      seen = batch;
      work_(number);
      at_work_.fetch_sub(1, std::memory_order_release);
      board_.notify_all();
    }
  }

  std::function<void(index_t)> work_;
  waiting_room<Wait, std_atomics> board_;
  std::atomic<std::uint64_t> batches_{0};
  std::atomic<index_t> at_work_{0};  // threads that have not finished this batch
  std::atomic<index_t> running_{0};  // threads that have not ended
  std::atomic<int> quit_{0};
  std::vector<task_handle> threads_;
  process_mark made_in_;  // those of running_
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
