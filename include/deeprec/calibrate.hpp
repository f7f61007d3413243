// Measures this machine for kernel_tuning, for at most 200 ms. Nothing calls it but the caller.
//
//   const kernel_tuning measured = calibrate(pool);
//   context ctx{pool};  ctx.tuning = &measured;
//
//   threads     until another thread of the executor begins, just after a call and 1 ms later: polling_ns,
//               parked_ns
//   copies      rows of 256 bytes to outputs of 1 to 8 MB, cached against streamed: kept_bytes, bytes_per_us
//   lookups     rows of 64 and 512 bytes out of 64 MB: the cache they are fetched into, lines and rows ahead,
//               row_ns, line_ns
#pragma once

#include <chrono>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/detail/calibration.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The tuning of the context, with what this machine and this executor were measured to need: target and
/// distances of prefetches, kept_bytes, and the times. What does not fit into the time keeps its value.
///
/// @param most   of the whole call
/// @pre          other threads are about as busy as they will be
/// @cost         `most`, and one repetition more; 64 MB for as long as it runs
/// @threads      reentrant; two calibrations at once disturb each other
/// @error        none; std::bad_alloc where the memory is refused
/// @example      @snippet tests/describe/calibrate_test.cpp calibrate
template <class Context>
DEEPREC_PER_UNIT [[nodiscard]] kernel_tuning calibrate(
    Context&& context_or_executor, std::chrono::milliseconds most = std::chrono::milliseconds(200)) {
  const auto ctx = detail::as_context(context_or_executor);
  return detail::calibration<>(ctx, most).run(ctx);
}

}}  // namespace deeprec::DEEPREC_ABI
