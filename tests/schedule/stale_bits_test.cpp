// Training under a stale window, bit by bit: plain training for W = 1, a simulation of the definition for
// W > 1, with each optimizer of the library.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "schedule/baton.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::baton;
using deeprec_test::baton_executor;
using deeprec_test::baton_gate;
using deeprec_test::baton_wait;

namespace {

template <class Order = staleness::exact_t>
using scheduled_window = stale_window<Order, baton_wait>;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

constexpr index_t rows = 40, width = 8, hotness = 3, batch = 16;

struct batch_of_step {
  std::vector<std::int64_t> ids;
  std::vector<float> labels;
};
std::vector<batch_of_step> some_batches(index_t steps) {
  const counter_rng rng(deeprec_test::seed());
  std::vector<batch_of_step> all(at(steps));
  for (index_t t = 0; t < steps; ++t) {
    for (index_t k = 0; k < batch * hotness; ++k) {
      all[at(t)].ids.push_back(static_cast<std::int64_t>(
          rng.bits(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(k)) % rows));
    }
    for (index_t b = 0; b < batch; ++b) {
      all[at(t)].labels.push_back(static_cast<float>(
          rng.bits(static_cast<std::uint64_t>(1000 + t), static_cast<std::uint64_t>(b)) % 2));
    }
  }
  return all;
}

// A table and a stack over its pooled rows, both trained by one kind of optimizer.
template <class Optimizer>
struct model {
  dense_table<f32_rows> table;
  mlp<> tower;
  Optimizer row_optimizer, dense_optimizer;
  std::vector<float> slope = std::vector<float>(at(batch));

  explicit model(const Optimizer& optimizer)
      : table(rows,
              f32_rows(width, {.state_floats = Optimizer::row_state + Optimizer::element_state * width})),
        tower({width, 8, 1}, mlp_output::linear, counter_rng(3)),
        row_optimizer(optimizer),
        dense_optimizer(optimizer) {
    table.initialize(inline_executor{}, row_init::uniform{.seed = 5, .bound = 0.5F});
  }
  static fixed_hotness_view<> bags(const batch_of_step& b) { return {b.ids.data(), batch, hotness}; }

