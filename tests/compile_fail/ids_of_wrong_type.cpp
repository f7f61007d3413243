// expect: "deeprec::jagged_view: ids and offsets are integers of 32 or 64 bits. Fix: "
#include <deeprec/core/jagged_view.hpp>

deeprec::jagged_view<std::uint32_t, std::int64_t> bags;
#if DEEPREC_MUST_FAIL
deeprec::jagged_view<short, std::int64_t> wrong;
#endif
