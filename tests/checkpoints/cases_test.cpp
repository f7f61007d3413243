// What deltas are known to get wrong, one case after the other: keys that go and come back, the step of the
// cut, cuts that are not written.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory_resource>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/apply_delta.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/growing/eviction.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A folder in which a full file of the keys 0 to 99 stands.
struct saved_keys {
  saved_keys() {
    saves.add("items", *table).or_throw();
    train(keys_from(0, 100));
    save(saves, true);
  }
  void train(const std::vector<key_type>& keys) {
    table.begin_step();
    table.train(keys);
  }
  void erase(const std::vector<key_type>& keys) { table.erase(keys); }
  /// Writes a delta, and compares what is read with the table.
  void delta() {
    save(saves, false);
    REQUIRE(restored(folder.path()).content == table.content());
  }
  /// Rows and erased keys in the file that was written last.
  [[nodiscard]] index_t rows(const char* name = "items, records") const {
    const auto info = describe_file(path_of(folder, false, saves.position().number)).or_throw();
    for (const table_entry& one : info.tables)
      if (one.name == name) return one.rows;
    return -1;
  }
  [[nodiscard]] index_t erased() const { return rows("items, erased"); }

  temporary_folder folder;
  trained_table table{seed()};
  checkpoint_folder saves{folder.path()};
};

}  // namespace

TEST_CASE("hazard H13: a key that is deleted and comes back is there, with the row that it has then") {
  saved_keys all;
  all.erase({7, 8});
  all.train({7});
  all.delta();
  CHECK(all.rows() == 1);
  CHECK(all.erased() == 2);
  CHECK(holds(*all.table, 7));
  // Again, with a delta in between.
  all.erase({7});
  all.delta();
  CHECK(all.rows() == 0);
  CHECK(all.erased() == 1);
  all.train({7});
  all.delta();
  CHECK(all.erased() == 0);
  // Three times in one delta.
  for (int i = 0; i < 3; ++i) {
    all.train({7});
    all.erase({7});
  }
  all.train({7});
  all.delta();
  CHECK(all.rows() == 1);
  CHECK(all.erased() == 1);
}

TEST_CASE(
    "hazard H12: a key that is inserted and deleted is not there, nor one that was evicted, nor a negative "
    "one lost") {
  saved_keys all;
  all.train({500, 501, static_cast<key_type>(-1), static_cast<key_type>(-2), 1ULL << 63});
  all.erase({500});
  all.delta();
  CHECK(all.rows() == 4);
  CHECK(all.erased() == 1);
  CHECK_FALSE(holds(*all.table, 500));
  all.erase({static_cast<key_type>(-2), 501});
  all.delta();
  CHECK(all.rows() == 0);
  CHECK(all.erased() == 2);
  all.train({1, 2, 3});
  all.table.evict(0);  // all but those
  CHECK(all.table->size() == 3);
  all.delta();
  CHECK(all.rows() == 3);
  CHECK(all.erased() == 99);
}

TEST_CASE(
    "checkpoint: a key that is evicted and admitted again has its new row, and a row number that is used "
    "again its new key") {
  saved_keys all;
  for (int i = 0; i < 4; ++i) {
    all.train(keys_from(0, 10));
    all.table.evict(0);
    all.train(keys_from(40, 30));  // rows whose numbers were free
    all.delta();
    CHECK(all.rows() == 40);
  }
}

TEST_CASE(
    "checkpoint: rows that are updated in the step of a cut, before or after it, are in the right file") {
  saved_keys all;
  all.table.begin_step();
  all.table.train({1, 2});
  auto cut = take(all.saves, false);
  const keyed_content then = all.table.content();
  all.table.train({2, 3});  // the same step
  written(std::move(cut));
  CHECK(all.rows() == 2);
  CHECK(restored(all.folder.path()).content == then);
  all.delta();
  CHECK(all.rows() == 2);
  all.delta();
  CHECK(all.rows() == 0);
}

TEST_CASE("checkpoint: a row that is touched only after the cut is in the next delta only") {
  saved_keys all;
  for (const bool full : {false, true}) {
    auto cut = take(all.saves, full);
    const keyed_content then = all.table.content();
    all.train({1, 2, 600});
    all.erase({50 + (full ? 1U : 0U)});
    written(std::move(cut));
    CHECK(restored(all.folder.path()).content == then);
    if (!full) CHECK(all.rows() == 0);
    if (!full) CHECK(all.erased() == 0);
    all.delta();
    CHECK(all.rows() == 3);
    CHECK(all.erased() == 1);
  }
}

TEST_CASE("checkpoint: a delta of nothing, and one of erased keys only") {
  saved_keys all;
  all.delta();
  CHECK(all.rows() == 0);
  CHECK(all.erased() == 0);
  all.erase(keys_from(0, 100));
  all.delta();
  CHECK(all.rows() == 0);
  CHECK(all.erased() == 100);
  CHECK(all.table->size() == 0);
  all.delta();
  all.train({5});
  all.delta();
  // And a full file of nothing.
  all.erase({5});
  save(all.saves, true);
  CHECK(restored(all.folder.path()).content == all.table.content());
}

