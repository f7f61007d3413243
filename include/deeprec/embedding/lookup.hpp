// The pooled embedding lookup: each bag of ids becomes one row.
//
//   out[b] = finish( sum over slots k of bag b, left to right, of  w[k] * table[ids[k]] )
//
//   ids ──row source──> row addresses ──kernel of this ISA──> sums in registers ──> out (B, D)
//
// One verb for every backend; include lookup.cuh for device contexts. See pooling.hpp for combiners and
// policies. Not here: many tables in one call, gradients.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/detail/lookup_kernels.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/table_view.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec::inline DEEPREC_ABI {

namespace verbs {
struct lookup {};
}

/// Pools the rows of each bag.
///
/// @shape    table (R,D) · bags {offsets (B+1), ids (N), weights (N) or none} · out (B,D), any row stride
/// @dtype    rows and out: f32, f16 or bf16, independently; ids and offsets 32 or 64 bits; weights f32;
///           sums in f32
/// @space    table, bags and out reachable from the context
/// @pre      out overlaps neither the table nor the bags
/// @post     every row of out is written; empty bags become zeros (see pooling.hpp)
/// @numerics slots are added left to right; a bag of more than 4096 ids is added in chunks of 4096, and
///           the chunks by a balanced binary tree. Unweighted: the same bits on every ISA and for any
///           number of threads. Weighted: the same bits for any number of threads; between ISAs
///           |err| <= 2 n u sum|w x|, u = 2^-24, from fused multiplication. NaN and infinity propagate
/// @cost     O(N*D): reads N rows, writes B*D, checks the ids in a pass of its own (bounds mode check).
///           No allocation, but for bags of more than 4096 ids (D floats per 4096 of them), and for row
///           sources that resolve (one pointer per id); both from the context's resource
/// @threads  reentrant; concurrent lookups of one table are safe, a concurrent writer of its rows is not
/// @error    shape_mismatch; offsets_*; id_out_of_range and weight_is_nan with bag and slot (bounds mode
///           check; smallest place). On an error nothing is written
/// @example  @snippet tests/embedding/lookup_test.cpp lookup
template <class Context, RowSource Source, class Id, class Offset, MemorySpace BagSpace, class Pooling,
          class Out, MemorySpace OutSpace, class Columns>
[[nodiscard]] status lookup(Context&& context_or_executor, const Source& table,
                            const jagged_view<Id, Offset, BagSpace>& bags, const Pooling& how,
                            matrix_view<Out, OutSpace, Columns> out) {
  static_assert(!std::is_const_v<Out>,
                "deeprec::lookup: out is read only. Fix: matrix_view<float>, not <const float>.");
  const auto ctx = as_context(context_or_executor);
  if (out.extent(1) != table.format().width()) {
    return {errc::shape_mismatch, "out has another width than the table's rows"};
  }
  if (out.extent(0) != bags.bags()) {
    return {errc::shape_mismatch, "out has another number of rows than there are bags"};
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "rows of out overlap: its stride is below its width"};
  }
  return backend<verbs::lookup, backend_of<std::remove_const_t<decltype(ctx)>>>::run(
      ctx, table, bags, as_pooling(how), matrix_view<Out, OutSpace>(out));
}

