// Many tables trained in one call: what table_group is to lookup, update_group is to update.
//
//   update_group<rowwise_adagrad> updates;          the features in the order of the table_group
//   updates.add(users.view(), combiner::sum);
//   updates.add(items.view(), combiner::mean);
//   updates.add(users.view(), max_norm_sum);        a table may serve many features
//   update(pool, updates, bags, gradient, optimizer);   gradient (B, sum of D) of the lookup's out
//
// A row that several features or bags used gets one step, with the sum of all its gradients. Not here:
// different optimizers for different tables; use one group for each optimizer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/backward.hpp>
#include <deeprec/embedding/training/detail/update_parts.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/scratch_block.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The features of a model for training: which table each updates, and its pooling. Tables are not owned.
///
/// @dtype   Bags: the type of a feature's batch
/// @threads add is not thread-safe; one update at a time
template <RowOptimizer Optimizer, BagBatch Bags = jagged_view<>,
          RoundingPolicy Rounding = rounding::nearest_t>
class update_group {
 public:
  using optimizer_type = Optimizer;
  using bags_type = Bags;

  /// Adds a feature and returns its number. Tables are the same when their rows begin at one address; a
  /// table without rows, or with rows of 0 bytes, is never the same as another.
  ///
  /// @shape    table (R,D), changed in place by update
  /// @dtype    rows f32, f16, bf16 or split
  /// @error    reported by update: rows without room for the optimizer's state; one address with two shapes,
  ///           formats or norms
  template <RowFormat Format, class Pooling, class = detail::unit>
  index_t add(table_view<Format> table, const Pooling& pooling) {
    using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
    using combiner_type = typename policies::combiner;
    static_assert(
        !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
        "deeprec::update_group: no gradient for this combiner. Fix: sum, mean or sqrtn.");
    static_assert(
        detail::has_trainable_rows<Format>,
        "deeprec::update_group: rows of this format are for lookups only. Fix: train rows of float, "
        "f16, bf16 or split floats, and quantize the table afterwards.");
    const auto policy = detail::as_pooling(pooling);
    const float norm = detail::max_norm_of(policy);
    const bool has_bytes = table.rows() > 0 && table.format().stride_bytes() > 0;
    const auto same = std::find_if(tables_.begin(), tables_.end(), [&](const auto& t) {
      return has_bytes && t->has_bytes && t->rows_at == table.data();
    });
    const auto number = static_cast<std::size_t>(same - tables_.begin());
    if (same == tables_.end()) {
      if (table.format().state_floats() <
          detail::capped_sum(Optimizer::row_state,
                             detail::capped_product(Optimizer::element_state, table.width()))) {
        note("rows have no room for the optimizer's state");
      }
      tables_.push_back(std::make_unique<detail::update_table_of<Format, Optimizer, Rounding>>(table, norm));
    } else if (const auto& t = **same;
               !t.is(&detail::name_of_format<Format>, table.format().stride_bytes()) ||
               t.rows != table.rows() || t.width != table.width() || t.norm_cap != norm) {
      note("features share a table's rows, but not its shape, format and max_norm");
    }
    features_.push_back(
        std::make_unique<detail::update_feature_of<Bags, policies>>(number, table.rows(), policy));
    offsets_.push_back(detail::capped_sum(total_width(), table.width()));
    return features() - 1;
  }

  /// T
  [[nodiscard]] index_t features() const noexcept { return static_cast<index_t>(features_.size()); }
  /// Number of different tables.
  [[nodiscard]] index_t tables() const noexcept { return static_cast<index_t>(tables_.size()); }
  /// D of a feature.
  [[nodiscard]] index_t width(index_t feature) const noexcept {
    return offset(feature + 1) - offset(feature);
  }
  /// The first column of a feature in the joint gradient.
  [[nodiscard]] index_t offset(index_t feature) const noexcept {
    return offsets_[static_cast<std::size_t>(feature)];
  }
  /// The sum of all D; if that overflows index_t, a number larger than the width of any gradient.
  [[nodiscard]] index_t total_width() const noexcept { return offsets_.back(); }

