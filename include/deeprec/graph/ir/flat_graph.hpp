// A graph of ops as arrays: what the passes read, whatever graph it was copied from.
//
//   read ─0:0─> parse ─0:0─> put "io"          edge: output port : input port
//                            take "io" ─0:0─> hash ─0:1─> lookup
//                                 tables (variable) ─0:0───^
//
//   flat_graph_builder b;
//   const index_t read = b.add({.name = "read"}), parse = b.add({.name = "parse"});
//   b.connect(read, 0, parse, 0, 4096);
//   result<flat_graph> g = b.build();        refuses cycles, unknown ops, doubled inputs, stages of nothing
//
// A put and a take of one stage have no edge between them; they belong together by the name of the stage. Not
// here: copies of foreign graphs (graph_adaptor.hpp); what an op computes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/op_info.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/support/containers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Ops 0 ... size() - 1 and edges 0 ... edge_count() - 1, these ordered by source and its output port,
/// control edges first.
///
/// @cost    28 bytes for an edge, about 30 for an op and its name
/// @threads immutable once built; thread-safe
/// @error   none
class flat_graph {
 public:
  using number = std::int32_t;  ///< of an op, an edge or a port

  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(cost_.size()); }
  [[nodiscard]] index_t edge_count() const noexcept { return static_cast<index_t>(to_.size()); }

  [[nodiscard]] std::string_view name(index_t op) const noexcept {
    return std::string_view(letters_).substr(name_begin_[at(op)],
                                             name_begin_[at(op) + 1] - name_begin_[at(op)]);
  }
  [[nodiscard]] op_kind kind(index_t op) const noexcept { return kind_[at(op)]; }
  [[nodiscard]] op_place place(index_t op) const noexcept { return place_[at(op)]; }
  [[nodiscard]] op_effects effects(index_t op) const noexcept { return effects_[at(op)]; }
  [[nodiscard]] double cost(index_t op) const noexcept { return cost_[at(op)]; }
  /// The stage of a put, take or stage op; empty for others.
  [[nodiscard]] std::string_view stage_of(index_t op) const noexcept {
    const auto found = std::lower_bound(stages_.begin(), stages_.end(), op,
                                        [](const auto& a, index_t b) { return a.first < b; });
    return found == stages_.end() || found->first != op ? std::string_view()
                                                        : std::string_view(found->second);
  }
  [[nodiscard]] op_info op(index_t op) const noexcept {
    return {name(op), kind(op), place(op), effects(op), cost(op), stage_of(op)};
  }
  /// All ops of the kinds stage_put, stage_take and stage, in order, with the names of their stages.
  [[nodiscard]] std::span<const std::pair<number, std::string>> stage_ops() const noexcept { return stages_; }

  /// The edges that leave an op are [out_begin(op), out_end(op)).
  [[nodiscard]] index_t out_begin(index_t op) const noexcept { return out_begin_[at(op)]; }
  [[nodiscard]] index_t out_end(index_t op) const noexcept { return out_begin_[at(op) + 1]; }
  /// Those of one output port.
  [[nodiscard]] std::pair<index_t, index_t> out_of_port(index_t op, index_t port) const noexcept {
    const auto first = from_port_.begin() + out_begin(op), last = from_port_.begin() + out_end(op);
    const auto range = std::equal_range(first, last, static_cast<number>(port));
    return {range.first - from_port_.begin(), range.second - from_port_.begin()};
  }
  /// The edges that enter an op, by input port, control edges first.
  [[nodiscard]] std::span<const number> in(index_t op) const noexcept {
    return std::span<const number>(in_).subspan(
        static_cast<std::size_t>(in_begin_[at(op)]),
        static_cast<std::size_t>(in_begin_[at(op) + 1] - in_begin_[at(op)]));
  }

  [[nodiscard]] index_t source(index_t edge) const noexcept { return from_[at(edge)]; }
  [[nodiscard]] index_t destination(index_t edge) const noexcept { return to_[at(edge)]; }
  /// -1: a control edge
  [[nodiscard]] index_t source_port(index_t edge) const noexcept { return from_port_[at(edge)]; }
  [[nodiscard]] index_t destination_port(index_t edge) const noexcept { return to_port_[at(edge)]; }
  [[nodiscard]] bool is_control(index_t edge) const noexcept { return from_port_[at(edge)] < 0; }
  [[nodiscard]] std::int64_t bytes(index_t edge) const noexcept { return bytes_[at(edge)]; }
  [[nodiscard]] edge_info edge(index_t e) const noexcept {
    return {source(e), source_port(e), destination(e), destination_port(e), bytes(e), is_control(e)};
  }

  /// The ops in an order in which each follows what it needs, and the takes of a stage its puts.
  [[nodiscard]] std::span<const number> order() const noexcept { return order_; }

 private:
  friend class flat_graph_builder;
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  std::string letters_;  // the names, one after the other
  std::vector<std::size_t> name_begin_{0};
  std::vector<op_kind> kind_;
  std::vector<op_place> place_;
  std::vector<op_effects> effects_;
  std::vector<double> cost_;
  std::vector<std::pair<number, std::string>> stages_;
  std::vector<number> out_begin_, from_, from_port_, to_, to_port_;  // edges, by source
  std::vector<std::int64_t> bytes_;
  std::vector<number> in_begin_, in_;  // numbers of edges, by destination
  std::vector<number> order_;
};

