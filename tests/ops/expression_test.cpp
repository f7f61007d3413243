#include <deeprec/ops/expression.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ops/support.hpp"
#include "support/guarded.hpp"
#include "support/isas.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;
using namespace deeprec::expr;

namespace {

using floats = std::vector<float>;
using const_matrix = matrix_view<const float>;
using matrix = matrix_view<float>;

// evaluate, with non-temporal stores whatever the size.
template <class Context, class... Assignments>
status evaluate_streamed(const Context& ctx, const Assignments&... assignments) {
  return ops_test::streaming_above(ops_test::always, ctx,
                                   [&](const Context& on) { return evaluate(on, assignments...); });
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
bool same(float a, float b) { return bits(a) == bits(b) || (std::isnan(a) && std::isnan(b)); }
bool same(bf16 a, bf16 b) { return same(static_cast<float>(a), static_cast<float>(b)); }
bool same(f16 a, f16 b) { return same(static_cast<float>(a), static_cast<float>(b)); }

// Products that no compiler fuses with a sum.
[[gnu::noinline]] float times(float a, float b) { return a * b; }

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// Numbers between -4 and 4, and the edges of float.
float any_number(std::mt19937_64& random) {
  static constexpr float edges[] = {0.0F,         -0.0F,  1.0F,    -1.0F,   infinity, -infinity,
                                    not_a_number, 1e-41F, -3e-42F, 3.4e38F, -3.4e38F, 1e-38F};
  if (random() % 8 == 0) return edges[random() % std::size(edges)];
  return std::uniform_real_distribution<float>(-4, 4)(random);
}

// A matrix that ends before a page without access, or begins behind one; 7 in the gaps between rows.
template <class T>
class fenced_matrix {
 public:
  fenced_matrix(fence side, index_t rows, index_t columns, index_t gap)
      : memory_(static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * (columns + gap) + columns), side),
        view_(memory_.data(), rows, columns, columns + gap) {
    std::fill_n(memory_.data(), memory_.size(), static_cast<T>(7.0F));
  }
  void fill(std::mt19937_64& random) {
    each([&](index_t i, index_t j) { view_(i, j) = static_cast<T>(any_number(random)); });
  }
  matrix_view<T> view() const { return view_; }
  template <class F>
  void each(const F& f) const {
    for (index_t i = 0; i < view_.extent(0); ++i) {
      for (index_t j = 0; j < view_.extent(1); ++j) f(i, j);
    }
  }
  // Every element is f(i, j), and nothing else was written.
  template <class F>
  bool holds(const F& f) const {
    bool right = true;
    each([&](index_t i, index_t j) { right = right && same(view_(i, j), static_cast<T>(f(i, j))); });
    for (index_t i = 0; i + 1 < view_.extent(0); ++i) {
      for (const T* gap = view_.row(i) + view_.extent(1); gap < view_.row(i + 1); ++gap) {
        right = right && same(*gap, static_cast<T>(7.0F));
      }
    }
    return right;
  }

 private:
  guarded<T> memory_;
  matrix_view<T> view_;
};

// f(isa, fence, rows, columns, gap) for shapes around the sizes of vectors and groups of them.
template <class F>
void for_every_shape(const F& f) {
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    for (const fence side : every_fence) {
      for (const index_t columns :
           {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 63, 64, 65, 97, 130, 141}) {
        for (const index_t rows : {1, 3}) {
          for (const index_t gap : {0, 3}) {
            CAPTURE(rows);
            CAPTURE(columns);
            CAPTURE(gap);
            f(which, side, rows, columns, gap);
          }
        }
      }
    }
  }
}

