// The ops of a step as a graph, and the values that they pass on.
//
//   raw_rows ─┬─ decode ─────────> dense (B, 2 N), labels (B, 1)             weights (B, 1) beside them
//             ├─ bucket x I ─────> slot_rows: rows of the slot's table      no table is read
//             └─ hash x T ─> token_ids ─ bucket x T ─> slot_rows
//
//   slot_rows x S ─ resolve  ─> located_rows ─ lookup ─> matrix              dlrm, wdl
//                    concat ──> slot_bags    ─ lookup ─> matrix              lr
//
//   raw_rows ─┬─ bucket x I ─────> slot_keys                                 raw keys
//             └─ key x T ────────> slot_keys ─ resolve, which makes rows ─> located_rows ─ lookup ─> matrix
//   stack_forward, interaction, add ... loss_gradient ... stack_backward ... stack_step, row_update
//
// All of them call what the step written by hand calls, in kernels.hpp and ctr_data.hpp. A value keeps its
// memory from step to step. From the lookups to the gradients of their rows ops are sample-wise: a step by
// lanes runs them for parts of the batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>

#include "cross_stack.hpp"
#include "ctr_data.hpp"
#include "kernels.hpp"
#include "slot_tables.hpp"

namespace ctr {

using deeprec::op_list;
using deeprec::op_outputs;
using deeprec::step_call;

// ---- values --------------------------------------------------------------------------------------------

struct bag_of_tokens {
  std::vector<std::int64_t> fingerprints;
  std::vector<std::int32_t> offsets;
};

/// Rows as the source has them: nothing is computed yet.
struct raw_rows {
  index_t rows = 0;
  std::vector<float> labels, numbers;  // (B), (B, N)
  ctr_columns has;
  std::vector<float> weights;              // where the batch has them
  std::vector<std::int64_t> groups;        // likewise
  std::vector<std::string> names;          // likewise
  std::vector<bag_of_tokens> bags;         // of each token column, where fields have any number of tokens
  std::vector<std::int64_t> fingerprints;  // (T, largest B)

