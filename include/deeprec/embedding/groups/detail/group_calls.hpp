// What the verbs of a feature_group share: contexts of erased executors, checks, and views of the features
// in one matrix.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/feature_batches.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Group>
using batches_of = feature_batches<typename Group::optimizer_type, typename Group::bags_type,
                                   typename Group::value_type, typename Group::rounding_type>;

/// Calls f with a context of an erased executor.
template <class Context, class F>
auto with_erased(const Context& given, const F& f) {
  executor_ref executor(*given.executor);
  return f(begun(given).rebind(executor));
}

/// Checks the numbers of batches and of outputs or gradients of a group.
template <class Group>
status check_counts(const Group& group, std::size_t bags, std::size_t views, const char* of_bags,
                    const char* of_views) {
  const auto features = static_cast<std::size_t>(group.features());
  if (const status s = expect_size(bags, features, of_bags); !s) return s;
  return expect_size(views, features, of_views);
}

/// The texts of the faults of the matrix of all features: literals.
struct joint_texts {
  const char* null;
  const char* width;
};

/// Calls f, the rest of a verb that has begun, with the views of the features in a matrix of all of them.
template <class Context, class Group, class T, class Space, class F>
status with_views(const Context& ctx, const char* verb, const Group& group, matrix_view<T, Space> all,
                  const joint_texts& texts, const F& f) {
  if (const status s = expect_size(all.extent(1), group.total_width(), texts.width); !s) return s;
  constexpr auto overlap = std::is_const_v<T> ? row_overlap::permitted : row_overlap::refused;
  if (const status s = all.validate(texts.null, overlap); !s) return s.in_operation(verb);
  return or_out_of_memory(verb, [&]() -> status {
    std::pmr::vector<matrix_view<T, Space>> views(ctx.memory);
    views.reserve(static_cast<std::size_t>(group.features()));
    for (index_t t = 0; t < group.features(); ++t) {
      auto* const first = all.empty() ? nullptr : all.data_handle() + group.offset(t);
      views.emplace_back(first, all.extent(0), group.width(t), all.stride(0));
    }
    return f(std::span<const matrix_view<T, Space>>(views));
  });
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
