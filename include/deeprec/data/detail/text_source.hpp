// A source of text: a regular file, read by pread, or memory.
//
//   open()  size, first line        read(offset, to, bytes)  from any thread, any part
//
// Files are never mapped: one that becomes shorter is a fault, not a signal.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class text_source {
 public:
  /// A file that is opened later.
  explicit text_source(std::string path) : name_(std::move(path)) {}
  /// Text that the caller owns.
  text_source(std::string name, std::string_view text)
      : name_(std::move(name)), text_(text), size_(static_cast<index_t>(text.size())), in_memory_(true) {}

  text_source(text_source&& other) noexcept
      : name_(std::move(other.name_)),
        text_(other.text_),
        size_(other.size_),
        descriptor_(std::exchange(other.descriptor_, -1)),
        in_memory_(other.in_memory_) {}
  text_source& operator=(text_source&& other) noexcept {
    name_.swap(other.name_);
    std::swap(text_, other.text_);
    std::swap(size_, other.size_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(in_memory_, other.in_memory_);
    return *this;
  }
  ~text_source() { close(); }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] index_t size() const noexcept { return size_; }
  /// The text itself, where it is in memory.
  [[nodiscard]] bool in_memory() const noexcept { return in_memory_; }
  [[nodiscard]] std::string_view text() const noexcept { return text_; }

  /// Opens the file.
  ///
  /// @error io_error
  [[nodiscard]] status open() noexcept {
    if (in_memory_ || descriptor_ >= 0) return {};
    do {
      descriptor_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) return refusal(errno);
    struct stat facts;
    if (::fstat(descriptor_, &facts) != 0) {
      const int why = errno;
      close();
      return refusal(why);
    }
    if (S_ISDIR(facts.st_mode)) {
      close();
      return {errc::io_error, "is a directory"};
    }
    if (!S_ISREG(facts.st_mode)) {
      close();
      return {errc::io_error, "is not a regular file"};
    }
    size_ = static_cast<index_t>(facts.st_size);
    return {};
  }

  void close() noexcept {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

  /// Reads `bytes` bytes at `offset`.
  ///
  /// @pre     the source is open and offset + bytes <= size()
  /// @threads thread-safe
  /// @error   io_error
  [[nodiscard]] status read(index_t offset, char* to, index_t bytes) const noexcept {
    if (in_memory_) {
      std::memcpy(to, text_.data() + offset, static_cast<std::size_t>(bytes));
      return {};
    }
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return refusal(errno);
      if (got == 0) return {errc::io_error, "the file became shorter while it was read"};
      to += got;
      offset += got;
      bytes -= got;
    }
    return {};
  }

 private:
  static status refusal(int code) noexcept {
    switch (code) {
      case ENOENT:
        return {errc::io_error, "no such file"};
      case EACCES:
        return {errc::io_error, "permission denied"};
      case EISDIR:
        return {errc::io_error, "is a directory"};
      case EMFILE:
      case ENFILE:
        return {errc::io_error, "too many open files"};
      case EIO:
        return {errc::io_error, "the device reported an error"};
      case ELOOP:
        return {errc::io_error, "too many symbolic links"};
      case ENAMETOOLONG:
        return {errc::io_error, "the name is too long"};
      case ENOTDIR:
        return {errc::io_error, "a part of the path is not a directory"};
      default:
        return {errc::io_error, "the system refused to open or read it"};
    }
  }

  std::string name_;
  std::string_view text_;
  index_t size_ = 0;
  int descriptor_ = -1;
  bool in_memory_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
