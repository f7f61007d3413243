// Random descriptions of step graphs with random faults: nothing crashes, and every refusal names its op.
// DEEPREC_STEP_GRAPHS sets how many.

#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/step_graph.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/random_steps.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A graph of which about half are wrong in some way.
step_graph random_description(std::mt19937_64& random, const value<word>& foreign,
                              std::vector<word>& objects) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  step_graph g;
  std::vector<variable<word>> variables;
  for (std::size_t i = 0; i < 1 + below(3); ++i) variables.push_back(g.variable("v", objects[below(3)]));
  std::vector<value<word>> values;
  std::vector<op_ref<word>> ops;
  if (below(10) != 0) {
    ops.push_back(g.source<word>("read", [](word&) { return false; }));
    values.push_back(ops.back());
  } else {
    values.push_back(g.placeholder<word>("fed"));
  }
  const std::size_t count = 2 + below(9);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<value<word>> in;
    for (std::size_t k = below(3) + 1; k > 0; --k) in.push_back(values[below(values.size())]);
    const auto& v = variables[below(variables.size())];
    const word salt = i;
    const auto chained = [&](const op_ref<word>& op) {
      if (below(6) == 0) op.after(values[below(values.size())]);
      if (below(20) == 0) op.role(op_role::gradient);
      if (below(40) == 0) op.role(op_role::apply);
      if (below(12) == 0) op.target();
      if (below(12) == 0) op.external();
      op.cost(static_cast<double>(below(100)));
      g.set_bytes(op.op(), 0, static_cast<std::int64_t>(below(1000)));
      ops.push_back(op);
      values.push_back(op);
    };
    switch (below(9)) {
      case 0:
        chained(g.add("reads", reading_op{salt}, in, g.read(v)));
        break;
      case 1:
        chained(g.add("writes", writing_op{salt}, in, g.write(v)));
        break;
      case 2:
        chained(g.add("stale", reading_op{salt}, in, g.stale_read(v, 1 + static_cast<index_t>(below(3)))));
        break;
      case 3:
        chained(g.add("finds", finding_op{salt}, in, g.read(v)));
        break;
      case 4:
        values.push_back(g.constant("constant", salt));
        break;
      case 5:
        for (const value<word>& staged : g.stage("stage " + std::to_string(i), in)) values.push_back(staged);
        break;
      default:
        chained(g.add("pure", pure_op{salt}, in));
    }
  }
  if (below(3) != 0) return g;
  const auto& v = variables[below(variables.size())];
  const value<word> any = values[below(values.size())];
  switch (below(10)) {
    case 0:
      g.add("foreign", pure_op{1}, std::vector<value<word>>{any, foreign});
      break;
    case 1:
      g.add("missing", pure_op{1}, std::vector<value<word>>{any, value<word>()});
      break;
    case 2:
      g.source<word>("again", [](word&) { return true; });
      break;
    case 3:
      if (!ops.empty()) ops[below(ops.size())].after(ops[below(ops.size())]);
      break;
    case 4:
      g.add("both", [](const word&, word&) {}, g.read(v), g.accumulate(v));
      break;
    case 5:
      g.stage("stage of nothing", std::vector<value<word>>());
      break;
    case 6:
      g.stage("twice", any);
      g.stage("twice", any);
      break;
    case 7:
      g.add("late", reading_op{1}, std::vector<value<word>>{any},
            g.stale_read(v, -static_cast<index_t>(below(3))));
      break;
    case 8:
      g.add("negative", pure_op{1}, std::vector<value<word>>{any}).cost(-1);
      break;
    default:
      if (!ops.empty()) ops[below(ops.size())].after(value<word>());
  }
  return g;
}

}  // namespace

TEST_CASE("step_graph: random descriptions with faults, through flat, smart_stage and apply_cut") {
  std::mt19937_64 random(seed());
  const char* const asked = std::getenv("DEEPREC_STEP_GRAPHS");
  const long graphs = asked == nullptr ? 100'000 : std::atol(asked);
  step_graph other;
  const value<word> foreign = other.constant("foreign", word{1});
  std::vector<word> objects(3);
  long accepted = 0, unnamed = 0, wrong = 0, moved = 0;
  std::map<std::string, long> refusals;
  for (long i = 0; i < graphs; ++i) {
    const step_graph g = random_description(random, foreign, objects);
    const result<flat_graph> flat = g.flat();
    if (!flat) {
      const std::string text = flat.fault().message();
      const index_t op = flat.fault().place().item;
      const bool named =
          op >= 0 && op < g.size() &&
          text.find("op " + std::to_string(op) + " '" + std::string(g.name(op)) + "'") != std::string::npos;
      if (!named && unnamed++ == 0) MESSAGE(text);
      ++refusals[text.substr(0, text.find(" ("))];
      continue;
    }
    ++accepted;
    const result<stage_cut> cut = smart_stage(flat.value(), {.cost_per_byte = 0.01});
    if (!cut || !apply_cut(flat.value(), cut.value())) {
      ++wrong;
      continue;
    }
    moved += cut.value().changes() ? 1 : 0;
  }
  CHECK(unnamed == 0);
  CHECK(wrong == 0);
  CHECK(accepted > graphs / 4);
  CHECK(moved > graphs / 100);
  if (graphs >= 100'000) CHECK(refusals.size() >= 14);
}
