// lookup of a feature_group: all features of a model in one call.
//
//   lookup(pool, group, bags, out);                bags: T batches · out (B, sum of D), side by side
//
//   feature 0  |bags......|        all pieces of all features are in one list that the executor's
//   feature 1  |bags|              threads share; all ids are checked before the first row is written
//   feature 2  |bags..|
//
// Same bits as one lookup per feature. On a device: lookup_features.cuh.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/group_calls.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/support/monotonic_memory.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

inline constexpr const char* lookup_bags_count =
    "lookup: the number of batches must be the number of features of the group";
inline constexpr const char* lookup_outs_count =
    "lookup: the number of outputs must be the number of features of the group";
inline constexpr joint_texts joint_lookup{"lookup: out must not be null",
                                          "lookup: out.extent(1) must be the total width of the group"};

/// The rest of a lookup that has begun.
template <class Context, class Group>
DEEPREC_PER_UNIT status pool_features(const Context& ctx, const Group& group, group_bags<Group> bags,
                                      group_outs<Group> outs) {
  if (const status s = check_counts(group, bags.size(), outs.size(), lookup_bags_count, lookup_outs_count);
      !s)
    return s.in_operation("lookup");
  return or_out_of_memory("lookup", [&] { return lookup_on(ctx.backend(), ctx, group, bags, outs); });
}
/// The same, for rows that were resolved.
template <class Context, class Group>
status pool_features(const Context& ctx, const resolved_features<Group>& rows, group_outs<Group> outs) {
  if (const status s =
          check_counts(rows.group(), outs.size(), outs.size(), lookup_outs_count, lookup_outs_count);
      !s) {
    return s;
  }
  return or_out_of_memory("lookup", [&]() -> status {
    for (std::size_t t = 0; t < outs.size(); ++t) {
      if (const status s = rows.batches()[t].check_pool(outs[t]); !s)
        return s.in_table(static_cast<index_t>(t));
    }
    return with_erased(
        ctx, [&](const erased_context& erased) { return rows.batches().pool(erased, ctx.memory, outs); });
  });
}

}  // namespace detail

/// Pools the bags of every feature of a group, each to a separate matrix.
///
/// @shape    bags (T), each {offsets (B_t+1), ids (N_t)} · outs (T), each (B_t,D_t), any row stride
/// @dtype    as in the group; rows as in their formats
/// @space    all reachable from the context
/// @pre      outs overlap neither each other, nor tables, nor batches
/// @post     as T lookups
/// @numerics the bits of T lookups; on a device, when no bag is longer than 512 ids
/// @cost     that of T lookups in two parallel passes (one checks, one pools), cut into pieces of at least
///           about 256 ids; allocates about 700 bytes per feature from the context's resource, and what
///           lookup allocates
/// @threads  reentrant; concurrent lookups of one group are safe, a concurrent writer of its rows is not
/// @error    as lookup, with the feature as the table, for the smallest feature that has a fault (on a device
///           the smallest that the host finds, then the smallest that the device finds). On an error nothing
///           is written
/// @example  @snippet tests/embedding/feature_group_test.cpp feature_group
template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const Group& group,
                               detail::group_bags<Group> bags, detail::group_outs<Group> outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup", detail::in_spaces<typename Group::space>);
  if (!call) return call.stopped();
  return detail::pool_features(ctx, group, bags, outs);
}

/// The same, for rows that were resolved.
template <class Context, class Group>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                               detail::group_outs<Group> outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "lookup");
  if (!call) return call.stopped();
  return detail::pool_features(ctx, rows, outs);
}

/// The same, for outputs side by side in one matrix: feature t fills the columns
/// [offset(t), offset(t + 1)) of out (B, total_width()); every batch has B bags.
template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const Group& group,
                               detail::group_bags<Group> bags,
                               matrix_view<typename Group::value_type, typename Group::space> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup", detail::in_spaces<typename Group::space>);
  if (!call) return call.stopped();
  return detail::with_views(
      ctx, "lookup", group, out, detail::joint_lookup,
      [&](detail::group_outs<Group> outs) { return detail::pool_features(ctx, group, bags, outs); });
}

/// The same, for rows that were resolved.
template <class Context, class Group>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                               matrix_view<typename Group::value_type> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "lookup");
  if (!call) return call.stopped();
  return detail::with_views(
      ctx, "lookup", rows.group(), out, detail::joint_lookup,
      [&](detail::group_outs<Group> outs) { return detail::pool_features(ctx, rows, outs); });
}

/// The same, for batches of another type than the group's: it does not compile, and the message has the way.
template <class Context, class Group, class Batches, class... Rest>
  requires(detail::is_feature_group<Group> &&
           !std::is_convertible_v<const Batches&, detail::group_bags<Group>>)
[[nodiscard]] status lookup(Context&&, const Group&, const Batches&, const Rest&...) {
  static_assert(detail::always_false<Batches>,
                "deeprec::lookup: not a list of the group's batches. Fix: feature_group<Optimizer, B> for a "
                "contiguous list of batches of type B.");
  return {};
}

template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT status lookup_on(host_backend, const Context& given, const Group& group,
                                  detail::group_bags<Group> bags, detail::group_outs<Group> outs) {
  using access = detail::group_access;
  using batches_type = detail::batches_of<Group>;
  const auto features = access::features(group);
  if (batches_type::is_small(access::sizes(group), bags)) {
    return detail::with_erased(given, [&](const detail::erased_context& ctx) {
      return batches_type::pool_small(ctx, features, bags, outs);
    });
  }
  const index_t bytes = batches_type::bounds::lookup_bytes(features, access::sizes(group), bags);
  const detail::scratch_block scratch(given.memory, bytes);
  detail::monotonic_memory memory(scratch.data(), static_cast<std::size_t>(bytes), given.memory);
  batches_type batches(&memory, features, access::sizes(group), access::first_of_tables(group));
  return detail::with_erased(given, [&](const detail::erased_context& ctx) -> status {
    if (const status s = batches.resolve(ctx, bags, false,
                                         [&](std::size_t t) { return features[t]->check(bags[t], outs[t]); });
        !s) {
      return s;
    }
    return batches.pool(ctx, &memory, outs);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
