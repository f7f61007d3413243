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
#include <deeprec/dense/dot_interaction.hpp>
#include <deeprec/dense/logistic_loss.hpp>
#include <deeprec/dense/mlp.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/pipeline/micro_chunk.hpp>

#include "ctr_data.hpp"

namespace train_ctr {

using deeprec::status;

/// The parts of a step, for the table of time shares.
enum class part { read, lookup, forward, backward, update };
inline constexpr std::array<const char*, 5> part_names = {"read", "lookup", "forward", "backward", "update"};

/// Seconds spent in each part: measured from one lap to the next. A part "read" is time in which training
/// waits for rows, or reads them itself.
class stopwatch {
 public:
  void start() { last_ = clock::now(); }
  void lap(part p) {
    const auto now = clock::now();
    seconds_[static_cast<std::size_t>(p)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  [[nodiscard]] double seconds(std::size_t p) const { return seconds_[p]; }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const double s : seconds_) sum += s;
    return sum;
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
  std::array<double, part_names.size()> seconds_{};
};

/// Rows with one float of optimizer state beside each.
inline deeprec::dense_table<deeprec::f32_rows> make_table(index_t rows, index_t width) {
  return {rows, deeprec::f32_rows(width, {.state_floats = 1})};
}

/// The features of all slots over one table: slot s reads and steps the rows [first_row[s], first_row[s +
/// 1]).
struct slot_features {
  using group_type = deeprec::feature_group<deeprec::rowwise_adagrad, slot_bags>;
  /// The rows of a batch that was looked up, for its update.
  using found_rows = std::optional<deeprec::resolved_features<group_type>>;
  group_type group;

  slot_features(deeprec::table_view<deeprec::f32_rows> all, const std::vector<index_t>& first_row) {
    for (std::size_t s = 0; s + 1 < first_row.size(); ++s) {
      const deeprec::table_view<deeprec::f32_rows> of_position(all.row(first_row[s]),
                                                               first_row[s + 1] - first_row[s], all.format());
      group.add(of_position, deeprec::combiner::sum);
    }
  }

  /// Ids are checked here, and not again when the batch is trained.
  template <class Executor>
  [[nodiscard]] status look_up(Executor& executor, std::span<const slot_bags> by_slot, found_rows& rows,
                               matrix_view<float> out) const {
    rows.reset();
    auto found = resolve(executor, group, by_slot);
    if (!found) return found.fault();
    rows.emplace(std::move(found).value());
    return lookup(executor, *rows, out);
  }
  /// The same for a part of a batch, whose rows update() resolves with those of the other parts.
  template <class Executor>
  [[nodiscard]] status look_up(Executor& executor, std::span<const slot_bags> by_slot,
                               matrix_view<float> out) const {
    return lookup(executor, group, by_slot, out);
  }
  template <class Executor, class Gradient>
  [[nodiscard]] status update(Executor& executor, std::span<const slot_bags> by_slot, found_rows& rows,
                              matrix_view<Gradient> gradient,
                              const deeprec::rowwise_adagrad& optimizer) const {
    if (rows) return deeprec::update(executor, *rows, gradient, optimizer);
    return deeprec::update(executor, group, by_slot, gradient, optimizer);
  }
};

/// Makes room for so many floats.
inline matrix_view<float> room(std::vector<float>& memory, index_t rows, index_t columns) {
  const auto needed = static_cast<std::size_t>(rows * columns);
  if (memory.size() < needed) memory.resize(needed);
  return {memory.data(), rows, columns};
}

template <class Model, class Executor>
[[nodiscard]] status predict(Executor& executor, Model& model, const ctr_batch& batch,
                             typename Model::step& step) {
  model.begin(batch.rows(), step);
  if (const status s = model.look_up(executor, batch, step); !s) return s;
  return model.forward(executor, batch, step);
}

inline std::uint64_t checksum_of(const void* data, std::size_t bytes, std::uint64_t seed) {
  return deeprec::hash_bytes({static_cast<const char*>(data), bytes}, seed);
}

/// The weights of a stack and its optimizer's state, which is made where no step has been yet.
template <class Optimizer>
void add_parts(std::vector<deeprec::named_table>& parts, const std::string& name, deeprec::mlp<>& stack,
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
  template <class Executor>
  dlrm(Executor& executor, const std::vector<index_t>& first_row, std::uint64_t seed,
       const dlrm_options& o = {})
      : options_(o),
        table_(make_table(first_row.back(), o.width)),
        features_(table_.view(), first_row),
        bottom_(with_ends(dense_width, o.bottom, o.width), deeprec::mlp_output::relu,
                deeprec::counter_rng(seed), deeprec::weight_init::he, 100, std::pmr::get_default_resource(),
                o.precision),
        top_(with_ends(deeprec::dot_interaction_width(slots + 1, o.width), o.top, 1),
             deeprec::mlp_output::linear, deeprec::counter_rng(seed), deeprec::weight_init::he, 200,
             std::pmr::get_default_resource(), o.precision) {
    table_.initialize(executor,
                      deeprec::row_init::uniform{.seed = deeprec::mix64(seed + 1), .bound = o.first_rows});
  }
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
  template <class Executor>
  [[nodiscard]] status look_up(Executor& executor, const ctr_batch& batch, step& at) const {
    return features_.look_up(executor, batch.by_slot, at.found, at.pooled);
  }
  template <class Executor>
  [[nodiscard]] status look_up_part(Executor& executor, const ctr_batch& batch, step& at) const {
    return features_.look_up(executor, batch.by_slot, at.pooled);
  }
  template <class Executor>
  [[nodiscard]] status forward(Executor& executor, const ctr_batch& batch, step& at) {
    const matrix_view<float> crossed = room(crossed_, batch.rows(), top_.size(0));
    if (const status s = bottom_.forward(executor, batch.dense); !s) return s;
    if (const status s = dot_interaction_forward(executor, bottom_.output(), at.pooled, crossed); !s)
      return s;
    return top_.forward(executor, crossed);
  }
  [[nodiscard]] matrix_view<const float> logits() const { return top_.output(); }

  template <class Executor>
  [[nodiscard]] status backward(Executor& executor, const ctr_batch& batch, step& at) {
    const index_t rows = batch.rows();
    const matrix_view<float> slope = room(slope_, rows, 1);
    const matrix_view<float> bottom_gradient = room(bottom_gradient_, rows, options_.width);
    if (const status s = logistic_loss_backward(executor, logits(), batch.labels, slope); !s) return s;
    if (const status s = top_.backward(executor, slope); !s) return s;
    if (const status s = dot_interaction_backward(executor, bottom_.output(), at.pooled,
                                                  top_.input_gradient(), bottom_gradient, at.gradient);
        !s) {
      return s;
    }
    return bottom_.backward(executor, bottom_gradient, deeprec::compute_input_gradient::no);
  }
  [[nodiscard]] deeprec::adagrad stack_optimizer() const { return {.learning_rate = options_.dense_rate}; }
  /// Calls use(stack) for each.
  template <class Use>
  void for_each_stack(const Use& use) {
    use("bottom", bottom_);
    use("top", top_);
  }
  template <class Executor>
  [[nodiscard]] status step_stacks(Executor& executor) {
    if (const status s = bottom_.step(executor, stack_optimizer()); !s) return s;
    return top_.step(executor, stack_optimizer());
  }
  [[nodiscard]] deeprec::rowwise_adagrad row_optimizer() const {
    return {.learning_rate = options_.row_rate};
  }
  /// Calls use(f) for each table: f(step) is the gradient of its pooled rows.
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  template <class Executor>
  [[nodiscard]] status update_rows(Executor& executor, const ctr_batch& batch, step& at) {
    return features_.update(executor, batch.by_slot, at.found, at.gradient, row_optimizer());
  }

  /// All that training changes, under its names.
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    std::vector<deeprec::named_table> all = {name_table("dlrm, rows", table_.view())};
    add_parts(all, "dlrm, bottom", bottom_, stack_optimizer());
    add_parts(all, "dlrm, top", top_, stack_optimizer());
    return all;
  }

