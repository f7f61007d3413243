// key_map: numbers of keys for tables that live elsewhere: their order, their reuse, and threads that find.
#include <deeprec/embedding/growing/key_map.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/sanitizers.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using keys_type = std::vector<std::uint64_t>;
using numbers_type = std::vector<std::int64_t>;

template <class Context>
numbers_type inserted(Context&& ctx, key_map& map, const keys_type& keys) {
  numbers_type numbers(keys.size(), -7);
  const status s = map.insert(ctx, keys, numbers);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return numbers;
}
numbers_type inserted(key_map& map, const keys_type& keys) {
  const inline_executor here;
  return inserted(here, map, keys);
}
numbers_type erased(key_map& map, const keys_type& keys) {
  numbers_type numbers(keys.size(), -7);
  const status s = map.erase(inline_executor{}, keys, numbers);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return numbers;
}
numbers_type found(const key_map& map, const keys_type& keys) {
  numbers_type numbers(keys.size(), -7);
  map.find(keys.data(), static_cast<index_t>(keys.size()), numbers.data());
  return numbers;
}

detail::key_seed seed_of(std::uint64_t number) {
  detail::key_seed made{mix64(number), {}};
  for (std::uint64_t& word : made.key) word = mix64(made.start += 77) | 1;
  return made;
}

}  // namespace

TEST_CASE("key_map: numbers are in the order of the first position, and repeats have one") {
  key_map map(100);
  CHECK(map.capacity() == 100);
  CHECK(inserted(map, {9, 5, 9, ~std::uint64_t{0}, 0, 5}) == numbers_type{0, 1, 0, 2, 3, 1});
  CHECK(inserted(map, {4, 0, 9, 4}) == numbers_type{4, 3, 0, 4});
  CHECK(map.size() == 5);
  CHECK(found(map, {0, 1, 4, 5, 9, ~std::uint64_t{0}}) == numbers_type{3, -1, 4, 1, 0, 2});
  CHECK(inserted(map, {}).empty());
  CHECK(found(map, {}).empty());
  CHECK(erased(map, {}).empty());
  CHECK(map.bytes() > 0);
}

TEST_CASE("key_map: keys beyond the capacity get -1, and those before them their numbers") {
  key_map map(3);
  CHECK(inserted(map, {7, 8, 7, 9, 10, 8, 11}) == numbers_type{0, 1, 0, 2, -1, 1, -1});
  CHECK(map.size() == 3);
  CHECK(found(map, {10, 11, 9}) == numbers_type{-1, -1, 2});
  CHECK(inserted(map, {10, 9}) == numbers_type{-1, 2});
  CHECK(erased(map, {8}) == numbers_type{1});
  CHECK(inserted(map, {10, 11, 10}) == numbers_type{1, -1, 1});
  key_map one(1);
  CHECK(inserted(one, {1, 2, 1}) == numbers_type{0, -1, 0});
}

TEST_CASE("key_map: numbers that were erased are used again, the smallest first") {
  key_map map(100);
  inserted(map, {10, 11, 12, 13, 14, 15});
  CHECK(erased(map, {14, 99, 11, 12, 14}) == numbers_type{4, -1, 1, 2, -1});  // the second time it is gone
  CHECK(map.size() == 3);
  CHECK(found(map, {10, 11, 12, 13, 14, 15}) == numbers_type{0, -1, -1, 3, -1, 5});
  CHECK(inserted(map, {20, 21}) == numbers_type{1, 2});
  CHECK(erased(map, {10}) == numbers_type{0});
  CHECK(inserted(map, {22, 23, 24, 11}) == numbers_type{0, 4, 6, 7});
  CHECK(found(map, {20, 21, 22, 23, 24, 11}) == numbers_type{1, 2, 0, 4, 6, 7});
}

