// The layers of a model's stacks, for who looks at them: their weights, and the sums of squares that Adagrad
// keeps of their gradients.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/optim/adagrad.hpp>

namespace ctr {

struct layer_sums {
  std::string name;
  double weights = 0;    ///< the sum of their squares
  double gradients = 0;  ///< the sum of the squares of all gradients so far, beyond the initial ones
};

/// Those of a stack, each with its bias; of one that does not tell its layers the whole. The sums of squares
/// begin at `initial`, where it was stepped.
template <class Stack>
void add_layers(std::vector<layer_sums>& to, const std::string& name, Stack& stack, double initial) {
  if constexpr (requires { stack.make_state(deeprec::adagrad{}); }) {
    stack.make_state(deeprec::adagrad{}).or_throw();
  }
  const float *w = stack.parameters().data_handle(), *s = stack.state().data_handle();
  const auto add = [&](const std::string& layer, deeprec::index_t count) {
    layer_sums sums{layer};
    for (deeprec::index_t i = 0; i < count; ++i, ++w, ++s) {
      sums.weights += static_cast<double>(*w) * static_cast<double>(*w);
      if (*s > 0) sums.gradients += static_cast<double>(*s) - initial;
    }
    to.push_back(sums);
  };
  if constexpr (requires { stack.size(0) + stack.layers(); }) {
    for (int l = 0; l < static_cast<int>(stack.layers()); ++l) {
      add(name + ' ' + std::to_string(l + 1), stack.size(l + 1) * (stack.size(l) + 1));
    }
  } else {
    add(name, stack.parameters().extent(1));
  }
}

}  // namespace ctr
