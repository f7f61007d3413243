// Distributes ids over the P parts of a table of V rows by TensorFlow's partition strategies.
//
//   partition_strategy::div   consecutive ids together   0 1 2 3 | 4 5 6 | 7 8 9  V = 10, P = 3: the first
//   partition_strategy::mod   every P-th id together     0 3 6 9 | 1 4 7 | 2 5 8  V % P parts have 1 row more
//
//   ids           7 1 9 4           part          2 0 2 1          V = 10, P = 3, partition_strategy::div
//                                   ids           1 | 0 | 0 2      local rows, part after part
//                                   offsets       0 1 2 4
//                                   permutation   2 0 3 1          index of id k among them
//
// A negative id belongs to no part and writes nothing. Not here: fetching rows from the parts (gather.hpp).
#pragma once

#include <cstdint>
#include <limits>
#include <memory_resource>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/partition_ids.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Result of partition(). Keeps its memory when it is filled again.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
template <class Id = std::int64_t>
struct partitioned_ids {
  static_assert(IdInteger<Id>,
                "deeprec::partitioned_ids: ids are integers of 32 or 64 bits. "
                "Fix: partitioned_ids<std::int64_t>.");
  using id_type = Id;

  explicit partitioned_ids(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : part(memory), permutation(memory), offsets(memory), ids(memory) {}

  std::pmr::vector<std::int32_t> part;    ///< (N): the part of id k; -1: left out
  std::pmr::vector<index_t> permutation;  ///< (N): id k is at ids[permutation[k]]; -1: left out
  std::pmr::vector<index_t> offsets;      ///< (P+1): part p has ids[offsets[p] .. offsets[p+1]]
  std::pmr::vector<Id> ids;               ///< local rows, part after part, in the order of the input

  [[nodiscard]] index_t parts() const noexcept {
    return offsets.empty() ? 0 : static_cast<index_t>(offsets.size()) - 1;
  }
  /// The local rows of part p.
  [[nodiscard]] array_view<const Id> group(index_t p) const {
    DEEPREC_EXPECTS(0 <= p && p < parts());
    const index_t begin = offsets[static_cast<std::size_t>(p)];
    return {ids.data() + begin, offsets[static_cast<std::size_t>(p) + 1] - begin};
  }
};

/// Memory of the caller for the result of partition() of N ids over P parts.
///
/// @pre     the arrays share no byte
/// @threads as its memory
template <class Id = std::int64_t, class Position = index_t, MemorySpace Space = host_space>
struct partition_out {
  static_assert(IdInteger<Id> && IdInteger<Position> && std::is_signed_v<Position>,
                "deeprec::partition_out: ids and positions are integers of 32 or 64 bits, positions signed. "
                "Fix: partition_out<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using position_type = Position;
  using space = Space;

  array_view<std::int32_t, Space> part;     ///< room for N: the part of id k; -1: left out
  array_view<Position, Space> permutation;  ///< room for N: id k is at ids[permutation[k]]; -1: left out
  array_view<Position, Space> offsets;      ///< (P+1): part p has ids[offsets[p] .. offsets[p+1]]
  array_view<Id, Space> ids;                ///< room for N: local rows, part after part
};

template <class Id, class Position, class Space>
partition_out(array_view<std::int32_t, Space>, array_view<Position, Space>, array_view<Position, Space>,
              array_view<Id, Space>) -> partition_out<Id, Position, Space>;

namespace detail {

inline status check_parts(index_t rows, index_t parts) noexcept {
  if (parts < 1) return {errc::invalid_value, "partition: parts must be at least 1", {.value = parts}};
  if (rows < 0) return {errc::invalid_value, "partition: rows must not be negative", {.value = rows}};
  return {};
}

}  // namespace detail

namespace detail { inline namespace DEEPREC_UNIT {

template <class Id>
auto arrays_of(const partitioned_ids<Id>& parts) noexcept {
  return std::tie(parts.part, parts.permutation, parts.offsets, parts.ids);
}

template <class Id, class Position, class Space>
auto arrays_of(const partition_out<Id, Position, Space>& parts) noexcept {
  return std::tie(parts.part, parts.permutation, parts.offsets, parts.ids);
}

}}  // namespace detail::DEEPREC_UNIT

namespace detail {

/// The ids of a list, and the checks of partition that read no memory.
template <class Id, class Strategy, class Bounds, class Ids>
auto checked_ids(const Ids& ids, index_t rows, index_t parts, status& s) noexcept {
  static_assert(IdRange<Ids>,
                "deeprec::partition: ids are no list of integers of 32 or 64 bits. Fix: "
                "std::span(pointer, count), a std::vector or an array_view of them.");
  static_assert(
      std::is_same_v<Strategy, partition_strategy::div_t> ||
          std::is_same_v<Strategy, partition_strategy::mod_t>,
      "deeprec::partition: no such strategy. Fix: partition_strategy::div or partition_strategy::mod.");
  static_assert(std::is_same_v<Bounds, bounds::check_t> || std::is_same_v<Bounds, bounds::skip_t>,
                "deeprec::partition: no such bounds mode. Fix: check or skip.");
  const auto list = id_view(ids);
  static_assert(std::is_same_v<typename decltype(list)::value_type, Id>,
                "deeprec::partition: out holds ids of another type. Fix: partitioned_ids<Id> of the list's "
                "type.");
  s = check_parts(rows, parts);
  if (s.ok() && parts > (std::numeric_limits<std::int32_t>::max)())
    s = {errc::unsupported, "partition: parts must fit 31 bits"};
  return list;
}

}  // namespace detail

/// Groups ids by the part of the table that holds their rows, in memory of the caller.
///
/// @shape   ids (N), as data() and size(), in [0, V) · rows V · parts P · out: room for N, offsets (P+1)
/// @dtype   ids of 32 or 64 bits; permutation and offsets of 32 or 64 bits
/// @space   ids and out reachable from the context; in device memory as array_view
/// @param   rows V; for a growing table the largest index_t
/// @param   bounds check: the call fails and reports the first id outside [0, V); skip, skip(counter):
///          such ids are left out, their part and permutation are -1
/// @post    stable: a part's ids keep the order of the input. Some parts may be empty, also because
///          P > V
/// @cost    host: O(N + P): three passes over the ids (four with bounds::check), whatever P is, without a
///          division; scratch of 8 * (N + P) bytes at most from the context's resource. Device: a radix sort
///          over the bits of P and two launches; 16 bytes of stream scratch per id in addition to CUB's
/// @threads reentrant; the same result for any number of threads. Device: one thread per stream
/// @error   invalid_value (parts below 1, rows below 0); id_out_of_range (position, value of the first one);
///          shape_mismatch for out; unsupported when P needs more than 31 bits, when N does not fit the
///          positions, and when out shares memory with the ids; out_of_memory. On an error nothing is
///          written. Device: N must fit 32 bits; id_out_of_range from synchronize(), and such ids are left
///          out with check as well
/// @example @snippet tests/embedding/partition_test.cpp partition_given
/// @source  the partition strategies of TensorFlow's embedding_lookup; DeepRec's PartitionWithPermutation,
///          where -1 by partition_strategy::mod is written to index -1
template <class Context, class Ids, class Strategy, class Bounds, class Id, class Position, MemorySpace Space>
DEEPREC_PER_UNIT status partition(Context&& context_or_executor, const Ids& ids, index_t rows, index_t parts,
                                  const Strategy& strategy, const Bounds& bounds,
                                  const partition_out<Id, Position, Space>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "partition",
                               detail::in_spaces<typename decltype(id_view(ids))::space, Space>);
  if (!call) return call.stopped();
  status s;
  const auto list = detail::checked_ids<Id, Strategy, Bounds>(ids, rows, parts, s);
  if (!s.ok()) return s;
  const index_t n = list.size();
  if (out.part.size() < n || out.permutation.size() < n || out.ids.size() < n ||
      out.offsets.size() != parts + 1) {
    return {errc::shape_mismatch, "partition: out must have room for N ids and P + 1 offsets"};
  }
  if (!out.part.valid() || !out.permutation.valid() || !out.ids.valid() || !out.offsets.valid())
    return {errc::shape_mismatch, "partition: out must not be null"};
  if (std::cmp_greater(n, (std::numeric_limits<Position>::max)()))
    return {errc::unsupported, "partition: the number of ids must fit the type of the positions"};
  return detail::or_out_of_memory("partition", [&] {
    return partition_on(ctx.backend(), ctx, list, rows, parts, strategy, bounds, out);
  });
}

/// The same, for an owner that grows as needed. Host only.
///
/// @shape   ids (N), as data() and size(), in [0, V) · out: see partitioned_ids
/// @cost    as for memory of the caller; allocates what out lacks
/// @threads reentrant
/// @error   as for memory of the caller. On an error out is as before
/// @example @snippet tests/embedding/partition_test.cpp partition
template <class Context, class Ids, class Strategy, class Bounds, class Id>
DEEPREC_PER_UNIT status partition(Context&& context_or_executor, const Ids& ids, index_t rows, index_t parts,
                                  const Strategy& strategy, const Bounds& bounds, partitioned_ids<Id>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "partition", detail::in_spaces<typename decltype(id_view(ids))::space>);
  if (!call) return call.stopped();
  status s;
  const auto list = detail::checked_ids<Id, Strategy, Bounds>(ids, rows, parts, s);
  if (!s.ok()) return s;
  return detail::or_out_of_memory("partition", [&] {
    return partition_on(ctx.backend(), ctx, list, rows, parts, strategy, bounds, out);
  });
}