  void clear(index_t largest, const ctr_columns& columns) {
    rows = 0;
    if (!(has == columns)) has = columns;
    weights.clear();
    groups.clear();
    names.clear();
    labels.resize(static_cast<std::size_t>(largest));
    numbers.resize(static_cast<std::size_t>(largest * has.numbers));
    if (has.has_bags()) {
      bags.resize(static_cast<std::size_t>(has.tokens));
      for (bag_of_tokens& of : bags) {
        of.fingerprints.clear();
        of.offsets.assign(1, 0);
      }
    } else {
      fingerprints.resize(static_cast<std::size_t>(largest * has.tokens));
    }
  }
  /// @pre rows is less than `largest` of clear()
  void append(const sparse_batch& from, index_t row) {
    labels[static_cast<std::size_t>(rows)] = from.labels()[static_cast<std::size_t>(row)];
    if (has.numbers > 0) std::copy_n(from.dense().row(row), has.numbers, numbers.data() + rows * has.numbers);
    for (index_t s = 0; s < has.tokens && has.has_bags(); ++s) {
      const auto bag = bag_of(from, s, row);
      bag_of_tokens& to = bags[static_cast<std::size_t>(s)];
      to.fingerprints.insert(to.fingerprints.end(), bag.begin(), bag.end());
      to.offsets.push_back(static_cast<std::int32_t>(to.fingerprints.size()));
    }
    for (index_t s = 0; s < has.tokens && !has.has_bags(); ++s) {
      fingerprints[static_cast<std::size_t>(s * largest() + rows)] = from.feature(s).ids()[row];
    }
    if (from.shape().extras.weights) weights.push_back(from.row_weights()[static_cast<std::size_t>(row)]);
    if (from.shape().extras.groups) groups.push_back(from.groups()[static_cast<std::size_t>(row)]);
    if (from.shape().extras.names) names.emplace_back(from.name(row));
    ++rows;
  }
  /// Two rows change their values of a slot.
  void swap_slot(index_t slot, index_t one, index_t other) {
    if (slot < has.integers) {
      std::swap(numbers[static_cast<std::size_t>(one * has.numbers + slot)],
                numbers[static_cast<std::size_t>(other * has.numbers + slot)]);
    } else {
      std::int64_t* const of = fingerprints.data() + (slot - has.integers) * largest();
      std::swap(of[one], of[other]);
    }
  }
  /// (rows, 1), or no rows: 1 each.
  [[nodiscard]] matrix_view<const float> row_weights() const {
    return {weights.data(), static_cast<index_t>(weights.size()), 1};
  }
  [[nodiscard]] index_t largest() const { return static_cast<index_t>(labels.size()); }
  /// @pre !has.has_bags()
  [[nodiscard]] const std::int64_t* column(index_t s) const { return fingerprints.data() + s * largest(); }
  /// All tokens of a column, field by field.
  [[nodiscard]] std::span<const std::int64_t> tokens(index_t s) const {
    if (has.has_bags()) return bags[static_cast<std::size_t>(s)].fingerprints;
    return {column(s), static_cast<std::size_t>(rows)};
  }
  /// Where the fields of a column begin among them; none: each has one.
  [[nodiscard]] std::span<const std::int32_t> offsets(index_t s) const {
    if (!has.has_bags()) return {};
    return bags[static_cast<std::size_t>(s)].offsets;
  }
  [[nodiscard]] index_t value_bytes() const {
    return rows * (static_cast<index_t>(sizeof(float)) * (1 + has.numbers) +
                   static_cast<index_t>(sizeof(std::int64_t)) * has.tokens) +
           static_cast<index_t>(sizeof(float) * weights.size());
  }
};

/// Numbers of the rows of the batch: one for each, or from offsets[r] to offsets[r + 1].
struct token_ids {
  std::vector<row_id> ids;
  std::vector<std::int32_t> offsets;  // empty: one for each
  [[nodiscard]] index_t value_bytes() const {
    return static_cast<index_t>(ids.size() * sizeof(row_id) + offsets.size() * sizeof(std::int32_t));
  }
};
struct slot_rows : token_ids {};
struct slot_keys {
  std::vector<std::int64_t> ids;
  [[nodiscard]] index_t value_bytes() const {
    return static_cast<index_t>(ids.size() * sizeof(std::int64_t));
  }
};
/// The rows of all slots, sample by sample, as numbers among all.
struct sample_rows {
  std::vector<row_id> ids;
  slot_bags bags;
  [[nodiscard]] index_t value_bytes() const { return static_cast<index_t>(ids.size() * sizeof(row_id)); }
};
/// The rows of all slots, found in their tables.
struct located_rows {
  slot_lists by_slot;
  slot_tables::found_rows found;  // refers to by_slot
  /// Of the ids that it refers to.
  [[nodiscard]] index_t value_bytes() const {
    index_t bytes = 0;
    for (const slot_bags& bags : by_slot.rows) bytes += bags.bags() * static_cast<index_t>(sizeof(row_id));
    for (const many_bags& bags : by_slot.many)
      bytes += bags.id_count() * static_cast<index_t>(sizeof(row_id));
    for (const key_bags& bags : by_slot.keys)
      bytes += bags.bags() * static_cast<index_t>(sizeof(std::int64_t));
    return bytes;
  }
};

/// Floats of its own, or those of a stack.
using matrix = deeprec::matrix_value;

/// The gradients of a stack's weights: those of a pass, or their sum over the parts of a batch.
struct weight_gradients {
  matrix row;
  [[nodiscard]] index_t value_bytes() const { return deeprec::batch_traits<matrix>::bytes(row); }
};

/// A value with a size in bytes.
template <class T>
concept sized_value = requires(const T& v) { v.value_bytes(); };

}  // namespace ctr

template <ctr::sized_value T>
struct deeprec::batch_traits<T> {
  static index_t bytes(const T& v) { return v.value_bytes(); }
};
// How values pass between a batch and its parts.
template <>
struct deeprec::batch_traits<ctr::weight_gradients> {
  static index_t bytes(const ctr::weight_gradients& v) { return v.value_bytes(); }
  static std::span<const std::byte> memory(const ctr::weight_gradients& v) {
    return batch_traits<ctr::matrix>::memory(v.row);
  }
  static void make_room(ctr::weight_gradients& whole, index_t, const ctr::weight_gradients& part) {
    static_cast<void>(whole.row.make(1, part.row.view().extent(1)));
  }
  static matrix_view<float> gradient(ctr::weight_gradients& v) {
    return {const_cast<float*>(v.row.view().data_handle()), 1, v.row.view().extent(1)};
  }
};
template <>
struct deeprec::batch_traits<ctr::sample_rows> {
  static index_t bytes(const ctr::sample_rows& v) { return v.value_bytes(); }
  static index_t samples(const ctr::sample_rows& v) { return v.bags.bags(); }
  static void refer(const ctr::sample_rows& whole, index_t first, index_t count, ctr::sample_rows& part) {
    part.bags = batch_traits<ctr::slot_bags>::split(whole.bags, first, count);
  }
};
template <>
struct deeprec::batch_traits<ctr::located_rows> {
  static index_t bytes(const ctr::located_rows& v) { return v.value_bytes(); }
  static index_t samples(const ctr::located_rows& v) {
    const ctr::slot_ids ids = v.by_slot.view();
    return ids.empty() ? 0 : ids.bags();
  }
  /// Rows are found for a whole batch: a part has their ids.
  static void refer(const ctr::located_rows& whole, index_t first, index_t count, ctr::located_rows& part) {
    part.by_slot.assign(whole.by_slot.view(), first, count);
  }
};

