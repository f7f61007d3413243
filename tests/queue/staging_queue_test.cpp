#include <doctest/doctest.h>

#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/staging_queue.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "queue/support.hpp"

namespace {

using namespace deeprec;
using namespace std::chrono_literals;
using batch = std::unique_ptr<int>;
using queue = staging_queue<batch>;

batch make(int k) { return std::make_unique<int>(k); }

TEST_CASE("hazard H1: a put that times out says so, and the record stays with the caller") {
  queue q(1);
  CHECK(q.put(make(1)) == queue_result::ok);
  batch record = make(2);
  CHECK(q.put(std::move(record), within(2ms)) == queue_result::timed_out);
  REQUIRE(record);
  CHECK(to_status(queue_result::timed_out).code() == errc::timed_out);
  CHECK(q.try_put(std::move(record)) == queue_result::not_now);
  REQUIRE(record);
  CHECK(**q.take() == 1);
  CHECK(q.put(std::move(record), within(2ms)) == queue_result::ok);
  CHECK(!record);
  CHECK(**q.take() == 2);
  CHECK(q.take(within(1ms)).result() == queue_result::timed_out);
}

TEST_CASE("queue_result: each has a code of its own, and the code leads back to it") {
  struct {
    queue_result r;
    errc code;
    const char* message;
  } const cases[] = {
      {queue_result::ok, errc::ok, "ok"},
      {queue_result::not_now, errc::would_block,
       "would block: queue: full, empty, or in the middle of another call"},
      {queue_result::timed_out, errc::timed_out, "timed out: queue"},
      {queue_result::stopped, errc::stopped, "stopped: queue"},
      {queue_result::closed, errc::closed, "closed: queue"},
      {queue_result::cancelled, errc::cancelled, "cancelled: queue"},
      {queue_result::failed, errc::producer_failed, "producer failed: queue"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.message);
    CHECK(to_status(c.r).code() == c.code);
    CHECK(to_status(c.r).message() == c.message);
    CHECK(to_errc(c.r) == c.code);
    CHECK(to_queue_result(c.code) == c.r);
  }
  static_assert(std::size(cases) == static_cast<std::size_t>(queue_result::failed) + 1);
  for (int code = 0; code <= static_cast<int>(errc::stopped); ++code) {  // a code is a queue's, or a failure
    const queue_result r = to_queue_result(static_cast<errc>(code));
    CAPTURE(to_string(static_cast<errc>(code)));
    CHECK((to_errc(r) == static_cast<errc>(code) || r == queue_result::failed));
  }
  queue q(1);
  CHECK_THROWS_WITH_AS(static_cast<void>(q.try_take().or_throw()),
                       "would block: queue: full, empty, or in the middle of another call", deeprec::error);
}

TEST_CASE("staging_queue: close drains and then ends; puts are refused, with the record left alone") {
  queue q(3);
  CHECK(q.put(make(1)) == queue_result::ok);
  CHECK(q.put(make(2)) == queue_result::ok);
  q.close();
  q.close();
  batch late = make(3);
  CHECK(q.put(std::move(late)) == queue_result::closed);
  CHECK(late);
  CHECK(**q.take() == 1);
  CHECK(**q.take() == 2);
  CHECK(q.take().result() == queue_result::closed);
  CHECK(q.try_take().result() == queue_result::closed);
  CHECK(!q.reserve());
  CHECK(to_status(queue_result::closed).code() == errc::closed);
  CHECK_THROWS_AS(static_cast<void>(q.take().or_throw()), deeprec::error);
  q.resume();
  CHECK(q.put(std::move(late)) == queue_result::ok);
  CHECK(**q.take() == 3);
}

TEST_CASE("staging_queue: cancel answers at once on both sides, and keeps what lies in the queue") {
  queue q(2);
  CHECK(q.put(make(1)) == queue_result::ok);
  CHECK(q.put(make(2)) == queue_result::ok);
  q.cancel();
  q.cancel();
  batch record = make(3);
  CHECK(q.put(std::move(record)) == queue_result::cancelled);
  CHECK(record);
  CHECK(q.take().result() == queue_result::cancelled);
  CHECK(q.reserve().result() == queue_result::cancelled);
  CHECK(q.stats().depth == 2);
  q.resume();
  CHECK(**q.take() == 1);
  q.cancel();
  int left = 0;
  CHECK(q.drain([&](batch b) { left = *b; }) == 1);
  CHECK(left == 2);
}

TEST_CASE("staging_queue: close, cancel and stop wake every blocked thread") {
  for (const char* how : {"close", "cancel", "stop"}) {
    CAPTURE(how);
    queue full(1);
    queue empty(1);
    CHECK(full.put(make(0)) == queue_result::ok);
    std::stop_source stop;
    std::atomic<int> answered{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        const queue_result r = full.put(make(1), {.stop = stop.get_token()});
        answered += r == queue_result::closed || r == queue_result::cancelled || r == queue_result::stopped;
      });
      threads.emplace_back([&] {
        const queue_result r = empty.take({.stop = stop.get_token()}).result();
        answered += r == queue_result::closed || r == queue_result::cancelled || r == queue_result::stopped;
      });
    }
    deeprec_test::until_asleep(3, [&] { return full.stats().put; });
    deeprec_test::until_asleep(3, [&] { return empty.stats().take; });
    CHECK(answered == 0);
    if (*how == 's') stop.request_stop();
    for (queue* q : {&full, &empty}) {
      if (std::string(how) == "close") q->close();
      if (std::string(how) == "cancel") q->cancel();
    }
    for (std::thread& t : threads) t.join();
    CHECK(answered == 6);
    CHECK(full.stats().depth == 1);
  }
}

