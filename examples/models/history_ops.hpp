// The ops of a sequence model's step, and how it begins:
//
//   read ─│io│─> history_batch ─┬─ labels ─────────────────────> (B,1)
//                               └─ items ─┬─ resolve ─> lookup ─> rows (B + N, K): targets, then positions
//                                         └─ categories ─┘
//
//   even, or compare ─> stack_forward ─> scores (N,1) ─> pool ─> (B,K) ─> ...
//
// The values and the ops of rows and stacks are those of step_ops.hpp. As there, no op up to resolve reads
// what training changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dice_stack.hpp"
#include "history_data.hpp"
#include "history_kernels.hpp"
#include "step_maker.hpp"
#include "step_ops.hpp"

namespace ctr {

// ---- what needs no weights -----------------------------------------------------------------------------

struct history_labels_op {
  static constexpr const char* kind = "labels";
  using output = matrix;
  void operator()(const history_batch& in, matrix& labels) const {
    std::copy_n(in.labels.data(), in.rows, labels.make(in.rows, 1).data_handle());
  }
};
/// The items of the targets, then those of all positions.
struct history_items_op {
  static constexpr const char* kind = "items";
  using output = slot_rows;
  void operator()(const history_batch& in, slot_rows& out) const {
    out.ids.assign(in.targets.begin(), in.targets.end());
    out.ids.insert(out.ids.end(), in.positions.begin(), in.positions.end());
  }
};
/// The categories of items.
struct history_categories_op {
  static constexpr const char* kind = "categories";
  using output = slot_rows;
  const history_tables* tables;
  void operator()(const slot_rows& items, slot_rows& out) const {
    out.ids.resize(items.ids.size());
    for (std::size_t i = 0; i < items.ids.size(); ++i) {
      const row_id item = items.ids[i];
      out.ids[i] = item == tables->unknown ? item : tables->category_of[static_cast<std::size_t>(item)];
    }
  }
};
/// The score 0 for each position: pooled by it, a history is its mean.
struct even_scores_op {
  static constexpr const char* kind = "even_scores";
  using output = matrix;
  void operator()(const history_batch& in, matrix& scores) const {
    const matrix_view<float> to = scores.make(in.offsets.back(), 1);
    std::fill_n(to.data_handle(), to.extent(0), 0.0F);
  }
};

// ---- histories -----------------------------------------------------------------------------------------

struct compare_op {
  static constexpr const char* kind = "compare";
  using output = matrix;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows, matrix& out) const {
    const history_rows_view h(of, rows.view());
    return compare(call.on, h, out.make(h.keys.extent(0), 4 * h.keys.extent(1)));
  }
};
/// The gradient of the rows: that of `other`, and that by what was compared. The second output is scratch.
struct compare_backward_op {
  static constexpr const char* kind = "compare_backward";
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows,
                    const matrix& gradient, const matrix& other, matrix& of_rows, matrix& of_targets) const {
    const history_rows_view h(of, rows.view());
    const index_t width = rows.view().extent(1);
    const matrix_view<float> sum = of_rows.make(rows.rows(), width);
    std::copy_n(other.view().data_handle(), rows.rows() * width, sum.data_handle());
    return compare_backward(call.on, h, gradient.view(), of_targets.make(of.rows, width), sum);
  }
};

/// The pooled histories, and the weights of the positions.
struct pool_op {
  static constexpr const char* kind = "pool";
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows, const matrix& scores,
                    matrix& out, matrix& weights) const {
    const history_rows_view h(of, rows.view());
    return pool(call.on, h, scores.view(), weights.make(scores.rows(), 1),
                out.make(of.rows, rows.view().extent(1)));
  }
};
/// The gradient of the rows, of which those of the targets are given, and that of the scores.
struct pool_backward_op {
  static constexpr const char* kind = "pool_backward";
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows, const matrix& weights,
                    const matrix& gradient, const matrix& of_targets, matrix& of_rows,
                    matrix& of_scores) const {
    const history_rows_view h(of, rows.view());
    const matrix_view<float> all = of_rows.make(rows.rows(), rows.view().extent(1));
    for (index_t b = 0; b < of.rows; ++b) {
      std::copy_n(of_targets.view().row(b), all.extent(1), all.row(b));
    }
    return pool_backward(call.on, h, weights.view(), gradient.view(), of_scores.make(weights.rows(), 1), all);
  }
};