namespace ctr {

// ---- what needs no weights -----------------------------------------------------------------------------

/// Integers to numbers and flags; the labels beside them.
struct decode_op {
  static constexpr const char* kind = "decode";
  using outputs = op_outputs<matrix, matrix>;
  void operator()(const raw_rows& in, matrix& dense, matrix& labels) const {
    const matrix_view<float> to = dense.make(in.rows, in.has.dense_width());
    for (index_t i = 0; i < in.rows; ++i)
      decode_numbers(in.has, in.numbers.data() + i * in.has.numbers, to.row(i));
    const matrix_view<float> clicks = labels.make(in.rows, 1);
    std::copy_n(in.labels.data(), in.rows, clicks.data_handle());
  }
};

/// @pre the batch has weights
struct row_weights_op {
  static constexpr const char* kind = "weights";
  using output = matrix;
  void operator()(const raw_rows& in, matrix& weights) const {
    std::copy_n(in.weights.data(), in.rows, weights.make(in.rows, 1).data_handle());
  }
};

/// A token's fingerprint to an id of its column.
struct hash_op {
  static constexpr const char* kind = "hash";
  using output = token_ids;
  index_t column, ids;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("column", column);
    visit("ids", ids);
  }
  void operator()(const raw_rows& in, token_ids& out) const {
    const std::span<const std::int64_t> from = in.tokens(column);
    const std::span<const std::int32_t> offsets = in.offsets(column);
    out.offsets.assign(offsets.begin(), offsets.end());
    out.ids.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) out.ids[i] = static_cast<row_id>(id_of(from[i], ids));
  }
};

/// An integer to a row of its table, as slot_rows or slot_keys.
template <class Out = slot_rows>
struct bucket_integer_op {
  static constexpr const char* kind = "bucket";
  using output = Out;
  index_t column;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("column", column);
    visit("buckets", integer_buckets);
  }
  void operator()(const raw_rows& in, Out& out) const {
    out.ids.resize(static_cast<std::size_t>(in.rows));
    for (index_t i = 0; i < in.rows; ++i) {
      const float number = in.numbers[static_cast<std::size_t>(i * in.has.numbers + column)];
      out.ids[static_cast<std::size_t>(i)] =
          static_cast<typename decltype(out.ids)::value_type>(integer_bucket(number));
    }
    if constexpr (requires { out.offsets; }) {
      out.offsets.resize(in.has.has_bags() ? out.ids.size() + 1 : 0);
      std::iota(out.offsets.begin(), out.offsets.end(), 0);
    }
  }
};

/// A token's fingerprint as the key of its row.
struct key_op {
  static constexpr const char* kind = "key";
  using output = slot_keys;
  index_t column;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("column", column);
  }
  void operator()(const raw_rows& in, slot_keys& out) const {
    const std::int64_t* const from = in.column(column);
    out.ids.assign(from, from + in.rows);
  }
};

/// An id to a row of its table: that of rare tokens, or its own. Which tokens are rare was counted before the
/// first step.
struct bucket_token_op {
  static constexpr const char* kind = "bucket";
  using output = slot_rows;
  index_t slot;
  const ctr_tables* tables;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("slot", slot);
    visit("rare_below", index_t{rare_below});
  }
  void operator()(const token_ids& in, slot_rows& out) const {
    out.ids.resize(in.ids.size());
    out.offsets = in.offsets;
    for (std::size_t i = 0; i < in.ids.size(); ++i) {
      out.ids[i] = static_cast<row_id>(tables->row_of(slot, in.ids[i]));
    }
  }
};

