// CUB's radix sort on the host: the same protocol of scratch, all of which it writes, and only the bits asked
// for.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value, class Size>
  static cudaError_t SortPairs(void* space, std::size_t& bytes, const Key* keys, Key* sorted,
                               const Value* values, Value* sorted_values, Size n, int first_bit, int end_bit,
                               cudaStream_t on = nullptr) {
    const std::size_t wanted = 1 + 3 * static_cast<std::size_t>(n);
    if (space == nullptr) {
      bytes = wanted;
      return cudaPeekAtLastError();
    }
    if (bytes < wanted || first_bit < 0 || end_bit > 8 * static_cast<int>(sizeof(Key)) || n < 0) {
      return cudaErrorInvalidValue;
    }
    static_cast<void>(host_cuda::enqueue(on, [=] {
      std::memset(space, 0x5a, wanted);
      const auto digits = [=](Size i) {
        const int count = end_bit - first_bit;
        const Key shifted = count == 0 ? Key{} : static_cast<Key>(keys[i] >> first_bit);
        return count >= 8 * static_cast<int>(sizeof(Key))
                   ? shifted
                   : static_cast<Key>(shifted & ((Key{1} << count) - 1));
      };
      std::vector<Size> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), Size{});
      std::stable_sort(order.begin(), order.end(), [&](Size a, Size b) { return digits(a) < digits(b); });
      for (std::size_t i = 0; i < order.size(); ++i) {
        sorted[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    }));
    return cudaPeekAtLastError();
  }
};

}  // namespace cub
