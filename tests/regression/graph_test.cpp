// Step graphs, their cuts and their runs: faults that were found once, by the names of their programs.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/explain_cut.hpp>
#include <deeprec/graph/flat_graph.hpp>
#include <deeprec/graph/interpret.hpp>
#include <deeprec/graph/smart_stage.hpp>
#include <deeprec/graph/staged_program.hpp>
#include <deeprec/graph/step_graph.hpp>
#include <deeprec/graph/step_program.hpp>

#include <doctest/doctest.h>

#include <stop_token>
#include <string>
#include <vector>

using namespace deeprec;

namespace {

struct model {
  long head = 0;
  long tower = 0;
};

}  // namespace

TEST_CASE("r05: an op that writes a member is ordered against one that reads the whole") {
  const auto scale = [](const long& x, long& out) { out = 10 * x; };
  const auto after_a_step = [&](bool member, task_order order) {
    model m;
    step_graph g;
    const auto whole = g.variable("model", m);
    const auto tower = g.variable("tower", m.tower);
    const auto read = g.source<long>("read", [n = 0](long& out) mutable { return out = 1, n++ < 1; });
    const auto x = g.add<long>("scale", scale, g.add<long>("scale", scale, read));
    if (member) {
      g.add("write", [](const long& in, long& to) { to = in; }, x, g.write(tower));
    } else {
      g.add("write", [](const long& in, model& to) { to.tower = in; }, x, g.write(whole));
    }
    const auto seen = g.add<long>(
        "look", [](const long&, const model& from, long& out) { out = from.tower; }, read, g.read(whole));
    const step_program program = step_program::compile(g, order).or_throw();
    step_state state = program.make_state();
    CHECK(program.run(inline_executor(), state).or_throw());
    return state.get(seen);
  };
  for (const bool member : {false, true}) {
    CHECK(after_a_step(member, task_order::as_added) == 100);
    CHECK(after_a_step(member, task_order::by_kind) == 100);
  }
}

TEST_CASE("r05: members beside each other have no order, and a whole has one with each") {
  model m;
  step_graph g;
  const auto whole = g.variable("model", m);
  const auto head = g.variable("head", m.head);
  const auto tower = g.variable("tower", m.tower);
  const auto set = [](long& to) { to = 1; };
  g.add("write head", set, g.write(head));
  g.add("write tower", set, g.write(tower));
  const auto look = g.add("look", [](const model&) {}, g.read(whole));
  const auto again = g.add("write head again", set, g.accumulate(head));
  const flat_graph flat = g.flat().or_throw();
  const auto before = [&](index_t op) {
    std::vector<index_t> all;
    for (const auto e : flat.in(op)) {
      if (flat.is_control(e)) all.push_back(flat.source(e));
    }
    return all;
  };
  CHECK(before(3).empty());
  CHECK(before(4).empty());
  CHECK(before(look.op()) == std::vector<index_t>{3, 4});
  CHECK(before(again.op()) == std::vector<index_t>{look.op()});
}

TEST_CASE("r05: an op before a cut must not overlap what an op behind it writes") {
  model m;
  step_graph g;
  const auto whole = g.variable("model", m);
  const auto tower = g.variable("tower", m.tower);
  const auto read = g.source<long>("read", [](long&) { return false; });
  const auto seen = g.add<long>(
      "look", [](const long&, const model& from, long& out) { out = from.tower; }, read, g.read(whole));
  const auto staged = g.stage("io", seen);
  g.add("write", [](const long& in, long& to) { to = in; }, staged, g.write(tower));
  const auto refused = staged_program::compile(g);
  REQUIRE(!refused);
  CHECK(refused.code() == errc::invalid_value);
  CHECK(refused.fault().place().item == seen.op());
  CHECK(refused.fault().message().find("(op 3 'look': op 5 'write' behind it writes 'tower', which overlaps "
                                       "'model')") != std::string::npos);
}

TEST_CASE("r05: an op must not read the whole and write a member") {
  model m;
  step_graph g;
  const auto whole = g.variable("model", m);
  const auto tower = g.variable("tower", m.tower);
  const auto both = g.add("both", [](const model&, long&) {}, g.read(whole), g.write(tower));
  const auto refused = g.check();
  REQUIRE(!refused);
  CHECK(refused.fault().place().item == both.op());
  CHECK(refused.fault().message().find("'model', which overlaps 'tower'") != std::string::npos);
}

