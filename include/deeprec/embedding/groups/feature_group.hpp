// The features of a model, registered once for lookup and update: which table each reads, and how it is
// pooled.
//
//   feature_group<rowwise_adagrad> group;                            any row format, width, pooling;
//   group.add(users.view(), combiner::sum);                          one table may serve many features
//   group.add(items.view(), pooling{combiner::mean, empty_bag::default_row{0}});
//   lookup(pool, group, bags, out);                bags: T batches · out (B, sum of D), side by side
//   update(pool, group, bags, gradient, optimizer);                  gradient (B, sum of D)
//
//   auto rows = resolve(pool, group, bags);        or once for both: ids are checked and located once
//   lookup(pool, rows.value(), out);
//   update(pool, rows.value(), gradient, optimizer);
//
//   feature 0  |bags......|        all pieces of all features are in one list that the executor's
//   feature 1  |bags|              threads share; all ids are checked before the first row is written
//   feature 2  |bags..|
//
// Same bits as one lookup per feature. A row that several features or bags used gets one step, with the sum
// of all its gradients. A group with batches in device memory is for lookups on a device (feature_group.cuh).
// Not here: different optimizers for different tables; use one group for each optimizer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/operation.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/groups/detail/device_group.hpp>
#include <deeprec/embedding/groups/detail/feature_batches.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/embedding/kernels/pool_rules.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// In place of an optimizer: a group that is not trained.
struct lookups_only {};

namespace detail {

/// The memory space of a group's outputs.
template <class Bags>
using group_space =
    std::conditional_t<std::is_same_v<typename Bags::space, device_space>, device_space, host_space>;

}  // namespace detail

/// Features of any tables and poolings. Tables are not owned.
///
/// @dtype   Optimizer: trains the rows, or lookups_only; Bags: the type of a feature's batch; Out: the
///          element type of pooled rows
/// @threads add is not thread-safe; lookups of one group may run concurrently; one update at a time
template <class Optimizer = lookups_only, BagBatch Bags = jagged_view<>, Storage Out = float,
          RoundingPolicy Rounding = rounding::nearest_t>
class feature_group {
  static constexpr bool trains = !std::is_same_v<Optimizer, lookups_only>;
  static constexpr bool on_device = std::is_same_v<detail::group_space<Bags>, device_space>;
  static_assert(!trains || RowOptimizer<Optimizer>,
                "deeprec::feature_group: not an optimizer. Fix: feature_group<sgd>, or feature_group<> for "
                "lookups only.");
  static_assert(!trains || !on_device,
                "deeprec::feature_group: a group of batches in device memory is for lookups. Fix: "
                "lookups_only, and update for each feature.");

 public:
  using optimizer_type = Optimizer;
  using bags_type = Bags;
  using value_type = Out;
  using rounding_type = Rounding;
  /// For verbs.
  using part_type = std::conditional_t<on_device, detail::device_feature<Bags, Out>,
                                       std::unique_ptr<detail::feature<Optimizer, Bags, Out, Rounding>>>;

