// What steps of a compiled graph allocate: nothing, and a staged run a fixed number of times. operator new is
// replaced, so this is a program of its own.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include "support/counted_new.hpp"

using namespace deeprec;
using deeprec_test::news;

namespace {

/// A graph of `steps` steps, with a list, a variable and a stage in it.
struct steps_graph {
  step_graph graph{};
  long held = 0;
  long drawn = 0;
  value<std::vector<long>> out{};

  explicit steps_graph(long steps) {
    step_graph& g = graph;
    const auto v = g.variable("v", held);
    const auto read = g.source<long>("read", [this, steps](long& it) { return it = drawn, drawn++ < steps; });
    std::vector<value<long>> all;
    for (int i = 0; i < 20; ++i)
      all.push_back(g.add<long>("more", [](const long& in, long& it) { it = in + 1; }, read));
    const auto staged = g.stage("io", all);
    const auto sum = g.add<std::vector<long>>(
        "copy", [](op_list<const long> in, std::vector<long>& it) { it.assign(in.begin(), in.end()); },
        staged);
    g.add("add", [](const std::vector<long>& in, long& it) { it += in[0]; }, sum, g.accumulate(v));
    out = sum;
  }
};

std::size_t news_of_staged_run(thread_pool& pool, long steps, int producers) {
  steps_graph of(steps);
  staged_program program = staged_program::compile(of.graph, {.producers = producers}).or_throw();
  const std::size_t before = news.load();
  long seen = 0;
  program.run(pool, [&](step_state& s) { seen += static_cast<long>(s.get(of.out).size()); }).or_throw();
  CHECK(seen == 20 * steps);
  return news.load() - before;
}

}  // namespace

TEST_CASE("step_program, staged_program: a step allocates nothing") {
  thread_pool pool(3);
  steps_graph of(1'000'000);
  const step_program program = step_program::compile(of.graph).or_throw();
  const step_program beside = step_program::compile(of.graph, {.schedule = op_schedule::as_ready}).or_throw();
  const step_program by_cost = step_program::compile(of.graph, {.schedule = op_schedule::by_cost}).or_throw();
  step_state state = program.make_state(), other = beside.make_state(), third = by_cost.make_state();
  const auto both = [&] {
    return program.run(pool, state).or_throw() && beside.run(pool, other).or_throw() &&
           by_cost.run(pool, third).or_throw();
  };
  CHECK(both());
  const std::size_t before = news.load();
  bool ok = true;
  for (int i = 0; i < 100; ++i) ok = both() && ok;
  CHECK(news.load() == before);
  CHECK(ok);
  // It counts.
  static_cast<void>(program.make_state());
  CHECK(news.load() > before);

  // Of the values of a step, a vector of each state: the number of states in flight bounds it.
  for (const int producers : {1, 2}) {
    static_cast<void>(news_of_staged_run(pool, 10, producers));
    CHECK(news_of_staged_run(pool, 4000, producers) < 200);
  }
}
