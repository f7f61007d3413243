// The dot interaction against loops in double: every ISA, numbers of vectors and widths around the kernels'
// blocks.

#include <deeprec/dense/interactions/dot_interaction.hpp>
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

#include "dense/support.hpp"
#include "support/isas.hpp"

using namespace deeprec;
using namespace dense_test;
using deeprec_test::on;
using deeprec_test::runnable_isas;

namespace {

struct sample_vectors {
  const matrix &dense, &pooled;
  index_t sample, width;
  double operator()(index_t vector, index_t j) const {
    return static_cast<double>(vector == 0 ? dense(sample, j) : pooled(sample, (vector - 1) * width + j));
  }
};

// An output is a sum of `width` products; a gradient one of `vectors`.
double allowed(index_t terms, double size) {
  return (static_cast<double>(terms) + 2) * 0x1p-23 * size + 1e-37;
}

void check_forward(const sample_vectors& v, index_t vectors, const matrix& out) {
  for (index_t j = 0; j < v.width; ++j) CHECK(out(v.sample, j) == static_cast<float>(v(0, j)));
  index_t column = v.width;
  for (index_t f = 1; f < vectors; ++f) {
    for (index_t g = 0; g < f; ++g, ++column) {
      double dot = 0, size = 0;
      for (index_t j = 0; j < v.width; ++j) dot += v(f, j) * v(g, j), size += std::fabs(v(f, j) * v(g, j));
      const double error = std::fabs(static_cast<double>(out(v.sample, column)) - dot);
      if (!(error <= allowed(v.width, size))) {
        CAPTURE(f);
        CAPTURE(g);
        CHECK(error <= allowed(v.width, size));
      }
    }
  }
}

void check_backward(const sample_vectors& v, index_t vectors, const matrix& gradient, const matrix& to_dense,
                    const matrix& to_pooled) {
  for (index_t f = 0; f < vectors; ++f) {
    for (index_t j = 0; j < v.width; ++j) {
      double sum = f == 0 ? static_cast<double>(gradient(v.sample, j)) : 0;
      double size = std::fabs(sum);
      for (index_t g = 0; g < vectors; ++g) {
        if (g == f) continue;
        const index_t low = f > g ? f : g, high = f > g ? g : f;
        const double factor = static_cast<double>(gradient(v.sample, v.width + low * (low - 1) / 2 + high));
        sum += factor * v(g, j), size += std::fabs(factor * v(g, j));
      }
      const double got =
          static_cast<double>(f == 0 ? to_dense(v.sample, j) : to_pooled(v.sample, (f - 1) * v.width + j));
      if (!(std::fabs(got - sum) <= allowed(vectors, size))) {
        CAPTURE(f);
        CAPTURE(j);
        CHECK(std::fabs(got - sum) <= allowed(vectors, size));
      }
    }
  }
}

}  // namespace

TEST_CASE("dot interaction: agrees with loops in double on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t tables : {0, 1, 2, 4, 11, 12, 15, 16, 17, 26, 32, 33, 40, 70}) {
    for (const index_t width : {1, 3, 8, 15, 16, 17, 33, 64, 127, 128, 150}) {
      const index_t batch = 3, wide = dot_interaction_width(tables + 1, width);
      matrix dense(batch, width, 1), pooled(batch, tables * width, 2, 3), gradient(batch, wide);
      for (matrix* m : {&dense, &pooled, &gradient}) m->fill(random);
      for (const isa which : runnable_isas()) {
        CAPTURE(tables);
        CAPTURE(width);
        CAPTURE(to_string(which));
        matrix out(batch, wide, 1, 5), to_dense(batch, width, 2), to_pooled(batch, tables * width, 3);
        REQUIRE(dot_interaction_forward(on(here, which), dense.view(), pooled.view(), out.view()).ok());
        REQUIRE(dot_interaction_backward(on(here, which), dense.view(), pooled.view(), gradient.view(),
                                         to_dense.view(), to_pooled.view())
                    .ok());
        for (index_t b = 0; b < batch; ++b) {
          const sample_vectors v{dense, pooled, b, width};
          check_forward(v, tables + 1, out);
          check_backward(v, tables + 1, gradient, to_dense, to_pooled);
        }
        CHECK(out.padding_untouched());
        CHECK(to_dense.padding_untouched());
        CHECK(to_pooled.padding_untouched());
      }
    }
  }
}

