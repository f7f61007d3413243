// Which ops move before the stage, against its definition on random graphs; the cases that went wrong
// elsewhere.

#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/random_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::random_graph;

namespace {

using bits = std::vector<std::uint8_t>;
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// The definition, by a matrix of reachability. Which pairs are undone is taken from the cut.
struct definition {
  std::vector<std::pair<index_t, index_t>> edges;  // as if the undone stages were not there
  std::vector<bool> control;
  std::vector<bool> handle;  // of a table into an id lookup
  bits seed, coloured, user, moved;
  std::map<index_t, index_t> pair;  // put -> take

  definition(const flat_graph& g, const stage_cut& cut, bool data_only = false) {
    const auto n = at(g.size());
    for (index_t v = 0; v < g.size(); ++v) {
      if (cut.farthest_side[at(v)] != op_side::undone || g.kind(v) == op_kind::stage_take) continue;
      for (index_t w = 0; w < g.size(); ++w) {
        if (g.stage_of(w) == g.stage_of(v) &&
            g.kind(w) == (g.kind(v) == op_kind::stage ? op_kind::stage : op_kind::stage_take))
          pair[v] = w;
      }
    }
    const auto undone = [&](index_t v) { return cut.farthest_side[at(v)] == op_side::undone; };
    const auto join = [&](index_t u, index_t w, bool is_control) {
      if (g.kind(u) == op_kind::stage) return;  // what is taken belongs to another step
      edges.emplace_back(u, w);
      control.push_back(is_control);
      handle.push_back(g.kind(u) == op_kind::variable && g.in(u).empty() && g.kind(w) == op_kind::id_lookup);
    };
    user.assign(n, 0);
    for (index_t e = 0; e < g.edge_count(); ++e) {
      const index_t u = g.source(e), w = g.destination(e);
      if (undone(u)) continue;
      if (!undone(w)) {
        join(u, w, g.is_control(e));
      } else if (!g.is_control(e)) {
        for (index_t a = 0; a < g.edge_count(); ++a) {
          if (g.source(a) != pair.at(w) || g.source_port(a) != g.destination_port(e)) continue;
          join(u, g.destination(a), false);
        }
      }
    }
    for (const auto& [put, take] : pair) {
      for (index_t a = 0; a < g.edge_count(); ++a) {
        if (g.source(a) == take && !g.is_control(a)) user[at(g.destination(a))] = 1;
      }
    }
    // What a put needs, of whichever stage: the user runs it ahead.
    bits ahead(n);
    for (bool more = true; more;) {
      more = false;
      for (index_t e = 0; e < g.edge_count(); ++e) {
        const op_kind to = g.kind(g.destination(e));
        const bool put = to == op_kind::stage_put || to == op_kind::stage;
        if (ahead[at(g.source(e))] != 0 || (!put && ahead[at(g.destination(e))] == 0)) continue;
        ahead[at(g.source(e))] = 1;
        more = true;
      }
    }
    seed.assign(n, 0);
    for (index_t v = 0; v < g.size(); ++v) {
      const op_kind k = g.kind(v);
      const op_effects f = g.effects(v);
      seed[at(v)] =
          !undone(v) && (k == op_kind::variable || k == op_kind::placeholder || k == op_kind::control_flow ||
                         has_effect(f, op_effects::writes | op_effects::target) ||
                         (has_effect(f, op_effects::external) && ahead[at(v)] == 0) ||
                         (has_effect(f, op_effects::reads) && k != op_kind::id_lookup));
    }
    // Reachability, by squaring.
    std::vector<bits> reach(n, bits(n)), all(n, bits(n));
    for (std::size_t e = 0; e < edges.size(); ++e) {
      all[at(edges[e].first)][at(edges[e].second)] = 1;
      if (!handle[e] && !(data_only && control[e])) reach[at(edges[e].first)][at(edges[e].second)] = 1;
    }
    for (std::vector<bits>* m : {&reach, &all}) {
      for (std::size_t k = 0; k < n; ++k) {
        for (std::size_t i = 0; i < n; ++i) {
          if ((*m)[i][k] == 0) continue;
          for (std::size_t j = 0; j < n; ++j) (*m)[i][j] |= (*m)[k][j];
        }
      }
    }
    coloured = seed;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n && seed[i] != 0; ++j) coloured[j] |= reach[i][j];
    }
    moved.assign(n, 0);
    for (std::size_t i = 0; i < n; ++i) {
      if (user[i] == 0) continue;
      moved[i] = coloured[i] == 0;
      for (std::size_t j = 0; j < n; ++j) moved[j] |= all[i][j] != 0 && coloured[j] == 0;
    }
  }
};

