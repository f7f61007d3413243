// Codecs that read the rows of each format in the lookup kernels, compiled once per region before lookup.inl.
//
//   of(args, first, columns)                 a codec for the panel of the columns [first, first + columns)
//   begin_of(row)                            the panel's first column in a row: the `from` of what follows
//   load_at(from, c), load_first_at(from, n) values from column c of the panel, or its first n < lanes
//                                            columns and zeros; equal to the scalar reference
//   prefetch(row)                            all lines that the panel needs; bytes(): their size
//   pairs                                    true: load_pair_at(from, c, even, odd) loads 2 * lanes columns
//   unit                                     vectors begin at multiples of this number of columns
//   scaled                                   true: values are codes; load_codes_at, scale_and_bias

// row + offset, of which compilers know nothing: else they add the offset to that of each vector, and keep
// eight sums in registers instead of one.
DEEPREC_INLINE const std::byte* part_of(const std::byte* row, index_t offset) {
  const std::byte* from = row + offset;
#if !defined(__CUDA_ARCH__)
  asm("" : "+r"(from));
#endif
  return from;
}

// No lambda: g++ takes a function that only prefetches for one without effects, and drops its calls.
template <int Locality>  // 3: into the first-level cache, 2: into the second
struct prefetch_line {
  DEEPREC_INLINE void operator()(const std::byte* line) const { __builtin_prefetch(line, 0, Locality); }
};

// Prefetches lines by an instruction for each.
template <int Locality, std::size_t... L>
DEEPREC_INLINE void prefetch_whole(const std::byte* from, std::index_sequence<L...>) {
  (__builtin_prefetch(from + 64 * L, 0, Locality), ...);
}

// The lines of a range of bytes that has the same place in every row.
struct row_lines {
  index_t begin;  // from the row's address
  index_t bytes;
  // A range may touch one line more than its size requires. Its last byte is prefetched as well where an
  // address has one of these bits: none where the alignment of all rows rules such ranges out; 63 where it is
  // not known; else all, since no predictor learns a branch that depends on the address of a random row.
  std::uintptr_t bits;
  bool first_level;  // kernel_tuning::prefetch_level is 1
  index_t whole;     // the lines of the range where no row has one more; 0: some may

  template <class Args>
  DEEPREC_INLINE static row_lines of(const Args& args, index_t begin, index_t end) {
    index_t step = 1;
    if constexpr (requires { args.row_of.alignment(); }) step = begin | args.row_of.alignment();
    step &= -step;
    const index_t bytes = end - begin;
    const bool may_cross = (bytes + 127 - step) / 64 > (bytes + 63) / 64;
    return {begin, bytes,
            !may_cross  ? 0
            : step == 1 ? 63
                        : ~std::uintptr_t{0},
            args.tuning->prefetch_level == 1, may_cross ? 0 : (bytes + 63) / 64};
  }
  // Calls use(address) for an address in each line.
  template <class Use>
  DEEPREC_INLINE void each(const std::byte* row, const Use& use) const {
    const std::byte* const from = row + begin;
    use(from);
    if (bytes > 64) use(from + 64);
    if (bytes > 128) use(from + 128);
    for (index_t line = 192; line < bytes; line += 64) use(from + line);
    if ((reinterpret_cast<std::uintptr_t>(from) & bits) != 0) use(from + bytes - 1);
  }
  // The same by an instruction for each line, of at most sizeof...(L) lines and at least Least. One that
  // moves along a row teaches a prefetcher for fixed strides to fetch the lines behind the row
  // (docs/adr/0011-prefetch-distance.md).
  template <index_t Least, class Use, std::size_t... L>
  DEEPREC_INLINE void each_of(const std::byte* row, const Use& use, std::index_sequence<L...>) const {
    const std::byte* const from = part_of(row, begin);  // one address, not one for each line
    ((index_t{L} < Least || index_t{64 * L} < bytes ? use(from + 64 * L) : void()), ...);
    if ((reinterpret_cast<std::uintptr_t>(from) & bits) != 0) use(from + bytes - 1);
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const { each(row, prefetch_line<2>{}); }
  // A range of one line at most, or two halves.
  DEEPREC_INLINE void prefetch_one(const std::byte* row) const {
    const std::byte* const from = row + begin;
    __builtin_prefetch(from, 0, 2);
    if ((reinterpret_cast<std::uintptr_t>(from) & bits) != 0) __builtin_prefetch(from + bytes - 1, 0, 2);
  }
  // Of Least to Most lines, into the cache that the tuning names.
  template <index_t Least, index_t Most>
  DEEPREC_INLINE void prefetch_lines(const std::byte* row) const {
    constexpr std::make_index_sequence<static_cast<std::size_t>(Most)> lines{};
    first_level ? each_of<Least>(row, prefetch_line<3>{}, lines)
                : each_of<Least>(row, prefetch_line<2>{}, lines);
  }
  // Of at least two lines: the first Most by an instruction for each.
  template <index_t Most>
  DEEPREC_INLINE void prefetch_several(const std::byte* row) const {
    constexpr std::make_index_sequence<static_cast<std::size_t>(Most)> lines{};
    if (whole == Most && first_level) return prefetch_whole<3>(part_of(row, begin), lines);
    prefetch_lines<2, Most>(row);
    for (index_t line = 64 * Most; line < bytes; line += 64) __builtin_prefetch(row + begin + line, 0, 2);
  }
};

// Rows that are arrays of one type.
template <class Element>
struct row_codec {
  static constexpr bool scaled = false;
  static constexpr index_t unit = 1;
  static constexpr bool pairs = std::is_same_v<Element, bf16> && loads_pairs_of_bf16;

