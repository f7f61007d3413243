// The byte operations over AVX2. See vectors.hpp.

struct vector_u8 {
  __m256i v;
};
inline constexpr int byte_lanes = 32;

DEEPREC_INLINE vector_u8 load(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
DEEPREC_INLINE void store(std::byte* p, vector_u8 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.v);
}
/// Stores past the caches; p is a multiple of byte_lanes.
DEEPREC_INLINE void stream(std::byte* p, vector_u8 x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x.v);
}
/// Orders the streamed stores before later stores that other threads see.
DEEPREC_INLINE void end_streams() { _mm_sfence(); }
/// n bytes, 0 <= n < byte_lanes; nothing beyond them is touched.
DEEPREC_INLINE void copy_first(std::byte* to, const std::byte* from, int n) {
  ::deeprec::detail::copy_in_two<byte_lanes / 2>(to, from, n);
}
