// Matrix products of row-major views, with conversions of operands and epilogues of layers.
//
//   gemm(ctx, {.b = gemm_operand::transposed}, x, weights, y);        // y = x weights^T
//   gemm(ctx, {.b = gemm_operand::transposed, .math = gemm_math::bf16, .bias = bias,
//              .activation = gemm_activation::relu}, x, weights, y);  // y = max(x weights^T + bias, 0)
//
//        n                 c is cut into tiles by its shape alone, so the bits are the same for any
//    ┌──┬──┬─┐             number of threads; the executor distributes tiles, one thread per tile
//  m ├──┼──┼─┤             operands are converted and epilogues applied tile by tile, in the cache
//    └──┴──┴─┘
//
// gemm<gemm_backends<eigen_gemm>>(...) selects the backends; explain_gemm() reports which one runs, and why.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/dense/gemm/detail/gemm_driver.hpp>
#include <deeprec/dense/gemm/detail/gemm_run.hpp>
#include <deeprec/dense/gemm/eigen_gemm.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/dense/gemm/gemm_weights.hpp>
#include <deeprec/dense/gemm/onednn_gemm.hpp>
#include <deeprec/dense/gemm/thin_gemm.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
using host_gemm_backends = gemm_backends<thin_gemm, onednn_gemm, eigen_gemm>;
#else
using host_gemm_backends = gemm_backends<thin_gemm, eigen_gemm>;
#endif

/// The names of backends, in order of preference.
///
/// @cost    O(1), allocates
/// @threads reentrant
/// @error   none
template <class First, class... Others>
[[nodiscard]] std::string to_string(gemm_backends<First, Others...>) {
  std::string text = First::name;
  ((text += std::string(", ") + Others::name), ...);
  return text;
}

template <class Backends, class... Args>
status gemm_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Backends, class E>
DEEPREC_PER_UNIT status gemm_on(host_backend, context<E> given, const gemm_desc& desc, const gemm_view<>& a,
                                const gemm_factor<>& b, const gemm_result<>& c) {
  executor_ref executor(*given.executor);  // type-erased: one instantiation for all executors
  const context<executor_ref> ctx = given.rebind(executor);
#if DEEPREC_EXCEPTIONS
  try {
    return detail::run_gemm<Backends>(ctx, desc, detail::make_job(desc, a, b, c));
  } catch (const std::bad_alloc&) {
    return {errc::out_of_memory, "gemm"};
  }
#else
  return detail::run_gemm<Backends>(ctx, desc, detail::make_job(desc, a, b, c));
#endif
}

/// c = cast( mask( act( op(a) op(b) + old c + bias + residual ) ) ), see gemm_desc; relu_bits and
/// column_sums are taken from c.
///
/// @shape    op(a) (M,K) · op(b) (K,N) · c (M,N); each of them may be 0
/// @dtype    float or bf16, each of a, b, c, residual and mask for itself; b may be a gemm_weights
/// @space    one space for all, reachable from the context
/// @pre      c overlaps neither a nor b; the bias gradient, column_sums and relu_bits overlap nothing
/// @post     K = 0 sums to zero; mask_bits act as a mask that is positive where their bits are set
/// @numerics factors rounded to desc.math; where that is a permission, perhaps not: it depends on machine, N,
///           K and types, on M only where b is a view. Float sums in an order that depends on shape, strides,
///           backend and machine, never on threads; where a is transposed and b is a view that is not, K is
///           summed in pieces that depend on K alone. The error of the sum is at most
///           ((K + 3) 2^-24 + r) sum |a||b| with r = 0, 2^-7 + 2^-16 (bf16), 2^-10 + 2^-22 (tf32), and with
///           bf16 inputs K 2^-126 (max|a| + max|b| + 1) for denormals taken as zeros (times an infinity:
///           NaN). bias, residual and old c add 2^-24 each. GELU and sigmoid are within 2^-20 (1 + |x|); NaN
///           stays NaN in all of them; GELU of an infinity is its limit or NaN. bias_gradient: float, error
///           (64 + K / 64) 2^-24 sum |a|; column_sums: the same with M and |c|
/// @cost     O(MNK); scratch for a tile of each thread from the context's resource where operands are
///           converted or epilogues not fused; a new shape costs oneDNN 0.3 ms per tile size. From M = 16 on,
///           tiles have one of 12 heights, the last multiplying up to 7 rows again; where that would change
///           bits, one of 10 and one of 15. K of a weight gradient is cut in 8 sizes for each power of two
///           from 64 on (16 where both operands are converted, and where fewer would change bits), multiples
///           of 8 below, and padded with zeros. bits and column_sums are one more pass over c
/// @threads  thread-safe on distinct c; parallel by the executor only, never by a backend's own threads
/// @error    shape_mismatch (names the operand) · unsupported, out_of_memory (from the backend). Nothing is
///           written, unless a backend fails on a tile: then c may be written in part, and nothing else
/// @example  gemm(pool, {.b = gemm_operand::transposed}, x, weights, y).or_throw();
template <class Backends = host_gemm_backends, class Context>
DEEPREC_PER_UNIT status gemm(Context&& context_or_executor, const basic_gemm_desc<space_for<Context>>& desc,
                             const gemm_view<space_for<Context>>& a, const gemm_factor<space_for<Context>>& b,
                             const gemm_result<space_for<Context>>& c) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "gemm");
  if (!call) return call.stopped();
  if (b.weights() != nullptr && desc.batch.b_batch_stride != 0)
    return {errc::unsupported, "gemm: b_batch_stride must be 0 for gemm_weights"};
  if (const status s = detail::check_gemm(desc, a, b.values(), c); !s) return s;
  return gemm_on<Backends>(ctx.backend(), ctx, desc, a, b, c);
}

