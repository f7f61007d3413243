// Streams give the rows of the same text in memory: plain, compressed, in pieces of any size; and what ends
// one early is a fault behind the rows that came before it.
#include "data/support.hpp"

#include <sys/stat.h>

#include <thread>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/data/text_stream.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#if DEEPREC_WITH_ZLIB
#  include <deeprec/data/gzip_stream.hpp>
#endif
#if DEEPREC_WITH_ZSTD
#  include <deeprec/data/zstd_stream.hpp>
#endif

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// Text in pieces of random sizes, which may end in a fault.
class piecewise_stream final : public text_stream {
 public:
  piecewise_stream(std::string text, std::uint64_t seed, status end = {})
      : text_(std::move(text)), random_(seed), end_(end) {}
  status open() noexcept override {
    at_ = 0;
    ++opened;
    return {};
  }
  status read(char* to, index_t bytes, index_t& got) noexcept override {
    const std::size_t left = text_.size() - at_;
    got = static_cast<index_t>(std::min({left, static_cast<std::size_t>(bytes), 1 + random_() % 300}));
    std::copy_n(text_.data() + at_, got, to);
    at_ += static_cast<std::size_t>(got);
    return got == 0 ? end_ : status();
  }
  void close() noexcept override { ++closed; }
  bool ready(std::chrono::milliseconds) noexcept override { return random_() % 2 == 0; }
  int opened = 0, closed = 0;

 private:
  std::string text_;
  std::size_t at_ = 0;
  std::minstd_rand random_;
  status end_;
};

/// Text in pieces of 100 bytes, whose read number `refused` gets no memory.
class refused_stream final : public text_stream {
 public:
  refused_stream(std::string text, int refused) : text_(std::move(text)), refused_(refused) {}
  status open() noexcept override { return {}; }
  status read(char* to, index_t bytes, index_t& got) noexcept override {
    got = 0;
    if (reads_++ == refused_) return {errc::out_of_memory, "memory must provide room (it refused)"};
    got = static_cast<index_t>(
        std::min({text_.size() - at_, static_cast<std::size_t>(bytes), std::size_t{100}}));
    std::copy_n(text_.data() + at_, got, to);
    at_ += static_cast<std::size_t>(got);
    return {};
  }
  void close() noexcept override {}
  bool ready(std::chrono::milliseconds) noexcept override { return true; }

 private:
  std::string text_;
  std::size_t at_ = 0;
  int reads_ = 0, refused_;
};

#if DEEPREC_EXCEPTIONS
/// A format that throws where it detects the layout of its first text.
struct startled_format : libsvm_format {
  int* calls;
  layout detect(std::string_view text) const {
    if ((*calls)++ == 0) throw 7;
    return libsvm_format::detect(text);
  }
};
#endif

/// Text in pieces that arrive one by one: it counts the reads that came while rows of whole lines that were
/// read had not been delivered, though nothing said that more had arrived.
class waiting_stream final : public text_stream {
 public:
  struct facts {
    index_t delivered = 0;  // rows; the reader's caller counts them
    index_t early = 0;
    index_t bytes = 0;
  };
  waiting_stream(std::string text, std::uint64_t seed, facts& seen)
      : text_(std::move(text)), random_(seed), seen_(seen) {}
  status open() noexcept override { return {}; }
  status read(char* to, index_t bytes, index_t& got) noexcept override {
    const auto lines = std::count(text_.data(), text_.data() + seen_.bytes, '\n');
    if (!said_ready_ && seen_.delivered < lines) ++seen_.early;
    said_ready_ = false;
    got = std::min(
        {static_cast<index_t>(text_.size()) - seen_.bytes, bytes, 1 + static_cast<index_t>(random_() % 300)});
    std::copy_n(text_.data() + seen_.bytes, got, to);
    seen_.bytes += got;
    return {};
  }
  void close() noexcept override {}
  bool ready(std::chrono::milliseconds) noexcept override { return said_ready_ = random_() % 3 == 0; }

