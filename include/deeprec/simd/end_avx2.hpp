// Closes what begin_avx2.hpp opened.
}
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