  row_lines lines;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args& args, index_t first, index_t columns) {
    return {
        row_lines::of(args, first * index_t{sizeof(Element)}, (first + columns) * index_t{sizeof(Element)})};
  }
  DEEPREC_INLINE const std::byte* begin_of(const std::byte* row) const { return part_of(row, lines.begin); }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* from, index_t c) const {
    return load(static_cast<const Element*>(static_cast<const void*>(from)) + c);
  }
  DEEPREC_INLINE void load_pair_at(const std::byte* from, index_t c, vector_f32& even,
                                   vector_f32& odd) const {
    load_pair(static_cast<const Element*>(static_cast<const void*>(from)) + c, even, odd);
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* from, int n) const {
    return load_first(static_cast<const Element*>(static_cast<const void*>(from)), n);
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const { lines.prefetch(row); }
  [[nodiscard]] DEEPREC_INLINE index_t bytes() const { return lines.bytes; }
};

// Codes with one scale and one bias. Values are codes * scale + bias, rounded twice; sums use the parts.
template <int Bits, class Scale>
struct row_codec<::deeprec::detail::scaled_code<Bits, Scale>> {
  static constexpr bool scaled = true;
  static constexpr index_t unit = 8 / Bits;  // vectors begin at a byte boundary
  static constexpr bool pairs = Bits == 4;

  index_t codes;    // the offset of the panel's first column from the row's address
  index_t pair;     // of scale and bias from there
  row_lines lines;  // with scale and bias where they adjoin the panel's codes
  bool pair_is_apart;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args& args, index_t first, index_t columns) {
    const index_t pair = args.parts.others;
    const index_t codes = args.parts.values + first / unit;
    const index_t end = codes + (columns + unit - 1) / unit;
    const bool before = pair < args.parts.values && first == 0;
    const bool after = pair == end;
    return {codes, pair - codes,
            row_lines::of(args, before ? pair : codes, after ? pair + 2 * index_t{sizeof(Scale)} : end),
            !before && !after};
  }
  DEEPREC_INLINE const std::byte* begin_of(const std::byte* row) const { return part_of(row, codes); }
  DEEPREC_INLINE vector_f32 load_codes_at(const std::byte* from, index_t c) const {
    if constexpr (Bits == 8) {
      return load_codes(from + c);
    } else {
      return load_nibbles(from + (c >> 1));
    }
  }
  DEEPREC_INLINE vector_f32 load_first_codes_at(const std::byte* from, int n) const {
    if constexpr (Bits == 8) {
      return load_first_codes(from, n);
    } else {
      return load_first_nibbles(from, n);
    }
  }
  DEEPREC_INLINE void load_pair_at(const std::byte* from, index_t c, vector_f32& even,
                                   vector_f32& odd) const {
    load_nibbles(from + (c >> 1), even, odd);
  }
  DEEPREC_INLINE ::deeprec::detail::two_floats scale_and_bias(const std::byte* from) const {
    return load_two(from + pair, Scale{});
  }
  // As value_of_code in row_elements.hpp.
  DEEPREC_INLINE vector_f32 value_of(const std::byte* from, vector_f32 code) const {
    const ::deeprec::detail::two_floats both = scale_and_bias(from);
    return multiply_add(code, splat(both.first), zero()) + splat(both.second);
  }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* from, index_t c) const {
    return value_of(from, load_codes_at(from, c));
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* from, int n) const {
    return keep_first(value_of(from, load_first_codes_at(from, n)), n);  // code 0 is the bias
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const {
    lines.prefetch(row);
    if (pair_is_apart) __builtin_prefetch(row + codes + pair, 0, 2);
  }
  [[nodiscard]] DEEPREC_INLINE index_t bytes() const { return lines.bytes + (pair_is_apart ? 64 : 0); }
};

