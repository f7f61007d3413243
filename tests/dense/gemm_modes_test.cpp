// Products in every math mode, with every step before and after them, against an oracle in double.
#include <doctest/doctest.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/dense/gemm/detail/plan_cache.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/gemm/tf32.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "dense/gemm_oracle.hpp"
#include "dense/support.hpp"
#include "support/children.hpp"
#include "support/needs.hpp"
#include "support/sanitizers.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

using eigen = gemm_backends<thin_gemm, eigen_gemm>;

/// A backend with all its steps taken away: gemm() has to compose them.
template <class B>
struct bare : B {
  static status can_run(const gemm_backend::problem& q) {
    if (q.bias || q.residual || q.activation != gemm_activation::none || q.output != gemm_storage::f32) {
      return {errc::unsupported, "bare"};
    }
    return B::can_run(q);
  }
  static gemm_backend::plan plan(const gemm_backend::problem& q) {
    return can_run(q) ? B::plan(q) : gemm_backend::plan{};
  }
};
#if defined(DEEPREC_WITH_ONEDNN)
using composing = gemm_backends<bare<onednn_gemm>, eigen_gemm>;
using onednn_first = gemm_backends<onednn_gemm, eigen_gemm>;  // one row too

// Whether oneDNN multiplies in this process, and whether it multiplies bf16.
bool by_onednn() { return active_isa() == best_isa() || active_isa() >= detail::onednn_isa(); }
bool bf16_by_onednn() { return (std::min)(active_isa(), detail::onednn_isa()) == isa::avx512_bf16; }
const char bf16_profile[] = "AVX512-BF16 and no lower DEEPREC_ISA or DNNL_MAX_CPU_ISA";
#else
using composing = eigen;
using onednn_first = gemm_backends<eigen_gemm>;
#endif

/// Memory with a guard behind each piece, for what writes further than it asked for.
class guarded_memory : public std::pmr::memory_resource {
 public:
  bool intact = true;

