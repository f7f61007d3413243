// Ids dealt to parts, against dealing the rows of a table out one by one.
#include <deeprec/embedding/batches/partition.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <type_traits>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/fenced_resource.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t largest = std::numeric_limits<index_t>::max();
constexpr index_t lowest = std::numeric_limits<index_t>::min();

/// Rows 0 .. V-1 in turn, each into the first part that has room (partition_strategy::div), or into the next
/// part (partition_strategy::mod).
template <class Strategy>
std::vector<part_place> deal(index_t rows, index_t parts, Strategy) {
  std::vector<part_place> places;
  std::vector<index_t> filled(static_cast<std::size_t>(parts));
  for (index_t id = 0, p = 0; id < rows; ++id) {
    if (std::is_same_v<Strategy, partition_strategy::mod_t>) {
      p = id % parts;
    } else {
      while (filled[static_cast<std::size_t>(p)] == part_rows(p, rows, parts)) ++p;
    }
    places.push_back({p, filled[static_cast<std::size_t>(p)]++});
  }
  return places;
}

/// What partition() has to say; ids that are no rows are left out.
template <class Id>
bool agrees(const std::vector<Id>& ids, const std::vector<part_place>& places, index_t parts,
            const partitioned_ids<Id>& out) {
  std::vector<std::vector<Id>> groups(static_cast<std::size_t>(parts));
  std::vector<part_place> expected;  // part, and position within it
  for (const Id id : ids) {
    if (id < Id{0} || static_cast<std::uint64_t>(id) >= places.size()) {
      expected.push_back({-1, -1});
      continue;
    }
    const part_place at = places[static_cast<std::size_t>(id)];
    auto& group = groups[static_cast<std::size_t>(at.part)];
    expected.push_back({at.part, static_cast<index_t>(group.size())});
    group.push_back(static_cast<Id>(at.local));
  }
  if (out.parts() != parts || out.part.size() != ids.size() || out.permutation.size() != ids.size())
    return false;
  for (index_t p = 0; p < parts; ++p) {
    const auto group = out.group(p);
    if (std::vector<Id>(group.begin(), group.end()) != groups[static_cast<std::size_t>(p)]) return false;
  }
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const part_place at = expected[k];
    if (out.part[k] != at.part) return false;
    if (out.permutation[k] !=
        (at.part < 0 ? -1 : out.offsets[static_cast<std::size_t>(at.part)] + at.local)) {
      return false;
    }
  }
  return true;
}

template <class Id>
std::vector<Id> some_ids(std::mt19937_64& random, index_t rows, std::size_t n) {
  std::vector<Id> ids(n);
  for (Id& id : ids) id = static_cast<Id>(random() % static_cast<std::uint64_t>(rows));
  return ids;
}

/// partition() into memory of the caller writes what it writes into an owner, and nothing after it.
template <class Position, class Id, class Strategy>
void check_given(const std::vector<Id>& ids, index_t rows, index_t parts, Strategy how,
                 const partitioned_ids<Id>& expected, index_t left_out) {
  std::vector<std::int32_t> part(ids.size() + 2, 77);
  std::vector<Position> permutation(ids.size() + 2, 78), offsets(static_cast<std::size_t>(parts) + 1, 79);
  std::vector<Id> local(ids.size() + 2, Id{80});
  index_t skipped = 100;
  const partition_out<Id, Position> given{part, permutation, offsets, local};
  REQUIRE(partition(inline_executor{}, ids, rows, parts, how, bounds::skip(skipped), given).ok());
  CHECK(skipped == 100 + left_out);
  CHECK(std::equal(offsets.begin(), offsets.end(), expected.offsets.begin(), expected.offsets.end()));
  CHECK(std::equal(expected.part.begin(), expected.part.end(), part.begin()));
  CHECK(std::equal(expected.permutation.begin(), expected.permutation.end(), permutation.begin()));
  CHECK(std::equal(expected.ids.begin(), expected.ids.end(), local.begin()));
  bool untouched = true;
  for (std::size_t k = ids.size(); k < ids.size() + 2; ++k) {
    untouched &= part[k] == 77 && permutation[k] == 78;
  }
  for (std::size_t k = expected.ids.size(); k < local.size(); ++k) untouched &= local[k] == Id{80};
  CHECK(untouched);
}

