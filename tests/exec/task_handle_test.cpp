// Handles of posted tasks: join, stop, and what becomes of a task whose handle or pool ends first.

#include <deeprec/core/task_handle.hpp>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/sanitizers.hpp"

#include <doctest/doctest.h>
#include <atomic>
#include <cstdlib>
#include <latch>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

using namespace deeprec;

namespace {

// A function of its own: where it is inlined, g++ 12 takes the constructor for a use of what it constructs.
[[gnu::noinline]] std::stop_source new_stop_source() { return std::stop_source(); }

#if !DEEPREC_TEST_SANITIZED
thread_local int allocations = 0;
thread_local int refused_after = -1;  // allocations until one is refused
#endif

// Another executor: a thread for each task, or nothing at all.
struct thread_each {
  bool drops = false;
  std::vector<std::thread> threads = {};

  ~thread_each() {
    for (std::thread& thread : threads) thread.join();
  }
  template <class Task>
  status post(Task&& task, std::stop_token stop, task_handle& handle) {
    return start(runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle));
  }
  template <class Task>
  status post(Task&& task, std::stop_token stop = {}) {
    return start(runnable_task(std::forward<Task>(task), std::move(stop), {}, nullptr));
  }
  status start(runnable_task work) {
    if (drops) return {};
    threads.emplace_back([work = std::move(work)]() mutable { work(); });
    return {};
  }
};
static_assert(TaskExecutor<thread_each>);

struct takes_anything {
  template <class Task>
  status post(Task&&, std::stop_token = {}) {
    return {};
  }
};
static_assert(!TaskExecutor<takes_anything>);  // no handles

struct returns_a_number {
  int operator()(std::stop_token) const { return 0; }
};
static_assert(!TaskWork<returns_a_number> && !TaskWork<int>);
static_assert(!std::is_copy_constructible_v<task_handle> &&
              std::is_nothrow_move_constructible_v<task_handle>);

void wait_for_stop(const std::stop_token& stop) {
  while (!stop.stop_requested()) std::this_thread::yield();
}

}  // namespace

#if !DEEPREC_TEST_SANITIZED
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (refused_after == 0) throw std::bad_alloc();
  if (refused_after > 0) --refused_after;
  ++allocations;
  if (void* const made = std::malloc(bytes == 0 ? 1 : bytes)) return made;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* dead) noexcept { std::free(dead); }
[[gnu::noinline]] void operator delete(void* dead, std::size_t) noexcept { std::free(dead); }
#endif

TEST_CASE_TEMPLATE("task_handle: join returns what the task returned", Executor, inline_executor, thread_pool,
                   thread_each) {
  Executor executor{};
  for (int round = 0; round < 20; ++round) {
    task_handle handle;
    CHECK_FALSE(handle.joinable());
    CHECK(handle.done());
    CHECK(handle.join().ok());  // empty
    int seen = 0;
    REQUIRE(executor.post([&](std::stop_token) { seen = 1; }, {}, handle).ok());
    CHECK(handle.joinable());
    CHECK(handle.join().ok());
    CHECK(seen == 1);
    CHECK_FALSE(handle.joinable());
    REQUIRE(executor.post([&](std::stop_token) { return status(errc::io_error, "mine"); }, {}, handle).ok());
    const status failed = handle.join();
    CHECK(failed.code() == errc::io_error);
    CHECK(failed.detail() == std::string("mine"));
    REQUIRE(executor.post([&] { seen = 2; }, {}, handle).ok());  // no token
    CHECK_FALSE(handle.request_stop());
    CHECK(handle.join().ok());
    CHECK(seen == 2);
    REQUIRE(executor.post([] { return status(errc::closed, "no token"); }, {}, handle).ok());
    CHECK(handle.join().code() == errc::closed);
  }
}

TEST_CASE_TEMPLATE("task_handle: join rethrows what the task threw, and nothing else does", Executor,
                   inline_executor, thread_pool, thread_each) {
  Executor executor{};
  task_handle handle;
  for (int round = 0; round < 20; ++round) {
    REQUIRE(executor.post([](std::stop_token) { throw std::runtime_error("mine"); }, {}, handle).ok());
    CHECK_THROWS_WITH_AS(static_cast<void>(handle.join()), "mine", std::runtime_error);
    CHECK_FALSE(handle.joinable());
    CHECK(handle.join().ok());
  }
  if constexpr (std::is_same_v<Executor, thread_pool>) CHECK_NOTHROW(executor.wait_tasks());
}

