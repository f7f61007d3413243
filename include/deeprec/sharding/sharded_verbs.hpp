// The verbs of a sharded_group, with the names, arguments and order of those of a feature_group.
//
//   auto rows = resolve(ctx, group, bags);              ids are checked, sent, and resolved there
//   lookup(ctx, rows.value(), out);                     rows come back, and are pooled
//   update(ctx, rows.value(), gradient, optimizer);     gradients are sent, each row is stepped
//
// Each is one exchange: all ranks call all of them, in one order, whatever their batches hold. A rank whose
// data have ended goes on with batches without bags until bags_of_all() is 0.
#pragma once

#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/sharding/detail/sharded_access.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Checks the ids of all features, asks their owners for the distinct ones, and locates their rows there.
///
/// @shape    bags (T), each {offsets (B_t+1), ids (N_t)}; offsets begin at 0; the list outlives the result
/// @space    host
/// @post     the group's earlier rows are of no use. Keys that were inserted stay
/// @cost     message 1: a word for each distinct id, and the bags of whole tables; with row_sums::in_order a
///           word for each bag and owner of its ids, and half a word or one for each id. O(N) here and at the
///           owners. Buffers grow to their largest size
/// @threads  as the group; every rank calls it
/// @error    the fault of the smallest rank that has one, at all ranks, with its place: as resolve of a
///           feature_group; shape_mismatch for a part (add); unsupported for offsets that do not begin at 0;
///           invalid_value where ranks have other features; of the exchange. What an owner finds when it
///           resolves is returned by lookup or update, at all ranks
/// @example  @snippet tests/sharding/sharded_group_test.cpp sharded
template <class Context, class Group, class Mode = keys::find_t>
  requires(detail::is_sharded_group<Group>)
[[nodiscard]] result<sharded_rows<Group>> resolve(
    Context&& context_or_executor, Group& group,
    std::span<const std::type_identity_t<typename Group::bags_type>> bags, Mode mode = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  if (const status s = detail::sharded_access::resolve_step(ctx, group, bags, mode); !s) return s;
  return sharded_rows<Group>(group, bags, detail::sharded_access::bags_of_all(group));
}

/// The pooled rows of all features, side by side.
///
/// @shape    out (B, group.total_width()), B bags in each batch
/// @dtype    f32; rows are sent as the group's wire has them
/// @numerics the bits of one process's lookup in whole tables, of rows (or pooled rows of whole tables) as
///           they are sent. pooled_at::owner: a bag's rows are multiplied by their factor of the mean, added
///           at each owner, rounded, and added in the order of the owners' first ids in the bag
/// @cost     message 2: the distinct rows of the batch, and the pooled rows of whole tables; none of
///           replicated ones. pooled_at::owner: a row for each bag and owner of its ids
/// @threads  as the group; every rank calls it
/// @error    as lookup of a feature_group, and what owners found when they resolved; at all ranks that of the
///           smallest rank, and no rank has written its out. out_of_memory while rows are pooled: at this
///           rank, which abandons the communicator
template <class Context, class Group>
status lookup(Context&& context_or_executor, const sharded_rows<Group>& rows, matrix_view<float> out) {
  return detail::sharded_access::lookup_step(detail::as_context(context_or_executor), rows, out);
}

/// One optimizer step for each row that a batch of any rank used.
///
/// @shape    gradient (B, group.total_width()) of the lookup's output
/// @numerics row_sums::by_parts: a row's gradients are added within each part of a rank's batch, in its
///           order, and then in that of the ranks and parts: the bits depend on the parts and on no timing.
///           row_sums::in_order, and whole tables: the bits of one process on the batches in the order of the
///           ranks; the positions of a default row come behind each rank's batch. Where owners pool, the bits
///           of in_order
/// @cost     message 3: a row of gradients for each distinct row, or with in_order for each bag and owner of
///           its ids; and the gradients of pooled rows. Those of replicated tables go to every rank
/// @threads  as the group; every rank calls it
/// @error    as update of a feature_group, at all ranks that of the smallest rank, and no rank has written.
///           out_of_memory behind the exchange: at this rank, which abandons the communicator
template <class Context, class Group>
status update(Context&& context_or_executor, const sharded_rows<Group>& rows,
              matrix_view<const float> gradient, const typename Group::optimizer_type& optimizer) {
  return detail::sharded_access::update_step(detail::as_context(context_or_executor), rows, gradient,
                                             optimizer);
}

}}  // namespace deeprec::DEEPREC_ABI
