// The order that a pool gives its plans, whatever the schedule.
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <doctest/doctest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <deeprec/plan/stream_plan.hpp>

using namespace deeprec;
using host_cuda::lost;

namespace {

constexpr lost impatient = lost::waits_for_streams;  // reads a record before all streams have ended
constexpr lost unordered = lost::waits_of_streams;   // plans go their own ways

/// One op on each of n streams, all of them behind the first.
stream_plan fan(int n) {
  task_list work;
  const index_t first = work.add({});
  for (int s = 1; s < n; ++s) {
    const auto here = work.on_stream(s);
    work.add({first});
  }
  stream_plan plan;
  REQUIRE(plan_streams(work, n, plan).ok());
  return plan;
}

/// Launches of plans that leave a mark of their number.
auto putting(host_cuda::recording& log) {
  return [&log](index_t op, cuda_stream& on) -> status {
    log.mark(on.get(), op);
    return {};
  };
}

/// What does something, from `first` on: no events.
std::vector<std::size_t> labelled(const host_cuda::recording& log, std::size_t first) {
  std::vector<std::size_t> found;
  for (std::size_t n = first; n < log.size(); ++n) {
    if (log.label_of(n) >= 0) found.push_back(n);
  }
  return found;
}

bool captures(const cuda_stream& on) {
  cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
  REQUIRE(cudaStreamIsCapturing(on.get(), &now) == cudaSuccess);
  return now != cudaStreamCaptureStatusNone;
}

/// A record of a fault that is read while a graph may still write it.
std::string record_fault(int on, lost what = lost::nothing) {
  host_cuda::recording log;
  cuda_stream_pool pool(3);
  REQUIRE(pool.replay(fan(3), putting(log), 0, on).ok());
  const std::size_t graph = log.size() - 1;
  host_cuda::lose(what);
  REQUIRE(pool.synchronize().ok());
  std::set<cudaStream_t> read;
  for (const std::size_t n : labelled(log, graph + 1)) {
    read.insert(log.stream_of(n));
    if (!log.ordered(graph, n)) return "a record that a graph still writes";
  }
  CHECK(read.size() == 3);
  return {};
}

/// Plans of one pool that may run at once: they share scratch.
std::string overlap_fault(lost what = lost::nothing) {
  host_cuda::recording log;
  host_cuda::lose(what);
  cuda_stream_pool pool(3);
  const auto put = putting(log);
  const stream_plan plan = fan(3);
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.replay(plan, put, 0, 1).ok());  // captures: what is behind is not of the capture
  std::vector<std::size_t> before = {log.size() - 1};
  std::string fault;
  for (const int on : {0, 1, 1, 2, -1, 2, -1, 0, 2, -2, 1, 2, -3, 0}) {
    const std::size_t first = log.size();
    if (on == -1) {
      REQUIRE(pool.run(plan, put).ok());
    } else if (on == -2) {  // by hand
      REQUIRE(pool.fork(0).ok());
      for (int s = 0; s < 3; ++s) log.mark(pool.stream(s).get(), 7);
      REQUIRE(pool.join(2).ok());
    } else if (on == -3) {
      REQUIRE(pool.run_timed(plan, put).ok());
    } else {
      REQUIRE(pool.replay(plan, put, 0, on).ok());
    }
    const auto now = labelled(log, first);
    for (const std::size_t a : before) {
      for (const std::size_t b : now) {
        if (!log.ordered(a, b)) fault = std::to_string(a) + " beside " + std::to_string(b);
      }
    }
    before = now;
  }
  return fault;
}

}  // namespace

TEST_CASE("cuda_stream_pool: faults are read when all streams have ended, whichever a graph runs on") {
  for (const int on : {0, 1, 2}) {
    CHECK(record_fault(on) == "");
  }
  CHECK(record_fault(1, impatient) != "");  // broken
}