TEST_CASE("staging_queue: a producer's exception is delivered in its place, and to one consumer") {
  queue q(4);
  CHECK(q.put(make(1)) == queue_result::ok);
  try {
    throw std::runtime_error("line 17 is malformed");
  } catch (...) {
    CHECK(q.fail(std::current_exception()) == queue_result::ok);
  }
  CHECK(q.put(make(2)) == queue_result::ok);
  q.close();
  CHECK(**q.take() == 1);
  auto failed = q.take();
  CHECK(failed.result() == queue_result::failed);
  CHECK(!failed);
  CHECK(failed.failure() != nullptr);
  CHECK_THROWS_WITH_AS(static_cast<void>(std::move(failed).or_throw()), "line 17 is malformed",
                       std::runtime_error);
  CHECK(**q.take() == 2);
  CHECK(q.take().result() == queue_result::closed);
}

TEST_CASE("staging_queue: a producer's fault is delivered whole, in its place, and to one consumer") {
  queue q(4);
  CHECK(q.put(make(1)) == queue_result::ok);
  CHECK(q.fail(status(errc::id_out_of_range, "lookup", {.bag = 3, .position = 7, .value = -1})) ==
        queue_result::ok);
  auto place = q.reserve();
  CHECK(place.fail(fault(errc::parse_error, "not a number", "day_0.tsv")) == queue_result::ok);
  CHECK(!place);
  CHECK(q.try_put(make(2)) == queue_result::ok);
  CHECK(q.fail(status(errc::closed, "full"), within(1ms)) == queue_result::timed_out);
  q.close();
  CHECK(**q.take() == 1);
  auto failed = q.take();
  CHECK(!failed);
  CHECK(failed.result() == queue_result::failed);
  CHECK(failed.failure() == nullptr);
  CHECK(failed.fault().code() == errc::id_out_of_range);
  CHECK(failed.fault().place() == fault_place{.bag = 3, .position = 7, .value = -1});
  try {
    static_cast<void>(std::move(failed).or_throw());
    FAIL("no exception");
  } catch (const error& e) {
    CHECK(e.code() == errc::id_out_of_range);
    CHECK(e.what() == std::string("id out of range: lookup; bag 3, position 7, value -1"));
  }
  CHECK(q.take().fault().message() == "day_0.tsv: malformed text: not a number");
  CHECK(**q.take() == 2);
  CHECK(q.take().fault().code() == errc::closed);
  q.resume();
  CHECK(q.fail(status(errc::io_error, "dropped")) == queue_result::ok);
  CHECK(q.drain([](batch&&) { FAIL("a record"); }) == 0);
}

