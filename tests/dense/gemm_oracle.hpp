// What a product should be, in double, and trials of it: operands of either type, every step, and
// the bound that gemm() promises. Whoever multiplies is a callable, so host and device are held to
// one law.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/dense/gemm/gemm.hpp>

#include "dense/support.hpp"

namespace dense_test {

using namespace deeprec;

enum class values { normal, cancelling, tiny, with_infinities };

/// A matrix in float or bf16, with sentinels around it.
struct operand {
  operand(index_t rows, index_t columns, gemm_storage how, index_t pad = 3, index_t offset = 0)
      : f32(rows, columns, pad, offset),
        half(static_cast<std::size_t>(rows * f32.stride), bf16(99.0F)),
        storage(how) {}

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
  bool relu_bits = false, mask_bits = false, column_sums = false, bias_gradient = false;
  index_t pad = 3;  // of every matrix
  index_t residual_pad = 3;
  bool odd_b = false;              // infinities and NaN in b as well
  std::vector<index_t> batches{};  // rows of the products that kept weights served before this one
  index_t offset = 0;              // floats before bias, bias gradient and column sums
  bool on_card = false;            // GELU is cuBLASLt's
};

/// Bits with words around them that nobody may write.
struct bits {
  static constexpr std::uint64_t sentinel = 0x5a5a5a5a5a5a5a5a;

  bits(index_t rows, index_t columns, index_t stride)
      : rows_(rows),
        columns_(columns),
        stride_(stride),
        words(static_cast<std::size_t>(rows * stride / 64) + 64, sentinel) {
    const auto address = reinterpret_cast<std::uintptr_t>(words.data());
    first = 16 + (256 - address % 256) % 256 / 8 % 32;
  }
  bit_matrix_view<std::uint64_t> view() { return {words.data() + first, rows_, columns_, stride_}; }
  void fill(std::mt19937_64& random) {
    for (index_t w = 0; w < rows_ * stride_ / 64; ++w) words[first + static_cast<std::size_t>(w)] = random();
  }
  bool outside_untouched() const {
    for (std::size_t w = 0; w < words.size(); ++w) {
      const bool inside = w >= first && w < first + static_cast<std::size_t>(rows_ * stride_ / 64);
      if (!inside && words[w] != sentinel) return false;
    }
    return true;
  }

