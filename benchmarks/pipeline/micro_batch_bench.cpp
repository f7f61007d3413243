// A training step in micro batches on two threads, against the whole batch on one thread and on two.
//
//   pipeline/micro_batch/2x128   a batch of 256 in two parts; and 4x64, 2x256 (512), 4x256 (1024)
//
// The published comparison names a DeepCTR model and no sizes; here DeepFM with DeepCTR's layers: 26 tables
// of rows of 16 floats, together larger than the caches and their ids uniform, the pairs of all rows (FM), a
// stack of 416-256-128-1, a linear part for 13 numbers, Adagrad. By lanes: each part on one of two threads,
//
//   lookup    rows of the part
//   tower     FM, stacks, loss, backward
//   gather    FM's gradient and the stack's, for each row
//
// then once the update of the stacks and of the rows, by verbs on both threads.
//
// Baselines, on the same ids: `plain`, the same verbs for the whole batch on one thread; `two_threads`, each
// verb of the whole batch on both threads of a thread_pool, which is what two threads are otherwise for;
// `rounds`, as published: rounds of 256 on one thread with an update each, for as many samples.
//
// Bound, before anything was timed. Of a step of 256 on one thread: 6656 rows at 30 ns = 0.2 ms of lookup,
// 214 MFLOP = 3.5 ms of tower, 0.1 ms of gather, 0.8 ms of update, 4.6 ms. Two lanes take half of all but the
// update, which takes half as well: 4.6 / (1.9 + 0.4) = 2.0 over `plain`. `two_threads` has the same limit,
// and some forty barriers and rows that another core wrote: the prediction is 1.0 to 1.2 over it. Over
// `rounds` of 256 the larger batches save updates too. `bound` is that arithmetic with the stages of the run.
//
// Before timing, three batches are trained in each way from the same weights: `two_threads` gives the bits
// of `plain`; micro batches differ by no more than 3 (B + C + 2) u (1 + |weight|) for a batch of B in C
// parts: the documented bound for a sum of gradients of at most 1, and steps of at most the gradient (rate /
// epsilon = 1).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/schedule/micro_batch.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t slots = 26, width = 16, numbers = 13;
constexpr index_t published_batch = 256;
constexpr float rate = 0.01F, epsilon = 0.01F;  // Adagrad's steps are at most the gradient

/// Samples in a ring; batches go round it.
struct samples_ring {
  index_t samples;
  std::vector<std::int32_t> ids;
  std::vector<float> dense, labels;

  samples_ring(index_t count, index_t table_rows) : samples(count) {
    const counter_rng rng(31);
    const index_t of_slot = table_rows / slots;
    for (index_t i = 0; i < count * slots; ++i) {
      const auto drawn = hash_bucket(rng.bits(0, static_cast<std::uint64_t>(i)), of_slot);
      ids.push_back(static_cast<std::int32_t>(i % slots * of_slot + drawn));
    }
    for (index_t i = 0; i < count * numbers; ++i) {
      dense.push_back(static_cast<float>(rng.uniform(1, static_cast<std::uint64_t>(i))));
    }
    for (index_t i = 0; i < count; ++i) {
      labels.push_back(rng.uniform(2, static_cast<std::uint64_t>(i)) < 0.25 ? 1.0F : 0.0F);
    }
  }
  [[nodiscard]] fixed_hotness_view<std::int32_t> bags(index_t first, index_t count) const {
    return {ids.data() + first * slots, count * slots, 1};
  }
};

using table_type = dense_table<f32_rows>;
table_type make_table(index_t rows) {
  table_type table(rows, f32_rows(width, {.state_floats = 1}));
  thread_pool two_threads(2);
  table.initialize(two_threads, row_init::uniform{.seed = 6, .bound = 0.05F});
  return table;
}

/// Seconds of the parts of steps on the whole batch.
struct stage_seconds {
  double lookup = 0, tower = 0, gather = 0, update = 0;
};

