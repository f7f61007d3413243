// Independent work on several CUDA streams, and a training step as a CUDA graph.
//
//   cuda_stream_pool pool(4);
//   plan_streams(work, pool.streams(), plan).or_throw();
//   pool.run(plan, [&](index_t op, cuda_stream& on) { return towers[op](on); }).or_throw();
//   pool.replay(plan, launch).or_throw();          captured once, then one launch for each step
//   pool.synchronize().or_throw();
//
// Not here: sharing a device between processes, which is what NVIDIA's MPS is for (docs/cuda.md).
#pragma once

#include <cuda_runtime_api.h>

#include <deeprec/core/config.hpp>
#include <deeprec/exec/cuda_stream.hpp>
#include <deeprec/exec/stream_plan.hpp>
#include <deeprec/exec/stream_pool.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Streams of the current device.
///
/// @threads one thread at a time
/// @error   the constructor throws deeprec::error (device_error) without a usable device
using cuda_stream_pool = detail::basic_stream_pool<cuda_runtime, cuda_stream>;

/// An event, destroyed at the end of its scope.
///
/// @threads one thread at a time
/// @error   the constructor throws deeprec::error (device_error)
class cuda_event {
 public:
  explicit cuda_event(bool timed = false) { cuda_runtime::make_event(event_, timed).or_throw(); }
  cuda_event(const cuda_event&) = delete;
  cuda_event& operator=(const cuda_event&) = delete;
  ~cuda_event() { cuda_runtime::end_event(event_); }

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }
  /// Records the event after the work enqueued on the stream so far.
  [[nodiscard]] status record(const cuda_stream& on) noexcept {
    return cuda_runtime::record(event_, on.get());
  }
  /// Makes work enqueued on the stream from now on wait for the event.
  [[nodiscard]] status wait(const cuda_stream& on) const noexcept {
    return cuda_runtime::wait(on.get(), event_);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}}  // namespace deeprec::DEEPREC_ABI
