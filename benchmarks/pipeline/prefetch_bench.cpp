// Criteo text from a slow source, parsed and trained on: with the next blocks read ahead, and in turn.
//
//   pipeline/throttled_source/balanced        50 MB/s with jitter; compute takes as long as the source
//   pipeline/throttled_source/source_bound    compute takes half of that
//   pipeline/throttled_source/compute_bound   compute takes twice that
//
// The source lets blocks of 256 KB of whole lines through, from memory: a token bucket of 64 KB (what the
// socket of a network file keeps while nobody reads) that fills at 50 MB/s, and sleeps. A block takes 5.24 ms
// times a factor drawn uniformly from [0.5, 1.5], the same draws for both sides. Reading and parsing are one
// thread, the source side; compute is the other: a checksum of the parsed rows and a chain of dependent
// operations of a stated time. Both sides are timed alone in every round.
//
// Floor: the larger side. What is above it: the first block's other side, once in 120 blocks (0.8 % where
// both are equal), and what the jitter costs where two equal sides wait for each other with four blocks
// between them: 0.29^2 / (2 x 5) = 0.8 % of the time, at most 2 % with the walk of 120 draws. Predicted: 1.01
// to 1.03 balanced, 1.01 elsewhere. `predicted` is the recurrence of the bucket, the queue and the sides with
// the draws of the run: 1.009, 1.005 source bound, 1.001 compute bound. In turn a step takes the source's
// 5.24 ms, less the 1.3 ms that the bucket gathers meanwhile, and parsing and compute: at most 1.9 times as
// long where the sides are equal.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>

#include "pipeline/baseline.hpp"
#include "support/add.hpp"
#include "support/criteo_text.hpp"
#include "support/criteo_trace.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using pipeline_bench::chain;
using pipeline_bench::fold;
using clock_type = std::chrono::steady_clock;

constexpr double bytes_per_second = 50e6;
constexpr double bucket_bytes = 65536, block_bytes = 262144, jitter = 0.5;
constexpr double block_seconds = block_bytes / bytes_per_second;
constexpr int blocks = 120;
constexpr std::size_t capacity = 4;

clock_type::duration ticks(double seconds) {
  return std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(seconds));
}

/// The text, cut into blocks of whole lines; block k of a run is number k modulo their number.
const std::vector<std::string_view>& text_blocks() {
  static const std::string text = generated_criteo_text();
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> cut;
    std::string_view rest = text;
    while (rest.size() > static_cast<std::size_t>(block_bytes)) {
      const std::size_t end = rest.rfind('\n', static_cast<std::size_t>(block_bytes)) + 1;
      cut.push_back(rest.substr(0, end));
      rest.remove_prefix(end);
    }
    return cut;
  }();
  return all;
}
std::string_view block(int k) { return text_blocks()[static_cast<std::size_t>(k) % text_blocks().size()]; }

/// How long block k takes to come.
double seconds_to_come(int k) {
  const counter_rng rng(51);
  const double factor = 1 + jitter * (2 * rng.uniform(0, static_cast<std::uint64_t>(k)) - 1);
  return factor * static_cast<double>(block(k).size()) / bytes_per_second;
}

/// Blocks at 50 MB/s, from its construction on.
class throttled_source {
 public:
  std::optional<std::string_view> next() {
    if (next_ == blocks) return std::nullopt;
    // Tokens gather while nobody asks, no more than the bucket holds.
    due_ = std::max(due_, clock_type::now() - ticks(bucket_bytes / bytes_per_second)) +
           ticks(seconds_to_come(next_));
    std::this_thread::sleep_until(due_);
    return block(next_++);
  }

 private:
  clock_type::time_point due_ = clock_type::now();
  int next_ = 0;
};

status parse(std::string_view text, sparse_batch& batch) {
  static const criteo_format format = [] {
    criteo_format of_kaggle;
    std::copy(std::begin(criteo_rows), std::end(criteo_rows), of_kaggle.rows.begin());
    return of_kaggle;
  }();
  static const inline_executor here;
  auto reader = read_text(here, format, text);
  if (!reader) return reader.fault();
  const auto rows = reader.value().next(batch, index_t{1} << 20);
  return rows ? status() : status(rows.fault());
}

/// What stands for the training step: every parsed number counts, then the chain.
std::uint64_t compute(std::uint64_t sum, const sparse_batch& batch, std::uint64_t steps) {
  for (index_t s = 0; s < batch.feature_count(); ++s) {
    const std::int64_t* const ids = batch.feature(s).ids();
    for (index_t r = 0; r < batch.rows(); ++r) sum = fold(sum, static_cast<std::uint64_t>(ids[r]));
  }
  for (index_t r = 0; r < batch.rows(); ++r) {
    std::uint32_t bits[2];
    std::memcpy(&bits[0], &batch.labels()[static_cast<std::size_t>(r)], sizeof(float));
    std::memcpy(&bits[1], &batch.dense()(r, 0), sizeof(float));
    sum = fold(sum, bits[0] ^ std::uint64_t{bits[1]} << 1);
  }
  return sum ^ (chain(sum, steps) & 1);
}

std::uint64_t in_turn(std::uint64_t steps) {
  throttled_source source;
  sparse_batch batch;
  std::uint64_t sum = 0;
  while (const auto text = source.next()) {
    parse(*text, batch).or_throw();
    sum = compute(sum, batch, steps);
  }
  return sum;
}

