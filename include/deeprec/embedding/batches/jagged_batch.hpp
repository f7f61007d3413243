// Bags as the output of an operation, and the conversion of entries in any order to bags.
//
//   jagged_batch<> bags;                                                      owns its memory, host only
//   to_jagged(pool, coo_view<>(rows, ids, N, B), bags).or_throw();
//   lookup(pool, table, bags.view(), combiner::sum, out);
//
//   jagged_out<> bags{offsets, ids, weights};                                 memory of the caller, any space
//
//   rows   2 0 2 0 3        offsets   0   2   2   4   5
//   ids    9 7 4 1 8        ids       7 1     9 4   8         stable: a bag keeps the order of its entries
//
// A batch that is filled repeatedly stops allocating. Parsed text comes as a sparse_batch
// (data/sparse_batch.hpp), which needs no conversion.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/entries.hpp>
#include <deeprec/embedding/detail/group_positions.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Owner of B bags. Its arrays are public, to be read and filled directly.
///
/// Invariant: offsets is empty (no bags) or has B+1 elements from 0 to N; weights has N elements or none.
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
template <class Id = std::int64_t>
struct jagged_batch {
  using id_type = Id;

  explicit jagged_batch(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : offsets(memory), ids(memory), weights(memory) {}

  std::pmr::vector<index_t> offsets;  ///< (B+1)
  std::pmr::vector<Id> ids;           ///< (N)
  std::pmr::vector<float> weights;    ///< (N), or empty for weight 1

  [[nodiscard]] index_t bags() const noexcept {
    return (std::max)(index_t{0}, static_cast<index_t>(offsets.size()) - 1);
  }
  /// N.
  [[nodiscard]] index_t id_count() const noexcept { return static_cast<index_t>(ids.size()); }

  /// Valid until the batch is written to.
  [[nodiscard]] jagged_view<Id, index_t> view() const noexcept {
    return {offsets.data(), bags(), ids.data(), id_count(), weights.empty() ? nullptr : weights.data()};
  }
};

/// Memory of the caller for B bags of ids and weights whose number is known only when they are written.
///
///   room for N   | 7 1 9 4 . . . . |      the number of ids is offsets[B]: in device memory only the device
///                                         reads it, so a sequence of operations can be enqueued, and
///                                         captured, without a copy to the host
///
/// @pre     the arrays share no byte
/// @threads as its memory
template <class Id = std::int64_t, class Offset = index_t, MemorySpace Space = host_space>
struct jagged_out {
  using id_type = Id;
  using offset_type = Offset;
  using space = Space;

  array_view<Offset, Space> offsets;  ///< (B+1)
  array_view<Id, Space> ids;          ///< room for ids
  array_view<float, Space> weights;   ///< as many as ids, or empty for weight 1

