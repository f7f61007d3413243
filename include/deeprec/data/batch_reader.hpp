// Text files to sparse batches: read and parsed in parallel, delivered in the order of the files.
//
//   file    |  chunk 0  |  chunk 1  |  chunk 2  | ...      256 KB each; a line belongs to the chunk
//                │            │           │                in which it begins
//             worker       worker      worker              pread, parse: a sparse_batch per chunk
//                └────────────┴───────────┴──> next(batch, rows)     rows copied, in file order
//
//   auto reader = read_files(pool, criteo_format{}, {"day_0.tsv", "day_1.tsv"}).or_throw();
//   sparse_batch batch;
//   while (reader.next(batch, 8192).or_throw() > 0) train(batch);
//
// Batches are the same for any executor. Memory is bounded by the chunks in flight and is reused. A stream
// (read_stream: a pipe, compressed text) is read by the caller of next(), and the lines that have arrived are
// parsed in parallel. Not here: reading ahead while the caller works on a batch (pipeline/).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/data/detail/file_kind.hpp>
#include <deeprec/data/detail/grow_array.hpp>
#include <deeprec/data/detail/locked_resource.hpp>
#include <deeprec/data/detail/stream_lines.hpp>
#include <deeprec/data/detail/text_chunk.hpp>
#include <deeprec/data/detail/text_source.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>
#include <deeprec/data/text_stream.hpp>
#include <deeprec/support/unit_flags.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The rows of a batch of a stream: as many as were asked for, however long they take to arrive; or those
/// that have arrived, at least one.
enum class stream_batches : std::uint8_t { full, arrived };

struct reader_options {
  malformed on_malformed = malformed::fault;
  index_t chunk_bytes = index_t{1} << 18;
  index_t chunks_in_flight = 0;             ///< 0: four for each thread of the executor
  index_t longest_line = index_t{1} << 24;  ///< bytes; of a longer line no more than that is read
  stream_batches batches = stream_batches::full;
};

/// Delivers the rows of files (or of text in memory) as batches. Made by read_files() or
/// read_text(). Move-only.
///
/// @space   chunks take memory from the context's resource, on the executor's threads, one at a time
/// @threads one caller at a time; next() runs on the executor
template <class Format, class Executor, class = detail::unit>
class batch_reader {
  static_assert(TextFormat<Format>,
                "deeprec::batch_reader: not a text format. Fix: criteo_format, libsvm_format, "
                "feasign_format, key_value_format, or see TextFormat in deeprec/data/text_format.hpp.");
  static_assert(BulkExecutor<Executor>,
                "deeprec::batch_reader: the executor has no parallel_for. Fix: inline_executor, "
                "thread_pool, or see deeprec/core/executor.hpp.");

 public:
  batch_reader(const context<Executor>& ctx, Format format, std::vector<detail::text_source> sources,
               const reader_options& options)
      : format_(std::move(format)), context_(ctx), options_(options), sources_(std::move(sources)) {
    const index_t flight = options_.chunks_in_flight > 0
                               ? options_.chunks_in_flight
                               : 4 * static_cast<index_t>(context_.executor->concurrency());
    options_.chunk_bytes = std::clamp<index_t>(options_.chunk_bytes, 1, index_t{1} << 30);
    options_.longest_line = std::clamp<index_t>(options_.longest_line, 1, index_t{1} << 30);
    const auto memory = std::make_shared<detail::locked_resource>(ctx.memory);
    chunks_.reserve(static_cast<std::size_t>(flight));
    for (index_t i = 0; i < flight; ++i) {
      chunks_.emplace_back(memory).rows.reshape(format_.shape());
    }
    parts_.reserve(static_cast<std::size_t>(flight));
    layouts_.resize(sources_.size());
  }