// Floats in two halves.
template <>
struct row_codec<::deeprec::detail::split_float> {
  static constexpr bool scaled = false;
  static constexpr index_t unit = 1;
  static constexpr bool pairs = false;

  row_lines high;  // the panel's columns
  row_lines low;

  template <class Args>
  DEEPREC_INLINE static row_codec of(const Args& args, index_t first, index_t columns) {
    const index_t begin = 2 * first, end = 2 * (first + columns);
    return {row_lines::of(args, args.parts.values + begin, args.parts.values + end),
            row_lines::of(args, args.parts.others + begin, args.parts.others + end)};
  }
  DEEPREC_INLINE const std::byte* begin_of(const std::byte* row) const { return part_of(row, high.begin); }
  DEEPREC_INLINE vector_f32 load_at(const std::byte* from, index_t c) const {
    return load_halves(from + 2 * c, from + (low.begin - high.begin) + 2 * c);
  }
  DEEPREC_INLINE vector_f32 load_first_at(const std::byte* from, int n) const {
    return load_first_halves(from, from + (low.begin - high.begin), n);
  }
  DEEPREC_INLINE void prefetch(const std::byte* row) const {
    high.prefetch(row);
    low.prefetch(row);
  }
  [[nodiscard]] DEEPREC_INLINE index_t bytes() const { return high.bytes + low.bytes; }
};

// Calls use(vector, its first column, number of its valid lanes) for the values of a row, in order; the other
// lanes are zero. For sums over columns: values of codes may be rounded once.
template <class Element, class Args, class Use>
DEEPREC_INLINE void for_each_vector(const Args& args, const std::byte* row, const Use& use) {
  const index_t whole = args.width / lanes * lanes;
  const auto codec = row_codec<Element>::of(args, 0, args.width);
  const std::byte* const from = codec.begin_of(row);
  if constexpr (row_codec<Element>::scaled) {
    const ::deeprec::detail::two_floats pair = codec.scale_and_bias(from);
    const vector_f32 scale = splat(pair.first), bias = splat(pair.second);
    for (index_t c = 0; c < whole; c += lanes) {
      use(multiply_add(codec.load_codes_at(from, c), scale, bias), c, lanes);
    }
    if (whole < args.width) {
      const int n = static_cast<int>(args.width - whole);
      const auto rest = row_codec<Element>::of(args, whole, n);
      const vector_f32 codes = rest.load_first_codes_at(rest.begin_of(row), n);
      use(keep_first(multiply_add(codes, scale, bias), n), whole, n);  // code 0 is the bias
    }
  } else {
    for (index_t c = 0; c < whole; c += lanes) use(codec.load_at(from, c), c, lanes);
    if (whole < args.width) {
      const int n = static_cast<int>(args.width - whole);
      const auto rest = row_codec<Element>::of(args, whole, n);
      use(rest.load_first_at(rest.begin_of(row), n), whole, n);
    }
  }
}
