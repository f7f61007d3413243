// The factorization machine's interaction against sums over pairs in double: every ISA, widths around the
// kernels' panels.

#include <deeprec/dense/interactions/fm_interaction.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dense/differences.hpp"
#include "dense/support.hpp"
#include "support/isas.hpp"

using namespace deeprec;
using namespace dense_test;
using deeprec_test::on;
using deeprec_test::runnable_isas;

namespace {

constexpr double u = 0x1p-24;

// n roundings, one after another.
double roundings(index_t n) { return static_cast<double>(n) * u / (1 - static_cast<double>(n) * u); }

// Of sample b and column d: the sum over pairs, and that of the absolute values.
std::pair<double, double> pairs_of(const matrix& pooled, index_t width, index_t b, index_t d) {
  double sum = 0, size = 0;
  for (index_t j = d; j < pooled.columns; j += width) {
    for (index_t i = d; i < j; i += width) {
      const double product = static_cast<double>(pooled(b, i)) * static_cast<double>(pooled(b, j));
      sum += product, size += std::fabs(product);
    }
  }
  return {sum, size};
}

bool within(float got, double exact, double bound) {
  return std::fabs(static_cast<double>(got) - exact) <= bound + 1e-40;
}

// Elements of the outputs that are too far from the oracle.
index_t wrong_outputs(const matrix& pooled, index_t width, const matrix& out, const matrix& summed) {
  const index_t tables = pooled.columns / width;
  index_t wrong = 0;
  for (index_t b = 0; b < pooled.rows; ++b) {
    double sum = 0, size = 0;
    for (index_t d = 0; d < width; ++d) {
      const auto [pairs, pairs_size] = pairs_of(pooled, width, b, d);
      wrong += !within(out(b, d), pairs, roundings(tables) * pairs_size);
      sum += pairs, size += pairs_size;
    }
    wrong += !within(summed(b, 0), sum, roundings(tables + width) * size);
  }
  return wrong;
}

// `forgets`: the oracle of a gradient without -v_t, which no right one agrees with.
index_t wrong_gradients(const matrix& pooled, index_t width, const matrix& gradient, const matrix& got,
                        bool forgets = false) {
  const index_t tables = pooled.columns / width;
  index_t wrong = 0;
  for (index_t b = 0; b < pooled.rows; ++b) {
    for (index_t j = 0; j < pooled.columns; ++j) {
      const double g = static_cast<double>(gradient(b, gradient.columns == 1 ? 0 : j % width));
      double sum = 0, size = 0;
      for (index_t i = j % width; i < pooled.columns; i += width) {
        const auto v = static_cast<double>(pooled(b, i));
        if (i != j || forgets) sum += v;
        size += std::fabs(v);
      }
      wrong += !within(got(b, j), g * sum, roundings(tables + 1) * std::fabs(g) * size);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("fm interaction: agrees with sums over pairs in double on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t tables : {0, 1, 2, 3, 7, 26, 60}) {
    for (const index_t width : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 130}) {
      const index_t batch = 3;
      matrix pooled(batch, tables * width, 2, 3), gradient(batch, width, 1), of_sum(batch, 1, 2);
      for (matrix* m : {&pooled, &gradient, &of_sum}) m->fill(random);
      matrix first(batch, tables * width);
      for (const isa which : runnable_isas()) {
        CAPTURE(tables);
        CAPTURE(width);
        CAPTURE(to_string(which));
        const auto ctx = on(here, which);
        matrix out(batch, width, 1, 5), summed(batch, 1, 3), to(batch, tables * width, 3);
        REQUIRE(fm_interaction_forward(ctx, std::as_const(pooled).view(), width, out.view()).ok());
        REQUIRE(fm_interaction_forward(ctx, pooled.view(), width, summed.view()).ok());
        CHECK(wrong_outputs(pooled, width, out, summed) == 0);
        if (tables < 2) CHECK(out(1, width - 1) == 0.0F);

        REQUIRE(fm_interaction_backward(ctx, pooled.view(), width, of_sum.view(), to.view()).ok());
        CHECK(wrong_gradients(pooled, width, of_sum, to) == 0);
        REQUIRE(fm_interaction_backward(ctx, pooled.view(), width, gradient.view(), to.view()).ok());
        CHECK(wrong_gradients(pooled, width, gradient, to) == 0);
        // The check can fail: a gradient that has the vector itself in the sum.
        if (tables > 0) CHECK(wrong_gradients(pooled, width, gradient, to, true) > 0);

        if (which == isa::portable) first.copy(to);
        CHECK(same_bits(first, to));  // on every ISA
        for (const matrix* m : {&out, &summed, &to}) CHECK(m->padding_untouched());
        matrix in_place(batch, tables * width, 2);
        in_place.copy(pooled);
        REQUIRE(fm_interaction_backward(ctx, in_place.view(), width, gradient.view(), in_place.view()).ok());
        CHECK(same_bits(in_place, to));
      }
    }
  }
}

TEST_CASE("fm interaction: one large vector takes no digits from the pairs of small ones") {
  inline_executor here;
  for (const isa which : runnable_isas()) {
    matrix pooled(1, 3), out(1, 1);
    pooled(0, 0) = 0x1p40F, pooled(0, 1) = 0, pooled(0, 2) = 3;
    REQUIRE(fm_interaction_forward(on(here, which), pooled.view(), 1, out.view()).ok());
    CHECK(out(0, 0) == 0x1p40F * 3);
    pooled(0, 0) = 2e38F, pooled(0, 2) = 1;  // its square is infinite
    REQUIRE(fm_interaction_forward(on(here, which), pooled.view(), 1, out.view()).ok());
    CHECK(out(0, 0) == 2e38F);
    matrix one(1, 1);
    one(0, 0) = std::numeric_limits<float>::infinity();  // has no pair
    REQUIRE(fm_interaction_forward(on(here, which), one.view(), 1, out.view()).ok());
    CHECK(out(0, 0) == 0);
  }
}

TEST_CASE("fm interaction: gradients are those of the sums over pairs") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const index_t batch = 2, tables = 4, width = 5;
  for (const index_t columns : {width, index_t{1}}) {
    matrix pooled(batch, tables * width), gradient(batch, columns), to(batch, tables * width);
    for (matrix* m : {&pooled, &gradient}) m->fill(random);
    REQUIRE(fm_interaction_backward(here, pooled.view(), width, gradient.view(), to.view()).ok());
    std::vector<double> x = doubles_of(pooled.view());
    const auto f = [&] {  // as the papers have it
      double total = 0;
      for (index_t b = 0; b < batch; ++b) {
        for (index_t d = 0; d < width; ++d) {
          double s = 0, q = 0;
          for (index_t t = 0; t < tables; ++t) {
            const double v = x[static_cast<std::size_t>((b * tables + t) * width + d)];
            s += v, q += v * v;
          }
          total += static_cast<double>(gradient(b, columns == 1 ? 0 : d)) * (s * s - q) / 2;
        }
      }
      return total;
    };
    CHECK(difference_error(to.view(), x, f) < small_difference);
    to(0, 0) += gradient(0, 0) * pooled(0, 0);  // the check can fail
    CHECK(difference_error(to.view(), x, f) > small_difference);
  }
}

TEST_CASE("fm interaction: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t batch = 900, tables = 26, width = 17;
  matrix pooled(batch, tables * width), gradient(batch, width);
  for (matrix* m : {&pooled, &gradient}) m->fill(random);
  const auto run = [&](auto& executor) {
    std::vector<matrix> all{matrix(batch, width), matrix(batch, 1), matrix(batch, tables * width)};
    REQUIRE(fm_interaction_forward(executor, pooled.view(), width, all[0].view()).ok());
    REQUIRE(fm_interaction_forward(executor, pooled.view(), width, all[1].view()).ok());
    REQUIRE(fm_interaction_backward(executor, pooled.view(), width, gradient.view(), all[2].view()).ok());
    return all;
  };
  inline_executor here;
  const std::vector<matrix> expected = run(here);
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    const std::vector<matrix> got = run(crew);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(expected[i], got[i]));
  }
}