TEST_CASE("staging_queue: records are delivered in the order of their places, for any number of threads") {
  for (const int threads : {1, 2, 4}) {
    CAPTURE(threads);
    constexpr int records = 2000;
    staging_queue<int> q(4);
    std::mutex source;
    int next = 0;
    std::vector<std::thread> makers;
    for (int t = 0; t < threads; ++t) {
      makers.emplace_back([&] {
        while (true) {
          std::unique_lock lock(source);
          if (next == records) return;
          auto place = q.reserve();
          const int k = next++;
          lock.unlock();
          CHECK(place.number() == static_cast<std::uint64_t>(k));
          if (k % 7 == 3) std::this_thread::yield();
          if (k % 100 == 50) continue;  // dropped: passed over
          if (k % 100 == 51) {
            CHECK(place.fail(std::make_exception_ptr(k)) == queue_result::ok);
          } else {
            CHECK(place.put(k) == queue_result::ok);
          }
        }
      });
    }
    std::thread closer([&] {
      for (std::thread& t : makers) t.join();
      q.close();
    });
    std::vector<int> got;
    while (true) {
      auto one = q.take();
      if (one.result() == queue_result::closed) break;
      got.push_back(one ? *one : -1);
    }
    closer.join();
    std::vector<int> expected;
    for (int k = 0; k < records; ++k) {
      if (k % 100 != 50) expected.push_back(k % 100 == 51 ? -1 : k);
    }
    CHECK(got == expected);
    const staging_stats stats = q.stats();
    CHECK(stats.claimed == records);
    CHECK(stats.taken == records);
  }
}

TEST_CASE("staging_queue: a byte budget holds back, and never for ever") {
  staging_queue<std::string> q({.capacity = 8, .byte_budget = 10},
                               [](const std::string& s) { return s.size(); });
  CHECK(q.try_put(std::string(6, 'a')) == queue_result::ok);
  CHECK(q.try_put("bbbbb") == queue_result::not_now);
  CHECK(q.try_put("cccc") == queue_result::ok);
  CHECK(q.stats().bytes == 10);
  CHECK(q.put("d", within(1ms)) == queue_result::timed_out);
  CHECK(q.take()->size() == 6);
  CHECK(q.stats().bytes == 4);
  CHECK(q.take()->size() == 4);
  CHECK(q.try_put(std::string(100, 'x')) == queue_result::ok);  // alone, it may exceed the budget
  CHECK(q.try_put("y") == queue_result::not_now);
  CHECK(q.take()->size() == 100);

  auto first = q.reserve();
  auto second = q.reserve();
  CHECK(second.put(std::string(10, '2')) == queue_result::ok);
  CHECK(first.put(std::string(9, '1')) == queue_result::ok);  // the next to be taken always comes in
  CHECK(*q.take() == std::string(9, '1'));
  CHECK(*q.take() == std::string(10, '2'));

  std::thread producer([&] {
    for (int k = 0; k < 500; ++k)
      CHECK(q.put(std::string(static_cast<std::size_t>(k % 13), 'p')) == queue_result::ok);
    q.close();
  });
  std::size_t most = 0;
  int count = 0;
  while (auto one = q.take()) {
    CHECK(one->size() == static_cast<std::size_t>(count++ % 13));
    most = std::max(most, q.stats().bytes);
  }
  producer.join();
  CHECK(count == 500);
  CHECK(most <= 12);
  CHECK(q.stats().bytes == 0);
}

TEST_CASE("staging_queue: a record whose move throws leaves the queue usable, its bytes given back") {
  using deeprec_test::fragile;
  {
    staging_queue<fragile> q({.capacity = 2, .byte_budget = 64});
    fragile record(5);
    fragile::until = 0;
    CHECK_THROWS_AS(static_cast<void>(q.put(std::move(record))), std::runtime_error);
    CHECK(record.value() == 5);
    CHECK(q.stats().bytes == 0);
    CHECK(q.put(std::move(record)) == queue_result::ok);
    fragile::until = 0;
    CHECK_THROWS_AS(static_cast<void>(q.take()), std::runtime_error);
    fragile::until = -1;
    CHECK(q.stats().bytes == 0);
    CHECK(q.put(fragile(6)) == queue_result::ok);
    CHECK(q.put(fragile(7)) == queue_result::ok);
    CHECK(q.take()->value() == 6);
  }
  CHECK(fragile::alive == 0);
}

