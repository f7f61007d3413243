// Codecs that read the rows of each format in the lookup kernels, compiled once per region before lookup.inl.
//
//   of(args, first, columns)                 a codec for the panel of the columns [first, first + columns)
//   load_at(row, first, c), load_first_at    values from column first + c, equal to the scalar reference
//   prefetch(row, first, columns)            all lines that those columns need; bytes(columns): their size
//   unit                                     vectors begin at multiples of this number of columns
//   scaled                                   true: values are codes; load_codes_at, scale_and_bias

// Prefetches the lines of a range into the L2 cache: L1 accepts about two dozen lines at a time, and further
// prefetches stall. A range that is not aligned to a line touches one line more.
DEEPREC_INLINE void prefetch_range(const std::byte* begin, index_t bytes) {
  for (index_t line = 0; line < bytes; line += 64) __builtin_prefetch(begin + line, 0, 2);
  if ((reinterpret_cast<std::uintptr_t>(begin) & 63) != 0) __builtin_prefetch(begin + bytes - 1, 0, 2);
}

// Rows that are arrays of one type.
template <class Element>
struct row_codec {
  static constexpr bool scaled = false;
  static constexpr index_t unit = 1;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args&, index_t, index_t) {
    return {};
  }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* row, index_t first, index_t c) const {
    return load(static_cast<const Element*>(static_cast<const void*>(row)) + first + c);
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* row, index_t first, int n) const {
    return load_first(static_cast<const Element*>(static_cast<const void*>(row)) + first, n);
  }
  DEEPREC_INLINE void prefetch(const std::byte* row, index_t first, index_t columns) const {
    prefetch_range(row + first * index_t{sizeof(Element)}, columns * index_t{sizeof(Element)});
  }
  [[nodiscard]] DEEPREC_INLINE index_t bytes(index_t columns) const {
    return columns * index_t{sizeof(Element)};
  }
};

// Codes with one scale and one bias. Values are codes * scale + bias; sums use the parts.
template <int Bits, class Scale>
struct row_codec<::deeprec::detail::scaled_code<Bits, Scale>> {
  static constexpr bool scaled = true;
  static constexpr index_t unit = 8 / Bits;  // vectors begin at a byte boundary

  // Offsets from the row's address.
  index_t codes;  // of the panel's first column
  index_t pair;   // of scale and bias
  index_t begin;  // range to prefetch; with scale and bias where they adjoin the panel's codes
  index_t end;
  bool pair_is_apart;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args& args, index_t first, index_t columns) {
    row_codec codec;
    codec.pair = args.parts.others;
    codec.codes = codec.begin = args.parts.values + first / unit;
    codec.end = codec.begin + (columns + unit - 1) / unit;
    const bool before = codec.pair < args.parts.values && first == 0;
    const bool behind = codec.pair == codec.end;
    if (before) codec.begin = codec.pair;
    if (behind) codec.end = codec.pair + 2 * index_t{sizeof(Scale)};
    codec.pair_is_apart = !before && !behind;
    return codec;
  }
  DEEPREC_INLINE vector_f32 load_codes_at(const std::byte* row, index_t c) const {
    if constexpr (Bits == 8) {
      return load_codes(row + codes + c);
    } else {
      return load_nibbles(row + codes + (c >> 1));
    }
  }
  DEEPREC_INLINE vector_f32 load_first_codes_at(const std::byte* row, int n) const {
    if constexpr (Bits == 8) {
      return load_first_codes(row + codes, n);
    } else {
      return load_first_nibbles(row + codes, n);
    }
  }
  // Loads 2 * lanes columns, even and odd ones in separate vectors; 4 bits only.
  DEEPREC_INLINE void load_code_pairs_at(const std::byte* row, index_t c, vector_f32& even,
                                         vector_f32& odd) const {
    load_nibbles(row + codes + (c >> 1), even, odd);
  }
  DEEPREC_INLINE ::deeprec::detail::two_floats scale_and_bias(const std::byte* row) const {
    return load_two(row + pair, Scale{});
  }
  DEEPREC_INLINE vector_f32 value_of(const std::byte* row, vector_f32 code) const {
    const ::deeprec::detail::two_floats both = scale_and_bias(row);
    return multiply_add(code, splat(both.first), splat(both.second));
  }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* row, index_t, index_t c) const {
    return value_of(row, load_codes_at(row, c));
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* row, index_t, int n) const {
    return value_of(row, load_first_codes_at(row, n));
  }
  DEEPREC_INLINE void prefetch(const std::byte* row, index_t, index_t) const {
    prefetch_range(row + begin, end - begin);
    if (pair_is_apart) __builtin_prefetch(row + pair, 0, 2);
  }
  [[nodiscard]] DEEPREC_INLINE index_t bytes(index_t) const { return end - begin + (pair_is_apart ? 64 : 0); }
};

// Floats in two halves.
template <>
struct row_codec<::deeprec::detail::split_float> {
  static constexpr bool scaled = false;
  static constexpr index_t unit = 1;

  index_t high;  // offsets of the panel's first column
  index_t low;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args& args, index_t first, index_t) {
    return {args.parts.values + 2 * first, args.parts.others + 2 * first};
  }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* row, index_t, index_t c) const {
    return load_halves(row + high + 2 * c, row + low + 2 * c);
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* row, index_t, int n) const {
    return load_first_halves(row + high, row + low, n);
  }
  DEEPREC_INLINE void prefetch(const std::byte* row, index_t, index_t columns) const {
    prefetch_range(row + high, 2 * columns);
    prefetch_range(row + low, 2 * columns);
  }
  [[nodiscard]] DEEPREC_INLINE index_t bytes(index_t columns) const { return 4 * columns; }
};

// Calls use(vector, its first column, number of its valid lanes) for the values of a row, in order.
template <class Element, class Args, class Use>
DEEPREC_INLINE void for_each_vector(const Args& args, const std::byte* row, const Use& use) {
  const index_t whole = args.width / lanes * lanes;
  const auto codec = row_codec<Element>::of(args, 0, args.width);
  for (index_t c = 0; c < whole; c += lanes) use(codec.load_at(row, 0, c), c, lanes);
  if (whole < args.width) {
    const int n = static_cast<int>(args.width - whole);
    const auto rest = row_codec<Element>::of(args, whole, args.width - whole);
    use(rest.load_first_at(row, whole, n), whole, n);
  }
}
