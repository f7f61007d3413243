// lookup on a CUDA stream: one warp pools one bag, its lanes side by side over the columns.
//
//   warp ──> bag b:   for 32 columns at a time, for each slot of the bag:  sum += w * row[column]
//
// Same semantics as on the host, with two differences that a device forces: offsets and ids are checked
// by the kernel, so a bad bag becomes zeros and the stream's synchronize() reports its place; and the
// number of skipped ids is not counted. A first backend: any D, any type, no tuning.
#pragma once

#ifndef __CUDACC__
#error "deeprec/embedding/lookup.cuh needs nvcc. Fix: include <deeprec/embedding/lookup.hpp> in host code."
#endif

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/exec/cuda_stream.hpp>

namespace deeprec::inline DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

template <class Element, class Id, class Offset, class Out>
struct device_pool_args {
  const std::byte* table;
  index_t stride;
  index_t rows;
  index_t width;
  const Id* ids;
  const Offset* offsets;
  const float* weights;
  index_t bags;
  index_t id_count;
  Out* out;
  index_t out_stride;
  detail::divide_by divide;
  device_fault* fault;
};

/// Keeps the smallest (bag, slot). Called by one thread of a warp, on a path that is never hot.
__device__ inline void report_fault(device_fault* fault, errc code, index_t bag, index_t slot,
                                    std::int64_t value) {
  while (atomicCAS(&fault->lock, 0, 1) != 0) {
  }
  __threadfence_system();
  volatile device_fault* record = fault;
  if (record->code == 0 || bag < record->bag || (bag == record->bag && slot < record->slot)) {
    record->bag = bag;
    record->slot = slot;
    record->value = value;
    record->code = static_cast<int>(code);
  }
  __threadfence_system();
  atomicExch(&fault->lock, 0);
}

/// The first fault of a bag; the same answer in all lanes of its warp.
template <class Bounds, class Args>
__device__ bool bag_is_bad(const Args& args, index_t bag, index_t begin, index_t end, int lane) {
  errc code = errc::ok;
  index_t slot = -1;
  std::int64_t value = 0;
  if (begin < 0) {
    code = errc::offsets_negative;
    value = begin;
  } else if (end < begin) {
    code = errc::offsets_decreasing;
    value = end;
  } else if (end > args.id_count) {
    code = errc::offsets_beyond_ids;
    value = end;
  } else if constexpr (std::is_same_v<Bounds, check_t>) {
    for (index_t first = begin; first < end && code == errc::ok; first += 32) {
      const index_t mine = first + lane;
      const bool bad_id = mine < end && detail::is_bad_id(args.ids[mine], args.rows);
      const bool bad_weight =
          mine < end && args.weights != nullptr && detail::is_nan(args.weights[mine]);
      const unsigned bad = __ballot_sync(0xffffffffU, bad_id || bad_weight);
      if (bad != 0) {
        slot = first + __ffs(static_cast<int>(bad)) - 1;
        const bool id_is_bad = detail::is_bad_id(args.ids[slot], args.rows);
        code = id_is_bad ? errc::id_out_of_range : errc::weight_is_nan;
        value = static_cast<std::int64_t>(args.ids[slot]);
      }
    }
  }
  if (code == errc::ok) return false;
  if (lane == 0) report_fault(args.fault, code, bag, slot, value);
  return true;
}

template <class Bounds, class Element, class Id, class Offset, class Out>
__global__ void pool_bags(device_pool_args<Element, Id, Offset, Out> args) {
  const int lane = static_cast<int>(threadIdx.x);
  const index_t stride = index_t{gridDim.x} * blockDim.y;
  for (index_t bag = index_t{blockIdx.x} * blockDim.y + threadIdx.y; bag < args.bags; bag += stride) {
    const auto begin = static_cast<index_t>(args.offsets[bag]);
    const auto end = static_cast<index_t>(args.offsets[bag + 1]);
    const bool bad = bag_is_bad<Bounds>(args, bag, begin, end, lane);
    Out* const out = args.out + bag * args.out_stride;
    for (index_t column = lane; column < args.width; column += 32) {
      float total = 0;
      detail::pool_counts counts;
      for (index_t slot = begin; !bad && slot < end; ++slot) {
        const Id id = args.ids[slot];
        if (std::is_same_v<Bounds, skip_t> && detail::is_bad_id(id, args.rows)) continue;
        const auto* row = static_cast<const Element*>(static_cast<const void*>(
            args.table + static_cast<index_t>(id) * args.stride));
        const float weight = args.weights == nullptr ? 1.0F : args.weights[slot];
        total = fmaf(static_cast<float>(row[column]), weight, total);
        ++counts.used;
        counts.weight_sum += static_cast<double>(weight);
      }
      const double divisor = counts.divisor(args.divide);
      out[column] =
          static_cast<Out>(divisor == 0.0 ? 0.0F : __fdiv_rn(total, static_cast<float>(divisor)));
    }
  }
}

}  // namespace DEEPREC_DEVICE

template <>
struct backend<verbs::lookup, cuda_backend> {
  template <class Context, class Source, class Id, class Offset, MemorySpace BagSpace, class Pooling,
            class Out, MemorySpace OutSpace>
  [[gnu::visibility("hidden")]] static status run(const Context& ctx, const Source& table,
                                                  const jagged_view<Id, Offset, BagSpace>& bags,
                                                  const Pooling&, matrix_view<Out, OutSpace> out) {
    static_assert(reachable_as<BagSpace, device_space> && reachable_as<OutSpace, device_space> &&
                      reachable_as<typename Source::space, device_space>,
                  "deeprec::lookup: host memory given to a CUDA context. Fix: copy it to the device and "
                  "use views with device_space.");
    static_assert(DirectRowSource<Source>,
                  "deeprec::lookup: this row source has no device form. Fix: pass a table_view.");
    if (out.empty()) return {};
    using element = typename Source::format_type::element;
    const DEEPREC_DEVICE::device_pool_args<element, Id, Offset, Out> args{
        table.data(),    table.format().stride_bytes(),
        table.rows(),    table.format().width(),
        bags.ids(),      bags.offsets(),
        bags.weights(),  bags.bags(),
        bags.id_count(), out.data_handle(),
        out.stride(0),   detail::divisor_of<typename Pooling::combiner>(),
        ctx.executor->fault_record()};
    constexpr unsigned warps = 8;
    const index_t blocks = (bags.bags() + warps - 1) / warps;
    const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
    DEEPREC_DEVICE::pool_bags<typename Pooling::bounds_mode>
        <<<grid, dim3(32, warps), 0, ctx.executor->get()>>>(args);
    if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) {
      return {errc::device_error, cudaGetErrorString(failed)};
    }
    return {};
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
