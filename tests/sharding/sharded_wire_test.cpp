// Messages of 16 bits.
#include <deeprec/core/dtypes.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_options.hpp>

#include <doctest/doctest.h>

#include <random>
#include <utility>

#include "sharding/thread_trial.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("sharded_group: rows and gradients of 16 bits are rounded once, those of the own rank too") {
  std::mt19937_64 random(deeprec_test::seed() + 3);
  for (const int n : {1, 2, 3, 8}) {
    CAPTURE(n);
    for (const row_sums sums : {row_sums::by_parts, row_sums::in_order}) {
      const auto check = [&](auto model) {
        model.sums = sums;
        CHECK(same(std::move(model), n == 3));
      };
      const auto features = pooled_by_owners(random_model(n, random));
      check(trial<sgd, wire<bf16>>{n, features, {.learning_rate = 0.125F}});
      check(trial<adam, wire<f16, bf16>>{n, with_columns(features), {.learning_rate = 0.1F}});
      check(trial<rowwise_adagrad, wire<float, f16>>{n, kinds_for(n), {.learning_rate = 0.1F}});
    }
  }
}
