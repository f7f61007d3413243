// Full disks, broken disks, read-only folders, power failures: at every system call of a save and of a
// restore. What is read afterwards is a cut that was reported as written, or a newer one; and the next save
// works.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/disk_model.hpp"
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

namespace {

constexpr key_type powered_keys = 40;

/// Processes that save in a folder, one after the other, and the disk of it.
class powered_saver {
 public:
  powered_saver() : powered_saver({}, {trained_table(1).content()}) {}
  /// The folder is on the disk. What it may give: contents in the order of their cuts; the first one is that
  /// of no file.
  powered_saver(const folder_state& found, std::vector<keyed_content> cuts)
      : path_(laid_out(found, place_)), disk_(path_), cuts_(std::move(cuts)) {
    begin();
    disk_.report(cut_of(table_.content()).value());
  }
  powered_saver(const powered_saver&) = delete;
  powered_saver& operator=(const powered_saver&) = delete;
  ~powered_saver() { the_calls = {}; }

  /// Another process goes on from the files.
  void begin() {
    saves_.emplace(path_, checkpoint_options{.kept_chains = 1, .block_bytes = 900});
    saves_->add("items", *table_).or_throw();
    auto read = saves_->restore();
    if (!read) saves_->restore().or_throw();  // one call failed
  }
  /// Whether the cut is reported as written.
  bool save(bool full) {
    table_.step(powered_keys, 20);
    auto taken = take(*saves_, full || saves_->position().chain == 0);
    if (!taken) return false;
    cuts_.push_back(table_.content());
    table_.step(powered_keys, 20);
    if (!taken.value().write()) return false;
    disk_.report(cuts_.size() - 1);
    return true;
  }
  disk_model& disk() { return disk_; }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// What comes after a power failure.
  enum class then { only_restore, saves, saves_and_failures };

  /// What is wrong with the folders that power failures may have left; nothing where each gives a cut that is
  /// not older than the reported one, and what comes then works.
  [[nodiscard]] std::string first_fault(then next = then::saves) const {
    the_calls = {};
    std::map<folder_state, std::uint64_t> read;  // which cut files are, without other names
    std::set<std::pair<std::string, std::uint64_t>> tried;
    for (const auto& [found, reported] : disk_.found()) {
      std::string names;
      folder_state files;
      for (const auto& [name, bytes] : found) {
        names += name + ", ";
        if (name.ends_with(".drt")) files.emplace(name, bytes);
      }
      try {
        if (!read.contains(files)) {
          const temporary_folder place;
          const auto cut = cut_of(restored(laid_out(files, place)).content);
          if (!cut) return names + "which is a mixture";
          read[files] = *cut;
        }
        const std::uint64_t cut = read[files];
        if (cut < reported)
          return names + "which is cut " + std::to_string(cut) + " and not " + std::to_string(reported);
        if (next == then::only_restore || !tried.emplace(names, cut).second) continue;
        std::string fault = fault_of_saves(found, cuts_[cut]);
        if (fault.empty() && next == then::saves_and_failures) fault = fault_of_failures(found);
        if (!fault.empty()) return names + "then " + fault;
      } catch (const error& thrown) {
        return names + "where " + thrown.what();
      }
    }
    return {};
  }

 private:
  static std::string laid_out(const folder_state& found, const temporary_folder& place) {
    const std::string path = std::filesystem::canonical(place.path()).string() + "/saves";
    if (!found.empty()) std::filesystem::create_directory(path);
    for (const auto& [name, bytes] : found) write_bytes(path + '/' + name, bytes);
    return path;
  }
  [[nodiscard]] std::optional<std::uint64_t> cut_of(const keyed_content& content) const {
    const auto cut = std::find(cuts_.begin(), cuts_.end(), content);
    if (cut == cuts_.end()) return std::nullopt;
    return static_cast<std::uint64_t>(cut - cuts_.begin());
  }
  // A delta where it is allowed, and a full file.
  static std::string fault_of_saves(const folder_state& found, const keyed_content& expected) {
    const temporary_folder place;
    const std::string path = laid_out(found, place);
    trained_table table(1);
    checkpoint_folder saves(path, {.kept_chains = 1});
    saves.add("items", *table).or_throw();
    saves.restore().or_throw();
    if (table.content() != expected) return "other names change what is read";
    table.steps(5000);
    for (const bool full : {false, true}) {
      table.step(powered_keys, 20);
      deeprec_test::save(saves, full || saves.position().chain == 0);
      if (restored(path).content != table.content()) return "the next save is lost";
    }
    for (const auto& one : std::filesystem::directory_iterator(path)) {
      if (one.path().extension() == ".saving") return one.path().filename().string() + " stays";
    }
    return {};
  }
  [[nodiscard]] std::string fault_of_failures(const folder_state& found) const {
    powered_saver after(found, cuts_);
    after.table_.steps(5000);
    the_calls.disk = &after.disk_;
    for (const bool full : {false, true}) {
      if (!after.save(full)) return "the next save is refused";
    }
    return after.first_fault(then::only_restore);
  }

