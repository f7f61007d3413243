// Wide and deep: a logistic regression over the ids, and a stack over all rows side by side.
//
//   39 ids ─> fused_lookup, rows of 1 ────────────────────────────┐
//   39 ids ─> feature_group, rows of 16, side by side ─┐          ├─> logit
//   dense ─────────────────────────────────────────────┴─> MLP ───┘
#pragma once

#include <algorithm>

#include "models.hpp"

namespace train_ctr {

struct wide_deep_options {
  index_t width = 16;
  std::vector<index_t> hidden = {256, 128};
  float first_rows = 0.001F;  ///< rows of the deep part begin uniform in +- this
  float wide_rate = 0.01F;
  float row_rate = 0.02F;
  float dense_rate = 0.01F;
  deeprec::mlp_precision precision{};
};

class wide_deep {
 public:
  static constexpr const char* name = "wdl";
  using options = wide_deep_options;

  template <class Executor>
  wide_deep(Executor& executor, const std::vector<index_t>& first_row, std::uint64_t seed,
            const wide_deep_options& o = {})
      : options_(o),
        wide_(make_table(first_row.back(), 1)),
        deep_(make_table(first_row.back(), o.width)),
        features_(deep_.view(), first_row),
        stack_(sizes(o), deeprec::mlp_output::linear, deeprec::counter_rng(seed), deeprec::weight_init::he,
               100, std::pmr::get_default_resource(), o.precision) {
    wide_.initialize(executor, deeprec::row_init::zeros{});
    deep_.initialize(executor,
                     deeprec::row_init::uniform{.seed = deeprec::mix64(seed + 1), .bound = o.first_rows});
  }
  wide_deep(const wide_deep&) = delete;  // its features refer to its table
  wide_deep& operator=(const wide_deep&) = delete;

  template <class Executor>
  [[nodiscard]] status predict(Executor& executor, const ctr_batch& batch, stopwatch& watch) {
    const index_t rows = batch.dense.extent(0);
    reserve(rows);
    const matrix_view<float> sums(logits_.data(), rows, 1);
    if (const status s =
            fused_lookup(executor, std::as_const(wide_).view(), batch.by_row, deeprec::combiner::sum, sums);
        !s) {
      return s;
    }
    const matrix_view<float> input(input_.data(), rows, stack_.size(0));
    if (const status s =
            features_.look_up(executor, batch.by_slot, input.columns(dense_width, slots * options_.width));
        !s) {
      return s;
    }
    watch.lap(part::lookup);
    for (index_t i = 0; i < rows; ++i) std::copy_n(batch.dense.row(i), dense_width, input.row(i));
    if (const status s = stack_.forward(executor, input); !s) return s;
    for (index_t i = 0; i < rows; ++i) sums(i, 0) += stack_.output()(i, 0);
    watch.lap(part::forward);
    return {};
  }
  [[nodiscard]] matrix_view<const float> logits() const { return {logits_.data(), rows_, 1}; }

  template <class Executor>
  [[nodiscard]] status train(Executor& executor, const ctr_batch& batch, stopwatch& watch) {
    if (const status s = predict(executor, batch, watch); !s) return s;
    const matrix_view<float> slope(slope_.data(), rows_, 1);
    if (const status s = logistic_loss_backward(executor, logits(), batch.labels, slope); !s) return s;
    if (const status s = stack_.backward(executor, slope); !s) return s;
    watch.lap(part::backward);
    if (const status s = stack_.step(executor, dense_optimizer()); !s) return s;
    if (const status s = update(
            executor, batch.by_row, slope, deeprec::combiner::sum,
            deeprec::rowwise_adagrad{.learning_rate = options_.wide_rate, .epsilon = 1e-3F}, wide_.view());
        !s) {
      return s;
    }
    const status done = update(executor, *features_.resolved,
                               stack_.input_gradient().columns(dense_width, slots * options_.width),
                               deeprec::rowwise_adagrad{.learning_rate = options_.row_rate});
    watch.lap(part::update);
    return done;
  }

  /// All that training changes, under its names.
  [[nodiscard]] std::vector<deeprec::named_table> parts() {
    std::vector<deeprec::named_table> all = {name_table("wdl, wide rows", wide_.view()),
                                             name_table("wdl, deep rows", deep_.view())};
    add_parts(all, "wdl, stack", stack_, dense_optimizer());
    return all;
  }

  [[nodiscard]] std::uint64_t checksum() {
    const auto weights = stack_.parameters();
    return checksum_of(
        weights.data_handle(), static_cast<std::size_t>(weights.extent(1)) * sizeof(float),
        checksum_of(deep_.view().data(), deep_.bytes(), checksum_of(wide_.view().data(), wide_.bytes(), 0)));
  }

 private:
  [[nodiscard]] deeprec::adagrad dense_optimizer() const { return {.learning_rate = options_.dense_rate}; }
  static std::vector<index_t> sizes(const wide_deep_options& o) {
    std::vector<index_t> all = {dense_width + slots * o.width};
    all.insert(all.end(), o.hidden.begin(), o.hidden.end());
    all.push_back(1);
    return all;
  }
  void reserve(index_t rows) {
    rows_ = rows;
    const auto enough = [&](std::vector<float>& of, index_t columns) {
      const auto needed = static_cast<std::size_t>(rows * columns);
      if (of.size() < needed) of.resize(needed);
    };
    enough(input_, stack_.size(0));
    enough(logits_, 1);
    enough(slope_, 1);
  }

  wide_deep_options options_;
  deeprec::dense_table<deeprec::f32_rows> wide_, deep_;
  slot_features features_;  // of deep_
  deeprec::mlp<> stack_;
  index_t rows_ = 0;
  std::vector<float> input_, logits_, slope_;
};

}  // namespace train_ctr
