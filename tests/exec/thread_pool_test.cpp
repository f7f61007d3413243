// The thread pool: what it promises of pieces, workers, exceptions and tasks. Timings decide nothing.

#include <deeprec/core/context.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/support/bulk.hpp>

#include "support/children.hpp"
#include "support/seed.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

using namespace deeprec;
using namespace std::chrono_literals;

namespace {

// So many threads whatever the number of processors.
thread_pool_options crowd(int threads) { return {.threads = threads, .oversubscribe = true}; }

// Why the pieces of one call are wrong; empty when they are right. `inside` runs in every body.
template <class E, class Inside>
std::string fault_of(E& executor, index_t n, index_t grain, int concurrency, Inside inside) {
  std::vector<std::atomic<int>> hits(static_cast<std::size_t>(std::max<index_t>(n, 0)));
  std::vector<std::atomic<bool>> busy(static_cast<std::size_t>(concurrency));
  std::atomic<bool> shared{false}, bad_worker{false}, bad_border{false};
  executor.parallel_for(n, grain, [&](index_t begin, index_t end, int worker) {
    if (worker < 0 || worker >= concurrency) {
      bad_worker = true;
      return;
    }
    auto& mine = busy[static_cast<std::size_t>(worker)];
    if (mine.exchange(true)) shared = true;
    inside();
    if (begin % grain != 0 || (end != n && end != begin + grain) || end - begin > grain) {
      bad_border = true;
    }
    if (begin < 0 || begin >= end || end > n) {
      bad_border = true;
    } else {
      for (index_t i = begin; i < end; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
    }
    mine = false;
  });
  if (bad_worker) return "a worker's number is not below concurrency()";
  if (shared) return "two bodies under one number at once";
  if (bad_border) return "a border is no multiple of the grain";
  for (const auto& hit : hits) {
    if (hit != 1) return "an element is not covered exactly once";
  }
  return {};
}

template <class E>
std::string fault_of(E& executor, index_t n, index_t grain, int concurrency) {
  return fault_of(executor, n, grain, concurrency, [] {});
}

struct forgetful {  // drops the last piece
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    for (index_t b = 0; b + grain < n; b += grain) body(b, b + grain, 0);
  }
};
struct repeating {  // runs the first piece twice
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    body(index_t{0}, std::min(grain, n), 0);
    for (index_t b = 0; b < n; b += grain) body(b, std::min(b + grain, n), 0);
  }
};
struct crooked {  // cuts where it likes
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) {
    body(index_t{0}, n / 3, 0);
    body(n / 3, n, 0);
  }
};
struct careless {  // two threads, and both are worker 0
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    std::thread other([&] { body(index_t{0}, grain, 0); });
    body(grain, n, 0);
    other.join();
  }
};

}  // namespace

TEST_CASE("thread_pool: every element is in exactly one piece, cut at multiples of the grain") {
  for (int threads = 1; threads <= 8; ++threads) {
    thread_pool pool(crowd(threads));
    REQUIRE(pool.concurrency() == threads);
    for (const index_t grain : {index_t{1}, index_t{2}, index_t{7}, index_t{64}, index_t{1000}}) {
      for (const index_t n : {index_t{0}, index_t{-5}, index_t{1}, grain - 1, grain, grain + 1, 2 * grain,
                              2 * grain + 1, 37 * grain + 3}) {
        CAPTURE(threads);
        CAPTURE(grain);
        CAPTURE(n);
        CHECK(fault_of(pool, n, grain, threads) == "");
      }
    }
    CHECK(fault_of(pool, 1000000, 1024, threads) == "");
    CHECK(fault_of(pool, 1000000, std::numeric_limits<index_t>::max(), threads) == "");
  }
}

TEST_CASE("thread_pool: the check of the pieces catches broken executors") {
  forgetful drops;
  repeating repeats;
  crooked cuts;
  careless shares;
  CHECK(fault_of(drops, 100, 7, 1) == "an element is not covered exactly once");
  CHECK(fault_of(repeats, 100, 7, 1) == "an element is not covered exactly once");
  CHECK(fault_of(cuts, 100, 7, 1) == "a border is no multiple of the grain");
  std::latch both(2);
  CHECK(fault_of(shares, 2, 1, 1, [&] { both.arrive_and_wait(); }) == "two bodies under one number at once");
}