  /// Fills the batch with the next rows, max_rows of them unless the input ends or a bad line comes
  /// first; of a stream with stream_batches::arrived, those that have arrived. Returns their number; 0 at the
  /// end of the input.
  ///
  /// @post    a call waits for more of a stream only when all whole lines of it that had arrived are in
  ///          batches, and after no bad line.
  ///          The rows before a bad line are delivered; the call after that reports the fault, as do
  ///          all later ones. On a fault the batch is empty. After out_of_memory, or an exception of the
  ///          executor or the format, no row is lost: a later call goes on
  /// @cost    reading, parsing and one copy of the rows; allocates nothing once batch and chunks
  ///          have grown to their sizes. At most one file more than there are chunks in flight is
  ///          open at a time
  /// @threads one caller at a time; runs on the executor
  /// @error   parse_error (the first bad line in the order of the files; without a line, of a source that is
  ///          no text but compressed, an archive or the like), io_error, out_of_memory,
  ///          shape_mismatch (max_rows is not positive), stopped (no row is lost: a later call delivers them)
  result<index_t> next(sparse_batch& batch, index_t max_rows) {
    const detail::verb_call call(context_, "next");
    batch.clear();
    if (!call) return call.stopped();
    if (max_rows <= 0) return status(errc::shape_mismatch, "next: max_rows must be positive");
    status refusal;
#if DEEPREC_EXCEPTIONS
    try {
#endif
      refusal = detail::or_out_of_memory([&]() -> status {
        batch.reshape(format_.shape());
        return fill_batch(batch, max_rows);
      });
#if DEEPREC_EXCEPTIONS
    } catch (...) {  // of the executor or the format: whoever has rows is told by the next call
      if (batch.rows() == 0) throw;
    }
#endif
    batch.drop_row();
    rows_ += batch.rows();
    if (batch.rows() > 0 || (refusal.ok() && fault_.ok())) return batch.rows();
    if (!refusal) return refusal_in(refusal, source_);
    close_through(source_);
    return refusal_in(fault_, fault_source_);
  }

  /// Bad lines skipped so far (with malformed::drop), up to the chunk that the last row came from.
  ///
  /// @cost    O(1)
  /// @threads one caller at a time
  /// @error   none
  [[nodiscard]] index_t skipped_lines() const noexcept { return skipped_; }
  /// The first of them.
  [[nodiscard]] const std::optional<fault>& first_skipped() const noexcept { return first_skipped_; }
  /// Fields of slots that a feasign_format doesn't list, counted like skipped_lines(). Where these are all
  /// fields, the format's slots are not those of the text.
  [[nodiscard]] index_t ignored_fields() const noexcept { return ignored_; }
  /// Rows delivered so far.
  [[nodiscard]] index_t rows_read() const noexcept { return rows_; }

 private:
  /// Adds rows to the batch until it is full, the input ends, or a fault comes, which stays; or
  /// out_of_memory, after which the next call goes on where this one ended.
  status fill_batch(sparse_batch& batch, index_t max_rows) {
    while (batch.rows() < max_rows && fault_.ok()) {
      if (head_ == filled_) {
        if (batch.rows() > 0 && options_.batches == stream_batches::arrived && stream_is_next()) break;
        if (const status s = refill(); !s) return s;
        if (filled_ == 0) break;
      }
      if (!loaded_) {
        context_.executor->parallel_for(filled_, index_t{1}, [this](index_t begin, index_t end, int) {
          for (index_t i = begin; i < end; ++i) load(chunks_[static_cast<std::size_t>(i)]);
        });
        loaded_ = true;
      }
      if (const status s = take(batch, max_rows); !s) return s;
    }
    return {};
  }

  /// The fault with the name of its source, where there is memory for that.
  fault refusal_in(const status& why, index_t source) const {
    const auto at = static_cast<std::size_t>(source);
    std::string name;
    (void)detail::or_out_of_memory([&]() -> status {
      if (at < sources_.size()) name = sources_[at].name();
      return {};
    });
    return {why, std::move(name)};
  }

