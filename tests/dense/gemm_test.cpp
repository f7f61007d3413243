#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

struct shape {
  index_t m, n, k;
};

constexpr gemm_operand operands[] = {gemm_operand::normal, gemm_operand::transposed};
constexpr gemm_output outputs[] = {gemm_output::overwrite, gemm_output::accumulate};

matrix operand(gemm_operand how, index_t rows, index_t columns, index_t pad) {
  return how == gemm_operand::normal ? matrix(rows, columns, pad) : matrix(columns, rows, pad);
}

using eigen = gemm_backends<eigen_gemm>;
#if defined(DEEPREC_WITH_ONEDNN)
using onednn = gemm_backends<onednn_gemm, eigen_gemm>;  // oneDNN refuses a single column
#endif

/// The largest error of gemm() over a bound well inside the one that it promises (rounding errors
/// of random numbers grow with the root of k): at most 1.
template <class Backends, class Executor>
double worst_error(Executor&& executor, shape s, gemm_desc desc, index_t pad, std::mt19937_64& random) {
  matrix a = operand(desc.a, s.m, s.k, pad);
  matrix b = operand(desc.b, s.k, s.n, pad);
  matrix c(s.m, s.n, pad);
  a.fill(random);
  b.fill(random);
  c.fill(random);
  const matrix before = c;
  const status done = gemm<Backends>(executor, desc, a.view(), b.view(), c.view());
  REQUIRE_MESSAGE(done.ok(), done.message());
  CHECK(a.padding_untouched());
  CHECK(c.padding_untouched());
  double worst = 0;
  for (index_t i = 0; i < s.m; ++i) {
    for (index_t j = 0; j < s.n; ++j) {
      const bool adds = desc.c == gemm_output::accumulate;
      double sum = adds ? static_cast<double>(before(i, j)) : 0;
      double magnitude = std::abs(sum);
      for (index_t p = 0; p < s.k; ++p) {
        const double x = desc.a == gemm_operand::normal ? a(i, p) : a(p, i);
        const double y = desc.b == gemm_operand::normal ? b(p, j) : b(j, p);
        sum += x * y;
        magnitude += std::abs(x * y);
      }
      const double bound = (4 + 2 * std::sqrt(static_cast<double>(s.k))) * 0x1p-24 * magnitude;
      const double off = std::abs(static_cast<double>(c(i, j)) - sum);
      if (off > 0) worst = std::max(worst, bound > 0 ? off / bound : 1e9);
    }
  }
  return worst;
}

// Wrong on purpose: leaves out the last product of each sum.
struct forgetful : eigen_gemm {
  static gemm_backend::plan plan(gemm_backend::problem q) {
    q.k -= q.k > 1 ? 1 : 0;
    return eigen_gemm::plan(q);
  }
};
// Wrong on purpose: always overwrites.
struct overwriting : eigen_gemm {
  static gemm_backend::plan plan(gemm_backend::problem q) {
    q.accumulates = false;
    return eigen_gemm::plan(q);
  }
};
struct refusing : eigen_gemm {
  static constexpr const char* name = "refusing";
  static status can_run(const gemm_backend::problem&) { return {errc::unsupported, "no"}; }
  static gemm_backend::plan plan(const gemm_backend::problem&) { return {}; }
};

template <class Backends>
void small_shapes(std::initializer_list<index_t> sizes) {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  double worst = 0;
  for (const index_t m : sizes) {
    for (const index_t n : sizes) {
      for (const index_t k : sizes) {
        for (const auto a : operands) {
          for (const auto b : operands) {
            for (const auto c : outputs) {
              worst = std::max(worst, worst_error<Backends>(here, {m, n, k}, {a, b, c}, k % 4, random));
            }
          }
        }
      }
    }
  }
  CHECK(worst <= 1);
}

template <class Backends>
void large_shapes() {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const shape shapes[] = {{1, 1, 10000},  {3, 5, 10000},   {17, 33, 2000}, {130, 70, 150},
                          {1, 300, 77},   {300, 1, 77},    {65, 64, 64},   {64, 129, 16},
                          {257, 31, 100}, {200, 200, 200}, {1000, 3, 20},  {2, 1000, 20}};
  for (const shape s : shapes) {
    for (const auto a : operands) {
      for (const auto b : operands) {
        for (const auto c : outputs) {
          CAPTURE(s.m);
          CAPTURE(s.n);
          CAPTURE(s.k);
          CHECK(worst_error<Backends>(here, s, {a, b, c}, s.k % 5, random) <= 1);
        }
      }
    }
  }
}

