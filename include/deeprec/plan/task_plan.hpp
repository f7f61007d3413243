// A graph of tasks, flat and immutable: a digraph of their numbers, and an order in which tasks of one kind
// stand side by side.
//
//   task_list  add("read", ...) ──┐            task_plan   order   read | hash hash hash | lookup lookup
//              add("hash", ...)   ├─compile──>             groups   1  |       3        |      2
//              add("lookup", ...) ┘                        a group is one loop: no call through a pointer
//
//   task_plan plan = task_plan::compile(work).or_throw();
//
// plan_run.hpp runs a plan, on one thread or on many; stream_plan.hpp assigns its ops to streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/plan/list_schedule.hpp>
#include <deeprec/plan/task_list.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Which of the topological orders a plan has.
enum class task_order : unsigned char {
  by_kind,   ///< of the ready ops one of the kind that ran last; so the same code runs many times in a row
  as_added,  ///< of the ready ops the one that was added first
  critical_first,  ///< of the ready ops the one with the longest way to an end, by the ops' costs
};

/// The flat form of a task_list. It owns the tasks with the list, and holds no state of a run.
///
/// @threads immutable once made; thread-safe. What tasks do when several runs of one plan are in flight is
///          their own matter: task_call::step tells the runs apart
class task_plan {
 public:
  /// A plan without ops.
  task_plan() = default;
  task_plan(task_plan&&) noexcept = default;
  /// @pre no run of either plan is in flight, and no plan_run of it is used afterwards
  task_plan& operator=(task_plan&&) noexcept = default;

  /// The plan of a list. An edge that is given twice, or follows from effects as well, is kept once.
  ///
  /// @post    order() is topological
  /// @numerics deterministic: the same order for the same list, except that kinds are the types of the tasks
  /// @cost    O(ops + edges), and by as_added O(ops log ops); for E effects O(E log E + pieces) more: a range
  ///          is cut where another one begins or ends in it, into up to E^2 pieces where many overlap;
  ///          allocates
  /// @threads reentrant
  /// @error   invalid_value: an edge or an effect of an op that the list does not have (item = the other op
  ///          of the edge, value = the unknown number), an op after itself, a cycle (its ops are named), an
  ///          op colocated with an unknown one or itself, a cost that is negative, infinite or no number; the
  ///          text names the op. Throws std::bad_alloc
  [[nodiscard]] static result<task_plan> compile(const task_list& list,
                                                 task_order order = task_order::by_kind) {
    task_plan made;
    if (list.rows_.size() >= std::size_t{(std::numeric_limits<std::int32_t>::max)()}) {
      return status(errc::invalid_value, "task_plan: the number of ops must fit into 31 bits");
    }
    made.take_rows(list);
    std::vector<digraph::edge> edges;
    if (fault_or_none wrong = made.collect_edges(list, edges)) return *std::move(wrong);
    made.graph_ = digraph(list.rows_.size(), edges);
    if (!made.find_order(order)) return made.cycle();
    made.place_in_order([&](std::size_t op) { return list.rows_[op].state; });
    return {std::move(made)};
  }