 private:
  std::string text_;
  std::minstd_rand random_;
  facts& seen_;
  bool said_ready_ = false;
};

/// Lines of libsvm: rows with any number of ids.
std::string some_lines(std::mt19937& random, int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += random() % 2 == 0 ? "0" : "1";
    for (unsigned k = random() % 8; k > 0; --k) text += " " + std::to_string(1 + random() % 100000) + ":1.5";
    text += random() % 5 == 0 ? "\r\n" : "\n";
  }
  return text;
}

struct stream_outcome {
  plain_rows rows;
  std::string fault;
  index_t skipped = 0;
  friend bool operator==(const stream_outcome&, const stream_outcome&) = default;
};

template <class Reader>
stream_outcome all_of(Reader reader, index_t most) {
  stream_outcome all;
  if (!reader) return {{}, reader.fault().message(), 0};
  sparse_batch batch;
  for (;;) {
    const auto got = reader.value().next(batch, most);
    if (!got) all.fault = got.fault().message();
    if (!got || got.value() == 0) break;
    for (plain_row& row : to_plain(batch)) all.rows.push_back(std::move(row));
  }
  all.skipped = reader.value().skipped_lines();
  return all;
}

/// What a reader of the text in memory gives, with the name of the stream's faults.
template <class Format>
stream_outcome in_memory(const Format& format, const std::string& text, reader_options options = {}) {
  inline_executor here;
  stream_outcome all = all_of(read_text(here, format, text, options), 100);
  if (const std::size_t at = all.fault.find("<text>"); at != std::string::npos)
    all.fault.replace(at, 6, "stream");
  return all;
}

}  // namespace

TEST_CASE("reader: a stream whose read is refused memory reads on at the next call, and loses no row") {
  const inline_executor here;
  std::string text;
  for (int r = 0; r < 60; ++r) text += "1 3:0.5 " + std::to_string(1 + r) + ":1\n";
  for (int refused = 0; refused < 9; ++refused) {
    auto reader =
        read_stream(here, libsvm_format{}, "stream", std::make_unique<refused_stream>(text, refused))
            .or_throw();
    sparse_batch batch;
    index_t rows = 0;
    int refusals = 0;
    for (;;) {
      const result<index_t> got = reader.next(batch, 7);
      if (!got) {
        REQUIRE(got.code() == errc::out_of_memory);
        REQUIRE(++refusals == 1);
        continue;
      }
      if (got.value() == 0) break;
      for (index_t r = 0; r < batch.rows(); ++r) CHECK(batch.feature(0).ids()[2 * r + 1] == rows++);
    }
    CHECK(rows == 60);
  }
}

#if DEEPREC_EXCEPTIONS
TEST_CASE("reader: a format that throws where it detects the layout of a stream loses no row") {
  const inline_executor here;
  int calls = 0;
  startled_format format;
  format.calls = &calls;
  auto reader =
      read_stream(here, format, "stream", std::make_unique<refused_stream>("1 1:1\n0 2:1\n1 3:1\n", -1))
          .or_throw();
  sparse_batch batch;
  CHECK_THROWS_AS((void)reader.next(batch, 8), int);
  REQUIRE(reader.next(batch, 8).or_throw() == 3);
  CHECK(batch.feature(0).ids()[0] == 0);
  CHECK(reader.next(batch, 8).or_throw() == 0);
}
#endif

TEST_CASE("stream: pieces and chunks of any size give the rows of the whole text") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  thread_pool pool({.threads = 3});
  inline_executor here;
  for (int round = 0; round < 20; ++round) {
    std::string text = some_lines(random, static_cast<int>(random() % 400));
    if (round % 3 == 1 && !text.empty()) text.pop_back();  // no line end at the end
    if (round % 4 == 2) text = "\xEF\xBB\xBF" + text;
    const stream_outcome wanted = in_memory(libsvm_format{}, text);
    for (const index_t chunk : {1, 7, 64, 1000, 1 << 20}) {
      const reader_options options{.chunk_bytes = chunk};
      CHECK(all_of(read_stream(pool, libsvm_format{}, "stream",
                               std::make_unique<piecewise_stream>(text, random()), options),
                   1 + static_cast<index_t>(random() % 100)) == wanted);
      CHECK(all_of(read_stream(here, libsvm_format{}, "stream",
                               std::make_unique<piecewise_stream>(text, random()), options),
                   100) == wanted);
    }
  }
}

