// A CUDA stream as an executor: verbs enqueue their work on it and return.
//
//   cuda_stream stream;                       // or cuda_stream{your_cudaStream_t}
//   lookup(stream, device_table, device_bags, combiner::sum, device_out).or_throw();   // enqueued
//   stream.synchronize().or_throw();          // waits, and reports the first fault of the work
//
// Kernels can't return a status: they write the first fault (by table, bag, position) into a record in device
// memory that synchronize() reads and clears, and count there the ids that `skip` left out.
// Several streams, events and graphs: cuda_stream_pool.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/cuda_stream_scratch.hpp>
#include <deeprec/exec/device_fault.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct cuda_backend {};

/// The priority of a stream among those that are ready.
enum class stream_priority : unsigned char { normal, high };

/// Owns its stream, or refers to one of the caller's.
///
/// @threads enqueue from one thread at a time, as with any stream
/// @error   the constructor throws deeprec::error (device_error without a usable device; out_of_memory), and
///          then releases what it had
class cuda_stream {
 public:
  using backend = cuda_backend;
  /// The most counters of one stream.
  static constexpr std::size_t most_counters = 64;

  explicit cuda_stream(stream_priority priority = stream_priority::normal) : cuda_stream(nothing_yet()) {
    int lowest = 0;
    int highest = 0;
    cuda_status(cudaDeviceGetStreamPriorityRange(&lowest, &highest)).or_throw();
    cuda_status(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                             priority == stream_priority::high ? highest : lowest))
        .or_throw();
    owned_ = true;
    make_records();
  }
  explicit cuda_stream(cudaStream_t borrowed) : cuda_stream(nothing_yet()) {
    stream_ = borrowed;
    make_records();
  }
  cuda_stream(const cuda_stream&) = delete;
  cuda_stream& operator=(const cuda_stream&) = delete;
  ~cuda_stream() {
    if (on_device_ != nullptr) {
      cudaStreamSynchronize(stream_);
      cudaFree(on_device_);
    }
    if (on_host_ != nullptr) cudaFreeHost(on_host_);
    if (owned_) cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  /// For kernels: in device memory.
  [[nodiscard]] device_fault* fault_record() const noexcept { return &on_device_->fault; }
  /// For kernels: a counter in device memory that synchronize() adds to *where. Null when `where` is, and
  /// when most_counters others are in use, since the last synchronize() or by captured work.
  [[nodiscard]] unsigned long long* counter(index_t* where) {
    if (where == nullptr) return nullptr;
    auto place =
        std::find_if(counted_.begin(), counted_.end(), [&](const auto& c) { return c.where == where; });
    if (place == counted_.end()) {
      place =
          std::find_if(counted_.begin(), counted_.end(), [](const auto& c) { return c.where == nullptr; });
    }
    if (place == counted_.end()) return nullptr;
    bool captured = false;
    if (!cuda_runtime::capturing(captured, stream_).ok()) return nullptr;
    *place = {where, place->captured || captured};
    return on_device_->skipped + (place - counted_.begin());
  }

  /// Scratch of the verb that is being enqueued: the next verb on this stream may use the same bytes. It
  /// grows, and earlier blocks are kept, since a captured graph may still use them.
  ///
  /// @cost    nothing, unless it grows: cudaMalloc
  /// @threads one at a time
  /// @error   out_of_memory; unsupported when it would have to grow during a capture
  [[nodiscard]] status scratch(std::size_t bytes, std::byte*& out) {
    return scratch_.get(stream_, bytes, out);
  }

  /// Scratch of a verb that calls other verbs: while it lives, they get the bytes after those it took.
  class scratch_scope {
   public:
    explicit scratch_scope(cuda_stream& stream) : stream_(stream.stream_), scope_(stream.scratch_) {}

    /// @post    aligned to 256 bytes
    /// @cost    as scratch
    /// @threads one at a time
    /// @error   as scratch
    [[nodiscard]] status take(std::size_t bytes, std::byte*& out) { return scope_.take(stream_, bytes, out); }

   private:
    cudaStream_t stream_;
    detail::stream_scratch::scope scope_;
  };

  /// Waits for everything enqueued; returns the first fault since the last call.
  ///
  /// @cost    blocks; a copy of some hundred bytes
  /// @threads one at a time
  /// @error   the fault that kernels recorded (smallest table, then bag, then position); device_error
  [[nodiscard]] status synchronize() {
    status s =
        cuda_status(cudaMemcpyAsync(on_host_, on_device_, sizeof(records), cudaMemcpyDeviceToHost, stream_));
    if (s.ok()) s = cuda_status(cudaMemsetAsync(on_device_, 0, sizeof(records), stream_));
    if (s.ok()) s = cuda_status(cudaStreamSynchronize(stream_));
    if (!s.ok()) return s;
    for (std::size_t i = 0; i < counted_.size(); ++i) {
      if (on_host_->skipped[i] != 0) *counted_[i].where += static_cast<index_t>(on_host_->skipped[i]);
      if (!counted_[i].captured) counted_[i].where = nullptr;  // captured work keeps its counter
    }
    return on_host_->fault.as_status();
  }

 private:
  struct records {
    device_fault fault;
    unsigned long long skipped[most_counters];
  };

  // The other constructors delegate to this one: once it has finished, the destructor runs when they throw.
  struct nothing_yet {};
  explicit cuda_stream(nothing_yet) noexcept {}

  void make_records() {
    void* memory = nullptr;
    cuda_status(cudaHostAlloc(&memory, sizeof(records), cudaHostAllocDefault)).or_throw();
    on_host_ = static_cast<records*>(memory);
    cuda_status(cudaMalloc(&memory, sizeof(records))).or_throw();
    on_device_ = static_cast<records*>(memory);
    cuda_status(cudaMemsetAsync(on_device_, 0, sizeof(records), stream_)).or_throw();
  }

  cudaStream_t stream_ = nullptr;
  records* on_host_ = nullptr;
  records* on_device_ = nullptr;
  struct counted {
    index_t* where = nullptr;
    bool captured = false;
  };
  std::array<counted, most_counters> counted_;
  detail::stream_scratch scratch_;
  bool owned_ = false;
};

static_assert(Executor<cuda_stream>);

}}  // namespace deeprec::DEEPREC_ABI
