// Graphs as arrays: what they refuse, and graphs that are not ours.

#include <deeprec/graph/ir/graph_adaptor.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/random_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec;

namespace theirs {

/// A graph that knows nothing of deeprec: nodes on the heap, inputs as pointers.
struct node {
  std::string label, type;
  struct input {
    const node* from;
    int slot;
  };
  std::vector<input> inputs;
  std::vector<const node*> after;
  int number = 0;
};
struct graph {
  std::vector<std::unique_ptr<node>> nodes;

  node* make(std::string label, std::string type, std::vector<node::input> inputs = {}) {
    nodes.push_back(std::make_unique<node>());
    *nodes.back() = {
        std::move(label), std::move(type), std::move(inputs), {}, static_cast<int>(nodes.size()) - 1};
    return nodes.back().get();
  }
};

}  // namespace theirs

/// [graph_adaptor]
template <>
struct deeprec::graph_adaptor<theirs::graph> {
  static index_t size(const theirs::graph& g) { return static_cast<index_t>(g.nodes.size()); }
  static op_info op(const theirs::graph& g, index_t i) {
    const theirs::node& n = *g.nodes[static_cast<std::size_t>(i)];
    op_info op{.name = n.label, .cost = 1};
    if (n.type == "Variable") op.kind = op_kind::variable;
    if (n.type == "Stage") op.kind = op_kind::stage;
    if (n.type == "Stage") op.stage = n.label;
    return op;
  }
  template <class Each>
  static void for_each_edge(const theirs::graph& g, Each each) {
    for (const auto& n : g.nodes) {
      for (std::size_t i = 0; i < n->inputs.size(); ++i) {
        each({n->inputs[i].from->number, n->inputs[i].slot, n->number, static_cast<index_t>(i), 8, false});
      }
      for (const theirs::node* before : n->after) each({before->number, -1, n->number, -1, 0, true});
    }
  }
};
/// [graph_adaptor]

