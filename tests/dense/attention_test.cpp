// DIN's attention unit against loops in double: every ISA, widths around the vectors, histories of any
// length.

#include <deeprec/dense/layers/attention_features.hpp>
#include <deeprec/dense/layers/attention_pool.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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

using doubles = std::vector<double>;
constexpr double u = 0x1p-24;

std::size_t at(index_t columns, index_t i, index_t j) { return static_cast<std::size_t>(i * columns + j); }

// Results in double, and for each the sum of the sizes of what was added.
struct sums {
  explicit sums(std::size_t n) : value(n), size(n) {}
  void add(std::size_t i, double term) {
    value[i] += term;
    size[i] += std::fabs(term);
  }
  doubles value, size;
};

// |got - expected| <= (terms + 4) u size, 2 for products that round on their own.
void check_close(const matrix& got, const sums& expected, index_t terms) {
  double worst = 0;
  for (index_t i = 0; i < got.rows; ++i) {
    for (index_t j = 0; j < got.columns; ++j) {
      const std::size_t k = at(got.columns, i, j);
      const double allowed = 2 * (static_cast<double>(terms) + 4) * u * expected.size[k] + 1e-37;
      const double error = std::fabs(static_cast<double>(got(i, j)) - expected.value[k]);
      worst = std::isfinite(error) ? std::max(worst, error / allowed) : 1e9;
    }
  }
  CHECK(worst <= 1);
}

struct problem {
  index_t width;
  std::vector<std::int32_t> offsets{0};
  matrix queries, keys, scores, out_gradient, features_gradient;

  problem(std::vector<index_t> lengths, index_t columns, std::mt19937_64& random)
      : width(columns),
        offsets(sum_of(lengths)),
        queries(samples(), width, 1),
        keys(positions(), width, 2, 3),
        scores(positions(), 1, 2),
        out_gradient(samples(), width),
        features_gradient(positions(), 4 * width, 1) {
    for (matrix* m : {&queries, &keys, &scores, &out_gradient, &features_gradient}) m->fill(random);
  }
  static std::vector<std::int32_t> sum_of(const std::vector<index_t>& lengths) {
    std::vector<std::int32_t> made{0};
    for (const index_t length : lengths) made.push_back(made.back() + static_cast<std::int32_t>(length));
    return made;
  }
  index_t samples() const { return static_cast<index_t>(offsets.size()) - 1; }
  index_t positions() const { return offsets.back(); }
  index_t longest() const {
    index_t most = 0;
    for (index_t b = 0; b < samples(); ++b) most = std::max(most, end(b) - begin(b));
    return most;
  }
  index_t begin(index_t b) const { return offsets[static_cast<std::size_t>(b)]; }
  index_t end(index_t b) const { return offsets[static_cast<std::size_t>(b) + 1]; }
  template <class F>
  void each(const F& f) const {  // (sample, position, column)
    for (index_t b = 0; b < samples(); ++b) {
      for (index_t p = begin(b); p < end(b); ++p) {
        for (index_t j = 0; j < width; ++j) f(b, p, j);
      }
    }
  }
};

// What the verbs write, all of it.
struct results {
  matrix features, to_query, to_keys, pooled, soft_pooled, weights, to_scores, to_soft_scores, pool_to_keys,
      soft_to_keys;

