// What the tests of ops/ share: an element with padding, and contexts that stream every output or none.
#pragma once

#include <cstdint>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/status.hpp>

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

/// Calls f with the context, under a tuning with this size.
template <class Context, class F>
deeprec::status streaming_above(deeprec::index_t bytes, Context ctx, const F& f) {
  deeprec::kernel_tuning tuning = *ctx.tuning;
  tuning.own_cache_bytes = tuning.kept_bytes = bytes;
  ctx.tuning = &tuning;
  return f(ctx);
}

}  // namespace ops_test