TEST_CASE("fm interaction: wrong shapes are named, and nothing is written") {
  inline_executor here;
  matrix pooled(2, 8), out(2, 4), to(2, 8);
  const auto named = [](const status& s, const char* text) {
    return s.code() == errc::shape_mismatch && s.message().find(text) != std::string::npos;
  };
  const auto forward = [&](matrix x, index_t width, matrix& y) {
    return fm_interaction_forward(here, x.view(), width, y.view());
  };
  matrix three(2, 3), one_row(1, 4);
  CHECK(named(forward(pooled, 0, out), "fm_interaction_forward: width must be at least 1"));
  CHECK(named(forward(pooled, -4, out), "width must be"));
  CHECK(named(forward(matrix(2, 9), 4, out), "fm_interaction_forward: pooled must be (B,T*D)"));
  CHECK(named(forward(pooled, 4, three), "fm_interaction_forward: output must be (B,D) or (B,1)"));
  CHECK(named(forward(pooled, 4, one_row), "output must be"));
  CHECK(
      named(fm_interaction_forward(here, matrix_view<const float>(nullptr, 2, 8), 4, out.view()), "pooled"));
  const auto backward = [&](matrix x, index_t width, matrix g, matrix& y) {
    return fm_interaction_backward(here, x.view(), width, g.view(), y.view());
  };
  CHECK(named(backward(pooled, 0, out, to), "fm_interaction_backward: width must be at least 1"));
  CHECK(named(backward(matrix(2, 9), 4, out, to), "fm_interaction_backward: pooled must be (B,T*D)"));
  CHECK(named(backward(pooled, 4, three, to), "output_gradient must be (B,D) or (B,1)"));
  CHECK(named(backward(pooled, 4, out, three), "pooled_gradient must be (B,T*D)"));
  for (const matrix* m : {&out, &to, &three, &one_row}) {
    for (const float x : m->storage) CHECK(x == matrix::sentinel);
  }
  CHECK(forward(matrix(0, 8), 4, *std::make_unique<matrix>(0, 4)).ok());
}

TEST_CASE("fm interaction: the example of its documentation") {
  thread_pool pool(2);
  //! [fm_interaction]
  const std::vector<float> pooled{1, 2, 3, 4, 5, 6};  // one sample, three tables, D = 2
  std::vector<float> pairs(2), sum(1);
  const matrix_view<const float> vectors(pooled.data(), 1, 6);
  fm_interaction_forward(pool, vectors, 2, matrix_view<float>(pairs.data(), 1, 2)).or_throw();  // 23 44
  fm_interaction_forward(pool, vectors, 2, matrix_view<float>(sum.data(), 1, 1)).or_throw();    // 67
  //! [fm_interaction]
  CHECK(pairs == std::vector<float>{23, 44});
  CHECK(sum == std::vector<float>{67});
  //! [fm_interaction_backward]
  const std::vector<float> gradient{1, 10};  // of pairs
  std::vector<float> to_pooled(6);
  fm_interaction_backward(pool, vectors, 2, matrix_view<const float>(gradient.data(), 1, 2),
                          matrix_view<float>(to_pooled.data(), 1, 6))
      .or_throw();  // 8 100 | 6 80 | 4 60
  //! [fm_interaction_backward]
  CHECK(to_pooled == std::vector<float>{8, 100, 6, 80, 4, 60});
}
