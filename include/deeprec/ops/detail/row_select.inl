// The row-select kernel, written over the byte-vector primitives and compiled once for each region.
//
//   width   1 .. byte_lanes - 1       one masked vector, or two pieces that overlap
//           1 to 8 vectors            all of them unrolled, the last overlapping the one before
//           more                      a loop over vectors, the last overlapping the one before
//           any, streamed             non-temporal stores of whole cache lines, plain ones at the ends
//
// A method to copy a row is a functor: operator() copies, fetch() prefetches a row that is copied later.

// Any number of bytes.
DEEPREC_INLINE void copy_bytes(std::byte* to, const std::byte* from, index_t n) {
  if (n < byte_lanes) {
    copy_first(to, from, static_cast<int>(n));
    return;
  }
  for (index_t at = 0; at < n - byte_lanes; at += byte_lanes) store(to + at, load(from + at));
  store(to + n - byte_lanes, load(from + n - byte_lanes));
}

// Prefetches one line into the second-level cache.
DEEPREC_INLINE void fetch_line(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

struct fetch_lines {
  DEEPREC_INLINE static void fetch(const std::byte* from, index_t width) {
    for (index_t at = 0; at < width; at += ::deeprec::detail::line_bytes) fetch_line(from + at);
  }
};

struct copy_short_row : fetch_lines {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    copy_first(to, from, static_cast<int>(width));
  }
};

struct copy_wide_row : fetch_lines {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    copy_bytes(to, from, width);
  }
};

struct stored {
  DEEPREC_INLINE static void put(std::byte* p, vector_u8 x) { store(p, x); }
};
struct streamed {  // rows of whole cache lines, aligned to lines
  DEEPREC_INLINE static void put(std::byte* p, vector_u8 x) { stream(p, x); }
};

template <class Stores, int Vectors>
struct copy_vectors {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    run(to, from, width - byte_lanes, std::make_index_sequence<Vectors - 1>{});
  }
  DEEPREC_INLINE static void fetch(const std::byte* from, index_t) {
    constexpr std::size_t bytes = std::size_t{Vectors} * byte_lanes;
    fetch_each(from, std::make_index_sequence<(bytes + 63) / 64>{});
  }

 private:
  template <std::size_t... V>
  DEEPREC_INLINE static void run(std::byte* to, const std::byte* from, index_t last,
                                 std::index_sequence<V...>) {
    (Stores::put(to + V * byte_lanes, load(from + V * byte_lanes)), ...);
    Stores::put(to + last, load(from + last));
  }
  template <std::size_t... Line>
  DEEPREC_INLINE static void fetch_each(const std::byte* from, std::index_sequence<Line...>) {
    (fetch_line(from + Line * ::deeprec::detail::line_bytes), ...);
  }
};

// Only whole lines are streamed: a non-temporal store of half a line costs more than a cached line.
struct stream_row : fetch_lines {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    constexpr index_t line = ::deeprec::detail::line_bytes;
    const index_t to_line =
        static_cast<index_t>((std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(to)) & (line - 1));
    const index_t head = to_line < width ? to_line : width;
    const index_t tail = head + (width - head) / line * line;
    if (head != 0) copy_bytes(to, from, head);
    for (index_t at = head; at < tail; at += byte_lanes) stream(to + at, load(from + at));
    if (tail != width) copy_bytes(to + tail, from + tail, width - tail);
  }
};

// The chosen row for b, without a branch.
DEEPREC_INLINE const std::byte* chosen_row(const ::deeprec::detail::select_args& args, index_t b) {
  return args.from[args.cond[b] != 0].row(b);
}

template <class CopyRow>
DEEPREC_INLINE void copy_chosen(const ::deeprec::detail::select_args& args, const CopyRow copy, index_t b) {
  const std::byte* const from = chosen_row(args, b);
  std::byte* const to = args.out.row(b);
  if (from != to) copy(to, from, args.out.width);  // in place: the row is there already
}

// The arguments are passed by value: stores of bytes may alias a reference, and they would be read again for
// every row.
template <class CopyRow>
void copy_rows(const ::deeprec::detail::select_args args, const CopyRow copy, index_t begin, index_t end) {
  const index_t ahead = args.ahead;
  const index_t fetched = ahead == 0 || end - begin < ahead ? begin : end - ahead;
  for (index_t b = begin; b < fetched; ++b) {
    copy.fetch(chosen_row(args, b + ahead), args.out.width);
    copy_chosen(args, copy, b);
  }
  for (index_t b = fetched; b < end; ++b) copy_chosen(args, copy, b);
}

// Rows of 1 to 8 vectors.
template <class Stores>
DEEPREC_INLINE void copy_rows_of_vectors(const ::deeprec::detail::select_args& args, index_t begin,
                                         index_t end) {
  switch ((args.out.width + byte_lanes - 1) / byte_lanes) {
    case 1:
      return copy_rows(args, copy_vectors<Stores, 1>{}, begin, end);
    case 2:
      return copy_rows(args, copy_vectors<Stores, 2>{}, begin, end);
    case 3:
      return copy_rows(args, copy_vectors<Stores, 3>{}, begin, end);
    case 4:
      return copy_rows(args, copy_vectors<Stores, 4>{}, begin, end);
    case 5:
      return copy_rows(args, copy_vectors<Stores, 5>{}, begin, end);
    case 6:
      return copy_rows(args, copy_vectors<Stores, 6>{}, begin, end);
    case 7:
      return copy_rows(args, copy_vectors<Stores, 7>{}, begin, end);
    default:
      return copy_rows(args, copy_vectors<Stores, 8>{}, begin, end);
  }
}

/// Rows [begin, end).
inline void select_rows(region, const ::deeprec::detail::select_args& args, index_t begin, index_t end) {
  const bool few_vectors = args.out.width <= 8 * byte_lanes;
  if (args.stores == ::deeprec::detail::store_kind::streamed) {
    const auto places = reinterpret_cast<std::uintptr_t>(args.out.first) |
                        static_cast<std::uintptr_t>(args.out.stride | args.out.width);
    if (few_vectors && places % static_cast<std::uintptr_t>(::deeprec::detail::line_bytes) == 0) {
      copy_rows_of_vectors<streamed>(args, begin, end);
    } else {
      copy_rows(args, stream_row{}, begin, end);
    }
    end_streams();
  } else if (args.out.width < byte_lanes) {
    copy_rows(args, copy_short_row{}, begin, end);
  } else if (few_vectors) {
    copy_rows_of_vectors<stored>(args, begin, end);
  } else {
    copy_rows(args, copy_wide_row{}, begin, end);
  }
}
