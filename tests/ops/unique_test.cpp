// Different ids of a list, against a std::unordered_map that is asked id by id.
#include <deeprec/ops/unique.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/id_lists.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::seed;

using deeprec_test::every_kind;
using deeprec_test::ids_are;
using deeprec_test::make_ids;

namespace {

template <class Id, class Index>
bool agrees(const std::vector<Id>& list, const unique_ids<Id, Index>& out) {
  std::unordered_map<Id, std::size_t> numbers;
  std::vector<Id> ids;
  std::vector<std::size_t> counts;
  if (out.inverse.size() != list.size()) return false;
  for (std::size_t k = 0; k < list.size(); ++k) {
    const auto [found, is_new] = numbers.try_emplace(list[k], ids.size());
    if (is_new) {
      ids.push_back(list[k]);
      counts.push_back(0);
    }
    ++counts[found->second];
    if (static_cast<std::size_t>(out.inverse[k]) != found->second) return false;
  }
  return std::vector<Id>(out.ids.begin(), out.ids.end()) == ids &&
         std::vector<std::size_t>(out.counts.begin(), out.counts.end()) == counts;
}

template <class Id, class Index>
void check_types(std::uint64_t salt) {
  std::mt19937_64 random(seed() + salt);
  unique_ids<Id, Index> out;  // reused
  for (const ids_are kind : every_kind) {
    for (const std::size_t n : {0U, 1U, 2U, 63U, 64U, 65U, 1000U, 5000U}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(n);
      const auto list = make_ids<Id>(random, kind, n);
      REQUIRE(unique(inline_executor{}, list, out).ok());
      CHECK(agrees(list, out));
      CHECK(std::accumulate(out.counts.begin(), out.counts.end(), Index{0}) == static_cast<Index>(n));
      bool rebuilt = true;
      for (std::size_t k = 0; k < n; ++k) {
        rebuilt &= out.ids[static_cast<std::size_t>(out.inverse[k])] == list[k];
      }
      CHECK(rebuilt);

      // In memory of the caller, which has more room: the same, and nothing after it.
      std::vector<Id> ids(n + 2, Id{77});
      std::vector<Index> inverse(n + 2, Index{78}), counts(n + 2, Index{79});
      index_t distinct = -1;
      const unique_out<Id, Index> given{ids, inverse, counts, {&distinct, 1}};
      REQUIRE(unique(inline_executor{}, list, given).ok());
      REQUIRE(distinct == static_cast<index_t>(out.ids.size()));
      CHECK(std::equal(out.ids.begin(), out.ids.end(), ids.begin()));
      CHECK(std::equal(out.counts.begin(), out.counts.end(), counts.begin()));
      CHECK(std::equal(out.inverse.begin(), out.inverse.end(), inverse.begin()));
      for (std::size_t k = n; k < n + 2; ++k) {
        CHECK(ids[k] == Id{77});
        CHECK(inverse[k] == Index{78});
        CHECK(counts[k] == Index{79});
      }
    }
  }
}

}  // namespace

TEST_CASE("unique: ids of any value, in the order of their first appearance, with inverse and counts") {
  check_types<std::int64_t, std::int64_t>(310);
  check_types<std::int64_t, std::int32_t>(311);
  check_types<std::int32_t, std::int32_t>(312);
  check_types<std::uint32_t, std::uint64_t>(313);
  check_types<std::uint64_t, std::uint32_t>(314);
}

