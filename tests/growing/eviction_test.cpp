// Eviction: which rows go, exactly; that readers keep them; and that nothing of them comes back.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/seed.hpp"

#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table_type = growing_table<f32_rows>;
using keys_type = std::vector<key_type>;
constexpr index_t width = 4;

struct made : table_type {
  explicit made(growing_options options = {.granule_bytes = 4096})
      : table_type(f32_rows(width, {.state_floats = width}), first_values, options) {}
};
/// Trains keys at a step.
void train_at(table_type& table, std::uint64_t step, const keys_type& keys) {
  table.begin_step(step);
  REQUIRE(train(table, keys).ok());
}
template <class Policy>
index_t evict(table_type& table, const Policy& policy, std::uint64_t kept_steps = 1) {
  inline_executor here;
  const index_t before = table.size();
  const auto gone = evict_rows(here, table, policy, kept_steps);
  REQUIRE(gone.ok());
  CHECK(table.size() == before - gone.value());  // what it returns is what vanished
  return gone.value();
}
/// Four rows for each of the steps 10, 11, 12, 13.
void fill(table_type& table) {
  for (std::uint64_t step = 10; step < 14; ++step) train_at(table, step, keys_from(100 * step, 4));
}

TEST_CASE("eviction: step_ttl takes what is older than its steps, and nothing that is exactly as old") {
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
    made table;
    train_at(table, first + 10, {1, 2});
    train_at(table, first + 11, {3});
    table.begin_step(first + 20);
    CHECK(evict(table, evict::step_ttl{10}) == 0);
    CHECK(evict(table, evict::step_ttl{std::numeric_limits<std::uint64_t>::max()}) == 0);
    CHECK(evict(table, evict::step_ttl{9}) == 2);
    CHECK(keys_in(table) == keys_type{3});
    CHECK(evict(table, evict::step_ttl{9}) == 0);
    CHECK(evict(table, evict::step_ttl{8}) == 1);
    CHECK(evict(table, evict::step_ttl{0}) == 0);
  }
}

TEST_CASE("eviction: rows of the last kept_steps steps stay, whatever the policy") {
  const auto every = [](const evictee&) { return true; };
  const auto all_policies = [&](std::uint64_t kept, index_t left) {
    CAPTURE(kept);
    const auto left_by = [&](const auto& policy) {
      made table;
      fill(table);
      evict(table, policy, kept);
      return table.size();
    };
    CHECK(left_by(every) == left);
    CHECK(left_by(evict::least_recent{0}) == left);
    CHECK(left_by(evict::least_frequent{0}) == left);
    CHECK(left_by(evict::l2_below{1e30F}) == left);
  };
  all_policies(0, 0);
  all_policies(1, 4);
  all_policies(2, 8);
  all_policies(4, 16);
  all_policies(std::numeric_limits<std::uint64_t>::max(), 16);
  made table;
  fill(table);
  CHECK(evict(table, evict::step_ttl{0}, 0) == 12);
  CHECK(evict(table, every) == 0);
  CHECK(evict(table, every, 0) == 4);
  CHECK(evict(table, every, 0) == 0);  // an empty table
}

TEST_CASE("hazard H7: least_frequent takes the fewest positions, ties by step and key, as a sort does") {
  for (const bool by_frequency : {false, true}) {
    const auto left_of = [&](index_t rows_left) {
      made table;
      train_at(table, 1, {50, 9, static_cast<key_type>(-1), 7, 7, 1ULL << 63, 8});
      train_at(table, 2, {7, 3, 8, 2, static_cast<key_type>(-2)});
      table.begin_step(3);
      if (by_frequency) {
        evict(table, evict::least_frequent{rows_left});
      } else {
        evict(table, evict::least_recent{rows_left});
      }
      const keys_type left = keys_in(table);
      return std::set<key_type>(left.begin(), left.end());
    };
    // Once each: 9, 50, 2^63, -1 at step 1, then 2, 3, -2 at step 2; 8 twice, 7 three times, at step 2.
    keys_type order = {9, 50, 1ULL << 63, static_cast<key_type>(-1), 2, 3};
    if (by_frequency) {
      order.insert(order.end(), {static_cast<key_type>(-2), 8, 7});
    } else {
      order.insert(order.end(), {7, 8, static_cast<key_type>(-2)});
    }
    for (index_t left = 0; left <= 9; ++left)
      CHECK(left_of(left) == std::set<key_type>(order.end() - left, order.end()));
    CHECK(left_of(-5) == left_of(0));
    CHECK(left_of(10).size() == 9);
    CHECK(left_of(std::numeric_limits<index_t>::max()).size() == 9);
    CHECK(left_of(std::numeric_limits<index_t>::min()).empty());
  }
}

