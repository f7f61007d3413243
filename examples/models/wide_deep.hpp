// Wide and deep: a logistic regression over the ids, and a stack over all rows side by side.
//
//   ids    ─┬> feature_group, rows of 1 ─> sum ───────────────────┐
//           └> feature_group, rows of 16, side by side ┐          ├─> logit
//   dense ─────────────────────────────────────────────┴─> MLP ───┘
#pragma once

#include <algorithm>

#include "model.hpp"

namespace ctr {

struct wide_deep_options {
  index_t width = 16;
  std::vector<index_t> top = {256, 128};  ///< hidden layers
  float first_rows = 0.001F;              ///< rows of the deep part begin uniform in +- this
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

/// What a pass over a batch, or over a part of one, needs besides the weights.
struct wide_deep_pass {
  deeprec::mlp_pass* stack = nullptr;
  std::vector<deeprec::mlp_pass> own{};  // where it is not the stack's
  std::vector<float> logits_memory{}, slope{};
  matrix_view<const float> logits{};
};

class wide_deep : public whole_passes<wide_deep, wide_deep_pass> {
 public:
  static constexpr const char* name = "wdl";
  static constexpr id_order ids = id_order::by_slot;
  using options = wide_deep_options;

  wide_deep(const step_context& on, const ctr_tables& tables, std::uint64_t seed,
            const wide_deep_options& o = {})
      : options_(o),
        columns_(tables.columns),
        wide_(on, tables, 1),
        deep_(on, tables, o.width, o.first_rows, deeprec::mix64(seed + 1)),
        stack_(with_ends(tables.columns.dense_width() + tables.columns.slots() * o.width, o.top, 1),
               deeprec::mlp_output::linear, deeprec::counter_rng(seed), deeprec::weight_init::he, 100,
               std::pmr::get_default_resource(), o.precision) {
    whole_.stack = &stack_.own_pass();
  }
  struct step {
    slot_tables::found_rows wide, deep;
    matrix_view<float> weights, input;                // (B, S), (B, 2 N + S D)
    matrix_view<float> wide_gradient, deep_gradient;  // (B, S), (B, S D)
    std::vector<float> weights_memory, input_memory, wide_memory, deep_memory;

    void begin(index_t rows, const ctr_columns& columns, index_t width) {
      wide.reset();
      deep.reset();
      weights = room(weights_memory, rows, columns.slots());
      input = room(input_memory, rows, columns.dense_width() + columns.slots() * width);
      wide_gradient = room(wide_memory, rows, columns.slots());
      deep_gradient = room(deep_memory, rows, columns.slots() * width);
    }
    /// The rows of some samples, in the memory of all.
    [[nodiscard]] step part(const deeprec::micro_chunk& chunk) const {
      step some;
      some.weights = chunk.of(weights);
      some.input = chunk.of(input);
      some.wide_gradient = chunk.of(wide_gradient);
      some.deep_gradient = chunk.of(deep_gradient);
      return some;
    }
  };

  void begin(index_t rows, step& at) const { at.begin(rows, columns_, options_.width); }
  [[nodiscard]] status admit(const step_context& on, const ctr_batch& batch, step& at) {
    if (const status s = wide_.admit(on, batch.by_slot, at.wide); !s) return s;
    return deep_.admit(on, batch.by_slot, at.deep);
  }
  [[nodiscard]] status look_up_part(const step_context& on, const ctr_batch& batch, step& at) const {
    if (const status s = wide_.look_up(on, batch.by_slot, at.weights); !s) return s;
    return deep_.look_up(on, batch.by_slot,
                         at.input.columns(columns_.dense_width(), columns_.slots() * options_.width));
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    if (const status s = wide_.look_up(on, batch.by_slot, at.wide, at.weights); !s) return s;
    return deep_.look_up(on, batch.by_slot, at.deep,
                         at.input.columns(columns_.dense_width(), columns_.slots() * options_.width));
  }