  temporary_folder place_;
  std::string path_;
  disk_model disk_;
  trained_table table_{seed()};
  std::optional<checkpoint_folder> saves_;
  std::vector<keyed_content> cuts_;
};

/// Which paths a saver syncs.
using sync_rule = std::function<bool(const std::string& folder, const std::string& path)>;
const sync_rule every_path = [](const std::string&, const std::string&) { return true; };

void follow(powered_saver& all, const sync_rule& rule) {
  the_calls.disk = &all.disk();
  the_calls.may_sync = [&](const std::string& path) { return rule(all.path(), path); };
}

/// Power failures while all calls work.
std::string fault_without_failures(const sync_rule& rule, powered_saver::then next) {
  powered_saver all;
  follow(all, rule);
  for (int cut = 0; cut < 8; ++cut) {
    if (cut == 5) all.begin();
    if (!all.save(cut % 3 == 0)) return "a save is refused";
  }
  CHECK(all.disk().found().size() > 200);
  return all.first_fault(next);
}
/// Power failures after any one call has failed; or after all have from there on, and another process went
/// on.
std::string fault_with_failures(const sync_rule& rule, bool is_killed) {
  for (long n = 0;; ++n) {
    powered_saver all;
    the_calls = {.until_failure = n, .error = EIO, .lasts = is_killed};
    follow(all, rule);
    for (int cut = 0, after = 0; cut < 4 && after < 3; ++cut) {
      if (the_calls.failed == 0) all.disk().forget();
      const bool is_written = all.save(cut % 2 == 0);
      after += the_calls.failed > 0 ? 1 : 0;
      if (is_written || !is_killed) continue;
      the_calls.until_failure = -1;
      all.begin();
    }
    const bool is_last = the_calls.failed == 0;
    if (is_last) CHECK(n > 50);
    if (std::string fault = all.first_fault(); is_last || !fault.empty()) return fault;
  }
}

}  // namespace

TEST_CASE(
    "checkpoint: wherever power fails, and fails again, what is found is a cut that was reported, or newer") {
  CHECK(fault_without_failures(every_path, powered_saver::then::saves_and_failures) == "");
}

TEST_CASE(
    "checkpoint: wherever power fails after a call failed, or a saver was killed, no reported cut is lost") {
  CHECK(fault_with_failures(every_path, false) == "");
  CHECK(fault_with_failures(every_path, true) == "");
}

TEST_CASE("checkpoint: a saver that omits a sync, or removes files before one, is caught by power failures") {
  const auto is_new = [](const std::string& path) { return path.ends_with(".saving"); };
  const auto fault_of = [](const sync_rule& rule) {
    return fault_without_failures(rule, powered_saver::then::only_restore);
  };
  CHECK(fault_of([&](const auto&, const auto& path) { return !is_new(path); }) != "");
  CHECK(fault_of([](const auto& folder, const auto& path) { return path != folder; }) != "");
  CHECK(fault_of([](const auto& folder, const auto& path) { return path.starts_with(folder); }) != "");
  CHECK(fault_of([](const auto& folder, const auto& path) {
          if (path == folder) detail::prune_folder(folder, 1);
          return true;
        }) != "");
  // What an earlier saver left: the name of the folder, or names in it.
  for (const bool is_killed : {false, true}) {
    std::set<std::string> tried;
    CHECK(fault_with_failures(
              [&](const auto& folder, const auto& path) {
                return path.starts_with(folder) || tried.insert(folder).second;
              },
              is_killed) != "");
    bool is_own = false;
    CHECK(fault_with_failures(
              [&](const auto& folder, const auto& path) {
                const bool was_own = std::exchange(is_own, is_new(path));
                return path != folder || was_own;
              },
              is_killed) != "");
  }
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
