// The pass that lets lookups run ahead: what it moves, what it refuses, and steps that see the updates up to
// t - W.
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/async_embedding.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using word = std::uint64_t;
using table = std::array<word, 3>;

constexpr word mixed(word x) {
  x ^= x >> 29;
  return x * 0x9e3779b97f4a7c15U + 1;
}
struct hash {
  static constexpr const char* kind = "hash";
  void operator()(word in, word& out) const { out = mixed(in); }
};
struct look_up {
  static constexpr const char* kind = "lookup";
  void operator()(word id, const table& rows, word& out) const { out = rows[id % rows.size()]; }
};
struct update {
  static constexpr const char* kind = "update";
  void operator()(word id, word gradient, table& rows) const {
    word& row = rows[id % rows.size()];
    row = mixed(row ^ gradient ^ id);
  }
};

/// A step of two tables: hashed ids, a tower between, both updated.
struct model {
  table users{}, items{};
  word tower = 1, next = 0, end;
  step_graph graph;
  value<word> item, hashed, user, other, loss;
  index_t update_users = -1;

  explicit model(word steps, bool has_io = true) : end(steps) {
    step_graph& g = graph;
    const auto u = g.variable("users", users), i = g.variable("items", items);
    const auto w = g.variable("tower", tower);
    item = g.source<word>("read", [this](word& out) {
      out = next;
      return next < end && (++next, true);
    });
    const value<word> read = has_io ? g.stage("io", item) : item;
    hashed = g.add<word>("hash", hash{}, read);
    user = g.add<word>("look up users", look_up{}, hashed, g.read(u));
    other = g.add<word>("look up items", look_up{}, read, g.read(i));
    loss = g.add<word>(
        "forward",
        [](word a, word b, word raw, word weight, word& out) { out = mixed(a + 3 * b + raw) * weight; }, user,
        other, read, g.read(w));
    update_users =
        g.add("update users", update{}, hashed, loss, g.write(u)).role(op_role::apply).target().op();
    g.add("update items", update{}, read, loss, g.accumulate(i)).role(op_role::apply).target();
    g.add(
         "tower step", [](word gradient, word& weight) { weight = weight * 5 + gradient; }, loss, g.write(w))
        .role(op_role::apply)
        .target();
  }
  [[nodiscard]] std::vector<word> weights() const {
    std::vector<word> all{tower};
    all.insert(all.end(), users.begin(), users.end());
    all.insert(all.end(), items.begin(), items.end());
    return all;
  }
};

/// The definition.
std::vector<word> expected(index_t window, word steps) {
  model m(0);
  std::vector<std::array<word, 2>> rows(steps);
  word next = 0;
  for (word t = 0; t < steps; ++t) {
    for (; next < steps && next < t + static_cast<word>(window); ++next)
      rows[next] = {m.users[mixed(next) % 3], m.items[next % 3]};
    const word loss = mixed(rows[t][0] + 3 * rows[t][1] + t) * m.tower;
    update{}(mixed(t), loss, m.users);
    update{}(t, loss, m.items);
    m.tower = m.tower * 5 + loss;
  }
  return m.weights();
}

