#include "data/criteo_oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/limited_resource.hpp>

#include "support/children.hpp"
#include "support/sanitizers.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

std::atomic<long> allocations{0};
std::atomic<long> until_refusal{0};  // the allocation that is refused; 0: none

bool refused() { return until_refusal > 0 && --until_refusal == 0; }

}  // namespace

// Counts what goes through operator new in this executable, and overwrites what is freed; sanitizers bring an
// operator new of their own. Not inlined: g++ would see free() called on what new returned, and warn.
#if !DEEPREC_TEST_SANITIZED
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (refused()) throw std::bad_alloc();
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  ++allocations;
  if (refused()) throw std::bad_alloc();
  const auto align = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(align, (bytes + align - 1) / align * align)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t bytes) noexcept {
  if (p != nullptr) ::explicit_bzero(p, bytes);  // a compiler that knew of free() would leave out memset()
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t bytes, std::align_val_t) noexcept {
  if (p != nullptr) ::explicit_bzero(p, bytes);
  std::free(p);
}
#endif

namespace {

/// An executor that runs the pieces backwards, each under another worker number.
struct backwards_executor {
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    for (index_t begin = (n - 1) / grain * grain; begin >= 0; begin -= grain) {
      body(begin, std::min(n, begin + grain), static_cast<int>((begin / grain) % 3));
    }
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 3; }
};

criteo_format small_tables() { return {.rows = criteo_format::same_size(1000), .delimiter = '\t'}; }

template <class Executor, class Format>
outcome read_file(Executor& executor, const Format& format, const std::vector<std::string>& paths,
                  index_t max_rows, const reader_options& options = {}) {
  auto reader = read_files(executor, format, paths, options);
  if (!reader) {
    outcome out;
    out.fault = reader.fault().message();
    return out;
  }
  return read_all(reader.value(), max_rows);
}

template <class Format>
outcome read_memory(const Format& format, std::string_view text, index_t max_rows,
                    const reader_options& options = {}) {
  const inline_executor executor;
  return read_all(read_text(executor, format, text, options).value(), max_rows);
}

/// A format that forgets the first line of what it is given: the mistake of a reader that loses the
/// line on a chunk's border.
struct forgetful_format : criteo_format {
  status parse(const layout& how, std::string_view text, sparse_batch& batch, line_log& log) const {
    const std::size_t end = text.find('\n');
    if (end != std::string_view::npos && end + 1 < text.size()) text.remove_prefix(end + 1);
    return criteo_format::parse(how, text, batch, log);
  }
};

}  // namespace

TEST_CASE("reader: chunks of every size give the rows of the whole text") {
  dice die(11);
  const std::string text = random_criteo_text(die, 12);
  const outcome whole = parse_all(small_tables(), text);
  REQUIRE(whole.rows.size() == 12);
  const temporary_file file(text);
  const inline_executor executor;
  index_t different = 0;
  for (index_t chunk = 1; chunk <= static_cast<index_t>(text.size()) + 1; ++chunk) {
    const reader_options options{.chunk_bytes = chunk, .chunks_in_flight = 1 + chunk % 5};
    different += read_memory(small_tables(), text, 5, options).rows != whole.rows;
    if (chunk < 700 || chunk % 7 == 0) {
      different += read_file(executor, small_tables(), {file.path()}, 5, options).rows != whole.rows;
    }
  }
  CHECK(different == 0);
  forgetful_format wrong;
  static_cast<criteo_format&>(wrong) = small_tables();
  CHECK(read_memory(wrong, text, 5, {.chunk_bytes = 600}).rows != whole.rows);
}

