// The concept of a text format, and the log of its bad lines.
//
//   text_source ──first line──> format.detect() ──> layout (delimiter, header ...)
//   whole lines ──format.parse(layout, text, batch, log)──> rows appended to a sparse_batch
//                                                     └──> line_log: lines, skipped, first bad line
//
// A format is a small value: options, and these functions. parse_text() applies one to text in memory;
// batch_reader.hpp applies one to files, in parallel.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/data/detail/row_ends.hpp>
#include <deeprec/data/detail/text_begin.hpp>
#include <deeprec/data/file_kind.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Treatment of a bad line: it ends the reading with a fault, or is dropped and counted.
enum class malformed : std::uint8_t { fault, drop };

/// Whether lines have a label. by_fields: if the first line of a file does, all lines of which are alike; of
/// Criteo's logs by a field more than the integers, the tokens and an Id column. Without it labels are 0.
enum class label_column : std::uint8_t { present, by_fields, absent };

/// The id of a token. hashed: the row hash_bucket(hash, rows), or where rows = 0 is allowed the 64-bit hash
/// itself; as_is: the token is a number, below rows where rows > 0.
enum class token_use : std::uint8_t { hashed, as_is };

/// A function of the caller that computes the row of a token: an option of formats, in place of their hash;
/// null: their hash. Features count from 0; a missing token is the empty string. The same arguments give the
/// same row, in [0, rows): another number makes the line malformed. Calls come from every thread that parses,
/// for a token also more than once. farmhash_bucket (data/farmhash.hpp) is one.
using bucket_function = index_t (*)(std::string_view token, int feature, index_t rows) noexcept;

/// Lines and faults that a format reports while it parses one piece of text.
///
/// @threads one parser at a time
class line_log {
 public:
  explicit line_log(malformed policy = malformed::fault, index_t longest_line = index_t{1} << 24) noexcept
      : longest_line_(longest_line), policy_(policy) {}

  /// Records a bad line: a parse_error with place().line, from 1 within the parsed text. Returns false when
  /// parsing must end here.
  ///
  /// @cost    O(1)
  /// @threads one parser at a time
  /// @error   none
  [[nodiscard]] bool reject(const status& why) noexcept {
    if (rejected_ < most_kept) kept_[static_cast<std::size_t>(rejected_)] = why;
    ++rejected_;
    return policy_ == malformed::drop;
  }
  void count_lines(index_t more) noexcept { lines_ += more; }
  /// Counts fields of good lines that the format was not told to keep.
  void count_ignored(index_t more) noexcept { ignored_ += more; }

  /// Lines seen, the bad ones included.
  [[nodiscard]] index_t lines() const noexcept { return lines_; }
  [[nodiscard]] index_t rejected() const noexcept { return rejected_; }
  [[nodiscard]] index_t ignored() const noexcept { return ignored_; }
  /// The first bad line. @pre rejected() > 0
  [[nodiscard]] const status& first() const noexcept { return kept_[0]; }
  /// The first bad lines, four at most.
  [[nodiscard]] std::span<const status> kept() const noexcept {
    return {kept_.data(), static_cast<std::size_t>((std::min)(rejected_, most_kept))};
  }
  [[nodiscard]] malformed policy() const noexcept { return policy_; }
  /// The limit in bytes: a longer line is bad.
  [[nodiscard]] index_t longest_line() const noexcept { return longest_line_; }

 private:
  static constexpr index_t most_kept = 4;
  std::array<status, most_kept> kept_;
  index_t lines_ = 0;
  index_t rejected_ = 0;
  index_t ignored_ = 0;
  index_t longest_line_;
  malformed policy_;
};

/// What every layout holds: whether the first line of a file is a header.
template <class L>
concept TextLayout = std::copyable<L> && requires(const L& layout) {
  { layout.has_header } -> std::convertible_to<bool>;
};

/// Options of a format and its parser. check() fails where an option is invalid. Parsing appends good rows to
/// the batch in order, reports each line to the log, and returns success, log.first() (the log ended it) or
/// out_of_memory.
template <class F>
concept TextFormat = std::copyable<F> && TextLayout<typename F::layout> &&
                     requires(const F& format, const typename F::layout& layout, std::string_view text,
                              sparse_batch& batch, line_log& log) {
                       { format.check() } -> std::same_as<status>;
                       { format.shape() } -> std::same_as<batch_shape>;
                       { format.detect(text) } -> std::same_as<typename F::layout>;
                       { format.parse(layout, text, batch, log) } -> std::same_as<status>;
                     };

