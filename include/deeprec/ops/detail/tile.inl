// The tile kernel, written over the copies of rows and compiled once for each region.
//
//   in row    abc
//   pattern   abcabcabca ..      repeats of the row, and the beginning of one: a vector may begin at any byte
//   out row   abcabcabcabc ..    vectors of the pattern; the next one begins byte_lanes bytes later in it

// Writes bytes one behind the other with stores of whole lines. Of a line that is not complete yet it keeps
// the bytes, also from one row of out to the next: plain stores to it would hold up the non-temporal ones
// behind them until the line is read.
template <class Stores>
class line_writer {
 public:
  // Goes on at `to`; bytes of other places that were kept are written.
  DEEPREC_INLINE void move_to(std::byte* to) {
    if (to == to_) return;
    finish();
    to_ = to;
    kept_ = 0;
  }
  // The bytes that complete the line, n at most.
  DEEPREC_INLINE index_t to_line(index_t n) const {
    const auto left = static_cast<index_t>((std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(to_)) &
                                           static_cast<std::uintptr_t>(line - 1));
    return left < n ? left : n;
  }
  // Fewer bytes than a line, within one line.
  DEEPREC_INLINE void put_part(const std::byte* from, index_t n) {
    const auto offset =
        static_cast<index_t>(reinterpret_cast<std::uintptr_t>(to_) & static_cast<std::uintptr_t>(line - 1));
    copy_bytes(line_ + offset, from, n);
    to_ += n;
    kept_ += n;
    if (offset + n == line) flush();
  }
  // The place of n bytes, whole lines, that the caller writes; where none is kept.
  DEEPREC_INLINE std::byte* skip(index_t n) {
    std::byte* const place = to_;
    to_ += n;
    return place;
  }
  DEEPREC_INLINE void write(const std::byte* from, index_t n) {
    const index_t head = to_line(n);
    if (head != 0) put_part(from, head);
    const index_t lines = (n - head) / line * line;
    std::byte* const to = skip(lines);
    for (index_t at = 0; at < lines; at += byte_lanes) Stores::put(to + at, load(from + head + at));
    if (head + lines != n) put_part(from + head + lines, n - head - lines);
  }
  DEEPREC_INLINE void finish() {
    if (kept_ != 0) {
      const auto end = reinterpret_cast<std::uintptr_t>(to_) & static_cast<std::uintptr_t>(line - 1);
      copy_bytes(to_ - kept_, line_ + static_cast<index_t>(end) - kept_, kept_);
    }
    kept_ = 0;
  }

 private:
  static constexpr index_t line = ::deeprec::detail::line_bytes;

  // The line is complete; its first bytes may belong to others.
  DEEPREC_INLINE void flush() {
    if (kept_ == line) {
      for (index_t at = 0; at < line; at += byte_lanes) Stores::put(to_ - line + at, load(line_ + at));
    } else {
      copy_bytes(to_ - kept_, line_ + line - kept_, kept_);
    }
    kept_ = 0;
  }

  std::byte* to_ = nullptr;
  index_t kept_ = 0;  // bytes before to_ that are not written yet, all of one line
  alignas(64) std::byte line_[line];
};

DEEPREC_INLINE index_t phase_after(index_t phase, index_t period) {
  return phase >= period ? phase - period : phase;
}

// The pattern's period is at least a vector.
template <class Stores>
void tile_from_pattern(const ::deeprec::detail::tile_args args, index_t begin, index_t end) {
  alignas(64) std::byte pattern[::deeprec::detail::tile_pattern_most + 3 * byte_lanes];
  constexpr index_t line = ::deeprec::detail::line_bytes;
  const index_t width = args.in.width;
  const index_t repeats = (byte_lanes + width - 1) / width;
  const index_t period = repeats * width;
  line_writer<Stores> writer;
  index_t row = begin % args.in.count;
  for (index_t b = begin; b < end; ++b) {
    for (index_t j = 0; j < repeats; ++j) copy_bytes(pattern + j * width, args.in.row(row), width);
    copy_bytes(pattern + period, pattern, byte_lanes);
    if (++row == args.in.count) row = 0;
    writer.move_to(args.out.row(b));
    index_t left = args.out.width, phase = 0;
    // A part of a line, a vector at most: the pattern goes on for a vector behind its period.
    for (index_t head = writer.to_line(left); head > 0;) {
      const index_t n = head < byte_lanes ? head : byte_lanes;
      writer.put_part(pattern + phase, n);
      phase = phase_after(phase + n, period);
      left -= n;
      head -= n;
    }
    const index_t lines = left / line * line;
    std::byte* const to = writer.skip(lines);
    for (index_t at = 0; at < lines; at += byte_lanes) {
      Stores::put(to + at, load(pattern + phase));
      phase = phase_after(phase + byte_lanes, period);
    }
    left %= line;
    while (left > 0) {
      const index_t n = left < byte_lanes ? left : byte_lanes;
      writer.put_part(pattern + phase, n);
      phase = phase_after(phase + n, period);
      left -= n;
    }
  }
  writer.finish();
}

// Each repeat by itself, with non-temporal stores.
inline void tile_in_lines(const ::deeprec::detail::tile_args args, index_t begin, index_t end) {
  line_writer<streamed> writer;
  index_t row = begin % args.in.count;
  for (index_t b = begin; b < end; ++b) {
    writer.move_to(args.out.row(b));
    for (index_t at = 0; at < args.out.width; at += args.in.width) {
      writer.write(args.in.row(row), args.in.width);
    }
    if (++row == args.in.count) row = 0;
  }
  writer.finish();
}

// The same with stores through the caches.
template <class CopyRow>
void tile_row_by_row(const ::deeprec::detail::tile_args args, const CopyRow copy, index_t begin,
                     index_t end) {
  index_t row = begin % args.in.count;
  for (index_t b = begin; b < end; ++b) {
    const std::byte* const from = args.in.row(row);
    std::byte* const to = args.out.row(b);
    for (index_t at = 0; at < args.out.width; at += args.in.width) copy(to + at, from, args.in.width);
    if (++row == args.in.count) row = 0;
  }
}

/// Rows [begin, end) of out.
inline void tile_rows(region, const ::deeprec::detail::tile_args& args, index_t begin, index_t end) {
  const bool is_streamed = args.stores == ::deeprec::detail::store_kind::streamed;
  if (args.in.width <= ::deeprec::detail::tile_pattern_most && args.in.width != args.out.width &&
      args.out.width >= ::deeprec::detail::tile_pattern_out) {
    if (is_streamed) {
      tile_from_pattern<streamed>(args, begin, end);
    } else {
      tile_from_pattern<stored>(args, begin, end);
    }
  } else if (is_streamed) {
    tile_in_lines(args, begin, end);
  } else if (args.in.width < byte_lanes) {
    tile_row_by_row(args, copy_short_row{}, begin, end);
  } else {
    tile_row_by_row(args, copy_wide_row{}, begin, end);
  }
  if (is_streamed) end_streams();
}
