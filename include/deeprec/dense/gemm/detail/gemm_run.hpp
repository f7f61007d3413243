// The checks of a product, and its run on the host.
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
#include <deeprec/dense/gemm/eigen_gemm.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/dense/gemm/gemm_weights.hpp>
#include <deeprec/dense/gemm/onednn_gemm.hpp>
#include <deeprec/dense/gemm/thin_gemm.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The checks of gemm(), for every backend.
template <MemorySpace Space>
DEEPREC_PER_UNIT status check_gemm(const basic_gemm_desc<Space>& desc, const gemm_view<Space>& a,
                                   const gemm_view<Space>& b, const gemm_result<Space>& c) {
  const auto no = [](const char* why) { return status{errc::shape_mismatch, why}; };
  const auto too_large = [](const auto& v) { return matrix_fault_of(v) == matrix_fault::too_large; };
  if (too_large(a)) return no("gemm: the bytes of a must fit an index");
  if (too_large(b)) return no("gemm: the bytes of b must fit an index");
  if (too_large(c)) return no("gemm: the bytes of c must fit an index");
  if (!well_formed(a)) return no("gemm: a must not be null, and its row stride at least its columns");
  if (!well_formed(b)) return no("gemm: b must not be null, and its row stride at least its columns");
  if (!well_formed(c)) return no("gemm: c must not be null, and its row stride at least its columns");
  const index_t m = c.extent(0);
  const index_t n = c.extent(1);
  const int a_k = desc.a == gemm_operand::transposed ? 0 : 1;
  const int b_k = desc.b == gemm_operand::transposed ? 1 : 0;
  if (a.extent(1 - a_k) != m) return no("gemm: op(a) must have the rows of c");
  if (b.extent(1 - b_k) != n) return no("gemm: op(b) must have the columns of c");
  if (a.extent(a_k) != b.extent(b_k)) return no("gemm: op(b) must have as many rows as op(a) has columns");
  const auto fits = [](const auto& v, index_t rows, index_t columns) {
    return well_formed(v) && has_shape(v, rows, columns);
  };
  if (desc.bias.data_handle() != nullptr && !fits(desc.bias, 1, n)) return no("gemm: bias must be (1,N)");
  if (!desc.residual.absent() && !fits(desc.residual, m, n)) return no("gemm: residual must be (M,N)");
  if (!desc.mask.absent() && !fits(desc.mask, m, n)) return no("gemm: mask must be (M,N)");
  if (desc.bias_gradient.data_handle() != nullptr && !fits(desc.bias_gradient, 1, m)) {
    return no("gemm: bias_gradient must be (1,M)");
  }
  if (desc.column_sums.data_handle() != nullptr && !fits(desc.column_sums, 1, n)) {
    return no("gemm: column_sums must be (1,N)");
  }
  if (!desc.relu_bits.absent()) {
    if (!has_shape(desc.relu_bits, m, n)) return no("gemm: relu_bits must be (M,N)");
    if (!rows_of_bits(desc.relu_bits))
      return no("gemm: the row stride of relu_bits must be a multiple of 128");
    if (desc.activation != gemm_activation::relu) {
      return {errc::unsupported, "gemm: relu_bits need the activation relu"};
    }
    if (!desc.mask.absent() || !desc.mask_bits.absent()) {
      return {errc::unsupported, "gemm: relu_bits must be absent where c is masked"};
    }
  }
  if (!desc.mask_bits.absent()) {
    if (!has_shape(desc.mask_bits, m, n)) return no("gemm: mask_bits must be (M,N)");
    if (!rows_of_bits(desc.mask_bits))
      return no("gemm: the row stride of mask_bits must be a multiple of 128");
    if (!desc.mask.absent()) return {errc::unsupported, "gemm: one of mask and mask_bits must be absent"};
  }
  if (desc.batch.count < 0) return no("gemm: batch.count must not be negative");
  const auto batch_fits = [&](const auto& v, index_t step) {  // all offsets fit index_t
    constexpr index_t most = (std::numeric_limits<index_t>::max)() / 8;
    const index_t rows = v.extent(0), columns = v.extent(1);
    if (rows == 0 || columns == 0 || step == 0) return true;
    const index_t one = (rows - 1) * v.stride(0) + columns;
    return step > -most && step < most && desc.batch.count - 1 <= (most - one) / (step < 0 ? -step : step);
  };
  if (desc.batch.count > 1 &&
      !(batch_fits(a, desc.batch.a_batch_stride) && batch_fits(b, desc.batch.b_batch_stride) &&
        batch_fits(c, desc.batch.c_batch_stride) &&
        fits_memory(capped_product(desc.batch.count, capped_product(m, n)), 8))) {
    return no("gemm: the bytes of a batch must fit an index");
  }
  if (desc.batch.count != 1) {
    if (!desc.residual.absent() || !desc.mask.absent() || desc.bias_gradient.data_handle() != nullptr) {
      return {errc::unsupported, "gemm: residual, mask and bias_gradient must be absent in a batch"};
    }
    if (has_result_steps(desc))
      return {errc::unsupported, "gemm: relu_bits, mask_bits and column_sums must be absent in a batch"};
    if (desc.batch.c_batch_stride == 0) return no("gemm: a batch writes every product to the same c");
  }
  return {};
}

