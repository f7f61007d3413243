// Threads on demand for tasks that may block: each accepted task has one to itself until it ends, and threads
// are kept for later tasks.
//
//   post ──> an idle thread, or a new one; would_block at the limit, or where the system refuses one
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads post() and wait(): any
class task_threads {
 public:
  /// @param limit  the most tasks at once
  explicit task_threads(std::size_t limit) noexcept : limit_(limit) {}

  /// Triggers the tokens of the tasks, waits for these and for what they still post, and joins the threads.
  void end() {
    stop_.request_stop();
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return unfinished_ == 0; });
      closing_ = true;
    }
    arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  /// In a child of the process, instead of end(): whatever has a destructor that looks at the threads is
  /// replaced by an empty one, and its memory is not freed.
  void leave_alone() noexcept {
    const auto empty = []<class T>(T& left) { ::new (static_cast<void*>(&left)) T(); };
    empty(arrived_), empty(done_);
    empty(threads_), empty(tasks_);
  }

  template <class Task>
  status post(Task&& task, std::stop_token stop, task_handle* handle) {
    if (const status s = reserve_thread(); !s) return s;
    runnable_task work;
#if DEEPREC_EXCEPTIONS
    try {
      work = runnable_task(std::forward<Task>(task), std::move(stop), stop_.get_token(), handle);
    } catch (const std::bad_alloc&) {
      task_ended();
      return {errc::out_of_memory, "thread_pool::post: the task must fit in memory (refused)"};
    } catch (...) {
      task_ended();
      throw;
    }
#else
    work = runnable_task(std::forward<Task>(task), std::move(stop), stop_.get_token(), handle);
#endif
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(work));  // reserve_thread made room
    }
    arrived_.notify_one();
    return {};
  }

  /// Waits until no task is left, then rethrows the first exception of one without a handle.
  void wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return unfinished_ == 0; });
#if DEEPREC_EXCEPTIONS
    if (std::exception_ptr failure = std::exchange(failure_, nullptr)) {
      std::rethrow_exception(failure);
    }
#endif
  }
  /// Whether an exception of a task was not rethrown.
  [[nodiscard]] bool has_failed() const noexcept { return failure_ != nullptr; }

 private:
  // Counts a task. There are never fewer threads than counted tasks, so each has a thread to itself.
  status reserve_thread() {
    std::lock_guard lock(mutex_);
    if (unfinished_ == threads_.size()) {
      if (unfinished_ >= limit_) {
        return {errc::would_block, "thread_pool::post: fewer tasks than task_threads must be running"};
      }
#if DEEPREC_EXCEPTIONS
      try {
        tasks_.reserve(threads_.size() + 1);
        threads_.emplace_back([this] { run_tasks(); });
      } catch (const std::system_error&) {
        return {errc::would_block, "thread_pool::post: the system must provide a thread (it refused)"};
      } catch (const std::bad_alloc&) {
        return {errc::out_of_memory, "thread_pool::post: a thread must fit in memory (refused)"};
      }
#else
      tasks_.reserve(threads_.size() + 1);
      threads_.emplace_back([this] { run_tasks(); });
#endif
    }
    ++unfinished_;
    return {};
  }

  void task_ended() {
    std::lock_guard lock(mutex_);
    if (--unfinished_ == 0) done_.notify_all();
  }

  void run_tasks() {
    while (true) {
      runnable_task work;
      {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] { return !tasks_.empty() || closing_; });
        if (tasks_.empty()) return;
        work = std::move(tasks_.back());
        tasks_.pop_back();
      }
#if DEEPREC_EXCEPTIONS
      try {
        work();
      } catch (...) {
        std::exception_ptr failure = std::current_exception();
        keep_first(failure);
      }
#else
      work();
#endif
      std::lock_guard lock(mutex_);
      if (--unfinished_ == 0) done_.notify_all();
      work.finish();  // join() returns after the thread is counted as free
    }
  }

#if DEEPREC_EXCEPTIONS
  void keep_first(std::exception_ptr& failure) {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_.swap(failure);
  }
#endif

  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable done_;
  std::vector<runnable_task> tasks_;  // accepted, not started yet; each has a thread, so in any order
  std::vector<std::thread> threads_;
  std::stop_source stop_;
  std::exception_ptr failure_;
  std::size_t unfinished_ = 0;  // accepted; never more than threads_
  bool closing_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