  /// For update: runs the whole call.
  template <class = detail::unit>
  [[nodiscard]] status run(const context<executor_ref>& ctx, std::span<const Bags> bags,
                           std::span<const matrix_view<const float>> gradients, const Optimizer& optimizer,
                           const Rounding& rounding) const {
    if (const status s = check(ctx, bags, gradients); !s) return s;
    std::pmr::vector<work> all(tables_.size(), work{}, ctx.memory);
    for (std::size_t t = 0; t < features_.size(); ++t) {
      work& w = all[features_[t]->table];
      w.positions += bags[t].end_position() - bags[t].first_position();
      w.bags += bags[t].bags();
      if (detail::row_groups::fits(w.positions + w.bags, tables_[features_[t]->table]->rows)) continue;
      return status(errc::unsupported, "update: bits of a row and bits of a position must fit 64 together")
          .in_table(static_cast<index_t>(t));
    }
    // Large tables in sequence, each on all threads; the others in parallel, each on one thread. All of them
    // use one block, allocated before the first table is updated: the large ones reuse it in turn, then the
    // smaller ones take separate parts of it.
    std::pmr::vector<std::size_t> smaller(ctx.memory);
    smaller.reserve(tables_.size());
    index_t together = 0;
    index_t largest = 0;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      if (all[t].positions > positions_of_many) {
        largest = (std::max)(
            largest, detail::backward_plan::bytes_for(size_of(all[t], t, ctx.executor->concurrency())));
      } else if (all[t].positions > 0 || all[t].bags > 0) {
        all[t].place = together;
        together = detail::capped_sum(together, detail::backward_plan::bytes_for(size_of(all[t], t, 1)));
        smaller.push_back(t);
      }
    }
    const detail::scratch_block memory(ctx.memory, (std::max)(largest, together));
    for (std::size_t t = 0; t < features_.size(); ++t) features_[t]->count_skipped(bags[t]);
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      if (all[t].positions > positions_of_many)
        step_table(ctx, t, all[t], memory.data(), bags, gradients, optimizer, rounding);
    }
    ctx.executor->parallel_for(static_cast<index_t>(smaller.size()), 1, [&](index_t begin, index_t end, int) {
      inline_executor here;
      executor_ref executor(here);
      context<executor_ref> alone(executor);
      alone.instruction_set = ctx.instruction_set;
      for (index_t i = begin; i < end; ++i) {
        const std::size_t t = smaller[static_cast<std::size_t>(i)];
        step_table(alone, t, all[t], memory.data() + all[t].place, bags, gradients, optimizer, rounding);
      }
    });
    return {};
  }

 private:
  // Work for a table in one call.
  struct work {
    index_t positions = 0;
    index_t bags = 0;
    index_t place = 0;  // offset of its memory in that of the smaller tables
  };
  // Tables with up to this many ids are updated by one thread.
  static constexpr index_t positions_of_many = index_t{1} << 15;

  [[nodiscard]] detail::backward_size size_of(const work& w, std::size_t table,
                                              index_t workers) const noexcept {
    return {.positions = w.positions, .bags = w.bags, .width = tables_[table]->width, .workers = workers};
  }

  void note(const char* what) {
    if (fault_) fault_ = status(errc::shape_mismatch, what).in_table(features());
  }

  template <class = detail::unit>
  status check(const context<executor_ref>& ctx, std::span<const Bags> bags,
               std::span<const matrix_view<const float>> gradients) const {
    if (const status s =
            detail::expect_size(bags.size(), features_.size(),
                                "update: the number of batches must be the number of features of the group");
        !s) {
      return s;
    }
    if (const status s = detail::expect_size(
            gradients.size(), features_.size(),
            "update: the number of gradients must be the number of features of the group");
        !s) {
      return s;
    }
    for (std::size_t t = 0; t < features_.size(); ++t) {
      const auto number = static_cast<index_t>(t);
      if (!fault_ && fault_.place().table == number) return fault_;
      if (const status s = detail::expect_size(gradients[t].extent(1), width(number),
                                               "update: gradient.extent(1) must be the row width D");
          !s) {
        return s.in_table(number);
      }
      if (const status s = detail::expect_size(gradients[t].extent(0), bags[t].bags(),
                                               "update: gradient.extent(0) must be the number of bags B");
          !s) {
        return s.in_table(number);
      }
      if (!gradients[t].valid())
        return gradients[t].validate("update: gradient must not be null").in_table(number);
      if (const status s = features_[t]->check(ctx, bags[t]); !s) return s.in_table(number);
    }
    return {};
  }

  // Uses the memory at `place`; no allocation.
  template <class = detail::unit>
  void step_table(const context<executor_ref>& ctx, std::size_t table, const work& w, std::byte* place,
                  std::span<const Bags> bags, std::span<const matrix_view<const float>> gradients,
                  const Optimizer& optimizer, const Rounding& rounding) const {
    detail::backward_plan plan(place, size_of(w, table, ctx.executor->concurrency()));
    for (std::size_t t = 0; t < features_.size(); ++t) {
      if (features_[t]->table == table) features_[t]->add_to(plan, ctx, bags[t], gradients[t]);
    }
    plan.group(ctx, tables_[table]->rows);
    tables_[table]->step(ctx, plan, optimizer, rounding);
  }

  std::vector<std::unique_ptr<detail::update_feature<Bags>>> features_;
  std::vector<std::unique_ptr<detail::update_table<Optimizer, Rounding>>> tables_;
  std::vector<index_t> offsets_{0};
  status fault_;
};

