#include <deeprec/exec/stream_pool.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <deeprec/exec/stream_plan.hpp>

#include "support/fake_runtime.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

struct impatient : fake_runtime {
  static status synchronize(stream) { return {}; }  // reads a record before all streams have ended
};
struct unordered : fake_runtime {
  static status wait(stream on, event at) {
    return fake().origin >= 0 ? fake_runtime::wait(on, at) : status();  // plans go their own ways
  }
};

/// One op on each of n streams, all of them behind the first.
stream_plan fan(int n) {
  stream_work work;
  const index_t first = work.add({});
  for (int s = 1; s < n; ++s) {
    const auto here = work.on_stream(s);
    work.add({first});
  }
  stream_plan plan;
  REQUIRE(plan_streams(work, n, plan).ok());
  return plan;
}

status put(index_t op, fake_runtime::lane& on) {
  fake().add(on.get(), op);
  return {};
}

/// Nodes that do something, from `first` on: not waits and marks.
std::vector<std::size_t> labelled(std::size_t first) {
  std::vector<std::size_t> found;
  for (std::size_t n = first; n < fake().nodes.size(); ++n) {
    if (fake().nodes[n].label >= 0) found.push_back(n);
  }
  return found;
}

/// A record of a fault that is read while a graph may still write it.
template <class Runtime>
std::string record_fault(int on) {
  fake() = {};
  detail::basic_stream_pool<Runtime, fake_runtime::lane> pool(3);
  REQUIRE(pool.replay(fan(3), put, 0, on).ok());
  const std::size_t graph = fake().nodes.size() - 1;
  REQUIRE(pool.synchronize().ok());
  int read = 0;
  for (const std::size_t n : labelled(graph + 1)) {
    ++read;
    if (!fake().ordered(graph, n)) return "stream " + std::to_string(fake().nodes[n].stream);
  }
  CHECK(read == 3);
  return {};
}

/// Plans of one pool that may run at once: they share scratch.
template <class Runtime>
std::string overlap_fault() {
  fake() = {};
  detail::basic_stream_pool<Runtime, fake_runtime::lane> pool(3);
  const stream_plan plan = fan(3);
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.replay(plan, put, 0, 1).ok());  // captures: what is behind is not of the capture
  std::vector<std::size_t> before = {fake().nodes.size() - 1};
  std::string fault;
  for (const int on : {0, 1, 1, 2, -1, 2, -1, 0, 2, -2, 1, 2, -3, 0}) {
    const std::size_t first = fake().nodes.size();
    if (on == -1) {
      REQUIRE(pool.run(plan, put).ok());
    } else if (on == -2) {  // by hand
      REQUIRE(pool.fork(0).ok());
      for (int s = 0; s < 3; ++s) fake().add(s, 7);
      REQUIRE(pool.join(2).ok());
    } else if (on == -3) {
      REQUIRE(pool.run_timed(plan, put).ok());
    } else {
      REQUIRE(pool.replay(plan, put, 0, on).ok());
    }
    const auto now = labelled(first);
    for (const std::size_t a : before) {
      for (const std::size_t b : now) {
        if (!fake().ordered(a, b)) fault = std::to_string(a) + " beside " + std::to_string(b);
      }
    }
    before = now;
  }
  return fault;
}

}  // namespace

TEST_CASE("stream_pool: faults are read when all streams have ended, whichever a graph runs on") {
  for (const int on : {0, 1, 2}) {
    CHECK(record_fault<fake_runtime>(on) == "");
  }
  CHECK(record_fault<impatient>(1) != "");  // broken
}

TEST_CASE("stream_pool: plans of one pool come one behind the other, on any stream") {
  CHECK(overlap_fault<fake_runtime>() == "");
  CHECK(overlap_fault<unordered>() != "");  // broken
}

TEST_CASE("stream_pool: replays on one stream cost one launch and no event") {
  fake() = {};
  detail::basic_stream_pool<fake_runtime, fake_runtime::lane> pool(3);
  const stream_plan plan = fan(3);
  REQUIRE(pool.replay(plan, put, 0, 1).ok());
  const std::size_t nodes = fake().nodes.size();
  for (int again = 0; again < 5; ++again) REQUIRE(pool.replay(plan, put, 0, 1).ok());
  CHECK(fake().nodes.size() == nodes + 5);
}

