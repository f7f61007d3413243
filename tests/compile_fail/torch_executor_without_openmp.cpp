// expect: "deeprec::torch_executor: at::parallel_for is a serial loop in this unit. Fix: "
#include <cstdint>

// What ATen/Config.h of a PyTorch with OpenMP, or with threads of its own, defines.
#if DEEPREC_MUST_FAIL
#  define AT_PARALLEL_OPENMP 1
#else
#  define AT_PARALLEL_OPENMP 0
#endif

#include <deeprec/interop/at_parallel_for.hpp>

int threads() {
  const auto serial = [](std::int64_t begin, std::int64_t end, std::int64_t, const auto& body) {
    body(begin, end);
  };
  return deeprec::torch_executor(serial, 2).concurrency();
}
