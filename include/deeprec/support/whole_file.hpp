// POSIX files: one that appears under its name only when it is complete, and one for reading.
//
//   NAME.saving  make, lock ─> write ... ─> fsync ─> rename to NAME ─> fsync of the folder
//                     └ on a fault, or destruction without commit(): removed, NAME untouched
//
// A process that is killed leaves NAME.saving; the next one that saves NAME removes it and creates its own,
// so that owner, mode and hard links of the old one are not inherited. The lock excludes a second saver.
// Faults don't name the file: the caller does (fault::in_file).
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// io_error: "WHAT: the system's message for errno"
inline fault system_fault(const std::string& what) {
  return {errc::io_error, what + ": " + std::system_category().message(errno)};
}

class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    descriptor old(std::exchange(number_, std::exchange(other.number_, -1)));
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] bool open() const noexcept { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// openat(), repeated after a signal.
template <class... Mode>
descriptor open_at(int folder, const char* name, int flags, Mode... mode) noexcept {
  int number = -1;
  do {
    number = ::openat(folder, name, flags | O_CLOEXEC, mode...);
  } while (number < 0 && errno == EINTR);
  return descriptor(number);
}

/// Writes all bytes at the descriptor's current offset.
inline result<void> write_all(int number, const std::byte* bytes, std::size_t count) {
  constexpr std::size_t largest = std::size_t{1} << 30;  // the system takes no more than 2 GB at once
  while (count > 0) {
    const ssize_t written = ::write(number, bytes, (std::min)(count, largest));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_fault("cannot write");
    }
    bytes += written;
    count -= static_cast<std::size_t>(written);
  }
  return {};
}

/// Reads all of [offset, offset + count).
inline result<void> read_at(int number, std::uint64_t offset, std::byte* bytes, std::size_t count) {
  constexpr std::size_t largest = std::size_t{1} << 30;
  while (count > 0) {
    const ssize_t got = ::pread(number, bytes, (std::min)(count, largest), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_fault("cannot read at byte " + std::to_string(offset));
    }
    if (got == 0) {
      return fault(errc::io_error,
                   "became shorter while it was read: ends at byte " + std::to_string(offset));
    }
    bytes += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
  return {};
}
/// Writes all of [offset, offset + count).
inline result<void> write_at(int number, std::uint64_t offset, const std::byte* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::pwrite(number, bytes, count, static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_fault("cannot write at byte " + std::to_string(offset));
    }
    bytes += written;
    offset += static_cast<std::uint64_t>(written);
    count -= static_cast<std::size_t>(written);
  }
  return {};
}

/// The new content of a file, under a temporary name next to the old one.
class replacement_file {
 public:
  replacement_file() = default;
  replacement_file(const replacement_file&) = delete;
  replacement_file& operator=(const replacement_file&) = delete;
  ~replacement_file() {
    if (file_.open()) ::unlinkat(folder_.get(), beside_.c_str(), 0);  // before the lock is released
  }

