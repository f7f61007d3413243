// update on a CUDA stream: positions are sorted by row, and one team of lanes updates each row that was used.
//
//   bags ──expand──> (row, position) ──CUB radix sort, bits of R──> runs ──> gradient summed, row stepped
//
// The gradients of a row are added in the order of its positions; for more than 512 positions, in a batch of
// more than 16384, in chunks of 256 sorted indices, chunks from left to right: the same bits on every run.
// Nothing is read back to the host, so a step can be captured once its scratch is allocated. Bad bags are
// reported and change no row. Rows, positions and bags below 2^32 - 1.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/training/update.cuh needs nvcc. Fix: include update.hpp in host code."
#endif

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/kernels/device/device_sort.cuh>
#include <deeprec/embedding/training/detail/device_update.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/support/scratch_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// Sets every key to absent_key and every value to 0.
[[maybe_unused]] static __global__ void __launch_bounds__(block_threads)
    clear_keys(std::uint32_t* keys, std::uint32_t* values, index_t n) {
  for (index_t i = index_t{blockIdx.x} * block_threads + threadIdx.x; i < n;
       i += index_t{gridDim.x} * block_threads) {
    keys[i] = detail::absent_key;
    values[i] = 0;
  }
}

template <class Rules, class Task>
__global__ void __launch_bounds__(block_threads)
    expand_bags(const __grid_constant__ Task task, int lanes, detail::expanded_positions to) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t bag = team.number(); bag < task.bags; bag += team.teams()) {
    detail::expand_bag(Rules{}, team, task, bag, to);
  }
}

/// Writes bags and factors in sorted order.
[[maybe_unused]] static __global__ void __launch_bounds__(block_threads)
    place_positions(detail::expanded_positions of, const float* weights, index_t positions,
                    const std::uint32_t* keys, const std::uint32_t* values, std::uint32_t* bags,
                    float* factors, index_t n) {
  for (index_t i = index_t{blockIdx.x} * block_threads + threadIdx.x; i < n;
       i += index_t{gridDim.x} * block_threads) {
    if (keys[i] == detail::absent_key) continue;
    factors[i] = detail::factor_of_position(of, weights, positions, values[i], bags[i]);
  }
}

template <int Vec, class Task>
__global__ void __launch_bounds__(block_threads)
    sum_run_chunks(const __grid_constant__ Task task, int lanes, index_t records) {
  let_next_kernel_begin();
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t record = team.number(); record < records; record += team.teams()) {
    detail::sum_run_chunk<Vec>(team, task, record, static_cast<int>(blockIdx.y));
  }
}

template <class Optimizer, int Vec, class Task>
__global__ void __launch_bounds__(block_threads)
    step_crossing_runs(const __grid_constant__ Task task, int lanes, bool all) {
  let_next_kernel_begin();
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t window = team.number(); window * lanes < task.entries; window += team.teams()) {
    detail::step_crossing_runs<Optimizer, Vec>(team, task, window * lanes, all);
  }
  team.wait_for_earlier_kernels();
}

template <class Optimizer, int Vec, class Task>
__global__ void __launch_bounds__(block_threads)
    step_inner_runs(const __grid_constant__ Task task, int lanes) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t window = team.number(); window * lanes < task.entries; window += team.teams()) {
    detail::step_inner_runs<Optimizer, Vec>(team, task, window * lanes);
  }
  team.wait_for_earlier_kernels();
}

template <class Optimizer, int Vec, class Task>
status launch_steps(const Task& task, index_t records, cudaStream_t on) {
  const detail::lane_shape shape = detail::lanes_of(task.gradient.width, Vec);
  const dim3 grid = grid_of(task.entries, 1);  // a team for as many entries as it has lanes
  const bool all = shape.panels > 1;
  status s;
  if (records > 0) {
    s = launch_kernel(sum_run_chunks<Vec, Task>, grid_of(records, shape.lanes, shape.panels), on, task,
                      shape.lanes, records);
    if (!s) return s;
    s = launch_early(step_crossing_runs<Optimizer, Vec, Task>, grid, on, task, shape.lanes, all);
  } else {
    s = launch_kernel(step_crossing_runs<Optimizer, Vec, Task>, grid, on, task, shape.lanes, all);
  }
  if (!s || all) return s;
  return launch_early(step_inner_runs<Optimizer, Vec, Task>, grid, on, task, shape.lanes);
}

}  // namespace DEEPREC_DEVICE

