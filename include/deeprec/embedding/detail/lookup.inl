// The lookup kernels, compiled once for each region. No include guard: see lookup_kernels.hpp.
//
// A row is W vectors: W - 1 at multiples of `lanes`, the last one overlapped so that it ends with the
// row (its columns are computed twice, with the same bits). Rows shorter than a vector use masks. Wider
// rows than max_vectors go panel by panel over the same ids.

inline constexpr int max_vectors = 8;

// Rows ahead of the current slot, counted in cache lines in flight rather than in rows.
DEEPREC_INLINE index_t prefetch_distance(index_t row_bytes) {
  const index_t lines = (row_bytes + 63) / 64;
  const index_t ahead = 128 / (lines > 0 ? lines : 1);
  return ahead < 8 ? 8 : ahead > 64 ? 64 : ahead;
}

DEEPREC_INLINE void prefetch_row(const std::byte* row, index_t row_bytes) {
  const std::byte* const end = row + row_bytes;
  for (const std::byte* line = row; line < end; line += 64) __builtin_prefetch(line, 0, 3);
  __builtin_prefetch(end - 1, 0, 3);  // a row that is not aligned touches one line more
}

// Columns [first, first + W vectors) of a panel; the last vector begins at `last`.
template <class Element, bool Narrow>
struct panel {
  index_t first;
  index_t last;
  int narrow;  // columns of a row shorter than a vector

  template <std::size_t W, std::size_t V>
  DEEPREC_INLINE index_t column() const {
    return V + 1 == W ? last : first + static_cast<index_t>(V) * lanes;
  }
  template <std::size_t W, std::size_t V>
  DEEPREC_INLINE vector_f32 load_from(const std::byte* row) const {
    const auto* element =
        static_cast<const Element*>(static_cast<const void*>(row)) + column<W, V>();
    if constexpr (Narrow) {
      return load_first(element, narrow);
    } else {
      return load(element);
    }
  }
  template <std::size_t W, std::size_t V, class Out>
  DEEPREC_INLINE void store_to(Out* out, vector_f32 x) const {
    if constexpr (Narrow) {
      store_first(out + column<W, V>(), x, narrow);
    } else {
      store(out + column<W, V>(), x);
    }
  }
};

// One bag, one panel of columns: the slots [begin, end) added up in registers, divided and stored.
// Returns the ids used.
template <class Bounds, bool Weighted, class Panel, class Args, std::size_t... V>
DEEPREC_INLINE index_t pool_panel(const Args& args, const Panel columns, index_t begin, index_t end,
                                  index_t bag, std::index_sequence<V...>) {
  constexpr std::size_t W = sizeof...(V);
  constexpr bool skipping = std::is_same_v<Bounds, skip_t>;
  vector_f32 total[W] = {(static_cast<void>(V), zero())...};
  ::deeprec::detail::pool_counts counts;
  const index_t ahead = prefetch_distance(args.row_bytes);
  for (index_t slot = begin; slot < end; ++slot) {
    if (columns.first == 0 && slot + ahead < args.last_slot &&
        !(skipping && ::deeprec::detail::is_bad_id(args.ids[slot + ahead], args.rows))) {
      prefetch_row(args.row_of(slot + ahead), args.row_bytes);
    }
    if (skipping && ::deeprec::detail::is_bad_id(args.ids[slot], args.rows)) continue;
    const std::byte* const row = args.row_of(slot);
    if constexpr (Weighted) {
      const vector_f32 weight = splat(args.weights[slot]);
      ((total[V] = multiply_add(columns.template load_from<W, V>(row), weight, total[V])), ...);
      counts.weight_sum += static_cast<double>(args.weights[slot]);
    } else {
      ((total[V] = total[V] + columns.template load_from<W, V>(row)), ...);
    }
    ++counts.used;
  }
  if (args.divide != ::deeprec::detail::divide_by::one) {
    if constexpr (!Weighted) counts.weight_sum = static_cast<double>(counts.used);
    const double divisor = counts.divisor(args.divide);
    if (divisor == 0.0) {
      ((total[V] = zero()), ...);
    } else {
      const vector_f32 by = splat(static_cast<float>(divisor));
      ((total[V] = total[V] / by), ...);
    }
  }
  auto* const out = args.out + bag * args.out_stride;
  (columns.template store_to<W, V>(out, total[V]), ...);
  return counts.used;
}

// The bags [begin, end) of rows of W vectors; W = 0: more than max_vectors, Narrow: less than one.
template <class Element, class Bounds, bool Weighted, int W, bool Narrow, class Args>
index_t pool_rows(const Args& args, index_t begin, index_t end) {
  using columns = panel<Element, Narrow>;
  index_t used = 0;
  for (index_t bag = begin; bag < end; ++bag) {
    const auto first = static_cast<index_t>(args.offsets[bag]);
    const auto last = static_cast<index_t>(args.offsets[bag + 1]);
    if (last - first > ::deeprec::detail::chunk_slots) continue;  // the caller cuts it into chunks
    if constexpr (W > 0) {
      used += pool_panel<Bounds, Weighted>(
          args, columns{0, Narrow ? 0 : args.width - lanes, static_cast<int>(args.width)}, first, last,
          bag, std::make_index_sequence<static_cast<std::size_t>(W)>{});
    } else {
      constexpr index_t step = index_t{max_vectors} * lanes;
      index_t used_here = 0;
      for (index_t column = 0; column < args.width; column += step) {
        // The last panel is moved back so that it ends with the row.
        const index_t from = column + step <= args.width ? column : args.width - step;
        used_here =
            pool_panel<Bounds, Weighted>(args, columns{from, from + step - lanes, 0}, first, last, bag,
                                         std::make_index_sequence<max_vectors>{});
      }
      used += used_here;
    }
  }
  return used;
}

template <class Element, class Bounds, bool Weighted, class Args>
index_t pool_width(const Args& args, index_t begin, index_t end) {
  if (args.width < lanes) return pool_rows<Element, Bounds, Weighted, 1, true>(args, begin, end);
  switch ((args.width + lanes - 1) / lanes) {
    case 1: return pool_rows<Element, Bounds, Weighted, 1, false>(args, begin, end);
    case 2: return pool_rows<Element, Bounds, Weighted, 2, false>(args, begin, end);
    case 3: return pool_rows<Element, Bounds, Weighted, 3, false>(args, begin, end);
    case 4: return pool_rows<Element, Bounds, Weighted, 4, false>(args, begin, end);
    case 5: return pool_rows<Element, Bounds, Weighted, 5, false>(args, begin, end);
    case 6: return pool_rows<Element, Bounds, Weighted, 6, false>(args, begin, end);
    case 7: return pool_rows<Element, Bounds, Weighted, 7, false>(args, begin, end);
    case 8: return pool_rows<Element, Bounds, Weighted, 8, false>(args, begin, end);
    default: return pool_rows<Element, Bounds, Weighted, 0, false>(args, begin, end);
  }
}

/// Pools the bags [begin, end), all but those of more than chunk_slots ids; returns the ids used.
/// Bounds: skip_t leaves bad ids out; anything else relies on there being none.
template <class Element, class Bounds, class Args>
index_t pool_bags(region, Bounds, const Args& args, index_t begin, index_t end) {
  return args.weights != nullptr ? pool_width<Element, Bounds, true>(args, begin, end)
                                 : pool_width<Element, Bounds, false>(args, begin, end);
}
