// The order of the ops of a graph while sets of them become one op each: whether a set may, and where it then
// stands.
//
//   at     0  1  2  3  4  5            a set {1, 4}: 2 comes after 1, 3 does not
//   before a  M  b  c  M  d            b must not reach the other M, or the two can't be one
//   after  a  c  M' b  -  d            what the set reaches moves behind it
//
// Edges are those of values, of after() and of effects. Sets that were fused are seen as they are then, so
// two sets that each are convex alone never make a cycle together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class fusion_order {
 public:
  using number = digraph::number;

  explicit fusion_order(const flat_graph& flat) {
    std::vector<digraph::edge> edges;
    for (index_t e = 0; e < flat.edge_count(); ++e)
      edges.push_back({static_cast<number>(flat.source(e)), static_cast<number>(flat.destination(e))});
    graph_ = digraph(at(flat.size()), edges);
    // The least number first: ops that were added beside each other stay so.
    in_order_ = graph_.order_by(std::greater<>());
    place_.resize(in_order_.size());
    for (std::size_t i = 0; i < in_order_.size(); ++i) place_[at(in_order_[i])] = static_cast<index_t>(i);
    for (index_t v = 0; v < flat.size(); ++v) {
      now_.push_back(static_cast<number>(v));
      parts_.push_back({static_cast<number>(v)});
      seen_.push_back(0);
    }
  }

  [[nodiscard]] index_t place(index_t op) const noexcept { return place_[at(op)]; }
  /// Whether no path leaves a set and comes back. Remembers what the set reaches, for fuse().
  [[nodiscard]] bool is_convex(const std::vector<index_t>& set) {
    ++look_;
    set_look_ = ++look_;
    index_t last = -1;
    for (const index_t v : set) {
      seen_[at(v)] = set_look_;
      last = (std::max)(last, place(v));
    }
    std::vector<number> open;
    // Steps from an op to those behind it; false: into the set, from outside.
    const auto leave = [&](index_t from, bool inside) {
      for (const number part : parts_[at(from)]) {
        for (const number next : graph_.after(part)) {
          const number v = now_[at(next)];
          if (v == from) continue;
          if (seen_[at(v)] == set_look_) {
            if (!inside) return false;
            continue;
          }
          if (place(v) > last || seen_[at(v)] == look_mark()) continue;
          seen_[at(v)] = look_mark();
          open.push_back(v);
        }
      }
      return true;
    };
    for (const index_t v : set) static_cast<void>(leave(v, true));
    while (!open.empty()) {
      const number v = open.back();
      open.pop_back();
      if (!leave(v, false)) return false;
    }
    return true;
  }
  /// The set becomes `by`, an op that was added to the core.
  ///
  /// @pre is_convex(set) was called last, and true
  void fuse(const std::vector<index_t>& set, index_t by) {
    index_t first = place(set.front()), last = first;
    for (const index_t v : set) {
      first = (std::min)(first, place(v));
      last = (std::max)(last, place(v));
    }
    now_.resize(at(by) + 1);
    parts_.resize(at(by) + 1);
    place_.resize(at(by) + 1);
    seen_.resize(at(by) + 1);
    now_[at(by)] = static_cast<number>(by);
    for (const index_t v : set) {
      std::vector<number>& mine = parts_[at(v)];
      for (const number part : mine) now_[at(part)] = static_cast<number>(by);
      parts_[at(by)].insert(parts_[at(by)].end(), mine.begin(), mine.end());
      mine = {};
    }
    // What the set reaches, in its order, goes behind it.
    std::vector<number> behind;
    index_t to = first;
    const auto put = [&](number v) {
      in_order_[at(to)] = v;
      place_[at(v)] = to++;
    };
    for (index_t i = first; i <= last; ++i) {
      const number v = in_order_[at(i)];
      if (v < 0 || seen_[at(v)] == set_look_) continue;
      if (seen_[at(v)] == look_mark()) {
        behind.push_back(v);
      } else {
        put(v);
      }
    }
    put(static_cast<number>(by));
    for (const number v : behind) put(v);
    for (; to <= last; ++to) in_order_[at(to)] = -1;
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t look_mark() const noexcept { return set_look_ - 1; }

  digraph graph_;            // of the first graph
  std::vector<number> now_;  // of the first graph's ops and those made since: the op that it is part of
  std::vector<std::vector<number>> parts_;  // ops of the first graph
  std::vector<index_t> place_;
  std::vector<number> in_order_;  // -1: no op
  std::vector<std::int64_t> seen_;
  std::int64_t look_ = 0, set_look_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
