// Values that share memory: every bit as without, on random steps whose values refer to others in every way.

#include <deeprec/graph/step/plan_memory.hpp>

#include "support/seed.hpp"
#include "support/step_interpreter.hpp"

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/memory/refusing_resource.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

using word = std::uint64_t;

/// Words of its own, or those of another list.
class list {
 public:
  std::span<word> make(std::size_t n) {
    if (n * sizeof(word) > place_.size()) {
      own_.resize(n);
      words_ = own_;
    } else {
      words_ = {static_cast<word*>(static_cast<void*>(place_.data())), n};
    }
    held_ = words_.size_bytes();
    return words_;
  }
  void refer(const list& to) {
    words_ = to.words_;
    held_ = 0;
  }
  [[nodiscard]] std::span<const word> words() const { return words_; }
  [[nodiscard]] index_t held() const { return static_cast<index_t>(held_); }
  void place(std::span<std::byte> memory) {
    place_ = memory;
    own_ = {};
  }

 private:
  std::vector<word> own_;
  std::span<std::byte> place_;
  std::span<word> words_;
  std::size_t held_ = 0;
};

/// The words of a list, as a type that nothing is planned for.
struct view_of_list {
  const list* of = nullptr;
};

}  // namespace

template <>
struct deeprec::batch_traits<list> {
  static index_t bytes(const list& v) { return static_cast<index_t>(v.words().size_bytes()); }
  static index_t own_bytes(const list& v) { return v.held(); }
  static std::span<const std::byte> memory(const list& v) { return std::as_bytes(v.words()); }
  static void place(list& v, std::span<std::byte> memory) { v.place(memory); }
};

namespace {

word mixed(word salt, std::span<const word> in) {
  word h = mix64(salt + 1);
  for (const word w : in) h = mix64(h ^ w);
  return h;
}
struct makes_op {
  using output = list;
  word salt;
  std::size_t size;
  void operator()(const step_call& call, op_list<const list> in, list& out) const {
    word h = salt + static_cast<word>(call.step);
    for (const list& l : in) h ^= mixed(salt, l.words());
    for (word& w : out.make(size)) w = h = mix64(h);
  }
};
/// Two outputs, of which the first refers to an input.
struct passes_op {
  using outputs = op_outputs<list, list>;
  word salt;
  std::size_t size;
  void operator()(const list& in, list& same, list& out) const {
    same.refer(in);
    word h = mixed(salt, in.words());
    for (word& w : out.make(size)) w = h = mix64(h);
  }
};
struct views_op {
  using output = view_of_list;
  void operator()(const list& in, view_of_list& out) const { out.of = &in; }
};
struct reads_view_op {
  using output = list;
  word salt;
  std::size_t size;
  void operator()(const view_of_list& in, list& out) const {
    word h = mixed(salt, in.of->words());
    for (word& w : out.make(size)) w = h = mix64(h);
  }
};
struct sums_op {
  void operator()(const list& in, word& sum) const { sum = mixed(sum, in.words()); }
};

struct built {
  step_graph graph{};
  std::vector<value<list>> kept{};
};

/// A step of random lists, which adds all that nobody takes to a sum.
built random_lists(std::uint64_t seed, word& sum, word& drawn, bool staged = false) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  built made;
  step_graph& g = made.graph;
  const auto total = g.variable("sum", sum);
  std::vector<value<list>> lists{g.source<list>("read", [&drawn](list& out) {
    for (word& w : out.make(50)) w = mix64(drawn);
    return drawn++ < 6;
  })};
  std::vector<value<view_of_list>> views;
  const std::size_t ops = 3 + below(25);
  for (std::size_t i = 0; i < ops; ++i) {
    const word salt = 10 * i + 1;
    const std::size_t size = 1 + below(200);
    const auto some = [&] { return lists[lists.size() - 1 - below(std::min<std::size_t>(lists.size(), 5))]; };
    if (staged && i == ops / 3) {
      lists.push_back(g.stage("cut", some()));
      continue;
    }
    switch (below(8)) {
      case 0: {
        const auto both = g.add("passes " + std::to_string(i), passes_op{salt, size}, some());
        lists.push_back(both.template get<0>());
        lists.push_back(both.template get<1>());
        break;
      }
      case 1:
        views.push_back(g.add("views " + std::to_string(i), views_op{}, some()));
        break;
      case 2:
        if (!views.empty()) {
          lists.push_back(g.add("reads view " + std::to_string(i), reads_view_op{salt, size},
                                views[below(views.size())]));
          break;
        }
        [[fallthrough]];
      default: {
        std::vector<value<list>> in;
        for (std::size_t n = below(3) + 1; n > 0; --n) in.push_back(some());
        lists.push_back(g.add("makes " + std::to_string(i), makes_op{salt, size}, in));
      }
    }
    if (below(4) == 0) g.add("sums " + std::to_string(i), sums_op{}, some(), g.write(total)).target();
    if (below(6) == 0) {
      made.kept.push_back(lists.back());
      g.keep(lists.back());
    }
  }
  g.add("last", sums_op{}, lists.back(), g.write(total)).target();
  return made;
}

