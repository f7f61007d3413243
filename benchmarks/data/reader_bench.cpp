// Text of Criteo's logs to sparse batches: label and numbers parsed, tokens hashed and bucketed.
//
//   reader/criteo/threads:1   bytes_per_second of text on one core; pread_bytes_per_second and
//                             memcpy_bytes_per_second: the same bytes, only moved (the floor)
//   reader/criteo/threads:2   scaling: two threads over one, pair by pair; machine_scaling: the same for pure
//                             arithmetic, the ceiling of this moment
//   reader/csv                of_criteo: bytes per second of the same rows as CSV by a schema over the Criteo
//                             reader's, the slower of every field in quotes and none; over_pandas,
//                             over_arrow: times of pandas' C engine and of Arrow's CSV reader over ours, on
//                             one core, where Python (DEEPREC_PYTHON) has them. Those split and convert, ours
//                             hashes too
//   reader/stream/latency     milliseconds from the arrival of the last of 1,000 rows in a pipe that stays
//                             open until next() has delivered all of them
//
// cpu_bytes_per_second counts processor time instead: what one core does where others use it too.
// Input: the real 24,583 rows repeated to more than 200 MB in a temporary file (page cache warm),
// or rows generated in their shape where the data folder is absent. Before timing, every row is
// compared with a parser made of split() and strtof().

#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <semaphore>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/criteo_text.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace deeprec;
using clock_type = std::chrono::steady_clock;

constexpr index_t batch_rows = 8192;
constexpr std::size_t wanted_bytes = 200'000'000;

criteo_format tables() {
  criteo_format format;  // the sizes of the Kaggle set
  format.rows = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                 93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                 2173,  4,    7046547,  18,      15,  286181, 105,     142572};
  return format;
}

std::uint64_t fold(std::uint64_t sum, std::uint64_t value) { return mix64(sum ^ value) + value; }

/// One number for a row, from a parser that shares nothing with ours but the hash.
std::uint64_t simple_row(const std::string& line, const criteo_format& format) {
  std::uint64_t sum = 0;
  std::size_t begin = 0;
  for (std::size_t f = 0; f < 40; ++f) {
    const std::size_t stop = std::min(line.find('\t', begin), line.size());
    const std::string field = line.substr(begin, stop - begin);
    if (f <= 13) {
      sum =
          fold(sum, std::bit_cast<std::uint32_t>(field.empty() ? 0.0F : std::strtof(field.c_str(), nullptr)));
    } else {
      sum =
          fold(sum, static_cast<std::uint64_t>(hash_bucket(hash_bytes(field, f - 14), format.rows[f - 14])));
    }
    begin = stop + 1;
  }
  return sum;
}

/// The input file, made once, and what its rows must be.
struct input_file {
  std::string path;
  std::size_t bytes = 0;
  index_t rows = 0;
  std::uint64_t checksum = 0;
  std::string source;
  std::string problem;
  std::string text;  ///< the rows once

  input_file() {
    const char* folder = std::getenv("DEEPREC_DATA_DIR");
#if defined(DEEPREC_DATA_DIR)
    if (folder == nullptr) folder = DEEPREC_DATA_DIR;
#endif
    if (folder != nullptr) {
      std::ifstream in(std::string(folder) + "/criteo/criteo_kaggle_merged_24k.tsv", std::ios::binary);
      std::stringstream all;
      all << in.rdbuf();
      text = all.str();
    }
    source = text.empty() ? "generated rows" : "the real rows";
    if (text.empty()) text = deeprec_bench::generated_criteo_text();

    const criteo_format format = tables();
    std::vector<std::uint64_t> row_sums;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) row_sums.push_back(simple_row(line, format));

    const char* temporary = std::getenv("TMPDIR");
    path = std::string(temporary != nullptr ? temporary : "/tmp") + "/deeprec_reader_bench_XXXXXX";
    const int descriptor = ::mkstemp(path.data());
    if (descriptor < 0) {
      problem = "can't make a temporary file";
      return;
    }
    while (bytes < wanted_bytes) {
      for (std::size_t done = 0; done < text.size();) {
        const ssize_t wrote = ::write(descriptor, text.data() + done, text.size() - done);
        if (wrote <= 0) {
          problem = "can't write 200 MB to " + path;
          break;
        }
        done += static_cast<std::size_t>(wrote);
      }
      if (!problem.empty()) break;
      bytes += text.size();
      rows += static_cast<index_t>(row_sums.size());
      for (const std::uint64_t sum : row_sums) checksum = fold(checksum, sum);
    }
    ::close(descriptor);
  }
  ~input_file() {
    if (!path.empty()) std::remove(path.c_str());
  }
};

