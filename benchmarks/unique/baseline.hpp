// What the unique suite compares with. No header of deeprec here; every function exists twice, built with
// -O2 (namespace o2) and with -O3 -march=native (namespace native).
//
// Each fills ids and counts, of at most n, and inverse, of n; the answer is how many ids there are. Memory is
// kept from call to call.
#pragma once

#include <cstdint>

#define UNIQUE_BASELINES                                                                            \
  /* Pairs of id and place, sorted. */                                                              \
  long unique_by_sort(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,     \
                      std::int64_t* counts);                                                        \
  long unique_by_std_map(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse,  \
                         std::int64_t* counts);                                                     \
  long unique_by_flat_map(const std::int64_t* in, long n, std::int64_t* ids, std::int64_t* inverse, \
                          std::int64_t* counts);

namespace o2 {
UNIQUE_BASELINES
}
namespace native {
UNIQUE_BASELINES
}
