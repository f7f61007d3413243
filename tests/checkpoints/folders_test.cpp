// Folders: that are missing, full of other files, shared with other savers; and savers that are killed.
#include <doctest/doctest.h>

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A table of a folder.
struct saver {
  explicit saver(const std::string& folder, std::uint64_t seed = 1, const checkpoint_options& options = {})
      : table(seed), saves(folder, options) {
    saves.add("items", *table).or_throw();
  }
  status try_save(bool full) {
    table.step(200);
    auto taken = take(saves, full);
    if (!taken) return taken.fault();
    return status_of(taken.value().write());
  }
  trained_table table;
  checkpoint_folder saves;
};

}  // namespace

TEST_CASE("checkpoint: old chains are removed when a full file is written, and others stay") {
  for (const index_t kept : {1, 2, 3}) {
    temporary_folder folder;
    saver one(folder.path(), 1, {.kept_chains = kept});
    std::vector<std::string> all;
    for (int cut = 0; cut < 12; ++cut) {
      REQUIRE(one.try_save(cut % 3 == 0).ok());
      all.push_back(detail::folder_file{cut % 3 == 0, static_cast<std::uint64_t>(cut + 1)}.name());
      const auto chains = static_cast<std::size_t>(cut / 3 + 1);
      const std::size_t gone =
          chains > static_cast<std::size_t>(kept) ? (chains - static_cast<std::size_t>(kept)) * 3 : 0;
      std::vector<std::string> expected(all.begin() + static_cast<std::ptrdiff_t>(gone), all.end());
      std::sort(expected.begin(), expected.end());
      REQUIRE(folder.names() == expected);
    }
  }
}

