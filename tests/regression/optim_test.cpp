// Faults of optim/ that a review found: means that overflow, and what an optimizer promises.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/tables/separate_state.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>

using namespace deeprec;

TEST_CASE("b10: rowwise Adagrad steps by a mean that fits in a float, whatever the sum of the squares is") {
  inline_executor here;
  for (const isa which : {isa::portable, isa::avx2, isa::avx512}) {
    if (which > best_isa()) continue;
    context<inline_executor> ctx(here);
    ctx.instruction_set = which;
    for (const index_t width : {1, 3, 4, 16, 128}) {
      CAPTURE(to_string(which));
      CAPTURE(width);
      const auto d = static_cast<std::size_t>(width);
      std::vector<float> weights(2 * d, 0.0F), state(2, 0.0F);
      const std::vector<std::int64_t> offsets{0, 3}, ids{0, 1, 1};  // a row read in place, and a sum
      const std::vector<float> gradient(d, 9e18F);
      REQUIRE(update(ctx,
                     with_state(as_table(matrix_view<float>(weights.data(), 2, width)),
                                matrix_view<float>(state.data(), 2, 1)),
                     jagged_view(offsets.data(), 1, ids.data(), 3), combiner::sum,
                     matrix_view<const float>(gradient.data(), 1, width), rowwise_adagrad{1.0F})
                  .ok());
      CHECK(state[0] == doctest::Approx(81e36));
      CHECK(state[1] == doctest::Approx(324e36));
      for (const float w : weights) CHECK(w == doctest::Approx(-1));
    }
  }
}

TEST_CASE("b06: Adam steps small gradients as SparseAdam does where it has SparseAdam's place of epsilon") {
  for (const float size : {1.0F, 1e-4F, 1e-6F, 1e-7F}) {
    CAPTURE(size);
    adam sparse{.learning_rate = 0.1F, .epsilon_at = epsilon_place::before_correction};
    adam dense{.learning_rate = 0.1F};
    float w = 0, other = 0, state[2] = {}, other_state[2] = {};
    double exact = 0, m = 0, v = 0;
    const double beta1 = static_cast<double>(sparse.beta1), beta2 = static_cast<double>(sparse.beta2);
    for (int t = 1; t <= 3; ++t) {
      const float g = t == 2 ? -0.5F * size : size;
      apply_row(sparse, &w, &g, state, 1);
      apply_row(dense, &other, &g, other_state, 1);
      next_step(sparse);
      next_step(dense);
      m = beta1 * m + (1 - beta1) * static_cast<double>(g);
      v = beta2 * v + (1 - beta2) * static_cast<double>(g) * static_cast<double>(g);
      const double rate = 0.1 * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t));
      exact -= rate * m / (std::sqrt(v) + 1e-8);
    }
    CHECK(static_cast<double>(w) == doctest::Approx(exact).epsilon(1e-5));
    if (size <= 1e-6F) CHECK(std::fabs(static_cast<double>(other) - exact) > 0.05 * std::fabs(exact));
  }
}
