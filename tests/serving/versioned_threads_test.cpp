// Versions that are published while threads read: nobody sees a mixed or a freed one, and no reader waits.
#include <deeprec/serving/versioned.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "serving/serving_support.hpp"
#include "support/sanitizers.hpp"

using namespace deeprec;
using namespace deeprec_test;
using site = deeprec::detail::access;

namespace {

constexpr index_t publications = DEEPREC_TEST_SANITIZED ? 5'000 : 100'000;

/// Threads that read until they are told to end. Faults: a version that is not whole or not the one that its
/// number says; one that is older than the reading before, if versions only grow.
template <class Models>
class reader_threads {
 public:
  reader_threads(const Models& models, int count, bool versions_grow)
      : progress_(static_cast<std::size_t>(count)) {
    for (int t = 0; t < count; ++t) {
      threads_.emplace_back([this, &models, versions_grow, &mine = progress_[static_cast<std::size_t>(t)]] {
        index_t last = 0;
        std::uint64_t reads = 0, faults = 0;
        while (!ends_.load(std::memory_order_relaxed)) {
          {
            const auto now = models.read();
            if (!now || now->number() != now.version() || !now->is_whole()) ++faults;
            if (versions_grow && now.version() < last) ++faults;
            last = now.version();
            if (reads % 64 == 0) std::this_thread::yield();
            if (now && !now->is_whole()) ++faults;
          }
          mine.store(++reads);
        }
        reads_ += reads;
        faults_ += faults;
      });
    }
    let_read();
  }
  /// Returns when each thread has read once more, from a beginning after the call.
  void let_read() const {
    for (const std::atomic<std::uint64_t>& one : progress_) {
      const std::uint64_t before = one.load();
      while (one.load() < before + 2) std::this_thread::yield();
    }
  }
  void end() {
    ends_ = true;
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }
  [[nodiscard]] std::uint64_t reads() const { return reads_.load(); }
  [[nodiscard]] std::uint64_t faults() const { return faults_.load(); }

 private:
  std::atomic<bool> ends_{false};
  std::atomic<std::uint64_t> reads_{0}, faults_{0};
  std::vector<std::atomic<std::uint64_t>> progress_;  // reads of each thread
  std::vector<std::thread> threads_;
};

template <int Places>
void publish_beside_readers() {
  census all;
  {
    versioned<checked_model, Places> models(3);
    REQUIRE(models.publish(std::make_unique<checked_model>(all, 1)).ok());
    reader_threads readers(models, 3, true);
    for (index_t n = 2; n <= publications; ++n) {
      REQUIRE(models.publish(std::make_unique<checked_model>(all, n)).value() == n);
      if (n % 50 == 0) readers.let_read();
    }
    readers.end();
    CHECK(readers.faults() == 0);
    CHECK(readers.reads() >= static_cast<std::uint64_t>(3 * publications / 50));
    models.collect();
    CHECK(all.alive() == std::set<index_t>{publications - 2, publications - 1, publications});
    CHECK(all.begun() == publications);
  }
  CHECK(all.alive().empty());
}

/// Reads on threads of their own until each has read often; what they got.
template <class Models>
std::set<index_t> versions_read_by_threads(const Models& models) {
  std::vector<std::set<index_t>> seen(3);
  std::vector<std::thread> threads;
  for (std::set<index_t>& mine : seen) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        const auto now = models.read();
        mine.insert(now && now->is_whole() ? now.version() : -1);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::set<index_t> together;
  for (const std::set<index_t>& one : seen) together.insert(one.begin(), one.end());
  return together;
}

}  // namespace

TEST_CASE(
    "versioned: 100,000 publications beside readers, each of which sees whole versions in their order") {
  publish_beside_readers<64>();
}
TEST_CASE("versioned: the same with fewer places than readers") { publish_beside_readers<1>(); }

TEST_CASE("versioned: two publishers, one of which rolls back, take turns beside readers") {
  census all;
  {
    versioned<checked_model> models(4);
    // The number of a model is that of its version, so publishers agree on it before.
    std::mutex turn;
    index_t next = 1;
    const auto publish = [&] {
      const std::lock_guard lock(turn);
      REQUIRE(models.publish(std::make_unique<checked_model>(all, next)).value() == next);
      ++next;
    };
    publish();
    reader_threads readers(models, 2, false);
    std::atomic<index_t> returned{0};
    std::thread other([&] {
      for (index_t k = 0; k < publications / 10; ++k) {
        publish();
        if (k % 3 == 0) returned += models.roll_back(1 + k % 4).ok() ? 1 : 0;
        if (k % 5 == 0) models.collect();
      }
    });
    for (index_t k = 0; k < publications / 10; ++k) {
      publish();
      if (k % 7 == 0) static_cast<void>(models.roll_back(3));
      if (k % 50 == 0) readers.let_read();
    }
    other.join();
    readers.end();
    CHECK(readers.faults() == 0);
    CHECK(returned.load() > 0);
    models.collect();
    const versioned_statistics end = models.statistics();
    CHECK(end.waiting == 0);
    CHECK(static_cast<index_t>(all.alive().size()) == end.kept);
  }
  CHECK(all.alive().empty());
}