namespace detail {

/// The first slot in [begin, end) with a bad id or a NaN weight; end when there is none.
template <class Id>
index_t first_bad_slot(const Id* ids, const float* weights, index_t begin, index_t end,
                       index_t rows) noexcept {
  bool bad = false;
  for (index_t k = begin; k < end; ++k) bad |= is_bad_id(ids[k], rows);
  if (weights != nullptr) {
    for (index_t k = begin; k < end; ++k) bad |= is_nan(weights[k]);
  }
  if (!bad) [[likely]] return end;
  for (index_t k = begin; k < end; ++k) {
    if (is_bad_id(ids[k], rows) || (weights != nullptr && is_nan(weights[k]))) return k;
  }
  return end;
}

/// Checks every id and weight of a batch; the answer names the smallest slot.
template <class Context, class Id, class Offset>
status check_slots(const Context& ctx, const jagged_view<Id, Offset>& bags, index_t rows) {
  const index_t begin = bags.first_slot();
  const index_t count = bags.last_slot() - begin;
  constexpr index_t none = (std::numeric_limits<index_t>::max)();
  std::atomic<index_t> smallest{none};
  ctx.executor->parallel_for(count, index_t{1} << 16, [&](index_t from, index_t to, int) {
    const index_t bad =
        first_bad_slot(bags.ids(), bags.weights(), begin + from, begin + to, rows);
    if (bad == begin + to) return;
    index_t seen = smallest.load(std::memory_order_relaxed);
    while (bad < seen && !smallest.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
    }
  });
  const index_t slot = smallest.load(std::memory_order_relaxed);
  if (slot == none) return {};
  const Offset* after = std::upper_bound(bags.offsets(), bags.offsets() + bags.bags() + 1,
                                         static_cast<Offset>(slot));
  const fault_place place{.bag = static_cast<index_t>(after - bags.offsets()) - 1,
                          .slot = slot,
                          .value = static_cast<std::int64_t>(bags.ids()[slot])};
  return {is_bad_id(bags.ids()[slot], rows) ? errc::id_out_of_range : errc::weight_is_nan, place};
}

/// Kernels know two bounds modes: bad ids are left out, or there are none.
template <class Bounds>
using kernel_bounds = std::conditional_t<std::is_same_v<Bounds, skip_t>, skip_t, assume_valid_t>;

/// A bag that pool_bags leaves out: its chunks as bags of their own, then a balanced tree over their sums.
template <class Element, class Bounds, class Context, class Rows, class Id, class Offset, class Out>
index_t pool_long_bag(const Context& ctx, const pool_args<Rows, Id, Offset, Out>& args, index_t bag) {
  const auto begin = static_cast<index_t>(args.offsets[bag]);
  const auto end = static_cast<index_t>(args.offsets[bag + 1]);
  const index_t chunks = (end - begin + chunk_slots - 1) / chunk_slots;
  std::pmr::vector<float> sums(static_cast<std::size_t>(chunks * args.width), ctx.memory);
  std::pmr::vector<Offset> borders(static_cast<std::size_t>(chunks) + 1, ctx.memory);
  for (index_t c = 0; c <= chunks; ++c) {
    borders[static_cast<std::size_t>(c)] =
        static_cast<Offset>((std::min)(end, begin + c * chunk_slots));
  }
  const pool_args<Rows, Id, Offset, float> part{
      args.row_of,    args.ids,       borders.data(), args.weights, args.rows,     args.width,
      args.row_bytes, args.last_slot, sums.data(),    args.width,   divide_by::one};
  ctx.executor->parallel_for(chunks, 1, [&](index_t first, index_t last, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      return pool_bags<Element>(region, kernel_bounds<Bounds>{}, part, first, last);
    });
  });
  for (index_t step = 1; step < chunks; step *= 2) {
    for (index_t c = 0; c + step < chunks; c += 2 * step) {
      float* left = sums.data() + c * args.width;
      const float* right = sums.data() + (c + step) * args.width;
      for (index_t j = 0; j < args.width; ++j) left[j] += right[j];
    }
  }
  pool_counts counts;
  for (index_t slot = begin; slot < end; ++slot) {
    if (std::is_same_v<Bounds, skip_t> && is_bad_id(args.ids[slot], args.rows)) continue;
    ++counts.used;
    counts.weight_sum += args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[slot]);
  }
  const double divisor = counts.divisor(args.divide);
  Out* out = args.out + bag * args.out_stride;
  for (index_t j = 0; j < args.width; ++j) {
    const float total = sums[static_cast<std::size_t>(j)];
    out[j] = static_cast<Out>(divisor == 0.0 ? 0.0F : total / static_cast<float>(divisor));
  }
  return counts.used;
}

}  // namespace detail

