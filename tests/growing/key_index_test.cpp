// The key index against std::map, over random histories; its slots, splits and refused memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <set>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/embedding/growing/key_index.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/reclaimer.hpp>
#include <deeprec/support/key_hash.hpp>

#include "support/isas.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

#include "growing/growing_support.hpp"

using namespace deeprec;
using deeprec_test::key_type;
using deeprec_test::keys_from;

namespace {

using code_type = std::uint32_t;
using contents = std::map<key_type, code_type>;

/// The secret one, and one that never changes.
std::vector<detail::key_seed> both_seeds() {
  return {detail::process_key_seed(),
          {0x0123'4567'89ab'cdefULL, {3, 0x9e37'79b9'7f4a'7c15ULL, 5, 0xbf58'476d'1ce4'e5b9ULL}}};
}

class indexed {
 public:
  explicit indexed(const detail::key_seed& seed = detail::process_key_seed(),
                   std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : index(readers, memory, seed) {}

  reclaimer readers;
  key_index index;

  template <class Executor>
  status put(Executor& executor, const std::vector<key_type>& keys, const std::vector<code_type>& codes) {
    return index.put(context(executor), keys.data(), codes.data(), static_cast<index_t>(keys.size()));
  }
  /// Codes 1, 2, 3 ... from `first` on.
  status put(const std::vector<key_type>& keys, code_type first = 1) {
    inline_executor here;
    std::vector<code_type> codes(keys.size());
    for (std::size_t k = 0; k < keys.size(); ++k) codes[k] = first + static_cast<code_type>(k);
    return put(here, keys, codes);
  }
  std::vector<code_type> erase(const std::vector<key_type>& keys) {
    inline_executor here;
    std::vector<code_type> codes(keys.size());
    index.erase(context(here), keys.data(), static_cast<index_t>(keys.size()), codes.data());
    readers.unlinked();
    return codes;
  }
  std::vector<code_type> find(isa which, const std::vector<key_type>& keys) const {
    std::vector<code_type> codes(keys.size() + 1, 12345);
    const reclaimer::pin pinned = const_cast<reclaimer&>(readers).enter();
    index.find(which, keys.data(), static_cast<index_t>(keys.size()), codes.data());
    CHECK(codes.back() == 12345);  // n codes, and no more
    codes.pop_back();
    return codes;
  }
  contents all() const {
    contents found;
    index_t calls = 0;
    index.for_each([&](key_type key, code_type code) {
      found[key] = code;
      ++calls;
    });
    CHECK(calls == static_cast<index_t>(found.size()));
    CHECK(calls == index.size());
    return found;
  }
};

code_type code_in(const contents& held, key_type key) {
  const auto it = held.find(key);
  return it == held.end() ? key_index::none : it->second;
}
std::vector<code_type> codes_in(const contents& held, const std::vector<key_type>& keys) {
  std::vector<code_type> codes;
  for (const key_type key : keys) codes.push_back(code_in(held, key));
  return codes;
}

/// The x for which mix64(x) is a number.
constexpr key_type unmix64(key_type x) {
  const auto inverse = [](key_type odd) {
    key_type y = odd;
    for (int i = 0; i < 6; ++i) y *= 2 - odd * y;
    return y;
  };
  x ^= x >> 31 ^ x >> 62;
  x *= inverse(0x94d049bb133111eb);
  x ^= x >> 27 ^ x >> 54;
  x *= inverse(0xbf58476d1ce4e5b9);
  return x ^ x >> 30 ^ x >> 60;
}
static_assert(mix64(unmix64(12345)) == 12345 && unmix64(mix64(~0ULL)) == ~0ULL);

TEST_CASE("key_index: answers as std::map does, over random histories, for every instruction set and seed") {
  inline_executor here;
  thread_pool pool(deeprec_test::threads(3));
  const std::vector<index_t> sizes = {0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 200};
  for (const detail::key_seed& seed : both_seeds()) {
    for (const key_type range : {key_type{100}, key_type{5000}, key_type{30000}}) {
      CAPTURE(deeprec_test::seed());
      CAPTURE(range);
      std::mt19937_64 random(deeprec_test::seed() + range);
      const auto draw = [&] {
        const auto& special = deeprec_test::special_keys();
        return random() % 20 == 0 ? special[random() % special.size()]
                                  : (random() % range) << (range == 5000 ? 40 : 0);
      };
      indexed ours(seed);
      contents held;
      for (int step = 0; step < 45; ++step) {
        std::set<key_type> differ;
        for (auto n = random() % (range / 10); n > 0; --n) differ.insert(draw());
        std::vector<key_type> keys(differ.begin(), differ.end());
        std::shuffle(keys.begin(), keys.end(), random);
        if (step % 3 == 2) {
          const auto before = codes_in(held, keys);
          CHECK(ours.erase(keys) == before);
          for (const key_type key : keys) held.erase(key);
        } else {
          std::vector<code_type> codes(keys.size());
          for (code_type& code : codes)
            code = random() % 10 == 0 ? key_index::none
                                      : 1 + static_cast<code_type>(random() % key_index::most_code);
          REQUIRE((step % 2 == 0 ? ours.put(here, keys, codes) : ours.put(pool, keys, codes)).ok());
          for (std::size_t k = 0; k < keys.size(); ++k) {
            if (codes[k] != key_index::none) held[keys[k]] = codes[k];
          }
        }
        REQUIRE(ours.all() == held);
        std::vector<key_type> asked;
        for (index_t k = 0; k < sizes[static_cast<std::size_t>(step) % sizes.size()]; ++k)
          asked.push_back(draw());
        std::vector<key_type> many(4000);
        for (key_type& key : many) key = draw();
        for (const isa which : deeprec_test::runnable_isas()) {
          CAPTURE(to_string(which));
          REQUIRE(ours.find(which, asked) == codes_in(held, asked));
          REQUIRE(ours.find(which, many) == codes_in(held, many));
        }
      }
    }
  }
}

TEST_CASE("key_index: every number is a key, and none of them is held at first") {
  for (const detail::key_seed& seed : both_seeds()) {
    indexed ours(seed);
    const std::vector<key_type>& keys = deeprec_test::special_keys();
    const std::vector<code_type> none(keys.size(), key_index::none);
    for (const isa which : deeprec_test::runnable_isas()) CHECK(ours.find(which, keys) == none);
    CHECK(ours.erase(keys) == none);
    for (const code_type first : {code_type{1}, key_index::most_code - 20}) {
      REQUIRE(ours.put(keys, first).ok());
      contents held;
      for (std::size_t k = 0; k < keys.size(); ++k) held[keys[k]] = first + static_cast<code_type>(k);
      CHECK(ours.all() == held);
      for (const isa which : deeprec_test::runnable_isas())
        CHECK(ours.find(which, keys) == codes_in(held, keys));
    }
    for (const key_type key : keys) {
      CHECK(ours.erase({key}) != std::vector<code_type>{key_index::none});
      CHECK(ours.find(best_isa(), {key}) == std::vector<code_type>{key_index::none});
    }
    CHECK(ours.index.size() == 0);
    CHECK(ours.all().empty());
  }
}

TEST_CASE("key_index: a million keys split segments and double directories, and all are found") {
  thread_pool pool(deeprec_test::threads(2));
  indexed ours;
  constexpr std::size_t count = 1'000'000, batch = 50'000;
  std::vector<key_type> keys(count);
  std::vector<code_type> codes(count);
  for (std::size_t k = 0; k < count; ++k) {
    keys[k] = k % 2 == 0 ? k : mix64(k);
    codes[k] = static_cast<code_type>(k + 1);
  }
  for (std::size_t from = 0; from < count; from += batch) {
    REQUIRE(ours.index.put(context(pool), keys.data() + from, codes.data() + from, index_t{batch}).ok());
  }
  CHECK(ours.index.size() == index_t{count});
  CHECK(ours.index.splits() > 64 * 5);
  CHECK(ours.index.bytes() < 40 * index_t{count});
  for (const isa which : deeprec_test::runnable_isas()) CHECK((ours.find(which, keys) == codes));
  std::vector<key_type> others(count / 4);
  for (std::size_t k = 0; k < others.size(); ++k) others[k] = mix64(k * 2) | 1ULL << 63;
  const auto absent = ours.find(best_isa(), others);
  CHECK(std::count(absent.begin(), absent.end(), key_index::none) > index_t{count} / 5);
  const index_t bytes = ours.index.bytes();
  CHECK((ours.erase(keys) == codes));
  CHECK(ours.index.size() == 0);
  REQUIRE(ours.put(keys).ok());
  CHECK((ours.find(best_isa(), keys) == codes));
  CHECK(ours.index.bytes() <= bytes + bytes / 4);
}

TEST_CASE("key_index: slots of erased keys are not used while a pin is as old, also where they were before") {
  for (const bool reused_before : {false, true}) {
    CAPTURE(reused_before);
    indexed ours;
    constexpr std::size_t count = 20'000, rounds = 40;
    key_type next = count;
    REQUIRE(ours.put(keys_from(0, count)).ok());
    const auto churn = [&](std::size_t times) {
      for (std::size_t r = 0; r < times; ++r, next += count / 4) {
        ours.erase(keys_from(next - count, count / 4));
        REQUIRE(ours.put(keys_from(next, count / 4)).ok());
      }
    };
    if (reused_before) churn(40);
    const index_t before = ours.index.bytes();
    {
      const reclaimer::pin pinned = ours.readers.enter();
      churn(rounds);
      // A slot of a line of 64 bytes for five keys, for each key that was put under the pin.
      const auto slots = static_cast<index_t>(rounds * (count / 4));
      CHECK(ours.index.bytes() >= slots * 64 / 5 - before);
    }
    churn(40);
    const index_t after = ours.index.bytes();
    churn(200);
    CHECK(ours.index.bytes() <= after + after / 4);
    const auto kept = keys_from(next - count, count);
    const auto codes = ours.find(best_isa(), kept);
    CHECK(std::count(codes.begin(), codes.end(), key_index::none) == 0);
    CHECK(ours.index.size() == index_t{count});
  }
}

TEST_CASE("key_index: bytes stop growing under a steady load of erasures and insertions") {
  std::mt19937_64 random(deeprec_test::seed());
  CAPTURE(deeprec_test::seed());
  indexed ours;
  std::vector<key_type> live(30'000);
  for (key_type& key : live) key = random();
  REQUIRE(ours.put(live).ok());
  const auto churn = [&](int rounds) {
    for (int r = 0; r < rounds; ++r) {
      std::shuffle(live.begin(), live.end(), random);
      const std::vector<key_type> gone(live.begin(), live.begin() + 3000);
      ours.erase(gone);
      std::vector<key_type> fresh(3000);
      for (key_type& key : fresh) key = random();
      REQUIRE(ours.put(fresh).ok());
      std::copy(fresh.begin(), fresh.end(), live.begin());
    }
  };
  churn(60);
  const index_t bytes = ours.index.bytes(), splits = ours.index.splits();
  churn(200);  // of all keys, twenty times
  CHECK(ours.index.bytes() <= bytes + bytes / 4);
  CHECK(ours.index.splits() <= splits + 20);  // a shard's keys are more than before now and then
  const auto codes = ours.find(best_isa(), live);
  CHECK(std::count(codes.begin(), codes.end(), key_index::none) == 0);
}

TEST_CASE("key_index: a put that is refused memory changes nothing, and works afterwards") {
  thread_pool pool(deeprec_test::threads(3));
  std::vector<key_type> more = keys_from(1'000'000, 30'000);
  std::vector<code_type> codes(more.size());
  for (std::size_t k = 0; k < more.size(); ++k) {
    if (k % 9 == 0) more[k] = k / 9;  // and some that are held
    codes[k] = static_cast<code_type>(k + 500'000);
  }
  for (const bool pinned : {false, true}) {
    long allocations = 0;
    for (long n = 0;; ++n) {
      CAPTURE(n);
      deeprec::allowance allowed;
      deeprec_test::refusing_resource memory(allowed);
      {
        indexed ours(detail::process_key_seed(), &memory);
        const reclaimer::pin before = pinned ? ours.readers.enter() : reclaimer::pin();
        REQUIRE(ours.put(keys_from(0, 3000)).ok());
        ours.erase(keys_from(1000, 1000));
        const contents held = ours.all();
        CHECK(ours.index.bytes() == static_cast<index_t>(memory.held));
        allowed.left = n;
        const status s = ours.put(pool, more, codes);
        allowed.left = deeprec::allowance::unlimited;
        if (!s) {
          CHECK(s.code() == errc::out_of_memory);
          REQUIRE(ours.all() == held);
          const auto all = keys_from(0, 3000);
          CHECK(ours.find(best_isa(), all) == codes_in(held, all));
          CHECK(ours.index.bytes() == static_cast<index_t>(memory.held));
          REQUIRE(ours.put(pool, more, codes).ok());
        }
        contents expected = held;
        for (std::size_t k = 0; k < more.size(); ++k) expected[more[k]] = codes[k];
        REQUIRE(ours.all() == expected);
        CHECK((ours.find(best_isa(), more) == codes));
        CHECK(ours.index.bytes() == static_cast<index_t>(memory.held));
        allocations = n;
        if (s) break;
      }
      CHECK(memory.held == 0);
    }
    CHECK(allocations > 3);
  }
}

TEST_CASE("key_index: refused scratch throws and changes nothing") {
  indexed ours;
  REQUIRE(ours.put(keys_from(0, 100)).ok());
  const contents held = ours.all();
  inline_executor here;
  context ctx(here);
  ctx.memory = std::pmr::null_memory_resource();
  const auto keys = keys_from(50, 100);
  std::vector<code_type> codes(keys.size(), 7);
  CHECK_THROWS_AS(static_cast<void>(ours.index.put(ctx, keys.data(), codes.data(), 100)), std::bad_alloc);
  CHECK_THROWS_AS(ours.index.erase(ctx, keys.data(), 100, codes.data()), std::bad_alloc);
  CHECK(ours.all() == held);
}

TEST_CASE("key_index: a constructor that is refused memory throws, and gives back what it had") {
  for (long n = 0; n < 4; ++n) {
    deeprec::allowance allowed{.left = n};
    deeprec_test::refusing_resource memory(allowed);
    reclaimer readers;
    bool refused = false;
    try {
      const key_index made(readers, &memory);
    } catch (const error& fault) {
      refused = fault.code() == errc::out_of_memory;
    }
    CHECK(refused == (allowed.refused > 0));
    CHECK(memory.held == 0);
    if (n == 0) CHECK(refused);
    if (n == 3) CHECK_FALSE(refused);
  }
}

TEST_CASE("key_index: keys that collide under mix64, and keys in a row, spread like others") {
  constexpr std::size_t count = 100'000;
  const auto splits_of = [&](auto key_at, const detail::key_seed& seed) {
    indexed ours(seed);
    std::vector<key_type> keys(count);
    for (std::size_t k = 0; k < count; ++k) keys[k] = key_at(k);
    REQUIRE(ours.put(keys).ok());
    CHECK(ours.index.size() == index_t{count});
    CHECK(ours.index.bytes() < 100 * index_t{count});
    const auto codes = ours.find(best_isa(), keys);
    CHECK(std::count(codes.begin(), codes.end(), key_index::none) == 0);
    return ours.index.splits();
  };
  for (const detail::key_seed& seed : both_seeds()) {
    const index_t usual = splits_of([](key_type k) { return mix64(k + 99); }, seed);
    CHECK(splits_of([](key_type k) { return unmix64(k); }, seed) <= 2 * usual);        // the upper bits are 0
    CHECK(splits_of([](key_type k) { return unmix64(k << 46); }, seed) <= 2 * usual);  // the lower ones
    CHECK(splits_of([](key_type k) { return k; }, seed) <= 2 * usual);
    CHECK(splits_of([](key_type k) { return k << 32; }, seed) <= 2 * usual);
    CHECK(splits_of([](key_type k) { return k << 40 | k; }, seed) <= 2 * usual);
  }
}

}  // namespace
