#include <deeprec/plan/stream_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <deeprec/plan/cuda_stream_pool.hpp>

#include "../../examples/linear_regression.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

task_list random_work(std::mt19937_64& random, index_t ops, double edges, int streams) {
  task_list work;
  std::uniform_real_distribution<double> unit(0, 1);
  for (index_t v = 0; v < ops; ++v) {
    std::vector<index_t> after;
    for (index_t u = 0; u < v; ++u) {
      if (unit(random) < edges) after.push_back(u);
    }
    const double kind = unit(random);
    if (kind < 0.1) {
      const auto here = work.on_stream(static_cast<int>(random() % static_cast<unsigned>(streams)));
      work.add(after, 1 + unit(random));
    } else if (kind < 0.2 && v > 0) {
      const auto here = work.colocate_with(static_cast<index_t>(random() % static_cast<std::uint64_t>(v)));
      work.add(after, 1 + unit(random));
    } else {
      work.add(after, 1 + unit(random));
    }
  }
  return work;
}

/// The first edge whose order a run does not keep; empty when there is none. `before` and `behind` are
/// marks on stream 0 around the run.
std::string order_fault(const task_list& work, const stream_plan& plan, bool with_ends = true) {
  host_cuda::recording log;
  cuda_stream_pool pool(plan.streams);
  const std::size_t before = log.mark(pool.stream(0).get());
  std::vector<std::size_t> node(static_cast<std::size_t>(work.size()));
  const status ran = pool.run(plan, [&](index_t op, cuda_stream& on) -> status {
    node[static_cast<std::size_t>(op)] = log.mark(on.get(), op);
    return {};
  });
  if (!ran.ok()) return ran.message();
  const std::size_t behind = log.mark(pool.stream(0).get());
  for (index_t v = 0; v < work.size(); ++v) {
    const auto known = log.before(node[static_cast<std::size_t>(v)]);
    for (const index_t u : work.at(v).after) {
      if (known.count(node[static_cast<std::size_t>(u)]) == 0) {
        return std::to_string(u) + " before " + std::to_string(v);
      }
    }
    if (with_ends && known.count(before) == 0) return "the begin before " + std::to_string(v);
  }
  const auto known = log.before(behind);
  for (std::size_t v = 0; v < node.size() && with_ends; ++v) {
    if (known.count(node[v]) == 0) return std::to_string(v) + " before the end";
  }
  return {};
}

}  // namespace

TEST_CASE("stream_plan: towers of a model") {
  // [stream_plan]
  task_list work;
  const index_t ids = work.add({});
  const index_t user = work.add({ids}, 3), item = work.add({ids}, 2);  // two lookups
  const index_t user_mlp = work.add({user}), item_mlp = work.add({item});
  work.add({user_mlp, item_mlp});
  stream_plan plan;
  plan_streams(work, 4, plan).or_throw();
  // [stream_plan]
  CHECK(plan.waits() == 2);  // out to the second tower, and back
  CHECK(plan.forks.empty());
  CHECK(plan.joins.empty());
  CHECK(order_fault(work, plan) == "");
}

TEST_CASE("stream_plan: any work keeps its order, and no wait is one too many") {
  std::mt19937_64 random(seed());
  int broken = 0, tried = 0;
  for (int round = 0; round < 150; ++round) {
    const int streams = 1 + round % 5;
    const auto ops = static_cast<index_t>(random() % 14);
    const task_list work = random_work(random, ops, 0.05 + 0.1 * (round % 4), streams);
    stream_plan plan, again;
    REQUIRE(plan_streams(work, streams, plan).ok());
    REQUIRE(plan_streams(work, streams, again).ok());
    CHECK(plan.topology == again.topology);
    REQUIRE_MESSAGE(order_fault(work, plan) == "", order_fault(work, plan));
    std::map<index_t, int> stream_of;
    for (const auto& step : plan.steps) stream_of[step.op] = step.stream;
    for (index_t v = 0; v < work.size(); ++v) {
      if (work.at(v).stream >= 0) CHECK(stream_of[v] == work.at(v).stream);
      if (work.at(v).leader >= 0) CHECK(stream_of[v] == stream_of[work.at(v).leader]);
    }
    // Broken: without any one of its waits, forks or joins an order is lost, and the simulator says so.
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      for (std::size_t w = 0; w < plan.steps[s].waits.size(); ++w) {
        stream_plan less = plan;
        less.steps[s].waits.erase(less.steps[s].waits.begin() + static_cast<std::ptrdiff_t>(w));
        ++tried;
        broken += order_fault(work, less, false) != "" ? 1 : 0;
      }
    }
    for (std::size_t j = 0; j < plan.forks.size(); ++j) {
      stream_plan less = plan;
      less.forks.erase(less.forks.begin() + static_cast<std::ptrdiff_t>(j));
      ++tried;
      broken += order_fault(work, less) != "" ? 1 : 0;
    }
    for (std::size_t j = 0; j < plan.joins.size(); ++j) {
      stream_plan less = plan;
      less.joins.erase(less.joins.begin() + static_cast<std::ptrdiff_t>(j));
      ++tried;
      broken += order_fault(work, less) != "" ? 1 : 0;
    }
  }
  CHECK(tried > 200);
  CHECK(broken == tried);
}