  [[nodiscard]] result<void> open(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    name_ = slash == std::string::npos ? path : path.substr(slash + 1);
    if (name_.empty()) return status(errc::io_error, "the path names no file");
    beside_ = name_ + ".saving";
    folder_ = open_at(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (!folder_.open()) return system_fault("cannot open its folder");
    struct stat old{};
    const bool replaces = ::fstatat(folder_.get(), name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (replaces && S_ISDIR(old.st_mode)) return status(errc::io_error, "is a directory");
    if (replaces && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode))
      return status(errc::io_error, "is not a regular file");
    if (auto made = make_beside(); !made) return made;
    if (replaces && S_ISREG(old.st_mode) && ::fchmod(file_.get(), old.st_mode & 0777U) != 0) {
      return system_fault("cannot give " + beside_ + " the old file's mode");
    }
    return {};
  }

  [[nodiscard]] result<void> write(const std::byte* bytes, std::size_t count) {
    return write_all(file_.get(), bytes, count);
  }

  /// So many bytes more, which are zero; afterwards nothing can be appended. The disk can't be too full for
  /// them later, except on file systems that copy what is overwritten.
  [[nodiscard]] result<void> reserve(std::uint64_t bytes) {
    if (bytes == 0) return {};
    const off_t end = ::lseek(file_.get(), 0, SEEK_CUR);
    if (end < 0) return system_fault("cannot read its length");
    while (::fallocate(file_.get(), 0, end, static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      if (errno != EOPNOTSUPP) return system_fault("cannot reserve " + std::to_string(bytes) + " bytes");
      const std::vector<std::byte> zeros(std::size_t{1} << 20);
      for (; bytes > 0; bytes -= (std::min)(bytes, std::uint64_t{zeros.size()})) {
        const auto count = static_cast<std::size_t>((std::min)(bytes, std::uint64_t{zeros.size()}));
        if (auto done = write(zeros.data(), count); !done) return done;
      }
      return {};
    }
    return {};
  }

  /// After this the new content has the name, also after a power failure.
  [[nodiscard]] result<void> commit() {
    if (::fsync(file_.get()) != 0) return system_fault("cannot bring the file to the disk");
    if (::renameat(folder_.get(), beside_.c_str(), folder_.get(), name_.c_str()) != 0) {
      return system_fault("cannot rename " + beside_);
    }
    file_ = descriptor();                                  // nothing to remove any more
    if (::fsync(folder_.get()) != 0 && errno != EINVAL) {  // EINVAL: not supported by this file system
      return system_fault("the new file is whole, but its name may be lost in a power cut: its folder");
    }
    return {};
  }

 private:
  /// Creates the temporary file, exclusively. Only the holder of the lock on the file that has the temporary
  /// name may rename or remove it. Between creating or opening a file and locking it the name may pass to
  /// another file, so the locked file is compared with the name again.
  result<void> make_beside() {
    for (;;) {
      constexpr int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK;
      descriptor made = open_at(folder_.get(), beside_.c_str(), flags | O_CREAT | O_EXCL, 0666);
      if (made.open()) {
        if (!lock(made) && errno == EWOULDBLOCK) return busy();
        if (!is_beside(made)) continue;  // another saver took it for a leftover
        file_ = std::move(made);
        return {};
      }
      if (errno != EEXIST) return system_fault("cannot make " + beside_ + " beside it");
      const descriptor left = open_at(folder_.get(), beside_.c_str(), flags);
      if (!left.open()) {
        if (errno == ENOENT) continue;  // renamed or removed just now
        return system_fault("cannot make " + beside_ + " beside it");
      }
      struct stat held{};
      if (::fstat(left.get(), &held) != 0) return system_fault("cannot read the facts of " + beside_);
      if (!S_ISREG(held.st_mode)) return fault(errc::io_error, beside_ + " is not a regular file");
      if (!lock(left)) {
        if (errno == EWOULDBLOCK) return busy();
        return system_fault("cannot lock " + beside_ + ", which another saver left");
      }
      if (is_beside(left) && ::unlinkat(folder_.get(), beside_.c_str(), 0) != 0) {
        return system_fault("cannot remove " + beside_ + ", which another saver left");
      }
    }
  }

  static bool lock(const descriptor& file) noexcept { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }
  static status busy() noexcept { return {errc::io_error, "another process or thread is saving it"}; }
  /// Whether the temporary name refers to this file.
  [[nodiscard]] bool is_beside(const descriptor& file) const noexcept {
    struct stat held{}, named{};
    return ::fstat(file.get(), &held) == 0 &&
           ::fstatat(folder_.get(), beside_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_ino == held.st_ino && named.st_dev == held.st_dev;
  }

  std::string name_, beside_;
  descriptor folder_, file_;
};

/// A regular file for reading.
class input_file {
 public:
  [[nodiscard]] result<void> open(const std::string& path) {
    file_ = open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_NONBLOCK);  // must not wait for a pipe's writer
    if (!file_.open()) return system_fault("cannot open");
    struct stat facts{};
    if (::fstat(file_.get(), &facts) != 0) return system_fault("cannot read its facts");
    if (S_ISDIR(facts.st_mode)) return status(errc::io_error, "is a directory");
    if (!S_ISREG(facts.st_mode)) return status(errc::io_error, "is not a regular file");
    size_ = static_cast<std::uint64_t>(facts.st_size);
    return {};
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

  /// Reads all of [offset, offset + count).
  [[nodiscard]] result<void> read(std::uint64_t offset, std::byte* bytes, std::size_t count) const {
    return read_at(file_.get(), offset, bytes, count);
  }

 private:
  descriptor file_;
  std::uint64_t size_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