/// The rows of all slots side by side, as numbers among all.
struct concat_rows_op {
  static constexpr const char* kind = "concat";
  using output = sample_rows;
  const ctr_tables* tables;
  void operator()(op_list<const slot_rows> in, sample_rows& out) const {
    const auto rows = static_cast<index_t>(in[0].ids.size());
    const index_t slots = tables->columns.slots();
    out.ids.resize(static_cast<std::size_t>(rows * slots));
    for (index_t s = 0; s < slots; ++s) {
      const std::vector<row_id>& of_slot = in[s].ids;
      for (index_t i = 0; i < rows; ++i) {
        out.ids[static_cast<std::size_t>(i * slots + s)] =
            static_cast<row_id>(tables->first(s) + of_slot[static_cast<std::size_t>(i)]);
      }
    }
    out.bags = slot_bags(out.ids.data(), rows, slots);
  }
};

/// Checks the ids and locates their rows, which lie where they lie for the whole run: no row is read.
struct resolve_op {
  static constexpr const char* kind = "resolve";
  using output = located_rows;
  const slot_tables* tables;
  status operator()(const step_call& call, op_list<const slot_rows> in, located_rows& out) const {
    out.found.reset();
    out.by_slot.rows.clear();
    out.by_slot.many.clear();
    for (const slot_rows& of_slot : in) {
      if (!of_slot.offsets.empty()) {
        out.by_slot.many.emplace_back(of_slot.offsets.data(),
                                      static_cast<index_t>(of_slot.offsets.size()) - 1, of_slot.ids.data(),
                                      static_cast<index_t>(of_slot.ids.size()));
        continue;
      }
      out.by_slot.rows.emplace_back(of_slot.ids.data(), static_cast<index_t>(of_slot.ids.size()), 1);
    }
    return tables->resolve(call.on, out.by_slot.view(), out.found);
  }
};

// ---- rows ----------------------------------------------------------------------------------------------

inline void refer(op_list<const slot_keys> in, located_rows& out) {
  out.found.reset();
  out.by_slot.keys.clear();
  for (const slot_keys& of_slot : in) {
    out.by_slot.keys.emplace_back(of_slot.ids.data(), static_cast<index_t>(of_slot.ids.size()), 1);
  }
}
/// Finds the rows of keys, in a prediction.
struct find_op {
  static constexpr const char* kind = "resolve";
  using output = located_rows;
  status operator()(const step_call& call, op_list<const slot_keys> in, const slot_tables& tables,
                    located_rows& out) const {
    refer(in, out);
    return tables.resolve(call.on, out.by_slot.keys, out.found);
  }
};
/// The same in training, where new keys get rows: the begin of a step for the tables.
struct admit_op {
  static constexpr const char* kind = "resolve";
  using output = located_rows;
  status operator()(const step_call& call, op_list<const slot_keys> in, slot_tables& tables,
                    located_rows& out) const {
    refer(in, out);
    return tables.admit(call.on, out.by_slot.keys, out.found);
  }
};

inline status look_up(const step_call& call, const slot_tables& tables, const located_rows& in,
                      matrix_view<float> out) {
  if (!in.found.empty()) return tables.look_up(call.on, in.found, out);
  return tables.look_up(call.on, in.by_slot.view(), out);
}

/// The rows of all slots side by side.
struct lookup_op {
  static constexpr const char* kind = "lookup";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t width;  // of a row
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("width", width);
  }
  status operator()(const step_call& call, const located_rows& in, const slot_tables& tables,
                    matrix& out) const {
    const slot_ids ids = in.by_slot.view();
    return look_up(call, tables, in, out.make(ids.bags(), ids.features() * width));
  }
};
/// The same behind the columns of another matrix.
struct lookup_beside_op {
  static constexpr const char* kind = "lookup";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t width;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("width", width);
  }
  status operator()(const step_call& call, const matrix& beside, const located_rows& in,
                    const slot_tables& tables, matrix& out) const {
    const index_t first = beside.view().extent(1);
    const index_t columns = in.by_slot.view().features() * width;
    const matrix_view<float> all = out.make(beside.rows(), first + columns);
    for (index_t i = 0; i < beside.rows(); ++i) std::copy_n(beside.view().row(i), first, all.row(i));
    return look_up(call, tables, in, all.columns(first, columns));
  }
};
/// The sum of a sample's rows.
struct lookup_sums_op {
  static constexpr const char* kind = "lookup";
  static constexpr bool sample_wise = true;
  using output = matrix;
  status operator()(const step_call& call, const sample_rows& in, const slot_tables& tables,
                    matrix& out) const {
    return tables.look_up_sums(call.on, in.bags, out.make(in.bags.bags(), 1));
  }
};