TEST_CASE("cuda_stream_pool: plans of one pool come one behind the other, on any stream") {
  CHECK(overlap_fault() == "");
  CHECK(overlap_fault(unordered) != "");  // broken
}

TEST_CASE("cuda_stream_pool: replays on one stream cost one launch and no event") {
  host_cuda::recording log;
  const auto put = putting(log);
  cuda_stream_pool pool(3);
  const stream_plan plan = fan(3);
  REQUIRE(pool.replay(plan, put, 0, 1).ok());
  const std::size_t nodes = log.size();
  for (int again = 0; again < 5; ++again) REQUIRE(pool.replay(plan, put, 0, 1).ok());
  CHECK(log.size() == nodes + 5);
}

TEST_CASE("cuda_stream_pool: a launch that fails in a capture is what the caller hears") {
  host_cuda::recording log;
  const auto put = putting(log);
  cuda_stream_pool pool(3);
  const stream_plan plan = fan(3);
  REQUIRE(pool.run(plan, put).ok());  // makes the events
  const std::size_t alive = host_cuda::things_alive();
  for (const index_t bad : {0, 1, 2}) {
    const auto launch = [&](index_t op, cuda_stream& on) -> status {
      if (op != bad) return put(op, on);
      void* memory = nullptr;
      CHECK(cuda_runtime::allocate(memory, 1).code() == errc::device_error);  // ends the capture
      return {errc::invalid_value, "mine"};
    };
    const status s = pool.replay(plan, launch);
    CHECK(s.code() == errc::invalid_value);
    CHECK(std::string(s.message()).find("mine") != std::string::npos);
    CHECK(pool.graphs() == 0);
    for (int i = 0; i < pool.streams(); ++i) CHECK_FALSE(captures(pool.stream(i)));
    CHECK(host_cuda::things_alive() == alive);
  }
  // A launch that hides its failure: the capture itself says no.
  const auto hides = [&](index_t op, cuda_stream& on) -> status {
    void* memory = nullptr;
    static_cast<void>(cuda_runtime::allocate(memory, 1));
    return put(op, on);
  };
  CHECK(pool.replay(plan, hides).code() == errc::device_error);
  CHECK(pool.graphs() == 0);
  REQUIRE(pool.replay(plan, put, 0, 2).ok());
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.synchronize().ok());
}

TEST_CASE("cuda_stream_pool: a launch that throws ends the capture, and the streams are joined") {
  host_cuda::recording log;
  const auto put = putting(log);
  cuda_stream_pool pool(3);
  const stream_plan plan = fan(3);
  REQUIRE(pool.run(plan, put).ok());  // makes the events
  const std::size_t alive = host_cuda::things_alive();
  for (const index_t bad : {0, 1, 2}) {
    CAPTURE(bad);
    int launches = 0;
    const auto launch = [&](index_t op, cuda_stream& on) -> status {
      ++launches;
      if (op == bad) throw std::runtime_error("mine");
      return put(op, on);
    };
    CHECK_THROWS_WITH_AS(static_cast<void>(pool.replay(plan, launch)), "mine", std::runtime_error);
    CHECK(launches == bad + 1);
    CHECK(pool.graphs() == 0);
    for (int i = 0; i < pool.streams(); ++i) CHECK_FALSE(captures(pool.stream(i)));
    CHECK(host_cuda::things_alive() == alive);
    const std::size_t first = log.size();
    CHECK_THROWS_WITH_AS(static_cast<void>(pool.run(plan, launch)), "mine", std::runtime_error);
    const auto enqueued = labelled(log, first);
    CHECK(enqueued.size() == static_cast<std::size_t>(bad));
    const std::size_t next = log.mark(pool.stream(0).get(), 7);
    for (const std::size_t n : enqueued) CHECK(log.ordered(n, next));
  }
  REQUIRE(pool.replay(plan, put, 0, 2).ok());
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.synchronize().ok());
}