TEST_CASE("eviction: rows that were never updated have the step of their birth, and come no time") {
  made table;
  table.begin_step(5);
  REQUIRE(insert(table, {1, 1, 1, 2}).ok());  // resolved, and never trained
  train_at(table, 6, {3, 4, 4});
  table.begin_step(7);
  std::vector<row_record> seen;
  CHECK(evict(table, [&](const evictee& row) {
          seen.push_back({row.key, {}, {}, row.step, row.frequency});
          return false;
        }) == 0);
  const std::vector<row_record> expected = {
      {1, {}, {}, 5, 0}, {2, {}, {}, 5, 0}, {3, {}, {}, 6, 1}, {4, {}, {}, 6, 2}};
  CHECK(seen == expected);
  CHECK(evict(table, evict::least_frequent{2}) == 2);
  CHECK(keys_in(table) == keys_type{3, 4});
  // A row that is resolved but not yet updated belongs to the step that goes on.
  inline_executor here;
  const keys_type newest = {10, 11};
  const auto rows = resolve_new(context(here), table, newest);
  REQUIRE(rows.ok());
  CHECK(evict(table, evict::least_recent{0}) == 2);
  REQUIRE(step_rows(rows.value()).ok());
  CHECK(keys_in(table) == newest);
}

TEST_CASE("eviction: l2_below takes rows below its threshold; NaN and what is equal stay") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {
      {2, 0, 0, 0},   {0, 0, 0, 0},      {1, 1, 1, 1},     {1, 1, 1, 0.5F},  {nan, 0, 0, 0}, {0, 0, 0, nan},
      {inf, 0, 0, 0}, {-inf, 0, 0, inf}, {inf, nan, 0, 0}, {1e30F, 0, 0, 0}, {-2, 0, 0, 0}};
  const auto left_of = [&](float threshold) {
    table_type table(f32_rows(width), [&](index_t key, float* values, index_t) {
      std::copy_n(rows[static_cast<std::size_t>(key)].begin(), width, values);
    });
    REQUIRE(insert(table, keys_from(0, rows.size())).ok());
    table.begin_step(0);
    table.begin_step(1);
    evict(table, evict::l2_below{threshold});
    return keys_in(table);
  };
  CHECK(left_of(2) ==
        keys_type{0, 2, 4, 5, 6, 7, 8, 9, 10});  // half of the sums of squares of 1 and 3 is less
  CHECK(left_of(std::nextafter(2.0F, 3.0F)) == keys_type{4, 5, 6, 7, 8, 9});
  CHECK(left_of(0) == keys_from(0, rows.size()));
  CHECK(left_of(-1) == keys_from(0, rows.size()));
  CHECK(left_of(nan) == keys_from(0, rows.size()));
  CHECK(left_of(inf) == keys_type{4, 5, 6, 7, 8, 9});  // infinite sums are not below
}

TEST_CASE("eviction: the same rows go for any number of threads, and their numbers come back alike") {
  CAPTURE(deeprec_test::seed());
  const auto run = [&](int n, int kind) {
    std::mt19937_64 random(deeprec_test::seed());
    thread_pool pool(threads(n));
    made table;
    for (std::uint64_t step = 1; step < 12; ++step) {
      keys_type keys(1000);
      for (key_type& key : keys) key = mix64(random() % 5000);
      train_at(table, step, keys);
    }
    const auto gone = kind == 0   ? evict_rows(pool, table, evict::least_recent{1500})
                      : kind == 1 ? evict_rows(pool, table, evict::least_frequent{700})
                      : kind == 2 ? evict_rows(pool, table, evict::l2_below{1.0F})
                      : kind == 3
                          ? evict_rows(pool, table, evict::step_ttl{4})
                          : evict_rows(pool, table, [](const evictee& row) { return row.key % 7 < 3; });
    REQUIRE(gone.ok());
    CHECK(gone.value() > 100);
    REQUIRE(insert(context(pool), table, keys_from(1, 3000)).ok());
    return content_of(table);
  };
  for (int kind = 0; kind < 5; ++kind) {
    const table_content expected = run(1, kind);
    for (const int n : {2, 3, 7}) CHECK(run(n, kind) == expected);
  }
}

