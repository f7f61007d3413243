// Faults of dense/ that a review found: products, stacks of layers, and what they ask of oneDNN.
#include <doctest/doctest.h>

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

#include <deeprec/core/isa.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/children.hpp"
#include "support/needs.hpp"
#include "support/seed.hpp"

using namespace deeprec;

namespace {

#if defined(DEEPREC_WITH_ONEDNN)
using onednn_first = gemm_backends<onednn_gemm, eigen_gemm>;

/// Weights that serve one batch after the other.
struct served_weights {
  index_t n, k;
  std::vector<float> x, w, y;
  gemm_weights weights;

  served_weights(index_t n_, index_t k_)
      : n(n_),
        k(k_),
        x(static_cast<std::size_t>(64 * k_)),
        w(static_cast<std::size_t>(n_ * k_)),
        y(static_cast<std::size_t>(64 * n_)),
        weights(matrix_view<const float>(w.data(), n_, k_), weight_reuse::many) {
    std::mt19937_64 random(deeprec_test::seed());
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (float& v : w) v = normal(random);
  }
  /// The product of m rows is within the documented bound.
  bool right(index_t m) {
    std::fill(y.begin(), y.end(), -7.0F);
    inline_executor here;
    if (!gemm<onednn_first>(here, {.b = gemm_operand::transposed}, matrix_view<const float>(x.data(), m, k),
                            weights, matrix_view<float>(y.data(), m, n))
             .ok()) {
      return false;
    }
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (index_t p = 0; p < k; ++p) {
          const double t = static_cast<double>(x[static_cast<std::size_t>(i * k + p)]) *
                           static_cast<double>(w[static_cast<std::size_t>(j * k + p)]);
          sum += t;
          size += std::abs(t);
        }
        const double off = std::abs(static_cast<double>(y[static_cast<std::size_t>(i * n + j)]) - sum);
        if (!(off <= (static_cast<double>(k) + 3) * 0x1p-24 * size)) return false;
      }
    }
    return true;
  }
};
#endif

}  // namespace

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("r01: weights packed for one batch size serve every other one") {
  struct order {
    index_t n, k, first, second;
  };
  for (const order o : {order{2048, 64, 64, 1}, order{1024, 1024, 64, 1}, order{1024, 1024, 1, 64}}) {
    CAPTURE(o.n);
    CAPTURE(o.first);
    CHECK(deeprec_test::in_child([&] {
            served_weights served(o.n, o.k);
            if (!served.right(o.first)) return 1;
            if (!served.right(o.second)) return 2;
            // With instructions below AVX2, oneDNN multiplies b as it is.
            const std::uint64_t forms = served.weights.forms_made();
            return forms == 1 || (forms == 0 && active_isa() < isa::avx2) ? 0 : 3;
          }) == 0);
  }
}

