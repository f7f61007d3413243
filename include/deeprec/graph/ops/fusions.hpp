// Patterns of the ops of this folder: what fuse() is given.
//
//   std::vector<step_pattern> patterns = linear_fusions();
//   patterns.push_back(lookup_fusion<table_type, combiner::mean_t<combiner::by_weight_t>>());
//   const fused_graph made = fuse(g, patterns).or_throw();
//
// A pattern of your own is as short: step_pattern.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/lookup_ops.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// matmul, add_row -> linear; linear without an activation, activate -> linear. GELU with erf stays as it is.
///
/// @numerics as gemm() with a bias and an activation beside it: within its bound, and the bits of the ops one
///           by one where its backend adds the bias behind the sum
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Weights = matrix_view<float>, class Row = matrix_view<float>>
[[nodiscard]] std::vector<step_pattern> linear_fusions() {
  using linear = linear_op<Weights, Row>;
  step_pattern bias("matmul, add_row");
  {
    const auto x = bias.any<matrix_value>();
    const auto w = bias.reads<Weights>();
    const auto b = bias.reads<Row>();
    const auto product = bias.op<matmul_op<Weights>>(x, w);
    const auto y = bias.op<add_row_op<Row>>(product, b);
    bias.becomes(y, [=](const pattern_match& m) { return linear{m[product].math}; }, x, w, b);
  }
  step_pattern activation("linear, activate");
  {
    const auto x = activation.any<matrix_value>();
    const auto w = activation.reads<Weights>();
    const auto b = activation.reads<Row>();
    const auto layer = activation.op<linear>(x, w, b);
    const auto y = activation.op<activate_op>(layer);
    activation.becomes(
        y,
        [=](const pattern_match& m) -> std::optional<linear> {
          if (m[layer].activation != gemm_activation::none) return std::nullopt;
          return linear{m[layer].math, m[y].activation};
        },
        x, w, b);
  }
  return {bias, activation};
}

/// prune_invalid, [fill_empty_bags,] unique, gather, combine -> fused_lookup; with the rule that drops what
/// the combiner's lookup drops.
///
/// @param    fill  whether the chain fills empty bags
/// @numerics the bits of the ops one by one
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Table, class Combiner, class Id = std::int64_t>
[[nodiscard]] step_pattern lookup_fusion(bool fill = true) {
  using rule = std::conditional_t<std::is_same_v<Combiner, combiner::sum_t>, prune_rule::by_id_t,
                                  prune_rule::by_id_and_weight_t>;
  using lookup = fused_lookup_op<Table, Combiner, Id>;
  step_pattern p("safe lookup");
  const auto bags = p.any<jagged_batch<Id>>();
  const auto table = p.reads<Table>();
  const auto valid = p.op<prune_op<rule, Id>>(bags);
  const auto pool = [&](const auto& from) {
    const auto ids = p.op<unique_op<Id>>(from);
    const auto rows = p.op<gather_op<Table, Id>>(ids, table);
    return p.op<combine_op<Combiner, Id>>(rows, ids, from);
  };
  if (fill) {
    const auto filled = p.op<fill_op<Id>>(valid);
    p.becomes(
        pool(filled.template get<0>()), [=](const pattern_match& m) { return lookup{m[filled].default_id}; },
        bags, table);
  } else {
    p.becomes(pool(valid), [](const pattern_match&) { return lookup{}; }, bags, table);
  }
  return p;
}

}}  // namespace deeprec::DEEPREC_ABI