TEST_CASE("dot interaction: a vector is not in its own gradient, whatever it holds") {
  inline_executor here;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const index_t tables = 20, width = 16, wide = dot_interaction_width(tables + 1, width);
  for (const isa which : runnable_isas()) {
    for (index_t large = 0; large <= tables; ++large) {
      matrix dense(1, width), pooled(1, tables * width), gradient(1, wide);
      for (matrix* m : {&dense, &pooled, &gradient}) {
        for (index_t j = 0; j < m->columns; ++j) (*m)(0, j) = 1;
      }
      for (index_t j = 0; j < width; ++j)
        (large == 0 ? dense(0, j) : pooled(0, (large - 1) * width + j)) = infinity;
      matrix to_dense(1, width), to_pooled(1, tables * width);
      REQUIRE(dot_interaction_backward(on(here, which), dense.view(), pooled.view(), gradient.view(),
                                       to_dense.view(), to_pooled.view())
                  .ok());
      for (index_t f = 0; f <= tables; ++f) {
        const float got = f == 0 ? to_dense(0, 0) : to_pooled(0, (f - 1) * width);
        CHECK(got == (f == large ? static_cast<float>(tables + (f == 0 ? 1 : 0)) : infinity));
      }
    }
  }
}

TEST_CASE("dot interaction: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  const index_t batch = 300, tables = 26, width = 16, wide = dot_interaction_width(tables + 1, width);
  matrix dense(batch, width), pooled(batch, tables * width), gradient(batch, wide);
  for (matrix* m : {&dense, &pooled, &gradient}) m->fill(random);
  const auto run = [&](auto& executor) {
    matrix out(batch, wide), to_dense(batch, width), to_pooled(batch, tables * width);
    REQUIRE(dot_interaction_forward(executor, dense.view(), pooled.view(), out.view()).ok());
    REQUIRE(dot_interaction_backward(executor, dense.view(), pooled.view(), gradient.view(), to_dense.view(),
                                     to_pooled.view())
                .ok());
    std::vector<matrix> all;
    for (const matrix* m : {&out, &to_dense, &to_pooled}) all.push_back(*m);
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

TEST_CASE("dot interaction: wrong shapes are named, and nothing is written") {
  inline_executor here;
  matrix dense(2, 4), pooled(2, 8), out(2, dot_interaction_width(3, 4));
  matrix to_dense(2, 4), to_pooled(2, 8);
  out.fill(*std::make_unique<std::mt19937_64>(1));
  const auto message = [&](const status& s) {
    CHECK(s.code() == errc::shape_mismatch);
    return s.message();
  };
  CHECK(message(dot_interaction_forward(here, dense.view(), matrix(2, 9).view(), out.view()))
            .find("dot_interaction_forward: shapes must be dense (B,D)") != std::string::npos);
  message(dot_interaction_forward(here, dense.view(), matrix(3, 8).view(), out.view()));
  message(dot_interaction_forward(here, matrix(2, 0).view(), pooled.view(), out.view()));
  message(dot_interaction_forward(here, dense.view(), pooled.view(), matrix(2, 6).view()));
  message(dot_interaction_backward(here, dense.view(), pooled.view(), matrix(2, 6).view(), to_dense.view(),
                                   to_pooled.view()));
  CHECK(message(dot_interaction_backward(here, dense.view(), pooled.view(), out.view(), matrix(1, 4).view(),
                                         to_pooled.view()))
            .find("dense_gradient must be (B,D)") != std::string::npos);
  CHECK(message(dot_interaction_backward(here, dense.view(), pooled.view(), out.view(), to_dense.view(),
                                         matrix(2, 4).view()))
            .find("pooled_gradient must be (B,T*D)") != std::string::npos);
  CHECK(to_pooled(0, 0) == matrix::sentinel);
}

TEST_CASE("dot interaction: the example of its documentation") {
  thread_pool pool(2);
  //! [dot_interaction]
  const std::vector<float> dense{1, 2}, pooled{3, 4, 5, 6};  // one sample, two tables, D = 2
  std::vector<float> out(static_cast<std::size_t>(dot_interaction_width(3, 2)));
  dot_interaction_forward(pool, matrix_view<const float>(dense.data(), 1, 2),
                          matrix_view<const float>(pooled.data(), 1, 4), matrix_view<float>(out.data(), 1, 5))
      .or_throw();  // out is 1 2 | 11 | 17 39
  //! [dot_interaction]
  CHECK(out == std::vector<float>{1, 2, 11, 17, 39});
  //! [dot_interaction_backward]
  const std::vector<float> gradient{0, 0, 1, 0, 10};  // of out
  std::vector<float> to_dense(2), to_pooled(4);
  dot_interaction_backward(
      pool, matrix_view<const float>(dense.data(), 1, 2), matrix_view<const float>(pooled.data(), 1, 4),
      matrix_view<const float>(gradient.data(), 1, 5), matrix_view<float>(to_dense.data(), 1, 2),
      matrix_view<float>(to_pooled.data(), 1, 4))
      .or_throw();
  //! [dot_interaction_backward]
  CHECK(to_dense == std::vector<float>{3, 4});
  CHECK(to_pooled == std::vector<float>{51, 62, 30, 40});
}
