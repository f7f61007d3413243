// CUB's scan and radix sort, returning a status. A first call with space = null sets `bytes` to the size
// of the storage that they need.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/kernels/device/device_sort.cuh needs nvcc. Fix: include it in a .cu."
#endif

#include <cuda_runtime.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/memory/cuda_runtime.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// CUB returns the last CUDA error: clears one that an earlier call has left, which is not CUB's own.
inline void forget_last_error() { static_cast<void>(cudaGetLastError()); }

template <class Sum>
status scan(void* space, std::size_t& bytes, const index_t* in, Sum* out, index_t n, cudaStream_t on) {
  forget_last_error();
  return cuda_status(cub::DeviceScan::ExclusiveSum(space, bytes, in, out, n, on));
}
/// Stable, by the lowest `bits` bits.
///
/// @pre  n < 2^32, as positions are of 32 bits: CUB then counts by 32 bits too
template <class Key>
status sort_pairs(void* space, std::size_t& bytes, const Key* keys, Key* sorted, const std::uint32_t* values,
                  std::uint32_t* sorted_values, index_t n, int bits, cudaStream_t on) {
  forget_last_error();
  return cuda_status(cub::DeviceRadixSort::SortPairs(space, bytes, keys, sorted, values, sorted_values,
                                                     static_cast<std::uint32_t>(n), 0, bits, on));
}

}}}  // namespace deeprec::DEEPREC_ABI::DEEPREC_DEVICE
