// Logistic regression over the ids and the numbers: what every other model has to beat.
//
//   dense ─> linear ───────────────────┐
//   ids    ─> fused_lookup, rows of 1 ─┴─> sum ─> logit       (raw keys, ranks: by slots, and the sum)
#pragma once

#include <algorithm>
#include <cstring>

#include "model.hpp"

namespace ctr {

struct lr_options {
  float row_rate = 0.04F;
  float row_epsilon = 1e-3F;  ///< holds back the first steps of rare tokens
  float dense_rate = 0.1F;
  float initial_squares = 0;            ///< of Adagrad, for rows and stacks
  step_rule rule = step_rule::adagrad;  ///< of rows and stacks
  float l2 = 0;                         ///< likewise: a gradient has this times the weight more
  deeprec::mlp_precision precision{};

  /// Calls visit(name, size) for what a saved model must have.
  template <class Visit>
  void for_each_size(Visit&&) {}
};

/// What a pass over a batch, or over a part of one, needs besides the weights.
struct lr_pass {
  deeprec::mlp_pass* linear = nullptr;
  std::vector<deeprec::mlp_pass> own{};  // where it is not the stack's
  std::vector<float> logits_memory{}, slope_memory{};
  matrix_view<const float> logits{};
};

class logistic_regression : public whole_passes<logistic_regression, lr_pass> {
 public:
  static constexpr const char* name = "lr";
  static constexpr id_order ids = id_order::by_row;
  using options = lr_options;

  logistic_regression(const step_context& on, const ctr_tables& tables, std::uint64_t seed,
                      const lr_options& o = {})
      : options_(o),
        columns_(tables.columns),
        tables_(on, tables, 1),
        linear_({tables.columns.dense_width(), 1}, deeprec::mlp_output::linear, deeprec::counter_rng(seed),
                deeprec::weight_init::he, 0, std::pmr::get_default_resource(), o.precision) {
    whole_.linear = &linear_.own_pass();
    std::memset(linear_.parameters().data_handle(), 0,
                static_cast<std::size_t>(linear_.parameters().extent(1)) * sizeof(float));
  }

  struct step {
    slot_tables::found_rows found;      // by slots
    matrix_view<float> sums, gradient;  // (B, 1), by slots (B, S)
    std::vector<float> sums_memory, gradient_memory;

    [[nodiscard]] step part(const deeprec::micro_chunk& chunk) const {
      return {{}, chunk.of(sums), chunk.of(gradient), {}, {}};
    }
  };

  void begin(index_t rows, step& at) const {
    const index_t columns = tables_.is_by_slot() ? columns_.slots() : 1;
    at.found.reset();
    at.sums = room(at.sums_memory, rows, columns);
    at.gradient = room(at.gradient_memory, rows, columns);
  }
  [[nodiscard]] status admit(const step_context& on, const ctr_batch& batch, step& at) {
    return tables_.admit(on, batch.by_slot, at.found);
  }
  [[nodiscard]] status look_up_part(const step_context& on, const ctr_batch& batch, step& at) const {
    if (tables_.is_by_slot()) return tables_.look_up(on, batch.by_slot, at.sums);
    return look_up(on, batch, at);
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    if (tables_.is_by_slot()) return tables_.look_up(on, batch.by_slot, at.found, at.sums);
    return tables_.look_up_sums(on, batch.by_row, at.sums);
  }

