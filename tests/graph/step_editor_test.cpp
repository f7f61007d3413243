// What passes read of an op, and how a copy of a graph is edited.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/step_editor.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/random_steps.hpp"
#include "support/seed.hpp"
#include "support/step_interpreter.hpp"

using namespace deeprec;
using deeprec_test::word;

namespace {

enum class reduction { sum, mean };
const char* to_string(reduction r) { return r == reduction::sum ? "sum" : "mean"; }

struct scale {
  static constexpr const char* kind = "scale";
  using output = double;
  double by;
  reduction how = reduction::sum;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("by", by);
    visit("how", how);
  }
  void operator()(const double& in, double& out) const { out = in * by; }
};
struct count {
  static constexpr const char* kind = "count";
  using output = std::int64_t;
  void operator()(const double& in, std::int64_t& out) const { out = static_cast<std::int64_t>(in); }
};
struct append {
  using output = double;
  double number;
  void operator()(const double& in, std::vector<double>& to, double& out) const {
    to.push_back(in + number);
    out = in + number;
  }
};

void refuses(const result<void>& was, const std::string& words) {
  REQUIRE(!was);
  CAPTURE(was.message());
  CHECK(was.code() == errc::invalid_value);
  CHECK(was.message().find(words) != std::string::npos);
}
void refuses(const result<edited_graph>& was, const std::string& words) {
  refuses(was ? result<void>() : result<void>(was.fault()), words);
}

double run_once(const step_graph& g, const value<double>& wanted) {
  const step_program program = step_program::compile(g).or_throw();
  step_state state = program.make_state();
  REQUIRE(program.run(inline_executor{}, state).or_throw());
  return state.get(wanted);
}

}  // namespace

TEST_CASE("step_graph: the object of an op, its type and its attributes") {
  step_graph g;
  const auto x = g.constant("x", 2.0);
  const auto a = g.add("a", scale{3}, x);
  const auto b = g.add("b", scale{3}, x);
  auto lambda = [](const double& in, double& out) { out = in; };
  const auto c = g.add<double>("c", lambda, g.stage("io", a));
  REQUIRE(g.as<scale>(a.op()) != nullptr);
  CHECK(g.as<scale>(a.op())->by == 3);
  CHECK(g.as<count>(a.op()) == nullptr);
  CHECK(g.as<scale>(x.op()) == nullptr);
  CHECK(g.type(a.op()) == type_id_of<scale>());
  CHECK(g.type(c.op()) == type_id_of<decltype(lambda)>());
  CHECK(!g.type(x.op()));
  CHECK(g.attributes(a.op()) == g.attributes(b.op()));
  CHECK(g.input(a.op(), 0).op() == x.op());
  CHECK(g.input(c.op(), 0).type() == type_id_of<double>());  // through the stage
  CHECK(g.input(c.op(), 0).as<double>().has_value());
  CHECK(!g.input(c.op(), 0).as<float>().has_value());
  CHECK(g.output(c.op(), 0).type() == type_id_of<double>());
  CHECK(!g.output(c.op(), 1).type());
}

TEST_CASE("op_attribute: values are told apart by type and bits, and enums have names") {
  const auto of = [](double by, reduction how = reduction::sum) {
    step_graph g;
    return g.attributes(g.add(scale{by, how}, g.constant("x", 1.0)).op());
  };
  CHECK(of(4e-7) == of(4e-7));
  CHECK(of(4e-7) != of(std::nextafter(4e-7, 1)));
  CHECK(of(0.0) != of(-0.0));
  CHECK(of(std::numeric_limits<double>::quiet_NaN()) == of(std::numeric_limits<double>::quiet_NaN()));
  CHECK(of(1, reduction::sum) != of(1, reduction::mean));
  CHECK(of(1, reduction::mean)[1].value.text() == "mean");
  CHECK(of(1)[1].value.type() == type_id_of<reduction>());
  CHECK(attribute_value(1) != attribute_value(1.0));
  CHECK(attribute_value(1) != attribute_value(std::int64_t{1}));
  CHECK(attribute_value("1") != attribute_value(1));
  CHECK(attribute_value("a") == attribute_value(std::string("a")));
  CHECK(attribute_value(true).text() == "true");
}

