// The sizes of the caches of this machine in bytes, as it reports them: a hypervisor's report may be of the
// host's whole cache.
#pragma once

#include <unistd.h>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The bytes of the cache of a level (2 or 3) that one core can use; 0 where they are unknown. On x86 they
/// are read with CPUID: sysconf() of some systems adds up the caches of a whole AMD package.
inline index_t cache_bytes(unsigned level) noexcept {
#if DEEPREC_X86
  constexpr unsigned leaves[] = {0x8000001dU, 4U};  // AMD's list of caches, and Intel's
  for (const unsigned leaf : leaves) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    for (unsigned i = 0; __get_cpuid_count(leaf, i, &a, &b, &c, &d) != 0 && (a & 31U) != 0; ++i) {
      if (((a >> 5) & 7U) != level) continue;
      const index_t ways = (b >> 22) + 1;
      const index_t partitions = ((b >> 12) & 0x3ffU) + 1;
      const index_t line = (b & 0xfffU) + 1;
      return ways * partitions * line * (index_t{c} + 1);
    }
  }
#endif
  long known = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  known = ::sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
#endif
  return known > 0 ? index_t{known} : 0;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