namespace {

std::string refusal(const flat_graph_builder& filled) {
  flat_graph_builder b = filled;
  const result<flat_graph> g = b.build();
  REQUIRE(!g);
  CHECK(g.code() == errc::invalid_value);
  return std::string(g.fault().reason());
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("flat_graph: a foreign graph is copied by its adaptor, edges by source and port") {
  theirs::graph g;
  theirs::node* const read = g.make("read", "Read");
  theirs::node* const both = g.make("both", "Op", {{read, 1}, {read, 0}});
  theirs::node* const var = g.make("var", "Variable");
  g.make("end", "Op", {{both, 0}, {var, 0}})->after = {read};
  const flat_graph flat = flatten(g).or_throw();
  CHECK(flat.size() == 4);
  CHECK(flat.edge_count() == 5);
  CHECK(flat.name(1) == "both");
  CHECK(flat.kind(2) == op_kind::variable);
  REQUIRE(flat.out_end(0) - flat.out_begin(0) == 3);
  CHECK(flat.is_control(flat.out_begin(0)));
  CHECK(flat.source_port(1) == 0);
  CHECK(flat.destination_port(1) == 1);
  CHECK(flat.source_port(2) == 1);
  CHECK(flat.out_of_port(0, 1) == std::pair<index_t, index_t>(2, 3));
  REQUIRE(flat.in(3).size() == 3);
  CHECK(flat.source(flat.in(3)[0]) == 0);
  CHECK(flat.source(flat.in(3)[1]) == 1);
  CHECK(flat.source(flat.in(3)[2]) == 2);
  REQUIRE(flat.order().size() == 4);
  CHECK(flat.order().back() == 3);
  const flat_graph again = flatten(flat).or_throw();
  for (index_t e = 0; e < 5; ++e) CHECK(again.destination(e) == flat.destination(e));
}

TEST_CASE("flat_graph: every refusal names the op") {
  flat_graph_builder two;
  two.add({.name = "first"});
  two.add({.name = "second"});
  flat_graph_builder b = two;
  b.connect(0, 0, 7, 0);
  CHECK(refusal(b) == "flat_graph: an edge must end at an op (op 0 'first': op 7 of 2)");
  b = two;
  b.connect(-1, 0, 1, 0);
  CHECK(refusal(b) == "flat_graph: an edge must start at an op (op 1 'second': op -1 of 2)");
  b = two;
  b.connect(0, 0, 1, 3);
  b.connect(0, 1, 1, 3);
  CHECK(refusal(b) ==
        "flat_graph: an input port must have one edge (op 1 'second': port 3 has op 0 'first' and op 0 "
        "'first')");
  b = two;
  b.connect(0, 0, 1, -1);
  CHECK(refusal(b) == "flat_graph: a port must be a number from 0 to 2^31 - 2 (op 1 'second': -1)");
  b = two;
  b.connect(0, 0, 1, 0, -5);
  CHECK(contains(refusal(b), "bytes"));
  CHECK(contains(refusal(b), "'first'"));
  b = two;
  b.connect(0, 0, 1, 0);
  b.control(1, 0);
  CHECK(refusal(b) ==
        "flat_graph: an op must not need its own result (op 0 'first': op 0 'first' -> op 1 'second' -> op "
        "0 'first')");
  for (const double cost : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    b = two;
    b.add({.name = "dear", .cost = cost});
    CHECK(refusal(b) == "flat_graph: a cost must be a number from 0 (op 2 'dear')");
  }
  b = two;
  b.add({.name = "cut", .kind = op_kind::stage_put});
  CHECK(contains(refusal(b), "'cut'"));
  b = two;
  b.add({.name = "cut", .kind = op_kind::stage_put, .stage = "io"});
  b.connect(0, 0, 2, 0);
  b.connect(2, 0, 1, 0);
  CHECK(refusal(b) == "flat_graph: a put must have no outputs (op 2 'cut': it feeds op 1 'second')");
  b = two;
  b.add({.name = "cut", .kind = op_kind::stage_take, .stage = "io"});
  b.connect(0, 0, 2, 0);
  CHECK(refusal(b) == "flat_graph: a take must have no inputs (op 2 'cut': it is fed by op 0 'first')");
}

TEST_CASE("hazard H2: a stage of nothing is refused, and so is a value that was not put") {
  flat_graph_builder b;
  b.add({.name = "read"});
  b.add({.name = "io_put", .kind = op_kind::stage_put, .stage = "io"});
  b.add({.name = "io_take", .kind = op_kind::stage_take, .stage = "io"});
  b.add({.name = "train"});
  flat_graph_builder nothing = b;
  CHECK(refusal(nothing) == "flat_graph: a stage must have a value (op 1 'io_put': it has no input)");
  nothing.control(0, 1);
  CHECK(refusal(nothing) == "flat_graph: a stage must have a value (op 1 'io_put': it has no input)");
  b.connect(0, 0, 1, 0);
  b.connect(2, 1, 3, 0);
  CHECK(refusal(b) ==
        "flat_graph: what is taken must have been put (op 2 'io_take': op 1 'io_put' has no input 1)");
}

TEST_CASE("flat_graph: a stage that feeds itself is a cycle") {
  flat_graph_builder b;
  b.add({.name = "read"});
  b.add({.name = "put", .kind = op_kind::stage_put, .stage = "io"});
  b.add({.name = "take", .kind = op_kind::stage_take, .stage = "io"});
  b.connect(0, 0, 1, 0);
  b.connect(2, 0, 0, 0);
  CHECK(refusal(b) ==
        "flat_graph: an op must not need its own result (op 0 'read': op 0 'read' -> op 1 'put' -> "
        "op 2 'take' -> op 0 'read')");
}

TEST_CASE("flat_graph: random graphs are refused by name, or are in topological order") {
  std::mt19937_64 random(deeprec_test::seed());
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const deeprec_test::random_graph g = deeprec_test::wild_graph(random, 24, round % 2 == 0);
    const result<flat_graph> flat = g.flat();
    if (!flat) {
      ++refused;
      if (round % 2 != 0) FAIL(flat.fault().message());
      if (!contains(flat.fault().message(), "op ")) FAIL(flat.fault().message());
      const index_t op = flat.fault().place().item;
      if (op < -1 || op >= static_cast<index_t>(g.ops.size())) FAIL("item " << op);
      continue;
    }
    std::vector<index_t> at(g.ops.size(), -1);
    for (std::size_t i = 0; i < flat.value().order().size(); ++i)
      at[static_cast<std::size_t>(flat.value().order()[i])] = static_cast<index_t>(i);
    for (const edge_info& e : g.edges) {
      if (at[static_cast<std::size_t>(e.source)] >= at[static_cast<std::size_t>(e.destination)])
        FAIL("order");
    }
  }
  CHECK(refused > 1000);
  CHECK(refused < 10'000);
}
