// From the instruction set chosen at run time to the region compiled for it.
//
//   with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) { pool_bags(region, args); });
//
// The call inside finds the kernel of that region by its tag (argument-dependent lookup).
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

using portable_region = DEEPREC_PORTABLE::region;

}  // namespace detail

/// Calls f with the tag of the region for `which`, AVX-512 at most.
template <class F>
decltype(auto) with_isa_up_to_avx512([[maybe_unused]] isa which, F&& f) {
#if DEEPREC_X86
  if (which >= isa::avx512) return f(isa_avx512::region{});
  if (which == isa::avx2) return f(isa_avx2::region{});
#endif
  return f(detail::portable_region{});
}

}}  // namespace deeprec::DEEPREC_ABI