  /// Adds a feature and returns its number. The source is copied (a view, not the rows). Direct tables are
  /// the same when their rows begin at one address, other sources when their identity() is the same; sources
  /// without identity() are different tables.
  ///
  /// @shape    rows of width D, changed in place by update
  /// @dtype    rows of any format; of a group that trains f32, f16, bf16 or split
  /// @error    concat does not compile: its output has one row per id. Reported by update: rows without room
  ///           for the optimizer's state; one table with two shapes, formats or norms
  template <RowSource Source, class Pooling, class = detail::unit>
  index_t add(const Source& source, const Pooling& pooling) {
    using policies = detail::pooling_for<Pooling>;
    using combiner_type = typename policies::combiner;
    static_assert(!std::is_same_v<combiner_type, combiner::concat_t>,
                  "deeprec::feature_group: concat has no place in a group. Fix: call lookup for it.");
    static_assert(!trains || !std::is_same_v<combiner_type, combiner::max_t>,
                  "deeprec::feature_group: no gradient for this combiner. Fix: sum, mean or sqrtn.");
    static_assert(
        !trains || detail::has_trainable_rows<typename Source::format_type>,
        "deeprec::feature_group: rows of this format are for lookups only. Fix: train rows of float, "
        "f16, bf16 or split floats, and quantize the table afterwards.");
    static_assert(!trains || WritableRowSource<Source>,
                  "deeprec::feature_group: the rows of this source are read only. Fix: a table_view, not a "
                  "const_table_view; or feature_group<> for lookups only.");
    static_assert(
        !trains || DirectRowSource<Source> || requires { source.identity(); },
        "deeprec::feature_group: features of one table are stepped together, and this source does not "
        "tell which table it is. Fix: give it identity(), the address of what it is a view of.");
    const auto policy = detail::as_pooling(pooling);
    if constexpr (on_device) {
      features_.push_back(detail::device_feature_of<Bags, Out>(source, policy));
    } else {
      auto made =
          std::make_unique<detail::feature_of<trains, Source, policies, Optimizer, Bags, Out, Rounding>>(
              source, policy);
      if constexpr (trains) {
        if (!detail::has_state_of<Optimizer>(source.format())) {
          note("update: the rows' state_floats() must be at least what the optimizer needs");
        }
        join_table(made->table);
      }
      features_.push_back(std::move(made));
    }
    offsets_.push_back(detail::capped_sum(total_width(), source.format().width()));
    return features() - 1;
  }

  /// T
  [[nodiscard]] index_t features() const noexcept { return static_cast<index_t>(features_.size()); }
  /// Number of different tables of a group that trains.
  [[nodiscard]] index_t tables() const noexcept { return static_cast<index_t>(first_of_table_.size()); }
  /// D of a feature.
  [[nodiscard]] index_t width(index_t feature) const noexcept {
    return offset(feature + 1) - offset(feature);
  }
  /// The first column of a feature in the joint output and gradient.
  [[nodiscard]] index_t offset(index_t feature) const noexcept {
    return offsets_[static_cast<std::size_t>(feature)];
  }
  /// The sum of all D; if that overflows index_t, a number larger than the width of any output.
  [[nodiscard]] index_t total_width() const noexcept { return offsets_.back(); }

  /// For verbs.
  [[nodiscard]] std::span<const part_type> parts() const noexcept { return features_; }
  /// For verbs: the first feature of each table.
  [[nodiscard]] std::span<const std::size_t> first_of_tables() const noexcept { return first_of_table_; }
  /// For update: the fault of the smallest feature that add() found.
  [[nodiscard]] const status& fault() const noexcept { return fault_; }

 private:
  // Notes the table of the feature that is about to be added.
  void join_table(const detail::feature_table& table) {
    for (const std::size_t first : first_of_table_) {
      const detail::feature_table& known = features_[first]->table;
      if (table.address == nullptr || known.address != table.address) continue;
      if (!table.same_rows(known)) {
        note("update: features that share a table must have one shape, format and max_norm of it");
      }
      std::size_t last = first;
      while (features_[last]->next_of_table != detail::no_feature) last = features_[last]->next_of_table;
      features_[last]->next_of_table = features_.size();
      return;
    }
    first_of_table_.push_back(features_.size());
  }
  void note(const char* what) {
    if (fault_) fault_ = status(errc::shape_mismatch, what).in_table(features());
  }

  std::vector<part_type> features_;
  std::vector<std::size_t> first_of_table_;  // feature
  std::vector<index_t> offsets_{0};
  status fault_;
};

