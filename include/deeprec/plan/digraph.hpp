// A directed graph of numbers as arrays: neighbours of both directions, orders, cycles, and the order of
// effects. What plans of tasks, streams and the step graph stand on.
//
//   edges 0>2 1>2 1>2 2>3        after   0: 2 | 1: 2 | 2: 3 | 3:          each once, ascending
//                                before  0:   | 1:   | 2: 0 1 | 3: 2
//
//   const digraph g(4, edges);
//   const std::vector<digraph::number> order = g.order_by(std::greater<>());       the least ready one first
//   if (order.size() < 4) cycle_text(g.cycle(order), name);                        "hash -> lookup -> hash"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Lists of numbers, one after the other in one array.
///
/// @threads a value type
struct number_lists {
  using number = std::int32_t;
  std::vector<std::int64_t> begin{0};
  std::vector<number> items;

  /// `lists` lists: item(i) is added to list(i), for i from 0 to count - 1.
  ///
  /// @cost    O(lists + count)
  /// @threads reentrant
  /// @error   bad_alloc
  template <class List, class Item>
  static number_lists counted(std::size_t lists, std::size_t count, const List& list, const Item& item) {
    number_lists made;
    made.begin.assign(lists + 1, 0);
    for (std::size_t i = 0; i < count; ++i) ++made.begin[static_cast<std::size_t>(list(i)) + 1];
    for (std::size_t l = 0; l < lists; ++l) made.begin[l + 1] += made.begin[l];
    made.items.resize(count);
    std::vector<std::int64_t> next(made.begin.begin(), made.begin.end() - 1);
    for (std::size_t i = 0; i < count; ++i)
      made.items[static_cast<std::size_t>(next[static_cast<std::size_t>(list(i))]++)] =
          static_cast<number>(item(i));
    return made;
  }

  /// Ends a list of the items that were pushed back.
  void close() { begin.push_back(static_cast<std::int64_t>(items.size())); }
  [[nodiscard]] std::size_t size() const noexcept { return begin.size() - 1; }
  [[nodiscard]] std::span<const number> operator[](std::size_t i) const noexcept {
    return {items.data() + begin[i], static_cast<std::size_t>(begin[i + 1] - begin[i])};
  }
  /// Item -> the lists that hold it, ascending; `once`: an item that a list holds twice has that list once.
  ///
  /// @pre     items are below `count`
  /// @cost    O(count + items)
  /// @threads reentrant
  /// @error   bad_alloc
  [[nodiscard]] number_lists turned(std::size_t count, bool once = false) const {
    number_lists made;
    made.begin.assign(count + 1, 0);
    std::vector<number> last(count, -1);
    const auto each = [&](const auto& visit) {
      std::fill(last.begin(), last.end(), number{-1});
      for (std::size_t l = 0; l < size(); ++l) {
        for (const number i : (*this)[l]) {
          const auto at = static_cast<std::size_t>(i);
          if (std::exchange(last[at], static_cast<number>(l)) != static_cast<number>(l) || !once)
            visit(at, l);
        }
      }
    };
    each([&](std::size_t i, std::size_t) { ++made.begin[i + 1]; });
    for (std::size_t i = 0; i < count; ++i) made.begin[i + 1] += made.begin[i];
    made.items.resize(static_cast<std::size_t>(made.begin.back()));
    std::vector<std::int64_t> next(made.begin.begin(), made.begin.end() - 1);
    each([&](std::size_t i, std::size_t l) {
      made.items[static_cast<std::size_t>(next[i]++)] = static_cast<number>(l);
    });
    return made;
  }
};

/// Nodes 0 ... size() - 1 and the edges between them, each once.
///
/// @threads immutable once made; thread-safe
class digraph {
 public:
  using number = number_lists::number;
  struct edge {
    number from, to;
  };

  digraph() = default;
  /// @pre     fewer than 2^31 nodes; the ends of edges are nodes
  /// @cost    O(nodes + edges)
  /// @threads reentrant
  /// @error   bad_alloc
  digraph(std::size_t nodes, std::span<const edge> edges) {
    const auto by_end = number_lists::counted(
        nodes, edges.size(), [&](std::size_t e) { return edges[e].to; },
        [&](std::size_t e) { return edges[e].from; });
    after_ = by_end.turned(nodes, true);
    before_ = after_.turned(nodes);
  }

  [[nodiscard]] std::size_t size() const noexcept { return after_.size(); }
  [[nodiscard]] std::size_t edges() const noexcept { return after_.items.size(); }
  /// Ascending.
  [[nodiscard]] std::span<const number> after(number v) const noexcept { return after_[at(v)]; }
  [[nodiscard]] std::span<const number> before(number v) const noexcept { return before_[at(v)]; }

