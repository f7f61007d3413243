// Hazard H9: every number is a key of a growing table; none is reserved, none is another one.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "growing/twins.hpp"

using namespace growing_test;

namespace {

/// Ids of a user's own: 32 bits with a sign, and 64 bits without.
struct item_id {
  std::int32_t number;
  friend std::int32_t id_value(const item_id& id) noexcept { return id.number; }
};
struct user_id {
  std::uint64_t number;
  friend std::uint64_t id_value(const user_id& id) noexcept { return id.number; }
};
static_assert(StableGrowingRowSource<growing_rows<f32_rows>, item_id> &&
              StableGrowingRowSource<growing_rows<f32_rows>, user_id>);

constexpr index_t width = 6;
using limits = std::numeric_limits<std::int64_t>;

/// Ends of the types, and what other tables reserve: HKV's empty, reclaimed and locked keys (-1, -2, -3),
/// cuckoo and sparsehash's empty and deleted keys (0, -1); and what the codes of an index look like.
std::vector<std::int64_t> special_keys() {
  std::vector<std::int64_t> keys = {0,
                                    -1,
                                    -2,
                                    -3,
                                    -4,
                                    1,
                                    -128,
                                    limits::min(),
                                    limits::min() + 1,
                                    limits::max(),
                                    limits::max() - 1,
                                    0x7fff'ffff,
                                    0x8000'0000,
                                    0xffff'ffff,
                                    0x1'0000'0000,
                                    -0x8000'0000LL,
                                    -0x8000'0001LL,
                                    0xff00'0000,
                                    0xff00'0001,
                                    0x5a5a'5a5a'5a5a'5a5a,
                                    static_cast<std::int64_t>(0xaaaa'aaaa'aaaa'aaaaULL)};
  return keys;
}

/// What first_values writes.
std::vector<float> first_of(std::int64_t key) {
  std::vector<float> values(at(width));
  first_values(key, values.data(), width);
  return values;
}

constexpr std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int k = 0; k < 6; ++k) inverse *= 2 - odd * inverse;
  return inverse;
}
constexpr std::uint64_t unshifted(std::uint64_t x, int by) {
  std::uint64_t y = x;
  for (int k = by; k < 64; k += by) y = x ^ (y >> by);
  return y;
}
/// The number that mix64 maps to x.
constexpr std::uint64_t unmixed(std::uint64_t x) {
  x = unshifted(x, 31) * inverse_of(0x94d049bb133111eb);
  x = unshifted(x, 27) * inverse_of(0xbf58476d1ce4e5b9);
  return unshifted(x, 30);
}
static_assert(mix64(unmixed(0x0123'4567'89ab'cdef)) == 0x0123'4567'89ab'cdef);

/// The key that a table with this seed gives the hash h.
std::uint64_t key_with_hash(const detail::key_seed& seed, std::uint64_t h) {
  const detail::key_hash hash(seed);
  std::uint64_t x = unshifted(h, 32) * inverse_of(hash.second);
  x = unshifted(x, 29) * inverse_of(hash.first);
  const std::uint64_t key = unshifted(x, 32) ^ hash.start;
  REQUIRE(hash(key) == h);
  return key;
}

/// Every key has its row, with the values of its birth.
void check_all(const context_ref& ctx, growing_table<f32_rows>& table,
               const std::vector<std::uint64_t>& keys) {
  const auto n = static_cast<index_t>(keys.size());
  std::vector<float> out(at(n * width));
  REQUIRE(gather(ctx, table.rows(), keys, matrix_view<float>(out.data(), n, width)).ok());
  bool same = true;
  for (index_t k = 0; k < n; ++k) {
    const std::vector<float> expected = first_of(static_cast<std::int64_t>(keys[at(k)]));
    same = same && std::equal(expected.begin(), expected.end(), out.begin() + k * width);
  }
  CHECK(same);
}

template <class Id>
void insert(const context_ref& ctx, growing_table<f32_rows>& table, const std::vector<Id>& keys) {
  std::vector<const std::byte*> rows(keys.size());
  const auto pinned = table.rows().guard();
  REQUIRE(table.rows().insert(ctx, keys.data(), static_cast<index_t>(keys.size()), rows.data()).ok());
}

}  // namespace

TEST_CASE(
    "hazard H9: ends of the types and the reserved keys of other tables are keys, each with its own row") {
  const std::vector<std::int64_t> keys = special_keys();
  const auto n = static_cast<index_t>(keys.size());
  executors executor;
  for (const isa which : runnable_isas()) {
    for (const table_kind& kind : every_kind) {
      const context_ref ctx = on(executor.all()[3], which);
      const auto table = growing_of(f32_rows(width, room_for<adagrad>(width)), kind);
      const auto rows = resolve(ctx, table->rows(), fixed_hotness_view<>(keys.data(), n, 1), combiner::sum,
                                keys::find_or_insert);
      REQUIRE(rows.ok());
      CHECK(table->size() == n);
      std::vector<float> out(at(n * width));
      REQUIRE(lookup(ctx, rows.value(), matrix_view<float>(out.data(), n, width)).ok());
      for (index_t k = 0; k < n; ++k) {
        CHECK(std::vector<float>(out.begin() + k * width, out.begin() + (k + 1) * width) ==
              first_of(keys[at(k)]));
      }
      check_all(ctx, *table, {keys.begin(), keys.end()});
      // One key is trained: no other row changes.
      for (index_t k = 0; k < n; ++k) {
        std::vector<std::vector<float>> before, after;
        for (const std::int64_t key : keys) before.push_back(values_of(*table, key));
        const std::vector<float> slope(at(width), 1.0F);
        REQUIRE(update(ctx, table->rows(), fixed_hotness_view<>(keys.data() + k, 1, 1), combiner::sum,
                       matrix_view<const float>(slope.data(), 1, width), sgd{.learning_rate = 2.0F})
                    .ok());
        for (const std::int64_t key : keys) after.push_back(values_of(*table, key));
        for (index_t j = 0; j < width; ++j) before[at(k)][at(j)] -= 2;
        CHECK(before == after);
      }
      // One key is erased: the others stay.
      for (index_t k = 0; k < n; ++k) {
        const std::uint64_t key[] = {static_cast<std::uint64_t>(keys[at(k)])};
        CHECK(table->erase(ctx, key).value() == 1);
        CHECK(table->erase(ctx, key).value() == 0);
        for (index_t other = 0; other < n; ++other)
          CHECK(row_of(*table, keys[at(other)]).empty() == (other <= k));
      }
      insert(ctx, *table, keys);
      check_all(ctx, *table, {keys.begin(), keys.end()});
    }
  }
}

TEST_CASE("hazard H9: an id of 32 bits with a sign is the key of 64 bits with its value, one without too") {
  executors executor;
  const context_ref ctx(executor.all()[0]);
  const auto table = growing_of(f32_rows(width), every_kind[0]);
  const std::int32_t narrow[] = {-1, std::numeric_limits<std::int32_t>::min(), 0};
  const std::uint32_t positive[] = {0xffff'ffffU, 0x8000'0000U, 0};
  REQUIRE(resolve(ctx, table->rows(), fixed_hotness_view<std::int32_t>(narrow, 3, 1), combiner::sum,
                  keys::find_or_insert)
              .ok());
  CHECK(table->size() == 3);
  CHECK(row_of(*table, std::int64_t{-1}) == row_of(*table, std::int32_t{-1}));
  CHECK(row_of(*table, ~std::uint64_t{0}) == row_of(*table, std::int32_t{-1}));
  CHECK(row_of(*table, item_id{-1}) == row_of(*table, std::int32_t{-1}));
  CHECK(row_of(*table, user_id{~std::uint64_t{0}}) == row_of(*table, std::int32_t{-1}));
  CHECK(row_of(*table, static_cast<long long>(-1)) == row_of(*table, std::int32_t{-1}));
  CHECK(row_of(*table, 0xffff'ffffU).empty());
  CHECK(row_of(*table, std::int64_t{0xffff'ffff}).empty());
  CHECK(row_of(*table, std::int64_t{-0x8000'0000LL}) == row_of(*table, narrow[1]));
  REQUIRE(resolve(ctx, table->rows(), fixed_hotness_view<std::uint32_t>(positive, 3, 1), combiner::sum,
                  keys::find_or_insert)
              .ok());
  CHECK(table->size() == 5);  // 0 is one key
  CHECK(row_of(*table, std::int64_t{0xffff'ffff}) == row_of(*table, 0xffff'ffffU));
  CHECK(values_of(*table, 0xffff'ffffU) == first_of(0xffff'ffff));
  CHECK(values_of(*table, std::int32_t{-1}) == first_of(-1));
  const std::uint64_t gone[] = {~std::uint64_t{0}};
  CHECK(table->erase(ctx, gone).value() == 1);
  CHECK(row_of(*table, std::int32_t{-1}).empty());
  CHECK_FALSE(row_of(*table, 0xffff'ffffU).empty());
}

TEST_CASE("growing_table: ids of a class are looked up and trained as their numbers") {
  const sampled batch(40, width, 90, 1);
  std::vector<item_id> items;
  std::vector<user_id> users;
  std::vector<std::int64_t> numbers;
  for (const std::int64_t id : batch.made.ids) {
    numbers.push_back(id - 45);
    items.push_back({static_cast<std::int32_t>(id - 45)});
    users.push_back({static_cast<std::uint64_t>(id - 45)});
  }
  executors executor;
  const context_ref ctx(executor.all()[2]);
  const f32_rows format(width, room_for<adagrad>(width));
  const auto trained = [&](const auto& ids) {
    const auto table = growing_of(format, every_kind[0]);
    using id_type = typename std::remove_cvref_t<decltype(ids)>::value_type;
    const jagged_view<id_type> bags(batch.made.offsets.data(), 40, ids.data(),
                                    static_cast<index_t>(ids.size()));
    transcript found;
    std::vector<float> out(at(40 * width));
    for (int step = 0; step < 2; ++step) {
      auto rows = resolve(ctx, table->rows(), bags, combiner::mean, keys::find_or_insert);
      REQUIRE(rows.ok());
      found.add(lookup(ctx, rows.value(), matrix_view<float>(out.data(), 40, width)));
      found.add(out);
      found.add(update(ctx, rows.value(), batch.slope(), adagrad{}));
      found.add(update(ctx, table->rows(), bags, combiner::mean, batch.slope(), adagrad{}));
    }
    for (const std::int64_t number : numbers) found.add(row_of(*table, number));
    return found;
  };
  const transcript expected = trained(numbers);
  CHECK(trained(items) == expected);
  CHECK(trained(users) == expected);
}

TEST_CASE("growing_table: keys that collide under mix64 are keys as any others") {
  executors executor;
  std::vector<std::uint64_t> keys;
  for (std::uint64_t k = 0; k < 6000; ++k) {
    keys.push_back(unmixed((std::uint64_t{0xabcdef} << 40) | k));   // the upper bits
    keys.push_back(unmixed((k << 40) | std::uint64_t{0x1234567}));  // the lower bits
    keys.push_back(k << 44);
  }
  for (const isa which : runnable_isas()) {
    const context_ref ctx = on(executor.all()[2], which);
    const auto table = growing_of(f32_rows(width), every_kind[1]);
    insert(ctx, *table, keys);
    CHECK(table->size() == static_cast<index_t>(keys.size()));
    check_all(ctx, *table, keys);
    CHECK(table->statistics().index_bytes < 48 * table->size());
  }
}

TEST_CASE("growing_table: keys that collide under its own hash are found, however long their chain is") {
  executors executor;
  const table_kind kind = every_kind[0];
  std::vector<std::uint64_t> keys;
  for (std::uint64_t k = 0; k < 3000; ++k)
    keys.push_back(key_with_hash(kind.hash_seed(), 0xdead'beef'1200'0000 + 8 * k));
  for (const isa which : runnable_isas()) {
    const context_ref ctx = on(executor.all()[1], which);
    const auto table = growing_of(f32_rows(width), kind);
    const std::vector<std::uint64_t> first(keys.begin(), keys.begin() + 2000),
        rest(keys.begin() + 2000, keys.end());
    for (std::size_t from = 0; from < 2000; from += 50)
      insert(ctx, *table,
             std::vector<std::uint64_t>(first.begin() + static_cast<std::ptrdiff_t>(from),
                                        first.begin() + static_cast<std::ptrdiff_t>(from + 50)));
    check_all(ctx, *table, first);
    for (std::size_t k = 0; k < rest.size(); k += 100) CHECK(row_of(*table, rest[k]).empty());
    std::vector<std::uint64_t> odd, even;
    for (std::size_t k = 0; k < first.size(); ++k) (k % 2 == 1 ? odd : even).push_back(first[k]);
    CHECK(table->erase(ctx, odd).value() == 1000);
    check_all(ctx, *table, even);
    for (std::size_t k = 0; k < odd.size(); k += 100) CHECK(row_of(*table, odd[k]).empty());
    insert(ctx, *table, rest);
    insert(ctx, *table, odd);
    check_all(ctx, *table, keys);
    CHECK(table->erase(ctx, keys).value() == 3000);
    CHECK(table->size() == 0);
  }
}

TEST_CASE(
    "growing_table: more colliding keys than a segment holds are refused for memory, and nothing changes") {
  const table_kind kind = every_kind[0];
  std::vector<std::uint64_t> keys;
  for (std::uint64_t k = 0; k < 5600; ++k)
    keys.push_back(key_with_hash(kind.hash_seed(), 0xdead'beef'1200'0000 + 8 * k));
  inline_executor here;
  executor_ref executor(here);
  const context_ref ctx(executor);
  growing_table<f32_rows> table(f32_rows(width), first_values, kind.options(), kind.hash_seed());
  const std::vector<std::uint64_t> some(keys.begin(), keys.begin() + 5100),
      rest(keys.begin() + 5100, keys.end());
  insert(ctx, table, some);
  std::vector<const std::byte*> rows(rest.size());
  CHECK(table.rows().insert(ctx, rest.data(), 500, rows.data()).code() == errc::out_of_memory);
  CHECK(table.size() == 5100);
  check_all(ctx, table, some);
  CHECK(row_of(table, rest[0]).empty());
}
