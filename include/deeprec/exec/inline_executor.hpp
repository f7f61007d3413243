// Runs everything on the calling thread, at once.
#pragma once

#include <stop_token>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// A bulk and task executor without threads. Empty; make one wherever you need one.
///
/// @threads every member is thread-safe
struct inline_executor {
  /// Calls body(begin, end, 0) once, for the whole range.
  template <class Body>
  void parallel_for(index_t n, index_t /*grain*/, Body&& body) const {
    if (n > 0) body(index_t{0}, n, 0);
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 1; }

  /// Runs the task before it returns.
  template <class Task>
  void post(Task&& task, std::stop_token stop = {}) const {
    task(stop);
  }
};

static_assert(BulkExecutor<const inline_executor> && TaskExecutor<const inline_executor>);

}  // namespace deeprec::inline DEEPREC_ABI
