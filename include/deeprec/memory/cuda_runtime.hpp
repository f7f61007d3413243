// The CUDA runtime calls of stream and memory pools, as one policy: the pools are templates over it, and
// tests run them on a runtime of their own that checks the order of operations.
//
//   basic_stream_pool<cuda_runtime, cuda_stream>          on a device        (exec/cuda_stream_pool.hpp)
//   basic_stream_pool<fake_runtime, fake_runtime::lane>   in a test
//
// Each call returns a status. Not here: verbs, kernels.
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

}}  // namespace deeprec::DEEPREC_ABI