TEST_CASE("type_id: each type has one, const or not") {
  CHECK(type_id_of<int>() == type_id_of<int>());
  CHECK(type_id_of<int>() != type_id_of<const int>());
  CHECK(type_id_of<int>() != type_id_of<long>());
  CHECK(!type_id());
  CHECK(type_id() != type_id_of<void>());
}

TEST_CASE("step_editor: an edited graph") {
  //! [step_editor]
  step_graph g;
  const auto x = g.constant("x", 2.0);
  const auto thrice = g.add("thrice", scale{3}, x);
  const auto out = g.add("out", scale{10}, thrice);
  g.keep(out);

  step_editor edit(g);
  const auto twice = edit.graph().add("twice", scale{2}, edit.of(x));
  edit.redirect(edit.of(thrice), twice).or_throw();
  edit.erase(thrice.op()).or_throw();
  const edited_graph made = edit.finish().or_throw();
  //! [step_editor]
  CHECK(run_once(g, out) == 60);
  CHECK(run_once(made.graph, *made.moved(out)) == 40);
  CHECK(made.graph.size() == 3);
  CHECK(made.moved.op(thrice.op()) == -1);
  // Who asks for the value that was redirected gets what is in its place.
  CHECK(run_once(made.graph, *made.moved(thrice)) == 4);
  CHECK(made.moved(out)->op() == made.moved.op(out.op()));
}

TEST_CASE("step_editor: one that is finished at once is a clone, whose ops are those of the first") {
  step_graph g;
  std::vector<double> log;
  const auto to = g.variable("log", log);
  int drawn = 0;
  const auto x = g.source<double>("read", [&drawn](double& v) { return v = ++drawn, true; });
  const auto y = g.add("append", append{0.5}, x, g.write(to)).role(op_role::apply).cost(1e-6);
  g.set_bytes(y.op(), 0, 8);
  const std::string words = explain(g);
  step_editor edit(g);
  const edited_graph made = edit.finish().or_throw();
  CHECK(explain(made.graph) == words);
  CHECK(made.graph.bytes(y.op(), 0) == 8);
  CHECK(made.graph.as<append>(y.op()) == g.as<append>(y.op()));
  // The source and the variable are the same.
  CHECK(run_once(g, y) == 1.5);
  CHECK(run_once(made.graph, *made.moved(y)) == 2.5);
  CHECK(log == std::vector<double>{1.5, 2.5});
  // Handles belong to one graph.
  step_graph other;
  CHECK(!made.moved(other.constant("c", 1.0)).has_value());
  const auto variable = made.moved(to);
  REQUIRE(variable.has_value());
  CHECK(variable->op() == to.op());
}

TEST_CASE("step_editor: a local is an object of each program") {
  step_graph g;
  const auto sum = g.local("sum", [] { return 0.0; });
  const auto x = g.constant("x", 1.0);
  const auto add = g.add<double>(
      "add", [](const double& in, double& held, double& out) { out = held += in; }, x, g.write(sum));
  step_editor edit(g);
  const edited_graph made = edit.finish().or_throw();
  const auto add_there = *made.moved(add);
  const step_program a = step_program::compile(g).or_throw(),
                     b = step_program::compile(made.graph).or_throw();
  step_state of_a = a.make_state(), of_b = b.make_state();
  for (int i = 0; i < 3; ++i) REQUIRE(a.run(inline_executor{}, of_a).or_throw());
  REQUIRE(b.run(inline_executor{}, of_b).or_throw());
  CHECK(of_a.get(add) == 3);
  CHECK(of_b.get(add_there) == 1);
}

