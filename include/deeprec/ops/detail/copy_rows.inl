// Copies of rows of bytes, written over the byte-vector primitives and compiled once for each region.
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
    const auto to_line =
        static_cast<index_t>((std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(to)) & (line - 1));
    const index_t head = to_line < width ? to_line : width;
    const index_t tail = head + (width - head) / line * line;
    if (head != 0) copy_bytes(to, from, head);
    for (index_t at = head; at < tail; at += byte_lanes) stream(to + at, load(from + at));
    if (tail != width) copy_bytes(to + tail, from + tail, width - tail);
  }
};

struct row_move {
  const std::byte* from;
  std::byte* to;
};

// Copies rows [begin, end) of `rows`, which has these members:
//   at(b)            where row b is copied from and to
//   wanted(move)     false where that row is not copied
//   fetch(copy, b)   prefetches row b
//   width()          bytes of a row
//   ahead()          prefetch distance in rows; 0: none
// It is passed by value: stores of bytes may alias a reference, and it would be read again for every row.
template <class Rows, class CopyRow>
void copy_rows(const Rows rows, const CopyRow copy, index_t begin, index_t end) {
  const index_t ahead = rows.ahead();
  const index_t fetched = ahead == 0 || end - begin < ahead ? begin : end - ahead;
  for (index_t b = begin; b < fetched; ++b) {
    rows.fetch(copy, b + ahead);
    if (const row_move move = rows.at(b); rows.wanted(move)) copy(move.to, move.from, rows.width());
  }
  for (index_t b = fetched; b < end; ++b) {
    if (const row_move move = rows.at(b); rows.wanted(move)) copy(move.to, move.from, rows.width());
  }
}

// Rows of 1 to 8 vectors.
template <class Stores, class Rows>
DEEPREC_INLINE void copy_rows_of_vectors(const Rows& rows, index_t begin, index_t end) {
  switch ((rows.width() + byte_lanes - 1) / byte_lanes) {
    case 1:
      return copy_rows(rows, copy_vectors<Stores, 1>{}, begin, end);
    case 2:
      return copy_rows(rows, copy_vectors<Stores, 2>{}, begin, end);
    case 3:
      return copy_rows(rows, copy_vectors<Stores, 3>{}, begin, end);
    case 4:
      return copy_rows(rows, copy_vectors<Stores, 4>{}, begin, end);
    case 5:
      return copy_rows(rows, copy_vectors<Stores, 5>{}, begin, end);
    case 6:
      return copy_rows(rows, copy_vectors<Stores, 6>{}, begin, end);
    case 7:
      return copy_rows(rows, copy_vectors<Stores, 7>{}, begin, end);
    default:
      return copy_rows(rows, copy_vectors<Stores, 8>{}, begin, end);
  }
}

// The copies of rows [begin, end) to rows of `out`.
template <class Rows>
DEEPREC_INLINE void copy_any_rows(const Rows& rows, const ::deeprec::detail::byte_rows<std::byte>& out,
                                  ::deeprec::detail::store_kind stores, index_t begin, index_t end) {
  const bool few_vectors = out.width <= 8 * byte_lanes;
  if (stores == ::deeprec::detail::store_kind::streamed) {
    if (few_vectors && ::deeprec::detail::has_whole_lines(out)) {
      copy_rows_of_vectors<streamed>(rows, begin, end);
    } else {
      copy_rows(rows, stream_row{}, begin, end);
    }
    end_streams();
  } else if (out.width < byte_lanes) {
    copy_rows(rows, copy_short_row{}, begin, end);
  } else if (few_vectors) {
    copy_rows_of_vectors<stored>(rows, begin, end);
  } else {
    copy_rows(rows, copy_wide_row{}, begin, end);
  }
}
