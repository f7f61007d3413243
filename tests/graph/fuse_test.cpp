// What patterns match, beside trying everything; what fuse() makes of it; what it refuses.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/random_patterns.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"
#include "support/step_interpreter.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

struct ignores_uses : detail::match_rules {
  static constexpr bool interior_is_private = false;
};
struct ignores_paths : detail::match_rules {
  static constexpr bool set_is_convex = false;
};

/// The matches that find_matches finds, by the places of the described ops.
template <class Rules = detail::match_rules>
std::set<std::vector<index_t>> matches_of(const built_dag& dag, const step_pattern& pattern) {
  const flat_graph flat = dag.graph.flat().or_throw();
  std::set<std::vector<index_t>> all;
  for (std::vector<index_t> ops : detail::graph_fuser<Rules>(dag.graph, flat).matches(pattern.parts())) {
    for (index_t& v : ops)
      v = static_cast<index_t>(std::find(dag.numbers.begin(), dag.numbers.end(), v) - dag.numbers.begin());
    CHECK(all.insert(ops).second);
  }
  return all;
}

/// Runs both graphs, in random orders: the values that are left, variables and the log are the same.
template <class Made>
bool same_bits(const built_dag& mine, dag_world& world, const built_dag& theirs, const Made& made,
               dag_world& of_made, std::mt19937_64& random) {
  const auto choose = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  step_interpreter a(mine.graph), b(made.graph);
  bool same = true;
  for (int step = 0; step < 2; ++step) {
    REQUIRE(a.step(inline_executor{}, choose).or_throw());
    REQUIRE(b.step(inline_executor{}, choose).or_throw());
    for (std::size_t v = 0; v < mine.values.size(); ++v) {
      if (const auto there = made.moved(theirs.values[v]))
        same = same && a.get(mine.values[v]) == b.get(*there);
    }
    same = same && world.log == of_made.log &&
           std::equal(std::begin(world.variables), std::end(world.variables), std::begin(of_made.variables));
  }
  return same;
}

void refuses(const step_graph& g, const std::vector<step_pattern>& patterns, const std::string& words) {
  const std::string before = explain(g);
  const result<fused_graph> made = fuse(g, patterns);
  REQUIRE(!made);
  CAPTURE(made.message());
  CHECK(made.code() == errc::invalid_value);
  CHECK(made.message().find(words) != std::string::npos);
  CHECK(explain(g) == before);
}

struct twice {
  using output = word;
  void operator()(const word& a, word& out) const { out = 2 * a; }
};
struct plus {
  static constexpr const char* kind = "plus";
  static constexpr bool commutative = true;
  using output = word;
  word more = 0;
  void operator()(const word& a, const word& b, word& out) const { out = a + b + more; }
};
struct twice_plus {
  static constexpr const char* kind = "twice_plus";
  using output = word;
  word more = 0;
  void operator()(const word& a, const word& b, word& out) const { out = 2 * a + b + more; }
};
struct total {
  using output = word;
  void operator()(op_list<const word> in, word& out) const {
    out = 0;
    for (const word x : in) out += x;
  }
};
struct twice_total {
  using output = word;
  void operator()(op_list<const word> in, word& out) const {
    out = 0;
    for (const word x : in) out += 2 * x;
  }
};
struct add_to {
  void operator()(const word& a, word& sum) const { sum += a; }
};
struct add_twice_to {
  void operator()(const word& a, word& sum) const { sum += 2 * a; }
};

step_pattern twice_plus_pattern() {
  step_pattern p("twice, plus");
  const auto x = p.any<word>(), y = p.any<word>();
  const auto doubled = p.op<twice>(x);
  const auto sum = p.op<plus>(doubled, y);
  p.becomes(sum, [=](const pattern_match& m) { return twice_plus{m[sum].more}; }, x, y);
  return p;
}

}  // namespace

