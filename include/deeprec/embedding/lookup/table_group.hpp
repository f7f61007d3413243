// Many tables in one call: all features of a model are looked up together.
//
//   table_group<> group;
//   group.add(users, combiner::sum);                                any row format, width, pooling;
//   group.add(items, pooling{combiner::mean, empty_bag::default_row{0}});   one table may serve many features
//   lookup(pool, group, bags, out);                 bags: T batches · out (B, sum of D), side by side
//
//   feature 0  |bags......|        all pieces of all features are in one list that the executor's
//   feature 1  |bags|              threads share; all ids are checked before the first row is written
//   feature 2  |bags..|
//
// Same bits as one lookup per feature. A group with batches in device memory is for a device
// (table_group.cuh). Not here: gradients.
#pragma once

#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/lookup/detail/device_group.hpp>
#include <deeprec/embedding/lookup/detail/group_jobs.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The memory space of a group's outputs.
template <class Bags>
using group_space =
    std::conditional_t<std::is_same_v<typename Bags::space, device_space>, device_space, host_space>;

/// A feature as stored in a group.
template <class Bags, class Out>
using group_part = std::conditional_t<std::is_same_v<group_space<Bags>, device_space>,
                                      device_feature<Bags, Out>, std::unique_ptr<group_feature<Bags, Out>>>;

}  // namespace detail

/// The features of a model: which table each reads, and how it is pooled. Tables are not owned.
///
/// @dtype   Out: the element type of pooled rows; Bags: the type of a feature's batch
/// @threads add is not thread-safe; lookups of one group may run concurrently
template <Storage Out = float, BagBatch Bags = jagged_view<>>
class table_group {
 public:
  using value_type = Out;
  using bags_type = Bags;

  /// Adds a feature and returns its number. The source is copied (a view, not the rows).
  ///
  /// @error concat does not compile: its output has one row per id
  template <RowSource Source, class Pooling, class = detail::unit>
  index_t add(const Source& table, const Pooling& pooling) {
    using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
    static_assert(!std::is_same_v<typename policies::combiner, combiner::concat_t>,
                  "deeprec::table_group: concat has no place in a group. Fix: call lookup for it.");
    if constexpr (std::is_same_v<detail::group_space<Bags>, device_space>) {
      features_.push_back(detail::device_feature_of<Bags, Out>(table, detail::as_pooling(pooling)));
    } else {
      features_.push_back(std::make_unique<detail::group_feature_of<Source, Bags, policies, Out>>(
          table, detail::as_pooling(pooling)));
    }
    offsets_.push_back(detail::capped_sum(total_width(), table.format().width()));
    return features() - 1;
  }

  /// T
  [[nodiscard]] index_t features() const noexcept { return static_cast<index_t>(features_.size()); }
  /// D of a feature.
  [[nodiscard]] index_t width(index_t feature) const noexcept {
    return offset(feature + 1) - offset(feature);
  }
  /// The first column of a feature in the joint output.
  [[nodiscard]] index_t offset(index_t feature) const noexcept {
    return offsets_[static_cast<std::size_t>(feature)];
  }
  /// The sum of all D; if that overflows index_t, a number larger than the width of any output.
  [[nodiscard]] index_t total_width() const noexcept { return offsets_.back(); }

  /// For lookup: the features.
  [[nodiscard]] std::span<const detail::group_part<Bags, Out>> parts() const noexcept { return features_; }

 private:
  std::vector<detail::group_part<Bags, Out>> features_;
  std::vector<index_t> offsets_{0};
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
///           about 256 ids; allocates about 500 bytes per feature from the context's resource, and what
///           lookup allocates
/// @threads  reentrant; concurrent lookups of one group are safe, a concurrent writer of its rows is not
/// @error    as lookup, with the feature as the table, for the smallest feature that has a fault (on a device
///           the smallest that the host finds, then the smallest that the device finds). On an error nothing
///           is written
/// @example  @snippet tests/embedding/table_group_test.cpp table_group
template <class Context, Storage Out, BagBatch Bags, class = detail::unit>
[[nodiscard]] status lookup(
    Context&& context_or_executor, const table_group<Out, Bags>& group,
    std::span<const std::type_identity_t<Bags>> bags,
    std::span<const matrix_view<std::type_identity_t<Out>, detail::group_space<std::type_identity_t<Bags>>>>
        outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const auto features = group.parts();
  if (const status s =
          detail::expect_size(bags.size(), features.size(),
                              "lookup: the number of batches must be the number of features of the group");
      !s) {
    return s;
  }
  if (const status s =
          detail::expect_size(outs.size(), features.size(),
                              "lookup: the number of outputs must be the number of features of the group");
      !s) {
    return s;
  }
  return detail::or_out_of_memory([&] { return lookup_group_on(ctx.backend(), ctx, group, bags, outs); });
}

template <class... Args>
status lookup_group_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Out, class Bags, class = detail::unit>
status lookup_group_on(host_backend, const Context& given, const table_group<Out, Bags>& group,
                       std::span<const Bags> bags,
                       std::span<const matrix_view<Out, detail::group_space<Bags>>> outs) {
  static_assert(std::is_same_v<detail::group_space<Bags>, host_space>,
                "deeprec::lookup: a group of batches in device memory given to a host context. Fix: pass a "
                "device context.");
  executor_ref executor(*given.executor);
  const context<executor_ref> ctx = given.rebind(executor);
  detail::group_jobs<Bags, Out> jobs(ctx.memory, group.parts());
  return jobs.run(ctx, bags, outs);
}

/// The same, for outputs side by side in one matrix: feature t fills the columns
/// [offset(t), offset(t + 1)) of out (B, total_width()); every batch has B bags.
template <class Context, Storage Out, BagBatch Bags, class Columns, class = detail::unit>
[[nodiscard]] status lookup(Context&& context_or_executor, const table_group<Out, Bags>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            matrix_view<Out, detail::group_space<Bags>, Columns> out) {
  if (const status s = detail::expect_size(out.extent(1), group.total_width(),
                                           "lookup: out.extent(1) must be the total width of the group");
      !s) {
    return s;
  }
  const auto ctx = detail::as_context(context_or_executor);
  using view = matrix_view<Out, detail::group_space<Bags>>;
  if (!out.valid()) return out.validate("lookup: out must not be null");
  return detail::or_out_of_memory([&]() -> status {
    std::pmr::vector<view> outs(ctx.memory);
    outs.reserve(static_cast<std::size_t>(group.features()));
    for (index_t t = 0; t < group.features(); ++t) {
      Out* const first = out.empty() ? nullptr : out.data_handle() + group.offset(t);
      outs.emplace_back(first, out.extent(0), group.width(t), out.stride(0));
    }
    return lookup(ctx, group, bags, std::span<const view>(outs));
  });
}

}}  // namespace deeprec::DEEPREC_ABI
