// Every order in which a few threads can share a run of a small graph, under weak memory, with each of the
// ready sets; and each access that is stronger than relaxed, weakened alone, is caught.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/plan/detail/op_runner.hpp>
#include <deeprec/plan/detail/ranked_ops.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/plan/detail/stealing_ops.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/plan/list_schedule.hpp>

#include "queue/model/explorer.hpp"

namespace {

using namespace deeprec_test::model;
using deeprec::digraph;
using deeprec::detail::access;

// What helpers do: wait until they are called, as threads of a pool; or come at once, and again when they
// have left, as if they had been called.
enum class helpers { wait, come };
struct shape {
  const char* name;
  int ops;
  std::vector<digraph::edge> edges;
  int helpers;
  enum helpers what;
  int looks = 1;      // come: how often
  bool meet = false;  // the last two ops that a fork makes ready wait for each other
};

using numbers = std::vector<std::int32_t>;

// The ready sets, each with its memory.
struct fifo {
  using set = deeprec::detail::ready_ops<model_atomics>;
  explicit fifo(const digraph& g) : places(raw(g.size())), ready({places.get(), g.size()}) {}
  static std::unique_ptr<set::number[]> raw(std::size_t n) { return std::make_unique<set::number[]>(n); }
  std::unique_ptr<set::number[]> places;
  set ready;
};
struct stealing {
  using set = deeprec::detail::stealing_ops<model_atomics, 2, 2>;
  explicit stealing(const digraph& g)
      : places(fifo::raw(g.size())),
        deques(new set::deque[2]),
        ready({places.get(), g.size()}, {deques.get(), 2}) {}
  std::unique_ptr<set::number[]> places;
  std::unique_ptr<set::deque[]> deques;
  set ready;
};
struct ranked {
  using set = deeprec::detail::ranked_ops<model_atomics>;
  explicit ranked(const digraph& g, float quota = 1)
      : cost(g.size(), 1),
        rank(g.size()),
        place(g.size()),
        at(g.size()),
        next(g.size()),
        words(new set::word[set::words_for(g.size())]),
        ranks{place, at, cost, rank, quota},
        ready(ranks, {words.get(), set::words_for(g.size())}, next) {
    const numbers order = g.order_as_ready();
    deeprec::upward_ranks(g, order, std::span<const float>(cost), std::span<float>(rank));
    deeprec::places_by_rank(std::span<const float>(rank), std::span<std::int32_t>(at),
                            std::span<std::int32_t>(place));
  }
  std::vector<float> cost, rank;
  numbers place, at, next;
  std::unique_ptr<set::word[]> words;
  deeprec::detail::op_ranks ranks;
  set ready;
};
struct chained : ranked {  // every op is cheap: they go as chains of two
  explicit chained(const digraph& g) : ranked(g, 2) {}
};

template <class Ready>
struct run_scenario : explorer::scenario {
  using runner = deeprec::detail::op_runner<typename Ready::set, model_atomics>;
  static constexpr model_order strong{access::statistic, std::memory_order_acq_rel};
  static constexpr model_order seen{access::statistic, std::memory_order_acquire};

  explicit run_scenario(const shape& s)
      : of(s),
        graph(static_cast<std::size_t>(s.ops), s.edges),
        set(graph),
        missing(new typename runner::number[static_cast<std::size_t>(s.ops)]),
        ran(static_cast<std::size_t>(s.ops)),
        run_of({graph, {missing.get(), static_cast<std::size_t>(s.ops)}, set.ready}) {}
  int threads() const override { return 1 + of.helpers; }

  struct team {
    run_scenario* here;
    void execute(std::int32_t op) { here->execute(op); }
    static std::chrono::nanoseconds patience(bool) { return {}; }
    void call(typename runner::local&, int calls) { here->call(calls); }
    static bool help_bulk() { return false; }
  };

