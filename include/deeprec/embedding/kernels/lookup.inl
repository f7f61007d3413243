// The lookup kernels, compiled once for each region. No include guard: see lookup_kernels.hpp.
//
// Rows are processed in panels of a few vectors, each panel over all bags before the next one:
// panels share no cache line, so nothing is read twice. The last vectors of a panel may overlap, so that it
// ends with the row (their columns are computed twice, with the same bits); only a panel shorter than a
// vector uses masks.

// Where a better region is available, portable panels are short and of two sizes only, to save compile time.
inline constexpr bool is_fallback = DEEPREC_X86 && region::which == isa::portable;
inline constexpr int max_vectors = is_fallback ? 4 : 8;

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
    const index_t chosen = bounded > least ? bounded : least;
    return chosen < ::deeprec::detail::row_window::most_ahead ? chosen
                                                              : ::deeprec::detail::row_window::most_ahead;
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

// Rows that are folded or copied one after another.
struct located_run {
  ::deeprec::detail::stored_numbers rows;
  const float* factors;  // null: all 1
  index_t count;
  index_t fetched;  // the first so many rows have one to prefetch, `ahead` later
  index_t ahead;
  bool filters;  // rows may be absent

  [[nodiscard]] DEEPREC_INLINE bool absent(index_t k) const { return filters && rows.absent(k); }
  [[nodiscard]] DEEPREC_INLINE float factor(index_t k) const {
    return factors == nullptr ? 1.0F : factors[k];
  }
  template <class Columns>
  DEEPREC_INLINE void prefetch_after(index_t k, const Columns& columns) const {
    if (k < fetched) columns.prefetch(rows.row(k + ahead));
  }
  // The same, where the row may be absent.
  template <class Columns>
  DEEPREC_INLINE void prefetch_present_after(index_t k, const Columns& columns) const {
    if (k < fetched && (!filters || rows.in_range(k + ahead))) columns.prefetch(rows.row(k + ahead));
  }
};

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

// True when one of the first `count` rows is absent.
DEEPREC_INLINE bool any_absent(const ::deeprec::detail::stored_numbers& rows, index_t count) {
  typedef std::uint64_t block __attribute__((vector_size(64)));
  constexpr index_t step = 8;
  const block least = block{} + rows.least, valid = block{} + rows.count;
  const block padding = block{} + static_cast<std::uint64_t>(rows.padding);
  block bad = {};
  index_t k = 0;
  for (; k + step <= count; k += step) {
    block x;
    __builtin_memcpy(&x, rows.numbers + 8 * k, 64);
    bad |= reinterpret_cast<block>(x - least >= valid) | reinterpret_cast<block>(x == padding);
  }
  std::uint64_t any = 0;
  for (index_t lane = 0; lane < step; ++lane) any |= bad[lane];
  if (rows.pruned_by != nullptr) {
    for (index_t w = 0; w < k; ++w) any |= rows.pruned_by[w] > 0.0F ? 0 : 1;
  }
  for (; k < count; ++k) any |= rows.absent(k) ? 1 : 0;
  return any != 0;
}

// Begins to locate the rows of the positions [begin, end).
template <class Args>
DEEPREC_INLINE void open_window(const Args& args, ::deeprec::detail::row_window& window, index_t ahead,
                                index_t begin, index_t end) {
  window.ahead = ahead;
  window.stop = end + ahead < args.end_position ? end + ahead : args.end_position;
  window.begin = window.ready = begin;
  window.skips = false;
}

// The rows from a position on. `skips`: those that are absent are left out.
template <class Element, class Args>
DEEPREC_APART located_run locate_from(const Args& args, ::deeprec::detail::row_window& window,
                                      index_t position, bool skips) {
  const index_t left = window.stop - position;
  const index_t count = left < window.room ? left : window.room;
  window.begin = position;
  window.ready = count == left ? window.stop : position + count - window.ahead;
  const float* const weights = args.weights == nullptr ? nullptr : args.weights + position;
  located_run run = {args.row_of.stored(position), weights, count, 0, window.ahead, args.filters && !skips};
  const bool stored = run.rows.numbers != nullptr && !(args.max_norm > 0);
  window.skips = skips && args.filters && !(stored && !any_absent(run.rows, count));
  if (window.skips) {
    run.count = locate_present(args.row_of, position, count, window.located, window.index);
    if (weights != nullptr) {
      for (index_t k = 0; k < count; ++k) window.scaled[window.index[k]] = weights[k];
      run.factors = window.scaled;
    }
  } else if (!stored) {
    locate_rows(args.row_of, position, count, args.filters, window.located);
  }
  if (window.skips || !stored) run.rows = ::deeprec::detail::stored_numbers::addresses(window.located);
  if (args.max_norm > 0) {
    for (index_t k = 0; k < run.count; ++k) {
      const float by = run.absent(k) ? 1.0F : clip_factor<Element>(args, run.rows.row(k));
      window.scaled[k] = by * run.factor(k);
    }
    run.factors = window.scaled;
  }
  run.fetched = window.ahead == 0 ? 0 : run.count - window.ahead;
  return run;
}