  using pass = wide_deep_pass;
  [[nodiscard]] pass make_pass() const {
    pass made{};
    made.own.push_back(stack_.make_pass());
    made.stack = made.own.data();
    return made;
  }
  [[nodiscard]] status forward(const step_context& on, pass& mine, const ctr_batch& batch, step& at) const {
    const index_t rows = batch.rows();
    for (index_t i = 0; i < rows; ++i)
      std::copy_n(batch.dense.row(i), columns_.dense_width(), at.input.row(i));
    if (const status s = stack_forward(on, stack_, *mine.stack, at.input); !s) return s;
    const matrix_view<float> sums = room(mine.logits_memory, rows, 1);
    add_logits(at.weights, mine.stack->output(), sums);
    mine.logits = sums;
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits(const pass& mine) const { return mine.logits; }

  [[nodiscard]] status backward(const step_context& on, pass& mine, const ctr_batch& batch, step& at,
                                float share = 1) const {
    const index_t rows = batch.rows();
    const matrix_view<float> slope = room(mine.slope, rows, 1);
    if (const status s =
            loss_gradient(on, mine.logits, batch.labels, batch.weights, share, &control_.loss, slope);
        !s)
      return s;
    if (const status s = stack_backward(on, stack_, *mine.stack, slope, deeprec::compute_input_gradient::yes);
        !s)
      return s;
    const auto deep =
        mine.stack->input_gradient().columns(columns_.dense_width(), columns_.slots() * options_.width);
    for (index_t i = 0; i < rows; ++i) {
      std::fill_n(at.wide_gradient.row(i), columns_.slots(), slope(i, 0));
      std::copy_n(deep.row(i), deep.extent(1), at.deep_gradient.row(i));
    }
    return {};
  }
  using whole_passes::backward;
  using whole_passes::forward;
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("stack", stack_);
  }
  /// Calls use(name, pass) for each stack's part of a pass.
  template <class Use>
  static void for_each_stack_pass(pass& of, const Use& use) {
    use("stack", *of.stack);
  }
  /// Calls use(name, gradients, sum): those of a pass, and where a step expects their sum.
  template <class Use>
  void for_each_gradient(const Use& use) {
    use("stack", [](pass& of) { return of.stack->gradients(); }, [this] { return stack_.gradients(); });
  }
  [[nodiscard]] status step_stacks(const step_context& on) {
    return stack_step(on, stack_, scaled(stack_optimizer(), control_.stack_scale));
  }
  [[nodiscard]] ctr::row_optimizer row_optimizer() const {
    return row_optimizer_of(options_, options_.row_rate);
  }
  [[nodiscard]] ctr::row_optimizer wide_optimizer() const {
    return row_optimizer_of(options_, options_.wide_rate, options_.wide_epsilon);
  }
  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.wide_gradient; });
    use([](step& at) { return at.deep_gradient; });
  }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    const float scale = control_.row_scale;
    if (const status s =
            wide_.update(on, batch.by_slot, at.wide, at.wide_gradient, scaled(wide_optimizer(), scale));
        !s) {
      return s;
    }
    return deep_.update(on, batch.by_slot, at.deep, at.deep_gradient, scaled(row_optimizer(), scale));
  }

  /// Calls use(tables) for each.
  template <class Use>
  void for_each_table(const Use& use) {
    use(wide_);
    use(deep_);
  }
  // What the step is made of, for its graph.
  [[nodiscard]] slot_tables& wide() { return wide_; }
  [[nodiscard]] slot_tables& deep() { return deep_; }
  [[nodiscard]] stack_type& stack() { return stack_; }
  [[nodiscard]] index_t width() const { return options_.width; }

  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    wide_.add_parts(all, "wdl, wide rows", from);
    deep_.add_parts(all, "wdl, deep rows", from);
    add_parts(all, "wdl, stack", stack_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return counts_of_twins(wide_, deep_); }

 private:
  wide_deep_options options_;
  ctr_columns columns_;
  mutable step_control control_;  // the loss is added by passes
  slot_tables wide_, deep_;
  stack_type stack_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(wide_deep& model, const ctr_tables& tables, row_reader read,
                                  graph_use use = graph_use::train) {
  step_maker make;
  const step_control* const training = use == graph_use::train ? &model.control() : nullptr;
  deeprec::step_graph& g = make.graph();
  const auto wide = g.variable("wide rows", model.wide()), deep = g.variable("deep rows", model.deep());
  const graph_stack stack = make.add_stack("stack", model.stack());
  const auto in = make.add_inputs(tables, std::move(read));

  const auto wide_located = make.add_resolve("wide resolve", model.wide(), wide, in, use);
  const auto deep_located = make.add_resolve("deep resolve", model.deep(), deep, in, use);
  const auto weights = make.add(part::lookup, "wide lookup", lookup_op{1}, wide_located, g.read(wide));
  const auto input = make.add(part::lookup, "deep lookup", lookup_beside_op{model.width()}, in.dense,
                              deep_located, g.read(deep));
  const auto out = make.add(part::forward, "stack forward", stack_forward_op{training}, input,
                            g.read(stack.weights), g.write(stack.pass));
  const auto logits = make.add(part::forward, "add", add_op{}, weights, out);
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();
  const auto slope = make.add_loss_gradient(model.control().loss, logits, in);
  const auto by_stack = make.add(part::backward, "stack backward", stack_backward_op{}, slope, input,
                                 g.read(stack.weights), g.write(stack.pass));
  const auto of_weights = make.add(part::backward, "spread", spread_op{tables.columns.slots()}, slope);
  const auto of_rows = make.add(
      part::backward, "slice", slice_op{tables.columns.dense_width(), tables.columns.slots() * model.width()},
      by_stack.template get<0>());
  make.add(part::update, "stack step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_stack.template get<1>(), g.write(stack.weights));
  make.add(part::update, "wide update", row_update_op{model.wide_optimizer(), &model.control()}, wide_located,
           of_weights, g.write(wide));
  make.add(part::update, "deep update", row_update_op{model.row_optimizer(), &model.control()}, deep_located,
           of_rows, g.write(deep));
  return make.take();
}

}  // namespace ctr
