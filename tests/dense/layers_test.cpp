#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/layers/relu.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "dense/differences.hpp"
#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

// What the heap gives to this thread is counted.
namespace {
thread_local std::size_t news_of_this_thread = 0;
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++news_of_this_thread;
  if (void* const p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++news_of_this_thread;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(unit, (bytes / unit + 1) * unit)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace {

/// Memory that counts, and poisons what it gets back, which nobody else gets before the end.
class poisoning_memory : public std::pmr::memory_resource {
 public:
  poisoning_memory() = default;
  poisoning_memory(const poisoning_memory&) = delete;
  poisoning_memory& operator=(const poisoning_memory&) = delete;
  ~poisoning_memory() override {
    for (const block& b : given_back_)
      std::pmr::new_delete_resource()->deallocate(b.data, b.bytes, b.alignment);
  }
  int count = 0;
  int live = 0;

 private:
  struct block {
    void* data;
    std::size_t bytes, alignment;
  };
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++count;
    ++live;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    --live;
    std::memset(p, 0xff, bytes);  // NaN
    given_back_.push_back({p, bytes, alignment});
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  std::vector<block> given_back_;
};

using doubles = std::vector<double>;

double at(const doubles& m, index_t columns, index_t i, index_t j) {
  return m[static_cast<std::size_t>(i * columns + j)];
}

// ---- the oracle: plain loops in double, row-major
// ------------------------------------------------

doubles oracle_linear(const doubles& x, index_t batch, const doubles& w, const doubles& b, index_t in,
                      index_t out) {
  doubles y;
  for (index_t i = 0; i < batch; ++i) {
    for (index_t o = 0; o < out; ++o) {
      double sum = b.empty() ? 0 : b[static_cast<std::size_t>(o)];
      for (index_t p = 0; p < in; ++p) sum += at(x, in, i, p) * at(w, in, o, p);
      y.push_back(sum);
    }
  }
  return y;
}

doubles oracle_relu(doubles x) {
  for (double& v : x) v = std::max(v, 0.0);
  return x;
}

doubles oracle_interaction(const doubles& dense, const doubles& pooled, index_t batch, index_t tables,
                           index_t width) {
  doubles out;
  for (index_t b = 0; b < batch; ++b) {
    const auto vector = [&](index_t f, index_t j) {
      return f == 0 ? at(dense, width, b, j) : at(pooled, tables * width, b, (f - 1) * width + j);
    };
    for (index_t j = 0; j < width; ++j) out.push_back(vector(0, j));
    for (index_t f = 1; f <= tables; ++f) {
      for (index_t g = 0; g < f; ++g) {
        double dot = 0;
        for (index_t j = 0; j < width; ++j) dot += vector(f, j) * vector(g, j);
        out.push_back(dot);
      }
    }
  }
  return out;
}

double oracle_loss(const doubles& logits, const doubles& labels) {
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double p = 1 / (1 + std::exp(-logits[i]));
    sum -= labels[i] * std::log(p) + (1 - labels[i]) * std::log(1 - p);
  }
  return sum / static_cast<double>(logits.size());
}

/// Weights and biases of a stack, in double.
struct oracle_mlp {
  std::vector<doubles> weights, biases;
  std::vector<index_t> sizes;
  mlp_output last;

  template <class Mlp>
  oracle_mlp(const Mlp& from, mlp_output how) : last(how) {
    for (int l = 0; l < from.layers(); ++l) {
      weights.push_back(doubles_of(from.weights(l)));
      biases.push_back(doubles_of(from.bias(l)));
    }
    for (int i = 0; i <= from.layers(); ++i) sizes.push_back(from.size(i));
  }
  doubles operator()(doubles x, index_t batch) const {
    for (std::size_t l = 0; l < weights.size(); ++l) {
      x = oracle_linear(x, batch, weights[l], biases[l], sizes[l], sizes[l + 1]);
      if (l + 1 < weights.size() || last == mlp_output::relu) x = oracle_relu(x);
    }
    return x;
  }
};

double weighted_sum(const doubles& y, const doubles& weights) {
  double sum = 0;
  for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
  return sum;
}

double distance(matrix_view<const float> got, const doubles& expected) {
  const doubles g = doubles_of(got);
  REQUIRE(g.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    worst = std::max(worst, std::abs(g[i] - expected[i]) / (1 + std::abs(expected[i])));
  }
  return worst;
}

// ---- a DLRM of toy size
// --------------------------------------------------------------------------

struct tower {
  static constexpr index_t batch = 6, inputs = 5, width = 4, tables = 3;
  matrix dense, pooled, labels, crossed, crossed_gradient, bottom_gradient, pooled_gradient, logit;
  mlp<> bottom{{inputs, 7, width}, mlp_output::relu, counter_rng(11)};
  mlp<> top{{dot_interaction_width(tables + 1, width), 8, 1}, mlp_output::linear, counter_rng(12)};
  double loss = 0;

  explicit tower(std::mt19937_64& random)
      : dense(batch, inputs),
        pooled(batch, tables * width),
        labels(batch, 1),
        crossed(batch, dot_interaction_width(tables + 1, width)),
        crossed_gradient(batch, crossed.columns),
        bottom_gradient(batch, width),
        pooled_gradient(batch, tables * width),
        logit(batch, 1) {
    dense.fill(random);
    pooled.fill(random);
    for (index_t i = 0; i < batch; ++i) labels(i, 0) = static_cast<float>(i % 2);
    for (int l = 0; l < 2; ++l) {  // biases away from zero
      for (mlp<>* stack : {&bottom, &top}) {
        for (index_t j = 0; j < stack->bias(l).extent(1); ++j) {
          stack->writable_bias(l)(0, j) = 0.1F * static_cast<float>(j % 3) + 0.05F;
        }
      }
    }
  }
  template <class Executor>
  void pass(Executor& executor) {
    bottom.forward(executor, dense.view()).or_throw();
    dot_interaction_forward(executor, bottom.output(), pooled.view(), crossed.view()).or_throw();
    top.forward(executor, crossed.view()).or_throw();
    logistic_loss_forward(executor, top.output(), labels.view(), loss).or_throw();
    logistic_loss_backward(executor, top.output(), labels.view(), logit.view()).or_throw();
    top.backward(executor, logit.view()).or_throw();
    dot_interaction_backward(executor, bottom.output(), pooled.view(), top.input_gradient(),
                             bottom_gradient.view(), pooled_gradient.view())
        .or_throw();
    bottom.backward(executor, bottom_gradient.view()).or_throw();
  }
};

}  // namespace

TEST_CASE("linear: forward and both gradients agree with the oracle") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t batch : {1, 2, 5}) {
    for (const index_t in : {1, 3, 9}) {
      for (const index_t out : {1, 4, 70}) {
        matrix x(batch, in, 2), w(out, in, 1), b(1, out), y(batch, out, 3), r(batch, out);
        matrix dw(out, in, 2), db(1, out), dx(batch, in, 1);
        for (matrix* m : {&x, &w, &b, &r}) m->fill(random);
        REQUIRE(linear_forward(here, x.view(), w.view(), b.view(), y.view()).ok());
        doubles xs = doubles_of(x.view()), ws = doubles_of(w.view()), bs = doubles_of(b.view());
        const doubles rs = doubles_of(r.view());
        CHECK(distance(y.view(), oracle_linear(xs, batch, ws, bs, in, out)) < 1e-5);
        REQUIRE(linear_backward(here, x.view(), r.view(), w.view(), dw.view(), db.view(), dx.view()).ok());
        const auto f = [&] { return weighted_sum(oracle_linear(xs, batch, ws, bs, in, out), rs); };
        CHECK(difference_error(dx.view(), xs, f) < small_difference);
        CHECK(difference_error(dw.view(), ws, f) < small_difference);
        CHECK(difference_error(db.view(), bs, f) < small_difference);
        for (const matrix* m : {&y, &dw, &dx}) CHECK(m->padding_untouched());
        // The check can fail: a bias gradient that forgot one row of a batch.
        if (batch > 1) {
          for (index_t j = 0; j < out; ++j) db(0, j) -= r(0, j);
          CHECK(difference_error(db.view(), bs, f) > small_difference);
        }
      }
    }
  }
}

