// Growing tables under a stale window and in micro batches: the bits of dense tables.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/schedule/micro_batch.hpp>
#include <deeprec/schedule/stale_loop.hpp>
#include <deeprec/schedule/stale_window.hpp>

#include "growing/twins.hpp"

using namespace growing_test;

namespace {

constexpr index_t rows = 200, width = 8, hotness = 3, samples = 32, step_count = 12;

struct data {
  std::vector<std::vector<std::int64_t>> ids = std::vector<std::vector<std::int64_t>>(at(step_count));
  data() {
    std::mt19937_64 random(seed());
    for (auto& one : ids) {
      for (index_t k = 0; k < samples * hotness; ++k)
        one.push_back(static_cast<std::int64_t>(random() % rows));
    }
  }
  [[nodiscard]] fixed_hotness_view<> bags(index_t step) const {
    return {ids[at(step)].data(), samples, hotness};
  }
};

template <class O>
struct dense_side {
  dense_table<f32_rows> table = dense_of(f32_rows(width, room_for<O>(width)), rows);
  auto source() { return table.view(); }
  status look_up(const auto& ctx, const auto& bags, matrix_view<float> to) {
    return lookup(ctx, source(), bags, combiner::sum, to);
  }
  std::vector<std::byte> row(index_t r) { return row_of(table, r); }
};
/// Empty at first: lookups insert.
template <class O>
struct growing_side {
  explicit growing_side(const table_kind& kind)
      : table(growing_of(f32_rows(width, room_for<O>(width)), kind)) {}
  std::unique_ptr<growing_table<f32_rows>> table;
  auto source() { return table->rows(); }
  status look_up(const auto& ctx, const auto& bags, matrix_view<float> to) {
    const auto found = resolve(ctx, source(), bags, combiner::sum, keys::find_or_insert);
    if (!found) return found.fault();
    return lookup(ctx, found.value(), to);
  }
  std::vector<std::byte> row(index_t r) { return row_of(*table, r); }
};

// What stands for the dense part of a model: a gradient that depends on every value.
void gradient_of(const float* pooled, index_t count, float* gradient) {
  for (index_t i = 0; i < count; ++i) gradient[i] = 0.5F * pooled[i] + (i % 3 == 0 ? 0.25F : -0.125F);
}

template <class Side>
std::vector<std::byte> bytes_of_all(Side& side, const data& of) {
  std::vector<bool> used(at(rows));
  for (const auto& one : of.ids)
    for (const std::int64_t id : one) used[at(id)] = true;
  std::vector<std::byte> all;
  for (index_t r = 0; r < rows; ++r) {
    const std::vector<std::byte> row = side.row(r);
    if (used[at(r)]) all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

template <class O, class Side>
std::vector<std::byte> plain_training(Side&& side, const data& of, const O& optimizer) {
  O own = optimizer;
  const inline_executor here;
  std::vector<float> pooled(at(samples * width)), gradient(pooled.size());
  for (index_t t = 0; t < step_count; ++t) {
    side.look_up(here, of.bags(t), {pooled.data(), samples, width}).or_throw();
    gradient_of(pooled.data(), samples * width, gradient.data());
    update(here, side.source(), of.bags(t), combiner::sum,
           matrix_view<const float>(gradient.data(), samples, width), own)
        .or_throw();
    next_step(own);
  }
  return bytes_of_all(side, of);
}

template <class O, class Side>
std::vector<std::byte> windowed_training(Side&& side, const data& of, const O& optimizer, index_t w,
                                         index_t requests) {
  O own = optimizer;
  thread_pool pool({.threads = 2, .oversubscribe = true});
  stale_window window(w);
  stale_loop loop(window, requests);
  struct buffers {
    std::vector<float> pooled = std::vector<float>(at(samples * width)), gradient = pooled;
  };
  std::vector<buffers> slots(at(loop.slots()));
  const inline_executor here;
  loop.run(
          pool, [&](stale_step step) { return step.number < step_count; },
          [&](stale_step step) -> status {
            const auto reading = window.read(step.number);
            if (!reading) return reading.outcome();
            return side.look_up(here, of.bags(step.number),
                                {slots[at(step.slot)].pooled.data(), samples, width});
          },
          [&](stale_step step) {
            buffers& mine = slots[at(step.slot)];
            gradient_of(mine.pooled.data(), samples * width, mine.gradient.data());
          },
          [&](stale_step step) -> status {
            const auto writing = window.apply(step.number);
            if (!writing) return writing.outcome();
            const matrix_view<const float> slope(slots[at(step.slot)].gradient.data(), samples, width);
            const status s = update(here, side.source(), of.bags(step.number), combiner::sum, slope, own);
            next_step(own);
            return s;
          })
      .or_throw();
  return bytes_of_all(side, of);
}

template <class O>
void check_windows(const O& optimizer) {
  const data of;
  const auto plain = plain_training(dense_side<O>(), of, optimizer);
  CHECK(plain_training(growing_side<O>(every_kind[0]), of, optimizer) == plain);
  for (index_t w = 1; w <= 4; ++w) {
    CAPTURE(w);
    const auto expected = windowed_training(dense_side<O>(), of, optimizer, w, 0);
    CHECK((expected == plain) == (w == 1));
    for (const table_kind& kind : every_kind) {
      CHECK(windowed_training(growing_side<O>(kind), of, optimizer, w, 0) == expected);
      CHECK(windowed_training(growing_side<O>(kind), of, optimizer, w, w + 2) == expected);
    }
  }
}

/// Steps by parts: a part looks up its bags, which inserts keys of a growing table, on several threads.
template <class O, class Side, class Cut>
std::vector<std::byte> micro_training(Side&& side, const data& of, const O& optimizer, const Cut& cut,
                                      int threads) {
  O own = optimizer;
  thread_pool pool({.threads = threads, .oversubscribe = true});
  std::vector<float> pooled(at(samples * width)), gradient(pooled.size());
  const matrix_view<float> rows_of(pooled.data(), samples, width), slope(gradient.data(), samples, width);
  index_t t = 0;
  micro_batch step(cut);
  step.stage("pool", 0, [&](const micro_chunk& chunk) {
    return side.look_up(inline_executor{}, chunk.of(of.bags(t)), chunk.of(rows_of));
  });
  step.stage("dense", 1, [&](const micro_chunk& chunk) {
    const index_t from = chunk.first * width;
    gradient_of(pooled.data() + from, chunk.count * width, gradient.data() + from);
  });
  step.sample_gradient("dense", [&] { return slope; });
  step.update("rows", own, [&] {
    return update(pool, side.source(), of.bags(t), combiner::sum, matrix_view<const float>(slope), own);
  });
  for (; t < step_count; ++t) {
    REQUIRE(step.run(pool, samples).ok());
    next_step(own);
  }
  return bytes_of_all(side, of);
}

template <class O>
void check_micro_batches(const O& optimizer) {
  const data of;
  for (const index_t parts : {1, 3, 5}) {
    CAPTURE(parts);
    const auto expected = micro_training(dense_side<O>(), of, optimizer, parts, 1);
    for (const int threads : {1, 3})
      CHECK(micro_training(growing_side<O>(every_kind[at(parts) % 4]), of, optimizer, parts, threads) ==
            expected);
  }
  const micro_lanes by{.most = 5, .fewest = 3, .samples = 6};
  const auto expected = micro_training(dense_side<O>(), of, optimizer, by, 1);
  for (const int threads : {1, 2, 7}) {
    for (const table_kind& kind : every_kind)
      CHECK(micro_training(growing_side<O>(kind), of, optimizer, by, threads) == expected);
  }
}

}  // namespace

TEST_CASE("stale_loop: growing tables that lookups insert into have the bits of dense tables") {
  check_windows(sgd{.learning_rate = 0.1F});
  check_windows(rowwise_adagrad{.learning_rate = 0.1F});
  check_windows(adam{.learning_rate = 0.05F});
}

TEST_CASE("micro_batch: growing tables that parts of a batch insert into have the bits of dense tables") {
  check_micro_batches(sgd{.learning_rate = 0.1F});
  check_micro_batches(adagrad{.learning_rate = 0.1F});
}

TEST_CASE("stale_loop: hogwild trains a growing table, and its rows are those of the batches") {
  const data of;
  thread_pool pool({.threads = 2, .oversubscribe = true});
  growing_side<sgd> side(every_kind[0]);
  stale_window window(4, 1, staleness::hogwild);
  stale_loop loop(window);
  std::vector<std::vector<float>> slots(at(loop.slots()), std::vector<float>(at(samples * width)));
  const inline_executor here;
  const status s = loop.run(
      pool, [&](stale_step step) { return step.number < step_count; },
      [&](stale_step step) -> status {
        const auto reading = window.read(step.number);
        if (!reading) return reading.outcome();
        return side.look_up(here, of.bags(step.number), {slots[at(step.slot)].data(), samples, width});
      },
      [](stale_step) {},
      [&](stale_step step) -> status {
        const auto writing = window.apply(step.number);
        if (!writing) return writing.outcome();
        side.table->begin_step(static_cast<std::uint64_t>(step.number));
        return update(here, side.source(), of.bags(step.number), combiner::sum,
                      matrix_view<const float>(slots[at(step.slot)].data(), samples, width), sgd{});
      });
  CHECK(s.ok());
  std::vector<bool> used(at(rows));
  for (const auto& one : of.ids)
    for (const std::int64_t id : one) used[at(id)] = true;
  for (index_t r = 0; r < rows; ++r) CHECK(side.row(r).empty() == !used[at(r)]);
}
