// What device calls keep from one to the next, and a CUDA stream as an executor over it.
//
//   cuda_workspace work;                                    kept: fault record, counters, scratch
//   const cuda_executor on(stream, work);                   two pointers: made for each call
//   lookup(on, device_table, device_bags, combiner::sum, device_out).or_throw();     enqueued
//   on.poll().or_throw();                                   the first fault known by now; doesn't wait
//   on.synchronize().or_throw();                            waits, and reports the first fault of the work
//
// The stream is anything that has a cudaStream_t: the handle itself, at::cuda::CUDAStream, cuda::stream_ref,
// rmm::cuda_stream_view. Kernels can't return a status: they write the first fault (by table, bag, position)
// into a record in device memory that poll() reads and synchronize() reads and clears, and count there the
// ids that `skip` left out.
//
//   scratch:     | held by fused_lookup | of to_jagged, then of lookup |
//   and later:   | of any other verb ...                               |
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>
#include <deeprec/memory/cuda_runtime.hpp>
#include <deeprec/memory/cuda_stream_memory.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct cuda_backend {
  using space = device_space;
};

/// Converts to a cudaStream_t, or returns something that does from stream(), get() or value().
template <class S>
concept CudaStreamLike = std::convertible_to<const S&, cudaStream_t> || requires(const S& s) {
  { s.stream() } -> std::convertible_to<cudaStream_t>;
} || requires(const S& s) {
  { s.get() } -> std::convertible_to<cudaStream_t>;
} || requires(const S& s) {
  { s.value() } -> std::convertible_to<cudaStream_t>;
};

namespace detail {

template <CudaStreamLike S>
cudaStream_t stream_of(const S& s) {
  if constexpr (std::convertible_to<const S&, cudaStream_t>) {
    return s;
  } else if constexpr (requires {
                         { s.stream() } -> std::convertible_to<cudaStream_t>;
                       }) {
    return s.stream();
  } else if constexpr (requires {
                         { s.get() } -> std::convertible_to<cudaStream_t>;
                       }) {
    return s.get();
  } else {
    return s.value();
  }
}

/// Scratch memory that calls reuse in the order of their stream; a composite call can hold a part while it
/// calls others.
class stream_scratch {
 public:
  static constexpr std::size_t alignment = 256;

  explicit stream_scratch(stream_memory_ref memory) noexcept : memory_(memory) {}
  stream_scratch(const stream_scratch&) = delete;
  stream_scratch& operator=(const stream_scratch&) = delete;
  ~stream_scratch() {
    for (const block& b : blocks_) memory_.deallocate(b.data, b.bytes, alignment, last_);
  }

  /// Returns memory after the part that is held. Blocks that were too small live until destruction: a
  /// captured graph, or the holder of a part of one, may still use them.
  [[nodiscard]] status get(cudaStream_t on, std::size_t bytes, std::byte*& out) {
    if (bytes > most_bytes - kept_)
      return {errc::out_of_memory, "scratch: bytes must be at most half of an address space"};
    last_ = on;
    const std::size_t size = blocks_.empty() ? 0 : blocks_.back().bytes;
    if (kept_ + bytes > size) {
      bool capturing = false;
      if (const status s = cuda_runtime::capturing(capturing, on); !s) return s;
      if (capturing) {
        return {errc::unsupported, "scratch: must not grow during a capture; run the step once before it"};
      }
      const std::size_t wanted = (std::max)(kept_ + bytes, size + size / 2);
      blocks_.reserve(blocks_.size() + 1);  // may throw, so it comes before the allocation
      void* made = nullptr;
      if (const status s = memory_.allocate(made, wanted, alignment, on); !s) return s;
      blocks_.push_back({made, wanted});
    }
    out = blocks_.empty() ? nullptr : static_cast<std::byte*>(blocks_.back().data) + kept_;
    return {};
  }

  /// Memory taken in a scope is held until its end. Scopes nest.
  class scope {
   public:
    explicit scope(stream_scratch& of) : of_(of), before_(of.kept_) {}
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { of_.kept_ = before_; }

    [[nodiscard]] status take(cudaStream_t on, std::size_t bytes, std::byte*& out) {
      const status s = of_.get(on, bytes, out);
      if (s.ok()) of_.kept_ += (bytes + alignment - 1) / alignment * alignment;
      return s;
    }

   private:
    stream_scratch& of_;
    std::size_t before_;
  };

 private:
  // Half of an address space: sums of valid sizes don't wrap.
  static constexpr std::size_t most_bytes = (std::numeric_limits<std::size_t>::max)() / 2;

