// A typed graph cut into a pipeline: the bits of the uncut one, wherever it is cut.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/trace_recorder.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "support/random_steps.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using bits = std::vector<std::vector<word>>;
std::vector<word> all_values(const built_steps& built, const step_state& from) {
  std::vector<word> now;
  for (const value<word>& v : built.values) now.push_back(from.get(v));
  return now;
}

bits run_plainly(const described_steps& steps) {
  step_world world;
  const built_steps built = build_steps(steps, world);
  const step_program program = step_program::compile(built.graph).or_throw();
  step_state state = program.make_state();
  bits made;
  while (program.run(inline_executor(), state).or_throw()) made.push_back(all_values(built, state));
  made.push_back(world.variables());
  made.push_back(world.log);
  return made;
}

}  // namespace

TEST_CASE("staged_program: random graphs give the bits of the uncut step") {
  std::mt19937_64 random(seed());
  thread_pool pool(2);
  int runs = 0, moved = 0, lines = 0, refused = 0, ended = 0;
  for (int i = 0; i < 250; ++i) {
    const described_steps steps = random_steps(random);
    step_world unused;
    const built_steps plain = build_steps(steps, unused);
    const result<flat_graph> flat = plain.graph.flat();
    if (!flat) continue;
    CAPTURE(i);
    const bits expected = run_plainly(steps);
    std::vector<std::optional<stage_cut>> cuts{std::nullopt};
    cuts.emplace_back(smart_stage(flat.value(), {.rule = stage_rule::farthest}).or_throw());
    cuts.emplace_back(smart_stage(flat.value(), {.rule = stage_rule::balanced}).or_throw());
    for (std::size_t c = 0; c < cuts.size(); ++c) {
      for (int again = 0; again < 2; ++again) {
        const std::size_t capacity = 1 + random() % 8;
        const int producers = 1 + static_cast<int>(random() % 3);
        CAPTURE(c);
        CAPTURE(capacity);
        CAPTURE(producers);
        step_world world;
        const built_steps built = build_steps(steps, world);
        const staged_options options{
            .capacity = capacity, .producers = producers, .schedule = static_cast<op_schedule>(random() % 4)};
        result<staged_program> program = cuts[c] ? staged_program::compile(built.graph, *cuts[c], options)
                                                 : staged_program::compile(built.graph, options);
        if (!program && program.code() == errc::unsupported && producers > 1) {
          ++refused;
          continue;
        }
        REQUIRE_MESSAGE(program.ok(), program.fault().message());
        bits made;
        // The second time it ends at some steps and goes on.
        const auto run = [&] {
          return program.value().run(pool, [&](step_state& s) -> status {
            made.push_back(all_values(built, s));
            if (again == 0 || random() % 3 != 0) return {};
            return {errc::cancelled, "test: enough"};
          });
        };
        result<void> ran = run();
        for (; ran.code() == errc::cancelled; ++ended) ran = run();
        REQUIRE_MESSAGE(ran.ok(), ran.fault().message());
        made.push_back(world.variables());
        made.push_back(world.log);
        CHECK(made == expected);
        ++runs;
        if (cuts[c])
          moved += static_cast<int>(std::count(cuts[c]->side.begin(), cuts[c]->side.end(), op_side::moved));
        lines += program.value().cuts() > 1 ? 1 : 0;
        for (const index_t op : program.value().staged_ops()) CHECK(built.graph.is_run(op));
      }
    }
  }
  CHECK(runs > 300);
  CHECK(moved > 300);
  CHECK(lines > 10);
  CHECK(ended > 100);
  CHECK(refused > 0);
}