/// Collects ops and edges in any order, and checks them all at once.
///
/// @threads one thread
class flat_graph_builder {
  using number = flat_graph::number;

 public:
  /// Adds an op; returns its number. Names need not differ, but a fault is found by them. Throws
  /// std::bad_alloc, and the builder is as before.
  index_t add(const op_info& op) {
    // What throws comes first: an op that is refused memory is not in some of the lists.
    std::string stage(is_stage(op.kind) ? op.stage : std::string_view());
    detail::make_room(graph_.name_begin_);
    detail::make_room(graph_.kind_);
    detail::make_room(graph_.place_);
    detail::make_room(graph_.effects_);
    detail::make_room(graph_.cost_);
    if (is_stage(op.kind)) detail::make_room(graph_.stages_);
    graph_.letters_ += op.name;
    graph_.name_begin_.push_back(graph_.letters_.size());
    graph_.kind_.push_back(op.kind);
    graph_.place_.push_back(op.place);
    graph_.effects_.push_back(op.effects);
    graph_.cost_.push_back(op.cost);
    const index_t added = graph_.size() - 1;
    if (is_stage(op.kind)) graph_.stages_.emplace_back(static_cast<number>(added), std::move(stage));
    return added;
  }
  void add(const edge_info& edge) { edges_.push_back(edge); }
  /// Output `source_port` of one op is input `port` of another.
  void connect(index_t source, index_t source_port, index_t destination, index_t port,
               std::int64_t bytes = 0) {
    edges_.push_back({source, source_port, destination, port, bytes, false});
  }
  /// `later` runs after `earlier`.
  void control(index_t earlier, index_t later) { edges_.push_back({earlier, -1, later, -1, 0, true}); }

  void reserve(index_t ops, index_t edges) {
    graph_.name_begin_.reserve(static_cast<std::size_t>(ops) + 1);
    graph_.kind_.reserve(static_cast<std::size_t>(ops));
    graph_.place_.reserve(static_cast<std::size_t>(ops));
    graph_.effects_.reserve(static_cast<std::size_t>(ops));
    graph_.cost_.reserve(static_cast<std::size_t>(ops));
    edges_.reserve(static_cast<std::size_t>(edges));
  }

