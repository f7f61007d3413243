// Matrix products: c = op(a) op(b), or c += op(a) op(b), of row-major views with any row stride.
//
//   gemm(ctx, {.b = gemm_operand::transposed}, x, weights, y);        // y = x weights^T
//
//        n                 c is cut into tiles by its shape alone, so the bits are the same for any
//    ┌──┬──┬─┐             number of threads; each tile sums over the whole of k
//  m ├──┼──┼─┤
//    └──┴──┴─┘
//
// oneDNN multiplies where DEEPREC_WITH_ONEDNN is defined, Eigen elsewhere; gemm<eigen_engine>(...)
// chooses by hand. Not here yet: 16-bit operands, epilogues, products split over k.
#pragma once

#include <algorithm>
#include <atomic>
#include <type_traits>

#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/dense/eigen_gemm.hpp>
#include <deeprec/dense/gemm_engine.hpp>
#include <deeprec/dense/onednn_gemm.hpp>

namespace deeprec::inline DEEPREC_ABI {

#if defined(DEEPREC_WITH_ONEDNN) && DEEPREC_WITH_ONEDNN
using default_gemm_engine = onednn_engine;
#else
using default_gemm_engine = eigen_engine;
#endif

namespace verbs {
struct gemm {};
}  // namespace verbs

namespace detail {

/// Memory, sizes and row stride make sense together.
template <class View>
constexpr bool well_formed(const View& v) noexcept {
  return v.extent(0) >= 0 && v.extent(1) >= 0 &&
         (v.empty() ||
          (v.data_handle() != nullptr && (v.extent(0) == 1 || v.stride(0) >= v.extent(1))));
}

template <class View>
constexpr bool has_shape(const View& v, index_t rows, index_t columns) noexcept {
  return v.extent(0) == rows && v.extent(1) == columns;
}

/// The row stride as BLAS wants it: a single row may carry any.
template <class View>
constexpr index_t leading_dimension(const View& v) noexcept {
  return v.extent(0) > 1 ? v.stride(0) : std::max<index_t>(v.extent(1), 1);
}

/// Rows and columns of a tile of an m x n result: squares whose side grows with the work, made
/// longer where the result is thin. A function of the shape only.
struct tile_shape {
  index_t rows, columns;
};
constexpr tile_shape gemm_tile_shape(index_t m, index_t n, index_t k) noexcept {
  const auto up16 = [](index_t x) { return (x + 15) / 16 * 16; };
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const index_t side = work < 0x1p26 ? 64 : work < 0x1p30 ? 128 : 256;
  index_t area = side * side;
  while (area * k < (index_t{1} << 18) && area < m * n) area *= 2;
  if (m <= n) {
    const index_t rows = (std::min)(m, side);
    return {rows, (std::min)(n, up16(area / rows))};
  }
  const index_t columns = (std::min)(n, side);
  return {(std::min)(m, up16(area / columns)), columns};
}

}  // namespace detail

template <>
struct backend<verbs::gemm, host_backend> {
  template <class Engine, class E, class A, class B, class C>
  static status run(context<E> ctx, const gemm_desc& desc, const A& a, const B& b, const C& c) {
    using element_a = typename A::value_type;
    using element_b = typename B::value_type;
    using element_c = typename C::value_type;
    static_assert(GemmEngine<Engine, element_a, element_b, element_c>,
                  "deeprec::gemm: this engine can't multiply these element types. Fix: pass "
                  "matrix_view<float> operands, or another engine: gemm<Engine>(...).");
    const index_t m = c.extent(0);
    const index_t n = c.extent(1);
    const bool a_transposed = desc.a == gemm_operand::transposed;
    const bool b_transposed = desc.b == gemm_operand::transposed;
    const index_t k = a.extent(a_transposed ? 0 : 1);
    if (m == 0 || n == 0) return {};
    if (k == 0) {
      if (desc.c == gemm_output::overwrite) {
        for (index_t i = 0; i < m; ++i) std::fill_n(c.row(i), n, element_c(0));
      }
      return {};
    }
    const index_t a_stride = detail::leading_dimension(a);
    const index_t b_stride = detail::leading_dimension(b);
    const index_t c_stride = detail::leading_dimension(c);
    const detail::tile_shape shape = detail::gemm_tile_shape(m, n, k);
    const index_t across = (n + shape.columns - 1) / shape.columns;
    const index_t tiles = across * ((m + shape.rows - 1) / shape.rows);
    std::atomic<errc> worst{errc::ok};
    ctx.executor->parallel_for(tiles, index_t{1}, [&](index_t begin, index_t end, int) {
      for (index_t t = begin; t < end; ++t) {
        const index_t i = t / across * shape.rows;
        const index_t j = t % across * shape.columns;
        const gemm_tile<element_a, element_b, element_c> tile{
            .desc = desc,
            .m = (std::min)(shape.rows, m - i),
            .n = (std::min)(shape.columns, n - j),
            .k = k,
            .a = a.data_handle() + (a_transposed ? i : i * a_stride),
            .a_stride = a_stride,
            .b = b.data_handle() + (b_transposed ? j * b_stride : j),
            .b_stride = b_stride,
            .c = c.data_handle() + i * c_stride + j,
            .c_stride = c_stride};
        const status done = Engine{}.multiply(tile);
        if (!done) worst.store(done.code(), std::memory_order_relaxed);
      }
    });
    const errc code = worst.load(std::memory_order_relaxed);
    return code == errc::ok ? status{} : status{code, "gemm: the engine refused a tile"};
  }
};

/// c = op(a) op(b), or c += op(a) op(b).
///
/// @shape    op(a) (M,K) · op(b) (K,N) · c (M,N); each of them may be 0
/// @dtype    what the engine multiplies; both engines of today: float
/// @space    one space for all, reachable from the context
/// @pre      c overlaps neither a nor b
/// @post     K = 0 overwrites c with zeros, or leaves it as it is when accumulating
/// @numerics float; the order of the sums depends on shape, strides, engine and machine, never on
///           threads. Each element's error is at most K * 2^-24 * sum |a||b|
/// @cost     O(MNK); the engine packs operands into memory of its own
/// @threads  thread-safe on distinct c
/// @error    shape_mismatch (names the operand) · unsupported, out_of_memory (the engine's)
/// @example  gemm(pool, {.b = gemm_operand::transposed}, x, weights, y).or_throw();
template <class Engine = default_gemm_engine, class Context, class A, class B, class C>
[[nodiscard]] status gemm(Context&& ctx, const gemm_desc& desc, const A& a, const B& b,
                          const C& c) {
  const auto where = as_context(ctx);
  const index_t m = c.extent(0);
  const index_t n = c.extent(1);
  const int a_k = desc.a == gemm_operand::transposed ? 0 : 1;
  const int b_k = desc.b == gemm_operand::transposed ? 1 : 0;
  if (!detail::well_formed(a)) {
    return {errc::shape_mismatch, "gemm: a is null, or its row stride is below its columns"};
  }
  if (!detail::well_formed(b)) {
    return {errc::shape_mismatch, "gemm: b is null, or its row stride is below its columns"};
  }
  if (!detail::well_formed(c)) {
    return {errc::shape_mismatch, "gemm: c is null, or its row stride is below its columns"};
  }
  if (a.extent(1 - a_k) != m) return {errc::shape_mismatch, "gemm: op(a) and c differ in rows"};
  if (b.extent(1 - b_k) != n) return {errc::shape_mismatch, "gemm: op(b) and c differ in columns"};
  if (a.extent(a_k) != b.extent(b_k)) {
    return {errc::shape_mismatch, "gemm: op(b) has other rows than op(a) has columns"};
  }
  return backend<verbs::gemm,
                 backend_of<std::remove_const_t<decltype(where)>>>::template run<Engine>(where,
                                                                                         desc, a, b,
                                                                                         c);
}

}  // namespace deeprec::inline DEEPREC_ABI
