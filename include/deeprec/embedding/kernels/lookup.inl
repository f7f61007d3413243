// The lookup kernels, compiled once for each region. No include guard: see lookup_kernels.hpp.
//
// Rows are processed in panels of a few vectors, each panel over all bags before the next one:
// panels share no cache line, so nothing is read twice. The last vectors of a panel may overlap, so that it
// ends with the row (their columns are computed twice, with the same bits); only a panel shorter than a
// vector uses masks.

// Where a better region is available, portable panels are short and of two sizes only, to save compile time.
inline constexpr bool is_fallback = DEEPREC_X86 && region::which == isa::portable;
inline constexpr int max_vectors = is_fallback ? 4 : 8;

// Columns [first, first + columns) of a row, in W vectors.
template <class Element, int W, bool Narrow>
struct panel {
  using element = Element;
  using codec_type = row_codec<Element>;
  static constexpr std::size_t vectors = static_cast<std::size_t>(W);
  static constexpr bool scaled = codec_type::scaled;
  // The fewest vectors for which this panel is used: its last two may then coincide.
  static constexpr std::size_t fewest = codec_type::unit == 1 && vectors >= 4 ? vectors - 1 : vectors;

  // The first 2 * pairs vectors of a panel are summed in pairs, even and odd columns apart: see add_vector.
  // In a panel of two vectors, the second may overlap the first: these are summed one by one.
  static constexpr std::size_t pairs = !codec_type::pairs || W == 2 ? 0 : vectors / 2;

  index_t first;
  index_t columns;
  [[no_unique_address]] codec_type codec;

  // First column of vector V, relative to the panel's. The last vector (or pair) of 4-bit codes begins at a
  // byte boundary: it may extend one nibble past the panel.
  template <std::size_t V>
  DEEPREC_INLINE index_t from_first() const {
    if constexpr (V == 0) {
      return 0;
    } else if constexpr (pairs > 0 && 2 * pairs == vectors && V + 2 == vectors) {
      return round_up(columns) - 2 * lanes;
    } else if constexpr (V + 1 == vectors) {
      return round_up(columns) - lanes;
    } else if constexpr (V + 1 >= fewest) {
      const index_t here = static_cast<index_t>(V) * lanes;
      return here < columns - lanes ? here : columns - lanes;
    } else {
      return static_cast<index_t>(V) * lanes;
    }
  }
  DEEPREC_INLINE static index_t round_up(index_t n) {
    return codec_type::unit == 1 ? n : (n + codec_type::unit - 1) / codec_type::unit * codec_type::unit;
  }
  template <std::size_t V>
  DEEPREC_INLINE bool sticks_out() const {
    return V > 0 && V + 1 == vectors && round_up(columns) != columns;
  }