  /// Checks what was added, and makes it a graph. The builder is empty afterwards.
  ///
  /// @cost    O(ops + edges log(edges of an op))
  /// @threads one thread
  /// @error   invalid_value, with the op's name in the text and its number as item: an edge from or to an op
  ///          that does not exist, a negative port, an input port with two edges, a cost that is negative or
  ///          not a number, negative bytes, a put without inputs or with outputs, a take of a value that was
  ///          not put, a stage without a name, a cycle (through stages as well); more than 2^31 - 2 ops or
  ///          edges. Throws std::bad_alloc; the builder is empty then too
  [[nodiscard]] result<flat_graph> build() {
    flat_graph g = std::exchange(graph_, flat_graph());
    const std::vector<edge_info> edges = std::exchange(edges_, {});
    constexpr std::size_t most = (std::numeric_limits<number>::max)() - 1;
    if (g.cost_.size() > most || edges.size() > most)
      return status(errc::invalid_value, "flat_graph: ops and edges must be fewer than 2^31 - 1 each");
    for (index_t v = 0; v < g.size(); ++v) {
      if (!(g.cost(v) >= 0) || !std::isfinite(g.cost(v)))
        return refuse(g, v, "a cost must be a number from 0", "");
      if (is_stage(g.kind(v)) && g.stage_of(v).empty()) return refuse(g, v, "a stage must have a name", "");
    }
    for (const edge_info& e : edges) {
      const bool starts = e.source >= 0 && e.source < g.size();
      const bool ends = e.destination >= 0 && e.destination < g.size();
      if (!starts || !ends) {
        const index_t known = starts ? e.source : ends ? e.destination : -1;
        return refuse(
            g, known, starts ? "an edge must end at an op" : "an edge must start at an op",
            "op " + std::to_string(starts ? e.destination : e.source) + " of " + std::to_string(g.size()));
      }
      if (e.bytes < 0) return refuse(g, e.source, "the bytes of a value must not be negative", "");
      if (e.control) continue;
      const auto is_port = [&](index_t p) { return p >= 0 && p <= static_cast<index_t>(most); };
      if (!is_port(e.source_port) || !is_port(e.destination_port)) {
        return refuse(g, is_port(e.source_port) ? e.destination : e.source,
                      "a port must be a number from 0 to 2^31 - 2",
                      std::to_string(is_port(e.source_port) ? e.destination_port : e.source_port));
      }
      if (g.kind(e.source) == op_kind::stage_put)
        return refuse(g, e.source, "a put must have no outputs", "it feeds " + named(g, e.destination));
      if (g.kind(e.destination) == op_kind::stage_take)
        return refuse(g, e.destination, "a take must have no inputs", "it is fed by " + named(g, e.source));
    }
    place_edges(g, edges);
    for (index_t v = 0; v < g.size(); ++v) {
      const auto in = g.in(v);
      for (std::size_t i = 1; i < in.size(); ++i) {
        const index_t port = g.destination_port(in[i]);
        if (port >= 0 && port == g.destination_port(in[i - 1])) {
          return refuse(g, v, "an input port must have one edge",
                        "port " + std::to_string(port) + " has " + named(g, g.source(in[i - 1])) + " and " +
                            named(g, g.source(in[i])));
        }
      }
    }
    if (result<void> fine = check_stages(g); !fine) return fine.fault();
    if (result<void> fine = sort_topologically(g); !fine) return fine.fault();
    return g;
  }

 private:
  static constexpr bool is_stage(op_kind kind) noexcept {
    return kind == op_kind::stage_put || kind == op_kind::stage_take || kind == op_kind::stage;
  }
  static std::string named(const flat_graph& g, index_t op) {
    std::string text = "op ";
    text += std::to_string(op);
    if (!g.name(op).empty()) (text += " '") += std::string(g.name(op)) + "'";
    return text;
  }
  static deeprec::fault refuse(const flat_graph& g, index_t op, const char* rule, const std::string& was) {
    std::string text = std::string("flat_graph: ") + rule + " (";
    if (op >= 0) text += named(g, op);
    if (op >= 0 && !was.empty()) text += ": ";
    text += was + ')';
    return {status(errc::invalid_value, fault_place{.item = op}), {}, std::move(text)};
  }

  static void place_edges(flat_graph& g, const std::vector<edge_info>& edges) {
    const std::size_t n = g.cost_.size(), m = edges.size();
    g.out_begin_.assign(n + 1, 0);
    g.in_begin_.assign(n + 1, 0);
    for (const edge_info& e : edges) {
      ++g.out_begin_[static_cast<std::size_t>(e.source) + 1];
      ++g.in_begin_[static_cast<std::size_t>(e.destination) + 1];
    }
    for (std::size_t v = 0; v < n; ++v) {
      g.out_begin_[v + 1] += g.out_begin_[v];
      g.in_begin_[v + 1] += g.in_begin_[v];
    }
    std::vector<number> by_source =
        number_lists::counted(
            n, m, [&](std::size_t i) { return edges[i].source; }, [](std::size_t i) { return i; })
            .items;
    const auto port = [](const edge_info& e) { return e.control ? index_t{-1} : e.source_port; };
    const auto less = [&](number a, number b) {
      const edge_info &x = edges[static_cast<std::size_t>(a)], &y = edges[static_cast<std::size_t>(b)];
      return port(x) != port(y) ? port(x) < port(y) : a < b;
    };
    g.from_.resize(m);
    g.from_port_.resize(m);
    g.to_.resize(m);
    g.to_port_.resize(m);
    g.bytes_.resize(m);
    g.in_.resize(m);
    std::vector<number> next(g.in_begin_.begin(), g.in_begin_.end() - 1);
    for (std::size_t v = 0; v < n; ++v) {
      const auto first = by_source.begin() + g.out_begin_[v], last = by_source.begin() + g.out_begin_[v + 1];
      if (!std::is_sorted(first, last, less)) std::sort(first, last, less);
      for (auto i = static_cast<std::size_t>(g.out_begin_[v]);
           i < static_cast<std::size_t>(g.out_begin_[v + 1]); ++i) {
        const edge_info& e = edges[static_cast<std::size_t>(by_source[i])];
        g.from_[i] = static_cast<number>(v);
        g.from_port_[i] = static_cast<number>(port(e));
        g.to_[i] = static_cast<number>(e.destination);
        g.to_port_[i] = e.control ? number{-1} : static_cast<number>(e.destination_port);
        g.bytes_[i] = e.control ? 0 : e.bytes;
        g.in_[static_cast<std::size_t>(next[static_cast<std::size_t>(e.destination)]++)] =
            static_cast<number>(i);
      }
    }
    const auto by_port = [&](number a, number b) {
      const number p = g.to_port_[static_cast<std::size_t>(a)], q = g.to_port_[static_cast<std::size_t>(b)];
      return p != q ? p < q : a < b;
    };
    for (std::size_t v = 0; v < n; ++v) {
      const auto first = g.in_.begin() + g.in_begin_[v], last = g.in_.begin() + g.in_begin_[v + 1];
      if (!std::is_sorted(first, last, by_port)) std::sort(first, last, by_port);
    }
  }

