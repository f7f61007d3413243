// What an operation of a queue returns, the limit of its wait, and the counters of waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The result of an operation on a queue.
enum class queue_result : unsigned char {
  ok,
  not_now,    ///< try_ only: full, empty, or another thread is in the middle of an operation
  timed_out,  ///< the deadline passed; the caller keeps the item of a put
  stopped,    ///< the caller's stop token was triggered; likewise
  closed,     ///< put: the queue accepts no more; take: closed, and every item has been taken
  cancelled,  ///< cancel() was called; the queue keeps its items
  failed,     ///< take: a producer enqueued a fault or an exception instead of an item
};

/// The code of a result: would_block for not_now, producer_failed for failed; the others keep their names.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr errc to_errc(queue_result r) noexcept {
  switch (r) {
    case queue_result::ok:
      return errc::ok;
    case queue_result::not_now:
      return errc::would_block;
    case queue_result::timed_out:
      return errc::timed_out;
    case queue_result::stopped:
      return errc::stopped;
    case queue_result::closed:
      return errc::closed;
    case queue_result::cancelled:
      return errc::cancelled;
    case queue_result::failed:
      return errc::producer_failed;
  }
  return errc::ok;
}

/// The result with this code; failed for a code that no queue has. to_queue_result(to_errc(r)) == r.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr queue_result to_queue_result(errc code) noexcept {
  for (int r = 0; r < static_cast<int>(queue_result::failed); ++r) {
    if (to_errc(static_cast<queue_result>(r)) == code) return static_cast<queue_result>(r);
  }
  return queue_result::failed;
}

/// The result as a status with the code to_errc(r).
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr status to_status(queue_result r) noexcept {
  if (r == queue_result::ok) return {};
  return {to_errc(r),
          r == queue_result::not_now ? "queue: full, empty, or in the middle of another call" : "queue"};
}

/// The limit of a blocking call: a deadline, a stop token, or none.
struct wait_limit {
  std::chrono::steady_clock::time_point deadline = (std::chrono::steady_clock::time_point::max)();
  std::stop_token stop{};
};

/// A deadline, `time` from now. A time that the clock can't represent is no limit; one that is not positive,
/// or NaN, has passed already.
///
/// @cost    reads the clock
/// @threads reentrant
/// @error   none
template <class Rep, class Period>
[[nodiscard]] wait_limit within(std::chrono::duration<Rep, Period> time, std::stop_token stop = {}) {
  using clock = std::chrono::steady_clock;
  using std::chrono::duration_cast;
  using real_seconds = std::chrono::duration<double>;
  const clock::time_point now = clock::now();
  if (!(time > time.zero())) return {now, std::move(stop)};
  // Compared in floating point, which does not overflow; a margin of one second covers the rounding.
  const real_seconds countable = (clock::time_point::max)() - now - std::chrono::seconds(1);
  if (real_seconds(time) >= countable) return {(clock::time_point::max)(), std::move(stop)};
  // Converted in two parts, so that no product with the ratio of the periods overflows.
  const auto whole = duration_cast<std::chrono::seconds>(time);
  return {now + duration_cast<clock::duration>(whole) + duration_cast<clock::duration>(time - whole),
          std::move(stop)};
}

/// Statistics of the waits at one side of a queue.
struct wait_counts {
  std::uint64_t waits = 0;    ///< calls that had to wait
  std::uint64_t parks = 0;    ///< sleeps in these calls
  std::uint64_t wait_ns = 0;  ///< total time of those that took more than about 2 us
  std::uint64_t spin_ns = 0;  ///< current polling time of adaptive_wait before it sleeps
  unsigned waiting = 0;       ///< threads that sleep, or are about to
};

}}  // namespace deeprec::DEEPREC_ABI