TEST_CASE("staging_queue: a reservation whose record's move throws still holds its position") {
  using deeprec_test::fragile;
  for (const std::size_t budget : {std::size_t{0}, std::size_t{64}}) {
    staging_queue<fragile> q({.capacity = 2, .byte_budget = budget});
    auto first = q.reserve();
    auto second = q.reserve();
    CHECK(second.put(fragile(2)) == queue_result::ok);
    fragile record(1);
    fragile::until = 0;
    CHECK_THROWS_AS(static_cast<void>(first.put(std::move(record))), std::runtime_error);
    fragile::until = -1;
    CHECK(record.value() == 1);
    CHECK(static_cast<bool>(first));
    CHECK(first.number() == 0);
    CHECK(q.stats().bytes == (budget == 0 ? 0 : sizeof(fragile)));
    CHECK(q.try_take().result() == queue_result::not_now);  // the record behind it waits
    CHECK(first.put(std::move(record)) == queue_result::ok);
    CHECK(!first);
    CHECK(q.take()->value() == 1);
    CHECK(q.take()->value() == 2);
  }
  CHECK(fragile::alive == 0);
}

TEST_CASE("staging_queue: take_some takes up to n records, or what there is at a deadline") {
  staging_queue<int> q(8);
  std::vector<int> got;
  const auto some = [&](std::size_t n, const wait_limit& limit) {
    got.clear();
    return q.take_some(std::back_inserter(got), n, limit);
  };
  CHECK(some(3, within(0ms)).result() == queue_result::timed_out);
  CHECK(got.empty());
  for (int k = 0; k < 5; ++k) CHECK(q.put(k) == queue_result::ok);
  taken_count three = some(3, {});
  CHECK(three.result() == queue_result::ok);
  CHECK(three.size() == 3);
  CHECK(got == std::vector<int>{0, 1, 2});
  three.or_throw();
  taken_count rest = some(3, within(1ms));
  CHECK(rest.result() == queue_result::timed_out);
  CHECK(rest.size() == 2);
  CHECK(got == std::vector<int>{3, 4});
  CHECK(rest.fault().code() == errc::timed_out);
  CHECK(some(0, {}).result() == queue_result::ok);
  // It waits for the last of them.
  std::jthread later([&] {
    for (int k = 5; k < 9; ++k) CHECK(q.put(k) == queue_result::ok);
  });
  CHECK(some(4, {}).size() == 4);
  CHECK(got == std::vector<int>{5, 6, 7, 8});
}

TEST_CASE(
    "staging_queue: take_some reports a failure, the end, a cancel or a stop after the records before it") {
  staging_queue<int> q(8);
  std::vector<int> got;
  const auto some = [&](const wait_limit& limit = {}) {
    got.clear();
    return q.take_some(std::back_inserter(got), 4, limit);
  };
  CHECK(q.put(1) == queue_result::ok);
  CHECK(q.fail(fault(errc::parse_error, "line 2", "day_0.tsv")) == queue_result::ok);
  CHECK(q.put(3) == queue_result::ok);
  CHECK(q.fail(std::make_exception_ptr(std::runtime_error("line 4"))) == queue_result::ok);
  CHECK(q.put(5) == queue_result::ok);
  taken_count first = some();
  CHECK(first.result() == queue_result::failed);
  CHECK(first.size() == 1);
  CHECK(got == std::vector<int>{1});
  CHECK(first.fault().file() == "day_0.tsv");
  CHECK_THROWS_AS(first.or_throw(), error);
  taken_count second = some();
  CHECK(second.result() == queue_result::failed);
  CHECK(got == std::vector<int>{3});
  CHECK_THROWS_AS(second.or_throw(), std::runtime_error);
  q.close();
  taken_count last = some();
  CHECK(last.result() == queue_result::closed);
  CHECK(got == std::vector<int>{5});
  q.resume();
  std::stop_source stop;
  stop.request_stop();
  CHECK(q.put(6) == queue_result::ok);
  CHECK(some({.stop = stop.get_token()}).result() == queue_result::stopped);
  CHECK(got == std::vector<int>{6});
  CHECK(q.put(7) == queue_result::ok);
  q.cancel();
  CHECK(some().result() == queue_result::cancelled);
  CHECK(got.empty());
  q.resume();
  CHECK(some(within(0ms)).size() == 1);
}

