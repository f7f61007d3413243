// Products in every math mode, with every step before and after them, against an oracle in double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/dense/detail/plan_cache.hpp>
#include <deeprec/dense/gemm.hpp>
#include <deeprec/dense/tf32.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

using eigen = gemm_backends<thin_gemm, eigen_gemm>;

/// A backend with all its steps taken away: gemm() has to compose them.
template <class B>
struct bare : B {
  static gemm_answer can_run(const gemm_query& q) {
    if (q.bias || q.residual || q.activation != gemm_activation::none || q.output != gemm_storage::f32) {
      return {"bare"};
    }
    return B::can_run(q);
  }
  static gemm_plan plan(const gemm_query& q) { return can_run(q) ? B::plan(q) : gemm_plan{}; }
};
#if defined(DEEPREC_WITH_ONEDNN)
using composing = gemm_backends<bare<onednn_gemm>, eigen_gemm>;
#else
using composing = eigen;
#endif

/// Memory with a guard behind each piece, for what writes further than it asked for.
class guarded_memory : public std::pmr::memory_resource {
 public:
  bool intact = true;

 private:
  static constexpr std::size_t guard = 1024;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const p = ::operator new (bytes + guard, std::align_val_t{alignment});
    std::memset(static_cast<char*>(p) + bytes, 0x5a, guard);
    return p;
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    for (std::size_t i = 0; i < guard; ++i) intact = intact && static_cast<char*>(p)[bytes + i] == 0x5a;
    ::operator delete (p, std::align_val_t{alignment});
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

enum class values { normal, cancelling, tiny, with_infinities };

/// A matrix in float or bf16, with sentinels around it.
struct operand {
  operand(index_t rows, index_t columns, gemm_storage how, index_t pad = 3)
      : f32(rows, columns, pad), half(static_cast<std::size_t>(rows * f32.stride), bf16(99.0F)), storage(how) {}

  void fill(std::mt19937_64& random, values kind, float scale = 1) {
    f32.fill(random, scale);
    for (index_t i = 0; i < f32.rows; ++i) {
      for (index_t j = 0; j < f32.columns; ++j) {
        float& x = f32(i, j);
        if (kind == values::tiny && random() % 2 == 0) x *= 1e-39F;
        if (kind == values::with_infinities && random() % 16 == 0) {
          const float odd[] = {HUGE_VALF, -HUGE_VALF, std::nanf(""), 0.0F};
          x = odd[random() % 4];
        }
      }
    }
    to_halves();
  }
  bf16& half_at(index_t i, index_t j) { return half[static_cast<std::size_t>(i * f32.stride + j)]; }
  void to_halves() {
    if (storage == gemm_storage::f32) return;
    for (index_t i = 0; i < f32.rows; ++i) {
      for (index_t j = 0; j < f32.columns; ++j) {
        half_at(i, j) = bf16(f32(i, j));
        f32(i, j) = half_at(i, j);
      }
    }
  }
  /// After a product wrote the halves; false where it wrote beside them.
  bool from_halves() {
    bool inside = true;
    if (storage == gemm_storage::f32) return inside;
    for (index_t i = 0; i < f32.rows; ++i) {
      for (index_t j = 0; j < f32.stride; ++j) {
        if (j < f32.columns) {
          f32(i, j) = half_at(i, j);
        } else {
          inside = inside && half_at(i, j).bits == bf16(99.0F).bits;
        }
      }
    }
    return inside;
  }
  matrix_view<bf16> halves() { return {half.data(), f32.rows, f32.columns, f32.stride}; }
  gemm_view<> view() {
    if (storage == gemm_storage::f32) return f32.view();
    return halves();
  }
  double operator()(gemm_operand how, index_t i, index_t j) const {
    return static_cast<double>(how == gemm_operand::normal ? f32(i, j) : f32(j, i));
  }