  explicit results(const problem& in)
      : features(in.positions(), 4 * in.width, 3),
        to_query(in.samples(), in.width, 2),
        to_keys(in.positions(), in.width, 1),
        pooled(in.samples(), in.width, 1, 2),
        soft_pooled(in.samples(), in.width),
        weights(in.positions(), 1, 1),
        to_scores(in.positions(), 1),
        to_soft_scores(in.positions(), 1, 3),
        pool_to_keys(in.positions(), in.width, 2),
        soft_to_keys(in.positions(), in.width) {}
  std::vector<const matrix*> all() const {
    return {&features, &to_query,  &to_keys,        &pooled,       &soft_pooled,
            &weights,  &to_scores, &to_soft_scores, &pool_to_keys, &soft_to_keys};
  }
  template <class Context>
  void run(Context&& ctx, const problem& in, gradient_write of_keys = gradient_write::overwrite) {
    const auto& [width, offsets, queries, keys, scores, gradient, of_features] = in;
    REQUIRE(attention_features_forward(ctx, queries.view(), keys.view(), offsets, features.view()).ok());
    REQUIRE(attention_features_backward(ctx, queries.view(), keys.view(), offsets, of_features.view(),
                                        {to_query.view(), to_keys.view()}, of_keys)
                .ok());
    REQUIRE(attention_pool_forward(ctx, scores.view(), keys.view(), offsets, pooled.view()).ok());
    REQUIRE(
        attention_pool_forward(ctx, scores.view(), keys.view(), offsets, weights.view(), soft_pooled.view())
            .ok());
    REQUIRE(attention_pool_backward(ctx, scores.view(), keys.view(), offsets, gradient.view(),
                                    {to_scores.view(), pool_to_keys.view()}, {.key_gradient = of_keys})
                .ok());
    REQUIRE(attention_pool_backward(ctx, weights.view(), keys.view(), offsets, gradient.view(),
                                    {to_soft_scores.view(), soft_to_keys.view()},
                                    {.weights = attention_weights::softmax, .key_gradient = of_keys})
                .ok());
  }
};

void check_features(const problem& in, const results& got) {
  const index_t d = in.width;
  sums to_query(static_cast<std::size_t>(in.samples() * d)),
      to_keys(static_cast<std::size_t>(in.positions() * d));
  bool same = true;
  in.each([&](index_t b, index_t p, index_t j) {
    const float q = in.queries(b, j), k = in.keys(p, j);
    const matrix& f = got.features;
    same = same && f(p, j) == q && f(p, d + j) == k && f(p, 2 * d + j) == q - k && f(p, 3 * d + j) == q * k;
    const auto g = [&](index_t part) { return static_cast<double>(in.features_gradient(p, part * d + j)); };
    to_query.add(at(d, b, j), g(0));
    to_query.add(at(d, b, j), g(2));
    to_query.add(at(d, b, j), g(3) * static_cast<double>(k));
    to_keys.add(at(d, p, j), g(1));
    to_keys.add(at(d, p, j), -g(2));
    to_keys.add(at(d, p, j), g(3) * static_cast<double>(q));
  });
  CHECK(same);
  check_close(got.to_query, to_query, in.longest());
  check_close(got.to_keys, to_keys, 1);
}

doubles softmax_of(const problem& in, const doubles& scores) {
  doubles made(scores.size());
  for (index_t b = 0; b < in.samples(); ++b) {
    double largest = -1e300, sum = 0;
    for (index_t p = in.begin(b); p < in.end(b); ++p)
      largest = std::max(largest, scores[static_cast<std::size_t>(p)]);
    for (index_t p = in.begin(b); p < in.end(b); ++p)
      sum += made[static_cast<std::size_t>(p)] = std::exp(scores[static_cast<std::size_t>(p)] - largest);
    for (index_t p = in.begin(b); p < in.end(b); ++p) made[static_cast<std::size_t>(p)] /= sum;
  }
  return made;
}

