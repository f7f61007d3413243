// malloc and free: those of the C library, or of the library that the process was started with.
#include <cstdlib>

#include "memory/baseline.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

void* take(std::size_t bytes) { return std::malloc(bytes); }
void give(void* block, std::size_t) { std::free(block); }

}  // namespace

void malloc_in_order(const memory_bench::request& r) { memory_bench::in_order(r, take, give); }
void malloc_at_random(const memory_bench::request& r) { memory_bench::at_random(r, take, give); }

}  // namespace DEEPREC_BASELINE_NS
