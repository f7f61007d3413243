// The ops of a plan dealt to in-order streams, and the waits between these.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The ops of a plan in an order in which each comes after those that it needs: numbers here are places in
/// that order. It is the order of the list, where an op only needs ops that were added before.
struct stream_work {
  struct entry {
    std::vector<index_t> after;
    double cost;
    int stream;      // -1: any
    index_t leader;  // -1: none
  };

  explicit stream_work(const task_plan& plan) {
    for (const std::int32_t v : plan.graph().order_by(std::greater<>())) op.push_back(v);
    std::vector<index_t> place(op.size());
    for (std::size_t i = 0; i < op.size(); ++i)
      place[static_cast<std::size_t>(op[i])] = static_cast<index_t>(i);
    for (const index_t v : op) {
      entry made{{}, plan.cost(v), plan.stream(v), plan.leader(v)};
      for (const index_t u : plan.predecessors(v)) made.after.push_back(place[static_cast<std::size_t>(u)]);
      if (made.leader >= 0) made.leader = place[static_cast<std::size_t>(made.leader)];
      entries.push_back(std::move(made));
    }
  }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(entries.size()); }
  [[nodiscard]] const entry& at(index_t i) const { return entries[static_cast<std::size_t>(i)]; }

  std::vector<entry> entries;
  std::vector<index_t> op;  // the number in the plan
};

/// Sets of ops, as rows of bits.
class op_sets {
 public:
  explicit op_sets(index_t ops)
      : words_(static_cast<std::size_t>(ops + 63) / 64), bits_(words_ * static_cast<std::size_t>(ops)) {}
  [[nodiscard]] bool has(index_t set, index_t op) const {
    return (bits_[place(set, op)] >> (op & 63) & 1U) != 0;
  }
  void insert(index_t set, index_t op) { bits_[place(set, op)] |= std::uint64_t{1} << (op & 63); }
  void unite(index_t set, index_t other) {
    for (std::size_t w = 0; w < words_; ++w) {
      bits_[static_cast<std::size_t>(set) * words_ + w] |=
          bits_[static_cast<std::size_t>(other) * words_ + w];
    }
  }

 private:
  [[nodiscard]] std::size_t place(index_t set, index_t op) const {
    return static_cast<std::size_t>(set) * words_ + static_cast<std::size_t>(op) / 64;
  }
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// Assigns ops to streams. Chains come from a maximum matching in the transitive reduction (a minimum path
/// cover: the fewest waits, if there are enough streams); then groups are joined, those that lose the least
/// overlap first.
class stream_dealer {
 public:
  stream_dealer(const stream_work& work, int streams)
      : work_(work),
        n_(work.size()),
        streams_(streams),
        before_(n_),
        group_(count(n_)),
        pin_(count(n_), -1) {}

  /// The stream of every op.
  std::vector<int> deal() {
    reduce();
    for (index_t v = 0; v < n_; ++v) group_[count(v)] = v;
    for (index_t v = 0; v < n_; ++v) {
      if (work_.at(v).leader >= 0) join(v, work_.at(v).leader);
    }
    for (index_t v = 0; v < n_; ++v) {
      if (work_.at(v).leader < 0 && work_.at(v).stream >= 0) pin_[count(find(v))] = work_.at(v).stream;
    }
    match();
    for (index_t u = 0; u < n_; ++u) {
      if (match_of_[count(u)] >= 0) join(u, match_of_[count(u)]);
    }
    return name_groups();
  }

 private:
  static std::size_t count(index_t i) { return static_cast<std::size_t>(i); }

  index_t find(index_t v) {
    while (group_[count(v)] != v) v = group_[count(v)] = group_[count(group_[count(v)])];
    return v;
  }
  // Joins two groups; false where the caller wants them on different streams.
  bool join(index_t a, index_t b) {
    a = find(a);
    b = find(b);
    if (a == b) return true;
    int& pin_a = pin_[count(a)];
    int& pin_b = pin_[count(b)];
    if (pin_a >= 0 && pin_b >= 0 && pin_a != pin_b) return false;
    if (b < a) std::swap(a, b);
    pin_[count(a)] = (std::max)(pin_a, pin_b);
    group_[count(b)] = a;
    return true;
  }

