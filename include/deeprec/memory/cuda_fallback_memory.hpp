// Memory of a device, and page-locked host memory where the device has none left: slower, but the step runs.
//
//   cuda_fallback_memory memory({}, std::size_t{4} << 30);     cudaMallocAsync, then 4 GB of the host
//   cuda_workspace work(stream_memory_ref{memory});
//
//   allocate     device ──refuses──> host, within the budget ──refuses──> out_of_memory
//   deallocate   whichever it came from, in the order of the stream
//
// Every request asks the device first. On the host: fallback_resource.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_pool_resource.hpp>
#include <deeprec/memory/cuda_stream_memory.hpp>
#include <deeprec/memory/detail/fallback_ledger.hpp>
#include <deeprec/memory/fallback_resource.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A StreamMemory: that of the device that is current when it is made.
///
/// @threads thread-safe where the first memory is; streams as cuda_pool_resource
class cuda_fallback_memory {
 public:
  /// @param budget  bytes of page-locked memory for blocks; in slabs of `slab` bytes
  explicit cuda_fallback_memory(stream_memory_ref first, std::size_t budget,
                                std::size_t slab = std::size_t{32} << 20)
      : first_(first),
        second_((std::min)(slab, budget), cuda_pool_resource::slabs_in::pinned),
        ledger_(budget, std::pmr::new_delete_resource()) {}

  /// Null where neither memory has the bytes.
  ///
  /// @cost    that of the memory that serves it
  /// @threads thread-safe where the first memory is
  /// @error   null; std::bad_alloc where the host has no memory for the entry
  [[nodiscard]] void* allocate_async(std::size_t bytes, std::size_t alignment, cudaStream_t on) {
    void* block = nullptr;
    const status s = first_.allocate(block, bytes, alignment, on);
    if (s.code() != errc::out_of_memory) return s.ok() ? block : nullptr;
    if (alignment > cuda_pool_resource::alignment) return nullptr;
    auto room = ledger_.take(bytes);
    if (!room || !second_.allocate(bytes, on, block).ok()) return nullptr;
    ledger_.enter(std::move(room), block);
    return block;
  }
  /// Gives a block back, in the order of the stream.
  ///
  /// @cost    that of its memory
  /// @threads thread-safe where the first memory is
  /// @error   none; a block of the host that is given back in a capture stays in use
  void deallocate_async(void* block, std::size_t bytes, std::size_t alignment, cudaStream_t on) {
    auto room = ledger_.leave(block);
    if (!room) return first_.deallocate(block, bytes, alignment, on);
    if (!second_.deallocate(block, on).ok()) ledger_.enter(std::move(room), block);
  }

  /// @cost    a lock
  /// @threads thread-safe
  /// @error   none
  [[nodiscard]] fallback_report report() const noexcept {
    const auto now = ledger_.now();
    return {ledger_.budget(), now.bytes, now.blocks, now.taken, now.refused};
  }
  /// Gives slabs without used blocks back to the system, as cuda_pool_resource::trim().
  ///
  /// @cost    waits for the streams that used them
  /// @threads thread-safe
  /// @error   as cuda_pool_resource::trim()
  [[nodiscard]] status trim() { return second_.trim(); }

 private:
  stream_memory_ref first_;
  cuda_pool_resource second_;
  detail::fallback_ledger ledger_;
};

}}  // namespace deeprec::DEEPREC_ABI