TEST_CASE("fuse: a pattern, and what it becomes") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto one = g.constant("one", word{1});
  const auto doubled = g.add("doubled", twice{}, x);
  const auto sum = g.add("sum", plus{7}, one, doubled);  // the other way round
  g.keep(sum);
  //! [fuse]
  step_pattern p("twice, plus");
  const auto a = p.any<word>(), b = p.any<word>();
  const auto twice_a = p.op<twice>(a);
  const auto both = p.op<plus>(twice_a, b);
  p.becomes(both, [=](const pattern_match& m) { return twice_plus{m[both].more}; }, a, b);

  const fused_graph made = fuse(g, {p}).or_throw();
  const step_program program = step_program::compile(made.graph).or_throw();
  //! [fuse]
  CHECK(explain(made) == "fuse: 1 matches\n  twice, plus: 'doubled', 'sum' -> 'sum', twice_plus\n");
  CHECK(made.graph.size() == 3);
  step_state state = program.make_state();
  REQUIRE(program.run(inline_executor{}, state).or_throw());
  CHECK(state.get(*made.moved(sum)) == 18);
  CHECK(!made.moved(doubled).has_value());
  CHECK(g.size() == 4);
}

TEST_CASE("fuse: roles, order, targets, costs and sizes pass to the macro op") {
  step_pattern p("twice, add");
  const auto a = p.any<word>();
  const auto held = p.accumulates<word>();
  p.op<add_to>(p.op<twice>(a), held);
  p.becomes(std::tuple<>(), [](const pattern_match&) { return add_twice_to{}; }, a, held);
  word sum = 0;
  step_graph h;
  const auto y = h.source<word>("read", [](word& out) { return out = 5, true; });
  const auto v = h.variable("sum", sum);
  const auto early = h.add("early", twice{}, y);
  const auto d = h.add("d", twice{}, y).role(op_role::gradient).cost(1e-6).after(early);
  const auto add = h.add("add", add_to{}, d, h.accumulate(v)).role(op_role::gradient).cost(2e-6).target();
  h.add("late", twice{}, y).after(add);
  const fused_graph made = fuse(h, {p}).or_throw();
  CHECK(explain(made.graph) ==
        "step_graph: 5 ops\n"
        "  0 'read': source, external\n"
        "  1 'sum': variable\n"
        "  2 'early': opaque of 'read'\n"
        "  3 'add': opaque of 'read', accumulates 'sum', after 'early', gradient, target, 3 us\n"
        "  4 'late': opaque of 'read', after 'add'\n");
  const step_program program = step_program::compile(made.graph).or_throw();
  step_state state = program.make_state();
  REQUIRE(program.run(inline_executor{}, state).or_throw());
  CHECK(sum == 10);
}

TEST_CASE("fuse: a list of any length, and an op that declines") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto one = g.constant("one", word{1});
  const auto three = g.add("three", twice{}, g.add("sum3", total{}, std::vector<value<word>>{x, one, x}));
  const auto none = g.add("none", twice{}, g.add("sum0", total{}, std::vector<value<word>>{}));
  step_pattern p("total, twice");
  const auto list = p.any_list<word>();
  const auto sum = p.op<total>(list);
  const auto end = p.op<twice>(sum);
  int asked = 0;
  p.becomes(
      end,
      [&asked, sum](const pattern_match& m) -> std::optional<twice_total> {
        ++asked;
        if (m.graph().inputs(m.number(sum)) == 0) return std::nullopt;
        return twice_total{};
      },
      list);
  const fused_graph made = fuse(g, {p}).or_throw();
  CHECK(made.fused.size() == 1);
  CHECK(asked >= 2);
  REQUIRE(made.refused.size() == 1);
  CHECK(made.refused[0].why == "the op that it becomes declines ('none')");
  const step_program program = step_program::compile(made.graph).or_throw();
  step_state state = program.make_state();
  REQUIRE(program.run(inline_executor{}, state).or_throw());
  CHECK(state.get(*made.moved(three)) == 22);
  CHECK(state.get(*made.moved(none)) == 0);
}