TEST_CASE("staging_queue: a limit of the depth holds producers back, and takes effect at once") {
  staging_queue<int> q(4);
  CHECK(q.depth_limit() == 4);
  q.limit_depth(2);
  CHECK(q.depth_limit() == 2);
  CHECK(q.try_put(1) == queue_result::ok);
  CHECK(q.try_put(2) == queue_result::ok);
  CHECK(q.try_put(3) == queue_result::not_now);
  CHECK(!q.reserve(within(0ms)));
  std::jthread blocked([&] { CHECK(q.put(3) == queue_result::ok); });
  deeprec_test::until_asleep(1, [&] { return q.stats().put; });
  q.limit_depth(3);
  blocked.join();
  CHECK(q.stats().depth == 3);
  q.limit_depth(1);  // those that are there stay
  CHECK(*q.take() == 1);
  CHECK(*q.take() == 2);
  CHECK(q.try_put(4) == queue_result::not_now);
  CHECK(*q.take() == 3);
  CHECK(q.try_put(4) == queue_result::ok);
  q.close();
  CHECK(q.try_put(5) == queue_result::closed);
  q.limit_depth(100);
  CHECK(q.depth_limit() == 4);
}

TEST_CASE("staging_queue: a producer that waits for the depth is woken by takes, record by record") {
  staging_queue<int> q(8);
  q.limit_depth(1);
  std::jthread producer([&] {
    for (int k = 0; k < 2000; ++k) CHECK(q.put(k) == queue_result::ok);
    q.close();
  });
  int next = 0;
  while (auto one = q.take()) {
    CHECK(*one == next++);
    CHECK(q.stats().depth <= 1);
  }
  CHECK(next == 2000);
}

TEST_CASE("staging_queue: statistics say which side waited") {
  using deeprec_test::until_asleep;
  staging_queue<int> q(1);
  std::thread producer([&] {
    for (int k = 0; k < 3; ++k) {
      until_asleep(1, [&] { return q.stats().take; });
      CHECK(q.put(k) == queue_result::ok);  // the consumer waits, so there is room
    }
  });
  for (int k = 0; k < 3; ++k) CHECK(*q.take() == k);
  producer.join();
  staging_stats s = q.stats();
  CHECK(s.take.waits == 3);
  CHECK(s.take.parks >= 3);
  CHECK(s.take.wait_ns > 0);
  CHECK(s.take.waiting == 0);
  CHECK(s.put.waits == 0);
  CHECK(s.put.wait_ns == 0);
  CHECK(s.claimed == 3);
  CHECK(s.depth == 0);

  CHECK(q.put(1) == queue_result::ok);
  CHECK(q.put(2, within(1ms)) == queue_result::timed_out);
  s = q.stats();
  CHECK(s.put.waits == 1);
  CHECK(s.depth == 1);
  std::thread blocked([&] { CHECK(q.put(2) == queue_result::ok); });
  until_asleep(1, [&] { return q.stats().put; });
  CHECK(q.stats().put.waiting == 1);
  CHECK(*q.take() == 1);
  blocked.join();
  s = q.stats();
  CHECK(s.put.waits == 2);
  CHECK(s.put.wait_ns > 0);
  CHECK(s.take.waits == 3);
  CHECK(s.claimed == 5);
  CHECK(s.depth == 1);
}

TEST_CASE("staging_queue: a blocked thread sleeps, once") {
  queue q(1);
  std::thread consumer([&] { CHECK(**q.take() == 7); });
  deeprec_test::until_asleep(1, [&] { return q.stats().take; });
  const wait_counts asleep = q.stats().take;
  CHECK(asleep.parks >= 1);
  CHECK(q.put(make(7)) == queue_result::ok);
  consumer.join();
  CHECK(q.stats().take.parks <= asleep.parks + 1);
  CHECK(q.stats().take.waits == 1);
}

// Counts how a record is made from something else.
struct source {
  int value = 0;
  static inline int copies = 0;
  static inline int moves = 0;
  static inline int measured = 0;
};
struct made_of_source {
  int value;
  explicit made_of_source(const source& s) : value(s.value) { ++source::copies; }
  explicit made_of_source(source&& s) : value(std::exchange(s.value, 0)) { ++source::moves; }
};

