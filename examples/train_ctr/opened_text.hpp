// Text of any input of the program: files, folders, patterns of names as the shell has them, and "-", the
// standard input; each file or pipe plain, or compressed by gzip or zstd. What goes wrong is thrown as a
// failure.
//
//   files_of(inputs)                  the files of an option, in the order of their names
//   any_text text(path);              a stream, by the packing of the file
//   text_lines lines(files);          the lines one by one, without line ends and byte order mark
//   while (lines.next()) use(lines.line(), lines.number());
#pragma once

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/file_kind.hpp>
#include <deeprec/data/text_stream.hpp>

#if DEEPREC_WITH_ZLIB
#  include <deeprec/data/gzip_stream.hpp>
#endif
#if DEEPREC_WITH_ZSTD
#  include <deeprec/data/zstd_stream.hpp>
#endif

#include "models/ctr_data.hpp"

namespace ctr {

inline bool is_pipe(const std::string& path) {
  struct stat facts{};
  return path == "-" ||
         (::stat(path.c_str(), &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode));
}

/// Of all files as they are stored; 0 where one of them is a pipe.
inline index_t bytes_of(const std::vector<std::string>& files) {
  index_t all = 0;
  for (const std::string& path : files) {
    struct stat facts{};
    if (is_pipe(path)) return 0;
    if (::stat(path.c_str(), &facts) == 0) all += facts.st_size;
  }
  return all;
}

/// The files that one input names: itself, the files of a folder but those whose names begin with . or _
/// (such as _SUCCESS), or those that match a pattern. Folders of a folder are refused: their order would be a
/// guess.
inline std::vector<std::string> files_of_one(const std::string& input) {
  std::error_code wrong;
  std::vector<std::string> files;
  if (std::filesystem::is_directory(input, wrong)) {
    for (const auto& entry : std::filesystem::directory_iterator(input, wrong)) {
      const std::string name = entry.path().filename();
      if (name.starts_with('.') || name.starts_with('_')) continue;
      if (entry.is_directory(wrong)) {
        throw failure(input + ": has the folder " + name + ": name the folders of files themselves, as " +
                      input + "/*");
      }
      files.push_back(entry.path());
    }
    if (wrong) throw failure(input + ": " + wrong.message());
    if (files.empty()) throw failure(input + ": has no files");
    std::sort(files.begin(), files.end());
    return files;
  }
  if (input == "-" || input.find_first_of("*?[") == std::string::npos ||
      std::filesystem::exists(input, wrong)) {
    return {input};
  }
  glob_t found{};
  const int code = ::glob(input.c_str(), GLOB_ERR, nullptr, &found);
  for (std::size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (code == GLOB_NOMATCH) throw failure(input + ": no file has such a name");
  if (code != 0) throw failure(input + ": a folder of the pattern can't be read");
  std::vector<std::string> all;
  for (const std::string& one : files) {
    const std::vector<std::string> of = files_of_one(one);  // a pattern may match folders
    all.insert(all.end(), of.begin(), of.end());
  }
  return all;
}

/// The files of all inputs of an option, one input a line.
inline std::vector<std::string> files_of(std::string_view inputs) {
  std::vector<std::string> all;
  while (!inputs.empty()) {
    const std::string_view one = inputs.substr(0, inputs.find('\n'));
    inputs.remove_prefix(std::min(one.size() + 1, inputs.size()));
    const std::vector<std::string> of = files_of_one(std::string(one));
    all.insert(all.end(), of.begin(), of.end());
  }
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (is_pipe(all[i]) && std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i), all[i]) !=
                               all.begin() + static_cast<std::ptrdiff_t>(i))
      throw failure(all[i] + ": is named twice, and can be read once");
  }
  return all;
}

/// A stream that has been opened, and its first bytes, which were taken from it.
class replayed_text final : public deeprec::text_stream {
 public:
  replayed_text(std::unique_ptr<deeprec::text_stream> from, std::string head)
      : from_(std::move(from)), head_(std::move(head)) {}
  [[nodiscard]] std::string_view head() const noexcept { return head_; }
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
  [[nodiscard]] index_t bytes_read() const noexcept override { return from_->bytes_read(); }