TEST_CASE("stream_plan: an event that is recorded too early is caught") {
  task_list work;
  const index_t a = work.add({});
  work.add({a});
  {
    const auto here = work.on_stream(1);
    work.add({a});
  }
  stream_plan plan;
  REQUIRE(plan_streams(work, 2, plan).ok());
  CHECK(order_fault(work, plan) == "");
  plan.steps[0].recorded = false;  // the wait finds no record, as CUDA would pass it
  CHECK(order_fault(work, plan) != "");
}

TEST_CASE("stream_plan: with a stream for every chain the waits are those of a minimum path cover") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 60; ++round) {
    const auto n = static_cast<index_t>(1 + random() % 7);
    task_list work;
    std::vector<std::vector<bool>> path(static_cast<std::size_t>(n),
                                        std::vector<bool>(static_cast<std::size_t>(n)));
    for (index_t v = 0; v < n; ++v) {
      std::vector<index_t> after;
      for (index_t u = 0; u < v; ++u) {
        if (random() % 3 == 0) after.push_back(u);
      }
      for (const index_t u : after) {
        path[static_cast<std::size_t>(u)][static_cast<std::size_t>(v)] = true;
        for (std::size_t w = 0; w < static_cast<std::size_t>(u); ++w) {
          if (path[w][static_cast<std::size_t>(u)]) path[w][static_cast<std::size_t>(v)] = true;
        }
      }
      work.add(after);
    }
    std::vector<std::pair<std::size_t, std::size_t>> reduced;
    for (std::size_t u = 0; u < path.size(); ++u) {
      for (std::size_t v = 0; v < path.size(); ++v) {
        bool direct = path[u][v];
        for (std::size_t w = 0; w < path.size(); ++w) direct = direct && !(path[u][w] && path[w][v]);
        if (direct) reduced.emplace_back(u, v);
      }
    }
    // The largest matching, by trying all sets of edges.
    std::size_t largest = 0;
    REQUIRE(reduced.size() < 14);
    for (std::size_t set = 0; set < (std::size_t{1} << reduced.size()); ++set) {
      std::size_t size = 0, from = 0, to = 0;
      bool fits = true;
      for (std::size_t e = 0; e < reduced.size(); ++e) {
        if ((set >> e & 1) == 0) continue;
        ++size;
        fits = fits && (from >> reduced[e].first & 1) == 0 && (to >> reduced[e].second & 1) == 0;
        from |= std::size_t{1} << reduced[e].first;
        to |= std::size_t{1} << reduced[e].second;
      }
      if (fits) largest = std::max(largest, size);
    }
    stream_plan plan;
    REQUIRE(plan_streams(work, 8, plan).ok());
    CHECK(plan.waits() <= static_cast<index_t>(reduced.size() - largest));
    CHECK(order_fault(work, plan) == "");
  }
}

TEST_CASE("stream_plan: parts without an edge between them wait for nothing, and share streams evenly") {
  task_list work;
  for (int tower = 0; tower < 8; ++tower) {
    index_t last = work.add({});
    for (int k = 0; k < 3; ++k) last = work.add({last});
  }
  stream_plan plan;
  REQUIRE(plan_streams(work, 4, plan).ok());
  CHECK(plan.waits() == 0);
  CHECK(plan.forks.size() == 3);
  CHECK(plan.joins.size() == 3);
  std::map<int, int> load;
  for (const auto& step : plan.steps) ++load[step.stream];
  for (const auto& [stream, ops] : load) CHECK(ops == 8);
  CHECK(order_fault(work, plan) == "");
}

