// The row-select kernel, written over the byte words and compiled once for each region.
//
//   width   1 .. byte_lanes - 1       one masked vector, or two pieces that overlap
//           1 to 8 vectors            all of them unrolled, the last overlapping the one before
//           more                      a loop over vectors, the last overlapping the one before
//           any, past the caches      whole cache lines streamed, what is left at the ends stored

// Any number of bytes.
DEEPREC_INLINE void copy_bytes(std::byte* to, const std::byte* from, index_t n) {
  if (n < byte_lanes) {
    copy_first(to, from, static_cast<int>(n));
    return;
  }
  for (index_t at = 0; at < n - byte_lanes; at += byte_lanes) store(to + at, load(from + at));
  store(to + n - byte_lanes, load(from + n - byte_lanes));
}

struct copy_short_row {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    copy_first(to, from, static_cast<int>(width));
  }
};

template <std::size_t Vectors>
struct copy_vectors {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    run(to, from, width - byte_lanes, std::make_index_sequence<Vectors - 1>{});
  }
  template <std::size_t... V>
  DEEPREC_INLINE static void run(std::byte* to, const std::byte* from, index_t last,
                                 std::index_sequence<V...>) {
    (store(to + V * byte_lanes, load(from + V * byte_lanes)), ...);
    store(to + last, load(from + last));
  }
};

struct copy_wide_row {
  DEEPREC_INLINE void operator()(std::byte* to, const std::byte* from, index_t width) const {
    copy_bytes(to, from, width);
  }
};

// Only whole lines are streamed: half a line past the caches costs more than a line through them.
struct stream_row {
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

// The chosen row of b; which one it is costs no branch.
DEEPREC_INLINE const std::byte* chosen_row(const ::deeprec::detail::select_args& args, index_t b) {
  return args.from[args.cond[b] != 0].row(b);
}

template <class CopyRow>
DEEPREC_INLINE void copy_chosen(const ::deeprec::detail::select_args& args, const CopyRow copy,
                                index_t b) {
  const std::byte* const from = chosen_row(args, b);
  std::byte* const to = args.out.row(b);
  if (from != to) copy(to, from, args.out.width);  // out is an operand: the row is there already
}

template <class CopyRow>
void copy_rows(const ::deeprec::detail::select_args& args, const CopyRow copy, index_t begin,
               index_t end) {
  for (index_t b = begin; b < end; ++b) copy_chosen(args, copy, b);
}

inline void stream_rows(const ::deeprec::detail::select_args& args, index_t begin, index_t end) {
  const index_t ahead = ::deeprec::detail::rows_ahead(args.out.width);
  const index_t fetched = ahead == 0 ? begin : end - (ahead < end - begin ? ahead : end - begin);
  for (index_t b = begin; b < fetched; ++b) {
    const std::byte* const soon = chosen_row(args, b + ahead);
    for (index_t at = 0; at < args.out.width; at += ::deeprec::detail::line_bytes) {
      __builtin_prefetch(soon + at);
    }
    copy_chosen(args, stream_row{}, b);
  }
  for (index_t b = fetched; b < end; ++b) copy_chosen(args, stream_row{}, b);
  end_streams();
}

/// Rows [begin, end).
inline void select_rows(region, const ::deeprec::detail::select_args& args, index_t begin,
                        index_t end) {
  if (args.stores == ::deeprec::detail::store_kind::streamed) return stream_rows(args, begin, end);
  if (args.out.width < byte_lanes) return copy_rows(args, copy_short_row{}, begin, end);
  switch ((args.out.width + byte_lanes - 1) / byte_lanes) {
    case 1: return copy_rows(args, copy_vectors<1>{}, begin, end);
    case 2: return copy_rows(args, copy_vectors<2>{}, begin, end);
    case 3: return copy_rows(args, copy_vectors<3>{}, begin, end);
    case 4: return copy_rows(args, copy_vectors<4>{}, begin, end);
    case 5: return copy_rows(args, copy_vectors<5>{}, begin, end);
    case 6: return copy_rows(args, copy_vectors<6>{}, begin, end);
    case 7: return copy_rows(args, copy_vectors<7>{}, begin, end);
    case 8: return copy_rows(args, copy_vectors<8>{}, begin, end);
    default: return copy_rows(args, copy_wide_row{}, begin, end);
  }
}