TEST_CASE("reader: the same batches and faults with any number of threads") {
  dice die(12);
  thread_pool one(1);
  thread_pool two(2);
  thread_pool three(3);
  const inline_executor here;
  const backwards_executor backwards;
  for (int round = 0; round < 12; ++round) {
    std::string text = random_criteo_text(die, 400);
    if (round % 2 == 1) text = damaged(die, text);
    const temporary_file file(text);
    for (const malformed policy : {malformed::fault, malformed::drop}) {
      const reader_options options{.on_malformed = policy, .chunk_bytes = 1 + die.below(20000)};
      const index_t rows = 1 + die.below(300);
      const outcome expected = read_file(here, small_tables(), {file.path()}, rows, options);
      CHECK(expected.sound);
      CHECK(read_file(one, small_tables(), {file.path()}, rows, options) == expected);
      CHECK(read_file(two, small_tables(), {file.path()}, rows, options) == expected);
      CHECK(read_file(three, small_tables(), {file.path()}, rows, options) == expected);
      CHECK(read_file(backwards, small_tables(), {file.path()}, rows, options) == expected);
      CHECK(read_memory(small_tables(), text, rows, options).rows == expected.rows);

      const oracle_answer truth = criteo_oracle(text, '\t', small_tables());
      if (policy == malformed::drop) {
        CHECK(expected.rows == truth.rows);
        CHECK(expected.skipped == static_cast<index_t>(truth.bad_lines.size()));
      }
      if (!truth.bad_lines.empty()) {
        const std::string place = file.path() + ":" + std::to_string(truth.bad_lines[0]) + ":";
        const std::string& said = policy == malformed::drop ? expected.first_skipped : expected.fault;
        CHECK(said.substr(0, place.size()) == place);
      }
    }
  }
}

TEST_CASE("reader: a batch has the rows asked for, the last one the rest") {
  dice die(13);
  const std::string text = random_criteo_text(die, 100);
  CHECK(read_memory(small_tables(), text, 30).sizes == std::vector<index_t>{30, 30, 30, 10});
  CHECK(read_memory(small_tables(), text, 100).sizes == std::vector<index_t>{100});
  CHECK(read_memory(small_tables(), text, index_t{1} << 62).sizes == std::vector<index_t>{100});
  CHECK(read_memory(small_tables(), text, 0).fault.find("max_rows") != std::string::npos);
}

TEST_CASE("reader: rows before a bad line are delivered, then the fault, again and again") {
  dice die(14);
  std::string text;
  for (int i = 0; i < 25; ++i) text += random_criteo_line(die) + "\n";
  text += "rubbish\n";
  for (int i = 0; i < 25; ++i) text += random_criteo_line(die) + "\n";
  const inline_executor executor;
  auto reader = read_text(executor, small_tables(), text, {.chunk_bytes = 1000}).or_throw();
  sparse_batch batch;
  CHECK(reader.next(batch, 20).or_throw() == 20);
  CHECK(reader.next(batch, 20).or_throw() == 5);
  for (int again = 0; again < 3; ++again) {
    const auto fault = reader.next(batch, 20);
    REQUIRE_FALSE(fault.ok());
    CHECK(fault.fault().code() == errc::parse_error);
    CHECK(fault.fault().place().line == 26);
    CHECK(fault.fault().place().column == 8);
    CHECK(batch.rows() == 0);
  }
  CHECK(reader.rows_read() == 25);
}

TEST_CASE("reader: files follow one another, with lines counted and headers skipped in each") {
  dice die(15);
  std::string names = "label";
  for (int i = 0; i < 39; ++i) names += "\tc";
  const temporary_file first(names + "\n" + random_criteo_text(die, 30));
  const temporary_file empty("");
  const temporary_file second(random_criteo_text(die, 3));
  const temporary_file third(names + "\n" + random_criteo_line(die) + "\n\nrubbish\n" +
                             random_criteo_line(die));
  const inline_executor executor;
  std::vector<std::string> paths{first.path(), second.path(), third.path()};
  paths.insert(paths.begin() + 1, 50, empty.path());
  paths.insert(paths.begin(), 50, empty.path());
  const index_t open_before = open_descriptors();
  for (const index_t chunk : {index_t{100}, index_t{1000}, index_t{1} << 18}) {
    const outcome stopped = read_file(executor, small_tables(), paths, 7, {.chunk_bytes = chunk});
    CHECK(stopped.rows.size() == 34);
    CHECK(stopped.fault == third.path() + ":4:8: malformed text: wrong number of fields (is 1, must be 40)");
    const outcome skipped = read_file(executor, small_tables(), paths, 7,
                                      {.on_malformed = malformed::drop, .chunk_bytes = chunk});
    CHECK(skipped.rows.size() == 35);
    CHECK(skipped.skipped == 1);
    CHECK(skipped.fault.empty());
    for (const malformed policy : {malformed::fault, malformed::drop}) {
      const reader_options options{.on_malformed = policy, .chunk_bytes = chunk, .chunks_in_flight = 2};
      auto reader = read_files(executor, small_tables(), paths, options).or_throw();
      CHECK(open_descriptors() == open_before);
      sparse_batch batch;
      result<index_t> got = 1;
      while (got && got.value() > 0) {
        got = reader.next(batch, 7);
        CHECK(open_descriptors() <= open_before + 3);
      }
      CHECK(got.ok() == (policy == malformed::drop));
      CHECK(open_descriptors() == open_before);  // at the end and after a fault
    }
  }
}