TEST_CASE("checkpoint: a table without rows, and one that never began, are saved") {
  temporary_folder folder;
  trained_table table(1);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  save(saves, true);
  save(saves, false);
  CHECK(restored(folder.path()).content == table.content());
  CHECK(restored(folder.path()).at == saves.position());
  CHECK(restored(folder.path() + "/nothing").at == checkpoint_position{});
}

TEST_CASE("checkpoint: rows that were saved before the first step are of the first step") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  REQUIRE(insert(*table, {1, 2, 3}).ok());
  save(saves, true);
  const keyed_content before = table.content();
  CHECK(before.rows.at(1).step == 0);
  for (const std::uint64_t first : {std::uint64_t{7}, std::uint64_t{1} << 40}) {
    CAPTURE(first);
    trained_table other(1);
    checkpoint_folder reader(folder.path());
    reader.add("items", *other).or_throw();
    REQUIRE(reader.restore().or_throw());
    CHECK(other.content() == before);
    other->begin_step(first);
    CHECK(other.content().rows.at(1).step == first);
    REQUIRE(reader.restore().or_throw());  // back to where no step had begun
    CHECK(other.content() == before);
  }
  // A delta that begins the steps.
  table.begin_step();
  table.train({2, 4});
  save(saves, false);
  const keyed_content now = table.content();
  CHECK(now.rows.at(1).step == now.step);
  CHECK(restored(folder.path()).content == now);
}

TEST_CASE("checkpoint: a cut that is not written leaves its changes to the next delta") {
  saved_keys all;
  const checkpoint_position before = all.saves.position();
  for (int turn = 0; turn < 5; ++turn) {
    all.train({1, 2, static_cast<key_type>(700 + turn)});
    all.erase({static_cast<key_type>(60 + turn), static_cast<key_type>(699 + turn)});
    {
      const auto cut = take(all.saves, turn % 2 == 1);  // deltas and full ones
      REQUIRE(cut.ok());
      all.train({2, 3});
      all.erase({static_cast<key_type>(80 + turn)});
      if (turn == 3) all.train({60});
    }
    CHECK(all.saves.position() == before);
    CHECK(all.folder.names().size() == 1);
  }
  all.delta();
  CHECK(all.saves.position().chain == before.chain);
  CHECK(all.rows() == 5);  // 1, 2, 3, 60, 704
  CHECK(all.erased() == 5 + 5 + 4);
}

TEST_CASE("checkpoint: a save that is stopped leaves its changes to the next delta, and no file") {
  saved_keys all;
  for (const bool full : {false, true}) {
    all.train({1, 2, 3, 800});
    all.erase({4, 5});
    std::stop_source source;
    source.request_stop();
    const std::stop_token token = source.get_token();
    const auto names = all.folder.names();
    auto cut = take(all.saves, full);
    REQUIRE(cut.ok());
    all.train({2});
    CHECK(cut.value().write(&token).code() == errc::stopped);
    CHECK_FALSE(cut.value().is_running());
    CHECK(all.folder.names() == names);
    all.delta();
  }
  CHECK(all.rows() == 4);
}

TEST_CASE("checkpoint: an exception in the middle of a save leaves its changes to the next delta") {
  // Memory that throws what nobody expects.
  class strange_resource final : public std::pmr::memory_resource {
   public:
    long left = -1;

   private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
      if (left >= 0 && left-- == 0) throw 7;
      return std::pmr::new_delete_resource()->allocate(bytes, alignment);
    }
    void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
      std::pmr::new_delete_resource()->deallocate(p, bytes, alignment);
    }
    [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }
  } memory;
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path(), {.memory = &memory});
  saves.add("items", *table).or_throw();
  table.step(200);
  save(saves, true);
  int thrown = 0;
  for (long n = 0; n < 4; ++n) {
    table.step(200);
    auto cut = take(saves, false);
    REQUIRE(cut.ok());
    memory.left = n;
    try {
      static_cast<void>(cut.value().write());
    } catch (int) {
      ++thrown;
      CHECK(cut.value().is_running());  // it may be written again, or destroyed
    }
    memory.left = -1;
    {
      const checkpoint_cut dropped = std::move(cut.value());
    }
    save(saves, false);
    CHECK(restored(folder.path()).content == table.content());
    for (const std::string& name : folder.names()) CHECK(name.ends_with(".drt"));
  }
  CHECK(thrown > 0);
}

TEST_CASE("checkpoint: where the first full file is not written, no delta can be") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  table.step(200);
  {
    const auto cut = take(saves, true);
  }
  CHECK(take(saves, false).code() == errc::invalid_value);
  save(saves, true);
  table.step(200);
  save(saves, false);
  CHECK(restored(folder.path()).content == table.content());
}

