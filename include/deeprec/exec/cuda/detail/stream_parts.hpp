// What a cuda_stream owns: the stream, unless it is borrowed, and its workspace.
#pragma once

#include <cuda_runtime_api.h>

#include <deeprec/core/config.hpp>
#include <deeprec/exec/cuda/cuda_workspace.hpp>
#include <deeprec/exec/cuda/stream_priority.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A stream that is destroyed at the end, unless it was borrowed.
struct stream_handle {
  explicit stream_handle(stream_priority priority) : is_owned(true) {
    int lowest = 0;
    int highest = 0;
    cuda_status(cudaDeviceGetStreamPriorityRange(&lowest, &highest)).or_throw();
    cuda_status(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                             priority == stream_priority::high ? highest : lowest))
        .or_throw();
  }
  explicit stream_handle(cudaStream_t borrowed) noexcept : stream(borrowed) {}
  stream_handle(const stream_handle&) = delete;
  stream_handle& operator=(const stream_handle&) = delete;
  ~stream_handle() {
    if (is_owned) cudaStreamDestroy(stream);
  }

  cudaStream_t stream = nullptr;
  bool is_owned = false;
};

/// In front of the executor that refers to both; the workspace ends first.
struct stream_parts {
  template <class From>
  stream_parts(const From& from, stream_memory_ref scratch) : handle(from), work(scratch) {}

  stream_handle handle;
  cuda_workspace work;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