  /// Chooses the next chunks, and reads those of a stream. There are none at the end of the input, or where
  /// the next source is refused (then the fault is set).
  status refill() {
    close_through(source_ - 1);
    head_ = filled_ = 0;
    loaded_ = false;
    const auto flight = static_cast<index_t>(chunks_.size());
    while (filled_ < flight && source_ < static_cast<index_t>(sources_.size())) {
      if (filled_ > 0 && stream_is_next()) break;
      detail::text_source& from = sources_[static_cast<std::size_t>(source_)];
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
          if (number_ == 0) {
            if (const status s = detail::expect_text(begin); !s) return refused(s);
          }
          share_out();
          stream_.taken();
          break;
        }
        if (!stream_.end()) return refused(stream_.end());
        from.close();
        leave();
        continue;
      }
      if (number_ * options_.chunk_bytes >= from.size()) {
        const bool awaited = filled_ > 0 && chunks_[static_cast<std::size_t>(filled_) - 1].source == source_;
        if (!awaited) from.close();  // an empty file: many may follow in sequence
        leave();
        continue;
      }
      detail::text_chunk& chunk = chunks_[static_cast<std::size_t>(filled_++)];
      chunk.source = source_;
      chunk.number = number_++;
    }
    return {};
  }

  void leave() noexcept {
    ++source_;
    number_ = 0;
    entered_ = false;
  }

  /// Sets the fault of the next source; out_of_memory is returned instead.
  status refused(const status& why) noexcept {
    if (why.code() == errc::out_of_memory) return why;
    fault_ = why;
    fault_source_ = source_;
    return {};
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

  /// Opens the next source and detects its layout from its first line, read into the buffer of the next
  /// chunk.
  status enter(detail::text_source& from) {
    if (const status s = from.open(); !s) return s;
    if (from.is_stream()) {
      stream_.restart();
      return {};
    }
    std::string_view head = from.text();
    detail::grow_array<char>& buffer = chunks_[static_cast<std::size_t>(filled_)].buffer;
    const index_t most = (std::min)(from.size(), detail::head_bytes(options_.longest_line));
    for (index_t held = 0; !from.in_memory() && held < most;) {
      const index_t wanted = (std::min)(most, std::max<index_t>(4 * held, 4096));
      if (!buffer.reserve(wanted, held)) {
        return {errc::out_of_memory, "the memory resource must provide room for the first line (it refused)"};
      }
      if (const status s = from.read(held, buffer.data() + held, wanted - held); !s) return s;
      head = {buffer.data(), static_cast<std::size_t>(wanted)};
      if (head.find('\n', static_cast<std::size_t>(held)) != std::string_view::npos) break;
      held = wanted;
    }
    if (const status s = detail::expect_text(head); !s) return s;
    layouts_[static_cast<std::size_t>(source_)] =
        format_.detect(detail::head_line(head, options_.longest_line));
    return {};
  }

  [[nodiscard]] detail::stream_lines::limits stream_limits() const noexcept {
    return {options_.chunk_bytes, options_.chunk_bytes * static_cast<index_t>(chunks_.size()),
            options_.longest_line};
  }

  /// Gives the lines of a stream that have arrived to chunks, about as many bytes to each.
  void share_out() {
    const index_t bytes = stream_.bytes();
    const char* const text = chunks_.front().buffer.data();
    if (number_ == 0) {
      layouts_[static_cast<std::size_t>(source_)] =
          format_.detect(detail::head_line({text, static_cast<std::size_t>(bytes)}, options_.longest_line));
    }
    const index_t pieces =
        (std::min)((bytes - 1) / options_.chunk_bytes + 1, static_cast<index_t>(chunks_.size()));
    const index_t least = (bytes - 1) / pieces + 1;  // bytes of all but the last
    for (index_t begin = 0; begin < bytes;) {
      index_t end = bytes;
      if (bytes - begin > least) {
        const index_t from = begin + least - 1;
        const void* found = std::memchr(text + from, '\n', static_cast<std::size_t>(bytes - from));
        if (found != nullptr) end = static_cast<const char*>(found) - text + 1;
      }
      detail::text_chunk& chunk = chunks_[static_cast<std::size_t>(filled_++)];
      chunk.lines = {text + begin, static_cast<std::size_t>(end - begin)};
      chunk.source = source_;
      chunk.number = number_++;
      begin = end;
    }
  }

  void load(detail::text_chunk& chunk) const {
    const detail::text_source& from = sources_[static_cast<std::size_t>(chunk.source)];
    const auto& layout = layouts_[static_cast<std::size_t>(chunk.source)];
    chunk.state = {};
    chunk.used = 0;
    chunk.counted = false;
    chunk.log = line_log(options_.on_malformed, options_.longest_line);
    chunk.rows.reshape(format_.shape());
    std::string_view text = from.is_stream()
                                ? chunk.lines
                                : detail::load_lines(from, chunk.number * options_.chunk_bytes,
                                                     options_.chunk_bytes, options_.longest_line, chunk);
    if (!chunk.state) return;
    if (chunk.number == 0) {
      text.remove_prefix(detail::byte_order_mark(text));
      if (layout.has_header) {
        const std::size_t end = text.find('\n');
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        chunk.log.count_lines(1);
      }
    }
    chunk.state = format_.parse(layout, text, chunk.rows, chunk.log);
  }

  /// Copies rows of parsed chunks to the batch, until it has max_rows. They are taken once they are copied.
  status take(sparse_batch& batch, index_t max_rows) {
    detail::text_chunk& first = chunks_[static_cast<std::size_t>(head_)];
    if (first.state.code() == errc::out_of_memory && first.used >= first.rows.rows()) {
      const index_t used = first.used;  // its rows so far
      load(first);
      first.used = used;
      if (first.state.code() == errc::out_of_memory && used >= first.rows.rows()) return first.state;
    }
    index_t wanted = max_rows - batch.rows();
    index_t head = head_;
    index_t more = 0;  // rows of the chunk there
    bool ends = false;
    parts_.clear();
    while (head < filled_ && wanted > 0) {
      detail::text_chunk& chunk = chunks_[static_cast<std::size_t>(head)];
      if (!chunk.counted) count(chunk);
      const index_t left = chunk.rows.rows() - chunk.used;
      more = (std::min)(left, wanted);
      if (more > 0) parts_.push_back({&chunk.rows, chunk.used, more});
      wanted -= more;
      ends = more == left && !chunk.state;
      if (more < left || ends) break;
      ++head;
      more = 0;
    }
    if (!parts_.empty()) {
      const std::span<const sparse_batch::part> parts(parts_);
      if (const status s = batch.reserve_parts(parts); !s) return s;
      const index_t pieces = batch.copy_pieces();
      // A few features at a time; the rows of a small batch are not worth waking a thread for.
      const index_t grain = max_rows < 512 ? pieces : std::max<index_t>(1, pieces / 16);
      context_.executor->parallel_for(pieces, grain, [&batch, parts](index_t begin, index_t end, int) {
        for (index_t piece = begin; piece < end; ++piece) batch.copy_piece(piece, parts);
      });
      batch.commit_parts(parts);
    }
    head_ = head;
    if (head == filled_) return {};
    detail::text_chunk& chunk = chunks_[static_cast<std::size_t>(head)];
    chunk.used += more;
    if (ends && chunk.state.code() != errc::out_of_memory) {
      fault_ = chunk_fault_;
      fault_source_ = chunk.source;
    }
    return {};
  }

  /// Adds a chunk's lines and bad lines to the sums, and locates the fault that ended it. A chunk without
  /// memory is loaded again, and counted then.
  void count(detail::text_chunk& chunk) {
    if (chunk.state.code() == errc::out_of_memory) return;
    const index_t before = chunk.number == 0 ? 0 : lines_;
    const detail::text_source& source = sources_[static_cast<std::size_t>(chunk.source)];
    chunk_fault_ = chunk.state;
    if (chunk.state.code() == errc::parse_error) {
      chunk_fault_ = source.became_shorter()
                         ? detail::shorter_file
                         : detail::in_line(chunk.state, before + chunk.state.place().line);
    } else if (chunk.state.ok() && chunk.log.rejected() > 0) {
      if (skipped_ == 0) first_skipped_ = detail::in_text(chunk.log.first(), source.name(), before);
      skipped_ += chunk.log.rejected();
    }
    lines_ = before + chunk.log.lines();
    ignored_ += chunk.log.ignored();
    chunk.counted = true;
  }

  Format format_;
  context<Executor> context_;
  reader_options options_;
  std::vector<detail::text_source> sources_;
  std::vector<typename Format::layout> layouts_;
  std::vector<detail::text_chunk> chunks_;
  std::vector<sparse_batch::part> parts_;
  status fault_;        // reported by every further call
  status chunk_fault_;  // of the chunk at the head
  std::optional<fault> first_skipped_;
  index_t fault_source_ = 0;
  index_t head_ = 0;  // chunks [head_, filled_) still hold rows
  index_t filled_ = 0;
  index_t source_ = 0;    // source of the next chunk to read
  index_t number_ = 0;    // number of that chunk
  bool entered_ = false;  // that source is open, and its layout is known
  bool loaded_ = false;   // the chunks are parsed
  index_t closed_ = 0;    // sources closed so far
  index_t lines_ = 0;     // lines of the current source before the head
  index_t skipped_ = 0;
  index_t ignored_ = 0;
  index_t rows_ = 0;
  detail::stream_lines stream_;  // of the source, where it is a stream
};