  struct block {
    void* data;
    std::size_t bytes;
  };
  stream_memory_ref memory_;
  std::vector<block> blocks_;  // the last one is in use
  std::size_t kept_ = 0;
  cudaStream_t last_ = nullptr;
};

}  // namespace detail

/// The heavy part of device calls: fault record, counters and scratch, of the device that is current at
/// construction. One for each stream, or for several whose work the caller orders.
///
/// @pre     the memory outlives it; when it is destroyed, the stream that it was used on last still exists
/// @cost    the constructor allocates device and pinned memory and waits for the device's default stream; the
///          destructor waits for the stream
/// @threads one at a time, as any stream
/// @error   the constructor throws deeprec::error (device_error without a usable device; out_of_memory), and
///          then releases what it had
class cuda_workspace {
 public:
  /// The most counters at once.
  static constexpr std::size_t most_counters = 64;

  /// @param scratch  where scratch memory is allocated, when it grows
  explicit cuda_workspace(stream_memory_ref scratch = {}) : cuda_workspace(scratch, nothing_yet()) {
    void* memory = nullptr;
    cuda_status(cudaHostAlloc(&memory, sizeof(host_records), cudaHostAllocDefault)).or_throw();
    on_host_ = static_cast<host_records*>(memory);
    cuda_runtime::make_event(polled_, false).or_throw();
    cuda_status(cudaMalloc(&memory, sizeof(records))).or_throw();
    on_device_ = static_cast<records*>(memory);
    cuda_status(cudaMemsetAsync(on_device_, 0, sizeof(records), nullptr)).or_throw();
    cuda_runtime::synchronize(nullptr).or_throw();
  }
  cuda_workspace(const cuda_workspace&) = delete;
  cuda_workspace& operator=(const cuda_workspace&) = delete;
  ~cuda_workspace() {
    if (on_device_ != nullptr) {
      static_cast<void>(cuda_runtime::synchronize(last_));
      cuda_runtime::deallocate(on_device_);
    }
    if (polled_ != nullptr) cuda_runtime::end_event(polled_);
    if (on_host_ != nullptr) cudaFreeHost(on_host_);
  }

 private:
  friend class cuda_executor;

  struct records {
    device_fault fault;
    unsigned long long skipped[most_counters];
  };
  struct host_records {
    records all;         // of synchronize()
    device_fault fault;  // of poll()
  };
  struct counted {
    index_t* where = nullptr;
    bool captured = false;
  };

  // The other constructor delegates to this one: once it has finished, the destructor runs when that throws.
  struct nothing_yet {};
  cuda_workspace(stream_memory_ref scratch, nothing_yet) noexcept : scratch_(scratch) {}

  [[nodiscard]] unsigned long long* counter(index_t* where, cudaStream_t on) {
    if (where == nullptr) return nullptr;
    auto place =
        std::find_if(counted_.begin(), counted_.end(), [&](const auto& c) { return c.where == where; });
    if (place == counted_.end()) {
      place =
          std::find_if(counted_.begin(), counted_.end(), [](const auto& c) { return c.where == nullptr; });
    }
    if (place == counted_.end()) return nullptr;
    bool captured = false;
    if (!cuda_runtime::capturing(captured, on).ok()) return nullptr;
    *place = {where, place->captured || captured};
    return on_device_->skipped + (place - counted_.begin());
  }

  [[nodiscard]] status poll(cudaStream_t on) {
    if (is_polling_) {
      const cudaError_t answer = cudaEventQuery(polled_);
      const status s = answer == cudaErrorNotReady ? status() : cuda_status(answer);
      if (answer == cudaErrorNotReady) static_cast<void>(cudaGetLastError());  // not a failure
      if (answer == cudaErrorNotReady || !s) return s.ok() ? known_ : s;
      is_polling_ = false;
      known_ = on_host_->fault.as_status();
    }
    bool capturing = false;
    if (const status s = cuda_runtime::capturing(capturing, on); !s) return s;
    if (capturing) return known_;
    status s = cuda_status(cudaMemcpyAsync(&on_host_->fault, &on_device_->fault, sizeof(device_fault),
                                           cudaMemcpyDeviceToHost, on));
    if (s.ok()) s = cuda_runtime::record(polled_, on);
    if (!s.ok()) return s;
    is_polling_ = true;
    return known_;
  }

