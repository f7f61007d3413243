// What a pipeline delivers: the items of the sequential fold, in order, once; and what it counts.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/trace.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/queue/staging_pool.hpp>

#include "pipeline/support.hpp"
#include "queue/support.hpp"
#include "support/seed.hpp"

namespace {

using namespace deeprec;
using deeprec_test::counting_pool;
using deeprec_test::counting_source;
using deeprec_test::item;
using deeprec_test::up_to;
using values = std::vector<std::uint64_t>;

double fold(double sum, std::uint64_t k) { return sum * 0.999 + 1.0 / static_cast<double>(k + 1); }
double folded(const values& all) {
  double sum = 0;
  for (const std::uint64_t k : all) sum = fold(sum, k);
  return sum;
}

// Between one and seven turns of other threads, by the seed.
struct delays {
  std::mutex lock;
  std::mt19937_64 draw{deeprec_test::seed()};
  void operator()() {
    std::uint64_t turns = 0;
    {
      const std::lock_guard guard(lock);
      turns = 1 + draw() % 7;
    }
    while (turns-- > 0) std::this_thread::yield();
  }
};

TEST_CASE(
    "pipeline: the fold has the bits of the sequential one, for every capacity, order and count of threads") {
  counting_pool pool;
  delays wait;
  for (const std::uint64_t n : {0u, 1u, 2u, 5u, 64u}) {
    for (const std::size_t capacity : {1u, 2u, 4u}) {
      for (const int threads : {1, 2, 3, 4}) {
        CAPTURE(n);
        CAPTURE(capacity);
        CAPTURE(threads);
        counting_source read{n};
        double sum = 0;
        values seen;
        const auto last = [&](item&& i) {
          sum = fold(sum, i.value);
          seen.push_back(i.value);
        };
        const auto late = [&](item&& i) {
          wait();
          return std::move(i);
        };
        const auto check = [&](auto line) {
          read.again();
          sum = 0;
          seen.clear();
          pipeline p(pool, std::move(line), {.capacity = capacity});
          CHECK(p.run().ok());
          CHECK(read.calls == static_cast<int>(n) + 1);
          CHECK(pool.running == 0);
          CHECK(item::alive == 0);
        };
        // One thread; two; three; a parallel stage, two of them.
        check(source("read", std::ref(read)) | stage("late", late) | sink("fold", last));
        CHECK(sum == folded(up_to(n)));
        check(source("read", std::ref(read)) | sink("fold", last).own_thread());
        CHECK(sum == folded(up_to(n)));
        check(source("read", std::ref(read)) | stage("late", late).own_thread() |
              sink("fold", last).own_thread());
        CHECK(sum == folded(up_to(n)));
        check(source("read", std::ref(read)) | stage("late", late).parallel(threads) | sink("fold", last));
        CHECK(sum == folded(up_to(n)));
        check(source("read", std::ref(read)) | stage("late", late).parallel(threads) |
              stage("again", late).parallel(2) | stage("serial", late) | sink("fold", last));
        CHECK(sum == folded(up_to(n)));
        check(source("read", std::ref(read)) | stage("late", late).parallel(threads).unordered() |
              sink("fold", last));
        std::sort(seen.begin(), seen.end());
        CHECK(seen == up_to(n));
      }
    }
  }
}

TEST_CASE("pipeline: with a byte budget or a tuned depth the bits are the same") {
  counting_pool pool;
  for (const std::size_t budget : {std::size_t{0}, sizeof(item), 3 * sizeof(item)}) {
    for (const std::size_t most : {0u, 8u}) {
      counting_source read{300};
      double sum = 0;
      pipeline p(pool,
                 source("read", std::ref(read)) |
                     stage("own", [](item&& i) { return std::move(i); }).own_thread() |
                     stage("two", [](item&& i) { return std::move(i); }).parallel(2) |
                     sink("fold", [&](item&& i) { sum = fold(sum, i.value); }),
                 {.capacity = 1, .max_capacity = most, .byte_budget = budget});
      CHECK(p.run().ok());
      CHECK(sum == folded(up_to(300)));
      CHECK(item::alive == 0);
    }
  }
}

TEST_CASE("pipeline: a stage in the thread of the one before it runs there, and the sink in the caller's") {
  counting_pool pool;
  thread_pool other(1);
  std::vector<std::thread::id> ids(5);
  counting_source read{3};
  const auto note = [&](std::size_t k) { return [&ids, k](item&) { ids[k] = std::this_thread::get_id(); }; };
  std::thread::id source_id;
  pipeline p(pool, source("read",
                          [&] {
                            source_id = std::this_thread::get_id();
                            return read();
                          }) |
                       stage("0", note(0)) | stage("1", note(1)).own_thread() | stage("2", note(2)) |
                       stage("3", note(3)).on(other) | sink("4", note(4)).own_thread());
  CHECK(p.run().ok());
  CHECK(ids[0] == source_id);
  CHECK(ids[1] != ids[0]);
  CHECK(ids[2] == ids[1]);
  CHECK(ids[3] != ids[2]);
  CHECK(ids[4] == std::this_thread::get_id());
  CHECK(source_id != ids[4]);
  // A sink that names an executor leaves the caller waiting only.
  read.again();
  pipeline away(pool, source("read", std::ref(read)) | sink("4", note(4)).on(other));
  CHECK(away.run().ok());
  CHECK(ids[4] != std::this_thread::get_id());
}

TEST_CASE(
    "pipeline: callables return items, none, results or a status, and take items by value or reference") {
  thread_pool pool(1);
  int k = 0;
  std::vector<std::string> seen;
  pipeline p(
      pool,
      source("result of optional",
             [&]() -> result<std::optional<int>> {
               if (k == 8) return std::optional<int>();
               return std::optional<int>(k++);
             }) |
          stage("by value", [](int i) { return i * 10; }) | stage("in place, nothing", [](int& i) { ++i; }) |
          stage("in place, a status", [](const int&) { return status(); }) |
          stage("in place, a result", [](int& i) -> result<void> { return ++i, result<void>(); }) |
          stage("optional", [](int&& i) { return i % 20 == 2 ? std::optional<int>(i) : std::nullopt; }) |
          stage("result", [](int i) -> result<std::unique_ptr<int>> { return std::make_unique<int>(i); }) |
          stage("result of optional",
                [](std::unique_ptr<int>&& i) -> result<std::optional<std::string>> {
                  if (*i == 22) return std::optional<std::string>();
                  return std::optional<std::string>(std::to_string(*i));
                }) |
          sink("status", [&](const std::string& s) -> status { return seen.push_back(s), status(); }));
  CHECK(p.run().ok());
  CHECK(seen == std::vector<std::string>{"2", "42", "62"});
  const auto& stages = p.statistics().stages;
  CHECK(stages[0].items == 8);
  CHECK(stages[5].items == 8);
  CHECK(stages[5].left_out == 4);
  CHECK(stages[6].items == 4);
  CHECK(stages[7].left_out == 1);
  CHECK(stages[8].items == 3);
}

TEST_CASE("pipeline: items that a parallel stage leaves out leave no gap") {
  counting_pool pool;
  for (const std::size_t capacity : {1u, 2u, 8u}) {
    counting_source read{200};
    values seen;
    pipeline p(pool,
               source("read", std::ref(read)) |
                   stage("odd",
                         [](item&& i) {
                           return i.value % 2 == 1 ? std::optional<item>(std::move(i)) : std::nullopt;
                         })
                       .parallel(3) |
                   sink("note", [&](item&& i) { seen.push_back(i.value); }),
               {.capacity = capacity});
    CHECK(p.run().ok());
    values odd;
    for (std::uint64_t v = 1; v < 200; v += 2) odd.push_back(v);
    CHECK(seen == odd);
    CHECK(p.statistics().stages[1].left_out == 100);
    CHECK(item::alive == 0);
  }
}

TEST_CASE("pipeline: nodes without names have the names of their roles") {
  counting_pool pool;
  counting_source read{5};
  values seen;
  pipeline line(pool, source(read) | stage([](item&& i) { return std::move(i); }).own_thread() |
                          sink([&](item&& i) { seen.push_back(i.value); }).own_thread());
  REQUIRE(line.run().ok());
  CHECK(seen == up_to(5));
  const std::string text = line.statistics().text();
  for (const char* name : {"source", "stage", "sink"}) CHECK(text.find(name) != std::string::npos);
}

TEST_CASE("pipeline: it runs again for the next epoch, and nothing of one is left in the other") {
  counting_pool pool;
  counting_source read{10};
  values seen;
  pipeline p(pool, source("read", std::ref(read)) |
                       stage("two", [](item&& i) { return std::move(i); }).parallel(2) |
                       sink("note", [&](item&& i) { seen.push_back(i.value); }));
  for (int epoch = 0; epoch < 5; ++epoch) {
    read.again();
    seen.clear();
    CHECK(p.run().ok());
    CHECK(seen == up_to(10));
    CHECK(read.calls == 11);
    CHECK(p.statistics().stages[0].items == 10);
  }
  // After an epoch that ended early.
  std::stop_source stop;
  stop.request_stop();
  read.again();
  CHECK(p.run(stop.get_token()).fault().code() == errc::stopped);
  read.again();
  seen.clear();
  CHECK(p.run().ok());
  CHECK(seen == up_to(10));
}

TEST_CASE(
    "pipeline: a buffer of a staging_pool goes back as soon as its stage has made something else of it") {
  counting_pool pool;
  staging_pool<std::vector<int>> buffers(3);  // one in each stage, one between
  int k = 0;
  std::vector<int> seen;
  using lease = staging_pool<std::vector<int>>::lease;
  pipeline p(pool,
             source("fill",
                    [&]() -> std::optional<lease> {
                      if (k == 100) return std::nullopt;
                      lease one = buffers.acquire();
                      one->assign(3, k++);
                      return one;
                    }) |
                 stage("look", [](lease& one) { one->push_back(1); }).own_thread() |
                 stage("sum", [](const lease& one) -> int { return (*one)[0] + (*one)[3]; }) |
                 sink("note", [&](int i) { seen.push_back(i); }).own_thread(),
             {.capacity = 1});
  CHECK(p.run().ok());
  CHECK(seen.size() == 100);
  CHECK(seen[99] == 100);
  std::vector<lease> all;
  while (lease one = buffers.try_acquire()) all.push_back(std::move(one));
  CHECK(all.size() == 3);
}

TEST_CASE("pipeline: where a task is refused nothing was drawn, and no thread remains") {
  for (int threads = 0; threads < 4; ++threads) {
    counting_pool pool(threads);
    counting_source read{10};
    pipeline p(pool, source("read", std::ref(read)) | stage("own", [](item&) {}).own_thread() |
                         stage("two", [](item&) {}).parallel(2) | sink("last", [](item&&) {}).own_thread());
    const result<void> r = p.run();
    REQUIRE(!r.ok());
    CHECK(r.fault().code() == errc::would_block);
    CHECK(read.calls == 0);
    CHECK(pool.running == 0);
  }
  counting_pool enough(4);
  counting_source read{10};
  pipeline p(enough, source("read", std::ref(read)) | stage("own", [](item&) {}).own_thread() |
                         stage("two", [](item&) {}).parallel(2) | sink("last", [](item&&) {}).own_thread());
  CHECK(p.run().ok());
}

// Accepts tasks and forgets them.
struct dropping {
  template <class Task>
  status post(Task&& task, std::stop_token stop, task_handle& handle) {
    const runnable_task dropped(std::forward<Task>(task), std::move(stop), {}, &handle);
    return {};
  }
  template <class Task>
  status post(Task&&, std::stop_token = {}) {
    return {};
  }
};

TEST_CASE("pipeline: an executor that drops tasks, or calls them in post, is an error and no deadlock") {
  counting_source read{10};
  const auto line = [&] {
    return source("read", std::ref(read)) | stage("own", [](item&) {}).own_thread() |
           sink("last", [](item&&) {}).own_thread();
  };
  dropping drops;
  CHECK(pipeline(drops, line()).run().fault().code() == errc::cancelled);
  inline_executor at_once;
  const result<void> r = pipeline(at_once, line()).run();
  CHECK(r.fault().code() == errc::unsupported);
  CHECK(read.calls == 0);
  // One segment needs no task.
  pipeline one(at_once, source("read", std::ref(read)) | sink("last", [](item&&) {}));
  CHECK(one.run().ok());
  CHECK(read.calls == 11);
}

TEST_CASE("pipeline: a trace sink receives each call of each stage, by its name") {
  struct names final : trace_sink {
    std::mutex lock;
    std::vector<std::string> all;
    void begin(const char* verb) noexcept override { add("begin ", verb); }
    void end(const char* verb) noexcept override { add("end ", verb); }
    void add(const char* what, const char* verb) {
      const std::lock_guard guard(lock);
      all.push_back(std::string(what) + verb);
    }
  } sink_of_names;
  thread_pool pool(1);
  context ctx{pool};
  ctx.trace = &sink_of_names;
  counting_source read{1};
  pipeline p(ctx, source("a", std::ref(read)) | stage("b", [](item&) {}) | sink("c", [](item&&) {}));
  CHECK(p.run().ok());
  CHECK(sink_of_names.all == std::vector<std::string>{"begin a", "end a", "begin b", "end b", "begin c",
                                                      "end c", "begin a", "end a"});
}

TEST_CASE("pipeline: the stop token of its context stops every run") {
  thread_pool pool(1);
  std::stop_source stop;
  const std::stop_token token = stop.get_token();
  context ctx{pool};
  ctx.stop = &token;
  counting_source read{1'000'000};
  pipeline p(ctx, source("read", std::ref(read)) | sink("stop", [&](item&& i) {
                                                     if (i.value == 3) stop.request_stop();
                                                   }).own_thread());
  CHECK(p.run().fault().code() == errc::stopped);
  CHECK(p.run().fault().code() == errc::stopped);
  CHECK(item::alive == 0);
  CHECK(p.statistics().stages[1].items == 0);
}

TEST_CASE("pipeline: a capacity of 0 and no threads are errors that say so") {
  thread_pool pool(1);
  counting_source read{1};
  const auto message = [&](auto line, pipeline_options options) -> std::string {
    try {
      pipeline p(pool, std::move(line), std::move(options));
    } catch (const error& e) {
      CHECK(e.code() == errc::invalid_value);
      return e.what();
    }
    return "none";
  };
  CHECK(message(source("read", std::ref(read)) | sink("last", [](item&&) {}), {.capacity = 0}) ==
        "pipeline: capacity must be at least 1 (was 0)");
  CHECK(message(source("read", std::ref(read)) | stage("none", [](item&) {}).parallel(0) |
                    sink("last", [](item&&) {}),
                {}) == "stage::parallel: n must be at least 1 (was 0)");
}

// --- statistics ----------------------------------------------------------------------------------------

TEST_CASE("pipeline: the stage that the others wait for is the bottleneck") {
  using deeprec_test::sleeping_threads;
  for (const int slow : {0, 1, 2}) {
    thread_pool pool(1);
    // The slow one goes on when both others sleep, as they wait for it or have ended, and when it has had
    // four fifths of the time: others that a busy machine keeps from a processor count as busy.
    using clock = std::chrono::steady_clock;
    const clock::time_point begin = clock::now();
    clock::duration had{};
    const auto gate = [&](int me) {
      if (me != slow) return;
      const clock::time_point entered = clock::now();
      while (sleeping_threads() < 2) std::this_thread::yield();
      const auto lately = [&] { return clock::now() - entered; };
      while (5 * (had + lately()) < 4 * (clock::now() - begin)) std::this_thread::yield();
      had += lately();
    };
    counting_source read{20};
    pipeline p(pool,
               source("first",
                      [&] {
                        std::optional<item> next = read();
                        if (next) gate(0);
                        return next;
                      }) |
                   stage("cheap", [](item&) {}) | stage("second", [&](item&) { gate(1); }).own_thread() |
                   sink("third", [&](item&&) { gate(2); }).own_thread(),
               {.capacity = 1});
    CHECK(p.run().ok());
    const char* const names[] = {"first", "second", "third"};
    INFO(p.statistics().text());
    CHECK(std::string(p.statistics().bottleneck()) == names[slow]);
    const auto& stages = p.statistics().stages;
    for (const stage_statistics& s : stages) {
      CHECK(s.items == 20);
      CHECK(s.occupancy >= 0);
      CHECK(s.occupancy <= 1);
    }
    // Those before it wait for space, those behind it for items.
    const auto& first = stages[1];  // the last stage of the first segment
    if (slow > 0) CHECK(first.output_wait > first.input_wait);
    if (slow < 2) CHECK(stages[3].input_wait > stages[3].output_wait);
    CHECK(p.statistics().text().find(std::string(names[slow])) != std::string::npos);
    CHECK(p.statistics().text().find("<- bottleneck") != std::string::npos);
  }
}

TEST_CASE("pipeline: of the stages of one thread the one that takes longer is the bottleneck") {
  pipeline_statistics s;
  CHECK(std::string(s.bottleneck()).empty());
  s.stages = {{.name = "a", .segment = 0, .occupancy = 0.5},
              {.name = "b", .segment = 0, .occupancy = 0.4},
              {.name = "c", .segment = 1, .occupancy = 0.8}};
  CHECK(std::string(s.bottleneck()) == "a");
  s.stages[1].occupancy = 0.2;
  CHECK(std::string(s.bottleneck()) == "c");
}

// --- bytes and depth -------------------------------------------------------------------------------------

// While the sink holds the first item, the source makes what fits, one more, and sleeps.
std::uint64_t made_while_held(std::size_t capacity, std::size_t budget, std::size_t bytes_each,
                              std::uint64_t at_least) {
  struct sized {
    std::uint64_t number;
    std::size_t bytes;
  };
  thread_pool pool(1);
  std::atomic<std::uint64_t> made{0};
  std::uint64_t then = 0;
  values seen;
  pipeline p(pool,
             source(
                 "make",
                 [&]() -> std::optional<sized> {
                   if (made == 20) return std::nullopt;
                   return sized{made++, bytes_each};
                 }).bytes([](const sized& s) { return s.bytes; }) |
                 sink("hold",
                      [&](const sized& s) {
                        seen.push_back(s.number);
                        if (s.number != 0) return;
                        while (made < at_least || deeprec_test::sleeping_threads() < 1)
                          std::this_thread::yield();
                        then = made;
                      })
                     .own_thread(),
             {.capacity = capacity, .byte_budget = budget});
  CHECK(p.run().ok());
  CHECK(seen == up_to(20));
  return then;
}

TEST_CASE("pipeline: no more lies between two threads than capacity and byte budget allow") {
  // In the sink, between, and in the hand of the source.
  CHECK(made_while_held(1, 0, 100, 3) == 3);
  CHECK(made_while_held(4, 0, 100, 6) == 6);
  CHECK(made_while_held(16, 300, 100, 5) == 5);
  CHECK(made_while_held(16, 350, 100, 5) == 5);
  CHECK(made_while_held(16, 10, 100, 3) == 3);  // one that exceeds the budget alone
}

TEST_CASE("pipeline: a tuned depth stays in its bounds, and the record says where it went") {
  thread_pool pool(1);
  for (const std::size_t budget : {std::size_t{0}, 5 * sizeof(item)}) {
    counting_source read{4000};
    pipeline p(pool,
               source("uneven",
                      [&] {
                        if (read.next % 16 == 0)
                          for (int i = 0; i < 20; ++i) std::this_thread::yield();
                        return read();
                      }) |
                   sink("even", [](item&&) { std::this_thread::yield(); }).own_thread(),
               {.capacity = 2, .max_capacity = 8, .byte_budget = budget});
    CHECK(p.run().ok());
    std::size_t depth = 2;
    for (const depth_decision& d : p.depth_decisions()) {
      CHECK(std::string(d.stage) == "even");
      CHECK(d.from == depth);
      CHECK(d.to != d.from);
      CHECK(d.to >= 2);
      CHECK(d.to <= (budget == 0 ? 8u : 5u));
      CHECK(d.item <= 4001);
      depth = d.to;
    }
  }
}

TEST_CASE("depth_controller: deeper when both sides waited, never beyond the bounds, back when unused") {
  depth_controller c("taker", {.least = 1, .most = 6, .byte_budget = 0});
  const depth_window both{.items = 16, .consumer_waits = 4, .producer_waits = 4, .deepest = 1};
  const depth_window slow_producer{.items = 16, .consumer_waits = 16, .producer_waits = 0, .deepest = 0};
  const depth_window slow_consumer{.items = 16, .consumer_waits = 0, .producer_waits = 16, .deepest = 6};
  CHECK(c.depth() == 1);
  CHECK(c.decide(slow_producer, 16) == 1);
  CHECK(c.decide({.items = 16, .consumer_waits = 0, .producer_waits = 16, .deepest = 1}, 32) == 1);
  // Chance: a window now and then in which both sides waited.
  const depth_window once{.items = 16, .consumer_waits = 1, .producer_waits = 1, .deepest = 1};
  for (int i = 0; i < 5; ++i) {
    CHECK(c.decide(once, 33) == 1);
    for (int k = 0; k < 4; ++k) CHECK(c.decide(slow_producer, 34) == 1);
  }
  // A late item in every second window.
  CHECK(c.decide(once, 35) == 1);
  CHECK(c.decide(slow_producer, 36) == 1);
  CHECK(c.decide({.items = 16, .consumer_waits = 0, .producer_waits = 16, .deepest = 1}, 37) == 1);
  CHECK(c.decide(once, 48) == 1);
  CHECK(c.decide(both, 64) == 2);
  CHECK(c.decide(both, 80) == 4);
  CHECK(c.decide(both, 96) == 6);
  CHECK(c.decide(both, 112) == 6);
  CHECK(c.decide(slow_consumer, 128) == 6);
  // Unused four times in a row: down to what was used.
  const depth_window half{.items = 16, .consumer_waits = 16, .producer_waits = 0, .deepest = 3};
  CHECK(c.decide(half, 144) == 6);
  CHECK(c.decide(half, 160) == 6);
  CHECK(c.decide(slow_consumer, 176) == 6);
  for (int i = 0; i < 3; ++i) CHECK(c.decide(half, 192) == 6);
  CHECK(c.decide(slow_producer, 208) == 3);
  for (int i = 0; i < 4; ++i) c.decide(slow_producer, 224);
  CHECK(c.depth() == 1);
  std::vector<depth_decision> record;
  c.append_to(record);
  REQUIRE(record.size() == 5);
  CHECK(record[0].to == 2);
  CHECK(record[2].item == 96);
  CHECK(record[3].reason == depth_reason::never_full);
  CHECK(record[4].to == 1);
}

// How often a depth went up after it had gone down, in the changes that are kept.
struct reversals {
  depth_controller controller;
  std::uint64_t windows = 0;
  std::uint64_t count = 0;
  bool fell = false;

