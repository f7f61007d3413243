// The least cut between s and t: push-relabel on whole numbers, highest label first.
//
//        3      2                      the cut {s, a} | {t} costs 2: an op is on the side of t
//   s ─────> a ────> t                 if arcs with room lead from it to t
//
// Whole numbers, so the cut is exact and the same everywhere. Only the first phase runs: it finds the cut,
// and leaves what can't flow where it stands. Not here: what the arcs mean (cut_problem.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A network that is filled, solved once, and cleared; memory is kept. Goldberg and Tarjan, JACM 35 (1988),
/// with the gap and the global relabeling of Cherkassky and Goldberg, Algorithmica 19 (1997).
class flow_network {
 public:
  using node = std::int32_t;
  using amount = std::int64_t;
  static constexpr amount unlimited = amount{1} << 61;

  void clear(std::size_t nodes) {
    nodes_ = nodes;
    added_.clear();
  }
  void add(node from, node to, amount room) {
    if (room > 0) added_.push_back({from, to, room});
  }

  /// What the least cut costs, which must be below `unlimited`. Afterwards before_cut() says the sides; of
  /// several least cuts it is the one with the most ops on the side of s.
  amount solve(node s, node t) {
    place_arcs();
    t_ = t;
    s_ = s;
    excess_.assign(nodes_, 0);
    for (node a = begin_[at(s)]; a < begin_[at(s) + 1]; ++a) {
      const amount all = room_[at(a)];
      room_[at(a)] = 0;
      room_[at(back_[at(a)])] += all;
      excess_[at(to_[at(a)])] += all;
    }
    const std::size_t patience = 4 * nodes_ + to_.size() / 2;
    relabel_all();
    std::size_t work = 0;
    while (true) {
      while (highest_ >= 0 && active_[at(highest_)] < 0) --highest_;
      if (highest_ < 0) break;
      const node u = active_[at(highest_)];
      active_[at(highest_)] = next_active_[at(u)];
      if (label_[at(u)] != highest_) continue;  // a gap has lifted it
      work += discharge(u);
      if (work > patience) {
        relabel_all();
        work = 0;
      }
    }
    relabel_all();
    return excess_[at(t)];
  }
  /// Whether the node is on the side of s.
  [[nodiscard]] bool before_cut(node v) const noexcept { return label_[at(v)] >= beyond(); }

 private:
  struct arc {
    node from, to;
    amount room;
  };
  static std::size_t at(node i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] node beyond() const noexcept { return static_cast<node>(nodes_); }

  void place_arcs() {
    begin_.assign(nodes_ + 1, 0);
    for (const arc& a : added_) {
      ++begin_[at(a.from) + 1];
      ++begin_[at(a.to) + 1];
    }
    for (std::size_t v = 0; v < nodes_; ++v) begin_[v + 1] += begin_[v];
    arc_.assign(begin_.begin(), begin_.end() - 1);
    to_.resize(2 * added_.size());
    back_.resize(2 * added_.size());
    room_.resize(2 * added_.size());
    for (const arc& a : added_) {
      const node there = arc_[at(a.from)]++, back = arc_[at(a.to)]++;
      to_[at(there)] = a.to;
      to_[at(back)] = a.from;
      back_[at(there)] = back;
      back_[at(back)] = there;
      room_[at(there)] = a.room;
      room_[at(back)] = 0;
    }
  }

  // Exact distances to t, and everything that follows from them.
  void relabel_all() {
    label_.assign(nodes_, beyond());
    first_at_.assign(nodes_ + 1, -1);
    after_.assign(nodes_, -1);
    before_.assign(nodes_, -1);
    top_ = 0;
    active_.assign(nodes_ + 1, -1);
    next_active_.resize(nodes_);
    arc_.assign(begin_.begin(), begin_.end() - 1);
    highest_ = -1;
    queue_.clear();
    queue_.push_back(t_);
    label_[at(t_)] = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      const node u = queue_[i];
      const node far_label = label_[at(u)] + 1;
      for (node a = begin_[at(u)]; a < begin_[at(u) + 1]; ++a) {
        const node v = to_[at(a)];
        if (label_[at(v)] != beyond() || room_[at(back_[at(a)])] == 0 || v == s_) continue;
        label_[at(v)] = far_label;
        list(v);
        queue_.push_back(v);
        if (excess_[at(v)] > 0) activate(v);
      }
    }
  }
  void activate(node v) {
    const node label = label_[at(v)];
    next_active_[at(v)] = active_[at(label)];
    active_[at(label)] = v;
    highest_ = (std::max)(highest_, label);
  }

  // Pushes what a node holds towards t, lifting it as often as needed. Returns the arcs looked at.
  std::size_t discharge(node u) {
    std::size_t work = 0;
    amount& have = excess_[at(u)];
    while (true) {
      const node end = begin_[at(u) + 1];
      node& a = arc_[at(u)];
      const node below = label_[at(u)] - 1;
      for (; a < end; ++a) {
        ++work;
        const node v = to_[at(a)];
        if (room_[at(a)] == 0 || label_[at(v)] != below) continue;
        const amount pushed = (std::min)(have, room_[at(a)]);
        room_[at(a)] -= pushed;
        room_[at(back_[at(a)])] += pushed;
        if (excess_[at(v)] == 0 && v != t_) {
          excess_[at(v)] = pushed;
          activate(v);
        } else {
          excess_[at(v)] += pushed;
        }
        have -= pushed;
        if (have == 0) return work;
      }
      // Lift.
      const node old = label_[at(u)];
      node least = beyond();
      for (node b = begin_[at(u)]; b < end; ++b) {
        if (room_[at(b)] > 0 && to_[at(b)] != s_) least = (std::min)(least, label_[at(to_[at(b)])] + 1);
      }
      work += at(end - begin_[at(u)]) + 12;
      a = begin_[at(u)];
      unlist(u);
      if (first_at_[at(old)] < 0) {
        // Nothing is left at this distance: what lies farther is cut off from t.
        close_gap(old);
        least = beyond();
      }
      label_[at(u)] = (std::min)(least, beyond());
      if (label_[at(u)] >= beyond()) return work;
      list(u);
    }
  }
  // Nodes at each label, so that a gap costs what it lifts.
  void list(node v) {
    const node label = label_[at(v)];
    top_ = (std::max)(top_, label);
    before_[at(v)] = -1;
    after_[at(v)] = first_at_[at(label)];
    if (after_[at(v)] >= 0) before_[at(after_[at(v)])] = v;
    first_at_[at(label)] = v;
  }
  void unlist(node v) {
    if (after_[at(v)] >= 0) before_[at(after_[at(v)])] = before_[at(v)];
    (before_[at(v)] >= 0 ? after_[at(before_[at(v)])] : first_at_[at(label_[at(v)])]) = after_[at(v)];
  }
  void close_gap(node gap) {
    for (node label = gap + 1; label <= top_; ++label) {
      for (node v = first_at_[at(label)]; v >= 0; v = after_[at(v)]) label_[at(v)] = beyond();
      first_at_[at(label)] = -1;
    }
    top_ = gap;
  }

  std::size_t nodes_ = 0;
  node s_ = 0, t_ = 0, highest_ = -1, top_ = 0;
  std::vector<arc> added_;
  std::vector<node> begin_, to_, back_, arc_, label_, first_at_, after_, before_, active_, next_active_,
      queue_;
  std::vector<amount> room_, excess_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