void check_pool(const problem& in, const results& got) {
  const index_t d = in.width;
  const auto n = static_cast<std::size_t>(in.positions()), m = static_cast<std::size_t>(in.samples());
  const auto width = static_cast<std::size_t>(d);
  // The weights against the scores; what uses the weights against the weights.
  const doubles w = softmax_of(in, doubles_of(in.scores.view()));
  sums weights(n), pooled(m * width), soft_pooled(m * width), to_scores(n), to_soft(n);
  sums to_keys(n * width), to_soft_keys(n * width);
  for (std::size_t p = 0; p < n; ++p) weights.add(p, w[p]);
  in.each([&](index_t b, index_t p, index_t j) {
    const double s = static_cast<double>(in.scores(p, 0)), used = static_cast<double>(got.weights(p, 0));
    const double k = static_cast<double>(in.keys(p, j)), g = static_cast<double>(in.out_gradient(b, j));
    pooled.add(at(d, b, j), s * k);
    soft_pooled.add(at(d, b, j), used * k);
    to_keys.add(at(d, p, j), s * g);
    to_soft_keys.add(at(d, p, j), used * g);
    to_scores.add(static_cast<std::size_t>(p), g * k);
  });
  for (index_t b = 0; b < in.samples(); ++b) {
    double mean = 0, size = 0;
    for (index_t p = in.begin(b); p < in.end(b); ++p) {
      const double used = static_cast<double>(got.weights(p, 0));
      mean += used * to_scores.value[static_cast<std::size_t>(p)];
      size += used * to_scores.size[static_cast<std::size_t>(p)];
    }
    for (index_t p = in.begin(b); p < in.end(b); ++p) {
      const double used = static_cast<double>(got.weights(p, 0));
      const auto i = static_cast<std::size_t>(p);
      to_soft.value[i] = used * (to_scores.value[i] - mean);
      to_soft.size[i] = used * (to_scores.size[i] + size);
    }
  }
  check_close(got.weights, weights, in.longest() + 12);  // |s - max s| is below 12
  check_close(got.pooled, pooled, in.longest());
  check_close(got.soft_pooled, soft_pooled, in.longest());
  check_close(got.to_scores, to_scores, d);
  check_close(got.to_soft_scores, to_soft, d + in.longest());
  check_close(got.pool_to_keys, to_keys, 1);
  check_close(got.soft_to_keys, to_soft_keys, 1);
}

}  // namespace

TEST_CASE("attention: agrees with loops in double on every ISA, in any stride") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const std::vector<std::vector<index_t>> histories{{},          {0}, {1}, {0, 2, 0, 1, 0}, {3, 0, 0, 70, 1},
                                                    {1000, 0, 2}};
  for (const auto& lengths : histories) {
    for (const index_t width : {1, 3, 8, 16, 17, 40, 64, 67, 80}) {
      const problem in(lengths, width, random);
      for (const isa which : runnable_isas()) {
        CAPTURE(in.positions());
        CAPTURE(width);
        CAPTURE(to_string(which));
        results got(in);
        got.run(on(here, which), in);
        check_features(in, got);
        check_pool(in, got);
        for (const matrix* m : got.all()) CHECK(m->padding_untouched());
        for (index_t b = 0; b < in.samples(); ++b) {
          if (in.begin(b) != in.end(b)) continue;
          CHECK(got.to_query(b, 0) == 0);
          CHECK(got.pooled(b, width - 1) == 0);
          CHECK(got.soft_pooled(b, 0) == 0);
        }
      }
    }
  }
}

TEST_CASE("attention: gradients agree with central differences in double") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const problem in({2, 0, 5, 1}, 3, random);
  const index_t d = in.width;
  results got(in);
  got.run(here, in);
  doubles q = doubles_of(in.queries.view()), k = doubles_of(in.keys.view()), s = doubles_of(in.scores.view());
  const auto features = [&] {  // weighted by the gradient of the output
    double sum = 0;
    in.each([&](index_t b, index_t p, index_t j) {
      const double x = q[at(d, b, j)], y = k[at(d, p, j)], of[] = {x, y, x - y, x * y};
      for (index_t part = 0; part < 4; ++part)
        sum += static_cast<double>(in.features_gradient(p, part * d + j)) * of[part];
    });
    return sum;
  };
  CHECK(difference_error(got.to_query.view(), q, features) < small_difference);
  CHECK(difference_error(got.to_keys.view(), k, features) < small_difference);
  // The check can fail: without the part of the difference.
  matrix broken(got.to_keys);
  in.each([&](index_t, index_t p, index_t j) { broken(p, j) += in.features_gradient(p, 2 * d + j); });
  CHECK(difference_error(broken.view(), k, features) > small_difference);

  const auto pool_with = [&](const doubles& weights) {
    double sum = 0;
    in.each([&](index_t b, index_t p, index_t j) {
      sum +=
          static_cast<double>(in.out_gradient(b, j)) * weights[static_cast<std::size_t>(p)] * k[at(d, p, j)];
    });
    return sum;
  };
  const auto pool = [&] { return pool_with(s); };
  const auto soft_pool = [&] { return pool_with(softmax_of(in, s)); };
  CHECK(difference_error(got.to_scores.view(), s, pool) < small_difference);
  CHECK(difference_error(got.pool_to_keys.view(), k, pool) < small_difference);
  CHECK(difference_error(got.to_soft_scores.view(), s, soft_pool) < small_difference);
  CHECK(difference_error(got.soft_to_keys.view(), k, soft_pool) < small_difference);
  // The checks can fail: a softmax whose weights don't share a sum, and scores that were not normalised.
  matrix no_mean(in.positions(), 1);
  for (index_t p = 0; p < in.positions(); ++p) no_mean(p, 0) = got.weights(p, 0) * got.to_scores(p, 0);
  CHECK(difference_error(no_mean.view(), s, soft_pool) > small_difference);
  CHECK(difference_error(got.to_scores.view(), s, soft_pool) > small_difference);
}