  explicit reversals(std::size_t most) : controller("taker", {.least = 2, .most = most}) {}
  void decide(const depth_window& seen) {
    const std::size_t before = controller.depth();
    const std::size_t after = controller.decide(seen, 16 * ++windows);
    if (after > before && fell) ++count;
    if (after != before) fell = after < before;
  }
  // 4, 8 .. 1024 quiet windows between one and the next; then 1024.
  [[nodiscard]] bool few() const { return count <= 9 + windows / depth_controller::most_patience; }
};

TEST_CASE("depth_controller: bursts that come back find the depth that the last one needed") {
  for (const int burst : {2, 3, 5}) {
    for (const int quiet : {1, 2, 3, 4, 5, 8, 13, 40, 200, 600}) {
      reversals load(64);
      std::size_t at_begin = 0;
      std::uint64_t changes = 0;
      for (int period = 0; period < 200; ++period) {
        if (period == 100) changes = load.controller.changes();
        at_begin = load.controller.depth();
        for (int w = 0; w < burst; ++w) {
          const std::size_t full = load.controller.depth();
          load.decide({.items = 16, .consumer_waits = 3, .producer_waits = 3, .deepest = full});
        }
        for (int w = 0; w < quiet; ++w) load.decide({.items = 16, .deepest = 1});
      }
      INFO("bursts of ", burst, " windows, then ", quiet);
      CHECK(load.few());
      CHECK(load.controller.changes() == changes);  // in the second half
      CHECK(at_begin == 64);
      // And no longer than it has to: a load that stays quiet gives its memory back.
      for (int w = 0; w < depth_controller::most_patience; ++w) load.decide({.items = 16, .deepest = 1});
      CHECK(load.controller.depth() == 2);
    }
  }
}

TEST_CASE("depth_controller: for any load a depth seldom goes up again after it went down") {
  std::mt19937_64 random(deeprec_test::seed());
  for (int round = 0; round < 50; ++round) {
    reversals load(2 + random() % 100);
    const std::uint64_t uneven = 1 + random() % 8, used = 1 + random() % 100;
    for (int w = 0; w < 20'000; ++w) {
      const bool waited = random() % 8 < uneven && w % 512 < 64 * static_cast<int>(uneven);
      load.decide({.items = 16,
                   .consumer_waits = random() % 2,
                   .producer_waits = waited ? random() % 3 : 0,
                   .deepest = random() % used});
    }
    CHECK(load.few());
  }
}

TEST_CASE("depth_controller: the byte budget bounds the depth, and the record does not grow") {
  depth_controller c("taker", {.least = 1, .most = 100, .byte_budget = 1000});
  depth_window both{
      .items = 16, .consumer_waits = 16, .producer_waits = 16, .deepest = 1, .largest_item = 300};
  for (int i = 0; i < 10; ++i) CHECK(c.decide(both, 0) <= 3);
  CHECK(c.depth() == 3);
  both.largest_item = 900;  // a larger one comes
  CHECK(c.decide(both, 0) == 1);
  both.largest_item = 5000;  // which exceeds the budget alone
  CHECK(c.decide(both, 0) == 1);
  depth_controller many("taker", {.least = 1, .most = 2});
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 2; ++k) many.decide({.items = 16, .consumer_waits = 16, .producer_waits = 16}, 0);
    for (int k = 0; k < depth_controller::most_patience; ++k) many.decide({.items = 16}, 0);
  }
  CHECK(many.changes() == 2000);
  std::vector<depth_decision> record;
  many.append_to(record);
  CHECK(record.size() == depth_controller::recorded);
  CHECK(record.back().to == 1);
}

}  // namespace
