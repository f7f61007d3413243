// What the verbs of a sharded_group do: checks, an exchange, and the verbs of its feature groups.
//
//   a fault of this rank      goes out with the next message, in the place of payloads; all ranks return it
//   a fault of an owner         waits for the next message (`pending_`)
//   a fault behind a message of which the others know nothing: the communicator ends
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/sharding/detail/feature_place.hpp>
#include <deeprec/sharding/sharded_group.hpp>
#include <deeprec/sharding/sharded_rows.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class>
inline constexpr bool is_sharded_group = false;
template <class Optimizer, class Comm, class Bags, class Wire>
inline constexpr bool is_sharded_group<sharded_group<Optimizer, Comm, Bags, Wire>> = true;

/// What verbs do with a group.
struct sharded_access {
  template <class Group>
  static std::span<const feature_place<typename Group::bags_type>> places(const Group& group) noexcept {
    return group.places_;
  }
  template <class Group>
  static index_t bags_of_all(const Group& group) noexcept {
    return group.step_->bags_of_all();
  }
  /// An exchange of the step's blocks. Ok: all ranks go on, and this one sends `group.pending_` next.
  template <class Group>
  static status trade(Group& group, message_kind kind, status fault) {
    auto& b = group.step_->buffers();
    exchange x{.kind = kind, .step = group.number_, .fault = fault, .to = b.to, .from = b.from_ranks};
    if (kind == message_kind::ids) x.rooms = b.requests_of;
    // With a fault of its own a rank may not know what comes.
    if (kind == message_kind::gradients && !fault.ok()) x.rooms = b.gradients_of;
    for (int r = 0; r < group.size() && fault.ok(); ++r) {
      if (r == group.rank()) continue;
      ++group.traffic_.messages;
      group.traffic_.bytes += b.to[static_cast<std::size_t>(r)].size();
    }
    const status s = complete(group.comm_, x, within(group.patience_));
    if (!s && x.outcome.ok()) group.comm_.abandon(s);  // it has not begun, and the others wait
    const bool alone = x.agreed.ok() && x.outcome.code() == errc::out_of_memory;
    group.pending_ = alone ? s : status();
    if (!alone) group.step_fault_ = s;
    return alone ? status() : s;
  }

  template <class Context, class Group>
  static status check(const Context& ctx, Group& group, std::span<const typename Group::bags_type> bags) {
    if (!group.fault_) return group.fault_;
    if (const status s =
            expect_size(bags.size(), static_cast<std::size_t>(group.features()),
                        "resolve: the number of batches must be the number of features of the group");
        !s)
      return s;
    for (std::size_t f = 0; f < bags.size(); ++f) {
      if (bags[f].bags() > 0 && bags[f].first_position() != 0)
        return {errc::unsupported,
                "resolve: offsets must begin at 0",
                {.table = static_cast<index_t>(f), .is = bags[f].first_position(), .must_be = 0}};
    }
    const auto checked = resolve(ctx, group.checked_, bags);
    if (!checked) return checked.fault();
    return {};
  }

  template <class Context, class Group, class Mode>
  static status resolve_step(const Context& ctx, Group& group,
                             std::span<const typename Group::bags_type> bags, Mode mode) {
    constexpr bool trains = !std::is_same_v<typename Group::optimizer_type, lookups_only>;
    group.served_rows_.reset();
    group.stepped_rows_.reset();
    group.step_fault_ = {};
    ++group.number_;
    status fault = check(ctx, group, bags);
    if (fault.ok()) {
      fault = or_out_of_memory(
          "resolve", [&] { return group.step_->ask(ctx, places(group), bags, group.model_, trains); });
    }
    if (const status s = trade(group, message_kind::ids, fault.in_operation("resolve")); !s) return s;
    if (!group.pending_) return {};
    group.pending_ = or_out_of_memory("resolve", [&] {
      if (const status s = group.step_->take_requests(places(group), group.model_); !s) return s;
      auto rows = resolve(ctx, group.served_,
                          std::span<const jagged_view<>>(group.step_->buffers().served_bags), mode);
      if (!rows) return at_owner(group, rows.fault());
      group.served_rows_.emplace(std::move(rows).value());
      if (!group.steps_apart_) return status();
      auto stepped =
          resolve(ctx, group.stepped_, std::span<const jagged_view<>>(group.step_->buffers().stepped_bags));
      if (!stepped) return at_owner(group, stepped.fault());
      group.stepped_rows_.emplace(std::move(stepped).value());
      return status();
    });
    return {};
  }

  // A fault of an owner's feature, with the feature of the model.
  template <class Group>
  static status at_owner(const Group& group, const status& s) {
    const index_t served = s.place().table;
    for (const auto& p : places(group)) {
      if (p.served >= 0 && served >= p.served && served < p.served + group.size())
        return s.in_table(p.feature);
    }
    return s;
  }