  matrix f32;
  std::vector<bf16> half;
  gemm_storage storage;
};

struct trial {
  index_t m = 1, n = 1, k = 1;
  gemm_desc desc{};
  gemm_storage a = gemm_storage::f32, b = gemm_storage::f32, c = gemm_storage::f32;
  bool bias = false, mask = false;
  int residual = 0;  // 1: float, 2: bf16, 3: c itself
  int weights = 0;   // 1: few, 2: many
  values kind = values::normal;
};

double activated(gemm_activation how, double x) {
  switch (how) {
    case gemm_activation::none:
      return x;
    case gemm_activation::relu:
      return x < 0 ? 0 : x;
    case gemm_activation::gelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case gemm_activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case gemm_activation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

template <class Backends, class Executor, class C>
status run_with(Executor& executor, const gemm_desc& desc, operand& a, operand& b, int weights, const C& c) {
  const auto with_b = [&](const auto& left) {
    if (weights != 0) {
      const gemm_weights kept(b.view(), weights == 1 ? weight_reuse::few : weight_reuse::many);
      return gemm<Backends>(executor, desc, left, kept, c);
    }
    if (b.storage == gemm_storage::f32) return gemm<Backends>(executor, desc, left, b.f32.view(), c);
    return gemm<Backends>(executor, desc, left, b.halves(), c);
  };
  return a.storage == gemm_storage::f32 ? with_b(a.f32.view()) : with_b(a.halves());
}

/// The largest error over the documented bound: at most 1. Where double says NaN or infinity, so must c.
template <class Backends, class Executor>
double worst_of(Executor&& executor, const trial& t, std::mt19937_64& random) {
  const bool a_turned = t.desc.a == gemm_operand::transposed;
  const bool b_turned = t.desc.b == gemm_operand::transposed;
  operand a(a_turned ? t.k : t.m, a_turned ? t.m : t.k, t.a),
      b(b_turned ? t.n : t.k, b_turned ? t.k : t.n, t.b);
  operand c(t.m, t.n, t.c), residual(t.m, t.n, t.residual == 2 ? gemm_storage::bf16 : gemm_storage::f32);
  operand mask(t.m, t.n, t.c), bias(1, t.n, gemm_storage::f32);
  a.fill(random, t.kind);
  b.fill(random, t.kind == values::with_infinities ? values::normal : t.kind);
  if (t.kind == values::cancelling) {  // k in pairs that annihilate but for a little
    for (index_t p = 0; p + 1 < t.k; p += 2) {
      for (index_t i = 0; i < t.m; ++i)
        (a_turned ? a.f32(p + 1, i) : a.f32(i, p + 1)) = -(a_turned ? a.f32(p, i) : a.f32(i, p));
      for (index_t j = 0; j < t.n; ++j)
        (b_turned ? b.f32(j, p + 1) : b.f32(p + 1, j)) = (b_turned ? b.f32(j, p) : b.f32(p, j)) * 1.0001F;
    }
    a.to_halves();
    b.to_halves();
  }
  for (operand* o : {&c, &residual, &mask, &bias}) o->fill(random, values::normal);

  gemm_desc desc = t.desc;
  if (t.bias) desc.bias = bias.f32.view();
  if (t.mask) desc.mask = mask.view();
  if (t.residual != 0) desc.residual = t.residual == 3 ? c.view() : residual.view();
  const operand before = c;
  guarded_memory memory;
  context ctx{executor};
  ctx.memory = &memory;
  const status done = t.c == gemm_storage::f32 ? run_with<Backends>(ctx, desc, a, b, t.weights, c.f32.view())
                                               : run_with<Backends>(ctx, desc, a, b, t.weights, c.halves());
  REQUIRE(memory.intact);
  REQUIRE_MESSAGE(done.ok(), done.message());
  REQUIRE(c.from_halves());
  REQUIRE(c.f32.padding_untouched());

  const double rounding = t.desc.math == gemm_math::f32    ? 0
                          : t.desc.math == gemm_math::bf16 ? 0x1p-7 + 0x1p-16
                                                           : 0x1p-10 + 0x1p-22;
  double worst = 0;
  for (index_t i = 0; i < t.m; ++i) {
    for (index_t j = 0; j < t.n; ++j) {
      double sum = 0, magnitude = 0, largest = 0;
      for (index_t p = 0; p < t.k; ++p) {
        const double x = a(t.desc.a, i, p), y = b(t.desc.b, p, j);
        sum += x * y;
        magnitude += std::abs(x * y);
        largest = std::max({largest, std::abs(x), std::abs(y)});
      }
      double bound = ((static_cast<double>(t.k) + 3) * 0x1p-24 + rounding) * magnitude;
      bound += static_cast<double>(t.k) * 0x1p-126 * (2 * largest + 1);
      double added = 0;
      const auto add = [&](double x) {
        sum += x;
        added += std::abs(x);
      };
      if (t.desc.c == gemm_output::accumulate) add(before(gemm_operand::normal, i, j));
      if (t.bias) add(bias(gemm_operand::normal, 0, j));
      if (t.residual == 3) add(before(gemm_operand::normal, i, j));
      if (t.residual == 1 || t.residual == 2) add(residual(gemm_operand::normal, i, j));
      bound += 4 * 0x1p-24 * (added + magnitude);
      double wanted = activated(t.desc.activation, sum);
      if (t.desc.activation > gemm_activation::relu) bound = 1.2 * bound + 0x1p-20 * (1 + std::abs(sum));
      if (t.mask && !(mask(gemm_operand::normal, i, j) > 0)) {
        wanted = 0;
        if (c(gemm_operand::normal, i, j) != 0) return 1e9;
      }
      if (t.c == gemm_storage::bf16) bound += 0x1p-8 * (std::abs(wanted) + bound) + 0x1p-133;
      const double got = c(gemm_operand::normal, i, j);
      if (!std::isfinite(wanted)) {
        const bool limit_or_nan = t.desc.activation > gemm_activation::relu && std::isnan(got);
        if (!(std::isnan(wanted) ? std::isnan(got) : got == wanted || limit_or_nan)) return 1e9;
        continue;
      }
      if (!std::isfinite(sum) && t.desc.activation > gemm_activation::relu) continue;  // GELU's limit or NaN
      if (!std::isfinite(bound)) {  // an infinity that ReLU or the mask made a 0
        if (got != wanted) return 1e9;
        continue;
      }
      const double off = std::abs(got - wanted);
      if (!(off <= bound)) worst = std::max(worst, bound > 0 && std::isfinite(off) ? off / bound : 1e9);
      if (off > 0) worst = std::max(worst, off / bound);
    }
  }
  return worst;
}

constexpr gemm_math maths[] = {gemm_math::f32, gemm_math::bf16, gemm_math::tf32};
constexpr gemm_storage storages[] = {gemm_storage::f32, gemm_storage::bf16};

trial random_trial(std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t n) { return static_cast<index_t>(random() % n); };
  constexpr index_t sizes[] = {1, 2, 7, 16, 33, 70, 130};
  trial t{.m = sizes[draw(7)], .n = sizes[draw(7)], .k = sizes[draw(7)]};
  t.desc.a = static_cast<gemm_operand>(draw(2));
  t.desc.b = static_cast<gemm_operand>(draw(2));
  t.desc.c = static_cast<gemm_output>(draw(2));
  t.desc.math = maths[draw(3)];
  t.desc.activation = static_cast<gemm_activation>(draw(5));
  t.a = storages[draw(2)];
  t.b = storages[draw(2)];
  t.c = storages[draw(2)];
  t.bias = draw(2) == 0;
  t.mask = draw(3) == 0;
  t.residual = static_cast<int>(draw(4));
  t.weights = static_cast<int>(draw(3));
  return t;
}

std::string said(const trial& t) {
  const auto number = [](auto x) { return std::to_string(static_cast<long long>(x)) + ' '; };
  return "m n k " + number(t.m) + number(t.n) + number(t.k) + "as " + number(t.desc.a) + number(t.desc.b) +
         "adds " + number(t.desc.c) + "math " + number(t.desc.math) + "activation " +
         number(t.desc.activation) + "stored " + number(t.a) + number(t.b) + number(t.c) + "bias " +
         number(t.bias) + "mask " + number(t.mask) + "residual " + number(t.residual) + "weights " +
         number(t.weights);
}

template <class Backends>
void many_trials(int count, values kind) {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
#if defined(__SANITIZE_THREAD__)
  count /= 10;  // one thread: nothing to find
#endif
  for (int i = 0; i < count; ++i) {
    trial t = random_trial(random);
    t.kind = kind;
    INFO(said(t));
    CHECK(worst_of<Backends>(here, t, random) <= 1);
  }
}

// Wrong on purpose: says that it adds the bias.
struct biasless : eigen_gemm {
  static gemm_answer can_run(gemm_query q) {
    q.bias = false;
    return eigen_gemm::can_run(q);
  }
  static gemm_plan plan(gemm_query q) {
    q.bias = false;
    return eigen_gemm::plan(q);  // also where it can't do the rest
  }
};
// Wrong on purpose: makes a 0 of a NaN.
struct nanless : eigen_gemm {
  static gemm_plan plan(const gemm_query& q) {
    gemm_plan made = eigen_gemm::plan(q);
    made.run = [](const gemm_plan& p, const gemm_pointers& at) {
      const status done = eigen_gemm::plan(p.query).run(p, at);
      auto* c = static_cast<float*>(at.c);
      for (index_t i = 0; i < p.query.m; ++i) {
        for (index_t j = 0; j < p.query.n; ++j) {
          float& x = c[i * p.query.c_stride + j];
          x = std::isnan(x) ? 0 : x;
        }
      }
      return done;
    };
    return made;
  }
};

}  // namespace

TEST_CASE("gemm: every math, storage and step is within its bound, whoever multiplies") {
  many_trials<eigen>(150, values::normal);
  many_trials<host_gemm_backends>(150, values::normal);
}

TEST_CASE("gemm: steps composed on tiles are within the bound of those that a backend fuses") {
  many_trials<composing>(150, values::normal);
}

TEST_CASE("gemm: sums that cancel, denormals, infinities and NaN are within the bound") {
  for (const values kind : {values::cancelling, values::tiny, values::with_infinities}) {
    many_trials<eigen>(60, kind);
    many_trials<host_gemm_backends>(60, kind);
  }
}

TEST_CASE("gemm: a million products in a sum are within the bound in every math") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
#if defined(__SANITIZE_THREAD__)
  constexpr index_t most = 20'000;
#else
  constexpr index_t most = 1'000'000;
#endif
  for (const gemm_math math : maths) {
    for (const trial& t :
         {trial{.m = 2, .n = 3, .k = most, .desc = {.b = gemm_operand::transposed, .math = math}},
          trial{.m = 1, .n = 1, .k = most, .desc = {.math = math}, .c = gemm_storage::bf16},
          trial{.m = 5, .n = 1, .k = 20'000, .desc = {.math = math}, .bias = true, .weights = 2}}) {
      INFO(said(t));
      CHECK(worst_of<eigen>(here, t, random) <= 1);
      CHECK(worst_of<host_gemm_backends>(here, t, random) <= 1);
    }
  }
}

TEST_CASE("gemm: the checks above catch backends that are wrong") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  const trial with_bias{.m = 5, .n = 6, .k = 7, .bias = true};
  CHECK(worst_of<gemm_backends<biasless>>(here, with_bias, random) > 1);
  const trial odd{.m = 20, .n = 6, .k = 30, .kind = values::with_infinities};
  CHECK(worst_of<gemm_backends<nanless>>(here, odd, random) > 1);
  // An error of the size of bf16's is too much for f32 and for tf32.
  trial coarse{.m = 30, .n = 30, .k = 3, .desc = {.math = gemm_math::bf16}};
  CHECK(worst_of<eigen>(here, coarse, random) <= 1);
  operand a(30, 3, gemm_storage::f32), b(3, 30, gemm_storage::f32), exact(30, 30, gemm_storage::f32);
  a.fill(random, values::normal);
  b.fill(random, values::normal);
  operand rounded = exact;
  REQUIRE(gemm<eigen>(here, {}, a.f32.view(), b.f32.view(), exact.f32.view()).ok());
  REQUIRE(gemm<eigen>(here, {.math = gemm_math::bf16}, a.f32.view(), b.f32.view(), rounded.f32.view()).ok());
  double apart = 0;
  for (index_t i = 0; i < 30; ++i) {
    for (index_t j = 0; j < 30; ++j) {
      double magnitude = 0;
      for (index_t p = 0; p < 3; ++p)
        magnitude += std::abs(static_cast<double>(a.f32(i, p)) * static_cast<double>(b.f32(p, j)));
      apart = std::max(apart, std::abs(static_cast<double>(exact.f32(i, j) - rounded.f32(i, j))) / magnitude);
    }
  }
  CHECK(apart > 0x1p-10);
}

TEST_CASE("gemm: bits don't depend on the number of threads in any math, nor with kept weights") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix x(150, 600), w(1100, 600), bias(1, 1100), first(150, 1100), again(150, 1100), sums(1, 600),
      sums_again(1, 600);
  for (matrix* m : {&x, &w, &bias}) m->fill(random);
  for (const gemm_math math : maths) {
    for (const weight_reuse reuse : {weight_reuse::few, weight_reuse::many}) {
      const gemm_weights kept(w.view(), reuse);
      const gemm_desc desc{.b = gemm_operand::transposed,
                           .math = math,
                           .bias = bias.view(),
                           .activation = gemm_activation::relu};
      inline_executor here;
      REQUIRE(gemm(here, desc, x.view(), kept, first.view()).ok());
      for (const int threads : thread_counts) {
        scrambled_threads crew(threads);
        REQUIRE(gemm(crew, desc, x.view(), kept, again.view()).ok());
        CHECK(same_bits(first, again));
      }
    }
  }
}

