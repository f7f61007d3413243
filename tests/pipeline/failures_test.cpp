// Exceptions, failed statuses, stops and moves that throw, at every stage and every item of small pipelines:
// what came before is delivered, and no thread, no item and no file is left.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/pipeline/pipeline.hpp>

#include "pipeline/support.hpp"
#include "queue/support.hpp"

namespace {

using namespace deeprec;
using deeprec_test::counting_pool;
using deeprec_test::fragile;
using deeprec_test::item;
using deeprec_test::open_files;
using deeprec_test::up_to;
using values = std::vector<std::uint64_t>;

constexpr std::uint64_t items = 5;
constexpr const char* names[] = {"read", "joined", "own", "ordered", "unordered", "serial", "last"};
constexpr int unordered_stage = 4;
constexpr int stages = 7;

enum class way { exception, status, stop, none };

// What happens, where and at which item. The caller's item.value is its number at the source.
struct plan {
  way how = way::none;
  int stage = 0;
  std::uint64_t at = 0;
  std::stop_source stop{};

  deeprec::status check(int where, std::uint64_t value) {
    if (where != stage || value != at) return {};
    if (how == way::exception) throw std::runtime_error("a stage that throws");
    if (how == way::status) return {errc::parse_error, "text"};
    if (how == way::stop) stop.request_stop();
    return {};
  }
};

struct recorder {
  plan what;
  std::uint64_t next = 0;
  int calls = 0;
  bool ended = false;
  bool called_after_end = false;
  values delivered;

