// What a step graph accepts, what it refuses and names, and what its flat form is.

#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/step_graph.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

struct add_one {
  static constexpr const char* kind = "add one";
  using output = int;
  double scale = 1.5;
  std::string name = "a \"b\"";
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("scale", scale);
    visit("name", name);
    visit("deep", true);
  }
  void operator()(const int& in, int& out) const { out = in + 1; }
};
struct find_ids {
  static constexpr bool id_lookup = true;
  using outputs = op_outputs<int, long>;
  void operator()(const int& in, const int&, int& out, long& more) const { out = in, more = in; }
};
struct change {
  void operator()(const int& in, int& it) const { it += in; }
};
struct look {
  using output = int;
  void operator()(const int& it, int& out) const { out = it; }
};
struct both {
  void operator()(const int&, int&) const {}
};

/// check() refuses with the number and the name of the op, and these words.
void refuses(const step_graph& g, index_t op, const std::string& words) {
  CAPTURE(words);
  const result<void> checked = g.check();
  REQUIRE(!checked);
  const std::string text = checked.fault().message();
  CAPTURE(text);
  CHECK(checked.code() == errc::invalid_value);
  CHECK(checked.fault().place().item == op);
  CHECK(text.find(words) != std::string::npos);
  CHECK(text.find("op " + std::to_string(op) + " '" + std::string(g.name(op)) + "'") != std::string::npos);
  CHECK(explain(g).size() > 20);  // of a wrong graph as well
  CHECK(graphviz(g).starts_with("digraph"));
}

}  // namespace

TEST_CASE("step_graph: a graph, flat and in words") {
  //! [step_graph]
  step_graph g;
  int held = 0;
  const auto table = g.variable("table", held);
  const auto read = g.source<int>("read", [](int& out) { return out = 1, true; });
  const auto staged = g.stage("io", read);
  const auto more = g.add("more", add_one{}, staged);
  const auto ids = g.add("ids", find_ids{}, more, g.read(table));
  g.add(
       "update", [](const int& by, int& it) { it += by; }, ids.get<0>(), g.write(table))
      .role(op_role::apply)
      .on(op_place::cpu)
      .cost(2e-6)
      .target();
  const std::string words = explain(g);
  const flat_graph flat = g.flat().or_throw();
  //! [step_graph]
  CHECK(words ==
        "step_graph: 6 ops\n"
        "  0 'table': variable\n"
        "  1 'read': source, external\n"
        "  2 'io': stage of 'read'\n"
        "  3 'more': add one (scale = 1.5, name = a \"b\", deep = true) of 'io'\n"
        "  4 'ids': opaque of 'more', reads 'table', id lookup\n"
        "  5 'update': opaque of 'ids'.0, writes 'table', apply, on the CPU, target, 2 us\n");
  CHECK(flat.size() == g.size());
  CHECK(flat.name(3) == "more");
  CHECK(flat.kind(0) == op_kind::variable);
  CHECK(flat.kind(2) == op_kind::stage);
  CHECK(flat.stage_of(2) == "io");
  CHECK(flat.kind(4) == op_kind::id_lookup);
  CHECK(flat.place(5) == op_place::cpu);
  CHECK(flat.cost(5) == 2e-6);
  CHECK(flat.effects(1) == op_effects::external);
  CHECK(flat.effects(4) == op_effects::reads);
  CHECK(flat.effects(5) == (op_effects::writes | op_effects::target));
  CHECK(flat.edge_count() == 7);  // six inputs, and update after ids
  CHECK(flat.is_control(flat.in(5)[0]));
  CHECK(flat.source(flat.in(5)[0]) == ids.op());
  CHECK(g.is_run(3));
  CHECK(!g.is_run(2));
  CHECK(g.kind_name(3) == "add one");
  // The id lookup is moved along: it reads no row.
  const stage_cut cut = smart_stage(flat).or_throw();
  CHECK(cut.staged_ops() == std::vector<index_t>{1, 3, 4});
  CHECK(apply_cut(flat, cut).ok());
}

TEST_CASE("step_graph: graphviz escapes names, and shows variables, writes and the staged side") {
  step_graph g;
  int held = 0;
  const auto table = g.variable("a \"table\"", held);
  const auto read = g.source<int>("line\nbreak \\", [](int&) { return false; });
  const auto more = g.add(add_one{}, g.stage("io", read));
  g.add("update", change{}, more, g.write(table)).target();
  const std::string mine = graphviz(g);
  CHECK(mine.find("n0 [label=\"a \\\"table\\\"\\nvariable\", shape=box]") != std::string::npos);
  CHECK(mine.find("label=\"line\\nbreak \\\\\\nsource\"") != std::string::npos);
  CHECK(mine.find("n4 -> n0 [color=red]") != std::string::npos);
  const auto cluster = [](const std::string& dot) {
    const std::size_t from = dot.find("subgraph cluster_staged");
    return from == std::string::npos ? std::string() : dot.substr(from, dot.find("  }\n", from) - from);
  };
  CHECK(cluster(mine).find("n1 ") != std::string::npos);
  CHECK(cluster(mine).find("n3 ") == std::string::npos);
  const std::string moved = graphviz(g, smart_stage(g.flat().or_throw()).or_throw());
  CHECK(cluster(moved).find("n3 ") != std::string::npos);
  CHECK(cluster(moved).find("n4 ") == std::string::npos);
  // Balanced quotes: an even number that no backslash precedes.
  std::size_t quotes = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] == '\\') {
      ++i;
    } else if (mine[i] == '"') {
      ++quotes;
    }
  }
  CHECK(quotes % 2 == 0);
}