  // The input of a put at a port; -1: none.
  static index_t input_at(const flat_graph& g, index_t op, index_t port) {
    const auto in = g.in(op);
    const auto found = std::lower_bound(in.begin(), in.end(), port,
                                        [&](number e, index_t p) { return g.destination_port(e) < p; });
    return found == in.end() || g.destination_port(*found) != port ? -1 : *found;
  }

  static result<void> check_stages(const flat_graph& g) {
    const auto ends = ends_of_stages(g);
    for (const auto& [op, stage] : g.stage_ops()) {
      const auto takes_from = [&](index_t take, index_t put) -> result<void> {
        for (index_t e = g.out_begin(take); e < g.out_end(take); ++e) {
          if (g.is_control(e) || input_at(g, put, g.source_port(e)) >= 0) continue;
          return refuse(g, take, "what is taken must have been put",
                        named(g, put) + " has no input " + std::to_string(g.source_port(e)));
        }
        return {};
      };
      if (g.kind(op) != op_kind::stage_take) {
        const auto in = g.in(op);
        if (in.empty() || g.is_control(in.back()))
          return refuse(g, op, "a stage must have a value", "it has no input");
      }
      if (g.kind(op) == op_kind::stage) {
        if (result<void> fine = takes_from(op, op); !fine) return fine;
      }
      if (g.kind(op) != op_kind::stage_put) continue;
      for (const number take : ends.find(stage)->second.takes) {
        if (result<void> fine = takes_from(take, op); !fine) return fine;
      }
    }
    return {};
  }

  // The puts and the takes of each stage, by its name.
  struct stage_ends {
    std::vector<number> puts, takes;
  };
  static std::map<std::string_view, stage_ends> ends_of_stages(const flat_graph& g) {
    std::map<std::string_view, stage_ends> ends;
    for (const auto& [op, stage] : g.stage_ops()) {
      if (g.kind(op) == op_kind::stage_put) ends[stage].puts.push_back(op);
      if (g.kind(op) == op_kind::stage_take) ends[stage].takes.push_back(op);
    }
    return ends;
  }

  static result<void> sort_topologically(flat_graph& g) {
    std::vector<digraph::edge> edges;
    edges.reserve(g.from_.size());
    for (std::size_t e = 0; e < g.from_.size(); ++e) edges.push_back({g.from_[e], g.to_[e]});
    // A take comes after the puts of its stage.
    for (const auto& [stage, ends] : ends_of_stages(g)) {
      for (const number put : ends.puts) {
        for (const number take : ends.takes) edges.push_back({put, take});
      }
    }
    const digraph order_of(g.cost_.size(), edges);
    g.order_ = order_of.order_as_ready();
    if (g.order_.size() == g.cost_.size()) return {};
    const std::vector<number> cycle = order_of.cycle(g.order_);
    return refuse(g, cycle.front(), "an op must not need its own result",
                  cycle_text(cycle, [&](number op) { return named(g, op); }));
  }

  flat_graph graph_;
  std::vector<edge_info> edges_;
};

}}  // namespace deeprec::DEEPREC_ABI
