// Gathers rows by a list of ids, from one table or from a table in P parts; and combines the rows of bags.
//
//   ids ──gather──> rows (N,D)                        one table
//   ids ──partition──> parts ──gather──> rows (N,D)   P tables, rows in the order of the ids
//   rows (U,D), bags of row numbers ──combine──> out (B,D)
//
// The last of the separate operations that make up a lookup; lookup does all of them at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/kernels/host/resolve_batch.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// out row k = row ids[k] of the table: lookup with concat, for a plain list of ids.
///
/// @shape    table (R,D) · ids (N), as data() and size() · out (N,D), any row stride
/// @dtype    rows of any format; out: f32, f16 or bf16; ids of 32 or 64 bits
/// @space    all reachable from the context; ids in device memory as array_view
/// @pre      out overlaps neither the table nor the ids
/// @numerics rows are decoded as by dequantize and converted to out's type, and -0 is kept; the same bits on
///           every ISA and for any number of threads
/// @cost     as lookup with concat
/// @threads  as lookup
/// @error    shape_mismatch; id_out_of_range (position, value). On an error nothing is written
/// @example  @snippet tests/embedding/stages_test.cpp stages
template <class Context, RowSource Source, class Ids, class Out, MemorySpace OutSpace>
DEEPREC_PER_UNIT status gather(Context&& context_or_executor, const Source& table, const Ids& ids,
                               matrix_view<Out, OutSpace> out) {
  static_assert(IdRange<Ids>,
                "deeprec::gather: ids are no list of integers of 32 or 64 bits. Fix: "
                "std::span(pointer, count), a std::vector or an array_view of them.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(
      ctx, "gather",
      detail::in_spaces<typename Source::space, typename decltype(id_view(ids))::space, OutSpace>);
  if (!call) return call.stopped();
  const auto list = id_view(ids);
  using list_type = std::remove_const_t<decltype(list)>;
  using bags = fixed_hotness_view<typename list_type::value_type, typename list_type::space>;
  const status s =
      lookup(detail::begun(ctx), table, bags(list.data(), list.size(), 1), combiner::concat, out);
  if (s.code() != errc::id_out_of_range) return s;
  // There are no bags here.
  return status(s.code(), {.position = s.place().position, .value = s.place().value}).in_operation("gather");
}

namespace detail {

/// A row source over known addresses; ids are indices into them.
template <class Format>
struct addressed_rows {
  using format_type = Format;
  using space = host_space;
  Format row_format;
  std::span<const std::byte* const> at;

  [[nodiscard]] const Format& format() const { return row_format; }
  [[nodiscard]] index_t rows() const { return static_cast<index_t>(at.size()); }
  void resolve(const index_t* positions, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k) addresses[k] = at[static_cast<std::size_t>(positions[k])];
  }
};

/// The rows of a part are in the order of the input, so the first bad one has the smallest position.
template <class Id>
status fault_at_position(const partitioned_ids<Id>& parts, index_t p, index_t bad) {
  const index_t position = parts.offsets[static_cast<std::size_t>(p)] + bad;
  const auto found = std::find(parts.permutation.begin(), parts.permutation.end(), position);
  return {errc::id_out_of_range,
          {.table = p,
           .position = static_cast<index_t>(found - parts.permutation.begin()),
           .value = static_cast<std::int64_t>(parts.ids[static_cast<std::size_t>(position)])}};
}

}  // namespace detail

/// out row k = the row of id k, from the part that holds it: gather over a table in parts.
///
/// @shape    tables (P), as data() and size(), all of width D · parts: the result of partition() for N ids ·
///           out (N,D), any row stride
/// @dtype    tables of one type, of any row format; out: f32, f16 or bf16
/// @space    host
/// @pre      out overlaps no table; `parts` is unchanged since partition()
/// @post     the row of an id that partition left out is zeros
/// @numerics as gather: the bits of a gather from the undivided table
/// @cost     O(N*D); 16 bytes per id, and the guard of each table, from the context's resource
/// @threads  as lookup; the guards of all tables are held until their rows are read
/// @error    shape_mismatch; id_out_of_range (table, position, value = the local row) of the smallest
///           table, and in it of the smallest position; out_of_memory. On an error nothing is written
/// @example  @snippet tests/embedding/stages_test.cpp stages
template <class Context, class Tables, class Id, class Out, MemorySpace OutSpace>
  requires(!RowSource<Tables>)
