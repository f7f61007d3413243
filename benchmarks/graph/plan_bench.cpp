// Runs of a plan on one thread, against the loop that nobody could beat and the graphs of other libraries.
//
//   graph/inline/mixed      10^4 ops of eight kinds, in layers of 100
//   graph/inline/one_kind   10^4 ops of one kind
//   graph/inline/hundred    100 ops of eight kinds, in layers of 10
//   graph/trace             10^4 ops with a recorder, less the same without one
//
// Floors, before anything was optimised. An op is two loads, a multiplication and a store: about 1 ns, the
// `floor_ns` of the run (its ops in the order of the plan, by loops over a kind, written by hand). Kinds in
// the order of a list change at 7 of 8 ops, and an indirect call that is not predicted costs 5 to 8 ns:
// predicted 7 to 9 ns an op. In the order of the plan the kind changes 576 times: at 8 ns that is 0.5 ns an
// op, so 2 ns are predicted for mixed (`groups` is their number, `as_added_ns` the time in the order of the
// list). A hundred ops fit into the predictor: 2 ns. one_kind: 1.2 ns. trace: a counter is read once for an
// op that follows another one, 9 ns, two calls of the sink and 48 bytes written: predicted 18 ns.
//
// Tracing is compiled into every run and off in graph/inline: a null sink.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/trace_recorder.hpp>

#include "graph/baseline.hpp"
#include "graph/peers.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace graph_bench;
using deeprec_bench::add;
using deeprec_bench::figures;
using deeprec_bench::median;
using deeprec_bench::seconds_of;

constexpr const char* wrong_values = "wrong answer: an op did not run after those that it depends on";

template <int Kind>
struct op_task {
  std::uint64_t* values;
  graph::op op;
  std::uint32_t self;
  void operator()() const { run_op<Kind>(values, self, op); }
};

template <int Kind>
void add(task_list& to, const graph& of, std::uint32_t v, std::uint64_t* values) {
  to.add("op", op_task<Kind>{values, of.ops[v], v});
}

task_list list_of(const graph& of, std::uint64_t* values) {
  constexpr std::array adders{add<0>, add<1>, add<2>, add<3>, add<4>, add<5>, add<6>, add<7>};
  task_list made;
  for (std::uint32_t v = 0; v < of.ops.size(); ++v) {
    adders[static_cast<std::size_t>(of.ops[v].kind)](made, of, v, values);
  }
  for (const auto& [u, v] : of.edges) made.edge(u, v);
  return made;
}

/// The same ops in the same order, as a loop for each row of one kind, without a plan.
class by_hand {
 public:
  by_hand(const graph& of, const task_plan& plan, std::uint64_t* values) : values_(values) {
    for (const std::int32_t v : plan.order()) {
      const auto i = static_cast<std::size_t>(v);
      if (rows_.empty() || rows_.back().kind != of.ops[i].kind)
        rows_.push_back({of.ops[i].kind, ops_.size(), 0});
      ops_.push_back({of.ops[i], static_cast<std::uint32_t>(v)});
      ++rows_.back().count;
    }
  }
  void run() const {
    for (const row& r : rows_) {
      constexpr std::array loops{&by_hand::loop<0>, &by_hand::loop<1>, &by_hand::loop<2>, &by_hand::loop<3>,
                                 &by_hand::loop<4>, &by_hand::loop<5>, &by_hand::loop<6>, &by_hand::loop<7>};
      (this->*loops[static_cast<std::size_t>(r.kind)])(r.first, r.first + r.count);
    }
  }

 private:
  struct row {
    int kind;
    std::size_t first, count;
  };
  template <int Kind>
  void loop(std::size_t i, std::size_t end) const {
    for (; i < end; ++i) run_op<Kind>(values_, ops_[i].second, ops_[i].first);
  }
  std::uint64_t* values_;
  std::vector<std::pair<graph::op, std::uint32_t>> ops_;
  std::vector<row> rows_;
};

/// Peers on one thread and on two: the medians of their seconds.
struct contest {
  struct side {
    std::string name;
    std::unique_ptr<runner> run;
    std::vector<double> seconds = {};
  };
  std::vector<side> sides;

  contest(const graph& of, std::uint64_t* values) {
    for (const peer& p : peers()) {
      for (const int threads : {1, 2}) {
        sides.push_back({p.name + std::string(threads == 1 ? ", 1 thread" : ", 2 threads"),
                         std::unique_ptr<runner>(p.make(of, values, threads))});
      }
    }
  }
  [[nodiscard]] const side* best() const {
    const side* found = nullptr;
    for (const side& s : sides) {
      if (!s.seconds.empty() && (found == nullptr || median(s.seconds) < median(found->seconds))) found = &s;
    }
    return found;
  }
};