float relu_of(float x) { return x < 0 ? 0 : x; }
float minimum_of(float a, float b) { return std::isnan(a) || a < b ? a : b; }
float maximum_of(float a, float b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

TEST_CASE("expression: the documentation's examples") {
  inline_executor pool;
  floats values{-1, 2, 3, -4, 5, -6}, mean{0.5F, 1, -1}, scale{1, 2, 0.25F}, alpha{0.25F, 0.5F, -1};
  const matrix_view<const float> x(values.data(), 2, 3);
  floats result(6);
  {
    const matrix_view<float> y(result.data(), 2, 3);
    /// [dice]
    // Dice: p x + (1 - p) alpha x, p = sigmoid((x - mean) scale); mean, scale, alpha: one for each column
    evaluate(pool, assign(y, dice(in(x), row(mean), row(scale), row(alpha)))).or_throw();
    /// [dice]
    for (std::size_t i = 0; i < 6; ++i) {
      const double v = values[i];
      const double p = 1 / (1 + std::exp(-(v - mean[i % 3]) * scale[i % 3]));
      CHECK(result[i] == doctest::Approx(p * v + (1 - p) * alpha[i % 3] * v).epsilon(1e-6));
    }
  }
  {
    std::vector<bf16> narrow(6);
    const std::vector<std::uint8_t> keep_bytes{1, 0, 1, 1, 255, 0};
    const matrix_view<const std::uint8_t> keep(keep_bytes.data(), 2, 3);
    const matrix_view<bf16> y(narrow.data(), 2, 3);
    const floats& bias = mean;
    /// [bias_activation_dropout]
    // Bias, activation, dropout and the conversion to bf16 in one pass
    evaluate(pool, assign(y, dropout(relu(in(x) + row(bias)), mask(keep), 0.5F))).or_throw();
    /// [bias_activation_dropout]
    for (std::size_t i = 0; i < 6; ++i) {
      const float wanted = keep_bytes[i] == 0 ? 0 : 2 * relu_of(values[i] + bias[i % 3]);
      CHECK(same(narrow[i], static_cast<bf16>(wanted)));
    }
  }
  {
    floats sum_of_squares{6, 9, 10, 20, 30, 40};
    const matrix_view<const float> s(values.data(), 2, 3), q(sum_of_squares.data(), 2, 3);
    const matrix_view<float> y(result.data(), 2, 3);
    /// [square_of_sum]
    // Factorization machines: half of the squared sum less the sum of squares
    evaluate(pool, assign(y, 0.5F * (square(in(s)) - in(q)))).or_throw();
    /// [square_of_sum]
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(result[i] == 0.5F * (values[i] * values[i] - sum_of_squares[i]));
    }
  }
}

TEST_CASE("expression: arithmetic has the bits of scalar code, any shape, stride and ISA, inside fences") {
  std::mt19937_64 random(seed());
  inline_executor here;
  for_every_shape([&](isa which, fence side, index_t rows, index_t columns, index_t gap) {
    fenced_matrix<float> a(side, rows, columns, gap), b(side, rows, columns, 2 * gap);
    fenced_matrix<float> out(side, rows, columns, gap), second(side, rows, columns, 2 * gap);
    a.fill(random);
    b.fill(random);
    fenced_matrix<float> r(side, 1, columns, 0), c(side, 1, rows, 0);
    r.fill(random);
    c.fill(random);
    const auto x = in(a.view()), y = in(b.view());
    const auto per_row = row(array_view<const float>(r.view().data_handle(), columns));
    const auto per_column = column(array_view<const float>(c.view().data_handle(), rows));
    const auto at = [](const fenced_matrix<float>& m, index_t i, index_t j) { return m.view()(i, j); };
    // Contiguous matrices as one row; broadcasts row by row. Products next to sums must not be fused.
    const auto ctx = on(here, which);
    const auto first_of = [&](index_t i, index_t j) {
      return (times(at(a, i, j), at(b, i, j)) + at(a, i, j)) / (3 - at(b, i, j));
    };
    const auto second_of = [&](index_t i, index_t j) {
      return minimum_of(times(at(a, i, j) - at(r, 0, j), at(c, 0, i)), maximum_of(at(b, i, j), -at(a, i, j)));
    };
    const auto one = assign(out.view(), (x * y + x) / (3 - y));
    const auto two = assign(second.view(), minimum((x - per_row) * per_column, maximum(y, -x)));
    CHECK(evaluate(ctx, one).ok());
    CHECK(out.holds(first_of));
    CHECK(evaluate(ctx, two).ok());
    CHECK(second.holds(second_of));
    fenced_matrix<float> again(side, rows, columns, 0);
    CHECK(evaluate_streamed(ctx, one, two, assign(again.view(), square(x) - abs(y))).ok());
    CHECK(out.holds(first_of));
    CHECK(second.holds(second_of));
    CHECK(again.holds(
        [&](index_t i, index_t j) { return times(at(a, i, j), at(a, i, j)) - std::fabs(at(b, i, j)); }));
  });
}

