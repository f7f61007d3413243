// The sparse operations on a CUDA stream: prune_invalid, fill_empty_bags, unique, partition, to_jagged. Calls
// and results are those of the host for memory of the caller (jagged_out, unique_out, partition_out), with
// device_space. Sizes stay on the device, so that a sequence of operations can be captured.
//
//   prune_invalid(stream, bags, prune_rule::by_id, pruned);
//   fill_empty_bags(stream, pruned.view(), 0, filled, empty);
//   lookup(stream, table, filled.view(), combiner::mean, out);
//
// All at once: fused_lookup of bags (lookup.cuh), or of entries in any order (fused_lookup.cuh).
//
// gather and combine are lookups: with concat, and over as_table(rows). Bad entries are left out and
// reported by synchronize(). Scans and radix sorts are CUB's.
#pragma once

#ifndef __CUDACC__
#  error "device_batches.cuh needs nvcc. Fix: include prune_invalid.hpp and the others in host code."
#endif

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/device_batch_kernels.cuh>
#include <deeprec/embedding/batches/detail/device_batches.hpp>
#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/ops/unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class Context, class Batch, class Rule, class Id, class Offset, MemorySpace OutSpace>
status prune_invalid_on(cuda_backend, const Context& ctx, const Batch& batch, const Rule&,
                        const jagged_out<Id, Offset, OutSpace>& out) {
  using valid_type = detail::valid_entries<Rule, Id>;
  const cuda_executor& stream = *ctx.executor;
  const valid_type valid{batch.ids(), batch.weights()};
  if constexpr (BagBatch<Batch>) {
    if (const status s = detail::device_shapes(batch); !s) return s;
  } else {
    if (const status s = batch.validate_shape(); !s) return s;
  }
  if (detail::shares_bytes(detail::arrays_of(out), batch))
    return {errc::unsupported, "prune_invalid: out must share no memory with the batch"};
  if constexpr (BagBatch<Batch>) {
    using ranges_type = decltype(batch.ranges());
    const index_t n = batch.id_count();
    const index_t bags = batch.bags();
    Offset* const offsets = out.offsets.data();
    if (bags == 0) return cuda_status(cudaMemsetAsync(offsets, 0, sizeof(Offset), stream.get()));
    index_t* kept = nullptr;
    const status s = detail::scan_flags(stream, n, kept, [&](index_t* flags) {
      return DEEPREC_DEVICE::launch_each(n + 1, stream.get(),
                                         DEEPREC_DEVICE::flag_valid<valid_type>{valid, n, flags});
    });
    if (!s.ok()) return s;
    return DEEPREC_DEVICE::launch_each(n > bags + 1 ? n : bags + 1, stream.get(),
                                       DEEPREC_DEVICE::prune_positions<Id, valid_type, ranges_type, Offset>{
                                           batch.ids(), batch.weights(), n, batch.ranges(), valid, kept, bags,
                                           offsets, detail::entries_at(out), stream.fault_record()});
  } else {
    return detail::entries_to_bags(stream, batch, valid, out,
                                   "prune_invalid: the numbers of entries and of bags must fit 32 bits");
  }
}

template <class Context, class Bags, class Id, class Offset, MemorySpace OutSpace>
status fill_empty_bags_on(cuda_backend, const Context& ctx, const Bags& bags,
                          const std::optional<Id>& default_id, const jagged_out<Id, Offset, OutSpace>& out,
                          array_view<std::uint8_t, OutSpace> empty) {
  using ranges_type = decltype(bags.ranges());
  const cuda_executor& stream = *ctx.executor;
  if (const status s = detail::device_shapes(bags); !s) return s;
  if (detail::shares_bytes(detail::arrays_of(out), bags, empty))
    return {errc::unsupported, "fill_empty_bags: out must share no memory with the batch or empty"};
  const bool fills = default_id.has_value();
  const index_t count = bags.bags();
  Offset* offsets = out.offsets.data();
  if (count == 0) return cuda_status(cudaMemsetAsync(offsets, 0, sizeof(Offset), stream.get()));
  const status s = detail::scan_flags(stream, count, offsets, [&](index_t* sizes) {
    return DEEPREC_DEVICE::launch_each(
        count + 1, stream.get(),
        DEEPREC_DEVICE::filled_sizes<ranges_type>{bags.ranges(), count, bags.id_count(), fills, sizes,
                                                  stream.fault_record()});
  });
  if (!s.ok()) return s;
  return DEEPREC_DEVICE::launch_teams(
      count, 8, stream.get(),
      DEEPREC_DEVICE::fill_bags<Id, ranges_type, jagged_out<Id, Offset, OutSpace>>{
          bags.ranges(), bags.ids(), bags.weights(), bags.id_count(), default_id.value_or(Id{}), out,
          empty.data()});
}

