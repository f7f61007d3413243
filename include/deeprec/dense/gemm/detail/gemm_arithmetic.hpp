// The arithmetic of a product whose math is a permission.
//
//   gemm_math::bf16 ──choose_math(question)──> forced_bf16, or f32 and why
//
// The choice depends on the machine's units and on the product's shape, never on a clock: a product has the
// same bits in every run on one machine.
#pragma once

#include <cstdint>
#include <cstring>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>

#if DEEPREC_X86
#  include <cpuid.h>
#endif

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What the choice of a unit depends on.
struct bf16_machine {
  bool vectors = false;    ///< AVX512-BF16, which the backend and the context may use
  bool tiles = false;      ///< AMX for bf16, which the backend may use
  bool full_rate = false;  ///< its vectors multiply bf16 at twice the rate of float
};

constexpr gemm_backend::bf16_unit unit_of(const bf16_machine& has) noexcept {
  using unit = gemm_backend::bf16_unit;
  if (!has.vectors) return unit::none;
  return has.tiles ? unit::tiles : has.full_rate ? unit::vectors : unit::slow_vectors;
}

/// True for AMD's processors. Theirs multiply vectors of bf16 at twice the rate of float (Zen 4), Intel's
/// with AVX512-BF16 at about half of it. Reads cpuid once: a hypervisor takes microseconds for it.
inline bool has_fast_bf16_vectors() noexcept {
#if DEEPREC_X86
  static const bool fast = [] {
    unsigned eax = 0;
    unsigned name[3] = {};
    return __get_cpuid(0, &eax, &name[0], &name[2], &name[1]) != 0 &&
           std::memcmp(name, "AuthenticAMD", sizeof(name)) == 0;
  }();
  return fast;
#else
  return false;
#endif
}

struct math_question {
  gemm_math math = gemm_math::f32;
  gemm_backend::bf16_unit unit = gemm_backend::bf16_unit::none;
  index_t m = 1, n = 1, k = 1;
  bool casts_a = false;  ///< a is float
  bool casts_b = false;  ///< b is float, and its cast is not kept
};

struct chosen_math {
  gemm_math math = gemm_math::f32;  ///< f32 or forced
  const char* why_f32 = nullptr;    ///< a literal, where a permission was not used
};

/// Measured on Emerald Rapids (AMX, and its vectors alone) and Zen 4: docs/adr/0026-permitted-arithmetic.md.
constexpr chosen_math choose_math(const math_question& q) noexcept {
  using unit = gemm_backend::bf16_unit;
  if (q.math == gemm_math::tf32) return {gemm_math::f32, "no unit of the host multiplies TF32 factors"};
  if (q.math != gemm_math::bf16) return {q.math};
  switch (q.unit) {
    case unit::none:
      return {gemm_math::f32, "no backend multiplies bf16 factors by this context's instructions"};
    case unit::slow_vectors:
      return {gemm_math::f32, "this processor multiplies vectors of bf16 at half the rate of float"};
    case unit::vectors:
      if (q.k < 8) return {gemm_math::f32, "k is below 8"};
      break;
    case unit::tiles:
      if (q.k < 24) return {gemm_math::f32, "k is below 24, which fills no tile of AMX"};
      break;
  }
  // Casts of an operand are paid for by the columns or rows that multiply it.
  constexpr const char* a_costs = "the cast of a takes longer than n products of its values save";
  constexpr const char* b_costs = "the cast of b takes longer than m products of its values save";
  const auto pays = [&](index_t factors) {
    if (q.unit == unit::vectors) return factors >= 64;
    return factors >= 32 || (factors >= 16 && q.k >= 64);
  };
  if (q.casts_a && !pays(q.n)) return {gemm_math::f32, a_costs};
  if (q.casts_b && !pays(q.m)) return {gemm_math::f32, b_costs};
  return {gemm_math::forced_bf16};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