struct row_update_op {
  static constexpr const char* kind = "row_update";
  row_optimizer optimizer;
  const step_control* control;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("learning_rate", optimizer.optimizer.learning_rate);
  }
  status operator()(const step_call& call, const located_rows& in, const matrix& gradient,
                    slot_tables& tables) const {
    return tables.update(call.on, in.by_slot.view(), in.found, gradient.view(),
                         scaled(optimizer, control->row_scale));
  }
};
struct row_update_sums_op {
  static constexpr const char* kind = "row_update";
  row_optimizer optimizer;
  const step_control* control;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("learning_rate", optimizer.optimizer.learning_rate);
  }
  status operator()(const step_call& call, const sample_rows& in, const matrix& gradient,
                    slot_tables& tables) const {
    return tables.update_sums(call.on, in.bags, gradient.view(), scaled(optimizer, control->row_scale));
  }
};

// ---- dense layers --------------------------------------------------------------------------------------
// The activations and gradients of a stack are those of its pass, a local of the step.

struct stack_forward_op {
  static constexpr const char* kind = "stack_forward";
  static constexpr bool sample_wise = true;
  using output = matrix;
  const step_control* training = nullptr;  // null: nothing is dropped
  int number = 0;                          // of the stack in its model
  status operator()(const step_call& call, const matrix& in, const stack_type& stack, deeprec::mlp_pass& pass,
                    matrix& out) const {
    if (training != nullptr) {
      const status set = set_stack_dropout(pass, training->dropout_of(number, call.first_sample));
      if (!set) return set;
    }
    const status s = stack_forward(call.on, stack, pass, in.view());
    out.refer(pass.output());
    return s;
  }
};
/// `in` is that of the forward pass.
struct stack_backward_op {
  static constexpr const char* kind = "stack_backward";
  static constexpr bool sample_wise = true;
  using outputs = op_outputs<matrix, weight_gradients>;
  status operator()(const step_call& call, const matrix& gradient, const matrix& in, const stack_type& stack,
                    deeprec::mlp_pass& pass, matrix& out, weight_gradients& of_weights) const {
    static_cast<void>(in);
    const status s =
        stack_backward(call.on, stack, pass, gradient.view(), deeprec::compute_input_gradient::yes);
    out.refer(pass.input_gradient());
    of_weights.row.refer(pass.gradients());
    return s;
  }
};
/// The same where nothing trains on the gradient of the input.
struct stack_backward_end_op {
  static constexpr const char* kind = "stack_backward";
  static constexpr bool sample_wise = true;
  using output = weight_gradients;
  status operator()(const step_call& call, const matrix& gradient, const matrix& in, const stack_type& stack,
                    deeprec::mlp_pass& pass, weight_gradients& of_weights) const {
    static_cast<void>(in);
    const status s =
        stack_backward(call.on, stack, pass, gradient.view(), deeprec::compute_input_gradient::no);
    of_weights.row.refer(pass.gradients());
    return s;
  }
};
struct stack_step_op {
  static constexpr const char* kind = "stack_step";
  dense_optimizer optimizer;
  const step_control* control;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("learning_rate", optimizer.learning_rate);
  }
  status operator()(const step_call& call, const weight_gradients& gradients, stack_type& stack) const {
    return stack_step(call.on, stack, scaled(optimizer, control->stack_scale), gradients.row.view());
  }
};

struct interaction_op {
  static constexpr const char* kind = "interaction";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t width;  // of the result
  status operator()(const step_call& call, const matrix& dense, const matrix& pooled, matrix& out) const {
    return interact(call.on, dense.view(), pooled.view(), out.make(dense.rows(), width));
  }
};
struct interaction_backward_op {
  static constexpr const char* kind = "interaction_backward";
  static constexpr bool sample_wise = true;
  using outputs = op_outputs<matrix, matrix>;
  status operator()(const step_call& call, const matrix& gradient, const matrix& dense, const matrix& pooled,
                    matrix& of_dense, matrix& of_pooled) const {
    return interact_backward(call.on, dense.view(), pooled.view(), gradient.view(),
                             of_dense.make(dense.rows(), dense.view().extent(1)),
                             of_pooled.make(pooled.rows(), pooled.view().extent(1)));
  }
};