const input_file& input() {
  static const input_file file;
  return file;
}

struct pass {
  index_t rows = 0;
  double seconds = 0;
};

/// Reads a whole file; `look` sees each batch. No rows = a fault.
template <class Format, class Look>
pass read_once(thread_pool& pool, const Format& format, const std::string& path, sparse_batch& batch,
               Look&& look) {
  const auto start = clock_type::now();
  auto reader = read_files(pool, format, {path});
  if (!reader) return {};
  for (;;) {
    const auto got = reader.value().next(batch, batch_rows);
    if (!got) return {};
    if (got.value() == 0) break;
    look(batch);
  }
  const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
  return {reader.value().rows_read(), seconds};
}

template <class Look>
pass read_once(thread_pool& pool, sparse_batch& batch, Look&& look) {
  return read_once(pool, tables(), input().path, batch, look);
}

template <class Format>
bool answer_is_right(thread_pool& pool, const Format& format, const std::string& path) {
  std::uint64_t checksum = 0;
  sparse_batch batch;
  const pass all = read_once(pool, format, path, batch, [&](const sparse_batch& rows) {
    for (index_t r = 0; r < rows.rows(); ++r) {
      std::uint64_t sum = fold(0, std::bit_cast<std::uint32_t>(rows.labels()[static_cast<std::size_t>(r)]));
      for (index_t c = 0; c < 13; ++c) sum = fold(sum, std::bit_cast<std::uint32_t>(rows.dense()(r, c)));
      for (index_t s = 0; s < 26; ++s) sum = fold(sum, static_cast<std::uint64_t>(rows.feature(s).ids()[r]));
      checksum = fold(checksum, sum);
    }
  });
  return all.rows == input().rows && checksum == input().checksum;
}

const auto ignore = [](const sparse_batch& batch) { benchmark::DoNotOptimize(batch.rows()); };