 private:
  static constexpr std::size_t guard = 1024;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const p = ::operator new(bytes + guard, std::align_val_t{alignment});
    std::memset(static_cast<char*>(p) + bytes, 0x5a, guard);
    return p;
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    for (std::size_t i = 0; i < guard; ++i) intact = intact && static_cast<char*>(p)[bytes + i] == 0x5a;
    ::operator delete(p, std::align_val_t{alignment});
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// Kept weights multiply other numbers of rows first; what comes of it is not looked at.
template <class Backends, class Executor>
status serve_before(Executor& executor, const gemm_desc& desc, const trial& t, const gemm_weights& kept) {
  for (const index_t m : t.batches) {
    matrix x(m, t.k, 1), y(m, t.n, 2);
    for (index_t i = 0; i < m; ++i) std::fill_n(&x(i, 0), t.k, 1.0F);
    const status s = gemm<Backends>(executor, {.b = desc.b, .math = desc.math}, x.view(), kept, y.view());
    if (!s) return s;
  }
  return {};
}

/// A float residual that oneDNN added to its result itself.
template <class Backends, class A, class B, class C>
bool residual_fused(const gemm_desc& desc, const trial& t, const A& a, const B& b, const C& c) {
  if (t.residual != 1) return false;
  const std::string text = explain_gemm<Backends>(desc, a, b, c);
  return text.rfind("oneDNN", 0) == 0 && text.find("steps fused") != std::string::npos;
}

template <class Backends, class Executor, class C>
status run_with(Executor& executor, const gemm_desc& desc, const trial& t, operand& a, operand& b, const C& c,
                int& fused_residuals) {
  const auto with = [&](const auto& left, const auto& right) {
    fused_residuals += residual_fused<Backends>(desc, t, left, right, c) ? 1 : 0;
    return gemm<Backends>(executor, desc, left, right, c);
  };
  const auto with_b = [&](const auto& left) {
    if (t.weights != 0) {
      const gemm_weights kept(b.view(), t.weights == 1 ? weight_reuse::few : weight_reuse::many);
      if (const status s = serve_before<Backends>(executor, desc, t, kept); !s) return s;
      return with(left, kept);
    }
    if (b.storage == gemm_storage::f32) return with(left, b.f32.view());
    return with(left, b.halves());
  };
  return a.storage == gemm_storage::f32 ? with_b(a.f32.view()) : with_b(a.halves());
}

template <class Backends, class Executor>
double worst_of(Executor&& executor, const trial& t, std::mt19937_64& random,
                int* fused_residuals = nullptr) {
  guarded_memory memory;
  context ctx{executor};
  ctx.memory = &memory;
  int fused = 0;
  const double worst = worst_error_of(
      [&](const gemm_desc& desc, operand& a, operand& b, operand& c) {
        return t.c == gemm_storage::f32 ? run_with<Backends>(ctx, desc, t, a, b, c.f32.view(), fused)
                                        : run_with<Backends>(ctx, desc, t, a, b, c.halves(), fused);
      },
      t, random);
  REQUIRE(memory.intact);
  if (fused_residuals != nullptr) *fused_residuals += fused;
  return worst;
}

/// Returns how many trials had a residual that oneDNN added.
template <class Backends>
int many_trials(int count, values kind) {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  int fused_residuals = 0;
#if DEEPREC_TEST_TSAN
  count /= 10;  // one thread: nothing to find
#endif
  for (int i = 0; i < count; ++i) {
    trial t = random_trial(random);
    t.kind = kind;
    INFO(said(t));
    CHECK(worst_of<Backends>(here, t, random, &fused_residuals) <= 1);
  }
  return fused_residuals;
}

#if defined(DEEPREC_WITH_ONEDNN)
/// What a plan is and gives, as a child with this many OpenMP threads sees it.
struct plan_facts {
  std::size_t scratch_bytes = 0;
  char implementation[64] = {};
  std::uint64_t bits = 0;
  int threads_started = 0;
};

int run_plan(const gemm_backend::plan& plan, const void* packed_b, plan_facts& facts) {
  const gemm_backend::problem& q = plan.query;
  std::vector<float> a(static_cast<std::size_t>(600 * 600), 1.25F),
      b(static_cast<std::size_t>(1024 * 1024), 0.5F), c(static_cast<std::size_t>(q.m * q.c_stride));
  std::vector<char> memory(plan.scratch_bytes + 64);
  void* scratch = memory.data();
  std::size_t room = memory.size();
  std::align(64, plan.scratch_bytes, scratch, room);
  const gemm_backend::args at{.a = a.data(),
                              .b = packed_b != nullptr ? packed_b : b.data(),
                              .c = c.data(),
                              .scratch = scratch,
                              .instruction_set = active_isa()};
  if (!plan.run(plan, at).ok()) return 4;
  facts.bits = hash_bytes({reinterpret_cast<const char*>(c.data()), c.size() * sizeof(float)}, 0);
  return 0;
}

int plans_in_child(int threads, const std::vector<gemm_backend::problem>& asked,
                   std::vector<plan_facts>& found) {
  const std::size_t bytes = asked.size() * sizeof(plan_facts);
  void* const shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto* const facts = static_cast<plan_facts*>(shared);
  const int code = deeprec_test::in_child([&] {
#  if DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
    omp_set_num_threads(threads);
#  endif
    const int threads_before = deeprec_test::threads_of_this_process();  // a sanitizer may have its own
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const gemm_backend::plan plan = onednn_gemm::plan(asked[i]);
      if (plan.run == nullptr) continue;
      facts[i].scratch_bytes = plan.scratch_bytes;
      std::strncpy(facts[i].implementation, plan.implementation, 63);
      gemm_backend::packed packed;
      if (asked[i].packed) {
        const std::vector<float> b(1024 * 1024, 0.5F);
        const auto made = onednn_gemm::pack(b.data(), asked[i].k, asked[i].n, asked[i].b, asked[i].inputs,
                                            std::pmr::new_delete_resource());
        if (!made) return 3;
        packed = made.value();
      }
      if (const int no = run_plan(plan, packed.data.get(), facts[i]); no != 0) return no;
      facts[i].threads_started = deeprec_test::threads_of_this_process() - threads_before;
    }
    return 0;
  });
  std::copy_n(facts, asked.size(), found.begin());
  munmap(shared, bytes);
  return code;
}

