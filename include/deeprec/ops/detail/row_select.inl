// The row-select kernel, written over the copies of rows and compiled once for each region.

struct selected_rows {
  ::deeprec::detail::select_args args;

  // The chosen row for b, without a branch.
  DEEPREC_INLINE const std::byte* chosen(index_t b) const { return args.from[args.cond[b] != 0].row(b); }
  DEEPREC_INLINE row_move at(index_t b) const { return {chosen(b), args.out.row(b)}; }
  // In place: the row is there already.
  DEEPREC_INLINE static bool wanted(const row_move& move) { return move.from != move.to; }
  template <class CopyRow>
  DEEPREC_INLINE void fetch(const CopyRow& copy, index_t b) const {
    copy.fetch(chosen(b), args.out.width);
  }
  DEEPREC_INLINE index_t width() const { return args.out.width; }
  DEEPREC_INLINE index_t ahead() const { return args.ahead; }
};

/// Rows [begin, end).
inline void select_rows(region, const ::deeprec::detail::select_args& args, index_t begin, index_t end) {
  copy_any_rows(selected_rows{args}, args.out, args.stores, begin, end);
}
