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

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

inline constexpr const char* lookup_bags_count =
    "lookup: the number of batches must be the number of features of the group";
inline constexpr const char* lookup_outs_count =
    "lookup: the number of outputs must be the number of features of the group";
inline constexpr const char* lookup_width = "lookup: out.extent(1) must be the total width of the group";

}  // namespace detail

/// The operation of a lookup of all features of a group.
///
/// @threads as lookup
template <class Group>
class group_lookup_op {
  using bags_type = typename Group::bags_type;
  using out_type = matrix_view<typename Group::value_type, detail::group_space<bags_type>>;

 public:
  group_lookup_op(const Group& group, std::span<const bags_type> bags, std::span<const out_type> outs)
      : group_(group), bags_(bags), outs_(outs) {}

  [[nodiscard]] static constexpr const char* name() noexcept { return "lookup"; }
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::span<const bags_type> bags() const noexcept { return bags_; }
  [[nodiscard]] std::span<const out_type> outs() const noexcept { return outs_; }

  /// The numbers of batches and outputs; run() checks the shapes of a feature after the ids of those before
  /// it, since it reports the smallest feature that has a fault.
  [[nodiscard]] status check() const {
    return detail::check_counts(group_, bags_.size(), outs_.size(), detail::lookup_bags_count,
                                detail::lookup_outs_count);
  }
  /// As lookup_op::scratch_bytes.
  template <class Context>
  DEEPREC_PER_UNIT [[nodiscard]] index_t scratch_bytes(const Context&) const noexcept {
    if constexpr (std::is_same_v<detail::backend_of<Context>, host_backend>) {
      using batches = detail::batches_of<Group>;
      return batches::is_small(group_.sizes(), bags_)
                 ? 0
                 : batches::lookup_bytes(group_.parts(), group_.sizes(), bags_);
    } else {
      return 0;
    }
  }
  /// Sources without identity() are not among the effects.
  template <class F>
  void for_each_effect(F&& f) const {
    for (std::size_t t = 0; t < bags_.size(); ++t) {
      if constexpr (requires { group_.parts()[t]->table; }) {
        const void* const table = group_.parts()[t]->table.address;
        if (table != nullptr) f(effect{table, access_mode::reads, false});
      }
      f(detail::effect_on<typename bags_type::space>(bags_[t].ids(), access_mode::reads));
      f(detail::effect_on<detail::group_space<bags_type>>(outs_[t].data_handle(), access_mode::updates));
    }
  }
  template <class Context>
  DEEPREC_PER_UNIT status run(const Context& ctx, std::span<std::byte> scratch) const {
    return lookup_group_on(ctx.backend(), ctx, *this, scratch);
  }

 private:
  const Group& group_;
  std::span<const bags_type> bags_;
  std::span<const out_type> outs_;
};

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
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding>
DEEPREC_PER_UNIT status lookup(
    Context&& context_or_executor, const feature_group<Optimizer, Bags, Out, Rounding>& group,
    std::span<const std::type_identity_t<Bags>> bags,
    std::span<const matrix_view<std::type_identity_t<Out>, detail::group_space<std::type_identity_t<Bags>>>>
        outs) {
  const auto ctx = detail::as_context(context_or_executor);
  return detail::run_now(ctx, group_lookup_op(group, bags, outs));
}

namespace detail {

template <class Context, class Group>
status lookup_begun(const Context& ctx, const resolved_features<Group>& rows,
                    std::span<const matrix_view<typename Group::value_type>> outs) {
  if (const status s =
          check_counts(rows.group(), outs.size(), outs.size(), lookup_outs_count, lookup_outs_count);
      !s) {
    return s;
  }
  return or_out_of_memory("lookup", [&]() -> status {
    for (std::size_t t = 0; t < outs.size(); ++t) {
      if (const status s = rows.batches()[t].check_pool(outs[t]); !s) {
        return s.in_table(static_cast<index_t>(t));
      }
    }
    return with_erased(
        ctx, [&](const erased_context& erased) { return rows.batches().pool(erased, ctx.memory, outs); });
  });
}

}  // namespace detail

/// The same, for rows that were resolved.
template <class Context, class Group>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                               std::span<const matrix_view<typename Group::value_type>> outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup");
  if (!call) return call.stopped();
  return detail::lookup_begun(ctx, rows, outs);
}

template <class... Args>
status lookup_group_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Group>
DEEPREC_PER_UNIT status lookup_group_on(host_backend, const Context& given, const group_lookup_op<Group>& op,
                                        std::span<std::byte> scratch) {
  static_assert(std::is_same_v<detail::group_space<typename Group::bags_type>, host_space>,
                "deeprec::lookup: a group of batches in device memory given to a host context. Fix: pass a "
                "device context.");
  const Group& group = op.group();
  if (detail::batches_of<Group>::is_small(group.sizes(), op.bags())) {
    return detail::with_erased(given, [&](const detail::erased_context& ctx) {
      return detail::batches_of<Group>::pool_small(ctx, group.parts(), op.bags(), op.outs());
    });
  }
  std::pmr::monotonic_buffer_resource memory(scratch.data(), scratch.size(), given.memory);
  detail::batches_of<Group> batches(&memory, group.parts(), group.sizes(), group.first_of_tables());
  return detail::with_erased(given, [&](const detail::erased_context& ctx) -> status {
    if (const status s = batches.resolve(
            ctx, op.bags(), false,
            [&](std::size_t t) { return group.parts()[t]->check(op.bags()[t], op.outs()[t]); });
        !s) {
      return s;
    }
    return batches.pool(ctx, &memory, op.outs());
  });
}

/// The same, for outputs side by side in one matrix: feature t fills the columns
/// [offset(t), offset(t + 1)) of out (B, total_width()); every batch has B bags.
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor,
                               const feature_group<Optimizer, Bags, Out, Rounding>& group,
                               std::span<const std::type_identity_t<Bags>> bags,
                               matrix_view<std::type_identity_t<Out>, detail::group_space<Bags>> out) {
  using view = matrix_view<Out, detail::group_space<Bags>>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(
      ctx, "lookup", group, out, "lookup: out must not be null", detail::lookup_width,
      [&](std::span<const view> outs) { return detail::run_begun(ctx, group_lookup_op(group, bags, outs)); });
}

/// The same, for rows that were resolved.
template <class Context, class Group>
DEEPREC_PER_UNIT status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                               matrix_view<typename Group::value_type, host_space> out) {
  using view = matrix_view<typename Group::value_type>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(
      ctx, "lookup", rows.group(), out, "lookup: out must not be null", detail::lookup_width,
      [&](std::span<const view> outs) { return detail::lookup_begun(ctx, rows, outs); });
}

/// The same, for batches of another type than the group's: it does not compile, and the message has the way.
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding, class Batches,
          class... Rest>
  requires(!std::is_convertible_v<const Batches&, std::span<const Bags>>)
[[nodiscard]] status lookup(Context&&, const feature_group<Optimizer, Bags, Out, Rounding>&, const Batches&,
                            const Rest&...) {
  static_assert(detail::always_false<Batches>,
                "deeprec::lookup: not a list of the group's batches. Fix: feature_group<Optimizer, B> for a "
                "contiguous list of batches of type B.");
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
