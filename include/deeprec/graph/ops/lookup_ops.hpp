// A safe lookup as ops of a step graph: its stages one by one, as a framework's graph has them, and as one
// op, which fuse() puts in their place (fusions.hpp).
//
//   bags ─> prune ─> fill ─┬─> unique ─┬─> gather ─> combine ─> out        five passes, (U,D) rows in between
//                          └───────────┴────────────────^
//   bags ─────────────────> fused_lookup ─────────────────> out            one
//
// Lookups whose rows stand side by side are one op again, a lookup of a feature_group:
//
//   bags 0 ─> fused_lookup ─┐
//   numbers ────────────────> concat_columns ─> out        bags 0, bags 1, numbers ─> lookup_columns ─> out
//   bags 1 ─> fused_lookup ─┘
//
// A table is a variable: a row source, or an owner whose view() is one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/ops/unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The bags without invalid entries (prune_invalid).
template <class Rule = prune_rule::by_id_and_weight_t, class Id = std::int64_t>
struct prune_op {
  static constexpr const char* kind = "prune_invalid";
  using output = jagged_batch<Id>;
  status operator()(const step_call& call, const jagged_batch<Id>& in, jagged_batch<Id>& out) const {
    index_t dropped = 0;
    return prune_invalid(call.on, in.view(), Rule{}, out, dropped);
  }
};

/// One entry in each empty bag (fill_empty_bags), and which bags were empty.
template <class Id = std::int64_t>
struct fill_op {
  static constexpr const char* kind = "fill_empty_bags";
  using outputs = op_outputs<jagged_batch<Id>, std::pmr::vector<std::uint8_t>>;
  /// None: they stay empty.
  std::optional<Id> default_id{};
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    if (default_id.has_value()) visit("default_id", *default_id);
  }
  status operator()(const step_call& call, const jagged_batch<Id>& in, jagged_batch<Id>& out,
                    std::pmr::vector<std::uint8_t>& empty) const {
    empty.resize(static_cast<std::size_t>(in.bags()));
    return fill_empty_bags(call.on, in.view(), default_id, out, {empty.data(), in.bags()});
  }
};

/// The distinct ids of the bags (unique).
template <class Id = std::int64_t>
struct unique_op {
  static constexpr const char* kind = "unique";
  using output = unique_ids<Id>;
  status operator()(const step_call& call, const jagged_batch<Id>& in, unique_ids<Id>& out) const {
    return unique(call.on, in.ids, out);
  }
};

/// A row source, or the view() of its owner.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Table>
[[nodiscard]] decltype(auto) rows_of(const Table& table) {
  if constexpr (RowSource<Table>) {
    return (table);
  } else {
    return table.view();
  }
}

/// The rows of distinct ids (gather).
template <class Table, class Id = std::int64_t>
struct gather_op {
  static constexpr const char* kind = "gather";
  using output = matrix_value;
  status operator()(const step_call& call, const unique_ids<Id>& ids, const Table& table,
                    matrix_value& out) const {
    const auto& rows = rows_of(table);
    return gather(call.on, rows, ids.ids,
                  out.make(static_cast<index_t>(ids.ids.size()), rows.format().width()));
  }
};

/// The gathered rows, pooled for the bags that the ids are from (combine).
template <class Combiner, class Id = std::int64_t>
struct combine_op {
  static constexpr const char* kind = "combine";
  using output = matrix_value;
  status operator()(const step_call& call, const matrix_value& rows, const unique_ids<Id>& ids,
                    const jagged_batch<Id>& bags, matrix_value& out) const {
    const jagged_view<std::int64_t, index_t> numbers(bags.offsets.data(), bags.bags(), ids.inverse.data(),
                                                     static_cast<index_t>(ids.inverse.size()),
                                                     bags.weights.empty() ? nullptr : bags.weights.data());
    return combine(call.on, rows.view(), numbers, Combiner{}, out.make(bags.bags(), rows.columns()));
  }
};

