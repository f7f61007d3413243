// update() with every optimizer, with wrappers, and with the rounding policies: against apply_row.

#include <deeprec/embedding/training/update.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/batches.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 40, bags = 30;

template <class O>
row_layout room_for(index_t width) {
  return {.state_floats = O::row_state + O::element_state * width};
}

struct sampled {
  batch<std::int64_t, std::int64_t> made;
  std::vector<float> gradient;
  index_t width;

  explicit sampled(index_t d, std::uint64_t salt = 0) : width(d) {
    std::mt19937_64 random(seed() + static_cast<std::uint64_t>(d) + salt);
    made = make_batch(random, shape_of_batch::skewed, bags, rows, 4);
    std::normal_distribution<float> normal;
    gradient.resize(static_cast<std::size_t>(bags * d));
    for (float& g : gradient) g = normal(random);
  }
  matrix_view<const float> view() const { return {gradient.data(), bags, width}; }

  // Gradient of a row, slots in order, in double; empty when no bag uses it.
  std::vector<float> of_row(index_t r) const {
    std::vector<double> total;
    for (index_t b = 0; b < bags; ++b) {
      const auto begin = made.offsets[static_cast<std::size_t>(b)];
      const auto end = made.offsets[static_cast<std::size_t>(b + 1)];
      for (auto k = begin; k < end; ++k) {
        if (made.ids[static_cast<std::size_t>(k)] != r) continue;
        const float* const g = gradient.data() + b * width;
        total.resize(static_cast<std::size_t>(width));
        for (std::size_t j = 0; j < total.size(); ++j) total[j] += static_cast<double>(g[j]);
      }
    }
    return {total.begin(), total.end()};
  }
};

float* values_of(table_view<f32_rows> table, index_t r) {
  return static_cast<float*>(static_cast<void*>(table.row(r)));
}

// Three batches by update() and by apply_row, on every ISA; answers with the largest difference.
template <class O>
double worst_error(const O& optimizer, index_t width, bool forget_to_advance = false) {
  double worst = 0;
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    thread_pool pool(2);
    context ctx{pool};
    ctx.instruction_set = which;
    const f32_rows format(width, room_for<O>(width));
    dense_table<f32_rows> table(rows, format), reference(rows, format);
    table.initialize(pool, row_init::uniform{.seed = 5, .bound = 1.0F});
    reference.initialize(pool, row_init::uniform{.seed = 5, .bound = 1.0F});
    O by_update = optimizer, by_row = optimizer;
    for (std::uint64_t k = 0; k < 3; ++k) {
      const sampled batch(width, k);
      update(ctx, table.view(), batch.made.view(), combiner::sum, batch.view(), by_update).or_throw();
      for (index_t r = 0; r < rows; ++r) {
        const std::vector<float> g = batch.of_row(r);
        if (g.empty()) continue;
        float* const state = format.state(reference.view().row(r));
        apply_row(by_row, values_of(reference.view(), r), g.data(), state, width);
      }
      if (!forget_to_advance) next_step(by_update);
      next_step(by_row);
    }
    for (index_t r = 0; r < rows; ++r) {
      for (index_t j = 0; j < width; ++j) {
        const auto got = static_cast<double>(values_of(table.view(), r)[j]);
        const auto expected = static_cast<double>(values_of(reference.view(), r)[j]);
        worst = std::max(worst, std::fabs(got - expected));
      }
    }
  }
  return worst;
}

template <class O>
void check_rows(const O& optimizer) {
  for (const index_t width : {1, 5, 8, 16, 19, 35}) {
    CAPTURE(width);
    CHECK(worst_error(optimizer, width) < 2e-5);
  }
}

template <class T>
std::vector<float> decoded(dense_table<plain_rows<T>>& table) {
  const auto width = static_cast<std::size_t>(table.width());
  std::vector<float> values(static_cast<std::size_t>(table.rows()) * width);
  for (index_t r = 0; r < table.rows(); ++r) {
    table.format().decode(table.view().row(r), values.data() + static_cast<std::size_t>(r) * width);
  }
  return values;
}

}  // namespace

