// DLRM: the dot products of all pairs of vectors, those of the ids and that of the numbers.
//
//   dense ─> bottom MLP ─────────────────┐
//   ids    ─> feature_group, rows of 16 ─┴─> dot interaction ─> top MLP ─> logit
//
// Source: Naumov et al. 2019, arXiv:1906.00091.
#pragma once

#include "model.hpp"

namespace ctr {

struct dlrm_options {
  index_t width = 16;
  std::vector<index_t> bottom = {128};  ///< hidden layers
  std::vector<index_t> top = {64};
  float first_rows = 0.001F;  ///< rows begin uniform in +- this
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
    visit("bottom", bottom);
    visit("top", top);
  }
};

/// What a pass over a batch, or over a part of one, needs besides the weights.
struct dlrm_pass {
  deeprec::mlp_pass *bottom = nullptr, *top = nullptr;
  std::vector<deeprec::mlp_pass> own{};  // where they are not the stacks'
  std::vector<float> crossed{}, bottom_gradient{}, slope{};
};

class dlrm : public whole_passes<dlrm, dlrm_pass> {
 public:
  static constexpr const char* name = "dlrm";
  static constexpr id_order ids = id_order::by_slot;
  using options = dlrm_options;

  dlrm(const step_context& on, const ctr_tables& tables, std::uint64_t seed, const dlrm_options& o = {})
      : options_(o),
        columns_(tables.columns),
        tables_(on, tables, o.width, o.first_rows, deeprec::mix64(seed + 1)),
        bottom_(with_ends(tables.columns.dense_width(), o.bottom, o.width), deeprec::mlp_output::relu,
                deeprec::counter_rng(seed), deeprec::weight_init::he, 100, std::pmr::get_default_resource(),
                o.precision),
        top_(with_ends(interaction_width(tables.columns.slots() + 1, o.width), o.top, 1),
             deeprec::mlp_output::linear, deeprec::counter_rng(seed), deeprec::weight_init::he, 200,
             std::pmr::get_default_resource(), o.precision) {
    whole_.bottom = &bottom_.own_pass();
    whole_.top = &top_.own_pass();
  }
  struct step {
    slot_tables::found_rows found;
    matrix_view<float> pooled, gradient;  // (B, S D)
    std::vector<float> pooled_memory, gradient_memory;

    /// The rows of some samples, in the memory of all.
    [[nodiscard]] step part(const deeprec::micro_chunk& chunk) const {
      return {{}, chunk.of(pooled), chunk.of(gradient), {}, {}};
    }
  };

  void begin(index_t rows, step& at) const {
    at.found.reset();
    at.pooled = room(at.pooled_memory, rows, columns_.slots() * options_.width);
    at.gradient = room(at.gradient_memory, rows, columns_.slots() * options_.width);
  }
  [[nodiscard]] status admit(const step_context& on, const ctr_batch& batch, step& at) {
    return tables_.admit(on, batch.by_slot, at.found);
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    return tables_.look_up(on, batch.by_slot, at.found, at.pooled);
  }
  [[nodiscard]] status look_up_part(const step_context& on, const ctr_batch& batch, step& at) const {
    return tables_.look_up(on, batch.by_slot, at.pooled);
  }

  using pass = dlrm_pass;
  [[nodiscard]] pass make_pass() const {
    pass made{};
    made.own.push_back(bottom_.make_pass());
    made.own.push_back(top_.make_pass());
    made.bottom = made.own.data();
    made.top = made.own.data() + 1;
    return made;
  }
  [[nodiscard]] status forward(const step_context& on, pass& mine, const ctr_batch& batch, step& at) const {
    const matrix_view<float> crossed = room(mine.crossed, batch.rows(), top_.size(0));
    if (const status s = stack_forward(on, bottom_, *mine.bottom, batch.dense); !s) return s;
    if (const status s = interact(on, mine.bottom->output(), at.pooled, crossed); !s) return s;
    return stack_forward(on, top_, *mine.top, crossed);
  }
  [[nodiscard]] matrix_view<const float> logits(const pass& mine) const { return mine.top->output(); }