TEST_CASE("linear: an empty bias counts as none, and gradients that nobody wants are left out") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(3, 4), w(2, 4), y(3, 2), dw(2, 4);
  x.fill(random);
  w.fill(random);
  REQUIRE(linear_forward(here, x.view(), w.view(), {}, y.view()).ok());
  CHECK(distance(y.view(), oracle_linear(doubles_of(x.view()), 3, doubles_of(w.view()), {}, 4, 2)) < 1e-5);
  CHECK(linear_backward(here, x.view(), y.view(), w.view(), dw.view(), {}, {}).ok());
}

TEST_CASE("linear: shapes that don't fit are named") {
  inline_executor here;
  matrix x(3, 4), w(2, 5), good(2, 4), b(1, 3), y(3, 2), wrong(3, 3);
  const auto says = [](const status& s, const char* what) {
    return s.code() == errc::shape_mismatch && s.message().find(what) != std::string::npos;
  };
  CHECK(says(linear_forward(here, x.view(), w.view(), {}, y.view()), "weights"));
  CHECK(says(linear_forward(here, x.view(), good.view(), b.view(), y.view()), "bias"));
  CHECK(says(linear_forward(here, x.view(), good.view(), {}, wrong.view()), "output"));
  CHECK(says(linear_backward(here, x.view(), wrong.view(), good.view(), {}, {}, {}), "output_gradient"));
  CHECK(says(linear_backward(here, x.view(), y.view(), good.view(), w.view(), {}, {}), "weight_gradient"));
  CHECK(says(linear_backward(here, x.view(), y.view(), good.view(), {}, b.view(), {}), "bias_gradient"));
  CHECK(says(linear_backward(here, x.view(), y.view(), good.view(), {}, {}, wrong.view()), "input_gradient"));
}