/// The pooled history, the target, and their product.
struct join_op {
  static constexpr const char* kind = "join";
  using output = matrix;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows, const matrix& pooled,
                    matrix& out) const {
    const history_rows_view h(of, rows.view());
    return join(call.on, h, pooled.view(), out.make(of.rows, 3 * rows.view().extent(1)));
  }
};
/// The gradients of the pooled histories and of the targets.
struct join_backward_op {
  static constexpr const char* kind = "join_backward";
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const history_batch& of, const matrix& rows, const matrix& pooled,
                    const matrix& gradient, matrix& of_pooled, matrix& of_targets) const {
    const history_rows_view h(of, rows.view());
    const index_t width = rows.view().extent(1);
    return join_backward(call.on, h, pooled.view(), gradient.view(), of_pooled.make(of.rows, width),
                         of_targets.make(of.rows, width));
  }
};
/// The rows of the targets.
struct targets_op {
  static constexpr const char* kind = "targets";
  using output = matrix;
  void operator()(const history_batch& of, const matrix& rows, matrix& out) const {
    out.refer(rows.view().rows(0, of.rows));
  }
};

// ---- Dice ----------------------------------------------------------------------------------------------

struct dice_forward_op {
  static constexpr const char* kind = "dice_forward";
  using output = matrix;
  deeprec::dice_mode mode;
  status operator()(const step_call& call, const matrix& in, dice_stack& stack, matrix& out) const {
    const status s = stack.forward(call.on, in.view(), mode);
    if (s.ok()) out.refer(stack.output());
    return s;
  }
};
/// `in` is that of the forward pass.
struct dice_backward_op {
  static constexpr const char* kind = "dice_backward";
  using output = matrix;
  status operator()(const step_call& call, const matrix& gradient, const matrix& in, dice_stack& stack,
                    matrix& out) const {
    static_cast<void>(in);
    const status s = stack.backward(call.on, gradient.view());
    out.refer(stack.input_gradient());
    return s;
  }
};
struct dice_step_op {
  static constexpr const char* kind = "dice_step";
  dense_optimizer optimizer;
  const step_control* control;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("learning_rate", optimizer.learning_rate);
  }
  status operator()(const step_call& call, dice_stack& stack) const {
    return stack.step(call.on, scaled(optimizer, control->stack_scale));
  }
};

// ---- how a step begins ---------------------------------------------------------------------------------

/// The step of a sequence model.
class history_step_maker : public step_maker_of<history_batch> {
 public:
  struct inputs {
    deeprec::value<history_batch> batch;
    deeprec::value<matrix> labels;
    deeprec::value<located_rows> located;
    deeprec::value<matrix> rows;  // (B + N, K)
  };

  inputs add_inputs(const history_tables& tables, const slot_tables& rows_of, index_t width,
                    deeprec::variable<slot_tables> table, reader_of<history_batch> read) {
    const auto batch = add_source(std::move(read));
    const auto labels = add(part::read, "labels", history_labels_op{}, batch);
    set_labels(labels);
    const auto items = add(part::read, "items", history_items_op{}, batch);
    std::vector<deeprec::value<slot_rows>> ids = {items};
    if (tables.categories > 0) {
      ids.push_back(add(part::read, "categories", history_categories_op{&tables}, items));
    }
    const auto located = add(part::lookup, "resolve", resolve_op{&rows_of}, ids);
    const auto rows = add(part::lookup, "lookup", lookup_op{width}, located, graph().read(table));
    return {batch, labels, located, rows};
  }
};

}  // namespace ctr
