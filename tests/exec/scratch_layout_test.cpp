// The layout of arrays in one block of scratch.

#include <deeprec/support/scratch_layout.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

using namespace deeprec;

TEST_CASE("scratch_layout: pieces are aligned, and sums that no address space has are the largest number") {
  detail::scratch_layout fits;
  CHECK(fits.add<float>(1) == 0);
  CHECK(fits.add<double>(33) == 256);
  CHECK(fits.add<char>(0) == 768);
  CHECK(fits.add<char>(256) == 768);
  CHECK(fits.bytes() == 1024);
  constexpr index_t most = std::numeric_limits<index_t>::max();
  for (const index_t count : {index_t{-1}, -most, most, most / 4, index_t{1} << 61}) {
    CAPTURE(count);
    detail::scratch_layout layout;
    layout.add<char>(1000);
    layout.add<double>(count);
    CHECK(layout.bytes() == SIZE_MAX);
    layout.add<double>(1);
    layout.add<char>(0);
    layout.add<double>(count);
    CHECK(layout.bytes() == SIZE_MAX);
  }
  detail::scratch_layout sums;  // each piece fits, together they don't
  for (int i = 0; i < 5; ++i) sums.add<char>(most / 2);
  CHECK(sums.bytes() == SIZE_MAX);
}