TEST_CASE("checkpoint: ten thousand old files, which are no files of tables") {
  temporary_folder folder;
  for (std::uint64_t i = 1; i <= 10'000; ++i) write_bytes(path_of(folder, false, i), "");
  write_bytes(folder.path() + "/notes.txt", "x");
  saver one(folder.path());
  CHECK(one.saves.restore().code() == errc::io_error);  // deltas only
  REQUIRE(one.try_save(true).ok());
  CHECK(one.saves.position().number == 10'001);
  CHECK(restored(folder.path()).content == one.table.content());
  REQUIRE(one.try_save(false).ok());
  REQUIRE(one.try_save(true).ok());
  CHECK(folder.names().size() == 4);
  CHECK(restored(folder.path()).content == one.table.content());
}

TEST_CASE("checkpoint: folders and files that are something else") {
  temporary_folder place;
  // A folder that is missing is made, one whose parent is missing is not.
  saver one(place.path() + "/new/");
  CHECK_FALSE(one.saves.restore().or_throw());
  REQUIRE(one.try_save(true).ok());
  CHECK(restored(place.path() + "/new").content == one.table.content());
  saver deep(place.path() + "/no/such");
  CHECK_FALSE(deep.saves.restore().or_throw());
  CHECK(deep.try_save(true).code() == errc::io_error);
  // A file instead of the folder.
  write_bytes(place.path() + "/file", "x");
  saver of_file(place.path() + "/file");
  CHECK(of_file.saves.restore().code() == errc::io_error);
  CHECK(of_file.try_save(true).code() == errc::io_error);
  saver of_nothing("");
  CHECK(of_nothing.try_save(true).code() == errc::io_error);

  // Folders where files are read and written.
  temporary_folder folder;
  saver other(folder.path());
  REQUIRE(other.try_save(true).ok());
  const keyed_content then = other.table.content();
  std::filesystem::create_directory(path_of(folder, true, 3));
  const read_back read = restored(folder.path());
  CHECK(read.content == then);
  CHECK(read.passed_over == 1);
  // What is newer than this saver's last file needs a full one: its number comes after.
  CHECK(other.try_save(false).code() == errc::invalid_value);
  REQUIRE(other.try_save(true).ok());
  CHECK(other.saves.position().number == 4);
  CHECK(restored(folder.path()).content == other.table.content());
  std::filesystem::create_directory(path_of(folder, false, 5) + ".saving");
  CHECK(other.try_save(false).code() == errc::io_error);
  REQUIRE(other.try_save(false).ok());  // the number after
  CHECK(restored(folder.path()).content == other.table.content());
  // A saver that was killed left this.
  write_bytes(path_of(folder, false, 7) + ".saving", "half of a file");
  REQUIRE(other.try_save(false).ok());
  CHECK_FALSE(std::filesystem::exists(path_of(folder, false, 7) + ".saving"));

  // Links: a file may be one; what is written never follows one.
  temporary_folder elsewhere;
  std::filesystem::rename(path_of(folder, false, 7), elsewhere.path() + "/delta");
  std::filesystem::create_symlink(elsewhere.path() + "/delta", path_of(folder, false, 7));
  CHECK(restored(folder.path()).content == other.table.content());
  write_bytes(elsewhere.path() + "/innocent", "x");
  std::filesystem::create_symlink(elsewhere.path() + "/innocent", path_of(folder, false, 8) + ".saving");
  CHECK(other.try_save(false).code() == errc::io_error);
  std::filesystem::remove(folder.path() + "/checkpoint.lock");
  std::filesystem::create_symlink(elsewhere.path() + "/innocent", folder.path() + "/checkpoint.lock");
  CHECK(other.try_save(false).code() == errc::io_error);
  CHECK(bytes_of(elsewhere.path() + "/innocent") == "x");
  std::filesystem::remove(folder.path() + "/checkpoint.lock");
  std::filesystem::create_directory(folder.path() + "/checkpoint.lock");
  CHECK(other.try_save(false).code() == errc::io_error);
  std::filesystem::remove(folder.path() + "/checkpoint.lock");
  REQUIRE(other.try_save(false).ok());
  CHECK(restored(folder.path()).content == other.table.content());
  // The folder itself may be a link.
  std::filesystem::create_directory_symlink(folder.path(), place.path() + "/link");
  CHECK(restored(place.path() + "/link").content == other.table.content());
}

TEST_CASE("checkpoint: a second process that saves at the same time is a fault, and nothing is lost") {
  temporary_folder folder;
  saver one(folder.path());
  REQUIRE(one.try_save(true).ok());
  int to_child[2], to_parent[2];
  REQUIRE(::pipe(to_child) == 0);
  REQUIRE(::pipe(to_parent) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  char byte = 0;
  if (child == 0) {
    ::alarm(120);
    detail::folder_lock lock;
    bool is_on_disk = false;
    const bool taken = lock.take(folder.path(), is_on_disk).ok();
    if (taken) static_cast<void>(::write(to_parent[1], "x", 1));
    static_cast<void>(::read(to_child[0], &byte, 1));
    ::_exit(taken ? 0 : 1);
  }
  REQUIRE(::read(to_parent[0], &byte, 1) == 1);
  const status refused = one.try_save(false);
  CHECK(refused.code() == errc::io_error);
  one.table.step(200);
  auto taken = take(one.saves, true);
  const auto why = taken.value().write();
  CHECK(why.fault().message().find("another process or thread is saving in this folder") !=
        std::string::npos);
  REQUIRE(::write(to_child[1], "x", 1) == 1);
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  CHECK(WIFEXITED(state));
  CHECK(WEXITSTATUS(state) == 0);
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(end);
  REQUIRE(one.try_save(false).ok());
  CHECK(restored(folder.path()).content == one.table.content());
}

TEST_CASE("checkpoint: savers that take turns in one folder never mix their histories") {
  temporary_folder folder;
  saver a(folder.path(), 1), b(folder.path(), 2);
  REQUIRE(a.try_save(true).ok());
  REQUIRE(b.saves.restore().or_throw());
  b.table.steps(b.table->step());
  // Both stand at 1. The first that saves has the chain.
  REQUIRE(b.try_save(false).ok());
  CHECK(a.try_save(false).code() == errc::invalid_value);
  CHECK(restored(folder.path()).content == b.table.content());
  REQUIRE(b.try_save(false).ok());
  auto refused = take(a.saves, false);
  const auto why = refused.value().write();
  CHECK(why.fault().message().find("a full file must be next") != std::string::npos);
  REQUIRE(a.try_save(true).ok());
  CHECK(restored(folder.path()).content == a.table.content());
  CHECK(b.try_save(false).code() == errc::invalid_value);
  REQUIRE(a.try_save(false).ok());
  CHECK(restored(folder.path()).content == a.table.content());
  // A full file of b, whose number was given before a's next delta.
  auto late = take(b.saves, true);
  const keyed_content then = b.table.content();
  REQUIRE(a.try_save(false).ok());
  const auto written = late.value().write();
  CHECK(written.code() == errc::invalid_value);
  REQUIRE(b.try_save(true).ok());
  CHECK(restored(folder.path()).content == b.table.content());
}

namespace {

/// What happens before the cut of a number.
void change_before(trained_table& table, std::uint64_t number) {
  table.reseed(seed() + number);
  table.steps(100 + 10 * number);
  table.change(150, 4);
}

// Saves until it is killed; writes the number of each file that was written.
[[noreturn]] void save_for_ever(const std::string& folder, int report) {
  ::alarm(120);
  saver one(folder, 1, {.kept_chains = 1, .block_bytes = 900});
  const auto read = one.saves.restore();
  if (!read) ::_exit(1);
  std::uint64_t number = read.value() ? read.value()->at.number : 0;
  if (number > 0 && one.saves.position().chain == 0) ::_exit(2);
  change_before(one.table, ++number);
  for (;; ++number) {
    auto taken = take(one.saves, number % 5 == 1);
    if (!taken || taken.value().number() != number) ::_exit(3);
    change_before(one.table, number + 1);  // while it is written
    if (!taken.value().write()) ::_exit(4);
    if (::write(report, &number, sizeof(number)) != sizeof(number)) ::_exit(5);
  }
}

}  // namespace

TEST_CASE("checkpoint: of a saver that is killed a hundred times no reported cut is lost") {
  temporary_folder folder;
  std::mt19937_64 random(seed());
  trained_table model(1), served(1);
  checkpoint_reader follower(folder.path());
  follower.add("items", *served).or_throw();
  std::vector<keyed_content> cuts(1);  // by number
  std::uint64_t last = 0;
  for (int kill = 0; kill < 100; ++kill) {
    int report[2];
    REQUIRE(::pipe(report) == 0);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::close(report[0]);
      save_for_ever(folder.path(), report[1]);
    }
    ::close(report[1]);
    std::uint64_t reported = last;
    for (int i = kill % 3; i > 0; --i)
      REQUIRE(::read(report[0], &reported, sizeof(reported)) == sizeof(reported));
    ::usleep(static_cast<useconds_t>(random() % 4000));
    REQUIRE(::kill(child, SIGKILL) == 0);
    int state = 0;
    REQUIRE(::waitpid(child, &state, 0) == child);
    CAPTURE(state);
    REQUIRE(WIFSIGNALED(state));
    REQUIRE(WTERMSIG(state) == SIGKILL);
    while (::read(report[0], &reported, sizeof(reported)) == sizeof(reported)) {
    }
    ::close(report[0]);

    const read_back read = restored(folder.path());
    CAPTURE(kill);
    REQUIRE(read.at.number >= reported);
    CHECK(read.passed_over == 0);
    while (cuts.size() <= read.at.number) {
      change_before(model, cuts.size());
      cuts.push_back(model.content());
    }
    if (read.at.number > 0) REQUIRE(read.content == cuts[static_cast<std::size_t>(read.at.number)]);
    follower.poll().or_throw();
    if (read.at.number > 0) REQUIRE(served.content() == read.content);
    last = read.at.number;
  }
  CHECK(last >= 100 / 3);
}