TEST_CASE("fuse: an op among others of a list is joined to it, until none is left") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto one = g.constant("one", word{1});
  using list = std::vector<value<word>>;
  const auto left = g.add("left", total{}, list{x, one}), kept = g.add("kept", total{}, list{x, x});
  const auto right = g.add("right", total{}, list{g.add("inner", total{}, list{one, x, one}), one});
  const auto all = g.add("all", total{}, list{left, kept, x, right});
  g.keep(kept);
  g.keep(all);
  step_pattern p("total of totals");
  const auto before = p.any_list<word>(), after = p.any_list<word>(), inner = p.any_list<word>();
  const auto joined = p.list(before, inner, after);
  const auto outer = p.op<total>(p.list(before, p.op<total>(inner), after));
  const auto run = [&](const fused_graph& made) {
    const step_program program = step_program::compile(made.graph).or_throw();
    step_state state = program.make_state();
    REQUIRE(program.run(inline_executor{}, state).or_throw());
    return state.get(*made.moved(all));
  };
  SUBCASE("as they are") {
    std::vector<std::vector<index_t>> places;
    p.becomes(
        outer, [&](const pattern_match& m) { return places.push_back(m.places(joined)), total{}; }, joined);
    CHECK(find_matches(g, p).or_throw().size() == 3);
    const fused_graph made = fuse(g, {p}).or_throw();
    CHECK(made.fused.size() == 3);
    CHECK(made.graph.size() == 4);
    CHECK(made.graph.inputs(made.moved(all)->op()) == 8);
    CHECK(places ==
          std::vector<std::vector<index_t>>{{0, 1, 2, 3}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5, 6, 7}});
    REQUIRE(made.refused.size() == 1);
    CHECK(made.refused[0].why == "the caller keeps an interior value ('kept')");
    CHECK(run(made) == 6 + 10 + 5 + 8);
  }
  SUBCASE("each value once") {
    std::vector<std::vector<index_t>> places;
    p.becomes(
        outer, [&](const pattern_match& m) { return places.push_back(m.places(joined.once())), total{}; },
        joined.once());
    const fused_graph made = fuse(g, {p}).or_throw();
    CHECK(made.fused.size() == 3);
    CHECK(places == std::vector<std::vector<index_t>>{{0, 1, 0, 0}, {0, 1, 2, 0, 3}, {0, 1, 2, 1, 0}});
    CHECK(run(made) == 5 + 1 + 10);  // not the sum: an op that gets values once knows it
  }
}

TEST_CASE("fuse: variables that an op reads, in lists") {
  word held[3] = {10, 200, 3000};
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto a = g.variable("a", held[0]), b = g.variable("b", held[1]), c = g.variable("c", held[2]);
  struct plus_all {
    using output = word;
    void operator()(const word& v, op_list<const word> more, word& out) const {
      out = v;
      for (const word m : more) out += m;
    }
  };
  using reads = std::vector<variable_access<const word>>;
  const auto first = g.add("first", plus_all{}, x, reads{g.read(a), g.read(b)});
  const auto second = g.add("second", plus_all{}, first, reads{g.read(c), g.read(a)});
  g.keep(second);
  step_pattern p("twice");
  const auto v = p.any<word>();
  const auto inner = p.reads_list<word>(), outer = p.reads_list<word>();
  const auto end = p.op<plus_all>(p.op<plus_all>(v, inner), outer);
  const auto run = [&](const step_graph& of, const value<word>& wanted) {
    const step_program program = step_program::compile(of).or_throw();
    step_state state = program.make_state();
    REQUIRE(program.run(inline_executor{}, state).or_throw());
    return state.get(wanted);
  };
  CHECK(run(g, second) == 3225);
  p.becomes(end, [](const pattern_match&) { return plus_all{}; }, v, p.list(inner, outer));
  const fused_graph made = fuse(g, {p}).or_throw();
  CHECK(made.fused.size() == 1);
  CHECK(run(made.graph, *made.moved(second)) == 3225);
  // An access that is left out.
  p.becomes(end, [](const pattern_match&) { return plus_all{}; }, v, inner);
  refuses(g, {p}, "must access the variables that its ops access ('twice')");
}