TEST_CASE("relu: negative values become zero, NaN stays, and the gradient passes where y > 0") {
  inline_executor here;
  matrix x(2, 3, 1), y(2, 3), dy(2, 3), dx(2, 3, 2);
  const float values[6] = {-1.5F, 0, 2, std::nanf(""), -0.0F, 1e-38F};
  for (int i = 0; i < 6; ++i) {
    x(i / 3, i % 3) = values[i];
    dy(i / 3, i % 3) = 5;
  }
  REQUIRE(relu_forward(here, x.view(), y.view()).ok());
  CHECK(y(0, 0) == 0);
  CHECK(y(0, 1) == 0);
  CHECK(y(0, 2) == 2);
  CHECK(std::isnan(y(1, 0)));
  CHECK(y(1, 1) == 0);
  CHECK(y(1, 2) == 1e-38F);
  REQUIRE(relu_backward(here, y.view(), dy.view(), dx.view()).ok());
  const float passed[6] = {0, 0, 5, 0, 0, 5};
  for (int i = 0; i < 6; ++i) CHECK(dx(i / 3, i % 3) == passed[i]);
  CHECK(dx.padding_untouched());
  REQUIRE(relu_forward(here, x.view(), x.view()).ok());  // in place
  CHECK(x(0, 0) == 0);
  CHECK(relu_forward(here, x.view(), y.view().rows(0, 1)).code() == errc::shape_mismatch);
}

TEST_CASE("dot interaction: forward and gradients agree with the oracle") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t batch : {1, 3}) {
    for (const index_t tables : {0, 1, 2, 5}) {
      for (const index_t width : {1, 3, 8, 17}) {
        const index_t wide = dot_interaction_width(tables + 1, width);
        matrix dense(batch, width, 1), pooled(batch, tables * width, 2), out(batch, wide, 1);
        matrix r(batch, wide), d_dense(batch, width), d_pooled(batch, tables * width, 3);
        for (matrix* m : {&dense, &pooled, &r}) m->fill(random);
        REQUIRE(dot_interaction_forward(here, dense.view(), pooled.view(), out.view()).ok());
        doubles ds = doubles_of(dense.view()), ps = doubles_of(pooled.view());
        const doubles rs = doubles_of(r.view());
        CHECK(distance(out.view(), oracle_interaction(ds, ps, batch, tables, width)) < 1e-5);
        REQUIRE(dot_interaction_backward(here, dense.view(), pooled.view(), r.view(), d_dense.view(),
                                         d_pooled.view())
                    .ok());
        const auto f = [&] { return weighted_sum(oracle_interaction(ds, ps, batch, tables, width), rs); };
        CHECK(difference_error(d_dense.view(), ds, f) < small_difference);
        CHECK(difference_error(d_pooled.view(), ps, f) < small_difference);
        CHECK(out.padding_untouched());
        CHECK(d_pooled.padding_untouched());
        // The check can fail: a gradient without the part that passes through.
        for (index_t j = 0; j < width; ++j) d_dense(0, j) -= r(0, j);
        CHECK(difference_error(d_dense.view(), ds, f) > small_difference);
      }
    }
  }
  matrix dense(2, 4), pooled(2, 9), out(2, 7);
  CHECK(dot_interaction_forward(here, dense.view(), pooled.view(), out.view()).code() ==
        errc::shape_mismatch);
}

TEST_CASE("logistic loss: agrees with the oracle, and its gradient with central differences") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix logits(40, 1), labels(40, 1), gradient(40, 1);
  logits.fill(random, 3);
  for (index_t i = 0; i < 40; ++i) labels(i, 0) = static_cast<float>(i % 3) / 2;
  double loss = 0;
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), loss).ok());
  doubles zs = doubles_of(logits.view());
  const doubles ys = doubles_of(labels.view());
  CHECK(loss == doctest::Approx(oracle_loss(zs, ys)).epsilon(1e-12));
  REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), gradient.view()).ok());
  CHECK(difference_error(gradient.view(), zs, [&] { return oracle_loss(zs, ys); }) < small_difference);
  gradient(7, 0) += 1e-3F;  // the check can fail
  CHECK(difference_error(gradient.view(), zs, [&] { return oracle_loss(zs, ys); }) > small_difference);
}

TEST_CASE("logistic loss: huge logits neither overflow nor lose their size") {
  inline_executor here;
  matrix logits(4, 1), labels(4, 1), gradient(4, 1);
  const float z[4] = {1e30F, -1e30F, 1e30F, -1e30F};
  const float y[4] = {1, 0, 0, 1};
  for (index_t i = 0; i < 4; ++i) {
    logits(i, 0) = z[i];
    labels(i, 0) = y[i];
  }
  double loss = 0;
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), loss).ok());
  CHECK(loss == doctest::Approx(0.5e30).epsilon(1e-6));
  REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), gradient.view()).ok());
  CHECK(gradient(0, 0) == 0);
  CHECK(gradient(1, 0) == 0);
  CHECK(gradient(2, 0) == 0.25F);
  CHECK(gradient(3, 0) == -0.25F);
  CHECK(logistic_loss_forward(here, logits.view(), labels.view().rows(0, 3), loss).code() ==
        errc::shape_mismatch);
  for (index_t i = 0; i < 2; ++i) logits(i, 0) *= std::numeric_limits<float>::infinity();
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), loss).ok());
  CHECK(loss == doctest::Approx(0.5e30).epsilon(1e-6));
  logits(2, 0) *= std::numeric_limits<float>::infinity();
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), loss).ok());
  CHECK(loss == std::numeric_limits<double>::infinity());
}