 private:
  std::unique_ptr<deeprec::text_stream> from_;
  std::string head_;
  std::size_t passed_ = 0;
};

/// True once the program is to end: pipes then have no more. Null: never. Set before a text is opened.
inline const std::atomic<bool>* pipes_end = nullptr;

/// A pipe, whose reader waits until there is something, or pipes end.
class ending_pipe final : public deeprec::text_stream {
 public:
  explicit ending_pipe(std::unique_ptr<deeprec::text_stream> from) : from_(std::move(from)) {}
  [[nodiscard]] deeprec::status open() noexcept override { return from_->open(); }
  [[nodiscard]] deeprec::status read(char* to, index_t bytes, index_t& got) noexcept override {
    while (!from_->ready(std::chrono::milliseconds(100))) {
      if (pipes_end == nullptr || !*pipes_end) continue;
      got = 0;
      return {};
    }
    return from_->read(to, bytes, got);
  }
  void close() noexcept override { from_->close(); }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override { return from_->ready(most); }
  [[nodiscard]] index_t bytes_read() const noexcept override { return from_->bytes_read(); }

 private:
  std::unique_ptr<deeprec::text_stream> from_;
};

/// The text of a file or a pipe, whatever it is packed by. open() refuses what is no text.
class any_text final : public deeprec::text_stream {
 public:
  explicit any_text(std::string path) : path_(std::move(path)), is_pipe_(is_pipe(path_)) {}

