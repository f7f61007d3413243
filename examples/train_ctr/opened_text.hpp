// Text of any input of the program: plain, or compressed by gzip or zstd; in a file, or a pipe ("-": that of
// the standard input), which can be read once. What goes wrong is thrown as a failure.
//
//   open_text(path)                   a stream, for read_stream()
//   text_lines lines(path);           its lines one by one, without line ends and byte order mark
//   while (lines.next()) use(lines.line(), lines.number());
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/text_stream.hpp>

#if DEEPREC_WITH_ZLIB
#  include <deeprec/data/gzip_stream.hpp>
#endif
#if DEEPREC_WITH_ZSTD
#  include <deeprec/data/zstd_stream.hpp>
#endif

#include "models/ctr_data.hpp"

namespace ctr {

enum class packing { text, gzip, zstd, other };

struct packed_as {
  packing how = packing::text;
  const char* name = "text";
};

/// By the first bytes.
inline packed_as packing_of(std::string_view begin) {
  const auto is = [&](std::string_view magic) { return begin.starts_with(magic); };
  if (is("\x1f\x8b")) return {packing::gzip, "gzip"};
  if (is("\x28\xb5\x2f\xfd")) return {packing::zstd, "zstd"};
  // A frame to skip, with which the files of pzstd begin.
  if (begin.size() >= 4 && (begin[0] & 0xf0) == 0x50 && begin.substr(1, 3) == "\x2a\x4d\x18")
    return {packing::zstd, "zstd"};
  if (is(std::string_view("\xfd\x37zXZ\0", 6))) return {packing::other, "xz"};
  if (is("BZh")) return {packing::other, "bzip2"};
  if (is("PK\x03\x04")) return {packing::other, "zip"};
  if (is("PAR1")) return {packing::other, "Parquet"};
  return {};
}

inline bool is_pipe(const std::string& path) {
  struct stat facts{};
  return path == "-" ||
         (::stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode));
}

/// The packing of a file by its first bytes; of a pipe text, since they can't be read twice.
inline packed_as packing_of_file(const std::string& path) {
  char begin[6];
  if (is_pipe(path)) return {};
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};  // who reads it finds out why
  const std::size_t got = std::fread(begin, 1, sizeof begin, file);
  std::fclose(file);
  return packing_of({begin, got});
}

/// The first line, as far as it is no longer than this, and what was read with it.
inline std::string read_head(deeprec::text_stream& from, const std::string& path) {
  constexpr std::size_t longest = std::size_t{1} << 16, block = std::size_t{1} << 12;
  std::string head;
  index_t got = 1;
  while (got > 0 && head.size() < longest && head.find('\n') == std::string::npos) {
    const std::size_t before = head.size();
    head.resize(before + block);
    const deeprec::status found = from.read(head.data() + before, static_cast<index_t>(block), got);
    if (!found) throw failure(path + ": " + found.detail());
    head.resize(before + static_cast<std::size_t>(got));
  }
  return head;
}

/// A pipe, whose head is read first, and passed on.
class pipe_text final : public deeprec::text_stream {
 public:
  explicit pipe_text(const std::string& path)
      : from_(path == "-" ? std::make_unique<deeprec::file_stream>(STDIN_FILENO)
                          : std::make_unique<deeprec::file_stream>(path)) {
    if (const deeprec::status opened = from_->open(); !opened) throw failure(path + ": " + opened.detail());
    head_ = read_head(*from_, path);
    if (const packed_as packed = packing_of(head_); packed.how != packing::text) {
      throw failure(path + ": is " + packed.name + ", and a pipe must be text (as of zcat FILE | train_ctr)");
    }
  }
  [[nodiscard]] const std::string& head() const { return head_; }
  [[nodiscard]] deeprec::status open() noexcept override { return {}; }
  [[nodiscard]] deeprec::status read(char* to, index_t bytes, index_t& got) noexcept override {
    if (passed_ == head_.size()) return from_->read(to, bytes, got);
    const std::size_t some = std::min(static_cast<std::size_t>(bytes), head_.size() - passed_);
    std::memcpy(to, head_.data() + passed_, some);
    passed_ += some;
    got = static_cast<index_t>(some);
    return {};
  }
  void close() noexcept override { from_->close(); }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override {
    return passed_ < head_.size() || from_->ready(most);
  }

 private:
  std::unique_ptr<deeprec::text_stream> from_;
  std::string head_;
  std::size_t passed_ = 0;
};

inline std::unique_ptr<deeprec::text_stream> open_text(const std::string& path) {
  if (is_pipe(path)) return std::make_unique<pipe_text>(path);
  const packed_as packed = packing_of_file(path);
  if (packed.how == packing::other) {
    throw failure(path + ": is " + packed.name + ", and must be text, or text compressed by gzip or zstd");
  }
  if (packed.how == packing::gzip) {
#if DEEPREC_WITH_ZLIB
    return std::make_unique<deeprec::gzip_stream>(path);
#else
    throw failure(path + ": is compressed by gzip, and this train_ctr was built without zlib");
#endif
  }
  if (packed.how == packing::zstd) {
#if DEEPREC_WITH_ZSTD
    return std::make_unique<deeprec::zstd_stream>(path);
#else
    throw failure(path + ": is compressed by zstd, and this train_ctr was built without libzstd");
#endif
  }
  return std::make_unique<deeprec::file_stream>(path);
}

class text_lines {
 public:
  explicit text_lines(const std::string& path) : text_lines(path, open_text(path)) {}
  text_lines(std::string path, std::unique_ptr<deeprec::text_stream> from)
      : path_(std::move(path)), from_(std::move(from)) {
    check(from_->open());
  }
  /// To the next line; false: there is none. What follows the last line end is a line unless it is empty.
  bool next() {
    std::size_t end = held_.find('\n', begin_);
    while (end == std::string::npos && !ended_) {
      held_.erase(0, std::exchange(begin_, 0));
      const std::size_t before = held_.size();
      if (before > longest_line) fail_at(number_ + 1, "the line is too long");
      held_.resize(before + block);
      index_t got = 0;
      check(from_->read(held_.data() + before, static_cast<index_t>(block), got));
      held_.resize(before + static_cast<std::size_t>(got));
      ended_ = got == 0;
      end = held_.find('\n', before);
    }
    if (end == std::string::npos) {
      if (begin_ == held_.size()) return false;
      end = held_.size();
    }
    line_ = std::string_view(held_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, held_.size());
    if (number_++ == 0 && line_.starts_with("\xef\xbb\xbf")) line_.remove_prefix(3);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    return true;
  }
  [[nodiscard]] std::string_view line() const { return line_; }
  /// Of the line, from 1.
  [[nodiscard]] index_t number() const { return number_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& what) const { fail_at(number_, what); }

 private:
  static constexpr std::size_t block = std::size_t{1} << 16, longest_line = std::size_t{1} << 24;

  void check(const deeprec::status& found) const {
    if (!found) throw failure(path_ + ": " + found.detail());
  }
  [[noreturn]] void fail_at(index_t line, const std::string& what) const {
    throw failure(path_ + ":" + std::to_string(line) + ": " + what);
  }

  std::string path_;
  std::unique_ptr<deeprec::text_stream> from_;
  std::string held_;
  std::size_t begin_ = 0;  // of what is not a line yet
  bool ended_ = false;
  std::string_view line_;
  index_t number_ = 0;
};

}  // namespace ctr