TEST_CASE("key_map: a guard keeps numbers that were erased from other keys until it ends") {
  key_map map(4);
  inserted(map, {10, 11, 12});
  {
    const auto before = map.guard();
    CHECK(erased(map, {11}) == numbers_type{1});
    {
      const auto after = map.guard();
      CHECK(inserted(map, {20, 21}) == numbers_type{3, -1});
    }
    CHECK(inserted(map, {21}) == numbers_type{-1});
    CHECK(inserted(map, {11}) == numbers_type{-1});  // not even its own
  }
  CHECK(inserted(map, {21, 22}) == numbers_type{1, -1});
  {
    auto first = map.guard();
    CHECK(erased(map, {10}) == numbers_type{0});
    const auto moved = std::move(first);
    CHECK(inserted(map, {22}) == numbers_type{-1});
  }
  CHECK(inserted(map, {22}) == numbers_type{0});
  // Of two erasures, the one that is older than every guard is over.
  CHECK(erased(map, {12}) == numbers_type{2});
  const auto later = map.guard();
  CHECK(erased(map, {20}) == numbers_type{3});
  CHECK(inserted(map, {30, 31}) == numbers_type{2, -1});
}

TEST_CASE("key_map: the same numbers for any threads, seeds and sizes of batches, after any history") {
  struct history {
    bool inserts;
    keys_type keys;
  };
  std::mt19937_64 random(seed());
  std::vector<history> calls;
  for (int call = 0; call < 60; ++call) {
    history made{random() % 3 != 0, {}};
    for (auto n = random() % 700; n > 0; --n) made.keys.push_back(mix64(random() % 5000));
    calls.push_back(std::move(made));
  }
  const auto run = [&](auto& executor, std::uint64_t hash) {
    key_map map(3000, huge_page_resource::shared(), seed_of(hash));
    numbers_type all;
    for (const history& call : calls) {
      numbers_type numbers(call.keys.size());
      const status s =
          call.inserts ? map.insert(executor, call.keys, numbers) : map.erase(executor, call.keys, numbers);
      REQUIRE(s.ok());
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    all.push_back(map.size());
    return all;
  };
  // The definition, with a list.
  numbers_type expected;
  keys_type key_of(3000);
  std::vector<bool> used(3000);
  const auto number_of = [&](std::uint64_t key) {
    for (std::size_t n = 0; n < used.size(); ++n) {
      if (used[n] && key_of[n] == key) return static_cast<std::int64_t>(n);
    }
    return std::int64_t{-1};
  };
  for (const history& call : calls) {
    for (const std::uint64_t key : call.keys) {
      std::int64_t n = number_of(key);
      const auto free = std::find(used.begin(), used.end(), false);
      if (call.inserts && n < 0 && free != used.end()) {
        n = free - used.begin();
        used[static_cast<std::size_t>(n)] = true;
        key_of[static_cast<std::size_t>(n)] = key;
      } else if (!call.inserts && n >= 0) {
        used[static_cast<std::size_t>(n)] = false;
      }
      expected.push_back(n);
    }
  }
  expected.push_back(std::count(used.begin(), used.end(), true));
  const inline_executor here;
  CHECK(run(here, 1) == expected);
  for (const int threads : {1, 2, 3, 7}) {
    thread_pool pool({.threads = threads, .oversubscribe = true});
    CHECK(run(pool, 1) == expected);
    CHECK(run(pool, 2) == expected);
  }
}

TEST_CASE("key_map: a capacity out of range is refused, and sizes that differ change nothing") {
  for (const index_t capacity :
       {index_t{0}, index_t{-1}, key_map::most_capacity + 1, std::numeric_limits<index_t>::max()}) {
    std::string text;
    try {
      const key_map map(capacity);
    } catch (const error& e) {
      text = e.what();
    }
    const std::string value = capacity == 0 ? "" : "; value " + std::to_string(capacity);
    CHECK(text == "invalid value: key_map: capacity must be from 1 to 2^32 - 2^24 - 1" + value);
  }
  CHECK(key_map(key_map::most_capacity).capacity() == 4278190079);
  key_map map(10);
  const keys_type keys = {1, 2, 3};
  numbers_type numbers(2, -7);
  CHECK(map.insert(inline_executor{}, keys, numbers).message() ==
        "shape mismatch: key_map::insert: numbers must be as many as keys (is 2, must be 3)");
  CHECK(map.erase(inline_executor{}, keys, numbers).message() ==
        "shape mismatch: key_map::erase: numbers must be as many as keys (is 2, must be 3)");
  CHECK(numbers == numbers_type{-7, -7});
  CHECK(map.size() == 0);
  std::stop_source stop;
  stop.request_stop();
  const std::stop_token token = stop.get_token();
  inline_executor here;
  context ctx(here);
  ctx.stop = &token;
  numbers.resize(3, -7);
  CHECK(map.insert(ctx, keys, numbers).code() == errc::stopped);
  CHECK(map.erase(ctx, keys, numbers).code() == errc::stopped);
  CHECK(numbers == numbers_type{-7, -7, -7});
  CHECK(inserted(map, keys) == numbers_type{0, 1, 2});
}

TEST_CASE("key_map: where the n-th allocation is refused nothing changes, and the next call goes on") {
  keys_type first, second;
  for (std::uint64_t k = 0; k < 700; ++k) first.push_back(mix64(k));
  for (std::uint64_t k = 500; k < 3000; ++k) second.push_back(mix64(k));
  const keys_type gone(first.begin() + 100, first.begin() + 300);
  numbers_type number_of_second;
  {
    key_map map(2500);
    inserted(map, first);
    number_of_second = inserted(map, second);
    CHECK(number_of_second.back() == -1);
  }
  bool all_granted = false;
  long refusals = 0;
  for (long n = 0; !all_granted; ++n) {
    CAPTURE(n);
    REQUIRE(n < 200);
    allowance granted;
    refusing_resource memory(granted), scratch(granted);
    inline_executor here;
    context ctx(here);
    ctx.memory = &scratch;
    {
      key_map map(2500, &memory);
      inserted(map, first);
      numbers_type numbers(second.size(), -7);
      granted.left = n;
      const status s = map.insert(ctx, second, numbers);
      granted.left = allowance::unlimited;
      all_granted = s.ok();
      if (!all_granted) {
        ++refusals;
        CHECK(s.code() == errc::out_of_memory);
        CHECK(numbers == numbers_type(second.size(), -7));
        CHECK(map.size() == 700);
        CHECK(found(map, second)[0] == 500);
        CHECK(found(map, second)[200] == -1);
      }
      CHECK(inserted(ctx, map, second) == number_of_second);
      numbers.assign(gone.size(), -7);
      granted.left = n;
      const status of_erasure = map.erase(ctx, gone, numbers);
      granted.left = allowance::unlimited;
      if (!of_erasure) {
        CHECK(of_erasure.code() == errc::out_of_memory);
        CHECK(numbers == numbers_type(gone.size(), -7));
        CHECK(map.size() == 2500);
        CHECK(found(map, gone)[0] == 100);
        REQUIRE(map.erase(ctx, gone, numbers).ok());
      }
      for (std::size_t k = 0; k < gone.size(); ++k) CHECK(numbers[k] == static_cast<std::int64_t>(100 + k));
      CHECK(map.size() == 2300);
      CHECK(map.bytes() == static_cast<index_t>(memory.held));
      CHECK(scratch.held == 0);
      CHECK(inserted(map, {1, 2}) == numbers_type{100, 101});
    }
    CHECK(memory.held == 0);
  }
  CHECK(refusals > 5);
  bool made = false;
  for (long n = 0; !made; ++n) {
    REQUIRE(n < 400);
    allowance few{.left = n};
    refusing_resource memory(few);
    try {
      const key_map map(10, &memory);
      made = true;
    } catch (const error& e) {
      CHECK(e.code() == errc::out_of_memory);
    }
    CHECK(memory.held == 0);
  }
}

TEST_CASE("key_map: threads that find beside an insertion see a number or -1, and never another one") {
  constexpr std::uint64_t count = DEEPREC_TEST_SANITIZED ? 20'000 : 200'000;
  key_map map(static_cast<index_t>(count));
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> held{0};
  std::atomic<long> wrong{0}, seen{0};
  std::vector<std::thread> finders;
  for (std::uint64_t t = 0; t < 2; ++t) {
    finders.emplace_back([&, t] {
      std::mt19937_64 random(seed() + t);
      keys_type keys(300);
      numbers_type numbers(keys.size());
      std::vector<std::uint64_t> places(keys.size());
      do {
        for (std::size_t k = 0; k < keys.size(); ++k) {
          places[k] = random() % (2 * count);  // half of them never come
          keys[k] = mix64(places[k]);
        }
        const std::uint64_t before = held;
        map.find(keys.data(), static_cast<index_t>(keys.size()), numbers.data());
        for (std::size_t k = 0; k < keys.size(); ++k) {
          if (numbers[k] == -1) {
            wrong += places[k] < before ? 1 : 0;  // it was there
            continue;
          }
          ++seen;
          if (numbers[k] != static_cast<std::int64_t>(places[k])) ++wrong;
        }
      } while (!done);
    });
  }
  thread_pool pool({.threads = 2, .oversubscribe = true});
  keys_type keys;
  for (std::uint64_t from = 0; from < count; from += 1000) {
    keys.clear();
    for (std::uint64_t k = from; k < from + 1000; ++k) keys.push_back(mix64(k));
    inserted(pool, map, keys);
    held = from + 1000;
  }
  done = true;
  for (std::thread& one : finders) one.join();
  CHECK(wrong == 0);
  CHECK(seen > 0);
  CHECK(map.size() == static_cast<index_t>(count));
}

TEST_CASE("key_map: while a finder has a guard, the number that it found is no other key's") {
  constexpr std::uint64_t keys_in_all = 400;
  constexpr int rounds = DEEPREC_TEST_SANITIZED ? 300 : 3000;
  key_map map(300);
  std::vector<std::atomic<std::uint64_t>> owner(300);  // of each number, as the inserter was told: key + 1
  std::atomic<bool> done{false};
  std::atomic<long> wrong{0}, held{0};
  std::vector<std::thread> finders;
  for (std::uint64_t t = 0; t < 2; ++t) {
    finders.emplace_back([&, t] {
      std::mt19937_64 random(seed() + t);
      do {
        const auto guard = map.guard();
        const std::uint64_t key = random() % keys_in_all;
        std::int64_t number = -1;
        map.find(&key, 1, &number);
        if (number < 0) continue;
        // The inserter notes it soon, unless it has already.
        auto& noted = owner[static_cast<std::size_t>(number)];
        while (noted != key + 1 && !done) std::this_thread::yield();
        for (int look = 0; look < 20; ++look) {
          if (noted != key + 1 && !done) ++wrong;
          if (look % 5 == 0) std::this_thread::yield();
        }
        ++held;
      } while (!done);
    });
  }
  std::mt19937_64 random(seed() + 9);
  keys_type keys;
  for (int round = 0; round < rounds || held < 20; ++round) {
    if (round % 32 == 0) std::this_thread::yield();
    keys.clear();
    for (int k = 0; k < 40; ++k) keys.push_back(random() % keys_in_all);
    if (round % 2 == 0) {
      const numbers_type numbers = inserted(map, keys);
      for (std::size_t k = 0; k < keys.size(); ++k) {
        if (numbers[k] >= 0) owner[static_cast<std::size_t>(numbers[k])] = keys[k] + 1;
      }
    } else {
      erased(map, keys);
    }
  }
  done = true;
  for (std::thread& one : finders) one.join();
  CHECK(wrong == 0);
  CHECK(held > 0);
}