std::vector<word> run(model& m, const step_graph& graph, const staged_options& options = {}) {
  thread_pool pool(2);
  staged_program program = staged_program::compile(graph, options).or_throw();
  program.run(pool, [](step_state&) {}).or_throw();
  return m.weights();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("async_embedding: lookups run ahead, and see the updates up to t - W") {
  std::mt19937_64 random(seed());
  for (const index_t window : {1, 2, 3, 6}) {
    const std::vector<word> bits = expected(window, 50);
    CHECK(bits != expected(window + 1, 50));
    for (int i = 0; i < 6; ++i) {
      model m(50, i % 2 == 0);
      const async_graph ahead = async_embedding(m.graph, {.window = window}).or_throw();
      CHECK(run(m, ahead.graph,
                {.capacity = 1 + random() % 8, .producers = 1 + static_cast<int>(random() % 3)}) == bits);
    }
  }
  // The graph that was given stays synchronous.
  model m(50);
  const async_graph ahead = async_embedding(m.graph).or_throw();
  CHECK(run(m, m.graph) == expected(1, 50));
}

TEST_CASE("async_embedding: says what runs ahead and what crosses, each once") {
  model m(0);
  //! [async_embedding]
  const async_graph ahead = async_embedding(m.graph, {.window = 3}).or_throw();
  const staged_program program = staged_program::compile(ahead.graph).or_throw();
  //! [async_embedding]
  CHECK(explain(ahead) ==
        "async_embedding: window 3, lookups 'look up users', 'look up items'\n"
        "  ahead: 'read', 'hash', 'look up users', 'look up items'\n"
        "  across 'async embedding': 'look up users', 'look up items', 'io', 'hash'\n");
  for (const index_t v : ahead.lookups) CHECK(program.is_staged(v));
  CHECK_FALSE(program.is_staged(ahead.moved.op(m.loss.op())));
  CHECK_FALSE(program.is_staged(ahead.moved.op(m.update_users)));
  CHECK(ahead.graph.kind(ahead.stage) == op_kind::stage);
  const async_graph same = async_embedding(m.graph, {.window = 1}).or_throw();
  CHECK(same.stage == -1);
  CHECK(same.ahead.empty());
  CHECK(same.graph.size() == m.graph.size());
  CHECK(contains(explain(same), "a window of 1 is synchronous"));
}

TEST_CASE("async_embedding: a cut by smart_stage of the graph that was made keeps the window") {
  for (const index_t window : {1, 2, 4}) {
    for (const stage_rule rule : {stage_rule::farthest, stage_rule::balanced}) {
      model m(40);
      const async_graph ahead = async_embedding(m.graph, {.window = window}).or_throw();
      const stage_cut cut = smart_stage(ahead.graph.flat().or_throw(), {.rule = rule}).or_throw();
      staged_program program = staged_program::compile(ahead.graph, cut).or_throw();
      for (const index_t v : ahead.lookups) CHECK(program.is_staged(v) == (window > 1));
      thread_pool pool(2);
      program.run(pool, [](step_state&) {}).or_throw();
      CHECK(m.weights() == expected(window, 40));
    }
  }
}

TEST_CASE("async_embedding: what it can't do is refused with names, and the graph is unchanged") {
  model m(20);
  const std::string before = explain(m.graph);
  const auto refused = [&](const step_graph& g, const async_embedding_options& options, const char* why) {
    const auto made = async_embedding(g, options);
    REQUIRE_FALSE(made.ok());
    CHECK(made.code() == errc::invalid_value);
    CAPTURE(made.message());
    CHECK(contains(made.message(), why));
  };
  refused(m.graph, {.window = 0}, "async_embedding: the window must be at least 1 (was 0)");
  refused(m.graph, {.window = -7}, "async_embedding: the window must be at least 1 (was -7)");
  refused(m.graph, {.kinds = {"gather", "pool"}},
          "async_embedding: an op must be of a kind of lookups ('gather', 'pool')");
  refused(m.graph, {.kinds = {}}, "async_embedding: an op must be of a kind of lookups (none)");
  refused(m.graph, {.kinds = {"hash"}},
          "async_embedding: a lookup must read what an op behind it changes ('hash')");
  refused(m.graph, {.stage = "io"}, "stages must have different names");
  // The tower runs ahead as well, and is no lookup.
  refused(m.graph, {.kinds = {"opaque"}}, "async_embedding: ");
  CHECK(explain(m.graph) == before);
  CHECK(run(m, m.graph) == expected(1, 20));

  // Keys that are admitted change the table before the lookup of their step.
  table rows{};
  step_graph g;
  const auto v = g.variable("rows", rows);
  const auto id = g.source<word>("read", [](word&) { return false; });
  const auto admitted =
      g.add<word>("admit", [](word in, table& r, word& out) { r[0] = out = in; }, id, g.write(v));
  const auto row = g.add<word>("look up", look_up{}, admitted, g.read(v));
  g.add("update", update{}, id, row, g.write(v)).role(op_role::apply).target();
  refused(g, {}, "an op before a cut must not share a variable that changes (op 2 'admit'");
}
