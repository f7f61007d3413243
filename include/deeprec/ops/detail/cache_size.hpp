// The size of the last-level cache of this machine in bytes.
#pragma once

#include <unistd.h>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The third-level cache that one core can use, or 32 MB where its size is unknown. On x86 it is read with
/// CPUID: sysconf() of some systems adds up the caches of a whole AMD package.
inline index_t last_level_cache_bytes() noexcept {
  static const index_t bytes = [] {
#if DEEPREC_X86
    constexpr unsigned leaves[] = {0x8000001dU, 4U};  // AMD's list of caches, and Intel's
    for (const unsigned leaf : leaves) {
      unsigned a = 0, b = 0, c = 0, d = 0;
      for (unsigned i = 0; __get_cpuid_count(leaf, i, &a, &b, &c, &d) != 0 && (a & 31U) != 0; ++i) {
        if (((a >> 5) & 7U) != 3) continue;
        const index_t ways = (b >> 22) + 1;
        const index_t partitions = ((b >> 12) & 0x3ffU) + 1;
        const index_t line = (b & 0xfffU) + 1;
        return ways * partitions * line * (index_t{c} + 1);
      }
    }
#endif
#if defined(_SC_LEVEL3_CACHE_SIZE)
    if (const long known = ::sysconf(_SC_LEVEL3_CACHE_SIZE); known > 0) return index_t{known};
#endif
    return index_t{32} << 20;
  }();
  return bytes;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
