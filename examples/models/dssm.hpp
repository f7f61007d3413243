// DSSM: a tower for the user and one for the item; the score is the cosine of what they make.
//
//   history ─> mean of the rows ─> user MLP ─> length 1 ─┐
//   target ───────────────────────> item MLP ─> length 1 ─┴─> cosine
//
// Training takes no drawn negatives: the items of the other users of a batch are those. A frequent item is
// there more often, which the logarithm of its share among all uses takes back: what is learned is the
// probability of an item for a user, and not how much more likely it is than for others.
// Sources: Huang et al. 2013, CIKM; the correction: Yi et al. 2019, RecSys.
#pragma once

#include <cmath>

#include "history_ops.hpp"
#include "model.hpp"

namespace ctr {

struct dssm_options {
  index_t width = 16;               ///< of an item's row, and of a category's
  std::vector<index_t> top = {64};  ///< hidden layers of both towers
  index_t vector = 32;              ///< what a tower makes
  float temperature = 0.1F;
  float first_rows = 0.05F;  ///< rows begin uniform in +- this
  float row_rate = 0.05F;
  float dense_rate = 0.05F;
  float initial_squares = 0;            ///< of Adagrad, for rows and stacks
  step_rule rule = step_rule::adagrad;  ///< of rows and stacks
  float l2 = 0;                         ///< likewise: a gradient has this times the weight more
  deeprec::mlp_precision precision{};

  template <class Visit>
  void for_each_size(Visit&& visit) {
    visit("width", width);
    visit("top", top);
  }
};

/// Rows of length one, side by side: the user's and the item's.
struct unit_pairs {
  matrix both;                            // (B, 2 D)
  std::vector<float> of_users, of_items;  // inverse lengths
  [[nodiscard]] index_t value_bytes() const { return deeprec::batch_traits<matrix>::bytes(both); }
};
/// What a batch needs for its softmax.
struct in_batch_scores {
  matrix scores;                  // (B,B)
  std::vector<std::int64_t> ids;  // of the targets
  std::vector<float> log_shares;
  [[nodiscard]] index_t value_bytes() const { return deeprec::batch_traits<matrix>::bytes(scores); }
};

struct normalize_op {
  static constexpr const char* kind = "normalize";
  using output = unit_pairs;
  status operator()(const step_call& call, const matrix& users, const matrix& items, unit_pairs& out) const {
    const index_t width = users.view().extent(1);
    const matrix_view<float> both = out.both.make(users.rows(), 2 * width);
    if (const status s = normalize(call.on, users.view(), both.columns(0, width), out.of_users); !s) return s;
    return normalize(call.on, items.view(), both.columns(width, width), out.of_items);
  }
};
struct normalize_backward_op {
  static constexpr const char* kind = "normalize_backward";
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const unit_pairs& in, const matrix& by_users,
                    const matrix& by_items, matrix& of_users, matrix& of_items) const {
    const index_t rows = in.both.rows(), width = by_users.view().extent(1);
    const matrix_view<const float> both = in.both.view();
    if (const status s = normalize_backward(call.on, both.columns(0, width), in.of_users, by_users.view(),
                                            of_users.make(rows, width));
        !s) {
      return s;
    }
    return normalize_backward(call.on, both.columns(width, width), in.of_items, by_items.view(),
                              of_items.make(rows, width));
  }
};
struct cosine_op {
  static constexpr const char* kind = "cosine";
  using output = matrix;
  status operator()(const step_call& call, const unit_pairs& in, matrix& out) const {
    const matrix_view<const float> both = in.both.view();  // the products of all pairs of two vectors: one
    return factorize(call.on, both, both.extent(1) / 2, out.make(in.both.rows(), 1));
  }
};
struct in_batch_gradient_op {
  static constexpr const char* kind = "in_batch_gradient";
  using outputs = op_outputs<matrix, matrix, in_batch_scores>;
  const std::vector<float>* log_shares;  // of each item
  float temperature;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("temperature", temperature);
  }
  status operator()(const step_call& call, const history_batch& of, const unit_pairs& in, matrix& of_users,
                    matrix& of_items, in_batch_scores& work) const {
    const index_t width = in.both.view().extent(1) / 2;
    work.ids.assign(of.targets.begin(), of.targets.end());
    work.log_shares.resize(of.targets.size());
    for (std::size_t b = 0; b < of.targets.size(); ++b) {
      work.log_shares[b] = (*log_shares)[static_cast<std::size_t>(of.targets[b])];
    }
    return in_batch_gradient(call.on, in.both.view().columns(0, width), in.both.view().columns(width, width),
                             work.log_shares, work.ids, temperature, work.scores.make(of.rows, of.rows),
                             of_users.make(of.rows, width), of_items.make(of.rows, width));
  }
};

class dssm {
 public:
  static constexpr const char* name = "dssm";
  static constexpr bool draws_negatives = false;
  static constexpr bool gives_logits = false;
  using options = dssm_options;

