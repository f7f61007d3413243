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
#include <deeprec/core/operation.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/groups/detail/group_calls.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/kernels/pool_rules.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

inline constexpr const char* update_bags_count =
    "update: the number of batches must be the number of features of the group";
inline constexpr const char* update_gradients_count =
    "update: the number of gradients must be the number of features of the group";
inline constexpr const char* update_width = "update: gradient.extent(1) must be the total width of the group";

template <class Context>
constexpr void check_group_context(const Context&) {
  static_assert(
      std::is_same_v<backend_of<Context>, host_backend>,
      "deeprec::update: a feature_group has no device form of update yet. Fix: pass a host context.");
}

/// Checks the gradient of a feature.
template <class Group>
status check_group_gradient(const Group& group, std::size_t t, index_t bags,
                            const matrix_view<const float>& gradient) {
  const auto number = static_cast<index_t>(t);
  if (!group.fault() && group.fault().place().table == number) return group.fault();
  if (const status s = check_gradient(gradient, group.width(number), bags, update_gradient); !s) return s;
  return group.parts()[t]->check_policies();
}

}  // namespace detail

/// The operation of an update of all features of a group.
///
/// @threads as update
template <class Group>
class group_update_op {
  using bags_type = typename Group::bags_type;
  using gradient_type = matrix_view<const float>;

 public:
  using optimizer_type = typename Group::optimizer_type;
  using rounding_type = typename Group::rounding_type;

  group_update_op(const Group& group, std::span<const bags_type> bags,
                  std::span<const gradient_type> gradients, const optimizer_type& optimizer,
                  const rounding_type& rounding)
      : group_(group), bags_(bags), gradients_(gradients), optimizer_(optimizer), rounding_(rounding) {}

  [[nodiscard]] static constexpr const char* name() noexcept { return "update"; }
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::span<const bags_type> bags() const noexcept { return bags_; }
  [[nodiscard]] std::span<const gradient_type> gradients() const noexcept { return gradients_; }
  [[nodiscard]] const optimizer_type& optimizer() const noexcept { return optimizer_; }
  [[nodiscard]] const rounding_type& rounding() const noexcept { return rounding_; }

  /// As group_lookup_op::check.
  [[nodiscard]] status check() const {
    return detail::check_counts(group_, bags_.size(), gradients_.size(), detail::update_bags_count,
                                detail::update_gradients_count);
  }
  /// As lookup_op::scratch_bytes.
  template <class Context>
  DEEPREC_PER_UNIT [[nodiscard]] index_t scratch_bytes(const Context& ctx) const noexcept {
    executor_ref executor(*ctx.executor);
    return detail::batches_of<Group>::update_bytes(ctx.rebind(executor), group_.parts(), group_.sizes(),
                                                   group_.first_of_tables(), bags_);
  }
  template <class F>
  void for_each_effect(F&& f) const {
    for (std::size_t t = 0; t < bags_.size(); ++t) {
      const void* const table = group_.parts()[t]->table.address;
      if (table != nullptr) f(effect{table, access_mode::updates, false});  // null: a table without rows
      f(detail::effect_on<typename bags_type::space>(bags_[t].ids(), access_mode::reads));
      f(detail::effect_on<host_space>(gradients_[t].data_handle(), access_mode::reads));
    }
  }
  template <class Context>
  DEEPREC_PER_UNIT status run(const Context& ctx, std::span<std::byte> scratch) const {
    return update_group_on(ctx.backend(), ctx, *this, scratch);
  }

 private:
  const Group& group_;
  std::span<const bags_type> bags_;
  std::span<const gradient_type> gradients_;
  optimizer_type optimizer_;
  rounding_type rounding_;
};

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
template <class Context, RowOptimizer Optimizer, BagBatch Bags, class Out, class Rounding>
DEEPREC_PER_UNIT status update(Context&& context_or_executor,
                               const feature_group<Optimizer, Bags, Out, Rounding>& group,
                               std::span<const std::type_identity_t<Bags>> bags,
                               std::span<const matrix_view<const float>> gradients,
                               const std::type_identity_t<Optimizer>& optimizer,
                               const std::type_identity_t<Rounding>& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  detail::check_group_context(ctx);
  return detail::run_now(ctx, group_update_op(group, bags, gradients, optimizer, rounding));
}

