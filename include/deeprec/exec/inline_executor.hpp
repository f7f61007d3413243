// Runs everything on the calling thread, immediately.
#pragma once

#include <concepts>
#include <new>
#include <stop_token>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A bulk and task executor without threads. An empty class, constructed wherever one is needed.
///
/// @threads every member is thread-safe
struct inline_executor {
  /// Calls body(begin, end, 0) once, for the whole range.
  template <class Body>
  void parallel_for(index_t n, index_t /*grain*/, Body&& body) const {
    if (n > 0) body(index_t{0}, n, 0);
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 1; }

  /// Runs the task before it returns: a task that waits for a later one never ends.
  ///
  /// @cost    the task's
  /// @threads thread-safe
  /// @error   none: always ok; exceptions of the task pass through
  template <class Task>
    requires detail::task_returning<std::decay_t<Task>, void>
  status post(Task&& task, std::stop_token stop = {}) const {
    if constexpr (std::invocable<Task&, std::stop_token>) {
      task(std::move(stop));
    } else {
      task();
    }
    return {};
  }
  /// The same, with a handle that join() takes the outcome from.
  ///
  /// @pre     !handle.joinable()
  /// @cost    the task's; allocates as runnable_task
  /// @threads thread-safe
  /// @error   out_of_memory: the task did not run, and the caller keeps it. The task's own status or
  ///          exception comes from join()
  template <class Task>
    requires TaskWork<std::decay_t<Task>>
  status post(Task&& task, std::stop_token stop, task_handle& handle) const {
#if DEEPREC_EXCEPTIONS
    try {
      runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle)();
    } catch (const std::bad_alloc&) {
      return {errc::out_of_memory, "inline_executor::post: the task must fit in memory (refused)"};
    }
#else
    runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle)();
#endif
    return {};
  }
};

static_assert(BulkExecutor<const inline_executor> && TaskExecutor<const inline_executor>);

}}  // namespace deeprec::DEEPREC_ABI
