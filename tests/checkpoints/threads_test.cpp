// Cuts of a table that other threads train, insert into, evict from and look up: while the file is written,
// and at the moment of the cut itself. The content at the cut is copied while nothing runs.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr key_type trained_keys = 400;                  // of key_number
constexpr key_type first_read = 1000, read_keys = 300;  // inserted, never trained: their values are known

class others {
 public:
  explicit others(trained_table::table_type& table) : table_(table) {
    threads_.emplace_back([this] { insert(); });
    threads_.emplace_back([this] { evict(); });
    threads_.emplace_back([this] { look_up(); });
  }
  ~others() {
    done_ = true;
    for (std::thread& one : threads_) one.join();
  }
  /// No call of the others runs while it is held.
  std::unique_lock<std::shared_mutex> quiet() {
    is_asked_ = true;  // or two threads that share it may never leave it free
    std::unique_lock closed(gate_);
    is_asked_ = false;
    return closed;
  }
  std::atomic<int> wrong{0}, found{0};

 private:
  std::shared_lock<std::shared_mutex> pass() {
    while (is_asked_) std::this_thread::yield();
    return std::shared_lock(gate_);
  }
  void insert() {
    std::mt19937_64 random(seed() + 1);
    while (!done_) {
      const auto open = pass();
      std::vector<key_type> keys;
      for (int i = 0; i < 20; ++i) keys.push_back(first_read + random() % read_keys);
      deeprec_test::insert(table_, keys).or_throw();
    }
  }
  void evict() {
    std::mt19937_64 random(seed() + 2);
    inline_executor here;
    for (int turn = 0; !done_; ++turn) {
      const auto open = pass();
      if (turn % 3 == 0) {
        evict_rows(here, table_, evict::step_ttl{2}).or_throw();
      } else {
        std::vector<key_type> keys;
        for (int i = 0; i < 10; ++i) {
          const key_type k = random();
          keys.push_back(i % 2 == 0 ? first_read + k % read_keys : key_number(k % trained_keys));
        }
        table_.erase(here, keys).or_throw();
      }
    }
  }
  void look_up() {
    inline_executor here;
    const std::vector<key_type> keys = keys_from(first_read, read_keys);
    constexpr index_t width = trained_table::width;
    std::vector<float> out(keys.size() * width);
    while (!done_) {
      auto rows = resolve(here, table_.rows(), one_hot(keys), pooling{combiner::sum, bounds::skip});
      rows.or_throw();
      lookup(here, rows.value(), matrix_view<float>(out.data(), static_cast<index_t>(keys.size()), width))
          .or_throw();
      for (std::size_t k = 0; k < keys.size(); ++k) {
        const std::vector<float> expected = first_values_of(keys[k], width);
        const bool is_absent =
            std::all_of(&out[k * width], &out[k * width] + width, [](float v) { return v == 0; });
        if (is_absent) continue;
        ++found;
        if (!std::equal(expected.begin(), expected.end(), &out[k * width])) ++wrong;
      }
    }
  }

