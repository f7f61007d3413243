// Tables of many ranks in a step graph: a lookup of all features, and the update.
//
//   auto tables = g.variable("tables", my_tables);              sharded_tables
//   auto front = g.variable("front", first), back = g.variable("back", second);           message_channels
//   auto [pooled, rows] = g.add("lookup", sharded_lookup_op<T>{}, bags, g.read(tables), g.write(front));
//   ...
//   g.add("update", sharded_update_op<T>{optimizer}, bags, rows, gradient, g.write(tables), g.write(back));
//
//   async_embedding(g, {.window = W, .kinds = {"sharded_lookup"}})
//
// Messages are an effect: ops that exchange some write one channel, so no pass changes their order, and steps
// that overlap keep theirs. Ops before a cut and behind it have a channel each. Not here: the end of the
// data, which is one number of steps at all ranks, and dense parameters.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_rows.hpp>
#include <deeprec/sharding/sharded_verbs.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The order of messages, as a variable: ops that exchange some write it. Nothing is in it but a byte, so
/// that two of them are two variables.
struct message_channel {
  std::byte identity{};
};

/// The tables of a model at one rank, with a group for each of W steps in flight, as sharded_loop has them.
/// Movable; a variable of a graph does not move.
///
/// @threads a lookup beside an update of another step; one of each at a time
template <class Optimizer, class Comm>
class sharded_tables {
 public:
  using bags_type = jagged_view<>;
  using group_type = sharded_group<Optimizer, Comm, bags_type>;

  /// @param   window  W of async_embedding, or a larger one; 1 for a graph that runs step by step
  /// @cost    W duplicates of the communicator; all ranks call it
  /// @threads as the communicator
  /// @error   invalid_value: window < 1; as Communicator::duplicate; out_of_memory
  [[nodiscard]] static result<sharded_tables> make(
      Comm comm, index_t window, const sharded_options& options = {},
      std::pmr::memory_resource* memory = std::pmr::get_default_resource()) {
    if (window < 1)
      return status(errc::invalid_value, "sharded_tables::make: window must be at least 1", {.is = window});
    return detail::or_out_of_memory([&]() -> result<sharded_tables> {
      sharded_tables made;
      for (index_t k = 0; k < window; ++k) {
        auto own = comm.duplicate();
        if (!own) return own.fault();
        made.groups_.push_back(std::make_unique<group_type>(std::move(own).value(), options, memory));
      }
      return made;
    });
  }
  /// Adds a feature: as sharded_group::add.
  template <RowSource Source, class Pooling, class Placement>
  index_t add(const Source& part, const Pooling& pooling, const Placement& where) {
    index_t feature = -1;
    for (const auto& group : groups_) feature = group->add(part, pooling, where);
    return feature;
  }
  /// The one of a step: that of step t - W is over when lookup t begins.
  [[nodiscard]] group_type& group(index_t step) const noexcept {
    return *groups_[static_cast<std::size_t>(step) % groups_.size()];
  }

 private:
  sharded_tables() = default;
  std::vector<std::unique_ptr<group_type>> groups_;
};

/// A batch that was looked up, for its update. It refers to the batches of the step.
///
/// @threads as the step
template <class Tables>
struct sharded_batch {
  std::vector<typename Tables::bags_type> bags;
  std::optional<sharded_rows<typename Tables::group_type>> rows;
};

/// The pooled rows of all features (resolve, lookup), two messages; Mode as that of resolve.
template <class Tables, class Mode = keys::find_t>
struct sharded_lookup_op {
  static constexpr const char* kind = "sharded_lookup";
  using outputs = op_outputs<matrix_value, sharded_batch<Tables>>;
  status operator()(const step_call& call, op_list<const jagged_batch<>> batches, const Tables& tables,
                    message_channel&, matrix_value& out, sharded_batch<Tables>& located) const {
    auto& group = tables.group(call.step);
    located.rows.reset();
    located.bags.clear();
    for (const jagged_batch<>& batch : batches) located.bags.push_back(batch.view());
    auto rows = resolve(call.on, group, located.bags, Mode{});
    if (!rows) return rows.fault();
    located.rows.emplace(std::move(rows).value());
    const index_t bags = located.bags.empty() ? 0 : located.bags.front().bags();
    return lookup(call.on, *located.rows, out.make(bags, group.total_width()));
  }
};

/// One step of the rows that were looked up, one message. It takes the batches, which the rows refer to.
template <class Tables, class Optimizer>
struct sharded_update_op {
  static constexpr const char* kind = "sharded_update";
  Optimizer optimizer;
  status operator()(const step_call& call, op_list<const jagged_batch<>>,
                    const sharded_batch<Tables>& located, const matrix_value& gradient, Tables&,
                    message_channel&) const {
    if (!located.rows.has_value())
      return {errc::invalid_value, "sharded_update: the batch must have been looked up"};
    return update(call.on, *located.rows, gradient.view(), optimizer);
  }
};

}}  // namespace deeprec::DEEPREC_ABI
