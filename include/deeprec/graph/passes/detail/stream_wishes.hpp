// What a user asks of streams, checked, and written down as a list of tasks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/stream_assignment.hpp>
#include <deeprec/plan/task_list.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class stream_wishes {
 public:
  using number = flat_graph::number;

  stream_wishes(const flat_graph& g, stream_assignment& made) : g_(g), made_(made), words_{g, 1} {}

  /// Fills scopes and leaders.
  std::optional<fault> read(const stream_requests& wanted, int streams) {
    made_.scopes = wanted.scopes;
    if (auto wrong = read_scopes(streams)) return wrong;
    return read_leaders(wanted.colocated);
  }

  /// An op that does nothing in a step: its value is there before, and no stream waits for it.
  [[nodiscard]] bool is_there(index_t v) const {
    const op_kind kind = g_.kind(v);
    return (kind == op_kind::constant || kind == op_kind::variable || kind == op_kind::placeholder) &&
           g_.in(v).empty();
  }

  /// The other ops, and what each comes after.
  task_list work() {
    std::vector<index_t> place(count(g_.size()), -1), head(count(g_.size()), -1);
    for (index_t v = 0; v < g_.size(); ++v) {
      if (is_there(v)) continue;
      place[count(v)] = static_cast<index_t>(ops.size());
      ops.push_back(v);
      made_.costs_known = made_.costs_known || g_.cost(v) > 0;
    }
    std::map<std::string_view, std::vector<index_t>> puts;
    for (const auto& [op, stage] : g_.stage_ops()) {
      if (g_.kind(op) == op_kind::stage_put) puts[stage].push_back(place[count(op)]);
    }
    task_list list;
    std::vector<index_t> after;
    for (const index_t v : ops) {
      after.clear();
      for (const number e : g_.in(v)) {
        if (place[count(g_.source(e))] >= 0) after.push_back(place[count(g_.source(e))]);
      }
      if (g_.kind(v) == op_kind::stage_take) {
        const auto found = puts.find(g_.stage_of(v));
        if (found != puts.end()) after.insert(after.end(), found->second.begin(), found->second.end());
      }
      // The first op of a chain stands for the leader, which may be no task.
      const index_t leader = made_.leader[count(v)];
      index_t& first = head[count(leader)];
      const bool follows = first >= 0;
      if (!follows) first = place[count(v)];
      const auto here = follows ? list.colocate_with(first) : list.on_stream(wanted_stream(leader));
      list.add(after, cost(v));
    }
    return list;
  }
  [[nodiscard]] double cost(index_t v) const { return made_.costs_known ? g_.cost(v) : 1.0; }
  /// The stream that an op's scope asks for; -1: any.
  [[nodiscard]] int wanted_stream(index_t v) const {
    const std::int32_t scope = made_.scope[count(v)];
    return scope < 0 ? -1 : made_.scopes[count(scope)].stream;
  }

  std::vector<index_t> ops;  // of each task, the op

 private:
  static std::size_t count(index_t i) noexcept { return static_cast<std::size_t>(i); }

  std::optional<fault> read_scopes(int streams) {
    std::map<std::string_view, std::int32_t> by_name;
    for (std::size_t s = 0; s < made_.scopes.size(); ++s) {
      const stream_scope& scope = made_.scopes[s];
      const std::string named = "scope '" + scope.name + "'";
      if (scope.name.empty()) {
        return refused("assign_streams: a scope must have a name",
                       "scope " + std::to_string(s) + " of " + std::to_string(made_.scopes.size()));
      }
      if (scope.stream < -1 || scope.stream >= streams) {
        return refused("assign_streams: a scope must be of a stream that exists",
                       named + ": stream " + std::to_string(scope.stream) + " of " + std::to_string(streams),
                       -1, scope.stream);
      }
      if (!by_name.emplace(scope.name, static_cast<std::int32_t>(s)).second)
        return refused("assign_streams: a scope must be given once", named + " is given twice");
    }
    std::vector<bool> used(made_.scopes.size());
    made_.scope.assign(count(g_.size()), -1);
    for (index_t v = 0; v < g_.size() && !by_name.empty(); ++v) {
      // By whole components, the longest first.
      for (std::string_view name = g_.name(v); !name.empty();) {
        const auto found = by_name.find(name);
        if (found != by_name.end()) {
          if (made_.scope[count(v)] < 0) made_.scope[count(v)] = found->second;
          used[count(found->second)] = true;
        }
        const auto slash = name.rfind('/');
        name = name.substr(0, slash == std::string_view::npos ? 0 : slash);
      }
    }
    const auto unused = std::find(used.begin(), used.end(), false);
    if (unused == used.end()) return {};
    return refused("assign_streams: a scope must contain an op",
                   "no op is in scope '" + made_.scopes[count(unused - used.begin())].name + "'");
  }

  std::optional<fault> read_leaders(const std::vector<op_colocation>& colocated) {
    made_.leader.resize(count(g_.size()));
    for (index_t v = 0; v < g_.size(); ++v) made_.leader[count(v)] = v;
    std::vector<index_t>& leader = made_.leader;
    for (const auto& [op, with] : colocated) {
      const auto known = [&](index_t v) { return 0 <= v && v < g_.size(); };
      if (!known(op) || !known(with)) {
        const index_t unknown = known(op) ? with : op, other = known(op) ? op : with;
        return refused("assign_streams: a colocation must be of two ops of the graph",
                       "op " + std::to_string(unknown) + " of " + std::to_string(g_.size()) +
                           (known(other) ? ", colocated with " + words_.named(other) : std::string()),
                       known(other) ? other : -1, unknown);
      }
      if (op == with) {
        return refused("assign_streams: an op must be colocated with another one",
                       words_.named(op) + " with itself", op);
      }
      if (leader[count(op)] != op && leader[count(op)] != with) {
        return refused(
            "assign_streams: an op must have one leader",
            words_.named(op) + " has " + words_.named(leader[count(op)]) + " and " + words_.named(with), op);
      }
      leader[count(op)] = with;
    }
    // Each chain is walked once: what was walked before has its end.
    std::vector<std::uint8_t> walked(count(g_.size()));  // 1: on this way, 2: done
    std::vector<index_t> way;
    for (index_t v = 0; v < g_.size(); ++v) {
      way.clear();
      index_t u = v;
      while (walked[count(u)] == 0 && leader[count(u)] != u) {
        walked[count(u)] = 1;
        way.push_back(u);
        u = leader[count(u)];
      }
      if (walked[count(u)] == 1) {
        return refused("assign_streams: colocation must not lead back to an op",
                       words_.named(u) + " is among its own leaders", u);
      }
      const index_t end = leader[count(u)];
      for (const index_t w : way) {
        leader[count(w)] = end;
        walked[count(w)] = 2;
      }
    }
    return {};
  }

  const flat_graph& g_;
  stream_assignment& made_;
  op_words words_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
