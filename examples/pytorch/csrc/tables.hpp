// The tables of an EmbeddingBagCollection: rows that the library keeps on huge pages, each with its
// optimizer's state, and the group of features that are looked up in them.
//
//   tables_of<Optimizer, Rounding>    a feature_group over tables of any formats; one source file for each
//                                     optimizer, and one for each with weight decay and rounding at random
//   dense_of<Format>                  rows and state, as tensors for the state dict and as parts of a file
//   growing_of<Format>                growing.hpp
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/separate_state.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/memory/huge_page_resource.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/wrappers.hpp>

#include "call.hpp"
#include "growing.hpp"
#include "keyed_batch.hpp"
#include "table.hpp"
#include "tensors.hpp"

namespace deeprec_torch {

using features_view = std::vector<deeprec::jagged_view<>>;

/// Ids of each feature, every one a bag of its own, and their rows: looked up (N,D), or gradients of them.
template <class T>
struct listed_rows {
  std::vector<std::span<const std::int64_t>> ids;
  std::vector<deeprec::matrix_view<T>> rows;
};

/// A table of R rows, whose format is not in its type.
class dense : public table {
 public:
  using table::table;

  /// Bytes of the rows (R, stride); they live as long as `owner`, which the tensor keeps.
  [[nodiscard]] virtual at::Tensor bytes(const std::shared_ptr<void>& owner) = 0;
  /// The optimizer's state (R, floats).
  [[nodiscard]] at::Tensor state(const std::shared_ptr<void>& owner) {
    return at::from_blob(
        state_.view().data(), {config_.rows, state_.width()}, [owner](void*) {},
        at::TensorOptions(at::kFloat));
  }
  virtual void assign(const at::Tensor& values) = 0;
  [[nodiscard]] virtual at::Tensor values() const = 0;
  /// The parts of a table file: the rows, and the state where there is any.
  virtual void name_parts(std::vector<deeprec::named_table>& parts) = 0;

 protected:
  void name_state(std::vector<deeprec::named_table>& parts) {
    if (state_.width() > 0) parts.push_back(deeprec::name_table(config_.name + "/state", state_.view()));
  }

  deeprec::dense_table<deeprec::f32_rows> state_;
};

template <class Format>
class dense_of final : public dense {
 public:
  dense_of(table_config config, index_t state_floats)
      : dense(std::move(config)), rows_(config_.rows, Format(config_.width)) {
    state_ = deeprec::dense_table<deeprec::f32_rows>(config_.rows, deeprec::f32_rows(state_floats));
  }

  /// To a group that steps the rows, or for lookups only; `where`: of a group of many ranks.
  template <class Group, class... Where>
  void add_to(Group& group, const Where&... where) {
    if constexpr (state_floats_of<typename Group::optimizer_type>(1) == 0) {
      add_features(group, rows_.view(), where...);
    } else {
      const auto state = state_.view();
      add_features(
          group,
          deeprec::with_state(
              rows_.view(), deeprec::matrix_view<float>(static_cast<float*>(static_cast<void*>(state.data())),
                                                        state.rows(), state.width())),
          where...);
    }
  }

  at::Tensor bytes(const std::shared_ptr<void>& owner) override {
    return at::from_blob(
        rows_.view().data(), {config_.rows, rows_.format().stride_bytes()}, [owner](void*) {},
        at::TensorOptions(at::kByte));
  }
  void initialize(const first_values& values) override {
    auto executor = threads();
    const auto ctx = call_on(executor);
    if constexpr (deeprec::Storage<typename Format::element>) {
      rows_.initialize(ctx, values);
    } else {
      at::Tensor drawn = at::empty({config_.rows, config_.width}, at::TensorOptions(at::kFloat));
      for (index_t row = 0; row < config_.rows; ++row) {
        values(row, drawn.data_ptr<float>() + row * config_.width, config_.width);
      }
      assign(drawn);
    }
  }
  void assign(const at::Tensor& values) override {
    check_values(values, config_.rows);
    const at::Tensor source = with_rows(values.to(at::kCPU, at::kFloat));
    auto executor = threads();
    const auto ctx = call_on(executor);
    raise_on_fault(deeprec::quantize(ctx, matrix<const float>(source), rows_.view()));
  }
  at::Tensor values() const override {
    at::Tensor out = at::empty({config_.rows, config_.width}, at::TensorOptions(at::kFloat));
    auto executor = threads();
    const auto ctx = call_on(executor);
    raise_on_fault(deeprec::dequantize(ctx, rows_.view(), matrix<float>(out)));
    return out;
  }
  void name_parts(std::vector<deeprec::named_table>& parts) override {
    parts.push_back(deeprec::name_table(config_.name, rows_.view()));
    name_state(parts);
  }

