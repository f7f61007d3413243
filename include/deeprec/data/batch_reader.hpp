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
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/data/detail/lasting_context.hpp>
#include <deeprec/data/detail/source_chunks.hpp>
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
                "deeprec::batch_reader: not a text format. Fix: criteo_format, csv_format, libsvm_format, "
                "feasign_format, key_value_format, or see TextFormat in deeprec/data/text_format.hpp.");
  static_assert(BulkExecutor<Executor>,
                "deeprec::batch_reader: the executor has no parallel_for. Fix: inline_executor, "
                "thread_pool, or see deeprec/core/executor.hpp.");

 public:
  batch_reader(const context<Executor>& ctx, Format format, std::vector<detail::text_source> sources,
               const reader_options& options)
      : context_(ctx),
        batches_(options.batches),
        chunks_(std::move(format), std::move(sources),
                {options.chunk_bytes, options.longest_line, options.on_malformed},
                options.chunks_in_flight > 0 ? options.chunks_in_flight
                                             : 4 * static_cast<index_t>(ctx.executor->concurrency()),
                ctx.memory) {
    parts_.reserve(static_cast<std::size_t>(chunks_.most()));
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
        batch.reshape(chunks_.format().shape());
        return fill_batch(batch, max_rows);
      });
#if DEEPREC_EXCEPTIONS
    } catch (...) {  // of the executor or the format: whoever has rows is told by the next call
      if (batch.rows() == 0) throw;
    }
#endif
    batch.drop_row();
    rows_ += batch.rows();
    if (batch.rows() > 0 || (refusal.ok() && chunks_.fault().ok())) return batch.rows();
    if (!refusal) return chunks_.in_source(refusal, chunks_.next_source());
    chunks_.close_through(chunks_.next_source());
    return chunks_.in_source(chunks_.fault(), chunks_.fault_source());
  }

  /// Bad lines skipped so far (with malformed::drop), up to the chunk that the last row came from.
  ///
  /// @cost    O(1)
  /// @threads one caller at a time
  /// @error   none
  [[nodiscard]] index_t skipped_lines() const noexcept { return skipped_; }
  /// The first of them, four at most.
  [[nodiscard]] std::span<const fault> first_skipped() const noexcept { return first_skipped_; }
  /// Fields of slots that a feasign_format doesn't list, counted like skipped_lines(). Where these are all
  /// fields, the format's slots are not those of the text.
  [[nodiscard]] index_t ignored_fields() const noexcept { return ignored_; }
  /// Rows delivered so far.
  [[nodiscard]] index_t rows_read() const noexcept { return rows_; }
  /// Bytes of files read so far, by the chunks in flight further than the rows delivered; of a stream what it
  /// counts (text_stream::bytes_read).
  [[nodiscard]] index_t bytes_read() const noexcept { return chunks_.bytes_read(); }

 private:
  /// Adds rows to the batch until it is full, the input ends, or a fault comes, which stays; or
  /// out_of_memory, after which the next call goes on where this one ended.
  status fill_batch(sparse_batch& batch, index_t max_rows) {
    while (batch.rows() < max_rows && chunks_.fault().ok()) {
      if (head_ == chunks_.filled()) {
        if (batch.rows() > 0 && batches_ == stream_batches::arrived && chunks_.stream_is_next()) break;
        head_ = 0;
        loaded_ = false;
        if (const status s = chunks_.refill(); !s) return s;
        if (chunks_.filled() == 0) break;
      }
      if (!loaded_) {
        context_.executor->parallel_for(chunks_.filled(), index_t{1},
                                        [this](index_t begin, index_t end, int) {
                                          for (index_t i = begin; i < end; ++i) chunks_.load(chunks_[i]);
                                        });
        loaded_ = true;
      }
      if (const status s = take(batch, max_rows); !s) return s;
    }
    return {};
  }

  /// Copies rows of parsed chunks to the batch, until it has max_rows. They are taken once they are copied.
  status take(sparse_batch& batch, index_t max_rows) {
    detail::text_chunk& first = chunks_[head_];
    if (first.state.code() == errc::out_of_memory && first.used >= first.rows.rows()) {
      const index_t used = first.used;  // its rows so far
      chunks_.load(first);
      first.used = used;
      if (first.state.code() == errc::out_of_memory && used >= first.rows.rows()) return first.state;
    }
    index_t wanted = max_rows - batch.rows();
    index_t head = head_;
    index_t more = 0;  // rows of the chunk there
    bool ends = false;
    parts_.clear();
    while (head < chunks_.filled() && wanted > 0) {
      detail::text_chunk& chunk = chunks_[head];
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
    if (head == chunks_.filled()) return {};
    detail::text_chunk& chunk = chunks_[head];
    chunk.used += more;
    if (ends && chunk.state.code() != errc::out_of_memory) {
      chunks_.end_at(chunk_fault_, chunk.source);
    }
    return {};
  }

  /// Adds a chunk's lines and bad lines to the sums, and locates the fault that ended it. A chunk without
  /// memory is loaded again, and counted then.
  void count(detail::text_chunk& chunk) {
    if (chunk.state.code() == errc::out_of_memory) return;
    const index_t before = chunk.number == 0 ? 0 : lines_;
    const detail::text_source& source = chunks_.source(chunk.source);
    chunk_fault_ = chunk.state;
    if (chunk.state.code() == errc::parse_error) {
      chunk_fault_ = source.became_shorter()
                         ? detail::shorter_file
                         : detail::in_line(chunk.state, before + chunk.state.place().line);
    } else if (chunk.state.ok() && chunk.log.rejected() > 0) {
      const auto bad = chunk.log.kept();
      for (std::size_t i = 0; i < bad.size() && first_skipped_.size() < 4; ++i) {
        if (first_skipped_.size() == static_cast<std::size_t>(skipped_) + i)  // not of a try without memory
          first_skipped_.push_back(detail::in_text(bad[i], source.name(), before));
      }
      skipped_ += chunk.log.rejected();
    }
    lines_ = before + chunk.log.lines();
    ignored_ += chunk.log.ignored();
    chunk.counted = true;
  }

  context<Executor> context_;
  stream_batches batches_;
  detail::source_chunks<Format> chunks_;
  std::vector<sparse_batch::part> parts_;
  status chunk_fault_;  // of the chunk at the head
  std::vector<fault> first_skipped_;
  index_t head_ = 0;     // chunks from here on still hold rows
  bool loaded_ = false;  // the chunks are parsed
  index_t lines_ = 0;    // lines of the current source before the head
  index_t skipped_ = 0;
  index_t ignored_ = 0;
  index_t rows_ = 0;
};

