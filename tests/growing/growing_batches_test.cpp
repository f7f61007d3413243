// Batches at their limits: one key a million times, no keys, keys that the table does not hold.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

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

constexpr index_t width = 4, million = 1'000'000;

/// The frequency of the row of a key, and whether the sweep saw each row once.
std::uint32_t frequency_of(const context_ref& ctx, growing_table<f32_rows>& table, std::uint64_t key) {
  std::atomic<std::uint32_t> found{0};
  std::atomic<index_t> seen{0};
  const auto look = [&](const evictee& row) {
    ++seen;
    if (row.key == key) found = row.frequency;
    return false;
  };
  CHECK(evict_rows(ctx, table, look, 0).value() == 0);
  CHECK(seen == table.size());
  return found;
}

}  // namespace

TEST_CASE("growing_table: a key a million times in a batch has one row, one step, and a million positions") {
  const std::vector<std::int64_t> ids(at(million), -7);
  const index_t bags = 1000;
  const fixed_hotness_view<> batch(ids.data(), bags, million / bags);
  std::vector<float> gradient(at(bags * width));
  std::mt19937_64 random(seed());
  std::normal_distribution<float> normal;
  for (float& g : gradient) g = normal(random);
  const matrix_view<const float> slope(gradient.data(), bags, width);
  const std::vector<std::int64_t> zeros(at(million), 0);
  const fixed_hotness_view<> of_dense(zeros.data(), bags, million / bags);
  const f32_rows format(width, room_for<adagrad>(width));
  executors executor;
  for (const int e : {0, 2, 4}) {
    const context_ref ctx(executor.all()[static_cast<std::size_t>(e)]);
    const auto table = growing_of(format, every_kind[e % 4]);
    auto rows = resolve(ctx, table->rows(), batch, combiner::sum, keys::find_or_insert);
    REQUIRE(rows.ok());
    CHECK(table->size() == 1);
    CHECK(frequency_of(ctx, *table, static_cast<std::uint64_t>(-7)) == 0);  // it was not trained
    auto dense = dense_of(format, 1);
    std::vector<float> values(at(width));
    first_values(-7, values.data(), width);
    format.encode(values.data(), dense.view().row(0));
    std::vector<float> out(at(bags * width)), expected(out.size());
    REQUIRE(lookup(ctx, rows.value(), matrix_view<float>(out.data(), bags, width)).ok());
    REQUIRE(
        lookup(ctx, dense.view(), of_dense, combiner::sum, matrix_view<float>(expected.data(), bags, width))
            .ok());
    CHECK(out == expected);
    REQUIRE(update(ctx, rows.value(), slope, adagrad{}).ok());
    REQUIRE(update(ctx, dense.view(), of_dense, combiner::sum, slope, adagrad{}).ok());
    CHECK(row_of(*table, -7) == row_of(dense, 0));
    CHECK(frequency_of(ctx, *table, static_cast<std::uint64_t>(-7)) == static_cast<std::uint32_t>(million));
    // The gradient is the sum of all: exact in whole numbers.
    const std::vector<float> ones(at(bags * width), 1.0F);
    const std::vector<float> before = values_of(*table, -7);
    REQUIRE(update(ctx, table->rows(), batch, combiner::sum,
                   matrix_view<const float>(ones.data(), bags, width), sgd{.learning_rate = 1.0F})
                .ok());
    const std::vector<float> after = values_of(*table, -7);
    for (index_t j = 0; j < width; ++j) CHECK(after[at(j)] == before[at(j)] - 1e6F);
  }
}

TEST_CASE("growing_table: the number of positions of a row stops at 2^24 - 1") {
  const std::vector<std::int64_t> ids(at(million), 3);
  const fixed_hotness_view<> batch(ids.data(), 1, million);
  const std::vector<float> gradient(at(width), 0.0F);
  executors executor;
  const context_ref ctx(executor.all()[0]);
  const auto table = growing_of(f32_rows(width), every_kind[0]);
  const auto rows = resolve(ctx, table->rows(), batch, combiner::sum, keys::find_or_insert);
  REQUIRE(rows.ok());
  for (std::uint32_t step = 1; step <= 18; ++step) {
    REQUIRE(update(ctx, rows.value(), matrix_view<const float>(gradient.data(), 1, width), sgd{}).ok());
    if (step % 8 != 0 && step < 16) continue;
    const std::uint32_t expected = (std::min)(step * 1'000'000U, detail::row_facts::most_frequency);
    CHECK(frequency_of(ctx, *table, 3) == expected);
  }
  CHECK(table->size() == 1);  // the flags beside the number are as before
}

