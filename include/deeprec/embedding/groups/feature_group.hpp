// The features of a model, registered once for lookup and update: the table and the pooling of each.
//
//   feature_group<rowwise_adagrad> group;                            any row format, width, pooling;
//   group.add(users.view(), combiner::sum);                          one table may serve many features
//   group.add(items.view(), pooling{combiner::mean, empty_bag::default_row{0}});
//
// Its verbs: lookup (lookup_features.hpp), update (update_features.hpp), and resolve for both
// (resolved_features.hpp). A group with batches in device memory is for lookups on a device
// (lookup_features.cuh). Not here: different optimizers for different tables; use one group for each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/detail/device_group.hpp>
#include <deeprec/embedding/groups/detail/features.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/step_groups.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/containers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// In place of an optimizer: a group that is not trained.
struct lookups_only {};

namespace detail {

/// The memory space of a group's outputs.
template <class Bags>
using group_space =
    std::conditional_t<std::is_same_v<typename Bags::space, device_space>, device_space, host_space>;

struct group_access;

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
  /// The space of its outputs.
  using space = detail::group_space<Bags>;

 private:
  using part_type = std::conditional_t<on_device, detail::device_feature<Bags, Out>,
                                       std::unique_ptr<detail::feature<Optimizer, Bags, Out, Rounding>>>;

 public:
  /// Adds a feature and returns its number. The source is copied (a view, not the rows). Direct tables are
  /// the same when their rows begin at one address, other sources when their identity() is the same; sources
  /// without identity() are different tables.
  ///
  /// @shape    rows of width D, changed in place by update
  /// @dtype    rows of any format; of a group that trains f32, f16, bf16 or split
  /// @error    concat does not compile: its output has one row per id. Reported by update: rows without room
  ///           for the optimizer's state; one table with two shapes, formats or norms. Throws std::bad_alloc,
  ///           and the group is as before
  template <RowSource Source, class Pooling>
  DEEPREC_PER_UNIT index_t add(const Source& source, const Pooling& pooling) {
    static_assert(
        reachable_as<typename Source::space, space>,
        "deeprec::feature_group: a table in other memory than the group's batches. Fix: copy the table, "
        "or feature_group<lookups_only, Bags> of batches in its space.");
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
        "deeprec::feature_group: features of one table are stepped together, and this source has no "
        "identity(). Fix: give it identity(), the address of what it is a view of.");
    const auto policy = detail::as_pooling(pooling);
    const index_t end = capped_sum(total_width(), source.format().width());
    // Nothing is changed before all memory is there.
    detail::make_room(features_);
    detail::make_room(offsets_);
    detail::make_room(first_of_table_);
    if constexpr (on_device) {
      features_.push_back(detail::device_feature_of<Bags, Out>(source, policy));
    } else {
      auto made =
          std::make_unique<detail::feature_of<trains, Source, policies, Optimizer, Bags, Out, Rounding>>(
              source, policy);
      if constexpr (trains) {
        note(detail::check_state_of<Optimizer>(source.format()));
        join_table(made->table);
      }
      sizes_.batches += made->batch_bytes;
      sizes_.pools += made->pool_bytes;
      sizes_.stores_addresses = sizes_.stores_addresses || made->stores_addresses;
      features_.push_back(std::move(made));
    }
    offsets_.push_back(end);
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

 private:
  friend struct detail::group_access;

  // Notes the table of the feature that is about to be added.
  void join_table(const detail::feature_table& table) {
    for (const std::size_t first : first_of_table_) {
      const detail::feature_table& known = features_[first]->table;
      if (table.address == nullptr || known.address != table.address) continue;
      if (!table.same_rows(known)) {
        note({errc::shape_mismatch,
              "update: features that share a table must have one shape, format and max_norm of it"});
      }
      std::size_t last = first;
      while (features_[last]->next_of_table != detail::no_feature) last = features_[last]->next_of_table;
      features_[last]->next_of_table = features_.size();
      return;
    }
    first_of_table_.push_back(features_.size());
  }
  void note(const status& found) {
    if (fault_) fault_ = found.in_table(features());
  }

  std::vector<part_type> features_;
  detail::group_sizes sizes_;
  std::vector<std::size_t> first_of_table_;  // feature
  std::vector<index_t> offsets_{0};
  status fault_;
};

namespace detail {

/// What verbs read of a group.
struct group_access {
  template <class Group>
  static auto features(const Group& group) noexcept {
    return std::span<const typename Group::part_type>(group.features_);
  }
  template <class Group>
  static const group_sizes& sizes(const Group& group) noexcept {
    return group.sizes_;
  }
  /// The first feature of each table.
  template <class Group>
  static std::span<const std::size_t> first_of_tables(const Group& group) noexcept {
    return group.first_of_table_;
  }
  /// For update: the fault of the smallest feature that add() found.
  template <class Group>
  static const status& fault(const Group& group) noexcept {
    return group.fault_;
  }
};

template <class>
inline constexpr bool is_feature_group = false;
template <class Optimizer, class Bags, class Out, class Rounding>
inline constexpr bool is_feature_group<feature_group<Optimizer, Bags, Out, Rounding>> = true;

/// The outputs of a group's features.
template <class Group>
using group_outs = std::span<const matrix_view<typename Group::value_type, typename Group::space>>;
template <class Group>
using group_bags = std::span<const typename Group::bags_type>;

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
