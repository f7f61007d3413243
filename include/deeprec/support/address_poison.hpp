// Memory that nobody may use, as the address sanitizer is told of it. In other builds nothing.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>

#if defined(__SANITIZE_ADDRESS__)
#  include <sanitizer/asan_interface.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline void poison_addresses([[maybe_unused]] const void* begin,
                             [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(begin, bytes);
#endif
}
inline void unpoison_addresses([[maybe_unused]] const void* begin,
                               [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