namespace detail {

template <class Group>
using batches_of = feature_batches<typename Group::optimizer_type, typename Group::bags_type,
                                   typename Group::value_type, typename Group::rounding_type>;

/// Calls f with a context of an erased executor.
template <class Context, class F>
auto with_erased(const Context& given, const F& f) {
  executor_ref executor(*given.executor);
  return f(begun(given).rebind(executor));
}

/// Checks the numbers of batches and of outputs or gradients of a group.
template <class Group>
status check_counts(const Group& group, std::size_t bags, std::size_t views, const char* of_bags,
                    const char* of_views) {
  const auto features = static_cast<std::size_t>(group.features());
  if (const status s = expect_size(bags, features, of_bags); !s) return s;
  return expect_size(views, features, of_views);
}

inline constexpr const char* lookup_bags_count =
    "lookup: the number of batches must be the number of features of the group";
inline constexpr const char* lookup_outs_count =
    "lookup: the number of outputs must be the number of features of the group";
inline constexpr const char* update_bags_count =
    "update: the number of batches must be the number of features of the group";
inline constexpr const char* update_gradients_count =
    "update: the number of gradients must be the number of features of the group";

/// Checks the gradient of a feature.
template <class Group>
status check_group_gradient(const Group& group, std::size_t t, index_t bags,
                            const matrix_view<const float>& gradient) {
  const auto number = static_cast<index_t>(t);
  if (!group.fault() && group.fault().place().table == number) return group.fault();
  if (const status s = check_gradient(gradient, group.width(number), bags, update_gradient); !s) return s;
  return group.parts()[t]->check_policies();
}

inline constexpr const char* lookup_width = "lookup: out.extent(1) must be the total width of the group";
inline constexpr const char* update_width = "update: gradient.extent(1) must be the total width of the group";

/// Calls f with the views of the features in a matrix of all of them.
template <class View, class Context, class Group, class Matrix, class F>
status with_views(const Context& ctx, const Group& group, const Matrix& all, const char* null_text,
                  const char* width_text, const F& f) {
  if (const status s = expect_size(all.extent(1), group.total_width(), width_text); !s) return s;
  if (!all.valid()) return all.validate(null_text);
  return or_out_of_memory([&]() -> status {
    std::pmr::vector<View> views(ctx.memory);
    views.reserve(static_cast<std::size_t>(group.features()));
    for (index_t t = 0; t < group.features(); ++t) {
      auto* const first = all.empty() ? nullptr : all.data_handle() + group.offset(t);
      views.emplace_back(first, all.extent(0), group.width(t), all.stride(0));
    }
    return f(std::span<const View>(views));
  });
}

}  // namespace detail

/// The resolved batches of all features of a group. Refers to the group and the batches; its own memory comes
/// from the context that resolve was given. Movable.
///
/// @pre     group, tables and batches outlive it; the batches are not changed
/// @threads lookups are concurrent readers; update needs exclusive access
template <class Group, class = detail::unit>
class resolved_features {
 public:
  using group_type = Group;

  [[nodiscard]] const Group& group() const noexcept { return *group_; }

  /// For verbs.
  [[nodiscard]] detail::batches_of<Group>& batches() const noexcept { return batches_; }
  [[nodiscard]] std::span<const typename Group::bags_type> bags() const noexcept { return bags_; }
  resolved_features(const Group& group, std::span<const typename Group::bags_type> bags,
                    std::pmr::memory_resource* memory)
      : group_(&group), bags_(bags), batches_(memory, group.parts(), group.first_of_tables()) {}

 private:
  const Group* group_;
  std::span<const typename Group::bags_type> bags_;
  mutable detail::batches_of<Group> batches_;
};

/// Checks the ids of the batches of all features and locates their rows.
///
/// @shape   bags (T), each {offsets (B_t+1), ids (N_t)}; the list of them outlives the result
/// @cost    one parallel pass over the ids; allocates about 250 bytes per feature, and as resolve
/// @threads as resolve
/// @error   as resolve, with the feature as the table, for the smallest feature that has a fault
/// @example @snippet tests/embedding/resolve_test.cpp resolved_features
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding, class Mode = keys::find_t,
          class = detail::unit>