TEST_CASE("staging_queue: an item of another type becomes a record once, and is measured once") {
  using q_type = staging_queue<made_of_source>;
  const q_type::size_function size = [](const made_of_source&) { return ++source::measured, std::size_t{1}; };
  const struct {
    std::size_t budget;
    q_type::size_function size_of;
    int copies, moves, measured;
  } cases[] = {{0, nullptr, 0, 1, 0}, {0, size, 0, 1, 0}, {64, nullptr, 0, 1, 0}, {64, size, 1, 0, 1}};
  for (const auto& c : cases) {
    CAPTURE(c.budget);
    CAPTURE(c.size_of != nullptr);
    q_type q({.capacity = 2, .byte_budget = c.budget}, c.size_of);
    source::copies = source::moves = source::measured = 0;
    source s{5};
    CHECK(q.put(std::move(s)) == queue_result::ok);
    CHECK(source::copies == c.copies);
    CHECK(source::moves == c.moves);
    CHECK(source::measured == c.measured);
    CHECK(q.try_put(source{6}) == queue_result::ok);
    source kept{7};
    source::measured = 0;
    CHECK(q.put(std::move(kept), within(1ms)) == queue_result::timed_out);
    CHECK(kept.value == 7);                 // untouched
    CHECK(source::measured == c.measured);  // not once for each look
    CHECK(q.take()->value == 5);
    auto place = q.reserve();
    CHECK(place.put(std::move(kept)) == queue_result::ok);
    CHECK(q.take()->value == 6);
    CHECK(q.take()->value == 7);
  }
}

TEST_CASE("staging_queue: what can only be moved into a record is put, unless it has to be measured before") {
  struct base {
    virtual ~base() = default;
  };
  struct derived : base {};
  using record = std::unique_ptr<base>;
  staging_queue<record> plain(1);
  staging_queue<record> fixed({.capacity = 1, .byte_budget = 8 * sizeof(record)});
  staging_queue<record> measured({.capacity = 1, .byte_budget = 8},
                                 [](const record&) { return std::size_t{1}; });
  for (auto* q : {&plain, &fixed}) {
    auto one = std::make_unique<derived>();
    CHECK(q->put(std::move(one)) == queue_result::ok);
    auto two = std::make_unique<derived>();
    CHECK(q->try_put(std::move(two)) == queue_result::not_now);
    CHECK(two);
    CHECK(*q->take());
  }
  auto item = std::make_unique<derived>();
  try {
    static_cast<void>(measured.put(std::move(item)));
    FAIL("no exception");
  } catch (const deeprec::error& e) {
    CHECK(e.code() == errc::unsupported);
  }
  CHECK(item);
  CHECK(measured.put(record(std::move(item))) == queue_result::ok);
  CHECK(measured.stats().bytes == 1);
}

struct counting_resource final : std::pmr::memory_resource {
  int allocations = 0;
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++allocations;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TEST_CASE("staging_pool: buffers circulate with what they have grown to, and nothing is allocated") {
  counting_resource memory;
  using buffer = std::pmr::vector<int>;
  staging_pool<buffer> pool(3, [&] { return buffer(&memory); });
  using lease = staging_pool<buffer>::lease;
  staging_queue<lease> q({.capacity = 1, .memory = &memory});
  const auto round = [&](int records) {
    std::thread producer([&] {
      for (int k = 0; k < records; ++k) {
        lease b = pool.acquire();
        b->assign(100, k);
        CHECK(q.put(std::move(b)) == queue_result::ok);
      }
    });
    for (int k = 0; k < records; ++k) {
      auto b = q.take();
      CHECK((*b)->size() == 100);
      CHECK((**b)[99] == k);
    }
    producer.join();
  };
  {
    lease a = pool.acquire(), b = pool.acquire(), c = pool.acquire();
    for (lease* l : {&a, &b, &c}) (*l)->assign(100, 0);
    CHECK(!pool.try_acquire());
    CHECK(pool.acquire(within(1ms)).result() == queue_result::timed_out);
  }
  const int steady = memory.allocations;
  round(500);
  CHECK(memory.allocations == steady);
}

}  // namespace