  index_t rows_, columns_, stride_;
  std::vector<std::uint64_t> words;
  std::size_t first = 0;
};

inline double activated(gemm_activation how, double x) {
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

/// The largest error over the documented bound: at most 1. Where double says NaN or infinity, so
/// must c. multiply(desc, a, b, c) -> status
template <class Multiply>
double worst_error_of(const Multiply& multiply, const trial& t, std::mt19937_64& random) {
  const bool a_turned = t.desc.a == gemm_operand::transposed;
  const bool b_turned = t.desc.b == gemm_operand::transposed;
  operand a(a_turned ? t.k : t.m, a_turned ? t.m : t.k, t.a, t.pad),
      b(b_turned ? t.n : t.k, b_turned ? t.k : t.n, t.b, t.pad);
  operand c(t.m, t.n, t.c, t.pad),
      residual(t.m, t.n, t.residual == 2 ? gemm_storage::bf16 : gemm_storage::f32, t.residual_pad);
  operand mask(t.m, t.n, t.c, t.pad), bias(1, t.n, gemm_storage::f32, t.pad, t.offset);
  matrix bias_gradient(1, t.m, t.pad, t.offset), column_sums(1, t.n, t.pad, t.offset);
  bits relu_bits(t.m, t.n, bit_matrix_view<std::uint64_t>::stride_for(t.n) + 128 * (t.pad % 2));
  bits mask_bits(t.m, t.n, bit_matrix_view<std::uint64_t>::stride_for(t.n + t.pad));
  a.fill(random, t.kind);
  b.fill(random, t.odd_b                             ? values::with_infinities
                 : t.kind == values::with_infinities ? values::normal
                                                     : t.kind);
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
  mask_bits.fill(random);

  gemm_desc desc = t.desc;
  if (t.bias) desc.bias = bias.f32.view();
  if (t.mask) desc.mask = mask.view();
  if (t.residual != 0) desc.residual = t.residual == 3 ? c.view() : residual.view();
  if (t.relu_bits) desc.relu_bits = relu_bits.view();
  if (t.mask_bits) desc.mask_bits = mask_bits.view();
  if (t.column_sums) desc.column_sums = column_sums.view();
  if (t.bias_gradient) desc.bias_gradient = bias_gradient.view();
  const operand before = c;
  const status done = multiply(desc, a, b, c);
  REQUIRE_MESSAGE(done.ok(), done.message());
  REQUIRE(c.from_halves());
  REQUIRE(c.f32.padding_untouched());
  REQUIRE(bias_gradient.padding_untouched());
  REQUIRE(column_sums.padding_untouched());
  REQUIRE(relu_bits.outside_untouched());

  const gemm_math math = detail::permission_of(t.desc.math);
  const double rounding = math == gemm_math::f32    ? 0
                          : math == gemm_math::bf16 ? 0x1p-7 + 0x1p-16
                                                    : 0x1p-10 + 0x1p-22;
  double worst = 0;
  for (index_t i = 0; i < t.m; ++i) {
    for (index_t j = 0; j < t.n; ++j) {
      double sum = 0, magnitude = 0, largest = 0;
      bool zero_by_infinity = false;  // a denormal that bf16 products take for a zero
      for (index_t p = 0; p < t.k; ++p) {
        const double x = a(t.desc.a, i, p), y = b(t.desc.b, p, j);
        const double small = std::min(std::abs(x), std::abs(y));
        zero_by_infinity =
            zero_by_infinity || (math == gemm_math::bf16 && std::isinf(x * y) && small < 0x1p-126);
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
      if (t.desc.activation > gemm_activation::relu) {
        // cuBLASLt rounds the sum to the type of c before it takes GELU, whose slope is below 1.2.
        if (t.on_card && t.c == gemm_storage::bf16) bound += 0x1p-8 * (std::abs(sum) + bound);
        bound = 1.2 * bound + (t.on_card ? 0x1p-18 : 0x1p-20) * (1 + std::abs(sum));
      }
      if (t.mask && !(mask(gemm_operand::normal, i, j) > 0)) {
        wanted = 0;
        if (c(gemm_operand::normal, i, j) != 0) return 1e9;
      }
      if (t.mask_bits && !mask_bits.view()(i, j)) {
        wanted = 0;
        if (c(gemm_operand::normal, i, j) != 0) return 1e9;
      }
      if (t.relu_bits && relu_bits.view()(i, j) != (c(gemm_operand::normal, i, j) > 0)) return 1e9;
      if (t.c == gemm_storage::bf16) bound += 0x1p-8 * (std::abs(wanted) + bound) + 0x1p-133;
      const double got = c(gemm_operand::normal, i, j);
      if (zero_by_infinity && std::isnan(got)) continue;
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
  const auto check_sum = [&](double got, index_t terms, const auto& term) {
    double sum = 0, magnitude = 0;
    for (index_t i = 0; i < terms; ++i) {
      sum += term(i);
      magnitude += std::abs(term(i));
    }
    if (!std::isfinite(magnitude)) {
      if (std::isfinite(got)) worst = 1e9;
      return;
    }
    const double bound = (64 + static_cast<double>(terms) / 64) * 0x1p-24 * magnitude;
    const double off = std::abs(got - sum);
    if (!(off <= bound)) worst = std::max(worst, bound > 0 && std::isfinite(off) ? off / bound : 1e9);
  };
  for (index_t j = 0; t.column_sums && j < t.n; ++j) {
    check_sum(static_cast<double>(column_sums(0, j)), t.m,
              [&](index_t i) { return c(gemm_operand::normal, i, j); });
  }
  for (index_t i = 0; t.bias_gradient && i < t.m; ++i) {
    check_sum(static_cast<double>(bias_gradient(0, i)), t.k, [&](index_t p) { return a(t.desc.a, i, p); });
  }
  return worst;
}

inline constexpr gemm_math maths[] = {gemm_math::f32, gemm_math::bf16, gemm_math::tf32,
                                      gemm_math::forced_bf16, gemm_math::forced_tf32};
inline constexpr gemm_storage storages[] = {gemm_storage::f32, gemm_storage::bf16};

inline trial random_trial(std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t n) { return static_cast<index_t>(random() % n); };
  constexpr index_t sizes[] = {1, 2, 7, 16, 33, 70, 130};
  trial t{.m = sizes[draw(7)], .n = sizes[draw(7)], .k = sizes[draw(7)]};
  t.desc.a = static_cast<gemm_operand>(draw(2));
  t.desc.b = static_cast<gemm_operand>(draw(2));
  t.desc.c = static_cast<gemm_output>(draw(2));
  t.desc.math = maths[draw(5)];
  t.desc.activation = static_cast<gemm_activation>(draw(5));
  t.a = storages[draw(2)];
  t.b = storages[draw(2)];
  t.c = storages[draw(2)];
  t.bias = draw(2) == 0;
  t.mask = draw(3) == 0;
  t.residual = static_cast<int>(draw(4));
  t.weights = static_cast<int>(draw(3));
  t.pad = draw(2) == 0 ? 3 : 0;
  t.residual_pad = draw(2) == 0 ? t.pad : t.pad + 2;
  t.odd_b = draw(8) == 0;
  if (draw(16) == 0) t.k = 290 + draw(30);              // several pieces of a sum over rows
  if (draw(16) == 0) t.n = draw(2) == 0 ? 1100 : 2048;  // more columns than a tile
  constexpr index_t batches[] = {1, 5, 64};
  for (index_t i = draw(3); t.weights != 0 && i > 0; --i) t.batches.push_back(batches[draw(3)]);
  t.relu_bits = t.desc.activation == gemm_activation::relu && !t.mask && draw(2) == 0;
  t.mask_bits = !t.mask && !t.relu_bits && draw(3) == 0;
  t.column_sums = draw(3) == 0;
  t.bias_gradient = draw(4) == 0;
  return t;
}

/// What cuBLASLt has an epilogue for.
inline trial device_trial(std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t n) { return static_cast<index_t>(random() % n); };
  constexpr index_t sizes[] = {1, 2, 7, 16, 33, 70, 130};
  trial t{.m = sizes[draw(7)], .n = sizes[draw(7)], .k = draw(12) == 0 ? 0 : sizes[draw(6)]};
  t.desc.a = static_cast<gemm_operand>(draw(2));
  t.desc.b = static_cast<gemm_operand>(draw(2));
  t.desc.c = static_cast<gemm_output>(draw(2));
  t.a = t.b = storages[draw(2)];
  t.desc.math = t.a == gemm_storage::f32 ? maths[draw(3)] : maths[draw(2)];
  t.c = t.a == gemm_storage::f32 ? gemm_storage::f32 : storages[draw(2)];
  const bool floats = t.c == gemm_storage::f32;
  constexpr gemm_activation activations[] = {gemm_activation::none, gemm_activation::relu,
                                             gemm_activation::gelu_tanh};
  switch (draw(3)) {
    case 0:
      t.desc.activation = activations[draw(3)];
      t.bias = floats && draw(2) == 0;
      t.relu_bits = t.desc.activation == gemm_activation::relu && draw(2) == 0;
      break;
    case 1:
      t.mask_bits = true;
      t.column_sums = floats && draw(2) == 0;
      break;
    default:
      t.bias_gradient = floats;
  }
  if (t.desc.c == gemm_output::overwrite && draw(2) == 0) t.residual = draw(2) == 0 ? 3 : floats ? 1 : 2;
  t.pad = draw(9);
  t.residual_pad = draw(2) == 0 ? t.pad : draw(9);
  t.offset = draw(9);
  return t;
}

inline std::string said(const trial& t) {
  const auto number = [](auto x) { return std::to_string(static_cast<long long>(x)) + ' '; };
  std::string batches;
  for (const index_t m : t.batches) batches += number(m);
  return "m n k " + number(t.m) + number(t.n) + number(t.k) + "as " + number(t.desc.a) + number(t.desc.b) +
         "adds " + number(t.desc.c) + "math " + number(t.desc.math) + "activation " +
         number(t.desc.activation) + "stored " + number(t.a) + number(t.b) + number(t.c) + "bias " +
         number(t.bias) + "mask " + number(t.mask) + "residual " + number(t.residual) + "weights " +
         number(t.weights) + "bits " + number(t.relu_bits) + number(t.mask_bits) + "sums " +
         number(t.column_sums) + number(t.bias_gradient) + "pad " + number(t.pad) + number(t.residual_pad) +
         "offset " + number(t.offset) + "odd b " + number(t.odd_b) + "batches before " + batches;
}

}  // namespace dense_test
