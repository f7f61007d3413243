// A jagged batch that owns its memory, and the conversion of entries in any order to bags.
//
//   jagged_batch<> bags;
//   to_jagged(pool, coo_view<>(rows, ids, N, B), bags).or_throw();
//   lookup(pool, table, bags.view(), combiner::sum, out);
//
//   rows   2 0 2 0 3        offsets   0   2   2   4   5
//   ids    9 7 4 1 8        ids       7 1     9 4   8         stable: a bag keeps the order of its entries
//
// A batch that is filled repeatedly stops allocating. Parsed text comes as a sparse_batch
// (data/sparse_batch.hpp), which needs no conversion.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <tuple>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/first_fault.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/batches/detail/group_positions.hpp>
#include <deeprec/embedding/batches/device_batch.hpp>
#include <deeprec/memory/owns.hpp>

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

namespace detail {

/// Resizes to n ids; to n weights as well, unless input_weights is null.
template <class Id>
void resize_ids(jagged_batch<Id>& batch, index_t n, const float* input_weights) {
  batch.ids.resize(static_cast<std::size_t>(n));
  batch.weights.resize(input_weights == nullptr ? 0 : static_cast<std::size_t>(n));
}

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

/// Copies `count` ids and weights of the input, from position `from` on, to the batch from position `to` on.
template <class Id>
void copy_positions(const Id* ids, const float* weights, index_t from, index_t count, jagged_batch<Id>& batch,
                    index_t to) noexcept {
  if (count <= 0) return;
  const auto n = static_cast<std::size_t>(count);
  std::memcpy(batch.ids.data() + to, ids + from, n * sizeof(Id));
  if (weights != nullptr) std::memcpy(batch.weights.data() + to, weights + from, n * sizeof(float));
}

inline namespace DEEPREC_UNIT {

/// Entries per piece of work.
inline constexpr index_t coo_piece = index_t{1} << 16;

/// Checks that all rows are in [0, B), and whether they are in order.
template <class Context, class Coo>
status look_at_rows(const Context& ctx, const Coo& coo, bool& in_order) {
  std::atomic<bool> falls{false};
  const auto bags = static_cast<std::uint64_t>(coo.bags());
  const status rows = first_fault(ctx, coo.id_count(), coo_piece, [&](index_t begin, index_t end) -> status {
    bool any_outside = false;
    bool any_fall = false;
    index_t before = coo.row(begin > 0 ? begin - 1 : 0);
    for (index_t k = begin; k < end; ++k) {
      const index_t row = coo.row(k);
      any_outside |= static_cast<std::uint64_t>(row) >= bags;
      any_fall |= row < before;
      before = row;
    }
    if (any_fall) falls.store(true, std::memory_order_relaxed);
    return any_outside ? coo.validate_rows(begin, end) : status{};
  });
  in_order = !falls.load(std::memory_order_relaxed);
  return rows;
}

/// The offsets of rows that are in order: k is the offset of every bag after the bag of entry k - 1, up to
/// the bag of entry k.
template <class Context, class Coo>
void offsets_in_order(const Context& ctx, const Coo& coo, index_t* offsets) {
  const index_t n = coo.id_count();
  ctx.executor->parallel_for(n, coo_piece, [&](index_t begin, index_t end, int) {
    index_t bag = begin == 0 ? 0 : coo.row(begin - 1) + 1;
    for (index_t k = begin; k < end; ++k) {
      for (const index_t row = coo.row(k); bag <= row; ++bag) offsets[bag] = k;
    }
  });
  for (index_t bag = n == 0 ? 0 : coo.row(n - 1) + 1; bag <= coo.bags(); ++bag) offsets[bag] = n;
}

/// The entries with wanted(k), as bags. out has room for all entries.
template <class Context, class Coo, class Id, class Wanted>
void group_entries(const Context& ctx, group_counts& counts, const Coo& coo, const Wanted& wanted,
                   jagged_batch<Id>& out) {
  out.offsets.resize(static_cast<std::size_t>(coo.bags()) + 1);
  Id* ids = nullptr;
  float* weights = nullptr;
  const auto key_at = [&](index_t k) { return wanted(k) ? coo.row(k) : no_group; };
  const auto prepare = [&](index_t total) {
    resize_ids(out, total, coo.weights());
    ids = out.ids.data();
    weights = coo.weights() == nullptr ? nullptr : out.weights.data();
  };
  group_positions(ctx, counts, key_at, out.offsets.data(), prepare,
                  [&](index_t k, index_t, index_t sorted_index) {
                    ids[sorted_index] = coo.ids()[k];
                    if (weights != nullptr) weights[sorted_index] = coo.weights()[k];
                  });
}

}  // namespace DEEPREC_UNIT
}  // namespace detail

