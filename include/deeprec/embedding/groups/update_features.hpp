// update of a feature_group: one optimizer step for the rows of all features of a model in one call.
//
//   update(pool, group, bags, gradient, optimizer);    gradient (B, sum of D) of the lookup's output
//
// A row that several features or bags used gets one step, with the sum of all its gradients.
#pragma once

#include <cstddef>
#include <memory_resource>
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
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

inline constexpr const char* update_bags_count =
    "update: the number of batches must be the number of features of the group";
inline constexpr const char* update_gradients_count =
    "update: the number of gradients must be the number of features of the group";
inline constexpr joint_texts joint_update{"update: gradient must not be null",
                                          "update: gradient.extent(1) must be the total width of the group"};

using gradient_list = std::span<const matrix_view<const float>>;

/// Checks the gradient of a feature.
template <class Group>
status check_group_gradient(const Group& group, std::size_t t, index_t bags,
                            const matrix_view<const float>& gradient) {
  const auto number = static_cast<index_t>(t);
  const status& known = group_access::fault(group);
  if (!known && known.place().table == number) return known;
  if (const status s = check_gradient(gradient, group.width(number), bags, update_gradient); !s) return s;
  return group_access::features(group)[t]->check_policies();
}

/// The rest of an update that has begun.
template <class Context, class Group>
DEEPREC_PER_UNIT status step_features(const Context& given, const Group& group, group_bags<Group> bags,
                                      gradient_list gradients,
                                      const typename Group::optimizer_type& optimizer,
                                      const typename Group::rounding_type& rounding) {
  using batches_type = batches_of<Group>;
  if (const status s =
          check_counts(group, bags.size(), gradients.size(), update_bags_count, update_gradients_count);
      !s) {
    return s.in_operation("update");
  }
  const auto features = group_access::features(group);
  const group_sizes& sizes = group_access::sizes(group);
  const auto tables = group_access::first_of_tables(group);
  return or_out_of_memory("update", [&] {
    return with_erased(given, [&](const erased_context& ctx) -> status {
      const index_t bytes = batches_type::update_bytes(ctx, features, sizes, tables, bags);
      const scratch_block scratch(ctx.memory, bytes);
      std::pmr::monotonic_buffer_resource memory(scratch.data(), static_cast<std::size_t>(bytes), ctx.memory);
      batches_type batches(&memory, features, sizes, tables);
      if (const status s = batches.resolve(
              ctx, bags, false,
              [&](std::size_t t) { return check_group_gradient(group, t, bags[t].bags(), gradients[t]); });
          !s) {
        return s;
      }
      return batches.step(ctx, &memory, false, gradients, optimizer, rounding);
    });
  });
}
/// The same, for rows that were resolved.
template <class Context, class Group>
status step_features(const Context& ctx, const resolved_features<Group>& rows, gradient_list gradients,
                     const typename Group::optimizer_type& optimizer,
                     const typename Group::rounding_type& rounding) {
  const Group& group = rows.group();
  if (const status s = check_counts(group, rows.bags().size(), gradients.size(), update_bags_count,
                                    update_gradients_count);
      !s) {
    return s;
  }
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    if (const status s = check_group_gradient(group, t, rows.bags()[t].bags(), gradients[t]); !s) {
      return s.in_table(static_cast<index_t>(t));
    }
  }
  return or_out_of_memory("update", [&]() -> status {
    return with_erased(ctx, [&](const erased_context& erased) {
      return rows.batches().step(erased, ctx.memory, true, gradients, optimizer, rounding);
    });
  });
}

}  // namespace detail

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