TEST_CASE_TEMPLATE("expression: operands and outputs of 16 bits", T, bf16, f16) {
  std::mt19937_64 random(seed() + 1);
  inline_executor here;
  for_every_shape([&](isa which, fence side, index_t rows, index_t columns, index_t gap) {
    fenced_matrix<T> a(side, rows, columns, gap), out(side, rows, columns, gap);
    fenced_matrix<T> r(side, 1, columns, 0), c(side, 1, rows, 0);
    a.fill(random);
    r.fill(random);
    c.fill(random);
    const auto per_row = row(std::span<const T>(r.view().data_handle(), static_cast<std::size_t>(columns)));
    const auto per_column = column(array_view<const T>(c.view().data_handle(), rows));
    const auto e = prelu(in(a.view()) + per_row, per_column);
    const auto wanted = [&](index_t i, index_t j) {
      const float sum = static_cast<float>(a.view()(i, j)) + static_cast<float>(r.view()(0, j));
      return sum < 0 ? times(static_cast<float>(c.view()(0, i)), sum) : sum;
    };
    CHECK(evaluate(on(here, which), assign(out.view(), e)).ok());
    CHECK(out.holds(wanted));
    CHECK(evaluate_streamed(on(here, which), assign(out.view(), e)).ok());
    CHECK(out.holds(wanted));
  });
}

TEST_CASE("expression: masks, comparisons and select, by element and by row") {
  std::mt19937_64 random(seed() + 2);
  inline_executor here;
  for_every_shape([&](isa which, fence side, index_t rows, index_t columns, index_t gap) {
    fenced_matrix<float> a(side, rows, columns, gap), b(side, rows, columns, 0),
        out(side, rows, columns, gap);
    a.fill(random);
    b.fill(random);
    a.each([&](index_t i, index_t j) {
      if (random() % 4 == 0) a.view()(i, j) = b.view()(i, j);
    });
    guarded<unsigned char> flags(static_cast<std::size_t>(rows * columns), side);
    guarded<bool> of_rows(static_cast<std::size_t>(rows), side);
    for (std::size_t i = 0; i < flags.size(); ++i) {
      flags[i] = random() % 2 == 0 ? 0 : static_cast<unsigned char>(random());
    }
    for (std::size_t i = 0; i < of_rows.size(); ++i) of_rows[i] = random() % 2 == 0;
    const auto x = in(a.view()), y = in(b.view());
    const auto m = mask(matrix_view<const unsigned char>(flags.data(), rows, columns));
    const auto r = mask(array_view<const bool>(of_rows.data(), rows));
    const auto is = [&](bool (*f)(float, float, bool, bool)) {
      return [&, f](index_t i, index_t j) {
        const float p = a.view()(i, j), q = b.view()(i, j);
        return f(p, q, flags[static_cast<std::size_t>(i * columns + j)] != 0,
                 of_rows[static_cast<std::size_t>(i)])
                   ? p
                   : q;
      };
    };
    const auto ctx = on(here, which);
    CHECK(evaluate(ctx, assign(out.view(), select((x < y) & m, x, y))).ok());
    CHECK(out.holds(is([](float p, float q, bool e, bool) { return p < q && e; })));
    CHECK(evaluate(ctx, assign(out.view(), select((x <= y) | r, x, y))).ok());
    CHECK(out.holds(is([](float p, float q, bool, bool w) { return p <= q || w; })));
    CHECK(evaluate(ctx, assign(out.view(), select((!(x > y)) & (x != y), x, y))).ok());
    CHECK(out.holds(is([](float p, float q, bool, bool) { return !(p > q) && p != q; })));
    CHECK(evaluate(ctx, assign(out.view(), select((x == y) | (x >= 1.0F), x, y))).ok());
    CHECK(out.holds(is([](float p, float q, bool, bool) { return p == q || p >= 1; })));
    CHECK(evaluate(ctx, assign(out.view(), select(m | (y < 0) | (0 < x), 1, 0))).ok());
    CHECK(out.holds([&](index_t i, index_t j) {
      return flags[static_cast<std::size_t>(i * columns + j)] != 0 || b.view()(i, j) < 0 || 0 < a.view()(i, j)
                 ? 1.0F
                 : 0.0F;
    }));
  });
}