namespace detail {

/// Computes the row of a token by the function of a format; null, or why the line is malformed.
inline const char* bucket_reason(bucket_function bucket, std::string_view token, int feature, index_t rows,
                                 std::int64_t& row) noexcept {
  row = bucket(token, feature, rows);
  return row >= 0 && row < rows ? nullptr : "the id is beyond its table";
}

/// The same fault, in this line.
inline status in_line(const status& found, index_t line) noexcept {
  fault_place place = found.place();
  place.line = line;
  return {found.code(), found.detail(), place};
}

/// A fault of a piece of a file that begins after `lines_before` lines.
inline fault in_text(const status& found, std::string file, index_t lines_before) {
  return {in_line(found, lines_before + found.place().line), std::move(file)};
}

/// The faults of a line that no format reads, with its line; success for others.
inline status check_line(std::string_view line, const line_log& log) noexcept {
  if (static_cast<index_t>(line.size()) > log.longest_line()) {
    return {errc::parse_error, "the line is too long", {.line = log.lines(), .at_most = log.longest_line()}};
  }
  if (const std::size_t nul = line.find('\0'); nul != std::string_view::npos) {
    return {errc::parse_error, "a NUL byte", {.line = log.lines(), .column = static_cast<index_t>(nul) + 1}};
  }
  return {};
}

/// Calls parse_line(line) for each line, without its end; it returns success, or a fault with its column. A
/// plain loop, for formats that spend their time elsewhere.
template <class ParseLine>
status for_each_line(std::string_view text, line_log& log, ParseLine&& parse_line) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    log.count_lines(1);
    const status found = [&]() -> status {
      if (const status s = check_line(line, log); !s) return s;
      return parse_line(line);
    }();
    if (found.ok()) continue;
    if (found.code() != errc::parse_error) return found;
    if (!log.reject(in_line(found, log.lines()))) return log.first();
  }
  return {};
}

}  // namespace detail

struct parse_options {
  malformed on_malformed = malformed::fault;
  index_t longest_line = index_t{1} << 24;  ///< bytes
};

/// The result of parse_text().
struct parsed_text {
  index_t rows = 0;
  index_t skipped_lines = 0;
  index_t ignored_fields = 0;  ///< of slots that a feasign_format doesn't list
  std::optional<fault> first_skipped;
};

/// Parses text in memory with the calling thread and leaves its rows in the batch. The file of a
/// fault is "<text>".
///
/// @post    on a fault the batch is empty
/// @cost    one pass over the text; allocates when the batch must grow
/// @threads reentrant; needs exclusive access to the batch
/// @error   parse_error with the first bad line (not with malformed::drop), or without a line where it is no
///          text but compressed, an archive or the like; unsupported (the options contradict each other),
///          out_of_memory
template <TextFormat Format>
DEEPREC_PER_UNIT result<parsed_text> parse_text(const Format& format, std::string_view text,
                                                sparse_batch& batch, const parse_options& options = {}) {
  return detail::or_out_of_memory([&]() -> result<parsed_text> {
    if (const status s = format.check(); !s) return s;
    batch.clear();
    batch.reshape(format.shape());
    if (const status s = detail::expect_text(text); !s) return fault(s, "<text>");
    const detail::empty_lines before = detail::empty_lines_before<Format>(text);
    text.remove_prefix(before.bytes);
    const std::string_view all = text.substr(detail::byte_order_mark(text));
    const char quote = detail::row_quote(format);
    const typename Format::layout layout =
        format.detect(detail::head_line(text, options.longest_line, quote));
    std::string_view body = all;
    line_log log(options.on_malformed, options.longest_line);
    log.count_lines(before.lines);
    if (layout.has_header) {
      const std::size_t end = detail::first_row_end(all, quote);
      const std::string_view head = all.substr(0, end);
      body.remove_prefix(end == std::string_view::npos ? all.size() : end + 1);
      log.count_lines(1 + std::count(head.begin(), head.end(), '\n'));
    }
    if (all.empty()) return parsed_text();
    if (const status s = format.parse(layout, body, batch, log); !s) {
      batch.clear();
      return fault(s, "<text>");
    }
    parsed_text done;
    if (log.rejected() > 0) (void)done.first_skipped.emplace(log.first(), "<text>");
    done.rows = batch.rows();
    done.skipped_lines = log.rejected();
    done.ignored_fields = log.ignored();
    return done;
  });
}

}}  // namespace deeprec::DEEPREC_ABI
