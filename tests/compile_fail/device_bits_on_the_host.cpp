// expect: "deeprec::bit_matrix_view: a bit of device memory read on the host. Fix: "
#include <cstdint>

#include <deeprec/dense/gemm/bit_matrix_view.hpp>

#if DEEPREC_MUST_FAIL
using space = deeprec::device_space;
#else
using space = deeprec::unified_space;
#endif

bool call(deeprec::bit_matrix_view<const std::uint64_t, space> bits) { return bits(1, 2); }
