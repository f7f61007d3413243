// Our own executors keep the contract of core/executor.hpp, and broken ones are caught.

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/executor_contract.hpp"

#include <doctest/doctest.h>
#include <algorithm>
#include <cstdint>
#include <latch>
#include <limits>
#include <stop_token>
#include <thread>
#include <vector>

using namespace deeprec;

namespace {

struct broken {  // one thread; each heir breaks one promise
  static int concurrency() { return 2; }
};
struct forgetful : broken {  // drops the last piece
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    for (index_t b = 0; n - b > grain; b += grain) body(b, b + grain, 0);
  }
};
struct repeating : broken {  // runs the first piece twice
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    if (n > 0) body(index_t{0}, (std::min)(grain, n), 0);
    for (index_t b = 0; b < n; b += (std::min)(grain, n)) {
      body(b, b + (std::min)(grain, n - b), 0);
    }
  }
};
struct crooked : broken {  // cuts where it likes
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) {
    if (n > 0) body(index_t{0}, n / 2 + 1, 0);
    if (n / 2 + 1 < n) body(n / 2 + 1, n, 1);
  }
};
struct eager : broken {  // calls a body for nothing
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) {
    body(index_t{0}, n, 0);
  }
};
struct misnumbered : broken {  // counts workers from 1
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) {
    if (n > 0) body(index_t{0}, n, 2);
  }
};
struct careless : broken {  // two threads, and both are worker 0
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    std::thread other([&] { body(index_t{0}, grain, 0); });
    body(grain, n, 0);
    other.join();
  }
};
struct swallowing : broken {  // loses exceptions
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) {
    try {
      if (n > 0) body(index_t{0}, n, 0);
    } catch (...) {
    }
  }
};
struct backwards : broken {  // runs the last piece first, and stops at the first exception
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    if (n <= 0) return;
    for (index_t p = (n - 1) / grain; p >= 0; --p) {
      body(p * grain, n - p * grain > grain ? (p + 1) * grain : n, 0);
    }
  }
};

struct overflowing : broken {  // looks for the end of the range where a piece too far begins
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    const auto after = [&](index_t b) {
      return static_cast<index_t>(static_cast<std::uint64_t>(b) + static_cast<std::uint64_t>(grain));
    };
    for (index_t b = 0; b < n; b = after(b)) body(b, after(b) < b || after(b) > n ? n : after(b), 0);
  }
};

// Task executors on the caller's thread; each breaks one promise.
struct without_handles {
  template <class Task>
  status post(Task&&, std::stop_token, task_handle&) {
    return {errc::would_block, "no handles"};
  }
};
struct grasping : without_handles {  // takes what it refuses
  using without_handles::post;
  template <class Task>
  status post(Task&& task, std::stop_token = {}) {
    const auto taken = std::move(task);
    return {errc::would_block, "busy"};
  }
};
struct doubling : without_handles {
  using without_handles::post;
  template <class Task>
  status post(Task&& task, std::stop_token stop = {}) {
    task(stop);
    task(stop);
    return {};
  }
};
struct silent : without_handles {  // runs what it refuses
  using without_handles::post;
  template <class Task>
  status post(Task&& task, std::stop_token stop = {}) {
    task(stop);
    return calls++ == 0 ? status() : status(errc::would_block, "busy");
  }
  int calls = 0;
};
struct deaf : without_handles {
  using without_handles::post;
  template <class Task>
  status post(Task&& task, std::stop_token = {}) {
    task(std::stop_token());
    return {};
  }
};
struct mute : without_handles {  // does not say what became of the task
  using without_handles::post;
  template <class Task>
  void post(Task&& task, std::stop_token stop = {}) {
    task(stop);
  }
};
static_assert(!TaskExecutor<mute>);

template <class E>
std::string fault() {
  E executor;
  std::string found = deeprec_test::contract_fault(executor);
  return found.substr(0, found.find(" (n ="));
}

}  // namespace

TEST_CASE("inline_executor keeps the contract of bulk executors") {
  const inline_executor executor;
  CHECK(deeprec_test::contract_fault(executor) == "");
}

TEST_CASE("thread_pool keeps the contract of bulk executors, whatever its size") {
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    thread_pool pool(threads);
    CHECK(deeprec_test::contract_fault(pool) == "");
  }
}

TEST_CASE("the contract's test catches broken executors") {
  CHECK(fault<forgetful>() == "an element is not covered exactly once");
  CHECK(fault<repeating>() == "an element is not covered exactly once");
  CHECK(fault<crooked>() == "a border is no multiple of the grain");
  CHECK(fault<eager>() == "a border is no multiple of the grain");
  CHECK(fault<misnumbered>() == "a worker's number is not below concurrency()");
  CHECK(fault<swallowing>() == "what a body threw is lost");
  CHECK(fault<backwards>() == "not the smallest begin was rethrown");
  // An element that a piece beyond the end holds as well, or no end at all.
  overflowing far;
  constexpr index_t largest = (std::numeric_limits<index_t>::max)();
  CHECK(deeprec_test::contract::large_fault(far, largest, index_t{1} << 62) != "");
  CHECK(fault<overflowing>() != "");
  careless shares;
  std::latch both(2);
  CHECK(deeprec_test::contract::pieces_fault(shares, 2, 1, [&] { both.arrive_and_wait(); }) ==
        "two bodies under one number at once");
}

TEST_CASE("inline_executor keeps the contract of task executors") {
  const inline_executor executor;
  CHECK(deeprec_test::task_contract_fault(executor, [] {}) == "");
}

TEST_CASE("thread_pool keeps the contract of task executors, whatever its limit of task threads") {
  for (const int limit : {1, 2, 7}) {
    CAPTURE(limit);
    thread_pool pool(thread_pool_options{.threads = 2, .task_threads = limit});
    for (int round = 0; round < 3; ++round) {
      CHECK(deeprec_test::task_contract_fault(pool, [&] { pool.wait_tasks(); }) == "");
      CHECK(deeprec_test::blocked_tasks_fault(pool, limit, [&] { pool.wait_tasks(); }) == "");
    }
  }
}

TEST_CASE("the contract's test catches broken task executors") {
  const auto fault_of = [](auto executor) { return deeprec_test::task_contract_fault(executor, [] {}); };
  CHECK(fault_of(grasping()) == "a refused task was taken");
  CHECK(fault_of(doubling()) == "an accepted task does not run exactly once, or a refused one runs");
  CHECK(fault_of(silent()) == "an accepted task does not run exactly once, or a refused one runs");
  CHECK(fault_of(deaf()) == "a task does not see its stop token");
}