TEST_CASE("stream_plan: a linear regression waits twice a step for each further input, no more") {
  using linear_regression::op;
  for (const int inputs : {2, 4}) {
    for (const int steps : {1, 3}) {
      const auto training = linear_regression::make_work(inputs, steps, inputs);
      REQUIRE(training.work.size() == steps * (2 * inputs + 2));
      REQUIRE(training.work.size() == static_cast<index_t>(training.ops.size()));
      stream_plan plan;
      REQUIRE(plan_streams(training.work, inputs, plan).ok());
      CHECK(order_fault(training.work, plan) == "");
      for (const auto& step : plan.steps) {
        const op what = training.ops[static_cast<std::size_t>(step.op)];
        const bool reads_input = what.kind == op::multiply || what.kind == op::update;
        CHECK(step.stream == (reads_input ? what.input : 0));
        // The error awaits the products of the other inputs, their updates await the error; nothing else
        // waits.
        const bool away = what.kind == op::update && what.input > 0;
        CHECK(step.waits.size() ==
              (what.kind == op::error ? static_cast<std::size_t>(inputs) - 1 : std::size_t{away}));
      }
      CHECK(plan.waits() == 2 * (inputs - 1) * steps);
      // Broken: each wait is needed.
      for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        for (std::size_t w = 0; w < plan.steps[s].waits.size(); ++w) {
          stream_plan less = plan;
          less.steps[s].waits.erase(less.steps[s].waits.begin() + static_cast<std::ptrdiff_t>(w));
          CHECK(order_fault(training.work, less) != "");
        }
      }
      // Placed by the plan: no more waits than by hand.
      const auto anywhere = linear_regression::make_work(inputs, steps);
      REQUIRE(plan_streams(anywhere.work, inputs, plan).ok());
      CHECK(order_fault(anywhere.work, plan) == "");
      CHECK(plan.waits() <= 2 * (inputs - 1) * steps);
      REQUIRE(plan_streams(anywhere.work, 1, plan).ok());
      CHECK(plan.waits() == 0);
    }
  }
}

TEST_CASE("stream_plan: scopes nest, and what is wrong is named") {
  task_list work;
  {
    const auto outer = work.on_stream(1);
    work.add({});
    {
      const auto inner = work.on_stream(2);
      work.add({});
      const auto with = work.colocate_with(0);
      work.add({1});
    }
    work.add({});
  }
  work.add({});
  CHECK(work.at(0).stream == 1);
  CHECK(work.at(1).stream == 2);
  CHECK(work.at(2).leader == 0);
  CHECK(work.at(3).stream == 1);
  CHECK(work.at(3).leader == -1);
  CHECK(work.at(4).stream == -1);
  stream_plan plan;
  REQUIRE(plan_streams(work, 3, plan).ok());
  const auto topology = plan.topology;
  const status no_stream = plan_streams(work, 2, plan);
  CHECK(no_stream.place().item == 1);
  CHECK(no_stream.message() ==
        "invalid value: plan_streams: the stream of an op must be below the number of streams; item 1, value "
        "2");
  CHECK(plan_streams(work, 0, plan).code() == errc::invalid_value);
  CHECK(plan.topology == topology);
  task_list forward;
  forward.add({0});
  CHECK(plan_streams(forward, 2, plan).place().value == 0);
  task_list led;
  const auto here = led.colocate_with(3);
  led.add({});
  CHECK(plan_streams(led, 2, plan).code() == errc::invalid_value);
}

TEST_CASE("hazard H19: a plan without ops or without colocation is a plan, and ops are told apart exactly") {
  for (const int streams : {1, 2, 7}) {
    CAPTURE(streams);
    stream_plan plan;
    plan.steps.resize(3);
    REQUIRE(plan_streams(task_list{}, streams, plan).ok());  // nothing to deal
    CHECK(plan.steps.empty());
    CHECK(plan.forks.empty());
    CHECK(plan.joins.empty());
    CHECK(plan.streams == streams);
    CHECK(order_fault(task_list{}, plan) == "");
    task_list alone;  // a scope in which nothing is added, and one op that leads nobody
    {
      const auto here = alone.on_stream(0);
    }
    alone.add({});
    {
      const auto here = alone.colocate_with(0);
    }
    REQUIRE(plan_streams(alone, streams, plan).ok());
    CHECK(plan.steps.size() == 1);
    CHECK(order_fault(alone, plan) == "");
  }
  // Leaders 1 and 11 (and 2, 12, 21): each takes its own ops along and no other's, as parts of names would.
  task_list work;
  for (index_t v = 0; v < 30; ++v) work.add({});
  const index_t leaders[] = {1, 11, 2, 12, 21};
  int wanted = 0;
  std::vector<index_t> led;
  for (const index_t leader : leaders) {
    const auto there = work.colocate_with(leader);
    led.push_back(work.add({}));
  }
  task_list pinned;
  for (index_t v = 0; v < 30; ++v) {
    const bool leads = std::find(std::begin(leaders), std::end(leaders), v) != std::end(leaders);
    const auto here = pinned.on_stream(leads ? wanted++ : -1);
    pinned.add({});
  }
  for (const index_t leader : leaders) {
    const auto there = pinned.colocate_with(leader);
    pinned.add({});
  }
  for (const task_list* const some : {&work, &pinned}) {
    stream_plan plan;
    REQUIRE(plan_streams(*some, 35, plan).ok());
    CHECK(order_fault(*some, plan) == "");
    std::map<index_t, int> stream_of;
    for (const auto& step : plan.steps) stream_of[step.op] = step.stream;
    std::map<int, int> ops_of;
    for (const auto& [op, stream] : stream_of) ++ops_of[stream];
    for (std::size_t i = 0; i < led.size(); ++i) {
      CHECK(stream_of[led[i]] == stream_of[leaders[i]]);
      CHECK(ops_of[stream_of[led[i]]] == 2);  // there are streams enough for everybody
      if (some == &pinned) CHECK(stream_of[led[i]] == pinned.at(leaders[i]).stream);
    }
  }
}

