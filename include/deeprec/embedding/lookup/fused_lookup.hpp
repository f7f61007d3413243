// The lookup of a batch that may hold invalid entries: they are pruned, empty bags filled, rows gathered
// from a table or its parts, clipped and combined, in one pass.
//
//   fused_lookup(ctx, table, entries, combiner::mean, out);                          empty bags become zeros
//   fused_lookup(ctx, partitioned_table(parts, partition_strategy::mod), entries,
//                pooling{combiner::sqrtn, empty_bag::default_row{7}, max_norm{1}}, out);
//
//   entries ──by row──> bags ──row source──> rows ──clip, weigh, add──> out (B,D)     no (N,D) in between
//
// As separate operations: prune_invalid, fill_empty_bags, unique, partition, gather, combine. A row is read
// once for each occurrence of its id: for repeated ids the processor's cache replaces `unique`.
#pragma once

#include <memory_resource>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/detail/group_positions.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The pooling with padding::prune, unless it has a padding policy already.
template <class Combiner, class... Policies>
constexpr auto with_prune(const pooling<Combiner, Policies...>& policies) {
  using given = pooling<Combiner, Policies...>;
  if constexpr (std::is_same_v<typename given::padding_mode, padding::none_t>) {
    return pooling(Combiner{}, policies.template get<Policies>()..., padding::prune);
  } else {
    return policies;
  }
}

/// True when entry k is in row k, for all B rows: the frequent case of a dense column of ids.
template <class Id, class Row, class Space>
bool one_in_each_row(const coo_view<Id, Row, Space>& entries) noexcept {
  const index_t n = entries.id_count();
  if (n != entries.bags() || n == 0 || entries.row(0) != 0) return false;
  if (entries.row_stride() == 1) return consecutive(entries.rows(), n);
  for (index_t k = 0; k < n; ++k) {
    if (entries.row(k) != k) return false;
  }
  return true;
}

}  // namespace detail

/// The pooled lookup of a batch that may hold invalid entries: a lookup with the policy `prune`.
///
/// @shape    source (R,D) · bags: B bags, N ids · out (B,D), any row stride
/// @dtype    as lookup
/// @space    all reachable from the context
/// @pre      as lookup
/// @post     negative ids are left out and, for every combiner but sum, ids whose weight is not above 0; a
///           bag without any other id becomes zeros, or as the policy for empty bags specifies. Ids not below
///           R are faults
/// @numerics as lookup: ids are added in the order of their bag. A default row is taken with weight 1
/// @cost     as lookup; no (N,D) intermediate
/// @threads  as lookup
/// @error    as lookup
/// @example  @snippet tests/embedding/fused_lookup_test.cpp fused_lookup
/// @source   DeepRec, fused_embedding_lookup_sparse; TensorFlow, safe_embedding_lookup_sparse
template <class Context, RowSource Source, BagBatch Bags, class Pooling, class Out, MemorySpace OutSpace>
DEEPREC_PER_UNIT status fused_lookup(Context&& context_or_executor, const Source& source, const Bags& bags,
                                     const Pooling& pooling, matrix_view<Out, OutSpace> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "fused_lookup",
                               detail::in_spaces<typename Source::space, typename Bags::space, OutSpace>);
  if (!call) return call.stopped();
  return lookup(detail::begun(ctx), source, bags, detail::with_prune(detail::as_pooling(pooling)), out);
}

/// The same, for entries (row, id, weight) in any order: those of a bag are added in the order in
/// which they appear. On a device: include fused_lookup.cuh.
///
/// @shape    source (R,D) · entries: N over B bags · out (B,D), any row stride
/// @cost     as lookup, and O(N + B) to find the bags. One entry in each row, in order: no
///           allocation. Rows in order: 8 * (B + 1) bytes from the context's resource. Otherwise about
///           24 bytes more per entry. On a device always a sort, and up to 32 bytes of stream scratch per
///           entry in addition to CUB's
/// @threads  as lookup
/// @error    as lookup, and as coo_view::validate (on a device from synchronize(), and the entry is
///           left out). When entries are not in order, positions refer to the sorted entries
template <class Context, RowSource Source, class Id, class Row, MemorySpace Space, class Pooling, class Out,
          MemorySpace OutSpace>
DEEPREC_PER_UNIT status fused_lookup(Context&& context_or_executor, const Source& source,
                                     const coo_view<Id, Row, Space>& entries, const Pooling& pooling,
                                     matrix_view<Out, OutSpace> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "fused_lookup",
                               detail::in_spaces<typename Source::space, Space, OutSpace>);
  if (!call) return call.stopped();
  if (const status s = entries.validate_shape(); !s) return s.in_operation("fused_lookup");
  return detail::or_out_of_memory("fused_lookup", [&] {
    return fused_lookup_on(ctx.backend(), detail::begun(ctx), source, entries,
                           detail::with_prune(detail::as_pooling(pooling)), out);
  });
}

template <class... Args>
status fused_lookup_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Source, class Id, class Row, MemorySpace Space, class Pooling, class Out,
          MemorySpace OutSpace>
DEEPREC_PER_UNIT status fused_lookup_on(host_backend, const Context& ctx, const Source& source,
                                        const coo_view<Id, Row, Space>& entries, const Pooling& pooling,
                                        matrix_view<Out, OutSpace> out) {
  if (detail::one_in_each_row(entries)) {
    return lookup(ctx, source, fixed_hotness_view<Id>(entries.ids(), entries.bags(), 1, entries.weights()),
                  pooling, out);
  }
  bool in_order = true;
  if (const status s = detail::look_at_rows(ctx, entries, in_order); !s) return s;
  jagged_batch<Id> sorted(ctx.memory);
  if (in_order) {
    sorted.offsets.resize(static_cast<std::size_t>(entries.bags()) + 1);
    detail::offsets_in_order(ctx, entries, sorted.offsets.data());
    const jagged_view<Id, index_t> bags(sorted.offsets.data(), entries.bags(), entries.ids(),
                                        entries.id_count(), entries.weights());
    return lookup(ctx, source, bags, pooling, out);
  }
  detail::group_counts counts(ctx.memory, entries.id_count(), entries.bags());
  detail::group_entries(ctx, counts, entries, [](index_t) { return true; }, sorted);
  return lookup(ctx, source, sorted.view(), pooling, out);
}

}}  // namespace deeprec::DEEPREC_ABI
