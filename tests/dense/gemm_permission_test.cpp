// What a product does with a permission to round, and which machines and shapes decide it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <deeprec/dense/gemm/detail/gemm_arithmetic.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "dense/support.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

using unit = gemm_backend::bf16_unit;
constexpr gemm_desc layer{.b = gemm_operand::transposed};

/// Float operands, weights whose cast is kept.
constexpr detail::math_question float_layer(unit has, index_t m, index_t k, index_t n) {
  return {.math = gemm_math::bf16, .unit = has, .m = m, .n = n, .k = k, .casts_a = true};
}
bool takes_bf16(const detail::math_question& q) {
  return detail::choose_math(q).math == gemm_math::forced_bf16;
}

/// Multiplies bf16 factors as floats, and reports a unit for them.
template <unit Has>
struct machine : eigen_gemm {
  static constexpr const char* name = "machine";
  static inline int products_of_bf16 = 0;

  static unit bf16_products(isa) noexcept { return Has; }
  static gemm_backend::problem as_floats(gemm_backend::problem q) noexcept {
    q.inputs = gemm_storage::f32;
    return q;
  }
  static status can_run(const gemm_backend::problem& q) noexcept { return eigen_gemm::can_run(as_floats(q)); }
  static gemm_backend::plan plan(const gemm_backend::problem& q) noexcept {
    gemm_backend::plan made = eigen_gemm::plan(as_floats(q));
    made.query = q;
    made.implementation = name;
    if (made.run != nullptr) made.run = &run;
    return made;
  }

 private:
  static status run(const gemm_backend::plan& plan, const gemm_backend::args& at) {
    const gemm_backend::problem& q = plan.query;
    if (q.inputs == gemm_storage::f32) return eigen_gemm::plan(q).run(eigen_gemm::plan(q), at);
    ++products_of_bf16;
    const auto widened = [](const void* from, index_t count) {
      const auto* const p = static_cast<const bf16*>(from);
      return std::vector<float>(p, p + count);
    };
    const index_t a_rows = q.a == gemm_operand::normal ? q.m : q.k;
    const index_t b_rows = q.b == gemm_operand::normal ? q.k : q.n;
    const std::vector<float> a = widened(at.a, a_rows * q.a_stride), b = widened(at.b, b_rows * q.b_stride);
    gemm_backend::args floats = at;
    floats.a = a.data();
    floats.b = b.data();
    const gemm_backend::plan made = eigen_gemm::plan(as_floats(q));
    std::vector<char> scratch(made.scratch_bytes + 64);
    void* first = scratch.data();
    std::size_t room = scratch.size();
    floats.scratch = std::align(64, made.scratch_bytes, first, room);
    return made.run(made, floats);
  }
};

/// Reports AMX, and has no product of bf16 factors.
struct reluctant : machine<unit::tiles> {
  static constexpr const char* name = "reluctant";
  static gemm_backend::plan plan(const gemm_backend::problem& q) noexcept {
    if (q.inputs == gemm_storage::bf16) return {.query = q};
    return eigen_gemm::plan(q);
  }
  static status can_run(const gemm_backend::problem& q) noexcept {
    if (q.inputs == gemm_storage::bf16) return {errc::unsupported, "not today"};
    return eigen_gemm::can_run(q);
  }
};

template <class Backends>
matrix product(gemm_math math, matrix& x, matrix& w) {
  inline_executor here;
  matrix y(x.rows, w.rows);
  gemm_desc desc = layer;
  desc.math = math;
  REQUIRE(gemm<Backends>(here, desc, x.view(), w.view(), y.view()).ok());
  return y;
}

}  // namespace

TEST_CASE("gemm: the unit for bf16 factors follows from what a machine has") {
  CHECK(detail::unit_of({}) == unit::none);
  CHECK(detail::unit_of({.tiles = true, .full_rate = true}) == unit::none);  // refused to this context
  CHECK(detail::unit_of({.vectors = true}) == unit::slow_vectors);
  CHECK(detail::unit_of({.vectors = true, .full_rate = true}) == unit::vectors);
  CHECK(detail::unit_of({.vectors = true, .tiles = true}) == unit::tiles);
}