TEST_CASE("reader: what isn't a readable file is a fault") {
  const inline_executor executor;
  const auto fault = [&](const std::string& path) {
    return read_file(executor, small_tables(), {path}, 10).fault;
  };
  CHECK(fault("/nowhere/to/be/found") == "/nowhere/to/be/found: input or output error: no such file");
  CHECK(fault("/tmp") == "/tmp: input or output error: is a directory");
  CHECK(fault("/dev/null") == "/dev/null: input or output error: is not a regular file");
  const temporary_file empty("");
  CHECK(fault(empty.path()).empty());
  CHECK(read_file(executor, small_tables(), {}, 10).rows.empty());
}

TEST_CASE("reader: a file that vanishes or becomes shorter is a fault, not a crash") {
  dice die(16);
  const std::string text = random_criteo_text(die, 2000);
  const inline_executor executor;
  sparse_batch batch;
  {
    const temporary_file file(text);
    auto reader = read_files(executor, small_tables(), {file.path()}, {.chunk_bytes = 4096}).or_throw();
    CHECK(reader.next(batch, 50).or_throw() == 50);
    file.write(text.substr(0, 5000));
    index_t rows = 50;
    std::string fault;
    for (;;) {
      const auto got = reader.next(batch, 50);
      if (!got) {
        fault = got.fault().message();
        break;
      }
      REQUIRE(got.value() > 0);
      rows += got.value();
    }
    CHECK(fault == file.path() + ": input or output error: the file became shorter while it was read");
    CHECK(rows < 2000);
  }
  for (const std::size_t cut : {text.size() - 3, text.size() / 2}) {  // a line that was cut is no bad line
    const temporary_file file(text);
    auto reader = read_files(executor, small_tables(), {file.path()}, {.chunk_bytes = 4096}).or_throw();
    file.write(text.substr(0, cut));
    CHECK(read_all(reader, 50).fault ==
          file.path() + ": input or output error: the file became shorter while it was read");
  }
  {
    const temporary_file first(text);
    auto second = std::make_unique<temporary_file>(text);
    auto reader = read_files(executor, small_tables(), {first.path(), second->path()}).or_throw();
    const std::string path = second->path();
    second.reset();
    CHECK(reader.next(batch, 5000).or_throw() == 2000);
    const auto got = reader.next(batch, 5000);
    REQUIRE_FALSE(got.ok());
    CHECK(got.fault().message() == path + ": input or output error: no such file");
  }
}

