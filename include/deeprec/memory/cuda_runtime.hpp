// The CUDA runtime calls of the library, each returning a status, and the scope of a current device.
//
// Not here: verbs, kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A cudaError_t as a status.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   out_of_memory, device_error
[[nodiscard]] inline status cuda_status(cudaError_t answer) noexcept {
  if (answer == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // a later call must not report this failure
  if (answer == cudaErrorMemoryAllocation) return {errc::out_of_memory, cudaGetErrorString(answer)};
  return {errc::device_error, cudaGetErrorString(answer)};
}

/// @threads reentrant
struct cuda_runtime {
  using stream = cudaStream_t;
  using event = cudaEvent_t;
  using graph = cudaGraph_t;
  using graph_exec = cudaGraphExec_t;

  // --- devices and streams ---
  static status get_device(int& current) noexcept { return cuda_status(cudaGetDevice(&current)); }
  static status set_device(int wanted) noexcept { return cuda_status(cudaSetDevice(wanted)); }
  /// False for a handle that denotes a different stream in each thread.
  static bool is_one_stream(stream on) noexcept { return on != cudaStreamPerThread; }

  /// Doesn't wait for the null stream.
  static status make_stream(stream& made) noexcept {
    return cuda_status(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, 0));
  }
  static void end_stream(stream dead) noexcept { static_cast<void>(cudaStreamDestroy(dead)); }

  // --- events ---
  static status make_event(event& made, bool timed) noexcept {
    return cuda_status(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  static void end_event(event dead) noexcept { static_cast<void>(cudaEventDestroy(dead)); }
  static status record(event at, stream on) noexcept { return cuda_status(cudaEventRecord(at, on)); }
  static status wait(stream on, event at) noexcept { return cuda_status(cudaStreamWaitEvent(on, at, 0)); }
  static status milliseconds(float& out, event from, event to) noexcept {
    return cuda_status(cudaEventElapsedTime(&out, from, to));
  }
  /// Blocks the calling thread.
  static status wait_for(event at) noexcept { return cuda_status(cudaEventSynchronize(at)); }
  static status synchronize(stream on) noexcept { return cuda_status(cudaStreamSynchronize(on)); }

  // --- graphs ---
  static status begin_capture(stream on) noexcept {
    return cuda_status(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal));
  }
  static status end_capture(stream on, graph& made) noexcept {
    return cuda_status(cudaStreamEndCapture(on, &made));
  }
  static status capturing(bool& out, stream on) noexcept {
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    const status s = cuda_status(cudaStreamIsCapturing(on, &now));
    out = now != cudaStreamCaptureStatusNone;
    return s;
  }
  /// Kernels keep the priorities of the streams that they were captured on.
  static status instantiate(graph_exec& made, graph of) noexcept {
    return cuda_status(cudaGraphInstantiate(&made, of, cudaGraphInstantiateFlagUseNodePriority));
  }
  /// Makes a graph of what run() enqueues on a stream, and returns the first failure: of run(), else of the
  /// capture. The capture ends in any case; an exception of run() passes.
  template <class Run>
  static status capture(graph_exec& made, stream on, const Run& run) {
    if (const status s = begin_capture(on); !s) return s;
    graph recorded{};
    status ran;
#if DEEPREC_EXCEPTIONS
    try {
      ran = run();
    } catch (...) {
      if (end_capture(on, recorded).ok()) end_graph(recorded);
      throw;
    }
#else
    ran = run();
#endif
    const status ended = end_capture(on, recorded);
    if (ran.ok()) ran = ended;
    if (ran.ok()) ran = instantiate(made, recorded);
    if (ended.ok()) end_graph(recorded);
    return ran;
  }
  static status launch(graph_exec what, stream on) noexcept { return cuda_status(cudaGraphLaunch(what, on)); }
  static void end_graph(graph dead) noexcept { static_cast<void>(cudaGraphDestroy(dead)); }
  static void end_exec(graph_exec dead) noexcept { static_cast<void>(cudaGraphExecDestroy(dead)); }

  // --- memory ---
  static status allocate(void*& out, std::size_t bytes) noexcept {
    return cuda_status(cudaMalloc(&out, bytes));
  }
  static status pinned_allocate(void*& out, std::size_t bytes) noexcept {
    return cuda_status(cudaHostAlloc(&out, bytes, cudaHostAllocPortable));
  }
  static void pinned_deallocate(void* dead) noexcept { static_cast<void>(cudaFreeHost(dead)); }
  static status copy_to_device(void* to, const void* from, std::size_t bytes, stream on) noexcept {
    return cuda_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, on));
  }
  static void deallocate(void* dead) noexcept { static_cast<void>(cudaFree(dead)); }
};

namespace detail {

/// The device that is current now; -1 where there is none.
inline int current_device() noexcept {
  int device = -1;
  return cuda_runtime::get_device(device).ok() ? device : -1;
}

/// Makes a device the current one of this thread until the scope ends.
class device_scope {
 public:
  explicit device_scope(int device) noexcept {
    if (device < 0) return;
    made_ = cuda_runtime::get_device(before_);
    if (!made_.ok() || before_ == device) return;
    made_ = cuda_runtime::set_device(device);
    changed_ = made_.ok();
  }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;
  ~device_scope() {
    if (changed_) static_cast<void>(cuda_runtime::set_device(before_));
  }

  [[nodiscard]] const status& made() const noexcept { return made_; }

 private:
  status made_;
  int before_ = -1;
  bool changed_ = false;
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