TEST_CASE("versioned: readers go on while a publisher stands still, before and after its store") {
  using models_type = versioned<checked_model, 64, interrupted_atomics>;
  for (const site where : {site::model_publish, site::unlink_fence, site::pin_seen}) {
    CAPTURE(static_cast<int>(where));
    census all;
    models_type models(1);
    REQUIRE(models.publish(std::make_unique<checked_model>(all, 1)).ok());
    barrier_gate gate;
    std::atomic<bool> once{false};
    {
      const interruption stands([&](site at) {
        if (at == where && !once.exchange(true)) gate.pass();
      });
      std::thread publisher([&] {  // under the mutex of the publishers
        CHECK(models.publish(std::make_unique<checked_model>(all, 2)).ok());
      });
      gate.wait_for_arrival();
      const index_t expected = where == site::model_publish ? 1 : 2;
      CHECK(versions_read_by_threads(models) == std::set<index_t>{expected});
      CHECK(all.has(1));
      gate.open();
      publisher.join();
    }
    models.collect();
    CHECK(all.alive() == std::set<index_t>{2});
  }
}

namespace {
/// Whose end takes as long as somebody wants.
struct lasting_model {
  explicit lasting_model(std::function<void()> f) : at_end(std::move(f)) {}
  lasting_model(const lasting_model&) = delete;
  lasting_model& operator=(const lasting_model&) = delete;
  ~lasting_model() { at_end(); }
  [[nodiscard]] static bool is_whole() { return true; }
  std::function<void()> at_end;
};
}  // namespace

TEST_CASE("versioned: neither readers nor other publishers wait for the destructor of a model") {
  barrier_gate gate;
  versioned<lasting_model> models(1);
  REQUIRE(models.publish(std::make_unique<lasting_model>([&] { gate.pass(); })).ok());
  std::thread publisher([&] { CHECK(models.publish(std::make_unique<lasting_model>([] {})).value() == 2); });
  gate.wait_for_arrival();
  CHECK(versions_read_by_threads(models) == std::set<index_t>{2});
  CHECK(models.publish(std::make_unique<lasting_model>([] {})).value() == 3);
  CHECK(models.statistics().current == 3);
  CHECK(versions_read_by_threads(models) == std::set<index_t>{3});
  gate.open();
  publisher.join();
}

TEST_CASE("versioned: the destructor of a model may call the members") {
  versioned<lasting_model> models(1);
  index_t seen = 0;
  REQUIRE(models
              .publish(std::make_unique<lasting_model>([&] {
                seen = models.read().version();
                CHECK(models.statistics().current == 2);
                CHECK(models.publish(std::make_unique<lasting_model>([] {})).value() == 3);
                models.collect();
              }))
              .ok());
  CHECK(models.publish(std::make_unique<lasting_model>([] {})).value() == 2);
  CHECK(seen == 2);
  CHECK(models.read().version() == 3);
}

// Wait-free: a bound on the accesses of a reading that holds whatever others do.
TEST_CASE("versioned: a reading takes at most two accesses a place, and three") {
  constexpr int places = 4;
  thread_local std::uint64_t mine = 0;
  census all;
  versioned<checked_model, places, interrupted_atomics> models(1);
  REQUIRE(models.publish(std::make_unique<checked_model>(all, 1)).ok());
  std::vector<decltype(models)::reading> in_places;
  for (int k = 0; k < places; ++k) in_places.push_back(models.read());
  const interruption counts([](site) { ++mine; });
  std::atomic<bool> ends{false};
  std::atomic<int> begun{0};
  std::vector<std::uint64_t> most(3);
  std::vector<std::thread> threads;
  for (std::uint64_t& worst : most) {
    threads.emplace_back([&] {
      for (index_t k = 0; !ends.load(std::memory_order_relaxed); ++k) {
        mine = 0;
        const auto one = models.read();
        worst = std::max(worst, mine);
        mine = 0;
        const auto another = models.read();  // six readings and four places
        worst = std::max(worst, mine);
        if (k == 0) ++begun;
      }
    });
  }
  while (begun.load() < 3) std::this_thread::yield();
  in_places.clear();  // from here on places are taken and left all the time
  for (index_t n = 2; n <= publications / 10; ++n) {
    REQUIRE(models.publish(std::make_unique<checked_model>(all, n)).ok());
  }
  ends = true;
  for (std::thread& t : threads) t.join();
  for (const std::uint64_t worst : most) {
    CHECK(worst >= places + 3);  // the epoch, a look at each place, the crowd, the version
    CHECK(worst <= 2 * places + 3);
  }
}
