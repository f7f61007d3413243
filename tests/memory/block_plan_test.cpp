// Plans of memory: right by two checks, optimal where a search of all orders says so, the same whenever and
// in whatever order they are made; the binned policy by hand; bad input.
#include <deeprec/memory/plans/block_plan.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <deeprec/memory/plans/check_block_plan.hpp>

#include "lifetimes.hpp"
#include "support/sanitizers.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::draw_lifetimes;
using deeprec_test::lifetimes;
using deeprec_test::offsets_in_order;

namespace {

constexpr block_policy every_policy[] = {
    block_policy::by_size,  block_policy::by_size_lowest, block_policy::by_area, block_policy::by_length,
    block_policy::by_start, block_policy::by_breadth,     block_policy::binned,  block_policy::search};

/// A plan that is right.
block_plan plan_of(const lifetimes& blocks, const block_plan_options& options = {}) {
  block_plan plan = plan_blocks(blocks, options).or_throw();
  const auto checked = check_block_plan(blocks, plan.offsets, plan.bytes);
  REQUIRE_MESSAGE(checked.ok(), checked.message());
  REQUIRE(deeprec_test::faults_of(blocks, plan.offsets, plan.bytes) == "");
  REQUIRE(plan.bytes >= plan.bound);
  REQUIRE(plan.bound >= plan.live_bytes);
  REQUIRE(plan.live_bytes == deeprec_test::live_bytes_of(blocks));
  return plan;
}

TEST_CASE("plan_blocks: blocks of a step share memory where their lifetimes permit") {
  //! [plan_blocks]
  // Three activations, and the buffer that two of them never overlap.
  const std::vector<block_lifetime> lifetimes = {
      {0, 4, 4096, 64},  // hidden 1
      {1, 6, 2048, 64},  // hidden 2
      {4, 8, 4096, 64},  // the gradient of hidden 2, once hidden 1 is gone
  };
  const block_plan plan = plan_blocks(lifetimes).or_throw();
  check_block_plan(lifetimes, plan.offsets, plan.bytes).or_throw();
  // plan.bytes is 6144, and plan.optimal(): the first and the last block have one place.
  //! [plan_blocks]
  CHECK(plan.bytes == 6144);
  CHECK(plan.optimal());
  CHECK(plan.offsets[0] == plan.offsets[2]);
}

TEST_CASE("block_policies: with, without, has") {
  constexpr block_policies two = {block_policy::by_size, block_policy::search};
  static_assert(two.has(block_policy::search) && !two.has(block_policy::by_area) && two.are_known());
  CHECK(two.with(block_policy::by_area).has(block_policy::by_area));
  CHECK_FALSE(two.without(block_policy::search).has(block_policy::search));
  CHECK(block_policies{}.empty());
  CHECK(two.without(block_policy::search).without(block_policy::by_size).empty());
  std::set<std::string> texts;
  for (const block_policy p : every_policy) texts.insert(to_string(p));
  CHECK(texts.size() == std::size(every_policy));
}

TEST_CASE("plan_blocks: no block, and blocks of 0 bytes") {
  const block_plan none = plan_of({});
  CHECK(none.bytes == 0);
  CHECK(none.offsets.empty());
  CHECK(none.optimal());
  for (const block_policy p : every_policy) {
    const block_plan empty = plan_of({{0, 1, 0, 64}, {0, 2, 0, 1}}, {.policies = {p}});
    CHECK(empty.bytes == 0);
    CHECK(empty.offsets == std::vector<std::size_t>{0, 0});
    const block_plan one = plan_of({{0, 1, 0, 64}, {0, 2, 100, 16}}, {.policies = {p}});
    CHECK(one.bytes == 100);
  }
}

TEST_CASE("plan_blocks: 100,000 random instances, each right by both checks") {
  std::mt19937_64 random(deeprec_test::seed());
  for (int round = 0; round < 100'000; ++round) {
    const lifetimes blocks =
        draw_lifetimes(random, 1 + random() % 16, deeprec_test::every_lives[round % 5], random() % 2 == 0);
    const block_policy p = every_policy[random() % std::size(every_policy)];
    const block_policy q = every_policy[random() % std::size(every_policy)];
    plan_of(blocks, {.policies = {p, q}, .search_steps = 4000});
  }
}

TEST_CASE("plan_blocks: larger random instances with every policy; together they take the smallest") {
  std::mt19937_64 random(deeprec_test::seed());
  const block_policies all = block_plan_options().policies.with(block_policy::binned);
  for (int round = 0; round < 60; ++round) {
    const lifetimes blocks =
        draw_lifetimes(random, 30 + random() % 300, deeprec_test::every_lives[round % 5], round % 2 == 0);
    std::size_t least = SIZE_MAX;
    for (const block_policy p : every_policy) {
      const std::size_t bytes = plan_of(blocks, {.policies = {p}, .search_steps = 200'000}).bytes;
      // What a search that is cut short finds depends on where it begins.
      if (p != block_policy::search) least = std::min(least, bytes);
    }
    CHECK(plan_of(blocks, {.policies = all, .search_steps = 200'000}).bytes <= least);
  }
}

TEST_CASE("plan_blocks: each order places the blocks as its name says") {
  using key = std::tuple<double, double, std::int64_t, std::int64_t, std::size_t, std::size_t>;
  std::mt19937_64 random(deeprec_test::seed());
  for (int round = 0; round < 2000; ++round) {
    lifetimes blocks =
        draw_lifetimes(random, 1 + random() % 40, deeprec_test::every_lives[round % 5], round % 2 == 0);
    std::erase_if(blocks, [](const block_lifetime& b) { return b.bytes == 0; });
    for (const block_policy p : every_policy) {
      // by_start tries only a few of the gaps that are too small where they begin.
      if (p >= block_policy::binned || (p == block_policy::by_start && round % 2 == 0)) continue;
      std::vector<std::pair<key, std::size_t>> order;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const block_lifetime& b = blocks[i];
        const auto bytes = static_cast<double>(b.bytes), length = static_cast<double>(b.end - b.begin);
        std::size_t breadth = 0;
        for (const block_lifetime& at : blocks) {
          if (!deeprec_test::live_together(at, b)) continue;
          const std::int64_t then = std::max(at.begin, b.begin);
          std::size_t live = 0;
          for (const block_lifetime& c : blocks) live += c.begin <= then && then < c.end ? c.bytes : 0;
          breadth = std::max(breadth, live);
        }
        const std::pair<double, double> first = p == block_policy::by_area ? std::pair(bytes * length, bytes)
                                                : p == block_policy::by_length ? std::pair(length, bytes)
                                                : p == block_policy::by_start  ? std::pair(0.0, 0.0)
                                                : p == block_policy::by_breadth
                                                    ? std::pair(static_cast<double>(breadth), bytes)
                                                    : std::pair(bytes, length);
        order.push_back({{-first.first, -first.second, b.begin, b.end, b.bytes, b.alignment}, i});
      }
      std::sort(order.begin(), order.end());
      std::vector<std::size_t> numbers;
      for (const auto& [k, i] : order) numbers.push_back(i);
      REQUIRE_MESSAGE(plan_of(blocks, {.policies = {p}}).offsets ==
                          offsets_in_order(blocks, numbers, p == block_policy::by_size_lowest),
                      std::string(to_string(p)) << ", round " << round);
    }
  }
}

TEST_CASE("plan_blocks: the search finds the optimum of up to 8 blocks and says so; no plan is below it") {
  std::mt19937_64 random(deeprec_test::seed());
  int above_live = 0, improved = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::size_t n = 1 + random() % (round % 10 == 0 ? 8 : 6);
    const lifetimes blocks = draw_lifetimes(random, n, deeprec_test::every_lives[round % 5], round % 3 == 0);
    const std::size_t least = deeprec_test::least_bytes(blocks);
    std::size_t least_of_orders = SIZE_MAX;
    for (const block_policy p : every_policy) {
      const block_plan plan = plan_of(blocks, {.policies = {p}});
      REQUIRE_MESSAGE(plan.bytes >= least, std::string(to_string(p)));
      REQUIRE_MESSAGE(plan.bound <= least, std::string(to_string(p)));
      if (p < block_policy::binned) least_of_orders = std::min(least_of_orders, plan.bytes);
      if (p == block_policy::search) {
        REQUIRE(plan.bytes == least);
        REQUIRE(plan.optimal());
      }
    }
    const block_plan all = plan_of(blocks);
    REQUIRE(all.bytes == least);
    REQUIRE(all.optimal());
    above_live += least > all.live_bytes ? 1 : 0;
    improved += least < least_of_orders ? 1 : 0;
  }
  CHECK(above_live > 50);  // proved by an exhausted search
  CHECK(improved > 20);    // no order finds it
}

TEST_CASE("plan_blocks: the same plan again, and of the blocks in another order") {
  std::mt19937_64 random(deeprec_test::seed());
  const auto content = [](const lifetimes& blocks, const block_plan& plan) {
    std::multiset<std::tuple<std::int64_t, std::int64_t, std::size_t, std::size_t, std::size_t>> all;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      all.emplace(blocks[i].begin, blocks[i].end, blocks[i].bytes, blocks[i].alignment, plan.offsets[i]);
    return all;
  };
  for (int round = 0; round < 200; ++round) {
    lifetimes blocks =
        draw_lifetimes(random, 1 + random() % 60, deeprec_test::every_lives[round % 5], round % 2 == 0);
    const block_plan_options options{.policies = {every_policy[random() % std::size(every_policy)],
                                                  every_policy[random() % std::size(every_policy)]},
                                     .search_steps = 100'000};
    const block_plan plan = plan_of(blocks, options);
    const auto is_same = [&](const block_plan& other) {
      return other.bytes == plan.bytes && other.bound == plan.bound && other.policy == plan.policy &&
             other.search_steps == plan.search_steps;
    };
    const block_plan again = plan_of(blocks, options);
    CHECK(again.offsets == plan.offsets);
    CHECK(is_same(again));
    const auto before = content(blocks, plan);
    std::shuffle(blocks.begin(), blocks.end(), random);
    const block_plan shuffled = plan_of(blocks, options);
    CHECK(content(blocks, shuffled) == before);
    CHECK(is_same(shuffled));
  }
}

TEST_CASE(
    "plan_blocks: time cut where nothing is live is planned in parts, and only the highest is searched") {
  // Each section alone needs the search: the orders leave it above its bound.
  std::mt19937_64 random(deeprec_test::seed());
  int found = 0;
  while (found < 5) {
    const lifetimes one = draw_lifetimes(random, 8, deeprec_test::lives_are::few_events, false);
    block_plan_options orders;
    orders.policies = orders.policies.without(block_policy::search);
    const block_plan greedy = plan_of(one, orders), searched = plan_of(one);
    if (greedy.bytes == searched.bytes) continue;
    ++found;
    CHECK(searched.policy == block_policy::search);
    CHECK(searched.search_steps > 0);
    lifetimes many = one;
    for (const block_lifetime& b : one) many.push_back({b.begin + 100, b.end + 100, b.bytes, 1});
    CHECK(plan_of(many).bytes == searched.bytes);
    // A section that is higher anyway leaves nothing to search for.
    many.push_back({1000, 1001, greedy.bytes, 1});
    const block_plan higher = plan_of(many);
    CHECK(higher.bytes == greedy.bytes);
    CHECK(higher.search_steps == 0);
    CHECK(higher.optimal());
  }
}

TEST_CASE("plan_blocks: budgets of 0 leave by_start; a time limit of 0 too, a long one changes nothing") {
  std::mt19937_64 random(deeprec_test::seed());
  const lifetimes blocks = draw_lifetimes(random, 200, deeprec_test::lives_are::many_events, true);
  const block_plan start = plan_of(blocks, {.policies = {block_policy::by_start}});
  CHECK(start.policy == block_policy::by_start);
  block_plan_options options{.order_steps = 0, .search_steps = 0};
  options.policies = options.policies.with(block_policy::binned);
  const block_plan nothing = plan_of(blocks, options);
  CHECK(nothing.policy == block_policy::by_start);
  CHECK(nothing.offsets == start.offsets);
  CHECK(nothing.search_steps == 0);
  // Policies that come to no end leave what by_start makes, though nobody asked for it.
  options.policies = {block_policy::by_area, block_policy::binned, block_policy::search};
  CHECK(plan_of(blocks, options).offsets == start.offsets);
  block_plan_options at_once;
  at_once.time_limit = std::chrono::nanoseconds(0);
  CHECK(plan_of(blocks, at_once).offsets == start.offsets);
  block_plan_options plain{.search_steps = 300'000}, limited = plain;
  for (const auto limit :
       {std::chrono::nanoseconds(std::chrono::hours(1)), std::chrono::nanoseconds::max()}) {
    limited.time_limit = limit;
    CHECK(plan_of(blocks, limited).offsets == plan_of(blocks, plain).offsets);
  }
  limited.time_limit = std::chrono::nanoseconds::min();
  CHECK(plan_of(blocks, limited).offsets == start.offsets);
}

TEST_CASE("plan_blocks: hundreds of thousands of blocks, and ten thousand that are all live together") {
  std::mt19937_64 random(deeprec_test::seed());
  const std::size_t n = DEEPREC_TEST_SANITIZED ? 100'000 : 1'000'000;
  lifetimes blocks;
  for (std::size_t i = 0; i < n; ++i) {
    const auto begin = static_cast<std::int64_t>(random() % (2 * n));
    blocks.push_back(
        {begin, begin + 1 + static_cast<std::int64_t>(random() % 100), 1 + random() % 100'000, 64});
  }
  const block_plan plan =
      plan_blocks(blocks, {.policies = {block_policy::by_size, block_policy::by_start, block_policy::search},
                           .order_steps = 100'000})
          .or_throw();
  CHECK(check_block_plan(blocks, plan.offsets, plan.bytes).ok());
  CHECK(plan.policy == block_policy::by_start);

  lifetimes together(10'000, block_lifetime{0, 1, 0, 1});
  for (block_lifetime& b : together) b.bytes = 1 + random() % 1000;
  const block_plan stacked = plan_blocks(together, {.order_steps = 1'000'000}).or_throw();
  CHECK(check_block_plan(together, stacked.offsets, stacked.bytes).ok());
  CHECK(stacked.optimal());
}

TEST_CASE("plan_blocks: binned rounds sizes to chunks, which blocks share that do not overlap") {
  constexpr std::size_t kb = 1024;
  const auto binned = [](const lifetimes& blocks) {
    return plan_of(blocks, {.policies = {block_policy::binned}});
  };
  // 33 KB takes a chunk of 36; the interval of 8 KB would take 40.
  CHECK(binned({{0, 1, 33 * kb, 64}}).bytes == 36 * kb);
  // One chunk for two blocks that follow each other, two where they overlap.
  CHECK(binned({{0, 5, 34 * kb, 64}, {5, 9, 36 * kb, 64}}).bytes == 36 * kb);
  CHECK(binned({{0, 6, 34 * kb, 64}, {5, 9, 36 * kb, 64}}).bytes == 72 * kb);
  // The chunk of a larger bin is borrowed, where it is free.
  CHECK(binned({{0, 5, 100 * kb, 64}, {5, 9, 40 * kb, 64}}).bytes == 100 * kb);
  CHECK(binned({{0, 6, 100 * kb, 64}, {5, 9, 40 * kb, 64}}).bytes == 140 * kb);
  // 36, 40, 44 and 48 KB, one after the other but the first with all of them: intervals of 4 KB take 36 + 48.
  CHECK(binned({{0, 9, 36 * kb, 64}, {0, 3, 40 * kb, 64}, {3, 6, 44 * kb, 64}, {6, 9, 48 * kb, 64}}).bytes ==
        84 * kb);
  // Blocks take chunks as they end. Two chunks of 64 KB would do for [0, 2), [1, 9), [3, 8), [8, 9) and
  // [2, 3): the one that ends first is placed first.
  const lifetimes chain = {{0, 2, 64 * kb, 64},
                           {1, 9, 64 * kb, 64},
                           {3, 8, 64 * kb, 64},
                           {8, 9, 64 * kb, 64},
                           {2, 3, 64 * kb, 64}};
  CHECK(binned(chain).bytes == 128 * kb);
  // What is larger first: 64 KB opens a chunk, in which 48 KB finds room at first; the 48 KB that overlap
  // both open one of their own, which the 40 KB borrow rather than the larger one.
  const block_plan nearest =
      binned({{0, 5, 64 * kb, 64}, {5, 7, 48 * kb, 64}, {6, 8, 48 * kb, 64}, {8, 9, 40 * kb, 64}});
  CHECK(nearest.bytes == 112 * kb);
  CHECK(nearest.offsets == std::vector<std::size_t>{0, 0, 64 * kb, 64 * kb});
  // Up to 32 KB lie behind the chunks, in the order of their begins: 28 bytes, then 32 KB from the next 64.
  const block_plan small = binned({{0, 5, 40 * kb, 64}, {0, 5, 32 * kb, 64}, {5, 6, 100, 64}, {0, 1, 28, 4}});
  CHECK(small.bytes == 72 * kb + 64);
  CHECK(small.offsets == std::vector<std::size_t>{0, 40 * kb + 64, 40 * kb, 40 * kb});
  CHECK(small.policy == block_policy::binned);
  // Alignment above 4 KB.
  CHECK(binned({{0, 5, 40 * kb, 64 * kb}, {1, 5, 40 * kb, 64}}).bytes == 128 * kb);
}

TEST_CASE("plan_blocks: bad lifetimes and options name what is wrong") {
  const auto message = [](const lifetimes& blocks, const block_plan_options& options = {}) {
    return plan_blocks(blocks, options).message();
  };
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  constexpr auto latest = std::numeric_limits<std::int64_t>::max();
  constexpr auto earliest = std::numeric_limits<std::int64_t>::min();
  const block_lifetime fine{0, 1, 64, 64};
  CHECK(message({fine, {5, 4, 1, 1}}) ==
        "invalid value: block_lifetime: end must be after begin; item 1, value 4");
  CHECK(message({fine, fine, {5, 5, 1, 1}}) ==
        "invalid value: block_lifetime: end must be after begin; item 2, value 5");
  CHECK(message({{latest, earliest, 1, 1}}) ==
        "invalid value: block_lifetime: end must be after begin; item 0, "
        "value -9223372036854775808");
  CHECK(message({fine, {0, 1, 1, 48}}) ==
        "invalid value: block_lifetime: alignment must be a power of two; item 1, value 48");
  CHECK(message({{0, 1, 1, 0}}) == "invalid value: block_lifetime: alignment must be a power of two; item 0");
  const std::string sum =
      "invalid value: block_lifetime: the sum of all bytes and alignments must be below 2^62; item ";
  CHECK(message({fine, {0, 1, most, 1}}).starts_with(sum + "1"));
  CHECK(message({{0, 1, std::size_t{1} << 63, 1}}).starts_with(sum + "0"));
  CHECK(message({{0, 1, 1, std::size_t{1} << 63}}).starts_with(sum + "0"));
  const block_lifetime half{0, 1, std::size_t{1} << 61, 1};
  CHECK(message({half, half}).starts_with(sum + "1"));
  const std::span<const block_lifetime> too_many(&fine, std::size_t{1} << 31);  // refused before it is read
  CHECK(plan_blocks(too_many).message() ==
        "invalid value: plan_blocks: blocks must be fewer than 2^31; value 2147483648");
  CHECK(message({fine}, {.policies = {}}) == "invalid value: plan_blocks: policies must name one at least");
  CHECK(message({fine}, {.policies = {static_cast<block_policy>(99)}}) ==
        "invalid value: plan_blocks: policies must be of block_policy");
}

TEST_CASE("plan_blocks: the largest sizes and times that are allowed") {
  constexpr std::size_t large = std::size_t{1} << 60;
  constexpr auto latest = std::numeric_limits<std::int64_t>::max();
  constexpr auto earliest = std::numeric_limits<std::int64_t>::min();
  const lifetimes blocks = {{earliest, latest, large, 1},
                            {earliest, 0, large, 1},
                            {0, latest, large, 64},
                            {latest - 1, latest, 1, std::size_t{1} << 59}};
  for (const block_policy p : every_policy) {
    const block_plan plan = plan_of(blocks, {.policies = {p}, .search_steps = 10'000});
    CHECK(plan.bytes > large);
  }
  const block_plan plan = plan_of(blocks);
  CHECK(plan.bytes == 2 * large + 1);
  CHECK(plan.optimal());
}

TEST_CASE(
    "plan_blocks: public instances that no order fits into the 1,048,576 bytes that are known to suffice") {
  struct known {
    char name;
    std::uint64_t steps;
    std::size_t bytes;  // found within them
  };
  for (const known& k :
       {known{'A', 1 << 25, 1'120'000}, known{'B', 1 << 25, 1'048'576}, known{'C', 1 << 24, 1'039'360},
        known{'D', 1 << 24, 1'120'000}, known{'E', 1 << 26, 1'048'576}, known{'F', 1 << 22, 1'048'576}}) {
    const std::string name(1, k.name);
    const lifetimes blocks = deeprec_test::minimalloc_lifetimes(k.name);
    if (blocks.empty()) {
      MESSAGE("SKIPPED: DEEPREC_DATA_DIR must have minimalloc/" << name << ".csv");
      continue;
    }
    block_plan_options options{.search_steps = k.steps};
    const block_plan plan = plan_of(blocks, options);
    CHECK_MESSAGE(plan.bytes <= k.bytes, name << ": " << plan.bytes);
    CHECK(plan.policy == block_policy::search);
    options.policies = options.policies.without(block_policy::search);
    CHECK(plan_of(blocks, options).bytes > 1'048'576);
  }
}

}  // namespace