template <class Context, class Rows, class Optimizer, class Rounding>
[[gnu::visibility("hidden")]] status update_on(cuda_backend, const Context& ctx, const Rows& batch_rows,
                                               matrix_view<const float, device_space> gradient,
                                               const Optimizer& optimizer, const Rounding& rounding) {
  using Bags = typename Rows::bags_type;
  using Pooling = typename Rows::pooling_type;
  using Table = typename Rows::source_type;
  using Format = typename Table::format_type;
  static_assert(
      !detail::is_resolved<Rows>,
      "deeprec::update: rows resolved on the host given to a CUDA context. Fix: pass table and bags.");
  static_assert(DirectRowSource<Table>,
                "deeprec::update: this row source has no device form. Fix: pass a table_view.");
  const Bags& bags = batch_rows.bags();
  const Pooling& pooling = batch_rows.pooling();
  const Table& table = batch_rows.source();
  using batch_task = detail::pool_task<typename Bags::id_type, decltype(bags.ranges()), float>;
  if (const status s = detail::device_shapes(table, bags); !s) return s;
  auto batch = detail::task_of<batch_task>(table, pooling, bags.weights() != nullptr);
  detail::set_bags(batch, bags);
  const bool fills = batch.empty == detail::when_empty::default_row;
  if (const status s = detail::check_default_row(pooling, table.rows()); !s) return s;
  const index_t n = batch.id_count + (fills ? batch.bags : 0);
  if (table.rows() >= index_t{detail::absent_key} || n >= index_t{detail::absent_key} ||
      batch.bags >= index_t{detail::absent_key}) {
    return {errc::unsupported, "update: the numbers of rows, ids and bags must fit 32 bits on a device"};
  }
  if (gradient.empty() || n == 0) return {};
  batch.fault = ctx.executor->fault_record();
  if (index_t* const counter = detail::skip_counter_of(pooling); counter != nullptr) {
    batch.skipped = ctx.executor->counter(counter);
    if (batch.skipped == nullptr) {
      return {errc::unsupported, "update: skip counters between two synchronize() must fit the stream"};
    }
  }
  const bool divides = batch.divide != detail::divide_by::one;
  const bool weighted = batch.weights != nullptr;
  const index_t records = n > detail::device_chunked_batch ? detail::chunk_sums::records(n) : 0;
  const int bits = detail::key_bits(table.rows());
  const cudaStream_t on = ctx.executor->get();

  std::size_t sort_bytes = 0;
  std::uint32_t* const none = nullptr;
  if (const status s = DEEPREC_DEVICE::sort_pairs(nullptr, sort_bytes, none, none, none, none, n, bits, on);
      !s)
    return s;
  detail::scratch_layout layout;
  const std::size_t keys = layout.add<std::uint32_t>(n), values = layout.add<std::uint32_t>(n);
  const std::size_t sorted_keys = layout.add<std::uint32_t>(n), sorted_values = layout.add<std::uint32_t>(n);
  const std::size_t bag_of = layout.add<std::uint32_t>(weighted ? n : 0);
  const std::size_t bag_scale = layout.add<float>(divides || fills ? batch.bags : 0);
  const std::size_t sort_space = layout.add<std::byte>(static_cast<index_t>(sort_bytes));
  const std::size_t counts = layout.add<detail::chunk_count>(records);
  const std::size_t sums = layout.add<float>(records * table.width());
  std::byte* scratch = nullptr;
  if (const status s = ctx.executor->scratch(layout.bytes(), scratch); !s) return s;
  const auto at = [&]<class T>(std::type_identity<T>, std::size_t offset) {
    return static_cast<T*>(static_cast<void*>(scratch + offset));
  };
  constexpr std::type_identity<std::uint32_t> words;
  constexpr std::type_identity<float> floats;

  using namespace DEEPREC_DEVICE;
  const detail::expanded_positions positions{at(words, keys), at(words, values),
                                             weighted ? at(words, bag_of) : nullptr,
                                             divides || fills ? at(floats, bag_scale) : nullptr};
  if (const status s = launch_kernel(clear_keys, grid_of(n, 1), on, positions.keys, positions.values, n); !s)
    return s;
  const index_t hotness = batch.bags > 0 ? batch.id_count / batch.bags : 0;
  const int lanes = detail::lanes_of(hotness, 1).lanes;
  if (const status s = launch_kernel(expand_bags<detail::rules_of<Pooling>, batch_task>,
                                     grid_of(batch.bags, lanes), on, batch, lanes, positions);
      !s) {
    return s;
  }
  if (const status s = sort_pairs(scratch + sort_space, sort_bytes, positions.keys, at(words, sorted_keys),
                                  positions.values, at(words, sorted_values), n, bits, on);
      !s) {
    return s;
  }
  const std::uint32_t* bags_in_order = at(words, sorted_values);
  const float* factors = nullptr;
  if (divides || weighted) {  // stored over the unsorted values and keys
    const status s = launch_kernel(place_positions, grid_of(n, 1), on, positions, batch.weights,
                                   batch.id_count, at(words, sorted_keys), at(words, sorted_values),
                                   at(words, values), at(floats, keys), n);
    if (!s) return s;
    bags_in_order = at(words, values);
    factors = at(floats, keys);
  }

  const auto rows = detail::prepare(optimizer);
  using element = typename Format::element;
  detail::step_task<element, std::remove_const_t<decltype(rows)>, Rounding> task{
      {}, at(words, sorted_keys), n, detail::max_norm_of(pooling), rows, rounding};
  detail::set_rows(task, table);
  task.gradient.table = static_cast<const std::byte*>(static_cast<const void*>(gradient.data_handle()));
  task.gradient.stride = gradient.stride(0) * index_t{sizeof(float)};
  task.gradient.rows = gradient.extent(0);
  task.gradient.width = gradient.extent(1);
  task.gradient.ids = bags_in_order;
  task.gradient.weights = factors;
  task.gradient.id_count = n;
  if (records > 0) {
    task.gradient.chunks = {at(floats, sums), at(std::type_identity<detail::chunk_count>{}, counts)};
  }
  constexpr int wide = detail::group_columns;
  if (detail::rows_fit_lanes<element, wide>(table.data(), table.format().stride_bytes(),
                                            detail::parts_of(table.format()), table.width()) &&
      detail::rows_fit_lanes<float, wide>(task.gradient.table, task.gradient.stride, {},
                                          task.gradient.width) &&
      detail::element_state_fits_lanes<Optimizer>(task)) {
    return launch_steps<Optimizer, wide>(task, records, on);
  }
  return launch_steps<Optimizer, 1>(task, records, on);
}

}}  // namespace deeprec::DEEPREC_ABI
