// The greatest flow from s to t, and with it the least cut: Dinic's algorithm on whole numbers.
//
//        3      2                      the cut {s, a} | {t} costs 2: what is reached from s
//   s ─────> a ────> t                 along arcs that the flow leaves room on is on its side
//
// Whole numbers, so the cut is exact and the same everywhere. Not here: what the arcs mean (cut_problem.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// A network that is filled, solved once, and cleared; memory is kept.
class flow_network {
 public:
  using node = std::int32_t;
  using amount = std::int64_t;
  static constexpr amount unlimited = amount{1} << 61;

  void clear(std::size_t nodes) {
    first_.assign(nodes, -1);
    to_.clear();
    next_.clear();
    room_.clear();
  }
  /// An arc, with `back` of room in the other direction.
  void add(node from, node to, amount room, amount back = 0) {
    push(from, to, room);
    push(to, from, back);
  }

  /// The greatest flow, which must be below `unlimited`. Afterwards reached() is the side of s.
  amount solve(node s, node t) {
    amount flow = 0;
    while (find_levels(s, t)) {
      arc_ = first_;
      while (const amount more = augment(s, t)) flow += more;
    }
    return flow;
  }
  /// Whether an arc path with room leads from s to the node.
  [[nodiscard]] bool reached(node v) const noexcept { return level_[at(v)] >= 0; }

 private:
  static std::size_t at(node i) noexcept { return static_cast<std::size_t>(i); }
  void push(node from, node to, amount room) {
    to_.push_back(to);
    room_.push_back(room);
    next_.push_back(first_[at(from)]);
    first_[at(from)] = static_cast<node>(to_.size()) - 1;
  }

  bool find_levels(node s, node t) {
    level_.assign(first_.size(), -1);
    queue_.clear();
    level_[at(s)] = 0;
    queue_.push_back(s);
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const node u = queue_[i];
      for (node a = first_[at(u)]; a >= 0; a = next_[at(a)]) {
        const node v = to_[at(a)];
        if (room_[at(a)] == 0 || level_[at(v)] >= 0) continue;
        level_[at(v)] = level_[at(u)] + 1;
        queue_.push_back(v);
        if (v == t) return true;
      }
    }
    return false;
  }

  // One path of rising levels, depth first without recursion: graphs are deep. 0: there is none.
  amount augment(node s, node t) {
    path_.clear();
    node u = s;
    while (u != t) {
      node& a = arc_[at(u)];
      while (a >= 0 && (room_[at(a)] == 0 || level_[at(to_[at(a)])] != level_[at(u)] + 1)) a = next_[at(a)];
      if (a >= 0) {
        path_.push_back(a);
        u = to_[at(a)];
        continue;
      }
      if (path_.empty()) return 0;
      level_[at(u)] = -2;  // no way on from here in this phase
      u = to_[at(path_.back() ^ 1)];
      path_.pop_back();
    }
    amount least = unlimited;
    for (const node a : path_) least = (std::min)(least, room_[at(a)]);
    for (const node a : path_) {
      room_[at(a)] -= least;
      room_[at(a ^ 1)] += least;
    }
    return least;
  }

  std::vector<node> first_, to_, next_, arc_, level_, queue_, path_;
  std::vector<amount> room_;
};

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
