// Closes what begin_portable.hpp opened.
}
}
}
#pragma pop_macro("DEEPREC_HD")
#if defined(__NVCC__)
#  pragma nv_diagnostic pop
#endif
