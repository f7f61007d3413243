// lookup on a CUDA stream: one warp pools one bag, its lanes side by side over the columns.
//
//   warp ──> bag b:   for 32 columns at a time, for each slot of the bag:  sum += w * row[column]
//
// Same semantics as on the host, with two differences that a device forces: offsets and ids are checked
// by the kernel, so a bad bag becomes zeros and the stream's synchronize() reports its place; and the
// number of skipped ids is not counted. A first backend: any D, any type, no tuning, no concat.
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

template <class Id, class Borders, class Out>
struct device_pool_args {
  const std::byte* table;
  index_t stride;
  index_t rows;
  index_t width;
  const Id* ids;
  Borders borders;
  const float* weights;
  index_t bags;
  index_t id_count;
  std::int64_t padding;      // -1 when there is none
  std::int64_t default_row;  // -1 when there is none
  detail::row_parts parts;
  Out* out;
  index_t out_stride;
  detail::divide_by divide;
  detail::when_empty empty;
  detail::when_stored stored;
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
template <class Policy, class Bounds, class Args>
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
      const bool bad_id = mine < end && detail::is_bad_id(args.ids[mine], args.rows) &&
                          !(Policy::ids == detail::ids_are::filtered &&
                            static_cast<std::int64_t>(args.ids[mine]) == args.padding);
      const bool bad_weight =
          mine < end && args.weights != nullptr && detail::is_nan(args.weights[mine]);
      const unsigned bad = __ballot_sync(0xffffffffU, bad_id || bad_weight);
      if (bad != 0) {
        const int found = __ffs(static_cast<int>(bad)) - 1;
        slot = first + found;
        code = __shfl_sync(0xffffffffU, bad_id, found) ? errc::id_out_of_range : errc::weight_is_nan;
        value = static_cast<std::int64_t>(args.ids[slot]);
      }
    }
  }
  if (code == errc::ok) return false;
  if (lane == 0) report_fault(args.fault, code, bag, slot, value);
  return true;
}

template <class Policy, class Bounds, class Element, class Id, class Borders, class Out>
__global__ void pool_bags(device_pool_args<Id, Borders, Out> args) {
  constexpr bool adding = Policy::folding == detail::fold::add;
  const int lane = static_cast<int>(threadIdx.x);
  const index_t stride = index_t{gridDim.x} * blockDim.y;
  const auto row_of = [&](std::int64_t id) {
    return args.table + id * args.stride;
  };
  using stored = detail::stored_value<Element>;
  for (index_t bag = index_t{blockIdx.x} * blockDim.y + threadIdx.y; bag < args.bags; bag += stride) {
    const index_t begin = args.borders.begin(bag);
    const index_t end = args.borders.end(bag);
    const bool bad = bag_is_bad<Policy, Bounds>(args, bag, begin, end, lane);
    Out* const out = args.out + bag * args.out_stride;
    for (index_t column = lane; column < args.width; column += 32) {
      float total = adding ? 0.0F : -INFINITY;
      detail::pool_counts counts;
      for (index_t slot = begin; !bad && slot < end; ++slot) {
        const Id id = args.ids[slot];
        if (Policy::ids == detail::ids_are::filtered && detail::is_absent(id, args.rows, args.padding)) {
          continue;
        }
        const float value = stored::at(row_of(static_cast<std::int64_t>(id)), args.parts, column);
        const float weight = args.weights == nullptr ? 1.0F : args.weights[slot];
        if constexpr (adding) {
          total = fmaf(value, weight, total);
        } else {
          total = isnan(total) || total > value ? total : value;
        }
        counts.add(static_cast<double>(weight));
      }
      if (counts.used == 0 && !bad) {
        if (args.empty == detail::when_empty::keep) continue;
        total = args.empty == detail::when_empty::default_row
                    ? stored::at(row_of(args.default_row), args.parts, column)
                    : 0.0F;
      } else {
        const double divisor = counts.divisor(args.divide);
        total = bad || divisor == 0.0 ? 0.0F : __fdiv_rn(total, static_cast<float>(divisor));
      }
      if (args.stored == detail::when_stored::accumulate) total = static_cast<float>(out[column]) + total;
      out[column] = static_cast<Out>(total);
    }
  }
}

}  // namespace DEEPREC_DEVICE

template <>
struct backend<verbs::lookup, cuda_backend> {
  template <class Context, class Source, class Bags, class Pooling, class Out, MemorySpace OutSpace>
  [[gnu::visibility("hidden")]] static status run(const Context& ctx, const Source& table,
                                                  const Bags& bags, const Pooling& how,
                                                  matrix_view<Out, OutSpace> out) {
    static_assert(reachable_as<typename Bags::space, device_space> &&
                      reachable_as<OutSpace, device_space> &&
                      reachable_as<typename Source::space, device_space>,
                  "deeprec::lookup: host memory given to a CUDA context. Fix: copy it to the device and "
                  "use views with device_space.");
    static_assert(DirectRowSource<Source>,
                  "deeprec::lookup: this row source has no device form. Fix: pass a table_view.");
    static_assert(!std::is_same_v<typename Pooling::combiner, concat_t>,
                  "deeprec::lookup: concat has no device form yet. Fix: sum over fixed_view(ids, N, 1).");
    static_assert(!detail::prunes<Pooling> && !detail::kernel_policy<Pooling>::clips,
                  "deeprec::lookup: prune and max_norm have no device form yet. Fix: leave them out.");
    std::int64_t default_id = -1;
    if constexpr (std::is_same_v<typename Pooling::empty_mode, default_row>) {
      default_id = how.template get<default_row>().id;
      if (detail::is_bad_id(default_id, table.rows())) {
        return {errc::id_out_of_range, "the default row", {.value = default_id}};
      }
    }
    if (out.empty()) return {};
    using element = typename Source::format_type::element;
    using id_type = typename Bags::id_type;
    using borders = decltype(bags.borders());
    const DEEPREC_DEVICE::device_pool_args<id_type, borders, Out> args{
        table.data(),
        table.format().stride_bytes(),
        table.rows(),
        table.format().width(),
        bags.ids(),
        bags.borders(),
        bags.weights(),
        bags.bags(),
        bags.id_count(),
        detail::padding_of(how),
        default_id,
        detail::parts_of(table.format()),
        out.data_handle(),
        out.stride(0),
        detail::divisor_of<typename Pooling::combiner>(),
        detail::empty_of<Pooling>(),
        detail::stored_of<Pooling>(),
        ctx.executor->fault_record()};
    constexpr unsigned warps = 8;
    const index_t blocks = (bags.bags() + warps - 1) / warps;
    const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
    DEEPREC_DEVICE::pool_bags<detail::kernel_policy<Pooling>, typename Pooling::bounds_mode, element>
        <<<grid, dim3(32, warps), 0, ctx.executor->get()>>>(args);
    if (const cudaError_t failed = cudaGetLastError(); failed != cudaSuccess) {
      return {errc::device_error, cudaGetErrorString(failed)};
    }
    return {};
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
