// Places for the tensors of a training step of MMoE, as a framework's tape makes and frees them: each op has
// tensors of its own, and a tensor lives to the last op that takes it. GPU memory optimisation of DeepRec was
// published for such a model. No tensor is made: bytes are planned without a device.
//
//   memory_plan/mmoe   4,096 samples, 960 wide; 4 experts and 2 towers of 256, 192, 128, 64; a gate for each
//                      tower: bytes by an allocator that knows no future, as a framework's caching allocator
//                      (blocks of 256 bytes, the smallest free range that fits), over ours (speedup_online);
//                      bytes by DeepRec's binned best fit over ours (speedup_binned); ours over the most
//                      bytes that live at once (of_live)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/memory/plans/block_plan.hpp>
#include <deeprec/memory/plans/check_block_plan.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using deeprec::block_lifetime;
using deeprec::block_plan;
using deeprec::block_policy;
using deeprec_bench::add;
using deeprec_bench::figures;

/// Ops in the order in which they run, and the lifetimes of what they make.
class tape {
 public:
  using tensor = std::size_t;

  tensor make(std::size_t floats) {
    blocks_.push_back({now_, now_ + 1, 4 * floats, 256});
    return blocks_.size() - 1;
  }
  void take(tensor t) { blocks_[t].end = now_ + 1; }
  void end_of_op() { ++now_; }
  [[nodiscard]] std::vector<block_lifetime> lifetimes() const { return blocks_; }

 private:
  std::vector<block_lifetime> blocks_;
  std::int64_t now_ = 0;
};

/// The step of MMoE.
class mmoe {
 public:
  static constexpr std::size_t batch = 4096, width = 960, experts = 4, towers = 2;

  std::vector<block_lifetime> step() {
    const tensor input = make_one(width);
    std::vector<stack> of_expert(experts), of_tower(towers);
    std::vector<tensor> gates(towers), mixed(towers);
    for (stack& s : of_expert) s = forward(input);
    for (std::size_t t = 0; t < towers; ++t) {
      gates[t] = layer_forward(input, experts);
      mixed[t] = make_one(units.back(), [&] {
        tape_.take(gates[t]);
        for (const stack& s : of_expert) tape_.take(s.back());
      });
      of_tower[t] = forward(mixed[t]);
    }
    std::vector<tensor> logits(towers), losses(towers);
    for (std::size_t t = 0; t < towers; ++t) {
      logits[t] = layer_forward(of_tower[t].back(), 1);
      losses[t] = make_one(1, [&] { tape_.take(logits[t]); });
    }

    // Gradients of a tensor that several ops took are added when all are there.
    std::vector<tensor> of_input;
    std::vector<std::vector<tensor>> of_outputs(experts);
    for (std::size_t t = towers; t-- > 0;) {
      const tensor top = layer_backward(of_tower[t].back(), logits[t], losses[t], units.back(), 1);
      const tensor bottom = backward(of_tower[t], mixed[t], top, units.back());
      const tensor of_gate = tape_.make(batch * experts);
      for (std::size_t e = 0; e < experts; ++e) {
        of_outputs[e].push_back(tape_.make(batch * units.back()));
        tape_.take(of_expert[e].back());
      }
      tape_.take(bottom);
      tape_.take(gates[t]);
      tape_.end_of_op();
      of_input.push_back(layer_backward(input, gates[t], of_gate, width, experts));
    }
    for (std::size_t e = experts; e-- > 0;) {
      const tensor sum = sum_of(of_outputs[e], units.back());
      of_input.push_back(backward(of_expert[e], input, sum, width));
    }
    const tensor of_rows = sum_of(of_input, width);
    tape_.take(of_rows);
    for (const tensor w : of_weights_) tape_.take(w);  // the optimizer
    tape_.end_of_op();
    return tape_.lifetimes();
  }

 private:
  using tensor = tape::tensor;
  using stack = std::vector<tensor>;  // outputs of its layers
  const std::vector<std::size_t> units = {256, 192, 128, 64};

  template <class Takes>
  tensor make_one(std::size_t floats, const Takes& takes) {
    const tensor made = tape_.make(batch * floats);
    takes();
    tape_.end_of_op();
    return made;
  }
  tensor make_one(std::size_t floats) {
    return make_one(floats, [] {});
  }
  /// The product, then its activation.
  tensor layer_forward(tensor input, std::size_t out) {
    const tensor product = make_one(out, [&] { tape_.take(input); });
    return make_one(out, [&] { tape_.take(product); });
  }
  stack forward(tensor input) {
    stack outputs;
    for (const std::size_t out : units)
      outputs.push_back(layer_forward(outputs.empty() ? input : outputs.back(), out));
    return outputs;
  }
  /// The gradients of the product, of the weights and of the layer's input, which is returned.
  tensor layer_backward(tensor input, tensor output, tensor gradient, std::size_t in, std::size_t out) {
    const tensor of_product = make_one(out, [&] {
      tape_.take(gradient);
      tape_.take(output);
    });
    of_weights_.push_back(tape_.make(in * out + out));
    tape_.take(input);
    tape_.take(of_product);
    tape_.end_of_op();
    return make_one(in, [&] { tape_.take(of_product); });
  }
  tensor backward(const stack& outputs, tensor input, tensor gradient, std::size_t in) {
    for (std::size_t l = outputs.size(); l-- > 0;) {
      gradient = layer_backward(l > 0 ? outputs[l - 1] : input, outputs[l], gradient,
                                l > 0 ? units[l - 1] : in, units[l]);
    }
    return gradient;
  }
  tensor sum_of(const std::vector<tensor>& parts, std::size_t floats) {
    return make_one(floats, [&] {
      for (const tensor part : parts) tape_.take(part);
    });
  }

  tape tape_;
  std::vector<tensor> of_weights_;
};

block_plan planned_by(const std::vector<block_lifetime>& blocks, block_policy policy) {
  deeprec::block_plan_options options;
  options.policies = {policy};
  return plan_blocks(blocks, options).or_throw();
}

void mmoe_step(benchmark::State& state, const std::string& name) {
  const std::vector<block_lifetime> blocks = mmoe().step();
  for (auto _ : state) {
    figures f(name);
    const block_plan ours = plan_blocks(blocks).or_throw();
    if (!check_block_plan(blocks, ours.offsets, ours.bytes).ok())
      return state.SkipWithError("wrong answer: blocks overlap");
    const auto bytes = static_cast<double>(ours.bytes);
    const auto online = static_cast<double>(planned_by(blocks, block_policy::by_start).bytes);
    const auto binned = static_cast<double>(planned_by(blocks, block_policy::binned).bytes);
    double apart = 0;
    for (const block_lifetime& b : blocks) apart += static_cast<double>(b.bytes);
    f.sample([&] {
      f.add("speedup_online", online / bytes);
      f.add("speedup_binned", binned / bytes);
      f.add("speedup", std::min(online, binned) / bytes);
      f.add("of_live", bytes / static_cast<double>(ours.live_bytes));
      f.note("megabytes", bytes * 1e-6);
      f.note("megabytes_online", online * 1e-6);
      f.note("megabytes_binned", binned * 1e-6);
      f.note("megabytes_apart", apart * 1e-6);
      f.note("blocks", static_cast<double>(blocks.size()));
    });
    f.report(state);
  }
}

const bool registered = [] {
  add("memory_plan/mmoe", mmoe_step);
  return true;
}();

}  // namespace
