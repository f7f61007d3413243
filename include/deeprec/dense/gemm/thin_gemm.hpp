// Products with one row or one column: one pass over the larger operand with the vectors of the ISA.
//
//   m = 1   y = x W^T   dots of W's rows with x          n = 1   y = X w   dots of X's rows with w
//           y = x W     weighted sum of W's rows                 y = X^T w  weighted sum of X's rows
//
// A library for large products is slower here: oneDNN computes 16 columns where one is wanted.
#pragma once

#include <deeprec/dense/gemm/detail/gemm_tiles_kernels.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { inline namespace DEEPREC_UNIT {

/// @numerics float products and sums: a dot product has one or two partial sums per lane, then pairwise sums;
///           a weighted sum of rows adds in the order of k. The same bits on every machine of an ISA
/// @cost     O(mnk)
/// @threads  thread-safe; uses one thread
/// @error    none
struct thin_gemm {
  static constexpr const char* name = "thin";

  [[nodiscard]] static status can_multiply(index_t m, index_t n, index_t) noexcept {
    if (m != 1 && n != 1) return {errc::unsupported, "thin products have one row or one column"};
    return {};
  }
  [[nodiscard]] static status can_run(const gemm_backend::problem& q) noexcept {
    if (const status s = can_multiply(q.m, q.n, q.k); !s) return s;
    if (q.output != gemm_storage::f32) return {errc::unsupported, "thin products' results are float"};
    if (q.packed) return {errc::unsupported, "thin products read b as it is"};
    if (by_column(q)) {
      if (b_batch_stride(q) != 1 && q.a == gemm_operand::normal)
        return {errc::unsupported, "a strided column is no vector"};
      if (q.a == gemm_operand::transposed && q.c_stride != 1)
        return {errc::unsupported, "a strided column is no vector"};
      return {};
    }
    if (a_batch_stride(q) != 1 && q.b == gemm_operand::transposed)
      return {errc::unsupported, "a strided column is no vector"};
    return {};
  }
  [[nodiscard]] static gemm_backend::plan plan(const gemm_backend::problem& q) noexcept {
    return {.query = q,
            .run = !can_run(q)                     ? nullptr
                   : q.inputs == gemm_storage::f32 ? &run<float>
                                                   : &run<bf16>,
            .implementation = name};
  }

 private:
  static bool by_column(const gemm_backend::problem& q) noexcept { return q.n == 1; }
  static index_t a_batch_stride(const gemm_backend::problem& q) noexcept {
    return q.a == gemm_operand::normal || q.k == 1 ? 1 : q.a_stride;
  }
  static index_t b_batch_stride(const gemm_backend::problem& q) noexcept {
    return q.b == gemm_operand::transposed || q.k == 1 ? 1 : q.b_stride;
  }

  template <class T>
  static status run(const gemm_backend::plan& plan, const gemm_backend::args& at) {
    const gemm_backend::problem& q = plan.query;
    const auto* a = static_cast<const T*>(at.a);
    const auto* b = static_cast<const T*>(at.b);
    auto* c = static_cast<float*>(at.c);
    with_isa_up_to_avx512(at.instruction_set, [&](auto region) {
      if (by_column(q)) {
        if (q.a == gemm_operand::normal) {
          row_dots(region, a, q.a_stride, q.m, b, q.k, c, q.c_stride, q.accumulates);
        } else {
          combine_rows(region, a, q.a_stride, q.k, b, b_batch_stride(q), q.m, c, q.accumulates);
        }
      } else if (q.b == gemm_operand::transposed) {
        row_dots(region, b, q.b_stride, q.n, a, q.k, c, 1, q.accumulates);
      } else {
        combine_rows(region, b, q.b_stride, q.k, a, a_batch_stride(q), q.n, c, q.accumulates);
      }
      if (q.bias || q.residual || q.activation != gemm_activation::none) {  // in place, while c is cached
        finish(region, {.product = c,
                        .product_stride = q.c_stride,
                        .rows = q.m,
                        .columns = q.n,
                        .old = {},
                        .residual = {q.residual ? at.residual : nullptr, q.c_stride, gemm_storage::f32},
                        .mask = {},
                        .bias = q.bias ? at.bias : nullptr,
                        .activation = q.activation,
                        .to = {c, q.c_stride, gemm_storage::f32}});
      }
    });
    return {};
  }
};

static_assert(GemmBackend<thin_gemm>);

}}}  // namespace deeprec::DEEPREC_ABI::DEEPREC_UNIT