TEST_CASE("gemm: a product of a batch is the product alone") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix a(3 * 5, 7), b(3 * 7, 6), shared(7, 6), c(3 * 5, 6), alone(5, 6);
  for (matrix* m : {&a, &b, &shared}) m->fill(random);
  for (const gemm_math math : maths) {
    gemm_desc desc{.math = math,
                   .activation = gemm_activation::sigmoid,
                   .batch = {.count = 3, .a_step = 5 * 7, .b_step = 7 * 6, .c_step = 5 * 6}};
    const gemm_desc one{.math = math, .activation = gemm_activation::sigmoid};
    REQUIRE(gemm(here, desc, a.view().rows(0, 5), b.view().rows(0, 7), c.view().rows(0, 5)).ok());
    for (index_t i = 0; i < 3; ++i) {
      REQUIRE(gemm(here, one, a.view().rows(5 * i, 5), b.view().rows(7 * i, 7), alone.view()).ok());
      CHECK(same_bits(c.view().rows(5 * i, 5), alone.view()));
    }
    desc.batch.b_step = 0;  // one b for all
    const gemm_weights kept(shared.view());
    REQUIRE(gemm(here, desc, a.view().rows(0, 5), kept, c.view().rows(0, 5)).ok());
    REQUIRE(gemm(here, one, a.view().rows(10, 5), kept, alone.view()).ok());
    CHECK(same_bits(c.view().rows(10, 5), alone.view()));
  }
  const gemm_desc everywhere{.batch = {.count = 2}};
  CHECK(gemm(here, everywhere, a.view().rows(0, 5), shared.view(), alone.view()).code() ==
        errc::shape_mismatch);
}