/// DeepFM on a table that others may train too.
class deep_fm {
 public:
  deep_fm(index_t batch, table_type& table, const samples_ring& data)
      : batch_(batch),
        table_(&table),
        data_(&data),
        deep_({slots * width, 256, 128, 1}, mlp_output::linear, counter_rng(8), weight_init::he, 0),
        wide_({numbers, 1}, mlp_output::linear, counter_rng(8), weight_init::he, 100),
        rows_(floats(slots * width)),
        gradient_(floats(slots * width)),
        sums_(floats(width)),
        logits_(floats(1)),
        slope_(floats(1)) {}
  deep_fm(const deep_fm&) = delete;
  deep_fm& operator=(const deep_fm&) = delete;

  /// The stages, for samples [first, first + count) of the batch.
  template <class Executor>
  status look_up(Executor& executor, index_t first, index_t count) {
    return lookup(executor, table_->view(), data_->bags(begin_ + first, count), combiner::sum,
                  matrix_view<float>(rows_.data() + first * slots * width, count * slots, width));
  }
  template <class Executor>
  status tower(Executor& executor, mlp_pass& deep, mlp_pass& wide, index_t first, index_t count) {
    if (const status s = deep_.forward(executor, deep, rows_of(rows_, first, count, slots * width)); !s)
      return s;
    const matrix_view<const float> dense(data_->dense.data() + (begin_ + first) * numbers, count, numbers);
    if (const status s = wide_.forward(executor, wide, dense); !s) return s;
    executor.parallel_for(count, index_t{64}, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        logits_[at(first + i)] = pairs(first + i) + deep.output()(i, 0) + wide.output()(i, 0);
      }
    });
    const matrix_view<float> slope = rows_of(slope_, first, count, 1);
    const matrix_view<const float> labels(data_->labels.data() + begin_ + first, count, 1);
    if (const status s = logistic_loss_backward(executor, rows_of(logits_, first, count, 1), labels, slope);
        !s) {
      return s;
    }
    if (const status s = wide_.backward(executor, wide, slope, compute_input_gradient::no); !s) return s;
    if (const status s = deep_.backward(executor, deep, slope); !s) return s;
    // The stack's gradient is overwritten by the next part.
    executor.parallel_for(count, index_t{64}, [&](index_t begin, index_t end, int) {
      for (index_t i = begin; i < end; ++i) {
        std::copy_n(deep.input_gradient().row(i), slots * width,
                    gradient_.data() + (first + i) * slots * width);
      }
    });
    return {};
  }
  template <class Executor>
  void gather(Executor& executor, index_t first, index_t count) {
    executor.parallel_for(count, index_t{64}, [&](index_t begin, index_t end, int) {
      for (index_t i = first + begin; i < first + end; ++i) {
        const float slope = slope_[at(i)];
        const float* const sum = sums_.data() + i * width;
        for (index_t s = 0; s < slots; ++s) {
          const float* const row = rows_.data() + (i * slots + s) * width;
          float* const to = gradient_.data() + (i * slots + s) * width;
          for (index_t d = 0; d < width; ++d) to[d] += slope * (sum[d] - row[d]);
        }
      }
    });
  }
  template <class Executor>
  status update_rows(Executor& executor) {
    return update(executor, table_->view(), data_->bags(begin_, batch_), combiner::sum,
                  matrix_view<const float>(gradient_.data(), batch_ * slots, width), row_optimizer());
  }
  template <class Executor>
  status update_stacks(Executor& executor) {
    if (const status s = deep_.step(executor, optimizer()); !s) return s;
    return wide_.step(executor, optimizer());
  }

  /// One step on the whole batch, whose verbs run on the executor.
  template <class Executor>
  void step(Executor& executor, stage_seconds* laps = nullptr) {
    double last = clock_now();
    const auto lap = [&](double stage_seconds::* part) {
      const double now = clock_now();
      if (laps != nullptr) laps->*part += now - last;
      last = now;
    };
    look_up(executor, 0, batch_).or_throw();
    lap(&stage_seconds::lookup);
    tower(executor, deep_.own_pass(), wide_.own_pass(), 0, batch_).or_throw();
    lap(&stage_seconds::tower);
    gather(executor, 0, batch_);
    lap(&stage_seconds::gather);
    update_stacks(executor).or_throw();
    update_rows(executor).or_throw();
    lap(&stage_seconds::update);
    next_batch();
  }

  /// The same in parts: see the head of this file.
  void declare(micro_batch<>& in_parts, index_t parts, thread_pool& both) {
    for (index_t k = 0; k < parts; ++k) lanes_.push_back({deep_.make_pass(), wide_.make_pass()});
    in_parts.stage("lookup", 0, [this](const micro_chunk& c) { return look_up(here_, c.first, c.count); });
    in_parts.stage("tower", 0, [this](const micro_chunk& c) {
      lane& mine = lanes_[at(c.lane)];
      return tower(here_, mine.deep, mine.wide, c.first, c.count);
    });
    in_parts.stage("gather", 0, [this](const micro_chunk& c) { gather(here_, c.first, c.count); });
    in_parts.layer("deep", deep_);
    in_parts.layer("wide", wide_);
    in_parts.sum_gradient(
        "tower", [this](const micro_chunk& c) { return lanes_[at(c.lane)].deep.gradients(); },
        [this] { return deep_.gradients(); });
    in_parts.sum_gradient(
        "tower", [this](const micro_chunk& c) { return lanes_[at(c.lane)].wide.gradients(); },
        [this] { return wide_.gradients(); });
    in_parts.sample_gradient("gather", [this] { return rows_of(gradient_, 0, batch_, slots * width); });
    in_parts.update("stacks", optimizer(), [this, &both] { return update_stacks(both); });
    in_parts.update("rows", row_optimizer(), [this, &both] { return update_rows(both); });
  }
  void step_in_parts(micro_batch<>& in_parts, thread_pool& both) {
    in_parts.run(both, batch_).or_throw();
    next_batch();
  }

  [[nodiscard]] std::vector<float> weights() {
    std::vector<float> all;
    for (index_t r = 0; r < table_->rows(); ++r) {
      const auto* const row = reinterpret_cast<const float*>(table_->view().row(r));
      all.insert(all.end(), row, row + width);
    }
    for (mlp<>* const stack : {&deep_, &wide_}) {
      const matrix_view<float> of = stack->parameters();
      all.insert(all.end(), of.row(0), of.row(0) + of.extent(1));
    }
    return all;
  }

 private:
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
  static adagrad optimizer() { return {.learning_rate = rate, .epsilon = epsilon}; }
  static rowwise_adagrad row_optimizer() { return {.learning_rate = rate, .epsilon = epsilon}; }
  [[nodiscard]] std::size_t floats(index_t columns) const { return at(batch_ * columns); }
  static matrix_view<float> rows_of(std::vector<float>& of, index_t first, index_t count, index_t columns) {
    return {of.data() + first * columns, count, columns};
  }
  void next_batch() {
    begin_ += batch_;
    if (begin_ + batch_ > data_->samples) begin_ = 0;
  }
  /// FM of sample i: the sum over pairs of its rows; leaves the sum of the rows for gather().
  float pairs(index_t i) {
    float* const sum = sums_.data() + i * width;
    float squares[width] = {};
    std::fill_n(sum, width, 0.0F);
    for (index_t s = 0; s < slots; ++s) {
      const float* const row = rows_.data() + (i * slots + s) * width;
      for (index_t d = 0; d < width; ++d) sum[d] += row[d], squares[d] += row[d] * row[d];
    }
    float all = 0;
    for (index_t d = 0; d < width; ++d) all += sum[d] * sum[d] - squares[d];
    return all / 2;
  }

  index_t batch_;
  index_t begin_ = 0;
  table_type* table_;
  const samples_ring* data_;
  inline_executor here_;
  mlp<> deep_, wide_;
  struct lane {
    mlp_pass deep, wide;
  };
  std::vector<lane> lanes_;
  std::vector<float> rows_, gradient_, sums_, logits_, slope_;
};