bits moved_of(const stage_cut& cut) {
  bits in;
  for (const op_side s : cut.farthest_side) in.push_back(s == op_side::moved ? 1 : 0);
  return in;
}

/// What an applied cut must look like; empty: it does.
std::string wrong_with(const flat_graph& before, const staged_graph& after) {
  const flat_graph& g = after.graph;
  bits earlier(at(g.size()));  // before a stage that stayed
  for (const auto& [op, name] : g.stage_ops()) {
    if (g.kind(op) == op_kind::stage_take || std::count(after.puts.begin(), after.puts.end(), op) != 0)
      continue;
    earlier[at(op)] = 1;
  }
  for (std::size_t i = g.order().size(); i-- > 0;) {
    const index_t v = g.order()[i];
    if (earlier[at(v)] == 0) continue;
    for (const std::int32_t e : g.in(v)) earlier[at(g.source(e))] = 1;
  }
  // What the puts need is one side, handles and constants apart.
  bits staged(at(g.size()));
  std::vector<index_t> open;
  for (const index_t put : after.puts) {
    staged[at(put)] = 1;
    open.push_back(put);
  }
  const auto handle = [&](index_t v) { return g.kind(v) == op_kind::variable && g.in(v).empty(); };
  while (!open.empty()) {
    const index_t v = open.back();
    open.pop_back();
    if (g.kind(v) == op_kind::stage) continue;
    for (const std::int32_t e : g.in(v)) {
      const index_t u = g.source(e);
      if (handle(u) || staged[at(u)] != 0 || earlier[at(u)] != 0) continue;
      staged[at(u)] = 1;
      open.push_back(u);
    }
  }
  std::set<std::pair<index_t, index_t>> crossing;
  for (index_t e = 0; e < g.edge_count(); ++e) {
    const index_t u = g.source(e), w = g.destination(e);
    const bool is_put = std::count(after.puts.begin(), after.puts.end(), w) != 0;
    if (is_put && !g.is_control(e) && !crossing.insert({u, g.source_port(e)}).second)
      return "a value crosses twice: " + std::string(g.name(u));
    if (staged[at(u)] != 0 && staged[at(w)] == 0 && earlier[at(w)] == 0)
      return "an edge leaves the staged part beside its put: " + std::string(g.name(u)) + " to " +
             std::string(g.name(w));
  }
  // Every op is there once, constants at most twice.
  std::map<index_t, int> times;
  for (const index_t v : after.origin) ++times[v];
  for (index_t v = 0; v < before.size(); ++v) {
    if (times[v] > (before.kind(v) == op_kind::constant ? 2 : 1)) return "an op is there twice";
  }
  return {};
}

struct small_graph {
  flat_graph_builder b;
  std::map<std::string, index_t> number;
  std::map<index_t, index_t> inputs;
  std::vector<std::string> names;

  small_graph& op(const std::string& name, const std::vector<std::string>& from = {}, op_info what = {}) {
    names.push_back(name);
    what.name = name;
    const index_t v = number[name] = b.add(what);
    for (const std::string& f : from) edge(f, v);
    return *this;
  }
  // "x", "x:1", "^x"
  void edge(const std::string& from, index_t to) {
    if (from[0] == '^') {
      b.control(number.at(from.substr(1)), to);
      return;
    }
    const std::size_t colon = from.find(':');
    const index_t port = colon == std::string::npos ? 0 : std::stoi(from.substr(colon + 1));
    b.connect(number.at(from.substr(0, colon)), port, to, inputs[to]++, 16);
  }
  // The user's stage: "io" is its take, "io_put" its put.
  small_graph& stage(const std::string& name, const std::vector<std::string>& values) {
    const std::string stage = name;
    names.push_back(name);
    op(name + "_put", values, {.kind = op_kind::stage_put, .stage = stage});
    return op(name, {}, {.kind = op_kind::stage_take, .stage = stage});
  }
  flat_graph build() { return b.build().or_throw(); }
};