TEST_CASE("gemm: the bias gradient is the sum of the gradient's rows") {
  std::mt19937_64 random(deeprec_test::seed());
  scrambled_threads crew(3);
  for (const index_t batch : {1, 63, 64, 1000}) {
    matrix dy(batch, 130, 2), x(batch, 9), dw(130, 9), db(1, 130, 3);
    dy.fill(random);
    x.fill(random);
    REQUIRE(
        gemm(crew, {.a = gemm_operand::transposed, .bias_gradient = db.view()}, dy.view(), x.view(), dw.view())
            .ok());
    CHECK(db.padding_untouched());
    for (index_t j = 0; j < 130; ++j) {
      double sum = 0, magnitude = 0;
      for (index_t i = 0; i < batch; ++i) {
        sum += static_cast<double>(dy(i, j));
        magnitude += std::abs(static_cast<double>(dy(i, j)));
      }
      CHECK(std::abs(static_cast<double>(db(0, j)) - sum) <= (64 + batch / 64) * 0x1p-24 * magnitude);
    }
  }
}

TEST_CASE("gemm: no products still add bias and residual, and steps that don't fit are named") {
  inline_executor here;
  matrix a(2, 0), b(0, 3), c(2, 3), bias(1, 3), wrong(1, 2);
  for (index_t j = 0; j < 3; ++j) bias(0, j) = static_cast<float>(j) - 1;
  REQUIRE(gemm(here, {.bias = bias.view(), .activation = gemm_activation::relu}, a.view(), b.view(), c.view())
              .ok());
  CHECK(c(1, 0) == 0);
  CHECK(c(1, 2) == 1);
  const auto says = [&](const gemm_desc& d, const char* what) {
    return gemm(here, d, a.view(), b.view(), c.view()).message().find(what) != std::string::npos;
  };
  CHECK(says({.bias = wrong.view()}, "bias is not (1,N)"));
  CHECK(says({.residual = wrong.view()}, "residual is not (M,N)"));
  CHECK(says({.mask = wrong.view()}, "mask is not (M,N)"));
  CHECK(says({.bias_gradient = bias.view()}, "bias_gradient is not (1,M)"));
  CHECK(says({.batch = {.count = -1}}, "negative count"));
}

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("gemm: oneDNN gets the scratch that it writes, not only the one that it asks for") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t k : {70, 200, 1000}) {
    for (const index_t m : {1, 2, 3}) {
      CHECK(worst_of<gemm_backends<onednn_gemm>>(here, {.m = m, .n = 2, .k = k}, random) <= 1);
    }
  }
}

