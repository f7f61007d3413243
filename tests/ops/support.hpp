// What the tests of ops/ share: an element with padding, and the two ways to store an output.
#pragma once

#include <cstdint>

#include <deeprec/core/dtypes.hpp>

#include "support/guarded.hpp"
#include "support/isas.hpp"
#include "support/seed.hpp"

namespace ops_test {

struct twelve_bytes {
  float a;
  std::uint8_t b;  // three bytes of padding behind it
  std::int32_t c;
};
static_assert(sizeof(twelve_bytes) == 12);

/// Sizes above which an output is written with non-temporal stores: no output, and every output.
inline constexpr deeprec::index_t never = deeprec::index_t{1} << 60;
inline constexpr deeprec::index_t always = 0;

}  // namespace ops_test