  // The edges of the transitive reduction, and the predecessors and the rank of every op.
  void reduce() {
    next_.resize(count(n_));
    rank_.assign(count(n_), 0);
    for (index_t v = 0; v < n_; ++v) {
      std::vector<index_t> after = work_.at(v).after;
      std::sort(after.rbegin(), after.rend());
      for (const index_t u : after) {
        if (before_.has(v, u)) continue;
        before_.unite(v, u);
        before_.insert(v, u);
        next_[count(u)].push_back(v);
      }
    }
    for (index_t u = n_ - 1; u >= 0; --u) {
      double longest = 0;
      for (const index_t v : next_[count(u)]) longest = (std::max)(longest, rank_[count(v)]);
      rank_[count(u)] = longest + work_.at(u).cost;
    }
    for (auto& out : next_) {
      std::stable_sort(out.begin(), out.end(),
                       [&](index_t a, index_t b) { return rank_[count(a)] > rank_[count(b)]; });
    }
  }

  // match_of_[u] is the op that follows u in its chain; -1: none. Augmenting paths, breadth first.
  void match() {
    match_of_.assign(count(n_), -1);
    std::vector<index_t> taken_by(count(n_), -1);
    std::vector<index_t> seen(count(n_), -1), from(count(n_));
    for (index_t start = 0; start < n_; ++start) {
      std::vector<index_t> queue{start};
      index_t free = -1;
      for (std::size_t i = 0; i < queue.size() && free < 0; ++i) {
        for (const index_t v : next_[count(queue[i])]) {
          if (seen[count(v)] == start) continue;
          seen[count(v)] = start;
          from[count(v)] = queue[i];
          if (taken_by[count(v)] < 0) {
            free = v;
            break;
          }
          queue.push_back(taken_by[count(v)]);
        }
      }
      while (free >= 0) {
        const index_t u = from[count(free)];
        const index_t displaced = match_of_[count(u)];
        match_of_[count(u)] = free;
        taken_by[count(free)] = u;
        free = u == start ? -1 : displaced;
      }
    }
  }

  // The effect of two groups sharing a stream: overlap lost and waits saved.
  struct bond {
    double lost = 0;
    double saved = 0;
  };

  std::vector<int> name_groups() {
    std::vector<index_t> groups;
    std::vector<index_t> of_pin(count(streams_), -1);
    for (index_t v = 0; v < n_; ++v) {
      if (find(v) != v) continue;
      const int pin = pin_[count(v)];
      if (pin >= 0 && of_pin[count(pin)] >= 0) {
        join(of_pin[count(pin)], v);
      } else {
        if (pin >= 0) of_pin[count(pin)] = v;
        groups.push_back(v);
      }
    }
    if (static_cast<int>(groups.size()) > streams_) shrink(groups);
    std::vector<bool> used(count(streams_));
    std::vector<int> name(count(n_), -1);
    for (const index_t g : groups) {
      if (pin_[count(g)] >= 0) used[count(name[count(g)] = pin_[count(g)])] = true;
    }
    std::size_t next = 0;
    for (const index_t g : groups) {
      if (name[count(g)] >= 0) continue;
      while (used[next]) ++next;
      used[next] = true;
      name[count(g)] = static_cast<int>(next);
    }
    std::vector<int> stream_of(count(n_));
    for (index_t v = 0; v < n_; ++v) stream_of[count(v)] = name[count(find(v))];
    return stream_of;
  }