[[nodiscard]] auto resolve(Context&& context_or_executor,
                           const feature_group<Optimizer, Bags, Out, Rounding>& group,
                           std::span<const std::type_identity_t<Bags>> bags, Mode = {}) {
  using group_type = feature_group<Optimizer, Bags, Out, Rounding>;
  using result_type = result<resolved_features<group_type>>;
  static_assert(std::is_same_v<Mode, keys::find_t> || std::is_same_v<Mode, keys::find_or_insert_t>,
                "deeprec::resolve: unknown mode. Fix: keys::find or keys::find_or_insert.");
  const auto ctx = detail::as_context(context_or_executor);
  static_assert(std::is_same_v<detail::backend_of<std::remove_const_t<decltype(ctx)>>, host_backend>,
                "deeprec::resolve: rows are resolved on the host. Fix: pass a host context.");
  const detail::verb_call call(ctx, "resolve");
  if (!call) return result_type(call.stopped());
  if (const status s =
          detail::expect_size(bags.size(), group.parts().size(),
                              "resolve: the number of batches must be the number of features of the group");
      !s) {
    return result_type(s);
  }
  std::optional<resolved_features<group_type>> rows;
  const status s = detail::or_out_of_memory("resolve", [&] {
    rows.emplace(group, bags, ctx.memory);
    return detail::with_erased(ctx, [&](const detail::erased_context& erased) {
      return rows->batches().resolve(erased, bags, std::is_same_v<Mode, keys::find_or_insert_t>,
                                     [&](std::size_t t) { return group.parts()[t]->check_policies(); });
    });
  });
  return s ? result_type(std::move(*rows)) : result_type(s);
}

/// The operation of a lookup of all features of a group.
///
/// @threads as lookup
template <class Group>
class group_lookup_op {
  using bags_type = typename Group::bags_type;
  using out_type = matrix_view<typename Group::value_type, detail::group_space<bags_type>>;

 public:
  group_lookup_op(const Group& group, std::span<const bags_type> bags, std::span<const out_type> outs)
      : group_(group), bags_(bags), outs_(outs) {}

  [[nodiscard]] static constexpr const char* name() noexcept { return "lookup"; }
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::span<const bags_type> bags() const noexcept { return bags_; }
  [[nodiscard]] std::span<const out_type> outs() const noexcept { return outs_; }

  /// The numbers of batches and outputs; run() checks the shapes of a feature after the ids of those before
  /// it, since it reports the smallest feature that has a fault.
  [[nodiscard]] status check() const {
    return detail::check_counts(group_, bags_.size(), outs_.size(), detail::lookup_bags_count,
                                detail::lookup_outs_count);
  }
  /// As lookup_op::scratch_bytes.
  template <class Context, class = detail::unit>
  [[nodiscard]] index_t scratch_bytes(const Context&) const noexcept {
    if constexpr (std::is_same_v<detail::backend_of<Context>, host_backend>) {
      return detail::batches_of<Group>::lookup_bytes(group_.parts(), bags_);
    } else {
      return 0;
    }
  }
  template <class F>
  void for_each_effect(F&& f) const {
    for (std::size_t t = 0; t < bags_.size(); ++t) {
      if constexpr (requires { group_.parts()[t]->table; }) {
        f(effect{group_.parts()[t]->table.address, access_mode::reads, false});
      }
      f(detail::effect_on<typename bags_type::space>(bags_[t].ids(), access_mode::reads));
      f(detail::effect_on<detail::group_space<bags_type>>(outs_[t].data_handle(), access_mode::updates));
    }
  }
  template <class Context, class = detail::unit>
  status run(const Context& ctx, std::span<std::byte> scratch) const {
    return lookup_group_on(ctx.backend(), ctx, *this, scratch);
  }

 private:
  const Group& group_;
  std::span<const bags_type> bags_;
  std::span<const out_type> outs_;
};