template <class Backends>
void same_bits_everywhere() {
  std::mt19937_64 random(deeprec_test::seed());
  const shape shapes[] = {{1, 1, 500},   {128, 479, 64}, {64, 479, 128}, {300, 1, 64},    {200, 150, 100},
                          {33, 700, 45}, {700, 33, 45},  {500, 500, 20}, {100, 300, 1003}};
  for (const shape s : shapes) {
    for (const auto a_as : operands) {
      for (const auto b_as : operands) {
        matrix a = operand(a_as, s.m, s.k, 1);
        matrix b = operand(b_as, s.k, s.n, 0);
        a.fill(random);
        b.fill(random);
        matrix first(s.m, s.n);
        inline_executor here;
        REQUIRE(gemm<Backends>(here, {a_as, b_as}, a.view(), b.view(), first.view()).ok());
        for (const int threads : thread_counts) {
          scrambled_threads crew(threads);
          matrix again(s.m, s.n);
          REQUIRE(gemm<Backends>(crew, {a_as, b_as}, a.view(), b.view(), again.view()).ok());
          CAPTURE(threads);
          CHECK(same_bits(first, again));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("gemm: Eigen agrees with the oracle on every small shape") {
  small_shapes<eigen>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}
TEST_CASE("gemm: Eigen agrees with the oracle on larger shapes and on long sums") { large_shapes<eigen>(); }
TEST_CASE("gemm: Eigen gives the same bits on 1, 2, 3 and 8 threads") { same_bits_everywhere<eigen>(); }

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("gemm: oneDNN agrees with the oracle on small shapes") {
  small_shapes<onednn>({1, 2, 5, 9});  // each shape is compiled
}
TEST_CASE("gemm: oneDNN agrees with the oracle on larger shapes and on long sums") { large_shapes<onednn>(); }
TEST_CASE("gemm: oneDNN gives the same bits on 1, 2, 3 and 8 threads") { same_bits_everywhere<onednn>(); }
#  if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
TEST_CASE("gemm: oneDNN leaves the caller's number of OpenMP threads as it was") {
  omp_set_num_threads(3);
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  CHECK(worst_error<onednn>(here, {20, 20, 20}, {}, 0, random) <= 1);
  CHECK(omp_get_max_threads() == 3);
}
#  endif
#endif

TEST_CASE("gemm: the checks above catch a backend that is wrong") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  CHECK(worst_error<gemm_backends<forgetful>>(here, {5, 6, 7}, {}, 0, random) > 1);
  CHECK(worst_error<gemm_backends<forgetful>>(here, {3, 5, 10000}, {}, 0, random) > 1);
  const gemm_desc adds{.c = gemm_output::accumulate};
  CHECK(worst_error<gemm_backends<overwriting>>(here, {5, 6, 7}, adds, 0, random) > 1);
}

TEST_CASE("gemm: a split that follows the number of threads is caught by the comparison of bits") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix a(40, 600);
  matrix b(600, 40);
  a.fill(random);
  b.fill(random);
  inline_executor here;
  // Wrong on purpose: one part of k for each thread.
  const auto split_k = [&](index_t threads) {
    matrix c(40, 40);
    const index_t part = 600 / threads;
    for (index_t t = 0; t < threads; ++t) {
      const gemm_desc desc{.c = t == 0 ? gemm_output::overwrite : gemm_output::accumulate};
      REQUIRE(
          gemm<eigen>(here, desc, a.view().columns(t * part, part), b.view().rows(t * part, part), c.view())
              .ok());
    }
    return c;
  };
  CHECK_FALSE(same_bits(split_k(1), split_k(3)));
}

TEST_CASE("gemm: Eigen's bits don't depend on where the memory lies") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const shape shapes[] = {{1, 1, 37}, {1, 40, 37}, {40, 1, 37}, {3, 4, 5}, {9, 9, 9}, {70, 70, 40}};
  for (const shape s : shapes) {
    for (const auto a_as : operands) {
      for (const auto b_as : operands) {
        matrix a = operand(a_as, s.m, s.k, 0);
        matrix b = operand(b_as, s.k, s.n, 0);
        a.fill(random);
        b.fill(random);
        matrix first(s.m, s.n);
        REQUIRE(gemm<eigen>(here, {a_as, b_as}, a.view(), b.view(), first.view()).ok());
        for (index_t offset = 1; offset < 8; ++offset) {
          matrix a2(a.rows, a.columns, 0, offset);
          matrix b2(b.rows, b.columns, 0, offset * 3 % 8);
          matrix c2(s.m, s.n, 0, offset * 5 % 8);
          a2.copy(a);
          b2.copy(b);
          REQUIRE(gemm<eigen>(here, {a_as, b_as}, a2.view(), b2.view(), c2.view()).ok());
          CHECK(same_bits(first, c2));
        }
      }
    }
  }
}

TEST_CASE("gemm: no products leave zeros when overwriting and the old values when accumulating") {
  inline_executor here;
  matrix a(2, 0);
  matrix b(0, 3);
  matrix c(2, 3);
  c(1, 2) = 5;
  REQUIRE(gemm(here, {.c = gemm_output::accumulate}, a.view(), b.view(), c.view()).ok());
  CHECK(c(1, 2) == 5);
  REQUIRE(gemm(here, {}, a.view(), b.view(), c.view()).ok());
  CHECK(c(1, 2) == 0);
  matrix_view<float> nothing;
  CHECK(gemm(here, {}, nothing, nothing, nothing).ok());
}

TEST_CASE("gemm: operands that don't fit are named") {
  inline_executor here;
  matrix a(2, 3);
  matrix b(3, 4);
  matrix c(2, 4);
  const auto message = [&](const status& s) { return s.message(); };
  const gemm_desc a_t{.a = gemm_operand::transposed};
  CHECK(message(gemm(here, a_t, a.view(), b.view(), c.view())).find("op(a) must have the rows of c") !=
        std::string::npos);
  matrix b_wide(3, 5);
  CHECK(message(gemm(here, {}, a.view(), b_wide.view(), c.view())).find("op(b) must have the columns of c") !=
        std::string::npos);
  matrix b_long(4, 4);
  CHECK(message(gemm(here, {}, a.view(), b_long.view(), c.view())).find("op(b) must have as many rows") !=
        std::string::npos);
  const matrix_view<float> null_a(nullptr, 2, 3);
  CHECK(message(gemm(here, {}, null_a, b.view(), c.view())).find("a must not be null") != std::string::npos);
  const matrix_view<float> narrow(c.view().data_handle(), 2, 4, 3);
  const status overlapping = gemm(here, {}, a.view(), b.view(), narrow);
  CHECK(overlapping.code() == errc::shape_mismatch);
  CHECK(message(overlapping).find("c must not be null, and its row stride") != std::string::npos);
}

TEST_CASE("gemm: sizes and batches that an index can't count are named, before anything is read") {
  inline_executor here;
  std::vector<float> memory(64, 7.0F);
  float* const p = memory.data();
  const index_t huge = index_t{1} << 60;
  using view = matrix_view<float>;
  const auto says = [&](const gemm_desc& d, view a, view b, view c, const char* what) {
    const status s = gemm(here, d, a, b, c);
    INFO(s.message());
    return s.code() == errc::shape_mismatch && s.message().find(what) != std::string::npos;
  };
  CHECK(says({}, {p, huge, 4}, {p, 4, 4}, {p, huge, 4}, "the bytes of a must fit"));
  CHECK(says({}, {p, 1, huge * 2}, {p, huge * 2, 1}, {p, 1, 1}, "the bytes of a must fit"));
  CHECK(says({}, {p, 2, 4, huge * 4}, {p, 4, 4}, {p, 2, 4}, "the bytes of a must fit"));
  CHECK(says({}, {p, 4, 1}, {p, 1, huge * 4}, {p, 4, huge * 4}, "the bytes of b must fit"));
  CHECK(says({}, {p, huge, 0}, {p, 0, huge}, {p, huge, huge}, "the bytes of c must fit"));
  CHECK(says({.batch = {.count = 2, .c_batch_stride = huge}}, {p, 2, 2}, {p, 2, 2}, {p, 2, 2},
             "the bytes of a batch must fit"));
  CHECK(says({.batch = {.count = huge, .a_batch_stride = 4, .c_batch_stride = 1}}, {p, 2, 2}, {p, 2, 2},
             {p, 2, 2}, "the bytes of a batch must fit"));
  CHECK(says({.batch = {.count = huge * 4, .c_batch_stride = 1}}, {p, 1, 2}, {p, 2, 1}, {p, 1, 1},
             "the bytes of a batch must fit"));
  CHECK(says({.batch = {.count = 3, .c_batch_stride = (std::numeric_limits<index_t>::min)()}}, {p, 2, 2},
             {p, 2, 2}, {p, 2, 2}, "the bytes of a batch must fit"));
  CHECK(std::count(memory.begin(), memory.end(), 7.0F) == 64);
}

TEST_CASE("gemm: what every backend refuses is a status") {
  inline_executor here;
  matrix a(2, 3);
  matrix b(3, 4);
  matrix c(2, 4);
  const status refused = gemm<gemm_backends<refusing>>(here, {}, a.view(), b.view(), c.view());
  CHECK(refused.code() == errc::unsupported);
  CHECK(refused.message() == "unsupported: gemm: no");
}
