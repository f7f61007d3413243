// The sources of a batch_reader cut into chunks: files by their places, streams by the lines that have
// arrived. Each is parsed into rows of its own.
//
//   refill()   sources ──> chunks [0, filled())     at most as many as are in flight
//   load(c)    read, parse: rows, a fault, a log of bad lines
//
// Not here: threads, and batches (batch_reader.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/grow_array.hpp>
#include <deeprec/data/detail/locked_resource.hpp>
#include <deeprec/data/detail/row_ends.hpp>
#include <deeprec/data/detail/stream_lines.hpp>
#include <deeprec/data/detail/text_begin.hpp>
#include <deeprec/data/detail/text_chunk.hpp>
#include <deeprec/data/detail/text_source.hpp>
#include <deeprec/data/file_kind.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// What a reader allows.
struct chunk_limits {
  index_t chunk_bytes;
  index_t longest_line;
  malformed on_malformed;
};

/// @threads one thread; load() of several chunks at once
template <class Format, class = unit>
class source_chunks {
 public:
  source_chunks(Format format, std::vector<text_source> sources, const chunk_limits& limits, index_t most,
                std::pmr::memory_resource* memory)
      : format_(std::move(format)), limits_(limits), sources_(std::move(sources)) {
    limits_.chunk_bytes = std::clamp<index_t>(limits_.chunk_bytes, 1, index_t{1} << 30);
    limits_.longest_line = std::clamp<index_t>(limits_.longest_line, 1, index_t{1} << 30);
    const auto locked = std::make_shared<locked_resource>(memory);
    chunks_.reserve(static_cast<std::size_t>(most));
    for (index_t i = 0; i < most; ++i) chunks_.emplace_back(locked).rows.reshape(format_.shape());
    begins_.resize(sources_.size());
    if (row_quote(format_) != '\0') {  // whether a line end is within quotes depends on all text before it
      for (text_source& source : sources_) source.make_stream();
    }
  }

