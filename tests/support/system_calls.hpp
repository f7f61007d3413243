// System calls on files that fail on purpose, or end the process.
// Defines the calls themselves, instead of the C library's: for one unit of a program.
//
//   system_calls   the n-th call from now on fails, or all from there on; short writes; the process is killed
//                  before its n-th call
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace deeprec_test {

/// What happens to the calls of this process; by one thread.
struct system_calls {
  long until_failure = -1;  ///< calls that work before one fails; negative: none fails
  int error = 0;
  bool lasts = false;        ///< all calls that follow fail too
  bool is_short = false;     ///< writes take half of what they are given
  long until_death = -1;     ///< calls that work before the process is killed; negative: it is not
  bool loses_marks = false;  ///< pwrite says that it has written
  long failed = 0, calls = 0;

  /// Before a call, or anything else that a process does at which it may end.
  void may_die() {
    if (until_death >= 0 && until_death-- == 0) ::kill(::getpid(), SIGKILL);
  }

  /// Whether the next call fails.
  bool fails() {
    ++calls;
    may_die();
    if (until_failure < 0 || until_failure-- > 0) return false;
    if (lasts) until_failure = 0;
    ++failed;
    errno = error;
    return true;
  }
};
inline system_calls the_calls;

/// The names of a folder and what they hold.
using folder_state = std::map<std::string, std::string>;

}  // namespace deeprec_test

extern "C" {

ssize_t write(int number, const void* bytes, size_t count) {
  if (number <= 2) return ::syscall(SYS_write, number, bytes, count);  // what tests print
  if (deeprec_test::the_calls.fails()) return -1;
  if (deeprec_test::the_calls.is_short && count > 1) count /= 2;
  const auto done = static_cast<ssize_t>(::syscall(SYS_write, number, bytes, count));
  return done;
}
int fsync(int number) {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_fsync, number));
  return done;
}
int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (deeprec_test::the_calls.fails()) return -1;
  const auto number = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  return number;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
  return done;
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
  return done;
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int mkdir(const char* path, mode_t mode) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  return done;
}
int flock(int number, int operation) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  return static_cast<int>(::syscall(SYS_flock, number, operation));
}
ssize_t pread(int number, void* bytes, size_t count, off_t offset) {
  if (deeprec_test::the_calls.fails()) return -1;
  return ::syscall(SYS_pread64, number, bytes, count, offset);
}
ssize_t pwrite(int number, const void* bytes, size_t count, off_t offset) {
  if (deeprec_test::the_calls.fails()) return -1;
  if (deeprec_test::the_calls.loses_marks) return static_cast<ssize_t>(count);
  return ::syscall(SYS_pwrite64, number, bytes, count, offset);
}
int fdatasync(int number) {
  if (deeprec_test::the_calls.fails()) return -1;
  return static_cast<int>(::syscall(SYS_fdatasync, number));
}
int msync(void* begin, size_t bytes, int flags) {
  if (deeprec_test::the_calls.fails()) return -1;
  return static_cast<int>(::syscall(SYS_msync, begin, bytes, flags));
}
int fallocate(int number, int mode, off_t offset, off_t bytes) {
  if (deeprec_test::the_calls.fails()) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, number, mode, offset, bytes));
}

}  // extern "C"
