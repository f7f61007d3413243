#include <deeprec/ops/cast.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/guarded.hpp"
#include "support/isas.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class F>
void for_every_isa(const F& f) {
  for (const isa which : runnable_isas()) {
    inline_executor here;
    CAPTURE(std::string(to_string(which)));
    f(on(here, which));
  }
}

template <class T>
bool same(T a, T b) {
  const auto x = static_cast<float>(a), y = static_cast<float>(b);
  return (std::isnan(x) && std::isnan(y)) ||
         std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
}

// All halves, with float's bits around them.
std::vector<float> numbers() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; high += 3) {
    for (const std::uint32_t low : {0U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return values;
}

template <class In, class Out>
void check_pair() {
  const std::vector<float> values = numbers();
  std::vector<In> in;
  for (const float v : values) in.push_back(static_cast<In>(v));
  for_every_isa([&](const auto& ctx) {
    std::vector<Out> out(in.size());
    const auto size = static_cast<index_t>(in.size());
    CHECK(cast(ctx, matrix_view<const In>(in.data(), 1, size), matrix_view<Out>(out.data(), 1, size)).ok());
    bool right = true;
    for (std::size_t i = 0; i < in.size(); ++i) {
      right = right && same(out[i], static_cast<Out>(static_cast<float>(in[i])));
    }
    CHECK(right);
    // Rows with gaps, inside fences.
    for (const fence side : every_fence) {
      for (const index_t columns : {1, 7, 16, 35, 67}) {
        const index_t rows = 3, stride = columns + 2;
        const auto count = static_cast<std::size_t>((rows - 1) * stride + columns);
        guarded<In> from(count, side);
        guarded<Out> to(count, side);
        for (std::size_t i = 0; i < count; ++i) {
          from[i] = in[i * 37 % in.size()];
          to[i] = static_cast<Out>(7.0F);
        }
        CHECK(cast(ctx, matrix_view<const In>(from.data(), rows, columns, stride),
                   matrix_view<Out>(to.data(), rows, columns, stride))
                  .ok());
        right = true;
        for (std::size_t i = 0; i < count; ++i) {
          const bool gap = static_cast<index_t>(i) % stride >= columns;
          right = right && same(to[i], static_cast<Out>(gap ? 7.0F : static_cast<float>(from[i])));
        }
        CHECK(right);
      }
    }
  });
}

}  // namespace

TEST_CASE("cast: the documentation's example") {
  thread_pool pool(2);
  const std::vector<float> weights{1, -2.5F, 0.1F, 3, 4, 1e30F};
  std::vector<bf16> narrow(6);
  /// [cast]
  cast(pool, matrix_view<const float>(weights.data(), 2, 3), matrix_view<bf16>(narrow.data(), 2, 3))
      .or_throw();
  /// [cast]
  for (std::size_t i = 0; i < 6; ++i) CHECK(same(narrow[i], static_cast<bf16>(weights[i])));
}

TEST_CASE("cast: every pair of types, every ISA") {
  check_pair<float, float>();
  check_pair<float, bf16>();
  check_pair<float, f16>();
  check_pair<bf16, float>();
  check_pair<bf16, bf16>();
  check_pair<bf16, f16>();
  check_pair<f16, float>();
  check_pair<f16, bf16>();
  check_pair<f16, f16>();
}

TEST_CASE("cast: shapes that differ and overlaps are refused, and empty shapes are not") {
  inline_executor here;
  std::vector<float> a(12, 1), out(12, 7);
  const matrix_view<const float> in(a.data(), 3, 4);
  const status s = cast(here, in, matrix_view<float>(out.data(), 4, 3));
  CHECK(s.code() == errc::shape_mismatch);
  CHECK(s.place().item == 0);
  CHECK(cast(here, in, matrix_view<float>(a.data() + 1, 2, 4)).code() == errc::shape_mismatch);
  CHECK(cast(here, matrix_view<const float>(a.data(), 2, 4), matrix_view<float>(a.data() + 1, 2, 4)).code() ==
        errc::unsupported);
  CHECK(cast(here, matrix_view<const float>(a.data(), 3, 4),
             matrix_view<bf16>(reinterpret_cast<bf16*>(a.data()), 3, 4))
            .code() == errc::unsupported);
  CHECK(cast(here, in, matrix_view<float>(a.data(), 3, 4)).ok());  // in place
  CHECK(cast(here, matrix_view<const float>(nullptr, 0, 4), matrix_view<f16>(nullptr, 0, 4)).ok());
  CHECK(out == std::vector<float>(12, 7));
}
