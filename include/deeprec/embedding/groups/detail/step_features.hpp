// An update of a feature_group that has begun: its checks, its memory, its steps.
#pragma once

#include <cstddef>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/group_calls.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/support/monotonic_memory.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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
      const index_t bytes = batches_type::bounds::update_bytes(ctx, features, sizes, tables, bags);
      const scratch_block scratch(ctx.memory, bytes);
      monotonic_memory memory(scratch.data(), static_cast<std::size_t>(bytes), ctx.memory);
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

}}}  // namespace deeprec::DEEPREC_ABI::detail
