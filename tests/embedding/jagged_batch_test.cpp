// Entries in any order as bags, against a plain loop over vectors.
#include <deeprec/embedding/batches/jagged_batch.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/counting_resource.hpp>

#include "support/entries.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Id, class Row>
void check_kind(std::mt19937_64& random, entries_are kind) {
  const inline_executor here;
  jagged_batch<Id> out;  // reused: what it held before must not matter
  for (const index_t bags : {0, 1, 5, 300}) {
    for (const index_t entries : {0, 1, 7, 900}) {
      for (const bool weighted : {false, true}) {
        CAPTURE(bags);
        CAPTURE(entries);
        const auto made = make_entries<Id, Row>(random, kind, bags, 50, entries);
        const auto coo = made.view(weighted);
        REQUIRE(to_jagged(here, coo, out).ok());
        CHECK(out.view().validate().ok());
        CHECK(out.bags() == bags);
        CHECK(out.id_count() == coo.id_count());
        CHECK((out.view().weights() != nullptr) == (weighted && coo.id_count() > 0));
        CHECK(bags_of(out.view()) == bags_of(coo));
      }
    }
  }
}

}  // namespace

TEST_CASE("to_jagged: every bag keeps its entries, in their order") {
  std::mt19937_64 random(seed() + 300);
  for (const entries_are kind : every_entries) {
    CAPTURE(static_cast<int>(kind));
    check_kind<std::int64_t, std::int64_t>(random, kind);
    check_kind<std::int32_t, std::uint32_t>(random, kind);
    check_kind<std::uint64_t, std::int32_t>(random, kind);
  }
}

TEST_CASE("to_jagged: the comparison catches a sort that is not stable, and a lost entry") {
  std::mt19937_64 random(seed() + 301);
  const auto made = make_entries(random, entries_are::uniform, 20, 50, 400);
  auto unstable = made;
  std::reverse(unstable.rows.begin(), unstable.rows.end());
  std::reverse(unstable.ids.begin(), unstable.ids.end());
  jagged_batch<> out;
  REQUIRE(to_jagged(inline_executor{}, unstable.view(), out).ok());
  CHECK(bags_of(out.view()) != bags_of(made.view()));
  auto shorter = made;
  shorter.ids.pop_back();
  REQUIRE(to_jagged(inline_executor{}, shorter.view(), out).ok());
  CHECK(bags_of(out.view()) != bags_of(made.view()));
}

TEST_CASE("to_jagged: 1 to 8 threads give the same, also over many pieces and with more bags than a piece") {
  std::mt19937_64 random(seed() + 302);
  for (const index_t bags : {3, 1000, 100'000}) {
    for (const entries_are kind : {entries_are::uniform, entries_are::sorted, entries_are::one_huge_bag}) {
      const auto made = make_entries<std::int32_t, std::int32_t>(random, kind, bags, 1 << 20, 300'000);
      const auto expected = bags_of(made.view(true));
      for (int threads = 1; threads <= 8; threads += 1 + threads / 3) {
        thread_pool pool(threads);
        jagged_batch<std::int32_t> out;
        REQUIRE(to_jagged(pool, made.view(true), out).ok());
        const bool same = bags_of(out.view()) == expected;
        CHECK(same);
      }
    }
  }
}

TEST_CASE("to_jagged: a row outside of the batch is named, and out stays as it was") {
  std::mt19937_64 random(seed() + 303);
  auto made = make_entries(random, entries_are::uniform, 10, 50, 200'000);
  jagged_batch<> out;
  REQUIRE(to_jagged(inline_executor{}, made.view(), out).ok());
  const auto before = bags_of(out.view());
  made.rows[199'000] = -1;
  made.rows[70'000] = 10;
  made.rows[70'001] = -5;
  for (const int threads : {1, 4}) {
    thread_pool pool(threads);
    const status s = to_jagged(pool, made.view(), out);
    CHECK(s.code() == errc::invalid_value);
    CHECK(s.place() == fault_place{.position = 70'000, .value = 10});
    CHECK(s.place().operation == std::string("to_jagged"));
    CHECK(bags_of(out.view()) == before);
  }
  CHECK(to_jagged(inline_executor{}, coo_view<>(nullptr, nullptr, 3, 2), out).message() ==
        "shape mismatch: to_jagged: coo_view: rows must not be null");
  // Its own ids can't be its input.
  const coo_view<> own(made.rows.data(), out.ids.data(), 100, 10);
  CHECK(to_jagged(inline_executor{}, own, out).code() == errc::unsupported);
}

TEST_CASE("to_jagged: a batch that is filled again allocates nothing, and in order not even scratch") {
  std::mt19937_64 random(seed() + 304);
  const inline_executor here;
  counting_resource memory, scratch;
  context ctx(here);
  ctx.memory = &scratch;
  jagged_batch<> out(&memory);
  const auto sorted = make_entries(random, entries_are::sorted, 100, 50, 4000);
  const auto mixed = make_entries(random, entries_are::uniform, 100, 50, 4000);
  REQUIRE(to_jagged(ctx, sorted.view(true), out).ok());
  CHECK(scratch.statistics().allocations == 0);
  const index_t first = memory.statistics().allocations;
  REQUIRE(to_jagged(ctx, mixed.view(true), out).ok());
  CHECK(scratch.statistics().allocations == 1);
  REQUIRE(to_jagged(ctx, sorted.view(), out).ok());
  REQUIRE(to_jagged(ctx, mixed.view(true), out).ok());
  CHECK(memory.statistics().allocations == first);
}

TEST_CASE("to_jagged: an example in memory of the caller") {
  //! [to_jagged_given]
  const std::vector<std::int32_t> rows{2, 0, 2, 0, 3};
  const std::vector<std::int64_t> ids{9, 7, 4, 1, 8};
  std::vector<std::int32_t> offsets(5);
  std::vector<std::int64_t> sorted(5);
  const jagged_out<std::int64_t, std::int32_t> bags{offsets, sorted, {}};
  to_jagged(inline_executor{}, coo_view<std::int64_t, std::int32_t>(rows.data(), ids.data(), 5, 4), bags)
      .or_throw();
  CHECK(offsets == std::vector<std::int32_t>{0, 2, 2, 4, 5});
  CHECK(sorted == std::vector<std::int64_t>{7, 1, 9, 4, 8});
  CHECK(bags.view().validate().ok());
  //! [to_jagged_given]
}

TEST_CASE("to_jagged: the entries of a tf.SparseTensor become bags") {
  //! [to_jagged]
  const std::vector<std::int64_t> indices{2, 0, 0, 0, 2, 1, 0, 1, 3, 0};  // (5, 2): bag, column
  const std::vector<std::int64_t> values{9, 7, 4, 1, 8};
  jagged_batch<> bags;
  to_jagged(inline_executor{}, coo_view<>::tensorflow(indices.data(), values.data(), 5, 4), bags).or_throw();
  CHECK(bags.offsets == std::pmr::vector<index_t>{0, 2, 2, 4, 5});
  CHECK(bags.ids == std::pmr::vector<std::int64_t>{7, 1, 9, 4, 8});
  //! [to_jagged]
}