TEST_CASE("attention: gradients of keys are added to what is there") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const problem in({2, 0, 37, 1}, 19, random);
  for (const isa which : runnable_isas()) {
    results fresh(in), added(in);
    fresh.run(on(here, which), in);
    for (matrix* m : {&added.to_keys, &added.pool_to_keys, &added.soft_to_keys}) {
      for (index_t p = 0; p < m->rows; ++p) {
        for (index_t j = 0; j < m->columns; ++j) (*m)(p, j) = 3;
      }
    }
    added.run(on(here, which), in, gradient_write::add);
    double worst = 0;
    in.each([&](index_t, index_t p, index_t j) {
      for (const auto& [a, b] :
           {std::pair{&added.to_keys, &fresh.to_keys}, std::pair{&added.pool_to_keys, &fresh.pool_to_keys},
            std::pair{&added.soft_to_keys, &fresh.soft_to_keys}}) {
        const double got = static_cast<double>((*a)(p, j)), one = static_cast<double>((*b)(p, j));
        worst = std::max(worst, std::fabs(got - one - 3) / (3 + std::fabs(one)));
      }
    });
    CHECK(worst <= 4 * u);
    CHECK(same_bits(added.to_query, fresh.to_query));
    CHECK(same_bits(added.to_scores, fresh.to_scores));
  }
}

TEST_CASE("attention: the softmax neither overflows nor needs memory of its own") {
  inline_executor here;
  const std::vector<std::int64_t> offsets{0, 3, 5};
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const isa which : runnable_isas()) {
    matrix scores(5, 1, 1), keys(5, 2), out(2, 2);
    const float given[] = {3e38F, -3e38F, 3e38F, -infinity, -200};
    for (index_t p = 0; p < 5; ++p)
      scores(p, 0) = given[p], keys(p, 0) = keys(p, 1) = static_cast<float>(p + 1);
    REQUIRE(attention_pool_forward(on(here, which), scores.view(), keys.view(), offsets, scores.view(),
                                   out.view())
                .ok());
    const float wanted[] = {0.5F, 0, 0.5F, 0, 1};
    for (index_t p = 0; p < 5; ++p) CHECK(scores(p, 0) == wanted[p]);
    CHECK(out(0, 0) == 2);
    CHECK(out(1, 1) == 5);
  }
}

TEST_CASE("attention: the same bits for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  std::vector<index_t> lengths;
  for (index_t b = 0; b < 400; ++b) lengths.push_back(b % 100 == 7 ? 1000 : b % 3 == 0 ? 0 : b % 23);
  const problem in(lengths, 20, random);
  inline_executor here;
  results expected(in);
  expected.run(here, in);
  kernel_tuning small_pieces = host_tuning();
  small_pieces.parked_ns = 0;
  small_pieces.piece_ns = 200;
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    context<scrambled_threads> ctx(crew);
    ctx.tuning = &small_pieces;
    results got(in);
    got.run(ctx, in);
    for (std::size_t i = 0; i < got.all().size(); ++i) CHECK(same_bits(*expected.all()[i], *got.all()[i]));
  }
}

