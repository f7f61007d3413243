#include "graph_step.hpp"

#include <string>
#include <utility>

namespace train_ctr {

namespace {

using deeprec::op_role;
using deeprec::value;

/// Adds ops to a graph, with the parts of a step that they belong to.
class step_maker {
 public:
  /// The values that no weight has a part in.
  struct inputs {
    value<matrix> dense, labels;
    std::vector<value<slot_rows>> rows;  // of each slot
  };

  step_maker() = default;
  deeprec::step_graph& graph() { return made_.graph; }
  graph_step take() { return std::move(made_); }

  /// Adds an op of this part and role.
  template <class Op, class... In>
  auto add(part of, const std::string& name, Op op, In&&... in) {
    auto added = graph().add(name, std::move(op), std::forward<In>(in)...);
    mark(added.op(), of);
    if (of == part::backward) added.role(op_role::gradient);
    if (of == part::update) added.role(op_role::apply).target();
    return added;
  }

  inputs add_inputs(const ctr_tables& tables, row_reader read) {
    const value<raw_rows> source =
        graph().source<raw_rows>("read", [read = std::move(read)](raw_rows& rows) { return read(rows); });
    made_.source = source;
    mark(source.op(), part::read);
    const value<raw_rows> raw = graph().stage("io", source);
    mark(raw.op(), part::read);
    const auto decoded = add(part::read, "decode", decode_op{}, raw);
    inputs made{decoded.template get<0>(), decoded.template get<1>(), {}};
    for (index_t n = 0; n < integers; ++n) {
      made.rows.push_back(add(part::read, "bucket I" + std::to_string(n + 1), bucket_integer_op{n}, raw));
    }
    std::vector<value<token_ids>> ids;
    for (index_t s = 0; s < tokens; ++s) {
      const hash_op hash{s, tables.ids(integers + s)};
      ids.push_back(add(part::read, "hash C" + std::to_string(s + 1), hash, raw));
    }
    for (index_t s = 0; s < tokens; ++s) {
      const bucket_token_op bucket{integers + s, &tables};
      made.rows.push_back(
          add(part::read, "bucket C" + std::to_string(s + 1), bucket, ids[static_cast<std::size_t>(s)]));
    }
    return made;
  }

 private:
  void mark(index_t op, part of) {
    const auto at = static_cast<std::size_t>(op);
    if (made_.parts.size() <= at) made_.parts.resize(at + 1, part::read);
    made_.parts[at] = of;
  }

  graph_step made_;
};

}  // namespace

graph_step make_graph_step(dlrm& model, const ctr_tables& tables, row_reader read) {
  step_maker make;
  deeprec::step_graph& g = make.graph();
  const auto rows = g.variable("rows", model.table());
  const auto bottom = g.variable("bottom", model.bottom()), top = g.variable("top", model.top());
  const auto in = make.add_inputs(tables, std::move(read));

  const slot_features* const features = &model.features();
  const auto located = make.add(part::lookup, "resolve", resolve_op{features}, in.rows);
  const auto pooled =
      make.add(part::lookup, "lookup", lookup_op{features, model.width()}, located, g.read(rows));
  const auto low = make.add(part::forward, "bottom forward", stack_forward_op{}, in.dense, g.write(bottom));
  const auto crossed =
      make.add(part::forward, "interaction", interaction_op{model.top().size(0)}, low, pooled);
  const auto logits = make.add(part::forward, "top forward", stack_forward_op{}, crossed, g.write(top));
  const auto slope = make.add(part::backward, "loss gradient", loss_gradient_op{}, logits, in.labels);
  const auto of_crossed =
      make.add(part::backward, "top backward", stack_backward_op{}, slope, crossed, g.write(top));
  const auto gradients =
      make.add(part::backward, "interaction backward", interaction_backward_op{}, of_crossed, low, pooled);
  make.add(part::backward, "bottom backward", stack_backward_end_op{}, gradients.template get<0>(), in.dense,
           g.write(bottom));
  make.add(part::update, "bottom step", stack_step_op{model.stack_optimizer()}, g.write(bottom));
  make.add(part::update, "top step", stack_step_op{model.stack_optimizer()}, g.write(top));
  make.add(part::update, "row update", row_update_op{features, model.row_optimizer()}, located,
           gradients.template get<1>(), g.write(rows));
  return make.take();
}

graph_step make_graph_step(logistic_regression& model, const ctr_tables& tables, row_reader read) {
  step_maker make;
  deeprec::step_graph& g = make.graph();
  const auto rows = g.variable("rows", model.table());
  const auto linear = g.variable("linear", model.linear());
  const auto in = make.add_inputs(tables, std::move(read));

  const auto bags = make.add(part::lookup, "concat", concat_rows_op{&tables}, in.rows);
  const auto sums = make.add(part::lookup, "lookup", lookup_sums_op{}, bags, g.read(rows));
  const auto line = make.add(part::forward, "linear forward", stack_forward_op{}, in.dense, g.write(linear));
  const auto logits = make.add(part::forward, "add", add_op{}, sums, line);
  const auto slope = make.add(part::backward, "loss gradient", loss_gradient_op{}, logits, in.labels);
  make.add(part::backward, "linear backward", stack_backward_end_op{}, slope, in.dense, g.write(linear));
  make.add(part::update, "linear step", stack_step_op{model.stack_optimizer()}, g.write(linear));
  make.add(part::update, "row update", row_update_sums_op{model.row_optimizer()}, bags, slope, g.write(rows));
  return make.take();
}

graph_step make_graph_step(wide_deep& model, const ctr_tables& tables, row_reader read) {
  step_maker make;
  deeprec::step_graph& g = make.graph();
  const auto wide = g.variable("wide rows", model.wide()), deep = g.variable("deep rows", model.deep());
  const auto stack = g.variable("stack", model.stack());
  const auto in = make.add_inputs(tables, std::move(read));

  const slot_features* const of_wide = &model.wide_features();
  const slot_features* const of_deep = &model.deep_features();
  const auto wide_located = make.add(part::lookup, "wide resolve", resolve_op{of_wide}, in.rows);
  const auto deep_located = make.add(part::lookup, "deep resolve", resolve_op{of_deep}, in.rows);
  const auto weights =
      make.add(part::lookup, "wide lookup", lookup_op{of_wide, 1}, wide_located, g.read(wide));
  const auto input = make.add(part::lookup, "deep lookup", lookup_beside_op{of_deep, model.width()}, in.dense,
                              deep_located, g.read(deep));
  const auto out = make.add(part::forward, "stack forward", stack_forward_op{}, input, g.write(stack));
  const auto logits = make.add(part::forward, "add", add_op{}, weights, out);
  const auto slope = make.add(part::backward, "loss gradient", loss_gradient_op{}, logits, in.labels);
  const auto of_input =
      make.add(part::backward, "stack backward", stack_backward_op{}, slope, input, g.write(stack));
  const auto of_weights = make.add(part::backward, "spread", spread_op{slots}, slope);
  const auto of_rows =
      make.add(part::backward, "slice", slice_op{dense_width, slots * model.width()}, of_input);
  make.add(part::update, "stack step", stack_step_op{model.stack_optimizer()}, g.write(stack));
  make.add(part::update, "wide update", row_update_op{of_wide, model.wide_optimizer()}, wide_located,
           of_weights, g.write(wide));
  make.add(part::update, "deep update", row_update_op{of_deep, model.row_optimizer()}, deep_located, of_rows,
           g.write(deep));
  return make.take();
}

}  // namespace train_ctr
