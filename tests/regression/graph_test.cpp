// Step graphs, their cuts and their runs: faults that were found once, by the names of
// docs/hazards.md.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include "support/seed.hpp"
#include "support/step_interpreter.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
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
        deeprec_test::step_interpreter it(g);
        long steps = 0;
        while ((more = it.step(ctx, [](index_t) { return 0; })) && more.value()) ++steps;
        check(more, whole, steps);
        while (it.step(pool, [](index_t) { return 0; }).or_throw()) ++steps;
        CHECK(steps == 6);
      } else {
        const op_schedule schedule = how == 0 ? op_schedule::in_turn : op_schedule::as_ready;
        const step_program program = step_program::compile(g, {.schedule = schedule}).or_throw();
        step_state state = program.make_state();
        const auto run = [&](const auto& on) { return program.run(on, state); };
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

namespace {

/// Steps with a variable that changes in their order, and places where a run ends or an op fails.
struct staged_steps {
  static constexpr long count = 12;
  enum place { in_source, before, behind, in_done };
  // An op of this place, at this item: it requests a stop, returns a fault, or throws.
  struct event {
    place where;
    long item;
    enum { stops, fails, throws } what;
  };
  std::vector<event> events{};
  std::stop_source stop{};
  long drawn = 0;
  long hash = 7;
  step_graph graph{};
  value<long> parsed{}, trained{};

  staged_steps() {
    step_graph& g = graph;
    const auto weights = g.variable("weights", hash);
    const auto read = g.source<long>("read", [this](long& out) -> result<bool> {
      out = drawn++;
      if (const status s = happens(in_source, out); !s) return s;
      return out < count;
    });
    const auto pass = [this](place where) {
      return [this, where](const step_call& call, const long& in, long& out) {
        out = 100 * in + call.step;
        return happens(where, in);
      };
    };
    const auto first = g.add<long>("parse", pass(before), g.stage("io", read));
    parsed = g.stage("parsed", first);
    trained = g.add<long>(
        "train",
        [this](const long& in, long& w, long& out) {
          out = w = (w * 31 + in) % 1'000'000'007;
          return happens(behind, in / 100);
        },
        parsed, g.write(weights));
  }
  status happens(place where, long item) {
    for (const event& e : events) {
      if (e.where != where || e.item != item) continue;
      if (e.what == event::stops) stop.request_stop();
      if (e.what == event::fails) return {errc::invalid_value, "test: it must be good", {.value = item}};
      if (e.what == event::throws) throw std::runtime_error("item " + std::to_string(item));
    }
    return {};
  }
};

/// What a caller sees: of each step its number and its values, and of each failure its text.
using seen_steps = std::vector<std::string>;

std::string seen(const staged_steps& of, const step_state& s) {
  return std::to_string(s.get(of.parsed)) + ' ' + std::to_string(s.get(of.trained));
}
/// Calls run() until it returns ok. What failed in the caller is left out, since it loses no step.
template <class Run>
void go_on(seen_steps& made, const Run& run) {
  for (int calls = 0; calls < 100; ++calls) {
    try {
      const result<void> ran = run();
      if (ran) return;
      if (ran.code() != errc::stopped && ran.code() != errc::cancelled)
        made.push_back(std::to_string(ran.fault().place().value));
    } catch (const error& e) {
      const std::string text = e.what();
      made.push_back(text.substr(text.rfind("item ")));
    }
  }
  FAIL("it never ends");
}

seen_steps run_plainly(const std::vector<staged_steps::event>& events) {
  staged_steps of;
  of.events = events;
  const step_program program = step_program::compile(of.graph).or_throw();
  step_state state = program.make_state();
  seen_steps made;
  go_on(made, [&]() -> result<void> {
    while (true) {
      const result<bool> more = program.run(inline_executor(), state);
      if (!more) return more.fault();
      if (!more.value()) return {};
      made.push_back(seen(of, state));
    }
  });
  return made;
}

struct staged_case {
  std::size_t capacity;
  int producers;
  index_t ends_after;  // steps: done() fails then; -1: never
};
/// The same with the steps of runs that end early, and go on.
seen_steps run_staged(thread_pool& pool, const std::vector<staged_steps::event>& events,
                      const staged_case& how, long& drawn) {
  staged_steps of;
  of.events = events;
  staged_program program =
      staged_program::compile(of.graph, {.capacity = how.capacity, .producers = how.producers}).or_throw();
  seen_steps made;
  index_t done = 0;
  go_on(made, [&] {
    of.stop = std::stop_source();
    return program.run(
        pool,
        [&](step_state& s) -> status {
          made.push_back(seen(of, s));
          static_cast<void>(of.happens(staged_steps::in_done, s.get(of.parsed) / 100));
          if (++done == how.ends_after) return {errc::cancelled, "test: enough"};
          return {};
        },
        of.stop.get_token());
  });
  CHECK(program.kept_steps() == 0);
  drawn = of.drawn;
  return made;
}

}  // namespace

TEST_CASE("r09: runs that done() or a stop ends, and that go on, are one run") {
  thread_pool pool(2);
  const seen_steps expected = run_plainly({});
  REQUIRE(expected.size() == staged_steps::count);
  const auto check = [&](const std::vector<staged_steps::event>& events, const staged_case& how) {
    long drawn = 0;
    const seen_steps made = run_staged(pool, events, how, drawn);
    CHECK(made == expected);
    CHECK(drawn == staged_steps::count + 1);
  };
  for (const int producers : {1, 2, 4}) {
    for (std::size_t capacity = 1; capacity <= 8; ++capacity) {
      CAPTURE(producers);
      CAPTURE(capacity);
      for (index_t n = 1; n <= staged_steps::count; ++n) check({}, {capacity, producers, n});
      for (const auto where :
           {staged_steps::in_source, staged_steps::before, staged_steps::behind, staged_steps::in_done}) {
        for (long item = 0; item <= staged_steps::count; ++item)
          check({{where, item, staged_steps::event::stops}}, {capacity, producers, -1});
      }
    }
  }
}

TEST_CASE("r09: a failure of a step that was drawn ahead is reported when its turn comes, by the next run") {
  thread_pool pool(2);
  for (const auto where : {staged_steps::in_source, staged_steps::before, staged_steps::behind}) {
    for (const auto what : {staged_steps::event::fails, staged_steps::event::throws}) {
      const std::vector<staged_steps::event> events{{where, 5, what}, {where, 8, what}};
      const seen_steps expected = run_plainly(events);
      REQUIRE(expected.size() == staged_steps::count);  // ten steps, two failures
      for (const int producers : {1, 3}) {
        for (const std::size_t capacity : {1, 3, 8}) {
          for (const index_t n : {-1, 1, 3, 4, 5, 6, 7, 9}) {
            CAPTURE(where);
            CAPTURE(what);
            CAPTURE(producers);
            CAPTURE(capacity);
            CAPTURE(n);
            long drawn = 0;
            const seen_steps made = run_staged(pool, events, {capacity, producers, n}, drawn);
            CHECK(drawn == staged_steps::count + 1);
            REQUIRE(made.size() == expected.size());
            // Numbers differ behind the failure of an op: a staged step that failed keeps its own.
            for (std::size_t i = 0; i < made.size(); ++i) {
              if (where == staged_steps::in_source || i < 6 || i == 8) CHECK(made[i] == expected[i]);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("r09: a run that ends early tells how far the source is ahead, and can drop that") {
  thread_pool pool(2);
  staged_steps of;
  staged_program program = staged_program::compile(of.graph, {.capacity = 4}).or_throw();
  std::vector<index_t> numbers;
  const auto run = [&](index_t steps) {
    return program.run(pool, [&, steps](step_state& s) mutable -> status {
      numbers.push_back(s.step());
      if (--steps == 0) return {errc::cancelled, "test: enough"};
      return {};
    });
  };
  CHECK(run(3).code() == errc::cancelled);
  const long ended = (std::min)(of.drawn, staged_steps::count);
  CHECK(program.kept_steps() == ended - 3);
  program.drop_kept();
  CHECK(program.kept_steps() == 0);
  of.drawn = 3;
  CHECK(run(-1).ok());
  CHECK(numbers == std::vector<index_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  // The end of the source, seen ahead, is an end of the next run.
  of.drawn = 11;
  CHECK(run(1).code() == errc::cancelled);
  const long drawn = of.drawn;
  CHECK(run(-1).ok());
  CHECK(of.drawn == (std::max)(drawn, 13L));
}

namespace {

struct takes_memory {
  explicit takes_memory(std::pmr::memory_resource* from) : memory(from) {}
  std::pmr::memory_resource* memory;
};
struct plain_pointer {
  std::pmr::memory_resource* memory;
};

template <class T>
bool begins_empty() {
  static_assert(!detail::takes_resource<T>);
  step_graph g;
  const auto fed = g.placeholder<T>("fed");
  step_state state = step_program::compile(g).or_throw().make_state();
  if constexpr (requires(const T& v) { v.has_value(); }) {
    return !state.get(fed).has_value();
  } else if constexpr (requires(const T& v) { v.index(); }) {
    return state.get(fed).index() == 0;
  } else {
    return state.get(fed) == nullptr;
  }
}

}  // namespace

TEST_CASE("r21: a value that holds a pointer, or is made from one, is not given the resource of the state") {
  using resource = std::pmr::memory_resource;
  CHECK(begins_empty<std::optional<std::pmr::vector<int>>>());
  CHECK(begins_empty<std::optional<takes_memory>>());
  CHECK(begins_empty<std::optional<resource*>>());
  CHECK(begins_empty<std::shared_ptr<resource>>());  // it would own the default resource
  CHECK(begins_empty<std::unique_ptr<resource>>());
  CHECK(begins_empty<std::variant<std::monostate, resource*>>());
  static_assert(!detail::takes_resource<std::tuple<resource*>>);
  static_assert(!detail::takes_resource<plain_pointer>);
  static_assert(!detail::takes_resource<resource*>);
  static_assert(detail::takes_resource<takes_memory>);
  static_assert(detail::takes_resource<std::pmr::vector<int>>);
  static_assert(detail::takes_resource<std::pmr::string>);
}

namespace {

struct with_number {
  static constexpr const char* kind = "norm";
  using output = float;
  double eps;
  float scale;
  std::int64_t seed;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("eps", eps);
    visit("scale", scale);
    visit("seed", seed);
  }
  void operator()(const float& x, float& out) const { out = x; }
};
attribute_list attributes_of(const with_number& op) {
  step_graph g;
  const auto x = g.constant("x", 1.0F);
  const auto added = g.add(op, x);
  return g.attributes(added.op());
}

}  // namespace

TEST_CASE("r07: the text of an attribute reads as its number, whatever it is") {
  step_graph g;
  const auto x = g.constant("x", 1.0F);
  g.add("norm", with_number{1e-8, 0.5F, 1000}, x);
  CHECK(explain(g).find("norm (eps = 1e-08, scale = 0.5, seed = 1000)") != std::string::npos);
  CHECK(attributes_of({1e-7, 1, 1}) != attributes_of({4e-7, 1, 1}));
  std::mt19937_64 random(deeprec_test::seed());
  std::vector<double> numbers{
      0, 1e-7, 4e-7, 1e300, 5e-324, 0.1, 1e23, std::numeric_limits<double>::infinity(), -1.0 / 3};
  for (int i = 0; i < 1000; ++i) {
    const int exponent = static_cast<int>(random() % 2000) - 1000;
    numbers.push_back(std::ldexp(static_cast<double>(random()), exponent));
  }
  for (const double number : numbers) {
    const auto narrow = static_cast<float>(number);
    const auto whole = static_cast<std::int64_t>(random());
    const attribute_list all = attributes_of({number, narrow, whole});
    const auto reads_as = [&](std::size_t which, auto value) {
      decltype(value) read{};
      const std::string& text = all[which].value.text();
      const auto end = std::from_chars(text.data(), text.data() + text.size(), read);
      return end.ec == std::errc() && end.ptr == text.data() + text.size() && read == value;
    };
    CHECK(reads_as(0, number));
    CHECK(reads_as(1, narrow));
    CHECK(reads_as(2, whole));
  }
}

TEST_CASE("r20: a stale read may stand before a stage, and not behind one that its variable changes before") {
  for (const bool behind : {false, true}) {
    long table = 0;
    step_graph g;
    const auto t = g.variable("table", table);
    const auto ids = g.source<long>("read", [](long&) { return false; });
    const auto look = [](const long& in, const long& from, long& out) { out = in + from; };
    const auto change = [](const long& in, long& to, long& out) { out = to += in; };
    const auto first = behind ? g.add<long>("update", change, ids, g.accumulate(t))
                              : g.add<long>("lookup", look, ids, g.stale_read(t, 4));
    const auto rows = g.stage("io", first);
    if (behind) {
      g.add<long>("lookup", look, rows, g.stale_read(t, 4));
    } else {
      g.add<long>("update", change, rows, g.accumulate(t));
    }
    const auto checked = g.check();
    CHECK(checked.ok() == !behind);
    CHECK(staged_program::compile(g).ok() == !behind);
    if (!behind) continue;
    CHECK(checked.code() == errc::invalid_value);
    CHECK(checked.fault().place().item == first.op());
    CHECK(checked.fault().message().find("an op before a cut must not share a variable that changes") !=
          std::string::npos);
    CHECK(checked.fault().message().find("'lookup' behind it reads 'table'") != std::string::npos);
  }
}
