// Kernels of the sparse operations (device_batches.cuh), one thread or team for each index, and what they
// share: sorts of (key, position) and scans, in a stream's scratch.
#pragma once

#ifndef __CUDACC__
#  error "device_batch_kernels.cuh needs nvcc. Fix: include prune_invalid.hpp and the others in host code."
#endif

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/device_batches.hpp>
#include <deeprec/embedding/kernels/device/device_sort.cuh>
#include <deeprec/exec/cuda/cuda_stream.hpp>
#include <deeprec/exec/cuda/warp_team.cuh>
#include <deeprec/support/scratch_layout.hpp>

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
template <class Valid>
struct flag_valid {
  Valid valid;
  index_t n;
  index_t* flags;
  __device__ void operator()(index_t k) const { flags[k] = k < n && valid(k) ? 1 : 0; }
};
template <class Id, class Valid, class Borders, class Offset>
struct prune_positions {
  const Id* ids;
  const float* weights;
  index_t n;
  Borders ranges;
  Valid valid;
  const index_t* kept;
  index_t bags;
  Offset* offsets;
  detail::bag_entries<Id> out;
  device_fault* fault;
  __device__ void operator()(index_t k) const {
    const index_t first = detail::clamp_position(ranges.begin(0), n);
    const index_t end = detail::clamp_position(ranges.end(bags - 1), n);
    if (k < n) detail::keep_position(k, first, end, valid, ids, weights, kept, out);
    if (k > bags) return;
    const index_t border = k == 0 ? ranges.begin(0) : ranges.end(k - 1);
    offsets[k] = static_cast<Offset>(kept[detail::clamp_position(border, n)] - kept[first]);
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
template <class Id, class Borders, class Out>
struct fill_bags {
  Borders ranges;
  const Id* ids;
  const float* weights;
  index_t n;
  Id default_id;
  Out out;
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
template <class Out>
struct number_runs {
  index_t n;
  const std::uint64_t* keys;
  const std::uint32_t* positions;
  const index_t* numbers;
  Out out;
  __device__ void operator()(index_t i) const {
    detail::number_position(i, n, keys, positions, numbers, out);
    if (i == 0) *out.distinct.data() = numbers[n];
  }
};
template <class Strategy, class Id, class Out>
struct key_parts {
  const Id* ids;
  index_t rows;
  index_t parts;
  bool checks;
  Out out;
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
template <class Strategy, class Id, class Out>
struct place_parts {
  const Id* ids;
  index_t n;
  index_t rows;
  index_t parts;
  const std::uint32_t* keys;
  const std::uint32_t* positions;
  Out out;
  __device__ void operator()(index_t i) const {
    if (i < n) detail::put_in_part<Strategy>(i, ids, rows, parts, keys, positions, out);
    if (i <= parts) {
      out.offsets.data()[i] = static_cast<typename Out::position_type>(
          detail::first_not_below(keys, n, static_cast<std::uint32_t>(i)));
    }
  }
};
template <class Coo, class Wanted>
struct key_entries {
  Coo coo;
  Wanted wanted;
  std::uint32_t* keys;
  std::uint32_t* positions;
  device_fault* fault;
  __device__ void operator()(index_t k) const {
    detail::key_entry(warp_team(1), k, coo, wanted, keys, positions, fault);
  }
};
template <class Coo, class Out>
struct place_entries {
  Coo coo;
  const std::uint32_t* keys;
  const std::uint32_t* positions;
  Out out;
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
template <class Sum, class Write>
[[gnu::visibility("hidden")]] inline status scan_flags(const cuda_executor& stream, index_t n, Sum*& scanned,
                                                       const Write& write) {
  std::size_t bytes = 0;
  const index_t* const no_flags = nullptr;
  Sum* const no_sums = nullptr;
  if (const status s = DEEPREC_DEVICE::scan(nullptr, bytes, no_flags, no_sums, n + 1, stream.get()); !s)
    return s;
  scratch_layout layout;
  const std::size_t flags = layout.add<index_t>(n + 1), sums = layout.add<Sum>(n + 1);
  const std::size_t space = layout.add<std::byte>(static_cast<index_t>(bytes));
  std::byte* base = nullptr;
  if (const status s = stream.scratch(layout.bytes(), base); !s) return s;
  auto* const from = static_cast<index_t*>(static_cast<void*>(base + flags));
  if (scanned == nullptr) scanned = static_cast<Sum*>(static_cast<void*>(base + sums));
  if (const status s = write(from); !s) return s;
  return DEEPREC_DEVICE::scan(base + space, bytes, from, scanned, n + 1, stream.get());
}

/// The wanted entries, as bags.
template <class Coo, class Wanted, class Out>
[[gnu::visibility("hidden")]] status entries_to_bags(const cuda_executor& stream, const Coo& coo,
                                                     const Wanted& wanted, const Out& out,
                                                     const char* too_many) {
  const index_t n = coo.id_count();
  const index_t bags = coo.bags();
  if (n >= index_t{absent_key} || bags >= index_t{absent_key}) return {errc::unsupported, too_many};
  const int bits = key_bits(bags);
  const cudaStream_t on = stream.get();
  DEEPREC_DEVICE::sorting<std::uint32_t> sorted{};
  if (const status s = sorted.open(stream, n, bits, false); !s) return s;
  const status keyed =
      DEEPREC_DEVICE::launch_each(n, on,
                                  DEEPREC_DEVICE::key_entries<Coo, Wanted>{
                                      coo, wanted, sorted.keys, sorted.positions, stream.fault_record()});
  if (!keyed) return keyed;
  if (n > 0) {
    if (const status s = sorted.sort(n, bits, on); !s) return s;
  }
  return DEEPREC_DEVICE::launch_each(
      n > bags + 1 ? n : bags + 1, on,
      DEEPREC_DEVICE::place_entries<Coo, Out>{coo, sorted.sorted, sorted.sorted_positions, out});
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