/// Cuts a batch into so many parts.
micro_lanes lanes_of(index_t parts, index_t batch) {
  return {.most = parts, .fewest = 1, .samples = batch / parts};
}

/// Empty, or what is wrong with the weights after three batches.
std::string check(index_t chunks, index_t batch, thread_pool& both) {
  constexpr index_t few_rows = slots * 300;
  const samples_ring data(3 * batch, few_rows);
  const inline_executor here;
  table_type tables[] = {make_table(few_rows), make_table(few_rows), make_table(few_rows)};
  deep_fm plain(batch, tables[0], data), two(batch, tables[1], data), parts(batch, tables[2], data);
  micro_batch in_parts(lanes_of(chunks, batch));
  parts.declare(in_parts, chunks, both);
  for (int b = 0; b < 3; ++b) {
    plain.step(here);
    two.step(both);
    parts.step_in_parts(in_parts, both);
  }
  const std::vector<float> a = plain.weights(), b = two.weights(), c = parts.weights();
  if (a != b) return "wrong answer: two threads give other bits than one";
  const auto bound = 3 * static_cast<float>(batch + chunks + 2) * 0x1p-24F;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - c[i]) <= bound * (1 + std::abs(a[i])))) {
      return "wrong answer: a weight of the micro batches is beyond the bound";
    }
  }
  const samples_ring none(batch, few_rows);
  table_type untrained = make_table(few_rows);
  if (deep_fm(batch, untrained, none).weights() == a) return "wrong answer: nothing was trained";
  return {};
}

