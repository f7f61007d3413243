// Bags whose rows are folded in registers, each panel over all bags before the next one. Once for each
// region, after copy_rows.inl.

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

template <int W>
inline constexpr std::make_index_sequence<std::size_t{W}> vector_numbers{};

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
      prefetch_after(run, k, columns);
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
      prefetch_after(run, k, columns);
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

// The same, for columns in so many vectors; 0: fewer columns than one has.
template <::deeprec::detail::fold Fold, class Element, class Out>
DEEPREC_INLINE void fold_vectors(index_t vectors, const row_columns<Element>& columns, const located_run& run,
                                 index_t begin, index_t end, const bag_place place, index_t used,
                                 bag_fold& bag, Out* out) {
  if constexpr (is_fallback) {
    return vectors == 0 ? fold_rows<Fold>(panel<Element, 1, true>{columns}, run, begin, end, place, used, bag,
                                          out, vector_numbers<1>)
           : vectors == 1 ? fold_rows<Fold>(panel<Element, 1, false>{columns}, run, begin, end, place, used,
                                            bag, out, vector_numbers<1>)
                          : fold_rows<Fold>(panel<Element, 4, false>{columns}, run, begin, end, place, used,
                                            bag, out, vector_numbers<4>);
  } else {
    // Odd numbers of vectors use the next even panel, except for codes in pairs.
    constexpr int odd = row_codec<Element>::unit == 1 ? 1 : 0;
    switch (vectors + (vectors > 1 && vectors % 2 == 1 ? odd : 0)) {
      case 0:
        return fold_rows<Fold>(panel<Element, 1, true>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<1>);
      case 1:
        return fold_rows<Fold>(panel<Element, 1, false>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<1>);
      case 2:
        return fold_rows<Fold>(panel<Element, 2, false>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<2>);
      case 4:
        return fold_rows<Fold>(panel<Element, 4, false>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<4>);
      case 6:
        return fold_rows<Fold>(panel<Element, 6, false>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<6>);
      case 8:
        return fold_rows<Fold>(panel<Element, 8, false>{columns}, run, begin, end, place, used, bag, out,
                               vector_numbers<8>);
      default:
        if constexpr (odd == 0) {
          if (vectors == 3)
            return fold_rows<Fold>(panel<Element, 3, false>{columns}, run, begin, end, place, used, bag, out,
                                   vector_numbers<3>);
          if (vectors == 5)
            return fold_rows<Fold>(panel<Element, 5, false>{columns}, run, begin, end, place, used, bag, out,
                                   vector_numbers<5>);
          return fold_rows<Fold>(panel<Element, 7, false>{columns}, run, begin, end, place, used, bag, out,
                                 vector_numbers<7>);
        }
    }
  }
}

// Adds the weights of the rows [begin, end) of a run whose factors are weights.
DEEPREC_INLINE void add_weights(::deeprec::detail::pool_counts& counts, const located_run& run, index_t begin,
                                index_t end) {
  for (index_t k = begin; k < end; ++k) counts.add(static_cast<double>(run.factors[k]));
}

// The sums of the bags [begin, end) of rows that are all present, in a panel of exactly W vectors whose lines
// are the same in every row; returns the number of ids used. One loop over bags and rows, which knows all
// sizes: what a bag costs beside its rows is most of what short bags cost more than long ones. By value: the
// caller keeps what it does not give the address of in registers.
template <int Locality, class Element, int W, class Args, std::size_t... V>
DEEPREC_APART index_t sum_whole_bags(const Args& args, const row_columns<Element> of, const located_run given,
                                     index_t begin, index_t end, const bag_place place,
                                     std::index_sequence<V...> vectors) {
  using panel_type = panel<Element, W, false>;
  constexpr index_t count = index_t{W} * lanes;
  constexpr auto lines_of_panel = static_cast<std::size_t>(count * index_t{sizeof(Element)} + 63) / 64;
  constexpr std::make_index_sequence<lines_of_panel> lines{};
  const panel_type columns{{of.first, count, of.codec}};
  stored_numbers rows = given.rows;
  rows.base += static_cast<std::uintptr_t>(of.codec.lines.begin);
  const index_t ahead = given.ahead, fetched = given.fetched, stride = args.out_stride;
  const float* const factors = given.factors;
  const bool divides = place.divides;
  const ::deeprec::detail::bag_ranges ranges = args.ranges;  // no store changes it
  const index_t first = ranges.begin(begin);
  auto* out = args.out + begin * stride;
  index_t k = 0, used = 0;
  for (index_t bag = begin; bag < end; ++bag, out += stride) {
    const index_t from = k, stop = ranges.end(bag) - first;
    if (stop - from > ::deeprec::detail::chunk_positions) {  // the caller cuts it into chunks
      k = stop;
      continue;
    }
    if (stop == from) {
      put_empty<Element>(args, of.first, count, out + of.first);
      continue;
    }
    columns.prefetch_out(out);
    vector_f32 total[] = {(static_cast<void>(V), zero())...};
    const index_t fetching = stop < fetched ? stop : fetched;
    if (factors == nullptr) {
      for (; k < fetching; ++k) {
        prefetch_whole<Locality>(part_of(rows.row(k + ahead), 0), lines);
        add_values(columns, part_of(rows.row(k), 0), add_once{}, total, vectors);
      }
      for (; k < stop; ++k) add_values(columns, part_of(rows.row(k), 0), add_once{}, total, vectors);
    } else {
      for (; k < fetching; ++k) {
        prefetch_whole<Locality>(part_of(rows.row(k + ahead), 0), lines);
        add_values(columns, part_of(rows.row(k), 0), add_times{splat(factors[k])}, total, vectors);
      }
      for (; k < stop; ++k) {
        add_values(columns, part_of(rows.row(k), 0), add_times{splat(factors[k])}, total, vectors);
      }
    }
    end_sums<panel_type>(0.0F, total, vectors);
    if (divides) {
      const vector_f32 by = splat(place.divisor(stop - from));
      ((total[V] = total[V] / by), ...);
    }
    (columns.store_columns(out, V, total[V]), ...);
    used += stop - from;
  }
  return used;
}

