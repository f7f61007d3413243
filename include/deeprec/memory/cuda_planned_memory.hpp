// Device memory of steps that request the same blocks each time on one stream: planned_resource over memory
// of the device. A step that repeats calls no allocator.
//
//   cuda_planned_memory memory(stream, stream_memory_ref{pool});
//   cuda_workspace work(stream_memory_ref{memory});
//   for (...) {
//     const cuda_planned_memory::step step = memory.begin(samples);
//     ...                                        // enqueued on the stream
//   }
//
// Blocks share bytes in the order of the stream, which is the order of the calls. Not here: steps on several
// streams: one of these for each.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_stream_memory.hpp>
#include <deeprec/memory/planned_resource.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A StreamMemory.
///
/// @threads one thread at a time
class cuda_planned_memory {
 public:
  using step = planned_resource::step;

  /// @param on       the stream of the steps
  /// @param upstream of the arena, and of requests outside of plans, on other streams, or aligned to more
  ///        than 256 bytes
  /// @param options  `upstream`, `arena`, `touch` and `checks` are set here
  explicit cuda_planned_memory(cudaStream_t on, stream_memory_ref upstream = {}, planned_options options = {})
      : on_(on), upstream_(upstream, on), planned_(on_device(std::move(options), upstream_)) {}
  cuda_planned_memory(const cuda_planned_memory&) = delete;
  cuda_planned_memory& operator=(const cuda_planned_memory&) = delete;

  /// As planned_resource::begin(). A refused arena is no error; a block of the arena may be used by work that
  /// is enqueued on the stream before the step ends.
  step begin(index_t size = 0) { return planned_.begin(size); }
  /// As planned_resource::report().
  [[nodiscard]] planned_report report() const noexcept { return planned_.report(); }

  /// @post    aligned to 256 bytes, and to more as the upstream memory is
  /// @cost    some ns from a plan; else as the upstream memory
  /// @threads one thread at a time
  /// @error   null where the upstream memory refuses (without exceptions: prints and aborts)
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, cudaStream_t on) {
    if (!is_planned(alignment, on)) return upstream_.take(bytes, alignment, on);
#if DEEPREC_EXCEPTIONS
    try {
#endif
      return planned_.allocate(bytes, block_alignment);
#if DEEPREC_EXCEPTIONS
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
#endif
  }
  /// @pre     `on` is the stream that the block was allocated on
  /// @cost    some ns from a plan; else as the upstream memory
  /// @threads one thread at a time
  /// @error   none
  void deallocate_async(void* block, std::size_t bytes, std::size_t alignment, cudaStream_t on) {
    if (!is_planned(alignment, on)) return upstream_.give(block, bytes, alignment, on);
    planned_.deallocate(block, bytes, block_alignment);
  }

 private:
  static constexpr std::size_t block_alignment = 256;  // of any memory of a device

  [[nodiscard]] bool is_planned(std::size_t alignment, cudaStream_t on) const noexcept {
    return on == on_ && alignment <= block_alignment;
  }

  /// The upstream memory, on the stream.
  class on_stream final : public std::pmr::memory_resource {
   public:
    on_stream(stream_memory_ref memory, cudaStream_t on) noexcept : memory_(memory), on_(on) {}
    void* take(std::size_t bytes, std::size_t alignment, cudaStream_t on) const {
      void* block = nullptr;
      return memory_.allocate(block, bytes, alignment, on).ok() ? block : nullptr;
    }
    void give(void* block, std::size_t bytes, std::size_t alignment, cudaStream_t on) const noexcept {
      memory_.deallocate(block, bytes, alignment, on);
    }

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      void* const block = take(bytes, (std::min)(alignment, block_alignment), on_);
      if (block == nullptr) {
#if DEEPREC_EXCEPTIONS
        throw std::bad_alloc();
#else
        detail::raise(errc::out_of_memory,
                      "cuda_planned_memory: the memory must provide the bytes (it refused)");
#endif
      }
      return block;
    }
    void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
      give(block, bytes, (std::min)(alignment, block_alignment), on_);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }

    stream_memory_ref memory_;
    cudaStream_t on_;
  };

  static planned_options on_device(planned_options options, on_stream& upstream) {
    options.upstream = options.arena = &upstream;
    options.touch = options.checks = false;
    return options;
  }

  cudaStream_t on_;
  on_stream upstream_;
  planned_resource planned_;
};

}}  // namespace deeprec::DEEPREC_ABI
