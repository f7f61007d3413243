// The byte operations over AVX-512 (BW), in both AVX-512 regions. See vectors.hpp.

struct vector_u8 {
  __m512i v;
};
inline constexpr int byte_lanes = 64;

DEEPREC_INLINE vector_u8 load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
DEEPREC_INLINE void store(std::byte* p, vector_u8 x) { _mm512_storeu_si512(p, x.v); }
/// Stores past the caches; p is a multiple of byte_lanes.
DEEPREC_INLINE void stream(std::byte* p, vector_u8 x) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), x.v);
}
/// Orders the streamed stores before later stores that other threads see.
DEEPREC_INLINE void end_streams() { _mm_sfence(); }
/// n bytes, 0 <= n < byte_lanes; nothing beyond them is touched.
DEEPREC_INLINE void copy_first(std::byte* to, const std::byte* from, int n) {
  const __mmask64 bytes = (std::uint64_t{1} << n) - 1;
  _mm512_mask_storeu_epi8(to, bytes, _mm512_maskz_loadu_epi8(bytes, from));
}
