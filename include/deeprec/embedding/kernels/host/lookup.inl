// The lookup kernels, compiled once for each region. No include guard: see simd/foreach_region.hpp.

#include <deeprec/embedding/kernels/host/row_panels.inl>

#include <deeprec/embedding/kernels/host/copy_rows.inl>

#include <deeprec/embedding/kernels/host/pool_rows.inl>

/// The kernels of rows of an Element; Args is a pool_args. Those of `pool` return the number of ids used, and
/// with `fetches` prefetch the first rows, which no earlier position prefetches.
template <class Element, class Args>
struct lookup_kernels {
  /// Prefetches the rows of the first positions from `position` on.
  static void fetch(const Args& args, index_t position);
  /// Sums the bags [begin, end) except those of more than chunk_positions ids.
  static index_t pool(const Args& args, index_t begin, index_t end, index_t, bool fetches);
  /// The same, for their maximum.
  static index_t pool_maximum(const Args& args, index_t begin, index_t end, index_t, bool fetches);
  /// Copies the rows of the positions [begin, end) to the rows [begin - base, end - base) of out.
  static index_t gather(const Args& args, index_t begin, index_t end, index_t base, bool fetches);
};

template <class Element, class Args>
void lookup_kernels<Element, Args>::fetch(const Args& args, index_t position) {
  constexpr index_t widest = index_t{max_vectors} * lanes;
  const auto columns = columns_of<Element>(args, 0, args.width < widest ? args.width : widest);
  fetch_rows(args, columns, columns.rows_ahead(args), position);
}

template <class Element, class Args>
index_t lookup_kernels<Element, Args>::pool(const Args& args, index_t begin, index_t end, index_t,
                                            bool fetches) {
  return begin < end ? pool_panels<::deeprec::detail::fold::add, Element>(args, begin, end, fetches) : 0;
}

template <class Element, class Args>
index_t lookup_kernels<Element, Args>::pool_maximum(const Args& args, index_t begin, index_t end, index_t,
                                                    bool fetches) {
  return begin < end ? pool_panels<::deeprec::detail::fold::maximum, Element>(args, begin, end, fetches) : 0;
}

template <class Element, class Args>
index_t lookup_kernels<Element, Args>::gather(const Args& args, index_t begin, index_t end, index_t base,
                                              bool fetches) {
  if (end - begin != 1 || end < args.end_position || args.filters || args.max_norm > 0) {
    return gather_positions<Element>(args, begin, end, base, fetches);
  }
  // One row and none after it: what a loop prepares would take longer than the row.
  copy_row<Element>(args, 0, args.width, args.row_of(begin),
                    args.weights == nullptr ? 1.0F : args.weights[begin],
                    args.out + (begin - base) * args.out_stride);
  return 1;
}

/// lookup_kernels of this region, for decltype.
template <class Element, class Args>
lookup_kernels<Element, Args> lookup_kernels_of(region, const Args&);

/// Pools the bags [begin, end) except those of more than chunk_positions ids; returns the number of ids used.
template <class Element, class Policy, class Args>
index_t pool_bags(region, Policy, const Args& args, index_t begin, index_t end) {
  if constexpr (Policy::folding == ::deeprec::detail::fold::maximum) {
    return lookup_kernels<Element, Args>::pool_maximum(args, begin, end, 0, false);
  } else {
    return lookup_kernels<Element, Args>::pool(args, begin, end, 0, false);
  }
}

/// True when one of the ids [begin, end) is outside [0, rows). When the top bit of last = rows - 1 is clear,
/// an id is bad exactly when its own top bit (negative) or that of last - id (too large) is set.
template <class Id>
bool any_bad_id(region, const Id* ids, index_t begin, index_t end, index_t rows) {
  using number = std::make_unsigned_t<decltype(::deeprec::detail::id_number(*ids))>;
  typedef number block __attribute__((vector_size(64)));
  constexpr index_t step = 64 / index_t{sizeof(Id)};
  constexpr auto half = static_cast<std::uint64_t>((std::numeric_limits<std::make_signed_t<number>>::max)());
  const auto last = static_cast<std::uint64_t>(rows) - 1;  // rows = 0: no id is valid, all bits set
  index_t k = begin;
  bool any = false;
  if (std::is_integral_v<Id> && rows > 0 && (std::is_signed_v<Id> || last <= half)) {
    const block limit = block{} + static_cast<number>(last <= half ? last : half);
    block bad = {};
    for (; k + step <= end; k += step) {
      block x;
      __builtin_memcpy(&x, ids + k, 64);
      bad |= (limit - x) | x;
    }
    for (index_t lane = 0; lane < step; ++lane) any |= bad[lane] > static_cast<number>(half);
  }
  for (; k < end; ++k) any |= ::deeprec::detail::is_bad_id(::deeprec::detail::id_number(ids[k]), rows);
  return any;
}