int multiply_by_read_only(index_t k, index_t n, gemm_storage storage) {
  const std::vector<float> b(static_cast<std::size_t>(n * k), 0.5F);
  const gemm_backend::packed packed =
      onednn_gemm::pack(b.data(), k, n, gemm_operand::transposed, storage, std::pmr::new_delete_resource())
          .or_throw();
  const gemm_backend::plan plan = onednn_gemm::plan({.m = 64,
                                                     .n = n,
                                                     .k = k,
                                                     .a_stride = k,
                                                     .c_stride = n,
                                                     .b = gemm_operand::transposed,
                                                     .inputs = storage,
                                                     .packed = true});
  if (packed.data == nullptr || plan.run == nullptr) return 3;
  void* const pages = mmap(nullptr, packed.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return 5;
  std::memcpy(pages, packed.data.get(), packed.bytes);
  if (mprotect(pages, packed.bytes, PROT_READ) != 0) return 5;
  plan_facts facts;
  return run_plan(plan, pages, facts);
}
#endif

// Wrong on purpose: says that it adds the bias.
struct biasless : eigen_gemm {
  static status can_run(gemm_backend::problem q) {
    q.bias = false;
    return eigen_gemm::can_run(q);
  }
  static gemm_backend::plan plan(gemm_backend::problem q) {
    q.bias = false;
    return eigen_gemm::plan(q);  // also where it can't do the rest
  }
};
// Wrong on purpose: makes a 0 of a NaN.
struct nanless : eigen_gemm {
  static gemm_backend::plan plan(const gemm_backend::problem& q) {
    gemm_backend::plan made = eigen_gemm::plan(q);
    made.run = [](const gemm_backend::plan& p, const gemm_backend::args& at) {
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
  [[maybe_unused]] const int fused_residuals = many_trials<onednn_first>(150, values::normal);
#if !defined(DEEPREC_WITH_ONEDNN)
  CHECK(fused_residuals == 0);
#elif !DEEPREC_TEST_TSAN  // fewer trials
  CHECK((fused_residuals > 0) == by_onednn());
#endif
}

TEST_CASE("gemm: steps composed on tiles are within the bound of those that a backend fuses") {
  many_trials<composing>(150, values::normal);
}

TEST_CASE("gemm: sums that cancel, denormals, infinities and NaN are within the bound") {
  for (const values kind : {values::cancelling, values::tiny, values::with_infinities}) {
    many_trials<eigen>(60, kind);
    many_trials<host_gemm_backends>(60, kind);
    many_trials<onednn_first>(60, kind);
  }
}

TEST_CASE("gemm: a million products in a sum are within the bound in every math") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
#if DEEPREC_TEST_TSAN
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
  trial coarse{.m = 30, .n = 30, .k = 3, .desc = {.math = gemm_math::forced_bf16}};
  CHECK(worst_of<eigen>(here, coarse, random) <= 1);
  operand a(30, 3, gemm_storage::f32), b(3, 30, gemm_storage::f32), exact(30, 30, gemm_storage::f32);
  a.fill(random, values::normal);
  b.fill(random, values::normal);
  operand rounded = exact;
  REQUIRE(gemm<eigen>(here, {}, a.f32.view(), b.f32.view(), exact.f32.view()).ok());
  REQUIRE(gemm<eigen>(here, {.math = gemm_math::forced_bf16}, a.f32.view(), b.f32.view(), rounded.f32.view())
              .ok());
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
    gemm_desc desc{
        .math = math,
        .activation = gemm_activation::sigmoid,
        .batch = {.count = 3, .a_batch_stride = 5 * 7, .b_batch_stride = 7 * 6, .c_batch_stride = 5 * 6}};
    const gemm_desc one{.math = math, .activation = gemm_activation::sigmoid};
    REQUIRE(gemm(here, desc, a.view().rows(0, 5), b.view().rows(0, 7), c.view().rows(0, 5)).ok());
    for (index_t i = 0; i < 3; ++i) {
      REQUIRE(gemm(here, one, a.view().rows(5 * i, 5), b.view().rows(7 * i, 7), alone.view()).ok());
      CHECK(same_bits(c.view().rows(5 * i, 5), alone.view()));
    }
    desc.batch.b_batch_stride = 0;  // one b for all
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
    REQUIRE(gemm(crew, {.a = gemm_operand::transposed, .bias_gradient = db.view()}, dy.view(), x.view(),
                 dw.view())
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

TEST_CASE("gemm: the mask in bits does what the mask by values does, for the layers of a model") {
  std::mt19937_64 random(deeprec_test::seed());
  for (const index_t n : {1, 63, 64, 65, 200}) {
    for (const index_t m : {1, 3, 300}) {
      for (const gemm_math math : maths) {
        matrix x(m, 20), w(n, 20), y(m, n, 5), dy(m, 7), w2(7, n), dx(m, n, 1), again(m, n, 2), sums(1, n),
            sums_again(1, n);
        for (matrix* v : {&x, &w, &dy, &w2}) v->fill(random);
        bits positive(m, n, bit_matrix_view<std::uint64_t>::stride_for(n));
        inline_executor here;
        gemm_desc forward{.b = gemm_operand::transposed, .math = math, .activation = gemm_activation::relu};
        forward.relu_bits = positive.view();
        REQUIRE(gemm(here, forward, x.view(), w.view(), y.view()).ok());
        REQUIRE(gemm(here, {.math = math, .mask = y.view(), .column_sums = sums.view()}, dy.view(), w2.view(),
                     dx.view())
                    .ok());
        for (const int threads : thread_counts) {
          scrambled_threads crew(threads);
          bits read_again(m, n, positive.stride_);
          forward.relu_bits = read_again.view();
          matrix y_again(m, n);
          REQUIRE(gemm(crew, forward, x.view(), w.view(), y_again.view()).ok());
          CHECK(std::equal(positive.words.begin() + static_cast<std::ptrdiff_t>(positive.first),
                           positive.words.begin() + static_cast<std::ptrdiff_t>(positive.first) + m,
                           read_again.words.begin() + static_cast<std::ptrdiff_t>(read_again.first)));
          const gemm_desc back{.math = math, .mask_bits = positive.view(), .column_sums = sums_again.view()};
          REQUIRE(gemm(crew, back, dy.view(), w2.view(), again.view()).ok());
          CHECK(again.padding_untouched());
          CHECK(same_bits(dx, again));
          CHECK(same_bits(sums, sums_again));
          gemm_desc unsummed = back;  // rows in pieces of their own
          unsummed.column_sums = {};
          matrix masked(m, n);
          REQUIRE(gemm(crew, unsummed, dy.view(), w2.view(), masked.view()).ok());
          CHECK(same_bits(dx, masked));
        }
      }
    }
  }
}

TEST_CASE("gemm: bits and sums that are wrong are caught by the oracle") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  // Wrong on purpose: each forgets, or moves by one, what it was given.
  const auto with = [&](const trial& t, const auto& spoil) {
    return worst_error_of(
        [&](const gemm_desc& wanted, operand& a, operand& b, operand& c) {
          gemm_desc desc = wanted;
          spoil(desc);
          return gemm(here, desc, a.f32.view(), b.f32.view(), c.f32.view());
        },
        t, random);
  };
  trial forward{.m = 9, .n = 70, .k = 5};
  forward.desc.activation = gemm_activation::relu;
  forward.relu_bits = true;
  const trial back{.m = 9, .n = 70, .k = 5, .mask_bits = true, .column_sums = true};
  CHECK(with(forward, [](gemm_desc&) {}) <= 1);
  CHECK(with(back, [](gemm_desc&) {}) <= 1);
  CHECK(with(forward, [](gemm_desc& d) { d.relu_bits = {}; }) > 1);
  CHECK(with(forward, [](gemm_desc& d) {
          const auto v = d.relu_bits;
          d.relu_bits = {v.data_handle(), v.extent(0), v.extent(1), v.stride(0) - 128};
        }) > 1);
  CHECK(with(back, [](gemm_desc& d) { d.mask_bits = {}; }) > 1);
  CHECK(with(back, [](gemm_desc& d) {
          const auto v = d.mask_bits;
          d.mask_bits = {v.data_handle() + 1, v.extent(0), v.extent(1), v.stride(0)};
        }) > 1);
  CHECK(with(back, [](gemm_desc& d) { d.column_sums = {}; }) > 1);
}

TEST_CASE("gemm: bits and sums of nothing, and those that don't fit are named") {
  inline_executor here;
  matrix a(2, 3), b(3, 4), c(2, 4), sums(1, 4), wrong(1, 2), nothing(0, 3), no_rows(0, 4);
  std::vector<std::uint64_t> words(64);
  const auto of = [&](index_t rows, index_t columns, index_t stride = 128) {
    return bit_matrix_view<std::uint64_t>(words.data(), rows, columns, stride);
  };
  const auto relu = gemm_activation::relu;
  const auto says = [&](const gemm_desc& d, errc code, const char* what) {
    const status s = gemm(here, d, a.view(), b.view(), c.view());
    INFO(s.message());
    return s.code() == code && s.message().find(what) != std::string::npos;
  };
  const auto shape = errc::shape_mismatch, no = errc::unsupported;
  CHECK(says({.column_sums = wrong.view()}, shape, "column_sums must be (1,N)"));
  CHECK(says({.activation = relu, .relu_bits = of(2, 5)}, shape, "relu_bits must be (M,N)"));
  CHECK(says({.activation = relu, .relu_bits = of(3, 4)}, shape, "relu_bits must be (M,N)"));
  CHECK(says({.activation = relu, .relu_bits = of(2, 4, 64)}, shape, "the row stride of relu_bits"));
  CHECK(says({.activation = relu, .relu_bits = of(2, 4, 0)}, shape, "the row stride of relu_bits"));
  CHECK(says({.mask_bits = of(2, 5)}, shape, "mask_bits must be (M,N)"));
  CHECK(says({.mask_bits = of(2, 4, 192)}, shape, "the row stride of mask_bits"));
  CHECK(says({.relu_bits = of(2, 4)}, no, "relu_bits need the activation relu"));
  CHECK(says({.activation = relu, .relu_bits = of(2, 4), .mask = c.view()}, no,
             "must be absent where c is masked"));
  CHECK(says({.activation = relu, .relu_bits = of(2, 4), .mask_bits = of(2, 4)}, no,
             "must be absent where c is masked"));
  CHECK(says({.mask = c.view(), .mask_bits = of(2, 4)}, no, "mask and mask_bits"));
  for (gemm_desc d : {gemm_desc{.activation = relu, .relu_bits = of(2, 4)}, gemm_desc{.mask_bits = of(2, 4)},
                      gemm_desc{.column_sums = sums.view()}}) {
    CHECK(gemm(here, d, a.view(), b.view(), c.view()).ok());
    CHECK(explain_gemm(d, a.view(), b.view(), c.view()).find("in a pass over c") != std::string::npos);
    d.batch.count = 2;
    d.batch.c_batch_stride = 8;
    CHECK(says(d, no, "must be absent in a batch"));
  }
  CHECK(explain_gemm({}, a.view(), b.view(), c.view()).find("in a pass over c") == std::string::npos);
  sums(0, 3) = 7;  // no rows: they sum to zero
  REQUIRE(gemm(here, {.column_sums = sums.view()}, nothing.view(), b.view(), no_rows.view()).ok());
  CHECK(sums(0, 3) == 0);
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
  CHECK(says({.bias = wrong.view()}, "bias must be (1,N)"));
  CHECK(says({.residual = wrong.view()}, "residual must be (M,N)"));
  CHECK(says({.mask = wrong.view()}, "mask must be (M,N)"));
  CHECK(says({.bias_gradient = bias.view()}, "bias_gradient must be (1,M)"));
  CHECK(says({.batch = {.count = -1}}, "batch.count must not be negative"));
}

namespace {
struct no_memory : std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override { return refuse(bytes); }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  [[noreturn]] static void* refuse(std::size_t) { throw std::bad_alloc(); }
};
struct refusing : eigen_gemm {
  static constexpr const char* name = "refusing";
  static status can_run(const gemm_backend::problem&) { return {errc::unsupported, "no"}; }
  static gemm_backend::plan plan(const gemm_backend::problem& q) { return {.query = q}; }
};
struct failing : eigen_gemm {
  static constexpr const char* name = "failing";
  static gemm_backend::plan plan(const gemm_backend::problem& q) {
    gemm_backend::plan made = eigen_gemm::plan(q);
    if (made.run != nullptr)
      made.run = [](const gemm_backend::plan&, const gemm_backend::args&) {
        return status{errc::unsupported, "no"};
      };
    return made;
  }
};
// Fails on every tile, with the tile's first element of c as the place.
struct failing_somewhere : eigen_gemm {
  static constexpr const char* name = "failing somewhere";
  static inline const float* first = nullptr;
  static gemm_backend::plan plan(const gemm_backend::problem& q) {
    gemm_backend::plan made = eigen_gemm::plan(q);
    if (made.run != nullptr)
      made.run = [](const gemm_backend::plan&, const gemm_backend::args& at) {
        return status{errc::io_error, "no", {.position = static_cast<const float*>(at.c) - first}};
      };
    return made;
  }
};
}  // namespace

TEST_CASE("gemm: of tiles that fail, the first one's fault is returned, for any number of threads") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix a(900, 40), b(40, 900), c(900, 900);
  for (matrix* m : {&a, &b}) m->fill(random);
  failing_somewhere::first = c.view().data_handle();
  for (const int threads : {1, 2, 4}) {
    thread_pool pool(threads);
    const status s = gemm<gemm_backends<failing_somewhere>>(pool, {}, a.view(), b.view(), c.view());
    CHECK(s.message() == "input or output error: gemm: no; position 0");
  }
}

TEST_CASE("gemm: where it refuses, every output is as it was") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix a(20, 30), b(30, 70), c(20, 70), sums(1, 70), gradient(1, 20), wrong(1, 3);
  for (matrix* m : {&a, &b}) m->fill(random);
  std::vector<std::uint64_t> words(64);
  const auto untouched = [&](const auto& call, errc code) {
    for (matrix* m : {&c, &sums, &gradient}) std::fill(m->storage.begin(), m->storage.end(), 3.0F);
    std::fill(words.begin(), words.end(), 3U);
    const status s = call();
    INFO(s.message());
    CHECK(s.code() == code);
    bool same = std::count(words.begin(), words.end(), 3U) == 64;
    for (matrix* m : {&c, &sums, &gradient}) {
      same = same && std::count(m->storage.begin(), m->storage.end(), 3.0F) ==
                         static_cast<std::ptrdiff_t>(m->storage.size());
    }
    return same;
  };
  const bit_matrix_view<std::uint64_t> bits(words.data(), 20, 70, 128);
  for (const bool forward : {true, false}) {
    for (const gemm_math math : maths) {
      gemm_desc desc{.math = math};
      if (forward) {
        desc.activation = gemm_activation::relu;
        desc.relu_bits = bits;
      } else {
        desc.mask_bits = bits;
      }
      desc.column_sums = sums.view();
      desc.bias_gradient = gradient.view();
      const auto by = [&](auto backends, const gemm_desc& d) {
        return [&, d] { return gemm<decltype(backends)>(here, d, a.view(), b.view(), c.view()); };
      };
      CHECK(untouched(by(gemm_backends<refusing>{}, desc), errc::unsupported));
      CHECK(untouched(by(gemm_backends<failing>{}, desc), errc::unsupported));
      gemm_desc bad = desc;
      bad.bias = wrong.view();
      CHECK(untouched(by(eigen{}, bad), errc::shape_mismatch));
      bad = desc;
      bad.batch.count = 2;
      CHECK(untouched(by(eigen{}, bad), errc::unsupported));
      bad = desc;
      bad.column_sums = wrong.view();
      CHECK(untouched(by(eigen{}, bad), errc::shape_mismatch));
#if DEEPREC_EXCEPTIONS
      no_memory none;
      context ctx{here};
      ctx.memory = &none;
      CHECK(untouched([&] { return gemm(ctx, desc, a.view(), b.view(), c.view()); }, errc::out_of_memory));
#endif
    }
  }
}

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("gemm: oneDNN gets the scratch that it writes, not only the one that it asks for") {
  if (deeprec_test::lacks(by_onednn(), "a DEEPREC_ISA that oneDNN keeps to, such as avx2")) return;
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const index_t k : {70, 200, 1000}) {
    for (const index_t m : {1, 2, 3}) {
      CHECK(worst_of<gemm_backends<onednn_gemm>>(here, {.m = m, .n = 2, .k = k}, random) <= 1);
    }
  }
}

