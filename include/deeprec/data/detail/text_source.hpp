// A source of text: a regular file, read by pread, or memory; or a stream, read from begin to end.
//
//   open()  size, first line        read(offset, to, bytes)  from any thread, any part
//                                   read_on(to, bytes, got)  of a stream: what comes next
//
// Files are never mapped: one that becomes shorter is a fault, not a signal.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/io_refusal.hpp>
#include <deeprec/data/text_stream.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr status shorter_file(errc::io_error, "the file became shorter while it was read");

/// Text in memory as a stream.
class memory_stream final : public text_stream {
 public:
  explicit memory_stream(std::string_view text) noexcept : text_(text) {}
  [[nodiscard]] status open() noexcept override {
    read_ = 0;
    return {};
  }
  [[nodiscard]] status read(char* to, index_t bytes, index_t& got) noexcept override {
    got = static_cast<index_t>(text_.copy(to, static_cast<std::size_t>(bytes), read_));
    read_ += static_cast<std::size_t>(got);
    return {};
  }
  void close() noexcept override {}
  [[nodiscard]] bool ready(std::chrono::milliseconds) noexcept override { return true; }
  [[nodiscard]] index_t bytes_read() const noexcept override { return static_cast<index_t>(read_); }

 private:
  std::string_view text_;
  std::size_t read_ = 0;
};

class text_source {
 public:
  /// A file that is opened later.
  explicit text_source(std::string path) : name_(std::move(path)) {}
  /// Text that the caller owns.
  text_source(std::string name, std::string_view text)
      : name_(std::move(name)), text_(text), size_(static_cast<index_t>(text.size())), in_memory_(true) {}
  text_source(std::string name, std::unique_ptr<text_stream> stream)
      : name_(std::move(name)), stream_(std::move(stream)) {}

  text_source(text_source&& other) noexcept
      : name_(std::move(other.name_)),
        text_(other.text_),
        size_(other.size_),
        descriptor_(std::exchange(other.descriptor_, -1)),
        in_memory_(other.in_memory_),
        stream_(std::move(other.stream_)),
        stream_is_open_(std::exchange(other.stream_is_open_, false)) {}
  text_source& operator=(text_source&& other) noexcept {
    name_.swap(other.name_);
    std::swap(text_, other.text_);
    std::swap(size_, other.size_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(in_memory_, other.in_memory_);
    stream_.swap(other.stream_);
    std::swap(stream_is_open_, other.stream_is_open_);
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
    if (stream_ != nullptr) {
      if (stream_is_open_) return {};
      const status s = stream_->open();
      stream_is_open_ = s.ok();
      return s;
    }
    if (in_memory_ || descriptor_ >= 0) return {};
    do {
      descriptor_ = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) return io_refusal(errno);
    struct stat facts;
    if (::fstat(descriptor_, &facts) != 0) {
      const int why = errno;
      close();
      return io_refusal(why);
    }
    if (S_ISDIR(facts.st_mode)) {
      close();
      return {errc::io_error, "is a directory"};
    }
    if (!S_ISREG(facts.st_mode)) {
      close();
      return {errc::io_error, "is not a regular file"};
    }
    const auto size = static_cast<index_t>(facts.st_size);
    if (std::exchange(size_, size) > size) {  // than when it was opened before
      close();
      return shorter_file;
    }
    return {};
  }
  /// Whether the open file has become shorter than it was when it was opened: then its last line was cut.
  [[nodiscard]] bool became_shorter() const noexcept {
    struct stat facts;
    return descriptor_ >= 0 && ::fstat(descriptor_, &facts) == 0 && facts.st_size < size_;
  }

  void close() noexcept {
    if (std::exchange(stream_is_open_, false)) stream_->close();
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
      if (got < 0) return io_refusal(errno);
      if (got == 0) return shorter_file;
      to += got;
      offset += got;
      bytes -= got;
    }
    return {};
  }

  /// Makes a stream of what is none: it is read from begin to end from now on.
  ///
  /// @pre it is closed
  void make_stream() {
    if (is_stream()) return;
    if (in_memory_) {
      stream_ = std::make_unique<memory_stream>(text_);
    } else {
      stream_ = std::make_unique<file_stream>(name_);
    }
    in_memory_ = false;
  }
  /// A stream has no size, and read_on() instead of read().
  [[nodiscard]] bool is_stream() const noexcept { return stream_ != nullptr; }
  /// Reads what comes next; got is 0 at the end only.
  ///
  /// @pre     the source is an open stream
  /// @threads one thread at a time
  /// @error   io_error, out_of_memory
  [[nodiscard]] status read_on(char* to, index_t bytes, index_t& got) noexcept {
    return stream_->read(to, bytes, got);
  }
  /// Bytes of a stream taken so far, as it counts them.
  [[nodiscard]] index_t stream_bytes() const noexcept { return stream_->bytes_read(); }
  /// Whether that would return at once, or within `most`.
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept { return stream_->ready(most); }

 private:
  std::string name_;
  std::string_view text_;
  index_t size_ = 0;
  int descriptor_ = -1;
  bool in_memory_ = false;
  std::unique_ptr<text_stream> stream_;
  bool stream_is_open_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
