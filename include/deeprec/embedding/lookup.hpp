// The pooled embedding lookup: each bag of ids becomes one row.
//
//   out[b] = finish( sum over slots k of bag b, left to right, of  w[k] * table[ids[k]] )
//
//   ids ──row source──> row addresses ──kernel of this ISA──> sums in registers ──> out (B, D)
//
// Bags of one id each, and concat, are a gather: a copy of rows with a kernel of its own.
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
/// @shape    table (R,D) · bags {offsets (B+1), ids (N), weights (N) or none}, or {ids (B,L)} ·
///           out (B,D), any row stride; with concat (N,D), one row for each slot
/// @dtype    rows: f32, f16, bf16, fp8, int8, int4 or split; out: f32, f16 or bf16; ids and offsets 32 or
///           64 bits; weights f32; sums in f32
/// @space    table, bags and out reachable from the context
/// @pre      out overlaps neither the table nor the bags
/// @post     every row of out is written, unless a policy says otherwise (see pooling.hpp)
/// @numerics slots are added left to right; a bag of more than 4096 ids is added in chunks of 4096, and
///           the chunks by a balanced binary tree. Unweighted: the same bits on every ISA and for any
///           number of threads. Weighted: the same bits for any number of threads; between ISAs
///           |err| <= 2 n u sum|w x|, u = 2^-24, from fused multiplication. NaN and infinity propagate,
///           also through max_. Rows of int8 and int4 codes are added as code * (scale * w), and the biases
///           of a bag apart: between ISAs, weighted or not, |err| <= 2 (n + 2) u sum|w| (scale * code + |bias|)
/// @cost     O(N*D): reads N rows, writes B*D, checks the ids in a pass of its own (bounds mode check).
///           No allocation, but for bags of more than 4096 ids (D floats per 4096 of them), and for row
///           sources that resolve (one pointer per id); both from the context's resource
/// @threads  reentrant; concurrent lookups of one table are safe, a concurrent writer of its rows is not
/// @error    shape_mismatch; offsets_*; id_out_of_range and weight_is_nan with bag and slot (bounds mode
///           check; smallest place; a bad default_row has no bag); unsupported (max_ with weights).
///           On an error nothing is written
/// @example  @snippet tests/embedding/lookup_test.cpp lookup
template <class Context, RowSource Source, BagBatch Bags, class Pooling, class Out, MemorySpace OutSpace,
          class Columns>
[[nodiscard]] status lookup(Context&& context_or_executor, const Source& table, const Bags& bags,
                            const Pooling& how, matrix_view<Out, OutSpace, Columns> out) {
  static_assert(!std::is_const_v<Out>,
                "deeprec::lookup: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(std::is_same_v<Out, float> || std::is_same_v<Out, f16> || std::is_same_v<Out, bf16> ||
                    std::is_const_v<Out>,
                "deeprec::lookup: out of another type. Fix: float, f16 or bf16.");
  const auto ctx = as_context(context_or_executor);
  const auto policies = as_pooling(how);
  using combiner = typename decltype(policies)::combiner;
  if (out.extent(1) != table.format().width()) {
    return {errc::shape_mismatch, "out has another width than the table's rows"};
  }
  if (!std::is_same_v<combiner, concat_t> && out.extent(0) != bags.bags()) {
    return {errc::shape_mismatch, "out has another number of rows than there are bags"};
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "rows of out overlap: its stride is below its width"};
  }
  if (std::is_same_v<combiner, max_t> && bags.weights() != nullptr) {
    return {errc::unsupported, "max_ takes no weights"};
  }
  return backend<verbs::lookup, backend_of<std::remove_const_t<decltype(ctx)>>>::run(
      ctx, table, bags, policies, matrix_view<Out, OutSpace>(out));
}