struct cross_forward_op {
  static constexpr const char* kind = "cross_forward";
  static constexpr bool sample_wise = true;
  using output = matrix;
  status operator()(const step_call& call, const matrix& in, const cross_stack& layers, cross_pass& pass,
                    matrix& out) const {
    const status s = layers.forward(call.on, pass, in.view());
    if (s.ok()) out.refer(pass.output());
    return s;
  }
};
/// `in` is that of the forward pass.
struct cross_backward_op {
  static constexpr const char* kind = "cross_backward";
  static constexpr bool sample_wise = true;
  using outputs = op_outputs<matrix, weight_gradients>;
  status operator()(const step_call& call, const matrix& gradient, const matrix& in,
                    const cross_stack& layers, cross_pass& pass, matrix& out,
                    weight_gradients& of_weights) const {
    static_cast<void>(in);
    const status s = layers.backward(call.on, pass, gradient.view());
    out.refer(pass.input_gradient());
    of_weights.row.refer(pass.gradients());
    return s;
  }
};
struct cross_step_op {
  static constexpr const char* kind = "cross_step";
  dense_optimizer optimizer;
  const step_control* control;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("learning_rate", optimizer.learning_rate);
  }
  status operator()(const step_call& call, const weight_gradients& gradients, cross_stack& layers) const {
    return layers.step(call.on, scaled(optimizer, control->stack_scale), gradients.row.view());
  }
};

/// The second order of a factorization machine over the vectors behind the first columns.
struct factorize_op {
  static constexpr const char* kind = "factorize";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t first, slots, width;
  status operator()(const step_call& call, const matrix& in, matrix& out) const {
    return factorize(call.on, in.view().columns(first, slots * width), width, out.make(in.rows(), 1));
  }
};
/// The gradient of the vectors: by the factorization machine, plus that by what else has them as input.
struct factorize_backward_op {
  static constexpr const char* kind = "factorize_backward";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t first, slots, width;
  status operator()(const step_call& call, const matrix& gradient, const matrix& in, const matrix& other,
                    matrix& out) const {
    return factorize_backward(call.on, in.view().columns(first, slots * width), width, gradient.view(),
                              other.view(), out.make(in.rows(), slots * width));
  }
};

/// The sum of a row of the first, plus the second.
struct add_op {
  static constexpr const char* kind = "add";
  static constexpr bool sample_wise = true;
  using output = matrix;
  void operator()(const matrix& many, const matrix& one, matrix& out) const {
    add_logits(many.view(), one.view(), out.make(one.rows(), 1));
  }
};
/// The gradient of a logit for each of the columns that were added.
struct spread_op {
  static constexpr const char* kind = "spread";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t columns;
  void operator()(const matrix& gradient, matrix& out) const {
    const matrix_view<float> to = out.make(gradient.rows(), columns);
    for (index_t i = 0; i < gradient.rows(); ++i) std::fill_n(to.row(i), columns, gradient.view()(i, 0));
  }
};
/// Columns of a matrix.
struct slice_op {
  static constexpr const char* kind = "slice";
  static constexpr bool sample_wise = true;
  using output = matrix;
  index_t first, columns;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("first", first);
    visit("columns", columns);
  }
  void operator()(const matrix& in, matrix& out) const { out.refer(in.view().columns(first, columns)); }
};

struct loss_gradient_op {
  static constexpr const char* kind = "loss_gradient";
  static constexpr bool sample_wise = true;
  using output = matrix;
  loss_meter* meter;
  status operator()(const step_call& call, const matrix& logits, const matrix& labels, matrix& out) const {
    return loss_gradient(call.on, logits.view(), labels.view(), {}, call.share, meter,
                         out.make(logits.rows(), 1));
  }
};
/// The same where rows have weights.
struct weighted_loss_gradient_op {
  static constexpr const char* kind = "loss_gradient";
  static constexpr bool sample_wise = true;
  using output = matrix;
  loss_meter* meter;
  status operator()(const step_call& call, const matrix& logits, const matrix& labels, const matrix& weights,
                    matrix& out) const {
    return loss_gradient(call.on, logits.view(), labels.view(), weights.view(), call.share, meter,
                         out.make(logits.rows(), 1));
  }
};

}  // namespace ctr