TEST_CASE("gemm: bf16 products don't read past the end of an odd k") {
  if (best_isa() != isa::avx512_bf16) return;
  inline_executor here;
  for (const index_t k : {1, 7, 13, 33}) {
    for (const index_t pad : {0, 1, 3}) {  // every other row infinite at its beginning, NaN between the rows
      constexpr index_t m = 18, n = 33;
      std::vector<bf16> a(static_cast<std::size_t>(m * (k + pad)), bf16(std::nanf(""))),
          b(static_cast<std::size_t>(n * k), bf16(1.0F));
      for (index_t i = 0; i < m; ++i) {
        for (index_t p = 0; p < k; ++p)
          a[static_cast<std::size_t>(i * (k + pad) + p)] = bf16(p == 0 && i % 2 == 1 ? HUGE_VALF : 1.0F);
      }
      matrix c(m, n);
      REQUIRE(gemm(here, {.b = gemm_operand::transposed, .math = gemm_math::bf16},
                   matrix_view<const bf16>(a.data(), m, k, k + pad), matrix_view<const bf16>(b.data(), n, k),
                   c.view())
                  .ok());
      int wrong = 0;
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < n; ++j)
          wrong += c(i, j) == (i % 2 == 1 ? HUGE_VALF : static_cast<float>(k)) ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("gemm: where the machine has bf16 products, the implementation that oneDNN chose is one of them") {
  const gemm_query q{.m = 64,
                     .n = 512,
                     .k = 256,
                     .a_stride = 256,
                     .b_stride = 256,
                     .c_stride = 512,
                     .b = gemm_operand::transposed,
                     .inputs = gemm_storage::bf16};
  matrix x(64, 256), w(512, 256), y(64, 512);
  const std::string text =
      explain_gemm({.b = gemm_operand::transposed, .math = gemm_math::bf16}, x.view(), w.view(), y.view());
  INFO(text);
  if (best_isa() != isa::avx512_bf16) {
    MESSAGE("no bf16 products on this machine");
    CHECK_FALSE(onednn_gemm::can_run(q));
    CHECK(text.find("rounded to bf16") != std::string::npos);
    return;
  }
  for (const bool packed : {false, true}) {
    gemm_query asked = q;
    asked.packed = packed;
    const std::string name = onednn_gemm::plan(asked).implementation;
    INFO(name);
    CHECK((name.find("bf16") != std::string::npos || name.find("amx") != std::string::npos));
  }
  CHECK(text.find("bf16") != std::string::npos);
  CHECK(text.find("a narrowed to bf16") != std::string::npos);
}

TEST_CASE("gemm: after warm-up, changing batch sizes make no primitive and cast no weight") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(300, 40), w(50, 40), y(300, 50);
  x.fill(random);
  w.fill(random);
  const gemm_weights kept(w.view());
  const auto all_sizes = [&] {
    for (index_t m = 1; m <= 300; m += 13) {
      const gemm_desc desc{
          .b = gemm_operand::transposed, .math = gemm_math::bf16, .activation = gemm_activation::relu};
      REQUIRE(gemm(here, desc, x.view().rows(0, m), kept, y.view().rows(0, m)).ok());
    }
  };
  all_sizes();
  const std::size_t made = onednn_gemm::cache_report().made;
  const std::uint64_t forms = kept.forms_made();
  for (index_t m = 1; m <= 300; ++m) {  // also sizes that were never asked for
    if (m % 16 != 0) continue;
    REQUIRE(gemm(here,
                 {.b = gemm_operand::transposed, .math = gemm_math::bf16, .activation = gemm_activation::relu},
                 x.view().rows(0, m), kept, y.view().rows(0, m))
                .ok());
  }
  all_sizes();
  CHECK(onednn_gemm::cache_report().made == made);
  CHECK(kept.forms_made() == forms);
  CHECK(onednn_gemm::cache_report().kept <= onednn_gemm::cache_report().capacity);
}
#endif

TEST_CASE("hazard H21: a product after an update reads the new weights, never a stale cast") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(20, 40), w(30, 40), y(20, 30), fresh(20, 30), dx(20, 40), fresh_dx(20, 40);
  x.fill(random);
  w.fill(random);
  for (const gemm_math math : maths) {
    for (const weight_reuse reuse : {weight_reuse::few, weight_reuse::many}) {
      gemm_weights kept(w.view(), reuse);
      const gemm_desc forward{.b = gemm_operand::transposed, .math = math};
      const gemm_desc back{.math = math};
      for (int step = 0; step < 4; ++step) {
        REQUIRE(gemm(here, forward, x.view(), kept, y.view()).ok());
        REQUIRE(gemm(here, back, y.view(), kept, dx.view()).ok());
        const gemm_weights new_ones(w.view(), reuse);
        REQUIRE(gemm(here, forward, x.view(), new_ones, fresh.view()).ok());
        REQUIRE(gemm(here, back, fresh.view(), new_ones, fresh_dx.view()).ok());
        CHECK(same_bits(y, fresh));
        CHECK(same_bits(dx, fresh_dx));
        w(step, step) += 1;  // the update
        kept.changed();
      }
    }
  }
}