#  if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
TEST_CASE(
    "r02: oneDNN's scratch and code are planned for one thread, whatever OpenMP's number of threads is") {
  const gemm_backend::problem asked[] = {
      {.m = 256,
       .n = 512,
       .k = 2048,
       .a_stride = 1024,
       .b_stride = 512,
       .c_stride = 512,
       .a = gemm_operand::transposed},
      {.m = 256,
       .n = 1024,
       .k = 479,
       .a_stride = 479,
       .b_stride = 479,
       .c_stride = 1024,
       .b = gemm_operand::transposed},
      {.m = 256, .n = 479, .k = 1024, .a_stride = 1024, .b_stride = 479, .c_stride = 479},
      {.m = 16,
       .n = 256,
       .k = 512,
       .a_stride = 512,
       .b_stride = 512,
       .c_stride = 256,
       .b = gemm_operand::transposed}};
  struct facts {
    std::size_t scratch;
    char implementation[32];
  };
  const auto shared = static_cast<facts*>(
      mmap(nullptr, 3 * 4 * sizeof(facts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(shared != MAP_FAILED);
  const int threads[] = {1, 8, 64};
  for (std::size_t t = 0; t < 3; ++t) {
    REQUIRE(deeprec_test::in_child([&] {
              omp_set_num_threads(threads[t]);
              for (std::size_t i = 0; i < 4; ++i) {
                const gemm_backend::plan plan = onednn_gemm::plan(asked[i]);
                shared[4 * t + i].scratch = plan.scratch_bytes;
                std::strncpy(shared[4 * t + i].implementation, plan.implementation, 31);
              }
              return 0;
            }) == 0);
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(threads[t]);
      CAPTURE(i);
      CHECK(shared[4 * t + i].scratch == shared[i].scratch);
      CHECK(std::string(shared[4 * t + i].implementation) == shared[i].implementation);
    }
  }
  munmap(shared, 3 * 4 * sizeof(facts));
}

TEST_CASE("r03: products by packed weights with a padded K start no OpenMP thread") {
  for (const index_t k : {480, 479}) {
    CAPTURE(k);
    CHECK(deeprec_test::in_child([&] {
            omp_set_num_threads(8);
            served_weights served(1024, k);
            const int before = deeprec_test::threads_of_this_process();
            const bool right = served.right(64);
            return right && deeprec_test::threads_of_this_process() == before ? 0 : 1;
          }) == 0);
  }
}
#  endif

TEST_CASE("r10: after warm-up, 64 new batch sizes in training make few primitives, and rows at the end 15") {
  constexpr index_t in = 64, out = 48, most = 256;
  const auto ones = [](index_t count) { return std::vector<float>(static_cast<std::size_t>(count), 1.0F); };
  std::vector<float> x = ones(most * in), dy = ones(most * out), w = ones(out * in), dw = ones(out * in),
                     db = ones(out), dx = ones(most * in), y = ones(most * out);
  const gemm_weights weights(matrix_view<const float>(w.data(), out, in), weight_reuse::few);
  const gemm_weights serving(matrix_view<const float>(w.data(), out, in), weight_reuse::many);
  inline_executor here;
  const auto backward = [&](index_t m) {
    REQUIRE(linear_backward(here, matrix_view<const float>(x.data(), m, in),
                            matrix_view<const float>(dy.data(), m, out), weights,
                            matrix_view<float>(dw.data(), out, in), matrix_view<float>(db.data(), 1, out),
                            matrix_view<float>(dx.data(), m, in))
                .ok());
  };
  const auto forward = [&](index_t m) {
    REQUIRE(linear_forward(here, matrix_view<const float>(x.data(), m, in), serving,
                           matrix_view<const float>(db.data(), 1, out), matrix_view<float>(y.data(), m, out))
                .ok());
  };
  for (index_t m = 64; m < 128; ++m) backward(m);
  std::size_t made = onednn_gemm::cache_report().made;
  for (index_t m = 128; m < 192; ++m) backward(m);
  CHECK(onednn_gemm::cache_report().made - made <=
        8 * 2 * 2 + 4);  // 8 depths, in place or filled up, 32 + 16 rows
  for (index_t m = 16; m <= 256; m += 16) forward(m);
  made = onednn_gemm::cache_report().made;
  for (index_t m = 16; m <= 256; ++m) forward(m);
  CHECK(onednn_gemm::cache_report().made - made <= 15);
}

TEST_CASE("B13: oneDNN is refused where the context's instruction set is below its own") {
  if (deeprec_test::lacks(best_isa() >= isa::avx512 && active_isa() > isa::avx2,
                          "AVX-512 and no lower DEEPREC_ISA"))
    return;
  std::vector<float> x(64 * 256, 1.0F), w(512 * 256, 1.0F), y(64 * 512);
  inline_executor here;
  context ctx{here};
  ctx.instruction_set = isa::avx2;
  CHECK(gemm<gemm_backends<onednn_gemm>>(
            ctx, {.b = gemm_operand::transposed}, matrix_view<const float>(x.data(), 64, 256),
            matrix_view<const float>(w.data(), 512, 256), matrix_view<float>(y.data(), 64, 512))
            .code() == errc::unsupported);
}
#endif

TEST_CASE("B13: bits of kept weights don't depend on the instruction set that cast them first") {
  std::vector<float> x(40, 1e38F), w(30 * 40, 1e-39F), first(30), second(30);
  inline_executor here;
  context best{here}, least{here};
  least.instruction_set = isa::portable;
  const gemm_desc desc{.b = gemm_operand::transposed, .math = gemm_math::forced_bf16};
  const matrix_view<const float> row(x.data(), 1, 40), values(w.data(), 30, 40);
  const gemm_weights ours(values, weight_reuse::few), theirs(values, weight_reuse::few);
  REQUIRE(gemm(best, desc, row, ours, matrix_view<float>(first.data(), 1, 30)).ok());
  REQUIRE(gemm(least, desc, row, theirs, matrix_view<float>(second.data(), 1, 30)).ok());
  REQUIRE(gemm(best, desc, row, theirs, matrix_view<float>(second.data(), 1, 30)).ok());
  CHECK(first == second);
}

TEST_CASE("r07: a stack moved between memory resources multiplies by its own weights") {
  struct poisoning : std::pmr::memory_resource {
    void* do_allocate(std::size_t n, std::size_t a) override {
      return std::pmr::new_delete_resource()->allocate(n, a);
    }
    void do_deallocate(void* p, std::size_t n, std::size_t a) override {
      std::memset(p, 0xff, n);
      kept.push_back({p, n, a});
    }
    bool do_is_equal(const memory_resource& o) const noexcept override { return this == &o; }
    struct block {
      void* p;
      std::size_t n, a;
    };
    std::vector<block> kept;
    ~poisoning() override {
      for (const block& b : kept) std::pmr::new_delete_resource()->deallocate(b.p, b.n, b.a);
    }
  } one, two;
  inline_executor here;
  const std::vector<float> x(8 * 20, 0.5F), dy(8 * 4, 1.0F);
  const matrix_view<const float> in(x.data(), 8, 20), slope(dy.data(), 8, 4);
  const auto make = [](std::uint64_t seed, std::pmr::memory_resource* memory) {
    return mlp<>({20, 12, 4}, mlp_output::linear, counter_rng(seed), weight_init::he, 0, memory);
  };
  mlp<> a = make(1, &one);
  {
    mlp<> b = make(2, &two);
    a = std::move(b);
  }
  REQUIRE(a.forward(here, in).ok());
  const float first = a.output()(0, 0);
  CHECK(std::isfinite(first));
  REQUIRE(a.backward(here, slope).ok());
  REQUIRE(a.step(here, sgd{.learning_rate = 0.5F}).ok());
  REQUIRE(a.forward(here, in).ok());
  CHECK(a.output()(0, 0) != first);
  CHECK(std::isfinite(a.output()(0, 0)));
}

TEST_CASE("B11: a product that is refused has not written its bias gradient") {
  struct refusing : eigen_gemm {
    static status can_run(const gemm_backend::problem&) { return {errc::unsupported, "no"}; }
    static gemm_backend::plan plan(const gemm_backend::problem& q) { return {.query = q}; }
  };
  const std::vector<float> a(6, 1.0F), b(12, 1.0F);
  std::vector<float> c(8, 7.0F), gradient(2, 7.0F);
  inline_executor here;
  CHECK(gemm<gemm_backends<refusing>>(here, {.bias_gradient = matrix_view<float>(gradient.data(), 1, 2)},
                                      matrix_view<const float>(a.data(), 2, 3),
                                      matrix_view<const float>(b.data(), 3, 4),
                                      matrix_view<float>(c.data(), 2, 4))
            .code() == errc::unsupported);
  CHECK(gradient == std::vector<float>(2, 7.0F));
  CHECK(c == std::vector<float>(8, 7.0F));
}

TEST_CASE("n14: a stack's state is stepped by optimizers of its name only, whatever the size of the state") {
  inline_executor here;
  const std::vector<float> x(16 * 8, 0.25F), g(16, 1.0F);
  const auto stepped_twice = [&](const auto& first, const auto& second) {
    mlp<> net({8, 8, 1}, mlp_output::linear, counter_rng(1));
    REQUIRE(net.forward(here, matrix_view<const float>(x.data(), 16, 8)).ok());
    REQUIRE(net.backward(here, matrix_view<const float>(g.data(), 16, 1)).ok());
    REQUIRE(net.step(here, first).ok());
    const auto weights = net.parameters();
    const std::vector<float> before(weights.row(0), weights.row(0) + weights.extent(1));
    const status s = net.step(here, second);
    CHECK(s.ok() == (std::vector<float>(weights.row(0), weights.row(0) + weights.extent(1)) != before));
    mlp<> moved(std::move(net));
    CHECK(moved.step(here, second).code() == s.code());
    return s.code();
  };
  CHECK(stepped_twice(momentum{}, rmsprop{}) == errc::unsupported);
  CHECK(stepped_twice(adagrad{}, momentum{}) == errc::unsupported);
  CHECK(stepped_twice(adam{}, ftrl{}) == errc::unsupported);
  CHECK(stepped_twice(adagrad_decay{}, rowwise_adam{}) == errc::unsupported);
  CHECK(stepped_twice(rowwise_adagrad{}, sgd{}) == errc::unsupported);
  CHECK(stepped_twice(adam{}, clipped_by_norm{with_weight_decay{adam{}, 0.1F}, 1.0F}) == errc::ok);
  CHECK(stepped_twice(clipped_by_value{adam{}, 1.0F}, rmsprop{}) == errc::unsupported);
}

TEST_CASE("n06: dice takes a column of one value by halves, whatever the value") {
  inline_executor here;
  for (const float value : {0.1F, 100.1F, 1000.1F, -12345.678F, 1e6F / 3, 1e20F / 3, 1e38F}) {
    for (const index_t rows : {1, 3, 1000, 5000}) {
      CAPTURE(value);
      CAPTURE(rows);
      const std::vector<float> x(static_cast<std::size_t>(rows), value), alpha{0.0F};
      std::vector<float> mean(1), variance(1), y(x.size());
      REQUIRE(dice_forward(here, matrix_view<const float>(x.data(), rows, 1), alpha, {mean, variance},
                           matrix_view<float>(y.data(), rows, 1))
                  .ok());
      CHECK(mean[0] == value);
      CHECK(y == std::vector<float>(x.size(), 0.5F * value));
    }
  }
}

TEST_CASE("n07, b08: the loss of an infinite logit is 0 on its label's side, elsewhere infinite") {
  inline_executor here;
  constexpr float inf = std::numeric_limits<float>::infinity();
  struct row {
    float logit, label;
    double loss;
  };
  for (const row& r : {row{inf, 1, 0}, row{-inf, 0, 0}, row{inf, 0, inf}, row{-inf, 1, inf},
                       row{inf, 0.5F, inf}, row{-inf, 0.5F, inf}}) {
    CAPTURE(r.logit);
    CAPTURE(r.label);
    const float logits[] = {r.logit, 1}, labels[] = {r.label, 0}, weights[] = {1, 1};
    const matrix_view<const float> z(logits, 2, 1), y(labels, 2, 1), w(weights, 2, 1);
    double loss = 0, weighted = 0;
    float gradient[2];
    REQUIRE(logistic_loss_forward(here, z, y, loss).ok());
    REQUIRE(logistic_loss_forward(here, z, y, w, weighted).ok());
    REQUIRE(logistic_loss_backward(here, z, y, matrix_view<float>(gradient, 2, 1)).ok());
    const double expected = (r.loss + std::log1p(std::exp(1.0))) / 2;
    CHECK((loss == expected || loss == doctest::Approx(expected)));
    CHECK(weighted == loss);
    CHECK(gradient[0] == ((r.logit > 0 ? 1 : 0) - r.label) / 2);
    log_loss metric;  // which clamps the logit
    REQUIRE(metric.add(z, y).ok());
    CHECK((std::isfinite(r.loss) ? metric.value() == doctest::Approx(loss) : metric.value() >= 0x1p29));
  }
}
