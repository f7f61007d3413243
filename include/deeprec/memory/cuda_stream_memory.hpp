// Where device calls get their scratch: any allocator in stream order, with the shape of cuda::mr.
//
//   stream_memory_ref memory;                              cudaMallocAsync
//   rmm::mr::cuda_async_memory_resource pool;              RMM's and libcu++'s resources as they are
//   cuda_workspace work(stream_memory_ref{pool});
//
//   struct torch_memory {                                  PyTorch's, in two functions
//     void* allocate_async(std::size_t bytes, std::size_t, cudaStream_t on) {
//       return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, on);
//     }
//     void deallocate_async(void* p, std::size_t, std::size_t, cudaStream_t) {
//       c10::cuda::CUDACachingAllocator::raw_delete(p);
//     }
//   };
#pragma once

#include <cuda_runtime_api.h>

#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Allocates memory of the device: a block may be used by work that is enqueued on the stream after it was
/// allocated and before it is given back.
template <class M>
concept StreamMemory = requires(M& memory, void* p, std::size_t n, cudaStream_t on) {
  { memory.allocate_async(n, n, on) } -> std::same_as<void*>;
  memory.deallocate_async(p, n, n, on);
};

/// Refers to a StreamMemory, which must outlive it; without one to cudaMallocAsync. Copy it freely.
///
/// @threads as the memory
class stream_memory_ref {
 public:
  stream_memory_ref() noexcept = default;
  template <StreamMemory M>
    requires(!std::same_as<std::remove_cv_t<M>, stream_memory_ref>)
  explicit(false) stream_memory_ref(M& memory) noexcept
      : memory_(const_cast<void*>(static_cast<const void*>(&memory))),
        allocate_([](void* from, std::size_t bytes, std::size_t alignment, cudaStream_t on) {
          return static_cast<M*>(from)->allocate_async(bytes, alignment, on);
        }),
        deallocate_([](void* from, void* p, std::size_t bytes, std::size_t alignment, cudaStream_t on) {
          static_cast<M*>(from)->deallocate_async(p, bytes, alignment, on);
        }) {}

  /// @cost    as the memory
  /// @threads as the memory
  /// @error   out_of_memory: also where the memory throws std::bad_alloc or returns null · device_error where
  ///          it throws anything else
  [[nodiscard]] status allocate(void*& out, std::size_t bytes, std::size_t alignment, cudaStream_t on) const {
    out = nullptr;
    if (allocate_ == nullptr) return cuda_status(cudaMallocAsync(&out, bytes, on));
#if DEEPREC_EXCEPTIONS
    try {
      out = allocate_(memory_, bytes, alignment, on);
    } catch (const std::bad_alloc&) {
    } catch (...) {
      return {errc::device_error, "stream_memory_ref: the memory must provide the bytes (it threw)"};
    }
#else
    out = allocate_(memory_, bytes, alignment, on);
#endif
    if (out == nullptr) {
      return {errc::out_of_memory, "stream_memory_ref: the memory must provide the bytes (it refused)"};
    }
    return {};
  }
  /// Gives a block back, in the order of the stream.
  void deallocate(void* p, std::size_t bytes, std::size_t alignment, cudaStream_t on) const noexcept {
    if (deallocate_ != nullptr) {
      deallocate_(memory_, p, bytes, alignment, on);
    } else {
      static_cast<void>(cudaFreeAsync(p, on));
    }
  }

 private:
  void* memory_ = nullptr;
  void* (*allocate_)(void*, std::size_t, std::size_t, cudaStream_t) = nullptr;
  void (*deallocate_)(void*, void*, std::size_t, std::size_t, cudaStream_t) = nullptr;
};

}}  // namespace deeprec::DEEPREC_ABI