/// Pools the bags of every feature of a group, each to a separate matrix.
///
/// @shape    bags (T), each {offsets (B_t+1), ids (N_t)} · outs (T), each (B_t,D_t), any row stride
/// @dtype    as in the group; rows as in their formats
/// @space    all reachable from the context
/// @pre      outs overlap neither each other, nor tables, nor batches
/// @post     as T lookups
/// @numerics the bits of T lookups; on a device, when no bag is longer than 512 ids
/// @cost     that of T lookups in two parallel passes (one checks, one pools), cut into pieces of at least
///           about 256 ids; allocates about 700 bytes per feature from the context's resource, and what
///           lookup allocates
/// @threads  reentrant; concurrent lookups of one group are safe, a concurrent writer of its rows is not
/// @error    as lookup, with the feature as the table, for the smallest feature that has a fault (on a device
///           the smallest that the host finds, then the smallest that the device finds). On an error nothing
///           is written
/// @example  @snippet tests/embedding/feature_group_test.cpp feature_group
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding, class = detail::unit>
[[nodiscard]] status lookup(
    Context&& context_or_executor, const feature_group<Optimizer, Bags, Out, Rounding>& group,
    std::span<const std::type_identity_t<Bags>> bags,
    std::span<const matrix_view<std::type_identity_t<Out>, detail::group_space<std::type_identity_t<Bags>>>>
        outs) {
  const auto ctx = detail::as_context(context_or_executor);
  return detail::run_now(ctx, group_lookup_op(group, bags, outs));
}

/// The same, for rows that were resolved.
template <class Context, class Group, class = detail::unit>
[[nodiscard]] status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                            std::span<const matrix_view<typename Group::value_type>> outs) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "lookup");
  if (!call) return call.stopped();
  if (const status s = detail::check_counts(rows.group(), outs.size(), outs.size(), detail::lookup_outs_count,
                                            detail::lookup_outs_count);
      !s) {
    return s;
  }
  return detail::or_out_of_memory("lookup", [&]() -> status {
    for (std::size_t t = 0; t < outs.size(); ++t) {
      if (const status s = rows.batches()[t].check_pool(outs[t]); !s) {
        return s.in_table(static_cast<index_t>(t));
      }
    }
    return detail::with_erased(ctx, [&](const detail::erased_context& erased) {
      return rows.batches().pool(erased, ctx.memory, outs);
    });
  });
}

template <class... Args>
status lookup_group_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Group, class = detail::unit>
status lookup_group_on(host_backend, const Context& given, const group_lookup_op<Group>& op,
                       std::span<std::byte> scratch) {
  static_assert(std::is_same_v<detail::group_space<typename Group::bags_type>, host_space>,
                "deeprec::lookup: a group of batches in device memory given to a host context. Fix: pass a "
                "device context.");
  std::pmr::monotonic_buffer_resource memory(scratch.data(), scratch.size(), given.memory);
  const Group& group = op.group();
  detail::batches_of<Group> batches(&memory, group.parts(), group.first_of_tables());
  return detail::with_erased(given, [&](const detail::erased_context& ctx) -> status {
    if (const status s = batches.resolve(
            ctx, op.bags(), false,
            [&](std::size_t t) { return group.parts()[t]->check(op.bags()[t], op.outs()[t]); });
        !s) {
      return s;
    }
    return batches.pool(ctx, &memory, op.outs());
  });
}

/// The same, for outputs side by side in one matrix: feature t fills the columns
/// [offset(t), offset(t + 1)) of out (B, total_width()); every batch has B bags.
template <class Context, class Optimizer, BagBatch Bags, class Out, class Rounding, class Columns,
          class = detail::unit>
[[nodiscard]] status lookup(Context&& context_or_executor,
                            const feature_group<Optimizer, Bags, Out, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            matrix_view<std::type_identity_t<Out>, detail::group_space<Bags>, Columns> out) {
  using view = matrix_view<Out, detail::group_space<Bags>>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(ctx, group, out, "lookup: out must not be null", detail::lookup_width,
                                  [&](std::span<const view> outs) { return lookup(ctx, group, bags, outs); });
}