TEST_CASE("logistic loss with weights: agrees with the oracle, and its gradient with central differences") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t rows : {index_t{1}, index_t{40}, index_t{1000}}) {
    matrix logits(rows, 1), labels(rows, 1), weights(rows, 1), gradient(rows, 1), plain(rows, 1);
    logits.fill(random, 3);
    std::uniform_real_distribution<float> some(0, 5);
    for (index_t i = 0; i < rows; ++i) {
      labels(i, 0) = static_cast<float>(i % 3) / 2;
      weights(i, 0) = i % 4 == 1 ? 0.0F : some(random);
    }
    double loss = 0;
    REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), weights.view(), loss).ok());
    doubles zs = doubles_of(logits.view());
    const doubles ys = doubles_of(labels.view()), ws = doubles_of(weights.view());
    const auto oracle = [&] {  // one row after the other, by the oracle of a batch of one
      double sum = 0;
      for (std::size_t i = 0; i < zs.size(); ++i) sum += ws[i] * oracle_loss({zs[i]}, {ys[i]});
      return sum / static_cast<double>(zs.size());
    };
    CHECK(loss == doctest::Approx(oracle()).epsilon(1e-12));
    REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), weights.view(), gradient.view()).ok());
    CHECK(difference_error(gradient.view(), zs, oracle) < small_difference);
    gradient(0, 0) += 1e-2F;  // the check can fail
    CHECK(difference_error(gradient.view(), zs, oracle) > small_difference);

    // Weights of 1 are no weights, and the divisor is the number of rows.
    double unweighted = 0;
    for (index_t i = 0; i < rows; ++i) weights(i, 0) = 1;
    REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), weights.view(), loss).ok());
    REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), unweighted).ok());
    CHECK(loss == unweighted);
    REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), weights.view(), gradient.view()).ok());
    REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), plain.view()).ok());
    CHECK(std::memcmp(&gradient(0, 0), &plain(0, 0), static_cast<std::size_t>(rows) * sizeof(float)) == 0);
  }
}

TEST_CASE("logistic loss with weights: a weight of 0 leaves a row out; shapes that don't fit are refused") {
  inline_executor here;
  matrix logits(3, 1), labels(3, 1), weights(3, 1), gradient(3, 1);
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  for (index_t i = 0; i < 3; ++i) {
    logits(i, 0) = i == 1 ? not_a_number : 0.0F;
    labels(i, 0) = 1;
    weights(i, 0) = i == 1 ? 0.0F : 2.0F;
  }
  double loss = 0;
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), weights.view(), loss).ok());
  CHECK(loss == doctest::Approx(4 * std::log(2.0) / 3).epsilon(1e-12));
  REQUIRE(logistic_loss_backward(here, logits.view(), labels.view(), weights.view(), gradient.view()).ok());
  CHECK(gradient(1, 0) == 0);
  CHECK(gradient(2, 0) == doctest::Approx(-1.0 / 3));
  for (index_t i = 0; i < 3; ++i) weights(i, 0) = 0;
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), weights.view(), loss).ok());
  CHECK(loss == 0);

  loss = 7;
  gradient(0, 0) = 7;
  const matrix_view<const float> none, wide(weights.view().data_handle(), 1, 3);
  for (const auto& wrong : {matrix_view<const float>(weights.view().rows(0, 2)), none, wide}) {
    for (const status& s :
         {logistic_loss_forward(here, logits.view(), labels.view(), wrong, loss),
          logistic_loss_backward(here, logits.view(), labels.view(), wrong, gradient.view())}) {
      CHECK(s.code() == errc::shape_mismatch);
      CHECK(s.message().find("weights must be (B,1)") != std::string::npos);
    }
  }
  CHECK(loss == 7);
  CHECK(gradient(0, 0) == 7);
}

TEST_CASE("mlp and interaction: every gradient of a whole DLRM agrees with central differences") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  tower t(random);
  t.pass(here);
  oracle_mlp bottom(t.bottom, mlp_output::relu);
  oracle_mlp top(t.top, mlp_output::linear);
  doubles dense = doubles_of(t.dense.view());
  doubles pooled = doubles_of(t.pooled.view());
  const doubles labels = doubles_of(t.labels.view());
  const auto loss = [&] {
    const doubles v0 = bottom(dense, tower::batch);
    const doubles crossed = oracle_interaction(v0, pooled, tower::batch, tower::tables, tower::width);
    return oracle_loss(top(crossed, tower::batch), labels);
  };
  CHECK(t.loss == doctest::Approx(loss()).epsilon(1e-6));
  for (std::size_t l = 0; l < 2; ++l) {
    const int layer = static_cast<int>(l);
    CHECK(difference_error(t.bottom.weight_gradient(layer), bottom.weights[l], loss) < small_difference);
    CHECK(difference_error(t.bottom.bias_gradient(layer), bottom.biases[l], loss) < small_difference);
    CHECK(difference_error(t.top.weight_gradient(layer), top.weights[l], loss) < small_difference);
    CHECK(difference_error(t.top.bias_gradient(layer), top.biases[l], loss) < small_difference);
  }
  CHECK(difference_error(t.pooled_gradient.view(), pooled, loss) < small_difference);
  CHECK(difference_error(t.bottom.input_gradient(), dense, loss) < small_difference);
}

