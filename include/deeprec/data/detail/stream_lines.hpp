// The rows of a stream that have arrived, in the buffer of a reader's first chunk.
//
//   buffer  [ rows that have arrived | begin of a row )      parsed of the held bytes; the rest is kept
//
// A row is a line, or in a format with quotes what row_ends.hpp takes for one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/grow_array.hpp>
#include <deeprec/data/detail/row_ends.hpp>
#include <deeprec/data/detail/text_begin.hpp>
#include <deeprec/data/detail/text_source.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// How long a reader that has lines of a stream waits for more before it parses them: for the next bytes, and
/// in all. A writer that is woken because its pipe was emptied writes again well within the first.
inline constexpr std::chrono::milliseconds stream_gap{1};
inline constexpr std::chrono::milliseconds stream_delay{10};

class stream_lines {
 public:
  /// Bytes: of a chunk, of all chunks in flight, and of the longest line.
  struct limits {
    index_t chunk;
    index_t flight;
    index_t line;
    char quote = '\0';  ///< of the format; NUL: none
  };

  /// Another stream, from its begin.
  void restart() noexcept {
    held_ = parsed_ = 0;
    ended_ = in_long_line_ = waiting_ = inside_ = false;
    end_ = {};
  }

  /// Reads the next lines: those that have arrived, at least one; none at the stream's end. A status other
  /// than ok is out_of_memory, and the next call goes on.
  status fill(text_source& from, grow_array<char>& buffer, const limits& most) {
    held_ -= parsed_;
    if (held_ > 0 && parsed_ > 0) {
      std::memmove(buffer.data(), buffer.data() + parsed_, static_cast<std::size_t>(held_));
    }
    parsed_ = 0;
    cuts_.clear();
    if (most.quote != '\0') {  // here, where nothing is lost if there is no memory
      const index_t bytes = (std::max)(most.flight, head_bytes(most.line));
      cuts_.reserve(static_cast<std::size_t>(2 * (bytes / cut_bytes(most)) + 4));
    }
    const status s = ended_ ? status() : read(from, buffer, most);
    waiting_ = s.ok() && parsed_ > 0;
    return s;
  }

  /// Whether fill() has read lines that no chunk has yet.
  [[nodiscard]] bool waiting() const noexcept { return waiting_; }
  void taken() noexcept { waiting_ = false; }
  /// Bytes of the lines, at the begin of the buffer.
  [[nodiscard]] index_t bytes() const noexcept { return parsed_; }
  /// The first end of a row at or behind `from`, a place among them; or bytes().
  [[nodiscard]] index_t row_end(const grow_array<char>& buffer, index_t from, char quote) const noexcept {
    if (from >= parsed_) return parsed_;
    if (quote != '\0') {  // one of those that were noted
      const auto cut = std::lower_bound(cuts_.begin(), cuts_.end(), from + 1);
      return cut == cuts_.end() ? parsed_ : *cut;
    }
    const char* const at = buffer.data() + from;
    const void* const found = std::memchr(at, '\n', static_cast<std::size_t>(parsed_ - from));
    return found == nullptr ? parsed_ : from + (static_cast<const char*>(found) - at) + 1;
  }
  /// Those, and the begin of the line after them.
  [[nodiscard]] index_t held() const noexcept { return held_; }
  /// What ended the stream: ok, or a fault.
  [[nodiscard]] const status& end() const noexcept { return end_; }

 private:
  status read(text_source& from, grow_array<char>& buffer, const limits& most) {
    const index_t too_long = head_bytes(most.line);
    using clock = std::chrono::steady_clock;
    clock::time_point due;  // when the lines are parsed even if more arrive
    while (!ended_) {
      if (parsed_ == 0 && held_ >= too_long) {  // the format refuses it
        in_long_line_ = true;
        parsed_ = held_;
        break;
      }
      if (parsed_ > 0 && (held_ >= most.flight || !from.ready(stream_gap) || clock::now() >= due)) break;
      if (held_ == room_) {
        const index_t wanted =
            (std::min)((std::max)(2 * room_, most.chunk), (std::max)(most.flight, too_long));
        if (!buffer.reserve(wanted, held_)) {
          if (parsed_ > 0) break;
          return {errc::out_of_memory, "the memory resource must provide room for text (it refused)"};
        }
        room_ = wanted;
      }
      index_t got = 0;
      const status s = from.read_on(buffer.data() + held_, room_ - held_, got);
      if (s.code() == errc::out_of_memory) {  // no end: the next call reads on
        if (parsed_ > 0) break;
        return s;
      }
      if (!s || got == 0) {
        end_ = s;
        ended_ = true;
        break;
      }
      if (in_long_line_) {  // its begin was delivered, and was too long; nothing else is held
        const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
        const std::size_t end = first_row_end(text, most.quote, inside_);
        if (end == std::string_view::npos) {
          if (most.quote != '\0') (void)DEEPREC_PORTABLE::last_row_end(text, most.quote, inside_);
          continue;
        }
        in_long_line_ = inside_ = false;
        got -= static_cast<index_t>(end) + 1;
        std::memmove(buffer.data(), buffer.data() + end + 1, static_cast<std::size_t>(got));
      }
      const bool was_parsed = parsed_ > 0;
      if (most.quote != '\0') {
        find_rows(buffer.data(), got, most);
      } else {
        const std::string_view text(buffer.data() + held_, static_cast<std::size_t>(got));
        if (const std::size_t last = text.rfind('\n'); last != std::string_view::npos)
          parsed_ = held_ + static_cast<index_t>(last) + 1;
      }
      if (!was_parsed && parsed_ > 0) due = clock::now() + stream_delay;
      held_ += got;
    }
    if (ended_ && end_.ok()) parsed_ = held_;  // the last line has no end
    return {};
  }

  /// Bytes from one noted end of a row to the next, about.
  static index_t cut_bytes(const limits& most) noexcept {
    return std::clamp<index_t>(most.chunk / 8, 64, index_t{1} << 16);
  }
  /// Looks at `got` bytes behind those held: the last end of a row is parsed_, some before it are cuts_.
  void find_rows(const char* buffer, index_t got, const limits& most) {
    const index_t step = cut_bytes(most);
    for (index_t at = held_; at < held_ + got; at += step) {
      const index_t bytes = (std::min)(step, held_ + got - at);
      const std::size_t last =
          DEEPREC_PORTABLE::last_row_end({buffer + at, static_cast<std::size_t>(bytes)}, most.quote, inside_);
      if (last == 0) continue;
      parsed_ = at + static_cast<index_t>(last);
      const std::size_t known = cuts_.size();
      if (known >= 2 && parsed_ - cuts_[known - 2] < step) cuts_.pop_back();
      cuts_.push_back(parsed_);
    }
  }

  index_t room_ = 0;  // bytes of the buffer that are used
  index_t held_ = 0;  // bytes in it
  index_t parsed_ = 0;
  bool waiting_ = false;
  bool ended_ = false;
  bool in_long_line_ = false;  // the next bytes belong to a line that was too long
  bool inside_ = false;        // what follows the held bytes is within quotes
  std::vector<index_t> cuts_;  // ends of rows among the parsed bytes, of a format with quotes
  status end_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
