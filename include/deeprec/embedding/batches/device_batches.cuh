// The sparse operations on a CUDA stream: prune_invalid, fill_empty_bags, unique, partition, to_jagged. Same
// API and results as on the host; outputs are written to memory of the caller (device_batch.hpp), and sizes
// stay on the device, so that a sequence of operations can be captured.
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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/device_batches.hpp>
#include <deeprec/embedding/batches/device_batch.hpp>
#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/kernels/device_sort.cuh>
#include <deeprec/exec/cuda_stream.hpp>
#include <deeprec/exec/scratch_layout.hpp>
#include <deeprec/exec/warp_team.cuh>
#include <deeprec/ops/unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace [[gnu::visibility("hidden")]] DEEPREC_DEVICE {

/// body(i) for i in [0, n), one thread each.
template <class Body>
__global__ void __launch_bounds__(block_threads)
    for_each_index(index_t n, const __grid_constant__ Body body) {
  for (index_t i = index_t{blockIdx.x} * block_threads + threadIdx.x; i < n;
       i += index_t{gridDim.x} * block_threads) {
    body(i);
  }
}
/// body(team, i) for i in [0, n), one team each.
template <class Body>
__global__ void __launch_bounds__(block_threads)
    for_each_team(index_t n, int lanes, const __grid_constant__ Body body) {
  const warp_team team(lanes);
  for (index_t i = team.number(); i < n; i += team.teams()) body(team, i);
}

template <class Body>
status launch_each(index_t n, cudaStream_t on, const Body& body) {
  return n > 0 ? launch_kernel(for_each_index<Body>, grid_of(n, 1), on, n, body) : status();
}
template <class Body>
status launch_teams(index_t n, int lanes, cudaStream_t on, const Body& body) {
  return n > 0 ? launch_kernel(for_each_team<Body>, grid_of(n, lanes), on, n, lanes, body) : status();
}

/// Functors, because lambdas in kernels need an nvcc flag.
template <class Valid, class Borders>
struct flag_valid {
  Valid valid;
  index_t n;
  index_t* flags;
  __device__ void operator()(index_t k) const { flags[k] = k < n && valid(k) ? 1 : 0; }
};
template <class Id, class Valid, class Borders>
struct prune_positions {
  const Id* ids;
  const float* weights;
  index_t n;
  Borders ranges;
  Valid valid;
  const index_t* kept;
  device_bags<Id> out;
  device_fault* fault;
  __device__ void operator()(index_t k) const {
    const index_t first = detail::clamp_position(ranges.begin(0), n);
    const index_t end = detail::clamp_position(ranges.end(out.bags - 1), n);
    if (k < n) detail::keep_position(k, first, end, valid, ids, weights, kept, out);
    if (k > out.bags) return;
    const index_t border = k == 0 ? ranges.begin(0) : ranges.end(k - 1);
    out.offsets[k] = kept[detail::clamp_position(border, n)] - kept[first];
    std::int64_t value = 0;
    const errc wrong = k == 0 ? errc::ok : detail::border_fault(ranges.begin(k - 1), border, n, value);
    if (wrong != errc::ok) warp_team(1).report(fault, wrong, -1, k - 1, -1, value);
  }
};
template <class Borders>
struct filled_sizes {
  Borders ranges;
  index_t bags;
  index_t n;
  bool fills;
  index_t* sizes;
  device_fault* fault;
  __device__ void operator()(index_t b) const {
    if (b == bags) {
      sizes[b] = 0;
      return;
    }
    std::int64_t value = 0;
    const errc wrong = detail::border_fault(ranges.begin(b), ranges.end(b), n, value);
    if (wrong != errc::ok) warp_team(1).report(fault, wrong, -1, b, -1, value);
    const index_t size = wrong == errc::ok ? ranges.end(b) - ranges.begin(b) : 0;
    sizes[b] = size == 0 && fills ? 1 : size;
  }
};
template <class Id, class Borders>
struct fill_bags {
  Borders ranges;
  const Id* ids;
  const float* weights;
  index_t n;
  Id default_id;
  device_bags<Id> out;
  std::uint8_t* empty;
  __device__ void operator()(const warp_team& team, index_t b) const {
    std::int64_t value = 0;
    const bool fine = detail::border_fault(ranges.begin(b), ranges.end(b), n, value) == errc::ok;
    const index_t begin = fine ? ranges.begin(b) : 0;
    detail::fill_bag(team, b, begin, fine ? ranges.end(b) : 0, ids, weights, default_id, out, empty);
  }
};
template <class Id>
struct key_ids {
  const Id* ids;
  std::uint64_t* keys;
  std::uint32_t* positions;
  __device__ void operator()(index_t k) const {
    keys[k] = detail::id_key(ids[k]);
    positions[k] = static_cast<std::uint32_t>(k);
  }
};
struct flag_first {
  const std::uint64_t* keys;
  const std::uint32_t* positions;
  index_t* flags;
  __device__ void operator()(index_t i) const {
    flags[positions[i]] = i == 0 || keys[i - 1] != keys[i] ? 1 : 0;
  }
};
template <class Id>
struct number_runs {
  index_t n;
  const std::uint64_t* keys;
  const std::uint32_t* positions;
  const index_t* numbers;
  device_unique<Id> out;
  __device__ void operator()(index_t i) const {
    detail::number_position(i, n, keys, positions, numbers, out);
    if (i == 0) *out.size = numbers[n];
  }
};
template <class Strategy, class Id>
struct key_parts {
  const Id* ids;
  index_t rows;
  index_t parts;
  bool checks;
  device_partition<Id> out;
  std::uint32_t* keys;
  std::uint32_t* positions;
  device_fault* fault;
  unsigned long long* skipped;
  __device__ void operator()(index_t k) const {
    positions[k] = static_cast<std::uint32_t>(k);
    if (detail::part_of_position<Strategy>(k, ids, rows, parts, out, keys)) return;
    const warp_team alone(1);
    if (checks) {
      alone.report(fault, errc::id_out_of_range, -1, -1, k, static_cast<std::int64_t>(ids[k]));
    } else {
      alone.count(skipped, 1);
    }
  }
};
template <class Strategy, class Id>
struct place_parts {
  const Id* ids;
  index_t n;
  index_t rows;
  index_t parts;
  const std::uint32_t* keys;
  const std::uint32_t* positions;
  device_partition<Id> out;
  __device__ void operator()(index_t i) const {
    if (i < n) detail::put_in_part<Strategy>(i, ids, rows, parts, keys, positions, out);
    if (i <= parts) out.offsets[i] = detail::first_not_below(keys, n, static_cast<std::uint32_t>(i));
  }
};
template <class Coo>
struct key_entries {
  Coo coo;
  std::uint32_t* keys;
  std::uint32_t* positions;
  device_fault* fault;
  __device__ void operator()(index_t k) const {
    detail::key_entry(warp_team(1), k, coo, keys, positions, fault);
  }
};
template <class Coo, class Id>
struct place_entries {
  Coo coo;
  const std::uint32_t* keys;
  const std::uint32_t* positions;
  device_bags<Id> out;
  __device__ void operator()(index_t i) const { detail::place_entry(i, coo, keys, positions, out); }
};