TEST_CASE("gemm: bf16 that is permitted is taken where a machine is known to be faster with it") {
  struct shape {
    index_t m, k, n;
  };
  constexpr shape wide[] = {{128, 256, 512}, {2048, 479, 1024}, {16, 64, 64}, {1, 512, 256}};
  for (const shape s : wide) {
    CHECK(takes_bf16(float_layer(unit::tiles, s.m, s.k, s.n)));
    CHECK(takes_bf16(float_layer(unit::vectors, s.m, s.k, s.n)));
    CHECK_FALSE(takes_bf16(float_layer(unit::slow_vectors, s.m, s.k, s.n)));
    CHECK_FALSE(takes_bf16(float_layer(unit::none, s.m, s.k, s.n)));
  }
  // A short k fills no tile; vectors don't mind.
  CHECK_FALSE(takes_bf16(float_layer(unit::tiles, 2048, 13, 512)));
  CHECK(takes_bf16(float_layer(unit::vectors, 2048, 13, 512)));
  // Few columns don't pay for the cast of a.
  CHECK_FALSE(takes_bf16(float_layer(unit::tiles, 2048, 32, 16)));
  CHECK(takes_bf16(float_layer(unit::tiles, 2048, 64, 16)));
  CHECK_FALSE(takes_bf16(float_layer(unit::tiles, 2048, 512, 8)));
  detail::math_question stored = float_layer(unit::tiles, 2048, 512, 8);
  stored.casts_a = false;
  CHECK(takes_bf16(stored));
  stored.unit = unit::slow_vectors;
  CHECK_FALSE(takes_bf16(stored));
  // Nor few rows for that of b, where it is not kept.
  detail::math_question by_view = float_layer(unit::tiles, 8, 512, 256);
  CHECK(takes_bf16(by_view));
  by_view.casts_b = true;
  CHECK_FALSE(takes_bf16(by_view));
  by_view.m = 128;
  CHECK(takes_bf16(by_view));
}

TEST_CASE("gemm: one layer with kept weights has one arithmetic for every batch size") {
  for (const unit has : {unit::slow_vectors, unit::vectors, unit::tiles}) {
    for (const index_t k : {1, 13, 24, 64, 479}) {
      for (const index_t n : {1, 16, 64, 1024}) {
        const bool first = takes_bf16(float_layer(has, 1, k, n));
        for (const index_t m : {2, 17, 128, 5000}) CHECK(takes_bf16(float_layer(has, m, k, n)) == first);
      }
    }
  }
}

TEST_CASE("gemm: a forced math and f32 are themselves on every machine, and tf32 is f32 on the host") {
  for (const unit has : {unit::none, unit::slow_vectors, unit::vectors, unit::tiles}) {
    for (const index_t k : {1, 512}) {
      for (const gemm_math math : {gemm_math::f32, gemm_math::forced_bf16, gemm_math::forced_tf32}) {
        const detail::chosen_math chosen =
            detail::choose_math({.math = math, .unit = has, .m = 1, .n = 1, .k = k, .casts_a = true});
        CHECK(chosen.math == math);
        CHECK(chosen.why_f32 == nullptr);
      }
      const detail::chosen_math chosen =
          detail::choose_math({.math = gemm_math::tf32, .unit = has, .m = 64, .n = 64, .k = k});
      CHECK(chosen.math == gemm_math::f32);
      CHECK(chosen.why_f32 != nullptr);
    }
  }
}

TEST_CASE("gemm: products of a permission are those of f32 or those of the forced math, by the machine") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix x(64, 256), w(128, 256), short_x(64, 13), short_w(128, 13);
  for (matrix* m : {&x, &w, &short_x, &short_w}) m->fill(random);
  using without = gemm_backends<machine<unit::none>>;
  using slow = gemm_backends<machine<unit::slow_vectors>>;
  using fast = gemm_backends<machine<unit::vectors>>;
  using amx = gemm_backends<thin_gemm, machine<unit::tiles>>;
  const matrix f32 = product<slow>(gemm_math::f32, x, w);
  const matrix rounded = product<slow>(gemm_math::forced_bf16, x, w);
  CHECK_FALSE(same_bits(f32, rounded));
  CHECK(machine<unit::slow_vectors>::products_of_bf16 > 0);  // forced: by the unit that there is
  machine<unit::slow_vectors>::products_of_bf16 = 0;

  CHECK(same_bits(product<without>(gemm_math::bf16, x, w), f32));
  CHECK(same_bits(product<slow>(gemm_math::bf16, x, w), f32));
  CHECK(machine<unit::slow_vectors>::products_of_bf16 == 0);
  CHECK(same_bits(product<fast>(gemm_math::bf16, x, w), rounded));
  CHECK(machine<unit::vectors>::products_of_bf16 > 0);
  CHECK(same_bits(product<amx>(gemm_math::bf16, x, w), rounded));
  CHECK(same_bits(product<amx>(gemm_math::bf16, short_x, short_w),
                  product<amx>(gemm_math::f32, short_x, short_w)));
  CHECK_FALSE(same_bits(product<amx>(gemm_math::forced_bf16, short_x, short_w),
                        product<amx>(gemm_math::f32, short_x, short_w)));
  for (const bool tf32 : {false, true}) {  // and without any backend for bf16
    using eigen = gemm_backends<eigen_gemm>;
    CHECK(same_bits(product<eigen>(tf32 ? gemm_math::tf32 : gemm_math::bf16, x, w),
                    product<eigen>(gemm_math::f32, x, w)));
    CHECK_FALSE(same_bits(product<eigen>(tf32 ? gemm_math::forced_tf32 : gemm_math::forced_bf16, x, w),
                          product<eigen>(gemm_math::f32, x, w)));
  }
}

