// DeepFM: a factorization machine and a stack over the same rows.
//
//   ids    ─┬> feature_group, rows of 1 ─> sum ────────────────────────────────────┐
//           └> feature_group, rows of 16 ─┬> products of all pairs, summed ────────┼─> sum ─> logit
//   dense ──────────────── side by side ──┴> MLP ──────────────────────────────────┘
//
// Source: Guo et al. 2017, arXiv:1703.04247.
#pragma once

#include <algorithm>
#include <vector>

#include "model.hpp"
#include "wide_deep.hpp"

namespace ctr {

struct deepfm_options {
  index_t width = 16;
  std::vector<index_t> top = {256, 128};  ///< hidden layers
  float first_rows = 0.001F;              ///< rows of vectors begin uniform in +- this
  float wide_rate = 0.01F;
  float wide_epsilon = 1e-3F;  ///< holds back the first steps of rare tokens
  float row_rate = 0.02F;
  float dense_rate = 0.01F;
  float initial_squares = 0;            ///< of Adagrad, for rows and stacks
  step_rule rule = step_rule::adagrad;  ///< of rows and stacks
  float l2 = 0;                         ///< likewise: a gradient has this times the weight more
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
        columns_(tables.columns),
        wide_(on, tables, 1),
        deep_(on, tables, o.width, o.first_rows, deeprec::mix64(seed + 1)),
        stack_(with_ends(tables.columns.dense_width() + tables.columns.slots() * o.width, o.top, 1),
               deeprec::mlp_output::linear, deeprec::counter_rng(seed), deeprec::weight_init::he, 100,
               std::pmr::get_default_resource(), o.precision) {}
  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    wide_.add_parts(all, "deepfm, wide rows", from);
    deep_.add_parts(all, "deepfm, deep rows", from);
    add_parts(all, "deepfm, stack", stack_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return counts_of_twins(wide_, deep_); }
  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }

  // A step over ranks, call by call.

  using step = wide_deep::step;
  struct pass {
    deeprec::mlp_pass stack;
    std::vector<float> pairs{}, linear{}, sums{}, slope{};
    matrix_view<const float> logits{};
  };
  [[nodiscard]] pass make_pass() const { return {stack_.make_pass()}; }
  void settle() { stack_.weights_settled(); }
  void begin(index_t rows, step& at) const { at.begin(rows, columns_, options_.width); }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    if (const status s = wide_.look_up(on, batch.by_slot, at.wide, at.weights); !s) return s;
    return deep_.look_up(on, batch.by_slot, at.deep,
                         at.input.columns(columns_.dense_width(), columns_.slots() * options_.width));
  }
  [[nodiscard]] status forward(const step_context& on, pass& mine, const ctr_batch& batch, step& at) const {
    const index_t rows = batch.rows(), width = options_.width;
    for (index_t i = 0; i < rows; ++i)
      std::copy_n(batch.dense.row(i), columns_.dense_width(), at.input.row(i));
    if (const status s = stack_forward(on, stack_, mine.stack, at.input); !s) return s;
    const auto pairs = room(mine.pairs, rows, 1), linear = room(mine.linear, rows, 1),
               sums = room(mine.sums, rows, 1);
    if (const status s =
            factorize(on, at.input.columns(columns_.dense_width(), columns_.slots() * width), width, pairs);
        !s)
      return s;
    add_logits(at.weights, mine.stack.output(), linear);
    add_logits(pairs, linear, sums);
    mine.logits = sums;
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits(const pass& mine) const { return mine.logits; }
  [[nodiscard]] status backward(const step_context& on, pass& mine, const ctr_batch& batch, step& at,
                                float share) const {
    const index_t width = options_.width;
    const matrix_view<float> slope = room(mine.slope, batch.rows(), 1);
    if (const status s =
            loss_gradient(on, mine.logits, batch.labels, batch.weights, share, &control_.loss, slope);
        !s)
      return s;
    if (const status s = stack_backward(on, stack_, mine.stack, slope, deeprec::compute_input_gradient::yes);
        !s) {
      return s;
    }
    for (index_t i = 0; i < batch.rows(); ++i)
      std::fill_n(at.wide_gradient.row(i), columns_.slots(), slope(i, 0));
    return factorize_backward(
        on, at.input.columns(columns_.dense_width(), columns_.slots() * width), width, slope,
        mine.stack.input_gradient().columns(columns_.dense_width(), columns_.slots() * width),
        at.deep_gradient);
  }
  template <class Use>
  void for_each_table(const Use& use) {
    use(wide_);
    use(deep_);
  }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("stack", stack_);
  }
  /// Calls use(name, pass) for each stack's part of a pass.
  template <class Use>
  static void for_each_stack_pass(pass& of, const Use& use) {
    use("stack", of.stack);
  }
  template <class Use>
  void for_each_gradient(const Use& use) {
    use("stack", [](pass& of) { return of.stack.gradients(); });
  }
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    const float scale = control_.row_scale;
    if (const status s =
            wide_.update(on, batch.by_slot, at.wide, at.wide_gradient, scaled(wide_optimizer(), scale));
        !s) {
      return s;
    }
    return deep_.update(on, batch.by_slot, at.deep, at.deep_gradient, scaled(row_optimizer(), scale));
  }

  friend graph_step make_graph_step(deepfm& model, const ctr_tables& tables, row_reader read, graph_use use);

 private:
  [[nodiscard]] ctr::row_optimizer row_optimizer() const {
    return row_optimizer_of(options_, options_.row_rate);
  }
  [[nodiscard]] ctr::row_optimizer wide_optimizer() const {
    return row_optimizer_of(options_, options_.wide_rate, options_.wide_epsilon);
  }

  deepfm_options options_;
  ctr_columns columns_;
  mutable step_control control_;  // the loss is added by passes
  slot_tables wide_, deep_;
  stack_type stack_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(deepfm& model, const ctr_tables& tables, row_reader read, graph_use use) {
  step_maker make;
  const step_control* const training = use == graph_use::train ? &model.control() : nullptr;
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
  const auto out = make.add(part::forward, "stack forward", stack_forward_op{training}, input,
                            g.read(stack.weights), g.write(stack.pass));
  const auto pairs =
      make.add(part::forward, "factorize forward",
               factorize_op{tables.columns.dense_width(), tables.columns.slots(), width}, input);
  const auto linear = make.add(part::forward, "add wide", add_op{}, weights, out);
  const auto logits = make.add(part::forward, "add pairs", add_op{}, pairs, linear);
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();

  const auto slope = make.add_loss_gradient(model.control().loss, logits, in);
  const auto by_stack = make.add(part::backward, "stack backward", stack_backward_op{}, slope, input,
                                 g.read(stack.weights), g.write(stack.pass));
  const auto of_weights = make.add(part::backward, "spread", spread_op{tables.columns.slots()}, slope);
  const auto of_vectors = make.add(part::backward, "slice",
                                   slice_op{tables.columns.dense_width(), tables.columns.slots() * width},
                                   by_stack.template get<0>());
  const auto of_rows =
      make.add(part::backward, "factorize backward",
               factorize_backward_op{tables.columns.dense_width(), tables.columns.slots(), width}, slope,
               input, of_vectors);
  make.add(part::update, "stack step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_stack.template get<1>(), g.write(stack.weights));
  make.add(part::update, "wide update", row_update_op{model.wide_optimizer(), &model.control()}, wide_located,
           of_weights, g.write(wide));
  make.add(part::update, "deep update", row_update_op{model.row_optimizer(), &model.control()}, deep_located,
           of_rows, g.write(deep));
  return make.take();
}

}  // namespace ctr