TEST_CASE("fuse: ops of which some are sample-wise, where the pattern takes the whole batch") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto doubled = g.add("doubled", twice{}, x);
  const auto sum = g.add("sum", plus{}, doubled, x);
  SUBCASE("the first one") { doubled.sample_wise(); }
  SUBCASE("the last one") { sum.sample_wise(); }
  step_pattern p = twice_plus_pattern();
  CHECK(fuse(g, {p}).or_throw().fused.empty());
  p.take_whole_batch();
  const fused_graph made = fuse(g, {p}).or_throw();
  REQUIRE(made.fused.size() == 1);
  CHECK(!made.graph.core().op(made.moved(sum)->op()).sample_wise);
}

TEST_CASE("hazard H16: what others read of a match stays, and commutative inputs are tried in both orders") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto one = g.constant("one", word{1});
  const auto doubled = g.add("doubled", twice{}, x);
  const auto sum = g.add("sum", plus{}, one, doubled);
  const auto why = [&](const std::string& words) {
    const fused_graph made = fuse(g, {twice_plus_pattern()}).or_throw();
    CHECK(made.fused.empty());
    REQUIRE(made.refused.size() == 1);
    CHECK(made.refused[0].why == words);
    CHECK(explain(made.graph) == explain(g));
  };
  SUBCASE("taken by another op") {
    g.add("other", twice{}, doubled);
    why("an interior value is taken by an op outside ('doubled', 'other')");
  }
  SUBCASE("handed on by a stage") {
    g.add("behind", twice{}, g.stage("io", doubled));
    why("a stage lies between its ops ('doubled')");
  }
  SUBCASE("kept") {
    g.keep(doubled);
    why("the caller keeps an interior value ('doubled')");
  }
  SUBCASE("neither") {
    g.keep(sum);
    CHECK(fuse(g, {twice_plus_pattern()}).or_throw().fused.size() == 1);
  }
  SUBCASE("both inputs fit, one of them alone") {
    step_graph h;
    const auto y = h.source<word>("read", [](word& out) { return out = 5, true; });
    const auto left = h.add("left", twice{}, y), right = h.add("right", twice{}, y);
    h.add("sum", plus{}, left, right);
    h.keep(left);
    const fused_graph made = fuse(h, {twice_plus_pattern()}).or_throw();
    REQUIRE(made.fused.size() == 1);
    CHECK(made.fused[0].ops == std::vector<std::string>{"right", "sum"});
  }
}