  void run(int thread) override {
    team mine{this};
    if (thread == 0) {
      const int first = run_of.restart(of.helpers);
      if (of.what == helpers::come) run_of.count(of.helpers);
      opened.store(1, {access::statistic, std::memory_order_release});
      model_atomics::wake(opened, -1);
      if (of.what == helpers::wait) {
        if (const int calls = run_of.calls_for(first - 1); calls > 0) call(calls);
      }
      run_of.own(mine);
      // As join(): nobody begins any more, and who is inside leaves.
      called.fetch_or(over, strong);
      model_atomics::wake(called, -1);
      wait_until_left();
      run_of.end();
      for (std::size_t v = 0; v < ran.size(); ++v) {
        if (ran[v].value() != 1) explorer::current().fail("an op has not run");
      }
      return;
    }
    if (of.what == helpers::come) {
      while (opened.load(seen) == 0) model_atomics::park(opened, 0, model_atomics::time_point::max());
      for (int look = 0; look < of.looks; ++look) {
        if (look > 0) run_of.count(1);
        run_of.help(mine);
      }
      left.fetch_add(1, strong);
      model_atomics::wake(left, -1);
      return;
    }
    while (true) {
      std::uint64_t now = called.load(seen);
      if ((now & calls_of) != 0) {
        if (!called.compare_exchange_weak(now, now - 1 + inside, strong, std::memory_order_relaxed)) continue;
        run_of.help(mine);
        called.fetch_sub(inside, strong);
        model_atomics::wake(called, -1);
      } else if ((now & over) != 0) {
        return;
      } else {
        model_atomics::park(called, static_cast<std::uint32_t>(now), model_atomics::time_point::max());
      }
    }
  }
  void call(int calls) {
    if (of.what == helpers::come) return run_of.count(-calls);  // those that come do so by themselves
    called.fetch_add(static_cast<std::uint64_t>(calls), strong);
    model_atomics::wake(called, -1);
  }
  void wait_until_left() {
    if (of.what == helpers::come) {
      while (true) {
        const std::uint64_t now = left.load(seen);
        if (now == static_cast<std::uint64_t>(of.helpers)) return;
        model_atomics::park(left, static_cast<std::uint32_t>(now), model_atomics::time_point::max());
      }
    }
    while (true) {
      std::uint64_t now = called.load(seen);
      if ((now & calls_of) != 0) {
        static_cast<void>(
            called.compare_exchange_weak(now, now & ~calls_of, strong, std::memory_order_relaxed));
      } else if (now / inside % 256 == 0) {
        return;
      } else {
        model_atomics::park(called, static_cast<std::uint32_t>(now), model_atomics::time_point::max());
      }
    }
  }
  void execute(std::int32_t op) {
    for (const std::int32_t u : graph.before(op)) {
      if (ran[static_cast<std::size_t>(u)].value() != 1) explorer::current().fail("an op runs too early");
    }
    watched& cell = ran[static_cast<std::size_t>(op)];
    if (cell.value() != -1) explorer::current().fail("an op runs twice");
    cell = watched(1);
    if (of.meet && graph.before(op).size() == 1 && graph.after(op).size() == 1) meet();
  }
  void meet() {
    if (met.fetch_add(1, strong) == 1) return model_atomics::wake(met, -1);
    while (met.load(seen) == 1) model_atomics::park(met, 1, model_atomics::time_point::max());
  }

