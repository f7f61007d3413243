// System calls of a save that fail on purpose, and what a disk may hold when power fails between two of them.
// Defines the calls themselves, instead of the C library's: for one unit of a program.
//
//   system_calls   the n-th call from now on fails, or all from there on; short writes
//   power_cuts     keeps which bytes and names of one folder were brought to the disk; after each call, every
//                  folder that may be found when power fails there
#pragma once

#include <fcntl.h>
#include <sys/file.h>
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
  bool lasts = false;     ///< all calls that follow fail too
  bool is_short = false;  ///< writes take half of what they are given
  long failed = 0, calls = 0;

  /// Whether the next call fails.
  bool fails() {
    ++calls;
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

class power_cuts {
 public:
  /// Follows a folder, which may not exist yet, as long as it lives. `seen` is called with every folder that may be
  /// found, after each call.
  power_cuts(std::string folder, std::function<void(const folder_state&)> seen)
      : folder_(std::move(folder)), above_(folder_.substr(0, folder_.rfind('/'))), seen_(std::move(seen)) {
    current() = this;
  }
  power_cuts(const power_cuts&) = delete;
  power_cuts& operator=(const power_cuts&) = delete;
  ~power_cuts() { current() = nullptr; }
  static power_cuts*& current() {
    static power_cuts* one = nullptr;
    return one;
  }

  void made_folder(const std::string& path) {
    if (path != folder_) return;
    is_on_disk_ = false;
    look();
  }
  void made(int number) {
    const std::string name = name_of(number);
    if (name.empty() || name == "checkpoint.lock" || names_.count(name) > 0) return;
    const auto made = std::make_shared<file>();
    files_[inode_of(number)] = made;
    change(name, made);
    look();
  }
  void wrote(int number, const void* bytes, std::size_t count) {
    const auto found = files_.find(inode_of(number));
    if (found == files_.end()) return;
    found->second->bytes.append(static_cast<const char*>(bytes), count);
    look();
  }
  void synced(int number) {
    const auto found = files_.find(inode_of(number));
    if (found != files_.end()) {
      found->second->on_disk = found->second->bytes;
    } else if (inode_of(number) == inode_of(folder_)) {
      pending_.clear();
      names_on_disk_ = names_;
    } else if (inode_of(number) == inode_of(above_)) {
      is_on_disk_ = true;
    }
    look();
  }
  void renamed(const std::string& from, const std::string& to) {
    const auto found = names_.find(from);
    if (found == names_.end()) return;
    const auto what = found->second;
    pending_.push_back({from, nullptr, to, what});
    names_.erase(from);
    names_[to] = what;
    look();
  }
  void removed(const std::string& path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    if (names_.count(name) == 0) return;
    change(name, nullptr);
    look();
  }

 private:
  struct file {
    std::string bytes, on_disk;
  };
  using file_pointer = std::shared_ptr<file>;
  using name_map = std::map<std::string, file_pointer>;
  // Names that one call gave: to what, or to nothing.
  struct step {
    std::string first;
    file_pointer to_first;
    std::string second;
    file_pointer to_second;
  };

  static ino_t inode_of(int number) {
    struct stat facts{};
    return ::fstat(number, &facts) == 0 ? facts.st_ino : 0;
  }
  static ino_t inode_of(const std::string& path) {
    struct stat facts{};
    return ::stat(path.c_str(), &facts) == 0 ? facts.st_ino : 0;
  }
  // The name of an open file in the folder; empty elsewhere.
  [[nodiscard]] std::string name_of(int number) const {
    char path[4096];
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    const ssize_t length = ::readlink(link.c_str(), path, sizeof(path));
    const std::string text(path, length > 0 ? static_cast<std::size_t>(length) : 0);
    return text.starts_with(folder_ + '/') ? text.substr(folder_.size() + 1) : std::string();
  }
  static void set(name_map& names, const std::string& name, const file_pointer& to) {
    if (name.empty()) return;
    if (to == nullptr) {
      names.erase(name);
    } else {
      names[name] = to;
    }
  }
  void change(const std::string& name, const file_pointer& to) {
    pending_.push_back({name, to, {}, nullptr});
    set(names_, name, to);
  }
  // Names that are not on the disk may be found or not, each for itself. Of bytes that are not, none, some or all.
  void look() {
    if (!is_on_disk_) offer({});
    const std::size_t free = (std::min)(pending_.size(), std::size_t{4});
    for (std::size_t chosen = 0; chosen < std::size_t{1} << free; ++chosen) {
      name_map names = names_on_disk_;
      for (std::size_t i = 0; i < pending_.size(); ++i) {
        const bool is_found = i + free < pending_.size() || (chosen >> (pending_.size() - 1 - i) & 1) != 0;
        if (!is_found) continue;
        set(names, pending_[i].first, pending_[i].to_first);
        set(names, pending_[i].second, pending_[i].to_second);
      }
      for (const int part : {0, 1, 2}) {
        folder_state found;
        for (const auto& [name, one] : names) {
          const std::string& all = one->bytes;
          const std::size_t length = part == 0 ? one->on_disk.size() : part == 2 ? all.size() : (one->on_disk.size() + all.size()) / 2;
          found[name] = all.substr(0, length);
          // Lengths may be on the disk before bytes.
          if (part == 1) found[name].resize(all.size());
        }
        offer(found);
      }
    }
  }
  void offer(const folder_state& found) {
    if (offered_.insert(found).second) seen_(found);
  }

  std::string folder_, above_;
  std::function<void(const folder_state&)> seen_;
  bool is_on_disk_ = true;
  std::map<ino_t, file_pointer> files_;
  name_map names_, names_on_disk_;
  std::vector<step> pending_;
  std::set<folder_state> offered_;
};

}  // namespace deeprec_test

extern "C" {

ssize_t write(int number, const void* bytes, size_t count) {
  if (number <= 2) return ::syscall(SYS_write, number, bytes, count);  // what tests print
  if (deeprec_test::the_calls.fails()) return -1;
  if (deeprec_test::the_calls.is_short && count > 1) count /= 2;
  const auto done = static_cast<ssize_t>(::syscall(SYS_write, number, bytes, count));
  if (done > 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->wrote(number, bytes, static_cast<std::size_t>(done));
  return done;
}
int fsync(int number) {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_fsync, number));
  if (done == 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->synced(number);
  return done;
}
int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if (deeprec_test::the_calls.fails()) return -1;
  const auto number = static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
  if (number >= 0 && (flags & O_CREAT) != 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->made(number);
  return number;
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
  if (done == 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->renamed(from, to);
  return done;
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
  if (done == 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->removed(name);
  return done;
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int mkdir(const char* path, mode_t mode) noexcept {
  if (deeprec_test::the_calls.fails()) return -1;
  const auto done = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (done == 0 && deeprec_test::power_cuts::current() != nullptr)
    deeprec_test::power_cuts::current()->made_folder(path);
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

}  // extern "C"