template <class Id, class Strategy>
void check_strategy(std::mt19937_64& random, Strategy how) {
  partitioned_ids<Id> out;  // reused
  for (const index_t rows : {0, 1, 2, 3, 10, 64, 1000}) {
    for (const index_t parts : {1, 2, 3, 7, 10, 64, 65, 1500}) {
      for (const std::size_t n : {0U, 1U, 500U}) {
        if (rows == 0 && n > 0) continue;
        CAPTURE(rows);
        CAPTURE(parts);
        auto ids = some_ids<Id>(random, rows, n);
        const auto places = deal(rows, parts, how);
        REQUIRE(partition(inline_executor{}, ids, rows, parts, how, out).ok());
        CHECK(agrees(ids, places, parts, out));
        // The same with ids that are no rows among them.
        for (std::size_t k = 0; k < n; k += 3) {
          ids[k] = k % 2 == 0 ? static_cast<Id>(-1 - static_cast<Id>(k)) : static_cast<Id>(rows + 1);
        }
        index_t skipped = 100;
        REQUIRE(partition(inline_executor{}, ids, rows, parts, how, bounds::skip(skipped), out).ok());
        CHECK(agrees(ids, places, parts, out));
        CHECK(skipped == 100 + static_cast<index_t>((n + 2) / 3));
        check_given<std::int32_t>(ids, rows, parts, how, out, skipped - 100);
        check_given<std::int64_t>(ids, rows, parts, how, out, skipped - 100);
        if (n > 0) {
          const status s = partition(inline_executor{}, ids, rows, parts, how, out);
          CHECK(s.code() == errc::id_out_of_range);
          CHECK(s.place() == fault_place{.position = 0, .value = static_cast<std::int64_t>(ids[0])});
          CHECK(agrees(ids, places, parts, out));  // as it was
        }
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "partition_strategy::div_place, partition_strategy::mod_place: every row of small tables has the place "
    "that dealing them out gives") {
  for (index_t parts = 1; parts <= 45; ++parts) {
    for (index_t rows = 0; rows <= 90; ++rows) {
      const auto by_div = deal(rows, parts, partition_strategy::div);
      const auto by_mod = deal(rows, parts, partition_strategy::mod);
      bool same = true;
      for (index_t id = 0; id < rows; ++id) {
        same &= partition_strategy::div_place(id, rows, parts) == by_div[static_cast<std::size_t>(id)];
        same &= partition_strategy::mod_place(id, parts) == by_mod[static_cast<std::size_t>(id)];
      }
      for (const index_t id : {index_t{-1}, lowest, rows, rows + 1, largest}) {
        same &= partition_strategy::div_place(id, rows, parts) == part_place{-1, -1};
      }
      CHECK(same);
    }
  }
  static_assert(partition_strategy::div_place(4, 10, 3) == part_place{1, 0} &&
                partition_strategy::mod_place(4, 3) == part_place{1, 1});
}

TEST_CASE("partition_strategy::mod_place: division rounds down, also for the lowest number") {
  std::mt19937_64 random(seed() + 330);
  CHECK(partition_strategy::mod_place(-1, 4) == part_place{3, -1});
  CHECK(partition_strategy::mod_place(-4, 4) == part_place{0, -1});
  CHECK(partition_strategy::mod_place(-5, 4) == part_place{3, -2});
  for (const index_t parts : {index_t{1}, index_t{2}, index_t{7}, index_t{1} << 40, largest}) {
    for (int i = 0; i < 200; ++i) {
      const index_t id = i == 0 ? lowest : i == 1 ? largest : static_cast<index_t>(random());
      const part_place at = partition_strategy::mod_place(id, parts);
      CHECK(at.part >= 0);
      CHECK(at.part < parts);
      CHECK(static_cast<std::uint64_t>(at.local) * static_cast<std::uint64_t>(parts) +
                static_cast<std::uint64_t>(at.part) ==
            static_cast<std::uint64_t>(id));
    }
  }
}

TEST_CASE("partition: groups, offsets and permutation, for tables of any size and more parts than rows") {
  std::mt19937_64 random(seed() + 331);
  check_strategy<std::int64_t>(random, partition_strategy::div);
  check_strategy<std::int64_t>(random, partition_strategy::mod);
  check_strategy<std::int32_t>(random, partition_strategy::div);
  check_strategy<std::int32_t>(random, partition_strategy::mod);
}

TEST_CASE("partition: the comparison catches C's remainder, a group out of order and floor without extras") {
  const std::vector<std::int64_t> ids{7, 1, 9, 4, 8};
  partitioned_ids<> out;
  REQUIRE(partition(inline_executor{}, ids, 10, 3, partition_strategy::div, out).ok());
  CHECK(agrees(ids, deal(10, 3, partition_strategy::div), 3, out));
  CHECK_FALSE(agrees(ids, deal(10, 3, partition_strategy::mod), 3, out));
  CHECK_FALSE(agrees(ids, deal(12, 3, partition_strategy::div), 3, out));  // parts of four rows each
  auto swapped = out;
  std::swap(swapped.ids[3], swapped.ids[4]);
  CHECK_FALSE(agrees(ids, deal(10, 3, partition_strategy::div), 3, swapped));
}

TEST_CASE("partition: tables of up to 2^63 - 1 rows are cut as the pure functions say") {
  std::mt19937_64 random(seed() + 332);
  partitioned_ids<std::uint64_t> out;
  for (const index_t rows : {largest, largest - 1, index_t{1} << 62, (index_t{1} << 40) + 3}) {
    for (const index_t parts : {1, 2, 3, 5, 1000, 1 << 20, (1 << 20) + 1}) {
      std::vector<std::uint64_t> ids = some_ids<std::uint64_t>(random, rows, 300);
      ids[0] = 0;
      ids[1] = static_cast<std::uint64_t>(rows - 1);
      for (std::size_t k = 2; k < 100; ++k) {  // around the borders of parts
        const index_t p = static_cast<index_t>(random() % static_cast<std::uint64_t>(parts));
        const index_t border = p * (rows / parts) + (std::min)(p, rows % parts);
        ids[k] = static_cast<std::uint64_t>((std::max)(index_t{0}, border - static_cast<index_t>(k % 2)));
      }
      bool same = true;
      REQUIRE(partition(inline_executor{}, ids, rows, parts, partition_strategy::div, out).ok());
      for (std::size_t k = 0; k < ids.size(); ++k) {
        const part_place at = partition_strategy::div_place(static_cast<index_t>(ids[k]), rows, parts);
        same &= out.part[k] == at.part &&
                out.ids[static_cast<std::size_t>(out.permutation[k])] == static_cast<std::uint64_t>(at.local);
      }
      REQUIRE(partition(inline_executor{}, ids, rows, parts, partition_strategy::mod, out).ok());
      for (std::size_t k = 0; k < ids.size(); ++k) {
        const part_place at = partition_strategy::mod_place(static_cast<index_t>(ids[k]), parts);
        same &= out.part[k] == at.part &&
                out.ids[static_cast<std::size_t>(out.permutation[k])] == static_cast<std::uint64_t>(at.local);
      }
      CHECK(same);
      ids[150] = std::uint64_t{1} << 63;  // reads as the lowest number
      CHECK(partition(inline_executor{}, ids, rows, parts, partition_strategy::mod, out).place() ==
            fault_place{.position = 150, .value = lowest});
    }
  }
}

TEST_CASE("H5: a negative id under mod partitioning touches no memory outside") {
  for (const fence side : {fence::before, fence::behind}) {
    fenced_resource memory(side);
    // The fence is real: one byte before (or behind) a block can't be read, so it can't be written.
    std::pmr::vector<std::byte> probe(64, &memory);
    CHECK(fenced_resource::is_fenced(side == fence::before ? probe.data() - 1 : probe.data() + 64));
    CHECK_FALSE(fenced_resource::is_fenced(probe.data()));
    const inline_executor here;
    context ctx(here);
    ctx.memory = &memory;
    for (const index_t parts : {1, 2, 3, 4, 16}) {
      std::pmr::vector<std::int64_t> ids({-1, 5, -2, -parts, lowest, 0, lowest + 1, 9, -parts - 1}, &memory);
      partitioned_ids<> out(&memory);
      const status s = partition(ctx, ids, 10, parts, partition_strategy::mod, out);
      CHECK(s.message() == "id out of range: partition: position 0, value -1");
      CHECK(partition(ctx, ids, 10, parts, partition_strategy::div, out).message() == s.message());
      index_t left_out = 0;
      REQUIRE(partition(ctx, ids, 10, parts, partition_strategy::mod, bounds::skip(left_out), out).ok());
      CHECK(left_out == 6);
      CHECK(agrees(std::vector<std::int64_t>(ids.begin(), ids.end()),
                   deal(10, parts, partition_strategy::mod), parts, out));
      REQUIRE(partition(ctx, ids, 10, parts, partition_strategy::div, bounds::skip, out).ok());
      CHECK(agrees(std::vector<std::int64_t>(ids.begin(), ids.end()),
                   deal(10, parts, partition_strategy::div), parts, out));
      std::pmr::vector<std::int64_t> all_bad(8, lowest, &memory);
      REQUIRE(partition(ctx, all_bad, 10, parts, partition_strategy::mod, bounds::skip, out).ok());
      CHECK(out.ids.empty());
    }
  }
}

TEST_CASE("partition: 1 to 8 threads give the same over many pieces, and the smallest bad slot") {
  std::mt19937_64 random(seed() + 333);
  for (const index_t parts : {3, 100, 100'000}) {
    const auto ids = some_ids<std::int32_t>(random, 1 << 20, 300'000);
    auto bad = ids;
    bad[70'000] = -4;
    bad[200'000] = -9;
    partitioned_ids<std::int32_t> expected, out;
    REQUIRE(partition(inline_executor{}, ids, 1 << 20, parts, partition_strategy::div, expected).ok());
    CHECK(agrees(ids, deal(1 << 20, parts, partition_strategy::div), parts, expected));
    for (const int threads : {1, 2, 3, 8}) {
      thread_pool pool(threads);
      REQUIRE(partition(pool, ids, 1 << 20, parts, partition_strategy::div, out).ok());
      CHECK(out.ids == expected.ids);
      CHECK(out.permutation == expected.permutation);
      CHECK(out.offsets == expected.offsets);
      CHECK(partition(pool, bad, 1 << 20, parts, partition_strategy::div, out).place().position == 70'000);
    }
  }
}

TEST_CASE("partition: what can't be is said") {
  const std::vector<std::int64_t> ids{1, 2};
  partitioned_ids<> out;
  CHECK(out.parts() == 0);
  CHECK(partition(inline_executor{}, ids, 10, 0, partition_strategy::mod, out).code() == errc::invalid_value);
  CHECK(partition(inline_executor{}, ids, -1, 2, partition_strategy::mod, out).code() == errc::invalid_value);
  CHECK(partition(inline_executor{}, ids, 10, index_t{1} << 31, partition_strategy::mod, out).code() ==
        errc::unsupported);
  REQUIRE(partition(inline_executor{}, ids, 10, 2, partition_strategy::mod, out).ok());
  CHECK(partition(inline_executor{}, out.ids, 10, 2, partition_strategy::mod, out).code() ==
        errc::unsupported);
}

TEST_CASE("partition: memory of the caller without room, null, or shared with the ids is refused") {
  const inline_executor here;
  std::vector<std::int64_t> ids{1, 2, 7}, local(3, -5);
  std::vector<std::int32_t> part(3, -5), permutation(3, -5), offsets(3, -5);
  using out = partition_out<std::int64_t, std::int32_t>;
  const out given{part, permutation, offsets, local};
  const auto code = [&](const out& to, index_t rows = 10) {
    return partition(here, ids, rows, 2, partition_strategy::mod, bounds::check, to).code();
  };
  CHECK(code({given.part.subview(0, 2), given.permutation, given.offsets, given.ids}) ==
        errc::shape_mismatch);
  CHECK(code({given.part, given.permutation.subview(0, 2), given.offsets, given.ids}) ==
        errc::shape_mismatch);
  CHECK(code({given.part, given.permutation, given.offsets.subview(0, 2), given.ids}) ==
        errc::shape_mismatch);
  CHECK(code({given.part, given.permutation, given.offsets, given.ids.subview(0, 2)}) ==
        errc::shape_mismatch);
  CHECK(code({{nullptr, 3}, given.permutation, given.offsets, given.ids}) == errc::shape_mismatch);
  CHECK(code({given.part, {nullptr, 3}, given.offsets, given.ids}) == errc::shape_mismatch);
  CHECK(code({given.part, given.permutation, {nullptr, 3}, given.ids}) == errc::shape_mismatch);
  CHECK(code({given.part, given.permutation, given.offsets, {nullptr, 3}}) == errc::shape_mismatch);
  CHECK(code({given.part, given.permutation, given.offsets, ids}) == errc::unsupported);
  CHECK(code(given, 7) == errc::id_out_of_range);
  CHECK(code(given, -1) == errc::invalid_value);
  CHECK(ids == std::vector<std::int64_t>{1, 2, 7});
  CHECK(local == std::vector<std::int64_t>(3, -5));
  for (const auto* const array : {&part, &permutation, &offsets}) {
    CHECK(*array == std::vector<std::int32_t>(3, -5));
  }
  const array_view<const std::int64_t> many(ids.data(), index_t{1} << 31);  // not read
  const out large{
      {part.data(), many.size()}, {permutation.data(), many.size()}, offsets, {local.data(), many.size()}};
  CHECK(partition(here, many, 10, 2, partition_strategy::mod, bounds::skip, large).code() ==
        errc::unsupported);
}

TEST_CASE("partition: an example in memory of the caller") {
  //! [partition_given]
  const std::vector<std::int64_t> ids{7, 1, 9, 4};
  std::vector<std::int32_t> part(4), permutation(4), offsets(4);
  std::vector<std::int64_t> local(4);
  const partition_out<std::int64_t, std::int32_t> out{part, permutation, offsets, local};
  partition(inline_executor{}, ids, 10, 3, partition_strategy::div, bounds::check, out).or_throw();
  CHECK(part == std::vector<std::int32_t>{2, 0, 2, 1});
  CHECK(local == std::vector<std::int64_t>{1, 0, 0, 2});
  CHECK(offsets == std::vector<std::int32_t>{0, 1, 2, 4});
  CHECK(permutation == std::vector<std::int32_t>{2, 0, 3, 1});
  //! [partition_given]
}

TEST_CASE("partition: an example") {
  //! [partition]
  const std::vector<std::int64_t> ids{7, 1, 9, 4};
  partitioned_ids<> out;
  partition(inline_executor{}, ids, 10, 3, partition_strategy::div, out).or_throw();
  CHECK(out.part == std::pmr::vector<std::int32_t>{2, 0, 2, 1});
  CHECK(out.ids == std::pmr::vector<std::int64_t>{1, 0, 0, 2});
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 1, 2, 4});
  CHECK(out.permutation == std::pmr::vector<index_t>{2, 0, 3, 1});
  //! [partition]
}