 private:
  deeprec::dense_table<Format> rows_;
};

/// All tables of a collection, and their verbs. Lookups may run at once; update, step, assign and load
/// exclude them, and so does regroup.
class tables {
 public:
  virtual ~tables() = default;
  virtual void lookup(const keyed_batch& batch, at::Tensor& out) const = 0;
  /// The same, with rows for keys that tables which grow do not hold, as far as they admit them.
  virtual void lookup_or_insert(const keyed_batch& batch, at::Tensor& out) = 0;
  virtual void update(const keyed_batch& batch, const at::Tensor& gradient) = 0;
  /// The rows of ids, not pooled; as lookup_or_insert where `inserts`.
  virtual void lookup_each(const listed_rows<float>& each, bool inserts) = 0;
  /// A step with gradients of rows; an id that comes several times is stepped with their sum.
  virtual void step(const listed_rows<const float>& each) = 0;
  /// After a table that grows was replaced by another one.
  virtual void regroup() = 0;
  [[nodiscard]] index_t features() const { return features_; }
  [[nodiscard]] index_t total_width() const { return total_width_; }
  /// Of each feature.
  [[nodiscard]] std::vector<index_t> widths() const {
    std::vector<index_t> made;
    for (const auto& one : list_) made.insert(made.end(), one->config().poolings.size(), one->config().width);
    return made;
  }
  [[nodiscard]] std::vector<std::unique_ptr<table>>& list() { return list_; }

  step_options options;

 protected:
  /// The step that goes on, for the tables that grow.
  void begin_step() {
    for (growing* const one : growing_) one->begin_step(options.step);
  }

  std::vector<std::unique_ptr<table>> list_;
  std::vector<growing*> growing_;
  index_t features_ = 0;
  index_t total_width_ = 0;
};

/// For each optimizer, in a source file of its own. Throws where a format or a pooling is not among those.
std::unique_ptr<tables> make_sgd_tables(std::vector<table_config> configs, const step_options& options);
std::unique_ptr<tables> make_rowwise_adagrad_tables(std::vector<table_config> configs,
                                                    const step_options& options);
std::unique_ptr<tables> make_adagrad_tables(std::vector<table_config> configs, const step_options& options);
std::unique_ptr<tables> make_adam_tables(std::vector<table_config> configs, const step_options& options);
std::unique_ptr<tables> make_lookup_tables(std::vector<table_config> configs, const step_options& options);

/// The same with options.weight_decay, and rows of 16 bits rounded at random.
std::unique_ptr<tables> make_decayed_sgd_tables(std::vector<table_config> configs,
                                                const step_options& options);
std::unique_ptr<tables> make_decayed_rowwise_adagrad_tables(std::vector<table_config> configs,
                                                            const step_options& options);
std::unique_ptr<tables> make_decayed_adagrad_tables(std::vector<table_config> configs,
                                                    const step_options& options);
std::unique_ptr<tables> make_decayed_adam_tables(std::vector<table_config> configs,
                                                 const step_options& options);

/// An optimizer with these options.
template <class Optimizer>
Optimizer optimizer_with(const step_options& options) {
  Optimizer made;
  if constexpr (requires { made.optimizer; }) {
    made.optimizer = optimizer_with<std::remove_cvref_t<decltype(made.optimizer)>>(options);
    made.rate = static_cast<float>(options.weight_decay);
    return made;
  } else {
    made.learning_rate = static_cast<float>(options.learning_rate);
    if constexpr (requires { made.epsilon; }) made.epsilon = static_cast<float>(options.epsilon);
    if constexpr (requires { made.initial_squares; })
      made.initial_squares = static_cast<float>(options.initial_squares);
    if constexpr (requires { made.beta1; }) made.beta1 = static_cast<float>(options.beta1);
    if constexpr (requires { made.beta2; }) made.beta2 = static_cast<float>(options.beta2);
    if constexpr (requires { made.step; }) made.step = options.step;
    // As torch.optim.SparseAdam.
    if constexpr (requires { made.epsilon_at; }) made.epsilon_at = deeprec::epsilon_place::before_correction;
    return made;
  }
}

template <class Optimizer, deeprec::RoundingPolicy Rounding = deeprec::rounding::nearest_t>
class tables_of final : public tables {
  using group_type = deeprec::feature_group<Optimizer, deeprec::jagged_view<>, float, Rounding>;
  static constexpr bool trains = !std::is_same_v<Optimizer, deeprec::lookups_only>;

 public:
  tables_of(std::vector<table_config> configs, const step_options& with) {
    options = with;
    for (table_config& config : configs) add(std::move(config));
    regroup();
    features_ = group_.features();
    total_width_ = group_.total_width();
  }