/// Rows of all tables, larger than the caches, and as many samples as it takes for their rows to be cold.
struct large_model {
  table_type table;
  samples_ring data;
  large_model()
      : table(make_table(static_cast<index_t>(large_bytes()) /
                         f32_rows(width, {.state_floats = 1}).stride_bytes())),
        data(std::max<index_t>(8192, static_cast<index_t>(cold_bytes()) / (slots * width * 4) / 1024 * 1024),
             table.rows()) {}
};
large_model& large() {
  static large_model one;
  return one;
}

void micro_batches(benchmark::State& state, index_t chunks, index_t of_chunk) {
  const std::string name = "pipeline/micro_batch/" + std::to_string(chunks) + "x" + std::to_string(of_chunk);
  const index_t batch = chunks * of_chunk;
  for (auto _ : state) {
    thread_pool both(2);
    const inline_executor here;
    if (const std::string wrong = check(chunks, batch, both); !wrong.empty()) {
      return state.SkipWithError(wrong.c_str());
    }
    deep_fm ours(batch, large().table, large().data), plain(batch, large().table, large().data),
        two(batch, large().table, large().data), small(published_batch, large().table, large().data);
    micro_batch in_parts(lanes_of(chunks, batch));
    ours.declare(in_parts, chunks, both);
    figures f(name);
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    const index_t steps = 4096 / batch;
    f.sample([&] {
      const auto in_micro_batches = [&] {
        for (index_t i = 0; i < steps; ++i) ours.step_in_parts(in_parts, both);
      };
      stage_seconds one_thread, two_threads;
      const auto [mine, whole] = f.pair("speedup", "plain", in_micro_batches, [&] {
        for (index_t i = 0; i < steps; ++i) plain.step(here, &one_thread);
      });
      f.pair("speedup", "two_threads", in_micro_batches, [&] {
        for (index_t i = 0; i < steps; ++i) two.step(both, &two_threads);
      });
      if (batch != published_batch) {
        f.pair("speedup", "rounds", in_micro_batches, [&] {
          for (index_t i = 0; i < 4096 / published_batch; ++i) small.step(here);
        });
      }
      const double of_parts = one_thread.lookup + one_thread.tower + one_thread.gather;
      const double least = of_parts / 2 + two_threads.update;
      f.add("bound", whole / least);
      f.add("share_of_limit", least / mine);
      const double ms = 1e3 / static_cast<double>(steps);
      f.note("step_ms", mine * ms);
      f.note("plain_ms", whole * ms);
      f.note("lookup_ms", one_thread.lookup * ms);
      f.note("tower_ms", one_thread.tower * ms);
      f.note("gather_ms", one_thread.gather * ms);
      f.note("update_ms", one_thread.update * ms);
      f.note("update_two_threads_ms", two_threads.update * ms);
    });
    f.report(state);
  }
}

const bool registered = [] {
  for (const auto& [chunks, of_chunk] : {std::pair{2, 128}, {4, 64}, {2, 256}, {4, 256}}) {
    add("pipeline/micro_batch/" + std::to_string(chunks) + "x" + std::to_string(of_chunk),
        [chunks = chunks, of_chunk = of_chunk](benchmark::State& s, const std::string&) {
          micro_batches(s, chunks, of_chunk);
        });
  }
  return true;
}();

}  // namespace