TEST_CASE("mlp: training gives the same bits on 1, 2, 3 and 8 threads") {
  const auto train = [](auto& executor) {
    std::mt19937_64 random(deeprec_test::seed());
    mlp<> stack({37, 130, 65, 1}, mlp_output::linear, counter_rng(5));
    matrix x(300, 37), labels(300, 1), gradient(300, 1);
    x.fill(random);
    for (index_t i = 0; i < 300; ++i) labels(i, 0) = x(i, 0) + x(i, 1) * x(i, 2) > 0 ? 1 : 0;
    double loss = 0;
    for (int step = 0; step < 5; ++step) {
      const index_t rows = step == 3 ? 77 : 300;  // a shorter batch in between
      stack.forward(executor, x.view().rows(0, rows)).or_throw();
      logistic_loss_forward(executor, stack.output(), labels.view().rows(0, rows), loss).or_throw();
      logistic_loss_backward(executor, stack.output(), labels.view().rows(0, rows),
                             gradient.view().rows(0, rows))
          .or_throw();
      stack.backward(executor, gradient.view().rows(0, rows)).or_throw();
      stack.step(executor, adagrad{.learning_rate = 0.05F}).or_throw();
    }
    matrix weights(1, stack.parameters().extent(1) + 1);
    for (index_t i = 0; i + 1 < weights.columns; ++i) weights(0, i) = stack.parameters()(0, i);
    weights(0, weights.columns - 1) = static_cast<float>(loss);
    return weights;
  };
  inline_executor here;
  const matrix expected = train(here);
  CHECK(expected(0, expected.columns - 1) < 0.69F);  // and it learns
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    thread_pool pool({.threads = threads});
    CAPTURE(threads);
    CHECK(same_bits(expected, train(crew)));
    CHECK(same_bits(expected, train(pool)));
  }
}

TEST_CASE("interaction and loss: the same bits on 1, 2, 3 and 8 threads") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix dense(700, 16), pooled(700, 26 * 16), out(700, dot_interaction_width(27, 16));
  matrix d_dense(700, 16), d_pooled(700, 26 * 16);
  dense.fill(random);
  pooled.fill(random);
  inline_executor here;
  REQUIRE(dot_interaction_forward(here, dense.view(), pooled.view(), out.view()).ok());
  REQUIRE(
      dot_interaction_backward(here, dense.view(), pooled.view(), out.view(), d_dense.view(), d_pooled.view())
          .ok());
  matrix logits(100000, 1), labels(100000, 1);
  logits.fill(random, 3);
  for (index_t i = 0; i < labels.rows; ++i) labels(i, 0) = static_cast<float>(i % 2);
  double loss = 0;
  REQUIRE(logistic_loss_forward(here, logits.view(), labels.view(), loss).ok());
  bool order_shows = false;
  for (const int threads : thread_counts) {
    scrambled_threads crew(threads);
    matrix out2(700, out.columns), d_dense2(700, 16), d_pooled2(700, 26 * 16);
    REQUIRE(dot_interaction_forward(crew, dense.view(), pooled.view(), out2.view()).ok());
    REQUIRE(dot_interaction_backward(crew, dense.view(), pooled.view(), out.view(), d_dense2.view(),
                                     d_pooled2.view())
                .ok());
    CHECK(same_bits(out, out2));
    CHECK(same_bits(d_dense, d_dense2));
    CHECK(same_bits(d_pooled, d_pooled2));
    double again = 0;
    REQUIRE(logistic_loss_forward(crew, logits.view(), labels.view(), again).ok());
    CHECK(loss == again);
    // A sum per thread, which the library doesn't do, gives other bits.
    double naive = 0;
    for (int t = 0; t < threads; ++t) {
      double part = 0;
      for (index_t i = t; i < logits.rows; i += threads) {
        part += detail::logistic_loss_of(static_cast<double>(logits(i, 0)), labels(i, 0));
      }
      naive += part;
    }
    if (threads > 1 && naive / static_cast<double>(logits.rows) != loss) order_shows = true;
  }
  CHECK(order_shows);
}

