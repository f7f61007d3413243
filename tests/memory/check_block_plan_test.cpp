// The check of plans: what it accepts, and each thing that it must find, to the byte.
#include <deeprec/memory/plans/check_block_plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "lifetimes.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::lifetimes;

namespace {

const lifetimes two = {{0, 10, 100, 4}, {9, 20, 60, 4}};

TEST_CASE("check_block_plan: blocks side by side, blocks that follow each other in one place, no block") {
  CHECK(check_block_plan(two, std::vector<std::size_t>{0, 100}, 160).ok());
  CHECK(check_block_plan(two, std::vector<std::size_t>{60, 0}, 160).ok());
  const lifetimes after = {{0, 9, 100, 4}, {9, 20, 60, 4}};
  CHECK(check_block_plan(after, std::vector<std::size_t>{0, 40}, 100).ok());
  CHECK(check_block_plan({}, {}, 0).ok());
}

TEST_CASE("check_block_plan: a block of 0 bytes shares its place, and is aligned and inside") {
  const lifetimes blocks = {{0, 10, 100, 4}, {0, 10, 0, 4}};
  CHECK(check_block_plan(blocks, std::vector<std::size_t>{0, 48}, 100).ok());
  CHECK(check_block_plan(blocks, std::vector<std::size_t>{0, 100}, 100).ok());
  CHECK_FALSE(check_block_plan(blocks, std::vector<std::size_t>{0, 104}, 100).ok());
  CHECK_FALSE(check_block_plan(blocks, std::vector<std::size_t>{0, 2}, 100).ok());
}

TEST_CASE("check_block_plan: one byte shared, one byte off alignment, one byte past the end") {
  const lifetimes bytes = {{0, 10, 100, 1}, {9, 20, 60, 1}};
  const auto shared = check_block_plan(bytes, std::vector<std::size_t>{0, 99}, 200);
  CHECK(shared.code() == errc::invalid_value);
  CHECK(shared.fault().place().item == 1);
  CHECK(shared.message() ==
        "invalid value: check_block_plan: blocks that are live at one time must not share bytes "
        "(blocks 0 and 1 do, at 99); item 1");
  CHECK(check_block_plan(bytes, std::vector<std::size_t>{0, 100}, 200).ok());
  CHECK_FALSE(check_block_plan(bytes, std::vector<std::size_t>{59, 0}, 200).ok());
  CHECK_FALSE(check_block_plan(bytes, std::vector<std::size_t>{20, 40}, 200).ok());  // one inside the other

  const auto off = check_block_plan(two, std::vector<std::size_t>{0, 101}, 200);
  CHECK(off.message() ==
        "invalid value: check_block_plan: offset must be a multiple of the alignment; item 1, value 101");
  const auto past = check_block_plan(two, std::vector<std::size_t>{0, 100}, 159);
  CHECK(past.message() ==
        "invalid value: check_block_plan: block must end inside of the plan's bytes; item 1, value 100");
}

TEST_CASE("check_block_plan: offsets near the end of the address space do not wrap") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  CHECK_FALSE(check_block_plan(two, std::vector<std::size_t>{0, most - 3}, 160).ok());
  CHECK_FALSE(check_block_plan(two, std::vector<std::size_t>{0, most - 3}, most).ok());
}

TEST_CASE("check_block_plan: not one offset for each block, and lifetimes that are wrong") {
  CHECK(check_block_plan(two, std::vector<std::size_t>{0}, 160).message() ==
        "shape mismatch: check_block_plan: offsets must be one for each block (is 1, must be 2)");
  CHECK(check_block_plan(lifetimes{{3, 3, 1, 1}}, std::vector<std::size_t>{0}, 1).code() ==
        errc::invalid_value);
}

TEST_CASE("check_block_plan: agrees with the comparison of all pairs, for right plans and wrong ones") {
  std::mt19937_64 random(deeprec_test::seed());
  int right = 0, wrong = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto kind = deeprec_test::every_lives[round % 5];
    const lifetimes blocks = deeprec_test::draw_lifetimes(random, 1 + random() % 7, kind, round % 2 == 0);
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;
    for (const block_lifetime& b : blocks) {
      offsets.push_back((random() % (round % 2 == 0 ? 20'000 : 80)) / b.alignment * b.alignment);
      bytes = std::max(bytes, offsets.back() + b.bytes);
    }
    const bool is_right = deeprec_test::faults_of(blocks, offsets, bytes).empty();
    REQUIRE_MESSAGE(check_block_plan(blocks, offsets, bytes).ok() == is_right, "round " << round);
    ++(is_right ? right : wrong);
  }
  CHECK(right > 1000);
  CHECK(wrong > 1000);
}

}  // namespace
