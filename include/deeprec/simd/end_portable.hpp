// Closes what begin_portable.hpp opened.
}
}
}
#pragma pop_macro("DEEPREC_HD")