struct add_once {
  DEEPREC_INLINE vector_f32 operator()(vector_f32 x, vector_f32 sum) const { return sum + x; }
};
struct add_times {
  vector_f32 factor;
  DEEPREC_INLINE vector_f32 operator()(vector_f32 x, vector_f32 sum) const {
    return multiply_add(x, factor, sum);
  }
};

// Adds values or codes to the sum of vector V, or to the sums of the pair that begins with V: even columns to
// the first, odd ones to the second.
template <std::size_t V, class Panel, class Add>
DEEPREC_INLINE void add_vector(const Panel columns, const std::byte* from, const Add& add,
                               vector_f32 (&total)[Panel::vectors]) {
  if constexpr (V < 2 * Panel::pairs) {
    if constexpr (V % 2 == 0) {
      vector_f32 even, odd;
      columns.codec.load_pair_at(from, columns.template from_first<V>(), even, odd);
      total[V] = add(even, total[V]);
      total[V + 1] = add(odd, total[V + 1]);
    }
  } else if constexpr (Panel::scaled) {
    total[V] = add(columns.template load_codes<V>(from), total[V]);
  } else {
    total[V] = add(columns.load_row(from, V), total[V]);
  }
}

// Adds a row to the sums: its values, or its codes.
template <class Panel, class Add, std::size_t... V>
DEEPREC_INLINE void add_values(const Panel columns, const std::byte* from, const Add& add,
                               vector_f32 (&total)[sizeof...(V)], std::index_sequence<V...>) {
  (add_vector<V>(columns, from, add, total), ...);
}

// Adds a row of codes times (scale * weight) to the sums; returns its bias times the weight, which all
// columns share.
template <class Panel, std::size_t... V>
DEEPREC_INLINE float add_codes(const Panel columns, const std::byte* from, float weight,
                               vector_f32 (&total)[sizeof...(V)], std::index_sequence<V...> vectors) {
  const ::deeprec::detail::two_floats pair = columns.codec.scale_and_bias(from);
  add_values(columns, from, add_times{splat(pair.first * weight)}, total, vectors);
  return pair.second * weight;
}

// Finishes sums: restores the order of columns and adds the bias of all rows of codes.
template <class Panel, std::size_t... V>
DEEPREC_INLINE void end_sums([[maybe_unused]] float bias, vector_f32 (&total)[sizeof...(V)],
                             std::index_sequence<V...>) {
  constexpr std::size_t paired = 2 * Panel::pairs;
  ((V < paired && V % 2 == 0 ? interleave(total[V], total[V < paired ? V + 1 : V]) : void()), ...);
  if constexpr (Panel::scaled) ((total[V] = total[V] + splat(bias)), ...);
}

// What a single row is added to: +0 for a sum, which turns -0 into +0; else -0, which keeps -0.
template <class Args>
DEEPREC_INLINE vector_f32 start_of(const Args& args) {
  return splat(args.sums ? 0.0F : -0.0F);
}

// A row times a factor, a vector at a time, with the bits of a bag that holds only this row.
template <class Element>
struct row_times {
  row_columns<Element> of;
  const std::byte* from;  // of the row
  vector_f32 factor;      // of values, or of codes
  vector_f32 start;       // what it is added to
  bool codes = false;

  template <class Args>
  DEEPREC_INLINE row_times(const Args& args, const row_columns<Element>& columns, const std::byte* row,
                           float by, vector_f32 added)
      : of(columns), from(columns.codec.begin_of(row)), factor(splat(by)), start(added) {
    if constexpr (row_codec<Element>::scaled) {
      codes = args.sums;
      if (codes) {
        const ::deeprec::detail::two_floats pair = of.codec.scale_and_bias(from);
        factor = splat(pair.first * by);
        start = splat(0.0F + pair.second * by);
      }
    }
  }
  DEEPREC_INLINE vector_f32 at(index_t c) const {
    if constexpr (row_codec<Element>::scaled) {
      if (codes) return multiply_add(of.codec.load_codes_at(from, c), factor, zero()) + start;
    }
    return multiply_add(of.codec.load_at(from, c), factor, start);
  }
  DEEPREC_INLINE vector_f32 first(int n) const {
    if constexpr (row_codec<Element>::scaled) {
      if (codes) return multiply_add(of.codec.load_first_codes_at(from, n), factor, zero()) + start;
    }
    return multiply_add(of.codec.load_first_at(from, n), factor, start);
  }
};