  [[nodiscard]] status synchronize(cudaStream_t on) {
    records& read = on_host_->all;
    status s = cuda_status(cudaMemcpyAsync(&read, on_device_, sizeof(records), cudaMemcpyDeviceToHost, on));
    if (s.ok()) s = cuda_status(cudaMemsetAsync(on_device_, 0, sizeof(records), on));
    if (s.ok()) s = cuda_runtime::synchronize(on);
    if (!s.ok()) return s;
    is_polling_ = false;
    known_ = {};
    for (std::size_t i = 0; i < counted_.size(); ++i) {
      // Another stream may add to it at the same time.
      if (read.skipped[i] != 0) {
        __atomic_fetch_add(counted_[i].where, static_cast<index_t>(read.skipped[i]), __ATOMIC_RELAXED);
      }
      if (!counted_[i].captured) counted_[i].where = nullptr;  // captured work keeps its counter
    }
    return read.fault.as_status();
  }

  host_records* on_host_ = nullptr;
  records* on_device_ = nullptr;
  cudaEvent_t polled_ = nullptr;
  bool is_polling_ = false;  // a copy of the fault is under way
  status known_;             // the fault that the last finished copy found
  cudaStream_t last_ = nullptr;
  std::array<counted, most_counters> counted_;
  detail::stream_scratch scratch_;
};

/// A stream and the workspace of its calls, as an executor: verbs enqueue their work and return. It owns
/// nothing; copy it freely.
///
/// @pre     the workspace is not used on another stream, unless the caller orders the work of both
/// @threads enqueue from one thread at a time, as with any stream
class cuda_executor {
 public:
  using backend = cuda_backend;
  /// The most counters of one workspace.
  static constexpr std::size_t most_counters = cuda_workspace::most_counters;

  template <CudaStreamLike S>
  cuda_executor(const S& stream, cuda_workspace& workspace)
      : stream_(detail::stream_of(stream)), work_(&workspace) {
    workspace.last_ = stream_;
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }
  /// For kernels: in device memory.
  [[nodiscard]] device_fault* fault_record() const noexcept { return &work_->on_device_->fault; }
  /// For kernels: a counter in device memory that synchronize() adds to *where. Null when `where` is, and
  /// when most_counters others are in use, since the last synchronize() or by captured work.
  [[nodiscard]] unsigned long long* counter(index_t* where) const { return work_->counter(where, stream_); }

  /// Scratch of the verb that is being enqueued: the next verb with this workspace may use the same bytes. It
  /// grows, and earlier blocks are kept, since a captured graph may still use them.
  ///
  /// @cost    nothing, unless it grows: an allocation by the workspace's memory, and one on the heap
  /// @threads one at a time
  /// @error   out_of_memory; unsupported when it would have to grow during a capture
  [[nodiscard]] status scratch(std::size_t bytes, std::byte*& out) const {
    return work_->scratch_.get(stream_, bytes, out);
  }

  /// Scratch of a verb that calls other verbs: while it lives, they get the bytes after those it took.
  class scratch_scope {
   public:
    explicit scratch_scope(const cuda_executor& on) : stream_(on.stream_), scope_(on.work_->scratch_) {}

    /// @post    aligned to 256 bytes
    /// @cost    as scratch
    /// @threads one at a time
    /// @error   as scratch
    [[nodiscard]] status take(std::size_t bytes, std::byte*& out) { return scope_.take(stream_, bytes, out); }

   private:
    cudaStream_t stream_;
    detail::stream_scratch::scope scope_;
  };

  /// The first fault since the last synchronize() that is known by now. Ok while none is: work may still run.
  /// Call it after each step: a fault is reported by one of the calls after its work has ended, and by all
  /// later ones. Enqueues nothing while the stream is captured.
  ///
  /// @cost    some microseconds: enqueues a copy of some 60 bytes and an event when those of an earlier call
  ///          have ended; never waits
  /// @threads one at a time
  /// @error   the fault that kernels recorded (smallest table, then bag, then position); device_error
  [[nodiscard]] status poll() const { return work_->poll(stream_); }

  /// Waits for everything enqueued; returns the first fault since the last call.
  ///
  /// @cost    blocks; a copy of some hundred bytes
  /// @threads one at a time
  /// @error   the fault that kernels recorded (smallest table, then bag, then position); device_error
  [[nodiscard]] status synchronize() const { return work_->synchronize(stream_); }

 private:
  cudaStream_t stream_;
  cuda_workspace* work_;
};

static_assert(Executor<cuda_executor>);

}}  // namespace deeprec::DEEPREC_ABI
