// Tables on mapped files whose process is killed, or whose system calls fail: at every system call and in the
// middle of every row. What is found is a table that was closed, whole; or it is refused.
#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/tables/mapped_table.hpp>

#include "support/system_calls.hpp"
#include "support/temporary_folder.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 24, width = 8;
constexpr mapped_file_options as_it_is{.if_unclosed = mapped_file_options::unclosed::accept};

/// Where a wait for the disk is short.
std::filesystem::path fast_folder() {
  return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
}

/// Writes a number to all values of all rows; in the middle of a row the process may end.
void write_rows(dense_table<f32_rows>& table, float value) {
  for (index_t r = 0; r < rows; ++r) {
    auto* const values = reinterpret_cast<float*>(table.view().row(r));
    for (index_t j = 0; j < width; ++j) {
      if (j % 2 == 0) the_calls.may_die();
      *const_cast<volatile float*>(values + j) = value;
    }
  }
}

/// What a restart finds.
struct found_table {
  result<void> opened;
  std::set<float> values;  // that differ
  int torn_rows = 0;
};
found_table find(const std::string& path, const mapped_file_options& options = {}) {
  found_table found;
  auto table = mapped_table<f32_rows>::open(path, rows, width, options);
  if (!table) {
    found.opened = table.fault();
    return found;
  }
  for (index_t r = 0; r < rows; ++r) {
    const auto* const values = reinterpret_cast<const float*>(table.value().table().view().row(r));
    bool is_torn = false;
    for (index_t j = 0; j < width; ++j) {
      is_torn = is_torn || values[j] != values[0];
      found.values.insert(values[j]);
    }
    found.torn_rows += is_torn ? 1 : 0;
  }
  table.value().close().or_throw();
  return found;
}

/// Runs of a process: each opens the table, writes the next number to it, and closes it. Reports each number
/// that is closed; returns false where something failed.
bool run(const std::string& path, int report) {
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    auto table = mapped_table<f32_rows>::open(path, rows, width);
    if (!table) return false;
    write_rows(table.value().table(), value);
    if (value == 2 && !table.value().flush()) return false;
    if (!table.value().close()) return false;
    if (::syscall(SYS_write, report, &value, sizeof(value)) != sizeof(value)) return false;
  }
  return true;
}

/// Kills such a process at its n-th moment. The number that it reported last; whether it lived.
std::pair<float, bool> killed_at(long n, const std::string& path, bool loses_marks = false) {
  int report[2];
  REQUIRE(::pipe(report) == 0);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    the_calls = {.until_death = n, .loses_marks = loses_marks};
    ::_exit(run(path, report[1]) ? 0 : 1);
  }
  ::close(report[1]);
  float reported = 0, next = 0;
  while (::read(report[0], &next, sizeof(next)) == sizeof(next)) reported = next;
  ::close(report[0]);
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  if (WIFSIGNALED(state)) {
    REQUIRE(WTERMSIG(state) == SIGKILL);
    return {reported, false};
  }
  REQUIRE(WEXITSTATUS(state) == 0);
  return {reported, true};
}

/// How often what a restart found was not what it may be, over all moments at which the process is killed.
struct kills {
  long moments = 0;
  int whole = 0, refused = 0, wrong = 0;
};
kills killed_at_every_moment(bool loses_marks = false) {
  kills all;
  for (;; ++all.moments) {
    const temporary_folder folder(fast_folder());
    const std::string path = folder.path() + "/rows";
    const auto [reported, lived] = killed_at(all.moments, path, loses_marks);
    if (lived) return all;
    const found_table found = find(path);
    if (found.opened) {
      ++all.whole;
      // One number: the one that was reported, or the next one, killed between its close and its report.
      const bool is_right = found.torn_rows == 0 && found.values.size() == 1 &&
                            (*found.values.begin() == reported || *found.values.begin() == reported + 1);
      all.wrong += is_right ? 0 : 1;
    } else {
      ++all.refused;
      const bool says_why = found.opened.code() == errc::invalid_value &&
                            found.opened.message().find("was not closed") != std::string::npos;
      // Taken as it is: the rows of before and of now, and one that is torn at most. No row is lost.
      const found_table as_is = find(path, as_it_is);
      bool is_right = says_why && as_is.opened.ok() && as_is.torn_rows <= 1;
      for (const float value : as_is.values)
        is_right = is_right && (value == reported || value == reported + 1);
      all.wrong += is_right && find(path).opened.ok() ? 0 : 1;
    }
  }
}

}  // namespace