std::uint64_t read_ahead(thread_pool& pool, std::uint64_t steps) {
  throttled_source text;
  // One in the hands of each side, `capacity` between them, and the one that waits to be put.
  std::vector<sparse_batch> batches(capacity + 3);
  std::size_t next = 0;
  std::uint64_t sum = 0;
  auto line = source("read", [&] { return text.next(); }) |
              stage("parse",
                    [&](std::string_view part) -> result<sparse_batch*> {
                      sparse_batch& batch = batches[next++ % batches.size()];
                      if (const status s = parse(part, batch); !s) return s;
                      return &batch;
                    }) |
              sink("compute", [&](sparse_batch* batch) { sum = compute(sum, *batch, steps); }).own_thread();
  pipeline p(pool, std::move(line), {.capacity = capacity});
  p.run().or_throw();
  return sum;
}

/// Reading and parsing alone.
void source_side() {
  throttled_source source;
  sparse_batch batch;
  while (const auto text = source.next()) parse(*text, batch).or_throw();
  benchmark::DoNotOptimize(batch.rows());
}

/// All blocks of the text, parsed.
const std::vector<sparse_batch>& parsed_blocks() {
  static const std::vector<sparse_batch> all = [] {
    std::vector<sparse_batch> made(text_blocks().size());
    for (std::size_t k = 0; k < made.size(); ++k) parse(text_blocks()[k], made[k]).or_throw();
    return made;
  }();
  return all;
}

/// Compute alone, on batches that are there.
void compute_side(std::uint64_t steps) {
  const std::vector<sparse_batch>& batches = parsed_blocks();
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < blocks; ++k) sum = compute(sum, batches[k % batches.size()], steps);
  benchmark::DoNotOptimize(sum);
}

/// Steps of the chain in a second, on this core now.
double steps_per_second() {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    best = std::min(best, seconds_of([] { benchmark::DoNotOptimize(chain(1, 100'000)); }));
  }
  return 100'000 / best;
}

/// Seconds of all blocks with the next ones read ahead: the recurrence of the bucket, the queue and the
/// sides.
double predicted_seconds(double parse_seconds, double compute_seconds) {
  std::vector<double> taken(blocks);
  double due = 0, free = 0, done = 0;
  for (int k = 0; k < blocks; ++k) {
    due = std::max(due, free - bucket_bytes / bytes_per_second) + seconds_to_come(k);
    const double parsed = std::max(due, free) + parse_seconds;
    const int before = k - static_cast<int>(capacity);
    free = std::max(parsed, before < 0 ? 0 : taken[static_cast<std::size_t>(before)]);
    taken[static_cast<std::size_t>(k)] = std::max(free, done);
    done = taken[static_cast<std::size_t>(k)] + compute_seconds;
  }
  return done;
}

void throttled(benchmark::State& state, const std::string& name, double compute_of_source) {
  for (auto _ : state) {
    thread_pool pool(1);
    if (read_ahead(pool, 1) != in_turn(1)) {
      return state.SkipWithError("wrong answer: the rows are not those of the source, in order");
    }
    figures f(name);
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    const double checksums = seconds_of([] { compute_side(0); }) / blocks;
    f.sample([&] {
      const double wanted = compute_of_source * block_seconds - checksums;
      const auto steps = static_cast<std::uint64_t>(std::max(0.0, wanted) * steps_per_second());
      double source_seconds = 0, compute_seconds = 0, ours = 0;
      const auto sides = [&] {
        source_seconds = seconds_of([] { source_side(); });
        compute_seconds = seconds_of([&] { compute_side(steps); });
      };
      if (f.swapped()) sides();
      const auto both = f.pair(
          "speedup", "in_turn", [&] { benchmark::DoNotOptimize(read_ahead(pool, steps)); },
          [&] { benchmark::DoNotOptimize(in_turn(steps)); });
      ours = both.first;
      if (!f.swapped()) sides();
      const double larger = std::max(source_seconds, compute_seconds);
      f.add("of_larger_side", ours / larger);
      f.add("share_of_limit", larger / ours);
      f.note("step_ms", ours * 1e3 / blocks);
      f.note("source_ms", source_seconds * 1e3 / blocks);
      f.note("compute_ms", compute_seconds * 1e3 / blocks);
      const double parsing = seconds_of([] {
                               sparse_batch batch;
                               for (int k = 0; k < 8; ++k) parse(block(k), batch).or_throw();
                             }) /
                             8;
      f.note("parse_ms", parsing * 1e3);
      const double each = compute_seconds / blocks;
      f.note("predicted",
             predicted_seconds(parsing, each) / std::max(predicted_seconds(parsing, 0), compute_seconds));
    });
    f.say("source: blocks of 256 KB at 50 MB/s, each times 0.5 to 1.5, a bucket of 64 KB");
    f.report(state);
  }
}

const bool registered = [] {
  for (const auto& [name, part] :
       {std::pair{"balanced", 1.0}, {"source_bound", 0.5}, {"compute_bound", 2.0}}) {
    add(std::string("pipeline/throttled_source/") + name,
        [part = part](benchmark::State& s, const std::string& whole) { throttled(s, whole, part); });
  }
  return true;
}();

}  // namespace