DEEPREC_PER_UNIT status gather(Context&& context_or_executor, const Tables& tables,
                               const partitioned_ids<Id>& parts, matrix_view<Out, OutSpace> out) {
  using source = std::remove_cvref_t<decltype(*std::data(tables))>;
  static_assert(RowSource<source>,
                "deeprec::gather: tables are no list of row sources. Fix: a std::vector of table views.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "gather", detail::in_spaces<typename source::space, OutSpace>);
  if (!call) return call.stopped();
  const std::span<const source> list(std::data(tables), std::size(tables));
  if (const status s = detail::expect_size(static_cast<index_t>(list.size()), parts.parts(),
                                           "gather: the number of tables must be the number of parts");
      !s) {
    return s;
  }
  if (const status s = detail::expect_size(out.extent(0), static_cast<index_t>(parts.permutation.size()),
                                           "gather: out.extent(0) must be the number of ids N");
      !s) {
    return s;
  }
  if (const status s = out.validate("gather: out must not be null"); !s) return s.in_operation("gather");
  for (std::size_t p = 0; p < list.size(); ++p) {
    if (const status s = detail::expect_size(out.extent(1), list[p].format().width(),
                                             "gather: out.extent(1) must be the row width D");
        !s) {
      return s.in_table(static_cast<index_t>(p));
    }
  }
  const auto begun = detail::begun(ctx);
  return detail::or_out_of_memory("gather", [&]() -> status {
    const auto& positions = parts.permutation;
    if (positions.empty()) return {};
    std::pmr::vector<const std::byte*> addresses(parts.ids.size(), begun.memory);
    std::pmr::vector<typename detail::guard_of<source>::type> guards(
        begun.memory);  // until the rows are read
    if constexpr (GuardedRowSource<source>) guards.reserve(list.size());
    for (std::size_t p = 0; p < list.size(); ++p) {
      if constexpr (GuardedRowSource<source>) guards.push_back(list[p].guard());
      const array_view<const Id> ids = parts.group(static_cast<index_t>(p));
      const fixed_hotness_view rows(ids.data(), ids.size(), 1);
      detail::resolution part(list[p], rows, pooling{combiner::concat, bounds::check});
      const std::byte** const to = addresses.data() + parts.offsets[p];
      part.place_addresses(to);
      if (const status s = part.open(); !s) return s.in_table(static_cast<index_t>(p));
      detail::first_position bad;
      detail::examine_all(begun, part, bad);
      if (bad.value() != detail::first_position::none) {
        return detail::fault_at_position(parts, static_cast<index_t>(p), bad.value());
      }
      if constexpr (DirectRowSource<source>) {
        const auto row_at = part.rows();
        detail::run_bulk(begun, {ids.size(), detail::chunk_positions, static_cast<double>(ids.size())},
                         [&](index_t begin, index_t end, int) {
                           for (index_t k = begin; k < end; ++k) to[k] = row_at(k);
                         });
      }
    }
    using format = std::remove_cvref_t<decltype(list[0].format())>;
    const detail::addressed_rows<format> rows{list[0].format(), addresses};
    return lookup(begun, rows,
                  fixed_hotness_view(positions.data(), static_cast<index_t>(positions.size()), 1),
                  pooling{combiner::concat, bounds::assume_valid, padding::id{-1}}, out);
  });
}

/// Pools gathered rows: a lookup in the matrix that gather wrote, by bags of row numbers.
///
/// @shape    rows (U,D), any row stride · bags of numbers in [0, U): unique_ids::inverse under the offsets
///           (and weights) of the batch · out (B,D)
/// @dtype    rows of any format; out: f32, f16 or bf16; numbers of 32 or 64 bits
/// @space    as lookup
/// @pre      out overlaps neither rows nor bags
/// @post     as lookup: an empty bag becomes zeros, unless a policy specifies otherwise
/// @numerics as lookup; the bits of a lookup in the table that rows were gathered from
/// @cost     as lookup
/// @threads  as lookup
/// @error    as lookup
/// @example  @snippet tests/embedding/stages_test.cpp stages
template <class Context, class T, MemorySpace Space, BagBatch Bags, class Pooling, class Out,
          MemorySpace OutSpace>
DEEPREC_PER_UNIT status combine(Context&& context_or_executor, matrix_view<T, Space> rows, const Bags& bags,
                                const Pooling& pooling, matrix_view<Out, OutSpace> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "combine", detail::in_spaces<Space, typename Bags::space, OutSpace>);
  if (!call) return call.stopped();
  return lookup(detail::begun(ctx), as_table(rows), bags, pooling, out);
}

}}  // namespace deeprec::DEEPREC_ABI
