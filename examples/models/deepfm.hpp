// DeepFM: a factorization machine and a stack over the same rows.
//
//   39 ids ─┬> feature_group, rows of 1 ─> sum ────────────────────────────────────┐
//           └> feature_group, rows of 16 ─┬> products of all pairs, summed ────────┼─> sum ─> logit
//   dense ──────────────── side by side ──┴> MLP ──────────────────────────────────┘
//
// Source: Guo et al. 2017, arXiv:1703.04247.
#pragma once

#include "model.hpp"

namespace ctr {

struct deepfm_options {
  index_t width = 16;
  std::vector<index_t> top = {256, 128};  ///< hidden layers
  float first_rows = 0.001F;              ///< rows of vectors begin uniform in +- this
  float wide_rate = 0.01F;
  float wide_epsilon = 1e-3F;  ///< holds back the first steps of rare tokens
  float row_rate = 0.02F;
  float dense_rate = 0.01F;
  float initial_squares = 0;  ///< of Adagrad, for rows and stacks
  deeprec::mlp_precision precision{};

  /// Calls visit(name, size) for what a saved model must have.
  template <class Visit>
  void for_each_size(Visit&& visit) {
    visit("width", width);
    visit("top", top);
  }
};

class deepfm {
 public:
  static constexpr const char* name = "deepfm";
  using options = deepfm_options;

  deepfm(const step_context& on, const ctr_tables& tables, std::uint64_t seed, const deepfm_options& o = {})
      : options_(o),
        wide_(on, tables, 1),
        deep_(on, tables, o.width, o.first_rows, deeprec::mix64(seed + 1)),
        stack_(with_ends(dense_width + slots * o.width, o.top, 1), deeprec::mlp_output::linear,
               deeprec::counter_rng(seed), deeprec::weight_init::he, 100, std::pmr::get_default_resource(),
               o.precision) {}
  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    wide_.add_parts(all, "deepfm, wide rows", from);
    deep_.add_parts(all, "deepfm, deep rows", from);
    stack_.make_state(dense_optimizer()).or_throw();
    add_parts(all, "deepfm, stack", stack_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return counts_of_twins(wide_, deep_); }

  friend graph_step make_graph_step(deepfm& model, const ctr_tables& tables, row_reader read, graph_use use);

 private:
  [[nodiscard]] deeprec::adagrad dense_optimizer() const {
    return {.learning_rate = options_.dense_rate, .initial_squares = options_.initial_squares};
  }

  deepfm_options options_;
  slot_tables wide_, deep_;
  stack_type stack_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(deepfm& model, const ctr_tables& tables, row_reader read, graph_use use) {
  step_maker make;
  deeprec::step_graph& g = make.graph();
  const index_t width = model.options_.width;
  const auto wide = g.variable("wide rows", model.wide_), deep = g.variable("deep rows", model.deep_);
  const graph_stack stack = make.add_stack("stack", model.stack_);
  const auto in = make.add_inputs(tables, std::move(read));

  const auto wide_located = make.add_resolve("wide resolve", model.wide_, wide, in, use);
  const auto deep_located = make.add_resolve("deep resolve", model.deep_, deep, in, use);
  const auto weights = make.add(part::lookup, "wide lookup", lookup_op{1}, wide_located, g.read(wide));
  const auto input =
      make.add(part::lookup, "deep lookup", lookup_beside_op{width}, in.dense, deep_located, g.read(deep));
  const auto out = make.add(part::forward, "stack forward", stack_forward_op{}, input, g.read(stack.weights),
                            g.write(stack.pass));
  const auto pairs = make.add(part::forward, "factorize forward", factorize_op{dense_width, width}, input);
  const auto linear = make.add(part::forward, "add wide", add_op{}, weights, out);
  const auto logits = make.add(part::forward, "add pairs", add_op{}, pairs, linear);
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();

  const auto slope = make.add(part::backward, "loss gradient", loss_gradient_op{}, logits, in.labels);
  const auto by_stack = make.add(part::backward, "stack backward", stack_backward_op{}, slope, input,
                                 g.read(stack.weights), g.write(stack.pass));
  const auto of_weights = make.add(part::backward, "spread", spread_op{slots}, slope);
  const auto of_vectors =
      make.add(part::backward, "slice", slice_op{dense_width, slots * width}, by_stack.template get<0>());
  const auto of_rows = make.add(part::backward, "factorize backward",
                                factorize_backward_op{dense_width, width}, slope, input, of_vectors);
  const deeprec::rowwise_adagrad wide_optimizer{.learning_rate = model.options_.wide_rate,
                                                .epsilon = model.options_.wide_epsilon,
                                                .initial_squares = model.options_.initial_squares};
  const deeprec::rowwise_adagrad deep_optimizer{.learning_rate = model.options_.row_rate,
                                                .initial_squares = model.options_.initial_squares};
  make.add(part::update, "stack step", stack_step_op{model.dense_optimizer()}, by_stack.template get<1>(),
           g.write(stack.weights));
  make.add(part::update, "wide update", row_update_op{wide_optimizer}, wide_located, of_weights,
           g.write(wide));
  make.add(part::update, "deep update", row_update_op{deep_optimizer}, deep_located, of_rows, g.write(deep));
  return make.take();
}

}  // namespace ctr