namespace detail {

template <class Context, class Format>
DEEPREC_PER_UNIT auto make_reader(Context&& context_or_executor, Format format,
                                  std::vector<text_source> sources, const reader_options& options) {
  using plain = std::remove_cvref_t<Context>;
  static_assert(std::is_lvalue_reference_v<Context> || detail::is_context<plain>,
                "deeprec::read_files: the executor is a temporary, and the reader keeps a reference "
                "to it. Fix: give the executor a name.");
  const auto ctx = detail::as_context(context_or_executor);
  using executor = std::remove_reference_t<decltype(*ctx.executor)>;
  return batch_reader<Format, executor>(ctx, std::move(format), std::move(sources), options);
}

template <class Context, class Format>
using reader_of =
    decltype(make_reader(std::declval<Context>(), std::declval<Format>(), std::vector<text_source>(), {}));

}  // namespace detail

/// A reader of files, in sequence. Every file is opened once here, so that a missing one is reported
/// before the first batch.
///
/// @pre     the executor outlives the reader
/// @cost    opens and closes each file; allocates the list of chunks
/// @threads reentrant
/// @error   io_error (a file is missing, a directory, no regular file, or not readable), unsupported
///          (the format's options contradict each other), out_of_memory
/// @example auto reader = read_files(pool, criteo_format{}, {"train.txt"}).or_throw();
template <class Context, class Format>
DEEPREC_PER_UNIT auto read_files(Context&& context_or_executor, Format format, std::vector<std::string> paths,
                                 const reader_options& options = {})
    -> result<detail::reader_of<Context, Format>> {
  return detail::or_out_of_memory([&]() -> result<detail::reader_of<Context, Format>> {
    if (const status s = format.check(); !s) return s;
    std::vector<detail::text_source> sources;
    sources.reserve(paths.size());
    for (std::string& path : paths) {
      detail::text_source& source = sources.emplace_back(std::move(path));
      if (const status s = source.open(); !s) return fault(s, source.name());
      source.close();
    }
    return detail::make_reader(std::forward<Context>(context_or_executor), std::move(format),
                               std::move(sources), options);
  });
}

