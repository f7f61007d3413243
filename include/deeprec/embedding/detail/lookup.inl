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

// Adds up the slots [begin, end) of one bag, one panel of columns, and stores sum / denominator, or the
// bare sum for a partial result (Finish = false).
template <class Pooling, bool Weighted, bool Finish, class Panel, class Args, class Out, std::size_t... V>
DEEPREC_INLINE ::deeprec::detail::pool_counts pool_panel(const Args& args, const Panel columns,
                                                         index_t begin, index_t end, Out* out,
                                                         std::index_sequence<V...>) {
  constexpr std::size_t W = sizeof...(V);
  vector_f32 total[W] = {(static_cast<void>(V), zero())...};
  ::deeprec::detail::pool_counts counts;
  const index_t ahead = prefetch_distance(args.row_bytes);
  for (index_t slot = begin; slot < end; ++slot) {
    if (columns.first == 0 && slot + ahead < args.last_slot) {
      if constexpr (std::is_same_v<typename Pooling::bounds_mode, skip_t>) {
        if (!::deeprec::detail::is_bad_id(args.ids[slot + ahead], args.rows)) {
          prefetch_row(args.row_of(slot + ahead), args.row_bytes);
        }
      } else {
        prefetch_row(args.row_of(slot + ahead), args.row_bytes);
      }
    }
    if constexpr (std::is_same_v<typename Pooling::bounds_mode, skip_t>) {
      if (::deeprec::detail::is_bad_id(args.ids[slot], args.rows)) continue;
    }
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
  if constexpr (!Weighted) counts.weight_sum = static_cast<double>(counts.used);
  if constexpr (Finish && !std::is_same_v<typename Pooling::combiner, sum_t>) {
    const double divisor = ::deeprec::detail::denominator<typename Pooling::combiner>(counts);
    if (divisor == 0.0) {
      ((total[V] = zero()), ...);
    } else {
      const vector_f32 by = splat(static_cast<float>(divisor));
      ((total[V] = total[V] / by), ...);
    }
  }
  (columns.template store_to<W, V>(out, total[V]), ...);
  return counts;
}

// All columns of the slots [begin, end).
template <class Pooling, bool Weighted, bool Finish, class Element, int W, bool Narrow, class Args, class Out>
DEEPREC_INLINE ::deeprec::detail::pool_counts pool_range(const Args& args, index_t begin, index_t end,
                                                         Out* out) {
  using columns = panel<Element, Narrow>;
  if constexpr (Narrow || W > 0) {  // one panel holds the row
    constexpr int vectors = Narrow ? 1 : W;
    return pool_panel<Pooling, Weighted, Finish>(
        args, columns{0, Narrow ? 0 : args.width - lanes, static_cast<int>(args.width)}, begin, end,
        out, std::make_index_sequence<static_cast<std::size_t>(vectors)>{});
  } else {
    constexpr index_t step = index_t{max_vectors} * lanes;
    ::deeprec::detail::pool_counts counts;
    for (index_t first = 0; first < args.width; first += step) {
      // The last panel is moved back so that it ends with the row.
      const index_t begin_column = first + step <= args.width ? first : args.width - step;
      counts = pool_panel<Pooling, Weighted, Finish>(
          args, columns{begin_column, begin_column + step - lanes, 0}, begin, end, out,
          std::make_index_sequence<max_vectors>{});
    }
    return counts;
  }
}

// Calls run.operator()<W, Narrow>() for the number of vectors in a row; W = 0 stands for more than
// max_vectors.
template <class Element, class Run>
DEEPREC_INLINE void visit_vectors(index_t width, const Run& run) {
  if (width < lanes) return run.template call<Element, 1, true>();
  switch ((width + lanes - 1) / lanes) {
    case 1: return run.template call<Element, 1, false>();
    case 2: return run.template call<Element, 2, false>();
    case 3: return run.template call<Element, 3, false>();
    case 4: return run.template call<Element, 4, false>();
    case 5: return run.template call<Element, 5, false>();
    case 6: return run.template call<Element, 6, false>();
    case 7: return run.template call<Element, 7, false>();
    case 8: return run.template call<Element, 8, false>();
    default: return run.template call<Element, 0, false>();
  }
}

template <class Pooling, bool Weighted, class Args>
struct pool_bags_run {
  const Args& args;
  index_t begin;
  index_t end;
  index_t& used;

  template <class Element, int W, bool Narrow>
  void call() const {
    index_t total = 0;
    for (index_t bag = begin; bag < end; ++bag) {
      const auto first = static_cast<index_t>(args.offsets[bag]);
      const auto last = static_cast<index_t>(args.offsets[bag + 1]);
      if (last - first > ::deeprec::detail::chunk_slots) continue;  // left to pool_slots
      total += pool_range<Pooling, Weighted, true, Element, W, Narrow>(
                   args, first, last, args.out + bag * args.out_stride).used;
    }
    used = total;
  }
};

/// Pools the bags [begin, end), all but those of more than chunk_slots ids; returns the ids used.
template <class Element, class Pooling, class Args>
index_t pool_bags(region, Pooling, const Args& args, index_t begin, index_t end) {
  index_t used = 0;
  if (args.weights != nullptr) {
    visit_vectors<Element>(args.width, pool_bags_run<Pooling, true, Args>{args, begin, end, used});
  } else {
    visit_vectors<Element>(args.width, pool_bags_run<Pooling, false, Args>{args, begin, end, used});
  }
  return used;
}

template <class Pooling, bool Weighted, class Args>
struct pool_slots_run {
  const Args& args;
  index_t begin;
  index_t end;
  float* sums;
  ::deeprec::detail::pool_counts& counts;

  template <class Element, int W, bool Narrow>
  void call() const {
    counts = pool_range<Pooling, Weighted, false, Element, W, Narrow>(args, begin, end, sums);
  }
};

/// The bare sums (D) of one chunk of a long bag.
template <class Element, class Pooling, class Args>
::deeprec::detail::pool_counts pool_slots(region, Pooling, const Args& args, index_t begin,
                                          index_t end, float* sums) {
  ::deeprec::detail::pool_counts counts;
  if (args.weights != nullptr) {
    visit_vectors<Element>(args.width,
                           pool_slots_run<Pooling, true, Args>{args, begin, end, sums, counts});
  } else {
    visit_vectors<Element>(args.width,
                           pool_slots_run<Pooling, false, Args>{args, begin, end, sums, counts});
  }
  return counts;
}
