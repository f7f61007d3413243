// Closes what begin_portable.hpp opened.
}
}
