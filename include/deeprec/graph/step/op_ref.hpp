// An op of a step graph as it was added: its values, and what else is known of it.
//
//   const auto update = g.add("update", update_rows{}, loss, g.write(tables));
//   update.role(op_role::apply).after(loss).target();
#pragma once

#include <cstddef>
#include <tuple>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/op_info.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// An op that was added. With one output it is itself a value.
///
/// @pre     the graph lives, where a member changes the op
/// @threads as the graph
template <class... Outs>
class op_ref : public detail::single_value<Outs...> {
 public:
  /// The number of the op: the same in flat(), in plans and in traces.
  [[nodiscard]] index_t op() const noexcept { return op_; }
  [[nodiscard]] static constexpr std::size_t outputs() noexcept { return sizeof...(Outs); }
  template <std::size_t Port>
  [[nodiscard]] value<std::tuple_element_t<Port, std::tuple<Outs...>>> get() const noexcept {
    return detail::handle_access::make<std::tuple_element_t<Port, std::tuple<Outs...>>>(
        {core_->id(), op_, static_cast<index_t>(Port)});
  }

  op_ref role(op_role role) const {
    return with([&](detail::step_op& op) { op.role = role; });
  }
  /// It runs in the step itself: it stays behind every stage.
  op_ref target() const {
    return with([](detail::step_op& op) { op.target = true; });
  }
  op_ref on(op_place place) const {
    return with([&](detail::step_op& op) { op.place = place; });
  }
  /// Seconds of one step; check() refuses a cost below 0.
  op_ref cost(double seconds) const {
    return with([&](detail::step_op& op) { op.cost = seconds; });
  }
  /// It reads or writes something outside of the graph: a file, random numbers. External ops run in the order
  /// in which they were added.
  op_ref external() const {
    return with([](detail::step_op& op) { op.external = true; });
  }
  /// Each sample of its outputs depends on that sample of its inputs only, as where its type declares
  /// sample_wise: programs with by_lanes() call it with parts of a batch, several at once.
  op_ref sample_wise() const {
    return with([](detail::step_op& op) { op.sample_wise = true; });
  }
  /// It runs after that op, also where it takes nothing of it.
  template <class... Other>
  op_ref after(const op_ref<Other...>& earlier) const {
    return with([&](detail::step_op& op) { op.after.push_back({earlier.core_->id(), earlier.op_, 0}); });
  }
  template <class T>
  op_ref after(const value<T>& made) const {
    return with([&](detail::step_op& op) { op.after.push_back(detail::handle_access::ref(made)); });
  }

 private:
  friend class step_graph;
  template <class...>
  friend class op_ref;
  op_ref(detail::step_core* core, index_t op) noexcept
      : detail::single_value<Outs...>({core->id(), op, 0}), core_(core), op_(op) {}
  template <class Change>
  const op_ref& with(const Change& change) const {
    change(core_->change(op_));
    return *this;
  }

  detail::step_core* core_;
  index_t op_;
};

}}  // namespace deeprec::DEEPREC_ABI