namespace detail {
// Loops that compilers turn into vector code carry the flags of their unit in their names, as kernels do.
inline namespace DEEPREC_UNIT {

/// The number that counts as absent; -1, which is never valid, when there is none.
template <class Pooling>
constexpr std::int64_t padding_of(const Pooling& how) {
  if constexpr (std::is_same_v<typename Pooling::padding_mode, padding_id>) {
    return how.template get<padding_id>().id;
  } else {
    return -1;
  }
}

/// The first slot in [begin, end) with a bad id or a NaN weight; end when there is none. Where ids are
/// filtered the padding id is not bad.
template <ids_are Ids, class Id>
index_t first_bad_slot(isa which, const Id* ids, const float* weights, index_t begin, index_t end,
                       index_t rows, std::int64_t padding) noexcept {
  bool bad = with_isa_up_to_avx512(
      which, [&](auto region) { return any_bad_id(region, ids, begin, end, rows); });
  if (weights != nullptr) {
    for (index_t k = begin; k < end; ++k) bad |= is_nan(weights[k]);
  }
  if (!bad) [[likely]] return end;
  for (index_t k = begin; k < end; ++k) {
    const bool padded = Ids == ids_are::filtered && static_cast<std::int64_t>(ids[k]) == padding;
    if (is_bad_id(ids[k], rows) && !padded) return k;
    if (weights != nullptr && is_nan(weights[k])) return k;
  }
  return end;
}

/// The bag that holds a slot: the last one that begins at or before it.
template <class Borders>
index_t bag_of_slot(const Borders& borders, index_t bags, index_t slot) noexcept {
  index_t low = 0;
  for (index_t high = bags; high - low > 1;) {
    const index_t middle = low + (high - low) / 2;
    (borders.begin(middle) <= slot ? low : high) = middle;
  }
  return low;
}

/// Checks every id and weight of a batch; the answer names the smallest slot.
template <class Pooling, class Context, class Bags>
status check_slots(const Context& ctx, const Bags& bags, index_t rows, const Pooling& how) {
  constexpr ids_are ids = kernel_policy<Pooling>::ids;
  const std::int64_t padding = padding_of(how);
  const index_t begin = bags.first_slot();
  const index_t count = bags.last_slot() - begin;
  constexpr index_t none = (std::numeric_limits<index_t>::max)();
  std::atomic<index_t> smallest{none};
  ctx.executor->parallel_for(count, index_t{1} << 16, [&](index_t from, index_t to, int) {
    const index_t bad =
        first_bad_slot<ids>(ctx.instruction_set, bags.ids(), bags.weights(), begin + from, begin + to,
                            rows, padding);
    if (bad == begin + to) return;
    index_t seen = smallest.load(std::memory_order_relaxed);
    while (bad < seen && !smallest.compare_exchange_weak(seen, bad, std::memory_order_relaxed)) {
    }
  });
  const index_t slot = smallest.load(std::memory_order_relaxed);
  if (slot == none) return {};
  const auto id = bags.ids()[slot];
  const bool is_id =
      is_bad_id(id, rows) && !(ids == ids_are::filtered && static_cast<std::int64_t>(id) == padding);
  return {is_id ? errc::id_out_of_range : errc::weight_is_nan,
          {.bag = bag_of_slot(bags.borders(), bags.bags(), slot),
           .slot = slot,
           .value = static_cast<std::int64_t>(id)}};
}

/// A bag that pool_bags leaves out: its chunks as bags of their own, then a balanced tree over them.
template <class Element, class Policy, class Context, class Rows, class Id, class Borders, class Out>
index_t pool_long_bag(const Context& ctx, const pool_args<Rows, Id, Borders, Out>& args, index_t bag) {
  const index_t begin = args.borders.begin(bag);
  const index_t end = args.borders.end(bag);
  const index_t chunks = (end - begin + chunk_slots - 1) / chunk_slots;
  std::pmr::vector<float> folded(static_cast<std::size_t>(chunks * args.width), ctx.memory);
  std::pmr::vector<index_t> offsets(static_cast<std::size_t>(chunks) + 1, ctx.memory);
  for (index_t c = 0; c <= chunks; ++c) {
    offsets[static_cast<std::size_t>(c)] = (std::min)(end, begin + c * chunk_slots);
  }
  pool_args<Rows, Id, offset_borders<index_t>, float> part{};
  part.row_of = args.row_of;
  part.ids = args.ids;
  part.borders = {offsets.data(), -1, -1};
  part.weights = args.weights;
  part.rows = args.rows;
  part.padding = args.padding;
  part.width = args.width;
  part.last_slot = args.last_slot;
  part.parts = args.parts;
  part.out = folded.data();
  part.out_stride = args.width;
  part.divide = divide_by::one;
  // A chunk of absent ids only must not change a maximum.
  part.empty = Policy::folding == fold::maximum ? when_empty::identity : when_empty::zeros;
  part.stored = when_stored::overwrite;
  ctx.executor->parallel_for(chunks, 1, [&](index_t first, index_t last, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      return pool_bags<Element>(region, Policy{}, part, first, last);
    });
  });
  for (index_t step = 1; step < chunks; step *= 2) {
    for (index_t c = 0; c + step < chunks; c += 2 * step) {
      float* left = folded.data() + c * args.width;
      const float* right = folded.data() + (c + step) * args.width;
      for (index_t j = 0; j < args.width; ++j) {
        if constexpr (Policy::folding == fold::maximum) {
          left[j] = is_nan(left[j]) || left[j] > right[j] ? left[j] : right[j];
        } else {
          left[j] += right[j];
        }
      }
    }
  }
  pool_counts counts;
  for (index_t slot = begin; slot < end; ++slot) {
    if (Policy::ids == ids_are::filtered && is_absent(args.ids[slot], args.rows, args.padding)) continue;
    counts.add(args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[slot]));
  }
  Out* const out = args.out + bag * args.out_stride;
  if (counts.used == 0 && args.empty == when_empty::keep) return 0;
  if (counts.used == 0 && args.empty == when_empty::default_row) {
    for (index_t j = 0; j < args.width; ++j) {
      folded[static_cast<std::size_t>(j)] = stored_value<Element>::at(args.default_row, args.parts, j);
    }
  }
  const double divisor = counts.used == 0 ? 1.0 : counts.divisor(args.divide);
  const bool to_zero =
      divisor == 0.0 || (counts.used == 0 && args.empty == when_empty::zeros);
  for (index_t j = 0; j < args.width; ++j) {
    const float total = folded[static_cast<std::size_t>(j)];
    float pooled = to_zero ? 0.0F : total / static_cast<float>(divisor);
    if (args.stored == when_stored::accumulate) pooled = static_cast<float>(out[j]) + pooled;
    out[j] = static_cast<Out>(pooled);
  }
  return counts.used;
}

}  // namespace DEEPREC_UNIT
}  // namespace detail