std::string staged_names(const flat_graph& g, const stage_cut& cut) {
  std::string text;
  for (const index_t v : cut.staged_ops()) (text += text.empty() ? "" : " ") += std::string(g.name(v));
  return text;
}
std::string values_of(const flat_graph& g, const stage_cut& cut) {
  std::string text;
  for (const staged_value& v : cut.values) {
    (text += text.empty() ? "" : " ") += std::string(g.name(v.source));
    if (v.source_port != 0) text += ":" + std::to_string(v.source_port);
  }
  return text;
}
stage_cut farthest(const flat_graph& g) { return smart_stage(g, {.rule = stage_rule::farthest}).or_throw(); }
const op_info variable{.kind = op_kind::variable};
const op_info target{.effects = op_effects::target};

/// A ladder: two ops in each layer, each read by both of the next.
flat_graph ladder(index_t layers, bool variable_first) {
  flat_graph_builder b;
  b.reserve(2 * layers + 5, 4 * layers + 5);
  const index_t read = b.add({.name = "read"});
  const index_t put = b.add({.name = "put", .kind = op_kind::stage_put, .stage = "io"});
  const index_t take = b.add({.name = "take", .kind = op_kind::stage_take, .stage = "io"});
  b.connect(read, 0, put, 0);
  index_t left = take, right = take;
  if (variable_first) right = b.add({.name = "variable", .kind = op_kind::variable});
  for (index_t l = 0; l < layers; ++l) {
    const index_t a = b.add({.cost = 1}), c = b.add({.cost = 1});
    for (const index_t v : {a, c}) {
      b.connect(left, 0, v, 0, 8);
      b.connect(right, 0, v, 1, 8);
    }
    left = a, right = c;
  }
  const index_t end = b.add({.name = "end", .effects = op_effects::target});
  b.connect(left, 0, end, 0, 8);
  b.connect(right, 0, end, 1, 8);
  return b.build().or_throw();
}

}  // namespace

TEST_CASE("smart_stage: the example of its header") {
  flat_graph_builder b;
  const index_t read = b.add({.name = "read", .cost = 4});
  const index_t put = b.add({.name = "io_put", .kind = op_kind::stage_put, .stage = "io"});
  const index_t take = b.add({.name = "io_take", .kind = op_kind::stage_take, .stage = "io"});
  const index_t hash = b.add({.name = "hash", .cost = 2}), bucket = b.add({.name = "bucket", .cost = 1});
  const index_t table = b.add({.name = "table", .kind = op_kind::variable});
  const index_t lookup = b.add({.name = "lookup", .cost = 9});
  b.connect(read, 0, put, 0, 4096);
  b.connect(take, 0, hash, 0, 4096);
  b.connect(hash, 0, bucket, 0, 1024);
  b.connect(bucket, 0, lookup, 0, 512);
  b.connect(table, 0, lookup, 1);
  /// [smart_stage]
  const flat_graph graph = b.build().or_throw();
  const stage_cut cut = smart_stage(graph, {.cost_per_byte = 0.001}).or_throw();
  const std::string words = explain(graph, cut);
  const staged_graph staged = apply_cut(graph, cut).or_throw();
  /// [smart_stage]
  CHECK(staged_names(graph, cut) == "read hash bucket");
  CHECK(values_of(graph, cut) == "bucket");
  CHECK(words ==
        "smart_stage: stage 'io': 2 ops moved before the cut, 1 value of 512 bytes crosses\n"
        "  moved: 'hash', 'bucket'\n"
        "  chosen, the farthest cut: stage 7, rest 9, 512 bytes, price 9.512\n"
        "  the farthest cut: stage 7, rest 9, 512 bytes, price 9.512\n"
        "  the user's cut: stage 4, rest 12, 4096 bytes, price 16.1\n"
        "  the staged part is placed on the CPU\n"
        "  stays: 'lookup', which is reached from 'table' (a variable)\n");
  CHECK(wrong_with(graph, staged).empty());
  CHECK(staged.graph.size() == graph.size());
  CHECK(why_stays(graph, cut, lookup) == "is reached from 'table' (a variable)");
  CHECK(why_stays(graph, cut, table) == "a variable");
  for (const index_t op : {read, put, take, hash, bucket}) CHECK(why_stays(graph, cut, op).empty());
}

