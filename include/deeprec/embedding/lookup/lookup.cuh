// lookup on a CUDA stream: a team of lanes pools one bag, 16 bytes of a row per lane.
//
//   D = 128 floats    one warp per bag       four rows are in flight for each team; eight where bags are few;
//   D = 16 floats     four lanes per bag     the rows of four bags where each has one id
//
// Same semantics as on the host, except where a device requires otherwise: offsets and ids are checked by the
// kernel, so a bad bag becomes zeros and the stream's synchronize() reports it; skipped ids are counted when
// synchronize() is called. A bag of more than 512 ids, in a batch with offsets of more than 16384 or of a
// fixed hotness, is summed in chunks of 256 positions of the batch, chunks from left to right: the same bits
// on every run. concat: out has a row for each of the N ids.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/lookup/lookup.cuh needs nvcc. Fix: include lookup.hpp in host code."
#endif

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/support/scratch_layout.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// Blocks of a lookup in an SM: 64 registers a thread. Rows of two halves need more in flight.
template <class Element>
inline constexpr int pool_blocks = std::is_same_v<Element, detail::split_float> ? 2 : 4;

template <class Element, int Vec, class Rules, class Task>
__global__ void __launch_bounds__(block_threads, pool_blocks<Element>)
    pool_bags(const __grid_constant__ Task task, int lanes) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t bag = team.number(); bag < task.bags; bag += team.teams()) {
    detail::pool_bag<Element, Vec>(Rules{}, team, task, bag, static_cast<int>(blockIdx.y));
  }
  team.wait_for_earlier_kernels();
}

template <class Element, int Vec, int AtOnce, class Rules, class Task>
__global__ void __launch_bounds__(block_threads, AtOnce > 4 ? 2 : pool_blocks<Element>)
    pool_plain_bags(const __grid_constant__ Task task, int lanes) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t bag = team.number(); bag < task.bags; bag += team.teams()) {
    detail::pool_bag<Element, Vec, AtOnce>(Rules{}, team, task, bag, static_cast<int>(blockIdx.y));
  }
  team.wait_for_earlier_kernels();
}

template <class Element, int Vec, class Rules, class Task>
__global__ void __launch_bounds__(block_threads, pool_blocks<Element>)
    pool_short_bags(const __grid_constant__ Task task, int lanes) {
  constexpr int at_once = detail::short_bags_at_once;
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t group = team.number(); group * at_once < task.bags; group += team.teams()) {
    detail::pool_short_bags<Element, Vec>(Rules{}, team, task, group * at_once, static_cast<int>(blockIdx.y));
  }
  team.wait_for_earlier_kernels();
}

template <class Element, int Vec, class Rules, class Task>
__global__ void __launch_bounds__(block_threads)
    sum_chunks(const __grid_constant__ Task task, int lanes, int each, index_t records) {
  let_next_kernel_begin();
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t window = team.number(); window * each < records; window += team.teams()) {
    detail::sum_chunks_of<Element, Vec>(Rules{}, team, task, window * each, each,
                                        static_cast<int>(blockIdx.y));
  }
}

template <class Element, int Vec, class Rules, class Task>
__global__ void __launch_bounds__(block_threads)
    copy_positions(const __grid_constant__ Task task, int lanes) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t k = team.number(); k < task.id_count; k += team.teams()) {
    detail::copy_position<Element, Vec>(Rules{}, team, task, k, static_cast<int>(blockIdx.y));
  }
}

template <bool Copies, class Element, int Vec, class Rules, class Task>
status launch_pool(const Task& task, index_t records, cudaStream_t on) {
  const detail::lane_shape shape = detail::lanes_of(task.width, Vec);
  if constexpr (Copies) {
    return launch_kernel(copy_positions<Element, Vec, Rules, Task>,
                         grid_of(task.id_count, shape.lanes, shape.panels), on, task, shape.lanes);
  } else {
    const index_t resident = resident_threads();
    auto* pool = pool_bags<Element, Vec, Rules, Task>;
    index_t teams = task.bags;
    if constexpr (Vec > 1 && detail::uses_each_id<Rules>) {
      const index_t threads = task.bags * shape.lanes * shape.panels;
      if (task.weights == nullptr && task.fits_32_bits()) {
        if (threads <= resident / 2) {  // registers are left for more rows in flight
          pool = pool_plain_bags<Element, Vec, 8, Rules, Task>;
        } else if (task.id_count == task.bags && threads >= resident * detail::short_bags_at_once) {
          pool = pool_short_bags<Element, Vec, Rules, Task>;
          teams = (task.bags + detail::short_bags_at_once - 1) / detail::short_bags_at_once;
        } else {
          pool = pool_plain_bags<Element, Vec, 4, Rules, Task>;
        }
      }
    }
    const dim3 grid = grid_of(teams, shape.lanes, shape.panels);
    if (records == 0) return launch_kernel(pool, grid, on, task, shape.lanes);
    // A device full of teams sums the records of long bags; beyond that, a team takes several.
    int each = 1;
    while (each < shape.lanes && records * shape.lanes * shape.panels > each * resident) each *= 2;
    const status s = launch_kernel(sum_chunks<Element, Vec, Rules, Task>,
                                   grid_of((records + each - 1) / each, shape.lanes, shape.panels), on, task,
                                   shape.lanes, each, records);
    if (!s) return s;
    // Where no bag is long, which is not known here, the two kernels run side by side.
    return launch_early(pool, grid, on, task, shape.lanes);
  }
}

}  // namespace DEEPREC_DEVICE

