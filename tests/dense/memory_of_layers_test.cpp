// Who asks the context's memory resource in dense layers: the caller's thread, in no parallel body.
#include <doctest/doctest.h>

#include <vector>

#include <deeprec/dense/dot_interaction.hpp>
#include <deeprec/dense/logistic_loss.hpp>
#include <deeprec/dense/mlp.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "dense/support.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("dense layers: memory is asked for by the caller's thread, and in no parallel body") {
  marking_executor marking;
  watching_resource memory;
  context ctx(marking);
  ctx.memory = &memory;
  for (const index_t batch : {1, 200}) {
    for (const bool narrow : {false, true}) {
      CAPTURE(batch);
      CAPTURE(narrow);
      mlp_precision how;
      if (narrow) how.math = gemm_math::forced_bf16;
      mlp<> tower({13, 300, 70, 1}, mlp_output::linear, counter_rng(7), weight_init::he, 0, &memory, how);
      const std::vector<float> values(static_cast<std::size_t>(batch * 13), 0.25F);
      const std::vector<float> ones(static_cast<std::size_t>(batch), 1.0F);
      std::vector<float> gradient(ones.size());
      double loss = 0;
      REQUIRE(tower.forward(ctx, matrix_view<const float>(values.data(), batch, 13)).ok());
      const matrix_view<const float> labels(ones.data(), batch, 1);
      REQUIRE(logistic_loss_forward(ctx, tower.output(), labels, loss).ok());
      const matrix_view<float> out(gradient.data(), batch, 1);
      REQUIRE(logistic_loss_backward(ctx, tower.output(), labels, out).ok());
      REQUIRE(tower.backward(ctx, matrix_view<const float>(out)).ok());
      REQUIRE(tower.step(ctx, adagrad{}).ok());

      const index_t width = 8, tables = 5;
      const index_t pairs = (tables + 1) * tables / 2;
      const std::vector<float> dense(static_cast<std::size_t>(batch * width), 0.5F);
      const std::vector<float> pooled(static_cast<std::size_t>(batch * tables * width), 0.5F);
      std::vector<float> interaction(static_cast<std::size_t>(batch * (width + pairs)));
      std::vector<float> of_dense(dense.size()), of_pooled(pooled.size());
      const matrix_view<const float> d(dense.data(), batch, width), p(pooled.data(), batch, tables * width);
      const matrix_view<float> made(interaction.data(), batch, width + pairs);
      REQUIRE(dot_interaction_forward(ctx, d, p, made).ok());
      REQUIRE(dot_interaction_backward(ctx, d, p, matrix_view<const float>(made),
                                       matrix_view<float>(of_dense.data(), batch, width),
                                       matrix_view<float>(of_pooled.data(), batch, tables * width))
                  .ok());
      CHECK(memory.allocations > 0);
      CHECK(memory.misplaced == 0);
    }
  }
}