  status look_up(const batch_of_step& b, float* pooled) const {
    return lookup(inline_executor{}, table.view(), bags(b), combiner::sum,
                  matrix_view<float>(pooled, batch, width));
  }
  // The gradient of the pooled rows; the stack's step as well, which is never stale.
  status compute(const batch_of_step& b, const float* pooled, float* gradient) {
    const inline_executor here;
    if (const status s = tower.forward(here, {pooled, batch, width}); !s) return s;
    const matrix_view<float> d(slope.data(), batch, 1);
    if (const status s = logistic_loss_backward(here, tower.output(), {b.labels.data(), batch, 1}, d); !s)
      return s;
    if (const status s = tower.backward(here, d); !s) return s;
    for (index_t i = 0; i < batch; ++i) {
      std::copy_n(tower.input_gradient().row(i), width, gradient + i * width);
    }
    if (const status s = tower.step(here, dense_optimizer); !s) return s;
    next_step(dense_optimizer);
    return {};
  }
  status apply(const batch_of_step& b, const float* gradient) {
    const status s = update(inline_executor{}, table.view(), bags(b), combiner::sum,
                            matrix_view<const float>(gradient, batch, width), row_optimizer);
    next_step(row_optimizer);
    return s;
  }
  std::vector<std::byte> bits() {
    const auto of_table = std::span(table.view().data(), static_cast<std::size_t>(table.bytes()));
    std::vector<std::byte> all(of_table.begin(), of_table.end());
    for (const matrix_view<float>& part : {tower.parameters(), tower.state()}) {
      const auto* const first = reinterpret_cast<const std::byte*>(part.data_handle());
      all.insert(all.end(), first, first + at(part.extent(1)) * sizeof(float));
    }
    return all;
  }
};

template <class Optimizer>
std::vector<std::byte> plain_training(const Optimizer& optimizer, const std::vector<batch_of_step>& batches) {
  model<Optimizer> m(optimizer);
  std::vector<float> pooled(at(batch * width)), gradient(pooled.size());
  for (const batch_of_step& b : batches) {
    m.look_up(b, pooled.data()).or_throw();
    m.compute(b, pooled.data(), gradient.data()).or_throw();
    m.apply(b, gradient.data()).or_throw();
  }
  return m.bits();
}

// The definition, step by step: lookups read copies of the table that are kept for W steps.
template <class Optimizer>
std::vector<std::byte> simulated_training(const Optimizer& optimizer,
                                          const std::vector<batch_of_step>& batches, index_t window) {
  model<Optimizer> m(optimizer);
  std::vector<float> pooled(at(batch * width)), gradient(pooled.size());
  const auto bytes = static_cast<std::size_t>(m.table.bytes());
  std::vector<std::vector<std::byte>> versions;
  const auto keep = [&] { versions.emplace_back(m.table.view().data(), m.table.view().data() + bytes); };
  keep();
  for (index_t t = 0; t < static_cast<index_t>(batches.size()); ++t) {
    const std::vector<std::byte> newest = versions.back();
    std::memcpy(m.table.view().data(), versions[at(std::max<index_t>(0, t - window + 1))].data(), bytes);
    m.look_up(batches[at(t)], pooled.data()).or_throw();
    std::memcpy(m.table.view().data(), newest.data(), bytes);
    m.compute(batches[at(t)], pooled.data(), gradient.data()).or_throw();
    m.apply(batches[at(t)], gradient.data()).or_throw();
    keep();
  }
  return m.bits();
}

template <class Window, class Optimizer, class Executor>
std::vector<std::byte> windowed_training(Window& window, index_t requests, const Optimizer& optimizer,
                                         const std::vector<batch_of_step>& batches, Executor& threads,
                                         const std::function<void()>& gate = {}) {
  model<Optimizer> m(optimizer);
  stale_loop loop(window, requests);
  struct buffers {
    std::vector<float> pooled = std::vector<float>(at(batch * width)), gradient = pooled;
  };
  std::vector<buffers> slots(at(loop.slots()));
  const auto pass = [&] {
    if (gate) gate();
  };
  loop.run(
          threads, [&](stale_step step) { return step.number < static_cast<index_t>(batches.size()); },
          [&](stale_step step) -> status {
            pass();
            const auto reading = window.read(step.number);
            pass();
            if (!reading) return reading.outcome();
            return m.look_up(batches[at(step.number)], slots[at(step.slot)].pooled.data());
          },
          [&](stale_step step) {
            pass();
            buffers& mine = slots[at(step.slot)];
            return m.compute(batches[at(step.number)], mine.pooled.data(), mine.gradient.data());
          },
          [&](stale_step step) -> status {
            pass();
            const auto writing = window.apply(step.number);
            pass();
            if (!writing) return writing.outcome();
            return m.apply(batches[at(step.number)], slots[at(step.slot)].gradient.data());
          })
      .or_throw();
  return m.bits();
}

template <class Optimizer>
void bits_of(const char* name, const Optimizer& optimizer) {
  INFO("optimizer ", name);
  const std::vector<batch_of_step> batches = some_batches(12);
  thread_pool pool(2);
  const std::vector<std::byte> plain = plain_training(optimizer, batches);
  for (index_t w = 1; w <= 5; ++w) {
    const std::vector<std::byte> expected = simulated_training(optimizer, batches, w);
    CHECK((expected == plain) == (w == 1));  // the simulation itself
    stale_window window(w);
    CHECK(windowed_training(window, 0, optimizer, batches, pool) == expected);
    CHECK(windowed_training(window, w + 2, optimizer, batches, pool) == expected);  // the window again
  }
  for (int starved = 0; starved < 4; ++starved) {
    baton schedule(starved);
    scheduled_window<> window(2);
    baton_executor threads(schedule);
    schedule.begin();
    const bool same = windowed_training(window, 2, optimizer, batches, threads, baton_gate) ==
                      simulated_training(optimizer, batches, 2);
    schedule.leave();
    CHECK(same);
  }
}

TEST_CASE("stale_loop: W = 1 has the bits of plain training, W > 1 those of the definition, per optimizer") {
  bits_of("sgd", sgd{.learning_rate = 0.1F});
  bits_of("momentum", momentum{.learning_rate = 0.1F});
  bits_of("adagrad", adagrad{.learning_rate = 0.1F});
  bits_of("rowwise_adagrad", rowwise_adagrad{.learning_rate = 0.1F});
  bits_of("adagrad_decay", adagrad_decay{.learning_rate = 0.1F, .decay_every = 3});
  bits_of("rmsprop", rmsprop{});
  bits_of("centered_rmsprop", centered_rmsprop{});
  bits_of("adam", adam{.learning_rate = 0.05F});
  bits_of("rowwise_adam", rowwise_adam{.learning_rate = 0.05F});
  bits_of("adamw", adamw(adam{.learning_rate = 0.05F}, 0.01F));
  bits_of("adam_async", adam_async{});
  bits_of("adam_async_rmsprop", adam_async_rmsprop{});
  bits_of("ftrl", ftrl{});
  bits_of("wrapped", clipped_by_norm{with_weight_decay{sgd{.learning_rate = 0.1F}, 1e-3F}, 0.5F});
}

TEST_CASE("stale_loop: hogwild trains too, and its accesses exclude each other") {
  const std::vector<batch_of_step> batches = some_batches(60);
  thread_pool pool(2);
  stale_window window(4, 1, staleness::hogwild);
  const std::vector<std::byte> bits = windowed_training(window, 0, sgd{.learning_rate = 0.1F}, batches,
                                                        pool);  // and no data race, under tsan
  CHECK(window.was_applied() == 60);
  CHECK(bits != plain_training(sgd{.learning_rate = 0.1F}, some_batches(59)));
}

}  // namespace
