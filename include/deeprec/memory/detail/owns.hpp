// Whether an input lies in the memory of an output that is about to grow.
#pragma once

#include <functional>
#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

/// True where p points into memory that the vector may write to.
template <class T>
bool owns(const std::pmr::vector<T>& array, const void* p) noexcept {
  return p != nullptr && !std::less<const void*>{}(p, array.data()) &&
         std::less<const void*>{}(p, array.data() + array.capacity());
}

}  // namespace deeprec::inline DEEPREC_ABI::detail
