// One line of the key index over AVX-512: five keys are compared at once, eight homes are found at once.

DEEPREC_INLINE __m512i in_each(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }

/// Of eight keys: hashes and homes, and their lines are prefetched.
DEEPREC_INLINE void locate_eight(const detail::key_directory& index, const std::uint64_t* keys,
                                 detail::key_homes& to, index_t at) {
  constexpr __mmask8 all = 0xff;
  const __m512i none = _mm512_setzero_si512();
  __m512i h = _mm512_xor_si512(_mm512_loadu_si512(keys + at), in_each(index.hash.start));
  h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_maskz_srli_epi64(all, h, 32)), in_each(index.hash.first));
  h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_maskz_srli_epi64(all, h, 29)),
                         in_each(index.hash.second));
  h = _mm512_xor_si512(h, _mm512_maskz_srli_epi64(all, h, 32));
  _mm512_storeu_si512(to.hash + at, h);
  const __m512i low_bits = in_each(63);
  const __m512i root =
      _mm512_mask_i64gather_epi64(none, all, _mm512_maskz_srli_epi64(all, h, 54), index.roots.data(), 8);
  const __m512i place =
      _mm512_maskz_srlv_epi64(all, _mm512_maskz_srli_epi64(all, _mm512_maskz_slli_epi64(all, h, 10), 1),
                              _mm512_sub_epi64(low_bits, _mm512_and_si512(root, low_bits)));
  const __m512i at_word = _mm512_add_epi64(_mm512_maskz_andnot_epi64(all, low_bits, root),
                                           _mm512_maskz_slli_epi64(all, place, 3));
  const __m512i word = _mm512_mask_i64gather_epi64(none, all, at_word, nullptr, 1);
  const __m512i home =
      _mm512_maskz_srlv_epi64(all, _mm512_and_si512(h, in_each(0xffff'ffffU)),
                              _mm512_sub_epi64(in_each(32), _mm512_and_si512(word, low_bits)));
  const __m512i line =
      _mm512_add_epi64(_mm512_maskz_andnot_epi64(all, low_bits, word), _mm512_maskz_slli_epi64(all, home, 6));
  _mm512_storeu_si512(to.home + at, line);
  for (index_t i = at; i < at + 8; ++i) __builtin_prefetch(reinterpret_cast<const void*>(to.home[i]));
}

DEEPREC_INLINE unsigned slots_with(const detail::key_bucket& line, std::uint64_t key) {
  return _mm512_mask_cmpeq_epi64_mask(0x1f, _mm512_load_si512(&line), in_each(key));
}
