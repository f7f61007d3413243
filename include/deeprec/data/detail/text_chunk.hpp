// A chunk of a text source: its lines, read whole, and the rows that they become.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/data/detail/grow_array.hpp>
#include <deeprec/data/detail/locked_resource.hpp>
#include <deeprec/data/detail/text_source.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// One chunk of a source: its text, its rows, and its fault. What is allocated from the shared resource lies
/// in chunks only, and a chunk is never assigned: so the resource goes after all of it.
struct text_chunk {
  explicit text_chunk(std::shared_ptr<locked_resource> of_all)
      : memory(std::move(of_all)), buffer(memory.get()), rows(memory.get()) {}
  text_chunk(text_chunk&&) noexcept = default;
  text_chunk& operator=(text_chunk&&) = delete;
  ~text_chunk() = default;

  std::shared_ptr<locked_resource> memory;  // chunks grow on many threads
  index_t source = 0;
  index_t number = 0;       // within its source
  grow_array<char> buffer;  // of a stream that of the first chunk holds the text of all
  std::string_view lines;   // of a stream
  sparse_batch rows;
  line_log log;
  status state;          // of reading or parsing
  index_t used = 0;      // rows already delivered
  bool counted = false;  // its lines and bad lines are in the reader's sums
};

/// The lines that begin in [begin, begin + bytes) of the source. On failure chunk.state is the fault. The
/// text ends with the last such line, wherever that ends, or with the first byte that makes it too long. No
/// byte after that is read, and only one before the chunk.
inline std::string_view load_lines(const text_source& source, index_t begin, index_t bytes,
                                   index_t longest_line, text_chunk& chunk) noexcept {
  const index_t size = source.size();
  const index_t end = (std::min)(size, begin + bytes);
  // Of a line beyond the limit, one byte more than the limit is enough to see that it is too long,
  // and one for a carriage return; before the first line there may be a byte order mark.
  const index_t mark = begin == 0 ? 3 : 0;
  const index_t last_byte = (std::min)(size, end + longest_line + 1 + mark);
  if (source.in_memory()) {
    const char* const text = source.text().data();
    const auto find = [text](index_t from, index_t to) {
      const void* found = std::memchr(text + from, '\n', static_cast<std::size_t>(to - from));
      return found == nullptr ? index_t{-1} : static_cast<const char*>(found) - text;
    };
    index_t from = begin;
    if (begin > 0) {
      const index_t line_end = find(begin - 1, end - 1);
      if (line_end < 0) return {};
      from = line_end + 1;
    }
    const index_t line_end = find(end - 1, last_byte);
    const index_t stop = line_end < 0 ? last_byte : line_end + 1;
    return {text + from, static_cast<std::size_t>(stop - from)};
  }
  // The byte before the chunk tells whether a line begins with the chunk. It is stored at the end of a
  // cache line, so that the chunk itself is aligned in memory as in the file.
  constexpr auto margin = static_cast<index_t>(cache_line_bytes);
  const index_t before = begin > 0 ? 1 : 0;
  index_t read_to = (std::min)(last_byte, end + 4096);
  const auto fail = [&](const status& why) {
    chunk.state = why;
    return std::string_view();
  };
  constexpr status no_room(errc::out_of_memory,
                           "the memory resource must provide room for text (it refused)");
  if (!chunk.buffer.reserve(margin + (read_to - begin), 0)) return fail(no_room);
  if (const status s =
          source.read(begin - before, chunk.buffer.data() + margin - before, read_to - begin + before);
      !s) {
    return fail(s);
  }
  const char* from = chunk.buffer.data() + margin - before;
  const char* const last = chunk.buffer.data() + margin + (end - begin);  // one past the chunk
  if (begin > 0) {
    from = static_cast<const char*>(std::memchr(from, '\n', static_cast<std::size_t>(last - from)));
    if (from == nullptr || ++from >= last) return {};
  }
  index_t skip = from - chunk.buffer.data();
  index_t searched = margin + (end - begin) - 1;
  for (;;) {
    const char* const text = chunk.buffer.data();
    const index_t held = margin + (read_to - begin);
    const void* found = std::memchr(text + searched, '\n', static_cast<std::size_t>(held - searched));
    index_t stop = found == nullptr ? held : static_cast<const char*>(found) - text + 1;
    if (found != nullptr || read_to == last_byte) {
      return {text + skip, static_cast<std::size_t>(stop - skip)};
    }
    searched = held;
    const index_t more = (std::min)(last_byte - read_to, std::max<index_t>(read_to - begin, 4096));
    if (!chunk.buffer.reserve(held + more, held)) return fail(no_room);
    if (const status s = source.read(read_to, chunk.buffer.data() + held, more); !s) return fail(s);
    read_to += more;
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