TEST_CASE("growing_table: a filter counts each time that a key comes in a batch") {
  const std::vector<std::int64_t> ids(at(million), 5);
  executors executor;
  const context_ref ctx(executor.all()[2]);
  const auto table = growing_of(f32_rows(width), every_kind[0]);
  REQUIRE(table->admit_by(filters::counter{static_cast<std::uint32_t>(million)}).ok());
  const pooling how{combiner::sum, bounds::skip};
  const auto come = [&](index_t times) {
    REQUIRE(resolve(ctx, table->rows(), fixed_hotness_view<>(ids.data(), times, 1), how, keys::find_or_insert)
                .ok());
    return table->size();
  };
  CHECK(come(million - 1) == 0);
  CHECK(table->statistics().candidates == 1);
  CHECK(come(1) == 1);
  CHECK(table->statistics().candidates == 0);
  const std::uint64_t key[] = {5};
  CHECK(table->erase(ctx, key).value() == 1);
  CHECK(come(million - 1) == 0);
  // In the batch of its last time every position reads the row.
  index_t skipped = 0;
  const auto rows = resolve(ctx, table->rows(), fixed_hotness_view<>(ids.data(), 3, 1),
                            pooling{combiner::sum, bounds::skip(skipped)}, keys::find_or_insert);
  REQUIRE(rows.ok());
  CHECK(skipped == 0);
  CHECK(table->size() == 1);
}

TEST_CASE("growing_table: batches without keys change nothing and are no fault") {
  executors executor;
  for (executor_ref& one : executor.all()) {
    const context_ref ctx(one);
    const auto table = growing_of(f32_rows(width, room_for<adagrad>(width)), every_kind[0]);
    const std::int64_t zeros[] = {0, 0, 0, 0};
    std::vector<float> out(at(3 * width), -1.0F);
    const jagged_view<> none(zeros, 0, nullptr, 0), empty_bags(zeros, 3, nullptr, 0);
    for (const bool filled : {false, true}) {
      if (filled) fill(ctx, *table, 10);
      for (const jagged_view<>& bags : {none, empty_bags}) {
        const matrix_view<float> to(out.data(), bags.bags(), width);
        auto rows = resolve(ctx, table->rows(), bags, combiner::mean, keys::find_or_insert);
        REQUIRE(rows.ok());
        CHECK(lookup(ctx, rows.value(), to).ok());
        CHECK(lookup(ctx, table->rows(), bags, combiner::mean, to).ok());
        CHECK(update(ctx, rows.value(), matrix_view<const float>(to), adagrad{}).ok());
        CHECK(update(ctx, table->rows(), bags, combiner::mean, matrix_view<const float>(to), adagrad{}).ok());
        sparse_gradient gradient;
        CHECK(row_gradients(ctx, rows.value(), matrix_view<const float>(to), gradient).ok());
        CHECK(gradient.rows.empty());
      }
      CHECK(out == std::vector<float>(at(3 * width), 0.0F));
      CHECK(gather(ctx, table->rows(), std::vector<std::int64_t>(), matrix_view<float>(out.data(), 0, width))
                .ok());
      const std::int64_t* const no_keys = nullptr;
      CHECK(table->rows().insert(ctx, no_keys, 0, nullptr).ok());
      CHECK(table->rows().insert(no_keys, 0).ok());
      table->rows().find(no_keys, 0, nullptr);
      CHECK(table->erase(ctx, {}).value() == 0);
      CHECK(evict_rows(ctx, *table, evict::least_recent{0}).value() ==
            0);  // those of the step that goes on stay
      CHECK(table->size() == (filled ? 10 : 0));
    }
  }
}

TEST_CASE(
    "growing_table: a batch of absent keys only is a fault at its first position, zeros, or the default "
    "row") {
  const std::vector<std::int64_t> ids = {-1, 7, std::numeric_limits<std::int64_t>::min(), 7, 9, -1};
  const fixed_hotness_view<> batch(ids.data(), 3, 2);
  const std::vector<float> instead = {1, 2, 3, 4};
  executors executor;
  for (executor_ref& one : executor.all()) {
    const context_ref ctx(one);
    for (const bool filled : {false, true}) {
      const auto table = growing_of(f32_rows(width, room_for<adagrad>(width)), every_kind[0]);
      if (filled) fill(ctx, *table, 5);
      const index_t size = table->size();
      std::vector<float> out(at(3 * width), -1.0F);
      const matrix_view<float> to(out.data(), 3, width);
      const matrix_view<const float> slope(to);
      const status absent = lookup(ctx, table->rows(), batch, combiner::sum, to);
      CHECK(absent.code() == errc::id_out_of_range);
      CHECK(absent.place().position == 0);
      CHECK(absent.place().value == -1);
      CHECK(update(ctx, table->rows(), batch, combiner::sum, slope, adagrad{}).code() ==
            errc::id_out_of_range);
      CHECK(resolve(ctx, table->rows(), batch, combiner::sum).code() == errc::id_out_of_range);
      CHECK(out == std::vector<float>(at(3 * width), -1.0F));
      index_t skipped = 0;
      CHECK(lookup(ctx, table->rows(), batch, pooling{combiner::mean, bounds::skip(skipped)}, to).ok());
      CHECK(skipped == 6);
      CHECK(out == std::vector<float>(at(3 * width), 0.0F));
      CHECK(update(ctx, table->rows(), batch, pooling{combiner::sum, bounds::skip}, slope, adagrad{}).ok());
      REQUIRE(table->default_row(instead).ok());
      CHECK(lookup(ctx, table->rows(), batch, combiner::mean, to).ok());
      for (index_t b = 0; b < 3; ++b) CHECK(std::vector<float>(to.row(b), to.row(b) + width) == instead);
      CHECK(update(ctx, table->rows(), batch, combiner::sum, slope, adagrad{}).ok());
      CHECK(lookup(ctx, table->rows(), batch, pooling{combiner::max, bounds::skip}, to).ok());
      for (index_t b = 0; b < 3; ++b) CHECK(std::vector<float>(to.row(b), to.row(b) + width) == instead);
      CHECK(table->size() == size);
      REQUIRE(table->admit_by(filters::counter{100}).ok());  // and where the filter refuses them
      const auto rows = resolve(ctx, table->rows(), batch, combiner::mean, keys::find_or_insert);
      REQUIRE(rows.ok());
      CHECK(lookup(ctx, rows.value(), to).ok());
      for (index_t b = 0; b < 3; ++b) CHECK(std::vector<float>(to.row(b), to.row(b) + width) == instead);
      CHECK(table->size() == size);
    }
  }
}

