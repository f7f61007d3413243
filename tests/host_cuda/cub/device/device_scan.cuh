// CUB's scan on the host: the same protocol of scratch, all of which it writes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>

namespace cub {

struct DeviceScan {
  template <class In, class Out, class Size>
  static cudaError_t ExclusiveSum(void* space, std::size_t& bytes, const In* in, Out* out, Size n,
                                  cudaStream_t on = nullptr) {
    const std::size_t wanted = 1 + 3 * static_cast<std::size_t>(n);
    if (space == nullptr) {
      bytes = wanted;
      return cudaPeekAtLastError();
    }
    if (bytes < wanted) return cudaErrorInvalidValue;
    static_cast<void>(host_cuda::enqueue(on, [=] {
      std::memset(space, 0x5a, wanted);
      Out sum{};
      for (Size i = 0; i < n; ++i) {
        const In x = in[i];
        out[i] = sum;
        sum += x;
      }
    }));
    return cudaPeekAtLastError();
  }
};

}  // namespace cub
