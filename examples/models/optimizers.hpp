// How the rows and the stacks of a model are stepped: Adagrad or SGD, with L2, at rates that may change from
// step to step.
//
//   row_optimizer     with_weight_decay ─> row_rule      one float of state for a row, whichever rule
//   dense_optimizer   with_weight_decay ─> adagrad, or sgd_beside_squares      one for each element
//
// Both rules keep the state of Adagrad, so tables and files have one layout; that of SGD stays as it is.
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/optim/wrappers.hpp>

namespace ctr {

enum class step_rule : std::uint8_t { adagrad, sgd };

/// Of rows, a rule that is chosen at run time.
struct row_rule {
  static constexpr std::string_view name = deeprec::rowwise_adagrad::name;
  static constexpr int row_state = 1;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = true;
  static constexpr bool steps_on_sums = true;

  step_rule rule = step_rule::adagrad;
  float learning_rate = 0.01F;
  float epsilon = deeprec::rowwise_adagrad{}.epsilon;
  float initial_squares = 0;

  [[nodiscard]] deeprec::rowwise_adagrad adagrad() const noexcept {
    return {.learning_rate = learning_rate, .epsilon = epsilon, .initial_squares = initial_squares};
  }
  deeprec::steps::scaled_step begin_row(float* squares, float mean_square) const noexcept {
    if (rule == step_rule::sgd) return {learning_rate};
    return adagrad().begin_row(squares, mean_square);
  }
};
using row_optimizer = deeprec::with_weight_decay<row_rule>;

/// SGD on what has room for the sums of squares of Adagrad, which it leaves at zero.
struct sgd_beside_squares {
  static constexpr std::string_view name = deeprec::adagrad::name;
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;

  deeprec::steps::momentum_step begin_row(float*, float) const noexcept {
    return {.rate = learning_rate, .decay = 1, .gain = 0, .of_velocity = 0, .of_gradient = 1};
  }
};

/// Of stacks and cross layers.
struct dense_optimizer {
  static constexpr bool steps_on_sums = true;

  step_rule rule = step_rule::adagrad;
  float learning_rate = 0.01F;
  float initial_squares = 0;
  float l2 = 0;

  /// Adagrad alone, where no other rule and no L2 can be meant.
  operator deeprec::adagrad() const noexcept {
    return {.learning_rate = learning_rate, .initial_squares = initial_squares};
  }
  /// Calls step(optimizer) with the one that is meant.
  template <class Step>
  auto visit(const Step& step) const {
    if (rule == step_rule::sgd) {
      return step(deeprec::with_weight_decay<sgd_beside_squares>{{learning_rate}, l2});
    }
    return step(deeprec::with_weight_decay<deeprec::adagrad>{*this, l2});
  }
};

/// The same at a rate times `by`.
inline row_optimizer scaled(row_optimizer optimizer, float by) {
  optimizer.optimizer.learning_rate *= by;
  return optimizer;
}
inline dense_optimizer scaled(dense_optimizer optimizer, float by) {
  optimizer.learning_rate *= by;
  return optimizer;
}

/// That of the rows of a model with these options, at `rate`.
template <class Options>
row_optimizer row_optimizer_of(const Options& o, float rate, float epsilon = row_rule{}.epsilon) {
  return {{o.rule, rate, epsilon, o.initial_squares}, o.l2};
}
template <class Options>
dense_optimizer dense_optimizer_of(const Options& o) {
  return {o.rule, o.dense_rate, o.initial_squares, o.l2};
}

}  // namespace ctr