TEST_CASE_TEMPLATE("task_handle: captures are destroyed when join returns", Executor, inline_executor,
                   thread_pool, thread_each) {
  Executor executor{};
  for (int round = 0; round < 50; ++round) {
    const auto held = std::make_shared<int>(3);
    task_handle handle;
    REQUIRE(executor.post([held](std::stop_token) {}, {}, handle).ok());
    CHECK(handle.join().ok());
    CHECK(held.use_count() == 1);
  }
}

TEST_CASE_TEMPLATE("task_handle: a stop comes from the handle or from the token given to post", Executor,
                   thread_pool, thread_each) {
  Executor executor{};
  std::stop_source mine = new_stop_source();
  for (const bool by_handle : {true, false}) {
    for (const bool has_token : {true, false}) {
      if (!by_handle && !has_token) continue;
      task_handle handle;
      REQUIRE(executor.post(wait_for_stop, has_token ? mine.get_token() : std::stop_token(), handle).ok());
      CHECK_FALSE(handle.done());
      if (by_handle) {
        CHECK(handle.request_stop());
        CHECK_FALSE(handle.request_stop());
      } else {
        mine.request_stop();
      }
      CHECK(handle.join().ok());
    }
  }
  task_handle late;  // the token was triggered before
  REQUIRE(executor.post(wait_for_stop, mine.get_token(), late).ok());
  CHECK(late.join().ok());
}

TEST_CASE("task_handle: a stop of one task is no stop of another, nor of the token given to post") {
  thread_pool pool(1);
  std::stop_source mine = new_stop_source();
  task_handle first, second;
  REQUIRE(pool.post(wait_for_stop, mine.get_token(), first).ok());
  REQUIRE(pool.post(wait_for_stop, mine.get_token(), second).ok());
  CHECK(first.request_stop());
  CHECK(first.join().ok());
  CHECK_FALSE(second.done());
  CHECK_FALSE(mine.stop_requested());
  mine.request_stop();
  CHECK(second.join().ok());
}

TEST_CASE_TEMPLATE("task_handle: its end requests a stop and waits", Executor, thread_pool, thread_each) {
  Executor executor{};
  std::atomic<int> ended{0};
  const auto task = [&](std::stop_token stop) {
    wait_for_stop(stop);
    std::this_thread::yield();
    ++ended;
  };
  {
    task_handle handle;
    REQUIRE(executor.post(task, {}, handle).ok());
  }
  CHECK(ended == 1);
  {
    task_handle first, second;
    REQUIRE(executor.post(task, {}, first).ok());
    REQUIRE(executor.post(task, {}, second).ok());
    first = std::move(second);  // ends the first one
    CHECK(ended == 2);
    CHECK_FALSE(second.joinable());
    task_handle third(std::move(first));
    CHECK_FALSE(first.joinable());
    CHECK(third.request_stop());
    CHECK(third.join().ok());
  }
  CHECK(ended == 3);
  {
    task_handle handle;  // an exception that nobody takes is reported on stderr
    REQUIRE(executor.post([](std::stop_token) { throw std::runtime_error("lost"); }, {}, handle).ok());
  }
}

TEST_CASE_TEMPLATE("task_handle: a detached task runs on", Executor, thread_pool, thread_each) {
  std::latch release(1), done(1);
  std::atomic<bool> stopped{true};
  {
    Executor executor{};
    {
      task_handle handle;
      REQUIRE(executor
                  .post(
                      [&](std::stop_token stop) {
                        release.wait();
                        stopped = stop.stop_requested();
                        done.count_down();
                      },
                      {}, handle)
                  .ok());
      handle.detach();
      CHECK_FALSE(handle.joinable());
    }
    release.count_down();
    done.wait();
  }
  CHECK_FALSE(stopped);
}

TEST_CASE("task_handle: a pool that ends stops and waits for its tasks, whose handles are joined later") {
  std::optional<thread_pool> pool(2);
  task_handle stopped, failed, posted;
  REQUIRE(pool->post(
                  [](std::stop_token stop) {
                    wait_for_stop(stop);
                    return status(errc::cancelled, "stopped");
                  },
                  {}, stopped)
              .ok());
  REQUIRE(pool->post(
                  [](std::stop_token stop) {
                    wait_for_stop(stop);
                    throw std::runtime_error("at the end");
                  },
                  {}, failed)
              .ok());
  thread_pool* const same = &*pool;
  REQUIRE(pool->post([&posted, same](std::stop_token stop) {
                wait_for_stop(stop);
                static_cast<void>(same->post(wait_for_stop, {}, posted));
              })
              .ok());
  pool.reset();
  CHECK(stopped.done());
  CHECK(failed.done());
  CHECK(posted.done());
  CHECK(stopped.join().code() == errc::cancelled);
  CHECK_THROWS_WITH_AS(static_cast<void>(failed.join()), "at the end", std::runtime_error);
  CHECK(posted.joinable());
  CHECK(posted.join().ok());
}

