// The stitch kernels, written over the copies of rows and compiled once for each region.

// Rows to places that `numbers` gives. Known: only where `last` names the row.
template <class Index, bool Known>
struct stitched_rows {
  ::deeprec::detail::stitch_args<Index> args;

  DEEPREC_INLINE row_move at(index_t i) const {
    const auto number = static_cast<index_t>(args.numbers[i]);
    const bool wins = !Known || args.last[number] == args.first_place + static_cast<std::uint64_t>(i) + 1;
    return {args.from.row(i), wins ? args.out.row(number) : nullptr};
  }
  DEEPREC_INLINE static bool wanted(const row_move& move) { return !Known || move.to != nullptr; }
  template <class CopyRow>
  DEEPREC_INLINE void fetch(const CopyRow& copy, index_t i) const {
    copy.fetch(args.from.row(i), args.out.width);
    if (args.fetches_out) fetch_to_write(args.out.row(static_cast<index_t>(args.numbers[i])));
  }
  DEEPREC_INLINE index_t width() const { return args.out.width; }
  DEEPREC_INLINE index_t ahead() const { return args.ahead; }

 private:
  DEEPREC_INLINE void fetch_to_write(const std::byte* to) const {
    for (index_t at = 0; at < args.out.width; at += ::deeprec::detail::line_bytes) {
      __builtin_prefetch(to + at, 1, 2);
    }
  }
};

/// Rows [begin, end) of `from`, in this order: without `last`, the later of two rows with one number stays.
template <class Index>
void stitch_rows(region, const ::deeprec::detail::stitch_args<Index>& args, index_t begin, index_t end) {
  if (args.last != nullptr) {
    copy_any_rows(stitched_rows<Index, true>{args}, args.out, args.stores, begin, end);
  } else {
    copy_any_rows(stitched_rows<Index, false>{args}, args.out, args.stores, begin, end);
  }
}

template <class Index>
DEEPREC_INLINE bool is_outside(Index number, index_t limit) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(number)) >= static_cast<std::uint64_t>(limit);
}

/// The first i of [begin, end) with a number outside of [0, limit); end where there is none.
template <class Index>
index_t first_outside(region, const Index* numbers, index_t limit, index_t begin, index_t end) {
  bool any = false;
  for (index_t i = begin; i < end; ++i) any |= is_outside(numbers[i], limit);
  if (!any) return end;
  index_t i = begin;
  while (!is_outside(numbers[i], limit)) ++i;
  return i;
}