// Writes as many vectors from column c on; returns the column behind them. All are read before one is
// written.
template <class Element, class Out, std::size_t... V>
DEEPREC_INLINE index_t put_vectors(const row_times<Element>& value, Out* out, index_t c,
                                   std::index_sequence<V...>) {
  const vector_f32 x[] = {value.at(c + static_cast<index_t>(V) * lanes)...};
  (store(out + c + static_cast<index_t>(V) * lanes, x[V]), ...);
  return c + index_t{sizeof...(V)} * lanes;
}

// Writes a row times a factor to a row of out. Each of its first vectors is read by an instruction of its
// own: one that reads a line after another teaches some processors to fetch the lines behind the row.
template <class Element, class Out>
DEEPREC_INLINE void put_row(const row_times<Element>& value, Out* out) {
  const index_t count = value.of.columns;
  if (count <= lanes) {
    if (count == lanes) return store(out, value.at(0));
    return store_first(out, value.first(static_cast<int>(count)), static_cast<int>(count));
  }
  index_t c = 0;
  while (count - c >= 8 * lanes) c = put_vectors(value, out, c, std::make_index_sequence<8>{});
  if (count - c >= 4 * lanes) c = put_vectors(value, out, c, std::make_index_sequence<4>{});
  if (count - c >= 2 * lanes) c = put_vectors(value, out, c, std::make_index_sequence<2>{});
  if (count - c >= lanes) c = put_vectors(value, out, c, std::make_index_sequence<1>{});
  if (c == count) return;
  const index_t last = value.of.last_vector();
  value.of.fits() ? store(out + last, value.at(last)) : store_first(out + last, value.at(last), lanes - 1);
}

// Writes the same value to columns of out, or adds it.
template <class Out>
DEEPREC_APART void put_value(::deeprec::detail::when_stored stored, Out* out, index_t count, float x) {
  const bool adds = stored == ::deeprec::detail::when_stored::accumulate;
  for (index_t c = 0; c < count; ++c) out[c] = static_cast<Out>(adds ? static_cast<float>(out[c]) + x : x);
}
// Writes values to columns of out, or adds them.
template <class Out>
DEEPREC_APART void put_values(::deeprec::detail::when_stored stored, Out* out, index_t count,
                              const float* x) {
  const bool adds = stored == ::deeprec::detail::when_stored::accumulate;
  for (index_t c = 0; c < count; ++c) {
    out[c] = static_cast<Out>(adds ? static_cast<float>(out[c]) + x[c] : x[c]);
  }
}

// The columns [first, first + count) of rows.
template <class Element, class Args>
DEEPREC_INLINE row_columns<Element> columns_of(const Args& args, index_t first, index_t count) {
  return {first, count, row_codec<Element>::of(args, first, count)};
}

// Adds a row times a factor to a row of out.
template <class Element, class Args, class Out>
DEEPREC_APART void add_row(const Args& args, index_t first, index_t count, const std::byte* row, float factor,
                           Out* out) {
  const row_times<Element> value(args, columns_of<Element>(args, first, count), row, factor, start_of(args));
  if (count < lanes) {
    const int n = static_cast<int>(count);
    return store_first(out, load_first(out, n) + value.first(n), n);
  }
  // The last vector may overlap the one before: it is read before any is written.
  const index_t last = value.of.last_vector();
  const bool fits = value.of.fits();
  const vector_f32 end = (fits ? load(out + last) : load_first(out + last, lanes - 1)) + value.at(last);
  for (index_t c = 0; c < last; c += lanes) store(out + c, load(out + c) + value.at(c));
  fits ? store(out + last, end) : store_first(out + last, end, lanes - 1);
}

