// DCN-v2, stacked: cross layers over the rows side by side, and a stack behind them.
//
//   ids    ─> feature_group, rows of 16 ─┐
//   dense ─────────────── side by side ──┴> cross layers ─> MLP ─> logit
//
// Source: Wang et al. 2021, arXiv:2008.13535.
#pragma once

#include <algorithm>
#include <vector>

#include "cross_stack.hpp"
#include "model.hpp"

namespace ctr {

struct dcn_options {
  index_t width = 16;
  index_t layers = 2;                     ///< cross layers
  std::vector<index_t> top = {256, 128};  ///< hidden layers
  float first_rows = 0.001F;              ///< rows begin uniform in +- this
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
    visit("layers", layers);
    visit("top", top);
  }
};

class dcn {
 public:
  static constexpr const char* name = "dcn";
  using options = dcn_options;

  dcn(const step_context& on, const ctr_tables& tables, std::uint64_t seed, const dcn_options& o = {})
      : options_(o),
        columns_(tables.columns),
        tables_(on, tables, o.width, o.first_rows, deeprec::mix64(seed + 1)),
        cross_(tables.columns.dense_width() + tables.columns.slots() * o.width, o.layers,
               deeprec::counter_rng(deeprec::mix64(seed + 2)), o.precision.math),
        stack_(with_ends(cross_.width(), o.top, 1), deeprec::mlp_output::linear, deeprec::counter_rng(seed),
               deeprec::weight_init::he, 100, std::pmr::get_default_resource(), o.precision) {}

  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    tables_.add_parts(all, "dcn, rows", from);
    add_parts(all, "dcn, cross layers", cross_);
    add_parts(all, "dcn, stack", stack_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return tables_.counts(); }
  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }

  // A step over ranks, call by call.

  struct step {
    slot_tables::found_rows found;
    matrix_view<float> input, gradient;  // (B, 2 N + S D), (B, S D)
    std::vector<float> input_memory, gradient_memory;
  };
  struct pass {
    cross_pass cross;
    deeprec::mlp_pass stack;
    std::vector<float> slope{};
  };
  [[nodiscard]] pass make_pass() const { return {cross_pass(cross_), stack_.make_pass()}; }
  void settle() { stack_.weights_settled(); }
  void begin(index_t rows, step& at) const {
    at.found.reset();
    at.input = room(at.input_memory, rows, cross_.width());
    at.gradient = room(at.gradient_memory, rows, columns_.slots() * options_.width);
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    return tables_.look_up(on, batch.by_slot, at.found,
                           at.input.columns(columns_.dense_width(), columns_.slots() * options_.width));
  }
  [[nodiscard]] status forward(const step_context& on, pass& mine, const ctr_batch& batch, step& at) const {
    for (index_t i = 0; i < batch.rows(); ++i)
      std::copy_n(batch.dense.row(i), columns_.dense_width(), at.input.row(i));
    if (const status s = cross_.forward(on, mine.cross, at.input); !s) return s;
    return stack_forward(on, stack_, mine.stack, mine.cross.output());
  }
  [[nodiscard]] matrix_view<const float> logits(const pass& mine) const { return mine.stack.output(); }
  [[nodiscard]] status backward(const step_context& on, pass& mine, const ctr_batch& batch, step& at,
                                float share) const {
    const matrix_view<float> slope = room(mine.slope, batch.rows(), 1);
    if (const status s =
            loss_gradient(on, logits(mine), batch.labels, batch.weights, share, &control_.loss, slope);
        !s)
      return s;
    if (const status s = stack_backward(on, stack_, mine.stack, slope, deeprec::compute_input_gradient::yes);
        !s) {
      return s;
    }
    if (const status s = cross_.backward(on, mine.cross, mine.stack.input_gradient()); !s) return s;
    const auto of_rows =
        mine.cross.input_gradient().columns(columns_.dense_width(), columns_.slots() * options_.width);
    for (index_t i = 0; i < batch.rows(); ++i)
      std::copy_n(of_rows.row(i), of_rows.extent(1), at.gradient.row(i));
    return {};
  }
  template <class Use>
  void for_each_table(const Use& use) {
    use(tables_);
  }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("cross layers", cross_);
    use("stack", stack_);
  }
  /// Calls use(name, pass) for each stack's part of a pass.
  template <class Use>
  static void for_each_stack_pass(pass& of, const Use& use) {
    use("stack", of.stack);
  }
  template <class Use>
  void for_each_gradient(const Use& use) {
    use("cross layers", [](pass& of) { return of.cross.gradients(); });
    use("stack", [](pass& of) { return of.stack.gradients(); });
  }
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    return tables_.update(on, batch.by_slot, at.found, at.gradient,
                          scaled(row_optimizer(), control_.row_scale));
  }

  friend graph_step make_graph_step(dcn& model, const ctr_tables& tables, row_reader read, graph_use use);

 private:
  [[nodiscard]] ctr::row_optimizer row_optimizer() const {
    return row_optimizer_of(options_, options_.row_rate);
  }

  dcn_options options_;
  ctr_columns columns_;
  mutable step_control control_;  // the loss is added by passes
  slot_tables tables_;
  cross_stack cross_;
  stack_type stack_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(dcn& model, const ctr_tables& tables, row_reader read, graph_use use) {
  step_maker make;
  const step_control* const training = use == graph_use::train ? &model.control() : nullptr;
  deeprec::step_graph& g = make.graph();
  const index_t width = model.options_.width;
  const auto rows = g.variable("rows", model.tables_);
  const auto cross = g.variable("cross layers", model.cross_);
  const auto cross_local = g.local("cross pass", [&model] { return cross_pass(model.cross_); });
  const graph_stack stack = make.add_stack("stack", model.stack_);
  const auto in = make.add_inputs(tables, std::move(read));

  const auto located = make.add_resolve("resolve", model.tables_, rows, in, use);
  const auto input =
      make.add(part::lookup, "lookup", lookup_beside_op{width}, in.dense, located, g.read(rows));
  const auto crossed = make.add(part::forward, "cross forward", cross_forward_op{}, input, g.read(cross),
                                g.write(cross_local));
  const auto logits = make.add(part::forward, "stack forward", stack_forward_op{training}, crossed,
                               g.read(stack.weights), g.write(stack.pass));
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();

  const auto slope = make.add_loss_gradient(model.control().loss, logits, in);
  const auto by_stack = make.add(part::backward, "stack backward", stack_backward_op{}, slope, crossed,
                                 g.read(stack.weights), g.write(stack.pass));
  const auto by_cross = make.add(part::backward, "cross backward", cross_backward_op{},
                                 by_stack.template get<0>(), input, g.read(cross), g.write(cross_local));
  const auto of_rows = make.add(part::backward, "slice",
                                slice_op{tables.columns.dense_width(), tables.columns.slots() * width},
                                by_cross.template get<0>());
  make.add(part::update, "cross step", cross_step_op{model.stack_optimizer(), &model.control()},
           by_cross.template get<1>(), g.write(cross));
  make.add(part::update, "stack step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_stack.template get<1>(), g.write(stack.weights));
  make.add(part::update, "row update", row_update_op{model.row_optimizer(), &model.control()}, located,
           of_rows, g.write(rows));
  return make.take();
}

}  // namespace ctr