TEST_CASE("cuda_stream_pool: what a pool makes lies on the device that it was made for") {
  host_cuda::recording log;
  const auto current = [] {
    int device = -1;
    REQUIRE(cudaGetDevice(&device) == cudaSuccess);
    return device;
  };
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  {
    cuda_stream_pool pool(2);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    REQUIRE(pool.add_stream(stream_priority::high) == 2);
    for (int i = 0; i < 3; ++i) CHECK(host_cuda::device_of(pool.stream(i).get()) == 1);
    const stream_plan plan = fan(3);
    int elsewhere = 0;
    const auto launch = [&](index_t op, cuda_stream& on) -> status {
      elsewhere += current() != 1 ? 1 : 0;
      log.mark(on.get(), op);
      return {};
    };
    CHECK(pool.run(plan, launch).ok());  // events of another device are refused
    CHECK(pool.run_timed(plan, launch).ok());
    CHECK(pool.replay(plan, launch, 0, 1).ok());
    CHECK(pool.fork(2).ok());
    CHECK(pool.join(1).ok());
    CHECK(pool.synchronize().ok());
    CHECK(elsewhere == 0);
    CHECK(current() == 0);
  }
  CHECK(current() == 0);
}

TEST_CASE("cuda_stream_pool: the ops of a traced run are spans on the lines of their streams") {
  task_list work;
  const index_t first = work.add("read", {});
  {
    const auto here = work.on_stream(1);
    work.set_bytes(work.add("lookup", {first}), 640);
  }
  work.add("update", {0, 1});
  const task_plan tasks = task_plan::compile(work, task_order::as_added).or_throw();
  stream_plan plan;
  REQUIRE(plan_streams(tasks, 2, plan).ok());
  cuda_stream_pool pool(2);
  trace_recorder trace({.threads = 1, .spans = 4});
  index_t launched = 0;
  const auto launch = [&](index_t, cuda_stream&) -> status {
    ++launched;
    return {};
  };
  REQUIRE(pool.add_spans(trace, tasks).ok());  // nothing was traced yet
  CHECK(trace.spans().empty());
  for (int step = 1; step <= 2; ++step) {
    REQUIRE(pool.run_traced(plan, trace, launch).ok());
    REQUIRE(pool.add_spans(trace, tasks).ok());
    const std::vector<trace_span> spans = trace.spans();
    REQUIRE(spans.size() == static_cast<std::size_t>(3 * step));
    std::vector<trace_span> of(3);
    for (std::size_t i = spans.size() - 3; i < spans.size(); ++i) {
      CHECK(spans[i].thread == -1);
      CHECK(spans[i].begin <= spans[i].end);
      of[static_cast<std::size_t>(spans[i].op)] = spans[i];
    }
    CHECK(std::string(of[0].name) == "read");
    CHECK(of[1].stream == 1);
    CHECK(of[1].bytes == 640);
    CHECK(of[0].end <= of[1].begin);  // the stream waits
    CHECK(of[1].end <= of[2].begin);
  }
  CHECK(launched == 6);
  const std::string json = trace.json();
  CHECK(json.find("{\"name\":\"stream 1\"}") != std::string::npos);
  CHECK(json.find("\"stream\":1") != std::string::npos);
  CHECK(trace.costs().size() == 3);

  // Names of another plan: refused before anything is added.
  task_list fewer;
  fewer.add("read", {});
  const status refused = pool.add_spans(trace, task_plan::compile(fewer).or_throw());
  CHECK(refused.code() == errc::shape_mismatch);
  CHECK(refused.place().at_most == 0);
  CHECK(trace.spans().size() == 6);
  trace.clear();
  CHECK(trace.spans().empty());
  // A run that is not traced leaves nothing to add.
  REQUIRE(pool.run_timed(plan, launch).ok());
  REQUIRE(pool.add_spans(trace, tasks).ok());
  CHECK(trace.spans().empty());
  CHECK(pool.synchronize().ok());
}