TEST_CASE("thread_pool: other threads join in") {
  thread_pool pool(crowd(3));
  std::latch all(3);  // passes only when three bodies run at once
  std::mutex mutex;
  std::vector<int> workers;
  pool.parallel_for(3, 1, [&](index_t, index_t, int worker) {
    all.arrive_and_wait();
    std::lock_guard lock(mutex);
    workers.push_back(worker);
  });
  std::sort(workers.begin(), workers.end());
  CHECK(workers == std::vector<int>{0, 1, 2});
}

TEST_CASE("thread_pool: what bodies wrote is there when the call returns") {
  thread_pool pool(crowd(4));
  std::vector<index_t> values(10000);
  for (int round = 0; round < 50; ++round) {
    pool.parallel_for(10000, 16, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
    });
    REQUIRE(values[9999] == index_t{9999} * (round + 1));
  }
  CHECK(std::accumulate(values.begin(), values.end(), index_t{0}) == 50 * index_t{49995000});
}

TEST_CASE("thread_pool: nested calls finish, three deep, with numbers that are never shared") {
  for (const int threads : {1, 2, 4}) {
    thread_pool pool(crowd(threads));
    std::atomic<index_t> leaves{0};
    std::atomic<int> faults{0};
    pool.parallel_for(6, 1, [&](index_t, index_t, int) {
      pool.parallel_for(5, 1, [&](index_t, index_t, int) {
        if (!fault_of(pool, 40, 3, threads).empty()) ++faults;
        leaves += 40;
      });
    });
    CHECK(faults == 0);
    CHECK(leaves == 6 * 5 * 40);
  }
}

TEST_CASE("thread_pool: a pool called from another pool's bodies counts from 0") {
  thread_pool outer(crowd(3));
  thread_pool inner(crowd(2));
  std::atomic<int> faults{0};
  outer.parallel_for(12, 1, [&](index_t, index_t, int) {
    if (!fault_of(inner, 50, 4, 2).empty()) ++faults;
    inner.parallel_for(4, 1, [&](index_t, index_t, int) {
      if (!fault_of(outer, 30, 4, 3).empty()) ++faults;
    });
  });
  CHECK(faults == 0);
}

