// weight_gradients on a CUDA stream: one team of lanes per bag computes the dot product of each of its rows
// with the bag's gradient. out is a span over device memory; out[0] is for the first position of the first
// bag, and positions in no bag, or in one with bad offsets, get 0. row_gradients has no device form: update
// (update.cuh) applies the gradients of rows.
#pragma once

#ifndef __CUDACC__
#  error "deeprec/embedding/training/gradient.cuh needs nvcc. Fix: include gradient.hpp in host code."
#endif

#include <cuda_runtime.h>

#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

template <class Element, int Vec, class Rules, class Task>
__global__ void __launch_bounds__(block_threads)
    dot_bags(const __grid_constant__ Task task, int lanes, float* out) {
  const warp_team team(lanes);
  DEEPREC_ROLLED
  for (index_t bag = team.number(); bag < task.bags; bag += team.teams()) {
    detail::dot_positions<Element, Vec>(Rules{}, team, task, bag, out);
  }
}

}  // namespace DEEPREC_DEVICE

template <class Context, class Rows>
[[gnu::visibility("hidden")]] status weight_gradients_on(cuda_backend, const Context& ctx, const Rows& rows,
                                                         matrix_view<const float, device_space> gradient,
                                                         std::span<float> out) {
  using Source = typename Rows::source_type;
  using Bags = typename Rows::bags_type;
  using Pooling = typename Rows::pooling_type;
  static_assert(
      !detail::is_resolved<Rows> && DirectRowSource<Source>,
      "deeprec::weight_gradients: this row source has no device form. Fix: pass a table_view and bags.");
  const Source& table = rows.source();
  const Bags& bags = rows.bags();
  const Pooling& pooling = rows.pooling();
  using element = typename Source::format_type::element;
  using rules = detail::rules_of<Pooling>;
  using task_type = detail::pool_task<typename Bags::id_type, decltype(bags.ranges()), const float>;
  if (const status s = detail::device_shapes(table, bags); !s) return s;
  if (const status s = detail::expect_size(static_cast<index_t>(out.size()), bags.id_count(),
                                           "weight_gradients: out.size() must be the number of ids N");
      !s) {
    return s;
  }
  // Positions in no valid bag get 0.
  const status cleared = cuda_status(cudaMemsetAsync(out.data(), 0, out.size_bytes(), ctx.executor->get()));
  if (!cleared || gradient.empty()) return cleared;
  auto task = detail::task_of<task_type>(table, pooling, bags.weights() != nullptr);
  detail::set_bags(task, bags);
  task.out = gradient.data_handle();
  task.out_stride = gradient.stride(0);
  task.fault = ctx.executor->fault_record();
  constexpr int wide = detail::lane_columns<element>;
  const bool fits = detail::rows_fit_lanes<element>(task.table, task.stride, task.parts, task.width) &&
                    detail::out_fits_lanes(task.out, task.out_stride, task.width, wide);
  const int lanes = detail::lanes_of(task.width, fits ? wide : 1).lanes;
  const dim3 grid = DEEPREC_DEVICE::grid_of(task.bags, lanes);
  const cudaStream_t on = ctx.executor->get();
  using namespace DEEPREC_DEVICE;
  return launch_kernel(
      fits ? dot_bags<element, wide, rules, task_type> : dot_bags<element, 1, rules, task_type>, grid, on,
      task, lanes, out.data());
}

}}  // namespace deeprec::DEEPREC_ABI