  void shrink(std::vector<index_t>& groups) {
    std::vector<std::size_t> number(count(n_));
    for (std::size_t g = 0; g < groups.size(); ++g) number[count(groups[g])] = g;
    const std::size_t m = groups.size();
    std::vector<bond> bonds(m * m);
    std::vector<double> load(m);
    const auto of = [&](index_t v) { return number[count(find(v))]; };
    for (index_t v = 0; v < n_; ++v) {
      const std::size_t a = of(v);
      load[a] += work_.at(v).cost;
      for (index_t u = 0; u < v; ++u) {
        const std::size_t b = of(u);
        if (a == b || before_.has(v, u)) continue;
        const double lost = work_.at(u).cost * work_.at(v).cost;
        bonds[a * m + b].lost += lost;
        bonds[b * m + a].lost += lost;
      }
    }
    for (index_t u = 0; u < n_; ++u) {
      for (const index_t v : next_[count(u)]) {
        bonds[of(u) * m + of(v)].saved += 1;
        bonds[of(v) * m + of(u)].saved += 1;
      }
    }
    // Of each group the best one behind it to join with; m: none. A join changes few of them.
    std::vector<bool> gone(m);
    std::vector<std::size_t> best(m, m);
    const auto better = [&](std::size_t a, std::size_t b, std::size_t than_a, std::size_t than_b) {
      const bond& x = bonds[a * m + b];
      const bond& y = bonds[than_a * m + than_b];
      if (x.lost != y.lost) return x.lost < y.lost;
      if (x.saved != y.saved) return x.saved > y.saved;
      return load[a] + load[b] < load[than_a] + load[than_b];
    };
    const auto pinned = [&](std::size_t g) { return pin_[count(find(groups[g]))] >= 0; };
    const auto look = [&](std::size_t a) {
      best[a] = m;
      for (std::size_t b = a + 1; b < m; ++b) {
        if (gone[b] || (pinned(a) && pinned(b))) continue;
        if (best[a] == m || better(a, b, a, best[a])) best[a] = b;
      }
    };
    for (std::size_t a = 0; a < m; ++a) look(a);
    for (std::size_t left = m; left > count(streams_); --left) {
      std::size_t to = m;
      for (std::size_t a = 0; a < m; ++a) {
        if (!gone[a] && best[a] < m && (to == m || better(a, best[a], to, best[to]))) to = a;
      }
      const std::size_t from = best[to];
      join(groups[to], groups[from]);
      gone[from] = true;
      load[to] += load[from];
      for (std::size_t c = 0; c < m; ++c) {
        for (bond* into : {&bonds[to * m + c], &bonds[c * m + to]}) {
          into->lost += bonds[from * m + c].lost;
          into->saved += bonds[from * m + c].saved;
        }
      }
      look(to);
      for (std::size_t c = 0; c < from; ++c) {
        if (gone[c] || c == to) continue;
        if (best[c] == from || best[c] == to) {
          look(c);
        } else if (c < to && !(pinned(c) && pinned(to)) &&
                   (best[c] == m || better(c, to, c, best[c]) ||
                    (to < best[c] && !better(c, best[c], c, to)))) {
          best[c] = to;  // of equal ones the first
        }
      }
    }
    std::vector<index_t> kept;
    for (std::size_t g = 0; g < m; ++g) {
      if (!gone[g]) kept.push_back(find(groups[g]));
    }
    groups = std::move(kept);
  }

 public:
  /// Topological order; of the ops that are ready, the one with the longest remaining path first.
  std::vector<digraph::number> launch_order() const {
    std::vector<digraph::edge> edges;
    for (index_t u = 0; u < n_; ++u) {
      for (const index_t v : next_[count(u)])
        edges.push_back({static_cast<digraph::number>(u), static_cast<digraph::number>(v)});
    }
    return digraph(count(n_), edges).order_by([&](digraph::number a, digraph::number b) {
      return rank_[count(a)] != rank_[count(b)] ? rank_[count(a)] < rank_[count(b)] : a > b;
    });
  }

 private:
  const stream_work& work_;
  index_t n_;
  int streams_;
  op_sets before_;
  std::vector<index_t> group_;  // union-find; the root of a group is its smallest op
  std::vector<int> pin_;        // of a group: the stream that the caller wants
  std::vector<std::vector<index_t>> next_;
  std::vector<double> rank_;  // cost of the longest path to the end
  std::vector<index_t> match_of_;
};

/// Vector clocks: the number of steps of each stream that have ended when an op has ended.
class stream_clocks {
 public:
  stream_clocks(index_t ops, int streams)
      : streams_(static_cast<std::size_t>(streams)),
        clock_(static_cast<std::size_t>(ops) * streams_),
        here_(streams_ * streams_),
        ended_(streams_) {}

  /// The waits that the next step of a stream needs to run after the ops `after` (latest enqueued first).
  template <class StreamOf, class StepOf>
  std::vector<index_t> waits(int stream, const std::vector<index_t>& after, const StreamOf& stream_of,
                             const StepOf& step_of) {
    std::vector<index_t> needed;
    index_t* const known = here_.data() + static_cast<std::size_t>(stream) * streams_;
    for (const index_t u : after) {
      if (known[stream_of(u)] > step_of(u)) continue;
      needed.push_back(u);
      const index_t* const theirs = clock_.data() + static_cast<std::size_t>(u) * streams_;
      for (std::size_t s = 0; s < streams_; ++s) known[s] = (std::max)(known[s], theirs[s]);
    }
    return needed;
  }
  /// Makes the op the next step of its stream; returns its number there.
  index_t enqueue(index_t op, int stream) {
    const auto s = static_cast<std::size_t>(stream);
    index_t* const known = here_.data() + s * streams_;
    const index_t number = ended_[s]++;
    known[s] = ended_[s];
    std::copy(known, known + streams_, clock_.begin() + op * static_cast<index_t>(streams_));
    return number;
  }

 private:
  std::size_t streams_;
  std::vector<index_t> clock_;  // (ops, streams)
  std::vector<index_t> here_;   // (streams, streams): what the last step of a stream implies
  std::vector<index_t> ended_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