  trained_table::table_type& table_;
  std::shared_mutex gate_;
  std::atomic<bool> is_asked_{false}, done_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE(
    "checkpoint: a file is the table at its cut while threads train, insert, evict, erase and look up") {
  for (const int pool_threads : {1, 3}) {
    CAPTURE(pool_threads);
    temporary_folder folder;
    trained_table table(seed());
    checkpoint_folder saves(folder.path(), {.copy_budget = 4000, .block_bytes = 1000});
    saves.add("items", *table).or_throw();
    thread_pool pool(threads(pool_threads));
    const auto step = [&](int steps) {
      for (; steps > 0; --steps) {
        table.begin_step();
        table.train_on(pool, table.draw(trained_keys, 300));
      }
    };
    int wrong = 0, found = 0;
    {
      others beside(*table);
      for (int cut = 0; cut < 35; ++cut) {
        step(3);
        // Every other cut is taken while the others run; what it has is not known, but the next delta follows
        // it.
        const bool is_known = cut % 2 == 0;
        keyed_content then;
        const auto taken_now = [&] {
          if (!is_known) return take(saves, cut % 5 == 0);
          const auto quiet = beside.quiet();
          auto taken = take(saves, cut % 5 == 0);
          then = table.content();
          return taken;
        };
        auto taken = taken_now();
        taken.or_throw();
        if (cut % 7 == 6) {
          const checkpoint_cut dropped = std::move(taken.value());
          step(2);
          continue;
        }
        status written;
        std::thread saver([&] { written = status_of(taken.value().write()); });
        step(3);
        saver.join();
        REQUIRE(written.ok());
        const read_back read = restored(folder.path());
        CHECK(read.at == saves.position());
        CHECK(read.passed_over == 0);
        if (is_known) REQUIRE(read.content == then);
      }
      // The last one, whatever came before.
      const auto quiet = beside.quiet();
      save(saves, false);
      REQUIRE(restored(folder.path()).content == table.content());
      wrong = beside.wrong;
      found = beside.found;
    }
    CHECK(wrong == 0);
    CHECK(found > 0);
    CHECK(table->statistics().pins == 0);
  }
}

TEST_CASE("checkpoint: a full table makes room while a cut is written") {
  temporary_folder folder;
  trained_table table(seed(),
                      {.most_rows = 250, .full = when_full::evict_least_recent, .granule_bytes = 4096});
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  for (int cut = 0; cut < 10; ++cut) {
    for (int i = 0; i < 3; ++i) table.step(600, 90);
    auto taken = take(saves, cut % 4 == 0);
    taken.or_throw();
    const keyed_content then = table.content();
    status written;
    std::thread saver([&] { written = status_of(taken.value().write()); });
    for (int i = 0; i < 4; ++i) table.step(600, 90);
    saver.join();
    REQUIRE(written.ok());
    REQUIRE(restored(folder.path()).content == then);
  }
  CHECK(table->statistics().evicted > 100);
}

TEST_CASE("checkpoint_reader: lookups beside poll see each row of one file") {
  temporary_folder folder;
  trained_table table(seed()), served(1);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  checkpoint_reader files(folder.path());
  files.add("items", *served).or_throw();
  std::atomic<bool> done{false};
  // All values of a row are equal in every file: a row of two files would show.
  const std::vector<key_type> keys = keys_from(0, 200);
  constexpr index_t width = trained_table::width;
  std::atomic<int> mixed{0}, seen{0};
  std::thread reader([&] {
    inline_executor here;
    std::vector<float> out(keys.size() * width);
    while (!done) {
      auto rows = resolve(here, served->rows(), one_hot(keys), pooling{combiner::sum, bounds::skip});
      rows.or_throw();
      lookup(here, rows.value(), matrix_view<float>(out.data(), static_cast<index_t>(keys.size()), width))
          .or_throw();
      for (std::size_t k = 0; k < keys.size(); ++k) {
        for (std::size_t j = 1; j < width; ++j) mixed += out[k * width + j] != out[k * width] ? 1 : 0;
        seen += out[k * width] != 0 ? 1 : 0;
      }
    }
  });
  inline_executor here;
  for (int file = 1; file <= 100; ++file) {
    table.begin_step();
    const auto some = keys_from(static_cast<key_type>(file % 12 * 7), 120);
    deeprec_test::insert(*table, some).or_throw();
    const auto rows = table->rows();
    const auto pinned = rows.guard();
    std::vector<const std::byte*> found(some.size());
    rows.find(some.data(), static_cast<index_t>(some.size()), found.data());
    rows.before_write(found.data(), static_cast<index_t>(found.size()));
    const std::vector<float> values(width, static_cast<float>(file));
    for (const std::byte* row : found) table->format().encode(values.data(), const_cast<std::byte*>(row));
    table->erase(here, keys_from(static_cast<key_type>(file % 12 * 3), 5)).or_throw();
    save(saves, file % 5 == 1);
    REQUIRE(files.poll().or_throw());
    REQUIRE(served.content() == table.content());
    while (seen == 0) std::this_thread::yield();
  }
  done = true;
  reader.join();
  CHECK(mixed == 0);
  CHECK(seen > 0);
}