namespace {

// The distance from the exact value, in units in the last place of floats of its size.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : infinity;
  if (std::isnan(got)) return infinity;
  constexpr auto most = static_cast<double>(std::numeric_limits<float>::max());
  if (std::isinf(got) || std::fabs(exact) > most) {
    return std::fabs(exact) > most * (1 - 0x1p-23) && std::signbit(got) == std::signbit(exact) &&
                   std::fabs(got) >= std::numeric_limits<float>::max()
               ? 0
               : infinity;
  }
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, (std::max)(exponent - 24, -149));
}

}  // namespace

TEST_CASE("expression: exp, sigmoid, tanh and gelu over all of float, every ISA") {
  // Every 7919th float in bits, NaNs too, and 20000 that are dense where exp has its values.
  floats x{0.0F,      -0.0F,     infinity,    -infinity,   not_a_number, -not_a_number,
           88.72283F, 88.72284F, -103.97207F, -103.97209F, -87.33655F};
  for (std::uint64_t b = 0; b < std::uint64_t{1} << 32; b += 7919) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(b)));
  }
  for (int i = 0; i < 20000; ++i) x.push_back(-105.0F + 0.01F * static_cast<float>(i));
  const auto size = static_cast<index_t>(x.size());
  floats results[4];
  for (floats& r : results) r.resize(x.size());
  inline_executor here;
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    const auto e = in(const_matrix(x.data(), 1, size));
    const auto out = [&](int k) { return matrix(results[k].data(), 1, size); };
    REQUIRE(evaluate(on(here, which), assign(out(0), exp(e)), assign(out(1), sigmoid(e)),
                     assign(out(2), tanh(e)), assign(out(3), gelu(e)))
                .ok());
    double worst[3] = {}, gelu_error = 0;
    bool signs = true, gelu_nans = true;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double v = x[i];
      worst[0] = (std::max)(worst[0], ulps(results[0][i], std::exp(v)));
      worst[1] = (std::max)(worst[1], ulps(results[1][i], 1 / (1 + std::exp(-v))));
      worst[2] = (std::max)(worst[2], ulps(results[2][i], std::tanh(v)));
      signs = signs && (std::isnan(v) || std::signbit(results[2][i]) == std::signbit(v));
      if (std::isnan(v) || v == -std::numeric_limits<double>::infinity()) {
        gelu_nans = gelu_nans && std::isnan(results[3][i]);
      } else if (std::isfinite(v)) {
        const double exact = v / (1 + std::exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)));
        gelu_error = (std::max)(gelu_error, std::fabs(results[3][i] - exact) / (std::max)(1.0, std::fabs(v)));
      }
    }
    CHECK(worst[0] <= 1.1);
    CHECK(worst[1] <= 3);
    CHECK(worst[2] <= 3);
    CHECK(signs);
    CHECK(gelu_error <= 0x1p-21);
    CHECK(gelu_nans);
    CHECK(results[0][0] == 1);
    CHECK(results[0][3] == 0);
    CHECK(results[0][7] == infinity);
    CHECK(results[0][8] > 0);  // the smallest denormal
    CHECK(results[0][9] == 0);
    CHECK(results[1][2] == 1);
    CHECK(results[2][2] == 1);
    CHECK(results[2][3] == -1);
  }
}