TEST_CASE("attention: pieces of the work cover every sample once, whatever their bounds are") {
  const std::vector<std::int64_t> offsets{0, 0, 3, 3, 3, 10, 11, 11};
  const detail::history_ranges<std::int64_t> samples{offsets.data(), 7};
  REQUIRE(samples.units() == 18);
  for (index_t grain = 1; grain <= 18; ++grain) {
    index_t next = 0;
    for (index_t begin = 0; begin < 18; begin += grain) {
      CHECK(samples.first_from(begin) == next);
      next = samples.first_from(std::min<index_t>(18, begin + grain));
    }
    CHECK(next == 7);
  }
  const index_t wanted[] = {1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 5};
  for (index_t p = 0; p < 11; ++p) CHECK(samples.sample_of(p) == wanted[p]);
}

TEST_CASE("attention: wrong shapes and offsets are named, and nothing is written") {
  inline_executor here;
  std::mt19937_64 random(1);
  problem in({2, 0, 3}, 4, random);
  results got(in);
  const auto fails = [&](const status& s, errc code, const std::string& text) {
    CHECK(s.code() == code);
    CAPTURE(s.message());
    CHECK(s.message().find(text) != std::string::npos);
  };
  const matrix_view<const float> q = in.queries.view(), k = in.keys.view(), s = in.scores.view();
  const matrix_view<const float> g = in.out_gradient.view(), fg = in.features_gradient.view();
  const auto each_verb = [&](const std::vector<std::int32_t>& offsets, errc code, const std::string& text) {
    fails(attention_features_forward(here, q, k, offsets, got.features.view()), code, text);
    fails(attention_features_backward(here, q, k, offsets, fg, {got.to_query.view(), got.to_keys.view()}),
          code, text);
    fails(attention_pool_forward(here, s, k, offsets, got.pooled.view()), code, text);
    fails(attention_pool_forward(here, s, k, offsets, got.weights.view(), got.pooled.view()), code, text);
    fails(attention_pool_backward(here, s, k, offsets, g, {got.to_scores.view(), got.to_keys.view()}), code,
          text);
  };
  each_verb({-1, 2, 2, 5}, errc::offsets_negative, "bag 0, value -1");
  each_verb({1, 2, 2, 5}, errc::shape_mismatch, "offsets must begin with 0");
  each_verb({0, 3, 2, 5}, errc::offsets_decreasing, "bag 1, value 2");
  each_verb({0, 2, 2, 4}, errc::shape_mismatch,
            "the last of offsets must be keys.extent(0) (is 4, must be 5)");
  each_verb({0, 2, 2, 6}, errc::shape_mismatch, "the last of offsets must be keys.extent(0)");
  each_verb({0, 2, 5}, errc::shape_mismatch, "offsets must be (B+1)");
  each_verb({}, errc::shape_mismatch, "offsets must be (B+1)");

  matrix wrong(5, 3);
  const auto& offsets = in.offsets;
  fails(attention_features_forward(here, q, wrong.view(), offsets, got.features.view()), errc::shape_mismatch,
        "attention_features_forward: keys must be (N,D)");
  fails(attention_features_forward(here, q, k, offsets, wrong.view()), errc::shape_mismatch, "(N,4D)");
  fails(attention_features_backward(here, q, k, offsets, wrong.view(),
                                    {got.to_query.view(), got.to_keys.view()}),
        errc::shape_mismatch, "output_gradient must be (N,4D)");
  fails(attention_features_backward(here, q, k, offsets, fg, {wrong.view(), got.to_keys.view()}),
        errc::shape_mismatch, "gradients.queries must be (B,D)");
  fails(attention_features_backward(here, q, k, offsets, fg, {got.to_query.view(), wrong.view()}),
        errc::shape_mismatch, "gradients.keys must be (N,D)");
  fails(attention_pool_forward(here, wrong.view(), k, offsets, got.pooled.view()), errc::shape_mismatch,
        "scores must be (N,1)");
  fails(attention_pool_forward(here, s, k, offsets, wrong.view()), errc::shape_mismatch,
        "output must be (B,D)");
  fails(attention_pool_forward(here, s, k, offsets, wrong.view(), got.pooled.view()), errc::shape_mismatch,
        "weights must be (N,1)");
  fails(
      attention_pool_backward(here, wrong.view(), k, offsets, g, {got.to_scores.view(), got.to_keys.view()}),
      errc::shape_mismatch, "weights must be (N,1)");
  fails(
      attention_pool_backward(here, s, k, offsets, wrong.view(), {got.to_scores.view(), got.to_keys.view()}),
      errc::shape_mismatch, "output_gradient must be (B,D)");
  fails(attention_pool_backward(here, s, k, offsets, g, {wrong.view(), got.to_keys.view()}),
        errc::shape_mismatch, "gradients.scores must be (N,1)");
  fails(attention_pool_backward(here, s, k, offsets, g, {got.to_scores.view(), wrong.view()}),
        errc::shape_mismatch, "gradients.keys must be (N,D)");
  for (const matrix* m : got.all()) {
    for (const float x : m->storage) CHECK(x == matrix::sentinel);
  }
}