/// Keys and positions before and after a sort, with CUB's temporary storage, in a stream's scratch.
template <class Key>
struct sorting {
  Key *keys, *sorted;
  std::uint32_t *positions, *sorted_positions;
  index_t* flags;  // (n + 1), and their scan
  index_t* scanned;
  std::byte* space;
  std::size_t sort_bytes = 0, scan_bytes = 0;

  status open(const cuda_executor& stream, index_t n, int bits, bool scans) {
    detail::scratch_layout layout;
    const std::size_t at[] = {layout.add<Key>(n),
                              layout.add<Key>(n),
                              layout.add<std::uint32_t>(n),
                              layout.add<std::uint32_t>(n),
                              layout.add<index_t>(scans ? n + 1 : 0),
                              layout.add<index_t>(scans ? n + 1 : 0)};
    Key* const none = nullptr;
    std::uint32_t* const nothing = nullptr;
    status s = sort_pairs(nullptr, sort_bytes, none, none, nothing, nothing, n, bits, stream.get());
    if (s.ok() && scans) {
      index_t* const no_index = nullptr;
      s = scan(nullptr, scan_bytes, no_index, no_index, n + 1, stream.get());
    }
    if (!s.ok()) return s;
    const std::size_t more =
        layout.add<std::byte>(static_cast<index_t>(sort_bytes < scan_bytes ? scan_bytes : sort_bytes));
    std::byte* base = nullptr;
    if (s = stream.scratch(layout.bytes(), base); !s.ok()) return s;
    const auto place = [&](std::size_t i) { return static_cast<void*>(base + at[i]); };
    keys = static_cast<Key*>(place(0));
    sorted = static_cast<Key*>(place(1));
    positions = static_cast<std::uint32_t*>(place(2));
    sorted_positions = static_cast<std::uint32_t*>(place(3));
    flags = static_cast<index_t*>(place(4));
    scanned = static_cast<index_t*>(place(5));
    space = base + more;
    return {};
  }
  status sort(index_t n, int bits, cudaStream_t on) {
    return sort_pairs(space, sort_bytes, keys, sorted, positions, sorted_positions, n, bits, on);
  }
};

}  // namespace DEEPREC_DEVICE