// The same, where the panel is one of those; false: it is not.
template <class Element, class Args>
DEEPREC_INLINE bool sum_if_whole(const Args& args, const row_columns<Element>& columns,
                                 const located_run& run, index_t begin, index_t end, const bag_place& place,
                                 index_t& used) {
  if constexpr (requires { columns.codec.lines; } && !row_codec<Element>::scaled) {
    const auto& lines = columns.codec.lines;
    const index_t vectors = columns.columns / lanes;
    if (vectors * lanes != columns.columns || lines.whole == 0) return false;
    const auto sum = [&](auto w) {
      constexpr int width = decltype(w)::value;
      constexpr std::make_index_sequence<static_cast<std::size_t>(width)> all{};
      // A single line was not faster out of the first level.
      used = lines.first_level && lines.whole > 1
                 ? sum_whole_bags<3, Element, width>(args, columns, run, begin, end, place, all)
                 : sum_whole_bags<2, Element, width>(args, columns, run, begin, end, place, all);
      return true;
    };
    if (vectors == 1) return sum(std::integral_constant<int, 1>{});
    if constexpr (!is_fallback) {
      if (vectors == 2) return sum(std::integral_constant<int, 2>{});
    }
    if (vectors == 4) return sum(std::integral_constant<int, 4>{});
    if constexpr (!is_fallback) {
      if (vectors == 8) return sum(std::integral_constant<int, 8>{});
    }
  }
  return false;
}

// The bags [begin, end), in panels; returns the number of ids used.
template <::deeprec::detail::fold Fold, class Element, class Args>
DEEPREC_INLINE index_t pool_panels(const Args& args, index_t begin, index_t end, bool fetches) {
  row_window window;
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
    window.open(run.ahead, begin_position, end_position, args.end_position);
    if (stored && !args.filters) window.ready = end_position;
    if (fetches) fetch_within(run, end_position - begin_position);
    if (fetches && first == 0 && run.ahead > 0) {
      fetch_rows(args, columns_of<Element>(args, first, count), run.ahead, begin_position);
    }
    index_t used_all = 0;
    if constexpr (Fold == ::deeprec::detail::fold::add) {
      if (stored && !args.filters && overwrites && !place.by_weights &&
          sum_if_whole(args, columns, run, begin, end, place, used_all)) {
        if (first == 0) used_first = used_all;
        first += count;
        continue;
      }
    }
    for (index_t bag = begin; bag < end; ++bag) {
      index_t position = last;
      last = args.ranges.end(bag);
      if (last - position > ::deeprec::detail::chunk_positions) continue;  // the caller cuts it into chunks
      auto* const out = args.out + bag * args.out_stride;
      columns.prefetch_out(out);
      // The factors of rows that may be clipped are not their weights.
      ::deeprec::detail::pool_counts counts;
      if (place.by_weights && args.max_norm > 0) counts = ::deeprec::detail::counts_of_kernel(args, bag);
      bool is_zero = false;
      auto* into = overwrites ? out : nullptr;
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
        if (place.by_weights) {
          if (!(args.max_norm > 0)) add_weights(counts, run, from_row, to_row);
          const double divisor = counts.divisor(args.divide);
          is_zero = divisor == 0.0;
          place.of_weights = static_cast<float>(divisor);
          place.divides = !is_zero;
          into = overwrites && !is_zero ? out : nullptr;
        }
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