  using pass = lr_pass;
  [[nodiscard]] pass make_pass() const {
    pass made{};
    made.own.push_back(linear_.make_pass());
    made.linear = made.own.data();
    return made;
  }
  [[nodiscard]] status forward(const step_context& on, pass& mine, const ctr_batch& batch, step& at) const {
    const matrix_view<float> sums = room(mine.logits_memory, batch.rows(), 1);
    if (const status s = stack_forward(on, linear_, *mine.linear, batch.dense); !s) return s;
    add_logits(at.sums, mine.linear->output(), sums);
    mine.logits = sums;
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits(const pass& mine) const { return mine.logits; }

  [[nodiscard]] status backward(const step_context& on, pass& mine, const ctr_batch& batch, step& at,
                                float share = 1) const {
    const matrix_view<float> slope =
        tables_.is_by_slot() ? room(mine.slope_memory, batch.rows(), 1) : at.gradient;
    if (const status s =
            loss_gradient(on, mine.logits, batch.labels, batch.weights, share, &control_.loss, slope);
        !s)
      return s;
    for (index_t i = 0; tables_.is_by_slot() && i < batch.rows(); ++i) {
      std::fill_n(at.gradient.row(i), columns_.slots(), slope(i, 0));
    }
    return stack_backward(on, linear_, *mine.linear, slope, deeprec::compute_input_gradient::no);
  }
  using whole_passes::backward;
  using whole_passes::forward;
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("linear", linear_);
  }
  /// Calls use(name, pass) for each stack's part of a pass.
  template <class Use>
  static void for_each_stack_pass(pass& of, const Use& use) {
    use("linear", *of.linear);
  }
  /// Calls use(name, gradients, sum): those of a pass, and where a step expects their sum.
  template <class Use>
  void for_each_gradient(const Use& use) {
    use("linear", [](pass& of) { return of.linear->gradients(); }, [this] { return linear_.gradients(); });
  }
  [[nodiscard]] status step_stacks(const step_context& on) {
    return stack_step(on, linear_, scaled(stack_optimizer(), control_.stack_scale));
  }
  [[nodiscard]] ctr::row_optimizer row_optimizer() const {
    return row_optimizer_of(options_, options_.row_rate, options_.row_epsilon);
  }
  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    const ctr::row_optimizer optimizer = scaled(row_optimizer(), control_.row_scale);
    if (tables_.is_by_slot()) return tables_.update(on, batch.by_slot, at.found, at.gradient, optimizer);
    return tables_.update_sums(on, batch.by_row, at.gradient, optimizer);
  }

  /// Calls use(tables) for each.
  template <class Use>
  void for_each_table(const Use& use) {
    use(tables_);
  }
  // What the step is made of, for its graph.
  [[nodiscard]] slot_tables& tables() { return tables_; }
  [[nodiscard]] stack_type& linear() { return linear_; }

  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    tables_.add_parts(all, "lr, rows", from);
    add_parts(all, "lr, linear", linear_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return tables_.counts(); }

 private:
  lr_options options_;
  ctr_columns columns_;
  mutable step_control control_;  // the loss is added by passes
  slot_tables tables_;
  stack_type linear_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(logistic_regression& model, const ctr_tables& tables, row_reader read,
                                  graph_use use = graph_use::train) {
  step_maker make;
  deeprec::step_graph& g = make.graph();
  const auto rows = g.variable("rows", model.tables());
  const graph_stack linear = make.add_stack("linear", model.linear());
  const auto in = make.add_inputs(tables, std::move(read));

  const bool by_slot = model.tables().is_by_slot();
  deeprec::value<sample_rows> bags;      // among the rows of all
  deeprec::value<located_rows> located;  // of slots
  deeprec::value<matrix> sums;
  if (by_slot) {
    located = make.add_resolve("resolve", model.tables(), rows, in, use);
    sums = make.add(part::lookup, "lookup", lookup_op{1}, located, g.read(rows));
  } else {
    bags = make.add(part::lookup, "concat", concat_rows_op{&tables}, in.rows);
    sums = make.add(part::lookup, "lookup", lookup_sums_op{}, bags, g.read(rows));
  }
  const auto line = make.add(part::forward, "linear forward", stack_forward_op{}, in.dense,
                             g.read(linear.weights), g.write(linear.pass));
  const auto logits = make.add(part::forward, "add", add_op{}, sums, line);
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();
  const auto slope = make.add_loss_gradient(model.control().loss, logits, in);
  const auto by_linear = make.add(part::backward, "linear backward", stack_backward_end_op{}, slope, in.dense,
                                  g.read(linear.weights), g.write(linear.pass));
  make.add(part::update, "linear step", stack_step_op{model.stack_optimizer(), &model.control()}, by_linear,
           g.write(linear.weights));
  if (by_slot) {
    const auto of_rows = make.add(part::backward, "spread", spread_op{tables.columns.slots()}, slope);
    make.add(part::update, "row update", row_update_op{model.row_optimizer(), &model.control()}, located,
             of_rows, g.write(rows));
  } else {
    make.add(part::update, "row update", row_update_sums_op{model.row_optimizer(), &model.control()}, bags,
             slope, g.write(rows));
  }
  return make.take();
}

}  // namespace ctr
