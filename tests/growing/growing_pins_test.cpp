// Growing tables and their readers: rows stay while a pin is as old; memory is what statistics say, and
// bounded.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "support/seed.hpp"

#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table_type = growing_table<f32_rows>;
constexpr index_t width = 6;

std::unique_ptr<table_type> made(growing_options options = {.granule_bytes = 4096}) {
  return std::make_unique<table_type>(f32_rows(width), first_values, options);
}
std::vector<float> looked_up(const auto& rows) {
  inline_executor here;
  const index_t bags = rows.bags().bags();
  std::vector<float> out(static_cast<std::size_t>(bags * width));
  lookup(here, rows, matrix_view<float>(out.data(), bags, width)).or_throw();
  return out;
}
std::vector<float> values_at(const std::byte* row) {
  std::vector<float> values(static_cast<std::size_t>(width));
  std::memcpy(values.data(), row, values.size() * sizeof(float));
  return values;
}
/// Rows that were ever taken from granules, whether they are live, wait, or are free.
index_t numbers_taken(table_type& table) {
  index_t all = 0;
  const detail::row_store& rows = table.state().rows;
  for (index_t g = 0; g < rows.granule_count(); ++g) all += rows.facts_of_granule(g).count;
  return all;
}

TEST_CASE("growing table: a pin that is never dropped keeps rows and memory, and nobody waits for it") {
  inline_executor here;
  const auto table = made();
  REQUIRE(train(*table, keys_from(0, 100)).ok());
  auto pin = std::make_unique<reclaimer::pin>(table->rows().guard());
  const std::byte* const first = address_of(*table, 7);
  const std::vector<float> values = values_at(first);
  index_t waiting = 0;
  for (std::uint64_t step = 1; step <= 40; ++step) {
    table->begin_step(step);
    REQUIRE(train(*table, keys_from(1000 * step, 100)).ok());
    const auto gone = evict_rows(here, *table, evict::least_recent{20});
    REQUIRE(gone.ok());
    waiting += gone.value();
    const growing_statistics now = table->statistics();
    CHECK(now.rows == table->size());
    CHECK(now.waiting_rows == waiting);
    CHECK(now.pins == 1);
    CHECK(numbers_taken(*table) == now.rows + now.waiting_rows);
  }
  CHECK(waiting >= 100);
  CHECK_FALSE(holds(*table, 7));
  CHECK(values_at(first) == values);
  const index_t bytes = table->statistics().row_bytes;
  pin.reset();
  CHECK(table->statistics().pins == 0);
  CHECK(table->statistics().waiting_rows == waiting);  // until something is inserted
  REQUIRE(train(*table, keys_from(100'000, static_cast<std::size_t>(waiting))).ok());
  CHECK(table->statistics().waiting_rows == 0);
  CHECK(table->statistics().row_bytes == bytes);  // the rows that waited are used again
}

TEST_CASE("growing table: a batch that was resolved reads its rows over growth, eviction and other batches") {
  for (const int pool_threads : {1, 3}) {
    thread_pool pool(threads(pool_threads));
    const auto table = made();
    const auto keys = keys_from(0, 200, 5);
    REQUIRE(train(*table, keys).ok());
    table->begin_step(1);
    std::optional rows(resolve_new(context(pool), *table, keys));
    REQUIRE(rows->ok());
    const std::vector<float> before = looked_up(rows->value());
    REQUIRE(insert(context(pool), *table, keys_from(1'000'000, 20'000)).ok());  // segments split
    CHECK(looked_up(rows->value()) == before);
    table->begin_step(5);
    REQUIRE(evict_rows(pool, *table, evict::least_recent{0}).ok());
    CHECK(table->size() == 0);
    for (int batch = 0; batch < 10; ++batch) {
      REQUIRE(train(*table, keys_from(2'000'000, 3000, 7), 3).ok());
      REQUIRE(table->erase(pool, keys_from(2'000'000, 1500, 14)).ok());
      CHECK(looked_up(rows->value()) == before);
    }
    REQUIRE(insert(context(pool), *table, keys).ok());  // the same keys, other rows
    CHECK(looked_up(rows->value()) == before);
    // Its step is lost: the keys have newer rows.
    const table_content held = content_of(*table);
    REQUIRE(step_rows(rows->value()).ok());
    CHECK(content_of(*table) == held);
    CHECK(looked_up(rows->value()) != before);
    CHECK(table->statistics().pins == 1);
    rows.reset();
    CHECK(table->statistics().pins == 0);
  }
}

TEST_CASE("growing table: a guard may end on another thread, and only then rows are used again") {
  inline_executor here;
  const auto table = made();
  const auto keys = keys_from(0, 50);
  REQUIRE(train(*table, keys).ok());
  std::optional rows(resolve_new(context(here), *table, keys));
  auto guard = table->rows().guard();
  CHECK(table->statistics().pins == 2);
  REQUIRE(table->erase(here, keys).ok());
  std::thread([moved = std::move(guard)] {}).join();
  CHECK(table->statistics().pins == 1);
  REQUIRE(train(*table, keys_from(100, 10)).ok());
  CHECK(table->statistics().waiting_rows == 50);
  std::thread([&] { rows.reset(); }).join();
  CHECK(table->statistics().pins == 0);
  REQUIRE(train(*table, keys_from(200, 10)).ok());
  CHECK(table->statistics().waiting_rows == 0);
  CHECK(numbers_taken(*table) == 60);
}

TEST_CASE("growing table: more guards than a reclaimer has places are counted, and each keeps rows") {
  inline_executor here;
  const auto table = made();
  REQUIRE(train(*table, keys_from(0, 50)).ok());
  std::vector<reclaimer::pin> guards;
  for (int g = 0; g < 150; ++g) guards.push_back(table->rows().guard());
  CHECK(table->statistics().pins == 150);
  REQUIRE(table->erase(here, keys_from(0, 50)).ok());
  for (key_type key = 1000; !guards.empty(); key += 10) {
    REQUIRE(train(*table, keys_from(key, 3)).ok());
    CHECK(table->statistics().waiting_rows == 50);
    guards.resize(guards.size() - 15);
  }
  REQUIRE(train(*table, keys_from(5000, 3)).ok());
  CHECK(table->statistics().waiting_rows == 0);
}

TEST_CASE("growing table: finds beside insertions, erasures and evictions see rows of their keys, or none") {
  const auto table = made({.most_rows = 3000, .full = when_full::evict_least_recent, .granule_bytes = 4096});
  constexpr key_type range = 8000;
  std::atomic<bool> ends{false};
  std::atomic<std::uint64_t> seen{0}, wrong{0};
  std::vector<std::thread> readers;
  for (std::uint64_t r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937_64 random(deeprec_test::seed() + r);
      std::vector<key_type> keys(300);
      std::vector<const std::byte*> rows(keys.size());
      do {
        for (key_type& key : keys) key = random() % range;
        const auto source = table->rows();
        const auto pin = source.guard();
        source.find(keys.data(), 300, rows.data());
        for (std::size_t k = 0; k < keys.size(); ++k) {
          if (rows[k] == nullptr) continue;
          ++seen;
          if (values_at(rows[k]) != first_values_of(keys[k], width)) ++wrong;
        }
      } while (!ends.load());
    });
  }
  std::mt19937_64 random(deeprec_test::seed());
  thread_pool pool(threads(2));
  for (std::uint64_t step = 1; step <= 150; ++step) {
    table->begin_step(step);
    std::vector<key_type> keys(400);
    for (key_type& key : keys) key = random() % range;
    REQUIRE(insert(context(pool), *table, keys).ok());
    keys.resize(50);
    REQUIRE(table->erase(pool, keys).ok());
    if (step % 20 == 0) REQUIRE(evict_rows(pool, *table, evict::least_recent{1000}).ok());
  }
  ends.store(true);
  for (std::thread& reader : readers) reader.join();
  CHECK(seen.load() > 0);
  CHECK(wrong.load() == 0);
}

// --- memory

TEST_CASE(
    "growing table: statistics count every byte that the table has from its resource, after every call") {
  for (const index_t granule : {index_t{4096}, index_t{2} << 20}) {
    for (const int filter : {0, 1, 2, 3}) {
      CAPTURE(deeprec_test::seed());
      CAPTURE(filter);
      std::mt19937_64 random(deeprec_test::seed() + static_cast<std::uint64_t>(filter));
      allowance allowed;
      refusing_resource memory(allowed);
      inline_executor here;
      {
        const auto table = made({.most_rows = 2000,
                                 .full = when_full::evict_least_frequent,
                                 .granule_bytes = granule,
                                 .memory = &memory});
        const auto exact = [&] {
          const growing_statistics now = table->statistics();
          return now.index_bytes + now.row_bytes + now.filter_bytes == static_cast<index_t>(memory.held);
        };
        CHECK(exact());
        if (filter == 1) REQUIRE(table->admit_by(filters::counting_bloom{2, 5000, 0.1}).ok());
        if (filter == 2) REQUIRE(table->admit_by(filters::counting_bloom{300, 500, 0.1}).ok());
        if (filter == 3) REQUIRE(table->admit_by(filters::counter{2}).ok());
        CHECK(exact());
        REQUIRE(table->default_row(std::vector<float>(static_cast<std::size_t>(width))).ok());
        CHECK(exact());
        std::vector<reclaimer::pin> guards;
        for (std::uint64_t step = 1; step < 60; ++step) {
          table->begin_step(step);
          std::vector<key_type> keys(random() % 900);
          for (key_type& key : keys) key = random() % (200 * step);
          REQUIRE(train(*table, keys).ok());
          CHECK(exact());
          if (step % 7 == 0) REQUIRE(evict_rows(here, *table, evict::step_ttl{3}).ok());
          if (step % 5 == 0) REQUIRE(table->erase(here, keys).ok());
          CHECK(exact());
          if (step % 6 == 0) guards.push_back(table->rows().guard());
          if (step % 13 == 0) guards.clear();
        }
        CHECK((table->statistics().rows > 0 || filter == 2));
      }
      CHECK(memory.held == 0);
    }
  }
}

TEST_CASE("growing table: rows take their bytes, a hundredth and a granule at most") {
  allowance allowed;
  refusing_resource memory(allowed);
  constexpr index_t granule = index_t{2} << 20;
  for (const index_t floats : {1, 5, 16, 64, 257}) {
    table_type table(f32_rows(floats, {.state_floats = floats}), first_values, {.memory = &memory});
    const index_t each = table.format().stride_bytes() + 16;
    for (key_type first = 0; first < 8000; first += 800) {
      REQUIRE(insert(table, keys_from(first, 800)).ok());
      const growing_statistics now = table.statistics();
      CHECK(now.rows * each <= now.row_bytes);
      CHECK(now.row_bytes <= now.rows * each + now.rows * each / 100 + granule);
    }
    inline_executor here;
    const auto pin = table.rows().guard();
    REQUIRE(table.erase(here, keys_from(0, 6000)).ok());
    REQUIRE(insert(table, keys_from(20'000, 5000)).ok());
    const growing_statistics now = table.statistics();
    const index_t bytes =
        (now.rows + now.waiting_rows) * (each + 4 + 4);  // a number that waits, and room to free it
    CHECK(now.waiting_rows == 6000);
    CHECK(now.row_bytes <= bytes + bytes / 100 + granule + 2 * 4 * 6000);
  }
}

TEST_CASE("growing table: keys that a filter or a full table refuses keep a granule more at most") {
  allowance allowed;
  refusing_resource memory(allowed);
  const auto table = made({.most_rows = 1000, .granule_bytes = 4096, .memory = &memory});
  const auto granules = [&] { return (table->statistics().row_bytes - 4000) / 4096; };
  const index_t per_granule = table->state().rows.rows_per_granule();
  REQUIRE(table->admit_by(filters::counting_bloom{2, 100'000, 0.01}).ok());
  REQUIRE(insert(*table, keys_from(0, 5000)).ok());
  CHECK(table->size() == 0);
  CHECK(granules() <= 1);
  REQUIRE(table->admit_by(std::unique_ptr<admission_filter>()).ok());
  REQUIRE(insert(*table, keys_from(0, 5000)).ok());
  CHECK(table->size() == 1000);
  CHECK(table->statistics().refused == 4000);
  CHECK(granules() <= (1000 + per_granule - 1) / per_granule + 1);
  // A full table needs no memory for what it refuses.
  allowed.left = 0;
  CHECK(insert(*table, keys_from(0, 50'000)).ok());
  CHECK(table->statistics().refused == 53'000);
}

TEST_CASE("growing table: a full table that evicts holds its rows, one batch more, and what pins hold") {
  for (const when_full full : {when_full::evict_least_recent, when_full::evict_least_frequent}) {
    for (const index_t most : {10, 1000}) {
      const auto table = made({.most_rows = most, .full = full, .granule_bytes = 4096});
      constexpr std::size_t batch = 90;
      index_t index_bytes = 0, row_bytes = 0;
      for (std::uint64_t step = 1; step <= 400; ++step) {
        table->begin_step(step);
        REQUIRE(train(*table, keys_from(step * 60, batch)).ok());  // a third of them are there
        const growing_statistics now = table->statistics();
        CHECK(now.rows <= most);
        CHECK(numbers_taken(*table) <= most + index_t{batch});
        if (step == 200) {
          index_bytes = now.index_bytes;
          row_bytes = now.row_bytes;
        }
      }
      CHECK(table->statistics().index_bytes <= index_bytes + (index_t{2} << 16));  // chunks of 64 KB
      CHECK(table->statistics().row_bytes == row_bytes);
      const auto pin = table->rows().guard();
      for (std::uint64_t step = 401; step <= 450; ++step) {
        table->begin_step(step);
        REQUIRE(train(*table, keys_from(step * 60, batch)).ok());
        const growing_statistics now = table->statistics();
        CHECK(now.rows <= most);
        CHECK(numbers_taken(*table) <= most + index_t{batch} + now.waiting_rows);
      }
    }
  }
}

}  // namespace