  [[nodiscard]] const Format& format() const noexcept { return format_; }
  [[nodiscard]] index_t most() const noexcept { return static_cast<index_t>(chunks_.size()); }
  /// The number of chunks that refill() chose.
  [[nodiscard]] index_t filled() const noexcept { return filled_; }
  [[nodiscard]] text_chunk& operator[](index_t i) noexcept { return chunks_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const text_source& source(index_t i) const noexcept {
    return sources_[static_cast<std::size_t>(i)];
  }
  /// The source of the next chunk.
  [[nodiscard]] index_t next_source() const noexcept { return source_; }

  /// Bytes of the sources that chunks were chosen of.
  [[nodiscard]] index_t bytes_read() const noexcept {
    return bytes_before_ +
           (source_ < static_cast<index_t>(sources_.size()) && entered_ ? bytes_of_source() : 0);
  }

  /// What ended the input before its end, and the source that it is in; ok: nothing.
  [[nodiscard]] const status& fault() const noexcept { return fault_; }
  [[nodiscard]] index_t fault_source() const noexcept { return fault_source_; }
  void end_at(const status& why, index_t source) noexcept {
    fault_ = why;
    fault_source_ = source;
  }
  /// The fault with the name of its source, where there is memory for that.
  [[nodiscard]] deeprec::fault in_source(const status& why, index_t source) const {
    const auto at = static_cast<std::size_t>(source);
    std::string name;
    (void)or_out_of_memory([&]() -> status {
      if (at < sources_.size()) name = sources_[at].name();
      return {};
    });
    return {why, std::move(name)};
  }

  /// Chooses the next chunks, and reads those of a stream. There are none at the end of the input, or where
  /// the next source is refused (then the fault is set).
  status refill() {
    close_through(source_ - 1);
    filled_ = 0;
    const auto flight = static_cast<index_t>(chunks_.size());
    while (filled_ < flight && source_ < static_cast<index_t>(sources_.size())) {
      if (filled_ > 0 && stream_is_next()) break;
      text_source& from = sources_[static_cast<std::size_t>(source_)];
      if (!entered_) {
        if (const status s = enter(from); !s) {
          from.close();
          if (filled_ > 0) break;  // refused again behind the chunks in flight
          return refused(s);
        }
        entered_ = true;
      }
      if (from.is_stream()) {
        if (!stream_.waiting()) {  // else the format threw where it should detect the layout
          if (const status s = stream_.fill(from, chunks_.front().buffer, stream_limits()); !s)
            return refused(s);
        }
        if (stream_.waiting()) {
          const std::string_view begin(chunks_.front().buffer.data(),
                                       static_cast<std::size_t>(stream_.held()));
          if (number_ == 0 && begin_of(source_).empty.lines == 0) {
            if (const status s = expect_text(begin); !s) return refused(s);
          }
          share_out();
          stream_.taken();
          if (filled_ > 0) break;
          continue;  // empty lines
        }
        if (!stream_.end()) return refused(stream_.end());
        leave();
        from.close();
        continue;
      }
      if (chunk_begin(source_, number_) >= from.size()) {
        const bool awaited = filled_ > 0 && chunks_[static_cast<std::size_t>(filled_) - 1].source == source_;
        if (!awaited) from.close();  // an empty file: many may follow in sequence
        leave();
        continue;
      }
      text_chunk& chunk = chunks_[static_cast<std::size_t>(filled_++)];
      chunk.source = source_;
      chunk.number = number_++;
    }
    return {};
  }

  /// Reads and parses a chunk, or parses its lines of a stream.
  void load(text_chunk& chunk) const {
    const text_source& from = sources_[static_cast<std::size_t>(chunk.source)];
    const auto& begin = begin_of(chunk.source);
    chunk.state = {};
    chunk.used = 0;
    chunk.counted = false;
    chunk.log = line_log(limits_.on_malformed, limits_.longest_line);
    chunk.rows.reshape(format_.shape());
    std::string_view text = from.is_stream() ? chunk.lines
                                             : load_lines(from, chunk_begin(chunk.source, chunk.number),
                                                          limits_.chunk_bytes, limits_.longest_line, chunk);
    if (!chunk.state) return;
    if (chunk.number == 0) {
      text.remove_prefix(byte_order_mark(text));
      chunk.log.count_lines(begin.empty.lines);
      if (begin.layout.has_header) {
        const std::size_t end = first_row_end(text, row_quote(format_));
        const std::string_view head = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        chunk.log.count_lines(1 + std::count(head.begin(), head.end(), '\n'));
      }
    }
    chunk.state = format_.parse(begin.layout, text, chunk.rows, chunk.log);
  }

  [[nodiscard]] bool stream_is_next() const noexcept {
    return source_ < static_cast<index_t>(sources_.size()) &&
           sources_[static_cast<std::size_t>(source_)].is_stream();
  }

  void close_through(index_t last) {
    for (; closed_ <= last && closed_ < static_cast<index_t>(sources_.size()); ++closed_) {
      sources_[static_cast<std::size_t>(closed_)].close();
    }
  }

 private:
  /// The empty lines before the first row, and the layout, which that has.
  struct source_begin {
    typename Format::layout layout{};
    empty_lines empty{};
  };
  [[nodiscard]] source_begin& begin_of(index_t source) noexcept {
    return begins_[static_cast<std::size_t>(source)];
  }
  [[nodiscard]] const source_begin& begin_of(index_t source) const noexcept {
    return begins_[static_cast<std::size_t>(source)];
  }
  /// Of a file: the place of its chunk.
  [[nodiscard]] index_t chunk_begin(index_t source, index_t number) const noexcept {
    return static_cast<index_t>(begin_of(source).empty.bytes) + number * limits_.chunk_bytes;
  }
  [[nodiscard]] index_t bytes_of_source() const noexcept {
    const text_source& of = sources_[static_cast<std::size_t>(source_)];
    return of.is_stream() ? of.stream_bytes() : (std::min)(of.size(), chunk_begin(source_, number_));
  }
  void leave() noexcept {
    bytes_before_ += bytes_of_source();
    ++source_;
    number_ = 0;
    entered_ = false;
  }

  /// Sets the fault of the next source; out_of_memory is returned instead.
  status refused(const status& why) noexcept {
    if (why.code() == errc::out_of_memory) return why;
    end_at(why, source_);
    return {};
  }

  /// Opens the next source and detects its layout from its first line that is not empty, read into the buffer
  /// of the next chunk.
  status enter(text_source& from) {
    if (const status s = from.open(); !s) return s;
    source_begin& begin = begin_of(source_) = {};
    if (from.is_stream()) {
      stream_.restart();
      return {};
    }
    for (;;) {
      std::string_view head;
      if (const status s = read_head(from, static_cast<index_t>(begin.empty.bytes), head); !s) return s;
      if (begin.empty.bytes == 0) {
        if (const status s = expect_text(head); !s) return s;
      }
      const empty_lines more = empty_lines_before<Format>(head);
      if (more.bytes == 0) {
        begin.layout = format_.detect(head_line(head, limits_.longest_line));
        return {};
      }
      begin.empty.bytes += more.bytes;
      begin.empty.lines += more.lines;
    }
  }
  /// The line that begins there, and what was read with it.
  status read_head(text_source& from, index_t begin, std::string_view& head) {
    head = from.text().substr(from.in_memory() ? static_cast<std::size_t>(begin) : 0);
    grow_array<char>& buffer = chunks_[static_cast<std::size_t>(filled_)].buffer;
    const index_t most = (std::min)(from.size() - begin, head_bytes(limits_.longest_line));
    for (index_t held = 0; !from.in_memory() && held < most;) {
      const index_t wanted = (std::min)(most, std::max<index_t>(4 * held, 4096));
      if (!buffer.reserve(wanted, held)) {
        return {errc::out_of_memory, "the memory resource must provide room for the first line (it refused)"};
      }
      if (const status s = from.read(begin + held, buffer.data() + held, wanted - held); !s) return s;
      head = {buffer.data(), static_cast<std::size_t>(wanted)};
      if (head.find('\n', static_cast<std::size_t>(held)) != std::string_view::npos) break;
      held = wanted;
    }
    return {};
  }

  [[nodiscard]] stream_lines::limits stream_limits() const noexcept {
    return {limits_.chunk_bytes, limits_.chunk_bytes * static_cast<index_t>(chunks_.size()),
            limits_.longest_line, row_quote(format_)};
  }

  /// Gives the lines of a stream that have arrived to chunks, about as many bytes to each; none where they
  /// are the empty ones before its first row.
  void share_out() {
    const char* const text = chunks_.front().buffer.data();
    index_t first = 0;
    if (number_ == 0) {
      std::string_view head(text, static_cast<std::size_t>(stream_.bytes()));
      const empty_lines more = empty_lines_before<Format>(head);
      first = static_cast<index_t>(more.bytes);
      head.remove_prefix(more.bytes);
      source_begin& begin = begin_of(source_);
      if (!head.empty())
        begin.layout = format_.detect(head_line(head, limits_.longest_line, row_quote(format_)));
      begin.empty.lines += more.lines;
    }
    const index_t bytes = stream_.bytes() - first;
    if (bytes == 0) return;
    const index_t pieces =
        (std::min)((bytes - 1) / limits_.chunk_bytes + 1, static_cast<index_t>(chunks_.size()));
    const index_t least = (bytes - 1) / pieces + 1;  // bytes of all but the last
    for (index_t begin = first; begin < stream_.bytes();) {
      const index_t end = stream_.row_end(chunks_.front().buffer, begin + least - 1, row_quote(format_));
      text_chunk& chunk = chunks_[static_cast<std::size_t>(filled_++)];
      chunk.lines = {text + begin, static_cast<std::size_t>(end - begin)};
      chunk.source = source_;
      chunk.number = number_++;
      begin = end;
    }
  }

  Format format_;
  chunk_limits limits_;
  std::vector<text_source> sources_;
  std::vector<source_begin> begins_;
  std::vector<text_chunk> chunks_;
  status fault_;
  index_t fault_source_ = 0;
  index_t filled_ = 0;
  index_t source_ = 0;        // source of the next chunk to read
  index_t number_ = 0;        // number of that chunk
  index_t bytes_before_ = 0;  // of the sources before that
  bool entered_ = false;      // that source is open, and its layout is known
  index_t closed_ = 0;        // sources closed so far
  stream_lines stream_;       // of the source, where it is a stream
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