TEST_CASE("hazard H21: an update that nobody announced is caught where contracts are checked") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(20, 40), w(40, 30), y(20, 30), fresh(20, 30);
  x.fill(random);
  w.fill(random);
  const gemm_weights kept(w.view());
  const gemm_desc desc{.math = gemm_math::tf32};
  REQUIRE(gemm(here, desc, x.view(), kept, y.view()).ok());
  w(3, 3) += 1;
#if DEEPREC_CONTRACTS && DEEPREC_EXCEPTIONS
  struct caught {};
  const violation_handler before = set_violation_handler([](const contract_violation&) { throw caught{}; });
  CHECK_THROWS_AS(static_cast<void>(gemm(here, desc, x.view(), kept, y.view())), caught);
  set_violation_handler(before);
#else  // and without the check the cast is stale indeed, so the test above can fail
  REQUIRE(gemm(here, desc, x.view(), kept, y.view()).ok());
  REQUIRE(gemm(here, desc, x.view(), w.view(), fresh.view()).ok());
  CHECK_FALSE(same_bits(y, fresh));
#endif
}

TEST_CASE("gemm: kept weights may be met for the first time by many threads at once") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix x(20, 40), w(40, 30), expected(20, 30);
  x.fill(random);
  w.fill(random);
  const gemm_desc desc{.math = gemm_math::bf16};
  inline_executor here;
  const gemm_weights other(w.view());
  REQUIRE(gemm(here, desc, x.view(), other, expected.view()).ok());
  for (int round = 0; round < 5; ++round) {
    const gemm_weights kept(w.view());
    std::vector<matrix> results(4, matrix(20, 30));
    std::vector<std::thread> crew;
    std::atomic<int> failed{0};
    for (matrix& y : results) {
      crew.emplace_back([&] {
        inline_executor mine;
        if (!gemm(mine, desc, x.view(), kept, y.view()).ok()) ++failed;
      });
    }
    for (std::thread& t : crew) t.join();
    CHECK(failed == 0);
    CHECK(kept.forms_made() == 1);
    for (const matrix& y : results) CHECK(same_bits(y, expected));
  }
}

