// Drops the invalid entries of a batch: the first operation of a safe lookup.
//
//   ids       7 -1 9   4 4 -3         prune_invalid(.., prune_rule::by_id, ..)               7 9   4 4
//   weights  .5  1 0   1 2  1         prune_invalid(.., prune_rule::by_id_and_weight, ..)    7     4 4
//
// Input: bags, or entries in any order (coo_view); output: bags, in memory of the caller (jagged_out) or in
// an owner (jagged_batch). The operations that follow it: fill_empty_bags, unique, partition, gather,
// combine. A lookup with padding::prune leaves out the same entries without a copy.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/bag_passes.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace prune_rule {

/// Drops ids below 0, as TensorFlow's safe_embedding_lookup_sparse does for the combiner sum.
struct by_id_t {};

/// Drops ids below 0 and, where there are weights, ids whose weight is 0, negative or NaN, as
/// safe_embedding_lookup_sparse does for mean and sqrtn.
struct by_id_and_weight_t {};

inline constexpr by_id_t by_id{};

inline constexpr by_id_and_weight_t by_id_and_weight{};

}  // namespace prune_rule

namespace detail {

/// Ids of a valid batch that are in a bag.
template <class Batch>
index_t entries_in(const Batch& batch) noexcept {
  if constexpr (BagBatch<Batch>) {
    return batch.end_position() - batch.first_position();
  } else {
    return batch.id_count();
  }
}

template <class T>
inline constexpr bool is_pruning =
    std::is_same_v<T, prune_rule::by_id_t> || std::is_same_v<T, prune_rule::by_id_and_weight_t>;

inline namespace DEEPREC_UNIT {

/// True for the entries that are kept.
template <class Rule, class Id>
struct valid_entries {
  const Id* ids;
  const float* weights;
  DEEPREC_HD DEEPREC_INLINE bool operator()(index_t k) const {
    bool valid = true;
    if constexpr (std::is_signed_v<Id>) valid = ids[k] >= 0;
    if constexpr (std::is_same_v<Rule, prune_rule::by_id_and_weight_t>) {
      if (weights != nullptr) valid = valid && !is_nan(weights[k]) && weights[k] > 0.0F;
    }
    return valid;
  }
};

}  // namespace DEEPREC_UNIT
}  // namespace detail

/// The batch without invalid entries, in memory of the caller; the others keep their order within their bag.
///
/// @shape    batch: bags (jagged or fixed) or entries (coo_view), N ids over B bags · out: offsets (B+1),
///           room for N ids and, where the batch has them, weights
/// @dtype    offsets of 32 or 64 bits
/// @space    batch and out reachable from the context
/// @post     bags of out may be empty. Unsigned ids are never below 0. out.weights, if any, are 1 where the
///           batch has none
/// @cost     host: O(N + B), two passes; entries: scratch as to_jagged. Device: two launches and a scan over
///           N, 16 bytes of stream scratch per id; entries: as to_jagged
/// @threads  reentrant; the same result for any number of threads. Device: one thread per stream
/// @error    as the batch's validate(); shape_mismatch for out; unsupported when out shares memory with the
///           batch and when N does not fit the offsets; out_of_memory. On an error nothing is written.
///           Device: offsets_*, and for entries invalid_value, from synchronize()
/// @source   safe_embedding_lookup_sparse of TensorFlow; DeepRec's prune_invalid_ids, which has no
///           weights
template <class Context, class Batch, class Rule, class Offset, MemorySpace OutSpace>
DEEPREC_PER_UNIT status prune_invalid(Context&& context_or_executor, const Batch& batch, const Rule& rule,
                                      const jagged_out<typename Batch::id_type, Offset, OutSpace>& out) {
  static_assert(
      detail::is_pruning<Rule>,
      "deeprec::prune_invalid: no such rule. Fix: prune_rule::by_id or prune_rule::by_id_and_weight.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "prune_invalid", detail::in_spaces<typename Batch::space, OutSpace>);
  if (!call) return call.stopped();
  if (const status s = detail::check_room(out, batch.bags(), batch.id_count(), batch.weights(),
                                          "prune_invalid: out must have room for B bags and N ids",
                                          "prune_invalid: out must not be null");
      !s) {
    return s;
  }
  return detail::or_out_of_memory("prune_invalid",
                                  [&] { return prune_invalid_on(ctx.backend(), ctx, batch, rule, out); });
}

/// The same, for a batch that grows as needed. Host only.
///
/// @shape    batch as above · out: B bags, and weights as in the batch, or none
/// @post     dropped = number of entries left out
/// @cost     as for memory of the caller; allocates what out lacks for N ids
/// @threads  reentrant
/// @error    as for memory of the caller. On an error out and dropped are as before
/// @example  @snippet tests/embedding/stages_test.cpp stages
template <class Context, class Batch, class Rule>
DEEPREC_PER_UNIT status prune_invalid(Context&& context_or_executor, const Batch& batch, const Rule& rule,
                                      jagged_batch<typename Batch::id_type>& out, index_t& dropped) {
  static_assert(
      detail::is_pruning<Rule>,
      "deeprec::prune_invalid: no such rule. Fix: prune_rule::by_id or prune_rule::by_id_and_weight.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "prune_invalid", detail::in_spaces<typename Batch::space>);
  if (!call) return call.stopped();
  const status s = detail::or_out_of_memory(
      "prune_invalid", [&] { return prune_invalid_on(ctx.backend(), ctx, batch, rule, out); });
  if (s.ok()) dropped = detail::entries_in(batch) - out.id_count();
  return s;
}

template <class... Args>
status prune_invalid_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

// Out: jagged_batch or const jagged_out
template <class Context, class Batch, class Rule, class Out>
DEEPREC_PER_UNIT status prune_invalid_on(host_backend, const Context& ctx, const Batch& batch, const Rule&,
                                         Out& out) {
  const detail::valid_entries<Rule, typename Batch::id_type> valid{batch.ids(), batch.weights()};
  if constexpr (BagBatch<Batch>) {
    if (const status s = batch.validate(); !s) return s;
  } else {
    if (const status s = batch.validate_shape(); !s) return s;
    bool in_order = true;
    if (const status s = detail::look_at_rows(ctx, batch, in_order); !s) return s;
  }
  if (detail::shares_bytes(detail::arrays_of(out), batch)) {
    return {errc::unsupported, "prune_invalid: out must share no memory with the batch"};
  }
  const index_t n = detail::entries_in(batch);
  detail::reserve(out, batch.bags(), n, batch.weights());
  if constexpr (BagBatch<Batch>) {
    detail::prune_bags(ctx, batch, valid, out);
  } else {
    detail::group_counts counts(ctx.memory, n, batch.bags());
    detail::group_entries(ctx, counts, batch, valid, out);
  }
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