  [[nodiscard]] std::uint64_t checksum() {
    std::uint64_t sum = checksum_of(table_.view().data(), table_.bytes(), 0);
    for (deeprec::mlp<>* stack : {&bottom_, &top_}) {
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
  deeprec::dense_table<deeprec::f32_rows> table_;  // of all slots
  slot_features features_;
  deeprec::mlp<> bottom_, top_;
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

  template <class Executor>
  logistic_regression(Executor& executor, const std::vector<index_t>& first_row, std::uint64_t seed,
                      const lr_options& o = {})
      : options_(o),
        table_(make_table(first_row.back(), 1)),
        linear_({dense_width, 1}, deeprec::mlp_output::linear, deeprec::counter_rng(seed),
                deeprec::weight_init::he, 0, std::pmr::get_default_resource(), o.precision) {
    table_.initialize(executor, deeprec::row_init::zeros{});
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
  template <class Executor>
  [[nodiscard]] status look_up_part(Executor& executor, const ctr_batch& batch, step& at) const {
    return look_up(executor, batch, at);
  }
  template <class Executor>
  [[nodiscard]] status look_up(Executor& executor, const ctr_batch& batch, step& at) const {
    return fused_lookup(executor, table_.view(), batch.by_row, deeprec::combiner::sum, at.sums);
  }
  template <class Executor>
  [[nodiscard]] status forward(Executor& executor, const ctr_batch& batch, step& at) {
    const index_t rows = batch.rows();
    const matrix_view<float> sums = room(logits_memory_, rows, 1);
    if (const status s = linear_.forward(executor, batch.dense); !s) return s;
    for (index_t i = 0; i < rows; ++i) sums(i, 0) = at.sums(i, 0) + linear_.output()(i, 0);
    logits_ = sums;
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits() const { return logits_; }

  template <class Executor>
  [[nodiscard]] status backward(Executor& executor, const ctr_batch& batch, step& at) {
    if (const status s = logistic_loss_backward(executor, logits_, batch.labels, at.gradient); !s) return s;
    return linear_.backward(executor, at.gradient, deeprec::compute_input_gradient::no);
  }
  [[nodiscard]] deeprec::adagrad stack_optimizer() const { return {.learning_rate = options_.dense_rate}; }
  template <class Use>
  void for_each_stack(const Use& use) {
    use("linear", linear_);
  }
  template <class Executor>
  [[nodiscard]] status step_stacks(Executor& executor) {
    return linear_.step(executor, stack_optimizer());
  }
  [[nodiscard]] deeprec::rowwise_adagrad row_optimizer() const {
    return {.learning_rate = options_.row_rate, .epsilon = options_.row_epsilon};
  }
  template <class Use>
  static void for_each_row_gradient(const Use& use) {
    use([](step& at) { return at.gradient; });
  }
  template <class Executor>
  [[nodiscard]] status update_rows(Executor& executor, const ctr_batch& batch, step& at) {
    return deeprec::update(executor, batch.by_row, at.gradient, deeprec::combiner::sum, row_optimizer(),
                           table_.view());
  }

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
  deeprec::dense_table<deeprec::f32_rows> table_;
  deeprec::mlp<> linear_;
  matrix_view<const float> logits_;
  std::vector<float> logits_memory_;
};

}  // namespace train_ctr
