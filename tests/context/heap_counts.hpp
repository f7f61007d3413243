// What the tests of allocations count. To be included before Eigen, whose own heap reports here.
#pragma once

#include <atomic>

namespace deeprec_test {
extern std::atomic<long> calls_of_new, calls_of_eigen;
}  // namespace deeprec_test

#define EIGEN_RUNTIME_NO_MALLOC
#define eigen_assert(condition) static_cast<void>((condition) ? 0L : ++deeprec_test::calls_of_eigen)