TEST_CASE(
    "expression: sqrt, relu, abs and negation have the bits of scalar code; multiply_add rounds once or "
    "twice") {
  std::mt19937_64 random(seed() + 3);
  inline_executor here;
  floats x(4099), y(x.size()), results[5];
  for (float& v : x) v = any_number(random);
  for (float& v : y) v = any_number(random);
  for (floats& r : results) r.resize(x.size());
  const auto size = static_cast<index_t>(x.size());
  for (const isa which : runnable_isas()) {
    const auto e = in(const_matrix(x.data(), 1, size)), f = in(const_matrix(y.data(), 1, size));
    const auto out = [&](int k) { return matrix(results[k].data(), 1, size); };
    REQUIRE(evaluate(on(here, which), assign(out(0), sqrt(e)), assign(out(1), relu(e)),
                     assign(out(2), abs(e)), assign(out(3), -e), assign(out(4), multiply_add(e, f, 1.5F)))
                .ok());
    bool right = true;
    for (std::size_t i = 0; i < x.size(); ++i) {
      right = right && same(results[0][i], std::sqrt(x[i])) && same(results[1][i], relu_of(x[i])) &&
              same(results[2][i], std::fabs(x[i])) && same(results[3][i], -x[i]) &&
              (same(results[4][i], std::fma(x[i], y[i], 1.5F)) ||
               (which == isa::portable && same(results[4][i], times(x[i], y[i]) + 1.5F)));
    }
    CHECK_MESSAGE(right, to_string(which));
  }
}

TEST_CASE("expression: dropout by a seed depends on positions only") {
  inline_executor here;
  const std::uint64_t number = 0x123456789abcdefU;
  const float rate = 0.3F;
  for (const index_t columns : {1, 63, 64, 65, 130, 16384 + 70}) {
    const index_t rows = columns > 1000 ? 2 : 5;
    const floats ones(static_cast<std::size_t>(rows * columns), 1);
    std::vector<float> first;
    for (const isa which : runnable_isas()) {
      for (int threads = 1; threads <= 3; ++threads) {
        thread_pool pool(threads);
        floats memory(ones.size() + 16, 7);
        // Non-temporal stores take rows that begin at a cache line: all of them where columns are 64.
        const auto to_line = (0 - reinterpret_cast<std::uintptr_t>(memory.data())) % 64 / sizeof(float);
        const matrix out(memory.data() + to_line, rows, columns);
        const auto e = dropout(in(const_matrix(ones.data(), rows, columns)), number, rate);
        const auto ctx = on(pool, which);
        CHECK((threads == 2 ? evaluate_streamed(ctx, assign(out, e)) : evaluate(ctx, assign(out, e))).ok());
        bool right = true;
        for (index_t i = 0; i < rows; ++i) {
          for (index_t j = 0; j < columns; ++j) {
            const std::uint32_t word = rounding::stochastic{number, 0}.word(static_cast<std::uint64_t>(i),
                                                                            static_cast<std::uint64_t>(j));
            const bool keep = static_cast<double>(word) * 0x1p-32 >= static_cast<double>(rate);
            right = right && same(out(i, j), keep ? 1.0F / (1.0F - rate) : 0.0F);
          }
        }
        CHECK_MESSAGE(right, to_string(which), " columns ", columns, " threads ", threads);
      }
    }
  }
  // The rate is met, and a rate of 0 keeps everything.
  const index_t size = 100000;
  floats x(size, 3), y(size);
  const auto e = in(const_matrix(x.data(), 100, size / 100));
  CHECK(evaluate(here, assign(matrix(y.data(), 100, size / 100), dropout(e, 5, rate))).ok());
  const auto kept = static_cast<double>(std::count_if(y.begin(), y.end(), [](float v) { return v != 0; }));
  CHECK(kept / size == doctest::Approx(0.7).epsilon(0.01));
  CHECK(evaluate(here, assign(matrix(y.data(), 100, size / 100), dropout(e, 5, 0.0F))).ok());
  CHECK(y == x);
}