  result<std::optional<item>> read() {
    ++calls;
    called_after_end |= ended;
    if (next == items) {
      ended = true;
      return std::optional<item>();
    }
    const std::uint64_t k = next++;
    if (const status s = what.check(0, k); !s) return s;
    return std::optional<item>(item(k));
  }
  auto through(int where) {
    return [this, where](item&& i) -> result<item> {
      if (const status s = what.check(where, i.value); !s) return s;
      return std::move(i);
    };
  }
  auto last() {
    return [this](item&& i) -> status {
      if (const status s = what.check(6, i.value); !s) return s;
      delivered.push_back(i.value);
      return {};
    };
  }
};

struct ended_by {
  std::string stage;
  std::int64_t item = -1;
  errc code = errc::ok;
};
template <class Pipeline>
ended_by run_it(Pipeline& p, std::stop_token stop) {
  try {
    const result<void> r = p.run(std::move(stop));
    if (r.ok()) return {};
    const char* const stage = r.fault().place().operation;
    return {stage == nullptr ? "" : stage, r.fault().place().item, r.code()};
  } catch (const pipeline_error& e) {
    try {
      std::rethrow_if_nested(e);
      FAIL("no exception is nested");
    } catch (const std::runtime_error& inner) {
      CHECK(std::string(inner.what()) == "a stage that throws");
    }
    CHECK(std::string(e.what()) == std::string("pipeline::run: ") + e.stage() + " threw at item " +
                                       std::to_string(e.item()) + ": a stage that throws");
    return {e.stage(), static_cast<std::int64_t>(e.item()), e.code()};
  }
}

void check_what_is_left(const counting_pool& pool, const recorder& r, int files) {
  CHECK(pool.running == 0);
  CHECK(item::alive == 0);
  CHECK(open_files() == files);
  CHECK(!r.called_after_end);
  CHECK(r.calls <= static_cast<int>(items) + 1);
  values once = r.delivered;
  std::sort(once.begin(), once.end());
  CHECK(std::adjacent_find(once.begin(), once.end()) == once.end());
}

template <class Make>
void every_stage_and_item(bool in_order, Make make) {
  counting_pool pool;
  const int files = open_files();
  for (const way how : {way::exception, way::status, way::stop, way::none}) {
    for (int stage = 0; stage < stages; ++stage) {
      for (std::uint64_t at = 0; at < items; ++at) {
        for (const std::size_t capacity : {1u, 2u}) {
          CAPTURE(static_cast<int>(how));
          CAPTURE(stage);
          CAPTURE(at);
          CAPTURE(capacity);
          recorder r;
          r.what.how = how;
          r.what.stage = stage;
          r.what.at = at;
          pipeline p(pool, make(r), {.capacity = capacity});
          const ended_by end = run_it(p, r.what.stop.get_token());
          check_what_is_left(pool, r, files);
          values sorted = r.delivered;
          std::sort(sorted.begin(), sorted.end());
          if (in_order) CHECK(r.delivered == up_to(r.delivered.size()));
          if (how == way::none) {
            CHECK(end.code == errc::ok);
            CHECK(sorted == up_to(items));
            CHECK(r.calls == static_cast<int>(items) + 1);
          } else if (how == way::stop) {
            CHECK((end.code == errc::stopped || (end.code == errc::ok && sorted == up_to(items))));
          } else {
            CHECK(end.stage == names[stage]);
            CHECK(end.code == (how == way::status ? errc::parse_error : errc::producer_failed));
            if (in_order) {
              CHECK(end.item == static_cast<std::int64_t>(at));
              CHECK(r.delivered == up_to(at));
            } else if (stage <= unordered_stage) {
              CHECK(end.item == static_cast<std::int64_t>(at));
              for (const std::uint64_t k : up_to(at))
                CHECK(std::binary_search(sorted.begin(), sorted.end(), k));
            }
            CHECK(!std::binary_search(sorted.begin(), sorted.end(), at));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "pipeline: a failure or a stop at every stage and item leaves nothing, and what came before is "
    "delivered") {
  every_stage_and_item(true, [](recorder& r) {
    return source(names[0], [&r] { return r.read(); }) | stage(names[1], r.through(1)) |
           stage(names[2], r.through(2)).own_thread() | stage(names[3], r.through(3)).parallel(2) |
           stage(names[4], r.through(4)).parallel(3) | stage(names[5], r.through(5)) |
           sink(names[6], r.last()).own_thread();
  });
}

TEST_CASE("pipeline: the same where a stage sends its outputs as they come") {
  every_stage_and_item(false, [](recorder& r) {
    return source(names[0], [&r] { return r.read(); }) | stage(names[1], r.through(1)) |
           stage(names[2], r.through(2)).own_thread() | stage(names[3], r.through(3)).parallel(2) |
           stage(names[4], r.through(4)).parallel(3).unordered() | stage(names[5], r.through(5)) |
           sink(names[6], r.last()).own_thread();
  });
}

TEST_CASE("pipeline: the same in one thread") {
  every_stage_and_item(true, [](recorder& r) {
    return source(names[0], [&r] { return r.read(); }) | stage(names[1], r.through(1)) |
           stage(names[2], r.through(2)) | stage(names[3], r.through(3)) | stage(names[4], r.through(4)) |
           stage(names[5], r.through(5)) | sink(names[6], r.last());
  });
}

TEST_CASE(
    "pipeline: of several failures the first in the order of items is reported, whichever comes first") {
  counting_pool pool;
  for (const bool in_order : {true, false}) {
    for (int round = 0; round < 50; ++round) {
      // Items 2 and 3 are together in the parallel stage, and 3 fails first.
      std::atomic<int> failed{0};
      std::uint64_t k = 0;
      values delivered;
      const auto parse = [&](item&& i) -> result<item> {
        if (i.value == 3) {
          ++failed;
          return status(errc::io_error, "three");
        }
        if (i.value == 2) {
          while (failed == 0) std::this_thread::yield();
          return status(errc::parse_error, "two");
        }
        return std::move(i);
      };
      const auto read = [&]() -> std::optional<item> { return item(k++); };  // no end of its own
      const auto note = [&](item&& i) { delivered.push_back(i.value); };
      const auto check = [&](const result<void>& r) {
        REQUIRE(!r.ok());
        CHECK(r.code() == errc::parse_error);
        CHECK(r.fault().place().item == 2);
        CHECK(r.fault().message() == "malformed text: parse: two; item 2");
        std::sort(delivered.begin(), delivered.end());
        CHECK(delivered == up_to(2));
        CHECK(item::alive == 0);
      };
      if (in_order) {
        pipeline p(pool, source("read", read) | stage("parse", parse).parallel(2) | sink("note", note),
                   {.capacity = 4});
        check(p.run());
      } else {
        pipeline p(pool,
                   source("read", read) | stage("parse", parse).parallel(2).unordered() | sink("note", note),
                   {.capacity = 4});
        check(p.run());
      }
    }
  }
}

TEST_CASE("pipeline: a stage below that fails ends a source that has no end") {
  counting_pool pool;
  for (std::uint64_t at = 0; at < 4; ++at) {
    std::uint64_t k = 0;
    pipeline p(pool,
               source("endless", [&]() -> std::optional<item> { return item(k++); }) |
                   stage("own", [](item&) {}).own_thread() | stage("two", [](item&) {}).parallel(2) |
                   sink("last",
                        [&](item&& i) -> status {
                          if (i.value == at) return {errc::io_error, "full"};
                          return {};
                        })
                       .own_thread(),
               {.capacity = 1});
    const result<void> r = p.run();
    REQUIRE(!r.ok());
    CHECK(r.fault().message() == "input or output error: last: full; item " + std::to_string(at));
    CHECK(k <= at + 10);  // what two edges, three threads and the sink hold
    CHECK(item::alive == 0);
    CHECK(pool.running == 0);
  }
}

TEST_CASE("pipeline: bad items stop, are skipped and counted, or are decided upon") {
  counting_pool pool;
  const auto run = [&](pipeline_options options, values& delivered, pipeline_statistics& counted) {
    std::uint64_t k = 0;
    pipeline p(pool,
               source("read",
                      [&]() -> result<std::optional<item>> {
                        if (k == 20) return std::optional<item>();
                        if (++k == 8) return status(errc::io_error, "line");
                        return std::optional<item>(item(k - 1));
                      }) |
                   stage("parse",
                         [](item&& i) -> result<item> {
                           if (i.value % 5 == 3) return fault(errc::parse_error, "no number", "day_0.tsv");
                           return std::move(i);
                         })
                       .parallel(2) |
                   stage("check",
                         [](item& i) {
                           return i.value == 16 ? status(errc::invalid_value, "check: it must not be 16")
                                                : status();
                         }) |
                   sink("note",
                        [&](item&& i) -> result<void> {
                          if (i.value == 0) return fault(errc::io_error, "disk");
                          delivered.push_back(i.value);
                          return {};
                        }),
               std::move(options));
    const result<void> r = p.run();
    counted = p.statistics();
    CHECK(item::alive == 0);
    return r;
  };
  values delivered;
  pipeline_statistics counted;
  CHECK(run({}, delivered, counted).fault().message() == "input or output error: note: disk; item 0");
  CHECK(delivered.empty());
  CHECK(run({.on_bad_item = bad_items::skip}, delivered, counted).ok());
  CHECK(delivered == values{1, 2, 4, 5, 6, 9, 10, 11, 12, 14, 15, 17, 19});
  CHECK(counted.stages[0].bad == 1);
  CHECK(counted.stages[1].bad == 4);
  CHECK(counted.stages[2].bad == 1);
  CHECK(counted.stages[3].bad == 1);
  CHECK(counted.stages[1].items == 19);
  std::atomic<int> parse_errors{0};
  delivered.clear();
  const auto three = [&](const bad_item& b) {
    if (b.why.code() != errc::parse_error) return bad_item_action::skip;
    CHECK(std::string(b.stage) == "parse");
    return ++parse_errors == 1 ? bad_item_action::skip : bad_item_action::stop;
  };
  const result<void> r = run({.on_bad_item = three}, delivered, counted);
  REQUIRE(!r.ok());
  CHECK(r.fault().file() == "day_0.tsv");
  CHECK(r.fault().message().find("day_0.tsv: malformed text: parse: no number; item ") == 0);
  // A policy that throws is an exception of the stage.
  const auto throwing = [](const bad_item&) -> bad_item_action { throw std::bad_alloc(); };
  try {
    delivered.clear();
    static_cast<void>(run({.on_bad_item = throwing}, delivered, counted));
    FAIL("nothing was thrown");
  } catch (const pipeline_error& e) {
    CHECK(e.code() == errc::out_of_memory);
    CHECK(std::string(e.stage()) == "note");
  }
}

TEST_CASE("pipeline: the fault of a stage keeps its place, its operation and its file") {
  thread_pool pool(1);
  int k = 0;
  pipeline p(pool, source("read", [&]() -> result<std::optional<int>> {
                     if (k++ == 2)
                       return fault(status(errc::parse_error, "expected a number",
                                           {.operation = "batch_reader", .line = 7, .column = 3}),
                                    "day_1.tsv");
                     return std::optional<int>(k);
                   }) | sink("use", [](int) {}).own_thread());
  const result<void> r = p.run();
  REQUIRE(!r.ok());
  CHECK(std::string(r.fault().place().operation) == "read");
  CHECK(r.fault().place().line == 7);
  CHECK(r.fault().message() ==
        "day_1.tsv:7:3: malformed text: read: batch_reader: expected a number; item 2");
}

TEST_CASE("pipeline: exceptions that are none of std's, and those with a code") {
  thread_pool pool(1);
  const auto run = [&](auto thrown) {
    int k = 0;
    pipeline p(pool, source("read", [&] { return k == 3 ? std::nullopt : std::optional<int>(k++); }) |
                         sink("throw", [&](int i) {
                           if (i == 1) throw thrown;
                         }).own_thread());
    try {
      static_cast<void>(p.run());
    } catch (const pipeline_error& e) {
      CHECK(e.item() == 1);
      return e.code();
    }
    return errc::ok;
  };
  CHECK(run(7) == errc::producer_failed);
  CHECK(run(error(errc::io_error, "disk")) == errc::io_error);
  CHECK(run(std::bad_alloc()) == errc::out_of_memory);
}

TEST_CASE("pipeline: a move that throws, wherever it is, ends the run, and no item is lost track of") {
  counting_pool pool;
  struct reset {
    ~reset() {
      fragile::until = -1;
      fragile::lingers = {};
    }
  } const at_end;
  fragile::lingers = std::chrono::milliseconds(2);
  int ended_well = 0, threw = 0;
  for (int moves = 0; moves < 120; ++moves) {
    for (const std::size_t budget : {std::size_t{0}, sizeof(fragile) * 8}) {
      int k = 0;
      std::vector<int> seen;
      pipeline p(pool,
                 source("read",
                        [&]() -> std::optional<fragile> {
                          return k == 4 ? std::optional<fragile>()
                                        : std::optional<fragile>(std::in_place, ++k);
                        }) |
                     stage("own", [](fragile&& f) { return std::move(f); }).own_thread() |
                     stage("ordered", [](fragile&& f) { return std::move(f); }).parallel(2) |
                     stage("unordered", [](fragile&& f) { return std::move(f); }).parallel(2).unordered() |
                     sink("last", [&](fragile&& f) { seen.push_back(f.value()); }),
                 {.capacity = 2, .byte_budget = budget});
      fragile::until = moves;
      try {
        const result<void> r = p.run();
        CHECK(r.ok());
        CHECK(fragile::until >= 0);  // no move has thrown
        ++ended_well;
        std::sort(seen.begin(), seen.end());
        CHECK(seen == std::vector<int>{1, 2, 3, 4});
      } catch (const pipeline_error&) {
        ++threw;
      }
      fragile::until = -1;
      CHECK(pool.running == 0);
      CHECK(fragile::alive == 0);
    }
  }
  CHECK(threw > 20);
  CHECK(ended_well > 0);
}

TEST_CASE(
    "pipeline: after a failure of an ordered stage no thread of it waits for a consumer that has ended") {
  counting_pool pool;
  for (int round = 0; round < 100; ++round) {
    int k = 0;
    std::vector<int> seen;
    const int fails = round % 7;
    pipeline p(pool,
               source("read", [&] { return k == 60 ? std::optional<int>() : std::optional<int>(k++); }) |
                   stage("ordered",
                         [&](int i) -> result<int> {
                           if (i != fails) return i;
                           // Meanwhile the other thread fills the edge and sleeps.
                           std::this_thread::sleep_for(std::chrono::milliseconds(2));
                           return status(errc::io_error, "text");
                         })
                       .parallel(2) |
                   stage("unordered", [](int i) { return i; }).parallel(2).unordered() |
                   sink("last", [&](int i) { seen.push_back(i); }),
               {.capacity = 1});
    const result<void> r = p.run();
    REQUIRE(!r.ok());
    CHECK(r.code() == errc::io_error);
    CHECK(seen.size() <= static_cast<std::size_t>(fails));
    CHECK(pool.running == 0);
  }
}

TEST_CASE("pipeline: a stop is seen after at most one item of each stage, also where a stage waits") {
  counting_pool pool;
  for (int where = 0; where < 3; ++where) {
    std::stop_source stop;
    std::atomic<std::uint64_t> after[3] = {};
    std::atomic<bool> stopped{false};
    std::uint64_t k = 0;
    const auto count = [&](int me, std::uint64_t value) {
      if (stopped) ++after[me];
      if (me == where && value == 5) {
        stop.request_stop();
        stopped = true;  // not before: this thread may lose its core in between
      }
    };
    pipeline p(pool, source("0", [&]() -> std::optional<item> { return count(0, k), item(k++); }) |
                         stage("1", [&](item& i) { count(1, i.value); }).own_thread() |
                         sink("2", [&](item&& i) { count(2, i.value); }).own_thread());
    CHECK(p.run(stop.get_token()).code() == errc::stopped);
    for (int me = 0; me < 3; ++me) CHECK(after[me] <= 1 + (me == where ? 0 : 1));
    CHECK(item::alive == 0);
    CHECK(pool.running == 0);
  }
  // A source that waits for the same token, while every stage sleeps.
  std::stop_source stop;
  std::atomic<bool> waiting{false};
  std::jthread later([&] {
    while (!waiting) std::this_thread::yield();
    stop.request_stop();
  });
  pipeline p(pool, source("waits",
                          [&]() -> std::optional<item> {
                            waiting = true;
                            while (!stop.stop_requested()) std::this_thread::yield();
                            return item(1);
                          }) |
                       stage("1", [](item&) {}).parallel(2) | sink("2", [](item&&) {}).own_thread());
  CHECK(p.run(stop.get_token()).code() == errc::stopped);
  CHECK(item::alive == 0);
}

}  // namespace