  /// A topological order: calls ready(v) for nodes all of whose predecessors are in it, and takes nodes from
  /// pop(), which returns -1 when it has none. Shorter than size() where there is a cycle.
  ///
  /// @cost    O(nodes + edges) and the calls
  /// @threads reentrant
  /// @error   bad_alloc
  template <class Ready, class Pop>
  [[nodiscard]] std::vector<number> order(const Ready& ready, const Pop& pop) const {
    std::vector<number> missing(size()), made;
    made.reserve(size());
    for (std::size_t v = 0; v < size(); ++v) {
      missing[v] = static_cast<number>(before_[v].size());
      if (missing[v] == 0) ready(static_cast<number>(v));
    }
    for (number u = pop(); u >= 0; u = pop()) {
      made.push_back(u);
      for (const number v : after(u)) {
        if (--missing[at(v)] == 0) ready(v);
      }
    }
    return made;
  }
  /// Of the ready ones the first: later(a, b) is true where a comes after b.
  template <class Later>
  [[nodiscard]] std::vector<number> order_by(const Later& later) const {
    std::priority_queue<number, std::vector<number>, Later> ready(later);
    return order([&](number v) { ready.push(v); },
                 [&]() -> number {
                   if (ready.empty()) return -1;
                   const number u = ready.top();
                   ready.pop();
                   return u;
                 });
  }
  /// Of the ready ones that which has been ready for longest.
  [[nodiscard]] std::vector<number> order_as_ready() const {
    std::vector<number> queue;
    queue.reserve(size());
    std::size_t next = 0;
    return order([&](number v) { queue.push_back(v); },
                 [&]() -> number { return next < queue.size() ? queue[next++] : -1; });
  }

  /// The nodes of a cycle, each before the one after it, the least number first.
  ///
  /// @param order  of order(), shorter than size()
  [[nodiscard]] std::vector<number> cycle(std::span<const number> order) const {
    std::vector<bool> ordered(size());
    for (const number u : order) ordered[at(u)] = true;
    number v = 0;
    while (ordered[at(v)]) ++v;
    std::vector<number> way, seen(size(), -1);
    while (seen[at(v)] < 0) {
      seen[at(v)] = static_cast<number>(way.size());
      way.push_back(v);
      // Every node left has a predecessor that is left: walking back ends in a cycle.
      const auto all = before(v);
      v = *std::find_if(all.begin(), all.end(), [&](number u) { return !ordered[at(u)]; });
    }
    way.erase(way.begin(), way.begin() + seen[at(v)]);
    std::reverse(way.begin(), way.end());
    std::rotate(way.begin(), std::min_element(way.begin(), way.end()), way.end());
    return way;
  }

 private:
  static std::size_t at(number v) noexcept { return static_cast<std::size_t>(v); }
  number_lists after_, before_;
};

/// "a -> b -> c -> a" of a cycle's nodes, the first sixteen of them.
///
/// @param name  returns the text of a node
/// @cost    O(nodes named)
/// @threads reentrant
/// @error   bad_alloc
template <class Name>
[[nodiscard]] std::string cycle_text(std::span<const digraph::number> cycle, const Name& name) {
  constexpr std::size_t most = 16;
  std::string text;
  for (std::size_t i = 0; i < (std::min)(cycle.size(), most); ++i)
    text += std::string(name(cycle[i])) + " -> ";
  if (cycle.size() > most) text += "... -> ";
  return text + std::string(name(cycle.front()));
}

/// Ranges of memory, cut into pieces at each begin and each end of one: two ranges overlap where they have a
/// piece in common. Of n ranges that overlap pairwise, as blocks of columns of one matrix do, each has up to
/// n pieces.
///
/// @threads one thread adds and closes; then concurrent readers are safe
class memory_pieces {
 public:
  void add(std::uintptr_t begin, std::uintptr_t end) { borders_.insert(borders_.end(), {begin, end}); }
  void close() {
    std::sort(borders_.begin(), borders_.end());
    borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  }
  [[nodiscard]] std::size_t size() const noexcept { return borders_.size(); }
  /// Calls f(piece) for those of a range that was added.
  template <class F>
  void for_each(std::uintptr_t begin, std::uintptr_t end, const F& f) const {
    auto piece = std::lower_bound(borders_.begin(), borders_.end(), begin);
    for (; *piece < end; ++piece) f(static_cast<std::size_t>(piece - borders_.begin()));
  }

 private:
  std::vector<std::uintptr_t> borders_;
};

/// What has accessed an object, in the order of the nodes' numbers: whoever reads follows the last one that
/// changed it; whoever changes it follows those who have read it since, or else that one.
struct effect_order {
  digraph::number writer = -1;
  std::vector<digraph::number> readers{};  // since then

  /// Calls edge(earlier) for the nodes that v must follow. May name one twice, and v itself.
  template <class Edge>
  void reads(digraph::number v, const Edge& edge) {
    if (writer >= 0) edge(writer);
    if (readers.empty() || readers.back() != v) readers.push_back(v);
  }
  template <class Edge>
  void changes(digraph::number v, const Edge& edge) {
    if (readers.empty() && writer >= 0) edge(writer);
    for (const digraph::number u : readers) edge(u);
    readers.clear();
    writer = v;
  }
};

}}  // namespace deeprec::DEEPREC_ABI