TEST_CASE("smart_stage P1, P2, P3: the definition, validity and maximality on random graphs") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  int cuts = 0, without_control = 0, twice_seen = 0, joined = 0, kept = 0, lookups = 0, with_constants = 0;
  for (int round = 0; round < 6000; ++round) {
    const flat_graph g = deeprec_test::wild_graph(random, 26, false).flat().or_throw();
    const stage_cut cut = farthest(g);
    const definition oracle(g, cut);
    kept += cut.kept.empty() ? 0 : 1;
    CHECK(moved_of(cut) == oracle.moved);  // P1
    without_control += definition(g, cut, true).moved != oracle.moved ? 1 : 0;
    for (index_t v = 0; v < g.size(); ++v) {
      if (cut.side[at(v)] == op_side::undone) continue;
      const std::vector<index_t> path = barrier_path(cut, v);
      if (cut.farthest_side[at(v)] != op_side::undone && path.empty() == (oracle.coloured[at(v)] != 0))
        FAIL("colour of op " << v);
      if (path.empty()) continue;
      CHECK(oracle.seed[at(path.front())] != 0);
      for (std::size_t i = 1; i < path.size(); ++i) {
        if (std::count(oracle.edges.begin(), oracle.edges.end(), std::pair(path[i - 1], path[i])) == 0)
          FAIL("path");
      }
    }
    if (!cut.changes()) {
      CHECK(!cut.reason.empty());
      CHECK(apply_cut(g, cut).or_throw().graph.edge_count() == g.edge_count());
      continue;
    }
    ++cuts;
    // P2. What is staged needs nothing that is not, but handles and constants, and what an earlier stage has.
    std::set<std::pair<index_t, index_t>> values;
    for (std::size_t e = 0; e < oracle.edges.size(); ++e) {
      const auto [u, w] = oracle.edges[e];
      const op_side from = cut.side[at(u)], to = cut.side[at(w)];
      const bool free = (g.kind(u) == op_kind::variable && g.in(u).empty()) || from == op_side::constant ||
                        from == op_side::earlier;
      if (is_before_cut(to) && !is_before_cut(from) && !free)
        FAIL("op " << w << " needs op " << u << " side " << int(from) << " kind " << int(g.kind(u))
                   << " to kind " << int(g.kind(w)) << " to side " << int(to) << "\n"
                   << explain(g, cut));
      lookups += oracle.handle[e] && is_before_cut(to) ? 1 : 0;
      // P3. Whoever uses a staged value, and is not staged, is coloured, or no op after the user's stage.
      if (is_before_cut(from) && to == op_side::rest && oracle.coloured[at(w)] == 0) {
        CHECK(from != op_side::moved);
        CHECK(oracle.user[at(w)] == 0);
      }
    }
    for (const staged_value& v : cut.values) {
      CHECK(values.insert({v.source, v.source_port}).second);
      CHECK(is_before_cut(cut.side[at(v.source)]));
    }
    joined += cut.stages.size() == 1 && cut.stages[0].puts.size() > 1 ? 1 : 0;
    const result<staged_graph> staged = apply_cut(g, cut);
    if (!staged) FAIL(staged.fault().message());
    const std::string wrong = wrong_with(g, staged.value());
    if (!wrong.empty()) FAIL(wrong << "\n" << explain(g, cut));
    with_constants += staged.value().graph.size() > g.size() ? 1 : 0;
    // The check can fail: a value that is put twice is found.
    const flat_graph& s = staged.value().graph;
    flat_graph_builder twice;
    for (index_t v = 0; v < s.size(); ++v) twice.add(s.op(v));
    index_t ports = 0;
    for (index_t e = 0; e < s.edge_count(); ++e) {
      twice.add(s.edge(e));
      if (s.destination(e) == staged.value().puts[0]) ports = std::max(ports, s.destination_port(e) + 1);
    }
    const index_t first = s.source(s.in(staged.value().puts[0]).back());
    twice.connect(first, s.source_port(s.in(staged.value().puts[0]).back()), staged.value().puts[0], ports);
    staged_graph broken = staged.value();
    broken.graph = twice.build().or_throw();
    twice_seen += wrong_with(g, broken).find("twice") != std::string::npos ? 1 : 0;
  }
  CHECK(cuts > 500);
  CHECK(twice_seen == cuts);
  CHECK(without_control > 20);  // a colouring that ignores control edges is caught
  CHECK(joined > 0);
  CHECK(kept > 100);
  CHECK(lookups > 10);
  CHECK(with_constants > 10);
}