void inline_run(benchmark::State& state, const std::string& name, const graph& of) {
  for (auto _ : state) {
    const auto initial = first_values(of);
    std::vector<std::uint64_t> expected = initial, values = initial;
    for (std::uint32_t v = 0; v < of.ops.size(); ++v) run_op(of.ops[v].kind, expected.data(), v, of.ops[v]);
    const task_list list = list_of(of, values.data());
    const task_plan plan = task_plan::compile(list).or_throw();
    const task_plan added = task_plan::compile(list, task_order::as_added).or_throw();
    const by_hand floor(of, plan, values.data());
    contest others(of, values.data());
    const environment env;
    bool wrong = false;
    const auto right = [&](auto&& run) {
      values = initial;
      run();
      wrong |= values != expected;
    };
    const auto ours = [&](const task_plan& p) {
      if (!run_inline(env, p)) wrong = true;
    };
    right([&] { ours(plan); });
    right([&] { ours(added); });
    right([&] { floor.run(); });
    for (auto& s : others.sides) right([&] { s.run->run(); });
    if (wrong) return state.SkipWithError(wrong_values);

    const auto ops = static_cast<double>(of.ops.size());
    const int repeats = static_cast<int>(200'000 / ops) + 1;
    const auto ns = [&](auto&& run) {
      return 1e9 / ops / repeats * seconds_of([&] {
               for (int i = 0; i < repeats; ++i) run();
             });
    };
    figures f(name);
    f.sample([&] {
      double mine = 0, hand = 0;
      for (const int i : {f.swapped() ? 1 : 0, f.swapped() ? 0 : 1}) {
        (i == 0 ? mine : hand) = i == 0 ? ns([&] { ours(plan); }) : ns([&] { floor.run(); });
      }
      const double as_added = ns([&] { ours(added); });
      for (auto& s : others.sides) {
        const double took = ns([&] { s.run->run(); });
        if (f.counts()) s.seconds.push_back(took);
      }
      f.add("ns_per_op", mine);
      f.add("of_floor", mine / hand);
      f.note("floor_ns", hand);
      f.note("as_added_ns", as_added);
      if (const auto* const best = others.best()) f.add("of_peer", mine / best->seconds.back());
    });
    if (const auto* const best = others.best()) {
      f.note("peer_ns", median(best->seconds));
      f.say("best peer: " + best->name);
    }
    f.note("groups", static_cast<double>(plan.groups()));
    f.report(state);
  }
}

void traced(benchmark::State& state, const std::string& name) {
  const graph of = layered(10'000, 100, 8);
  for (auto _ : state) {
    std::vector<std::uint64_t> values = first_values(of);
    const task_plan plan = task_plan::compile(list_of(of, values.data())).or_throw();
    constexpr int repeats = 20;
    trace_recorder trace({.threads = 1, .spans = 10'000});
    environment off, on;
    on.trace = &trace;
    figures f(name);
    std::uint64_t lost = 0;
    bool failed = false;
    const auto ns = [&](const environment& env) {
      return 1e9 / static_cast<double>(of.ops.size()) / repeats * seconds_of([&] {
               for (int i = 0; i < repeats; ++i) {
                 lost += trace.dropped();
                 trace.clear();
                 if (!run_inline(env, plan)) failed = true;
               }
             });
    };
    f.sample([&] {
      double with = 0, without = 0;
      for (const int i : {f.swapped() ? 1 : 0, f.swapped() ? 0 : 1})
        (i == 0 ? with : without) = ns(i == 0 ? on : off);
      f.add("ns_per_op", with - without);
      f.note("traced_ns", with);
      f.note("untraced_ns", without);
    });
    // The recorder holds the last run: every op, once.
    static_cast<void>(ns(on));
    if (failed || lost + trace.dropped() != 0 || trace.spans().size() != of.ops.size()) {
      return state.SkipWithError("wrong answer: a span is missing");
    }
    f.report(state);
  }
}

void inline_of(const char* name, std::size_t ops, std::size_t width, int kinds) {
  add(name, [=](benchmark::State& state, const std::string& whole) {
    inline_run(state, whole, layered(ops, width, kinds));
  });
}

const bool registered = [] {
  inline_of("graph/inline/mixed", 10'000, 100, 8);
  inline_of("graph/inline/one_kind", 10'000, 100, 1);
  inline_of("graph/inline/hundred", 100, 10, 8);
  add("graph/trace", traced);
  return true;
}();

}  // namespace