/// One optimizer step for every row that the batches of any feature used.
///
/// @shape    bags (T) as given to lookup · gradients (T) of its outputs, each (B_t,D_t), any row stride
/// @dtype    as update
/// @space    all reachable from the host
/// @pre      as update; tables with different first rows don't overlap
/// @post     where features share no table, that of T updates; a row that features share gets one step, with
///           the sum of their gradients in the order of features
/// @numerics as update: the same bits for any number of threads
/// @cost     that of T updates; tables with up to 32768 ids are distributed over threads, larger ones are
///           updated by all threads. Memory as update, for the largest table or for all of the smaller ones,
///           before the first is updated
/// @threads  one caller; lookups of the same tables must wait
/// @error    as update, with the feature as the table, for the smallest feature that has a fault. On an
///           error, also out_of_memory, nothing is written
/// @example  @snippet tests/embedding/update_group_test.cpp update_group
template <class Context, RowOptimizer Optimizer, BagBatch Bags, RoundingPolicy Rounding, class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor,
                            const update_group<Optimizer, Bags, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            std::span<const matrix_view<const float>> gradients,
                            const std::type_identity_t<Optimizer>& optimizer,
                            const std::type_identity_t<Rounding>& rounding = {}) {
  const auto given = detail::as_context(context_or_executor);
  static_assert(std::is_same_v<detail::backend_of<std::remove_const_t<decltype(given)>>, host_backend>,
                "deeprec::update: an update_group has no device form yet. Fix: pass a host context.");
  executor_ref executor(*given.executor);
  const context<executor_ref> ctx = given.rebind(executor);
  return detail::or_out_of_memory(
      [&]() -> status { return group.run(ctx, bags, gradients, optimizer, rounding); });
}

/// The same, for gradients side by side in one matrix (B, total_width()): feature t has the columns
/// [offset(t), offset(t + 1)); every batch has B bags.
template <class Context, RowOptimizer Optimizer, BagBatch Bags, RoundingPolicy Rounding, class Columns,
          class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor,
                            const update_group<Optimizer, Bags, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            matrix_view<const float, host_space, Columns> gradient,
                            const std::type_identity_t<Optimizer>& optimizer,
                            const std::type_identity_t<Rounding>& rounding = {}) {
  if (const status s = detail::expect_size(gradient.extent(1), group.total_width(),
                                           "update: gradient.extent(1) must be the total width of the group");
      !s) {
    return s;
  }
  const auto ctx = detail::as_context(context_or_executor);
  if (!gradient.valid()) return gradient.validate("update: gradient must not be null");
  return detail::or_out_of_memory([&]() -> status {
    std::pmr::vector<matrix_view<const float>> parts(ctx.memory);
    parts.reserve(static_cast<std::size_t>(group.features()));
    for (index_t t = 0; t < group.features(); ++t) {
      const float* const first = gradient.empty() ? nullptr : gradient.data_handle() + group.offset(t);
      parts.emplace_back(first, gradient.extent(0), group.width(t), gradient.stride(0));
    }
    return update(ctx, group, bags, std::span<const matrix_view<const float>>(parts), optimizer, rounding);
  });
}

/// The same, for a gradient that may be written.
template <class Context, RowOptimizer Optimizer, BagBatch Bags, RoundingPolicy Rounding, class Columns,
          class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor,
                            const update_group<Optimizer, Bags, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            matrix_view<float, host_space, Columns> gradient,
                            const std::type_identity_t<Optimizer>& optimizer,
                            const std::type_identity_t<Rounding>& rounding = {}) {
  return update(context_or_executor, group, bags, matrix_view<const float, host_space, Columns>(gradient),
                optimizer, rounding);
}

}}  // namespace deeprec::DEEPREC_ABI
