// Conversion of a matrix of floats to a table of any row format, and back.
//
//   dense_table<int8_rows> small(R, D);
//   quantize(pool, matrix_view<const float>(weights, R, D), small.view()).or_throw();
//   lookup(pool, small.view(), bags, combiner::sum, out);           // reads the int8 rows
//   dequantize(pool, small.view(), copy);                 // the values that lookups read
//
// Rows are converted by their format's encode and decode. Not here: scales from anything but a row's minimum
// and maximum.
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

inline namespace DEEPREC_UNIT {

/// The first column whose value the format can't hold; -1 when there is none.
template <class Format>
DEEPREC_APART index_t first_unfit(const Format& format, const float* values) {
  if constexpr (requires { format.first_unfit(values); }) {
    return format.first_unfit(values);
  } else {
    for (index_t j = 0; j < format.width(); ++j) {
      bool fits = is_finite(values[j]);
      if constexpr (Storage<typename Format::element>) {
        fits = fits && is_finite(static_cast<float>(static_cast<typename Format::element>(values[j])));
      }
      if (!fits) return j;
    }
    return -1;
  }
}

}  // namespace DEEPREC_UNIT

/// Rows per piece of work: about 256 KB of floats.
inline index_t quantize_grain(index_t width) {
  return std::max<index_t>(1, (index_t{1} << 16) / std::max<index_t>(1, width));
}

}  // namespace detail

/// Encodes every row of a matrix.
///
/// @shape    source (R,D), any row stride · table (R,D)
/// @dtype    source f32; rows of any format
/// @space    host
/// @pre      source and table don't overlap
/// @post     every row's bytes are written; gaps between rows and optimizer state are not
/// @numerics int8, int4: bias = the row's smallest value, scale = (largest - bias) / (2^bits - 1), so that
///           |x - dequantized x| <= scale / 2, and with a scale and bias of f32 a constant row comes back
///           exactly. Both are rounded to what the row stores, the bias down and the scale up. f16, bf16,
///           fp8: to nearest even. Split rows: exact
/// @cost     O(R*D): reads the source twice, writes the table; no allocation
/// @threads  one caller, no lookup of the table at the same time
/// @error    shape_mismatch · invalid_value with row and column, of the first such row: a value is NaN,
///           infinite, or too large for the format. On an error nothing is written
/// @example  @snippet tests/embedding/quantize_test.cpp quantize
template <class Context, RowFormat Format, MemorySpace Space>
DEEPREC_PER_UNIT status quantize(Context&& context_or_executor, matrix_view<const float> source,
                                 table_view<Format, Space> table) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "quantize", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (source.extent(0) != table.rows() || source.extent(1) != table.width()) {
    return {errc::shape_mismatch, "quantize: source must have the shape (R,D) of the table"};
  }
  if (const status s = source.validate("quantize: source must not be null", row_overlap::permitted); !s)
    return s.in_operation("quantize");
  if (const status s = detail::check_source(table); !s) return s.in_operation("quantize");
  return detail::or_out_of_memory("quantize", [&]() -> status {
    const Format format = table.format();
    const index_t rows = source.extent(0);
    const index_t grain = detail::quantize_grain(source.extent(1));
    const auto ns = static_cast<double>(capped_product(rows, source.extent(1)));
    const auto check = [&](index_t begin, index_t end) -> status {
      for (index_t row = begin; row < end; ++row) {
        const index_t column = detail::first_unfit(format, source.row(row));
        if (column < 0) continue;
        return {errc::invalid_value,
                detail::is_finite(source.row(row)[column]) ? "quantize: too large for the rows' format"
                                                           : "quantize: values must be finite",
                {.row = row, .column = column}};
      }
      return {};
    };
    if (const status s = detail::first_fault(ctx, {rows, grain, ns}, check); !s) return s;
    detail::run_bulk(ctx, {rows, grain, ns}, [&](index_t begin, index_t end, int) {
      for (index_t row = begin; row < end; ++row) format.encode(source.row(row), table.row(row));
    });
    return {};
  });
}

/// Decodes every row of a table.
///
/// @shape    table (R,D) · out (R,D), any row stride
/// @dtype    rows of any format; out f32
/// @space    host
/// @pre      table and out don't overlap
/// @post     every row of out is written
/// @numerics as the format's decode: exact, but for int8 and int4, where code * scale is rounded and then the
///           sum with the bias, without a fused multiply-add. The same bits on every ISA: those of a gather,
///           of concat, and of sum, mean, sqrtn and max of one id without a weight
/// @cost     O(R*D): reads the table, writes out; no allocation
/// @threads  reentrant; lookups of the table may run at the same time
/// @error    shape_mismatch; nothing is written then
template <class Context, RowFormat Format, MemorySpace Space, class Byte>
DEEPREC_PER_UNIT status dequantize(Context&& context_or_executor,
                                   const basic_table_view<Format, Space, Byte>& table,
                                   matrix_view<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "dequantize", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (out.extent(0) != table.rows() || out.extent(1) != table.width()) {
    return {errc::shape_mismatch, "dequantize: out must have the shape (R,D) of the table"};
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "dequantize: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = out.validate("dequantize: out must not be null"); !s)
    return s.in_operation("dequantize");
  if (const status s = detail::check_source(table); !s) return s.in_operation("dequantize");
  return detail::or_out_of_memory("dequantize", [&]() -> status {
    const Format format = table.format();
    const auto ns = static_cast<double>(capped_product(table.rows(), table.width()));
    detail::run_bulk(ctx, {table.rows(), detail::quantize_grain(table.width()), ns},
                     [&](index_t begin, index_t end, int) {
                       for (index_t row = begin; row < end; ++row)
                         format.decode(table.row(row), out.row(row));
                     });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
