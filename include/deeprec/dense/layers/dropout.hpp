// Dropout of the hidden layers of a stack: in training each of their outputs y is y / (1 - rate) or 0.
//
//   mlp_pass mine = tower.make_pass();
//   set_dropout(mine, {.rate = 0.2F, .seed = mix64(step), .first_row = first}).or_throw();
//   tower.forward(pool, mine, x);            rows first, first + 1, ... of a batch
//   tower.backward(pool, mine, gradient);    through what was kept
//
// Outputs are scaled in training, so that inference is the stack as it is. Not here: other expressions
// (expr::dropout).
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/detail/hidden_dropout.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Sets what the next forward pass, and the backward pass behind it, drop. In row i of the pass the output j
/// of hidden layer l, from 0, is kept where
///
///   rounding::stochastic{seed, l}.word(first_row + i, j) >= rate 2^32
///
/// so the parts of a batch, each with the place of its first row, drop what a pass over all of it drops.
///
/// @param how  {}: nothing is dropped. A seed of its own for each step and stack
/// @cost    O(1); a pass then costs one read and write of the outputs and of the gradients of hidden layers
///          more, and about ten instructions of a vector for each vector of outputs
/// @threads one thread at a time for each pass; the same bits for any number of workers, on every ISA but for
///          those of the products
/// @error   invalid_value: the rate is outside [0, 1), or first_row is negative; then nothing has changed
/// @source  Srivastava et al. 2014, JMLR 15
[[nodiscard]] inline status set_dropout(mlp_pass& pass, const mlp_dropout& how) noexcept {
  if (!(how.rate >= 0 && how.rate < 1))
    return {errc::invalid_value, "set_dropout: rate must be at least 0 and below 1"};
  if (how.first_row < 0) return {errc::invalid_value, "set_dropout: first_row must not be negative"};
  detail::hidden_dropout::set(pass, how);
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
