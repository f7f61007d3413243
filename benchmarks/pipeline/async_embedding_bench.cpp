// A DLRM whose tables lie at a parameter server: lookups of later batches under way while one is computed,
// over synchronous training, and what that costs in AUC.
//
//   pipeline/async_embedding/w:2   a stale window of 2; and w:1, w:4, w:8
//
// The published setting (1008.7 to 1197.9 global steps/s) has 30 workers, 8 servers and a network of 32 Gb/s:
// a worker makes a step in 29.7 ms, and in 25.0 ms with lookups that it does not wait for. So does ours:
//
//   compute    DLRM of 13-512-256-64-16 and 367-512-256-1, batch 512, forward, backward and the step of the
//              stacks, on one core: measured, 20 to 30 ms
//   rows       512 x 26 x 16 floats = 852 KB a batch, at a worker's share of the servers' networks, 8 / 30 of
//              4 GB/s: 0.80 ms, for the rows and for their gradients
//   latency    1 +- 0.5 ms each way (uniform, drawn by step, the same for both sides)
//   store      lookup and update (row-wise Adagrad) as they are here, on one core
//
// Latency and bytes are waited for. Synchronous training sends the gradients with the next request. A step is
// then
// C + L, where C computes and L = 1 + 0.8 + lookup + 1 + 0.8 + update, about 4.7 ms; with W steps at once it
// is max(C, (C + L) / W), since each lookup waits for the update W steps before. Predicted for L = 4.7, C =
// 25: 1.00 for W = 1 and 1.19 for the others: the floor is C, and one step of 30 that fills the window.
// `predicted` has the C and L of the run.
//
// The answer, which the window defines, is compared bit by bit with a simulation in one thread before
// anything is timed. `auc` is that of a smaller DLRM after 4000 steps of 256 clicks of a planted model,
// through the same loop without the sleeps, on 50,000 other clicks: `auc_synchronous` in turn, `auc_planted`
// that of the model that drew them. Predicted: updates that are up to 7 steps late move it by less than
// 0.002.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "pipeline/click_data.hpp"
#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/waiting.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;
using pipeline_bench::click_data;
using pipeline_bench::numbers;
using pipeline_bench::slots;
using clock_type = std::chrono::steady_clock;
using milliseconds = std::chrono::duration<double, std::milli>;

constexpr index_t width = 16;
constexpr double one_way_ms = 1, jitter_ms = 0.5, share_bytes_per_ms = 4e6 * 8 / 30;

struct setting {
  index_t batch, steps;
  std::vector<index_t> bottom, top;  // from the numbers to `width`; from the crossed to 1
  bool travels;

  [[nodiscard]] double transfer_ms() const {
    return static_cast<double>(batch * slots * width) * sizeof(float) / share_bytes_per_ms;
  }
};

constexpr index_t crossed = width + (slots + 1) * slots / 2;
const setting& published() {
  static const setting s{512, 30, {numbers, 512, 256, 64, width}, {crossed, 512, 256, 1}, true};
  return s;
}
setting of_auc(index_t steps = 4000) { return {256, steps, {numbers, 64, width}, {crossed, 64, 1}, false}; }
constexpr index_t held_out = 50'000;