TEST_CASE("mapped_table: of a process that is killed, at any moment, a table is whole or refused") {
  const kills all = killed_at_every_moment();
  MESSAGE("killed at " << all.moments << " moments: " << all.whole << " times whole, " << all.refused
                       << " times refused");
  CHECK(all.moments >= 200);
  CHECK(all.whole > 20);
  CHECK(all.refused > 100);
  CHECK(all.wrong == 0);
}

TEST_CASE("mapped_table: a file without its mark is caught by the test of killed processes") {
  CHECK(killed_at_every_moment(true).wrong > 20);
}

TEST_CASE("mapped_table: any system call that fails is a fault with its reason, and the next try works") {
  for (const int error : {ENOSPC, EIO, EROFS}) {
    for (const bool lasts : {false, true}) {
      int failed = 0;
      for (long n = 0;; ++n) {
        CAPTURE(error);
        CAPTURE(lasts);
        CAPTURE(n);
        const temporary_folder folder(fast_folder());
        const std::string path = folder.path() + "/rows";
        float written = 0;
        bool is_refused = false;
        the_calls = {.until_failure = n, .error = error, .lasts = lasts};
        {
          auto table = mapped_table<f32_rows>::open(path, rows, width);
          if (table) {
            write_rows(table.value().table(), 1);
            written = 1;
            const auto flushed = table.value().flush();
            auto closed = table.value().close();
            is_refused = !flushed || !closed;
            for (const result<void>& one : {flushed, closed}) {
              CHECK((one.ok() || one.code() == errc::io_error));
              CHECK((one.ok() || one.message().find(path) != std::string::npos));
            }
            if (!closed) {  // open as before
              CHECK(table.value().table().rows() == rows);
              the_calls.until_failure = -1;
              CHECK(table.value().close().ok());
            }
          } else {
            is_refused = true;
            CHECK(table.code() == errc::io_error);
            CHECK(table.message().find(path) != std::string::npos);
          }
        }
        const long hits = std::exchange(the_calls, {}).failed;
        failed += is_refused ? 1 : 0;
        const found_table found = find(path);
        // A file that was made, and marked, without becoming open may need to be taken as it is.
        if (!found.opened) {
          CHECK(lasts);
          CHECK(find(path, as_it_is).values == std::set<float>{0});
        } else {
          CHECK(found.values == std::set<float>{written});
          CHECK(found.torn_rows == 0);
        }
        if (lasts) std::filesystem::remove(path + ".saving");
        CHECK(folder.names() == std::vector<std::string>{"rows"});
        if (hits == 0) break;
      }
      CHECK(failed > 10);
    }
  }
}

TEST_CASE("mapped_table: interrupted calls are no faults") {
  for (long n = 0;; ++n) {
    const temporary_folder folder(fast_folder());
    const std::string path = folder.path() + "/rows";
    the_calls = {.until_failure = n, .error = EINTR};
    auto table = mapped_table<f32_rows>::open(path, rows, width);
    if (table) {
      write_rows(table.value().table(), 1);
      if (!table.value().close()) CHECK(table.value().close().ok());
    }
    const long hits = std::exchange(the_calls, {}).failed;
    if (table) CHECK(find(path).values == std::set<float>{1});
    if (hits == 0) {
      CHECK(table.ok());
      break;
    }
  }
}
