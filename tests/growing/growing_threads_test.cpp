// Growing tables under threads: what a finder reads under a pin are rows of its keys, whatever others insert,
// evict and erase. Values are a function of the key, so that rows of other keys, rows that are being written
// and rows that were given back are seen. For the sanitizers as well.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/sanitizers.hpp"
#include "support/seed.hpp"

using namespace deeprec;

namespace {

constexpr index_t width = 9;
constexpr int slower = DEEPREC_TEST_TSAN ? 20 : DEEPREC_TEST_ASAN ? 3 : 1;
constexpr float values_end = 0x1p23F;

float value_of(std::uint64_t key, index_t column) {
  return static_cast<float>((mix64(key + static_cast<std::uint64_t>(column) * 0x9e37'79b9) & 0x7f'ffff) + 1);
}
void write_values(index_t key, float* values, index_t columns) {
  for (index_t j = 0; j < columns; ++j) values[j] = value_of(static_cast<std::uint64_t>(key), j);
}
bool has_values_of(std::uint64_t key, const float* values) {
  for (index_t j = 0; j < width; ++j) {
    if (values[j] != value_of(key, j)) return false;
  }
  return true;
}
bool all_zero(const float* values) {
  return std::all_of(values, values + width, [](float x) { return x == 0; });
}
bool row_is_of(std::uint64_t key, const std::byte* row) {
  float values[width];
  std::memcpy(values, row, sizeof values);
  return has_values_of(key, values);
}

/// A table, threads that look at it until the caller has ended, and what they found wrong.
struct watched {
  explicit watched(const growing_options& options = {}) : table(f32_rows(width), write_values, options) {}
  ~watched() { join(); }

  /// Runs look(random, keys) on a thread, again and again.
  void watch(const std::function<void(std::mt19937_64&)>& look) {
    threads.emplace_back([this, look, number = threads.size()] {
      std::mt19937_64 random(deeprec_test::seed() + number);
      do {
        look(random);
        ++looks;
      } while (!ended);
    });
  }
  /// Ends the threads, each of which has looked.
  void end() {
    while (looks < static_cast<long>(threads.size()) || read == 0) std::this_thread::yield();
    join();
  }
  void join() {
    ended = true;
    for (std::thread& one : threads) one.join();
    threads.clear();
  }
  void is_right(bool right) {
    if (!right) ++wrong;
  }

  /// Finds under a guard, reads, and reads again after a while.
  void find_and_hold(std::mt19937_64& random, std::uint64_t range) {
    std::uint64_t keys[64];
    const std::byte* rows[64];
    for (std::uint64_t& key : keys) key = random() % range;
    const auto guard = table.rows().guard();
    table.rows().find(keys, 64, rows);
    for (int look = 0; look < 3; ++look) {
      for (int k = 0; k < 64; ++k) {
        if (rows[k] == nullptr) continue;
        ++read;
        is_right(row_is_of(keys[k], rows[k]));
      }
      if (look < 2) std::this_thread::yield();
    }
  }
  /// Finds keys in [from, to), which nobody erases: each has its row.
  void must_find(std::mt19937_64& random, std::uint64_t from, std::uint64_t to) {
    if (from == to) return;
    std::uint64_t keys[64];
    const std::byte* rows[64];
    for (std::uint64_t& key : keys) key = from + random() % (to - from);
    const auto guard = table.rows().guard();
    table.rows().find(keys, 64, rows);
    for (int k = 0; k < 64; ++k) is_right(rows[k] != nullptr && row_is_of(keys[k], rows[k]));
  }
  /// Resolves a batch and looks it up twice: rows, or zeros where the key has none, both times the same.
  template <class Mode>
  void resolve_and_look_up(std::mt19937_64& random, std::uint64_t range, Mode mode) {
    std::vector<std::uint64_t> keys(100);
    for (std::uint64_t& key : keys) key = random() % range;
    const inline_executor here;
    const auto rows = resolve(here, table.rows(), fixed_hotness_view<std::uint64_t>(keys.data(), 100, 1),
                              pooling{combiner::sum, bounds::skip}, mode);
    if (!rows) return is_right(false);
    std::vector<float> out(100 * width), again(out.size());
    is_right(lookup(here, rows.value(), matrix_view<float>(out.data(), 100, width)).ok());
    for (std::size_t k = 0; k < 100; ++k) {
      const float* const values = out.data() + k * width;
      if (all_zero(values)) continue;
      ++read;
      is_right(has_values_of(keys[k], values));
    }
    std::this_thread::yield();
    is_right(lookup(here, rows.value(), matrix_view<float>(again.data(), 100, width)).ok());
    is_right(out == again);
  }

  growing_table<f32_rows> table;
  std::vector<std::thread> threads;
  std::atomic<bool> ended{false};
  std::atomic<long> wrong{0}, read{0}, looks{0};
};

std::vector<std::uint64_t> drawn(std::mt19937_64& random, std::uint64_t range, std::size_t n) {
  std::vector<std::uint64_t> keys(n);
  for (std::uint64_t& key : keys) key = random() % range;
  return keys;
}
template <class Executor>
void insert(Executor& executor, growing_table<f32_rows>& table, const std::vector<std::uint64_t>& keys) {
  std::vector<const std::byte*> rows(keys.size());
  const auto guard = table.rows().guard();
  const context ctx(executor);
  REQUIRE(table.rows().insert(ctx, keys.data(), static_cast<index_t>(keys.size()), rows.data()).ok());
  bool right = true;
  for (std::size_t k = 0; k < keys.size(); ++k)
    right = right && (rows[k] == nullptr || row_is_of(keys[k], rows[k]));
  CHECK(right);
}
growing_options small_granules(index_t most_rows = 1'000'000'000, when_full full = when_full::refuse) {
  growing_options options;
  options.granule_bytes = 4096;
  options.most_rows = most_rows;
  options.full = full;
  return options;
}
thread_pool_options two_threads() { return {.threads = 2, .oversubscribe = true}; }

}  // namespace

TEST_CASE("growing_table: finds read rows of their keys while the table grows from nothing") {
  constexpr std::uint64_t count = 200 / slower * 1000;
  watched all(small_granules());
  std::atomic<std::uint64_t> inserted{0};
  for (int t = 0; t < 2; ++t) {
    all.watch([&](auto& random) {
      all.find_and_hold(random, 2 * count);
      all.must_find(random, 0, inserted);
    });
  }
  all.watch([&](auto& random) { all.resolve_and_look_up(random, 2 * count, keys::find); });
  thread_pool pool(two_threads());
  std::vector<std::uint64_t> keys(500);
  for (std::uint64_t from = 0; from < count; from += keys.size()) {
    for (std::size_t k = 0; k < keys.size(); ++k) keys[k] = from + k;
    insert(pool, all.table, keys);
    inserted = from + keys.size();
  }
  all.end();
  CHECK(all.wrong == 0);
  CHECK(all.read > 0);
  CHECK(all.table.size() == static_cast<index_t>(count));
  CHECK(all.table.statistics().splits > 0);
}

TEST_CASE("hazard H10: finds read rows of their keys while others insert, evict and erase") {
  constexpr std::uint64_t range = 6000;
  constexpr std::uint64_t rounds = 1000 / slower;
  for (const when_full full : {when_full::evict_least_recent, when_full::evict_least_frequent}) {
    watched all(small_granules(2500, full));
    all.watch([&](auto& random) { all.find_and_hold(random, range); });
    all.watch([&](auto& random) { all.resolve_and_look_up(random, range, keys::find); });
    all.watch([&](auto& random) { all.resolve_and_look_up(random, range, keys::find_or_insert); });
    thread_pool pool(two_threads());
    std::mt19937_64 random(deeprec_test::seed() + 100);
    index_t erased = 0;
    for (std::uint64_t step = 1; step <= rounds; ++step) {
      all.table.begin_step(step);
      insert(pool, all.table, drawn(random, range, 300));
      const auto gone = drawn(random, range, 100);
      const auto of_keys = all.table.erase(pool, gone);
      REQUIRE(of_keys.ok());
      erased += of_keys.value();
      if (step % 10 == 0) erased += evict_rows(pool, all.table, evict::step_ttl{4}).value();
      if (step % 25 == 0) erased += evict_rows(pool, all.table, evict::l2_below{values_end}).value();
      if (step % 40 == 0)
        erased += evict_rows(pool, all.table, [](const evictee& row) {
                    return row.key % 3 == 0 && row_is_of(row.key, row.row);
                  }).value();
    }
    all.end();
    CHECK(all.wrong == 0);
    CHECK(all.read > 0);
    CHECK(erased > 0);
    CHECK(all.table.size() <= 2500);
    CHECK(all.table.statistics().pins == 0);
    all.table.begin_step(rounds + 1);
    insert(pool, all.table, {0});  // what waited for pins is used again
    CHECK(all.table.statistics().waiting_rows <= all.table.statistics().evicted);
  }
}

TEST_CASE("growing_table: keys that come and go all the time share few slots, and are never mistaken") {
  constexpr std::uint64_t range = 40, stay = 30;
  watched all(small_granules());
  const inline_executor here;
  std::mt19937_64 random(deeprec_test::seed() + 100);
  for (std::uint64_t key = 1000; key < 1000 + stay; ++key) insert(here, all.table, {key});
  for (int t = 0; t < 3; ++t) {
    all.watch([&](auto& random_of_thread) {
      all.must_find(random_of_thread, 1000, 1000 + stay);
      const auto guard = all.table.rows().guard();
      for (int turn = 0; turn < 4; ++turn) {
        std::uint64_t keys[range];
        const std::byte* rows[range];
        for (std::uint64_t k = 0; k < range; ++k) keys[k] = (k + random_of_thread()) % range;
        all.table.rows().find(keys, range, rows);
        for (std::uint64_t k = 0; k < range; ++k) {
          if (rows[k] == nullptr) continue;
          ++all.read;
          all.is_right(row_is_of(keys[k], rows[k]));
        }
      }
    });
  }
  for (int round = 0; round < 6000 / slower; ++round) {
    insert(here, all.table, drawn(random, range, 4));
    const auto gone = drawn(random, range, 4);
    REQUIRE(all.table.erase(here, gone).ok());
    if (round % 64 == 0) std::this_thread::yield();
  }
  all.end();
  CHECK(all.wrong == 0);
  CHECK(all.read > 0);
}

TEST_CASE(
    "growing_table: a resolved batch keeps its rows over growth, eviction and the end of other batches") {
  constexpr std::uint64_t range = 300;
  watched all(small_granules());
  thread_pool pool(two_threads());
  std::vector<std::uint64_t> keys(range);
  for (std::uint64_t k = 0; k < range; ++k) keys[k] = k;
  all.table.begin_step(0);
  insert(pool, all.table, keys);
  using rows_type = std::remove_cvref_t<decltype(resolve(pool, all.table.rows(),
                                                         fixed_hotness_view<std::uint64_t>(keys.data(), 1, 1),
                                                         combiner::sum)
                                                     .value())>;
  const auto resolved = [&] {
    auto rows = resolve(pool, all.table.rows(), fixed_hotness_view<std::uint64_t>(keys.data(), range, 1),
                        combiner::sum, keys::find_or_insert);
    REQUIRE(rows.ok());
    return std::move(rows.value());
  };
  const rows_type held = resolved();
  for (int t = 0; t < 2; ++t) {
    all.watch([&](std::mt19937_64&) {
      const inline_executor here;
      std::vector<float> out(range * width);
      all.is_right(lookup(here, held, matrix_view<float>(out.data(), range, width)).ok());
      for (std::uint64_t k = 0; k < range; ++k) all.is_right(has_values_of(k, out.data() + k * width));
      ++all.read;
    });
  }
  const std::vector<std::uint64_t> some(keys.begin(), keys.begin() + 150);
  for (int round = 0; round < 60 / slower + 2; ++round) {
    const index_t before = all.table.size();
    all.table.begin_step(static_cast<std::uint64_t>(round) + 1);
    std::vector<std::uint64_t> more(3000);
    for (std::size_t k = 0; k < more.size(); ++k)
      more[k] = 1000 + 3000 * static_cast<std::uint64_t>(round) + k;
    insert(pool, all.table, more);
    CHECK(all.table.size() >= before + 3000);
    CHECK(all.table.erase(pool, some).ok());
    CHECK(evict_rows(pool, all.table, evict::step_ttl{0}, 1).ok());  // all but the new ones
    const std::byte* row = nullptr;
    const std::uint64_t first = 0;
    all.table.rows().find(&first, 1, &row);
    CHECK(row == nullptr);
    std::optional<rows_type> other(resolved());  // the same keys, in other rows
    std::vector<float> out(range * width);
    CHECK(lookup(pool, *other, matrix_view<float>(out.data(), range, width)).ok());
    for (std::uint64_t k = 0; k < range; ++k) all.is_right(has_values_of(k, out.data() + k * width));
    other.reset();
    CHECK(all.table.statistics().pins >= 1);
    CHECK(all.table.statistics().waiting_rows >= static_cast<index_t>(range));
  }
  all.end();
  CHECK(all.wrong == 0);
  CHECK(all.read > 0);
}

TEST_CASE("growing_table: an update beside evictions and insertions writes to rows of its keys only") {
  constexpr std::uint64_t range = 2000;
  watched all(small_granules(1500, when_full::evict_least_recent));
  all.table.begin_step(1);
  all.watch([&](auto& random) {  // one thread trains, with gradients of zero
    const auto keys = drawn(random, range, 200);
    const inline_executor here;
    const auto rows = resolve(here, all.table.rows(), fixed_hotness_view<std::uint64_t>(keys.data(), 100, 2),
                              pooling{combiner::sum, bounds::skip}, keys::find_or_insert);
    if (!rows) return all.is_right(false);
    const std::vector<float> slope(100 * width, 0.0F);
    all.is_right(update(here, rows.value(), matrix_view<const float>(slope.data(), 100, width), sgd{}).ok());
    ++all.read;
  });
  all.watch([&](std::mt19937_64&) {  // and one asks
    const growing_statistics now = all.table.statistics();
    all.is_right(now.rows <= 1500 && now.pins <= 8);
    all.is_right(all.table.size() >= 0 && all.table.step() > 0);
    std::this_thread::yield();
  });
  thread_pool pool(two_threads());
  std::mt19937_64 random(deeprec_test::seed() + 100);
  for (std::uint64_t step = 1; step <= 1500 / slower; ++step) {
    all.table.begin_step(step);
    std::vector<const std::byte*> rows(100);
    const auto keys = drawn(random, range, 100);
    const context ctx(pool);
    REQUIRE(all.table.rows().insert(ctx, keys.data(), 100, rows.data()).ok());
    if (step % 5 == 0) REQUIRE(evict_rows(pool, all.table, evict::least_frequent{700}).ok());
    if (step % 7 == 0) REQUIRE(all.table.erase(pool, keys).ok());
  }
  all.end();
  CHECK(all.wrong == 0);
  CHECK(all.read > 0);
  // Every row is its key's, and every key is in the index once.
  index_t rows = 0;
  bool same = true;
  all.table.rows().for_each_row([&](std::uint64_t key, const std::byte* row) {
    ++rows;
    same = same && row_is_of(key, row);
  });
  CHECK(same);
  CHECK(rows == all.table.size());
}