TEST_CASE("stream: bad and too long lines are those of the text in memory") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  thread_pool pool({.threads = 2});
  for (int round = 0; round < 20; ++round) {
    std::string text = some_lines(random, 60);
    for (const char* bad : {"what\n", "1 5:x\n"})
      text.insert(text.find('\n', random() % text.size() / 2) + 1, bad);
    std::string longest = "1";
    while (longest.size() < 100 + random() % 3000) longest += " 7:1";
    text.insert(text.find('\n', random() % text.size() / 2) + 1, longest + "\n");
    if (round % 2 == 0) text += longest;
    for (const malformed policy : {malformed::fault, malformed::drop}) {
      for (const index_t chunk : {5, 200, 100000}) {
        const reader_options options{.on_malformed = policy, .chunk_bytes = chunk, .longest_line = 90};
        const stream_outcome wanted = in_memory(libsvm_format{}, text, options);
        CHECK(all_of(read_stream(pool, libsvm_format{}, "stream",
                                 std::make_unique<piecewise_stream>(text, random()), options),
                     17) == wanted);
        CHECK(wanted.fault.empty() == (policy == malformed::drop));
      }
    }
  }
}

TEST_CASE("stream: rows that have arrived are delivered before more is read") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  thread_pool pool({.threads = 2});
  for (int round = 0; round < 20; ++round) {
    const std::string text = some_lines(random, 300);
    const plain_rows wanted = in_memory(libsvm_format{}, text).rows;
    for (const index_t chunk : {1, 64, 1000, 1 << 18}) {
      for (const stream_batches batches : {stream_batches::full, stream_batches::arrived}) {
        const index_t most = batches == stream_batches::full ? 1 : 1 + static_cast<index_t>(random() % 400);
        waiting_stream::facts seen;
        auto reader = read_stream(pool, libsvm_format{}, "stream",
                                  std::make_unique<waiting_stream>(text, random(), seen),
                                  {.chunk_bytes = chunk, .batches = batches})
                          .or_throw();
        sparse_batch batch;
        plain_rows rows;
        while (const index_t got = reader.next(batch, most).or_throw()) {
          CHECK(got <= most);
          seen.delivered += got;
          for (plain_row& row : to_plain(batch)) rows.push_back(std::move(row));
        }
        CHECK(seen.early == 0);
        CHECK(rows == wanted);
      }
    }
  }
}