/// One line of text: the backend, the tiles of c, conversions, epilogues, and which backends refused and why.
///
/// @pre      as gemm(); of the operands only gemm_weights are read
/// @cost     as the first gemm() of this shape
/// @threads  thread-safe
/// @error    none: a refusal of gemm() is in the text
/// @example  explain_gemm({.math = gemm_math::bf16}, x, w, y)
///           // "oneDNN (brg:avx512_core), 32 tiles of 64 x 512; bf16 is permitted, f32 taken: k is below 24,
///           // which fills no tile of AMX; not thin: ..."
template <class Backends = host_gemm_backends>
DEEPREC_PER_UNIT [[nodiscard]] std::string explain_gemm(const gemm_desc& desc, const gemm_view<>& a,
                                                        const gemm_factor<>& b, const gemm_result<>& c) {
  if (const status s = detail::check_gemm(desc, a, b.values(), c); !s) return s.message();
  const detail::gemm_job job = detail::make_job(desc, a, b, c);
  if (job.m == 0 || job.n == 0 || job.k == 0) return "nothing to multiply";
  detail::gemm_setup setup(std::pmr::get_default_resource());
  std::string refused;
  if (!detail::set_up(Backends{}, active_isa(), job, setup, &refused)) return "no backend" + refused;
  const detail::gemm_borders& at = setup.borders;
  const auto conversion_text = [](const char* operand, detail::conversion kind) -> std::string {
    constexpr const char* words[] = {
        "", " copied", " widened", " narrowed to bf16", " rounded to bf16", " rounded to tf32"};
    if (kind == detail::conversion::none) return "";
    return std::string(", ") + operand + words[static_cast<int>(kind)];
  };
  const gemm_backend::plan* plan = nullptr;
  for (const gemm_backend::plan& p : setup.plans) {
    if (p.run != nullptr && plan == nullptr) plan = &p;
  }
  std::string text = setup.backend;
  if (std::string_view(plan->implementation) != setup.backend) {
    text += std::string(" (") + plan->implementation + ')';
  }
  text += ", " + std::to_string(at.m.count() * at.n.count() * job.batch.count) + " tiles of " +
          std::to_string(plan->query.m) + " x " + std::to_string(plan->query.n);
  if (at.k.count() > 1) text += ", k in " + std::to_string(at.k.count()) + " pieces";
  text += conversion_text("a", setup.convert_a) + conversion_text("b", setup.convert_b);
  if (setup.packed) text += ", b packed";
  if (job.has_steps()) text += setup.fused ? ", steps fused" : ", steps composed on each tile";
  if (detail::has_result_steps(desc)) text += ", bits and sums in a pass over c";
  if (job.math == gemm_math::bf16 || job.math == gemm_math::tf32) {
    text += std::string("; ") + to_string(job.math) + " is permitted, ";
    if (setup.math.why_f32 != nullptr) {
      text += std::string("f32 taken: ") + setup.math.why_f32;
    } else if (setup.inputs == gemm_storage::bf16) {
      text += "and taken";
    } else {
      text += "f32 taken: the backend has no such product of this shape";
    }
  }
  return text + refused;
}

}}  // namespace deeprec::DEEPREC_ABI
