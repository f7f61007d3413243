// update of a feature_group: one optimizer step for the rows of all features of a model in one call.
//
//   update(pool, group, bags, gradient, optimizer);    gradient (B, sum of D) of the lookup's output
//
// A row that several features or bags used gets one step, with the sum of all its gradients.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/group_calls.hpp>
#include <deeprec/embedding/groups/detail/step_features.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// One optimizer step for every row that the batches of any feature used.
///
/// @shape    bags (T) as given to lookup · gradients (T) of its outputs, each (B_t,D_t), any row stride
/// @dtype    as update
/// @space    all reachable from the host
/// @pre      as update; tables that are not the same (add) have no row in common
/// @post     where features share no table, that of T updates; a row that features share gets one step, with
///           the sum of their gradients in the order of features
/// @numerics as update: the same bits for any number of threads. rounding::stochastic: the rows of table t
///           (in the order of their first features) are rounded by rounding.of_table(t), as an update of that
///           table with it does
/// @cost     that of T updates; tables with up to 32768 ids are distributed over threads, one that takes more
///           than its share in parts, larger ones are updated by all threads. Memory as update, for the
///           largest table or for all of the smaller ones, before the first is updated
/// @threads  one caller; lookups of the same tables must wait
/// @error    as update, with the feature as the table, for the smallest feature that has a fault. On an
///           error, also out_of_memory, nothing is written
/// @example  @snippet tests/embedding/feature_group_update_test.cpp feature_group update
template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const Group& group,
                               detail::group_bags<Group> bags, detail::gradient_list gradients,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "update", detail::in_spaces<typename Group::space>);
  if (!call) return call.stopped();
  return detail::step_features(ctx, group, bags, gradients, optimizer, rounding);
}

/// The same, for rows that were resolved: the positions of a table are grouped by row at the first update
/// only.
template <class Context, class Group>
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                               detail::gradient_list gradients,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "update");
  if (!call) return call.stopped();
  return detail::step_features(ctx, rows, gradients, optimizer, rounding);
}

/// The same, for gradients side by side in one matrix (B, total_width()): feature t has the columns
/// [offset(t), offset(t + 1)); every batch has B bags.
template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const Group& group,
                               detail::group_bags<Group> bags, matrix_view<const float> gradient,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "update", detail::in_spaces<typename Group::space>);
  if (!call) return call.stopped();
  return detail::with_views(ctx, "update", group, gradient, detail::joint_update,
                            [&](detail::gradient_list parts) {
                              return detail::step_features(ctx, group, bags, parts, optimizer, rounding);
                            });
}

/// The same, for rows that were resolved.
template <class Context, class Group>
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                               matrix_view<const float> gradient,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "update");
  if (!call) return call.stopped();
  return detail::with_views(ctx, "update", rows.group(), gradient, detail::joint_update,
                            [&](detail::gradient_list parts) {
                              return detail::step_features(ctx, rows, parts, optimizer, rounding);
                            });
}

/// The same, for batches of another type than the group's: it does not compile, and the message has the way.
template <class Context, class Group, class Batches, class... Rest>
  requires(detail::is_feature_group<Group> &&
           !std::is_convertible_v<const Batches&, detail::group_bags<Group>>)
[[nodiscard]] status update(Context&&, const Group&, const Batches&, const Rest&...) {
  static_assert(detail::always_false<Batches>,
                "deeprec::update: not a list of the group's batches. Fix: feature_group<Optimizer, B> for a "
                "contiguous list of batches of type B.");
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
