// A CUDA stream as an executor: verbs given one enqueue their work and return.
//
//   cuda_stream stream;                       // or cuda_stream{your_cudaStream_t}
//   lookup(stream, device_table, device_bags, sum, device_out).or_throw();   // enqueued
//   stream.synchronize().or_throw();          // waits, and reports the first fault of what ran
//
// Kernels can't return a status: they write the smallest bad place into a record that synchronize()
// reads and clears. Not here: several streams, events, graphs.
#pragma once

#include <cuda_runtime_api.h>

#include <new>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec::inline DEEPREC_ABI {

struct cuda_backend {};

/// Written by kernels, read by the host between kernels. `lock` guards the other fields on the device.
struct device_fault {
  int lock = 0;
  int code = 0;  // an errc
  index_t bag = 0;
  index_t slot = 0;
  std::int64_t value = 0;
};

/// Owns its stream, or refers to one of the caller's.
///
/// @threads enqueue from one thread at a time, as with any stream
/// @error   the constructor throws deeprec::error (device_error) without a usable device
class cuda_stream {
 public:
  using backend = cuda_backend;

  cuda_stream() {
    raise_on(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    owned_ = true;
    make_record();
  }
  explicit cuda_stream(cudaStream_t borrowed) : stream_(borrowed) { make_record(); }
  cuda_stream(const cuda_stream&) = delete;
  cuda_stream& operator=(const cuda_stream&) = delete;
  ~cuda_stream() {
    cudaStreamSynchronize(stream_);
    cudaFreeHost(record_);
    if (owned_) cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  /// For kernels: pinned memory that the device reaches.
  [[nodiscard]] device_fault* fault_record() const noexcept { return record_; }

  /// Waits for everything enqueued; answers the first fault since the last call.
  ///
  /// @cost    blocks
  /// @threads one at a time
  /// @error   what the verbs' kernels found (smallest bag, then slot); device_error
  [[nodiscard]] status synchronize() {
    if (const cudaError_t failed = cudaStreamSynchronize(stream_); failed != cudaSuccess) {
      return {errc::device_error, cudaGetErrorString(failed)};
    }
    const device_fault found = std::exchange(*record_, device_fault{});
    const auto code = static_cast<errc>(found.code);
    if (code == errc::ok) return {};
    return {code, {.bag = found.bag, .slot = found.slot, .value = found.value}};
  }

 private:
  static void raise_on(cudaError_t failed) {
    if (failed != cudaSuccess) detail::raise(errc::device_error, cudaGetErrorString(failed));
  }
  void make_record() {
    void* memory = nullptr;
    raise_on(cudaHostAlloc(&memory, sizeof(device_fault), cudaHostAllocMapped));
    record_ = new (memory) device_fault;
  }

  cudaStream_t stream_ = nullptr;
  device_fault* record_ = nullptr;
  bool owned_ = false;
};

static_assert(Executor<cuda_stream>);

}  // namespace deeprec::inline DEEPREC_ABI
