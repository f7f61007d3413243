// The lines of a stream that have arrived, in the buffer of a reader's first chunk.
//
//   buffer  [ lines that have arrived | begin of a line )      parsed of the held bytes; the rest is kept
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/grow_array.hpp>
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
  };

  /// Another stream, from its begin.
  void restart() noexcept {
    held_ = parsed_ = 0;
    ended_ = in_long_line_ = waiting_ = false;
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
    const status s = ended_ ? status() : read(from, buffer, most);
    waiting_ = s.ok() && parsed_ > 0;
    return s;
  }

  /// Whether fill() has read lines that no chunk has yet.
  [[nodiscard]] bool waiting() const noexcept { return waiting_; }
  void taken() noexcept { waiting_ = false; }
  /// Bytes of the lines, at the begin of the buffer.
  [[nodiscard]] index_t bytes() const noexcept { return parsed_; }
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
        const std::size_t end = std::string_view(buffer.data(), static_cast<std::size_t>(got)).find('\n');
        if (end == std::string_view::npos) continue;
        in_long_line_ = false;
        got -= static_cast<index_t>(end) + 1;
        std::memmove(buffer.data(), buffer.data() + end + 1, static_cast<std::size_t>(got));
      }
      const std::size_t last =
          std::string_view(buffer.data() + held_, static_cast<std::size_t>(got)).rfind('\n');
      if (last != std::string_view::npos) {
        if (parsed_ == 0) due = clock::now() + stream_delay;
        parsed_ = held_ + static_cast<index_t>(last) + 1;
      }
      held_ += got;
    }
    if (ended_ && end_.ok()) parsed_ = held_;  // the last line has no end
    return {};
  }

  index_t room_ = 0;  // bytes of the buffer that are used
  index_t held_ = 0;  // bytes in it
  index_t parsed_ = 0;
  bool waiting_ = false;
  bool ended_ = false;
  bool in_long_line_ = false;  // the next bytes belong to a line that was too long
  status end_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
