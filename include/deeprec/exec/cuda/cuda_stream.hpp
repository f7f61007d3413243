// A CUDA stream with a workspace of its own, as an executor: verbs enqueue their work on it and return.
//
//   cuda_stream stream;                       // or cuda_stream{your_cudaStream_t}
//   lookup(stream, device_table, device_bags, combiner::sum, device_out).or_throw();   // enqueued
//   stream.synchronize().or_throw();          // waits, and reports the first fault of the work
//
// Streams of a framework, a workspace that is kept, other memory for scratch: cuda_workspace.hpp. Several
// streams, events and graphs: cuda_stream_pool.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/exec/cuda/cuda_workspace.hpp>
#include <deeprec/exec/cuda/detail/stream_parts.hpp>
#include <deeprec/exec/cuda/stream_priority.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Owns its stream, or refers to one of the caller's.
///
/// @threads enqueue from one thread at a time, as with any stream
/// @error   the constructor throws deeprec::error (device_error without a usable device; out_of_memory), and
///          then releases what it had
class cuda_stream : detail::stream_parts, public cuda_executor {
 public:
  /// @param scratch  where scratch memory is allocated, when it grows
  explicit cuda_stream(stream_priority priority = stream_priority::normal, stream_memory_ref scratch = {})
      : stream_parts(priority, scratch), cuda_executor(handle.stream, work) {}
  template <CudaStreamLike S>
  explicit cuda_stream(const S& borrowed, stream_memory_ref scratch = {})
      : stream_parts(detail::stream_of(borrowed), scratch), cuda_executor(handle.stream, work) {}
};

static_assert(Executor<cuda_stream>);

}}  // namespace deeprec::DEEPREC_ABI
