// What readers get, what is kept, what is freed, when and by whom. By many threads:
// versioned_threads_test.cpp; every order of a few, under weak memory: tests/queue/version_orders_test.cpp.
#include <deeprec/serving/versioned.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "serving/serving_support.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using models_type = versioned<checked_model>;
using reading = models_type::reading;
static_assert(std::is_nothrow_move_constructible_v<reading> && std::is_nothrow_move_assignable_v<reading>);
static_assert(!std::is_copy_constructible_v<reading> && !std::is_copy_assignable_v<reading>);
static_assert(std::is_same_v<decltype(*std::declval<const reading&>()), const checked_model&>);

using numbers = std::set<index_t>;

std::unique_ptr<checked_model> model_of(census& all, index_t number) {
  return std::make_unique<checked_model>(all, number);
}
/// Publishes models 1, 2 ... count, which get these numbers.
template <class Models>
void publish_to(Models& models, census& all, index_t count) {
  for (index_t n = models.statistics().current + 1; n <= count; ++n) {
    const result<index_t> number = models.publish(model_of(all, n));
    REQUIRE(number.ok());
    REQUIRE(number.value() == n);
  }
}
template <class Models>
void check_statistics(const Models& models, index_t current, index_t kept, index_t waiting) {
  const versioned_statistics s = models.statistics();
  CHECK(s.current == current);
  CHECK(s.kept == kept);
  CHECK(s.waiting == waiting);
}

}  // namespace

TEST_CASE("versioned: before the first publication a reading is empty") {
  models_type models;
  const reading none = models.read();
  CHECK(!none);
  CHECK(none.version() == 0);
  CHECK(!reading());
  check_statistics(models, 0, 0, 0);
  CHECK(models.collect() == 0);
  CHECK(models.roll_back().code() == errc::invalid_value);
}

TEST_CASE("versioned: a reading has the version of its time, whatever is published later") {
  census all;
  models_type models;
  std::vector<reading> readings;
  for (index_t n = 1; n <= 10; ++n) {
    publish_to(models, all, n);
    readings.push_back(models.read());
  }
  for (index_t n = 1; n <= 10; ++n) {
    const reading& one = readings[static_cast<std::size_t>(n - 1)];
    REQUIRE(one);
    CHECK(one.version() == n);
    CHECK(one->number() == n);
    CHECK((*one).is_whole());
  }
}

TEST_CASE("versioned: null is refused, and nothing changed") {
  census all;
  models_type models;
  publish_to(models, all, 1);
  const result<index_t> refused = models.publish(nullptr);
  REQUIRE(!refused.ok());
  CHECK(refused.message() == "invalid value: versioned::publish: model must not be null");
  check_statistics(models, 1, 1, 0);
  CHECK(models.read()->number() == 1);
  publish_to(models, all, 2);  // no number was used up
}

TEST_CASE("versioned: fewer than one kept version is refused") {
  CHECK_THROWS_WITH_AS(models_type(0), "versioned: kept must be at least 1 (was 0)", error);
  CHECK_THROWS_AS(models_type(-3), error);
}

TEST_CASE(
    "versioned: a publication that is refused memory changes nothing, and succeeds when it is repeated") {
  census all;
  for (long granted = 0;; ++granted) {
    REQUIRE(granted < 100);
    allowance shared{granted};
    refusing_resource memory(shared);
    {
      models_type models(2, &memory);
      index_t refusals = 0;
      for (index_t n = 1; n <= 5; ++n) {
        std::unique_ptr<checked_model> next = model_of(all, n);
        const checked_model* const its_address = next.get();
        result<index_t> number = models.publish(std::move(next));
        if (!number.ok()) {
          ++refusals;
          CHECK(number.code() == errc::out_of_memory);
          REQUIRE(next.get() == its_address);
          CHECK(models.read().version() == n - 1);
          CHECK(models.statistics().kept == std::min<index_t>(n - 1, 2));
          CHECK(all.has(n));
          shared.left = allowance::unlimited;
          number = models.publish(std::move(next));
        }
        REQUIRE(number.ok());
        CHECK(number.value() == n);
        CHECK(next == nullptr);
      }
      CHECK(refusals == (granted < 5 ? 1 : 0));
      CHECK(all.alive() == numbers{4, 5});
    }
    CHECK(all.alive().empty());
    CHECK(memory.held == 0);
    if (shared.refused == 0) break;
  }
}

TEST_CASE("versioned: as many versions are kept as were asked for, and freed when no reading has them") {
  census all;
  for (const index_t kept : {1, 2, 3, 7}) {
    {
      models_type models(kept);
      for (index_t n = 1; n <= 20; ++n) {
        publish_to(models, all, n);
        numbers expected;
        for (index_t k = std::max<index_t>(1, n - kept + 1); k <= n; ++k) expected.insert(k);
        CHECK(all.alive() == expected);
        check_statistics(models, n, std::min(n, kept), 0);
      }
    }
    CHECK(all.alive().empty());
  }
}