  void lookup(const keyed_batch& batch, at::Tensor& out) const override {
    auto executor = threads();
    const auto ctx = call_on(executor);
    const features_view bags = bags_of_features(batch);
    raise_on_fault(deeprec::lookup(ctx, group_, bags, matrix<float>(out)));
  }
  void lookup_or_insert(const keyed_batch& batch, at::Tensor& out) override {
    if constexpr (trains) {
      begin_step();
      auto executor = threads();
      const auto ctx = call_on(executor);
      const features_view bags = bags_of_features(batch);
      const auto rows = deeprec::resolve(ctx, group_, bags, deeprec::keys::find_or_insert);
      raise_on_fault(rows);
      raise_on_fault(deeprec::lookup(ctx, rows.value(), matrix<float>(out)));
    } else {
      lookup(batch, out);
    }
  }
  void update(const keyed_batch& batch, const at::Tensor& gradient) override {
    if constexpr (trains) {
      begin_step();
      auto executor = threads();
      const auto ctx = call_on(executor);
      const features_view bags = bags_of_features(batch);
      raise_on_fault(deeprec::update(ctx, group_, bags, matrix<const float>(gradient),
                                     optimizer_with<Optimizer>(options), rounding()));
      ++options.step;
    } else {
      refuse_to_step();
    }
  }
  void lookup_each(const listed_rows<float>& each, bool inserts) override {
    const bags_of_one bags(each.ids);
    auto executor = threads();
    const auto ctx = call_on(executor);
    if constexpr (trains) {
      if (inserts) {
        begin_step();
        const auto rows = deeprec::resolve(ctx, group_, bags.features, deeprec::keys::find_or_insert);
        raise_on_fault(rows);
        raise_on_fault(deeprec::lookup(ctx, rows.value(), each.rows));
        return;
      }
    }
    raise_on_fault(deeprec::lookup(ctx, group_, bags.features, each.rows));
  }
  void step(const listed_rows<const float>& each) override {
    if constexpr (trains) {
      begin_step();
      const bags_of_one bags(each.ids);
      auto executor = threads();
      const auto ctx = call_on(executor);
      raise_on_fault(deeprec::update(ctx, group_, bags.features, each.rows,
                                     optimizer_with<Optimizer>(options), rounding()));
      ++options.step;
    } else {
      refuse_to_step();
    }
  }
  void regroup() override {
    group_ = {};  // no feature of a table that is gone, also where memory is refused
    for (const auto& add_features : adders_) add_features(group_);
  }

 private:
  /// A batch of each feature whose bags have one id.
  struct bags_of_one {
    explicit bags_of_one(const std::vector<std::span<const std::int64_t>>& ids) {
      std::size_t most = 0;
      for (const auto& list : ids) most = std::max(most, list.size());
      offsets.resize(most + 1);
      std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
      for (const auto& list : ids) {
        const auto count = static_cast<index_t>(list.size());
        features.emplace_back(offsets.data(), count, list.data(), count);
      }
    }
    std::vector<std::int64_t> offsets;
    features_view features;
  };
  Rounding rounding() const {
    if constexpr (std::is_same_v<Rounding, deeprec::rounding::stochastic>) {
      return {options.rounding_seed, static_cast<std::uint64_t>(options.step)};
    } else {
      return {};
    }
  }
  [[noreturn]] static void refuse_to_step() {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "deeprec: a collection without an optimizer has no backward pass");
  }
  features_view bags_of_features(const keyed_batch& batch) const {
    features_view bags(static_cast<std::size_t>(features_));
    for (std::size_t f = 0; f < bags.size(); ++f) bags[f] = batch.feature(f);
    return bags;
  }
  template <class Format>
  void add_table(table_config config) {
    const index_t state = state_floats_of<Optimizer>(config.width);
    if (config.grows) {
      auto made = std::make_unique<growing_of<Format>>(std::move(config), state, state_owner());
      adders_.push_back([one = made.get()](auto& group) { one->add_to(group); });
      growing_.push_back(made.get());
      list_.push_back(std::move(made));
    } else {
      auto made = std::make_unique<dense_of<Format>>(std::move(config), state);
      adders_.push_back([one = made.get()](auto& group) { one->add_to(group); });
      list_.push_back(std::move(made));
    }
  }
  static const char* state_owner() {
    if constexpr (trains) return deeprec::optimizer_name<Optimizer>.data();
    return nullptr;
  }
  void add(table_config config) {
    const std::string format = config.format;
    if (format == "f32") return add_table<deeprec::f32_rows>(std::move(config));
    if (format == "f16") return add_table<deeprec::f16_rows>(std::move(config));
    if (format == "bf16") return add_table<deeprec::bf16_rows>(std::move(config));
    if constexpr (!trains) {
      if (format == "int8") return add_table<deeprec::int8_rows>(std::move(config));
      if (format == "int4") return add_table<deeprec::int4_rows>(std::move(config));
    }
    TORCH_CHECK_VALUE(false, "deeprec: the format of table ", config.name, " must be f32, f16 or bf16, ",
                      "or without an optimizer int8 or int4 (is ", format, ")");
  }

  std::vector<std::function<void(group_type&)>> adders_;
  group_type group_;
};

}  // namespace deeprec_torch