namespace detail {

/// Scans the n + 1 flags that write() launches, in a stream's scratch.
template <class Write>
[[gnu::visibility("hidden")]] inline status scan_flags(const cuda_executor& stream, index_t n,
                                                       index_t*& scanned, const Write& write) {
  std::size_t bytes = 0;
  index_t* const none = nullptr;
  if (const status s = DEEPREC_DEVICE::scan(nullptr, bytes, none, none, n + 1, stream.get()); !s) return s;
  scratch_layout layout;
  const std::size_t flags = layout.add<index_t>(n + 1), sums = layout.add<index_t>(n + 1);
  const std::size_t space = layout.add<std::byte>(static_cast<index_t>(bytes));
  std::byte* base = nullptr;
  if (const status s = stream.scratch(layout.bytes(), base); !s) return s;
  auto* const from = static_cast<index_t*>(static_cast<void*>(base + flags));
  if (scanned == nullptr) scanned = static_cast<index_t*>(static_cast<void*>(base + sums));
  if (const status s = write(from); !s) return s;
  return DEEPREC_DEVICE::scan(base + space, bytes, from, scanned, n + 1, stream.get());
}

}  // namespace detail

template <class Context, class Bags, class Rule, class Id>
status prune_invalid_on(cuda_backend, const Context& ctx, const Bags& bags, const Rule&,
                        device_bags<Id> out) {
  using valid_type = detail::valid_entries<Rule, Id>;
  using ranges_type = decltype(bags.ranges());
  const cuda_executor& stream = *ctx.executor;
  if (const status s = detail::device_shapes(bags); !s) return s;
  const index_t n = bags.id_count();
  if (out.bags != bags.bags() || out.room < n || (bags.weights() != nullptr && out.weights == nullptr))
    return {errc::shape_mismatch, "prune_invalid: out must have room for B bags and N ids"};
  if (detail::is_null(out)) return {errc::shape_mismatch, "prune_invalid: out must not be null"};
  if (out.bags == 0) return {};
  const valid_type valid{bags.ids(), bags.weights()};
  index_t* kept = nullptr;
  const status s = detail::scan_flags(stream, n, kept, [&](index_t* flags) {
    return DEEPREC_DEVICE::launch_each(n + 1, stream.get(),
                                       DEEPREC_DEVICE::flag_valid<valid_type, ranges_type>{valid, n, flags});
  });
  if (!s.ok()) return s;
  return DEEPREC_DEVICE::launch_each(
      n > out.bags + 1 ? n : out.bags + 1, stream.get(),
      DEEPREC_DEVICE::prune_positions<Id, valid_type, ranges_type>{
          bags.ids(), bags.weights(), n, bags.ranges(), valid, kept, out, stream.fault_record()});
}

template <class Context, class Bags, class Id>
status fill_empty_bags_on(cuda_backend, const Context& ctx, const Bags& bags,
                          const std::optional<Id>& default_id, device_bags<Id> out,
                          std::span<std::uint8_t> empty) {
  using ranges_type = decltype(bags.ranges());
  const cuda_executor& stream = *ctx.executor;
  if (const status s = detail::device_shapes(bags); !s) return s;
  const bool fills = default_id.has_value();
  if (out.bags != bags.bags() || out.room < bags.id_count() + (fills ? bags.bags() : 0) ||
      static_cast<index_t>(empty.size()) != bags.bags() ||
      (bags.weights() != nullptr && out.weights == nullptr)) {
    return {errc::shape_mismatch,
            "fill_empty_bags: out must have room for B bags and N + B ids, empty for B"};
  }
  if (detail::is_null(out) || (!empty.empty() && empty.data() == nullptr)) {
    return {errc::shape_mismatch, "fill_empty_bags: out and empty must not be null"};
  }
  if (out.bags == 0) return {};
  index_t* offsets = out.offsets;
  const status s = detail::scan_flags(stream, out.bags, offsets, [&](index_t* sizes) {
    return DEEPREC_DEVICE::launch_each(
        out.bags + 1, stream.get(),
        DEEPREC_DEVICE::filled_sizes<ranges_type>{bags.ranges(), out.bags, bags.id_count(), fills, sizes,
                                                  stream.fault_record()});
  });
  if (!s.ok()) return s;
  return DEEPREC_DEVICE::launch_teams(
      out.bags, 8, stream.get(),
      DEEPREC_DEVICE::fill_bags<Id, ranges_type>{bags.ranges(), bags.ids(), bags.weights(), bags.id_count(),
                                                 default_id.value_or(Id{}), out, empty.data()});
}

