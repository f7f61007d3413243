// Full disks, broken disks, read-only folders: at every system call of a save and of a restore.
// What is read afterwards is a cut that was reported as written, or a newer one; and the next save works.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"
#include "support/system_calls.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// Every file of a folder, by its name.
folder_state files_of(const temporary_folder& folder) {
  folder_state all;
  for (const std::string& name : folder.names()) all[name] = bytes_of(folder.path() + '/' + name);
  return all;
}

/// A folder with a full file and a delta, and a table that has changed since.
struct ready_to_save {
  ready_to_save() {
    saves.add("items", *table).or_throw();
    table.change(200, 4);
    save(saves, true);
    table.change(200, 4);
    save(saves, false);
    reported = table.content();
    table.change(200, 4);
  }
  /// The next delta where it is allowed, or else a full file, is the table.
  void saves_again() {
    table.change(200, 2);
    auto next = status_of(take(saves, false).value().write());
    if (!next) {
      CHECK(next.code() == errc::invalid_value);
      next = status_of(take(saves, true).value().write());
    }
    REQUIRE(next.ok());
    REQUIRE(restored(folder.path()).content == table.content());
    REQUIRE(restored(folder.path()).at == saves.position());
    table.change(200, 2);
    save(saves, false);
    REQUIRE(restored(folder.path()).content == table.content());
  }
  temporary_folder folder;
  trained_table table{seed()};
  checkpoint_folder saves{folder.path(), {.kept_chains = 1, .block_bytes = 600}};
  keyed_content reported;
};

}  // namespace

TEST_CASE("checkpoint: a save in which any one system call fails, or all from there on, loses nothing") {
  for (const int error : {ENOSPC, EIO, EROFS}) {
    for (const bool lasts : {false, true}) {
      for (const bool full : {false, true}) {
        int failed = 0;
        for (long n = 0;; ++n) {
          CAPTURE(error);
          CAPTURE(lasts);
          CAPTURE(full);
          CAPTURE(n);
          ready_to_save all;
          const folder_state before = files_of(all.folder);
          auto taken = take(all.saves, full);
          const keyed_content then = all.table.content();
          all.table.change(200, 3);
          the_calls = {.until_failure = n, .error = error, .lasts = lasts};
          const auto written = taken.value().write();
          const long hits = std::exchange(the_calls, {}).failed;
          const read_back read = restored(all.folder.path());
          if (written) {
            CHECK(read.content == then);
            CHECK(read.at == all.saves.position());
          } else {
            ++failed;
            CHECK(written.code() == errc::io_error);
            CHECK(all.saves.position().number == 2);
            // A file that could not be removed may be there, and is whole.
            CHECK((read.content == all.reported || (lasts && read.content == then)));
            if (!lasts) CHECK(files_of(all.folder) == before);
          }
          all.saves_again();
          // What could not be removed goes with the next full file.
          save(all.saves, true);
          for (const std::string& name : all.folder.names()) CHECK(name.ends_with(".drt"));
          if (hits == 0) break;
        }
        CHECK(failed > 8);
      }
    }
  }
}

TEST_CASE("checkpoint: interrupted calls and short writes are no faults") {
  for (long n = 0;; ++n) {
    ready_to_save all;
    auto taken = take(all.saves, false);
    the_calls = {.until_failure = n, .error = EINTR, .is_short = true};
    const auto written = taken.value().write();
    const system_calls used = std::exchange(the_calls, {});
    // Only openat and write are interrupted; elsewhere the error says so, and nothing is lost.
    CHECK((written.ok() || written.code() == errc::io_error));
    if (used.failed == 0) {
      CHECK(written.ok());
      CHECK(used.calls > 20);
      CHECK(restored(all.folder.path()).content == all.table.content());
      break;
    }
    all.saves_again();
  }
}

TEST_CASE(
    "checkpoint: a restore in which any one system call fails gives a cut that was written, or a fault") {
  int failed = 0, older = 0;
  for (long n = 0;; ++n) {
    CAPTURE(n);
    ready_to_save all;
    save(all.saves, false);
    const keyed_content newest = all.table.content();
    trained_table other(1);
    checkpoint_folder reader(all.folder.path());
    reader.add("items", *other).or_throw();
    the_calls = {.until_failure = n, .error = EIO};
    auto read = reader.restore();
    const long hits = std::exchange(the_calls, {}).failed;
    if (!read) {
      ++failed;
      CHECK(read.code() == errc::io_error);
    } else {
      REQUIRE(read.value());
      const bool is_newest = other.content() == newest;
      older += is_newest ? 0 : 1;
      // It says which files it could not read, and then no delta can follow.
      CHECK(is_newest == read.value()->passed_over.empty());
      CHECK(is_newest == (reader.position().chain != 0));
      CHECK((is_newest || read.value()->at.number < 3));
      CHECK((is_newest || take(reader, false).code() == errc::invalid_value));
    }
    REQUIRE(reader.restore().ok());
    CHECK(other.content() == newest);
    if (hits == 0) break;
  }
  CHECK(failed > 0);
  CHECK(older > 0);
}

TEST_CASE("checkpoint: a read-only folder can be read, and a save in it is a fault") {
  ready_to_save all;
  // The superuser writes where modes forbid it: the system's answer is made up.
  auto taken = take(all.saves, false);
  the_calls = {.until_failure = 0, .error = EROFS, .lasts = true};
  const auto refused = taken.value().write();
  the_calls = {};
  CHECK(refused.code() == errc::io_error);
  CHECK(refused.fault().message().find("Read-only file system") != std::string::npos);
  CHECK(restored(all.folder.path()).content == all.reported);
  all.saves_again();
}