TEST_CASE("step_graph: bytes are those of the value, through a stage") {
  step_graph g;
  const auto read = g.source<int>("read", [](int&) { return false; });
  const auto more = g.add("more", add_one{}, g.stage("io", read));
  g.set_bytes(read.op(), 0, 400);
  g.set_cost(more.op(), 3);
  const flat_graph flat = g.flat().or_throw();
  for (index_t e = 0; e < flat.edge_count(); ++e) CHECK(flat.bytes(e) == 400);
  CHECK(flat.cost(more.op()) == 3);
  CHECK(g.bytes(read.op(), 0) == 400);
}

TEST_CASE("step_graph: a graph may move, and handles with it") {
  step_graph g;
  const auto read = g.source<int>("read", [](int&) { return false; });
  step_graph moved = std::move(g);
  const auto more = moved.add("more", add_one{}, read);
  more.target();
  CHECK(moved.check().ok());
  CHECK(has_effect(moved.flat().or_throw().effects(more.op()), op_effects::target));
}

TEST_CASE("step_graph: a handle of another graph, and one of none") {
  step_graph g, other;
  int held = 0;
  const auto theirs = other.source<int>("theirs", [](int&) { return false; });
  const auto variable_of_theirs = other.variable("v", held);
  const auto mine = g.source<int>("mine", [](int&) { return false; });
  SUBCASE("a value") {
    g.add("op", add_one{}, theirs);
    refuses(g, 1, "input 0 is of another graph");
  }
  SUBCASE("a variable") {
    g.add("op", change{}, mine, g.write(variable_of_theirs));
    refuses(g, 1, "input 1 is of another graph");
  }
  SUBCASE("a missing value") {
    g.add("op", add_one{}, value<int>());
    refuses(g, 1, "input 0 is missing");
  }
  SUBCASE("in a stage") {
    g.stage("io", mine, value<int>());
    refuses(g, 1, "input 1 is missing");
  }
  SUBCASE("to wait for") {
    g.add("op", add_one{}, mine).after(theirs);
    refuses(g, 1, "an op must run after ops of this graph");
  }
}

TEST_CASE("step_graph: two sources; a source that waits") {
  step_graph g;
  const auto first = g.source<int>("first", [](int&) { return false; });
  SUBCASE("two") {
    g.source<int>("second", [](int&) { return false; });
    refuses(g, 1, "a graph must have one source");
  }
  SUBCASE("waits") {
    const auto op = g.add("op", add_one{}, g.constant("one", 1));
    first.after(op);
    refuses(g, 0, "a source must begin the step");
  }
}

TEST_CASE("step_graph: a cycle through after()") {
  step_graph g;
  const auto one = g.constant("one", 1);
  const auto a = g.add("a", add_one{}, one);
  const auto b = g.add("b", add_one{}, a);
  a.after(b);
  refuses(g, 1, "(op 1 'a': op 1 'a' -> op 2 'b' -> op 1 'a')");
}

TEST_CASE("step_graph: a variable twice in one op") {
  step_graph g;
  int held = 0;
  const auto v = g.variable("v", held);
  const auto same = g.variable("same", held);
  SUBCASE("read and written") {
    g.add("op", both{}, g.read(v), g.write(v));
    refuses(g, 2, "'v' twice");
  }
  SUBCASE("by two names") {
    g.add("op", both{}, g.read(v), g.accumulate(same));
    refuses(g, 2, "'same' twice");
  }
  SUBCASE("read twice") {
    g.add("op", [](const int&, const int&) {}, g.read(v), g.read(same));
    CHECK(g.check().ok());
  }
}

TEST_CASE("step_graph: roles") {
  step_graph g;
  int held = 0;
  const auto v = g.variable("v", held);
  const auto a = g.add("a", look{}, g.read(v));
  const auto b = g.add("b", add_one{}, a);
  SUBCASE("forward from gradient") {
    a.role(op_role::gradient);
    refuses(g, 2, "a forward op must not need what a gradient or an apply op makes");
  }
  SUBCASE("gradient from apply") {
    const auto c = g.add<int>("c", [](int& it, int& out) { out = it; }, g.write(v)).role(op_role::apply);
    const auto d = g.add("d", add_one{}, c).role(op_role::gradient);
    refuses(g, d.op(), "a gradient op must not need what an apply op makes");
  }
  SUBCASE("apply without a write") {
    b.role(op_role::apply);
    refuses(g, 2, "an apply op must write a variable");
  }
  SUBCASE("a legal order") {
    b.role(op_role::gradient);
    g.add("c", change{}, b, g.accumulate(v)).role(op_role::apply);
    CHECK(g.check().ok());
  }
}

