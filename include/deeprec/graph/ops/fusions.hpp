// Patterns of dense layers and lookups: what fuse() is given.
//
//   std::vector<step_pattern> patterns = linear_fusions();
//   patterns.push_back(lookup_fusion<table_type, combiner::mean_t<combiner::by_weight_t>>());
//   const fused_graph made = fuse(g, patterns).or_throw();
//
// A pattern of your own is as short: step_pattern.hpp. Element-wise ops: element_fusions.hpp; columns, side
// by side and in other types: column_fusions.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/lookup_ops.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// matmul, add_row -> linear; linear without an activation, activate -> linear. GELU with erf stays as it is.
///
/// @dtype    T: of the inputs; Backends: of the ops, and of what they become
/// @numerics as gemm() with a bias and an activation beside it: within its bound, and the bits of the ops one
///           by one where its backend adds the bias behind the sum
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Weights = matrix_view<float>, class Row = matrix_view<float>, class T = float,
          class Backends = host_gemm_backends>
[[nodiscard]] std::vector<step_pattern> linear_fusions() {
  using linear = linear_op<Weights, Row, T, Backends>;
  using input = basic_matrix_value<T>;
  step_pattern bias("matmul, add_row");
  {
    const auto x = bias.any<input>();
    const auto w = bias.reads<Weights>();
    const auto b = bias.reads<Row>();
    const auto product = bias.op<matmul_op<Weights, T, Backends>>(x, w);
    const auto y = bias.op<add_row_op<Row>>(product, b);
    bias.becomes(y, [=](const pattern_match& m) { return linear{m[product].math}; }, x, w, b);
  }
  step_pattern activation("linear, activate");
  {
    const auto x = activation.any<input>();
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

/// Fused lookups whose rows concat_columns puts side by side, all of them or some among other matrices, ->
/// lookup_columns, one lookup of a feature_group that writes to its place. To be passed behind lookup_fusion.
/// It runs on the whole batch, though concat_columns is sample-wise.
///
/// @numerics the bits of the ops one by one
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Table, class Combiner, class Id = std::int64_t>
[[nodiscard]] std::vector<step_pattern> lookup_columns_fusions() {
  using columns = lookup_columns_op<Table, Combiner, Id>;
  std::vector<step_pattern> all;
  const auto parts_of = [](step_pattern& p) {
    const auto bags = p.any<jagged_batch<Id>>();
    const auto table = p.reads<Table>();
    return std::tuple(bags, table, p.op<fused_lookup_op<Table, Combiner, Id>>(bags, table),
                      p.any_list<matrix_value>(), p.any_list<matrix_value>());
  };
  {
    step_pattern p("lookup in columns");
    const auto [bags, table, rows, before, after] = parts_of(p);
    const auto y = p.op<concat_columns_op>(p.list(before, rows, after));
    p.take_whole_batch();
    p.becomes(
        y,
        [y = y, rows = rows, before = before,
         after = after](const pattern_match& m) -> std::optional<columns> {
          if (!m[y].parts.empty()) return std::nullopt;
          columns made;
          for (std::size_t i = 0; i < m.places(before).size(); ++i)
            made.parts.push_back({false, static_cast<index_t>(i)});
          made.parts.push_back({true, 0, m[rows].default_id});
          for (std::size_t i = 0; i < m.places(after).size(); ++i)
            made.parts.push_back({false, static_cast<index_t>(made.parts.size()) - 1});
          return made;
        },
        p.list(before, after), p.list(bags), p.list(table));
    all.push_back(std::move(p));
  }
  {
    step_pattern p("one more lookup in columns");
    const auto [bags, table, rows, before, after] = parts_of(p);
    const auto known = p.any_list<jagged_batch<Id>>();
    const auto tables = p.reads_list<Table>();
    const auto y = p.op<columns>(p.list(before, rows, after), known, tables);
    p.take_whole_batch();
    p.becomes(
        y,
        [y = y, rows = rows, before = before, known](const pattern_match& m) {
          columns made = m[y];
          const auto joins = static_cast<index_t>(m.places(before).size());
          for (lookup_part<Id>& part : made.parts) {
            if (part.is_lookup || part.at < joins) continue;
            if (part.at == joins) {
              part = {true, static_cast<index_t>(m.places(known).size()), m[rows].default_id};
            } else {
              --part.at;
            }
          }
          return made;
        },
        p.list(before, after), p.list(known, bags), p.list(tables, table));
    all.push_back(std::move(p));
  }
  return all;
}

/// matmul and linear -> the same on other backends, as gemm_backends<thin_gemm, eigen_gemm> ->
/// host_gemm_backends, which has oneDNN where it was built with it.
///
/// @numerics as gemm(): within its bound, in the order of sums of the other backend
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class From, class To, class Weights = matrix_view<float>, class Row = matrix_view<float>,
          class T = float>
[[nodiscard]] std::vector<step_pattern> backend_fusions() {
  static_assert(!std::is_same_v<From, To>,
                "deeprec::backend_fusions: both lists of backends are the same. Fix: gemm_backends<...> of "
                "others; without oneDNN host_gemm_backends has none");
  step_pattern product("matmul on " + to_string(To()));
  {
    const auto x = product.any<basic_matrix_value<T>>();
    const auto w = product.reads<Weights>();
    const auto y = product.op<matmul_op<Weights, T, From>>(x, w);
    product.becomes(y, [=](const pattern_match& m) { return matmul_op<Weights, T, To>{m[y].math}; }, x, w);
  }
  step_pattern layer("linear on " + to_string(To()));
  {
    const auto x = layer.any<basic_matrix_value<T>>();
    const auto w = layer.reads<Weights>();
    const auto b = layer.reads<Row>();
    const auto y = layer.op<linear_op<Weights, Row, T, From>>(x, w, b);
    layer.becomes(
        y, [=](const pattern_match& m) { return linear_op<Weights, Row, T, To>{m[y].math, m[y].activation}; },
        x, w, b);
  }
  return {product, layer};
}

}}  // namespace deeprec::DEEPREC_ABI
