// Two models, made of deeprec's primitives.
//
//   dlrm   dense ─> bottom MLP ─────────────────┐
//          39 ids ─> feature_group, rows of 16 ─┴─> dot interaction ─> top MLP ─> logit
//   lr     dense ─> linear ───────────────────┐
//          39 ids ─> fused_lookup, rows of 1 ─┴─> sum ─> logit
//
// A step of training is three calls, with what they pass on in a Model::step:
//
//   look_up(batch, step)   rows of the batch's ids, from the tables
//   compute(batch, step)   logits(), and the gradients of all weights; no table is read or written
//   update(batch, step)    weights and rows
//
// A model has checksum() and, to save it, parts() as well. All are trained by Adagrad.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/mlp.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/pipeline/micro_chunk.hpp>

#include "ctr_data.hpp"
#include "kernels.hpp"
#include "stopwatch.hpp"

namespace train_ctr {

/// Makes room for so many floats.
inline matrix_view<float> room(std::vector<float>& memory, index_t rows, index_t columns) {
  const auto needed = static_cast<std::size_t>(rows * columns);
  if (memory.size() < needed) memory.resize(needed);
  return {memory.data(), rows, columns};
}

template <class Model>
[[nodiscard]] status predict(const step_context& on, Model& model, const ctr_batch& batch,
                             typename Model::step& step) {
  model.begin(batch.rows(), step);
  if (const status s = model.look_up(on, batch, step); !s) return s;
  return model.forward(on, batch, step);
}

inline std::uint64_t checksum_of(const void* data, std::size_t bytes, std::uint64_t seed) {
  return deeprec::hash_bytes({static_cast<const char*>(data), bytes}, seed);
}

/// The weights of a stack and its optimizer's state, which is made where no step has been yet.
template <class Optimizer>
void add_parts(std::vector<deeprec::named_table>& parts, const std::string& name, stack_type& stack,
               const Optimizer& optimizer) {
  stack.make_state(optimizer).or_throw();
  parts.push_back(name_table(name, as_table(stack.parameters())));
  parts.push_back(name_table(name + ", state of the optimizer", as_table(stack.state())));
}

struct dlrm_options {
  index_t width = 16;
  std::vector<index_t> bottom = {128};  ///< hidden layers
  std::vector<index_t> top = {64};
  float first_rows = 0.001F;  ///< rows begin uniform in +- this
  float row_rate = 0.02F;
  float dense_rate = 0.01F;
  deeprec::mlp_precision precision{};
};

class dlrm {
 public:
  static constexpr const char* name = "dlrm";
  static constexpr id_order ids = id_order::by_slot;
  using options = dlrm_options;

  /// first_row: where each slot's table begins in the rows of all; one more, their number.
  dlrm(const step_context& on, const std::vector<index_t>& first_row, std::uint64_t seed,
       const dlrm_options& o = {})
      : options_(o),
        table_(make_table(on, first_row.back(), o.width, o.first_rows, deeprec::mix64(seed + 1))),
        features_(table_.view(), first_row),
        bottom_(with_ends(dense_width, o.bottom, o.width), deeprec::mlp_output::relu,
                deeprec::counter_rng(seed), deeprec::weight_init::he, 100, std::pmr::get_default_resource(),
                o.precision),
        top_(with_ends(interaction_width(slots + 1, o.width), o.top, 1), deeprec::mlp_output::linear,
             deeprec::counter_rng(seed), deeprec::weight_init::he, 200, std::pmr::get_default_resource(),
             o.precision) {}
  dlrm(const dlrm&) = delete;  // its features refer to its table
  dlrm& operator=(const dlrm&) = delete;

  struct step {
    slot_features::found_rows found;
    matrix_view<float> pooled, gradient;  // (B, 39 D)
    std::vector<float> pooled_memory, gradient_memory;

    /// The rows of some samples, in the memory of all.
    [[nodiscard]] step part(const deeprec::micro_chunk& chunk) const {
      return {{}, chunk.of(pooled), chunk.of(gradient), {}, {}};
    }
  };

