// What the models share: room for floats, and what a saved model consists of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/files/named_table.hpp>

#include "kernels.hpp"
#include "optimizers.hpp"
#include "slot_tables.hpp"
#include "step_maker.hpp"

namespace ctr {

/// Makes room for so many floats.
inline matrix_view<float> room(std::vector<float>& memory, index_t rows, index_t columns) {
  const auto needed = static_cast<std::size_t>(rows * columns);
  if (memory.size() < needed) memory.resize(needed);
  return {memory.data(), rows, columns};
}

/// The forward pass of a training step, over samples of its batch from batch.first on. What it drops stays
/// set in the pass.
template <class Model>
[[nodiscard]] status train_forward(const step_context& on, Model& model, typename Model::pass& mine,
                                   const ctr_batch& batch, typename Model::step& at) {
  int k = 0;
  status set;
  Model::for_each_stack_pass(mine, [&](const char*, deeprec::mlp_pass& stack) {
    if (set.ok()) set = set_stack_dropout(stack, model.control().dropout_of(k++, batch.first));
  });
  return set.ok() ? model.forward(on, mine, batch, at) : set;
}

/// The passes of a model over whole batches, with the activations and gradients that are its stacks' own: a
/// Model has forward, backward and logits with a pass, and for_each_stack.
template <class Model, class Pass>
class whole_passes {
 public:
  /// Declares that from now on only steps write to the weights: before passes, which several threads may make
  /// at once.
  void settle() {
    self().for_each_stack([](const char*, stack_type& stack) { stack.weights_settled(); });
  }
  template <class Batch, class Step>
  [[nodiscard]] status forward(const step_context& on, const Batch& batch, Step& at) {
    return train_forward(on, self(), whole_, batch, at);
  }
  template <class Batch, class Step>
  [[nodiscard]] status backward(const step_context& on, const Batch& batch, Step& at) {
    return self().backward(on, whole_, batch, at);
  }

 protected:
  explicit whole_passes() = default;
  Pass whole_{};

 private:
  Model& self() { return static_cast<Model&>(*this); }
};

/// Sizes of a stack with these hidden layers.
inline std::vector<index_t> with_ends(index_t first, std::vector<index_t> sizes, index_t last) {
  sizes.insert(sizes.begin(), first);
  sizes.push_back(last);
  return sizes;
}

/// The weights of a stack and its optimizer's state, which is made where it does not exist.
template <class Stack>
void add_parts(model_parts& parts, const std::string& name, Stack& stack) {
  if constexpr (requires { stack.make_state(deeprec::adagrad{}); }) {
    stack.make_state(deeprec::adagrad{}).or_throw();
  }
  parts.tables.push_back(name_table(name, as_table(stack.parameters())));
  parts.tables.push_back(name_table(name + ", state of the optimizer", as_table(stack.state())));
  parts.tables.back().state_owner = stack.state_owner();
}

/// Of all bytes of all parts.
template <class Model>
std::uint64_t checksum(Model& model) {
  std::uint64_t sum = 0;
  const auto add = [&](const std::byte* data, index_t bytes) {
    sum = deeprec::hash_bytes({reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes)}, sum);
  };
  const model_parts parts = model.parts();
  for (const deeprec::named_table& part : parts.tables) {
    if (part.addresses == nullptr) {
      add(part.data, part.rows * part.stride_bytes);
    } else {
      for (index_t r = 0; r < part.rows; ++r) add(part.addresses[r], part.stride_bytes);
    }
  }
  return sum;
}

}  // namespace ctr
