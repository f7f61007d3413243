// One line of the key index over AVX2. Hashes are computed by scalar code: AVX2 does not multiply 64 bits.

DEEPREC_INLINE void locate_eight(const detail::key_directory& index, const std::uint64_t* keys,
                                 detail::key_homes& to, index_t at) {
  for (index_t i = at; i < at + 8; ++i) {
    const std::uint64_t h = index.hash(keys[i]);
    const std::uint64_t word = index.segment_of(h);
    const std::uint64_t home =
        (word & ~std::uint64_t{63}) + 64 * std::uint64_t{detail::home_of(h, static_cast<int>(word & 63))};
    to.hash[i] = h;
    to.home[i] = home;
    __builtin_prefetch(reinterpret_cast<const void*>(home));
  }
}

DEEPREC_INLINE unsigned slots_with(const detail::key_bucket& line, std::uint64_t key) {
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(key));
  const auto* const at = reinterpret_cast<const __m256i*>(&line);
  const __m256i low = _mm256_cmpeq_epi64(_mm256_load_si256(at), wanted);
  const auto four = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(low)));
  return four | static_cast<unsigned>(line.keys[4].load(std::memory_order_relaxed) == key) << 4;
}