TEST_CASE("r24: smart_stage moves no external op of any flat graph") {
  for (const bool several : {false, true}) {
    for (const stage_rule rule : {stage_rule::farthest, stage_rule::balanced}) {
      flat_graph_builder b;
      const index_t read = b.add({.name = "read", .effects = op_effects::external});
      const index_t io = b.add({.name = "io", .kind = op_kind::stage, .stage = "io"});
      const index_t hash = b.add({.name = "hash"});
      const index_t noise = b.add({.name = "noise", .effects = op_effects::external});
      const index_t table = b.add({.name = "table", .kind = op_kind::variable});
      const index_t lookup = b.add({.name = "lookup", .effects = op_effects::reads});
      const index_t dropout =
          b.add({.name = "dropout", .effects = several ? op_effects::external : op_effects::none});
      const index_t loss = b.add({.name = "loss", .effects = op_effects::target});
      b.connect(read, 0, io, 0);
      b.connect(io, 0, hash, 0);
      b.connect(hash, 0, noise, 0);
      b.connect(noise, 0, lookup, 0);
      b.connect(table, 0, lookup, 1);
      b.connect(lookup, 0, dropout, 0);
      b.connect(dropout, 0, loss, 0);
      const flat_graph g = b.build().or_throw();
      const stage_cut cut = smart_stage(g, {.rule = rule}).or_throw();
      CHECK(cut.staged_ops() == std::vector<index_t>{read, hash});
      CHECK(why_stays(g, cut, noise) == "it is external");
    }
  }
}

TEST_CASE("r08: a step that has begun ends, wherever a stop comes; one that has not leaves everything") {
  // An op for each place of the stop: the source, the ops, and the verbs that they call.
  static constexpr int places = 5;
  for (int how = 0; how < 3; ++how) {
    for (int place = 0; place < places; ++place) {
      CAPTURE(how);
      CAPTURE(place);
      long drawn = 0, dense = 0, rows = 0, seen_stops = 0;
      std::stop_source stop;
      const auto at = [&](int here, long item) {
        if (here == place && item == 3) stop.request_stop();
      };
      step_graph g;
      const auto d = g.variable("dense", dense);
      const auto r = g.variable("rows", rows);
      const auto read = g.source<long>("read", [&](long& out) {
        out = ++drawn;
        at(0, out);
        return drawn <= 6;
      });
      const auto parse = g.add<long>(
          "parse",
          [&](const step_call& call, const long& in, long& out) {
            at(1, out = in);
            seen_stops += call.on.stop != nullptr ? 1 : 0;
          },
          read);
      const auto tower = g.add<long>(
          "step tower", [&](const long& in, long& w, long& out) { w += out = in, at(2, in); }, parse,
          g.accumulate(d));
      g.add(
           "step rows", [&](const long& in, const long&, long& w) { w += in, at(3, in); }, parse, tower,
           g.accumulate(r))
          .role(op_role::apply);
      thread_pool pool(2);
      const std::stop_token token = stop.get_token();
      context ctx{pool};
      ctx.stop = &token;
      if (place == 4) stop.request_stop();
      const auto check = [&](const result<bool>& more, long steps, long next) {
        CHECK(more.code() == errc::stopped);
        CHECK(drawn == steps);
        CHECK(dense == steps * (steps + 1) / 2);
        CHECK(rows == dense);
        CHECK(next == steps);
      };
      const long whole = place == 4 ? 0 : 3;
      result<bool> more = true;
      if (how == 2) {
        step_interpreter it(g);
        long steps = 0;
        while ((more = it.step(ctx, [](index_t) { return 0; })) && more.value()) ++steps;
        check(more, whole, steps);
        while (it.step(pool, [](index_t) { return 0; }).or_throw()) ++steps;
        CHECK(steps == 6);
      } else {
        const step_program program = step_program::compile(g).or_throw();
        step_state state = program.make_state();
        const auto run = [&](const auto& on) {
          return how == 0 ? program.run(on, state) : program.run_on(on, state);
        };
        while ((more = run(ctx)) && more.value()) continue;
        check(more, whole, state.step());
        while (run(context{pool}).or_throw()) continue;
        CHECK(state.step() == 6);
      }
      CHECK(dense == 21);
      CHECK(rows == 21);
      CHECK(seen_stops == 0);
    }
  }
}

TEST_CASE("h01: the fault of a source has the whole name of the source") {
  for (const bool staged : {false, true}) {
    step_graph g;
    const auto read = g.source<int>("read: log.tsv", [](int&) -> result<bool> {
      return fault(status(errc::invalid_value, "the line must have 3 fields"), "log.tsv");
    });
    g.add("use", [](const int&) {}, g.stage("io", read));
    thread_pool pool(2);
    result<void> ran;
    if (staged) {
      staged_program program = staged_program::compile(g).or_throw();
      ran = program.run(pool, [](step_state&) {});
    } else {
      const step_program program = step_program::compile(g).or_throw();
      step_state state = program.make_state();
      if (const result<bool> more = program.run(pool, state); !more) ran = more.fault();
    }
    REQUIRE(!ran);
    CHECK(ran.fault().message().find("read: log.tsv: the line must have 3 fields") != std::string::npos);
    CHECK(ran.fault().place().item == read.op());
    CHECK(ran.fault().file() == "log.tsv");
  }
}