TEST_CASE("stream: a bad line, or the limit's bytes of a line too long, are reported before more is read") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  inline_executor here;
  for (const bool too_long : {false, true}) {
    for (const index_t chunk : {1, 64, 1000, 1 << 14}) {
      const std::string good = some_lines(random, 20);
      const std::string text =
          good + (too_long ? std::string(1 << 20, 'x') : "what\n" + some_lines(random, 10'000));
      waiting_stream::facts seen;
      auto reader =
          read_stream(here, libsvm_format{}, "stream", std::make_unique<waiting_stream>(text, random(), seen),
                      {.chunk_bytes = chunk, .longest_line = 1000})
              .or_throw();
      sparse_batch batch;
      for (index_t rows = 20; rows > 0;) {
        const index_t got = reader.next(batch, 1).or_throw();
        REQUIRE(got == 1);
        rows -= got;
        seen.delivered += got;
      }
      const auto fault = reader.next(batch, 100);
      REQUIRE_FALSE(fault);
      CHECK(fault.fault().place().line == 21);
      CHECK(seen.early == 0);
      // Pieces have 300 bytes at most; where the stream is ready, four chunks are filled.
      CHECK(seen.bytes <= static_cast<index_t>(good.size()) + 2 * 1000 + 8 * (chunk + 300));
    }
  }
}

TEST_CASE("no text: files, texts and streams name what they are, and what to do") {
  using namespace std::string_view_literals;
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.tsv").replace(257, 5, "ustar");
  const std::string columns = "PAR1\x15\x04\x15\n";
  const std::pair<std::string, const char*> kinds[] = {
      {std::string("\x1f\x8b\x08\0\0\n"sv), "gzip -dc"},
      {std::string("\x28\xb5\x2f\xfd\0\n"sv), "zstd -dc"},
      {std::string("\x50\x2a\x4d\x18\x04\0\0\0\n"sv), "zstd -dc"},
      {std::string("\xfd\x37zXZ\0\0\n"sv), "xz -dc"},
      {std::string("BZh91AY&SY\x01\n"sv), "bzip2 -dc"},
      {std::string("\x04\x22\x4d\x18\n"sv), "lz4 -dc"},
      {std::string("PK\x03\x04\0\n"sv), "unzip -p"},
      {columns, "Parquet"},
      {std::string("ARROW1\0\0\n"sv), "Arrow"},
      {std::string("FEA1\0\0\n"sv), "Feather"},
      {std::string("\xff\xff\xff\xff\x10\n"sv), "Arrow stream"},
      {std::string("7z\xbc\xaf\x27\x1c\n"sv), "7z x"},
      {std::string("\xff\xfe\x31\0\n\0"sv), "UTF-16"},
      {std::string("\xfe\xff\0\x31\0\n"sv), "UTF-16"},
      {std::string("\xff\xfe\0\0\x31\0\0\0\n\0\0\0"sv), "UTF-32"},
      {std::string("\0\0\xfe\xff\0\0\0\x31\0\0\0\n"sv), "UTF-32"},
      {tar + "\n", "tar -xO"},
  };
  const inline_executor here;
  for (const malformed policy : {malformed::fault, malformed::drop}) {
    const reader_options options{.on_malformed = policy};
    for (const auto& [begin, what] : kinds) {
      CAPTURE(what);
      const std::string text = begin + "1 5:1\n";
      const temporary_file file(text);
      const std::string in_text = all_of(read_text(here, libsvm_format{}, text, options), 10).fault;
      const std::string expected = in_text.substr(in_text.find(": malformed text: is "));
      CHECK(in_text == "<text>" + expected);
      CHECK(expected.find("Fix: ") != std::string::npos);
      CHECK(expected.find(what) != std::string::npos);
      CHECK(all_of(read_files(here, libsvm_format{}, {file.path()}, options), 10).fault ==
            file.path() + expected);
      CHECK(all_of(read_stream(here, libsvm_format{}, "stream", std::make_unique<file_stream>(file.path()),
                               options),
                   10)
                .fault == "stream" + expected);
      CHECK(parse_all(libsvm_format{}, text, policy).fault == in_text);
#if DEEPREC_WITH_ZLIB
      if (what != "gzip -dc"sv) {
        CHECK(all_of(read_stream(here, libsvm_format{}, "stream", std::make_unique<gzip_stream>(file.path()),
                                 options),
                     10)
                  .fault.find(what) != std::string::npos);
      }
#endif
#if DEEPREC_WITH_ZSTD
      if (what != "zstd -dc"sv) {
        CHECK(all_of(read_stream(here, libsvm_format{}, "stream", std::make_unique<zstd_stream>(file.path()),
                                 options),
                     10)
                  .fault.find(what) != std::string::npos);
      }
#endif
    }
  }
  // A text that begins like one of them is a text.
  for (const char* word : {"PAR1", "BZh9", "PK", "ARROW1"}) {
    const outcome got = parse_all(key_value_format{.keys = token_use::hashed}, std::string(word) + ",a\n");
    CHECK(got.rows.size() == 1);
  }
}

TEST_CASE("stream: a source that dies is a fault, after the rows of its whole lines") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  const std::string whole = some_lines(random, 200);
  const stream_outcome wanted = in_memory(libsvm_format{}, whole);
  const std::string text = whole + "1 5:1 6";  // half a line
  thread_pool pool({.threads = 2});
  const status broken(errc::io_error, "the device reported an error");
  for (const index_t chunk : {1, 100, 1 << 20}) {
    const stream_outcome got = all_of(
        read_stream(pool, libsvm_format{}, "tape", std::make_unique<piecewise_stream>(text, random(), broken),
                    {.chunk_bytes = chunk}),
        64);
    CHECK(got.rows == wanted.rows);
    CHECK(got.fault.find("tape") != std::string::npos);
    CHECK(got.fault.find("the device reported an error") != std::string::npos);
  }
}