TEST_CASE("versioned: roll_back makes an older version current without making it again") {
  census all;
  models_type models(4);
  publish_to(models, all, 6);
  CHECK(all.alive() == numbers{3, 4, 5, 6});
  const reading before = models.read();
  const checked_model* fourth = nullptr;
  {
    const result<index_t> number = models.roll_back(2);
    REQUIRE(number.ok());
    CHECK(number.value() == 4);
    const reading now = models.read();
    CHECK(now.version() == 4);
    CHECK(now->is_whole());
    fourth = &*now;
  }
  CHECK(all.begun() == 6);
  check_statistics(models, 4, 2, 2);  // 3 and 4; `before` has 6, and may have had 5
  CHECK(before->number() == 6);
  CHECK(before->is_whole());

  // A version after the one that is current again: numbers go on, 5 and 6 are not there to return to.
  REQUIRE(models.publish(model_of(all, 7)).value() == 7);
  CHECK(models.statistics().kept == 3);
  REQUIRE(models.roll_back().value() == 4);
  CHECK(&*models.read() == fourth);
  REQUIRE(models.roll_back().value() == 3);
  check_statistics(models, 3, 1, 4);
}

TEST_CASE("versioned: roll_back past the oldest kept version is refused by number, and changes nothing") {
  census all;
  models_type models(3);
  publish_to(models, all, 5);
  for (const index_t n : {3, 4, 1000}) {
    const result<index_t> refused = models.roll_back(n);
    REQUIRE(!refused.ok());
    CHECK(refused.code() == errc::invalid_value);
    CHECK(refused.message() ==
          "invalid value: versioned::roll_back: n must be a number of kept versions before the current one; "
          "value " +
              std::to_string(n) + " (must be at most 2)");
  }
  for (const index_t n : {0, -1}) {
    const result<index_t> refused = models.roll_back(n);
    REQUIRE(!refused.ok());
    CHECK(refused.message().find("versioned::roll_back: n must be at least 1") != std::string::npos);
  }
  check_statistics(models, 5, 3, 0);
  CHECK(models.read().version() == 5);
  CHECK(models.roll_back(2).value() == 3);
  CHECK(models.roll_back().code() == errc::invalid_value);
  CHECK(models.read().version() == 3);
}

TEST_CASE("versioned: a version that was current twice waits for the readings of both times") {
  census all;
  models_type models(2);
  publish_to(models, all, 2);
  REQUIRE(models.roll_back().value() == 1);
  CHECK(all.alive() == numbers{1});
  const reading second_time = models.read();
  CHECK(second_time.version() == 1);
  REQUIRE(models.publish(model_of(all, 3)).value() == 3);
  REQUIRE(models.publish(model_of(all, 4)).value() == 4);
  check_statistics(models, 4, 2, 1);
  CHECK(all.has(1));
  CHECK(second_time->is_whole());
}

TEST_CASE(
    "versioned: a reading that is held keeps what came after it, nobody waits, and all is freed later") {
  census all;
  models_type models(2);
  publish_to(models, all, 1);
  {
    const reading held = models.read();
    for (index_t n = 2; n <= 1000; ++n) {
      publish_to(models, all, n);
      check_statistics(models, n, 2, n - 2);
      CHECK(models.read().version() == n);
    }
    CHECK(models.collect() == 0);
    CHECK(all.alive().size() == 1000);
    CHECK(held.version() == 1);
    CHECK(held->is_whole());
  }
  CHECK(all.alive().size() == 1000);  // readers free nothing
  CHECK(models.collect() == 998);
  check_statistics(models, 1000, 2, 0);
  CHECK(all.alive() == numbers{999, 1000});
}

TEST_CASE("versioned: a reading keeps no version that ended before it began") {
  census all;
  models_type models(1);
  publish_to(models, all, 1);
  reading first = models.read();
  publish_to(models, all, 2);
  const reading second = models.read();
  publish_to(models, all, 3);
  check_statistics(models, 3, 1, 2);
  first = {};
  CHECK(models.collect() == 1);
  CHECK(all.alive() == numbers{2, 3});
  CHECK(second->is_whole());
}

TEST_CASE("versioned: a reading ends on another thread; the model ends on the publisher's") {
  census all;
  models_type models(1);
  publish_to(models, all, 1);
  reading one = models.read();
  publish_to(models, all, 2);
  std::thread([&all, mine = std::move(one)]() mutable {
    CHECK(mine->is_whole());
    mine = {};
    CHECK(all.has(1));
  }).join();
  CHECK(!one);
  CHECK(one.version() == 0);
  CHECK(all.has(1));
  publish_to(models, all, 3);
  CHECK(all.alive() == numbers{3});
  CHECK(all.last_ended_on() == std::this_thread::get_id());
}