  [[nodiscard]] status backward(const step_context& on, pass& mine, const ctr_batch& batch, step& at,
                                float share = 1) const {
    const index_t rows = batch.rows();
    const matrix_view<float> slope = room(mine.slope, rows, 1);
    const matrix_view<float> bottom_gradient = room(mine.bottom_gradient, rows, options_.width);
    if (const status s =
            loss_gradient(on, logits(mine), batch.labels, batch.weights, share, &control_.loss, slope);
        !s)
      return s;
    if (const status s = stack_backward(on, top_, *mine.top, slope, deeprec::compute_input_gradient::yes); !s)
      return s;
    if (const status s = interact_backward(on, mine.bottom->output(), at.pooled, mine.top->input_gradient(),
                                           bottom_gradient, at.gradient);
        !s) {
      return s;
    }
    return stack_backward(on, bottom_, *mine.bottom, bottom_gradient, deeprec::compute_input_gradient::no);
  }
  using whole_passes::backward;
  using whole_passes::forward;
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }
  /// Calls use(stack) for each.
  template <class Use>
  void for_each_stack(const Use& use) {
    use("bottom", bottom_);
    use("top", top_);
  }
  /// Calls use(name, pass) for each stack's part of a pass.
  template <class Use>
  static void for_each_stack_pass(pass& of, const Use& use) {
    use("bottom", *of.bottom);
    use("top", *of.top);
  }
  /// Calls use(name, gradients, sum): those of a pass, and where a step expects their sum.
  template <class Use>
  void for_each_gradient(const Use& use) {
    use("bottom", [](pass& of) { return of.bottom->gradients(); }, [this] { return bottom_.gradients(); });
    use("top", [](pass& of) { return of.top->gradients(); }, [this] { return top_.gradients(); });
  }
  [[nodiscard]] status step_stacks(const step_context& on) {
    const dense_optimizer optimizer = scaled(stack_optimizer(), control_.stack_scale);
    if (const status s = stack_step(on, bottom_, optimizer); !s) return s;
    return stack_step(on, top_, optimizer);
  }
  [[nodiscard]] ctr::row_optimizer row_optimizer() const {
    return row_optimizer_of(options_, options_.row_rate);
  }
  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }
  /// Calls use(f) for each table: f(step) is the gradient of its pooled rows.
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    return tables_.update(on, batch.by_slot, at.found, at.gradient,
                          scaled(row_optimizer(), control_.row_scale));
  }

  /// Calls use(tables) for each.
  template <class Use>
  void for_each_table(const Use& use) {
    use(tables_);
  }
  // What the step is made of, for its graph.
  [[nodiscard]] slot_tables& tables() { return tables_; }
  [[nodiscard]] stack_type& bottom() { return bottom_; }
  [[nodiscard]] stack_type& top() { return top_; }
  [[nodiscard]] index_t width() const { return options_.width; }

  /// All that training changes, under its names. `from`: of slot_tables::add_parts.
  [[nodiscard]] model_parts parts(const std::string& from = {}) {
    model_parts all;
    tables_.add_parts(all, "dlrm, rows", from);
    add_parts(all, "dlrm, bottom", bottom_);
    add_parts(all, "dlrm, top", top_);
    return all;
  }
  [[nodiscard]] table_counts counts() const { return tables_.counts(); }

 private:
  dlrm_options options_;
  ctr_columns columns_;
  mutable step_control control_;  // the loss is added by passes
  slot_tables tables_;
  stack_type bottom_, top_;
};

/// @param model, tables  outlive the graph
inline graph_step make_graph_step(dlrm& model, const ctr_tables& tables, row_reader read,
                                  graph_use use = graph_use::train) {
  step_maker make;
  const step_control* const training = use == graph_use::train ? &model.control() : nullptr;
  deeprec::step_graph& g = make.graph();
  const auto rows = g.variable("rows", model.tables());
  const graph_stack bottom = make.add_stack("bottom", model.bottom()),
                    top = make.add_stack("top", model.top());
  const auto in = make.add_inputs(tables, std::move(read));

  const auto located = make.add_resolve("resolve", model.tables(), rows, in, use);
  const auto pooled = make.add(part::lookup, "lookup", lookup_op{model.width()}, located, g.read(rows));
  const auto low = make.add(part::forward, "bottom forward", stack_forward_op{training, 0}, in.dense,
                            g.read(bottom.weights), g.write(bottom.pass));
  const auto crossed =
      make.add(part::forward, "interaction", interaction_op{model.top().size(0)}, low, pooled);
  const auto logits = make.add(part::forward, "top forward", stack_forward_op{training, 1}, crossed,
                               g.read(top.weights), g.write(top.pass));
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();
  const auto slope = make.add_loss_gradient(model.control().loss, logits, in);
  const auto by_top = make.add(part::backward, "top backward", stack_backward_op{}, slope, crossed,
                               g.read(top.weights), g.write(top.pass));
  const auto gradients = make.add(part::backward, "interaction backward", interaction_backward_op{},
                                  by_top.template get<0>(), low, pooled);
  const auto by_bottom =
      make.add(part::backward, "bottom backward", stack_backward_end_op{}, gradients.template get<0>(),
               in.dense, g.read(bottom.weights), g.write(bottom.pass));
  make.add(part::update, "bottom step", stack_step_op{model.stack_optimizer(), &model.control()}, by_bottom,
           g.write(bottom.weights));
  make.add(part::update, "top step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_top.template get<1>(), g.write(top.weights));
  make.add(part::update, "row update", row_update_op{model.row_optimizer(), &model.control()}, located,
           gradients.template get<1>(), g.write(rows));
  return make.take();
}

}  // namespace ctr
