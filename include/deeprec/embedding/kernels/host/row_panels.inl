// Columns of rows, in panels of a few vectors, and the rows of consecutive positions; once for each region,
// before copy_rows.inl and pool_rows.inl.
//
// Panels share no cache line, so nothing is read twice. The last vectors of a panel may overlap, so that it
// ends with the row (their columns are computed twice, with the same bits); only a panel shorter than a
// vector uses masks.

// Where a better region is available, portable panels are short and of two sizes only, to save compile time.
inline constexpr bool is_fallback = DEEPREC_X86 && region::which == isa::portable;
inline constexpr int max_vectors = is_fallback ? 4 : 8;

using ::deeprec::detail::located_run;
using ::deeprec::detail::row_window;
using ::deeprec::detail::stored_numbers;

// Columns [first, first + columns) of rows.
template <class Element>
struct row_columns {
  index_t first;
  index_t columns;
  [[no_unique_address]] row_codec<Element> codec;

  // The last vector of at least one ends with the columns. Codes that share bytes begin at a byte: it may
  // extend one column past them.
  [[nodiscard]] DEEPREC_INLINE index_t last_vector() const { return padded() - lanes; }
  [[nodiscard]] DEEPREC_INLINE bool fits() const { return padded() == columns; }
  [[nodiscard]] DEEPREC_INLINE index_t padded() const {
    constexpr index_t unit = row_codec<Element>::unit;
    return (columns + unit - 1) / unit * unit;
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const { codec.prefetch(row); }
  // Prefetches the row of out for a bag: it is written only once, so no earlier access loads its lines.
  template <class Out>
  DEEPREC_INLINE void prefetch_out(const Out* out) const {
    const auto* const begin = static_cast<const std::byte*>(static_cast<const void*>(out + first));
    for (index_t line = 0; line < columns * index_t{sizeof(Out)}; line += 64) {
      __builtin_prefetch(begin + line, 1, 3);
    }
  }
  // Prefetch distance in rows: as many rows as lines_ahead lines hold, within bounds. 0: rows of a table that
  // a quarter of the second-level cache holds are not prefetched.
  template <class Args>
  [[nodiscard]] DEEPREC_INLINE index_t rows_ahead(const Args& args) const {
    const ::deeprec::kernel_tuning& tuning = *args.tuning;
    const index_t in_cache = tuning.own_cache_bytes / 4;
    const index_t bytes = codec.bytes();
    if (args.table_rows <= in_cache && args.table_rows * (bytes * args.width / columns) <= in_cache) {
      return 0;
    }
    const index_t ahead = tuning.lines_ahead * 64 / bytes;
    const index_t most = tuning.most_rows_ahead;
    const index_t bounded = ahead < most ? ahead : most;
    const index_t least = tuning.least_rows_ahead;
    const index_t wanted = bounded > least ? bounded : least;
    // A window holds the rows ahead too, and locates them twice.
    const bool located = args.filters || args.max_norm > 0;
    const index_t chosen = located && wanted > row_window::most_located ? row_window::most_located : wanted;
    return chosen < row_window::most_ahead ? chosen : row_window::most_ahead;
  }
};

// The columns of a panel, in W vectors.
template <class Element, int W, bool Narrow>
struct panel : row_columns<Element> {
  using element = Element;
  using codec_type = row_codec<Element>;
  using row_columns<Element>::first;
  using row_columns<Element>::columns;
  using row_columns<Element>::codec;
  static constexpr std::size_t vectors = static_cast<std::size_t>(W);
  static constexpr bool scaled = codec_type::scaled;
  // The fewest vectors for which this panel is used: its last two may then coincide.
  static constexpr std::size_t fewest = codec_type::unit == 1 && vectors >= 4 ? vectors - 1 : vectors;