template <class Context, class Id, MemorySpace Space, class Index, MemorySpace OutSpace>
status unique_on(cuda_backend, const Context& ctx, array_view<const Id, Space> ids,
                 const unique_out<Id, Index, OutSpace>& out) {
  using namespace DEEPREC_DEVICE;
  const cuda_executor& stream = *ctx.executor;
  const index_t n = ids.size();
  if (detail::shares_bytes(detail::arrays_of(out), ids))
    return {errc::unsupported, "unique: out must share no memory with the ids"};
  const cudaStream_t on = stream.get();
  if (n == 0) return cuda_status(cudaMemsetAsync(out.distinct.data(), 0, sizeof(index_t), on));
  constexpr int bits = 8 * static_cast<int>(sizeof(Id));
  sorting<std::uint64_t> sorted{};
  if (const status s = sorted.open(stream, n, bits, true); !s) return s;
  if (const status s = launch_each(n, on, key_ids<Id>{ids.data(), sorted.keys, sorted.positions}); !s)
    return s;
  if (const status s = sorted.sort(n, bits, on); !s) return s;
  const status flagged = launch_each(n, on, flag_first{sorted.sorted, sorted.sorted_positions, sorted.flags});
  if (!flagged) return flagged;
  if (const status s = cuda_status(cudaMemsetAsync(sorted.flags + n, 0, sizeof(index_t), on)); !s) return s;
  if (const status s = scan(sorted.space, sorted.scan_bytes, sorted.flags, sorted.scanned, n + 1, on); !s)
    return s;
  return launch_each(n, on,
                     number_runs<unique_out<Id, Index, OutSpace>>{n, sorted.sorted, sorted.sorted_positions,
                                                                  sorted.scanned, out});
}

template <class Context, class Id, MemorySpace Space, class Strategy, class Bounds, class Position,
          MemorySpace OutSpace>
status partition_on(cuda_backend, const Context& ctx, array_view<const Id, Space> ids, index_t rows,
                    index_t parts, const Strategy&, const Bounds& bounds,
                    const partition_out<Id, Position, OutSpace>& out) {
  using out_type = partition_out<Id, Position, OutSpace>;
  const cuda_executor& stream = *ctx.executor;
  const index_t n = ids.size();
  if (n >= index_t{detail::absent_key})
    return {errc::unsupported, "partition: the number of ids must fit 32 bits"};
  if (detail::shares_bytes(detail::arrays_of(out), ids))
    return {errc::unsupported, "partition: out must share no memory with the ids"};
  unsigned long long* skipped = nullptr;
  constexpr bool checks = std::is_same_v<Bounds, bounds::check_t>;
  if constexpr (!checks) {
    skipped = stream.counter(bounds.skipped);
    if (bounds.skipped != nullptr && skipped == nullptr) {
      return {errc::unsupported, "partition: skip counters between two synchronize() must fit the stream"};
    }
  }
  const int bits = detail::key_bits(parts);
  const cudaStream_t on = stream.get();
  DEEPREC_DEVICE::sorting<std::uint32_t> sorted{};
  if (const status s = sorted.open(stream, n, bits, false); !s) return s;
  const status keyed = DEEPREC_DEVICE::launch_each(
      n, on,
      DEEPREC_DEVICE::key_parts<Strategy, Id, out_type>{ids.data(), rows, parts, checks, out, sorted.keys,
                                                        sorted.positions, stream.fault_record(), skipped});
  if (!keyed) return keyed;
  if (n > 0) {
    if (const status s = sorted.sort(n, bits, on); !s) return s;
  }
  return DEEPREC_DEVICE::launch_each(
      n > parts + 1 ? n : parts + 1, on,
      DEEPREC_DEVICE::place_parts<Strategy, Id, out_type>{ids.data(), n, rows, parts, sorted.sorted,
                                                          sorted.sorted_positions, out});
}

template <class Context, class Id, class Row, MemorySpace Space, class Offset, MemorySpace OutSpace>
status to_jagged_on(cuda_backend, const Context& ctx, const coo_view<Id, Row, Space>& coo,
                    const jagged_out<Id, Offset, OutSpace>& out) {
  if (detail::shares_bytes(detail::arrays_of(out), coo))
    return {errc::unsupported, "to_jagged: out must share no memory with the entries"};
  return detail::entries_to_bags(*ctx.executor, coo, detail::all_entries{}, out,
                                 "to_jagged: the numbers of entries and of bags must fit 32 bits");
}

}}  // namespace deeprec::DEEPREC_ABI
