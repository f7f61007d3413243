// Copies of rows that change while a cut is written: who changes them waits where copy_budget bytes of copies
// wait, and only then.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/growing/detail/row_changes.hpp>
#include <deeprec/memory/counting_resource.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t record_bytes = 24 + 2 * index_t{sizeof(float)} * trained_table::width;
constexpr std::size_t batch = 128;  // rows that are copied at a time

/// A cut of 3000 rows, and a saving thread that stands still in the middle of it.
class stopped_saver {
 public:
  explicit stopped_saver(index_t copy_budget)
      : saves_(folder_.path(), {.copy_budget = copy_budget, .memory = &memory}) {
    saves_.add("items", *table).or_throw();
    table.begin_step();
    table.train(keys_from(0, 3000));
    auto taken = take(saves_, true);
    taken.or_throw();
    cut.emplace(std::move(taken.value()));
  }
  ~stopped_saver() {
    release();
    if (thread_.joinable()) thread_.join();
  }
  void begin() {
    thread_ = std::thread([this] {
      written = table->state().changes->write(
          [this](const std::byte*, index_t n) {
            rows_written += n;
            if (rows_written > n) return;  // the first time only
            is_in_the_middle_.release();
            goes_on_.acquire();
          },
          [this] { return stops.load(); });
    });
    is_in_the_middle_.acquire();
  }
  void release() {
    if (!std::exchange(is_released_, true)) goes_on_.release();
  }
  void join() {
    release();
    thread_.join();
  }

  trained_table table{seed()};
  counting_resource memory{std::pmr::new_delete_resource()};
  std::atomic<bool> stops{false};
  index_t rows_written = 0;
  status written;

 private:
  temporary_folder folder_;
  checkpoint_folder saves_;
  std::binary_semaphore is_in_the_middle_{0}, goes_on_{0};
  bool is_released_ = false;
  std::thread thread_;

 public:
  std::optional<checkpoint_cut> cut;
};

/// Long enough for a thread that does not wait to be seen; no matter for one that does.
void give_it_time() { std::this_thread::sleep_for(std::chrono::milliseconds(30)); }

}  // namespace

TEST_CASE("checkpoint: before the save begins nobody waits, whatever the budget") {
  stopped_saver saver(1);
  saver.table.train(keys_from(0, 3000));
  saver.table.erase(keys_from(0, 500));
  saver.table.train(keys_from(0, 3000));
  auto length = saver.cut->write();
  CHECK(length.or_throw() > 3000 * record_bytes);
}

TEST_CASE("checkpoint: updates wait while the budget is full and a save goes on") {
  const index_t budget = 10 * record_bytes;
  stopped_saver saver(budget);
  saver.begin();
  const std::size_t before = saver.memory.statistics().bytes;
  saver.memory.forget_most();
  std::atomic<bool> is_done{false};
  std::thread updater([&] {
    saver.table.train(keys_from(1000, 2000));
    is_done = true;
  });
  give_it_time();
  CHECK_FALSE(is_done);
  // Lookups go on.
  CHECK(holds(*saver.table, 2999));
  saver.join();
  updater.join();
  CHECK(is_done);
  CHECK(saver.written.ok());
  CHECK(saver.rows_written == 3000);
  // One batch beyond the budget, in each of two lists, each with room for twice as much; and the list of
  // numbers.
  const std::size_t most = 2 * 2 * (static_cast<std::size_t>(budget) + batch * record_bytes) + 3 * 4 * 4096;
  CHECK(saver.memory.statistics().most_bytes - before < most);
  CHECK(most < 2000 * record_bytes);  // or this says nothing
}

TEST_CASE("checkpoint: erasures wait as updates do, and lookups beside them don't") {
  stopped_saver saver(1);
  saver.begin();
  std::atomic<bool> is_done{false};
  std::thread eraser([&] {
    saver.table.erase(keys_from(1000, 1500));
    is_done = true;
  });
  give_it_time();
  CHECK_FALSE(is_done);
  CHECK(holds(*saver.table, 2999));
  saver.join();
  eraser.join();
  CHECK(saver.written.ok());
  CHECK(saver.rows_written == 3000);
  CHECK(saver.table->size() == 1500);
}

TEST_CASE("checkpoint: who waits goes on when the save fails") {
  stopped_saver saver(1);
  saver.begin();
  std::thread updater([&] { saver.table.train(keys_from(0, 3000)); });
  give_it_time();
  saver.stops = true;
  saver.join();
  CHECK(saver.written.code() == errc::stopped);
  saver.cut.reset();
  updater.join();  // or it would wait for ever
  CHECK(saver.table->size() == 3000);
}

TEST_CASE("checkpoint: a budget of any size is enough for a save beside training") {
  for (const index_t budget : {index_t{1}, record_bytes, 100 * record_bytes, index_t{1} << 40}) {
    temporary_folder folder;
    trained_table table(seed());
    checkpoint_folder saves(folder.path(), {.copy_budget = budget});
    saves.add("items", *table).or_throw();
    for (int cut = 0; cut < 4; ++cut) {
      for (int i = 0; i < 3; ++i) table.step(3000, 900);
      auto taken = take(saves, cut % 2 == 0);
      const keyed_content then = table.content();
      std::thread saver([&] { written(std::move(taken)); });
      for (int i = 0; i < 5; ++i) table.step(3000, 900);
      saver.join();
      REQUIRE(restored(folder.path()).content == then);
    }
  }
}