// The frame of a handler lies where the stack register points: with oneDNN's own, in the heap.
std::atomic<int> frames_on_the_stack{0}, frames_elsewhere{0};
std::uintptr_t lowest_of_the_stack = 0, end_of_the_stack = 0;

void note_frame(int) {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  (here >= lowest_of_the_stack && here < end_of_the_stack ? frames_on_the_stack : frames_elsewhere)
      .fetch_add(1);
}

TEST_CASE("gemm: a signal that comes while oneDNN multiplies overwrites no memory") {
  struct sigaction noting{}, before{};
  noting.sa_handler = note_frame;
  REQUIRE(sigaction(SIGUSR1, &noting, &before) == 0);
  frames_on_the_stack = frames_elsewhere = 0;
  std::atomic<pthread_t> multiplier{};
  std::atomic<bool> ready{false}, done{false};
  std::thread worker([&] {
    pthread_attr_t facts;
    void* lowest = nullptr;
    std::size_t bytes = 0;
    pthread_getattr_np(pthread_self(), &facts);
    pthread_attr_getstack(&facts, &lowest, &bytes);
    pthread_attr_destroy(&facts);
    lowest_of_the_stack = reinterpret_cast<std::uintptr_t>(lowest);
    end_of_the_stack = lowest_of_the_stack + bytes;
    multiplier = pthread_self();
    ready = true;
    inline_executor here;
    matrix a(256, 64), b(256, 796), c(64, 796);
    const gemm_desc desc{.a = gemm_operand::transposed};
    while (frames_on_the_stack + frames_elsewhere < 500) {
      if (!gemm<onednn_first>(here, desc, a.view(), b.view(), c.view())) break;
    }
    done = true;
  });
  while (!ready) std::this_thread::yield();
  while (!done) {
    pthread_kill(multiplier, SIGUSR1);
    std::this_thread::yield();
  }
  worker.join();
  sigaction(SIGUSR1, &before, nullptr);
  CHECK(frames_on_the_stack >= 500);
  CHECK(frames_elsewhere == 0);
}

