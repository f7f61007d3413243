// Text that is read from its begin to its end only: a pipe, or what a file holds compressed.
//
//   pipe ──> file_stream ──┐
//   .gz  ──> gzip_stream ──┼──> read_stream(pool, format, name, stream) ──> batches
//   .zst ──> zstd_stream ──┘        (batch_reader.hpp)
//
// gzip_stream.hpp and zstd_stream.hpp need the component deeprec::zlib or deeprec::zstd. Regular files are
// read in parallel by read_files() instead.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/io_refusal.hpp>
#include <deeprec/data/file_kind.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What read_stream() reads from. A class of one's own overrides open, read and close, and ready where it can
/// tell.
///
/// @threads one thread at a time
class text_stream {
 public:
  text_stream() = default;
  text_stream(const text_stream&) = delete;
  text_stream& operator=(const text_stream&) = delete;
  virtual ~text_stream() = default;

  /// Begins at the first byte, also where it has been read before.
  ///
  /// @error io_error, out_of_memory
  [[nodiscard]] virtual status open() noexcept = 0;
  /// Fills at most `bytes` > 0 bytes; `got` says how many, 0 at the end only.
  ///
  /// @pre   open() was a success
  /// @error io_error, out_of_memory
  [[nodiscard]] virtual status read(char* to, index_t bytes, index_t& got) noexcept = 0;
  virtual void close() noexcept = 0;
  /// Bytes taken so far of what the text is stored in, compressed ones where it is compressed: what a bar of
  /// progress compares with the size of a file. 0: unknown.
  ///
  /// @error none
  [[nodiscard]] virtual index_t bytes_read() const noexcept { return 0; }
  /// Whether read() would return at once, waited for no longer than `most`: bytes, the end or a fault have
  /// arrived. While it is true, a reader reads on; else it parses the lines that it has. A class that can't
  /// tell returns false: then each read() that gives a whole line is parsed alone. A compressed stream may be
  /// true where what has arrived is no text yet; read() then waits for more of it.
  ///
  /// @pre   open() was a success
  /// @error none
  [[nodiscard]] virtual bool ready(std::chrono::milliseconds most) noexcept {
    (void)most;
    return false;
  }
};

/// A file, a pipe or a device, read as it is. open() opens it by its path; a descriptor is taken over. A pipe
/// gets room for 1 MB, where the system grants it.
///
/// @threads one thread at a time
class file_stream final : public text_stream {
 public:
  explicit file_stream(std::string path) : path_(std::move(path)) {}
  /// @pre the descriptor is open, at the first byte of the text
  explicit file_stream(int descriptor) noexcept : descriptor_(descriptor) {}
  ~file_stream() override { close(); }

  /// @error io_error; of a descriptor also for the second call: it can be read once
  [[nodiscard]] status open() noexcept override {
    bytes_read_ = 0;
    if (path_.empty()) {
      if (begun_) return {errc::io_error, "can be read only once"};
      begun_ = true;
    } else {
      close();
      do {
        descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
      } while (descriptor_ < 0 && errno == EINTR);
      if (descriptor_ < 0) return detail::io_refusal(errno);
    }
#if defined(F_SETPIPE_SZ)
    // A larger pipe wakes both ends less often.
    if (const int has = ::fcntl(descriptor_, F_GETPIPE_SZ); has >= 0 && has < pipe_bytes)
      (void)::fcntl(descriptor_, F_SETPIPE_SZ, pipe_bytes);
#endif
    return {};
  }
  [[nodiscard]] status read(char* to, index_t bytes, index_t& got) noexcept override {
    for (;;) {
      const ssize_t n = ::read(descriptor_, to, static_cast<std::size_t>(bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) {  // the other end made the descriptor one that doesn't wait
        (void)ready(std::chrono::milliseconds(-1));
        continue;
      }
      got = n < 0 ? 0 : static_cast<index_t>(n);
      bytes_read_ += got;
      return n < 0 ? detail::io_refusal(errno) : status();
    }
  }
  void close() noexcept override {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  [[nodiscard]] index_t bytes_read() const noexcept override { return bytes_read_; }
  /// The same, for `most` below 0 without a limit.
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override {
    pollfd end{descriptor_, POLLIN, 0};
    return ::poll(&end, 1, static_cast<int>(most.count())) > 0;
  }

 private:
  static constexpr int pipe_bytes = 1 << 20;
  std::string path_;
  int descriptor_ = -1;
  index_t bytes_read_ = 0;
  bool begun_ = false;
};

namespace detail {

/// The compressed bytes of a stream, block by block.
class compressed_bytes {
 public:
  /// @pre from is no null
  explicit compressed_bytes(std::unique_ptr<text_stream> from) noexcept : from_(std::move(from)) {}

  [[nodiscard]] status open() noexcept {
    held_ = {};
    if (!block_) block_.reset(new (std::nothrow) char[block_bytes]);
    if (!block_) return {errc::out_of_memory, "memory must provide room for a compressed block (it refused)"};
    return from_->open();
  }
  void close() noexcept { from_->close(); }
  /// The bytes at hand, read where there were none; none at the end of the file.
  [[nodiscard]] status peek(std::string_view& bytes) noexcept {
    if (held_.empty()) {
      index_t got = 0;
      if (const status s = from_->read(block_.get(), block_bytes, got); !s) return s;
      held_ = {block_.get(), static_cast<std::size_t>(got)};
    }
    bytes = held_;
    return {};
  }
  void drop(std::size_t bytes) noexcept { held_.remove_prefix(bytes); }
  /// What peek() has.
  [[nodiscard]] std::string_view held() const noexcept { return held_; }
  [[nodiscard]] index_t bytes_read() const noexcept {
    return from_->bytes_read() - static_cast<index_t>(held_.size());
  }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept {
    return !held_.empty() || from_->ready(most);
  }

 private:
  static constexpr index_t block_bytes = index_t{1} << 17;
  std::unique_ptr<text_stream> from_;
  std::unique_ptr<char[]> block_;
  std::string_view held_;
};

inline constexpr status truncated_text(errc::io_error, "the compressed text is truncated");
inline constexpr status corrupt_text(errc::io_error, "the compressed text is corrupt");
inline constexpr status followed_text(errc::io_error, "the compressed text is followed by other bytes");

/// Why this is no begin of a compressed text.
inline status other_kind(std::string_view begin) noexcept {
  const char* const reason = begin_of_file(begin).reason;
  return reason == nullptr ? corrupt_text : status(errc::io_error, reason);
}
/// What may follow a compressed text: the padding of a tape or of echo.
inline constexpr bool is_padding(char c) noexcept { return c == '\0' || c == '\n' || c == '\r'; }

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
