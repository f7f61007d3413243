// lookup of a feature_group on a CUDA stream: all tables of a model in one launch.
//
//   feature_group<lookups_only, jagged_view<std::int64_t, std::int64_t, device_space>, float> group;
//   group.add(device_users, combiner::sum);  group.add(device_items, pooling{combiner::mean, bounds::skip});
//   lookup(stream, group, bags, out);          bags: T batches in device memory · out in device memory
//
// Formats, widths and poolings may differ: a block finds its table in the arguments of the launch. A launch
// whose tables are all floats with rows of 16-byte pieces, pooled by sums or means of checked ids, runs a
// kernel with twice as many warps in an SM.
// More than 96 tables take one launch per 96. A bag is summed by one team, however long it is: for bags of
// many thousands of ids call lookup, which splits them into chunks.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/groups/lookup_features.cuh needs nvcc. Fix: lookup_features.hpp in host code."
#endif

#include <cuda_runtime.h>

#include <algorithm>
#include <new>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/groups/detail/device_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// @tparam Element, Rules  of all tables; any_element and chosen_rules: of each, as its entry has them
template <class Element, class Rules, class Task>
__global__ void __launch_bounds__(block_threads)
    pool_groups(const __grid_constant__ detail::group_launch<Task> all) {
  const int table = detail::table_of_block(all.first_block, all.tables, blockIdx.x);
  const detail::group_entry<Task>& entry = all.entries[table];
  const warp_team team(entry.lanes);
  const index_t unit = (index_t{blockIdx.x - all.first_block[table]} * block_threads + threadIdx.x) >>
                       (__ffs(entry.lanes) - 1);
  const index_t bag = entry.panels == 1 ? unit : unit / entry.panels;
  const int panel = entry.panels == 1 ? 0 : static_cast<int>(unit % entry.panels);
  if (bag >= entry.task.bags) return;
  if constexpr (std::is_same_v<Rules, detail::chosen_rules>) {
    if (!entry.wide) {
      detail::pool_bag<Element, 1>(entry.rules, team, entry.task, bag, panel);
      return;
    }
    detail::pool_bag<Element, detail::group_columns>(entry.rules, team, entry.task, bag, panel);
  } else {
    detail::pool_bag<Element, detail::group_columns>(Rules{}, team, entry.task, bag, panel);
  }
}

}  // namespace DEEPREC_DEVICE

template <class Context, class Group>
  requires(detail::is_feature_group<Group>)
[[gnu::visibility("hidden")]] status lookup_on(cuda_backend, const Context& ctx, const Group& group,
                                               detail::group_bags<Group> bags,
                                               detail::group_outs<Group> outs) {
  using Bags = typename Group::bags_type;
  using Out = typename Group::value_type;
  static_assert(std::is_same_v<typename Group::space, device_space>,
                "deeprec::lookup: a group of host memory given to a CUDA context. Fix: "
                "feature_group<lookups_only, jagged_view<Id, Offset, device_space>>.");
  using task_type = typename detail::device_feature<Bags, Out>::task_type;
  using launch_type = detail::group_launch<task_type>;
  static_assert(sizeof(launch_type) <= 32764);
  const auto features = detail::group_access::features(group);
  // Everything is checked before the first launch.
  detail::group_entry<task_type> entry{};
  index_t units = 0;
  for (std::size_t t = 0; t < features.size(); ++t) {
    const status s = detail::make_entry(features[t], bags[t], outs[t], entry, units);
    if (!s) return s.in_table(static_cast<index_t>(t));
    if (units > (index_t{1} << 30))
      return {errc::unsupported, "lookup: the bags of a group must fit one launch"};
  }
  detail::scratch_block memory(ctx.memory, detail::scratch_block::bytes_of<launch_type>(1));
  auto* const all = ::new (static_cast<void*>(memory.take<launch_type>(1).data())) launch_type();
  for (std::size_t from = 0; from < features.size(); from += detail::tables_at_once) {
    const std::size_t to = (std::min)(features.size(), from + detail::tables_at_once);
    all->tables = static_cast<int>(to - from);
    unsigned blocks = 0;
    for (std::size_t t = from; t < to; ++t) {
      auto& here = all->entries[t - from];
      static_cast<void>(detail::make_entry(features[t], bags[t], outs[t], here, units));
      here.task.number = static_cast<index_t>(t);
      here.task.fault = ctx.executor->fault_record();
      if (features[t].skipped != nullptr) {
        here.task.skipped = ctx.executor->counter(features[t].skipped);
        if (here.task.skipped == nullptr) {
          return {errc::unsupported, "lookup: skip counters between two synchronize() must fit the stream"};
        }
      }
      all->first_block[t - from] = blocks;
      const index_t in_block = DEEPREC_DEVICE::block_threads / here.lanes;
      blocks += static_cast<unsigned>((units + in_block - 1) / in_block);
    }
    all->first_block[all->tables] = blocks;
    if (blocks == 0) continue;
    const bool plain = std::all_of(all->entries, all->entries + all->tables, detail::is_plain<task_type>);
    const status s = DEEPREC_DEVICE::launch_kernel(
        plain ? DEEPREC_DEVICE::pool_groups<float, detail::plain_rules, task_type>
              : DEEPREC_DEVICE::pool_groups<detail::any_element, detail::chosen_rules, task_type>,
        dim3(blocks), ctx.executor->get(), *all);
    if (!s) return s;
  }
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