TEST_CASE("reader: a line of a megabyte is read, or refused when it is above the limit") {
  dice die(17);
  const std::string good = random_criteo_line(die) + "\n";
  std::string cells = "1";
  for (int i = 0; i < 13; ++i) cells += "\t1";
  cells += '\t';
  cells += std::string(1 << 20, 'x');
  for (int i = 0; i < 25; ++i) cells += "\tab";
  const std::string text = good + cells + "\n" + good + good;
  const temporary_file file(text);
  const inline_executor executor;
  criteo_format format = small_tables();
  format.longest_token = 1 << 21;
  for (const index_t chunk : {index_t{512}, index_t{1} << 16, index_t{1} << 18}) {
    reader_options options{.chunk_bytes = chunk};
    CHECK(read_file(executor, format, {file.path()}, 10, options).rows.size() == 4);
    options.longest_line = 1 << 19;
    const std::string message =
        file.path() + ":2: malformed text: the line is too long (must be at most 524288)";
    CHECK(read_file(executor, format, {file.path()}, 10, options).fault == message);
    CHECK(read_memory(format, text, 10, options).fault == "<text>" + message.substr(file.path().size()));
    options.on_malformed = malformed::drop;
    const outcome skipped = read_file(executor, format, {file.path()}, 10, options);
    CHECK(skipped.rows.size() == 3);
    CHECK(skipped.skipped == 1);
    CHECK(skipped.first_skipped == message);
    CHECK(read_file(executor, small_tables(), {file.path()}, 10).fault ==
          file.path() + ":2:29: malformed text: the token is too long");
  }
  const temporary_file endless(std::string(3 << 20, 'y'));
  limited_resource memory(200'000);  // a file's first line, then a chunk: no more than the limit of either
  context little(executor);
  little.memory = &memory;
  const reader_options small_chunks{.chunk_bytes = 4096, .chunks_in_flight = 1, .longest_line = 1 << 16};
  CHECK(read_file(little, libsvm_format{}, {endless.path()}, 10, small_chunks).fault ==
        endless.path() + ":1: malformed text: the line is too long (must be at most 65536)");
  limited_resource nothing(1000);
  little.memory = &nothing;
  CHECK(read_file(little, libsvm_format{}, {endless.path()}, 10, small_chunks).fault ==
        endless.path() +
            ": out of memory: the memory resource must provide room for the first line (it refused)");
  CHECK(read_file(executor, small_tables(), {endless.path()}, 10, {.longest_line = 1 << 16}).fault ==
        endless.path() + ":1: malformed text: the line is too long (must be at most 65536)");
}

TEST_CASE("reader: of text in memory a chunk looks at its own and a line behind it, once") {
  dice die(23);
  for (const index_t longest : {index_t{1}, index_t{300}, index_t{5000}}) {
    for (const index_t chunk : {index_t{4096}, index_t{5000}, index_t{16384}}) {
      std::string text;
      while (text.size() < 150'000) {
        const index_t length = die.one_in(9) ? die.below(60'000) : die.below(2 * longest);
        text +=
            (die.one_in(3) ? "1 1:0" : "1 1:0.") + std::string(static_cast<std::size_t>(length), '0') + "\n";
      }
      const reader_options options{.on_malformed = malformed::drop,
                                   .chunk_bytes = chunk,
                                   .chunks_in_flight = 1,
                                   .longest_line = longest};
      const outcome expected = read_memory(libsvm_format{}, text, 20, options);
      const int code = in_child([&] {
        const due_text due(text, chunk, longest);
        const due_executor executor{&due};
        const outcome got = read_all(read_text(executor, libsvm_format{}, due.view(), options).value(), 20);
        const bool all = due.chunks() == (static_cast<index_t>(text.size()) + chunk - 1) / chunk;
        return got == expected && all ? 0 : 1;
      });
      INFO("longest line ", longest, ", chunk ", chunk);
      CHECK(code == 0);
      CHECK(expected.skipped > 0);
    }
  }
}

TEST_CASE("reader: random bytes in a file give a fault or skipped lines, the same in any chunks") {
  dice die(18);
  for (int round = 0; round < 20; ++round) {
    std::string text(static_cast<std::size_t>(die.below(20000)), '\0');
    for (char& c : text) c = static_cast<char>(die.bits());
    const outcome whole = read_memory(small_tables(), text, 100, {.on_malformed = malformed::drop});
    const temporary_file file(text);
    const inline_executor executor;
    const outcome pieces = read_file(executor, small_tables(), {file.path()}, 100,
                                     {.on_malformed = malformed::drop, .chunk_bytes = 1 + die.below(3000)});
    CHECK(whole.sound);
    CHECK(pieces.sound);
    CHECK(pieces.skipped == whole.skipped);
    CHECK(pieces.rows == whole.rows);
  }
}

TEST_CASE("reader: jagged formats survive chunk borders as well") {
  dice die(19);
  std::string pairs;
  std::string signs;
  for (int r = 0; r < 60; ++r) {
    pairs += std::to_string(r);
    signs += std::to_string(r % 2) + ":1";
    for (int s = 0; s < 3; ++s) {
      pairs += '\t';
      for (index_t k = die.below(4); k > 0; --k) {
        pairs +=
            std::to_string(die.below(1000000)) + ":" + std::to_string(die.below(100)) + (k > 1 ? "," : "");
        signs += ' ';
        signs += std::to_string(die.bits()) + ":" + std::to_string(2 + s);
      }
    }
    pairs += '\n';
    signs += '\n';
  }
  const key_value_format kv{.features = 3, .label_field = 0};
  const feasign_format feasign(feasign_format::slots(2, 3));
  const outcome kv_whole = parse_all(kv, pairs);
  const outcome feasign_whole = parse_all(feasign, signs);
  REQUIRE(kv_whole.rows.size() == 60);
  REQUIRE(feasign_whole.rows.size() == 60);
  thread_pool pool(3);
  const temporary_file pair_file(pairs);
  const temporary_file sign_file(signs);
  for (index_t chunk = 1; chunk < 1500; chunk += 1 + chunk / 8) {
    for (const index_t rows : {index_t{1}, index_t{7}, index_t{1000}}) {
      const reader_options options{.chunk_bytes = chunk};
      const outcome a = read_file(pool, kv, {pair_file.path()}, rows, options);
      const outcome b = read_file(pool, feasign, {sign_file.path()}, rows, options);
      CHECK(a.sound);
      CHECK(b.sound);
      CHECK(a.rows == kv_whole.rows);
      CHECK(b.rows == feasign_whole.rows);
    }
  }
}

TEST_CASE("reader: without memory there is a fault, and no half batch") {
  dice die(20);
  const std::string text = random_criteo_text(die, 300);
  const inline_executor executor;
  index_t failed = 0;
  for (std::size_t bytes = 0; bytes < 1'200'000; bytes += 17'000) {
    limited_resource memory(bytes);
    context ctx(executor);
    ctx.memory = &memory;
    auto reader =
        read_text(ctx, small_tables(), text, {.chunk_bytes = 30000, .chunks_in_flight = 2}).or_throw();
    const outcome got = read_all(reader, 100);
    CHECK(got.sound);
    if (got.fault.empty()) {
      CHECK(got.rows.size() == 300);
    } else {
      ++failed;
      CHECK(got.fault ==
            "<text>: out of memory: the memory resource must provide room for rows (it refused)");
    }
    sparse_batch batch(&memory);
    const auto parsed = parse_text(small_tables(), text, batch);
    if (!parsed) {
      CHECK(parsed.fault().code() == errc::out_of_memory);
      CHECK(batch.rows() == 0);
    }
  }
  CHECK(failed > 3);
}

#if !DEEPREC_TEST_SANITIZED
namespace {

/// Makes a reader and reads everything, with the n-th allocation refused and what was refused called again.
/// Returns whether there were so many.
template <class Make>
bool reads_all_without(long n, const outcome& expected, index_t max_rows, Make&& make) {
  until_refusal = n;
  auto reader = make();
  const bool made_again = !reader;
  if (made_again) {
    CHECK(reader.fault().code() == errc::out_of_memory);
    reader = make();
  }
  REQUIRE(reader);
  outcome got;
  sparse_batch batch;
  bool fired = false;
  int refusals = made_again ? 1 : 0;
  for (;;) {
    const auto rows = reader.value().next(batch, max_rows);
    if (!rows && rows.code() == errc::out_of_memory) {
      CHECK(batch.rows() == 0);
      ++refusals;
      continue;
    }
    const long armed = until_refusal.exchange(0);  // of the reader, not of this loop
    if (!rows) got.fault = rows.fault().message();
    got.sound = got.sound && is_sound(batch);
    for (plain_row& row : to_plain(batch)) got.rows.push_back(std::move(row));
    fired = armed == 0;
    if (!rows || rows.value() == 0) break;
    until_refusal = armed;
  }
  CHECK(refusals <= 1);
  CHECK(got.sound);
  CHECK(got.rows == expected.rows);
  const std::string fault = got.fault;
  // A fault whose name could not be stored comes without it.
  CHECK((fault == expected.fault || (!fault.empty() && expected.fault.ends_with(fault))));
  CHECK(reader.value().skipped_lines() == expected.skipped);
  const auto first = reader.value().first_skipped();
  CHECK((first.empty() ? std::string() : first[0].message()) == expected.first_skipped);
  return fired;
}

}  // namespace

TEST_CASE("reader: any allocation may be refused once: the call after that goes on, and no row is lost") {
  dice die(24);
  const inline_executor here;
  const std::string good = random_criteo_text(die, 60) + "\n";
  std::string jagged;
  for (int r = 0; r < 60; ++r) jagged += "1 3:0.5 " + std::to_string(1 + r) + ":1\n";
  const auto check = [&](const auto& format, const std::string& rows) {
    for (const bool bad : {false, true}) {
      const std::string text = rows + (bad ? "rubbish\n" : "") + rows;
      const temporary_file file(text), empty("");
      for (const malformed policy : {malformed::fault, malformed::drop}) {
        const reader_options options{.on_malformed = policy, .chunk_bytes = 3000, .chunks_in_flight = 2};
        const auto make_text = [&] { return read_text(here, format, text, options); };
        const auto make_files = [&] {
          const long armed = until_refusal.exchange(0);
          std::vector<std::string> paths{empty.path(), file.path()};
          until_refusal = armed;
          return read_files(here, format, std::move(paths), options);
        };
        const auto make_stream = [&] {
          const long armed = until_refusal.exchange(0);
          auto stream = std::make_unique<file_stream>(file.path());
          std::string name = file.path();
          until_refusal = armed;
          return read_stream(here, format, std::move(name), std::move(stream), options);
        };
        const auto refuse_each = [&](const auto& make) {
          const outcome expected = read_all(make().or_throw(), 50);
          long n = 1;
          while (reads_all_without(n, expected, 50, make)) ++n;
          CHECK(n > 12);
        };
        refuse_each(make_text);
        refuse_each(make_files);
        refuse_each(make_stream);
      }
      for (long n = 1;; ++n) {
        sparse_batch batch;
        until_refusal = n;
        const auto parsed = parse_text(format, text, batch, {.on_malformed = malformed::drop});
        const bool was_refused = until_refusal.exchange(0) == 0;
        if (!was_refused) break;
        CHECK(parsed.code() == errc::out_of_memory);
        CHECK(batch.rows() == 0);
        CHECK(parse_text(format, text, batch, {.on_malformed = malformed::drop}).or_throw().rows == 120);
      }
    }
  };
  check(small_tables(), good);
  check(libsvm_format{}, jagged);
}

namespace {

struct throwing_executor {
  mutable int calls = 0;
  int period = 0;
  template <class Body>
  void parallel_for(index_t n, index_t, Body&& body) const {
    body(0, (n + 1) / 2, 0);
    if (++calls % period == 0) throw 7;
    if (n > 1) body((n + 1) / 2, n, 0);
  }
  [[nodiscard]] static constexpr int concurrency() noexcept { return 1; }
};

}  // namespace

TEST_CASE("reader: an executor that throws loses no row") {
  std::string text;
  for (int r = 0; r < 300; ++r) text += "1 3:0.5 " + std::to_string(1 + r) + ":1\n";
  const outcome expected = read_memory(libsvm_format{}, text, 70);
  for (const int period : {2, 3, 5}) {
    const throwing_executor executor{0, period};
    auto reader =
        read_text(executor, libsvm_format{}, text, {.chunk_bytes = 500, .chunks_in_flight = 3}).or_throw();
    sparse_batch batch;
    plain_rows rows;
    int thrown = 0;
    for (;;) {
      try {
        const index_t got = reader.next(batch, 70).or_throw();
        if (got == 0) break;
        CHECK(is_sound(batch));
        for (plain_row& row : to_plain(batch)) rows.push_back(std::move(row));
      } catch (int) {
        ++thrown;
      }
    }
    CHECK(thrown > 0);
    CHECK(rows == expected.rows);
  }
}
#endif

TEST_CASE("reader: once batch and chunks have grown, reading allocates nothing") {
  dice die(21);
  std::string text;
  for (int i = 0; i < 40; ++i) text += random_criteo_line(die) + "\n";
  std::string many;
  for (int i = 0; i < 400; ++i) many += text;
  const temporary_file file(many);
  thread_pool pool(2);
  auto reader = read_files(pool, small_tables(), {file.path()}, {.chunk_bytes = 1 << 16}).or_throw();
  sparse_batch batch;
  REQUIRE(reader.next(batch, 2048).or_throw() == 2048);
  REQUIRE(reader.next(batch, 2048).or_throw() == 2048);
  REQUIRE(reader.next(batch, 2048).or_throw() == 2048);
  REQUIRE(reader.next(batch, 2048).or_throw() == 2048);
  const long before = allocations;
  for (int i = 0; i < 3; ++i) (void)reader.next(batch, 2048);
  CHECK(allocations == before);
  while (reader.next(batch, 2048).or_throw() > 0) {
  }
  CHECK(reader.rows_read() == 16000);
}

TEST_CASE("reader: n03: a reader takes the place of another one, whatever that still holds") {
  CHECK(in_child([] {
          std::string text;
          for (int i = 0; i < 1000; ++i) text += "1 3:0.5 17:1\n";
          const temporary_file file(text);
          const inline_executor here;
          const reader_options options{.chunk_bytes = 100, .chunks_in_flight = 2};
          const auto make = [&](int kind) {
            if (kind == 0) return read_text(here, libsvm_format{}, text, options).or_throw();
            if (kind == 1) return read_files(here, libsvm_format{}, {file.path()}, options).or_throw();
            return read_stream(here, libsvm_format{}, "stream", std::make_unique<file_stream>(file.path()),
                               options)
                .or_throw();
          };
          sparse_batch batch;
          for (int kind = 0; kind < 3; ++kind) {
            for (int next = 0; next < 3; ++next) {
              auto reader = make(kind);
              if (reader.next(batch, 10).or_throw() != 10) return 1;
              reader = make(next);
              auto moved = std::move(reader);
              if (read_all(moved, 300).rows.size() != 1000) return 2;
            }
          }
          return 0;
        }) == 0);
}

TEST_CASE("reader: a batch may change its format") {
  sparse_batch batch;
  const key_value_format kv{.features = 2};
  CHECK(parse_text(kv, "1,2\t3:0.5\n", batch).or_throw().rows == 1);
  CHECK(batch.feature(0).id_count() == 2);
  CHECK(batch.feature(1).weights()[0] == 0.5F);
  dice die(22);
  CHECK(parse_text(small_tables(), random_criteo_text(die, 5), batch).or_throw().rows == 5);
  CHECK(batch.feature(25).bags() == 5);
  CHECK(batch.feature(0).weights() == nullptr);
  CHECK(parse_text(kv, "4\t\n", batch).or_throw().rows == 1);
  CHECK(batch.feature_count() == 2);
  CHECK(batch.feature(0).ids()[0] == 4);
  CHECK(batch.feature(1).id_count() == 0);
  CHECK(is_sound(batch));
}

TEST_CASE("reader: the real files, in parallel, hold the rows that they hold in memory") {
  const std::string path = real_file_path("criteo/criteo_kaggle_merged_24k.tsv");
  if (path.empty()) return;
  const criteo_format format{.rows = criteo_format::same_size(1 << 20)};
  const outcome whole = parse_all(format, content_of(path));
  REQUIRE(whole.rows.size() == 24583);
  thread_pool two(2);
  const outcome read = read_file(two, format, {path}, 4096);
  CHECK(read.sound);
  CHECK(read.rows == whole.rows);
  CHECK(read.sizes.size() == 7);
}