/// The same, for bounds mode check.
template <class Context, class Ids, class Strategy, class Id>
DEEPREC_PER_UNIT status partition(Context&& context_or_executor, const Ids& ids, index_t rows, index_t parts,
                                  const Strategy& strategy, partitioned_ids<Id>& out) {
  return partition(context_or_executor, ids, rows, parts, strategy, bounds::check, out);
}

template <class... Args>
status partition_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

// Out: partitioned_ids or const partition_out
template <class Context, class Id, MemorySpace Space, class Strategy, class Bounds, class Out>
DEEPREC_PER_UNIT status partition_on(host_backend, const Context& ctx, array_view<const Id, Space> list,
                                     index_t rows, index_t parts, const Strategy& strategy,
                                     [[maybe_unused]] const Bounds& bounds, Out& out) {
  const array_view<const Id> ids(list);
  if (detail::shares_bytes(detail::arrays_of(out), ids)) {
    return {errc::unsupported, "partition: out must share no memory with the ids"};
  }
  if constexpr (std::is_same_v<Bounds, bounds::check_t>) {
    if (const status s = detail::check_ids(ctx, ids, rows); !s) return s;
  }
  [[maybe_unused]] const index_t placed = detail::partition_ids(ctx, ids, rows, parts, strategy, out);
  if constexpr (std::is_same_v<Bounds, bounds::skip_t>) {
    detail::add_skipped(bounds.skipped, ids.size() - placed);
  }
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