namespace detail {

template <class Bags>
bool may_be_long(const Bags& bags) {
  if constexpr (requires { bags.hotness(); }) {
    return bags.hotness() > detail::device_long_bag;
  } else {
    return bags.id_count() > detail::device_chunked_batch;
  }
}

}  // namespace detail

template <class Context, class Rows, class Out>
[[gnu::visibility("hidden")]] status lookup_on(cuda_backend, const Context& ctx, const Rows& rows,
                                               matrix_view<Out, device_space> out) {
  using Source = typename Rows::source_type;
  using Bags = typename Rows::bags_type;
  using Pooling = typename Rows::pooling_type;
  static_assert(
      !detail::is_resolved<Rows>,
      "deeprec::lookup: rows resolved on the host given to a CUDA context. Fix: pass table and bags.");
  const Source& table = rows.source();
  const Bags& bags = rows.bags();
  const Pooling& pooling = rows.pooling();
  static_assert(DirectRowSource<Source>,
                "deeprec::lookup: this row source has no device form. Fix: pass a table_view.");
  constexpr bool copies = std::is_same_v<typename Pooling::combiner, combiner::concat_t>;
  using element = typename Source::format_type::element;
  using task_type = detail::pool_task<typename Bags::id_type, decltype(bags.ranges()), Out>;
  using rules = detail::rules_of<Pooling>;
  if (const status s = detail::device_shapes(table, bags); !s) return s;
  if (copies) {
    if (const status s = detail::expect_size(out.extent(0), bags.id_count(),
                                             "lookup: out.extent(0) must be the number of ids N");
        !s) {
      return s;
    }
  }
  auto task = detail::task_of<task_type>(table, pooling, bags.weights() != nullptr);
  if (const status s = detail::check_default_row(pooling, table.rows()); !s) return s;
  if (out.empty()) return {};
  detail::set_bags(task, bags);
  task.out = out.data_handle();
  task.out_stride = out.stride(0);
  task.fault = ctx.executor->fault_record();
  if (index_t* const counter = detail::skip_counter_of(pooling); counter != nullptr) {
    task.skipped = ctx.executor->counter(counter);
    if (task.skipped == nullptr) {
      return {errc::unsupported, "lookup: skip counters between two synchronize() must fit the stream"};
    }
  }
  index_t records = 0;
  if (!copies && detail::may_be_long(bags)) {
    records = detail::chunk_sums::records(task.id_count);
    detail::scratch_layout layout;
    const std::size_t counts = layout.add<detail::chunk_count>(records);
    const std::size_t sums = layout.add<float>(records * task.width);
    std::byte* scratch = nullptr;
    if (const status s = ctx.executor->scratch(layout.bytes(), scratch); !s) return s;
    task.chunks.sums = static_cast<float*>(static_cast<void*>(scratch + sums));
    task.chunks.counts = static_cast<detail::chunk_count*>(static_cast<void*>(scratch + counts));
  }
  constexpr int wide = detail::lane_columns<element>;
  if (detail::rows_fit_lanes<element>(task.table, task.stride, task.parts, task.width) &&
      detail::out_fits_lanes(task.out, task.out_stride, task.width, wide)) {
    return DEEPREC_DEVICE::launch_pool<copies, element, wide, rules>(task, records, ctx.executor->get());
  }
  return DEEPREC_DEVICE::launch_pool<copies, element, 1, rules>(task, records, ctx.executor->get());
}

}}  // namespace deeprec::DEEPREC_ABI