// Writes columns of a bag without ids to out.
template <class Element, class Args, class Out>
DEEPREC_APART void put_empty(const Args& args, index_t first, index_t count, Out* out) {
  using when = ::deeprec::detail::when_empty;
  if (args.empty == when::keep) return;
  if (args.empty != when::default_row) {
    return put_value(args.stored, out, count, args.empty == when::identity ? -__builtin_inff() : 0.0F);
  }
  const float factor = args.max_norm > 0 ? clip_factor<Element>(args, args.default_row) : 1.0F;
  if (args.stored == ::deeprec::detail::when_stored::accumulate) {
    return add_row<Element>(args, first, count, args.default_row, factor, out);
  }
  put_row(row_times<Element>(args, columns_of<Element>(args, first, count), args.default_row, factor,
                             start_of(args)),
          out);
}

// What a bag keeps from one run of its rows to the next.
struct bag_fold {
  alignas(64) float columns[max_vectors * lanes];  // vectors so far; at the end the columns of the panel
  double bias;                                     // of rows of codes
};

// Where in its bag a run of rows is, and how the bag ends. Apart from bag_fold, whose address is taken.
struct bag_place {
  bool begins;      // the bag begins with the run
  bool ends;        // and ends with it
  bool divides;     // at the end the fold is divided by divisor()
  bool by_weights;  // by `of_weights`, else by the number of rows
  ::deeprec::detail::divide_by divide;
  float of_weights;

  [[nodiscard]] DEEPREC_INLINE float divisor(index_t used) const {
    if (by_weights) return of_weights;
    const auto count = static_cast<double>(used);
    return divide == ::deeprec::detail::divide_by::root ? static_cast<float>(__builtin_sqrt(count))
                                                        : static_cast<float>(count);
  }
};

// Folds the rows [begin, end) of a run in registers. The result of a bag that ends is written to out if that
// is not null and the bag has a row; else it stays in the bag_fold.
template <::deeprec::detail::fold Fold, class Panel, class Out, std::size_t... V>
DEEPREC_INLINE void fold_rows(const Panel columns, const located_run& run, index_t begin, index_t end,
                              const bag_place place, index_t used, bag_fold& bag, Out* out,
                              std::index_sequence<V...> vectors) {
  constexpr bool adding = Fold == ::deeprec::detail::fold::add;
  const vector_f32 neutral = adding ? zero() : splat(-__builtin_inff());
  vector_f32 total[sizeof...(V)] = {(place.begins ? neutral : load(bag.columns + index_t{V} * lanes))...};
  [[maybe_unused]] double bias = place.begins ? 0.0 : bag.bias;
  if (run.factors == nullptr) {
    for (index_t k = begin; k < end; ++k) {
      run.prefetch_after(k, columns);
      const std::byte* const from = columns.codec.begin_of(run.rows.row(k));
      if constexpr (!adding) {
        ((total[V] = maximum(total[V], columns.load_row(from, V))), ...);
      } else if constexpr (Panel::scaled) {
        bias += static_cast<double>(add_codes(columns, from, 1.0F, total, vectors));
      } else {
        add_values(columns, from, add_once{}, total, vectors);
      }
    }
  } else {
    for (index_t k = begin; k < end; ++k) {
      run.prefetch_after(k, columns);
      const std::byte* const from = columns.codec.begin_of(run.rows.row(k));
      const float by = run.factors[k];
      if constexpr (!adding) {
        ((total[V] = maximum(total[V], columns.load_row(from, V) * splat(by))), ...);
      } else if constexpr (Panel::scaled) {
        bias += static_cast<double>(add_codes(columns, from, by, total, vectors));
      } else {
        add_values(columns, from, add_times{splat(by)}, total, vectors);
      }
    }
  }
  if (!place.ends) {
    bag.bias = bias;
    (store(bag.columns + index_t{V} * lanes, total[V]), ...);
    return;
  }
  if constexpr (adding) end_sums<Panel>(static_cast<float>(bias), total, vectors);
  if (place.divides) {
    const vector_f32 by = splat(place.divisor(used));
    ((total[V] = total[V] / by), ...);
  }
  if (out != nullptr && used > 0) {
    (columns.store_columns(out, V, total[V]), ...);
  } else {
    (store(bag.columns + columns.from_first(V), total[V]), ...);
  }
}

template <::deeprec::detail::fold Fold, class Element, int W, bool Narrow, class Out>
DEEPREC_INLINE void fold_panel(const row_columns<Element>& columns, const located_run& run, index_t begin,
                               index_t end, const bag_place place, index_t used, bag_fold& bag, Out* out) {
  using panel_type = panel<Element, W, Narrow>;
  fold_rows<Fold>(panel_type{columns}, run, begin, end, place, used, bag, out,
                  std::make_index_sequence<panel_type::vectors>{});
}