TEST_CASE("update: every optimizer steps rows as apply_row does") {
  check_rows(momentum{.learning_rate = 0.1F});
  check_rows(momentum{0.1F, 0.9F, momentum_kind::nesterov});
  check_rows(adagrad_decay{.learning_rate = 0.1F, .decay_every = 2});
  check_rows(rmsprop{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(centered_rmsprop{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(adam{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(rowwise_adam{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(adam_async{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(adam_async_rmsprop{.learning_rate = 0.1F, .epsilon = 1e-2F});
  check_rows(ftrl{.learning_rate = 0.1F, .l1 = 0.01F, .l2 = 0.1F});
  CHECK(worst_error(adam{.learning_rate = 0.1F}, 9, true) > 1e-3);
}

TEST_CASE("update: wrappers work on the gradient of the row, slots already summed") {
  check_rows(clipped_by_norm{sgd{.learning_rate = 0.5F}, 0.5F});
  const rowwise_adagrad inner{.learning_rate = 0.5F, .epsilon = 1e-2F};
  check_rows(with_gradient_scale{clipped_by_value{inner, 0.5F}, 0.5F});
  check_rows(adamw(adam{.learning_rate = 0.1F, .epsilon = 1e-2F}, 0.1F));
  check_rows(with_weight_decay{adagrad{.learning_rate = 0.1F, .epsilon = 1e-2F}, 0.1F});
}

TEST_CASE("update: moments are lazy, a row that no bag uses keeps state and weights") {
  dense_table<f32_rows> table(2, f32_rows(3, room_for<adam>(3)));
  table.initialize(inline_executor{}, row_init::uniform{.seed = 5, .bound = 1.0F});
  const std::vector<std::int64_t> offsets{0, 1}, first{0}, second{1};
  const std::vector<float> gradient{1, 2, 3};
  adam optimizer;
  const auto step = [&](const std::vector<std::int64_t>& ids) {
    update(inline_executor{}, table.view(), jagged_view(offsets.data(), 1, ids.data(), 1), combiner::sum,
           matrix_view(gradient.data(), 1, 3), optimizer)
        .or_throw();
    next_step(optimizer);
  };
  step(first);
  const auto stride = static_cast<std::size_t>(table.format().stride_bytes());
  const std::vector<std::byte> before(table.view().row(0), table.view().row(0) + stride);
  for (int k = 0; k < 5; ++k) step(second);
  CHECK(std::memcmp(before.data(), table.view().row(0), stride) == 0);
  // Its next step is corrected by the number of the batch: 7, not 2.
  float weights[3], state[6];
  std::memcpy(weights, before.data(), sizeof weights);
  std::memcpy(state, table.format().state(table.view().row(0)), sizeof state);
  apply_row(adam{.step = 7}, weights, gradient.data(), state, 3);
  step(first);
  for (int j = 0; j < 3; ++j) {
    CHECK(values_of(table.view(), 0)[j] == doctest::Approx(weights[j]).epsilon(1e-6));
  }
}

TEST_CASE_TEMPLATE("update: rows rounded at random have the same bits on every ISA and for any threads", T,
                   bf16, f16) {
  // A rate and gradients that are powers of two: fused or not, the f32 result is the same.
  const index_t width = 70;
  sampled batch(width);
  for (float& g : batch.gradient) g = g > 0 ? 0x1p-6F : -0x1p-6F;
  const auto trained = [&](isa which, int threads, rounding::stochastic rounding) {
    thread_pool pool(threads);
    context ctx{pool};
    ctx.instruction_set = which;
    dense_table<plain_rows<T>> table(rows, width);
    table.initialize(pool, row_init::uniform{.seed = 5, .bound = 1.0F});
    for (int k = 0; k < 4; ++k, ++rounding.step) {
      update(ctx, table.view(), batch.made.view(), combiner::sum, batch.view(), sgd{.learning_rate = 0x1p-5F},
             rounding)
          .or_throw();
    }
    return decoded(table);
  };
  const rounding::stochastic how{.seed = 11, .step = 1};
  const auto first = trained(isa::portable, 1, how);
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    for (const int threads : {1, 3}) CHECK(trained(which, threads, how) == first);
  }
  CHECK(trained(best_isa(), 1, {.seed = 12, .step = 1}) != first);
  CHECK(trained(best_isa(), 1, {.seed = 11, .step = 5}) != first);
  // And they are the bits of the scalar formula.
  dense_table<plain_rows<T>> table(rows, width);
  table.initialize(inline_executor{}, row_init::uniform{.seed = 5, .bound = 1.0F});
  rounding::stochastic step = how;
  for (int k = 0; k < 4; ++k, ++step.step) {
    for (index_t r = 0; r < rows; ++r) {
      const std::vector<float> g = batch.of_row(r);
      auto* const at = static_cast<T*>(static_cast<void*>(table.view().row(r)));
      for (index_t j = 0; j < width && !g.empty(); ++j) {
        const float x = static_cast<float>(at[j]) - 0x1p-5F * g[static_cast<std::size_t>(j)];
        at[j] =
            detail::round_with<T>(x, step.word(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(j)));
      }
    }
  }
  CHECK(decoded(table) == first);
}

TEST_CASE("update: small steps on bf16 rows add up at random, and are lost to nearest") {
  const index_t width = 200, steps = 400;
  const std::vector<std::int64_t> offsets{0, 1}, ids{1};
  const std::vector<float> gradient(static_cast<std::size_t>(width), -1.0F);
  const auto trained = [&](auto rounding_of) {
    dense_table<bf16_rows> table(2, width);
    for (index_t j = 0; j < width; ++j) {
      static_cast<bf16*>(static_cast<void*>(table.view().row(1)))[j] = bf16(1.0F);
    }
    for (index_t k = 0; k < steps; ++k) {
      update(inline_executor{}, table.view(), jagged_view(offsets.data(), 1, ids.data(), 1), combiner::sum,
             matrix_view(gradient.data(), 1, width), sgd{.learning_rate = 0x1p-11F}, rounding_of(k))
          .or_throw();
    }
    auto values = decoded(table);
    return std::vector<float>(values.begin() + width, values.end());
  };
  const auto mean_of = [](const std::vector<float>& values) {
    double total = 0;
    for (const float x : values) total += static_cast<double>(x);
    return total / static_cast<double>(values.size());
  };
  const double exact = 1 + static_cast<double>(steps) * 0x1p-11;
  const auto at_random = trained(
      [](index_t k) { return rounding::stochastic{.seed = seed(), .step = static_cast<std::uint64_t>(k)}; });
  // 400 steps of 1/16 of a distance of 2^-7, and the mean of 200 of them.
  CHECK(std::fabs(mean_of(at_random) - exact) < 5 * 0x1p-7 * std::sqrt(400.0 * 15 / 256 / 200));
  CHECK(mean_of(trained([](index_t) { return rounding::nearest; })) == 1);
  // Wrong: the same step again and again, so the same elements go up each time and the others never.
  const auto stuck = trained([](index_t) { return rounding::stochastic{.seed = seed(), .step = 1}; });
  CHECK(std::count(stuck.begin(), stuck.end(), 1.0F) > 150);
  CHECK(std::count(at_random.begin(), at_random.end(), 1.0F) == 0);
}

TEST_CASE("update: rows of f32 are not rounded, whatever the policy") {
  const sampled batch(19);
  const auto trained = [&](auto rounding) {
    dense_table<f32_rows> table(rows, f32_rows(19, room_for<adagrad>(19)));
    table.initialize(inline_executor{}, row_init::uniform{.seed = 5, .bound = 1.0F});
    update(inline_executor{}, table.view(), batch.made.view(), combiner::sum, batch.view(), adagrad{},
           rounding)
        .or_throw();
    return decoded(table);
  };
  CHECK(trained(rounding::nearest) == trained(rounding::stochastic{.seed = 3}));
}
