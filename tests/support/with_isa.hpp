// From an instruction set to its region, as simd/dispatch.hpp, and AVX-512 BF16 as well.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec_test {

/// Calls f with the tag of the region for `which`.
template <class F>
decltype(auto) with_isa(deeprec::isa which, F&& f) {
#if DEEPREC_X86
  if (which == deeprec::isa::avx512_bf16) return f(deeprec::isa_avx512_bf16::region{});
#endif
  return deeprec::with_isa_up_to_avx512(which, static_cast<F&&>(f));
}

}  // namespace deeprec_test