TEST_CASE("hazard H2: where no value would cross, the graph stays as it is") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("parse", {"io"}).op("loss", {"parse"});
  const flat_graph g = s.build();
  for (const stage_rule rule : {stage_rule::farthest, stage_rule::balanced}) {
    const stage_cut cut = smart_stage(g, {.rule = rule}).or_throw();
    CHECK(!cut.changes());
    CHECK(cut.reason.find("no value would cross") == 0);
    CHECK(cut.reason.find("targets") != std::string::npos);
    const staged_graph same = apply_cut(g, cut).or_throw();
    CHECK(same.graph.size() == g.size());
    CHECK(same.graph.edge_count() == g.edge_count());
    CHECK(same.puts.empty());
  }
  small_graph none;
  none.op("read").op("loss", {"read"}, target);
  CHECK(farthest(none.build()).reason == "the graph has no stage");
}

TEST_CASE("hazard H3: everything that a staged value needs is placed on the CPU") {
  const op_info device{.place = op_place::device};
  small_graph s;
  s.op("seed", {}, {.kind = op_kind::constant}).op("read", {"seed"}, device).stage("io", {"read"});
  s.op("table", {}, variable)
      .op("hash", {"io", "seed"}, device)
      .op("lookup", {"hash", "table", "seed"}, device);
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  const staged_graph staged = apply_cut(g, cut).or_throw();
  std::map<std::string, op_place> place;
  for (index_t v = 0; v < staged.graph.size(); ++v)
    place[std::string(staged.graph.name(v))] = staged.graph.place(v);
  CHECK(place.at("read") == op_place::cpu);
  CHECK(place.at("hash") == op_place::cpu);
  CHECK(place.at("put io") == op_place::cpu);
  CHECK(place.at("seed_duplicate") == op_place::cpu);
  CHECK(place.at("seed") == op_place::any);
  CHECK(place.at("lookup") == op_place::device);
  CHECK(explain(g, cut).find("on the CPU, also 'read', 'hash', placed elsewhere before") !=
        std::string::npos);
  const stage_cut left = smart_stage(g, {.staged_place = op_place::any}).or_throw();
  CHECK(apply_cut(g, left).or_throw().graph.place(s.number.at("read")) == op_place::device);
}