TEST_CASE("expression: in place, and outputs that are operands of each other") {
  std::mt19937_64 random(seed() + 4);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    for (const index_t columns : {3, 16, 67, 300}) {
      const index_t rows = 4, stride = columns + 2;
      floats a(static_cast<std::size_t>(rows * stride)), b(a.size());
      for (float& v : a) v = any_number(random);
      for (float& v : b) v = any_number(random);
      const floats old_a = a, old_b = b;
      const matrix x(a.data(), rows, columns, stride), y(b.data(), rows, columns, stride);
      CHECK(evaluate(on(here, which), assign(x, in(y) + 1), assign(y, in(x))).ok());
      bool right = true;
      for (index_t i = 0; i < rows; ++i) {
        for (index_t j = 0; j < stride; ++j) {
          const auto at = static_cast<std::size_t>(i * stride + j);
          right = right && same(a[at], j < columns ? old_b[at] + 1 : old_a[at]) &&
                  same(b[at], j < columns ? old_a[at] : old_b[at]);
        }
      }
      CHECK_MESSAGE(right, to_string(which), " columns ", columns);
      a = old_a;
      CHECK(evaluate_streamed(on(here, which), assign(x, in(x) + in(x))).ok());
      CHECK(same(a[0], old_a[0] + old_a[0]));
    }
  }
}