template <>
struct backend<verbs::lookup, host_backend> {
  template <class Context, class Source, class Bags, class Pooling, class Out, MemorySpace OutSpace>
  static status run(const Context& ctx, const Source& table, const Bags& bags, const Pooling& how,
                    matrix_view<Out, OutSpace> out) {
    static_assert(reachable_as<typename Bags::space, host_space> && reachable_as<OutSpace, host_space> &&
                      reachable_as<typename Source::space, host_space>,
                  "deeprec::lookup: device memory given to a host context. Fix: copy it, or pass a "
                  "device context.");
    const bool one_each = bags.one_each();
    if (!one_each) {
      if (const status s = bags.validate(); !s) return s;
    }
    const index_t slots = bags.last_slot() - bags.first_slot();
    if (is_concat<Pooling> && out.extent(0) != slots) {
      return {errc::shape_mismatch, "out has another number of rows than there are ids"};
    }
    if constexpr (std::is_same_v<typename Pooling::empty_mode, default_row>) {
      const std::int64_t id = how.template get<default_row>().id;
      if (detail::is_bad_id(id, table.rows())) {
        return {errc::id_out_of_range, "the default row", {.value = id}};
      }
    }
    if (out.empty()) return {};
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, check_t>) {
      if (const status s = detail::check_slots(ctx, bags, table.rows(), how); !s) return s;
    }
    if constexpr (DirectRowSource<Source>) {
      return pool(ctx, table, bags, one_each, how, out,
                  detail::direct_rows<typename Bags::id_type>{
                      table.data(), table.format().stride_bytes(), bags.ids()});
    } else {
      static_assert(ResolvingRowSource<Source, typename Bags::id_type>,
                    "deeprec::lookup: not a row source. Fix: give it data(), or resolve(ids, n, "
                    "addresses) (see deeprec/embedding/table_view.hpp).");
      const index_t first = bags.first_slot();
      std::pmr::vector<const std::byte*> addresses(static_cast<std::size_t>(slots), ctx.memory);
      ctx.executor->parallel_for(slots, detail::chunk_slots, [&](index_t begin, index_t end, int) {
        resolve_present(table, how, bags.ids() + first + begin, end - begin, addresses.data() + begin);
      });
      return pool(ctx, table, bags, one_each, how, out,
                  detail::resolved_rows{addresses.data(), first});
    }
  }

 private:
  template <class Pooling>
  static constexpr bool is_concat = std::is_same_v<typename Pooling::combiner, concat_t>;

  // A source is not asked about absent ids; the kernels don't look at their addresses.
  template <class Source, class Pooling, class Id>
  static void resolve_present(const Source& table, const Pooling& how, const Id* ids, index_t n,
                              const std::byte** addresses) {
    if constexpr (detail::kernel_policy<Pooling>::ids == detail::ids_are::filtered) {
      const std::int64_t padding = detail::padding_of(how);
      for (index_t begin = 0; begin < n;) {
        index_t end = begin;
        while (end < n && !detail::is_absent(ids[end], table.rows(), padding)) ++end;
        if (end > begin) table.resolve(ids + begin, end - begin, addresses + begin);
        begin = end + 1;
      }
    } else {
      table.resolve(ids, n, addresses);
    }
  }

  // The address of the default row; null when none is asked for.
  template <class Source, class Pooling>
  static const std::byte* default_row_of(const Source& table, const Pooling& how) {
    const std::byte* row = nullptr;
    if constexpr (std::is_same_v<typename Pooling::empty_mode, default_row>) {
      const std::int64_t id = how.template get<default_row>().id;
      if constexpr (DirectRowSource<Source>) {
        row = table.data() + id * table.format().stride_bytes();
      } else {
        table.resolve(&id, 1, &row);
      }
    }
    return row;
  }

  template <class Context, class Source, class Bags, class Pooling, class Out, class Rows>
  static status pool(const Context& ctx, const Source& table, const Bags& bags, bool one_each,
                     const Pooling& how, matrix_view<Out> out, const Rows& rows) {
    using element = typename Source::format_type::element;
    using policy = detail::kernel_policy<Pooling>;
    using combiner = typename Pooling::combiner;
    using borders = decltype(bags.borders());
    detail::pool_args<Rows, typename Bags::id_type, borders, Out> args{};
    args.row_of = rows;
    args.ids = bags.ids();
    args.borders = bags.borders();
    args.weights = bags.weights();
    args.rows = table.rows();
    args.padding = detail::padding_of(how);
    args.width = table.format().width();
    args.last_slot = bags.last_slot();
    args.default_row = default_row_of(table, how);
    args.parts = detail::parts_of(table.format());
    args.out = out.data_handle();
    args.out_stride = out.stride(0);
    args.divide = detail::divisor_of<combiner>();
    args.empty = detail::empty_of<Pooling>();
    args.stored = detail::stored_of<Pooling>();

    const index_t first = bags.first_slot();
    const index_t slots = bags.last_slot() - first;
    std::atomic<index_t> used{0};
    // A mean over one weighted id is no copy; everything else over one id is.
    const bool copies = is_concat<Pooling> ||
                        (one_each &&
                         (args.weights == nullptr || args.divide == detail::divide_by::one));
    if (copies) {
      ctx.executor->parallel_for(slots, detail::chunk_slots, [&](index_t begin, index_t end, int) {
        used.fetch_add(with_isa_up_to_avx512(ctx.instruction_set,
                                             [&](auto region) {
                                               return gather_slots<element>(region, policy{}, args,
                                                                            first + begin, first + end,
                                                                            first);
                                             }),
                       std::memory_order_relaxed);
      });
    } else {
      // Pieces of about 4096 ids. A bag's bits don't depend on the piece it falls in.
      const index_t grain = std::clamp<index_t>(
          slots > 0 ? bags.bags() * detail::chunk_slots / slots : bags.bags(), 1, detail::chunk_slots);
      ctx.executor->parallel_for(bags.bags(), grain, [&](index_t begin, index_t end, int) {
        used.fetch_add(with_isa_up_to_avx512(ctx.instruction_set,
                                             [&](auto region) {
                                               return pool_bags<element>(region, policy{}, args, begin,
                                                                         end);
                                             }),
                       std::memory_order_relaxed);
      });
      if (slots > detail::chunk_slots) {
        for (index_t bag = 0; bag < bags.bags(); ++bag) {
          if (args.borders.end(bag) - args.borders.begin(bag) > detail::chunk_slots) {
            used += detail::pool_long_bag<element, policy>(ctx, args, bag);
          }
        }
      }
    }
    count_skipped(bags, how, args.rows, slots - used.load());
    return {};
  }

  // Absent slots are bad ids, or padding, which is not counted.
  template <class Bags, class Pooling>
  static void count_skipped(const Bags& bags, const Pooling& how, index_t rows, index_t absent) {
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, skip_t>) {
      index_t* const counter = how.template get<skip_t>().skipped;
      if (counter == nullptr || absent == 0) return;
      if constexpr (std::is_same_v<typename Pooling::padding_mode, padding_id>) {
        const std::int64_t padding = detail::padding_of(how);
        for (index_t k = bags.first_slot(); k < bags.last_slot(); ++k) {
          *counter += detail::is_bad_id(bags.ids()[k], rows) &&
                              static_cast<std::int64_t>(bags.ids()[k]) != padding
                          ? 1
                          : 0;
        }
      } else {
        *counter += absent;
      }
    }
  }
};

}  // namespace deeprec::inline DEEPREC_ABI