namespace detail {

template <class Context, class Format>
DEEPREC_PER_UNIT auto make_reader(Context&& context_or_executor, Format format,
                                  std::vector<text_source> sources, const reader_options& options) {
  const auto ctx = detail::lasting_context<Context>(context_or_executor);
  using executor = std::remove_reference_t<decltype(*ctx.executor)>;
  return batch_reader<Format, executor>(ctx, std::move(format), std::move(sources), options);
}

template <class Context, class Format>
using reader_of =
    decltype(make_reader(std::declval<Context>(), std::declval<Format>(), std::vector<text_source>(), {}));

}  // namespace detail

/// One of the texts of read_texts(): a regular file, or a stream that has the name of a file.
struct text_input {
  std::string name;
  std::unique_ptr<text_stream> stream;  ///< null: the file of that name
};

/// A reader of files and streams, in sequence: the files as read_files() reads them, in parallel, a stream as
/// read_stream() does, opened where its turn comes. A batch has rows of several of them.
///
/// @pre     the executor outlives the reader
/// @cost    opens and closes each file; allocates the list of chunks
/// @threads reentrant
/// @error   as of read_files(); a stream that can't be opened is a fault of next(), after the rows before it
/// @example read_texts(pool, criteo_format{}, std::move(inputs))
template <class Context, class Format>
DEEPREC_PER_UNIT auto read_texts(Context&& context_or_executor, Format format, std::vector<text_input> inputs,
                                 const reader_options& options = {})
    -> result<detail::reader_of<Context, Format>> {
  return detail::or_out_of_memory([&]() -> result<detail::reader_of<Context, Format>> {
    if (const status s = format.check(); !s) return s;
    std::vector<detail::text_source> sources;
    sources.reserve(inputs.size());
    for (text_input& input : inputs) {
      if (input.stream != nullptr) {
        sources.emplace_back(std::move(input.name), std::move(input.stream));
        continue;
      }
      detail::text_source& source = sources.emplace_back(std::move(input.name));
      if (const status s = source.open(); !s) return fault(s, source.name());
      source.close();
    }
    return detail::make_reader(std::forward<Context>(context_or_executor), std::move(format),
                               std::move(sources), options);
  });
}

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
    std::vector<text_input> inputs;
    inputs.reserve(paths.size());
    for (std::string& path : paths) inputs.push_back({std::move(path), nullptr});
    return read_texts(std::forward<Context>(context_or_executor), std::move(format), std::move(inputs),
                      options);
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