TEST_CASE("expression: the same bits for any number of threads, and when rows are cut") {
  std::mt19937_64 random(seed() + 5);
  inline_executor here;
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{3001, 37}, {3, 40001}, {120037, 1}}) {
    floats x(static_cast<std::size_t>(rows * columns)), wanted(x.size()), streamed(x.size() + 3);
    floats r(static_cast<std::size_t>(columns));
    for (float& v : x) v = any_number(random);
    for (float& v : r) v = any_number(random);
    const const_matrix view(x.data(), rows, columns);
    for (const isa which : runnable_isas()) {
      const auto e = sigmoid(in(view)) * row(r) - in(view);
      const auto flat = in(view) * 3 - exp(in(view));
      REQUIRE(evaluate(on(here, which), assign(matrix(wanted.data(), rows, columns), e)).ok());
      floats flat_wanted(x.size());
      REQUIRE(evaluate(on(here, which), assign(matrix(flat_wanted.data(), rows, columns), flat)).ok());
      for (int threads = 2; threads <= 4; ++threads) {
        thread_pool pool(threads);
        floats got(x.size());
        CHECK(evaluate(on(pool, which), assign(matrix(got.data(), rows, columns), e)).ok());
        CHECK(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0);
        CHECK(evaluate_streamed(on(pool, which), assign(matrix(streamed.data() + 3, rows, columns), flat))
                  .ok());
        CHECK(std::memcmp(streamed.data() + 3, flat_wanted.data(), got.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("expression: non-temporal stores begin at any element, several outputs, each its own type") {
  inline_executor here;
  floats x(700);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 350;
  for (const isa which : runnable_isas()) {
    for (std::size_t offset = 0; offset < 32; ++offset) {
      for (const index_t columns : {1, 31, 64, 257, 600}) {
        alignas(64) std::array<float, 700> a;
        alignas(64) std::array<bf16, 700> b;
        a.fill(7);
        b.fill(static_cast<bf16>(7.0F));
        const auto e = in(const_matrix(x.data(), 1, columns));
        CHECK(evaluate_streamed(on(here, which), assign(matrix(a.data() + offset, 1, columns), e * 2)).ok());
        CHECK(evaluate_streamed(on(here, which),
                                assign(matrix_view<bf16>(b.data() + offset, 1, columns), e * 2))
                  .ok());
        bool right = true;
        for (std::size_t i = 0; i < a.size(); ++i) {
          const bool inside = i >= offset && i < offset + static_cast<std::size_t>(columns);
          const float wanted = inside ? 2 * x[i - offset] : 7;
          right = right && same(a[i], wanted) && same(b[i], static_cast<bf16>(wanted));
        }
        CHECK_MESSAGE(right, to_string(which), " offset ", offset, " columns ", columns);
      }
    }
  }
}

namespace {

auto halves() {
  floats values{2, 4, 6, 8};
  return owned(std::move(values), 2, 2) * 0.5F;  // outlives the vector
}

}  // namespace

TEST_CASE("expression: expressions are values; owned leaves share their memory") {
  inline_executor here;
  floats out(4);
  const auto e = halves();
  const auto twice = e + e;
  CHECK(evaluate(here, assign(matrix(out.data(), 2, 2), twice)).ok());
  CHECK(out == floats{2, 4, 6, 8});
  CHECK(evaluate(here, assign(matrix(out.data(), 2, 2), 3)).ok());
  CHECK(out == floats{3, 3, 3, 3});
  const status s = evaluate(here, assign(matrix(out.data(), 2, 2), owned(floats{1, 2, 3}, 2, 2)));
  CHECK(s.code() == errc::shape_mismatch);
}

TEST_CASE("expression: other spaces of the host, mutable containers") {
  inline_executor here;
  floats a(24, 1), b(24, 2), out(24), r(8, 3);
  const matrix_view<const float, unified_space> x(a.data(), 3, 8);
  CHECK(evaluate(here, assign(matrix_view(out.data(), 3, 8), in(x) + in(matrix(b.data(), 3, 8)) + row(r)))
            .ok());
  CHECK(out == floats(24, 6));
}

TEST_CASE("expression: empty shapes") {
  inline_executor here;
  const floats none;
  const matrix no_rows(nullptr, 0, 4), no_columns(nullptr, 3, 0);
  const floats four(4), three(3);
  CHECK(evaluate(here, assign(no_rows, in(const_matrix(nullptr, 0, 4)) + row(four) + column(none))).ok());
  CHECK(evaluate(here, assign(no_columns, in(const_matrix(nullptr, 3, 0)) + row(none) + column(three))).ok());
  CHECK(evaluate(here, assign(no_rows, in(const_matrix(nullptr, 0, 3)))).code() == errc::shape_mismatch);
}

TEST_CASE("expression: an operand that does not fit is named by its number, and nothing is written") {
  inline_executor here;
  floats a(64, 1), four(4, 1), eight(8, 1), memory(64, 7);
  std::vector<unsigned char> flags(32, 1);
  const const_matrix fits(a.data(), 4, 8);
  const matrix out(memory.data(), 4, 8);
  const auto refused = [&](const status& s, errc code, std::string_view text, index_t item) {
    CHECK(s.code() == code);
    CHECK_MESSAGE(s.message().find(text) != std::string::npos, s.message());
    CHECK(s.place().item == item);
    CHECK(memory == floats(64, 7));
  };
  const auto shape = errc::shape_mismatch;
  const auto x = in(fits);
  // One expression: operand 0 fits, and one of the others does not.
  const auto with = [&](const_matrix m, array_view<const float> r, array_view<const float> c,
                        float rate = 0) {
    return evaluate(here, assign(out, dropout(x + in(m)*row(r), 1, rate) + column(c)));
  };
  refused(with({a.data(), 4, 7}, eight, four), shape, "evaluate: a matrix must have the shape", 1);
  refused(with({a.data(), 3, 8}, eight, four), shape, "evaluate: a matrix must have the shape", 1);
  refused(with({a.data() + 32, 4, 8, -8}, eight, four), shape, "evaluate: the stride of a matrix must", 1);
  refused(with({nullptr, 4, 8}, eight, four), shape, "evaluate: an operand must not be null", 1);
  refused(with(fits, four, four), shape, "evaluate: a row must have one element for each column", 2);
  refused(with(fits, {nullptr, 8}, four), shape, "evaluate: an operand must not be null", 2);
  refused(with(fits, eight, eight), shape, "evaluate: a column must have one element for each row", 3);
  for (const float rate : {1.0F, -0.1F, not_a_number}) {
    refused(with(fits, eight, four, rate), errc::invalid_value, "evaluate: the rate of dropout must", -1);
  }
  const auto masked = [&](index_t of_rows, index_t rows, index_t columns) {
    return evaluate(
        here, assign(out, select(mask(array_view<const unsigned char>(flags.data(), of_rows)) |
                                     mask(matrix_view<const unsigned char>(flags.data(), rows, columns)),
                                 x, 0)));
  };
  refused(masked(8, 4, 8), shape, "evaluate: a column must", 0);
  refused(masked(4, 8, 4), shape, "evaluate: a matrix must", 1);
  refused(evaluate(here, assign(out, x), assign(matrix(memory.data() + 32, 4, 7), x)), shape,
          "evaluate: an output must have the shape of the first one", 1);
  refused(evaluate(here, assign(out, x), assign(matrix(nullptr, 4, 8), x)), shape,
          "evaluate: an output must not be null", 1);
  refused(evaluate(here, assign(matrix(memory.data(), 4, 8, 7), x)), shape,
          "evaluate: the stride of an output", 0);
  refused(evaluate(here, assign(matrix(memory.data(), -4, 8), x)), shape, "must not be negative", 0);
  refused(evaluate(here, assign(out, x + owned(floats(31), 4, 8))), shape, "evaluate: a matrix must", 1);
}

TEST_CASE("expression: overlaps are refused, but for an output that is an operand") {
  inline_executor here;
  floats memory(200);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i);
  const floats before = memory;
  const matrix out(memory.data() + 50, 4, 8);
  const auto refused = [&](const status& s, std::string_view text, index_t item) {
    CHECK(s.code() == errc::unsupported);
    CHECK_MESSAGE(s.message().find(text) != std::string::npos, s.message());
    CHECK(s.place().item == item);
    CHECK(memory == before);
  };
  const std::string_view operand = "evaluate: an output must be an operand, or not overlap it";
  float* const m = memory.data();
  const auto copy = [&](matrix to, const_matrix from) { return evaluate(here, assign(to, in(from))); };
  refused(copy(out, {m + 51, 4, 8}), operand, 0);
  refused(copy(out, {m + 50, 4, 8, 9}), operand, 0);
  const auto broadcast = [&](index_t of_row, index_t of_column) {
    return evaluate(here, assign(out, row(array_view<const float>(m + of_row, 8)) +
                                          column(array_view<const float>(m + of_column, 4))));
  };
  refused(broadcast(50, 100), operand, 0);
  refused(broadcast(100, 81), operand, 1);
  const matrix_view<const bf16> narrow(reinterpret_cast<const bf16*>(m + 50), 4, 8);
  refused(evaluate(here, assign(out, in(narrow))), operand, 0);
  refused(evaluate(here, assign(out, 1), assign(matrix(m + 81, 4, 8), 2)), "outputs must not overlap", 1);
  refused(evaluate(here, assign(out, 1), assign(out, 2)), "outputs must not overlap", 1);
  CHECK(copy(out, {m + 82, 4, 8}).ok());
  CHECK(memory[50] == 82);
  CHECK(copy({m, 4, 8, 20}, {m + 8, 4, 8, 20}).ok());  // columns side by side in one matrix
}

TEST_CASE("expression: a context that was stopped runs nothing") {
  inline_executor here;
  floats out(4, 7);
  std::stop_source stop;
  stop.request_stop();
  const std::stop_token token = stop.get_token();
  context<inline_executor> ctx(here);
  ctx.stop = &token;
  CHECK(evaluate(ctx, assign(matrix(out.data(), 2, 2), 1)).code() == errc::stopped);
  CHECK(out == floats(4, 7));
}

TEST_CASE("expression: broken variants are caught") {
  std::mt19937_64 random(seed() + 6);
  inline_executor here;
  const index_t rows = 3, columns = 37;
  fenced_matrix<float> a(fence::behind, rows, columns, 2), out(fence::behind, rows, columns, 2);
  floats r(static_cast<std::size_t>(columns));
  a.each([&](index_t i, index_t j) { a.view()(i, j) = static_cast<float>(i * 100 + j); });
  for (float& v : r) v = std::uniform_real_distribution<float>(1, 2)(random);
  const auto wanted = [&](index_t i, index_t j) { return a.view()(i, j) + r[static_cast<std::size_t>(j)]; };
  CHECK(evaluate(here, assign(out.view(), in(a.view()) + row(r))).ok());
  CHECK(out.holds(wanted));
  CHECK(evaluate(here, assign(out.view(), in(a.view()) + column(array_view<const float>(r.data(), rows))))
            .ok());
  CHECK_FALSE(out.holds(wanted));  // another broadcast
  CHECK(evaluate(here, assign(out.view(), in(a.view()) + row(r))).ok());
  out.view()(rows - 1, columns - 1) = 7;
  CHECK_FALSE(out.holds(wanted));  // the last element is not written
  CHECK(evaluate(here, assign(out.view(), in(a.view()) + row(r))).ok());
  out.view().data_handle()[columns] = 0;
  CHECK_FALSE(out.holds(wanted));  // one element too far
}
