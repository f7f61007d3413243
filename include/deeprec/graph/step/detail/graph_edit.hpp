// What an editor knows of a step beside its ops: who uses what, what is erased, in which order ops come, and
// where the values of the first graph are.
//
//   op 3 'a' ── users: 4, 4, 7      maybe: a user that was redirected stays in the list
//   value 3.0 ── held by 9.0        after redirect(3.0, 9.0), which held itself and 3.0 then
//
// Not here: what is refused (step_editor.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class graph_edit {
 public:
  using number = digraph::number;
  /// Ops come in the order of `place`, and of their numbers where that is equal.
  struct op_order {
    index_t place;
    index_t number;
    [[nodiscard]] friend bool operator<(const op_order& a, const op_order& b) noexcept {
      return a.place != b.place ? a.place < b.place : a.number < b.number;
    }
  };
  /// A value of the first graph.
  struct origin {
    index_t op, port;
  };

  /// @param core a copy of the first graph; outlives this
  explicit graph_edit(step_core& core) : core_(&core), first_(core.size()) { follow(); }

  [[nodiscard]] step_core& core() noexcept { return *core_; }
  [[nodiscard]] const step_core& core() const noexcept { return *core_; }
  [[nodiscard]] index_t first_size() const noexcept { return first_; }
  [[nodiscard]] bool is_erased(index_t op) const noexcept {
    return at(op) < erased_.size() && erased_[at(op)];
  }
  [[nodiscard]] op_order order(index_t op) const noexcept { return order_[at(op)]; }
  void set_order(index_t op, op_order order) { order_[at(op)] = order; }

  /// Takes in what was done to the core by others.
  void follow() {
    if (std::exchange(seen_, core_->changes()) != core_->changes()) {
      for (std::vector<number>& u : users_) u.clear();
      listed_ = 0;
    }
    for (auto v = static_cast<index_t>(erased_.size()); v < core_->size(); ++v) {
      erased_.push_back(false);
      order_.push_back({v, v});
    }
    users_.resize(at(core_->size()));
    for (; listed_ < core_->size(); ++listed_) {
      if (!is_erased(listed_)) list(listed_);
    }
  }
  /// Ops, each at least once, that may take something of this one or come after it.
  ///
  /// @pre followed
  [[nodiscard]] const std::vector<number>& users(index_t op) const noexcept { return users_[at(op)]; }
  /// f(step_op&) changes an op.
  ///
  /// @pre followed before the op was added, or f leaves alone what it takes and comes after
  template <class F>
  void change(index_t op, const F& f) {
    f(core_->change(op));
    seen_ = core_->changes();
  }
  /// Calls f(user, i) for the inputs that are a value, and f(user, -1) for an op that comes after its op,
  /// perhaps twice, until f returns false; returns whether none did.
  ///
  /// @pre followed
  template <class F>
  bool for_each_use(const port_ref& of, const F& f) const {
    number last = -1;
    for (const number user : users_[at(of.op)]) {
      if (is_erased(user) || std::exchange(last, user) == user) continue;
      const step_op& op = core_->op(user);
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        const port_ref& from = op.inputs[i].from;
        if (core_->owns(from) && from.op == of.op && from.port == of.port &&
            !f(index_t{user}, static_cast<index_t>(i)))
          return false;
      }
      for (const port_ref& u : op.after) {
        if (core_->owns(u) && u.op == of.op && !f(index_t{user}, index_t{-1})) return false;
      }
    }
    return true;
  }

  /// What takes `from` takes `to`, but for the op of `to` itself, and so does whoever keeps it.
  ///
  /// @pre followed; not the same value
  void redirect(const port_ref& from, const port_ref& to) {
    const std::vector<number> users = users_[at(from.op)];
    for (const number user : users) {
      if (!is_erased(user) && user != to.op) redirect_inputs(user, from, to);
    }
    change(from.op, [&](step_op& op) {
      if (std::erase(op.kept, from.port) > 0) core_->change(to.op).kept.push_back(to.port);
    });
    std::vector<origin> moved = held_by(from);
    std::vector<origin>& there = held_.emplace(key(to), held_by(to)).first->second;
    there.insert(there.end(), moved.begin(), moved.end());
    held_[key(from)].clear();
  }
  /// One input of an op.
  ///
  /// @pre followed
  void redirect(index_t op, index_t input, const port_ref& to) {
    change(op, [&](step_op& it) { it.inputs[at(input)].from = to; });
    users_[at(to.op)].push_back(static_cast<number>(op));
  }
  /// `op` comes after what `other` comes after, but for the ops `without`.
  ///
  /// @pre followed
  void come_after(index_t op, index_t other, std::span<const index_t> without = {}) {
    const std::vector<port_ref> all = core_->op(other).after;
    for (const port_ref& u : all) {
      if (std::find(without.begin(), without.end(), u.op) != without.end()) continue;
      if (core_->owns(u)) users_[at(u.op)].push_back(static_cast<number>(op));
      change(op, [&](step_op& it) { it.after.push_back(u); });
    }
  }
  /// What comes after `from` comes after `to`.
  ///
  /// @pre followed
  void redirect_order(index_t from, index_t to) {
    const std::vector<number> users = users_[at(from)];
    for (const number user : users) {
      if (is_erased(user) || user == to) continue;
      for (std::size_t i = 0; i < core_->op(user).after.size(); ++i) {
        const port_ref& u = core_->op(user).after[i];
        if (!core_->owns(u) || u.op != from) continue;
        change(user, [&](step_op& op) { op.after[i] = {core_->id(), to, 0}; });
        users_[at(to)].push_back(user);
      }
    }
  }
  void erase(index_t op) { erased_[at(op)] = true; }

  /// The ops that are left, in their order.
  [[nodiscard]] std::vector<index_t> left() const {
    std::vector<index_t> ops;
    for (index_t v = 0; v < core_->size(); ++v) {
      if (!is_erased(v)) ops.push_back(v);
    }
    std::sort(ops.begin(), ops.end(), [&](index_t a, index_t b) { return order_[at(a)] < order_[at(b)]; });
    return ops;
  }
  /// Where each value of the first graph is, by its op and its port; an erased op: nowhere.
  [[nodiscard]] std::vector<std::vector<port_ref>> places() const {
    std::vector<std::vector<port_ref>> made(at(first_));
    for (index_t v = 0; v < first_; ++v) {
      for (std::size_t p = 0; p < core_->op(v).outputs.size(); ++p)
        made[at(v)].push_back({core_->id(), v, static_cast<index_t>(p)});
    }
    for (const auto& [where, origins] : held_) {
      for (const origin& o : origins)
        made[at(o.op)][at(o.port)] = {core_->id(), static_cast<index_t>(where >> 32U),
                                      static_cast<index_t>(where & 0xFFFFFFFFU)};
    }
    return made;
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  static std::uint64_t key(const port_ref& ref) noexcept {
    return static_cast<std::uint64_t>(ref.op) << 32U | static_cast<std::uint64_t>(ref.port);
  }
  [[nodiscard]] std::vector<origin> held_by(const port_ref& ref) const {
    if (const auto found = held_.find(key(ref)); found != held_.end()) return found->second;
    if (ref.op < first_) return {{ref.op, ref.port}};
    return {};
  }
  void redirect_inputs(index_t user, const port_ref& from, const port_ref& to) {
    const std::size_t inputs = core_->op(user).inputs.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      const port_ref& it = core_->op(user).inputs[i].from;
      if (core_->owns(it) && it.op == from.op && it.port == from.port)
        redirect(user, static_cast<index_t>(i), to);
    }
  }
  void list(index_t v) {
    const step_op& op = core_->op(v);
    const auto add = [&](const port_ref& from) {
      if (core_->owns(from)) users_[at(from.op)].push_back(static_cast<number>(v));
    };
    for (const step_input& in : op.inputs) add(in.from);
    for (const port_ref& u : op.after) add(u);
  }

  step_core* core_;
  index_t first_;
  index_t listed_ = 0;
  std::uint64_t seen_ = 0;
  std::vector<bool> erased_;
  std::vector<op_order> order_;
  std::vector<std::vector<number>> users_;
  std::unordered_map<std::uint64_t, std::vector<origin>> held_;  // of values that were redirected
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