TEST_CASE("fuse: a match does not cross a stage, an order, a role, a device or what is outside") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto doubled = g.add("doubled", twice{}, x);
  const auto why = [&](const std::string& words) {
    const fused_graph made = fuse(g, {twice_plus_pattern()}).or_throw();
    CHECK(made.fused.empty());
    REQUIRE(made.refused.size() == 1);
    CHECK(made.refused[0].why.find(words) != std::string::npos);
    CHECK(explain(made.graph) == explain(g));
  };
  SUBCASE("a stage behind the second op only") {
    const auto sum = g.add("sum", plus{}, doubled, x);
    g.stage("io", sum);
    CHECK(fuse(g, {twice_plus_pattern()}).or_throw().fused.size() == 1);
  }
  SUBCASE("a stage between them") {
    g.stage("io", g.add("before", total{}, std::vector<value<word>>{x}).after(doubled));
    g.add("sum", plus{}, doubled, x);
    why("a stage lies between its ops ('doubled')");
  }
  SUBCASE("a value that takes a way around") {
    const auto around = g.add("around", total{}, std::vector<value<word>>{x});
    around.after(doubled);
    g.add("sum", plus{}, doubled, around);
    why("a path leaves its ops and comes back");
  }
  SUBCASE("an order") {
    const auto between = g.add("between", total{}, std::vector<value<word>>{x}).after(doubled);
    g.add("sum", plus{}, doubled, x).after(between);
    why("a path leaves its ops and comes back");
  }
  SUBCASE("roles") {
    g.add("sum", plus{}, doubled, x).role(op_role::gradient);
    why("its ops have different roles ('doubled')");
  }
  SUBCASE("devices") {
    doubled.on(op_place::cpu);
    g.add("sum", plus{}, doubled, x);
    why("its ops run on different devices ('doubled')");
  }
  SUBCASE("external") {
    doubled.external();
    g.add("sum", plus{}, doubled, x);
    why("an external op is not fused ('doubled')");
  }
  SUBCASE("samples") {
    doubled.sample_wise();
    g.add("sum", plus{}, doubled, x);
    why("not all of its ops are sample-wise ('doubled')");
  }
}

TEST_CASE("fuse: two matches that are no cycle alone are none together") {
  // a1 > b2 and b1 > a2: as A = a1 a2 and B = b1 b2 each needs the other.
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto a1 = g.add("a1", twice{}, x), b1 = g.add("b1", twice{}, x);
  const auto a2 = g.add("a2", plus{}, a1, x), b2 = g.add("b2", plus{}, b1, x);
  a2.after(b1);
  b2.after(a1);
  CHECK(find_matches(g, twice_plus_pattern()).or_throw().size() == 2);
  const fused_graph made = fuse(g, {twice_plus_pattern()}).or_throw();
  REQUIRE(made.fused.size() == 1);
  CHECK(made.fused[0].ops == std::vector<std::string>{"a1", "a2"});
  CHECK(made.refused.size() == 1);
}

namespace {

struct four_times {
  static constexpr const char* kind = "four_times";
  using output = word;
  void operator()(const word& a, word& out) const { out = 4 * a; }
};
/// Two of `Op` in a row become a `Macro`.
template <class Op, class Macro>
step_pattern two_in_a_row(const char* name) {
  step_pattern p(name);
  const auto in = p.any<word>();
  p.becomes(p.op<Op>(p.op<Op>(in)), [](const pattern_match&) { return Macro{}; }, in);
  return p;
}
/// One `Op` becomes a `Macro`.
template <class Op, class Macro>
step_pattern instead(const char* name) {
  step_pattern p(name);
  const auto in = p.any<word>();
  p.becomes(p.op<Op>(in), [](const pattern_match&) { return Macro{}; }, in);
  return p;
}

}  // namespace

TEST_CASE("fuse: where patterns overlap the earlier one is taken; macro ops are matched again") {
  using names = std::vector<std::string>;
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  value<word> end = g.add("a1", twice{}, x);
  for (const char* name : {"a2", "a3", "a4", "a5"}) end = g.add(name, twice{}, end);
  const auto sum = g.add("sum", plus{}, end, x);
  const step_pattern pair = two_in_a_row<twice, four_times>("pair"), head = twice_plus_pattern();
  const auto run = [&](const fused_graph& made) {
    const step_program program = step_program::compile(made.graph).or_throw();
    step_state state = program.make_state();
    REQUIRE(program.run(inline_executor{}, state).or_throw());
    return state.get(*made.moved(sum));
  };
  const fused_graph pairs = fuse(g, {pair, head}).or_throw();
  REQUIRE(pairs.fused.size() == 3);
  CHECK(pairs.fused[0].ops == names{"a1", "a2"});
  CHECK(pairs.fused[1].ops == names{"a3", "a4"});
  CHECK(pairs.fused[2].ops == names{"a5", "sum"});
  CHECK(run(pairs) == 5 * 32 + 5);
  const fused_graph heads = fuse(g, {head, pair}).or_throw();
  REQUIRE(heads.fused.size() == 3);
  CHECK(heads.fused[0].ops == names{"a5", "sum"});
  CHECK(run(heads) == 5 * 32 + 5);
  CHECK(find_matches(g, pair).or_throw().size() == 4);
  // What one pattern makes, another one takes, in either order of the patterns.
  const step_pattern again = two_in_a_row<four_times, twice>("again");  // a wrong one, but the graph is right
  for (const auto& patterns : {std::vector{pair, again}, std::vector{again, pair}})
    CHECK(fuse(g, patterns).or_throw().fused.size() == 4);
}

