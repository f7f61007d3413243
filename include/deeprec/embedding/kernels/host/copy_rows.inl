// Rows that are copied or added to rows of out one by one: single ids, and bags without ids. Once for each
// region, after row_panels.inl.

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
      codes = args.sums || by == 1.0F;
      if (codes) {
        const ::deeprec::detail::two_floats pair = of.codec.scale_and_bias(from);
        factor = splat(pair.first * by);
        start = splat(args.sums ? 0.0F + pair.second * by : pair.second);
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

// Writes columns of a row times a factor to a row of out, or adds them.
template <class Element, class Args, class Out>
DEEPREC_APART void copy_row(const Args& args, index_t first, index_t count, const std::byte* row,
                            float factor, Out* out) {
  if (args.stored == ::deeprec::detail::when_stored::accumulate) {
    return add_row<Element>(args, first, count, row, factor, out);
  }
  put_row(row_times<Element>(args, columns_of<Element>(args, first, count), row, factor, start_of(args)),
          out);
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
  copy_row<Element>(args, first, count, args.default_row, factor, out);
}

// Prefetches the row that is `ahead` after row k. Several: of an array of more than one line, each line by an
// instruction of its own. In a loop apart: that of rows of one line would grow by it.
template <bool Several, class Element>
DEEPREC_INLINE void prefetch_copy_after(const located_run& run, index_t k,
                                        const row_columns<Element>& columns) {
  if constexpr (Several) {
    if (k < run.fetched) columns.codec.lines.template prefetch_several<8>(run.rows.row(k + run.ahead));
  } else {
    prefetch_after(run, k, columns);
  }
}

// gather_run, `plain` where every row is present and copied as it is.
template <bool Plain, bool Several, class Element, class Args>
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
      prefetch_copy_after<Several>(run, k, columns);
    } else {
      prefetch_present_after(run, k, columns);
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

// gather_rows of plain rows of more than one line, apart from the other loops and by value: see
// sum_whole_bags.
template <class Element, class Args>
DEEPREC_APART index_t gather_several(const Args& args, const row_columns<Element> of, const located_run run,
                                     index_t first, index_t end) {
  return gather_rows<true, true>(args, of, run, first, end);
}

// A run of rows, each to a row of out from row `first` on, of which rows are written up to row `end`. Returns
// the number of rows.
template <class Element, class Args>
DEEPREC_INLINE index_t gather_run(const Args& args, const row_columns<Element>& columns,
                                  const located_run& run, index_t first, index_t end) {
  const bool plain =
      !run.filters && run.factors == nullptr && args.stored == ::deeprec::detail::when_stored::overwrite;
  if constexpr (requires { columns.codec.lines; } && !row_codec<Element>::scaled) {
    if (plain && columns.codec.bytes() > 64) return gather_several(args, columns, run, first, end);
  }
  return plain ? gather_rows<true, false>(args, columns, run, first, end)
               : gather_rows<false, false>(args, columns, run, first, end);
}

// The rows of the positions [begin, end).
template <class Element, class Args>
DEEPREC_APART index_t gather_positions(const Args& args, index_t begin, index_t end, index_t base,
                                       bool fetches) {
  const auto columns = columns_of<Element>(args, 0, args.width);
  located_run run{};
  row_window window;
  const bool in_place = find_run(args, columns, begin, end, run);
  if (fetches) fetch_within(run, end - begin);
  if (fetches && run.ahead > 0) fetch_rows(args, columns, run.ahead, begin);
  if (!in_place) window.open(run.ahead, begin, end, args.end_position);
  index_t used = 0;
  for (index_t position = begin; position < end; position += run.count) {
    if (!in_place) {
      run = locate_from<Element>(args, window, position, false);
      run.count = (end < window.ready ? end : window.ready) - position;
    }
    used += gather_run(args, columns, run, position - base, end - base);
  }
  return used;
}