TEST_CASE("mlp: a step is the optimizer's arithmetic on every row") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(4, 3), g(4, 2);
  x.fill(random);
  g.fill(random);
  const auto stepped = [&](const auto& optimizer, int steps) {
    mlp<> stack({3, 5, 2}, mlp_output::linear, counter_rng(3), weight_init::glorot);
    for (int s = 0; s < steps; ++s) {
      stack.forward(here, x.view()).or_throw();
      stack.backward(here, g.view(), compute_input_gradient::no).or_throw();
      stack.step(here, optimizer).or_throw();
    }
    return doubles_of(stack.parameters());
  };
  // By hand, from the gradients of the first pass.
  mlp<> stack({3, 5, 2}, mlp_output::linear, counter_rng(3), weight_init::glorot);
  stack.forward(here, x.view()).or_throw();
  stack.backward(here, g.view(), compute_input_gradient::no).or_throw();
  doubles by_sgd, by_adagrad, by_rowwise;
  for (int l = 0; l < 2; ++l) {
    for (const bool is_bias : {false, true}) {
      const auto w = is_bias ? stack.bias(l) : stack.weights(l);
      const auto d = is_bias ? stack.bias_gradient(l) : stack.weight_gradient(l);
      for (index_t i = 0; i < w.extent(0); ++i) {
        double mean = 0;
        for (index_t j = 0; j < w.extent(1); ++j) {
          mean += static_cast<double>(d(i, j)) * static_cast<double>(d(i, j));
        }
        mean /= static_cast<double>(w.extent(1));
        for (index_t j = 0; j < w.extent(1); ++j) {
          const double weight = w(i, j), slope = d(i, j);
          by_sgd.push_back(weight - 0.5 * slope);
          by_adagrad.push_back(weight - 0.5 * slope / (std::abs(slope) + 1e-8));
          by_rowwise.push_back(weight - 0.5 * slope / (std::sqrt(mean) + 1e-8));
        }
      }
    }
  }
  const auto far = [](const doubles& a, const doubles& b) {
    double worst = 0;
    for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
    return worst;
  };
  CHECK(far(stepped(sgd{.learning_rate = 0.5F}, 1), by_sgd) < 1e-6);
  CHECK(far(stepped(adagrad{.learning_rate = 0.5F}, 1), by_adagrad) < 1e-5);
  CHECK(far(stepped(rowwise_adagrad{.learning_rate = 0.5F}, 1), by_rowwise) < 1e-5);
  CHECK(far(stepped(adagrad{.learning_rate = 0.5F}, 2), by_adagrad) > 1e-3);
}

TEST_CASE("mlp: the first weights have the spread of their initialisation, and repeat") {
  mlp<> he({400, 300}, mlp_output::linear, counter_rng(1), weight_init::he);
  mlp<> glorot({400, 300}, mlp_output::linear, counter_rng(1), weight_init::glorot);
  const auto variance = [](const doubles& w) {
    double sum = 0;
    for (const double v : w) sum += v * v;
    return sum / static_cast<double>(w.size());
  };
  CHECK(variance(doubles_of(he.weights(0))) == doctest::Approx(2.0 / 400).epsilon(0.02));
  CHECK(variance(doubles_of(glorot.weights(0))) == doctest::Approx(2.0 / 700).epsilon(0.02));
  mlp<> again({400, 300}, mlp_output::linear, counter_rng(1), weight_init::he);
  mlp<> other({400, 300}, mlp_output::linear, counter_rng(2), weight_init::he);
  CHECK(same_bits(he.weights(0), again.weights(0)));
  CHECK_FALSE(same_bits(he.weights(0), other.weights(0)));
}

TEST_CASE("mlp: sizes alone are a stack of linear output, with the weights of a seed") {
  const mlp<> least({4, 3, 2}), seeded({4, 3, 2}, 7);
  for (const auto& [got, seed] : {std::pair(&least, 0), std::pair(&seeded, 7)}) {
    const mlp<> expected({4, 3, 2}, mlp_output::linear, counter_rng(static_cast<std::uint64_t>(seed)));
    CHECK(same_bits(got->parameters(), expected.parameters()));
  }
  CHECK_FALSE(same_bits(least.parameters(), seeded.parameters()));
}

TEST_CASE("mlp: passes on several threads have the bits of the stack's own, and other stacks' are refused") {
  for (const gemm_storage hidden : {gemm_storage::f32, gemm_storage::bf16}) {
    mlp<> stack({7, 6, 3}, mlp_output::relu, counter_rng(5), weight_init::he, 0,
                std::pmr::get_default_resource(), {.hidden = hidden});
    std::vector<float> x(13 * 7), g(13 * 3);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) / 8 - 0.5F;
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i % 5) / 4 - 0.5F;
    const matrix_view<const float> input(x.data(), 13, 7), gradient(g.data(), 13, 3);
    inline_executor here;
    REQUIRE(stack.forward(here, input).ok());
    REQUIRE(stack.backward(here, gradient).ok());
    const auto values = [](const auto& view) {
      std::vector<float> all;
      for (index_t i = 0; i < view.extent(0); ++i)
        all.insert(all.end(), view.row(i), view.row(i) + view.extent(1));
      return all;
    };
    const std::vector<float> output = values(stack.output()), of_weights = values(stack.gradients()),
                             of_input = values(stack.input_gradient());
    const mlp<>& shared = stack;
    std::atomic<int> faults{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        inline_executor mine;
        mlp_pass pass = shared.make_pass();
        for (int again = 0; again < 20; ++again) {
          const bool ok =
              shared.forward(mine, pass, input).ok() && shared.backward(mine, pass, gradient).ok();
          if (!ok || values(pass.output()) != output || values(pass.gradients()) != of_weights ||
              values(pass.input_gradient()) != of_input) {
            ++faults;
          }
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(faults == 0);
    mlp_pass moved = shared.make_pass();
    REQUIRE(moved.reserve(13).ok());
    mlp_pass taken = std::move(moved);
    CHECK(shared.forward(here, taken, input).ok());
    CHECK(values(taken.output()) == output);

    const mlp<> other({7, 5, 3});
    mlp_pass foreign = other.make_pass();
    CHECK(shared.forward(here, foreign, input).code() == errc::shape_mismatch);
    CHECK(shared.backward(here, foreign, gradient).code() == errc::shape_mismatch);
    const mlp<> same_sizes({7, 6, 3});
    mlp_pass of_f32 = same_sizes.make_pass();
    CHECK(shared.forward(here, of_f32, input).ok() == (hidden == gemm_storage::f32));
  }
}