/// Converts entries in any order to bags.
///
/// @shape   coo: N entries over B bags · out: B bags, N ids
/// @space   coo reachable from the context; out on the host
/// @pre     out owns none of coo's memory
/// @post    the entries of a bag keep their order in coo; weights as in coo, or none
/// @cost    O(N + B). Rows that are in order already are detected: then only offsets are computed, and the
///          ids copied unchanged. Allocates what out lacks, and for unordered rows scratch of
///          8 * (N + B) bytes at most from the context's resource
/// @threads reentrant; the same result for any number of threads
/// @error   as coo_view::validate; unsupported when out owns coo's memory (rows, ids or weights);
///          out_of_memory. On an error out is as before
/// @example @snippet tests/embedding/jagged_batch_test.cpp to_jagged
template <class Context, class Id, class Row, MemorySpace Space, class = detail::unit>
[[nodiscard]] status to_jagged(Context&& context_or_executor, const coo_view<Id, Row, Space>& coo,
                               jagged_batch<Id>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "to_jagged");
  if (!call) return call.stopped();
  if (const status s = coo.validate_shape(); !s) return s.in_operation("to_jagged");
  return detail::or_out_of_memory("to_jagged", [&] { return to_jagged_on(ctx.backend(), ctx, coo, out); });
}

/// Converts entries in any order to bags, as to_jagged on the host. Entries whose row is outside [0, B) are
/// left out and reported.
///
/// @shape   coo: N entries over B bags · out: room for B bags and N ids
/// @space   device
/// @cost    a radix sort over the bits of B and two launches; 16 bytes of stream scratch per entry
/// @threads one thread per stream
/// @error   shape_mismatch; unsupported (N or B beyond 32 bits); invalid_value (position, value = its row)
///          from synchronize()
template <class Context, class Id, class Row, MemorySpace Space, class = detail::unit>
[[nodiscard]] status to_jagged(Context&& context_or_stream, const coo_view<Id, Row, Space>& coo,
                               device_bags<Id> out) {
  const auto ctx = detail::as_context(context_or_stream);
  const detail::verb_call call(ctx, "to_jagged");
  if (!call) return call.stopped();
  if (const status s = coo.validate_shape(); !s) return s.in_operation("to_jagged");
  return to_jagged_on(ctx.backend(), ctx, coo, out);
}

template <class... Args>
status to_jagged_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Id, class Row, MemorySpace Space, class = detail::unit>
status to_jagged_on(host_backend, const Context& ctx, const coo_view<Id, Row, Space>& coo,
                    jagged_batch<Id>& out) {
  static_assert(reachable_as<Space, host_space>,
                "deeprec::to_jagged: device memory given to a host context. Fix: copy it first.");
  const index_t n = coo.id_count();
  if (detail::owns(detail::arrays_of(out), coo)) {
    return {errc::unsupported, "to_jagged: out must not own memory of the entries"};
  }
  bool in_order = true;
  if (const status s = detail::look_at_rows(ctx, coo, in_order); !s) return s;
  detail::reserve(out, coo.bags(), n, coo.weights());
  if (!in_order) {
    detail::group_counts counts(ctx.memory, n, coo.bags());
    detail::group_entries(ctx, counts, coo, [](index_t) { return true; }, out);
    return {};
  }
  out.offsets.resize(static_cast<std::size_t>(coo.bags()) + 1);
  detail::resize_ids(out, n, coo.weights());
  detail::offsets_in_order(ctx, coo, out.offsets.data());
  ctx.executor->parallel_for(n, detail::coo_piece, [&](index_t begin, index_t end, int) {
    detail::copy_positions(coo.ids(), coo.weights(), begin, end - begin, out, begin);
  });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