TEST_CASE("eviction: rows that readers hold keep their values, and their numbers are not used again") {
  inline_executor here;
  for (const bool with_default : {false, true}) {
    made table;
    if (with_default) REQUIRE(table.default_row(std::vector<float>(width, 9.0F)).ok());
    CHECK((table.rows().default_row() == nullptr) == !with_default);
    fill(table);
    const keys_type keys = keys_from(1000, 4);
    const auto held = resolve(here, table.rows(), one_hot(keys), combiner::sum);
    REQUIRE(held.ok());
    std::vector<const std::byte*> rows(4);
    table.rows().find(keys.data(), 4, rows.data());
    std::vector<float> before(4 * width), after(4 * width), absent(4 * width);
    const matrix_view<float> to(after.data(), 4, width);
    for (std::size_t r = 0; r < 4; ++r) std::memcpy(&before[r * width], rows[r], width * sizeof(float));
    table.begin_step(100);
    CHECK(evict(table, evict::least_recent{0}) == 16);
    CHECK(table.statistics().waiting_rows == 16);
    for (std::uint64_t step = 101; step < 110; ++step) train_at(table, step, keys_from(5000 * step, 60));
    for (std::size_t r = 0; r < 4; ++r)
      CHECK(std::memcmp(&before[r * width], rows[r], width * sizeof(float)) == 0);
    REQUIRE(lookup(here, held.value(), to).ok());
    CHECK(after == before);
    // For everyone else they are gone.
    const status s = lookup(here, table.rows(), one_hot(keys), combiner::sum, to);
    if (with_default) {
      REQUIRE(s.ok());
      CHECK(after == std::vector<float>(4 * width, 9.0F));
    } else {
      CHECK(s.code() == errc::id_out_of_range);
      CHECK(s.place().position == 0);
    }
  }
}

TEST_CASE(
    "eviction: a key that comes back has first values, no state, no frequency, and the step of its birth") {
  inline_executor here;
  const keys_type keys = keys_from(0, 40);
  const auto train_much = [&](table_type& table) {
    const auto rows = resolve_new(context(here), table, keys);
    REQUIRE(rows.ok());
    const std::vector<float> slopes(keys.size() * width, 3.0F);
    for (int i = 0; i < 5; ++i) {
      REQUIRE(update(here, rows.value(), matrix_view<const float>(slopes.data(), 40, width), adagrad{}).ok());
    }
  };
  made fresh;
  fresh.begin_step(9);
  REQUIRE(insert(fresh, keys).ok());
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    made table(
        {.most_rows = way == 2 ? 40 : 1000, .full = when_full::evict_least_recent, .granule_bytes = 4096});
    train_much(table);
    CHECK(content_of(table).rows[0].frequency == 5);
    CHECK(content_of(table).rows[0].state[0] > 0);
    table.begin_step(8);
    if (way == 0) CHECK(evict(table, evict::least_recent{0}, 0) == 40);
    if (way == 1) CHECK(table.erase(here, keys).value() == 40);
    if (way == 2) {
      table.begin_step(9);
      REQUIRE(insert(table, keys_from(1000, 40)).ok());
      CHECK(table.erase(here, keys_from(1000, 40)).value() == 40);
    }
    table.begin_step(9);
    REQUIRE(insert(table, keys).ok());
    CHECK(content_of(table) == content_of(fresh));
    train_much(table);
    CHECK(content_of(table).rows[0].frequency == 5);
  }
}

