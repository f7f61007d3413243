// The checks of evaluate: shapes, null operands and overlaps.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/ops/detail/expression_nodes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace expr::detail {

/// What the checks find out: matrices whose rows follow each other are one long row, and an output that is an
/// operand is in the cache when it is written.
struct layout {
  bool contiguous = true;
  bool in_place = false;
};

inline namespace DEEPREC_UNIT {

inline deeprec::detail::byte_rows<const std::byte> bytes_of(const operand& x) {
  const index_t size = size_of(x.type);
  const auto* first = static_cast<const std::byte*>(x.data);
  if (x.kind != form::matrix) return {first, 1, 0, x.rows * x.columns * size};
  return {first, x.rows, deeprec::capped_product(x.stride, size), x.columns * size};
}

inline deeprec::detail::matrix_fault fault_of(const operand& x, row_overlap overlap) {
  return deeprec::detail::matrix_fault_of(x.data, x.rows, x.columns, x.stride,
                                          static_cast<std::size_t>(size_of(x.type)), overlap);
}

inline status check_out(const operand& out, const operand& first, index_t item) {
  if (out.rows != first.rows || out.columns != first.columns) {
    return {errc::shape_mismatch, "evaluate: an output must have the shape of the first one", {.item = item}};
  }
  using deeprec::detail::matrix_fault;
  switch (fault_of(out, row_overlap::refused)) {
    case matrix_fault::none:
      return {};
    case matrix_fault::negative_extent:
      return {
          errc::shape_mismatch, "evaluate: the extents of an output must not be negative", {.item = item}};
    case matrix_fault::null_data:
      return {errc::shape_mismatch, "evaluate: an output must not be null", {.item = item}};
    case matrix_fault::short_stride:
      return {errc::shape_mismatch,
              "evaluate: the stride of an output must be at least its columns",
              {.item = item, .is = out.stride, .must_be = out.columns}};
    case matrix_fault::too_large:
      break;
  }
  return {errc::shape_mismatch, "evaluate: an output must fit in memory", {.item = item}};
}

inline status check_leaf(const operand& leaf, const operand& out, index_t item) {
  if (leaf.kind == form::row && leaf.columns != out.columns) {
    return {errc::shape_mismatch,
            "evaluate: a row must have one element for each column of the output",
            {.item = item, .is = leaf.columns, .must_be = out.columns}};
  }
  if (leaf.kind == form::column && leaf.rows != out.rows) {
    return {errc::shape_mismatch,
            "evaluate: a column must have one element for each row of the output",
            {.item = item, .is = leaf.rows, .must_be = out.rows}};
  }
  if (leaf.kind == form::matrix && (leaf.rows != out.rows || leaf.columns != out.columns)) {
    return {errc::shape_mismatch, "evaluate: a matrix must have the shape of the output", {.item = item}};
  }
  if (out.rows == 0 || out.columns == 0) return {};
  if (leaf.data == nullptr) {
    return {errc::shape_mismatch, "evaluate: an operand must not be null", {.item = item}};
  }
  if (leaf.kind == form::matrix &&
      fault_of(leaf, row_overlap::permitted) != deeprec::detail::matrix_fault::none) {
    return {errc::shape_mismatch,
            "evaluate: the stride of a matrix must be in range",
            {.item = item, .is = leaf.stride, .must_be = leaf.columns}};
  }
  return {};
}

inline status check_operands(const operand* outs, index_t out_count, const operand* leaves,
                             index_t leaf_count, layout& found) {
  const operand& first = *outs;
  for (index_t o = 0; o < out_count; ++o) {
    if (const status s = check_out(outs[o], first, o); !s) return s;
    found.contiguous = found.contiguous && (first.rows == 1 || outs[o].stride == first.columns);
  }
  index_t item = 0;  // dropout's rates are no operands
  for (const operand* leaf = leaves; leaf < leaves + leaf_count; ++leaf) {
    if (leaf->kind == form::rate) {
      if (leaf->rate >= 0 && leaf->rate < 1) continue;
      return {errc::invalid_value, "evaluate: the rate of dropout must be at least 0 and below 1"};
    }
    if (const status s = check_leaf(*leaf, first, item++); !s) return s;
    if (leaf->kind == form::matrix && first.rows != 1 && leaf->stride != first.columns) {
      found.contiguous = false;
    }
  }
  if (first.rows == 0 || first.columns == 0) return {};
  for (index_t o = 0; o < out_count; ++o) {
    const auto to = bytes_of(outs[o]);
    for (index_t other = 0; other < o; ++other) {
      if (deeprec::detail::share_bytes(bytes_of(outs[other]), to)) {
        return {errc::unsupported, "evaluate: outputs must not overlap each other", {.item = o}};
      }
    }
    item = 0;
    for (const operand* leaf = leaves; leaf < leaves + leaf_count; ++leaf) {
      if (leaf->kind == form::rate) continue;
      const bool same = leaf->kind == form::matrix && leaf->data == outs[o].data &&
                        leaf->type == outs[o].type && (leaf->stride == outs[o].stride || first.rows == 1);
      if (!same && deeprec::detail::share_bytes(bytes_of(*leaf), to)) {
        return {
            errc::unsupported, "evaluate: an output must be an operand, or not overlap it", {.item = item}};
      }
      found.in_place = found.in_place || same;
      ++item;
    }
  }
  return {};
}

}  // namespace DEEPREC_UNIT

}}}  // namespace deeprec::DEEPREC_ABI::expr::detail