  [[nodiscard]] deeprec::status open() noexcept override {
    try {
      if (text_ != nullptr && is_fresh_) return {};  // nothing was read since
      if (text_ != nullptr && is_pipe_) return {deeprec::errc::io_error, "can be read only once"};
      return open_by_kind();
    } catch (const std::bad_alloc&) {
      return {deeprec::errc::out_of_memory, "memory must provide room for a text (it refused)"};
    }
  }
  [[nodiscard]] deeprec::status read(char* to, index_t bytes, index_t& got) noexcept override {
    is_fresh_ = false;
    return text_->read(to, bytes, got);
  }
  void close() noexcept override {
    if (text_ == nullptr) return;
    text_->close();
    is_fresh_ = false;
    if (!is_pipe_) text_.reset();
  }
  [[nodiscard]] bool ready(std::chrono::milliseconds most) noexcept override { return text_->ready(most); }
  [[nodiscard]] index_t bytes_read() const noexcept override {
    return text_ == nullptr ? 0 : text_->bytes_read();
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool is_from_pipe() const { return is_pipe_; }
  /// Whether it is a regular file of plain text, which can be read at any place.
  ///
  /// @pre open() was a success
  [[nodiscard]] bool is_plain_file() const { return !is_pipe_ && kind_ == deeprec::file_kind::text; }
  /// The first line, as far as it is no longer than 64 KB, and what was read with it.
  ///
  /// @pre open() was a success, and close() was not called
  [[nodiscard]] std::string_view head() const { return text_->head(); }

 private:
  deeprec::status open_by_kind() {
    using deeprec::file_kind;
    text_.reset();
    std::unique_ptr<deeprec::text_stream> from = std::make_unique<deeprec::file_stream>(path_);
    if (path_ == "-") from = std::make_unique<deeprec::file_stream>(STDIN_FILENO);
    if (is_pipe_) from = std::make_unique<ending_pipe>(std::move(from));
    std::string head;
    if (const deeprec::status s = from->open(); !s) return s;
    if (const deeprec::status s = read_head(*from, head); !s) return s;
    const deeprec::file_begin begin = deeprec::begin_of_file(head);
    kind_ = begin.kind;
    if (!begin.is_readable()) return {deeprec::errc::io_error, begin.reason};
    auto text = std::make_unique<replayed_text>(std::move(from), std::move(head));
    if (kind_ != file_kind::text) {
      if (kind_ == file_kind::gzip) {
#if DEEPREC_WITH_ZLIB
        from = std::make_unique<deeprec::gzip_stream>(std::move(text));
#else
        return {deeprec::errc::io_error, "is compressed by gzip, and this train_ctr was built without zlib"};
#endif
      } else {
#if DEEPREC_WITH_ZSTD
        from = std::make_unique<deeprec::zstd_stream>(std::move(text));
#else
        return {deeprec::errc::io_error,
                "is compressed by zstd, and this train_ctr was built without libzstd"};
#endif
      }
      if (const deeprec::status s = from->open(); !s) return s;
      std::string unpacked;
      if (const deeprec::status s = read_head(*from, unpacked); !s) return s;
      // An archive of files, or compressed twice.
      if (const char* const reason = deeprec::begin_of_file(unpacked).reason; reason != nullptr)
        return {deeprec::errc::io_error, reason};
      text = std::make_unique<replayed_text>(std::move(from), std::move(unpacked));
    }
    text_ = std::move(text);
    is_fresh_ = true;
    return {};
  }

  /// At least what tells the kinds of files apart, and a line; less at the end of the text.
  static deeprec::status read_head(deeprec::text_stream& from, std::string& head) {
    constexpr std::size_t longest = std::size_t{1} << 16, block = std::size_t{1} << 12, least = 512;
    index_t got = 1;
    while (got > 0 && head.size() < longest &&
           (head.size() < least || head.find('\n') == std::string::npos)) {
      if (from_pipe_has_line(from, head)) break;
      const std::size_t before = head.size();
      head.resize(before + block);
      const deeprec::status found = from.read(head.data() + before, static_cast<index_t>(block), got);
      head.resize(before + static_cast<std::size_t>(found ? got : 0));
      if (!found) return found;
    }
    return {};
  }
  /// A pipe that has given a line may wait for its reader before it gives another.
  static bool from_pipe_has_line(deeprec::text_stream& from, const std::string& head) {
    return head.find('\n') != std::string::npos && !from.ready(std::chrono::milliseconds(0));
  }

  std::string path_;
  bool is_pipe_;
  bool is_fresh_ = false;
  deeprec::file_kind kind_ = deeprec::file_kind::text;
  std::unique_ptr<replayed_text> text_;
};

/// Opens a text; throws a failure.
inline void open(any_text& text) {
  if (const deeprec::status opened = text.open(); !opened)
    throw failure(text.path() + ": " + opened.detail());
}

/// The lines of files, one file after the other.
class text_lines {
 public:
  explicit text_lines(std::vector<std::string> files) : files_(std::move(files)) {
    bytes_ = bytes_of(files_);
    open_next();
  }
  /// To the next line of this file; false: there is none. What follows the last line end is a line unless it
  /// is empty.
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
  /// Before the first line of the next file; false: there is none.
  bool open_next() {
    if (opened_ == files_.size()) return false;
    if (from_ != nullptr) bytes_before_ += from_->bytes_read();
    from_ = std::make_unique<any_text>(files_[opened_++]);
    open(*from_);
    held_.clear();
    line_ = {};
    begin_ = 0;
    number_ = 0;
    ended_ = false;
    return true;
  }
  [[nodiscard]] std::string_view line() const { return line_; }
  /// Of the line in its file, from 1.
  [[nodiscard]] index_t number() const { return number_; }
  /// Of the file.
  [[nodiscard]] const std::string& path() const { return from_->path(); }
  /// Of all files, and read of them; 0 where a size is not known.
  [[nodiscard]] index_t bytes() const { return bytes_; }
  [[nodiscard]] index_t bytes_read() const { return bytes_before_ + from_->bytes_read(); }
  [[noreturn]] void fail(const std::string& what) const { fail_at(number_, what); }

 private:
  static constexpr std::size_t block = std::size_t{1} << 16, longest_line = std::size_t{1} << 24;

  void check(const deeprec::status& found) const {
    if (!found) throw failure(path() + ": " + found.detail());
  }
  [[noreturn]] void fail_at(index_t line, const std::string& what) const {
    throw failure(path() + ":" + std::to_string(line) + ": " + what);
  }

  std::vector<std::string> files_;
  std::size_t opened_ = 0;
  index_t bytes_ = 0, bytes_before_ = 0;
  std::unique_ptr<any_text> from_;
  std::string held_;
  std::size_t begin_ = 0;  // of what is not a line yet
  bool ended_ = false;
  std::string_view line_;
  index_t number_ = 0;
};

}  // namespace ctr