/// All of them at once (fused_lookup).
template <class Table, class Combiner, class Id = std::int64_t>
struct fused_lookup_op {
  static constexpr const char* kind = "fused_lookup";
  using output = matrix_value;
  /// Of empty bags. None: zeros.
  std::optional<Id> default_id{};
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    if (default_id.has_value()) visit("default_id", *default_id);
  }
  status operator()(const step_call& call, const jagged_batch<Id>& bags, const Table& table,
                    matrix_value& out) const {
    const auto& rows = rows_of(table);
    const auto to = out.make(bags.bags(), rows.format().width());
    if (!default_id.has_value()) return fused_lookup(call.on, rows, bags.view(), Combiner{}, to);
    return fused_lookup(call.on, rows, bags.view(),
                        pooling{Combiner{}, empty_bag::default_row{static_cast<index_t>(*default_id)}}, to);
  }
};

/// Some columns of lookup_columns: those of a lookup, or a matrix.
template <class Id = std::int64_t>
struct lookup_part {
  bool is_lookup = false;
  index_t at = 0;  ///< its number among the lookups, or the matrices
  std::optional<Id> default_id{};
};

/// Lookups (fused_lookup) and matrices side by side: the lookups as one of a feature_group, which writes
/// where they stand. Batches and matrices have the same rows.
template <class Table, class Combiner, class Id = std::int64_t>
struct lookup_columns_op {
  static constexpr const char* kind = "lookup_columns";
  using output = matrix_value;
  std::vector<lookup_part<Id>> parts;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    std::string text;
    for (const lookup_part<Id>& p : parts) {
      text +=
          (text.empty() ? "" : " ") + std::string(p.is_lookup ? "lookup" : "matrix") + std::to_string(p.at);
      if (p.default_id.has_value()) text += ":" + std::to_string(*p.default_id);
    }
    visit("parts", text);
  }
  status operator()(const step_call& call, op_list<const matrix_value> matrices,
                    op_list<const jagged_batch<Id>> bags, op_list<const Table> tables,
                    matrix_value& out) const {
    using bags_type = std::remove_cvref_t<decltype(bags[0].view())>;
    feature_group<lookups_only, bags_type> group;
    std::pmr::vector<bags_type> batches(call.on.memory);
    std::pmr::vector<matrix_view<float>> outs(call.on.memory);
    index_t rows = -1, columns = 0;
    for (const lookup_part<Id>& p : parts) {
      const index_t mine = p.is_lookup ? bags[p.at].bags() : matrices[p.at].rows();
      if (rows < 0) rows = mine;
      if (mine != rows)
        return {errc::shape_mismatch,
                "lookup_columns: batches and matrices must have the rows of the first part",
                {.is = mine, .must_be = rows}};
      columns += p.is_lookup ? rows_of(tables[p.at]).format().width() : matrices[p.at].columns();
    }
    const matrix_view<float> to = out.make((std::max)(rows, index_t{0}), columns);
    index_t first = 0;
    for (const lookup_part<Id>& p : parts) {
      if (p.is_lookup) {
        const auto& table = rows_of(tables[p.at]);
        if (p.default_id.has_value()) {
          group.add(table, pooling{Combiner{}, empty_bag::default_row{static_cast<index_t>(*p.default_id)},
                                   padding::prune});
        } else {
          group.add(table, pooling{Combiner{}, padding::prune});
        }
        batches.push_back(bags[p.at].view());
        outs.push_back(to.columns(first, table.format().width()));
        first += table.format().width();
      } else {
        const matrix_view<const float> from = matrices[p.at].view();
        for (index_t i = 0; i < rows; ++i) std::copy_n(from.row(i), from.extent(1), to.row(i) + first);
        first += from.extent(1);
      }
    }
    return lookup(call.on, group, detail::group_bags<decltype(group)>(batches),
                  detail::group_outs<decltype(group)>(outs));
  }
};

}}  // namespace deeprec::DEEPREC_ABI