  void begin(index_t rows, step& at) const {
    at.found.reset();
    at.pooled = room(at.pooled_memory, rows, slots * options_.width);
    at.gradient = room(at.gradient_memory, rows, slots * options_.width);
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    return features_.look_up(on, batch.by_slot, at.found, at.pooled);
  }
  [[nodiscard]] status look_up_part(const step_context& on, const ctr_batch& batch, step& at) const {
    return features_.look_up(on, batch.by_slot, at.pooled);
  }
  [[nodiscard]] status forward(const step_context& on, const ctr_batch& batch, step& at) {
    const matrix_view<float> crossed = room(crossed_, batch.rows(), top_.size(0));
    if (const status s = stack_forward(on, bottom_, batch.dense); !s) return s;
    if (const status s = interact(on, bottom_.output(), at.pooled, crossed); !s) return s;
    return stack_forward(on, top_, crossed);
  }
  [[nodiscard]] matrix_view<const float> logits() const { return top_.output(); }

  [[nodiscard]] status backward(const step_context& on, const ctr_batch& batch, step& at) {
    const index_t rows = batch.rows();
    const matrix_view<float> slope = room(slope_, rows, 1);
    const matrix_view<float> bottom_gradient = room(bottom_gradient_, rows, options_.width);
    if (const status s = loss_gradient(on, logits(), batch.labels, slope); !s) return s;
    if (const status s = stack_backward(on, top_, slope, deeprec::compute_input_gradient::yes); !s) return s;
    if (const status s = interact_backward(on, bottom_.output(), at.pooled, top_.input_gradient(),
                                           bottom_gradient, at.gradient);
        !s) {
      return s;
    }
    return stack_backward(on, bottom_, bottom_gradient, deeprec::compute_input_gradient::no);
  }
  [[nodiscard]] deeprec::adagrad stack_optimizer() const { return {.learning_rate = options_.dense_rate}; }
  /// Calls use(stack) for each.
  template <class Use>
  void for_each_stack(const Use& use) {
    use("bottom", bottom_);
    use("top", top_);
  }
  [[nodiscard]] status step_stacks(const step_context& on) {
    if (const status s = stack_step(on, bottom_, stack_optimizer()); !s) return s;
    return stack_step(on, top_, stack_optimizer());
  }
  [[nodiscard]] deeprec::rowwise_adagrad row_optimizer() const {
    return {.learning_rate = options_.row_rate};
  }
  /// Calls use(f) for each table: f(step) is the gradient of its pooled rows.
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    return features_.update(on, batch.by_slot, at.found, at.gradient, row_optimizer());
  }

  // What the step is made of, for its graph.
  [[nodiscard]] table_type& table() { return table_; }
  [[nodiscard]] const slot_features& features() const { return features_; }
  [[nodiscard]] stack_type& bottom() { return bottom_; }
  [[nodiscard]] stack_type& top() { return top_; }
  [[nodiscard]] index_t width() const { return options_.width; }

  /// All that training changes, under its names.
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    std::vector<deeprec::named_table> all = {name_table("dlrm, rows", table_.view())};
    add_parts(all, "dlrm, bottom", bottom_, stack_optimizer());
    add_parts(all, "dlrm, top", top_, stack_optimizer());
    return all;
  }

  [[nodiscard]] std::uint64_t checksum() {
    std::uint64_t sum = checksum_of(table_.view().data(), table_.bytes(), 0);
    for (stack_type* stack : {&bottom_, &top_}) {
      const auto weights = stack->parameters();
      sum = checksum_of(weights.data_handle(), static_cast<std::size_t>(weights.extent(1)) * sizeof(float),
                        sum);
    }
    return sum;
  }

 private:
  static std::vector<index_t> with_ends(index_t first, std::vector<index_t> sizes, index_t last) {
    sizes.insert(sizes.begin(), first);
    sizes.push_back(last);
    return sizes;
  }
  dlrm_options options_;
  table_type table_;  // of all slots
  slot_features features_;
  stack_type bottom_, top_;
  std::vector<float> crossed_, bottom_gradient_, slope_;
};