TEST_CASE("fuse: a pattern that is none is refused by name, and the graph stays as it was") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  g.add("doubled", twice{}, x);
  const auto none = [](const pattern_match&) { return twice{}; };
  SUBCASE("that makes what it matches") {
    refuses(g, {instead<twice, twice>("same")},
            "a pattern must not match what it makes ('same': it makes opaque)");
  }
  SUBCASE("that makes what another one matches, and that back") {
    refuses(g, {instead<twice, four_times>("there"), instead<four_times, twice>("back")},
            "patterns must not match what they make ('there': 'there' -> 'back' -> 'there')");
    CHECK(fuse(g, {instead<twice, four_times>("there")}).or_throw().fused.size() == 1);
  }
  SUBCASE("that becomes nothing") {
    step_pattern p("open");
    static_cast<void>(p.op<twice>(p.any<word>()));
    refuses(g, {p}, "a pattern must say what it becomes ('open')");
  }
  SUBCASE("of no ops") {
    step_pattern p("empty");
    const auto a = p.any<word>();
    p.becomes(a, none, a);
    refuses(g, {p}, "a pattern must have an op ('empty')");
  }
  SUBCASE("in two parts") {
    step_pattern p("two parts");
    const auto a = p.any<word>();
    const auto left = p.op<twice>(a), right = p.op<twice>(a);
    static_cast<void>(left);
    p.becomes(right, none, a);
    refuses(g, {p}, "must be connected by what they make ('two parts': op 1 of the pattern, opaque)");
  }
  SUBCASE("of another pattern's values") {
    step_pattern p("mixed"), other("other");
    const auto a = p.any<word>();
    const auto theirs = other.any<word>();
    p.becomes(p.op<plus>(p.op<twice>(a), theirs), none, a);
    refuses(g, {p}, "must take what is of the pattern ('mixed': op 1 of the pattern, plus)");
  }
  SUBCASE("whose macro op takes what an op makes, or a wildcard that none takes") {
    step_pattern p("inside");
    const auto a = p.any<word>(), unused = p.any<word>();
    const auto first = p.op<twice>(a);
    const auto last = p.op<twice>(first);
    p.becomes(last, none, first);
    refuses(g, {p}, "the macro op must take wildcards");
    p.becomes(last, none, unused);
    refuses(g, {p}, "the macro op must take wildcards");
    p.becomes(a, none, a);
    refuses(g, {p}, "must stand for values that ops of the pattern make");
  }
  SUBCASE("whose macro op leaves out an access") {
    step_pattern p("hidden");
    const auto a = p.any<word>();
    p.becomes(p.op<twice>(p.op<peek_op>(a, p.reads<word>())), none, a);
    refuses(g, {p}, "must access the variables that its ops access ('hidden')");
  }
  SUBCASE("a graph with a fault") {
    g.add("wrong", twice{}, value<word>());
    refuses(g, {twice_plus_pattern()}, "op 2 'wrong': input 0 is missing");
  }
}