TEST_CASE("gemm: bf16 products don't read past the end of an odd k") {
  if (deeprec_test::lacks(bf16_by_onednn(), bf16_profile)) return;
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
      REQUIRE(gemm(here, {.b = gemm_operand::transposed, .math = gemm_math::forced_bf16},
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
  gemm_backend::problem q = wide_bf16_layer();
  q.instruction_set = active_isa();
  matrix x(64, 256), w(512, 256), y(64, 512);
  const std::string text = explain_gemm({.b = gemm_operand::transposed, .math = gemm_math::forced_bf16},
                                        x.view(), w.view(), y.view());
  INFO(text);
  if (deeprec_test::lacks(bf16_by_onednn(), bf16_profile)) {
    CHECK_FALSE(onednn_gemm::can_run(q));
    CHECK(text.find("rounded to bf16") != std::string::npos);
    return;
  }
  for (const bool packed : {false, true}) {
    gemm_backend::problem asked = q;
    asked.packed = packed;
    const std::string name = onednn_gemm::plan(asked).implementation;
    INFO(name);
    CHECK((name.find("bf16") != std::string::npos || name.find("amx") != std::string::npos));
  }
  CHECK(text.find("bf16") != std::string::npos);
  CHECK(text.find("a narrowed to bf16") != std::string::npos);
}

TEST_CASE(
    "gemm: oneDNN's plans are the same whatever OpenMP's number of threads, and no product starts a thread") {
  // Wide and narrow, whole blocks and padded ones, plain and packed, as a layer forward and backward
  // multiplies.
  std::vector<gemm_backend::problem> asked;
  for (const gemm_storage inputs : storages) {
    for (const index_t k : {480, 479, 13}) {
      asked.push_back({.m = 256,
                       .n = 1024,
                       .k = k,
                       .a_stride = k,
                       .b_stride = k,
                       .c_stride = 1024,
                       .b = gemm_operand::transposed,
                       .inputs = inputs});
      asked.push_back(asked.back());
      asked.back().packed = true;
      asked.push_back(
          {.m = 16, .n = k, .k = 512, .a_stride = 512, .b_stride = k, .c_stride = k, .inputs = inputs});
      asked.push_back({.m = 100,
                       .n = k,
                       .k = 512,
                       .a_stride = 100,
                       .b_stride = k,
                       .c_stride = k,
                       .a = gemm_operand::transposed,
                       .inputs = inputs});
    }
  }
  std::vector<plan_facts> first(asked.size());
  for (const int threads : {1, 8, 64}) {
    std::vector<plan_facts> found(asked.size());
    REQUIRE(plans_in_child(threads, asked, found) == 0);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      CAPTURE(i);
      CAPTURE(threads);
      if (threads == 1) {
        first[i] = found[i];
        CHECK((found[i].scratch_bytes > 0 || std::strlen(found[i].implementation) > 0 ||
               asked[i].inputs != gemm_storage::f32));
      }
      CHECK(found[i].scratch_bytes == first[i].scratch_bytes);
      CHECK(std::string(found[i].implementation) == first[i].implementation);
      CHECK(found[i].bits == first[i].bits);
      CHECK(found[i].threads_started == 0);
    }
  }
}

TEST_CASE("gemm: packed weights are only read") {
  for (const gemm_storage storage : storages) {
    if (storage == gemm_storage::bf16 && deeprec_test::lacks(bf16_by_onednn(), bf16_profile)) continue;
    for (const index_t k : {480, 479, 13}) {
      for (const index_t n : {1024, 100, 33}) {
        CAPTURE(k);
        CAPTURE(n);
        CHECK(deeprec_test::in_child([&] { return multiply_by_read_only(k, n, storage); }) == 0);
      }
    }
  }
}

TEST_CASE("gemm: oneDNN keeps to the instruction set of the process and of the context") {
  // A process of its own, in which nothing has used oneDNN yet.
  const auto explained = [](const char* wanted) {
    char path[PATH_MAX + 1] = {};
    REQUIRE(readlink("/proc/self/exe", path, PATH_MAX) > 0);
    const std::string command = std::string("DEEPREC_ISA=") + wanted + " '" + path +
                                "' --no-skip=true --test-case='gemm: tells a parent*' 2>/dev/null";
    std::FILE* const child = popen(command.c_str(), "r");
    REQUIRE(child != nullptr);
    std::string answer;
    char line[512];
    while (std::fgets(line, sizeof(line), child) != nullptr) {
      if (std::strncmp(line, "explained ", 10) == 0) answer = line + 10;
    }
    pclose(child);
    return answer;
  };
  matrix x(64, 256), w(512, 256), y(64, 512);
  for (const isa wanted : every_isa) {
    if (wanted > best_isa()) continue;
    const std::string text = explained(to_string(wanted));
    INFO(text);
    CHECK_FALSE(text.empty());
    if (wanted < isa::avx512) CHECK(text.find("avx512") == std::string::npos);
    if (wanted < isa::avx512_bf16) CHECK(text.find("bf16)") == std::string::npos);
    CHECK((text.rfind("oneDNN", 0) == 0) == (wanted == best_isa() || wanted > isa::portable));
    inline_executor here;
    context ctx{here};
    ctx.instruction_set = wanted;
    const bool honoured = wanted == best_isa() || wanted >= detail::onednn_isa();
    const gemm_desc desc{.b = gemm_operand::transposed};
    CHECK(gemm<gemm_backends<onednn_gemm>>(ctx, desc, x.view(), w.view(), y.view()).code() ==
          (honoured ? errc::ok : errc::unsupported));
    CHECK(gemm(ctx, desc, x.view(), w.view(), y.view()).ok());
  }
}

TEST_CASE("gemm: tells a parent who multiplies" * doctest::skip()) {
  matrix x(64, 256), w(512, 256), y(64, 512);
  const std::string text = explain_gemm({.b = gemm_operand::transposed, .math = gemm_math::forced_bf16},
                                        x.view(), w.view(), y.view());
  std::printf("explained %s\n", text.c_str());
}

TEST_CASE("gemm: after warm-up, changing batch sizes make no primitive and cast no weight") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  matrix x(300, 40), w(50, 40), y(300, 50);
  x.fill(random);
  w.fill(random);
  const gemm_weights kept(w.view());
  const auto multiply = [&](index_t m) {
    const gemm_desc desc{
        .b = gemm_operand::transposed, .math = gemm_math::forced_bf16, .activation = gemm_activation::relu};
    REQUIRE(gemm(here, desc, x.view().rows(0, m), kept, y.view().rows(0, m)).ok());
  };
  const auto all_sizes = [&] {
    for (index_t m = 1; m <= 300; m += 13) multiply(m);
  };
  all_sizes();
  const std::size_t made = onednn_gemm::cache_report().made;
  const std::uint64_t forms = kept.forms_made();
  for (index_t m = 16; m <= 300; m += 16) multiply(m);  // also sizes that were never multiplied
  all_sizes();
  CHECK(onednn_gemm::cache_report().made == made);
  for (index_t m = 1; m <= 300; ++m) multiply(m);  // the last rows: 15 sizes, fused and not
  CHECK(onednn_gemm::cache_report().made - made <= 2 * 15);
  CHECK(kept.forms_made() == forms);
  CHECK(onednn_gemm::cache_report().kept <= onednn_gemm::cache_report().capacity);
}

