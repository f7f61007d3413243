// The runner of every unit-test executable: doctest, a seed, and "skipped" (77) without a GPU. Verbs of the
// tests share work of any size among threads, in short pieces, unless DEEPREC_TUNING is set.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "support/sanitizers.hpp"
#include "support/seed.hpp"

#include <cstdlib>
#include <cstring>
#include <iostream>

#if defined(DEEPREC_TEST_NEEDS_GPU)
#  include <cuda_runtime_api.h>
#endif

namespace {
std::uint64_t the_seed = 20240229;

// Before any object of a test reads it.
[[gnu::constructor(101)]] void share_all_work() {
  ::setenv("DEEPREC_TUNING", "polling_ns=0,parked_ns=0,piece_ns=200", 0);
}
}  // namespace

#if DEEPREC_TEST_TSAN
// oneDNN's cache gives a primitive that one thread made to others by atomics of a library that is not
// instrumented: its allocation would be reported as a write that races with our reads of the primitive.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }
#endif

std::uint64_t deeprec_test::seed() { return the_seed; }

int main(int argc, char** argv) {
  if (const char* text = std::getenv("DEEPREC_TEST_SEED")) {
    the_seed = std::strtoull(text, nullptr, 10);
  }
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--seed=", 7) == 0) the_seed = std::strtoull(argv[i] + 7, nullptr, 10);
  }

#if defined(DEEPREC_TEST_NEEDS_GPU)
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::cout << "SKIPPED: no CUDA device (" << cudaGetErrorString(found) << ")\n";
    return 77;
  }
#endif

  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (failed != 0) std::cout << "seed " << the_seed << " (repeat with --seed=" << the_seed << ")\n";
  return failed;
}