namespace {
struct number_key {
  int n;
  friend bool operator==(const number_key&, const number_key&) = default;
};
std::uint64_t hash_of(const number_key& k) { return static_cast<std::uint64_t>(k.n); }
}  // namespace

TEST_CASE("plan cache: bounded, the entry longest unused goes, and threads see one value for a key") {
  detail::plan_cache<number_key, int> cache(4);
  const auto get = [&](int n) { return *cache.get({n}, [&] { return std::make_shared<const int>(n * n); }); };
  for (int i = 0; i < 4; ++i) CHECK(get(i) == i * i);
  CHECK(get(0) == 0);   // 1 is the oldest now
  CHECK(get(9) == 81);  // and goes
  CHECK(cache.report().kept == 4);
  CHECK(cache.report().dropped == 1);
  CHECK(cache.report().made == 5);
  CHECK(get(0) == 0);
  CHECK(cache.report().made == 5);
  CHECK(get(1) == 1);
  CHECK(cache.report().made == 6);
  scrambled_threads crew(4);
  std::atomic<int> wrong{0};
  crew.parallel_for(2000, 10, [&](index_t begin, index_t end, int) {
    for (index_t i = begin; i < end; ++i) {
      const int n = static_cast<int>(i % 7);
      if (get(n) != n * n) ++wrong;
    }
  });
  CHECK(wrong == 0);
  CHECK(cache.report().kept == 4);
}