TEST_CASE("versioned: a reading that moves is one reading") {
  census all;
  versioned<checked_model, 2> models(1);
  publish_to(models, all, 1);
  auto a = models.read();
  publish_to(models, all, 2);
  auto b = models.read();
  publish_to(models, all, 3);
  CHECK(all.alive() == numbers{1, 2, 3});
  a = std::move(b);  // the one that it had ends
  CHECK(a.version() == 2);
  CHECK(!b);
  CHECK(models.collect() == 1);
  auto& same = a;
  a = std::move(same);
  CHECK(a.version() == 2);
  CHECK(models.collect() == 0);
  auto c(std::move(a));
  CHECK(c->is_whole());
  c = {};
  CHECK(models.collect() == 1);
  CHECK(all.alive() == numbers{3});
}

TEST_CASE("versioned: more readings than places keep everything while they exist") {
  census all;
  versioned<checked_model, 2> models(1);
  publish_to(models, all, 1);
  std::vector<versioned<checked_model, 2>::reading> readings;
  for (int k = 0; k < 5; ++k) readings.push_back(models.read());
  publish_to(models, all, 4);
  for (const auto& one : readings) CHECK(one->is_whole());
  check_statistics(models, 4, 1, 3);
  while (!readings.empty()) {
    CHECK(models.collect() == 0);
    readings.pop_back();
  }
  CHECK(models.collect() == 3);
}

TEST_CASE("versioned: what is alive is what is kept or may be read, over random calls") {
  std::mt19937_64 random(seed());
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 40; ++round) {
    census all;
    {
      const index_t kept = 1 + below(5);
      versioned<checked_model, 3> models(kept);
      std::vector<index_t> history;  // of kept versions, the current one last
      std::vector<decltype(models)::reading> readings;
      index_t published = 0;
      for (int k = 0; k < 500; ++k) {
        const index_t what = below(10);
        if (what < 3) {
          history.push_back(++published);
          REQUIRE(models.publish(model_of(all, published)).value() == published);
          if (static_cast<index_t>(history.size()) > kept) history.erase(history.begin());
        } else if (what < 4) {
          const index_t n = 1 + below(kept);
          const result<index_t> number = models.roll_back(n);
          REQUIRE(number.ok() == (n < static_cast<index_t>(history.size())));
          if (number.ok()) history.resize(history.size() - static_cast<std::size_t>(n));
        } else if (what < 7) {
          readings.push_back(models.read());
          REQUIRE(readings.back().version() == (history.empty() ? 0 : history.back()));
        } else if (what < 9 && !readings.empty()) {
          readings.erase(readings.begin() + below(static_cast<index_t>(readings.size())));
        } else {
          models.collect();
          if (below(4) == 0) readings.clear();
        }
        numbers needed(history.begin(), history.end());
        for (const auto& one : readings) {
          if (!one) continue;
          CHECK(one->is_whole());
          needed.insert(one.version());
        }
        for (const index_t n : needed) CHECK(all.has(n));
        if (readings.empty()) {
          models.collect();
          CHECK(all.alive() == needed);
        }
        check_statistics(models, history.empty() ? 0 : history.back(), static_cast<index_t>(history.size()),
                         static_cast<index_t>(all.alive().size() - history.size()));
      }
    }
    CHECK(all.alive().empty());
  }
}

namespace {

/// A model of a megabyte, of a resource that counts.
struct large_model {
  explicit large_model(std::pmr::memory_resource* memory) : rows(std::size_t{1} << 20, memory) {}
  std::pmr::vector<std::byte> rows;
};
/// Bytes that are held after some publications; beside each a reading comes and goes, or one stays.
std::vector<std::size_t> bytes_after(std::initializer_list<index_t> publications, bool reading_stays) {
  allowance shared;
  refusing_resource memory(shared);  // counts
  versioned<large_model> models(2, &memory);
  versioned<large_model>::reading held;
  std::vector<std::size_t> bytes;
  index_t count = 0;
  for (const index_t until : publications) {
    for (; count < until; ++count) {
      auto now = models.read();
      REQUIRE(models.publish(std::make_unique<large_model>(&memory)).ok());
      if (reading_stays && count == 1) held = std::move(now);
    }
    models.collect();
    bytes.push_back(memory.held);
  }
  return bytes;
}

}  // namespace

TEST_CASE("hazard G: memory after 100 publications is that after 3") {
  const std::vector<std::size_t> bytes = bytes_after({3, 100}, false);
  CHECK(static_cast<double>(bytes[1]) <= 1.05 * static_cast<double>(bytes[0]));
  CHECK(bytes[0] < (std::size_t{5} << 19));  // two models
  const std::vector<std::size_t> held = bytes_after({3, 100}, true);
  CHECK(static_cast<double>(held[1]) > 20 * static_cast<double>(held[0]));  // so it would be seen
}
