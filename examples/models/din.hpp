// DIN: attention of the candidate over the items that its user had before.
//
//   history ─┬───────────────────────────────────────────────────┐
//            ├─> compare ─> attention MLP ─> softmax ─> weights ─┴─> sum of weight x row ─┬─> MLP ─> logit
//   target ──┴────────────────────────────────────────── itself, and times that sum ──────┘
//
// Rows are those of an item and of its category, side by side. Between the layers of the last MLP is Dice.
// The softmax makes the mean of the history the special case of equal scores: without attention they are 0.
// Source: Zhou et al. 2018, arXiv:1706.06978, where the scores themselves are the weights.
#pragma once

#include "history_ops.hpp"
#include "model.hpp"

namespace ctr {

struct din_options {
  index_t width = 32;                   ///< of an item's row, and of a category's
  std::vector<index_t> unit = {32};     ///< hidden layers of the attention unit
  std::vector<index_t> top = {64, 32};  ///< hidden layers
  bool attention = true;
  float first_rows = 0.01F;  ///< rows begin uniform in +- this
  float row_rate = 0.05F;
  float dense_rate = 0.03F;
  float initial_squares = 0;            ///< of Adagrad, for rows and stacks
  step_rule rule = step_rule::adagrad;  ///< of rows and stacks
  float l2 = 0;                         ///< likewise: a gradient has this times the weight more
  deeprec::mlp_precision precision{};

  template <class Visit>
  void for_each_size(Visit&& visit) {
    visit("width", width);
    visit("top", top);
    visit("attention", attention);
  }
};

class din {
 public:
  static constexpr const char* name = "din";
  static constexpr bool draws_negatives = true;  ///< trains with a negative for each positive
  static constexpr bool gives_logits = true;
  using options = din_options;

  din(const step_context& on, const history_tables& tables, std::uint64_t seed, const din_options& o = {})
      : options_(o),
        row_width_(tables.features() * o.width),
        tables_(on, tables.first_row(), o.width, o.first_rows, deeprec::mix64(seed + 1), tables.unknown),
        unit_(with_ends(4 * row_width_, o.unit, 1), deeprec::mlp_output::linear, deeprec::counter_rng(seed),
              deeprec::weight_init::he, 100, std::pmr::get_default_resource(), o.precision),
        top_(with_ends(3 * row_width_, o.top, 1), deeprec::counter_rng(seed), o.precision) {}

  /// All that training changes, under its names.
  [[nodiscard]] model_parts parts() {
    model_parts all;
    tables_.add_parts(all, "din, rows", {});
    if (options_.attention) add_parts(all, "din, attention", unit_);
    add_parts(all, "din, stack", top_);
    all.tables.push_back(name_table("din, averages of Dice", as_table(top_.averages())));
    return all;
  }

  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }

  /// Calls use(name, stack) for each.
  template <class Use>
  void for_each_stack(const Use& use) {
    if (options_.attention) use("attention", unit_);
    use("stack", top_);
  }

  friend graph_step_of<history_batch> make_graph_step(din& model, const history_tables& tables,
                                                      reader_of<history_batch> read, graph_use use);

 private:
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }

  din_options options_;
  step_control control_;
  index_t row_width_;   // K
  slot_tables tables_;  // of items, then of categories
  stack_type unit_;
  dice_stack top_;
};

/// @param model, tables  outlive the graph
inline graph_step_of<history_batch> make_graph_step(din& model, const history_tables& tables,
                                                    reader_of<history_batch> read, graph_use use) {
  history_step_maker make;
  deeprec::step_graph& g = make.graph();
  const bool attention = model.options_.attention;
  const auto table = g.variable("rows", model.tables_);
  const auto stack = g.variable("stack", model.top_);
  const auto in = make.add_inputs(tables, model.tables_, model.options_.width, table, std::move(read));
  const auto mode = use == graph_use::train ? deeprec::dice_mode::batch : deeprec::dice_mode::fixed;

  deeprec::value<matrix> compared, scores;
  graph_stack unit;
  if (attention) {
    unit = make.add_stack("attention", model.unit_);
    compared = make.add(part::forward, "compare", compare_op{}, in.batch, in.rows);
    scores = make.add(part::forward, "attention forward", stack_forward_op{}, compared, g.read(unit.weights),
                      g.write(unit.pass));
  } else {
    scores = make.add(part::forward, "even scores", even_scores_op{}, in.batch);
  }
  const auto pool = make.add(part::forward, "pool", pool_op{}, in.batch, in.rows, scores);
  const auto pooled = pool.template get<0>(), weights = pool.template get<1>();
  const auto joined = make.add(part::forward, "join", join_op{}, in.batch, in.rows, pooled);
  const auto logits = make.add(part::forward, "stack forward", dice_forward_op{mode}, joined, g.write(stack));
  make.set_logits(logits);
  if (use == graph_use::predict) return make.take();

  const auto slope =
      make.add(part::backward, "loss gradient", loss_gradient_op{&model.control().loss}, logits, in.labels);
  const auto of_joined =
      make.add(part::backward, "stack backward", dice_backward_op{}, slope, joined, g.write(stack));
  const auto of_parts =
      make.add(part::backward, "join backward", join_backward_op{}, in.batch, in.rows, pooled, of_joined);
  const auto by_pool = make.add(part::backward, "pool backward", pool_backward_op{}, in.batch, in.rows,
                                weights, of_parts.template get<0>(), of_parts.template get<1>());
  deeprec::value<matrix> of_rows = by_pool.template get<0>();
  if (attention) {
    const auto by_attention =
        make.add(part::backward, "attention backward", stack_backward_op{}, by_pool.template get<1>(),
                 compared, g.read(unit.weights), g.write(unit.pass));
    const auto by_unit = make.add(part::backward, "compare backward", compare_backward_op{}, in.batch,
                                  in.rows, by_attention.template get<0>(), of_rows);
    of_rows = by_unit.template get<0>();
    make.add(part::update, "attention step", stack_step_op{model.stack_optimizer(), &model.control()},
             by_attention.template get<1>(), g.write(unit.weights));
  }
  const row_optimizer of_table = row_optimizer_of(model.options_, model.options_.row_rate);
  make.add(part::update, "stack step", dice_step_op{model.stack_optimizer(), &model.control()},
           g.write(stack));
  make.add(part::update, "row update", row_update_op{of_table, &model.control()}, in.located, of_rows,
           g.write(table));
  return make.take();
}

}  // namespace ctr