  // The first 2 * pairs vectors of a panel are summed in pairs, even and odd columns apart: see add_values.
  // In a panel of two vectors, the second may overlap the first: these are summed one by one.
  static constexpr std::size_t pairs = !codec_type::pairs || W == 2 ? 0 : vectors / 2;

  // First column of vector v, relative to the panel's. The last vector (or pair) of 4-bit codes begins at a
  // byte boundary: it may extend one nibble past the panel.
  DEEPREC_INLINE index_t from_first(std::size_t v) const {
    if (v == 0) return 0;
    if (pairs > 0 && 2 * pairs == vectors && v + 2 == vectors) return round_up(columns) - 2 * lanes;
    if (v + 1 == vectors) return round_up(columns) - lanes;
    const index_t here = static_cast<index_t>(v) * lanes;
    if (v + 1 < fewest) return here;
    return here < columns - lanes ? here : columns - lanes;
  }
  template <std::size_t V>
  DEEPREC_INLINE index_t from_first() const {
    return from_first(V);
  }
  DEEPREC_INLINE static index_t round_up(index_t n) {
    return codec_type::unit == 1 ? n : (n + codec_type::unit - 1) / codec_type::unit * codec_type::unit;
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const {
    constexpr index_t bytes_of_vector = lanes * index_t{sizeof(Element)};
    constexpr index_t bytes = W * bytes_of_vector;
    // More than those of one vector less than the fewest.
    constexpr index_t least = (static_cast<index_t>(fewest) - 1) * bytes_of_vector + 1;
    if constexpr (!requires { codec.lines; } || scaled) {
      codec.prefetch(row);
    } else if constexpr (bytes <= 64) {
      codec.lines.prefetch_one(row);
    } else {
      codec.lines.template prefetch_lines<(least + 63) / 64, (bytes + 63) / 64>(row);
    }
  }
  template <class Out>
  DEEPREC_INLINE void store_columns(Out* out, std::size_t v, vector_f32 x) const {
    if constexpr (Narrow) {
      store_first(out + first, x, static_cast<int>(columns));
    } else if (codec_type::unit > 1 && v > 0 && v + 1 == vectors && round_up(columns) != columns) {
      store_first(out + first + from_first(v), x, lanes - 1);
    } else {
      store(out + first + from_first(v), x);
    }
  }
  // From where the codec's begin_of(row) points.
  DEEPREC_INLINE vector_f32 load_row(const std::byte* from, std::size_t v) const {
    if constexpr (Narrow) {
      return codec.load_first_at(from, static_cast<int>(columns));
    } else {
      return codec.load_at(from, from_first(v));
    }
  }
  template <std::size_t V>
  DEEPREC_INLINE vector_f32 load_codes(const std::byte* from) const {
    if constexpr (Narrow) {
      return codec.load_first_codes_at(from, static_cast<int>(columns));
    } else {
      return codec.load_codes_at(from, from_first(V));
    }
  }
};

// The columns [first, first + count) of rows.
template <class Element, class Args>
DEEPREC_INLINE row_columns<Element> columns_of(const Args& args, index_t first, index_t count) {
  return {first, count, row_codec<Element>::of(args, first, count)};
}

// The factor that scales a row to a norm of at most args.max_norm. The squares of columns are added in one
// sum per lane.
template <class Element, class Args>
DEEPREC_APART float clip_factor(const Args& args, const std::byte* row) {
  vector_f32 squares = zero();
  for_each_vector<Element>(args, row,
                           [&](vector_f32 x, index_t, int) { squares = multiply_add(x, x, squares); });
  const float norm = __builtin_sqrtf(add_lanes(squares));
  return norm > args.max_norm ? args.max_norm / norm : 1.0F;
}

// Prefetches the row that is `ahead` after row k.
template <class Columns>
DEEPREC_INLINE void prefetch_after(const located_run& run, index_t k, const Columns& columns) {
  if (k < run.fetched) columns.prefetch(run.rows.row(k + run.ahead));
}
// The same, where it may be absent.
template <class Element>
DEEPREC_INLINE void prefetch_present_after(const located_run& run, index_t k,
                                           const row_columns<Element>& columns) {
  if (k < run.fetched && (!run.filters || run.rows.in_range(k + run.ahead))) {
    columns.prefetch(run.rows.row(k + run.ahead));
  }
}

// The rows of the positions [begin, end), where their numbers are stored and no row is clipped; else false,
// and only `ahead` is set.
template <class Element, class Args>
DEEPREC_INLINE bool find_run(const Args& args, const row_columns<Element>& columns, index_t begin,
                             index_t end, located_run& run) {
  run.ahead = columns.rows_ahead(args);
  if (args.max_norm > 0) return false;
  run.rows = args.row_of.stored(begin);
  if (run.rows.numbers == nullptr) return false;
  run.factors = args.weights == nullptr ? nullptr : args.weights + begin;
  run.count = end - begin;
  run.fetched = run.ahead == 0 ? 0 : args.end_position - run.ahead - begin;
  run.filters = args.filters;
  return true;
}

// Leaves the rows behind the first `count` to the piece that reads them, which is likely another thread's and
// fetches its first rows itself.
DEEPREC_INLINE void fetch_within(located_run& run, index_t count) {
  const index_t own = run.ahead == 0 ? 0 : count - run.ahead;
  if (own < run.fetched) run.fetched = own;
}

// True when one of the first `count` rows is absent.
DEEPREC_INLINE bool any_absent(const stored_numbers& rows, index_t count) {
  typedef std::uint64_t block __attribute__((vector_size(lanes * sizeof(float))));
  constexpr index_t step = lanes / 2;
  const block least = block{} + rows.least, valid = block{} + rows.count;
  const block padding = block{} + static_cast<std::uint64_t>(rows.padding);
  block bad = {};
  index_t k = 0;
  for (; k + step <= count; k += step) {
    block x;
    __builtin_memcpy(&x, rows.numbers + 8 * k, sizeof(x));
    bad |= reinterpret_cast<block>(x - least >= valid) | reinterpret_cast<block>(x == padding);
  }
  std::uint64_t any = 0;
  for (index_t lane = 0; lane < step; ++lane) any |= bad[lane];
  return any != 0 || ::deeprec::detail::any_absent_from(rows, rows.pruned_by != nullptr ? 0 : k, count);
}

// The rows from a position on. `skips`: those that are absent are left out.
template <class Element, class Args>
DEEPREC_APART located_run locate_from(const Args& args, row_window& window, index_t position, bool skips) {
  window.move_to(position);
  const index_t count = window.end - position;
  const stored_numbers stored = args.row_of.stored(position);
  const bool in_place = stored.numbers != nullptr && !(args.max_norm > 0);
  window.skips = skips && args.filters && !(in_place && !any_absent(stored, count));
  if (in_place && skips && !window.skips) {
    return window.run(stored, count, args.weights == nullptr ? nullptr : args.weights + position, false);
  }
  located_run run = ::deeprec::detail::locate_rows(args.row_of, args.weights, args.filters, window);
  if (!(args.max_norm > 0)) return run;
  for (index_t k = 0; k < run.count; ++k) {
    const float by = run.absent(k) ? 1.0F : clip_factor<Element>(args, run.rows.row(k));
    window.scaled[k] = by * run.factor(k);
  }
  run.factors = window.scaled;
  return run;
}

// Prefetches the rows of the first `ahead` positions from `position` on.
template <class Element, class Args>
DEEPREC_APART void fetch_rows(const Args& args, const row_columns<Element>& columns, index_t ahead,
                              index_t position) {
  const index_t last = ahead < args.end_position - position ? position + ahead : args.end_position;
  for (index_t k = position; k < last; ++k) {
    if (!(args.filters && args.row_of.absent(k))) columns.prefetch(args.row_of(k));
  }
}