const click_data& clicks() {
  static const click_data data(256 * 4000 + held_out, 5, [](index_t s) {
    return s % 3 == 0 ? index_t{100} : s % 3 == 1 ? index_t{1000} : index_t{10'000};
  });
  return data;
}

clock_type::time_point after(clock_type::time_point begin, double ms) {
  return begin + std::chrono::duration_cast<clock_type::duration>(milliseconds(ms));
}

struct travel {
  double request, answer, update;
};
travel travel_of(index_t step) {
  const counter_rng rng(78);
  const auto drawn = [&](std::uint64_t which) {
    return one_way_ms + jitter_ms * (2 * rng.uniform(which, static_cast<std::uint64_t>(step)) - 1);
  };
  return {drawn(0), drawn(1), drawn(2)};
}

/// What a request of a batch brings back, and the gradient that goes there.
struct in_flight {
  std::vector<float> rows, gradient;
  clock_type::time_point sent;
};

/// The table at the server, and the stacks of a worker.
class trainer {
 public:
  explicit trainer(const setting& s)
      : is_(s),
        table_(clicks().table_rows, f32_rows(width, {.state_floats = 1})),
        bottom_(s.bottom, mlp_output::relu, counter_rng(3), weight_init::he, 100),
        top_(s.top, mlp_output::linear, counter_rng(3), weight_init::he, 200),
        crossed_(floats(crossed)),
        bottom_gradient_(floats(width)),
        slope_(floats(1)) {
    table_.initialize(here_, row_init::uniform{.seed = 4, .bound = 0.01F});
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  [[nodiscard]] in_flight buffers() const {
    return {std::vector<float>(floats(slots * width)), std::vector<float>(floats(slots * width)), {}};
  }
  [[nodiscard]] index_t steps() const { return is_.steps; }
  [[nodiscard]] double transfer_ms() const { return is_.transfer_ms(); }

  status look_up(index_t step, in_flight& to) const {
    return lookup(here_, table_.view(), clicks().bags(first_of(step), is_.batch), combiner::sum,
                  matrix_view<float>(to.rows.data(), is_.batch * slots, width));
  }
  status apply(index_t step, const in_flight& from) {
    return update(here_, table_.view(), clicks().bags(first_of(step), is_.batch), combiner::sum,
                  matrix_view<const float>(from.gradient.data(), is_.batch * slots, width),
                  rowwise_adagrad{.learning_rate = 0.05F});
  }
  /// Forward, backward and the step of the stacks.
  status compute(index_t step, in_flight& batch) {
    if (const status s = forward(first_of(step), batch.rows); !s) return s;
    const matrix_view<float> slope(slope_.data(), is_.batch, 1);
    const matrix_view<float> bottom_gradient(bottom_gradient_.data(), is_.batch, width);
    if (const status s = logistic_loss_backward(here_, top_.output(),
                                                clicks().labels_of(first_of(step), is_.batch), slope);
        !s) {
      return s;
    }
    if (const status s = top_.backward(here_, slope); !s) return s;
    if (const status s =
            dot_interaction_backward(here_, bottom_.output(), pooled(batch.rows), top_.input_gradient(),
                                     bottom_gradient, pooled(batch.gradient));
        !s) {
      return s;
    }
    if (const status s = bottom_.backward(here_, bottom_gradient, compute_input_gradient::no); !s) return s;
    const adagrad optimizer{.learning_rate = 0.01F};
    if (const status s = bottom_.step(here_, optimizer); !s) return s;
    return top_.step(here_, optimizer);
  }

  /// Training in turn; a lookup sees the updates up to `late` steps before the last one.
  void in_turn(index_t late = 0) {
    std::vector<in_flight> kept(static_cast<std::size_t>(late) + 1, buffers());
    const auto of = [&](index_t t) -> in_flight& { return kept[static_cast<std::size_t>(t % (late + 1))]; };
    for (index_t t = 0; t < is_.steps; ++t) {
      if (t > late) apply(t - late - 1, of(t)).or_throw();
      wait_ms(travel_of(t).request + is_.transfer_ms());
      look_up(t, of(t)).or_throw();
      wait_ms(travel_of(t).answer + is_.transfer_ms());
      compute(t, of(t)).or_throw();
    }
    for (index_t t = std::max<index_t>(0, is_.steps - late - 1); t < is_.steps; ++t) {
      apply(t, of(t)).or_throw();
    }
  }

  /// The steps without their lookups and updates.
  void compute_alone(in_flight& batch) {
    for (index_t t = 0; t < is_.steps; ++t) compute(t, batch).or_throw();
  }

  void wait_ms(double ms) const {
    if (is_.travels) wait_until(after(clock_type::now(), ms));
  }
  void arrive(index_t step, clock_type::time_point sent) const {
    if (is_.travels) {
      wait_until(after(sent, travel_of(step).update + is_.transfer_ms()));
    }
  }

  [[nodiscard]] std::uint64_t checksum() {
    std::uint64_t sum = hash_bytes(
        {reinterpret_cast<const char*>(table_.view().data()), static_cast<std::size_t>(table_.bytes())}, 0);
    for (mlp<>* const stack : {&bottom_, &top_}) {
      const matrix_view<float> all = stack->parameters();
      sum = hash_bytes({reinterpret_cast<const char*>(all.data_handle()),
                        static_cast<std::size_t>(all.extent(1)) * sizeof(float)},
                       sum);
    }
    return sum;
  }

  /// On the clicks that nobody trains on.
  [[nodiscard]] double area() {
    auc all;
    in_flight batch = buffers();
    const index_t begin = clicks().samples - held_out;
    for (index_t first = begin; first + is_.batch <= clicks().samples; first += is_.batch) {
      lookup(here_, table_.view(), clicks().bags(first, is_.batch), combiner::sum,
             matrix_view<float>(batch.rows.data(), is_.batch * slots, width))
          .or_throw();
      forward(first, batch.rows).or_throw();
      all.add(top_.output(), clicks().labels_of(first, is_.batch)).or_throw();
    }
    return all.value();
  }

 private:
  [[nodiscard]] std::size_t floats(index_t columns) const {
    return static_cast<std::size_t>(is_.batch * columns);
  }
  [[nodiscard]] index_t first_of(index_t step) const {
    return step % ((clicks().samples - held_out) / is_.batch) * is_.batch;
  }
  [[nodiscard]] matrix_view<float> pooled(std::vector<float>& of) const {
    return {of.data(), is_.batch, slots * width};
  }
  status forward(index_t first, std::vector<float>& rows) {
    if (const status s = bottom_.forward(here_, clicks().numbers_of(first, is_.batch)); !s) return s;
    const matrix_view<float> out(crossed_.data(), is_.batch, crossed);
    if (const status s = dot_interaction_forward(here_, bottom_.output(), pooled(rows), out); !s) return s;
    return top_.forward(here_, out);
  }

  setting is_;
  inline_executor here_;
  dense_table<f32_rows> table_;
  mlp<> bottom_, top_;
  std::vector<float> crossed_, bottom_gradient_, slope_;
};

/// A trainer under a window, with its threads and buffers, which are kept from run to run.
class windowed {
 public:
  windowed(index_t window, const setting& s)
      : model(s),
        window_(window),
        loop_(window_),
        slots_(static_cast<std::size_t>(loop_.slots()), model.buffers()) {}

  void run() {
    loop_
        .run(
            pool_, [this](stale_step step) { return step.number < model.steps(); },
            [this](stale_step step) -> status {
              const travel times = travel_of(step.number);
              model.wait_ms(times.request);
              {
                const auto reading = window_.read(step.number);
                if (!reading) return reading.outcome();
                if (const status s = model.look_up(step.number, of(step)); !s) return s;
              }
              model.wait_ms(times.answer + model.transfer_ms());
              return {};
            },
            [this](stale_step step) {
              const status done = model.compute(step.number, of(step));
              of(step).sent = clock_type::now();
              return done;
            },
            [this](stale_step step) -> status {
              model.arrive(step.number, of(step).sent);
              const auto writing = window_.apply(step.number);
              if (!writing) return writing.outcome();
              return model.apply(step.number, of(step));
            })
        .or_throw();
  }

  trainer model;

 private:
  in_flight& of(stale_step step) { return slots_[static_cast<std::size_t>(step.slot)]; }

  stale_window<> window_;
  stale_loop<stale_window<>> loop_;
  std::vector<in_flight> slots_;
  thread_pool pool_{thread_pool_options{.threads = 1}};
};

/// Whether the bits are those of the definition: a lookup sees the updates up to W steps before.
bool as_defined(index_t window) {
  windowed ours(window, of_auc(40));
  ours.run();
  trainer plain(of_auc(40));
  plain.in_turn(window - 1);
  return ours.model.checksum() == plain.checksum();
}

double planted_auc() {
  auc all;
  const auto first = static_cast<std::size_t>(clicks().samples - held_out);
  all.add(matrix_view<const float>(clicks().planted.data() + first, held_out, 1),
          clicks().labels_of(clicks().samples - held_out, held_out))
      .or_throw();
  return all.value();
}
double synchronous_auc() {
  static const double area = [] {
    trainer plain(of_auc());
    plain.in_turn();
    return plain.area();
  }();
  return area;
}

void async_embedding(benchmark::State& state, index_t window) {
  for (auto _ : state) {
    if (!as_defined(window)) {
      return state.SkipWithError("wrong answer: the weights are not those of the definition");
    }
    windowed ours(window, published());
    trainer plain(published());
    in_flight rows = plain.buffers();
    plain.look_up(0, rows).or_throw();
    figures f("pipeline/async_embedding/w:" + std::to_string(window));
    if (usable_cpus().size() < 2) f.unfit("one CPU");
    const auto steps = static_cast<double>(published().steps);
    f.sample([&] {
      double compute = 0;
      const auto alone = [&] { compute = seconds_of([&] { plain.compute_alone(rows); }); };
      if (f.swapped()) alone();
      const auto [mine, synchronous] =
          f.pair("speedup", "synchronous", [&] { ours.run(); }, [&] { plain.in_turn(); });
      if (!f.swapped()) alone();
      f.add("share_of_limit", compute / mine);
      f.note("step_ms", mine * 1e3 / steps);
      f.note("synchronous_step_ms", synchronous * 1e3 / steps);
      f.note("compute_ms", compute * 1e3 / steps);
      f.note("predicted", synchronous / std::max(compute, synchronous / static_cast<double>(window)));
    });
    windowed learning(window, of_auc());
    learning.run();
    const double area = learning.model.area();
    f.add("auc_of_synchronous", area / synchronous_auc());
    f.note("auc", area);
    f.note("auc_synchronous", synchronous_auc());
    f.note("auc_planted", planted_auc());
    f.say("simulated servers: 1 +- 0.5 ms each way, rows and gradients of 852 KB at 1.07 GB/s");
    f.report(state);
  }
}

const bool registered = [] {
  for (const int window : {1, 2, 4, 8}) {
    add("pipeline/async_embedding/w:" + std::to_string(window),
        [window](benchmark::State& state, const std::string&) { async_embedding(state, window); });
  }
  return true;
}();

}  // namespace