TEST_CASE("unique: millions of ids, more than the caches hold; 1 to 8 threads give the same") {
  std::mt19937_64 random(seed() + 315);
  std::vector<std::int64_t> list(1'500'000);
  for (auto& id : list) id = static_cast<std::int64_t>(random() % 500'000) * 0x10001 - 7;
  unique_ids<> out;
  for (const int threads : {1, 2, 8}) {
    thread_pool pool(threads);
    out = unique_ids<>();
    REQUIRE(unique(pool, list, out).ok());
    CHECK(agrees(list, out));
  }
}

TEST_CASE("hazard H9: unique keeps -1, -2 and the ends of the type as ids among others") {
  using limits = std::numeric_limits<std::int64_t>;
  const std::vector<std::int64_t> all{
      -1, -2, 0, limits::min(), limits::max(), limits::min() + 1, 1, limits::max() - 1};
  const inline_executor here;
  std::vector<std::int64_t> ids;
  for (std::size_t i = 0; i < 1000; ++i) ids.push_back(all[(i * i + i / 7) % all.size()]);
  for (std::size_t first = 0; first < all.size(); ++first) {  // each of them comes first once
    ids[0] = all[first];
    unique_ids<std::int64_t> found;
    REQUIRE(unique(here, ids, found).ok());
    REQUIRE(found.inverse.size() == ids.size());
    for (std::size_t k = 0; k < ids.size(); ++k) {
      REQUIRE(found.ids[static_cast<std::size_t>(found.inverse[k])] == ids[k]);
    }
    std::vector<std::int64_t> sorted(found.ids.begin(), found.ids.end()), expected = ids;
    std::sort(sorted.begin(), sorted.end());
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    CHECK(sorted == expected);
  }
}

TEST_CASE("unique: the comparison catches another order, a wrong number and a wrong count") {
  const std::vector<std::int64_t> list{7, 1, 9, 1, 7};
  unique_ids<> out;
  REQUIRE(unique(inline_executor{}, list, out).ok());
  REQUIRE(agrees(list, out));
  auto sorted = out;  // as a unique by sorting would number them
  sorted.ids = {1, 7, 9};
  sorted.inverse = {1, 0, 2, 0, 1};
  CHECK_FALSE(agrees(list, sorted));
  auto wrong = out;
  wrong.inverse[4] = 1;
  CHECK_FALSE(agrees(list, wrong));
  wrong = out;
  wrong.counts[0] = 1;
  CHECK_FALSE(agrees(list, wrong));
}

TEST_CASE("unique: what can't be is said, and out stays as it was") {
  std::vector<std::int64_t> memory{3, 3, 5};
  unique_ids<> out;
  REQUIRE(unique(inline_executor{}, memory, out).ok());
  CHECK(unique(inline_executor{}, out.ids, out).code() == errc::unsupported);
  CHECK(unique(inline_executor{}, out.inverse, out).code() == errc::unsupported);
  unique_ids<std::int64_t, std::int32_t> narrow;
  const std::span<const std::int64_t> huge(memory.data(), std::size_t{1} << 31);  // never read
  CHECK(unique(inline_executor{}, huge, narrow).code() == errc::unsupported);
  CHECK(out.ids == std::pmr::vector<std::int64_t>{3, 5});
}

namespace {

/// The keys of unique, counted as they are compared.
struct counted_ids : detail::id_keys<std::int64_t, std::int64_t> {
  using id_keys::id_keys;
  mutable std::size_t compared = 0;
  bool same(index_t k, std::uint32_t number) const {
    ++compared;
    return id_keys::same(k, number);
  }
};

/// The number that mix64 makes h of.
std::uint64_t unmix64(std::uint64_t h) {
  const auto undo_shift = [](std::uint64_t x, int by) {  // y = x ^ x >> by, solved from above
    std::uint64_t y = x;
    for (int i = 0; i < 64 / by + 1; ++i) y = x ^ y >> by;
    return y;
  };
  h = undo_shift(h, 31) * 0x319642b2d24d8ec3;
  h = undo_shift(h, 27) * 0x96de1b173f119089;
  return undo_shift(h, 30);
}

}  // namespace

TEST_CASE("unique: ids that were chosen against its hash are compared no more often than others") {
  constexpr index_t n = 4000;
  std::vector<std::int64_t> chosen, strided, shifted;
  for (std::uint64_t k = 0; k < n; ++k) {
    const std::uint64_t one_position =
        std::uint64_t{0x155} << 51 | k;  // mix64's upper 13 bits: the table's slot
    REQUIRE(mix64(unmix64(one_position)) == one_position);
    chosen.push_back(static_cast<std::int64_t>(unmix64(one_position)));
    strided.push_back(static_cast<std::int64_t>(k << 40 | 1));
    shifted.push_back(static_cast<std::int64_t>(k * 0x9e3779b97f4a7c15));
  }
  for (const auto& ids : {chosen, strided, shifted}) {
    unique_ids<> out;
    std::vector<std::uint32_t> table(detail::key_entries(n));
    std::vector<std::int64_t> numbers(n);
    counted_ids keys(ids.data(), static_cast<std::size_t>(n), out);
    detail::number_keys(std::span<std::uint32_t>(table), n, keys, numbers.data());
    keys.finish();
    CHECK(out.ids.size() == ids.size());
    CHECK(keys.compared < 8 * static_cast<std::size_t>(n));
  }
}

TEST_CASE("unique: ids of any regular kind do not cluster, whatever the process draws") {
  struct seeded_ids : counted_ids {
    using counted_ids::counted_ids;
    detail::key_seed seed;
    std::uint64_t hash(index_t k) const { return detail::id_hash(seed, static_cast<std::uint64_t>(ids[k])); }
    const std::int64_t* ids = nullptr;
  };
  constexpr index_t n = 1024;
  std::vector<std::int64_t> dense, strided, sharded, high;
  for (std::int64_t k = 0; k < n; ++k) {
    dense.push_back(10'000'000 + k);
    strided.push_back(k << 8);
    sharded.push_back((k % 16) << 40 | k / 16);
    high.push_back(k << 32);
  }
  std::mt19937_64 random(seed());
  double worst = 0;
  for (int trial = 0; trial < 500; ++trial) {
    detail::key_seed drawn{random(), {random(), random() | 1, random(), random() | 1}};
    for (const auto& ids : {dense, strided, sharded, high}) {
      unique_ids<> out;
      std::vector<std::uint32_t> table(detail::key_entries(n));
      std::vector<std::int64_t> numbers(n);
      seeded_ids keys(ids.data(), static_cast<std::size_t>(n), out);
      keys.seed = drawn;
      keys.ids = ids.data();
      detail::number_keys(std::span<std::uint32_t>(table), n, keys, numbers.data());
      keys.finish();
      worst = std::max(worst, static_cast<double>(keys.compared) / n);
    }
  }
  CHECK(worst < 2);  // linear probing, half full: 0.5 on average
}

TEST_CASE("unique: memory of the caller without room, null, or shared with the ids is refused") {
  const inline_executor here;
  std::vector<std::int64_t> list{7, 1, 7}, ids(3, -5);
  std::vector<std::int32_t> inverse(3, -5), counts(3, -5);
  index_t distinct = -5;
  using out = unique_out<std::int64_t, std::int32_t>;
  const out given{ids, inverse, counts, {&distinct, 1}};
  const auto refused = [&](const out& to, errc code) { CHECK(unique(here, list, to).code() == code); };
  refused({given.ids.subview(0, 2), given.inverse, given.counts, given.distinct}, errc::shape_mismatch);
  refused({given.ids, given.inverse.subview(0, 2), given.counts, given.distinct}, errc::shape_mismatch);
  refused({given.ids, given.inverse, given.counts.subview(0, 2), given.distinct}, errc::shape_mismatch);
  refused({given.ids, given.inverse, given.counts, {}}, errc::shape_mismatch);
  refused({{nullptr, 3}, given.inverse, given.counts, given.distinct}, errc::shape_mismatch);
  refused({given.ids, {nullptr, 3}, given.counts, given.distinct}, errc::shape_mismatch);
  refused({given.ids, given.inverse, {nullptr, 3}, given.distinct}, errc::shape_mismatch);
  refused({given.ids, given.inverse, given.counts, {nullptr, 1}}, errc::shape_mismatch);
  refused({list, given.inverse, given.counts, given.distinct}, errc::unsupported);
  refused({given.ids, given.inverse, given.counts, {list.data() + 2, 1}}, errc::unsupported);
  CHECK(ids == std::vector<std::int64_t>(3, -5));
  CHECK(inverse == std::vector<std::int32_t>(3, -5));
  CHECK(counts == std::vector<std::int32_t>(3, -5));
  CHECK(distinct == -5);
  CHECK(list == std::vector<std::int64_t>{7, 1, 7});
  CHECK(unique(here, array_view<const std::int64_t>(list.data(), index_t{1} << 31), given).code() ==
        errc::unsupported);
}

TEST_CASE("unique: an example in memory of the caller") {
  //! [unique_given]
  std::array<std::int32_t, 5> ids{}, inverse{}, counts{};
  index_t distinct = 0;
  const unique_out<std::int32_t, std::int32_t> out{ids, inverse, counts, {&distinct, 1}};
  unique(inline_executor{}, std::array<std::int32_t, 5>{7, 1, 9, 1, 7}, out).or_throw();
  CHECK(distinct == 3);
  CHECK(ids == std::array<std::int32_t, 5>{7, 1, 9, 0, 0});
  CHECK(inverse == std::array<std::int32_t, 5>{0, 1, 2, 1, 0});
  CHECK(counts == std::array<std::int32_t, 5>{2, 2, 1, 0, 0});
  //! [unique_given]
}

TEST_CASE("unique: an example") {
  //! [unique]
  unique_ids<std::int32_t> out;
  unique(inline_executor{}, std::array<std::int32_t, 5>{7, 1, 9, 1, 7}, out).or_throw();
  CHECK(out.ids == std::pmr::vector<std::int32_t>{7, 1, 9});
  CHECK(out.inverse == std::pmr::vector<std::int64_t>{0, 1, 2, 1, 0});
  CHECK(out.counts == std::pmr::vector<std::int64_t>{2, 2, 1});
  //! [unique]
}
