// The byte operations over xsimd. See vectors.hpp.

using vector_u8 = xsimd::batch<std::uint8_t>;
inline constexpr int byte_lanes = static_cast<int>(vector_u8::size);

DEEPREC_INLINE vector_u8 load(const std::byte* p) {
  return vector_u8::load_unaligned(reinterpret_cast<const std::uint8_t*>(p));
}
DEEPREC_INLINE void store(std::byte* p, vector_u8 x) {
  x.store_unaligned(reinterpret_cast<std::uint8_t*>(p));
}
/// Like store: there is no portable way past the caches.
DEEPREC_INLINE void stream(std::byte* p, vector_u8 x) { store(p, x); }
DEEPREC_INLINE void end_streams() {}
/// n bytes, 0 <= n < byte_lanes; nothing beyond them is touched.
DEEPREC_INLINE void copy_first(std::byte* to, const std::byte* from, int n) {
  ::deeprec::detail::copy_in_two<byte_lanes / 2>(to, from, n);
}