TEST_CASE(
    "smart_stage P5: a consumer of the stage that reads a variable itself leaves the cut at the user's "
    "boundary") {
  small_graph s;
  s.op("read")
      .op("table", {}, variable)
      .stage("io", {"read"})
      .op("lookup", {"io", "table"})
      .op("loss", {"lookup"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(staged_names(g, cut) == "read");
  CHECK(values_of(g, cut) == "read");
  CHECK(apply_cut(g, cut).or_throw().graph.edge_count() == g.edge_count());
}

TEST_CASE("smart_stage P5: a target inside of the region stops the cut") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("parse", {"io"}).op("hash", {"parse"}, target).op("count", {"hash"});
  const flat_graph g = s.build();
  CHECK(staged_names(g, farthest(g)) == "read parse");
}

TEST_CASE(
    "smart_stage P5: a control edge carries the colour, and over the cut it becomes one from the take") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("table", {}, variable).op("sum", {"table"});
  s.op("hash", {"io", "^sum"}).op("parse", {"io"}).op("log", {"sum", "^parse"}).op("end", {"hash", "parse"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(staged_names(g, cut) == "read parse");
  CHECK(values_of(g, cut) == "read parse");
  const staged_graph staged = apply_cut(g, cut).or_throw();
  CHECK(wrong_with(g, staged).empty());
  const index_t log = s.number.at("log") - 2;  // the put and the take before it are gone
  REQUIRE(staged.graph.name(log) == "log");
  CHECK(staged.graph.source(staged.graph.in(log)[0]) == staged.takes[0]);
  CHECK(staged.graph.is_control(staged.graph.in(log)[0]));
}

TEST_CASE("smart_stage P5: stages side by side move each for itself, and become one where they meet") {
  small_graph apart;
  apart.op("a").op("b").op("table", {}, variable).stage("io", {"a"}).stage("aux", {"b"});
  apart.op("x", {"io"}).op("y", {"aux"}).op("lookup", {"x", "y", "table"});
  const flat_graph g = apart.build();
  const stage_cut cut = farthest(g);
  REQUIRE(cut.stages.size() == 2);
  CHECK(cut.stages[0].name == "io");
  CHECK(cut.stages[1].name == "aux");
  CHECK(staged_names(g, cut) == "a b x y");
  CHECK(wrong_with(g, apply_cut(g, cut).or_throw()).empty());
  small_graph meeting;
  meeting.op("a").op("b").op("table", {}, variable).stage("io", {"a"}).stage("aux", {"b"});
  meeting.op("x", {"io", "aux"}).op("lookup", {"x", "table"});
  const flat_graph h = meeting.build();
  const stage_cut one = farthest(h);
  REQUIRE(one.stages.size() == 1);
  CHECK(one.stages[0].name == "io+aux");
  CHECK(values_of(h, one) == "x");
}

TEST_CASE("smart_stage P5: of stages in a line only the last one moves") {
  small_graph s;
  s.op("read")
      .stage("io", {"read"})
      .op("parse", {"io"})
      .stage("pre", {"parse"})
      .op("hash", {"pre"})
      .op("end", {"hash"}, target);
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  REQUIRE(cut.kept.size() == 1);
  CHECK(cut.kept[0].name == "io");
  CHECK(cut.kept[0].reason == "another stage comes after it, and only the last one moves");
  CHECK(staged_names(g, cut) == "io parse hash");
  CHECK(cut.side[at(s.number.at("read"))] == op_side::earlier);
}

TEST_CASE("smart_stage P5: a constant that feeds both sides is there twice, not staged") {
  small_graph s;
  s.op("read").op("ten", {}, {.kind = op_kind::constant}).stage("io", {"read"}).op("table", {}, variable);
  s.op("mod", {"io", "ten"}).op("lookup", {"mod", "ten", "table"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(values_of(g, cut) == "mod");
  const staged_graph staged = apply_cut(g, cut).or_throw();
  CHECK(staged.graph.size() == g.size() + 1);
  CHECK(staged.graph.name(staged.graph.size() - 1) == "ten_duplicate");
  CHECK(staged.origin.back() == s.number.at("ten"));
}

TEST_CASE("smart_stage P5: a diamond with one coloured branch crosses on both") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("parse", {"io"}).op("table", {}, variable);
  s.op("left", {"parse"}).op("right", {"parse", "table"}).op("join", {"left", "right"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(staged_names(g, cut) == "read parse left");
  CHECK(values_of(g, cut) == "parse left");
}

TEST_CASE("smart_stage: an id lookup of a growing table moves, unless its ids are coloured") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("table", {}, variable).op("salt", {"table"});
  s.op("slots", {"io", "table"}, {.kind = op_kind::id_lookup}).op("rows", {"slots", "table"});
  s.op("salted", {"io", "salt"}).op("others", {"salted", "table"}, {.kind = op_kind::id_lookup});
  s.op("end", {"rows", "others"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(staged_names(g, cut) == "read slots");
  CHECK(wrong_with(g, apply_cut(g, cut).or_throw()).empty());
}

TEST_CASE("smart_stage: a stage stays where the rest reads beside it what a variable reaches") {
  small_graph s;
  s.op("table", {}, variable)
      .op("sum", {"table"})
      .stage("io", {"sum"})
      .op("x", {"io"})
      .op("end", {"x", "sum"});
  const flat_graph g = s.build();
  const stage_cut cut = farthest(g);
  CHECK(!cut.changes());
  REQUIRE(cut.kept.size() == 1);
  CHECK(cut.kept[0].reason.find("beside the stage") != std::string::npos);
}

TEST_CASE("smart_stage P6: each edge is followed once, also on a ladder") {
  // The same with marks on pop, as upstream: pops double with each layer.
  const auto pops_marked_late = [](index_t layers) {
    const flat_graph g = ladder(layers, true);
    bits done(at(g.size()));
    std::vector<index_t> queue{3};
    std::size_t pops = 0;
    for (; pops < queue.size() && pops < 3'000'000; ++pops) {
      const index_t v = queue[pops];
      done[at(v)] = 1;
      for (index_t e = g.out_begin(v); e < g.out_end(v); ++e) {
        if (done[at(g.destination(e))] == 0) queue.push_back(g.destination(e));
      }
    }
    return pops;
  };
  CHECK(pops_marked_late(10) > 1000);
  CHECK(pops_marked_late(20) > 1'000'000);
  const index_t layers = 100'000;
  CHECK(farthest(ladder(layers, true)).staged_ops().size() == 1);
  const stage_cut cut = farthest(ladder(layers, false));
  CHECK(cut.staged_ops().size() == at(2 * layers + 1));
  CHECK(cut.values.size() == 2);
}

TEST_CASE("smart_stage: options and a cut of another graph are refused") {
  small_graph s;
  s.op("read").stage("io", {"read"}).op("end", {"io"}, target);
  const flat_graph g = s.build();
  CHECK(smart_stage(g, {.cost_per_byte = -1}).code() == errc::invalid_value);
  CHECK(smart_stage(g, {.stage_threads = 0}).code() == errc::invalid_value);
  CHECK(apply_cut(ladder(3, false), smart_stage(g).or_throw()).code() == errc::shape_mismatch);
}

TEST_CASE("smart_stage: broken and unbroken random graphs pass through every pass") {
  std::mt19937_64 random(deeprec_test::seed() + 2);
  index_t changed = 0;
  for (int round = 0; round < 20'000; ++round) {
    const result<flat_graph> g = deeprec_test::wild_graph(random, 22, round % 2 == 0).flat();
    if (!g) continue;
    const smart_stage_options options{.rule = round % 3 == 0 ? stage_rule::farthest : stage_rule::balanced,
                                      .cost_per_byte = static_cast<double>(random() % 8) * 0.2,
                                      .stage_threads = 1 + static_cast<int>(random() % 3)};
    const stage_cut cut = smart_stage(g.value(), options).or_throw();
    if (cut.cost.price > cut.farthest_cost.price) FAIL("price above that of the farthest cut");
    const result<staged_graph> staged = apply_cut(g.value(), cut);
    if (!staged) FAIL(staged.fault().message() << "\n" << explain(g.value(), cut));
    const std::string wrong = cut.changes() ? wrong_with(g.value(), staged.value()) : std::string();
    if (!wrong.empty()) FAIL(wrong << "\n" << explain(g.value(), cut));
    if (explain(g.value(), cut).find("smart_stage: ") != 0) FAIL("no words");
    for (index_t v = 0; v < g.value().size(); ++v) {
      const op_side side = cut.side[static_cast<std::size_t>(v)];
      if (cut.changes() && side == op_side::rest && why_stays(g.value(), cut, v).empty())
        FAIL("no reason for op " << v);
      if (is_before_cut(side) && !why_stays(g.value(), cut, v).empty()) FAIL("a reason for op " << v);
    }
    changed += cut.changes() ? 1 : 0;
  }
  CHECK(changed > 1000);
}