TEST_CASE("mlp: wrong shapes and a change of optimizer are statuses") {
  inline_executor here;
  mlp<> stack({3, 2}, mlp_output::linear, counter_rng(3));
  matrix x(4, 3), wrong(4, 5);
  x.copy(matrix(4, 3));
  CHECK(stack.forward(here, wrong.view()).code() == errc::shape_mismatch);
  REQUIRE(stack.forward(here, x.view()).ok());
  CHECK(stack.backward(here, wrong.view()).code() == errc::shape_mismatch);
  REQUIRE(stack.backward(here, stack.output()).ok());
  REQUIRE(stack.step(here, sgd{}).ok());
  CHECK(stack.step(here, adagrad{}).code() == errc::unsupported);
  stack.reset_state();
  CHECK(stack.step(here, adagrad{}).ok());
}

TEST_CASE(
    "mlp: a stack that was moved, into its own memory or into another's, goes on as the one that it was") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(8, 20), dy(8, 4);
  x.fill(random);
  dy.fill(random);
  poisoning_memory one, two;
  for (const weight_reuse reuse : {weight_reuse::few, weight_reuse::many}) {
    const auto make = [&](std::uint64_t seed, std::pmr::memory_resource* memory) {
      return mlp<>({20, 12, 4}, mlp_output::linear, counter_rng(seed), weight_init::he, 0, memory,
                   {.math = gemm_math::forced_bf16, .weights = reuse});
    };
    const auto train = [&](mlp<>& stack, int steps) {
      for (int s = 0; s < steps; ++s) {
        stack.forward(here, x.view()).or_throw();
        stack.backward(here, dy.view()).or_throw();
        stack.step(here, adagrad{.learning_rate = 0.1F}).or_throw();
      }
      stack.forward(here, x.view()).or_throw();
    };
    mlp<> expected = make(2, &one);
    train(expected, 4);
    for (std::pmr::memory_resource* const memory :
         {static_cast<std::pmr::memory_resource*>(&one), static_cast<std::pmr::memory_resource*>(&two)}) {
      mlp<> moved = make(1, memory);
      train(moved, 1);
      {
        mlp<> source = make(2, &one);
        train(source, 2);
        moved = std::move(source);
      }
      train(moved, 2);
      CHECK(same_bits(moved.output(), expected.output()));
      mlp<> again(std::move(moved));
      train(again, 0);
      CHECK(same_bits(again.output(), expected.output()));
      CHECK(same_bits(again.weights(0), expected.weights(0)));
    }
  }
  CHECK(one.live == 0);
  CHECK(two.live == 0);
}

TEST_CASE("mlp: sizes that no memory holds are refused") {
  inline_executor here;
  mlp<> stack({3, 5, 2}, mlp_output::linear, counter_rng(3));
  float one = 1;
  for (const index_t rows : {index_t{1} << 60, index_t{1} << 61, index_t{1} << 62}) {
    CHECK_FALSE(stack.forward(here, matrix_view<const float>(&one, rows, 3)).ok());
  }
#if DEEPREC_EXCEPTIONS
  const index_t half = index_t{1} << 32;  // half * half is 0, modulo 2^64
  CHECK_THROWS(mlp<>({half - 1, half}, mlp_output::linear, counter_rng(3)));
  CHECK_THROWS(mlp<>({3, (std::numeric_limits<index_t>::max)()}, mlp_output::linear, counter_rng(3)));
#endif
}

TEST_CASE("mlp: after the first step nothing is allocated, but scratch from the context's resource") {
  poisoning_memory memory, unused;
  std::vector<std::byte> room(1U << 20);
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  mlp<gemm_backends<thin_gemm, eigen_gemm>> stack({3, 8, 2, 1}, mlp_output::linear, counter_rng(3),
                                                  weight_init::he, 0, &memory);
  matrix x(9, 3), g(9, 1);
  x.fill(random);
  g.fill(random);
  int after_first = 0;
  for (int step = 0; step < 4; ++step) {
    const index_t rows = 9 - step;
    std::pmr::monotonic_buffer_resource scratch(room.data(), room.size(), &unused);
    context ctx{here};
    ctx.memory = &scratch;
    const auto before = news_of_this_thread;
    const bool done = stack.forward(ctx, x.view().rows(0, rows)).ok() &&
                      stack.backward(ctx, g.view().rows(0, rows)).ok() && stack.step(ctx, adagrad{}).ok();
    const auto news = news_of_this_thread - before;
    REQUIRE(done);
    if (step == 0) {
      after_first = memory.count;
      CHECK(news > 0);  // or the count sees nothing
    } else {
      CHECK(news == 0);
    }
  }
  CHECK(memory.count == after_first);
  CHECK(unused.count == 0);
}

