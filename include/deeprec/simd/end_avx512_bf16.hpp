// Closes what begin_avx512_bf16.hpp opened.
}
}
}
}
#pragma pop_macro("DEEPREC_HD")
#if defined(__NVCC__)
#  pragma nv_diagnostic pop
#endif
#if defined(__clang__)
#  pragma clang attribute pop
#else
#  pragma GCC pop_options
#endif