TEST_CASE("growing_table: what the policies leave out is not inserted, and not counted") {
  executors executor;
  const context_ref ctx(executor.all()[0]);
  const auto table = growing_of(f32_rows(width), every_kind[0]);
  const std::int64_t ids[] = {-1, 7, 8, -1, 9, 7};
  const float weights[] = {1, 1, 0, 1, 1, -1};
  const fixed_hotness_view<> plain(ids, 3, 2), weighted(ids, 3, 2, weights);
  REQUIRE(resolve(ctx, table->rows(), plain, pooling{combiner::mean, padding::id{-1}}, keys::find_or_insert)
              .ok());
  CHECK(table->size() == 3);
  CHECK(row_of(*table, -1).empty());
  const std::uint64_t all[] = {7, 8, 9};
  CHECK(table->erase(ctx, all).value() == 3);
  REQUIRE(resolve(ctx, table->rows(), weighted, pooling{combiner::mean, padding::prune}, keys::find_or_insert)
              .ok());
  CHECK(table->size() == 2);  // 7 and 9
  CHECK(row_of(*table, 8).empty());
  REQUIRE(resolve(ctx, table->rows(), plain, combiner::mean, keys::find_or_insert).ok());
  CHECK(table->size() == 4);  // -1 is a key
}

TEST_CASE("growing_table: a full table that evicts takes batch after batch, and each new key gets its row") {
  // Keys are erased between the reservation of places in the index and their use.
  executors executor;
  for (const when_full full : {when_full::evict_least_recent, when_full::evict_least_frequent}) {
    for (const int e : {0, 2}) {
      const context_ref ctx(executor.all()[static_cast<std::size_t>(e)]);
      growing_options options = every_kind[e].options();
      options.most_rows = 2500;
      options.full = full;
      growing_table<f32_rows> table(f32_rows(width), first_values, options, every_kind[e].hash_seed());
      std::mt19937_64 random(seed());
      std::vector<std::uint64_t> keys(300);
      std::vector<const std::byte*> rows(keys.size());
      index_t bytes = 0;
      for (std::uint64_t step = 1; step <= 600; ++step) {
        table.begin_step(step);
        for (std::uint64_t& key : keys) key = random() % 6000;
        const auto guard = table.rows().guard();
        table.rows().find(keys.data(), 300, rows.data());
        std::vector<std::uint64_t> absent;
        for (std::size_t k = 0; k < keys.size(); ++k) {
          if (rows[k] == nullptr) absent.push_back(keys[k]);
        }
        REQUIRE(
            table.rows().insert(ctx, absent.data(), static_cast<index_t>(absent.size()), rows.data()).ok());
        bool all = true;
        std::vector<float> values(at(width)), expected(at(width));
        for (std::size_t k = 0; k < absent.size(); ++k) {
          all = all && rows[k] != nullptr;
          if (rows[k] == nullptr) continue;
          table.format().decode(rows[k], values.data());
          first_values(static_cast<index_t>(absent[k]), expected.data(), width);
          all = all && values == expected;
        }
        CHECK(all);
        CHECK(table.size() <= 2500);
        if (step == 200) bytes = table.statistics().index_bytes;
      }
      CHECK(table.statistics().refused == 0);
      CHECK(table.statistics().index_bytes <= 2 * bytes);
    }
  }
}

TEST_CASE("growing_table: keys that are erased may repeat, and may be absent") {
  executors executor;
  const context_ref ctx(executor.all()[3]);
  const auto table = growing_of(f32_rows(width), every_kind[0]);
  fill(ctx, *table, 500);
  std::vector<std::uint64_t> keys;
  for (std::uint64_t k = 0; k < 900; ++k) keys.push_back(k / 3 * 2);
  CHECK(table->erase(ctx, keys).value() == 250);
  CHECK(table->size() == 250);
  for (std::int64_t k = 0; k < 500; ++k) CHECK(row_of(*table, k).empty() == (k % 2 == 0));
}