  // | over 1 | inside 8 | calls 8 |
  static constexpr std::uint64_t inside = 256, over = 65536, calls_of = 255;
  const shape of;
  const digraph graph;
  Ready set;
  std::unique_ptr<typename runner::number[]> missing;
  std::vector<watched> ran;
  runner run_of;
  model_atomic<std::uint64_t> called{0}, opened{0}, left{0}, met{0};
};

const std::vector<shape> shapes = {
    {"two ops | a helper comes", 2, {}, 1, helpers::come},
    {"a chain of two | a helper comes", 2, {{0, 1}}, 1, helpers::come},
    {"a fork of two | a helper comes", 3, {{0, 1}, {0, 2}}, 1, helpers::come},
    {"a join of two | a helper comes", 3, {{0, 2}, {1, 2}}, 1, helpers::come},
    {"a fork of three | a helper comes twice", 4, {{0, 1}, {0, 2}, {0, 3}}, 1, helpers::come, 2},
    {"a diamond | a helper is called", 4, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, 1, helpers::wait},
    {"a diamond whose ops meet | a helper is called",
     4,
     {{0, 1}, {0, 2}, {1, 3}, {2, 3}},
     1,
     helpers::wait,
     1,
     true},
    {"a join of three | two helpers come", 4, {{0, 3}, {1, 3}, {2, 3}}, 2, helpers::come},
};

template <class Ready>
outcome explore_run(const shape& s, const mutant& broken, std::uint64_t most) {
  explorer x;
  return x.explore([&] { return std::make_unique<run_scenario<Ready>>(s); }, broken,
                   {.executions = most, .stale_reads = 1});
}

template <class Ready>
void explore_all(const char* name) {
  for (const shape& s : shapes) {
    // Where cheap ops stay with their thread nobody else meets them.
    if (s.meet && std::is_same_v<Ready, chained>) continue;
    const outcome found = explore_run<Ready>(s, {}, 20'000);
    std::printf("  %-10s %-48s %9llu%s\n", name, s.name, static_cast<unsigned long long>(found.executions),
                found.complete ? "" : "  not all");
    std::fflush(stdout);
    CHECK_MESSAGE(!found.failed, std::string(name) << ", " << s.name << ": " << found.what);
  }
}

TEST_CASE("op_runner: each op runs once, after those before it, in every order of a few threads") {
  explore_all<fifo>("fifo");
  explore_all<stealing>("stealing");
  explore_all<ranked>("by rank");
  explore_all<chained>("chains");
}

// One thread adds two ops by rank, another one takes: what it has not found is there at the end.
struct rank_scenario : explorer::scenario {
  rank_scenario() : graph(2, {}), set(graph) {}
  int threads() const override { return 2; }
  void run(int thread) override {
    if (thread == 0) {
      set.ready.first(0);
      set.ready.first(1);
    } else {
      take(2);
    }
  }
  void take(int times) {
    ranked::set::local mine;
    for (int i = 0; i < times; ++i) found += set.ready.take(mine) != deeprec::detail::no_op ? 1 : 0;
  }
  void finish() override {
    take(2);
    if (found != 2) explorer::current().fail("an op is lost, or taken twice");
  }
  const digraph graph;
  ranked set;
  int found = 0;
};
outcome explore_ranks(const mutant& broken) {
  explorer x;
  return x.explore([] { return std::make_unique<rank_scenario>(); }, broken,
                   {.executions = 100'000, .stale_reads = 1});
}

TEST_CASE("ranked_ops: no op is lost beside one that is taken, in every order") {
  const outcome found = explore_ranks({});
  std::printf("  ranked_ops %llu interleavings\n", static_cast<unsigned long long>(found.executions));
  CHECK_MESSAGE(!found.failed, found.what);
  CHECK(found.complete);
  for (const auto& [what, name] :
       {std::pair{access::rank_part, "rank_part"}, {access::rank_clear, "rank_clear"}})
    CHECK_MESSAGE(explore_ranks({name, mutant::relax, what}).failed, name);
}

struct weakened {
  access what;
  const char* name;
  mutant::kind_type how = mutant::relax;
};
template <class Ready>
void catch_all(const std::vector<weakened>& all, std::set<std::string>& files) {
  for (const weakened& w : all) {
    std::string by;
    for (const shape& s : shapes) {
      if (s.meet && std::is_same_v<Ready, chained>) continue;
      if (explore_run<Ready>(s, {w.name, w.how, w.what}, 60'000).failed) {
        by = s.name;
        break;
      }
    }
    std::printf("  %-34s caught by: %s\n", w.name, by.empty() ? "NOTHING" : by.c_str());
    std::fflush(stdout);
    CHECK_MESSAGE(!by.empty(), std::string(w.name) << ": no scenario sees it");
    const site_use& where = sites[static_cast<std::size_t>(w.what)];
    REQUIRE(where.file != nullptr);
    files.insert(where.file);
  }
}

TEST_CASE("op_runner: each access stronger than relaxed is needed by some scenario") {
  const std::vector<weakened> of_runs = {{access::op_counted, "op_counted"},
                                         {access::end_counted, "end_counted"},
                                         {access::run_ended, "run_ended"},
                                         {access::ready_add, "ready_add"},
                                         {access::ready_seen, "ready_seen"},
                                         {access::crew_publish, "crew_publish"},
                                         {access::crew_look, "crew_look"},
                                         {access::crew_publish, "an epoch that stays", mutant::omit},
                                         {access::ready_claim, "an op that is not claimed", mutant::omit}};
  const std::vector<weakened> of_deques = {{access::deque_push, "deque_push"},
                                           {access::deque_seen, "deque_seen"},
                                           {access::deque_take, "an op that is not taken", mutant::omit}};
  const std::vector<weakened> of_ranks = {{access::rank_add, "rank_add"}, {access::rank_take, "rank_take"}};
  std::set<std::string> files;
  catch_all<fifo>(of_runs, files);
  catch_all<stealing>(of_deques, files);
  catch_all<ranked>(of_ranks, files);
  // No other in the sources.
  std::ptrdiff_t found = 0;
  for (const std::string& file : files) {
    std::ifstream in(file);
    REQUIRE_MESSAGE(in.good(), file);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::regex order("memory_order_(acquire|release|acq_rel|seq_cst)");
    found += std::distance(std::sregex_iterator(text.begin(), text.end(), order), {});
  }
  CHECK(files.size() == 5);
  CHECK(found ==
        static_cast<std::ptrdiff_t>(of_runs.size() - 2 + of_deques.size() - 1 + of_ranks.size() + 2));
}

}  // namespace