/// The same, for rows that were resolved.
template <class Context, class Group, class Columns, class = detail::unit>
[[nodiscard]] status lookup(Context&& context_or_executor, const resolved_features<Group>& rows,
                            matrix_view<typename Group::value_type, host_space, Columns> out) {
  using view = matrix_view<typename Group::value_type>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(ctx, rows.group(), out, "lookup: out must not be null",
                                  detail::lookup_width,
                                  [&](std::span<const view> outs) { return lookup(ctx, rows, outs); });
}

/// The operation of an update of all features of a group.
///
/// @threads as update
template <class Group>
class group_update_op {
  using bags_type = typename Group::bags_type;
  using gradient_type = matrix_view<const float>;

 public:
  using optimizer_type = typename Group::optimizer_type;
  using rounding_type = typename Group::rounding_type;

  group_update_op(const Group& group, std::span<const bags_type> bags,
                  std::span<const gradient_type> gradients, const optimizer_type& optimizer,
                  const rounding_type& rounding)
      : group_(group), bags_(bags), gradients_(gradients), optimizer_(optimizer), rounding_(rounding) {}

  [[nodiscard]] static constexpr const char* name() noexcept { return "update"; }
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  [[nodiscard]] std::span<const bags_type> bags() const noexcept { return bags_; }
  [[nodiscard]] std::span<const gradient_type> gradients() const noexcept { return gradients_; }
  [[nodiscard]] const optimizer_type& optimizer() const noexcept { return optimizer_; }
  [[nodiscard]] const rounding_type& rounding() const noexcept { return rounding_; }

  /// As group_lookup_op::check.
  [[nodiscard]] status check() const {
    return detail::check_counts(group_, bags_.size(), gradients_.size(), detail::update_bags_count,
                                detail::update_gradients_count);
  }
  /// As lookup_op::scratch_bytes.
  template <class Context, class = detail::unit>
  [[nodiscard]] index_t scratch_bytes(const Context& ctx) const noexcept {
    return detail::batches_of<Group>::update_bytes(group_.parts(), group_.first_of_tables(), bags_,
                                                   ctx.executor->concurrency());
  }
  template <class F>
  void for_each_effect(F&& f) const {
    for (std::size_t t = 0; t < bags_.size(); ++t) {
      f(effect{group_.parts()[t]->table.address, access_mode::updates, false});
      f(detail::effect_on<typename bags_type::space>(bags_[t].ids(), access_mode::reads));
      f(detail::effect_on<host_space>(gradients_[t].data_handle(), access_mode::reads));
    }
  }
  template <class Context, class = detail::unit>
  status run(const Context& ctx, std::span<std::byte> scratch) const {
    return update_group_on(ctx.backend(), ctx, *this, scratch);
  }

 private:
  const Group& group_;
  std::span<const bags_type> bags_;
  std::span<const gradient_type> gradients_;
  optimizer_type optimizer_;
  rounding_type rounding_;
};

/// One optimizer step for every row that the batches of any feature used.
///
/// @shape    bags (T) as given to lookup · gradients (T) of its outputs, each (B_t,D_t), any row stride
/// @dtype    as update
/// @space    all reachable from the host
/// @pre      as update; tables that are not the same (add) have no row in common
/// @post     where features share no table, that of T updates; a row that features share gets one step, with
///           the sum of their gradients in the order of features
/// @numerics as update: the same bits for any number of threads
/// @cost     that of T updates; tables with up to 32768 ids are distributed over threads, larger ones are
///           updated by all threads. Memory as update, for the largest table or for all of the smaller ones,
///           before the first is updated
/// @threads  one caller; lookups of the same tables must wait
/// @error    as update, with the feature as the table, for the smallest feature that has a fault. On an
///           error, also out_of_memory, nothing is written
/// @example  @snippet tests/embedding/feature_group_update_test.cpp feature_group update
template <class Context, RowOptimizer Optimizer, BagBatch Bags, class Out, class Rounding,
          class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor,
                            const feature_group<Optimizer, Bags, Out, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            std::span<const matrix_view<const float>> gradients,
                            const std::type_identity_t<Optimizer>& optimizer,
                            const std::type_identity_t<Rounding>& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  static_assert(
      std::is_same_v<detail::backend_of<std::remove_const_t<decltype(ctx)>>, host_backend>,
      "deeprec::update: a feature_group has no device form of update yet. Fix: pass a host context.");
  return detail::run_now(ctx, group_update_op(group, bags, gradients, optimizer, rounding));
}

