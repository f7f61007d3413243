// Numbers of keys: in the order of first positions, the smallest free one first, over refusals of memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <deeprec/embedding/growing/key_map.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/seed.hpp"

#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using keys_type = std::vector<key_type>;
using numbers_type = std::vector<std::int64_t>;

numbers_type found(const key_map& map, const keys_type& keys) {
  numbers_type numbers(keys.size(), 77);
  map.find(keys.data(), static_cast<index_t>(keys.size()), numbers.data());
  return numbers;
}
template <class Executor>
numbers_type inserted(Executor& executor, key_map& map, const keys_type& keys) {
  numbers_type numbers(keys.size(), 77);
  map.insert(executor, keys, numbers).or_throw();
  return numbers;
}
numbers_type erased(key_map& map, const keys_type& keys) {
  inline_executor here;
  numbers_type numbers(keys.size(), 77);
  map.erase(here, keys, numbers).or_throw();
  return numbers;
}

TEST_CASE("key_map: gives numbers as std::map and std::set do, over random histories") {
  for (const index_t capacity : {1, 50, 3000, 1'000'000}) {
    CAPTURE(deeprec_test::seed());
    CAPTURE(capacity);
    std::mt19937_64 random(deeprec_test::seed() + static_cast<std::uint64_t>(capacity));
    thread_pool pool(threads(3));
    key_map map(capacity);
    std::map<key_type, std::int64_t> held;
    std::set<std::int64_t> free;
    std::vector<std::int64_t> waiting;
    std::int64_t fresh = 0;
    std::optional<reclaimer::pin> guard;
    std::size_t waits_since = 0;  // of `waiting`, those before the guard are free at the next insertion
    for (int call = 0; call < 120; ++call) {
      keys_type keys(random() % 800);
      for (key_type& key : keys)
        key = random() % 30 == 0 ? special_keys()[random() % special_keys().size()] : random() % 3000;
      if (call % 3 == 2) {
        numbers_type expected;
        for (const key_type key : keys) {
          const auto it = held.find(key);
          expected.push_back(it == held.end() ? -1 : it->second);
          if (it == held.end()) continue;
          waiting.push_back(it->second);
          held.erase(it);
        }
        REQUIRE(erased(map, keys) == expected);
      } else {
        const auto over = waiting.begin() + static_cast<std::ptrdiff_t>(guard ? waits_since : waiting.size());
        free.insert(waiting.begin(), over);
        waiting.erase(waiting.begin(), over);
        waits_since = 0;
        numbers_type expected;
        for (const key_type key : keys) {
          if (!held.contains(key) && !free.empty()) {
            held[key] = free.extract(free.begin()).value();
          } else if (!held.contains(key) && fresh < capacity) {
            held[key] = fresh++;
          }
          expected.push_back(held.contains(key) ? held[key] : -1);
        }
        REQUIRE(inserted(pool, map, keys) == expected);
      }
      if (call % 10 == 4) guard.emplace(map.guard()), waits_since = waiting.size();
      if (call % 10 == 9) guard.reset();
      REQUIRE(map.size() == static_cast<index_t>(held.size()));
      numbers_type expected;
      for (const key_type key : keys) expected.push_back(held.contains(key) ? held[key] : -1);
      REQUIRE(found(map, keys) == expected);
    }
  }
}

TEST_CASE("key_map: an insertion or erasure that is refused memory changes nothing, and works afterwards") {
  const keys_type before = keys_from(0, 2000), more = keys_from(1000, 12'000, 3), gone = keys_from(500, 1000);
  thread_pool pool(threads(2));
  for (const bool of_context : {false, true}) {
    for (const bool erases : {false, true}) {
      for (long n = 0;; ++n) {
        CAPTURE(n);
        allowance of_map, of_scratch;
        failing_resource memory(of_map), scratch(of_scratch);
        key_map map(8000, &memory);
        const numbers_type first = inserted(pool, map, before);
        numbers_type numbers(erases ? gone.size() : more.size());
        context ctx(pool);
        ctx.memory = &scratch;
        (of_context ? of_scratch : of_map).left = n;
        const auto call = [&] {
          return erases ? map.erase(ctx, gone, numbers) : map.insert(ctx, more, numbers);
        };
        const status s = call();
        const bool was_refused = of_map.refused + of_scratch.refused > 0;
        of_map.left = of_scratch.left = allowance::unlimited;
        CHECK(scratch.held == 0);
        CHECK(map.bytes() == static_cast<index_t>(memory.held));
        if (!s) {
          CHECK(s.code() == errc::out_of_memory);
          CHECK(map.size() == 2000);
          CHECK(found(map, before) == first);
          REQUIRE(call().ok());
        }
        CHECK(map.size() == (erases ? 1000 : 8000));
        CHECK(numbers[0] == (erases ? 500 : 1000));
        CHECK(map.bytes() == static_cast<index_t>(memory.held));
        if (!was_refused) break;
      }
    }
  }
}

TEST_CASE("key_map: names what it refuses, and does nothing when it is stopped") {
  for (const index_t capacity : {index_t{0}, index_t{-1}, key_map::most_capacity + 1}) {
    std::string text;
    try {
      const key_map made(capacity);
    } catch (const error& fault) {
      text = fault.what();
    }
    const std::string value = capacity == 0 ? "" : "; value " + std::to_string(capacity);
    CHECK(text == "invalid value: key_map: capacity must be from 1 to 2^32 - 2^24 - 1" + value);
  }
  inline_executor here;
  key_map map(10);
  const keys_type keys = {1, 2, 3};
  numbers_type few(2, 77);
  CHECK(map.insert(here, keys, few).message() ==
        "shape mismatch: key_map::insert: numbers must be as many as keys (is 2, must be 3)");
  CHECK(map.erase(here, keys, few).message() ==
        "shape mismatch: key_map::erase: numbers must be as many as keys (is 2, must be 3)");
  std::stop_source source;
  source.request_stop();
  const std::stop_token token = source.get_token();
  context ctx(here);
  ctx.stop = &token;
  numbers_type numbers(3, 77);
  CHECK(map.insert(ctx, keys, numbers).code() == errc::stopped);
  CHECK(map.size() == 0);
  CHECK(numbers == numbers_type(3, 77));
  CHECK(inserted(here, map, {}).empty());
  CHECK(erased(map, {}).empty());
  CHECK(inserted(here, map, {5, 5, 6, 5}) == numbers_type{0, 0, 1, 0});
  CHECK(map.erase(ctx, keys, numbers).code() == errc::stopped);
  CHECK(map.size() == 2);
  CHECK(erased(map, {6, 5, 6}) == numbers_type{1, 0, -1});
}

}  // namespace