  // From where the codec's begin_of(row) points.
  template <std::size_t V>
  DEEPREC_INLINE vector_f32 load_row(const std::byte* from) const {
    if constexpr (Narrow) {
      return codec.load_first_at(from, static_cast<int>(columns));
    } else {
      return codec.load_at(from, from_first<V>());
    }
  }
  template <std::size_t V>
  DEEPREC_INLINE vector_f32 load_codes(const std::byte* from) const {
    if constexpr (Narrow) {
      return codec.load_first_codes_at(from, static_cast<int>(columns));
    } else {
      return codec.load_codes_at(from, from_first<V>());
    }
  }
  template <std::size_t V, class Out>
  DEEPREC_INLINE vector_f32 load_columns(const Out* out) const {
    if constexpr (Narrow) {
      return load_first(out + first, static_cast<int>(columns));
    } else {
      return sticks_out<V>() ? load_first(out + first + from_first<V>(), lanes - 1)
                             : load(out + first + from_first<V>());
    }
  }
  template <std::size_t V, class Out>
  DEEPREC_INLINE void store_columns(Out* out, vector_f32 x) const {
    if constexpr (Narrow) {
      store_first(out + first, x, static_cast<int>(columns));
    } else if (sticks_out<V>()) {
      store_first(out + first + from_first<V>(), x, lanes - 1);
    } else {
      store(out + first + from_first<V>(), x);
    }
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
  // Prefetch distance in rows: as many rows as lines_ahead lines hold, within bounds. Rows of a table that a
  // quarter of the second-level cache holds are not prefetched: the distance is then past every position.
  template <class Args>
  [[nodiscard]] DEEPREC_INLINE index_t rows_ahead(const Args& args) const {
    const ::deeprec::kernel_tuning& tuning = *args.tuning;
    const index_t in_cache = tuning.own_cache_bytes / 4;
    const index_t bytes = codec.bytes();
    if (args.table_rows <= in_cache && args.table_rows * (bytes * args.width / columns) <= in_cache) {
      return args.end_position;
    }
    const index_t ahead = tuning.lines_ahead * 64 / bytes;
    const index_t bounded = ahead < tuning.most_rows_ahead ? ahead : tuning.most_rows_ahead;
    return bounded > tuning.least_rows_ahead ? bounded : tuning.least_rows_ahead;
  }
};

// Prefetches the row of a position, unless the position is past the batch or its id is absent.
template <class Policy, class Panel, class Args>
DEEPREC_INLINE void prefetch_position(const Args& args, const Panel columns, index_t position) {
  if (position >= args.end_position) return;
  if constexpr (Policy::ids == ::deeprec::detail::ids_are::filtered) {
    if (args.row_of.absent(position)) return;
  }
  columns.prefetch(args.row_of(position));
}

// The factor that scales a row to a norm of at most args.max_norm. The squares of columns are added in one
// sum per lane.
template <class Element, class Args>
DEEPREC_INLINE float clip_factor(const Args& args, const std::byte* row) {
  vector_f32 squares = zero();
  for_each_vector<Element>(args, row,
                           [&](vector_f32 x, index_t, int) { squares = multiply_add(x, x, squares); });
  const float norm = __builtin_sqrtf(add_lanes(squares));
  return norm > args.max_norm ? args.max_norm / norm : 1.0F;
}

// The factor of the row at a position: its weight and its clip factor, where the kernel has them.
template <class Element, class Policy, bool Weighted, class Args>
DEEPREC_INLINE float factor_of(const Args& args, index_t position, const std::byte* row) {
  float factor = 1.0F;
  if constexpr (Policy::clips) factor = clip_factor<Element>(args, row);
  if constexpr (Weighted) factor = Policy::clips ? factor * args.weights[position] : args.weights[position];
  return factor;
}

// Writes a finished row to out. All of its vectors are read before one is written: the last two may
// overlap.
template <class Panel, class Args, std::size_t... V>
DEEPREC_INLINE void put_row(const Args& args, const Panel columns, index_t row,
                            vector_f32 (&total)[sizeof...(V)], std::index_sequence<V...>) {
  auto* const out = args.out + row * args.out_stride;
  if (args.stored == ::deeprec::detail::when_stored::accumulate) {
    ((total[V] = columns.template load_columns<V>(out) + total[V]), ...);
  }
  (columns.template store_columns<V>(out, total[V]), ...);
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
    total[V] = add(columns.template load_row<V>(from), total[V]);
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

// The value that rows are added to: +0 for a sum, which turns -0 into +0; -0 for concat, which keeps -0.
template <class Args>
DEEPREC_INLINE vector_f32 start_of(const Args& args) {
  return splat(args.sums ? 0.0F : -0.0F);
}

// One row times a factor, with the bits of a bag that holds only this row.
template <class Policy, class Panel, class Args, std::size_t... V>
DEEPREC_INLINE void take_row(const Args& args, const Panel columns, const std::byte* row,
                             [[maybe_unused]] float factor, [[maybe_unused]] const vector_f32 start,
                             vector_f32 (&total)[sizeof...(V)],
                             [[maybe_unused]] std::index_sequence<V...> vectors) {
  const std::byte* const from = columns.codec.begin_of(row);
  if constexpr (Policy::folding == ::deeprec::detail::fold::maximum) {
    ((total[V] = columns.template load_row<V>(from)), ...);
    if constexpr (Policy::clips) ((total[V] = total[V] * splat(factor)), ...);
  } else {
    if constexpr (Panel::scaled) {
      if (args.sums) {
        ((total[V] = zero()), ...);
        const float bias = 0.0F + add_codes(columns, from, factor, total, vectors);
        end_sums<Panel>(bias, total, vectors);
        return;
      }
    }
    ((total[V] = multiply_add(columns.template load_row<V>(from), splat(factor), start)), ...);
  }
}

// Loads the default row into registers.
template <class Policy, class Panel, class Args, std::size_t... V>
DEEPREC_INLINE void take_default(const Args& args, const Panel columns, vector_f32 (&total)[sizeof...(V)],
                                 std::index_sequence<V...> vectors) {
  float factor = 1.0F;
  if constexpr (Policy::clips) factor = clip_factor<typename Panel::element>(args, args.default_row);
  take_row<Policy>(args, columns, args.default_row, factor, start_of(args), total, vectors);
}

// One bag, one panel of columns: the positions [begin, end) folded in registers, finished and stored.
// Returns the number of ids used.
template <class Policy, bool Weighted, class Panel, class Args, std::size_t... V>
DEEPREC_INLINE index_t pool_panel(const Args& args, const Panel columns, index_t begin, index_t end,
                                  index_t bag, index_t ahead, std::index_sequence<V...> vectors) {
  constexpr bool adding = Policy::folding == ::deeprec::detail::fold::add;
  using element = typename Panel::element;
  vector_f32 total[sizeof...(V)] = {(static_cast<void>(V), adding ? zero() : splat(-__builtin_inff()))...};
  ::deeprec::detail::pool_counts counts;
  [[maybe_unused]] double bias = 0;  // of rows of codes
  columns.prefetch_out(args.out + bag * args.out_stride);
  for (index_t position = begin; position < end; ++position) {
    prefetch_position<Policy>(args, columns, position + ahead);
    if constexpr (Policy::ids == ::deeprec::detail::ids_are::filtered) {
      if (args.row_of.absent(position)) continue;
    }
    const std::byte* const row = args.row_of(position);
    const std::byte* const from = columns.codec.begin_of(row);
    if constexpr (!adding && Policy::clips) {
      const vector_f32 factor = splat(factor_of<element, Policy, false>(args, position, row));
      ((total[V] = maximum(total[V], columns.template load_row<V>(from) * factor)), ...);
    } else if constexpr (!adding) {
      ((total[V] = maximum(total[V], columns.template load_row<V>(from))), ...);
    } else if constexpr (Panel::scaled) {
      const float factor = factor_of<element, Policy, Weighted>(args, position, row);
      bias += static_cast<double>(add_codes(columns, from, factor, total, vectors));
    } else if constexpr (Weighted || Policy::clips) {
      const vector_f32 factor = splat(factor_of<element, Policy, Weighted>(args, position, row));
      add_values(columns, from, add_times{factor}, total, vectors);
    } else {
      add_values(columns, from, add_once{}, total, vectors);
    }
    if constexpr (Weighted) {
      counts.add(static_cast<double>(args.weights[position]));
    } else {
      ++counts.used;
    }
  }
  if constexpr (adding) end_sums<Panel>(static_cast<float>(bias), total, vectors);
  if (counts.used == 0) {
    if (args.empty == ::deeprec::detail::when_empty::keep) return 0;
    if (args.empty == ::deeprec::detail::when_empty::default_row) {
      take_default<Policy>(args, columns, total, vectors);
    } else if (args.empty == ::deeprec::detail::when_empty::zeros) {
      ((total[V] = zero()), ...);
    }
  } else if (args.divide != ::deeprec::detail::divide_by::one) {
    if constexpr (!Weighted) {
      counts.weight_sum = counts.weight_squares = static_cast<double>(counts.used);
    }
    const double divisor = counts.divisor(args.divide);
    if (divisor == 0.0) {
      ((total[V] = zero()), ...);
    } else {
      const vector_f32 by = splat(static_cast<float>(divisor));
      ((total[V] = total[V] / by), ...);
    }
  }
  put_row(args, columns, bag, total, vectors);
  return counts.used;
}

// One panel of the bags [begin, end); returns the number of ids used.
template <class Policy, bool Weighted, class Args>
struct pool_call {
  const Args& args;
  index_t begin;
  index_t end;

  template <class Panel>
  index_t run(const Panel columns) const {
    const index_t ahead = columns.rows_ahead(args);
    index_t used = 0;
    for (index_t bag = begin; bag < end; ++bag) {
      const index_t first = args.ranges.begin(bag);
      const index_t last = args.ranges.end(bag);
      if (last - first > ::deeprec::detail::chunk_positions) continue;  // the caller cuts it into chunks
      used += pool_panel<Policy, Weighted>(args, columns, first, last, bag, ahead,
                                           std::make_index_sequence<Panel::vectors>{});
    }
    return used;
  }
};

// One panel of the rows of the positions [begin, end), each to row position - base of out; returns the
// number of ids used.
template <class Policy, class Args>
struct gather_call {
  const Args& args;
  index_t begin;
  index_t end;
  index_t base;

  template <class Panel>
  index_t run(const Panel columns) const {
    return run(columns, std::make_index_sequence<Panel::vectors>{});
  }

  template <class Panel, std::size_t... V>
  DEEPREC_INLINE index_t run(const Panel columns, std::index_sequence<V...> vectors) const {
    const index_t ahead = columns.rows_ahead(args);
    const index_t out_ahead = args.out_ahead;
    const index_t fetched_end = out_ahead > 0 ? end - out_ahead : begin;  // of the rows of out
    [[maybe_unused]] const vector_f32 start = start_of(args);
    index_t used = 0;
    for (index_t position = begin; position < end; ++position) {
      prefetch_position<Policy>(args, columns, position + ahead);
      if (position < fetched_end) {
        columns.prefetch_out(args.out + (position - base + out_ahead) * args.out_stride);
      }
      vector_f32 total[sizeof...(V)];
      if (Policy::ids == ::deeprec::detail::ids_are::filtered && args.row_of.absent(position)) {
        if (args.empty == ::deeprec::detail::when_empty::keep) continue;
        if (args.empty == ::deeprec::detail::when_empty::default_row) {
          take_default<Policy>(args, columns, total, vectors);
        } else {
          ((total[V] = zero()), ...);
        }
      } else {
        ++used;
        const std::byte* const row = args.row_of(position);
        const float factor = args.weights == nullptr
                                 ? factor_of<typename Panel::element, Policy, false>(args, position, row)
                                 : factor_of<typename Panel::element, Policy, true>(args, position, row);
        take_row<Policy>(args, columns, row, factor, start, total, vectors);
      }
      put_row(args, columns, position - base, total, vectors);
    }
    return used;
  }
};

// Runs a call for one panel of at least one vector.
template <class Element, class Call>
DEEPREC_INLINE index_t run_panel(index_t first, index_t columns, const row_codec<Element>& codec,
                                 const Call& call) {
  const index_t vectors = (columns + lanes - 1) / lanes;
  if constexpr (is_fallback) {
    return vectors == 1 ? call.run(panel<Element, 1, false>{first, columns, codec})
                        : call.run(panel<Element, 4, false>{first, columns, codec});
  } else {
    // Odd numbers of vectors use the next even panel, except for codes in pairs.
    constexpr int odd = row_codec<Element>::unit == 1 ? 1 : 0;
    switch (vectors) {
      case 1:
        return call.run(panel<Element, 1, false>{first, columns, codec});
      case 2:
        return call.run(panel<Element, 2, false>{first, columns, codec});
      case 3:
        return call.run(panel<Element, 3 + odd, false>{first, columns, codec});
      case 4:
        return call.run(panel<Element, 4, false>{first, columns, codec});
      case 5:
        return call.run(panel<Element, 5 + odd, false>{first, columns, codec});
      case 6:
        return call.run(panel<Element, 6, false>{first, columns, codec});
      case 7:
        return call.run(panel<Element, 7 + odd, false>{first, columns, codec});
      default:
        return call.run(panel<Element, 8, false>{first, columns, codec});
    }
  }
}

// Runs a call for every panel of a row; returns the result of the first.
template <class Element, class Call>
DEEPREC_INLINE index_t for_each_panel(index_t width, const Call& call) {
  index_t answer = 0;
  for (index_t first = 0; first < width;) {
    const index_t left = width - first;
    constexpr index_t most = index_t{max_vectors} * lanes;
    const index_t columns = left >= most ? most : is_fallback && left > lanes ? lanes : left;
    const auto codec = row_codec<Element>::of(call.args, first, columns);
    index_t here = 0;
    if (columns < lanes) {
      here = call.run(panel<Element, 1, true>{first, columns, codec});
    } else {
      here = run_panel<Element>(first, columns, codec, call);
    }
    if (first == 0) answer = here;
    first += columns;
  }
  return answer;
}

/// Prefetches the rows of the first positions from `position` on, which no earlier position prefetches.
template <class Element, class Policy, class Args>
void fetch_first_rows(region, Policy, const Args& args, index_t position) {
  constexpr index_t widest = index_t{max_vectors} * lanes;
  const index_t width = args.width < widest ? args.width : widest;
  const panel<Element, 1, false> columns{0, width, row_codec<Element>::of(args, 0, width)};
  const index_t ahead = columns.rows_ahead(args);
  if (ahead == args.end_position) return;
  const index_t last = ahead < args.end_position - position ? position + ahead : args.end_position;
  for (index_t k = position; k < last; ++k) prefetch_position<Policy>(args, columns, k);
}

/// Pools the bags [begin, end) except those of more than chunk_positions ids; returns the number of ids used.
template <class Element, class Policy, class Args>
index_t pool_bags(region, Policy, const Args& args, index_t begin, index_t end) {
  if constexpr (Policy::folding == ::deeprec::detail::fold::add) {
    if (args.weights != nullptr) {
      return for_each_panel<Element>(args.width, pool_call<Policy, true, Args>{args, begin, end});
    }
  }
  return for_each_panel<Element>(args.width, pool_call<Policy, false, Args>{args, begin, end});
}

/// Copies the rows of the positions [begin, end) to the rows [begin - base, end - base) of out; returns the
/// number of ids used.
template <class Element, class Policy, class Args>
index_t gather_positions(region, Policy, const Args& args, index_t begin, index_t end, index_t base) {
  return for_each_panel<Element>(args.width, gather_call<Policy, Args>{args, begin, end, base});
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