template <>
struct backend<verbs::lookup, host_backend> {
  template <class Context, class Source, class Id, class Offset, MemorySpace BagSpace, class Pooling,
            class Out, MemorySpace OutSpace>
  static status run(const Context& ctx, const Source& table,
                    const jagged_view<Id, Offset, BagSpace>& device_or_host_bags, const Pooling& how,
                    matrix_view<Out, OutSpace> device_or_host_out) {
    static_assert(reachable_as<BagSpace, host_space> && reachable_as<OutSpace, host_space> &&
                      reachable_as<typename Source::space, host_space>,
                  "deeprec::lookup: device memory given to a host context. Fix: copy it, or pass a "
                  "device context.");
    const jagged_view<Id, Offset> bags(device_or_host_bags);
    const matrix_view<Out> out(device_or_host_out);
    if (const status s = bags.validate(); !s) return s;
    if (out.empty()) return {};
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, check_t>) {
      if (const status s = detail::check_slots(ctx, bags, table.rows()); !s) return s;
    }
    if constexpr (DirectRowSource<Source>) {
      return pool(ctx, table, bags, how, out,
                  detail::direct_rows<Id>{table.data(), table.format().stride_bytes(), bags.ids()});
    } else {
      static_assert(ResolvingRowSource<Source, Id>,
                    "deeprec::lookup: not a row source. Fix: give it data(), or resolve(ids, n, "
                    "addresses) (see deeprec/embedding/table_view.hpp).");
      const index_t first = bags.first_slot();
      const index_t count = bags.last_slot() - first;
      std::pmr::vector<const std::byte*> addresses(static_cast<std::size_t>(count), ctx.memory);
      ctx.executor->parallel_for(count, detail::chunk_slots, [&](index_t begin, index_t end, int) {
        resolve_valid<typename Pooling::bounds_mode>(table, bags.ids() + first + begin, end - begin,
                                                     addresses.data() + begin);
      });
      return pool(ctx, table, bags, how, out, detail::resolved_rows{addresses.data(), first});
    }
  }

 private:
  // In skip mode a source is not asked about bad ids; the kernels don't look at their addresses.
  template <class Bounds, class Source, class Id>
  static void resolve_valid(const Source& table, const Id* ids, index_t n,
                            const std::byte** addresses) {
    if constexpr (std::is_same_v<Bounds, skip_t>) {
      for (index_t begin = 0; begin < n;) {
        index_t end = begin;
        while (end < n && !detail::is_bad_id(ids[end], table.rows())) ++end;
        if (end > begin) table.resolve(ids + begin, end - begin, addresses + begin);
        begin = end + 1;
      }
    } else {
      table.resolve(ids, n, addresses);
    }
  }

  template <class Context, class Source, class Id, class Offset, class Pooling, class Out, class Rows>
  static status pool(const Context& ctx, const Source& table, const jagged_view<Id, Offset>& bags,
                     const Pooling& how, matrix_view<Out> out, const Rows& rows) {
    using element = typename Source::format_type::element;
    using bounds_mode = typename Pooling::bounds_mode;
    const detail::pool_args<Rows, Id, Offset, Out> args{
        rows,          bags.ids(),          bags.offsets(),
        bags.weights(), table.rows(),       table.format().width(),
        table.format().row_bytes(),         bags.last_slot(),
        out.data_handle(), out.stride(0),
        detail::divisor_of<typename Pooling::combiner>()};
    const index_t slots = bags.last_slot() - bags.first_slot();
    // Pieces of about 4096 ids. A bag's bits don't depend on the piece it falls in.
    const index_t grain = std::clamp<index_t>(
        slots > 0 ? bags.bags() * detail::chunk_slots / slots : bags.bags(), 1, detail::chunk_slots);
    std::atomic<index_t> used{0};
    ctx.executor->parallel_for(bags.bags(), grain, [&](index_t begin, index_t end, int) {
      const index_t part = with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
        return pool_bags<element>(region, detail::kernel_bounds<bounds_mode>{}, args, begin, end);
      });
      used.fetch_add(part, std::memory_order_relaxed);
    });
    if (slots > detail::chunk_slots) {
      for (index_t bag = 0; bag < bags.bags(); ++bag) {
        if (static_cast<index_t>(args.offsets[bag + 1]) - static_cast<index_t>(args.offsets[bag]) >
            detail::chunk_slots) {
          used += detail::pool_long_bag<element, bounds_mode>(ctx, args, bag);
        }
      }
    }
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, skip_t>) {
      if (how.bounds.skipped != nullptr) *how.bounds.skipped += slots - used.load();
    }
    return {};
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