struct lr_options {
  float row_rate = 0.04F;
  float row_epsilon = 1e-3F;  ///< holds back the first steps of rare tokens
  float dense_rate = 0.1F;
  deeprec::mlp_precision precision{};
};

class logistic_regression {
 public:
  static constexpr const char* name = "lr";
  static constexpr id_order ids = id_order::by_row;
  using options = lr_options;

  logistic_regression(const step_context& on, const std::vector<index_t>& first_row, std::uint64_t seed,
                      const lr_options& o = {})
      : options_(o),
        table_(make_table(on, first_row.back(), 1)),
        linear_({dense_width, 1}, deeprec::mlp_output::linear, deeprec::counter_rng(seed),
                deeprec::weight_init::he, 0, std::pmr::get_default_resource(), o.precision) {
    std::memset(linear_.parameters().data_handle(), 0,
                static_cast<std::size_t>(linear_.parameters().extent(1)) * sizeof(float));
  }

  struct step {
    matrix_view<float> sums, gradient;  // (B, 1)
    std::vector<float> sums_memory, gradient_memory;

    [[nodiscard]] step part(const deeprec::micro_chunk& chunk) const {
      return {chunk.of(sums), chunk.of(gradient), {}, {}};
    }
  };

  void begin(index_t rows, step& at) const {
    at.sums = room(at.sums_memory, rows, 1);
    at.gradient = room(at.gradient_memory, rows, 1);
  }
  [[nodiscard]] status look_up_part(const step_context& on, const ctr_batch& batch, step& at) const {
    return look_up(on, batch, at);
  }
  [[nodiscard]] status look_up(const step_context& on, const ctr_batch& batch, step& at) const {
    return look_up_sums(on, table_.view(), batch.by_row, at.sums);
  }
  [[nodiscard]] status forward(const step_context& on, const ctr_batch& batch, step& at) {
    const index_t rows = batch.rows();
    const matrix_view<float> sums = room(logits_memory_, rows, 1);
    if (const status s = stack_forward(on, linear_, batch.dense); !s) return s;
    add_logits(at.sums, linear_.output(), sums);
    logits_ = sums;
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits() const { return logits_; }

  [[nodiscard]] status backward(const step_context& on, const ctr_batch& batch, step& at) {
    if (const status s = loss_gradient(on, logits_, batch.labels, at.gradient); !s) return s;
    return stack_backward(on, linear_, at.gradient, deeprec::compute_input_gradient::no);
  }
  [[nodiscard]] deeprec::adagrad stack_optimizer() const { return {.learning_rate = options_.dense_rate}; }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("linear", linear_);
  }
  [[nodiscard]] status step_stacks(const step_context& on) {
    return stack_step(on, linear_, stack_optimizer());
  }
  [[nodiscard]] deeprec::rowwise_adagrad row_optimizer() const {
    return {.learning_rate = options_.row_rate, .epsilon = options_.row_epsilon};
  }
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  [[nodiscard]] status update_rows(const step_context& on, const ctr_batch& batch, step& at) {
    return update_sums(on, batch.by_row, at.gradient, row_optimizer(), table_.view());
  }

  // What the step is made of, for its graph.
  [[nodiscard]] table_type& table() { return table_; }
  [[nodiscard]] stack_type& linear() { return linear_; }

  /// All that training changes, under its names.
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    std::vector<deeprec::named_table> all = {name_table("lr, rows", table_.view())};
    add_parts(all, "lr, linear", linear_, stack_optimizer());
    return all;
  }

  [[nodiscard]] std::uint64_t checksum() {
    return checksum_of(linear_.parameters().data_handle(),
                       static_cast<std::size_t>(linear_.parameters().extent(1)) * sizeof(float),
                       checksum_of(table_.view().data(), table_.bytes(), 0));
  }

 private:
  lr_options options_;
  table_type table_;
  stack_type linear_;
  matrix_view<const float> logits_;
  std::vector<float> logits_memory_;
};

}  // namespace train_ctr