TEST_CASE("checkpoint: a table goes back to a file: rows, keys, step") {
  saved_keys all;
  const keyed_content then = all.table.content();
  const checkpoint_position at = all.saves.position();
  const std::uint64_t step = all.table.steps();
  for (int i = 0; i < 5; ++i) all.table.step(400);
  all.table.evict(2);
  const auto read = all.saves.restore().or_throw();
  REQUIRE(read);
  CHECK(read->at == at);
  CHECK(all.table.content() == then);
  CHECK(all.table->step() == step);
  // And from there on.
  all.delta();
  CHECK(all.rows() == 0);
  all.table.steps(step);
  all.train({3, 4});
  CHECK(all.table->step() == step + 1);
  all.delta();
  CHECK(all.rows() == 2);
}

TEST_CASE("checkpoint: training goes on after a restore as if nothing had happened") {
  temporary_folder folder;
  trained_table table(seed());
  {
    checkpoint_folder saves(folder.path());
    saves.add("items", *table).or_throw();
    table.change(300, 10);
    save(saves, true);
    table.change(300, 10);
    save(saves, false);
  }
  trained_table other(1);
  checkpoint_folder saves(folder.path());
  saves.add("items", *other).or_throw();
  REQUIRE(saves.restore().or_throw());
  for (trained_table* one : {&table, &other}) {
    inline_executor here;
    (*one)->begin_step(900);
    one->train_on(here, {});
    REQUIRE(train(**one, keys_from(0, 60)).ok());
    REQUIRE(evict_rows(here, **one, evict::least_frequent{70}).ok());
    REQUIRE(train(**one, keys_from(30, 60)).ok());
  }
  CHECK(other.content() == table.content());
  save(saves, false);
  CHECK(restored(folder.path()).content == table.content());
}

TEST_CASE(
    "apply_delta: a table follows the files one by one; one that it has is passed over, a gap changes "
    "nothing") {
  saved_keys all;
  trained_table served(1);
  checkpoint_position at;
  {
    checkpoint_folder reader(all.folder.path());
    reader.add("items", *served).or_throw();
    at = reader.restore().or_throw()->at;
  }
  std::vector<std::string> files;
  std::vector<keyed_content> then;
  for (int i = 0; i < 4; ++i) {
    all.table.change(200, 3);
    save(all.saves, false, static_cast<std::uint64_t>(i));
    files.push_back(path_of(all.folder, false, all.saves.position().number));
    then.push_back(all.table.content());
  }
  const auto apply = [&](std::size_t i) { return apply_delta(files[i], "items", *served, at); };
  CHECK(apply(0).or_throw().step == 0);
  CHECK(served.content() == then[0]);
  CHECK(apply(2).code() == errc::invalid_value);
  CHECK(apply(2).fault().message().find("a delta is missing") != std::string::npos);
  CHECK(served.content() == then[0]);
  CHECK(apply(1).or_throw().step == 1);
  CHECK(apply(0).ok());
  CHECK(served.content() == then[1]);
  CHECK(apply(2).or_throw().step == 2);
  CHECK(apply(3).or_throw().step == 3);
  CHECK(served.content() == then[3]);
  CHECK(at == all.saves.position());

  CHECK(apply_delta(files[3], "others", *served, at).code() == errc::shape_mismatch);
  CHECK(apply_delta(path_of(all.folder, true, 1), "items", *served, at).code() == errc::invalid_value);
  checkpoint_position elsewhere{at.chain + 2, 1};
  CHECK(apply_delta(files[0], "items", *served, elsewhere).code() == errc::invalid_value);
  CHECK(apply_delta(all.folder.path(), "items", *served, at).code() == errc::io_error);
  CHECK(served.content() == then[3]);
}

TEST_CASE("apply_delta: a delta that continues an older state is refused") {
  // Two tables of one folder, one of which goes on from an older file: never a mixture of the two histories.
  saved_keys all;
  trained_table served(1);
  checkpoint_position at;
  checkpoint_folder reader(all.folder.path());
  reader.add("items", *served).or_throw();
  at = reader.restore().or_throw()->at;
  all.train({1, 2});
  save(all.saves, false);
  const std::string first = path_of(all.folder, false, all.saves.position().number);
  REQUIRE(apply_delta(first, "items", *served, at).ok());
  // A delta from the full file, with a larger number: it was taken when the first was not written.
  temporary_folder apart;
  std::filesystem::copy(path_of(all.folder, true, 1), path_of(apart, true, 1));
  trained_table others(1);
  checkpoint_folder continued(apart.path());
  continued.add("items", *others).or_throw();
  REQUIRE(continued.restore().ok());
  {
    const auto dropped = take(continued, false);
  }
  others.train({3});
  save(continued, false);
  const std::string second = path_of(apart, false, 3);
  const keyed_content before = served.content();
  const auto refused = apply_delta(second, "items", *served, at);
  CHECK(refused.code() == errc::invalid_value);
  CHECK(refused.fault().message().find("it continues an older state") != std::string::npos);
  CHECK(served.content() == before);
}
