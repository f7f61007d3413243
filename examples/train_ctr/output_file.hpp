// A file that appears under its name only when it is whole, or the standard output.
//
//   NAME.<process>.writing  ──write ...──> close() ──rename──> NAME
//                               └ on a fault, or destruction without close(): removed, NAME untouched
//
// A link stays: the file that it refers to is replaced. What is no regular file (a pipe, a device,
// /dev/stdout) is written in place.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "models/ctr_data.hpp"

namespace ctr {

inline double probability_of(float logit) { return 1 / (1 + std::exp(-static_cast<double>(logit))); }

/// Whether a path names what this process has open already.
inline bool is_descriptor(std::string_view path) {
  return path.starts_with("/dev/std") || path.starts_with("/dev/fd/") || path.starts_with("/proc/");
}

/// What a path refers to, through links. The last part need not exist.
inline std::string target_of(const std::string& path) {
  std::filesystem::path at = path;
  for (int links = 0; links < 40 && !is_descriptor(at.native()); ++links) {
    std::error_code no_link;
    const std::filesystem::path to = std::filesystem::read_symlink(at, no_link);
    if (no_link) break;
    at = at.parent_path() / to;  // `to` alone where it is absolute
  }
  return at;
}

/// Throws a failure where it can't be written.
class output_file {
 public:
  /// @param path  empty: the standard output
  explicit output_file(std::string path) : path_(std::move(path)) {
    if (path_.empty()) {
      file_ = stdout;
      return;
    }
    target_ = target_of(path_);
    struct stat old{};
    const bool exists = ::stat(target_.c_str(), &old) == 0;
    if (is_descriptor(target_) || (exists && !S_ISREG(old.st_mode))) {
      file_ = std::fopen(target_.c_str(), "ae");
    } else if (target_.empty() || target_.back() == '/') {
      errno = EISDIR;
    } else if (!exists || ::access(target_.c_str(), W_OK) == 0) {
      beside_ = target_ + '.' + std::to_string(::getpid()) + ".writing";
      ::unlink(beside_.c_str());  // of a process of this number that was killed
      const int made = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (made >= 0 && exists) (void)!::fchmod(made, old.st_mode & 0777U);
      file_ = made >= 0 ? ::fdopen(made, "w") : nullptr;
      if (made < 0) {
        beside_.clear();
      } else if (file_ == nullptr) {
        const int why = errno;
        ::close(made);
        ::unlink(beside_.c_str());
        errno = why;
      }
    }
    if (file_ == nullptr) throw_unwritten();
  }
  ~output_file() {
    if (file_ != nullptr && !path_.empty()) std::fclose(file_);
    if (!beside_.empty()) ::unlink(beside_.c_str());
  }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  void line(const std::string& text) { write(text + '\n'); }
  void write(std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) throw_unwritten();
  }
  void flush() {
    if (std::fflush(file_) != 0) throw_unwritten();
  }
  /// From the first byte again.
  void rewind() {
    if (std::fseek(file_, 0, SEEK_SET) != 0) throw_unwritten();
  }
  void close() {
    std::FILE* const file = std::exchange(file_, nullptr);
    int wrong = std::fflush(file) != 0 ? errno : 0;
    if (!path_.empty() && std::fclose(file) != 0 && wrong == 0) wrong = errno;
    if (wrong == 0 && !beside_.empty() && ::rename(beside_.c_str(), target_.c_str()) != 0) wrong = errno;
    errno = wrong;
    if (wrong != 0) throw_unwritten();
    beside_.clear();
  }

 private:
  /// By errno.
  [[noreturn]] void throw_unwritten() const {
    const std::string why = std::strerror(errno);
    throw failure("cannot write " + (path_.empty() ? "the standard output" : path_) + ": " + why);
  }

  std::string path_, target_, beside_;  // beside_: the name while it is written
  std::FILE* file_ = nullptr;
};

/// All of a file.
inline void write_file(const std::string& path, std::string_view text) {
  output_file file(path);
  file.write(text);
  file.close();
}

}  // namespace ctr