  template <class Context, class Group>
  static status lookup_step(const Context& ctx, const sharded_rows<Group>& rows, matrix_view<float> out) {
    Group& group = rows.group();
    if (!group.step_fault_) return group.step_fault_;
    group.step_->expect_replies();
    status fault = group.pending_;
    if (fault.ok())
      fault = check_matrix(rows, out, "lookup: out must have a row for each bag, and all columns");
    if (fault.ok()) {
      fault = or_out_of_memory("lookup", [&] {
        using row_type = typename Group::wire_type::row_type;
        std::pmr::vector<matrix_view<row_type>> outs(ctx.memory);
        group.step_->begin_replies(places(group), outs);
        return at_owner(group,
                        lookup(ctx, *group.served_rows_, std::span<const matrix_view<row_type>>(outs)));
      });
    }
    if (const status s = trade(group, message_kind::rows, fault); !s) return s;
    const status pooled = or_out_of_memory("lookup", [&] {
      std::pmr::vector<matrix_view<float>> outs(ctx.memory);
      group.step_->begin_pooling(places(group), out, outs);
      const status s = lookup(ctx, group.pooled_,
                              std::span<const typename Group::bags_type>(group.step_->buffers().pooled_bags),
                              std::span<const matrix_view<float>>(outs));
      return s.ok() ? group.step_->take_pooled(ctx, places(group), out) : s;
    });
    return pooled ? pooled : end(group, pooled);
  }

  template <class Context, class Group>
  static status update_step(const Context& ctx, const sharded_rows<Group>& rows,
                            matrix_view<const float> gradient,
                            const typename Group::optimizer_type& optimizer) {
    Group& group = rows.group();
    if (!group.step_fault_) return group.step_fault_;
    status fault = group.pending_;
    if (fault.ok())
      fault = check_matrix(rows, gradient, "update: gradient must have a row for each bag, and all columns");
    if (fault.ok()) fault = at_owner(group, check_update(ctx, group, optimizer));
    if (fault.ok()) {
      fault = or_out_of_memory("update", [&] {
        executor_ref executor(*ctx.executor);
        return group.step_->sum_gradients(ctx.rebind(executor), places(group), rows.bags(), gradient);
      });
    }
    if (const status s = trade(group, message_kind::gradients, fault); !s) return s;
    const status stepped = or_out_of_memory("update", [&] {
      std::pmr::vector<matrix_view<const float>> gradients(ctx.memory);
      if (const status s = group.step_->take_gradients(ctx, places(group), gradients); !s) return s;
      const std::span<const matrix_view<const float>> all(gradients);
      return at_owner(group, group.steps_apart_ ? update(ctx, *group.stepped_rows_, all, optimizer)
                                                : update(ctx, *group.served_rows_, all, optimizer));
    });
    return stepped ? stepped : end(group, stepped);
  }

 private:
  // A fault that the other ranks can't know: they have gone on.
  template <class Group>
  static status end(Group& group, const status& s) {
    group.comm_.abandon(s);
    return s;
  }
  template <class Group, class T>
  static status check_matrix(const sharded_rows<Group>& rows, matrix_view<T> all, const char* words) {
    const Group& group = rows.group();
    for (index_t f = 0; f < group.features(); ++f) {
      const index_t bags = rows.bags()[static_cast<std::size_t>(f)].bags();
      if (all.extent(0) != bags)
        return {errc::shape_mismatch, words, {.table = f, .is = all.extent(0), .must_be = bags}};
    }
    if (all.extent(1) != group.total_width())
      return {errc::shape_mismatch, words, {.is = all.extent(1), .must_be = group.total_width()}};
    if (!all.empty() && all.data_handle() == nullptr) return {errc::shape_mismatch, words};
    return {};
  }
  // The fault of an update of these tables, before anything is sent: of a step of no rows.
  template <class Context, class Group>
  static status check_update(const Context& ctx, Group& group,
                             const typename Group::optimizer_type& optimizer) {
    return or_out_of_memory("update", [&] {
      constexpr std::int64_t zero = 0;
      const std::pmr::vector<jagged_view<>> none(group.step_->buffers().served_bags.size(),
                                                 jagged_view<>(&zero, 0, &zero, 0), ctx.memory);
      std::pmr::vector<matrix_view<const float>> gradients(ctx.memory);
      for (index_t f = 0; f < group.served_.features(); ++f)
        gradients.emplace_back(nullptr, 0, group.served_.width(f));
      return update(ctx, group.served_, std::span<const jagged_view<>>(none),
                    std::span<const matrix_view<const float>>(gradients), optimizer);
    });
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
