// Adagrad, with a sum of squares for each row (the choice for embeddings) or for each element, and DeepRec's
// Adagrad whose sums decay.
//
//   rowwise_adagrad   s += mean_j g[j]^2     w[j] -= rate * g[j] / (sqrt(s) + epsilon)
//   adagrad           s[j] += g[j]^2         w[j] -= rate * g[j] / (sqrt(s[j]) + epsilon)
//   adagrad_decay     before that, at every decay_every-th step: s[j] = max(s[j] * decay, initial)
//
// Every s begins at initial_squares (TensorFlow's initial_accumulator_value). Zeroed state is read as that
// value. An s that leaves the range of float (squares, or means of them, of 3.4e38 in all) stays infinite,
// and what it divides no longer moves.
// Source: Duchi, Hazan, Singer (JMLR 2011); the rowwise form as in FBGEMM and DLRM; the decay as in DeepRec.
#pragma once

#include <cstdint>
#include <string_view>

#include <deeprec/optim/detail/integer_power.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct rowwise_adagrad {
  static constexpr std::string_view name = "rowwise_adagrad";
  static constexpr int row_state = 1;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = true;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;
  float initial_squares = 0;

  DEEPREC_HD steps::scaled_step begin_row(float* squares, float mean_square) const noexcept {
    *squares = scalar::maximum(*squares, initial_squares) + mean_square;
    return {learning_rate / (scalar::sqrt(*squares) + epsilon)};
  }
};

struct adagrad {
  static constexpr std::string_view name = "adagrad";
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float epsilon = 1e-8F;
  float initial_squares = 0;

  DEEPREC_HD steps::adagrad_step begin_row(float*, float) const noexcept {
    return {learning_rate, epsilon, 1, initial_squares};
  }
};

/// DeepRec's AdagradDecay. Decays that a row missed are applied all at once when it is used again; the row's
/// own float counts the decays applied (exact up to 2^24). So the layout is that of AdagradDecayV2, a count
/// for each row; the rule is the same. initial_squares is the floor too.
struct adagrad_decay {
  static constexpr std::string_view name = "adagrad_decay";
  static constexpr int row_state = 1;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  static constexpr bool steps_on_sums = true;

  float learning_rate = 0.01F;
  float epsilon = 0;
  float initial_squares = 0.1F;
  float decay = 0.9F;
  std::int64_t decay_every = 100'000;
  std::int64_t step = 1;  ///< the number of this step, over all tables and workers

  DEEPREC_HD steps::adagrad_step begin_row(float* applied, float) const noexcept {
    const std::int64_t due = decay_every > 0 ? step / decay_every : 0;
    const auto missing = due - static_cast<std::int64_t>(*applied);
    if (missing <= 0) return {learning_rate, epsilon, 1, initial_squares};
    *applied = static_cast<float>(due);
    const auto kept = static_cast<float>(detail::integer_power(decay, missing));
    return {learning_rate, epsilon, kept, initial_squares};
  }
  constexpr void next_step() noexcept { ++step; }
};

}}  // namespace deeprec::DEEPREC_ABI