// The same, for columns in so many vectors; 0: fewer columns than one has.
template <::deeprec::detail::fold Fold, class Element, class Out>
DEEPREC_INLINE void fold_vectors(index_t vectors, const row_columns<Element>& columns, const located_run& run,
                                 index_t begin, index_t end, const bag_place place, index_t used,
                                 bag_fold& bag, Out* out) {
  if constexpr (is_fallback) {
    return vectors == 0 ? fold_panel<Fold, Element, 1, true>(columns, run, begin, end, place, used, bag, out)
           : vectors == 1
               ? fold_panel<Fold, Element, 1, false>(columns, run, begin, end, place, used, bag, out)
               : fold_panel<Fold, Element, 4, false>(columns, run, begin, end, place, used, bag, out);
  } else {
    // Odd numbers of vectors use the next even panel, except for codes in pairs.
    constexpr int odd = row_codec<Element>::unit == 1 ? 1 : 0;
    switch (vectors + (vectors > 1 && vectors % 2 == 1 ? odd : 0)) {
      case 0:
        return fold_panel<Fold, Element, 1, true>(columns, run, begin, end, place, used, bag, out);
      case 1:
        return fold_panel<Fold, Element, 1, false>(columns, run, begin, end, place, used, bag, out);
      case 2:
        return fold_panel<Fold, Element, 2, false>(columns, run, begin, end, place, used, bag, out);
      case 4:
        return fold_panel<Fold, Element, 4, false>(columns, run, begin, end, place, used, bag, out);
      case 6:
        return fold_panel<Fold, Element, 6, false>(columns, run, begin, end, place, used, bag, out);
      case 8:
        return fold_panel<Fold, Element, 8, false>(columns, run, begin, end, place, used, bag, out);
      default:
        if constexpr (odd == 0) {
          if (vectors == 3)
            return fold_panel<Fold, Element, 3, false>(columns, run, begin, end, place, used, bag, out);
          if (vectors == 5)
            return fold_panel<Fold, Element, 5, false>(columns, run, begin, end, place, used, bag, out);
          return fold_panel<Fold, Element, 7, false>(columns, run, begin, end, place, used, bag, out);
        }
    }
  }
}

// The divisor of a bag by its weights.
template <class Args>
DEEPREC_APART double divisor_of_bag(const Args& args, index_t bag) {
  ::deeprec::detail::pool_counts counts;
  for (index_t position = args.ranges.begin(bag); position < args.ranges.end(bag); ++position) {
    if (args.filters && args.row_of.absent(position)) continue;
    counts.add(static_cast<double>(args.weights[position]));
  }
  return counts.divisor(args.divide);
}