TEST_CASE("mlp: bf16 trains close to f32, with the last layer in f32 and with bf16 activations too") {
  std::mt19937_64 random(20240229);  // always this one: with others a unit close to 0 falls to its other side
  scrambled_threads crew(3);
  inline_executor here;
  matrix x(40, 13), dy(40, 1);
  x.fill(random);
  dy.fill(random, 0.1F);
  const auto make = [](mlp_precision how) {
    return mlp<>({13, 32, 16, 1}, mlp_output::linear, counter_rng(3), weight_init::he, 0,
                 std::pmr::get_default_resource(), how);
  };
  mlp<> exact = make({});
  REQUIRE(exact.forward(here, x.view()).ok());
  REQUIRE(exact.backward(here, dy.view()).ok());
  for (const mlp_precision::last_layer last :
       {mlp_precision::last_layer::as_the_rest, mlp_precision::last_layer::f32}) {
    for (const gemm_storage hidden : {gemm_storage::f32, gemm_storage::bf16}) {
      for (const weight_reuse reuse : {weight_reuse::few, weight_reuse::many}) {
        const mlp_precision how{
            .math = gemm_math::forced_bf16, .last = last, .hidden = hidden, .weights = reuse};
        mlp<> rounded = make(how);
        REQUIRE(rounded.forward(here, x.view()).ok());
        REQUIRE(rounded.backward(here, dy.view()).ok());
        CHECK(distance(rounded.output(), doubles_of(exact.output())) < 0.03);
        CHECK(distance(rounded.output(), doubles_of(exact.output())) > 0);  // or nothing was rounded
        CHECK(distance(rounded.weight_gradient(0), doubles_of(exact.weight_gradient(0))) < 0.05);
        CHECK(distance(rounded.input_gradient(), doubles_of(exact.input_gradient())) < 0.05);
        mlp<> again = make(how);
        REQUIRE(again.forward(crew, x.view()).ok());
        REQUIRE(again.backward(crew, dy.view()).ok());
        CHECK(same_bits(again.output(), rounded.output()));
        CHECK(same_bits(again.weight_gradient(1), rounded.weight_gradient(1)));
      }
    }
  }
}

TEST_CASE("mlp: to read weights keeps their casts; a writable view gives them up until weights_settled()") {
  struct counting : std::pmr::memory_resource {
    int allocations = 0;
    void* do_allocate(std::size_t n, std::size_t a) override {
      ++allocations;
      return std::pmr::new_delete_resource()->allocate(n, a);
    }
    void do_deallocate(void* p, std::size_t n, std::size_t a) override {
      std::pmr::new_delete_resource()->deallocate(p, n, a);
    }
    bool do_is_equal(const memory_resource& o) const noexcept override { return this == &o; }
  } memory;
  inline_executor here;
  matrix x(8, 20);
  x.copy(matrix(8, 20));
  mlp<> stack({20, 12, 4}, mlp_output::linear, counter_rng(3), weight_init::he, 0, &memory,
              {.math = gemm_math::forced_bf16, .weights = weight_reuse::many});
  const auto casts = [&] {
    const int before = memory.allocations;
    REQUIRE(stack.forward(here, x.view()).ok());
    return memory.allocations - before;
  };
  CHECK(casts() > 0);
  CHECK(casts() == 0);
  CHECK(
      std::isfinite(stack.weights(0)(0, 0) + stack.bias(1)(0, 0) + std::as_const(stack).parameters()(0, 0)));
  CHECK(casts() == 0);
  static_cast<void>(stack.writable_bias(0));
  CHECK(casts() > 0);
  CHECK(casts() > 0);
  stack.weights_settled();
  CHECK(casts() > 0);
  CHECK(casts() == 0);
}

TEST_CASE("hazard H21: a stack's products follow steps and writes through its views") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(8, 20), dy(8, 4);
  x.fill(random);
  dy.fill(random);
  const mlp_precision how{.math = gemm_math::forced_bf16, .weights = weight_reuse::many};
  const auto make = [&] {
    return mlp<>({20, 12, 4}, mlp_output::linear, counter_rng(3), weight_init::he, 0,
                 std::pmr::get_default_resource(), how);
  };
  mlp<> stack = make();
  const auto follows = [&] {  // a new stack with the same weights has cast nothing yet
    mlp<> fresh = make();
    const auto parameters = std::as_const(stack).parameters();
    std::copy_n(parameters.data_handle(), parameters.extent(1), fresh.parameters().data_handle());
    REQUIRE(fresh.forward(here, x.view()).ok());
    REQUIRE(stack.forward(here, x.view()).ok());
    return same_bits(stack.output(), fresh.output());
  };
  REQUIRE(stack.forward(here, x.view()).ok());
  REQUIRE(stack.backward(here, dy.view()).ok());
  REQUIRE(stack.step(here, sgd{.learning_rate = 0.1F}).ok());
  mlp<> before = make();
  REQUIRE(before.forward(here, x.view()).ok());
  REQUIRE(stack.forward(here, x.view()).ok());
  CHECK_FALSE(same_bits(stack.output(), before.output()));
  const matrix_view<float> kept = stack.writable_weights(0);
  CHECK(follows());
  kept(1, 1) += 1;  // long after the view was handed out
  CHECK(follows());
  stack.weights_settled();
  CHECK(follows());
}