TEST_CASE("stream: a pipe is read once, and its descriptor is closed") {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  const std::string text = some_lines(random, 5000);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::thread writer([&] {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t put = ::write(ends[1], text.data() + at, text.size() - at);
      if (put <= 0) break;
      at += static_cast<std::size_t>(put);
    }
    ::close(ends[1]);
  });
  inline_executor here;
  const stream_outcome got =
      all_of(read_stream(here, libsvm_format{}, "stream", std::make_unique<file_stream>(ends[0]),
                         {.chunk_bytes = 1000}),
             50);
  writer.join();
  CHECK(got == in_memory(libsvm_format{}, text));
  CHECK(::fcntl(ends[0], F_GETFD) == -1);

  // A pipe that stays open, its writer waiting for what it wrote to be delivered; and one that doesn't wait.
  for (const int flags : {0, O_NONBLOCK}) {
    REQUIRE(::pipe2(ends, flags) == 0);
    thread_pool pool({.threads = 2});
    auto reader = read_stream(pool, libsvm_format{}, "stream", std::make_unique<file_stream>(ends[0]),
                              {.batches = stream_batches::arrived})
                      .or_throw();
    sparse_batch batch;
    for (int round = 0; round < 3; ++round) {
      const std::string part = some_lines(random, 100);
      REQUIRE(::write(ends[1], part.data(), part.size()) == static_cast<ssize_t>(part.size()));
      for (index_t rows = 0; rows < 100;) {
        const index_t more = reader.next(batch, 4096).or_throw();
        REQUIRE(more > 0);
        rows += more;
      }
    }
    std::thread later([&] {  // the reader waits first, if the processor is given to it
      std::this_thread::yield();
      CHECK(::write(ends[1], "1 5:1\n", 6) == 6);
      ::close(ends[1]);
    });
    CHECK(reader.next(batch, 4096).or_throw() == 1);
    CHECK(reader.next(batch, 4096).or_throw() == 0);
    later.join();
  }

  file_stream once(::dup(0));
  CHECK(once.open().ok());
  CHECK(once.open().code() == errc::io_error);
  file_stream absent("/no/such/file");
  CHECK(absent.open().message().find("no such file") != std::string::npos);
  file_stream closed(1 << 20);  // no open descriptor
  char one = 0;
  index_t none = 0;
  REQUIRE(closed.open().ok());
  CHECK(closed.read(&one, 1, none).message().find("the descriptor is not open") != std::string::npos);
  file_stream folder("/tmp");
  char byte = 0;
  index_t count = 0;
  REQUIRE(folder.open().ok());
  CHECK(folder.read(&byte, 1, count).message().find("is a directory") != std::string::npos);
}