TEST_CASE("gemm: in training, a new batch size makes a primitive for one of few sizes, and seldom") {
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  for (const gemm_math math : maths) {
    for (const index_t out : {48, 130}) {
      constexpr index_t in = 70, most = 512;
      matrix x(most, in), dy(most, out), w(out, in), dw(out, in), dx(most, in);
      for (matrix* m : {&x, &dy, &w}) m->fill(random);
      const gemm_weights kept(w.view(), weight_reuse::few);
      const auto backward = [&](index_t m) {
        REQUIRE(gemm(here, {.a = gemm_operand::transposed, .math = math}, dy.view().rows(0, m),
                     x.view().rows(0, m), dw.view())
                    .ok());
        REQUIRE(gemm(here, {.math = math}, dy.view().rows(0, m), kept, dx.view().rows(0, m)).ok());
      };
      const auto made_by = [&](index_t from, index_t to) {
        const std::size_t before = onednn_gemm::cache_report().made;
        for (index_t m = from; m < to; ++m) backward(m);
        return onednn_gemm::cache_report().made - before;
      };
      CAPTURE(static_cast<int>(math));
      CAPTURE(out);
      made_by(64, 128);  // all sizes of last rows
      // Eight depths, each in place or filled up, for two kinds of rows; and the rows of dx.
      CHECK(made_by(128, 192) <= 8 * 2 * 2 + 4);
      CHECK(made_by(192, 256) <= 8 * 2 * 2 + 4);
      CHECK(made_by(256, 512) <= 64);
      CHECK(made_by(64, 512) == 0);
    }
  }
}
#endif