TEST_CASE(
    "task_handle: when join returns, the task's thread takes another one; after wait_tasks all are done") {
  thread_pool pool(thread_pool_options{.threads = 1, .task_threads = 1});
  for (int round = 0; round < 500; ++round) {
    task_handle handle;
    REQUIRE(pool.post([] {}, {}, handle).ok());
    CHECK(handle.join().ok());
  }
  for (int round = 0; round < 500; ++round) {
    task_handle handle;
    REQUIRE(pool.post([] {}, {}, handle).ok());
    pool.wait_tasks();
    CHECK(handle.done());
  }
}

TEST_CASE("task_handle: a refused task leaves the handle empty and the task with the caller") {
  thread_pool pool(thread_pool_options{.threads = 1, .task_threads = 1});
  task_handle busy, handle;
  REQUIRE(pool.post(wait_for_stop, {}, busy).ok());
  auto own = std::make_unique<int>(5);
  auto task = [own = std::move(own)](std::stop_token) {};
  CHECK(pool.post(std::move(task), {}, handle).code() == errc::would_block);
  CHECK_FALSE(handle.joinable());
  CHECK(busy.request_stop());
  CHECK(busy.join().ok());
  CHECK(pool.post(std::move(task), {}, handle).ok());
  CHECK(handle.join().ok());
}

TEST_CASE("task_handle: a task that the executor drops ends as cancelled") {
  thread_each nothing{true};
  task_handle handle;
  const auto held = std::make_shared<int>(1);
  REQUIRE(nothing.post([held](std::stop_token) {}, {}, handle).ok());
  CHECK(handle.done());
  CHECK(handle.join().code() == errc::cancelled);
  CHECK(held.use_count() == 1);
}

#if !DEEPREC_TEST_SANITIZED
TEST_CASE("task_handle: a post costs one allocation, a stop token of its own a second one") {
  thread_pool pool(1);
  task_handle handle;
  REQUIRE(pool.post([] {}).ok());  // makes the thread
  pool.wait_tasks();
  std::stop_source mine = new_stop_source();
  int by = 0;
  const auto cost = [&](const auto& post) {
    const int before = allocations;
    REQUIRE(post().ok());
    by = allocations - before;
    if (handle.joinable()) REQUIRE(handle.join().ok());
    pool.wait_tasks();
    return by;
  };
  const inline_executor here;
  const auto with_token = [](std::stop_token) {};
  CHECK(cost([&] { return pool.post(with_token); }) == 1);
  CHECK(cost([&] { return pool.post([] {}); }) == 1);
  CHECK(cost([&] { return pool.post([] {}, {}, handle); }) == 1);
  CHECK(cost([&] { return pool.post(with_token, mine.get_token()); }) == 2);
  CHECK(cost([&] { return pool.post(with_token, {}, handle); }) == 2);
  CHECK(cost([&] { return pool.post(with_token, mine.get_token(), handle); }) == 2);
  CHECK(cost([&] { return here.post(with_token); }) == 0);
  CHECK(cost([&] { return here.post(with_token, mine.get_token()); }) == 0);
  CHECK(cost([&] { return here.post([] {}, {}, handle); }) == 1);
}

TEST_CASE_TEMPLATE("task_handle: a post without memory is refused, and the caller keeps the task", Executor,
                   inline_executor, thread_pool) {
  Executor executor{};
  task_handle handle;
  REQUIRE(executor.post([] {}, {}, handle).ok());  // makes the thread
  REQUIRE(handle.join().ok());
  int refused = 0;
  for (int round = 0; round < 8; ++round) {
    struct task {
      std::unique_ptr<int> own;
      void operator()(std::stop_token) const {}
    } mine{std::make_unique<int>(1)};
    refused_after = round;
    const status s = executor.post(std::move(mine), {}, handle);
    refused_after = -1;
    if (s.ok()) {
      CHECK(handle.join().ok());
      continue;
    }
    ++refused;
    CHECK(s.code() == errc::out_of_memory);
    CHECK(mine.own != nullptr);
    CHECK_FALSE(handle.joinable());
  }
  CHECK(refused == 2);
}
#endif
