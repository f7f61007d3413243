// Column sums against sums in double, and against the order of additions that the documentation states.
#include <deeprec/ops/column_sums.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/guarded.hpp"
#include "support/isas.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

// Partial sums of 64 rows, added in order.
template <class T>
std::vector<float> oracle(const matrix_view<const T>& in) {
  std::vector<float> out(static_cast<std::size_t>(in.extent(1)), 0.0F);
  for (index_t j = 0; j < in.extent(1); ++j) {
    float sum = 0;
    for (index_t i = 0; i < in.extent(0); i += 64) {
      float part = 0;
      for (index_t k = i; k < std::min(i + 64, in.extent(0)); ++k) part += static_cast<float>(in(k, j));
      sum += part;
    }
    out[static_cast<std::size_t>(j)] = sum;
  }
  return out;
}

bool same_bits(const float* a, const std::vector<float>& b) {
  return b.empty() || std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("column sums have the bits of the stated order of additions", T, float, bf16, f16) {
  std::mt19937 random(seed());
  std::normal_distribution<float> normal;
  thread_pool pool(3);
  inline_executor here;
  for (const index_t rows : {0, 1, 3, 63, 64, 65, 131, 200}) {
    for (const index_t columns : {0, 1, 7, 15, 16, 17, 33, 64, 130, 511, 512, 513, 1030}) {
      if (rows * columns > 70000) continue;
      for (const index_t gap : {0, 5}) {
        const index_t stride = columns + gap;
        guarded<T> memory(static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * stride + columns));
        for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<T>(normal(random));
        const matrix_view<const T> in(memory.data(), rows, columns, stride);
        const std::vector<float> expected = oracle(in);
        for (const isa which : runnable_isas()) {
          CAPTURE(rows);
          CAPTURE(columns);
          guarded<float> out(static_cast<std::size_t>(columns));
          for (std::size_t j = 0; j < out.size(); ++j) out[j] = -7;
          REQUIRE(column_sums(on(here, which), in, array_view<float>(out.data(), columns)).ok());
          REQUIRE(same_bits(out.data(), expected));
          for (std::size_t j = 0; j < out.size(); ++j) out[j] = -7;
          REQUIRE(column_sums(on(pool, which), in, array_view<float>(out.data(), columns)).ok());
          REQUIRE(same_bits(out.data(), expected));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("column sums of more bytes than a second-level cache have the same bits", T, float, bf16,
                   f16) {
  std::mt19937 random(seed());
  std::normal_distribution<float> normal;
  inline_executor here;
  constexpr index_t rows = 1033, columns = 515;
  static_assert(rows * detail::column_panel * index_t{sizeof(T)} > detail::fetch_sums_above);
  guarded<T> memory(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<T>(normal(random));
  const matrix_view<const T> in(memory.data(), rows, columns);
  const std::vector<float> expected = oracle(in);
  for (const isa which : runnable_isas()) {
    guarded<float> out(static_cast<std::size_t>(columns));
    REQUIRE(column_sums(on(here, which), in, array_view<float>(out.data(), columns)).ok());
    CHECK(same_bits(out.data(), expected));
  }
}

TEST_CASE("the sum of many rows is near the sum in double, and NaN and infinity propagate") {
  //! [column_sums]
  constexpr index_t rows = 20'000, columns = 5;
  std::vector<float> gradient(static_cast<std::size_t>(rows * columns));
  std::mt19937 random(seed());
  std::uniform_real_distribution<float> uniform(0, 1);
  for (float& x : gradient) x = uniform(random);
  std::vector<float> bias_gradient(columns);
  REQUIRE(column_sums(inline_executor{}, matrix_view<const float>(gradient.data(), rows, columns),
                      std::span(bias_gradient))
              .ok());
  //! [column_sums]
  for (index_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (index_t i = 0; i < rows; ++i)
      sum += static_cast<double>(gradient[static_cast<std::size_t>(i * columns + j)]);
    const double bound = (64.0 + static_cast<double>(rows) / 64) * 0x1p-24 * sum;
    CHECK(std::abs(sum - static_cast<double>(bias_gradient[static_cast<std::size_t>(j)])) <= bound);
  }
  gradient[1] = std::numeric_limits<float>::quiet_NaN();
  gradient[2] = std::numeric_limits<float>::infinity();
  REQUIRE(column_sums(inline_executor{}, matrix_view<const float>(gradient.data(), rows, columns),
                      std::span(bias_gradient))
              .ok());
  CHECK(std::isnan(bias_gradient[1]));
  CHECK(std::isinf(bias_gradient[2]));
}

TEST_CASE("column_sums: out is any contiguous range of float that can be written") {
  const std::vector<float> in{1, 2, 3, 4, 5, 6};
  const matrix_view<const float> rows(in.data(), 2, 3);
  const std::vector<float> sums{5, 7, 9};
  std::vector<float> out(3);
  std::array<float, 3> fixed{};
  REQUIRE(column_sums(inline_executor{}, rows, out).ok());
  CHECK(out == sums);
  REQUIRE(column_sums(inline_executor{}, rows, fixed).ok());
  CHECK(std::equal(fixed.begin(), fixed.end(), sums.begin()));
  const array_view<float> view(out);
  REQUIRE(column_sums(inline_executor{}, rows, view).ok());
  REQUIRE(column_sums(inline_executor{}, rows, std::span<float>(out)).ok());
}

TEST_CASE("bad operands of column_sums get a status that names them, and nothing is written") {
  std::vector<float> data(12, 1.0F), out(4, -3.0F);
  const inline_executor here;
  const matrix_view<const float> in(data.data(), 3, 4);
  const auto refused = [&](const status& s, errc code, std::string_view text) {
    CHECK(s.code() == code);
    CHECK(s.detail() == text);
    CHECK(out == std::vector<float>(4, -3.0F));
  };
  refused(column_sums(here, in, array_view<float>(out.data(), 3)), errc::shape_mismatch,
          "column_sums: out.size() must be in.extent(1)");
  refused(column_sums(here, in, array_view<float>(nullptr, 4)), errc::shape_mismatch,
          "column_sums: out must not be null");
  refused(column_sums(here, matrix_view<const float>(nullptr, 3, 4), array_view<float>(out.data(), 4)),
          errc::shape_mismatch, "column_sums: in must not be null");
  refused(column_sums(here, matrix_view<const float>(data.data(), 3, 4, 2), array_view<float>(out.data(), 4)),
          errc::shape_mismatch, "column_sums: in.stride(0) must be at least in.extent(1)");
  refused(column_sums(here, matrix_view<const float>(out.data(), 1, 4), array_view<float>(out.data(), 4)),
          errc::unsupported, "column_sums: out must not overlap in");
}