  [[nodiscard]] DEEPREC_HD constexpr index_t bags() const noexcept {
    return offsets.empty() ? 0 : offsets.size() - 1;
  }
  /// What was written, as input of an operation. Its id_count() is the room.
  [[nodiscard]] constexpr jagged_view<Id, Offset, Space> view() const noexcept {
    return {offsets.data(), bags(), ids.data(), ids.size(), weights.empty() ? nullptr : weights.data()};
  }
};

template <class Id, class Offset, class Space>
jagged_out(array_view<Offset, Space>, array_view<Id, Space>, array_view<float, Space>)
    -> jagged_out<Id, Offset, Space>;

namespace detail {

// What an operation does with its output: an owner reserves memory before anything is written, and gets its
// sizes when they are known. Memory of the caller has room, which check_room has seen.

/// Reserves room for B bags of at most n ids before anything is written; the contents are kept.
template <class Id>
void reserve(jagged_batch<Id>& batch, index_t bags, index_t n, const float* input_weights) {
  batch.offsets.reserve(static_cast<std::size_t>(bags) + 1);
  batch.ids.reserve(static_cast<std::size_t>(n));
  if (input_weights != nullptr) batch.weights.reserve(static_cast<std::size_t>(n));
}

template <class Id>
auto arrays_of(const jagged_batch<Id>& batch) noexcept {
  return std::tie(batch.offsets, batch.ids, batch.weights);
}
template <class Id>
index_t* size_offsets(jagged_batch<Id>& batch, index_t bags) {
  batch.offsets.resize(static_cast<std::size_t>(bags) + 1);
  return batch.offsets.data();
}
/// For n ids, and n weights unless input_weights is null.
template <class Id>
bag_entries<Id> size_entries(jagged_batch<Id>& batch, index_t n, const float* input_weights) {
  batch.ids.resize(static_cast<std::size_t>(n));
  batch.weights.resize(input_weights == nullptr ? 0 : static_cast<std::size_t>(n));
  return {batch.ids.data(), input_weights == nullptr ? nullptr : batch.weights.data()};
}

template <class Id, class Offset, class Space>
void reserve(const jagged_out<Id, Offset, Space>&, index_t, index_t, const float*) noexcept {}
template <class Id, class Offset, class Space>
Offset* size_offsets(const jagged_out<Id, Offset, Space>& out, index_t) noexcept {
  return out.offsets.data();
}
template <class Id, class Offset, class Space>
DEEPREC_HD constexpr bag_entries<Id> entries_at(const jagged_out<Id, Offset, Space>& out) noexcept {
  return {out.ids.data(), out.weights.empty() ? nullptr : out.weights.data()};
}
template <class Id, class Offset, class Space>
bag_entries<Id> size_entries(const jagged_out<Id, Offset, Space>& out, index_t, const float*) noexcept {
  return entries_at(out);
}

template <class Id, class Offset, class Space>
auto arrays_of(const jagged_out<Id, Offset, Space>& out) noexcept {
  return std::tie(out.offsets, out.ids, out.weights);
}

/// Checks memory of the caller for B bags of at most n ids.
/// @param no_room, when_null details of the status: string literals that name the operation
template <class Id, class Offset, class Space>
status check_room(const jagged_out<Id, Offset, Space>& out, index_t bags, index_t n,
                  const float* input_weights, const char* no_room, const char* when_null) noexcept {
  const bool weighted = !out.weights.empty() || (input_weights != nullptr && n > 0);
  if (out.offsets.size() != capped_sum(bags, 1) || out.ids.size() < n ||
      (weighted && out.weights.size() != out.ids.size())) {
    return {errc::shape_mismatch, no_room};
  }
  if (!out.offsets.valid() || !out.ids.valid() || !out.weights.valid())
    return {errc::shape_mismatch, when_null};
  if (std::cmp_greater(n, (std::numeric_limits<Offset>::max)()))
    return {errc::unsupported, "jagged_out: the number of ids must fit the type of the offsets"};
  return {};
}

inline namespace DEEPREC_UNIT {

/// The entries with wanted(k), as bags. out has room for all entries.
template <class Context, class Coo, class Out, class Wanted>
void group_entries(const Context& ctx, group_counts& counts, const Coo& coo, const Wanted& wanted, Out& out) {
  bag_entries<typename Coo::id_type> to{};
  const auto key_at = [&](index_t k) { return wanted(k) ? coo.row(k) : no_group; };
  const auto prepare = [&](index_t total) { to = size_entries(out, total, coo.weights()); };
  group_positions(ctx, counts, key_at, size_offsets(out, coo.bags()), prepare,
                  [&](index_t k, index_t, index_t sorted_index) {
                    to.ids[sorted_index] = coo.ids()[k];
                    if (to.weights != nullptr)
                      to.weights[sorted_index] = coo.weights() == nullptr ? 1.0F : coo.weights()[k];
                  });
}

}  // namespace DEEPREC_UNIT
}  // namespace detail

/// Converts entries in any order to bags, in memory of the caller.
///
/// @shape   coo: N entries over B bags · out: offsets (B+1), room for N ids and, where coo has them, weights
/// @dtype   offsets of 32 or 64 bits
/// @space   coo and out reachable from the context
/// @post    the entries of a bag keep their order in coo; out.weights, if any, are 1 where coo has none
/// @cost    host: O(N + B). Rows that are in order already are detected: then only offsets are computed, and
///          the ids copied unchanged; for unordered rows scratch of 8 * (N + B) bytes at most from the
///          context's resource. Device: a radix sort over the bits of B and two launches; 16 bytes of stream
///          scratch per entry in addition to CUB's
/// @threads reentrant; the same result for any number of threads. Device: one thread per stream
/// @error   as coo_view::validate; shape_mismatch for out; unsupported when out shares memory with coo and
///          when N does not fit the offsets; out_of_memory. On an error nothing is written. Device: N and B
///          must fit 32 bits; an entry whose row is outside [0, B) is left out, and reported by synchronize()
///          (invalid_value, position, value = its row)
/// @example @snippet tests/embedding/jagged_batch_test.cpp to_jagged_given
template <class Context, class Id, class Row, MemorySpace Space, class Offset, MemorySpace OutSpace>
DEEPREC_PER_UNIT status to_jagged(Context&& context_or_executor, const coo_view<Id, Row, Space>& coo,
                                  const jagged_out<Id, Offset, OutSpace>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "to_jagged", detail::in_spaces<Space, OutSpace>);
  if (!call) return call.stopped();
  if (const status s = coo.validate_shape(); !s) return s.in_operation("to_jagged");
  if (const status s = detail::check_room(out, coo.bags(), coo.id_count(), coo.weights(),
                                          "to_jagged: out must have room for B bags and N ids",
                                          "to_jagged: out must not be null");
      !s) {
    return s;
  }
  return detail::or_out_of_memory("to_jagged", [&] { return to_jagged_on(ctx.backend(), ctx, coo, out); });
}