/// The same, for a call without an executor: it does not compile, and the message has the right one.
template <TextFormat Format>
auto read_files(Format, const std::vector<std::string>&, const reader_options& = {}) {
  static_assert(
      detail::always_false<Format>,
      "deeprec::read_files: no executor, whose threads parse. Fix: read_files(pool, format, paths) with "
      "a thread_pool pool; or an inline_executor, which parses in the caller.");
}
/// The same, for the paths before the format.
template <TextFormat Format>
auto read_files(const std::vector<std::string>&, Format, const reader_options& = {}) {
  static_assert(
      detail::always_false<Format>,
      "deeprec::read_files: no executor, whose threads parse. Fix: read_files(pool, format, paths) with "
      "a thread_pool pool; or an inline_executor, which parses in the caller.");
}

/// A reader of text in memory, which is parsed in place. The file of a fault is "<text>".
///
/// @pre     text and executor outlive the reader
/// @cost    allocates the list of chunks
/// @threads reentrant
/// @error   unsupported (the format's options contradict each other), out_of_memory
template <class Context, class Format>
DEEPREC_PER_UNIT auto read_text(Context&& context_or_executor, Format format, std::string_view text,
                                const reader_options& options = {})
    -> result<detail::reader_of<Context, Format>> {
  return detail::or_out_of_memory([&]() -> result<detail::reader_of<Context, Format>> {
    if (const status s = format.check(); !s) return s;
    std::vector<detail::text_source> sources;
    sources.emplace_back("<text>", text);
    return detail::make_reader(std::forward<Context>(context_or_executor), std::move(format),
                               std::move(sources), options);
  });
}

/// A reader of a stream, from its begin. `name` is the file of a fault.
///
/// @pre     the executor outlives the reader
/// @post    the stream is open
/// @cost    opens the stream; allocates the list of chunks
/// @threads reentrant
/// @error   what open() of the stream returns, unsupported (the format's options contradict each other),
///          out_of_memory: then the stream is gone
/// @example read_stream(pool, criteo_format{}, "stdin", std::make_unique<file_stream>(0))
template <class Context, class Format>
DEEPREC_PER_UNIT auto read_stream(Context&& context_or_executor, Format format, std::string name,
                                  std::unique_ptr<text_stream> stream, const reader_options& options = {})
    -> result<detail::reader_of<Context, Format>> {
  return detail::or_out_of_memory([&]() -> result<detail::reader_of<Context, Format>> {
    if (const status s = format.check(); !s) return s;
    std::vector<detail::text_source> sources;
    detail::text_source& source = sources.emplace_back(std::move(name), std::move(stream));
    if (const status s = source.open(); !s) return fault(s, source.name());
    return detail::make_reader(std::forward<Context>(context_or_executor), std::move(format),
                               std::move(sources), options);
  });
}

}}  // namespace deeprec::DEEPREC_ABI