TEST_CASE("stream_pool: a launch that fails in a capture is what the caller hears") {
  fake() = {};
  detail::basic_stream_pool<fake_runtime, fake_runtime::lane> pool(3);
  const stream_plan plan = fan(3);
  for (const index_t bad : {0, 1, 2}) {
    const auto launch = [&](index_t op, fake_runtime::lane& on) -> status {
      if (op != bad) return put(op, on);
      void* memory = nullptr;
      CHECK(fake_runtime::allocate(memory, 1).code() == errc::device_error);  // ends the capture
      return {errc::invalid_value, "mine"};
    };
    const status s = pool.replay(plan, launch);
    CHECK(s.code() == errc::invalid_value);
    CHECK(std::string(s.message()).find("mine") != std::string::npos);
    CHECK(pool.graphs() == 0);
    CHECK(fake().live_graphs == 0);
    CHECK(fake().live_execs == 0);
    CHECK(fake().captured.empty());
  }
  // A launch that hides its failure: the capture itself says no.
  const auto hides = [&](index_t op, fake_runtime::lane& on) -> status {
    void* memory = nullptr;
    static_cast<void>(fake_runtime::allocate(memory, 1));
    return put(op, on);
  };
  CHECK(pool.replay(plan, hides).code() == errc::device_error);
  CHECK(pool.graphs() == 0);
  REQUIRE(pool.replay(plan, put, 0, 2).ok());
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.synchronize().ok());
}

TEST_CASE("stream_pool: a launch that throws ends the capture, and the streams are joined") {
  fake() = {};
  detail::basic_stream_pool<fake_runtime, fake_runtime::lane> pool(3);
  const stream_plan plan = fan(3);
  for (const index_t bad : {0, 1, 2}) {
    CAPTURE(bad);
    int launches = 0;
    const auto launch = [&](index_t op, fake_runtime::lane& on) -> status {
      ++launches;
      if (op == bad) throw std::runtime_error("mine");
      return put(op, on);
    };
    CHECK_THROWS_WITH_AS(static_cast<void>(pool.replay(plan, launch)), "mine", std::runtime_error);
    CHECK(launches == bad + 1);
    CHECK(pool.graphs() == 0);
    CHECK(fake().live_graphs == 0);
    CHECK(fake().live_execs == 0);
    CHECK(fake().captured.empty());
    const std::size_t first = fake().nodes.size();
    CHECK_THROWS_WITH_AS(static_cast<void>(pool.run(plan, launch)), "mine", std::runtime_error);
    const auto enqueued = labelled(first);
    CHECK(enqueued.size() == static_cast<std::size_t>(bad));
    const std::size_t next = fake().add(pool.stream(0).get(), 7);
    for (const std::size_t n : enqueued) CHECK(fake().ordered(n, next));
  }
  REQUIRE(pool.replay(plan, put, 0, 2).ok());
  REQUIRE(pool.run(plan, put).ok());
  REQUIRE(pool.synchronize().ok());
}

TEST_CASE("stream_pool: what a pool makes lies on the device that it was made for") {
  fake() = {};
  fake().device = 1;
  {
    detail::basic_stream_pool<fake_runtime, fake_runtime::lane> pool(2);
    fake().device = 0;
    REQUIRE(pool.add_stream(stream_priority::high) == 2);
    for (const int device : fake().device_of_stream) CHECK(device == 1);
    const stream_plan plan = fan(3);
    int elsewhere = 0;
    const auto launch = [&](index_t op, fake_runtime::lane& on) {
      elsewhere += fake().device != 1 ? 1 : 0;
      return put(op, on);
    };
    CHECK(pool.run(plan, launch).ok());
    CHECK(pool.run_timed(plan, launch).ok());
    CHECK(pool.replay(plan, launch, 0, 1).ok());
    CHECK(pool.fork(2).ok());
    CHECK(pool.join(1).ok());
    CHECK(pool.synchronize().ok());
    CHECK(elsewhere == 0);
    for (const auto& [event, device] : fake().device_of_event) CHECK(device == 1);
    CHECK(fake().device == 0);
  }
  CHECK(fake().device == 0);
}