TEST_CASE("thread_pool: several threads call at once") {
  thread_pool pool(crowd(3));
  std::atomic<int> faults{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&, c] {
      std::mt19937_64 random(deeprec_test::seed() + static_cast<std::uint64_t>(c));
      for (int round = 0; round < 100; ++round) {
        const auto n = static_cast<index_t>(random() % 300);
        const auto grain = static_cast<index_t>(random() % 20 + 1);
        if (!fault_of(pool, n, grain, 3).empty()) ++faults;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(faults == 0);
}

TEST_CASE("thread_pool: calls after a long rest and calls in a hurry are never lost") {
  thread_pool_options options = crowd(3);
  for (const auto spin : {0us, 20us, 200us}) {
    options.spin = spin;
    thread_pool pool(options);
    std::mt19937_64 random(deeprec_test::seed());
    index_t total = 0;
    std::atomic<index_t> done{0};
    for (int round = 0; round < 400; ++round) {
      const auto n = static_cast<index_t>(random() % 9);
      pool.parallel_for(n, 1, [&](index_t, index_t, int) { ++done; });
      total += n;
      if (round % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    CHECK(done == total);
  }
}

TEST_CASE("thread_pool: the exception of the smallest begin comes out, and nothing runs after") {
  for (const int threads : {1, 2, 4}) {
    thread_pool pool(crowd(threads));
    for (int round = 0; round < 100; ++round) {
      std::atomic<int> running{0};
      std::atomic<int> begun{0};
      std::string message;
      try {
        pool.parallel_for(1000, 10, [&](index_t begin, index_t, int) {
          ++running;
          ++begun;
          struct leave {
            std::atomic<int>& count;
            ~leave() { --count; }
          } guard{running};
          if (begin == 30 && round % 2 == 0) std::this_thread::yield();
          if (begin == 30 || begin == 40 || begin == 50 || begin == 90) {
            throw std::runtime_error(std::to_string(begin));
          }
        });
      } catch (const std::runtime_error& e) {
        message = e.what();
      }
      REQUIRE(message == "30");
      REQUIRE(running == 0);
      const int seen = begun;
      if (threads == 1) REQUIRE(seen == 4);  // pieces that had not begun were dropped
      REQUIRE(seen >= 4);
      std::latch all(threads);  // no worker is in the call before any more
      pool.parallel_for(threads, 1, [&](index_t, index_t, int) { all.arrive_and_wait(); });
      REQUIRE(begun == seen);
    }
    CHECK(fault_of(pool, 100, 3, threads) == "");  // and the pool goes on
  }
}

TEST_CASE("thread_pool: an exception passes through nested calls") {
  thread_pool pool(crowd(3));
  CHECK_THROWS_WITH_AS(pool.parallel_for(4, 1,
                                         [&](index_t, index_t, int) {
                                           pool.parallel_for(8, 1, [](index_t begin, index_t, int) {
                                             if (begin == 5) throw std::runtime_error("inner");
                                           });
                                         }),
                       "inner", std::runtime_error);
  CHECK(fault_of(pool, 100, 3, 3) == "");
}

TEST_CASE("thread_pool: tasks that wait for each other finish, however many they are") {
  thread_pool pool(crowd(2));
  for (int round = 0; round < 5; ++round) {
    std::latch together(12);
    std::atomic<int> passed{0};
    for (int t = 0; t < 12; ++t) {
      REQUIRE(pool.post([&](std::stop_token) {
                    together.arrive_and_wait();
                    ++passed;
                  })
                  .ok());
    }
    pool.wait_tasks();
    CHECK(passed == 12);
  }
}

TEST_CASE("thread_pool: blocked tasks don't hold up bulk work") {
  thread_pool pool(crowd(2));
  std::latch release(1);
  for (int t = 0; t < 4; ++t) REQUIRE(pool.post([&](std::stop_token) { release.wait(); }).ok());
  CHECK(fault_of(pool, 1000, 10, 2) == "");
  release.count_down();
  pool.wait_tasks();
}

TEST_CASE("thread_pool: a task may post tasks and call parallel_for") {
  thread_pool pool(crowd(3));
  std::atomic<int> done{0};
  std::atomic<int> faults{0};
  for (int t = 0; t < 6; ++t) {
    const status posted = pool.post([&](std::stop_token) {
      if (!fault_of(pool, 200, 7, 3).empty()) ++faults;
      for (int u = 0; u < 3; ++u) {
        if (!pool.post([&](std::stop_token) { ++done; }).ok()) ++faults;
      }
    });
    REQUIRE(posted.ok());
  }
  pool.wait_tasks();
  CHECK(done == 18);
  CHECK(faults == 0);
}

TEST_CASE("thread_pool: a task that only moves is moved") {
  thread_pool pool(1);
  int seen = 0;
  REQUIRE(pool.post([value = std::make_unique<int>(9), &seen](std::stop_token) { seen = *value; }).ok());
  pool.wait_tasks();
  CHECK(seen == 9);
}

TEST_CASE("thread_pool: a task is told to stop by its own token and by the pool's end") {
  std::atomic<int> stopped{0};
  {
    thread_pool pool(crowd(2));
    std::stop_source mine;
    const auto wait_for_stop = [&](std::stop_token stop) {
      std::mutex mutex;
      std::condition_variable_any wake;
      std::unique_lock lock(mutex);
      wake.wait(lock, stop, [] { return false; });
      ++stopped;
    };
    REQUIRE(pool.post(wait_for_stop, mine.get_token()).ok());
    mine.request_stop();
    pool.wait_tasks();
    CHECK(stopped == 1);
    bool at_once = false;
    REQUIRE(pool.post([&](std::stop_token stop) { at_once = stop.stop_requested(); }, mine.get_token()).ok());
    pool.wait_tasks();
    CHECK(at_once);
    for (int t = 0; t < 5; ++t) REQUIRE(pool.post(wait_for_stop).ok());
  }
  CHECK(stopped == 6);
}

TEST_CASE("thread_pool: wait_tasks rethrows what a task threw, once") {
  thread_pool pool(crowd(2));
  std::atomic<int> done{0};
  REQUIRE(pool.post([](std::stop_token) { throw std::runtime_error("from a task"); }).ok());
  for (int t = 0; t < 4; ++t) REQUIRE(pool.post([&](std::stop_token) { ++done; }).ok());
  CHECK_THROWS_WITH_AS(pool.wait_tasks(), "from a task", std::runtime_error);
  CHECK(done == 4);
  CHECK_NOTHROW(pool.wait_tasks());
}

TEST_CASE("thread_pool: tasks that had not begun when the pool is destroyed still run") {
  std::atomic<int> done{0};
  for (int round = 0; round < 20; ++round) {
    thread_pool pool(crowd(2));
    for (int t = 0; t < 20; ++t) REQUIRE(pool.post([&](std::stop_token) { ++done; }).ok());
  }
  CHECK(done == 400);
}

TEST_CASE("thread_pool: tasks that post while the pool is destroyed are waited for") {
  struct chain {
    thread_pool* pool;
    std::atomic<int>* done;
    int left;
    void operator()(std::stop_token stop) const {
      if (left == 20) {
        while (!stop.stop_requested()) std::this_thread::yield();
      }
      ++*done;
      std::atomic<int> sum{0};
      pool->parallel_for(8, 1, [&](index_t, index_t, int) { ++sum; });
      if (left > 0 && sum == 8) {
        if (!pool->post(chain{pool, done, left - 1}).ok()) *done += 1000;
        if (left % 5 == 0 && !pool->post(chain{pool, done, 0}).ok()) *done += 1000;
      }
    }
  };
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> done{0};
    {
      thread_pool pool(crowd(2));
      for (int t = 0; t < 3; ++t) REQUIRE(pool.post(chain{&pool, &done, 20}).ok());
    }
    CHECK(done == 3 * (21 + 4));
  }
}

TEST_CASE("thread_pool: at the limit of task threads a task is refused and left with the caller") {
  struct task {
    std::unique_ptr<int> own;
    int* seen;
    void operator()(std::stop_token) const { *seen = *own; }
  };
  for (const int limit : {-1, 0, 1, 3}) {
    CAPTURE(limit);
    thread_pool pool(thread_pool_options{.threads = 1, .task_threads = limit});
    for (int round = 0; round < 3; ++round) {
      std::latch release(1);
      for (int t = 0; t < limit; ++t) REQUIRE(pool.post([&](std::stop_token) { release.wait(); }).ok());
      int seen = 0;
      task mine{std::make_unique<int>(round + 1), &seen};
      CHECK(pool.post(std::move(mine)).code() == errc::would_block);
      REQUIRE(mine.own != nullptr);
      const auto by_value = [&seen](std::stop_token) { seen = -1; };
      CHECK(pool.post(by_value).code() == errc::would_block);
      release.count_down();
      pool.wait_tasks();
      CHECK(seen == 0);
      if (limit <= 0) continue;
      CHECK(pool.post(std::move(mine)).ok());  // its thread is idle again
      pool.wait_tasks();
      CHECK(seen == round + 1);
    }
  }
}

TEST_CASE("thread_pool: a task whose copy throws is not accepted, and the pool goes on") {
  struct refuses_copies {
    refuses_copies() = default;
    refuses_copies(const refuses_copies&) { throw std::runtime_error("no copy"); }
    void operator()(std::stop_token) const {}
  };
  thread_pool pool(thread_pool_options{.threads = 1, .task_threads = 1});
  const refuses_copies task;
  for (int round = 0; round < 3; ++round) {
    CHECK_THROWS_WITH_AS(static_cast<void>(pool.post(task)), "no copy", std::runtime_error);
  }
  pool.wait_tasks();
  int seen = 0;
  REQUIRE(pool.post([&](std::stop_token) { seen = 1; }).ok());
  pool.wait_tasks();
  CHECK(seen == 1);
}

TEST_CASE("thread_pool: where the system refuses threads, none is left behind and no task is lost") {
  const auto room_for_two = [] {  // stacks of 1 GB, and address space for two and a half
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    if (pthread_attr_setstacksize(&attributes, std::size_t{1} << 30) != 0) return false;
    if (pthread_setattr_default_np(&attributes) != 0) return false;
    unsigned long pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * static_cast<unsigned long>(sysconf(_SC_PAGESIZE)) + (rlim_t{5} << 29);
    const rlimit limit{bytes, bytes};
    return setrlimit(RLIMIT_AS, &limit) == 0;
  };
  CHECK(deeprec_test::in_child([&] {
          thread_pool pool(1);
          if (!room_for_two()) return 1;
          std::latch release(1);
          std::atomic<int> seen{0};
          const auto wait = [&](std::stop_token) {
            release.wait();
            ++seen;
          };
          int accepted = 0;
          status last;
          while (accepted < 60 && (last = pool.post(wait)).ok()) ++accepted;
          release.count_down();
          pool.wait_tasks();
          if (last.code() != errc::would_block || accepted != 2 || seen != 2) return 2;
          if (!pool.post(wait).ok()) return 3;  // by an idle thread
          pool.wait_tasks();
          return seen == 3 ? 0 : 4;
        }) == 0);
  CHECK(deeprec_test::in_child([&] {
          if (!room_for_two()) return 1;
          const int before = deeprec_test::threads_of_this_process();
          try {
            thread_pool pool(crowd(6));
            return 2;
          } catch (const std::system_error&) {
          }
          // A thread that was joined may be listed a little longer.
          while (deeprec_test::threads_of_this_process() > before) std::this_thread::yield();
          return 0;
        }) == 0);
}

TEST_CASE("thread_pool: as many threads as the control groups grant time for") {
  struct file {
    std::string path, text;
  };
  struct tree {
    const char* name;
    int quota;
    std::vector<file> files;
  };
  const std::string v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  const std::string v1 =
      "31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
      "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
  const auto group = [](std::string text) { return file{"proc/self/cgroup", std::move(text)}; };
  const auto mounts = [](std::string text) { return file{"proc/self/mountinfo", std::move(text)}; };
  const auto max = [](const std::string& at, std::string text) {
    return file{"sys/fs/cgroup" + at + "/cpu.max", std::move(text)};
  };
  const std::string cpu = "sys/fs/cgroup/cpu,cpuacct";
  const std::vector<tree> trees = {
      {"nothing is there", 0, {}},
      {"v2: no limit", 0, {group("0::/a\n"), mounts(v2), max("/a", "max 100000\n")}},
      {"v2: a whole number", 2, {group("0::/a\n"), mounts(v2), max("/a", "200000 100000\n")}},
      {"v2: rounded up", 2, {group("0::/a\n"), mounts(v2), max("/a", "100001 100000\n")}},
      {"v2: less than one", 1, {group("0::/a\n"), mounts(v2), max("/a", "5000 100000\n")}},
      {"v2: the smallest of those above",
       3,
       {group("0::/a/b/c\n"), mounts(v2), max("/a/b/c", "max 100000\n"), max("/a/b", "800000 100000\n"),
        max("/a", "250000 100000\n"), max("", "900000 100000\n")}},
      {"v2: the group itself",
       1,
       {group("0::/a/b\n"), mounts(v2), max("/a/b", "100000 100000\n"), max("/a", "400000 100000\n")}},
      {"v2: the mount's own group", 4, {group("0::/\n"), mounts(v2), max("", "400000 100000\n")}},
      {"v2: other groups don't count",
       0,
       {group("0::/a\n"), mounts(v2), max("/b", "100000 100000\n"), max("/a/b", "100000 100000\n")}},
      {"v2: only a part is mounted",
       5,
       {group("0::/docker/ab/c\n"), mounts("30 23 0:26 /docker/ab /sys/fs/cgroup rw - cgroup2 none rw\n"),
        max("/c", "500000 100000\n"), max("/docker/ab/c", "100000 100000\n")}},
      {"v2: a name that begins alike",
       7,
       {group("0::/docker/abc\n"),
        mounts("30 23 0:26 /docker/ab /x rw - cgroup2 none rw\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none "
               "rw\n"),
        {"x/cpu.max", "100000 100000\n"},
        max("/docker/abc", "700000 100000\n")}},
      {"v2: the group lies outside of the mount",
       6,
       {group("0::/../other\n"), mounts("30 23 0:26 /docker/ab /sys/fs/cgroup rw - cgroup2 none rw\n"),
        max("", "600000 100000\n")}},
      {"v2: a mount with a space in its name",
       2,
       {group("0::/a b\n"),
        mounts("30 23 0:26 / /the\\040groups rw - cgroup2 none rw\n"),
        {"the groups/a b/cpu.max", "200000 100000\n"}}},
      {"v2: no mountinfo", 3, {group("0::/a\n"), max("/a", "300000 100000\n")}},
      {"v2: garbage",
       0,
       {group("0::/a/b/c/d/e\n"), mounts(v2), max("/a/b/c/d/e", "many 100000\n"), max("/a/b/c/d", "200000\n"),
        max("/a/b/c", "200000 0\n"), max("/a/b", "-1 100000\n"), max("/a", ""),
        max("", "99999999999999999999 1\n")}},
      {"v2: garbage does not hide a limit above",
       2,
       {group("0::/a\n"), mounts(v2), max("/a", "\n\n"), max("", "200000 100000\n")}},
      {"v2: a limit beyond an int",
       1 << 20,
       {group("0::/\n"), mounts(v2), max("", "9000000000000000000 1\n")}},
      {"garbage in the lists", 0, {group("0\n::\n\n:"), mounts("\n- cgroup2\n30 23\n"), max("", "x")}},
      {"v1: a quota",
       2,
       {group("7:cpu,cpuacct:/a\n0::/\n"),
        mounts(v1),
        {cpu + "/a/cpu.cfs_quota_us", "150000\n"},
        {cpu + "/a/cpu.cfs_period_us", "100000\n"}}},
      {"v1: no limit",
       0,
       {group("7:cpu,cpuacct:/a\n"),
        mounts(v1),
        {cpu + "/a/cpu.cfs_quota_us", "-1\n"},
        {cpu + "/a/cpu.cfs_period_us", "100000\n"}}},
      {"v1: a quota above, and one of another controller",
       4,
       {group("5:cpuset:/b\n7:cpuacct,cpu:/a/b\n"),
        mounts(v1),
        {cpu + "/a/b/cpu.cfs_quota_us", "-1\n"},
        {cpu + "/a/b/cpu.cfs_period_us", "100000\n"},
        {cpu + "/cpu.cfs_quota_us", "200000\n"},
        {cpu + "/cpu.cfs_period_us", "50000\n"},
        {"sys/fs/cgroup/cpuset/b/cpu.cfs_quota_us", "50000\n"},
        {"sys/fs/cgroup/cpuset/b/cpu.cfs_period_us", "50000\n"}}},
      {"v1: no mountinfo",
       3,
       {group("7:cpu:/\n"),
        {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "30000\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "10000\n"}}},
      {"both: the smaller",
       2,
       {group("7:cpu,cpuacct:/a\n0::/b\n"),
        mounts(v1 + "36 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n"),
        {cpu + "/a/cpu.cfs_quota_us", "600000\n"},
        {cpu + "/a/cpu.cfs_period_us", "100000\n"},
        max("/unified/b", "200000 100000\n")}},
  };
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("deeprec_cgroups_" + std::to_string(getpid()));
  for (const tree& made : trees) {
    CAPTURE(made.name);
    std::filesystem::remove_all(root);
    for (const file& f : made.files) {
      std::filesystem::create_directories((root / f.path).parent_path());
      std::ofstream(root / f.path) << f.text;
    }
    CHECK(detail::cpu_quota(root.string()) == made.quota);
  }
  std::filesystem::remove_all(root);

  CHECK(detail::default_concurrency(8, 0) == 8);
  CHECK(detail::default_concurrency(8, 3) == 3);
  CHECK(detail::default_concurrency(2, 3) == 2);
  CHECK(detail::default_concurrency(1, 1) == 1);
  CHECK(thread_pool().concurrency() == default_concurrency());
  CHECK(default_concurrency() == detail::default_concurrency(usable_cpus().size(), cpu_quota()));
}

TEST_CASE("thread_pool: the affinity mask is respected") {
  const std::vector<int> all = usable_cpus();
  REQUIRE(!all.empty());
  CHECK(std::is_sorted(all.begin(), all.end()));
  CHECK(thread_pool().concurrency() <= static_cast<int>(all.size()));
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(all.back()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    CHECK(usable_cpus() == std::vector<int>{all.back()});
    CHECK(thread_pool().concurrency() == 1);
    thread_pool pool(crowd(3));
    CHECK(pool.cpus().size() == 1);
    std::atomic<int> elsewhere{0};
    std::latch together(3);
    pool.parallel_for(3, 1, [&](index_t, index_t, int) {
      together.arrive_and_wait();
      if (sched_getcpu() != all.back()) ++elsewhere;
    });
    CHECK(elsewhere == 0);
  }).join();
}

TEST_CASE("thread_pool: a call wakes no more threads than processors, and on one runs on its own thread") {
  const thread_pool pool(8);
  CHECK(pool.concurrency() == 8);
  CHECK(pool.processors() == std::min(8, default_concurrency()));
  CHECK(thread_pool(crowd(8)).processors() == 8);
  CHECK(thread_pool(1).processors() == 1);
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<unsigned>(usable_cpus().back()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    thread_pool three(3);
    CHECK(three.concurrency() == 3);
    CHECK(three.processors() == 1);
    CHECK(detail::threads_at_once(three) == 1);
    const executor_ref ref(three);
    CHECK(ref.processors() == 1);
    const std::thread::id caller = std::this_thread::get_id();
    int elsewhere = 0;
    CHECK(fault_of(three, 1000, 7, 3, [&] { elsewhere += std::this_thread::get_id() == caller ? 0 : 1; }) ==
          "");
    CHECK(elsewhere == 0);
    context<thread_pool> ctx(three);
    CHECK(!detail::is_shared(ctx, 1e12));
  }).join();
}

TEST_CASE("thread_pool: more calls at once than the pool has places for all finish") {
  thread_pool pool(crowd(2));
  // 40 levels: each waits for the one inside.
  struct nest {
    thread_pool& pool;
    std::atomic<int>& leaves;
    void operator()(int depth) const {
      if (depth == 0) {
        ++leaves;
        return;
      }
      pool.parallel_for(2, 1, [&](index_t begin, index_t, int) {
        if (begin == 0) (*this)(depth - 1);
      });
    }
  };
  std::atomic<int> leaves{0};
  nest{pool, leaves}(40);
  CHECK(leaves == 1);
  CHECK(fault_of(pool, 1000, 7, 2) == "");  // every place is free again
}

TEST_CASE("thread_pool: between the calls of an awake scope workers poll; after it they sleep") {
  if (default_concurrency() < 2) {
    MESSAGE("SKIPPED: needs two processors, on one no worker polls");
    return;
  }
  thread_pool pool(crowd(3));
  const auto all_sleep = [&] {
    while (pool.polls()) std::this_thread::yield();
  };
  all_sleep();
  {
    const awake scope(pool);
    const awake inner(pool);
    CHECK(!pool.polls());  // nobody is woken for nothing
    CHECK(fault_of(pool, 1000, 7, 3) == "");
  }
  all_sleep();  // ends: nobody polls for ever
  {
    const executor_ref ref(pool);
    const awake scope(ref);
    CHECK(fault_of(pool, 1000, 7, 3) == "");
    all_sleep();  // ends inside too, some milliseconds after the last call
  }
  std::vector<std::thread> callers;
  std::atomic<int> faults{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const awake scope(pool);
        if (!fault_of(pool, 100, 3, 3).empty()) ++faults;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(faults == 0);
  all_sleep();
}

TEST_CASE("thread_pool: affinity masks of any number of processors are read") {
  // As the kernel does: masks with fewer bits than it has processors are refused.
  struct kernel {
    std::size_t processors;
    std::vector<int> usable;
    mutable int calls = 0;
    int operator()(std::size_t bytes, cpu_set_t* mask) const {
      ++calls;
      if (8 * bytes < processors) {
        errno = EINVAL;
        return -1;
      }
      for (const int cpu : usable) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, mask);
      return 0;
    }
  };
  for (const std::size_t processors : {1U, 1024U, 1025U, 1088U, 4096U, 5000U, 65536U}) {
    CAPTURE(processors);
    std::vector<int> usable;
    for (int cpu = 0; cpu < static_cast<int>(processors); cpu += 1 + cpu % 7) usable.push_back(cpu);
    usable.push_back(static_cast<int>(processors) - 1);
    usable.erase(std::unique(usable.begin(), usable.end()), usable.end());
    const kernel system{processors, usable};
    CHECK(detail::cpus_of_affinity(system) == usable);
    CHECK(system.calls <= 8);
  }
  const std::vector<int> none{0};
  CHECK(detail::cpus_of_affinity(kernel{64, {}}) == none);
  const kernel larger_than_any{std::size_t{1} << 40, {1}};
  CHECK(detail::cpus_of_affinity(larger_than_any) == none);
  CHECK(larger_than_any.calls < 20);
  int calls = 0;
  CHECK(detail::cpus_of_affinity([&](std::size_t, cpu_set_t*) {
          ++calls;
          errno = EPERM;
          return -1;
        }) == none);
  CHECK(calls == 1);
  detail::cpu_mask mask(5001);
  mask.insert(5000);
  CHECK(mask.cpus() >= 5001);
  CHECK(mask.has(5000));
  CHECK_FALSE(mask.has(4999));
}

TEST_CASE("thread_pool: a pinned worker stays on its processor") {
  thread_pool_options options;
  options.threads = 4;
  options.oversubscribe = true;
  options.pin = thread_pool_options::pinning::one_each;
  thread_pool pool(options);
  const std::vector<int>& cpus = pool.cpus();
  std::atomic<int> elsewhere{0};
  for (int round = 0; round < 20; ++round) {
    std::latch together(4);
    pool.parallel_for(4, 1, [&](index_t, index_t, int worker) {
      together.arrive_and_wait();
      if (worker > 0 && sched_getcpu() != cpus[static_cast<std::size_t>(worker) % cpus.size()]) {
        ++elsewhere;
      }
    });
  }
  CHECK(elsewhere == 0);
}

TEST_CASE("thread_pool: pools come and go under load") {
  std::mt19937_64 random(deeprec_test::seed());
  std::atomic<index_t> done{0};
  index_t expected = 0;
  for (int round = 0; round < 60; ++round) {
    thread_pool pool(static_cast<int>(random() % 5 + 1));
    const auto n = static_cast<index_t>(random() % 64);
    for (int t = 0; t < static_cast<int>(random() % 4); ++t) {
      expected += n;
      const status posted = pool.post([&, n](std::stop_token) {
        pool.parallel_for(n, 3, [&](index_t begin, index_t end, int) { done += end - begin; });
      });
      REQUIRE(posted.ok());
    }
    expected += n;
    pool.parallel_for(n, 2, [&](index_t begin, index_t end, int) { done += end - begin; });
  }
  CHECK(done == expected);
}

namespace {
// A fork whose helpers count themselves.
struct counted_fork {
  std::atomic<int> came{0}, inside{0}, bulk{0};
  std::atomic<bool> shared{false}, bad_number{false};
  std::vector<std::atomic<bool>> busy;
  forked_work work;
  explicit counted_fork(int concurrency)
      : busy(static_cast<std::size_t>(concurrency)),
        work{[](void* body, int worker) noexcept {
               auto& to = *static_cast<counted_fork*>(body);
               ++to.inside;
               if (worker < 1 || worker >= static_cast<int>(to.busy.size())) {
                 to.bad_number = true;
               } else {
                 auto& mine = to.busy[static_cast<std::size_t>(worker)];
                 if (mine.exchange(true)) to.shared = true;
                 std::this_thread::yield();
                 mine = false;
               }
               --to.inside;
               ++to.came;
             },
             [](void* body) noexcept { ++static_cast<counted_fork*>(body)->bulk; }, this} {}
  void wait_for(int calls) const {
    while (came < calls) std::this_thread::yield();
  }
};
}  // namespace

TEST_CASE("thread_pool: helpers come as often as they are called, and none is inside after join") {
  for (const bool behind_pointers : {false, true}) {
    thread_pool pool(crowd(4));
    executor_ref ref(pool);
    const auto rounds = [&](auto& executor) {
      for (int round = 0; round < 200; ++round) {
        counted_fork fork(4);
        REQUIRE(executor.fork(fork.work));
        int calls = 0;
        for (const int more : {1, 3, 7}) {
          executor.call_helpers(fork.work, more);
          calls += more;
          // Bulk work meanwhile, on the same threads.
          CHECK(fault_of(executor, 40, 3, 4) == "");
          fork.wait_for(calls);
        }
        if (round % 2 == 0) executor.call_helpers(fork.work, 5);  // some of these are dropped
        executor.join(fork.work);
        const int came = fork.came;
        CHECK(fork.inside == 0);
        CHECK(came >= calls);
        CHECK(came <= calls + 5);
        CHECK(fork.bulk >= 3);  // of the calls that this thread made inside
        CHECK_FALSE(fork.shared);
        CHECK_FALSE(fork.bad_number);
        CHECK(fault_of(executor, 40, 3, 4) == "");
        CHECK(fork.came == came);
      }
    };
    behind_pointers ? rounds(ref) : rounds(pool);
  }
}

TEST_CASE("thread_pool: a fork is refused where nobody could come") {
  counted_fork fork(4);
  thread_pool one(1);
  CHECK_FALSE(one.fork(fork.work));
  inline_executor self;
  CHECK_FALSE(executor_ref(self).fork(fork.work));
  thread_pool pool(crowd(2));
  std::vector<std::unique_ptr<counted_fork>> forks;
  bool refused = false;
  while (!refused && forks.size() < 100) {
    forks.push_back(std::make_unique<counted_fork>(2));
    refused = !pool.fork(forks.back()->work);
  }
  CHECK(refused);
  forks.pop_back();
  CHECK(fault_of(pool, 40, 3, 2) == "");  // alone
  for (auto& f : forks) pool.call_helpers(f->work, 2);
  for (auto& f : forks) f->wait_for(2);
  for (auto& f : forks) pool.join(f->work);
  CHECK(pool.fork(fork.work));
  pool.join(fork.work);
}