TEST_CASE("tf32_round: every exponent, all cut bits and random mantissas follow the law") {
  std::mt19937_64 random(deeprec_test::seed());
  const auto bits = [](float x) { return detail::bit_cast_to<std::uint32_t>(x); };
  const auto value = [](std::uint32_t b) { return detail::bit_cast_to<float>(b); };
  int wrong = 0;
  const auto check = [&](std::uint32_t b) {
    const float x = value(b);
    const float r = tf32_round(x);
    const std::uint32_t magnitude = b & 0x7fffffffU;
    bool right = (bits(r) & 0x1fffU) == 0 && (bits(r) >> 31) == (b >> 31) && bits(tf32_round(r)) == bits(r);
    if (magnitude > 0x7f800000U) {
      right = right && r != r;
    } else if (magnitude == 0x7f800000U) {
      right = right && r == x;
    } else {
      // The nearest of the two neighbours, ties to the even one.
      const double below = static_cast<double>(value(magnitude & 0xffffe000U));
      const std::uint32_t up = (magnitude & 0xffffe000U) + 0x2000U;
      const double above = up >= 0x7f800000U ? 0x1p128 : static_cast<double>(value(up));
      const double at = static_cast<double>(value(magnitude));
      const bool even_below = (magnitude & 0x2000U) == 0;
      const bool down = at - below < above - at || (at - below == above - at && even_below);
      const double wanted = down ? below : above;
      const double got = std::abs(static_cast<double>(r));
      right = right && (wanted >= 0x1p128 ? std::isinf(r) : got == wanted);
      if (magnitude >= 0x00800000U && !std::isinf(r)) right = right && std::abs(got - at) <= 0x1p-11 * at;
      if (magnitude < 0x00800000U) right = right && std::abs(got - at) <= 0x1p-137;
    }
    wrong += right ? 0 : 1;
  };
  for (std::uint32_t sign = 0; sign < 2; ++sign) {
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (int i = 0; i < 500; ++i) {
        check((sign << 31) | (exponent << 23) | static_cast<std::uint32_t>(random() & 0x7fffffU));
      }
      for (const std::uint32_t low : {0U, 1U, 0xfffU, 0x1000U, 0x1001U, 0x1fffU}) {
        for (const std::uint32_t high : {0U, 1U, 2U, 0x3ffU, 0x3feU}) {
          check((sign << 31) | (exponent << 23) | (high << 13) | low);
        }
      }
    }
  }
  for (std::uint32_t low = 0; low < 0x4000; ++low) check(0x3f800000U | low);  // both parities, all cut bits
  CHECK(wrong == 0);
  float last = -HUGE_VALF;  // never decreasing
  for (std::uint32_t b = 0x3f7f0000U; b < 0x3f810000U; ++b) {
    const float r = tf32_round(value(b));
    wrong += r < last ? 1 : 0;
    last = r;
  }
  CHECK(wrong == 0);
}

TEST_CASE("gemm: tf32 products are the products of the rounded factors") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix a(17, 33), b(33, 20), c(17, 20), again(17, 20);
  a.fill(random);
  b.fill(random);
  REQUIRE(gemm(here, {.math = gemm_math::tf32}, a.view(), b.view(), c.view()).ok());
  for (float& x : a.storage) x = tf32_round(x);
  for (float& x : b.storage) x = tf32_round(x);
  REQUIRE(gemm(here, {}, a.view(), b.view(), again.view()).ok());
  CHECK(same_bits(c, again));
}