// The bags [begin, end), in panels; returns the number of ids used.
template <::deeprec::detail::fold Fold, class Element, class Args>
DEEPREC_INLINE index_t pool_panels(const Args& args, index_t begin, index_t end, bool fetches) {
  ::deeprec::detail::row_window window;
  bag_fold fold;
  bag_place place{};
  place.divides = args.divide != ::deeprec::detail::divide_by::one;
  place.divide = args.divide;
  place.by_weights =
      place.divides && args.divide != ::deeprec::detail::divide_by::count && args.weights != nullptr;
  const bool overwrites = args.stored == ::deeprec::detail::when_stored::overwrite;
  index_t used_first = 0;
  for (index_t first = 0; first < args.width;) {
    const index_t left = args.width - first;
    constexpr index_t most = index_t{max_vectors} * lanes;
    const index_t count = left >= most ? most : is_fallback && left > lanes ? lanes : left;
    const index_t vectors = count < lanes ? 0 : (count + lanes - 1) / lanes;
    const auto columns = columns_of<Element>(args, first, count);
    index_t last = args.ranges.begin(begin);
    const index_t begin_position = last;
    located_run run{};
    const index_t end_position = args.ranges.end(end - 1);
    const bool stored = find_run<Element>(args, columns, begin_position, end_position, run);
    open_window(args, window, run.ahead, begin_position, end_position);
    if (stored && !args.filters) window.ready = end_position;
    if (fetches && first == 0 && run.ahead > 0) {
      fetch_rows(args, columns_of<Element>(args, first, count), run.ahead, begin_position);
    }
    index_t used_all = 0;
    for (index_t bag = begin; bag < end; ++bag) {
      index_t position = last;
      last = args.ranges.end(bag);
      if (last - position > ::deeprec::detail::chunk_positions) continue;  // the caller cuts it into chunks
      auto* const out = args.out + bag * args.out_stride;
      columns.prefetch_out(out);
      bool is_zero = false;
      if (place.by_weights) {
        const double divisor = divisor_of_bag(args, bag);
        is_zero = divisor == 0.0;
        place.of_weights = static_cast<float>(divisor);
        place.divides = !is_zero;
      }
      auto* const into = overwrites && !is_zero ? out : nullptr;
      index_t used = 0;
      place.begins = true;
      while (position < last) {
        if (position >= window.ready) [[unlikely]]
          run = locate_from<Element>(args, window, position, true);
        const index_t stop = last < window.ready ? last : window.ready;
        const index_t from_row = window.row_at(position);
        const index_t to_row = window.row_at(stop);
        used += to_row - from_row;
        position = stop;
        place.ends = position == last;
        fold_vectors<Fold>(vectors, columns, run, from_row, to_row, place, used, fold, into);
        place.begins = false;
      }
      used_all += used;
      if (into != nullptr && used > 0) continue;
      if (used == 0) {
        put_empty<Element>(args, first, count, out + first);
      } else if (is_zero) {
        put_value(args.stored, out + first, count, 0.0F);
      } else {
        put_values(args.stored, out + first, count, fold.columns);
      }
    }
    if (first == 0) used_first = used_all;
    first += count;
  }
  return used_first;
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

// gather_run, `plain` where every row is present and copied as it is.
template <bool Plain, class Element, class Args>
DEEPREC_INLINE index_t gather_rows(const Args& args, const row_columns<Element>& of, const located_run& given,
                                   index_t first, index_t end) {
  const located_run run = given;
  const row_columns<Element> columns = of;
  const vector_f32 start = start_of(args);
  const bool adds = args.stored == ::deeprec::detail::when_stored::accumulate;
  const index_t stride = args.out_stride;
  auto* out = args.out + first * stride;
  const index_t out_ahead = args.out_ahead * stride;
  const index_t out_fetched = args.out_ahead > 0 ? end - args.out_ahead - first : 0;
  index_t used = run.count;
  for (index_t k = 0; k < run.count; ++k, out += stride) {
    if constexpr (Plain) {
      run.prefetch_after(k, columns);
    } else {
      run.prefetch_present_after(k, columns);
    }
    if (k < out_fetched) columns.prefetch_out(out + out_ahead);
    const std::byte* const row = run.rows.row(k);
    if constexpr (!Plain) {
      if (run.absent(k)) {
        --used;
        put_empty<Element>(args, 0, columns.columns, out);
        continue;
      }
      if (adds) {
        add_row<Element>(args, 0, columns.columns, row, run.factor(k), out);
        continue;
      }
    }
    put_row(row_times<Element>(args, columns, row, Plain ? 1.0F : run.factor(k), start), out);
  }
  return used;
}

// A run of rows, each to a row of out from row `first` on, of which rows are written up to row `end`. Returns
// the number of rows.
template <class Element, class Args>
DEEPREC_APART index_t gather_run(const Args& args, const row_columns<Element>& columns,
                                 const located_run& run, index_t first, index_t end) {
  const bool plain =
      !run.filters && run.factors == nullptr && args.stored == ::deeprec::detail::when_stored::overwrite;
  return plain ? gather_rows<true>(args, columns, run, first, end)
               : gather_rows<false>(args, columns, run, first, end);
}

// The rows of the positions [begin, end), which have to be located.
template <class Element, class Args>
DEEPREC_APART index_t gather_located(const Args& args, const row_columns<Element>& columns, index_t ahead,
                                     index_t begin, index_t end, index_t base) {
  ::deeprec::detail::row_window window;
  open_window(args, window, ahead, begin, end);
  index_t used = 0;
  for (index_t position = begin; position < end;) {
    located_run run = locate_from<Element>(args, window, position, false);
    run.count = (end < window.ready ? end : window.ready) - position;
    used += gather_run(args, columns, run, position - base, end - base);
    position += run.count;
  }
  return used;
}

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
  const auto columns = columns_of<Element>(args, 0, args.width);
  located_run run{};
  const bool stored = find_run(args, columns, begin, end, run);
  if (fetches && run.ahead > 0) fetch_rows(args, columns, run.ahead, begin);
  return stored ? gather_run(args, columns, run, begin - base, end - base)
                : gather_located(args, columns, run.ahead, begin, end, base);
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