std::vector<word> words_of(const list& l) { return {l.words().begin(), l.words().end()}; }

/// What the steps of a graph leave: the sum, and what is kept after each.
struct outcome {
  word sum = 1;
  std::vector<std::vector<word>> kept;
  friend bool operator==(const outcome&, const outcome&) = default;
};

outcome interpreted(std::uint64_t seed) {
  outcome made;
  word drawn = 0;
  built steps = random_lists(seed, made.sum, drawn);
  inline_executor here;
  deeprec_test::step_interpreter it(steps.graph);
  while (it.step(here, [](index_t) { return 0; }).or_throw()) {
    for (const auto& v : steps.kept) made.kept.push_back(words_of(it.get(v)));
  }
  return made;
}

/// @param change  what a broken planner would make of the plan
template <class Change>
outcome planned(std::uint64_t seed, value_plan& plan, const Change& change) {
  outcome made;
  word drawn = 0;
  built steps = random_lists(seed, made.sum, drawn);
  inline_executor here;
  const step_program program = step_program::compile(steps.graph).or_throw();
  step_state state = program.make_state();
  while (program.run(here, state).or_throw()) {
    for (const auto& v : steps.kept) made.kept.push_back(words_of(state.get(v)));
    if (state.step() > 1) continue;
    plan = plan_memory(program, state).or_throw();
    change(plan);
    place_values(state, plan).or_throw();
  }
  return made;
}

}  // namespace

TEST_CASE("plan_memory: steps whose values share memory have the bits of those that don't") {
  std::size_t shared = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    value_plan plan;
    const outcome expected = interpreted(deeprec_test::seed() + seed);
    REQUIRE(planned(deeprec_test::seed() + seed, plan, [](value_plan&) {}) == expected);
    CHECK(plan.bytes >= plan.live_bytes);
    CHECK(plan.bytes <= plan.apart_bytes);
    shared += plan.bytes < plan.apart_bytes ? 1 : 0;
    for (std::size_t i = 0; i < plan.values.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        const auto &a = plan.values[i], &b = plan.values[k];
        const bool at_once = a.begin < b.end && b.begin < a.end;
        CHECK_FALSE((at_once && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes));
      }
    }
  }
  CHECK(shared > 1000);
}

TEST_CASE("plan_memory: a plan with two values in one place changes the bits of some step") {
  int noticed = 0, tried = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    value_plan plan;
    const outcome expected = interpreted(deeprec_test::seed() + seed);
    const outcome broken = planned(deeprec_test::seed() + seed, plan, [&](value_plan& p) {
      for (std::size_t i = 0; i < p.values.size(); ++i) {
        for (std::size_t k = 0; k < i; ++k) {
          auto &a = p.values[i], &b = p.values[k];
          if (a.begin >= b.end || b.begin >= a.end || a.bytes > b.bytes) continue;
          a.offset = b.offset;
          ++tried;
          return;
        }
      }
    });
    noticed += broken == expected ? 0 : 1;
  }
  CHECK(tried > 100);
  CHECK(noticed > tried / 2);
}

