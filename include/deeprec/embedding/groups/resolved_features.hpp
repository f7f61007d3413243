// The batches of all features of a group, checked once, for several verbs.
//
//   auto rows = resolve(pool, group, bags);            bags: T batches; ids are checked and located once
//   lookup(pool, rows.value(), out);
//   update(pool, rows.value(), gradient, optimizer);   grouped by row at the first update, once
#pragma once

#include <cstddef>
#include <memory_resource>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/group_calls.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The resolved batches of all features of a group. Refers to the group and the batches; its own memory comes
/// from the context that resolve was given. Movable, as resolved_rows.
///
/// @pre     group, tables and batches outlive it; the batches are not changed
/// @threads lookups are concurrent readers; update needs exclusive access
template <class Group, class = detail::unit>
class resolved_features {
 public:
  using group_type = Group;

  [[nodiscard]] const Group& group() const noexcept { return *group_; }

  /// For verbs.
  [[nodiscard]] detail::batches_of<Group>& batches() const noexcept { return batches_; }
  [[nodiscard]] std::span<const typename Group::bags_type> bags() const noexcept { return bags_; }
  resolved_features(const Group& group, std::span<const typename Group::bags_type> bags,
                    std::pmr::memory_resource* memory)
      : group_(&group),
        bags_(bags),
        batches_(memory, detail::group_access::features(group), detail::group_access::sizes(group),
                 detail::group_access::first_of_tables(group)) {}

 private:
  const Group* group_;
  std::span<const typename Group::bags_type> bags_;
  mutable detail::batches_of<Group> batches_;
};

/// Checks the ids of the batches of all features and locates their rows.
///
/// @shape   bags (T), each {offsets (B_t+1), ids (N_t)}; the list of them outlives the result
/// @post    as resolve
/// @cost    one parallel pass over the ids; allocates about 250 bytes per feature, and as resolve
/// @threads as resolve
/// @error   as resolve, with the feature as the table, for the smallest feature that has a fault
/// @example @snippet tests/embedding/resolve_test.cpp resolved_features
template <class Context, class Group, class Mode = keys::find_t>
  requires(detail::is_feature_group<Group>)
DEEPREC_PER_UNIT [[nodiscard]] result<resolved_features<Group>> resolve(Context&& context_or_executor,
                                                                        const Group& group,
                                                                        detail::group_bags<Group> bags,
                                                                        Mode = {}) {
  using result_type = result<resolved_features<Group>>;
  static_assert(std::is_same_v<Mode, keys::find_t> || std::is_same_v<Mode, keys::find_or_insert_t>,
                "deeprec::resolve: unknown mode. Fix: keys::find or keys::find_or_insert.");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "resolve", detail::in_spaces<typename Group::space>);
  if (!call) return result_type(call.stopped());
  if (const status s =
          detail::expect_size(bags.size(), static_cast<std::size_t>(group.features()),
                              "resolve: the number of batches must be the number of features of the group");
      !s) {
    return result_type(s);
  }
  std::optional<resolved_features<Group>> rows;
  const status s = detail::or_out_of_memory("resolve", [&] {
    rows.emplace(group, bags, ctx.memory);
    return detail::with_erased(ctx, [&](const detail::erased_context& erased) {
      const status resolved = rows->batches().resolve(
          erased, bags, std::is_same_v<Mode, keys::find_or_insert_t>,
          [&](std::size_t t) { return detail::group_access::features(group)[t]->check_policies(); });
      if (resolved) rows->batches().count_skipped_once();
      return resolved;
    });
  });
  return s ? result_type(std::move(*rows)) : result_type(s);
}

}}  // namespace deeprec::DEEPREC_ABI