template <class Context, class Id>
status unique_on(cuda_backend, const Context& ctx, std::span<const Id> ids, device_unique<Id> out) {
  const cuda_executor& stream = *ctx.executor;
  const auto n = static_cast<index_t>(ids.size());
  if (n > 0x7fffffff) return {errc::unsupported, "unique: the number of ids must fit 31 bits"};
  if (out.size == nullptr ||
      (n > 0 && (out.ids == nullptr || out.inverse == nullptr || out.counts == nullptr))) {
    return {errc::shape_mismatch, "unique: out must not be null"};
  }
  const cudaStream_t on = stream.get();
  if (n == 0) return cuda_status(cudaMemsetAsync(out.size, 0, sizeof(index_t), on));
  constexpr int bits = 8 * static_cast<int>(sizeof(Id));
  DEEPREC_DEVICE::sorting<std::uint64_t> sorted{};
  if (const status s = sorted.open(stream, n, bits, true); !s) return s;
  using namespace DEEPREC_DEVICE;
  if (const status s = launch_each(n, on, key_ids<Id>{ids.data(), sorted.keys, sorted.positions}); !s)
    return s;
  if (const status s = sorted.sort(n, bits, on); !s) return s;
  const status flagged = launch_each(n, on, flag_first{sorted.sorted, sorted.sorted_positions, sorted.flags});
  if (!flagged) return flagged;
  if (const status s = cuda_status(cudaMemsetAsync(sorted.flags + n, 0, sizeof(index_t), on)); !s) return s;
  if (const status s =
          DEEPREC_DEVICE::scan(sorted.space, sorted.scan_bytes, sorted.flags, sorted.scanned, n + 1, on);
      !s) {
    return s;
  }
  return launch_each(n, on, number_runs<Id>{n, sorted.sorted, sorted.sorted_positions, sorted.scanned, out});
}

template <class Context, class Id, class Strategy, class Bounds>
status partition_on(cuda_backend, const Context& ctx, std::span<const Id> ids, index_t rows, index_t parts,
                    const Strategy&, const Bounds& bounds, device_partition<Id> out) {
  const cuda_executor& stream = *ctx.executor;
  const auto n = static_cast<index_t>(ids.size());
  if (parts > 0x7fffffff || n >= index_t{detail::absent_key}) {
    return {errc::unsupported, "partition: the numbers of parts and of ids must fit 31 and 32 bits"};
  }
  if (out.offsets == nullptr ||
      (n > 0 && (out.part == nullptr || out.permutation == nullptr || out.ids == nullptr))) {
    return {errc::shape_mismatch, "partition: out must not be null"};
  }
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
      DEEPREC_DEVICE::key_parts<Strategy, Id>{ids.data(), rows, parts, checks, out, sorted.keys,
                                              sorted.positions, stream.fault_record(), skipped});
  if (!keyed) return keyed;
  if (n > 0) {
    if (const status s = sorted.sort(n, bits, on); !s) return s;
  }
  return DEEPREC_DEVICE::launch_each(
      n > parts + 1 ? n : parts + 1, on,
      DEEPREC_DEVICE::place_parts<Strategy, Id>{ids.data(), n, rows, parts, sorted.sorted,
                                                sorted.sorted_positions, out});
}

template <class Context, class Id, class Row, MemorySpace Space>
status to_jagged_on(cuda_backend, const Context& ctx, const coo_view<Id, Row, Space>& coo,
                    device_bags<Id> out) {
  static_assert(reachable_as<Space, device_space>,
                "deeprec::to_jagged: host memory given to a CUDA context. Fix: copy it to the device.");
  const cuda_executor& stream = *ctx.executor;
  const index_t n = coo.id_count();
  if (out.bags != coo.bags() || out.room < n || (coo.weights() != nullptr && out.weights == nullptr)) {
    return {errc::shape_mismatch, "to_jagged: out must have room for B bags and N ids"};
  }
  if (out.offsets == nullptr || detail::is_null(out))
    return {errc::shape_mismatch, "to_jagged: out must not be null"};
  if (n >= index_t{detail::absent_key} || out.bags >= index_t{detail::absent_key}) {
    return {errc::unsupported, "to_jagged: the numbers of entries and of bags must fit 32 bits"};
  }
  using coo_type = coo_view<Id, Row, Space>;
  const int bits = detail::key_bits(coo.bags());
  const cudaStream_t on = stream.get();
  DEEPREC_DEVICE::sorting<std::uint32_t> sorted{};
  if (const status s = sorted.open(stream, n, bits, false); !s) return s;
  const status keyed = DEEPREC_DEVICE::launch_each(
      n, on,
      DEEPREC_DEVICE::key_entries<coo_type>{coo, sorted.keys, sorted.positions, stream.fault_record()});
  if (!keyed) return keyed;
  if (n > 0) {
    if (const status s = sorted.sort(n, bits, on); !s) return s;
  }
  return DEEPREC_DEVICE::launch_each(
      n > out.bags + 1 ? n : out.bags + 1, on,
      DEEPREC_DEVICE::place_entries<coo_type, Id>{coo, sorted.sorted, sorted.sorted_positions, out});
}

}}  // namespace deeprec::DEEPREC_ABI