TEST_CASE("step_editor: what is replaced, cloned or placed keeps the order of effects") {
  for (const int how : {0, 1, 2, 3}) {
    step_graph g;
    std::vector<double> log;
    const auto to = g.variable("log", log);
    const auto x = g.constant("x", 0.0);
    g.add("first", append{1}, x, g.write(to));
    const auto second = g.add("second", append{2}, x, g.write(to)).role(op_role::apply).target();
    const auto last = g.add("last", append{3}, x, g.write(to)).after(second);
    step_editor edit(g);
    step_graph& h = edit.graph();
    if (how == 0) {
      const auto by = h.add("by", append{20}, edit.of(x), h.write(edit.of(to)));
      edit.replace(second.op(), by.op()).or_throw();
    } else if (how == 1) {
      static_cast<void>(edit.clone(second.op()));
    } else {
      const auto by = h.add("by", append{20}, edit.of(x), h.write(edit.of(to)));
      if (how == 2) edit.place(by.op(), second.op());
    }
    const edited_graph made = edit.finish().or_throw();
    static_cast<void>(run_once(made.graph, *made.moved(last)));
    CHECK(log == (how == 0   ? std::vector<double>{1, 20, 3}
                  : how == 1 ? std::vector<double>{1, 2, 2, 3}
                  : how == 2 ? std::vector<double>{1, 2, 20, 3}
                             : std::vector<double>{1, 2, 3, 20}));
    if (how == 0) {
      CHECK(made.graph.name(3) == "second");
      CHECK(explain(made.graph).find("'second': opaque of 'x', writes 'log', apply, target") !=
            std::string::npos);
      CHECK(explain(made.graph).find("'last': opaque of 'x', writes 'log', after 'second'") !=
            std::string::npos);
      CHECK(made.moved(second)->op() == made.moved(last)->op() - 1);
    }
  }
}

TEST_CASE("step_editor: an op may go on taking what it wraps, and one input is redirected alone") {
  step_graph g;
  const auto x = g.constant("x", 1.0);
  const auto y = g.add("y", scale{3}, x);
  const auto z =
      g.add<double>("z", [](const double& a, const double& b, double& out) { out = 100 * a + b; }, y, y);
  step_editor edit(g);
  SUBCASE("wrapped") {
    const auto wrapped = edit.graph().add("wrapped", scale{2}, edit.of(y));
    edit.redirect(edit.of(y), wrapped).or_throw();
    const edited_graph made = edit.finish().or_throw();
    CHECK(run_once(made.graph, *made.moved(z)) == 606);
  }
  SUBCASE("one input") {
    edit.redirect(z.op(), 1, edit.of(x)).or_throw();
    const edited_graph made = edit.finish().or_throw();
    CHECK(run_once(made.graph, *made.moved(z)) == 301);
  }
}

TEST_CASE("step_editor: what is wrong is refused by name, and the first graph stays as it was") {
  step_graph g;
  const auto x = g.constant("x", 1.0);
  const auto a = g.add("a", scale{2}, x);
  const auto b = g.add("b", scale{3}, a);
  const auto c = g.add("c", count{}, b);
  const auto d = g.add("d", scale{1}, x).after(c);
  g.keep(d);
  const std::string words = explain(g);
  step_editor edit(g);
  SUBCASE("used") {
    refuses(edit.erase(a.op()), "step_editor::erase: what is erased must not be used (op 1 'a': op 2 'b')");
  }
  SUBCASE("used by the order") { refuses(edit.erase(c.op()), "(op 3 'c': op 4 'd')"); }
  SUBCASE("kept") { refuses(edit.erase(d.op()), "must not be kept (op 4 'd')"); }
  SUBCASE("another type") {
    refuses(edit.redirect(edit.of(b), edit.of(c)), "both values must have one type");
  }
  SUBCASE("of another graph") {
    step_graph other;
    refuses(edit.redirect(edit.of(b), other.constant("y", 1.0)), "both must be values of the graph");
    refuses(edit.redirect(edit.of(b), value<double>()), "both must be values of the graph");
  }
  SUBCASE("replaced by other types") {
    const auto by = edit.graph().add("by", count{}, edit.of(x));
    refuses(edit.replace(a.op(), by.op()), "outputs of the same types (op 1 'a': op 5 'by')");
  }
  SUBCASE("a cycle") {
    edit.redirect(a.op(), 0, edit.of(b)).or_throw();
    refuses(edit.finish(), "(op 1 'a': op 1 'a' -> op 2 'b' -> op 1 'a')");
  }
  SUBCASE("an op that takes what an erased one made") {
    edit.redirect(edit.of(a), edit.of(x)).or_throw();
    edit.erase(a.op()).or_throw();
    edit.graph().add("late", scale{1}, edit.of(a));
    refuses(edit.finish(), "must not take what an erased op makes (op 5 'late': op 1 'a')");
  }
  SUBCASE("an op behind an erased one") {
    const auto late = edit.graph().add("late", scale{1}, edit.of(x));
    edit.graph().add("later", scale{1}, edit.of(x)).after(late);
    refuses(edit.erase(late.op()), "(op 5 'late': op 6 'later')");
  }
  CHECK(explain(g) == words);
  CHECK(g.check().ok());
}

