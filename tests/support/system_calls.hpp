// System calls on files that fail on purpose, or end the process, and a disk that follows them.
// Defines the calls themselves, instead of the C library's: for one unit of a program. fsync only tells the
// disk's model.
//
//   system_calls   the n-th call from now on fails, or all from there on; short writes; syncs left out; the
//                  process is killed before its n-th call
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
#include <filesystem>
#include <functional>
#include <string>

#include "support/disk_model.hpp"

namespace deeprec_test {

/// What happens to the calls of this process; by one thread.
struct system_calls {
  long until_failure = -1;  ///< calls that work before one fails; negative: none fails
  int error = 0;
  bool lasts = false;        ///< all calls that follow fail too
  bool is_short = false;     ///< writes take half of what they are given
  long until_death = -1;     ///< calls that work before the process is killed; negative: it is not
  bool loses_marks = false;  ///< pwrite says that it has written
  disk_model* disk = nullptr;
  /// Called before a path is synced: whether it is. Empty: always.
  std::function<bool(const std::string& path)> may_sync = {};
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

/// The path of an open file, or of a name in an open folder.
inline std::string path_of(int number) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(number);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof(path));
  return {path, length > 0 ? static_cast<std::size_t>(length) : 0};
}
inline std::string path_of(int folder, const std::string& name) {
  if (name.starts_with('/')) return name;
  return (folder == AT_FDCWD ? std::filesystem::current_path().string() : path_of(folder)) + '/' + name;
}

}  // namespace deeprec_test

extern "C" {

ssize_t write(int number, const void* bytes, size_t count) {
  if (number <= 2) return ::syscall(SYS_write, number, bytes, count);  // what tests print
  if (deeprec_test::the_calls.fails()) return -1;
  if (deeprec_test::the_calls.is_short && count > 1) count /= 2;
  const auto done = static_cast<ssize_t>(::syscall(SYS_write, number, bytes, count));
  if (deeprec_test::disk_model* const disk = deeprec_test::the_calls.disk; disk != nullptr && done > 0)
    disk->wrote(deeprec_test::path_of(number), static_cast<const char*>(bytes), static_cast<size_t>(done));
  return done;
}
int fsync(int number) {
  const auto& may_sync = deeprec_test::the_calls.may_sync;
  if (may_sync && !may_sync(deeprec_test::path_of(number))) return 0;
  if (deeprec_test::the_calls.fails()) return -1;
  if (::fcntl(number, F_GETFD) < 0) return -1;
  if (deeprec_test::the_calls.disk != nullptr)
    deeprec_test::the_calls.disk->synced(deeprec_test::path_of(number));
  return 0;
}
int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (deeprec_test::the_calls.fails()) return -1;
  const auto number = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  if (deeprec_test::the_calls.disk != nullptr && number >= 0 && (flags & O_CREAT) != 0)
    deeprec_test::the_calls.disk->made(deeprec_test::path_of(number));
  return number;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
  if (deeprec_test::the_calls.disk != nullptr && done == 0)
    deeprec_test::the_calls.disk->renamed(deeprec_test::path_of(from_folder, from),
                                          deeprec_test::path_of(to_folder, to));
  return done;
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
  if (deeprec_test::the_calls.disk != nullptr && done == 0)
    deeprec_test::the_calls.disk->removed(deeprec_test::path_of(folder, name));
  return done;
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int mkdir(const char* path, mode_t mode) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (deeprec_test::the_calls.disk != nullptr && done == 0)
    deeprec_test::the_calls.disk->made_folder(deeprec_test::path_of(AT_FDCWD, path));
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
