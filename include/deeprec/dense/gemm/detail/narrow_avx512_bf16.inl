// Floats to bf16 by the AVX512_BF16 conversion, for operands of products only: it flushes denormals to zero,
// as the bf16 product does, and rounds to nearest even. The same bits as narrow_floats in gemm_tiles.inl.

inline void narrow_for_products(region, ::deeprec::detail::convert_block block) {
  if (block.from_stride == block.columns && block.to_stride == block.columns) {  // one long row
    block.columns *= block.rows;
    block.rows = 1;
  }
  for (index_t i = 0; i < block.rows; ++i) {
    const float* from = static_cast<const float*>(block.from) + i * block.from_stride;
    auto* to = static_cast<std::uint16_t*>(block.to) + i * block.to_stride;
    index_t j = 0;
    for (; j + 32 <= block.columns; j += 32) {
      const auto both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + j + 16), _mm512_loadu_ps(from + j));
      __builtin_memcpy(to + j, &both, 64);
    }
    for (; j < block.columns; j += 16) {
      const index_t left = block.columns - j;
      const auto some = static_cast<__mmask16>(left >= 16 ? 0xffffU : (1U << left) - 1U);
      const auto half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, from + j));
      __m256i bits;
      __builtin_memcpy(&bits, &half, 32);
      _mm256_mask_storeu_epi16(to + j, some, bits);
    }
  }
}