TEST_CASE("cuda_stream_pool: fork and join order what is enqueued by hand") {
  host_cuda::recording log;
  cuda_stream_pool pool(3, stream_priority::high);
  const auto mark = [&](int i) { return log.mark(pool.stream(i).get()); };
  const std::size_t before = mark(0);
  REQUIRE(pool.fork().ok());
  const std::size_t inner[] = {mark(0), mark(1), mark(2)};
  CHECK_FALSE(log.ordered(inner[0], inner[1]));
  REQUIRE(pool.join().ok());
  const std::size_t behind = mark(0);
  for (const std::size_t n : inner) {
    CHECK(log.ordered(before, n));
    CHECK(log.ordered(n, behind));
  }
}

TEST_CASE("cuda_stream_pool: a plan is captured once for each topology and version, and rejoins") {
  std::mt19937_64 random(seed());
  host_cuda::recording log;
  const std::size_t alive = host_cuda::things_alive();
  {
    cuda_stream_pool pool(4);
    int launched = 0;
    const auto launch = [&](index_t op, cuda_stream& on) -> status {
      log.mark(on.get(), op);
      ++launched;
      return {};
    };
    for (int round = 0; round < 30; ++round) {
      const task_list work = random_work(random, 1 + round % 9, 0.2, 4);
      stream_plan plan;
      REQUIRE(plan_streams(work, 4, plan).ok());
      const auto graphs = pool.graphs();
      launched = 0;
      for (int again = 0; again < 3; ++again) {
        const status s = pool.replay(plan, launch, static_cast<std::uint64_t>(round));
        REQUIRE_MESSAGE(s.ok(), s.message());
      }
      CHECK(launched == work.size());
      CHECK(pool.graphs() == graphs + 1);
      REQUIRE(pool.replay(plan, launch, static_cast<std::uint64_t>(round), 2).ok());
      CHECK(pool.graphs() == graphs + 1);  // the same graph on another stream
    }
    // Broken: a plan that forgets to join is refused by the capture, and leaves nothing behind.
    task_list work;
    work.add({});
    work.add({});
    stream_plan plan;
    REQUIRE(plan_streams(work, 4, plan).ok());
    plan.joins.clear();
    plan.topology = 1;
    const auto graphs = pool.graphs();
    const std::size_t kept = host_cuda::things_alive();
    CHECK(pool.replay(plan, launch).code() == errc::device_error);
    CHECK(pool.graphs() == graphs);
    CHECK(host_cuda::things_alive() == kept);
    CHECK(pool.replay(plan, launch, 0, 9).code() == errc::invalid_value);
    // A launch that fails: its status comes back, and the streams are joined all the same.
    plan.topology = 2;
    REQUIRE(plan_streams(work, 2, plan).ok());
    const status failed = pool.run(plan, [](index_t, cuda_stream&) { return status(errc::cancelled, "x"); });
    CHECK(failed.code() == errc::cancelled);
    CHECK(pool.replay(
                  plan, [](index_t, cuda_stream&) { return status(errc::cancelled, "x"); }, 77)
              .code() == errc::cancelled);
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusActive;
    REQUIRE(cudaStreamIsCapturing(pool.stream(0).get(), &now) == cudaSuccess);
    CHECK(now == cudaStreamCaptureStatusNone);
    const auto execs = static_cast<std::size_t>(pool.graphs());
    const std::size_t with_graphs = host_cuda::things_alive();
    REQUIRE(pool.forget_graphs().ok());
    CHECK(host_cuda::things_alive() == with_graphs - execs);
    std::vector<float> times;
    CHECK(pool.times(times).code() == errc::invalid_value);
    REQUIRE(pool.run_timed(plan, launch).ok());
    REQUIRE(pool.times(times).ok());
    REQUIRE(times.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK((times[i] > 0) == (i < 2));
  }
  CHECK(host_cuda::things_alive() == alive);
}