TEST_CASE("plan_memory: behind the cut of a staged program values share memory, with the same bits") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const auto run = [&](bool plans, std::size_t& bytes) {
      outcome made;
      word drawn = 0;
      built steps = random_lists(deeprec_test::seed() + seed, made.sum, drawn, true);
      thread_pool pool(2);
      staged_program program = staged_program::compile(steps.graph).or_throw();
      bool placed = false;
      program
          .run(pool,
               [&](step_state& state) {
                 for (const auto& v : steps.kept) made.kept.push_back(words_of(state.get(v)));
                 if (!plans || placed) return;
                 const value_plan plan = plan_memory(program).or_throw();
                 bytes += plan.apart_bytes - plan.bytes;
                 place_values(program, plan).or_throw();
                 placed = true;
               })
          .or_throw();
      return made;
    };
    std::size_t saved = 0, none = 0;
    REQUIRE(run(true, saved) == run(false, none));
  }
}

TEST_CASE("plan_memory: a value that outgrows its place takes memory of its own") {
  //! [plan_memory]
  step_graph g;
  std::size_t size = 100;
  const auto read = g.source<list>("read", [&](list& out) {
    for (word& w : out.make(size)) w = size;
    return true;
  });
  const auto a = g.add("a", makes_op{1, 300}, std::vector{value<list>(read)});
  const auto b = g.add("b", makes_op{2, 200}, std::vector{value<list>(a)});
  const auto c = g.add("c", makes_op{3, 250}, std::vector{value<list>(b)});
  inline_executor here;
  const step_program program = step_program::compile(g).or_throw();
  step_state state = program.make_state();
  CHECK(program.run(here, state).or_throw());
  const value_plan plan = plan_memory(program, state).or_throw();
  place_values(state, plan).or_throw();
  //! [plan_memory]
  CHECK(plan.apart_bytes == 832 + 2432 + 1600 + 2048);
  CHECK(plan.live_bytes == 2432 + 1600);
  CHECK(plan.bytes == plan.live_bytes);
  size = 1000;
  CHECK(program.run(here, state).or_throw());
  const std::vector<word> grown = words_of(state.get(c));
  state.set_step(1);
  step_state apart = program.make_state();
  apart.set_step(1);
  CHECK(program.run(here, apart).or_throw());
  CHECK(words_of(apart.get(c)) == grown);
}

TEST_CASE("plan_memory: what cannot hold is refused, and the state is as it was") {
  word sum = 1, drawn = 0;
  built steps = random_lists(7, sum, drawn);
  thread_pool pool(2);
  const step_program program = step_program::compile(steps.graph).or_throw();
  step_state state = program.make_state();
  CHECK(program.run(pool, state).or_throw());
  value_plan plan = plan_memory(program, state).or_throw();
  plan.graph += 1000;
  CHECK(place_values(state, plan).code() == errc::shape_mismatch);
  plan.graph -= 1000;
  {
    const step_program beside =
        step_program::compile(steps.graph, {.schedule = op_schedule::as_ready}).or_throw();
    step_state on_threads = beside.make_state();
    CHECK(beside.run(pool, on_threads).or_throw());
    CHECK(plan_memory(beside, on_threads).code() == errc::unsupported);
    CHECK(place_values(on_threads, plan).code() == errc::unsupported);
  }
  place_values(state, plan).or_throw();
  CHECK(program.run(pool, state).or_throw());

  allowance all;
  refusing_resource memory(all);
  {
    step_state refused = program.make_state(&memory);
    CHECK(program.run(pool, refused).or_throw());
    const value_plan places = plan_memory(program, refused).or_throw();
    all.left = 0;
    CHECK_THROWS_AS(static_cast<void>(place_values(refused, places)), std::bad_alloc);
    CHECK(program.run(pool, refused).or_throw());
    all.left = allowance::unlimited;
    place_values(refused, places).or_throw();
    place_values(refused, places).or_throw();  // once more: the first block is given back
    CHECK(program.run(pool, refused).or_throw());
  }
  CHECK(memory.held == 0);
}