TEST_CASE("staged_program: the ops that smart_stage moves run ahead") {
  //! [staged_program]
  step_graph g;
  std::vector<float> rows(8, 1.0F);
  const auto table = g.variable("rows", rows);
  const auto line = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 100; });
  const auto staged = g.stage("io", line);
  const auto id = g.add<std::size_t>(
      "hash", [](const int& in, std::size_t& out) { out = static_cast<std::size_t>(in) * 7 % 8; }, staged);
  const auto row = g.add<float>(
      "lookup", [](const std::size_t& i, const std::vector<float>& t, float& out) { out = t[i]; }, id,
      g.read(table));
  g.add(
       "update", [](const std::size_t& i, const float& x, std::vector<float>& t) { t[i] = x + 1; }, id, row,
       g.write(table))
      .role(op_role::apply)
      .target();

  const flat_graph flat = g.flat().or_throw();
  const stage_cut cut = smart_stage(flat).or_throw();
  staged_program program = staged_program::compile(g, cut, {.capacity = 4}).or_throw();
  thread_pool pool(2);
  float sum = 0;
  program.run(pool, [&](step_state& state) { sum += state.get(row); }).or_throw();
  //! [staged_program]
  CHECK(program.staged_ops() == std::vector<index_t>{line.op(), id.op()});
  CHECK(program.is_staged(id.op()));
  CHECK(!program.is_staged(row.op()));
  CHECK(explain(flat, cut).find("moved: 'hash'") != std::string::npos);
  CHECK(explain(flat, cut).find("stays: 'lookup', it reads a variable ('rows')") != std::string::npos);
  std::vector<float> again(8, 1.0F);
  float expected = 0;
  for (std::size_t n = 0; n < 100; ++n) expected += again[n * 7 % 8]++;
  CHECK(sum == expected);
  CHECK(rows == again);
  CHECK(program.statistics().stages.size() == 3);
  CHECK(program.statistics().stages.back().items == 100);
}

TEST_CASE(
    "staged_program: what lies behind the last cut has one place, what passes a cut one for each step") {
  step_graph g;
  const auto line = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 20; });
  const auto staged = g.stage("io", line);
  const auto behind = g.add<int>("double", [](const int& in, int& out) { out = 2 * in; }, staged);
  g.add("use", [](const int&) {}, behind).target();

  staged_program program = staged_program::compile(g, {.capacity = 4}).or_throw();
  thread_pool pool(2);
  std::vector<step_state*> states;
  std::set<const int*> before, after;
  program
      .run(pool,
           [&](step_state& state) {
             states.push_back(&state);
             before.insert(&state.get(line));
             after.insert(&state.get(behind));
             CHECK(state.get(behind) == 2 * state.get(line));
           })
      .or_throw();
  CHECK(states.size() == 20);
  CHECK(before.size() == std::set<step_state*>(states.begin(), states.end()).size());
  CHECK(after.size() == 1);
}

TEST_CASE("staged_program: errors name the op, and the run can begin again") {
  thread_pool pool(2);
  for (const int producers : {1, 3}) {
    for (const bool behind : {false, true}) {
      step_graph g;
      index_t drawn = 0;
      index_t bad = 5;
      bool throws = false;
      const auto read = g.source<index_t>("read", [&](index_t& out) { return out = drawn++, drawn < 10; });
      const auto fail = [&](const index_t& in, index_t& out) -> status {
        out = in;
        if (in != bad) return {};
        if (throws) throw std::runtime_error("it broke");
        return {errc::invalid_value, "check: in must be good", {.value = in}};
      };
      const auto pass = [](const index_t& in, index_t& out) { out = in; };
      const auto first = behind ? g.add<index_t>("pass", pass, read) : g.add<index_t>("fragile", fail, read);
      const auto staged = g.stage("io", first);
      const auto last =
          behind ? g.add<index_t>("fragile", fail, staged) : g.add<index_t>("pass", pass, staged);
      staged_program program = staged_program::compile(g, {.producers = producers}).or_throw();
      std::vector<index_t> done;
      const auto run = [&] {
        done.clear();
        return program.run(pool, [&](step_state& s) { done.push_back(s.get(last)); });
      };
      const result<void> failed = run();
      REQUIRE(!failed);
      CHECK(failed.code() == errc::invalid_value);
      CHECK(failed.fault().place().item == (behind ? last.op() : first.op()));
      CHECK(failed.fault().message().find("fragile: check: in must be good") != std::string::npos);
      CHECK(done == std::vector<index_t>{0, 1, 2, 3, 4});
      throws = true;
      drawn = 5;
      program.drop_kept();  // the source was set back
      try {
        static_cast<void>(run());
        FAIL("it must throw");
      } catch (const pipeline_error& e) {
        CHECK(std::string(e.what()).find("fragile threw") != std::string::npos);
        CHECK(std::string(e.what()).find("it broke") != std::string::npos);
      }
      bad = -1;
      drawn = 0;
      program.drop_kept();
      CHECK(run().ok());
      CHECK(done.size() == 9);
    }
  }
}