  dssm(const step_context& on, const history_tables& tables, std::uint64_t seed, const dssm_options& o = {})
      : options_(o),
        row_width_(tables.features() * o.width),
        tables_(on, tables.first_row(), o.width, o.first_rows, deeprec::mix64(seed + 1), tables.unknown),
        users_(with_ends(row_width_, o.top, o.vector), deeprec::mlp_output::linear,
               deeprec::counter_rng(seed), deeprec::weight_init::he, 100, std::pmr::get_default_resource(),
               o.precision),
        items_(with_ends(row_width_, o.top, o.vector), deeprec::mlp_output::linear,
               deeprec::counter_rng(seed), deeprec::weight_init::he, 200, std::pmr::get_default_resource(),
               o.precision) {
    double all = 0;
    for (const index_t uses : tables.uses) all += static_cast<double>(uses);
    for (const index_t uses : tables.uses) {  // an item that trains no sample is in no batch
      log_shares_.push_back(
          static_cast<float>(std::log(static_cast<double>(std::max<index_t>(uses, 1)) / all)));
    }
  }
  /// All that training changes, under its names.
  [[nodiscard]] model_parts parts() {
    model_parts all;
    tables_.add_parts(all, "dssm, rows", {});
    add_parts(all, "dssm, user", users_);
    add_parts(all, "dssm, item", items_);
    return all;
  }

  /// What is set and taken between steps.
  [[nodiscard]] step_control& control() { return control_; }

  /// Calls use(name, stack) for each.
  template <class Use>
  void for_each_stack(const Use& use) {
    use("user", users_);
    use("item", items_);
  }

  friend graph_step_of<history_batch> make_graph_step(dssm& model, const history_tables& tables,
                                                      reader_of<history_batch> read, graph_use use);

 private:
  [[nodiscard]] dense_optimizer stack_optimizer() const { return dense_optimizer_of(options_); }

  dssm_options options_;
  step_control control_;
  index_t row_width_;   // K
  slot_tables tables_;  // of items, then of categories
  stack_type users_, items_;
  std::vector<float> log_shares_;
};

/// @param model, tables  outlive the graph
inline graph_step_of<history_batch> make_graph_step(dssm& model, const history_tables& tables,
                                                    reader_of<history_batch> read, graph_use use) {
  history_step_maker make;
  deeprec::step_graph& g = make.graph();
  const auto table = g.variable("rows", model.tables_);
  const graph_stack users = make.add_stack("user", model.users_),
                    items = make.add_stack("item", model.items_);
  const auto in = make.add_inputs(tables, model.tables_, model.options_.width, table, std::move(read));

  const auto scores = make.add(part::forward, "even scores", even_scores_op{}, in.batch);
  const auto pool = make.add(part::forward, "pool", pool_op{}, in.batch, in.rows, scores);
  const auto pooled = pool.template get<0>(), weights = pool.template get<1>();
  const auto targets = make.add(part::forward, "targets", targets_op{}, in.batch, in.rows);
  const auto user = make.add(part::forward, "user forward", stack_forward_op{}, pooled, g.read(users.weights),
                             g.write(users.pass));
  const auto item = make.add(part::forward, "item forward", stack_forward_op{}, targets,
                             g.read(items.weights), g.write(items.pass));
  const auto pairs = make.add(part::forward, "normalize", normalize_op{}, user, item);
  const auto cosines = make.add(part::forward, "cosine", cosine_op{}, pairs);
  make.set_logits(cosines);
  if (use == graph_use::predict) return make.take();

  const auto by_scores =
      make.add(part::backward, "in-batch gradient",
               in_batch_gradient_op{&model.log_shares_, model.options_.temperature}, in.batch, pairs);
  const auto of_towers = make.add(part::backward, "normalize backward", normalize_backward_op{}, pairs,
                                  by_scores.template get<0>(), by_scores.template get<1>());
  const auto by_users =
      make.add(part::backward, "user backward", stack_backward_op{}, of_towers.template get<0>(), pooled,
               g.read(users.weights), g.write(users.pass));
  const auto by_items =
      make.add(part::backward, "item backward", stack_backward_op{}, of_towers.template get<1>(), targets,
               g.read(items.weights), g.write(items.pass));
  const auto of_rows = make.add(part::backward, "pool backward", pool_backward_op{}, in.batch, in.rows,
                                weights, by_users.template get<0>(), by_items.template get<0>());
  const row_optimizer of_table = row_optimizer_of(model.options_, model.options_.row_rate);
  make.add(part::update, "user step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_users.template get<1>(), g.write(users.weights));
  make.add(part::update, "item step", stack_step_op{model.stack_optimizer(), &model.control()},
           by_items.template get<1>(), g.write(items.weights));
  make.add(part::update, "row update", row_update_op{of_table, &model.control()}, in.located,
           of_rows.template get<0>(), g.write(table));
  return make.take();
}

}  // namespace ctr
