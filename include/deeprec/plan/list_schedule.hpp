// What a graph of ops with costs takes on equal workers, before anybody runs it: the longest way from an op
// to an end, and the schedule of workers that always begin the first ready op of a list.
//
//   costs  a 2 ── b 3 ── d 1        ranks  a 6, b 4, c 2, d 1      the critical path a b d is 6
//             └── c 1 ─┘            two workers: a | b, c | d = 6; one: 7
//
// Nothing is run here. The schedule is at most 2 - 1/p times max(critical path, work / p) (Graham 1969).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The upward rank of each op: its cost, and the greatest rank of those behind it.
///
/// @param order  topological
/// @cost    O(ops + edges), no allocation
/// @threads reentrant
/// @error   none
template <class Cost>
void upward_ranks(const digraph& graph, std::span<const digraph::number> order, std::span<const Cost> costs,
                  std::span<Cost> ranks) noexcept {
  for (std::size_t i = order.size(); i-- > 0;) {
    const digraph::number op = order[i];
    Cost behind = 0;
    for (const digraph::number v : graph.after(op))
      behind = (std::max)(behind, ranks[static_cast<std::size_t>(v)]);
    ranks[static_cast<std::size_t>(op)] = costs[static_cast<std::size_t>(op)] + behind;
  }
}

/// The place of each op in a list by descending rank, of equal ones by number; and the op at each place.
///
/// @cost    O(ops log ops), no allocation
/// @threads reentrant
/// @error   none
template <class Cost>
void places_by_rank(std::span<const Cost> ranks, std::span<digraph::number> at,
                    std::span<digraph::number> place) noexcept {
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<digraph::number>(i);
  std::sort(at.begin(), at.end(), [&](digraph::number a, digraph::number b) {
    const Cost x = ranks[static_cast<std::size_t>(a)], y = ranks[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::size_t i = 0; i < at.size(); ++i)
    place[static_cast<std::size_t>(at[i])] = static_cast<digraph::number>(i);
}

/// A machine of equal workers.
struct list_machine {
  static constexpr int most_workers = 64;
  int workers = 1;      ///< 1 to most_workers; more count as so many
  double to_begin = 0;  ///< what each op takes more than its cost
  double to_come = 0;   ///< when the workers but the first begin
};

/// Memory of list_schedule: of as many numbers as there are ops, each.
struct list_scratch {
  std::span<digraph::number> missing, ready;
};

/// When the last op ends, where an idle worker begins the ready op of the least place.
///
/// @param begun  called as begun(op, when, worker) in the order of the begins
/// @numerics deterministic
/// @cost    O(edges + ops log ops), no allocation
/// @threads reentrant, with a scratch of its own
/// @error   none
template <class Cost, class Begun>
[[nodiscard]] double list_schedule(const digraph& graph, std::span<const Cost> costs,
                                   std::span<const digraph::number> place, const list_machine& machine,
                                   const list_scratch& scratch, const Begun& begun) {
  struct busy {
    double until;
    digraph::number op;  // -1: not there yet
    int worker;
    bool operator<(const busy& other) const noexcept {  // the first to be free is the greatest
      return until != other.until ? until > other.until : worker > other.worker;
    }
  };
  std::array<busy, list_machine::most_workers> running;
  std::array<int, list_machine::most_workers> idle;
  std::size_t runs = 0, idles = 0, readies = 0;
  const auto at = [](digraph::number op) { return static_cast<std::size_t>(op); };
  const auto later = [&](digraph::number a, digraph::number b) { return place[at(a)] > place[at(b)]; };
  const auto add = [&](digraph::number op) {
    scratch.ready[readies++] = op;
    std::push_heap(scratch.ready.begin(), scratch.ready.begin() + static_cast<std::ptrdiff_t>(readies),
                   later);
  };
  const int workers = std::clamp(machine.workers, 1, list_machine::most_workers);
  for (int w = workers; w-- > 0;) {
    if (w == 0 || machine.to_come <= 0) {
      idle[idles++] = w;
    } else {
      running[runs++] = {machine.to_come, -1, w};
    }
  }
  std::make_heap(running.begin(), running.begin() + static_cast<std::ptrdiff_t>(runs));
  for (std::size_t v = 0; v < graph.size(); ++v) {
    scratch.missing[v] = static_cast<digraph::number>(graph.before(static_cast<digraph::number>(v)).size());
    if (scratch.missing[v] == 0) add(static_cast<digraph::number>(v));
  }
  double now = 0, end = 0;
  std::size_t left = graph.size();
  while (left > 0) {
    while (idles > 0 && readies > 0) {
      std::pop_heap(scratch.ready.begin(), scratch.ready.begin() + static_cast<std::ptrdiff_t>(readies),
                    later);
      const digraph::number op = scratch.ready[--readies];
      const int worker = idle[--idles];
      begun(op, now, worker);
      running[runs++] = {now + machine.to_begin + static_cast<double>(costs[at(op)]), op, worker};
      std::push_heap(running.begin(), running.begin() + static_cast<std::ptrdiff_t>(runs));
    }
    if (runs == 0) return end;  // a graph with a cycle
    now = running[0].until;
    while (runs > 0 && running[0].until <= now) {
      std::pop_heap(running.begin(), running.begin() + static_cast<std::ptrdiff_t>(runs));
      const busy free = running[--runs];
      idle[idles++] = free.worker;
      if (free.op < 0) continue;
      end = now;
      --left;
      for (const digraph::number v : graph.after(free.op)) {
        if (--scratch.missing[at(v)] == 0) add(v);
      }
    }
  }
  return end;
}
template <class Cost>
[[nodiscard]] double list_schedule(const digraph& graph, std::span<const Cost> costs,
                                   std::span<const digraph::number> place, const list_machine& machine,
                                   const list_scratch& scratch) {
  return list_schedule(graph, costs, place, machine, scratch, [](digraph::number, double, int) {});
}

}}  // namespace deeprec::DEEPREC_ABI