/// The same, for a batch that grows as needed. Host only.
///
/// @shape   coo: N entries over B bags · out: B bags, N ids, and weights as in coo, or none
/// @cost    as for memory of the caller; allocates what out lacks
/// @threads reentrant
/// @error   as for memory of the caller. On an error out is as before
/// @example @snippet tests/embedding/jagged_batch_test.cpp to_jagged
template <class Context, class Id, class Row, MemorySpace Space>
DEEPREC_PER_UNIT status to_jagged(Context&& context_or_executor, const coo_view<Id, Row, Space>& coo,
                                  jagged_batch<Id>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "to_jagged", detail::in_spaces<Space>);
  if (!call) return call.stopped();
  if (const status s = coo.validate_shape(); !s) return s.in_operation("to_jagged");
  return detail::or_out_of_memory("to_jagged", [&] { return to_jagged_on(ctx.backend(), ctx, coo, out); });
}

template <class... Args>
status to_jagged_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

// Out: jagged_batch or const jagged_out
template <class Context, class Id, class Row, MemorySpace Space, class Out>
DEEPREC_PER_UNIT status to_jagged_on(host_backend, const Context& ctx, const coo_view<Id, Row, Space>& coo,
                                     Out& out) {
  const index_t n = coo.id_count();
  if (detail::shares_bytes(detail::arrays_of(out), coo)) {
    return {errc::unsupported, "to_jagged: out must share no memory with the entries"};
  }
  bool in_order = true;
  if (const status s = detail::look_at_rows(ctx, coo, in_order); !s) return s;
  detail::reserve(out, coo.bags(), n, coo.weights());
  if (!in_order) {
    detail::group_counts counts(ctx.memory, n, coo.bags());
    detail::group_entries(ctx, counts, coo, [](index_t) { return true; }, out);
    return {};
  }
  detail::offsets_in_order(ctx, coo, detail::size_offsets(out, coo.bags()));
  const detail::bag_entries<Id> to = detail::size_entries(out, n, coo.weights());
  detail::run_bulk(ctx, detail::work_of_entries(n), [&](index_t begin, index_t end, int) {
    detail::copy_positions(coo.ids(), coo.weights(), begin, end - begin, to, begin);
  });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