  /// The same ops, tasks and edges with other costs, such as cost_run has measured; so another order, and the
  /// same results of every task. The tasks are shared with this plan.
  ///
  /// @param costs  of each op, in one unit: nanoseconds beside a cost_run
  /// @cost    as compile, without effects
  /// @threads thread-safe
  /// @error   invalid_value: not a cost for each op, or one that is negative, infinite or no number; the text
  ///          names the op. Throws std::bad_alloc
  [[nodiscard]] result<task_plan> with_costs(std::span<const double> costs,
                                             task_order order = task_order::critical_first) const {
    if (costs.size() != costs_.size()) {
      return status(errc::invalid_value, "task_plan::with_costs: each op must have a cost",
                    {.value = static_cast<index_t>(costs.size())});
    }
    for (index_t v = 0; v < size(); ++v) {
      if (!is_cost(costs[index(v)])) return refused(must_be_a_cost, v, 0);
    }
    task_plan made(*this);
    made.costs_.assign(costs.begin(), costs.end());
    made.groups_.clear();
    made.states_.clear();
    static_cast<void>(made.find_order(order));
    made.place_in_order([&](std::size_t op) { return states_[index(position_[op])]; });
    return {std::move(made)};
  }

  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(costs_.size()); }
  [[nodiscard]] index_t edges() const noexcept { return static_cast<index_t>(graph_.edges()); }
  /// The ops in the order of run_inline.
  [[nodiscard]] std::span<const std::int32_t> order() const noexcept { return order_; }
  /// The place of an op in order().
  [[nodiscard]] index_t position(index_t op) const noexcept { return position_[index(op)]; }
  /// What must end before what.
  [[nodiscard]] const digraph& graph() const noexcept { return graph_; }
  /// Ascending, each once.
  [[nodiscard]] std::span<const std::int32_t> successors(index_t op) const noexcept {
    return graph_.after(static_cast<std::int32_t>(op));
  }
  /// Ascending, each once.
  [[nodiscard]] std::span<const std::int32_t> predecessors(index_t op) const noexcept {
    return graph_.before(static_cast<std::int32_t>(op));
  }
  [[nodiscard]] index_t indegree(index_t op) const noexcept {
    return static_cast<index_t>(predecessors(op).size());
  }
  /// The name of an op. The text lives as long as the plan, also when the plan is moved.
  [[nodiscard]] const char* name(index_t op) const noexcept { return names_.data() + first_name_[index(op)]; }
  [[nodiscard]] double cost(index_t op) const noexcept { return costs_[index(op)]; }
  [[nodiscard]] index_t bytes(index_t op) const noexcept { return bytes_[index(op)]; }
  /// The stream requested for an op; -1: any.
  [[nodiscard]] int stream(index_t op) const noexcept { return streams_[index(op)]; }
  /// The op whose stream an op shares; -1: none.
  [[nodiscard]] index_t leader(index_t op) const noexcept { return leaders_[index(op)]; }
  /// Of an op, from 0: ops with tasks of one type or function have one kind.
  [[nodiscard]] index_t kind(index_t op) const noexcept { return kind_numbers_[index(op)]; }
  [[nodiscard]] index_t kinds() const noexcept { return static_cast<index_t>(kinds_.size()); }
  [[nodiscard]] bool has_task(index_t op) const noexcept { return kinds_[index(kind(op))].run != nullptr; }
  /// Runs of ops of one kind in order(): how often run_inline changes from one loop to another.
  [[nodiscard]] index_t groups() const noexcept { return static_cast<index_t>(groups_.size()); }

  /// Calls the task of one op; nothing for an op without a task. Checks no dependency: for executors.
  ///
  /// @cost    an indirect call
  /// @threads as the task
  /// @error   what the task returns or throws
  [[nodiscard]] status call(index_t op, void* step = nullptr) const {
    detail::row_failure failure;
    const detail::task_kind& kind = kinds_[index(kind_numbers_[index(op)])];
    if (kind.run == nullptr) return {};
    const auto p = index(position_[index(op)]);
    kind.run({states_.data() + p, order_.data() + p, 1, step, kind.function}, failure);
    return failure.why;
  }

  /// Calls row(detail::row_runner, task_row) for each group, in order, while it returns true: for executors.
  template <class Row>
  bool for_each_group(void* step, const Row& row) const {
    for (const group& g : groups_) {
      if (g.kind.run == nullptr) continue;
      if (!row(g.kind.run, detail::task_row{states_.data() + g.first, order_.data() + g.first, g.count, step,
                                            g.kind.function})) {
        return false;
      }
    }
    return true;
  }

 private:
  struct group {
    detail::task_kind kind;
    std::int32_t first;
    std::int32_t count;
  };
  using fault_or_none = std::optional<fault>;
  static constexpr const char* must_be_a_cost =
      "task_plan: the cost of an op must be finite and not negative";

  task_plan(const task_plan&) = default;

  static bool is_cost(double cost) noexcept {
    return cost >= 0 && cost <= (std::numeric_limits<double>::max)();
  }
  using numbers = std::vector<std::int32_t>;

  template <class Number>
  static std::size_t index(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }
  static fault refused(const status& why, const std::string& which) {
    return {why, std::string(), std::string(why.detail()) + " (" + which + ")"};
  }
  fault refused(const char* must, index_t op, index_t value) const {
    return refused({errc::invalid_value, must, {.value = value, .item = op}}, name(op));
  }

  void take_rows(const task_list& list) {
    const auto n = list.rows_.size();
    kinds_ = list.kinds_;
    store_ = list.store_;
    first_name_.reserve(n);
    costs_.reserve(n);
    bytes_.reserve(n);
    streams_.reserve(n);
    leaders_.reserve(n);
    kind_numbers_.reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      const task_list::row& r = list.rows_[i];
      first_name_.push_back(names_.size());
      if (r.name_length > 0) {
        names_.insert(names_.end(), list.names_.begin() + static_cast<std::ptrdiff_t>(r.name),
                      list.names_.begin() + static_cast<std::ptrdiff_t>(r.name + r.name_length));
      } else {
        const std::string given = "op " + std::to_string(i);
        names_.insert(names_.end(), given.begin(), given.end());
      }
      names_.push_back('\0');
      costs_.push_back(r.cost);
      bytes_.push_back(r.bytes);
      streams_.push_back(r.stream);
      leaders_.push_back(r.leader);
      kind_numbers_.push_back(r.kind);
    }
  }

  // All edges, some of them twice.
  fault_or_none collect_edges(const task_list& list, std::vector<digraph::edge>& edges) const {
    const index_t n = list.size();
    const auto known = [n](index_t op) { return 0 <= op && op < n; };
    for (index_t v = 0; v < n; ++v) {
      const task_list::entry op = list.at(v);
      if (!is_cost(op.cost)) return refused(must_be_a_cost, v, 0);
      if (op.leader != -1 && (!known(op.leader) || op.leader == v)) {
        return refused("task_plan: an op must be colocated with another one of the list", v, op.leader);
      }
      for (const index_t u : op.after) {
        if (!known(u)) return refused("task_plan: an op must come after ops of the list", v, u);
        if (u == v) return refused("task_plan: an op must not come after itself", v, u);
        edges.push_back({static_cast<std::int32_t>(u), static_cast<std::int32_t>(v)});
      }
    }
    for (const auto& [u, v] : list.edges_) {
      if (!known(u) && !known(v)) {
        return fault(
            status(errc::invalid_value, "task_plan: an edge must join ops of the list", {.value = u}));
      }
      if (!known(u)) return refused("task_plan: an edge must join ops of the list", v, u);
      if (!known(v)) return refused("task_plan: an edge must join ops of the list", u, v);
      if (u == v) return refused("task_plan: an op must not come after itself", v, u);
      edges.push_back({static_cast<std::int32_t>(u), static_cast<std::int32_t>(v)});
    }
    for (const auto& [op, what] : list.effects_) {
      if (!known(op)) {
        return fault(status(errc::invalid_value, "task_plan: an effect must belong to an op of the list",
                            {.value = op}));
      }
    }
    order_effects(list, edges);
    return {};
  }

  static void order_effects(const task_list& list, std::vector<digraph::edge>& edges) {
    std::vector<std::pair<index_t, effect>> effects = list.effects_;
    // Of one op reads come first: then it is ordered after the earlier write by both of them.
    std::stable_sort(effects.begin(), effects.end(), [](const auto& a, const auto& b) {
      if (a.first != b.first) return a.first < b.first;
      return (a.second.mode == access_mode::reads) > (b.second.mode == access_mode::reads);
    });
    memory_pieces pieces;
    for (const auto& [op, what] : effects) pieces.add(what.begin, what.end);
    pieces.close();
    std::vector<effect_order> of_piece(pieces.size());
    std::vector<std::int32_t> last(list.rows_.size(), -1);  // the op that an op has an edge to
    for (const auto& of_op : effects) {
      const auto v = static_cast<std::int32_t>(of_op.first);
      const effect& what = of_op.second;
      const auto edge = [&edges, &last, v](std::int32_t u) {
        if (u != v && std::exchange(last[index(u)], v) != v) edges.push_back({u, v});
      };
      pieces.for_each(what.begin, what.end, [&, reads = what.mode == access_mode::reads](std::size_t piece) {
        if (reads) {
          of_piece[piece].reads(v, edge);
        } else {
          of_piece[piece].changes(v, edge);
        }
      });
    }
  }

  // False: there is a cycle.
  bool find_order(task_order order) {
    if (order == task_order::critical_first) {
      order_ = graph_.order_as_ready();
      if (order_.size() != costs_.size()) return false;
      std::vector<double> ranks(costs_.size());
      upward_ranks(graph_, order_, std::span<const double>(costs_), std::span<double>(ranks));
      order_ = graph_.order_by([&](std::int32_t a, std::int32_t b) {
        return ranks[index(a)] != ranks[index(b)] ? ranks[index(a)] < ranks[index(b)] : a > b;
      });
    } else {
      order_ = order == task_order::by_kind ? order_by_kind() : graph_.order_by(std::greater<>());
    }
    return order_.size() == costs_.size();
  }

  // A list of ready ops for each kind; a queue of the kinds that have some. A kind is left when its list is
  // empty, for the one that has waited longest.
  numbers order_by_kind() const {
    struct list {
      std::int32_t head = -1, tail = -1;
      bool queued = false;
    };
    std::vector<list> ready(kinds_.size());
    numbers next_ready(costs_.size(), -1);
    numbers waiting;
    std::size_t next = 0;
    std::int32_t now = -1;
    return graph_.order(
        [&](std::int32_t v) {
          list& of = ready[index(kind_numbers_[index(v)])];
          (of.head < 0 ? of.head : next_ready[index(of.tail)]) = v;
          of.tail = v;
          if (!std::exchange(of.queued, true)) waiting.push_back(kind_numbers_[index(v)]);
        },
        [&]() -> std::int32_t {
          if (now >= 0 && ready[index(now)].head < 0) {
            ready[index(now)].queued = false;
            now = -1;
          }
          if (now < 0) {
            if (next == waiting.size()) return -1;
            now = waiting[next++];
          }
          list& of = ready[index(now)];
          return std::exchange(of.head, next_ready[index(of.head)]);
        });
  }
  // What no order has.
  fault cycle() const {
    const numbers way = graph_.cycle(order_);
    return refused({errc::invalid_value, "task_plan: edges must not form a cycle", {.item = way.front()}},
                   cycle_text(way, [&](std::int32_t op) { return name(op); }));
  }

  template <class State>
  void place_in_order(const State& state) {
    position_.resize(order_.size());
    for (std::size_t p = 0; p < order_.size(); ++p) {
      const auto op = index(order_[p]);
      position_[op] = static_cast<std::int32_t>(p);
      states_.push_back(state(op));
      if (p == 0 || kind_numbers_[index(order_[p - 1])] != kind_numbers_[op]) {
        groups_.push_back({kinds_[index(kind_numbers_[op])], static_cast<std::int32_t>(p), 0});
      }
      ++groups_.back().count;
    }
  }

  digraph graph_;
  numbers order_;                    // by position
  std::vector<void*> states_;        // by position
  std::vector<group> groups_;        // in order
  numbers position_, kind_numbers_;  // by op, as the rest
  std::vector<double> costs_;
  std::vector<index_t> bytes_, leaders_;
  std::vector<int> streams_;
  std::vector<std::size_t> first_name_;
  std::vector<char> names_;
  std::vector<detail::task_kind> kinds_;
  std::shared_ptr<const detail::task_store> store_;
};

}}  // namespace deeprec::DEEPREC_ABI
