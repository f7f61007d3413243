// Loads and stores of coded elements, over xsimd. See vectors.hpp.

DEEPREC_INLINE vector_f32 load(const e4m3* p) { return load_first(p, lanes); }
DEEPREC_INLINE vector_f32 load(const e5m2* p) { return load_first(p, lanes); }

DEEPREC_INLINE vector_f32 load_first_codes(const std::byte* p, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) lane[i] = static_cast<float>(p[i]);
  return xsimd::batch<float>::load_aligned(lane);
}
DEEPREC_INLINE vector_f32 load_codes(const std::byte* p) { return load_first_codes(p, lanes); }

DEEPREC_INLINE vector_f32 load_first_nibbles(const std::byte* p, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) {
    const auto pair = static_cast<unsigned>(p[i / 2]);
    lane[i] = static_cast<float>(i % 2 == 0 ? pair & 15U : pair >> 4);
  }
  return xsimd::batch<float>::load_aligned(lane);
}
DEEPREC_INLINE vector_f32 load_nibbles(const std::byte* p) { return load_first_nibbles(p, lanes); }

/// The codes of 2 * lanes columns, the even and the odd columns apart.
DEEPREC_INLINE void load_nibbles(const std::byte* p, vector_f32& even, vector_f32& odd) {
  alignas(64) float low[lanes];
  alignas(64) float high[lanes];
  for (int i = 0; i < lanes; ++i) {
    const auto pair = static_cast<unsigned>(p[i]);
    low[i] = static_cast<float>(pair & 15U);
    high[i] = static_cast<float>(pair >> 4);
  }
  even = xsimd::batch<float>::load_aligned(low);
  odd = xsimd::batch<float>::load_aligned(high);
}
/// Even and odd columns become the first and the last half of the columns.
DEEPREC_INLINE void interleave(vector_f32& even, vector_f32& odd) {
  alignas(64) float low[lanes];
  alignas(64) float high[lanes];
  alignas(64) float whole[2 * lanes];
  even.v.store_aligned(low);
  odd.v.store_aligned(high);
  for (int i = 0; i < lanes; ++i) {
    whole[2 * i] = low[i];
    whole[2 * i + 1] = high[i];
  }
  even = xsimd::batch<float>::load_aligned(whole);
  odd = xsimd::batch<float>::load_aligned(whole + lanes);
}

DEEPREC_INLINE vector_f32 load_first_halves(const std::byte* high, const std::byte* low, int n) {
  alignas(64) float lane[lanes] = {};
  for (int i = 0; i < n; ++i) {
    std::uint16_t top, bottom;
    __builtin_memcpy(&top, high + 2 * i, 2);
    __builtin_memcpy(&bottom, low + 2 * i, 2);
    lane[i] = ::deeprec::detail::bit_cast_to<float>(static_cast<std::uint32_t>(top) << 16 | bottom);
  }
  return xsimd::batch<float>::load_aligned(lane);
}
DEEPREC_INLINE vector_f32 load_halves(const std::byte* high, const std::byte* low) {
  return load_first_halves(high, low, lanes);
}
DEEPREC_INLINE void store_first_halves(std::byte* high, std::byte* low, vector_f32 x, int n) {
  alignas(64) float lane[lanes];
  x.v.store_aligned(lane);
  for (int i = 0; i < n; ++i) {
    const auto bits = ::deeprec::detail::bit_cast_to<std::uint32_t>(lane[i]);
    const auto top = static_cast<std::uint16_t>(bits >> 16);
    const auto bottom = static_cast<std::uint16_t>(bits);
    __builtin_memcpy(high + 2 * i, &top, 2);
    __builtin_memcpy(low + 2 * i, &bottom, 2);
  }
}
DEEPREC_INLINE void store_halves(std::byte* high, std::byte* low, vector_f32 x) {
  store_first_halves(high, low, x, lanes);
}

DEEPREC_INLINE ::deeprec::detail::two_floats load_two(const std::byte* p, float) {
  ::deeprec::detail::two_floats both;
  __builtin_memcpy(&both, p, sizeof(both));
  return both;
}
DEEPREC_INLINE ::deeprec::detail::two_floats load_two(const std::byte* p, f16) {
  f16 both[2];
  __builtin_memcpy(both, p, sizeof(both));
  return {static_cast<float>(both[0]), static_cast<float>(both[1])};
}