TEST_CASE("fuse: what would be a cycle is refused with the names of its ops, and the graph stays as it was") {
  step_graph g;
  const auto x = g.source<word>("read", [](word& out) { return out = 5, true; });
  const auto doubled = g.add("doubled", twice{}, x);
  const auto between = g.add("between", total{}, std::vector<value<word>>{x}).after(doubled);
  g.add("sum", plus{}, doubled, x).after(between);
  const std::string before = explain(g);
  const std::vector<step_pattern> patterns{twice_plus_pattern()};
  const flat_graph flat = g.flat().or_throw();
  const result<fused_graph> made = detail::graph_fuser<ignores_paths>(g, flat).run(patterns, 0);
  REQUIRE(!made);
  CAPTURE(made.message());
  CHECK(made.message().find("an op must not need its own result") != std::string::npos);
  CHECK(made.message().find("'sum'") != std::string::npos);
  CHECK(made.message().find("'between'") != std::string::npos);
  CHECK(explain(g) == before);
}

// All graphs of four ops of three kinds, each with one of its values kept or none.
TEST_CASE("fuse: every small graph has the matches that trying everything finds, and the same bits") {
  const auto cell = [](index_t op) { return described_cell{op, 0}; };
  const auto wild = [](index_t w) { return described_cell{-1, w}; };
  const std::vector<described_pattern> patterns{
      {{{fusable::neg, {wild(0)}}, {fusable::neg, {cell(0)}}}, 1, {cell(1)}},
      {{{fusable::neg, {wild(0)}}, {fusable::add, {wild(1), cell(0)}}}, 2, {cell(1)}},
      {{{fusable::neg, {wild(0)}}, {fusable::sub, {cell(0), wild(0)}}}, 1, {cell(1)}},
      {{{fusable::neg, {wild(0)}}, {fusable::neg, {wild(1)}}, {fusable::add, {cell(0), cell(1)}}},
       2,
       {cell(2)}},
      {{{fusable::neg, {wild(0)}}, {fusable::neg, {cell(0)}}, {fusable::sub, {cell(0), cell(1)}}},
       1,
       {cell(2)}},
      {{{fusable::neg, {wild(0)}}, {fusable::add, {cell(0), wild(1)}}}, 2, {cell(1), cell(0)}}};
  std::vector<step_pattern> built;
  for (const described_pattern& p : patterns) built.push_back(build(p, "p" + std::to_string(built.size())));
  index_t graphs = 0, found = 0, fused = 0, without_uses = 0, without_paths = 0;
  constexpr index_t ops = 4, share = DEEPREC_TEST_SANITIZED ? 8 : 1;
  std::mt19937_64 random(deeprec_test::seed());
  described_dag g;
  const std::function<void()> each = [&] {
    const auto v = static_cast<index_t>(g.ops.size());
    if (v < ops) {
      for (const fusable kind : {fusable::neg, fusable::add, fusable::sub}) {
        for (index_t a = 0; a <= v; ++a) {
          for (index_t b = 0; b <= (kind == fusable::neg ? 0 : v); ++b) {
            g.ops.push_back({kind, kind == fusable::neg ? std::vector{a} : std::vector{a, b}});
            each();
            g.ops.pop_back();
          }
        }
      }
      return;
    }
    // Under sanitizers, which take ten times as long, one of eight.
    if (++graphs % share != 0) return;
    const auto kept = static_cast<index_t>(random() % (ops + 3));
    if (kept < ops) g.ops[static_cast<std::size_t>(kept)].kept = true;
    dag_world world;
    const built_dag dag = build(g, world);
    const std::size_t p = static_cast<std::size_t>(graphs / share) % patterns.size();
    const auto all = brute_matches(g, patterns[p]);
    CHECK(matches_of(dag, built[p]) == all);
    found += static_cast<index_t>(all.size());
    without_uses += matches_of<ignores_uses>(dag, built[p]) == all ? 0 : 1;
    without_paths += matches_of<ignores_paths>(dag, built[p]) == all ? 0 : 1;
    if (graphs % 8 == 0) {
      const fused_graph made = fuse(dag.graph, built).or_throw();
      fused += static_cast<index_t>(made.fused.size());
      dag_world first, second;
      const built_dag mine = build(g, first), theirs = build(g, second);
      const fused_graph of_theirs = fuse(theirs.graph, built).or_throw();
      CHECK(same_bits(mine, first, theirs, of_theirs, second, random));
    }
    if (kept < ops) g.ops[static_cast<std::size_t>(kept)].kept = false;
  };
  each();
  CHECK(graphs == 3 * 10 * 21 * 36);
  CHECK(found > 1000 / share);
  CHECK(fused > 500 / share);
  CHECK(without_uses > 100 / share);
  CHECK(without_paths > 10 / share);
}