TEST_CASE("gemm: an operand is cast to the same bits with every instruction set, whoever cast it first") {
  std::mt19937_64 random(deeprec_test::seed());
  constexpr index_t rows = 3, columns = 200;
  std::vector<float> from(rows * columns);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto exponent = static_cast<std::uint32_t>(i % 3 == 0   ? random() % 2
                                                     : i % 3 == 1 ? 255
                                                                  : random() % 256);
    from[i] =
        detail::bit_cast_to<float>((static_cast<std::uint32_t>(random()) & 0x807fffffU) | exponent << 23);
  }
  std::vector<bf16> halves(from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    halves[i] = bf16::from_bits(static_cast<std::uint16_t>(random()));
  using detail::conversion;
  for (const conversion how : {conversion::copy, conversion::widen, conversion::narrow,
                               conversion::round_bf16, conversion::round_tf32}) {
    for (const index_t width : {1, 15, 16, 17, 31, 33, 63, 64, 65, 100, 200}) {
      std::vector<std::vector<float>> made;
      for (const isa which : every_isa) {
        if (which > best_isa()) continue;
        std::vector<float>& to = made.emplace_back(from.size(), -7.0F);
        const bool half = how == conversion::widen;
        detail::convert_with(
            which, {how, half ? static_cast<const void*>(halves.data()) : from.data(), columns, to.data(),
                    width, rows, width, half ? gemm_storage::bf16 : gemm_storage::f32});
        CAPTURE(to_string(which));
        CAPTURE(static_cast<int>(how));
        CAPTURE(width);
        CHECK(std::memcmp(to.data(), made.front().data(), to.size() * sizeof(float)) == 0);
      }
    }
  }
  matrix x(1, 40), w(30, 40), y(1, 30), again(1, 30);  // and so products by what another context cast
  x.fill(random);
  w.fill(random);
  for (index_t p = 0; p < 40; ++p) w(3, p) = 1e-39F;
  for (index_t p = 0; p < 40; ++p) x(0, p) = 1e38F;
  inline_executor here;
  context best{here};
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    context other{here};
    other.instruction_set = which;
    const gemm_weights ours(w.view(), weight_reuse::few), theirs(w.view(), weight_reuse::few);
    const gemm_desc desc{.b = gemm_operand::transposed, .math = gemm_math::forced_bf16};
    REQUIRE(gemm(best, desc, x.view(), ours, y.view()).ok());
    REQUIRE(gemm(other, desc, x.view(), theirs, again.view()).ok());  // casts
    REQUIRE(gemm(best, desc, x.view(), theirs, again.view()).ok());
    CHECK(same_bits(y, again));
  }
}

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
  const gemm_desc desc{.math = gemm_math::forced_tf32};
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
  const gemm_desc desc{.math = gemm_math::forced_bf16};
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
  REQUIRE(gemm(here, {.math = gemm_math::forced_tf32}, a.view(), b.view(), c.view()).ok());
  for (float& x : a.storage) x = tf32_round(x);
  for (float& x : b.storage) x = tf32_round(x);
  REQUIRE(gemm(here, {}, a.view(), b.view(), again.view()).ok());
  CHECK(same_bits(c, again));
}