TEST_CASE("staged_program: a stop, and a done that fails") {
  thread_pool pool(2);
  step_graph g;
  const auto read = g.source<int>("read", [](int& out) { return out = 1, true; });
  const auto out = g.add<int>("pass", [](const int& in, int& o) { o = in; }, g.stage("io", read));
  staged_program program = staged_program::compile(g).or_throw();
  std::stop_source stop;
  index_t steps = 0;
  CHECK(program
            .run(
                pool,
                [&](step_state& s) {
                  steps += s.get(out);
                  if (steps == 5) stop.request_stop();
                },
                stop.get_token())
            .code() == errc::stopped);
  CHECK(steps == 5);
  CHECK(program
            .run(pool,
                 [&](step_state&) -> status { return {errc::invalid_value, "test: done must accept it"}; })
            .code() == errc::invalid_value);
  std::stop_source of_context;
  const std::stop_token token = of_context.get_token();
  context ctx{pool};
  ctx.stop = &token;
  CHECK(program.run(ctx, [&](step_state&) { of_context.request_stop(); }).code() == errc::stopped);
}

TEST_CASE("staged_program: without a stage the caller runs all of it") {
  step_graph g;
  const auto read = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 20; });
  const auto fed = g.placeholder<int>("fed");
  const auto sum = g.add<int>("sum", [](const int& a, const int& b, int& o) { o = a + b; }, read, fed);
  staged_program program =
      staged_program::compile(g, {.feed = [&](step_state& s) { s.feed(fed, 100); }}).or_throw();
  thread_pool pool(1);
  int all = 0;
  program.run(pool, [&](step_state& s) { all += s.get(sum); }).or_throw();
  CHECK(all == 20 * 100 + 190);
  CHECK(program.cuts() == 0);
  CHECK(program.staged_ops().empty());
}

TEST_CASE("staged_program: stages in a line, and what lies before more than two") {
  for (const int stages : {2, 3, 4}) {
    for (const int producers : {1, 2}) {
      step_graph g;
      value<int> last = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 30; });
      for (int i = 0; i < stages; ++i) {
        const auto more = g.add<int>("more", [](const int& in, int& out) { out = in + 1; }, last);
        last = g.stage("stage " + std::to_string(i), more);
      }
      const auto op = g.add<int>("last", [](const int& in, int& out) { out = 2 * in; }, last);
      staged_program program = staged_program::compile(g, {.capacity = 1, .producers = producers}).or_throw();
      CHECK(program.cuts() == 2);
      thread_pool pool(2);
      std::vector<int> seen, expected;
      program.run(pool, [&](step_state& s) { seen.push_back(s.get(op)); }).or_throw();
      for (int n = 0; n < 30; ++n) expected.push_back(2 * (n + stages));
      CHECK(seen == expected);
    }
  }
}

TEST_CASE("staged_program: what it refuses") {
  step_graph g;
  int state = 0;
  const auto v = g.variable("v", state);
  const auto read = g.source<int>("read", [](int&) { return false; });
  const auto count =
      g.add<int>("count", [](const int& in, int& it, int& out) { out = it += in; }, read, g.write(v));
  g.stage("io", count);
  CHECK(staged_program::compile(g).ok());
  const auto several = staged_program::compile(g, {.producers = 2});
  REQUIRE(!several.ok());
  CHECK(several.code() == errc::unsupported);
  CHECK(several.fault().place().item == count.op());
  CHECK(several.fault().message().find("op 2 'count'") != std::string::npos);
  CHECK(staged_program::compile(g, {.capacity = 0}).code() == errc::invalid_value);
  CHECK(staged_program::compile(g, {.producers = 0}).code() == errc::invalid_value);
  CHECK(staged_program::compile(g, stage_cut()).code() == errc::shape_mismatch);
  CHECK(staged_program::compile(step_graph()).code() == errc::invalid_value);
}

TEST_CASE("staged_program: spans of all parts, by the numbers of the graph") {
  step_graph g;
  const auto read = g.source<int>("read", [n = 0](int& out) mutable { return out = n, n++ < 10; });
  const auto a = g.add<int>("before", [](const int& in, int& out) { out = in; }, read);
  const auto b = g.add<int>("behind", [](const int& in, int& out) { out = in; }, g.stage("io", a));
  staged_program program = staged_program::compile(g).or_throw();
  thread_pool pool(2);
  trace_recorder trace({.threads = 8, .spans = 1000});
  context ctx{pool};
  ctx.trace = &trace;
  program.run(ctx, [](step_state&) {}).or_throw();
  std::vector<int> count(static_cast<std::size_t>(g.size()));
  for (const trace_span& s : trace.spans()) {
    if (s.op >= 0) ++count[static_cast<std::size_t>(s.op)];
  }
  CHECK(count[static_cast<std::size_t>(read.op())] == 11);
  CHECK(count[static_cast<std::size_t>(a.op())] == 10);
  CHECK(count[static_cast<std::size_t>(b.op())] == 10);
}