TEST_CASE("step_graph: windows, costs and sizes") {
  step_graph g;
  int held = 0;
  const auto v = g.variable("v", held);
  SUBCASE("a window") {
    g.add("op", look{}, g.stale_read(v, 0));
    refuses(g, 1, "that of 'v' is 0");
  }
  SUBCASE("a cost") {
    g.add("op", look{}, g.read(v)).cost(-1);
    refuses(g, 1, "a cost must be a number from 0");
  }
  SUBCASE("a size") {
    const auto op = g.add("op", look{}, g.read(v));
    g.add("user", add_one{}, op);
    g.set_bytes(op.op(), 0, -1);
    refuses(g, 1, "must not be negative");
  }
}

TEST_CASE("hazard H2: a step graph refuses a stage of nothing") {
  step_graph g;
  const auto read = g.source<int>("read", [](int&) { return false; });
  SUBCASE("of nothing") {
    g.stage("io");
    refuses(g, 1, "a stage must have a value");
  }
  SUBCASE("of an empty list") {
    g.stage("io", std::vector<value<int>>());
    refuses(g, 1, "a stage must have a value");
  }
  SUBCASE("one name twice") {
    g.stage("io", read);
    g.stage("io", read);
    refuses(g, 2, "stages must have different names");
  }
}

TEST_CASE("step_graph: what two sides of a stage must not share") {
  step_graph g;
  int held = 0;
  const auto v = g.variable("v", held);
  const auto read = g.source<int>("read", [](int&) { return false; });
  SUBCASE("read before, written behind") {
    const auto before =
        g.add<int>("before", [](const int&, const int& it, int& o) { o = it; }, read, g.read(v));
    g.add("behind", change{}, g.stage("io", before), g.write(v));
    refuses(g, before.op(), "op 4 'behind' behind it writes 'v'");
  }
  SUBCASE("written before, read behind") {
    const auto before = g.add<int>("before", [](const int&, int& it, int& o) { o = ++it; }, read, g.write(v));
    g.add<int>("behind", [](const int&, const int& it, int& o) { o = it; }, g.stage("io", before), g.read(v));
    refuses(g, before.op(), "op 4 'behind' behind it reads 'v'");
  }
  SUBCASE("an id lookup before") {
    const auto before = g.add("before", find_ids{}, read, g.read(v));
    g.add("behind", change{}, g.stage("io", before.get<0>()), g.write(v));
    CHECK(g.check().ok());
  }
  SUBCASE("both read") {
    const auto before =
        g.add<int>("before", [](const int&, const int& it, int& o) { o = it; }, read, g.read(v));
    g.add<int>("behind", [](const int&, const int& it, int& o) { o = it; }, g.stage("io", before), g.read(v));
    CHECK(g.check().ok());
  }
  SUBCASE("a placeholder before") {
    const auto before = g.add("before", add_one{}, g.placeholder<int>("fed"));
    g.stage("io", before);
    refuses(g, before.op(), "an op before a cut must not need a placeholder");
  }
  SUBCASE("external on both sides") {
    const auto before = g.add("before", add_one{}, read).external();
    const auto behind = g.add("behind", add_one{}, g.stage("io", before));
    CHECK(g.check().ok());
    behind.external();
    refuses(g, before.op(), "op 4 'behind' is");
  }
  SUBCASE("an external op behind a stage is not moved") {
    const auto staged = g.stage("io", read);
    const auto out = g.add("out", add_one{}, staged).external();
    const auto more = g.add("more", add_one{}, staged);
    g.add("end", [](const int&, const int&) {}, out, more).target();
    const stage_cut cut = smart_stage(g.flat().or_throw()).or_throw();
    CHECK(cut.staged_ops() == std::vector<index_t>{read.op(), more.op()});
  }
}

TEST_CASE("step_graph: external ops keep their order, and a source comes first") {
  step_graph g;
  const auto one = g.constant("one", 1);
  const auto a = g.add("a", add_one{}, one).external();
  g.source<int>("read", [](int&) { return false; }).external();
  g.add("between", add_one{}, one);
  const auto b = g.add("b", add_one{}, one).external();
  const flat_graph flat = g.flat().or_throw();
  REQUIRE(flat.in(b.op()).size() == 2);
  CHECK(flat.is_control(flat.in(b.op())[0]));
  CHECK(flat.source(flat.in(b.op())[0]) == a.op());
  CHECK(flat.in(2).empty());
}