TEST_CASE(
    "eviction: an update of rows that were erased since they were resolved is lost, and harms nothing") {
  inline_executor here;
  for (const bool comes_back : {false, true}) {
    made table;
    const keys_type keys = keys_from(0, 20);
    train_at(table, 1, keys);
    std::optional rows(resolve_new(context(here), table, keys));
    REQUIRE(rows->ok());
    table.begin_step(2);
    REQUIRE(table.erase(here, keys_from(0, 10)).value() == 10);
    if (comes_back) REQUIRE(insert(table, keys_from(0, 5)).ok());
    const table_content before = content_of(table);
    REQUIRE(step_rows(rows->value()).ok());
    table_content expected = before;
    for (row_record& row : expected.rows) {
      if (row.key < 10) continue;
      for (float& x : row.values) x -= 0.125F;
      row.step = 2;
      ++row.frequency;
    }
    CHECK(content_of(table) == expected);
    rows.reset();
    // What is born in those rows has nothing of the lost steps.
    REQUIRE(insert(table, keys_from(500, 10)).ok());
    for (const row_record& row : content_of(table).rows) {
      if (row.key < 500) continue;
      CHECK(row == row_record{row.key, first_values_of(row.key, width), std::vector<float>(width), 2, 0});
    }
  }
}

TEST_CASE("eviction: a full table makes room, but never takes rows of the step that goes on") {
  for (const when_full full : {when_full::evict_least_recent, when_full::evict_least_frequent}) {
    made table({.most_rows = 100, .full = full, .granule_bytes = 4096});
    train_at(table, 1, keys_from(0, 60));
    train_at(table, 2, keys_from(100, 30));
    train_at(table, 2, keys_from(200, 50));  // 40 of step 1 go
    CHECK(table.size() == 100);
    CHECK(table.statistics().evicted == 40);
    CHECK(keys_in(table).front() == 40);     // ties by key: 40 .. 59 stay
    train_at(table, 2, keys_from(300, 50));  // 20 go, 30 are refused
    CHECK(table.size() == 100);
    CHECK(table.statistics().refused == 30);
    for (const key_type key : keys_from(100, 30)) CHECK(holds(table, key));
    CHECK(holds(table, 319));
    CHECK_FALSE(holds(table, 320));
    train_at(table, 2, {400});
    CHECK(table.statistics().refused == 31);
    CHECK(table.statistics().evicted == 60);
    train_at(table, 3, {400});  // a thirty-second of the rows at once
    CHECK(holds(table, 400));
    CHECK(table.statistics().evicted == 63);
    CHECK(table.size() == 98);
    // A batch that is larger than the table.
    train_at(table, 4, keys_from(10'000, 250));
    CHECK(table.size() == 100);
    CHECK(keys_in(table).size() == 100);
    for (const key_type key : keys_from(10'000, 100)) CHECK(holds(table, key));
    CHECK(table.statistics().refused == 181);
  }
}

TEST_CASE("eviction: the rows of a batch make no room for its new keys") {
  inline_executor here;
  const auto holds_only = [](table_type& table, const std::set<key_type>& keys) {
    const keys_type all = keys_in(table);
    return std::set<key_type>(all.begin(), all.end()) == keys;
  };
  for (const when_full full : {when_full::evict_least_recent, when_full::evict_least_frequent}) {
    made table({.most_rows = 4, .full = full, .granule_bytes = 4096});
    train_at(table, 1, {1, 2, 3, 4});
    table.begin_step(2);
    const keys_type keys = {2, 5, 1, 6};  // 1 and 2 would be the first to go
    std::vector<const std::byte*> rows(keys.size());
    REQUIRE(table.rows().insert(context(here), keys.data(), 4, rows.data()).ok());
    CHECK(holds_only(table, {1, 2, 5, 6}));
    for (std::size_t k = 0; k < keys.size(); ++k) CHECK(rows[k] == address_of(table, keys[k]));

    train_at(table, 3, {1, 2, 5, 5, 5, 6, 6, 6});
    table.begin_step(4);
    const keys_type one = {1, 7};  // 2 goes, not 1
    REQUIRE(resolve_new(context(here), table, one).ok());
    CHECK(holds_only(table, {1, 5, 6, 7}));

    // Features of a group: none of them loses what another one found.
    train_at(table, 5, {1, 5, 6, 7});
    table.begin_step(6);
    feature_group<sgd, fixed_hotness_view<key_type>> group;
    group.add(table.rows(), combiner::sum);
    group.add(table.rows(), combiner::sum);
    const keys_type first = {8, 9}, second = {1, 5};
    const fixed_hotness_view<key_type> batches[] = {{first.data(), 1, 2}, {second.data(), 1, 2}};
    REQUIRE(resolve(here, group, batches, keys::find_or_insert).ok());
    CHECK(holds_only(table, {1, 5, 8, 9}));
  }
}

}  // namespace