TEST_CASE("gemm: explain_gemm returns what became of a permission, and why") {
  matrix x(64, 256), w(128, 256), y(64, 128), short_x(64, 13), short_w(128, 13);
  const auto explained = [&](auto backends, gemm_math math, matrix& a, matrix& b) {
    gemm_desc desc = layer;
    desc.math = math;
    return explain_gemm<decltype(backends)>(desc, a.view(), b.view(), y.view());
  };
  const auto holds = [](const std::string& text, const char* part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const gemm_backends<machine<unit::none>> without;
  const gemm_backends<machine<unit::slow_vectors>> slow;
  const gemm_backends<machine<unit::tiles>> amx;
  holds(explained(without, gemm_math::bf16, x, w),
        "; bf16 is permitted, f32 taken: no backend multiplies bf16 factors");
  holds(
      explained(slow, gemm_math::bf16, x, w),
      "; bf16 is permitted, f32 taken: this processor multiplies vectors of bf16 at half the rate of float");
  holds(explained(amx, gemm_math::bf16, x, w), "; bf16 is permitted, and taken");
  holds(explained(amx, gemm_math::bf16, short_x, short_w), "f32 taken: k is below 24");
  holds(explained(amx, gemm_math::tf32, x, w),
        "; tf32 is permitted, f32 taken: no unit of the host multiplies TF32 factors");
  for (const gemm_math math : {gemm_math::f32, gemm_math::forced_bf16, gemm_math::forced_tf32})
    CHECK(explained(slow, math, x, w).find("permitted") == std::string::npos);
  CHECK(explained(slow, gemm_math::forced_bf16, x, w).find("a narrowed to bf16") != std::string::npos);
}

TEST_CASE("gemm: a backend that refuses bf16 after all multiplies a permitted product in f32") {
  std::mt19937_64 random(deeprec_test::seed());
  matrix x(64, 256), w(128, 256), y(64, 128);
  for (matrix* m : {&x, &w}) m->fill(random);
  using backends = gemm_backends<reluctant>;
  CHECK(same_bits(product<backends>(gemm_math::bf16, x, w), product<backends>(gemm_math::f32, x, w)));
  gemm_desc desc = layer;
  desc.math = gemm_math::bf16;
  const std::string text = explain_gemm<backends>(desc, x.view(), w.view(), y.view());
  CHECK(text.find("f32 taken: the backend has no such product") != std::string::npos);
}

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("gemm: oneDNN's unit for bf16 is that of this machine, and of this context") {
  const unit has = onednn_gemm::bf16_products(active_isa());
  CHECK((has != unit::none) == ((std::min)(best_isa(), detail::onednn_isa()) == isa::avx512_bf16 &&
                                (active_isa() == best_isa() || active_isa() >= detail::onednn_isa())));
  if (detail::onednn_isa() == isa::avx512_bf16 && best_isa() == isa::avx512_bf16)
    CHECK(onednn_gemm::bf16_products(isa::avx2) == unit::none);
  if (has == unit::none) return;
  CHECK((has == unit::tiles) == detail::onednn_has_tiles());
  // What it is named by: the implementation that multiplies a wide layer.
  const gemm_backend::plan plan = onednn_gemm::plan(wide_bf16_layer());
  REQUIRE((plan.run != nullptr));
  const std::string name = plan.implementation;
  INFO(name);
  CHECK((name.find("amx") != std::string::npos) == (has == unit::tiles));
}
#endif
