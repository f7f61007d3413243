// The numbers of a key_map against std::map and std::set, over random histories.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
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

}  // namespace