TEST_CASE("fuse: random graphs have the matches that trying everything finds, and the same bits") {
  std::mt19937_64 random(deeprec_test::seed() + 1);
  index_t graphs = 0, found = 0, fused = 0, without_uses = 0, without_paths = 0, refused = 0, cycles = 0;
  index_t lists = 0;
  constexpr int share = DEEPREC_TEST_SANITIZED ? 10 : 1;
  for (int round = 0; round < 10000 / share; ++round) {
    const described_dag g = random_dag(random, round % 10 == 0 ? 60 : 20);
    dag_world world, of_made;
    const built_dag mine = build(g, world), theirs = build(g, of_made);
    if (!mine.graph.check()) continue;
    ++graphs;
    std::vector<described_pattern> patterns;
    std::vector<step_pattern> built;
    for (int p = 0; p < 1 + round % 3; ++p) {
      patterns.push_back(p == 0 ? pattern_of(g, random, 4) : random_pattern(random, 4));
      built.push_back(build(patterns.back(), "p" + std::to_string(p)));
    }
    for (std::size_t p = 0; p < patterns.size(); ++p) {
      const auto all = brute_matches(g, patterns[p]);
      const auto those = matches_of(mine, built[p]);
      if (those != all) {
        CAPTURE(round);
        CHECK(those == all);
      }
      found += static_cast<index_t>(all.size());
      if (!patterns[p].any_number.empty()) lists += static_cast<index_t>(all.size());
      without_uses += matches_of<ignores_uses>(mine, built[p]) == all ? 0 : 1;
      without_paths += matches_of<ignores_paths>(mine, built[p]) == all ? 0 : 1;
    }
    const fused_graph made = fuse(theirs.graph, built).or_throw();
    CHECK(made.graph.size() + [&] {
      index_t gone = 0;
      for (const fused_ops& f : made.fused) gone += static_cast<index_t>(f.ops.size()) - 1;
      return gone;
    }() == theirs.graph.size());
    for (const step_pattern& p : built) CHECK(find_matches(made.graph, p).or_throw().empty());
    const fused_graph same = fuse(theirs.graph, built).or_throw();
    CHECK(explain(same) == explain(made));
    fused += static_cast<index_t>(made.fused.size());
    CAPTURE(round);
    CHECK(same_bits(mine, world, theirs, made, of_made, random));
    // A fuser that ignores a rule makes a graph that is refused, or another one.
    if (round % 2 != 0) continue;
    const flat_graph flat = theirs.graph.flat().or_throw();
    const result<fused_graph> loose = detail::graph_fuser<ignores_uses>(theirs.graph, flat).run(built, 0);
    refused += loose ? 0 : 1;
    cycles += detail::graph_fuser<ignores_paths>(theirs.graph, flat).run(built, 0) ? 0 : 1;
  }
  CHECK(graphs > 7000 / share);
  CHECK(found > 5000 / share);
  CHECK(fused > 3000 / share);
  CHECK(without_uses > 1000 / share);
  CHECK(without_paths > 100 / share);
  CHECK(refused > 100 / share);
  CHECK(cycles > 5 / share);
  CHECK(lists > 300 / share);
}