TEST_CASE("attention: the examples of its documentation") {
  thread_pool pool(2);
  //! [attention_features]
  const std::vector<float> candidates{1, 2, 3, 4}, history{5, 6, 7, 8, 9, 10};  // two samples, D = 2
  const std::vector<std::int64_t> offsets{0, 2, 3};
  const matrix_view<const float> queries(candidates.data(), 2, 2), keys(history.data(), 3, 2);
  std::vector<float> features(3 * 8);
  attention_features_forward(pool, queries, keys, offsets, matrix_view<float>(features.data(), 3, 8))
      .or_throw();  // the first row is 1 2 | 5 6 | -4 -4 | 5 12
  //! [attention_features]
  CHECK(std::vector<float>(features.begin(), features.begin() + 8) ==
        std::vector<float>{1, 2, 5, 6, -4, -4, 5, 12});
  //! [attention_pool]
  const std::vector<float> scores{1, 2, 3};  // of a multilayer perceptron over the features
  std::vector<float> interest(2 * 2);
  attention_pool_forward(pool, matrix_view<const float>(scores.data(), 3, 1), keys, offsets,
                         matrix_view<float>(interest.data(), 2, 2))
      .or_throw();  // 19 22 | 27 30
  //! [attention_pool]
  CHECK(interest == std::vector<float>{19, 22, 27, 30});
  //! [attention_pool_softmax]
  std::vector<float> weights(3);
  attention_pool_forward(pool, matrix_view<const float>(scores.data(), 3, 1), keys, offsets,
                         matrix_view<float>(weights.data(), 3, 1), matrix_view<float>(interest.data(), 2, 2))
      .or_throw();  // the weights of a sample have the sum 1
  //! [attention_pool_softmax]
  CHECK(weights[0] + weights[1] == doctest::Approx(1));
  CHECK(interest[2] == 9);
  const std::vector<float> ones(3 * 8, 1.0F);
  //! [attention_pool_backward]
  std::vector<float> of_scores(3), of_keys(3 * 2);
  attention_pool_backward(pool, matrix_view<const float>(scores.data(), 3, 1), keys, offsets,
                          matrix_view<const float>(ones.data(), 2, 2),
                          {.scores = matrix_view<float>(of_scores.data(), 3, 1),
                           .keys = matrix_view<float>(of_keys.data(), 3, 2)})
      .or_throw();  // of_scores: 11 15 19, of_keys: 1 1 | 2 2 | 3 3
  //! [attention_pool_backward]
  CHECK(of_scores == std::vector<float>{11, 15, 19});
  CHECK(of_keys == std::vector<float>{1, 1, 2, 2, 3, 3});
  //! [attention_features_backward]
  std::vector<float> of_queries(2 * 2);
  attention_features_backward(pool, queries, keys, offsets, matrix_view<const float>(ones.data(), 3, 8),
                              {.queries = matrix_view<float>(of_queries.data(), 2, 2),
                               .keys = matrix_view<float>(of_keys.data(), 3, 2)},
                              gradient_write::add)
      .or_throw();  // added to the gradient that attention_pool_backward wrote
  //! [attention_features_backward]
  CHECK(of_queries == std::vector<float>{16, 18, 11, 12});
  CHECK(of_keys == std::vector<float>{2, 3, 3, 4, 6, 7});
}