DEEPREC_PER_UNIT inline gemm_job make_job(const gemm_desc& desc, const gemm_view<>& a, const gemm_factor<>& b,
                                          const gemm_result<>& c) {
  const auto rows_of = [](const gemm_view<>& v) {
    return stored_rows<const void>{v.data(), leading_dimension(v), v.storage()};
  };
  return {.m = c.extent(0),
          .n = c.extent(1),
          .k = a.extent(desc.a == gemm_operand::transposed ? 0 : 1),
          .a_as = desc.a,
          .b_as = desc.b,
          .math = desc.math,
          .a = a,
          .b = b.values(),
          .weights = b.weights(),
          .c = {c.data(), leading_dimension(c), c.storage()},
          .residual = rows_of(desc.residual),
          .mask = rows_of(desc.mask),
          .bias = desc.bias.data_handle(),
          .activation = desc.activation,
          .accumulates = desc.c == gemm_output::accumulate,
          .batch = desc.batch};
}

/// A checked product on the host: its tiles, then what is made of all of a and of c.
template <class Backends, class E>
DEEPREC_PER_UNIT status run_gemm(const context<E>& ctx, const gemm_desc& desc, const gemm_job& job) {
  const bool is_empty = job.m == 0 || job.n == 0 || job.batch.count == 0;
  if (!is_empty && job.k == 0) {
    const line_buffer zeros(ctx.memory, static_cast<std::size_t>(job.n) * sizeof(float));
    auto* const row = reinterpret_cast<float*>(zeros.data());
    std::fill_n(row, job.n, 0.0F);
    for (index_t i = 0; i < job.batch.count; ++i) {
      finish_rows(ctx.instruction_set, job, row, 0, {0, job.m, 0, job.m}, {0, job.n, 0, job.n},
                  offset_by(job.c.data, i * job.batch.c_batch_stride, job.c.storage));
    }
  } else if (!is_empty) {
    gemm_setup setup(ctx.memory);
    if (const status s = set_up(Backends{}, ctx.instruction_set, job, setup); !s)
      return s.in_operation("gemm");
    const auto workers = (std::max)(1, static_cast<int>(ctx.executor->concurrency()));
    tile_runner runner(ctx.instruction_set, job, setup, ctx.memory, workers);
    run_bulk(ctx, {runner.tiles(), 1, runner.ns(*ctx.tuning)}, runner);
    if (const status s = runner.first_fault(); !s) return s.in_operation("gemm");
  }
  if (desc.bias_gradient.data_handle() != nullptr && job.m > 0) {
    float* const sums = desc.bias_gradient.row(0);
    job.a.storage() == gemm_storage::f32 ? sum_rows<float>(ctx, desc.a, job.a, sums)
                                         : sum_rows<bf16>(ctx, desc.a, job.a, sums);
  }
  if (is_empty) {
    if (desc.column_sums.data_handle() != nullptr) std::fill_n(desc.column_sums.row(0), job.n, 0.0F);
  } else if (has_result_steps(desc)) {
    finish_result(ctx, desc, job.m, job.n, job.c);
  }
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