namespace detail {

template <class Context, class Group>
status update_begun(const Context& ctx, const resolved_features<Group>& rows,
                    std::span<const matrix_view<const float>> gradients,
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

/// The same, for rows that were resolved: the positions of a table are grouped by row at the first update
/// only.
template <class Context, class Group>
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                               std::span<const matrix_view<const float>> gradients,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "update");
  if (!call) return call.stopped();
  return detail::update_begun(ctx, rows, gradients, optimizer, rounding);
}

template <class... Args>
status update_group_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Group>
DEEPREC_PER_UNIT status update_group_on(host_backend, const Context& given, const group_update_op<Group>& op,
                                        std::span<std::byte> scratch) {
  std::pmr::monotonic_buffer_resource memory(scratch.data(), scratch.size(), given.memory);
  const Group& group = op.group();
  detail::batches_of<Group> batches(&memory, group.parts(), group.sizes(), group.first_of_tables());
  return detail::with_erased(given, [&](const detail::erased_context& ctx) -> status {
    if (const status s = batches.resolve(ctx, op.bags(), false,
                                         [&](std::size_t t) {
                                           return detail::check_group_gradient(group, t, op.bags()[t].bags(),
                                                                               op.gradients()[t]);
                                         });
        !s) {
      return s;
    }
    return batches.step(ctx, &memory, false, op.gradients(), op.optimizer(), op.rounding());
  });
}

/// The same, for gradients side by side in one matrix (B, total_width()): feature t has the columns
/// [offset(t), offset(t + 1)); every batch has B bags.
template <class Context, RowOptimizer Optimizer, BagBatch Bags, class Out, class Rounding, class Gradient>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor,
                               const feature_group<Optimizer, Bags, Out, Rounding>& group,
                               std::span<const std::type_identity_t<Bags>> bags,
                               matrix_view<Gradient, host_space> gradient,
                               const std::type_identity_t<Optimizer>& optimizer,
                               const std::type_identity_t<Rounding>& rounding = {}) {
  using view = matrix_view<const float>;
  const auto ctx = detail::as_context(context_or_executor);
  detail::check_group_context(ctx);
  return detail::with_views<view>(ctx, "update", group, gradient, "update: gradient must not be null",
                                  detail::update_width, [&](std::span<const view> parts) {
                                    return detail::run_begun(
                                        ctx, group_update_op(group, bags, parts, optimizer, rounding));
                                  });
}

/// The same, for rows that were resolved.
template <class Context, class Group, class Gradient>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
DEEPREC_PER_UNIT status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                               matrix_view<Gradient, host_space> gradient,
                               const typename Group::optimizer_type& optimizer,
                               const typename Group::rounding_type& rounding = {}) {
  using view = matrix_view<const float>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(ctx, "update", rows.group(), gradient, "update: gradient must not be null",
                                  detail::update_width, [&](std::span<const view> parts) {
                                    return detail::update_begun(ctx, rows, parts, optimizer, rounding);
                                  });
}

/// The same, for batches of another type than the group's: it does not compile, and the message has the way.
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding, class Batches,
          class... Rest>
  requires(!std::is_convertible_v<const Batches&, std::span<const Bags>>)
[[nodiscard]] status update(Context&&, const feature_group<Optimizer, Bags, Out, Rounding>&, const Batches&,
                            const Rest&...) {
  static_assert(detail::always_false<Batches>,
                "deeprec::update: not a list of the group's batches. Fix: feature_group<Optimizer, B> for a "
                "contiguous list of batches of type B.");
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