/// Processor time of this process so far.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Seconds to pread the whole file in chunks of 256 KB into one buffer.
double pread_seconds() {
  std::vector<char> buffer(1 << 18);
  const int descriptor = ::open(input().path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto start = clock_type::now();
  off_t at = 0;
  for (;;) {
    const ssize_t got = ::pread(descriptor, buffer.data(), buffer.size(), at);
    if (got <= 0) break;
    at += got;
    benchmark::DoNotOptimize(buffer.data());
  }
  const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
  ::close(descriptor);
  return seconds;
}

/// Bytes per second of copying from memory that no cache holds.
double memcpy_rate() {
  const std::vector<char> from(std::max(input().bytes, deeprec_bench::large_bytes()), 'x');
  std::vector<char> to(1 << 18);
  const auto start = clock_type::now();
  for (std::size_t at = 0; at + to.size() <= from.size(); at += to.size()) {
    std::memcpy(to.data(), from.data() + at, to.size());
    benchmark::DoNotOptimize(to.data());
  }
  return static_cast<double>(from.size()) / std::chrono::duration<double>(clock_type::now() - start).count();
}

/// What two threads gain over one on this machine at this moment, with arithmetic that shares nothing: a
/// virtual machine may have two processors and the time of one.
double machine_scaling(bool swapped) {
  const auto chain = [] {
    double x = 1;
    for (int i = 0; i < 5'000'000; ++i) {
      x = x * 0.999999 + 1e-6;
      benchmark::DoNotOptimize(x);
    }
  };
  const auto measured = deeprec_bench::in_turn(
      1, swapped,
      [&] {
        std::thread other(chain);
        chain();
        other.join();
      },
      [&] {
        chain();
        chain();
      });
  return measured.ratio;
}

bool ready(benchmark::State& state, thread_pool& pool) {
  if (!input().problem.empty()) {
    state.SkipWithError(input().problem.c_str());
    return false;
  }
  if (!answer_is_right(pool, tables(), input().path)) {
    state.SkipWithError("wrong answer: the reader's rows are not those of the simple parser");
    return false;
  }
  return true;
}

void one_thread(benchmark::State& state) {
  thread_pool pool(1);
  if (!ready(state, pool)) return;
  sparse_batch batch;
  const auto bytes = static_cast<double>(input().bytes);
  for (auto _ : state) {
    deeprec_bench::figures f("reader/criteo/threads:1");
    bool whole = true;
    f.sample([&] {
      const double before = processor_seconds();
      const pass all = read_once(pool, batch, ignore);
      whole = whole && all.rows == input().rows;
      f.add("bytes_per_second", bytes / all.seconds);
      f.note("rows_per_second", static_cast<double>(all.rows) / all.seconds);
      f.note("cpu_bytes_per_second", bytes / (processor_seconds() - before));
      f.note("pread_bytes_per_second", bytes / pread_seconds());
    });
    if (!whole) return state.SkipWithError("failed: a pass over the file was not whole");
    f.note("memcpy_bytes_per_second", memcpy_rate());
    f.say(input().source);
    f.report(state);
  }
}

void two_threads(benchmark::State& state) {
  if (usable_cpus().size() < 2) {
    state.SkipWithError("unfit: one CPU");
    return;
  }
  thread_pool one(1);
  thread_pool two(2);
  if (!ready(state, two)) return;
  sparse_batch batch;
  for (auto _ : state) {
    deeprec_bench::figures f("reader/criteo/threads:2");
    bool whole = true;
    f.sample([&] {
      const auto read = [&](thread_pool& pool) {
        return [&] { whole = read_once(pool, batch, ignore).rows == input().rows && whole; };
      };
      f.pair("scaling", "", read(two), read(one));
      f.add("machine_scaling", machine_scaling(f.swapped()));
    });
    if (!whole) return state.SkipWithError("failed: a pass over the file was not whole");
    if (const auto machine = f.of("machine_scaling"); machine.high < 1.7) {
      f.unfit("two CPUs do " + std::to_string(machine.median).substr(0, 4) + " times the arithmetic of one");
    }
    f.say(input().source);
    f.report(state);
  }
}

/// The same rows with a header, by commas.
struct csv_file {
  std::string path;
  double bytes = 0;

  explicit csv_file(bool quoted) {
    const std::string mark = quoted ? "\"" : "";
    std::string once, head = mark + "label" + mark;
    for (int n = 1; n <= 13; ++n) head += "," + mark + "I" + std::to_string(n) + mark;
    for (int n = 1; n <= 26; ++n) head += "," + mark + "C" + std::to_string(n) + mark;
    for (const char c : input().text) {
      if (once.empty() || once.back() == '\n') once += mark;
      if (c == '\t' || c == '\n') once += mark;
      once += c == '\t' ? ',' : c;
      if (c == '\t') once += mark;
    }
    const char* temporary = std::getenv("TMPDIR");
    path = std::string(temporary != nullptr ? temporary : "/tmp") + "/deeprec_csv_bench_XXXXXX";
    const int descriptor = ::mkstemp(path.data());
    std::FILE* const out = descriptor < 0 ? nullptr : ::fdopen(descriptor, "w");
    if (out == nullptr) return;
    std::fprintf(out, "%s\n", head.c_str());
    const auto copies = static_cast<std::size_t>(input().rows) /
                        static_cast<std::size_t>(std::count(once.begin(), once.end(), '\n'));
    for (std::size_t n = 0; n < copies; ++n) std::fwrite(once.data(), 1, once.size(), out);
    bytes = static_cast<double>(std::ftell(out));
    std::fclose(out);
  }
  csv_file(const csv_file&) = delete;
  csv_file& operator=(const csv_file&) = delete;
  ~csv_file() { std::remove(path.c_str()); }
};

csv_format schema() {
  csv_format format{.columns = {csv_column::label("label")}};
  for (int n = 1; n <= 13; ++n) format.columns.push_back(csv_column::dense("I" + std::to_string(n)));
  for (int n = 1; n <= 26; ++n) {
    format.columns.push_back(
        csv_column::token("C" + std::to_string(n), tables().rows[static_cast<std::size_t>(n - 1)]));
  }
  return format;
}

/// Seconds that a peer takes for the file on one core, after a first pass; 0: it is not there.
double peer_seconds(const std::string& peer, const std::string& path) {
  const char* const python = std::getenv("DEEPREC_PYTHON");
  const std::string read = peer == "pandas"
                               ? "import pandas\nread = lambda: pandas.read_csv(sys.argv[1], engine='c')\n"
                               : "import pyarrow, pyarrow.csv\npyarrow.set_cpu_count(1)\n"
                                 "options = pyarrow.csv.ReadOptions(use_threads=False)\n"
                                 "read = lambda: pyarrow.csv.read_csv(sys.argv[1], read_options=options)\n";
  const std::string command =
      std::string(python != nullptr ? python : "python3") + " -c \"import sys, time\n" + read +
      "read()\nstart = time.perf_counter()\nread()\nprint(time.perf_counter() - start)\" " + path +
      " 2> /dev/null";
  std::FILE* const out = ::popen(command.c_str(), "r");
  double seconds = 0;
  if (out == nullptr || std::fscanf(out, "%lf", &seconds) != 1) seconds = 0;
  if (out != nullptr) ::pclose(out);
  return seconds;
}

void csv(benchmark::State& state) {
  thread_pool pool(1);
  if (!ready(state, pool)) return;
  const csv_file plain(false), quoted(true);
  const csv_format format = schema();
  for (const csv_file* file : {&plain, &quoted}) {
    if (!answer_is_right(pool, format, file->path))
      return state.SkipWithError("wrong answer: the rows by the schema are not those of the simple parser");
  }
  sparse_batch batch;
  for (auto _ : state) {
    deeprec_bench::figures f("reader/csv");
    bool whole = true;
    const auto seconds_of = [&](const auto& how, const std::string& path) {
      const pass all = read_once(pool, how, path, batch, ignore);
      whole = whole && all.rows == input().rows;
      return all.seconds;
    };
    f.sample([&] {
      for (const auto& [name, file] : {std::pair("plain", &plain), std::pair("quoted", &quoted)}) {
        double criteo = 0, ours = 0;
        for (const bool first : {f.swapped(), !f.swapped()}) {
          (first ? ours : criteo) =
              first ? seconds_of(format, file->path) : seconds_of(tables(), input().path);
        }
        f.add("of_criteo", file->bytes / ours / (static_cast<double>(input().bytes) / criteo), name);
        f.note(std::string(name) + "_bytes_per_second", file->bytes / ours);
        for (const char* const peer : {"pandas", "arrow"}) {
          const double theirs = peer_seconds(peer, file->path);
          if (theirs > 0) f.add(std::string("over_") + peer, theirs / seconds_of(format, file->path), name);
        }
      }
    });
    if (!whole) return state.SkipWithError("failed: a pass over a file was not whole");
    f.say(input().source);
    f.report(state);
  }
}

/// Writes the same rows into a pipe whenever it is told to.
class row_writer {
 public:
  row_writer(int descriptor, std::string rows)
      : rows_(std::move(rows)), thread_([this, descriptor] {
          for (;;) {
            begin_.acquire();
            if (ends_) break;
            for (std::size_t at = 0; at < rows_.size();) {
              const ssize_t wrote = ::write(descriptor, rows_.data() + at, rows_.size() - at);
              if (wrote <= 0) break;
              at += static_cast<std::size_t>(wrote);
            }
            arrived_ = clock_type::now();
            done_.release();
          }
          ::close(descriptor);
        }) {}
  row_writer(const row_writer&) = delete;
  row_writer& operator=(const row_writer&) = delete;
  ~row_writer() {
    ends_ = true;
    begin_.release();
    thread_.join();
  }
  void write() { begin_.release(); }
  /// When the last byte was in the pipe.
  clock_type::time_point arrival() {
    done_.acquire();
    return arrived_;
  }

 private:
  std::string rows_;
  std::binary_semaphore begin_{0}, done_{0};
  clock_type::time_point arrived_;
  bool ends_ = false;
  std::thread thread_;
};

void stream_latency(benchmark::State& state) {
  constexpr index_t rows = 1000;
  std::string text = deeprec_bench::generated_criteo_text();
  std::size_t end = 0;
  for (index_t r = 0; r < rows; ++r) end = text.find('\n', end) + 1;
  text.resize(end);
  int ends[2];
  if (::pipe(ends) != 0) return state.SkipWithError("failed: no pipe");
  row_writer writer(ends[1], text);
  thread_pool pool(2);
  auto reader = read_stream(pool, tables(), "pipe", std::make_unique<file_stream>(ends[0]),
                            {.batches = stream_batches::arrived});
  if (!reader) return state.SkipWithError("failed: the pipe can't be read");
  sparse_batch wanted, batch;
  if (!parse_text(tables(), text, wanted)) return state.SkipWithError("failed: the rows can't be parsed");
  for (auto _ : state) {
    deeprec_bench::figures f("reader/stream/latency");
    bool right = true;
    f.sample([&] {
      writer.write();
      for (index_t done = 0; done < rows;) {
        const auto got = reader.value().next(batch, 8192);
        right = right && got && got.value() > 0 && done + got.value() <= rows;
        if (!right) break;
        for (index_t s = 0; s < 26; ++s) {
          right = right && std::equal(batch.feature(s).ids(), batch.feature(s).ids() + got.value(),
                                      wanted.feature(s).ids() + done);
        }
        done += got.value();
      }
      const auto delivered = clock_type::now();
      f.add("milliseconds", std::chrono::duration<double, std::milli>(delivered - writer.arrival()).count());
    });
    if (!right)
      return state.SkipWithError("wrong answer: the rows of the pipe are not those that were written");
    f.report(state);
  }
}

BENCHMARK(one_thread)
    ->Name("reader/criteo/threads:1")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(two_threads)
    ->Name("reader/criteo/threads:2")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(csv)->Name("reader/csv")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(stream_latency)
    ->Name("reader/stream/latency")
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