/// The same, for rows that were resolved: the positions of a table are grouped by row at the first update
/// only.
template <class Context, class Group, class = detail::unit>
[[nodiscard]] status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                            std::span<const matrix_view<const float>> gradients,
                            const typename Group::optimizer_type& optimizer,
                            const typename Group::rounding_type& rounding = {}) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "update");
  if (!call) return call.stopped();
  const Group& group = rows.group();
  if (const status s = detail::check_counts(group, rows.bags().size(), gradients.size(),
                                            detail::update_bags_count, detail::update_gradients_count);
      !s) {
    return s;
  }
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    if (const status s = detail::check_group_gradient(group, t, rows.bags()[t].bags(), gradients[t]); !s) {
      return s.in_table(static_cast<index_t>(t));
    }
  }
  return detail::or_out_of_memory("update", [&]() -> status {
    return detail::with_erased(ctx, [&](const detail::erased_context& erased) {
      return rows.batches().step(erased, ctx.memory, true, gradients, optimizer, rounding);
    });
  });
}

template <class... Args>
status update_group_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Group, class = detail::unit>
status update_group_on(host_backend, const Context& given, const group_update_op<Group>& op,
                       std::span<std::byte> scratch) {
  std::pmr::monotonic_buffer_resource memory(scratch.data(), scratch.size(), given.memory);
  const Group& group = op.group();
  detail::batches_of<Group> batches(&memory, group.parts(), group.first_of_tables());
  return detail::with_erased(given, [&](const detail::erased_context& ctx) -> status {
    if (const status s = batches.resolve(ctx, op.bags(), false,
                                         [&](std::size_t t) {
                                           return detail::check_group_gradient(group, t, op.bags()[t].bags(),
                                                                               op.gradients()[t]);
                                         });
        !s) {
      return s;
    }
    return batches.step(ctx, &memory, false, op.gradients(), op.optimizer(), op.rounding());
  });
}

/// The same, for gradients side by side in one matrix (B, total_width()): feature t has the columns
/// [offset(t), offset(t + 1)); every batch has B bags.
template <class Context, RowOptimizer Optimizer, BagBatch Bags, class Out, class Rounding, class Gradient,
          class Columns, class = detail::unit>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
[[nodiscard]] status update(Context&& context_or_executor,
                            const feature_group<Optimizer, Bags, Out, Rounding>& group,
                            std::span<const std::type_identity_t<Bags>> bags,
                            matrix_view<Gradient, host_space, Columns> gradient,
                            const std::type_identity_t<Optimizer>& optimizer,
                            const std::type_identity_t<Rounding>& rounding = {}) {
  using view = matrix_view<const float>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(
      ctx, group, gradient, "update: gradient must not be null", detail::update_width,
      [&](std::span<const view> parts) { return update(ctx, group, bags, parts, optimizer, rounding); });
}

/// The same, for rows that were resolved.
template <class Context, class Group, class Gradient, class Columns, class = detail::unit>
  requires(std::is_same_v<std::remove_const_t<Gradient>, float>)
[[nodiscard]] status update(Context&& context_or_executor, const resolved_features<Group>& rows,
                            matrix_view<Gradient, host_space, Columns> gradient,
                            const typename Group::optimizer_type& optimizer,
                            const typename Group::rounding_type& rounding = {}) {
  using view = matrix_view<const float>;
  const auto ctx = detail::as_context(context_or_executor);
  return detail::with_views<view>(
      ctx, rows.group(), gradient, "update: gradient must not be null", detail::update_width,
      [&](std::span<const view> parts) { return update(ctx, rows, parts, optimizer, rounding); });
}

}}  // namespace deeprec::DEEPREC_ABI
