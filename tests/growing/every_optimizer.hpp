// Training of a growing table and of a dense one by each optimizer of the library.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "growing/twins.hpp"

namespace growing_test {

/// Calls f with an optimizer of each kind that steps rows.
template <class F>
void with_every_optimizer(const F& f) {
  f(sgd{.learning_rate = 0.1F});
  f(momentum{.learning_rate = 0.1F});
  f(momentum{0.1F, 0.9F, momentum_kind::nesterov});
  f(adagrad{.learning_rate = 0.1F});
  f(rowwise_adagrad{.learning_rate = 0.1F});
  f(adagrad_decay{.learning_rate = 0.1F, .decay_every = 2});
  f(rmsprop{.learning_rate = 0.1F});
  f(centered_rmsprop{.learning_rate = 0.1F});
  f(adam{.learning_rate = 0.1F});
  f(rowwise_adam{.learning_rate = 0.1F});
  f(adamw(adam{.learning_rate = 0.1F}, 0.01F));
  f(adam_async{.learning_rate = 0.1F});
  f(adam_async_rmsprop{.learning_rate = 0.1F});
  f(ftrl{.learning_rate = 0.1F, .l1 = 0.01F, .l2 = 0.1F});
  f(clipped_by_norm{sgd{.learning_rate = 0.5F}, 0.5F});
  f(with_gradient_scale{clipped_by_value{rowwise_adagrad{.learning_rate = 0.5F}, 0.5F}, 0.5F});
  f(with_weight_decay{adagrad{.learning_rate = 0.1F}, 0.1F});
  f(with_decoupled_decay{sgd{.learning_rate = 0.1F}, 0.1F});
}

/// Three batches, the second one by rows that were resolved before the first: in every setting.
template <class Format, class O, class Pooling, class Rounding>
void train_both(const O& optimizer, index_t width, index_t rows, index_t bags, const Pooling& how,
                const Rounding& rounding) {
  CAPTURE(std::string(optimizer_name<O>));
  const sampled batches[] = {{bags, width, rows, 11}, {bags, width, rows, 12}, {bags, width, rows, 13}};
  same_in_every_setting(
      Format(width, room_for<O>(width)), rows,
      [&](const context_ref& ctx, const auto& source, transcript& found) {
        O own = optimizer;
        Rounding of_step = rounding;
        const auto next = [&] {
          next_step(own);
          if constexpr (requires { ++of_step.step; }) ++of_step.step;
        };
        const auto resolved = resolve(ctx, source, batches[1].view(true), how);
        REQUIRE(resolved.ok());
        found.add(update(ctx, source, batches[0].view(), how, batches[0].slope(), own, of_step));
        next();
        found.add(update(ctx, resolved.value(), batches[1].slope(), own, of_step));
        next();
        found.add(update(ctx, source, batches[2].view(true), how, batches[2].slope(), own, of_step));
        CHECK(found.faults == 0);
      });
}

}  // namespace growing_test
