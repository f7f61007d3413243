// Runs everything on the calling thread, immediately.
#pragma once

#include <stop_token>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/status.hpp>

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
  status post(Task&& task, std::stop_token stop = {}) const {
    task(std::move(stop));
    return {};
  }
};

static_assert(BulkExecutor<const inline_executor> && TaskExecutor<const inline_executor>);

}}  // namespace deeprec::DEEPREC_ABI