#if DEEPREC_WITH_ZLIB || DEEPREC_WITH_ZSTD
namespace {

#  if DEEPREC_WITH_ZLIB
struct by_gzip {
  using stream = gzip_stream;
  static std::string compress(const std::string& text) {
    z_stream engine{};
    REQUIRE(::deflateInit2(&engine, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    std::string packed(::deflateBound(&engine, text.size()) + 64, '\0');
    engine.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    engine.avail_in = static_cast<uInt>(text.size());
    engine.next_out = reinterpret_cast<Bytef*>(packed.data());
    engine.avail_out = static_cast<uInt>(packed.size());
    REQUIRE(::deflate(&engine, Z_FINISH) == Z_STREAM_END);
    packed.resize(engine.total_out);
    ::deflateEnd(&engine);
    return packed;
  }
  /// Compresses in parts, each of which can be read when it was written.
  class flushing {
   public:
    flushing() { REQUIRE(::deflateInit2(&engine_, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK); }
    flushing(const flushing&) = delete;
    flushing& operator=(const flushing&) = delete;
    ~flushing() { ::deflateEnd(&engine_); }
    std::string next(const std::string& text) {
      std::string packed(text.size() + 1000, '\0');
      engine_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
      engine_.avail_in = static_cast<uInt>(text.size());
      engine_.next_out = reinterpret_cast<Bytef*>(packed.data());
      engine_.avail_out = static_cast<uInt>(packed.size());
      REQUIRE(::deflate(&engine_, Z_SYNC_FLUSH) == Z_OK);
      packed.resize(packed.size() - engine_.avail_out);
      return packed;
    }

   private:
    z_stream engine_{};
  };
};
#  endif
#  if DEEPREC_WITH_ZSTD
struct by_zstd {
  using stream = zstd_stream;
  static std::string compress(const std::string& text) {
    const std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> engine(::ZSTD_createCCtx(),
                                                                         ::ZSTD_freeCCtx);
    ::ZSTD_CCtx_setParameter(engine.get(), ZSTD_c_checksumFlag, 1);
    std::string packed(::ZSTD_compressBound(text.size()), '\0');
    const std::size_t n =
        ::ZSTD_compress2(engine.get(), packed.data(), packed.size(), text.data(), text.size());
    REQUIRE(!::ZSTD_isError(n));
    packed.resize(n);
    return packed;
  }
  class flushing {
   public:
    std::string next(const std::string& text) {
      std::string packed(::ZSTD_compressBound(text.size()) + 1000, '\0');
      ZSTD_inBuffer in{text.data(), text.size(), 0};
      ZSTD_outBuffer out{packed.data(), packed.size(), 0};
      REQUIRE(::ZSTD_compressStream2(engine_.get(), &out, &in, ZSTD_e_flush) == 0);
      packed.resize(out.pos);
      return packed;
    }

   private:
    std::unique_ptr<ZSTD_CCtx, std::size_t (*)(ZSTD_CCtx*)> engine_{::ZSTD_createCCtx(), ::ZSTD_freeCCtx};
  };
};
#  endif

template <class By>
void compressed_text() {
  std::mt19937 random(static_cast<std::uint32_t>(seed()));
  const std::string text = some_lines(random, 20000), more = some_lines(random, 300);
  const std::string packed = By::compress(text);
  REQUIRE(packed.size() > 40000);
  thread_pool pool({.threads = 2});
  const auto read = [&](std::string_view bytes) {
    const temporary_file file(bytes);
    return all_of(
        read_stream(pool, libsvm_format{}, "stream", std::make_unique<typename By::stream>(file.path())),
        1000);
  };
  const stream_outcome wanted = in_memory(libsvm_format{}, text);
  CHECK(read(packed) == wanted);
  CHECK(read(packed + By::compress(more)) == in_memory(libsvm_format{}, text + more));
  CHECK(read(By::compress("")) == stream_outcome{});

  for (int round = 0; round < 30; ++round) {  // cut anywhere
    const std::size_t length =
        round < 10 ? static_cast<std::size_t>(round) + 1 : 1 + random() % (packed.size() - 1);
    const stream_outcome got = read(std::string_view(packed).substr(0, length));
    CAPTURE(length);
    CHECK(got.fault.find("the compressed text is truncated") != std::string::npos);
    REQUIRE(got.rows.size() <= wanted.rows.size());
    CHECK(std::equal(got.rows.begin(), got.rows.end(), wanted.rows.begin()));
  }
  for (int round = 0; round < 30; ++round) {  // one bit is wrong; header fields may not matter
    std::string wrong = packed;
    wrong[100 + random() % (packed.size() - 100)] ^= static_cast<char>(1U << random() % 8);
    const stream_outcome got = read(wrong);
    CHECK(!got.fault.empty());
  }
  CHECK(read(text).fault.find("the compressed text is corrupt") != std::string::npos);
  CHECK(read(packed + "more").fault.find("the compressed text is") != std::string::npos);

  // Parts, empty ones among them, with padding between and behind; other bytes behind are named.
  const std::string zeros(70'000, '\0');
  CHECK(read(By::compress("") + packed + zeros + By::compress("") + By::compress(more) + zeros) ==
        in_memory(libsvm_format{}, text + more));
  for (const char* end : {"\n", "\r\n", "\n\n"}) CHECK(read(packed + end) == wanted);
  const stream_outcome followed = read(packed + "\nmore of it");
  CHECK(followed.rows == wanted.rows);
  CHECK(followed.fault.find("the compressed text is followed by other bytes") != std::string::npos);

  const temporary_file file(packed);  // again from the begin
  typename By::stream stream(file.path());
  std::string first, second;
  for (std::string* to : {&first, &second}) {
    REQUIRE(stream.open().ok());
    std::vector<char> piece(777);
    for (index_t got = 0;;) {
      REQUIRE(stream.read(piece.data(), 777, got).ok());
      if (got == 0) break;
      to->append(piece.data(), static_cast<std::size_t>(got));
      if (to == &first && to->size() > 100000) break;  // in the middle
    }
  }
  CHECK(second == text);
  typename By::stream absent("/no/such/file");
  CHECK(absent.open().code() == errc::io_error);

  // A pipe that stays open: what was flushed into it is read, whatever room the reader has for it.
  const std::string fifo = file.path() + ".pipe";
  for (const index_t room : {1, 5, 100, 1 << 20}) {
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const int both = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(both >= 0);
    typename By::stream live(fifo);
    REQUIRE(live.open().ok());
    typename By::flushing writer;
    std::vector<char> piece(static_cast<std::size_t>(room));
    for (int round = 0; round < 3; ++round) {
      const std::string part = some_lines(random, 30) + std::string(1000, 'x') + "\n",
                        bytes = writer.next(part);
      REQUIRE(::write(both, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
      std::string arrived;
      while (arrived.size() < part.size()) {  // hangs where the rest is withheld
        index_t got = 0;
        REQUIRE(live.read(piece.data(), room, got).ok());
        arrived.append(piece.data(), static_cast<std::size_t>(got));
      }
      CHECK(arrived == part);
    }
    ::close(both);
    std::remove(fifo.c_str());
  }
}

}  // namespace
#endif

#if DEEPREC_WITH_ZLIB
TEST_CASE("stream: gzip gives the rows of its text; truncated and corrupt files are faults") {
  compressed_text<by_gzip>();
}
#endif
#if DEEPREC_WITH_ZSTD
TEST_CASE("stream: zstd gives the rows of its text; truncated and corrupt files are faults") {
  compressed_text<by_zstd>();
}
TEST_CASE("stream: a zstd file may begin with a frame that is skipped, and have more of them") {
  using namespace std::string_view_literals;
  const std::string skipped(std::string_view("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12));
  const temporary_file file(skipped + by_zstd::compress("1 5:1\n") + skipped + by_zstd::compress("0 6:1\n") +
                            skipped);
  inline_executor here;
  CHECK(all_of(read_stream(here, libsvm_format{}, "stream", std::make_unique<zstd_stream>(file.path())),
               10) == in_memory(libsvm_format{}, "1 5:1\n0 6:1\n"));
}
#endif
