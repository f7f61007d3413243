// Who asks the context's memory resource in dense layers: the caller's thread, in no parallel body; and what
// they do when it refuses, and when they are called again after that.
#include <doctest/doctest.h>

#include <vector>

#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/exec/inline_executor.hpp>
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

TEST_CASE("dense layers: a call whose memory was refused is made again, with the bits of one that was not") {
  const inline_executor here;
  const index_t batch = 40;
  const std::vector<float> values(static_cast<std::size_t>(batch * 13), 0.25F);
  const std::vector<float> ones(static_cast<std::size_t>(batch), 1.0F);
  const matrix_view<const float> labels(ones.data(), batch, 1);
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    mlp_precision how;
    if (narrow) how.math = gemm_math::forced_bf16;
    // Two steps, in which the n-th allocation is refused; negative: none is.
    const auto trained = [&](long n, bool& refused) {
      allowance shared;
      refusing_resource memory(shared);
      std::vector<float> weights;
      {
        context ctx(here);
        ctx.memory = &memory;
        mlp<> tower({13, 50, 20, 1}, mlp_output::linear, counter_rng(7), weight_init::he, 0, &memory, how);
        std::vector<float> gradient(ones.size());
        const matrix_view<float> out(gradient.data(), batch, 1);
        double loss = 0;
        long left = n;
        const auto again = [&](const auto& call) {
          if (left >= 0) shared.left = left;
          const long before = memory.granted;
          status s = call();
          shared.left = allowance::unlimited;
          if (left >= 0) left -= memory.granted - before;
          if (s.code() == errc::out_of_memory && shared.refused > 0 && !refused) {
            refused = true;
            left = -1;
            s = call();
          }
          REQUIRE_MESSAGE(s.ok(), s.message());
        };
        for (int step = 0; step < 2; ++step) {
          again([&] { return tower.forward(ctx, matrix_view<const float>(values.data(), batch, 13)); });
          again([&] { return logistic_loss_forward(ctx, tower.output(), labels, loss); });
          again([&] { return logistic_loss_backward(ctx, tower.output(), labels, out); });
          again([&] { return tower.backward(ctx, matrix_view<const float>(out)); });
          again([&] { return tower.step(ctx, adagrad{}); });
        }
        const matrix_view<float> all = tower.parameters();
        weights.assign(all.data_handle(), all.data_handle() + all.extent(1));
        weights.insert(weights.end(), tower.state().data_handle(),
                       tower.state().data_handle() + tower.state().extent(1));
      }
      CHECK(memory.held == 0);
      return weights;
    };
    bool none = false;
    const std::vector<float> expected = trained(-1, none);
    for (long n = 0;; ++n) {
      CAPTURE(n);
      REQUIRE(n < 1000);
      bool refused = false;
      CHECK(trained(n, refused) == expected);
      if (!refused) {
        CHECK(n > 0);
        break;
      }
    }
  }
}