TEST_CASE("step_editor: a stage that hands on itself is refused") {
  step_graph g;
  const auto x = g.constant("x", 1.0);
  const auto one = g.stage("one", x), two = g.stage("two", one);
  step_editor edit(g);
  edit.redirect(one.op(), 0, edit.of(two)).or_throw();
  refuses(edit.finish(), "a stage must hand on what an op makes (op 1 'one'");
}

// Edits that leave the results alone: clones, replacements by an equal op, values that pass through an op.
TEST_CASE("step_editor: random graphs that are edited without effect give the same bits") {
  std::mt19937_64 random(deeprec_test::seed());
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  int compared = 0, broken = 0, told = 0;
  for (int round = 0; round < 400; ++round) {
    const deeprec_test::described_steps from = deeprec_test::random_steps(random);
    const bool wrong = round % 4 == 3;  // a value that changes on its way
    deeprec_test::step_world world, edited_world;
    deeprec_test::built_steps mine = deeprec_test::build_steps(from, world);
    deeprec_test::built_steps theirs = deeprec_test::build_steps(from, edited_world);
    if (!mine.graph.check()) continue;
    const std::string words = explain(theirs.graph);
    step_editor edit(theirs.graph);
    step_graph& h = edit.graph();
    const index_t edits = 1 + below(6);
    bool changed = false;
    for (index_t e = 0; e < edits; ++e) {
      const value<word> v =
          edit.of(theirs.values[static_cast<std::size_t>(below(static_cast<index_t>(theirs.values.size())))]);
      const auto* const pure = h.as<deeprec_test::pure_op>(v.op());
      if (edit.is_erased(v.op())) continue;
      if (wrong) {
        const auto by =
            h.add<word>("by", [](const word& in, word& out) { out = in + 1; }, v).role(h.role(v.op()));
        edit.place(by.op(), v.op());
        edit.redirect(v, by).or_throw();
        changed = true;
      } else if (pure != nullptr && below(3) == 0) {
        const index_t twin = edit.clone(v.op());
        edit.redirect(v, h.output(twin, 0)).or_throw();
        if (below(2) == 0 && h.core().op(v.op()).after.empty()) {
          const result<void> gone = edit.erase(v.op());
          CHECK((gone.ok() || gone.message().find("must not be used") != std::string::npos));
        }
      } else if (pure != nullptr && below(2) == 0) {
        std::vector<value<word>> in;
        for (index_t i = 0; i < h.inputs(v.op()); ++i) in.push_back(*h.input(v.op(), i).as<word>());
        edit.replace(v.op(), h.add("by", *pure, in).op()).or_throw();
      } else {
        const auto by =
            h.add<word>("by", [](const word& in, word& out) { out = in; }, v).role(h.role(v.op()));
        edit.place(by.op(), v.op());
        edit.redirect(v, by).or_throw();
      }
    }
    const result<edited_graph> made = edit.finish();
    CHECK(explain(theirs.graph) == words);
    // A value may cross a stage that it did not cross before, beside what its variables allow.
    if (!made) continue;
    deeprec_test::step_interpreter a(mine.graph), b(made.value().graph);
    bool same = true;
    for (word step = 0; step <= from.steps; ++step) {
      const bool more = a.step(inline_executor{}, below).or_throw();
      CHECK(b.step(inline_executor{}, below).or_throw() == more);
      if (!more) break;
      for (std::size_t i = 0; i < mine.values.size(); ++i) {
        const auto there = made.value().moved(theirs.values[i]);
        if (there) same = same && a.get(mine.values[i]) == b.get(*there);
      }
    }
    same = same && world.variables() == edited_world.variables() && world.log == edited_world.log;
    if (wrong) {
      broken += changed ? 1 : 0;
      told += changed && !same ? 1 : 0;
    } else {
      ++compared;
      CHECK(same);
    }
  }
  CHECK(compared > 150);
  CHECK(broken > 30);
  CHECK(told == broken);
}
