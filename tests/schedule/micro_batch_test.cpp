#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/wrappers.hpp>
#include <deeprec/schedule/micro_batch.hpp>

#include "schedule/baton.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::baton;
using deeprec_test::baton_executor;
using deeprec_test::baton_gate;
using deeprec_test::baton_wait;

namespace {

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

TEST_CASE("chunk_of: the remainder is spread over the first parts, and no part is empty") {
  for (index_t samples = 0; samples <= 40; ++samples) {
    for (index_t wanted = 1; wanted <= 45; ++wanted) {
      const index_t chunks = chunk_count(samples, wanted);
      CHECK(chunks == std::min(samples, wanted));
      index_t next = 0;
      double weights = 0;
      for (index_t m = 0; m < chunks; ++m) {
        const micro_chunk c = chunk_of(samples, wanted, m);
        CHECK(c.number == m);
        CHECK(c.chunks == chunks);
        CHECK(c.first == next);
        CHECK(c.count == samples / chunks + (m < samples % chunks ? 1 : 0));
        CHECK(chunk_of(samples, wanted, m, loss_reduction::sum).weight == 1);
        next += c.count;
        weights += static_cast<double>(c.weight);
      }
      CHECK(next == samples);
      if (chunks > 0) CHECK(std::abs(weights - 1) < 1e-5);
    }
  }
}

TEST_CASE("batch_traits: the parts of a value are views of it, and together they are the value") {
  const std::vector<std::int64_t> offsets = {2, 3, 3, 7, 8, 8, 10}, ids = {9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<float> weights = {0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0};
  const jagged_view<> jagged(offsets.data(), 6, ids.data(), 11, weights.data());
  const std::vector<std::int64_t> torch_offsets = {0, 1, 4};
  const auto torch = jagged_view<>::torch(torch_offsets.data(), 3, ids.data(), 6);
  const fixed_hotness_view<> fixed(ids.data(), 5, 2, weights.data());
  const std::vector<std::int64_t> rows = {0, 0, 1, 3, 3, 3, 5}, pairs = {0, 7, 0, 7, 2, 7};
  const coo_view<> coo(rows.data(), ids.data(), 7, 6, weights.data());
  const auto of_pairs = coo_view<>::tensorflow(pairs.data(), ids.data(), 3, 4);
  // Sample by sample: (position in memory, id)
  const auto of_bags = [](const auto& v) {
    std::vector<std::vector<const std::int64_t*>> samples;
    for (index_t b = 0; b < v.bags(); ++b) {
      samples.emplace_back();
      for (index_t k = v.ranges().begin(b); k < v.ranges().end(b); ++k) samples.back().push_back(v.ids() + k);
    }
    return samples;
  };
  const auto of_entries = [](const auto& v) {
    std::vector<std::vector<const std::int64_t*>> samples(at(v.bags()));
    for (index_t k = 0; k < v.id_count(); ++k) samples[at(v.row(k))].push_back(v.ids() + k);
    return samples;
  };
  const auto whole_of_parts = [](const auto& v, const auto& samples_of) {
    using traits = batch_traits<std::remove_cvref_t<decltype(v)>>;
    REQUIRE(traits::check(v).ok());
    for (index_t n = 1; n <= 7; ++n) {
      std::vector<std::vector<const std::int64_t*>> together;
      index_t bytes = 0;
      for (index_t m = 0; m < chunk_count(traits::samples(v), n); ++m) {
        const auto part = chunk_of(traits::samples(v), n, m).of(v);
        CHECK(part.validate().ok());
        bytes += traits::bytes(part);
        for (auto& s : samples_of(part)) together.push_back(std::move(s));
      }
      CHECK(together == samples_of(v));
      CHECK(bytes >= traits::bytes(v));
    }
  };
  whole_of_parts(jagged, of_bags);
  whole_of_parts(torch, of_bags);
  whole_of_parts(fixed, of_bags);
  whole_of_parts(coo, of_entries);
  whole_of_parts(of_pairs, of_entries);
  CHECK(batch_traits<jagged_view<>>::bytes(jagged) == 8 * (8 + 4) + 7 * 8);
  CHECK(batch_traits<fixed_hotness_view<>>::bytes(fixed) == 10 * (8 + 4));
  CHECK(batch_traits<coo_view<>>::bytes(coo) == 7 * (8 + 8 + 4));

  const std::vector<std::int64_t> falling = {1, 0};
  const coo_view<> unordered(falling.data(), ids.data(), 2, 2);
  CHECK(batch_traits<coo_view<>>::check(unordered).code() == errc::unsupported);

  std::vector<float> values(12);
  const matrix_view<float> matrix(values.data(), 4, 2, 3);
  const matrix_view<float> part = chunk_of(4, 3, 1).of(matrix);  // rows 2 ... 3
  CHECK(part.data_handle() == values.data() + 6);
  CHECK(part.extent(0) == 1);
  CHECK(part.stride(0) == 3);
  CHECK(batch_traits<matrix_view<float>>::bytes(matrix) == 32);
  CHECK(chunk_of(12, 5, 1).of(std::span(values)).data() == values.data() + 3);
  CHECK(chunk_of(12, 5, 4).of(array_view<float>(values.data(), 12)).size() == 2);
}

TEST_CASE("batch_traits: a lookup of the parts of entries writes the rows of the whole") {
  const std::vector<std::int64_t> one_each = {0, 1, 2, 3, 4, 5, 6}, gaps = {0, 0, 2, 2, 2, 5, 6},
                                  ids = {4, 0, 1, 3, 3, 2, 4};
  dense_table<f32_rows> table(5, f32_rows(3));
  const inline_executor here;
  table.initialize(here, row_init::uniform{.seed = 1, .bound = 1.0F});
  for (const auto& of_rows : {one_each, gaps}) {
    const coo_view<> entries(of_rows.data(), ids.data(), 7, 7);
    std::vector<float> whole(21, -1.0F), in_parts(21, -2.0F);
    fused_lookup(here, table.view(), entries, combiner::sum, matrix_view<float>(whole.data(), 7, 3))
        .or_throw();
    for (index_t n = 1; n <= 8; ++n) {
      const matrix_view<float> out(in_parts.data(), 7, 3);
      for (index_t m = 0; m < chunk_count(7, n); ++m) {
        const micro_chunk chunk = chunk_of(7, n, m);
        fused_lookup(here, table.view(), chunk.of(entries), combiner::sum, chunk.of(out)).or_throw();
      }
      CHECK(in_parts == whole);
    }
  }
}

// A model whose arithmetic is exact where its numbers are small integers: bags of rows of width 2, summed,
// and a weight for each column. loss of a sample = (weights . pooled) * label.
struct exact_model {
  static constexpr index_t width = 2, table_rows = 5;
  std::vector<float> table = std::vector<float>(at(table_rows * width));
  std::vector<float> weights = {2, -3};
  std::vector<float> weight_gradient = {0, 0};
  std::vector<float> pooled, pooled_gradient;
  int table_updates = 0, weight_updates = 0;
  std::vector<float> applied_table, applied_weights;

  exact_model() {
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 7) - 3;
  }
  void begin(index_t samples) {
    pooled.assign(at(samples * width), 0);
    pooled_gradient.assign(at(samples * width), 0);
  }
  void pool(const fixed_hotness_view<>& bags, matrix_view<float> out) const {
    for (index_t b = 0; b < bags.bags(); ++b) {
      for (index_t j = 0; j < width; ++j) {
        out(b, j) = 0;
        for (index_t k = 0; k < bags.hotness(); ++k) {
          out(b, j) += table[at(bags.ids()[b * bags.hotness() + k] * width + j)];
        }
      }
    }
  }
  // Gradients of a chunk whose loss is the sum, or the mean, over its own samples.
  void backward(matrix_view<const float> x, matrix_view<const float> labels, loss_reduction reduction,
                matrix_view<float> gradient) {
    const float scale = reduction == loss_reduction::sum ? 1.0F : 1.0F / static_cast<float>(x.extent(0));
    std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0F);
    for (index_t b = 0; b < x.extent(0); ++b) {
      for (index_t j = 0; j < width; ++j) {
        weight_gradient[at(j)] += x(b, j) * labels(b, 0) * scale;
        gradient(b, j) = weights[at(j)] * labels(b, 0) * scale;
      }
    }
  }
  void apply_table(const fixed_hotness_view<>& bags) {
    ++table_updates;
    applied_table.assign(at(table_rows * width), 0);
    for (index_t k = 0; k < bags.id_count(); ++k) {
      for (index_t j = 0; j < width; ++j) {
        applied_table[at(bags.ids()[k] * width + j)] += pooled_gradient[at(k / bags.hotness() * width + j)];
      }
    }
  }
  void apply_weights() {
    ++weight_updates;
    applied_weights = weight_gradient;
  }
};

struct exact_batch {
  std::vector<std::int64_t> ids;
  std::vector<float> labels;
  explicit exact_batch(index_t samples, std::uint64_t seed) {
    std::mt19937_64 random(deeprec_test::seed() + seed);
    for (index_t k = 0; k < samples * 3; ++k) ids.push_back(static_cast<std::int64_t>(random() % 5));
    for (index_t b = 0; b < samples; ++b) labels.push_back(static_cast<float>(random() % 9) - 4);
  }
  [[nodiscard]] index_t samples() const { return static_cast<index_t>(labels.size()); }
  [[nodiscard]] fixed_hotness_view<> bags() const { return {ids.data(), samples(), 3}; }
  [[nodiscard]] matrix_view<const float> label_view() const { return {labels.data(), samples(), 1}; }
};

// The step of the exact model in `chunks` parts; the reduction of the loss and the one that is declared.
template <class Wait = adaptive_wait, class Executor>
result<void> exact_step(Executor& executor, exact_model& m, const exact_batch& batch, index_t chunks,
                        loss_reduction of_loss, loss_reduction declared, index_t second_resource = 1) {
  m.begin(batch.samples());
  const auto view = [&](std::vector<float>& v) {
    return matrix_view<float>(v.data(), batch.samples(), exact_model::width);
  };
  micro_batch<Wait> step(chunks, declared);
  step.stage("pool", 0, [&](const micro_chunk& chunk) {
    baton_gate();
    m.pool(chunk.of(batch.bags()), chunk.of(view(m.pooled)));
  });
  step.stage("dense", second_resource, [&](const micro_chunk& chunk) {
    baton_gate();
    m.backward(chunk.of(view(m.pooled)), chunk.of(batch.label_view()), of_loss,
               chunk.of(view(m.pooled_gradient)));
    baton_gate();
  });
  step.sum_gradient("dense", [&] { return matrix_view<float>(m.weight_gradient.data(), 1, 2); });
  step.sample_gradient("dense", [&] { return view(m.pooled_gradient); });
  step.update("weights", sgd{}, [&] { m.apply_weights(); });
  step.update("table", sgd{}, [&] { m.apply_table(batch.bags()); });
  return step.run(executor, batch.samples());
}
exact_model whole_batch(const exact_batch& batch, loss_reduction reduction) {
  exact_model m;
  const inline_executor here;
  exact_step(here, m, batch, 1, reduction, reduction, 0).or_throw();
  return m;
}

TEST_CASE("micro_batch: gradients of integers are exactly those of the whole batch, for every remainder") {
  thread_pool pool(1);
  for (index_t b = 1; b <= 17; ++b) {
    const exact_batch batch(b, static_cast<std::uint64_t>(b));
    const exact_model whole = whole_batch(batch, loss_reduction::sum);
    for (index_t n = 1; n <= 9; ++n) {
      exact_model m;
      REQUIRE(exact_step(pool, m, batch, n, loss_reduction::sum, loss_reduction::sum).ok());
      INFO("B ", b, ", N ", n);
      CHECK(m.applied_weights == whole.applied_weights);
      CHECK(m.applied_table == whole.applied_table);
      CHECK(m.weight_updates == 1);
      CHECK(m.table_updates == 1);
    }
  }
}

TEST_CASE("micro_batch: gradients of a mean are those of the whole batch within the stated bound") {
  thread_pool pool(1);
  int unweighted_differ = 0;
  for (index_t b = 1; b <= 17; ++b) {
    const exact_batch batch(b, static_cast<std::uint64_t>(100 + b));
    const exact_model whole = whole_batch(batch, loss_reduction::mean);
    for (index_t n = 1; n <= 9; ++n) {
      const auto close = [&](const std::vector<float>& a, const std::vector<float>& c) {
        // magnitudes are below 60: sums over B samples and over N parts
        const double bound = static_cast<double>(n + b + 4) * 0x1p-24 * 60;
        for (std::size_t i = 0; i < a.size(); ++i) {
          if (std::abs(static_cast<double>(a[i]) - static_cast<double>(c[i])) > bound) return false;
        }
        return true;
      };
      exact_model m, broken;
      REQUIRE(exact_step(pool, m, batch, n, loss_reduction::mean, loss_reduction::mean).ok());
      CHECK(close(m.applied_weights, whole.applied_weights));
      CHECK(close(m.applied_table, whole.applied_table));
      if (n == 1) CHECK(m.applied_weights == whole.applied_weights);
      // A variant without weights is caught.
      REQUIRE(exact_step(pool, broken, batch, n, loss_reduction::mean, loss_reduction::sum).ok());
      if (!close(broken.applied_weights, whole.applied_weights)) ++unweighted_differ;
    }
  }
  CHECK(unweighted_differ > 80);
}

TEST_CASE("micro_batch: the result does not depend on the schedule") {
  const exact_batch batch(13, 7);
  exact_model expected;
  const inline_executor here;
  REQUIRE(exact_step(here, expected, batch, 5, loss_reduction::mean, loss_reduction::mean, 0).ok());
  for (int run = 0; run < 60; ++run) {
    baton schedule(run < 4 ? run - 1 : -1,
                   run < 4 ? 0 : deeprec_test::seed() + static_cast<std::uint64_t>(run));
    exact_model m;
    {
      baton_executor threads(schedule);
      schedule.begin();
      const bool ok =
          exact_step<baton_wait>(threads, m, batch, 5, loss_reduction::mean, loss_reduction::mean).ok();
      schedule.leave();
      CHECK(ok);
    }
    CHECK(m.applied_weights == expected.applied_weights);  // the bits
    CHECK(m.applied_table == expected.applied_table);
    CHECK(m.table_updates == 1);
  }
}

TEST_CASE("micro_batch: an empty batch calls nothing, and one part is the plain step") {
  const exact_batch none(0, 1);
  exact_model m;
  thread_pool pool(1);
  CHECK(exact_step(pool, m, none, 4, loss_reduction::mean, loss_reduction::mean).ok());
  CHECK(m.table_updates == 0);
  CHECK(m.weight_updates == 0);
  int parts = 0;
  micro_batch step(9);
  step.stage("count", 0, [&](const micro_chunk& chunk) {
    ++parts;
    CHECK(chunk.count == 1);
  });
  const inline_executor here;
  CHECK(step.run(here, 3).ok());  // more parts than samples
  CHECK(parts == 3);
  CHECK(step.report().chunks == 3);
  CHECK(step.run(here, -1).code() == errc::invalid_value);
}

// --- H20 ------------------------------------------------------------------------------------------------

struct per_sample_clipping {};  // an optimizer that says nothing
struct silent_optimizer {
  static constexpr int row_state = 0;
  static constexpr int element_state = 0;
  static constexpr bool needs_mean_square = false;
  steps::scaled_step begin_row(float*, float) const noexcept { return {0.1F}; }
};
struct batch_norm {
  static constexpr bool sample_wise = false;
};

TEST_CASE("hazard H20: an optimizer or a layer that can't be treated is an error that names it") {
  const inline_executor here;
  int called = 0;
  {
    micro_batch step(2);
    step.stage("all", 0, [&](const micro_chunk&) { ++called; });
    step.update("user table", per_sample_clipping{}, [&] { ++called; });
    CHECK_FALSE(step.check().ok());
    const result<void> done = step.run(here, 8);
    CHECK(done.code() == errc::unsupported);
    CHECK(done.fault().message().find("user table") != std::string::npos);
    CHECK(done.fault().message().find("per_sample_clipping") != std::string::npos);
    CHECK(done.fault().message().find("steps_on_sums") != std::string::npos);
  }
  {
    micro_batch step(2);
    step.stage("all", 0, [&](const micro_chunk&) { ++called; });
    step.layer("norm of the tower", batch_norm{});
    const result<void> done = step.run(here, 8);
    CHECK(done.code() == errc::unsupported);
    CHECK(done.fault().message().find("norm of the tower") != std::string::npos);
    CHECK(done.fault().message().find("batch_norm") != std::string::npos);
  }
  CHECK(called == 0);
  {
    micro_batch step(2);
    step.update("rows", with_gradient_scale<silent_optimizer>{}, [] {});
    CHECK(step.check().code() == errc::unsupported);  // a wrapper is as what it wraps
  }
  micro_batch step(2);
  step.layer("tower", mlp<>({2, 1}, mlp_output::linear, counter_rng(1)));
  step.update("one", sgd{}, [] {});
  step.update("two", adam{}, [] {});
  step.update("three", clipped_by_norm{rowwise_adagrad{}, 1.0F}, [] {});
  CHECK(step.check().ok());
  CHECK(step.run(here, 8).ok());
}

TEST_CASE("micro_batch: what is declared wrongly is an error that names it") {
  const inline_executor here;
  const auto text = [&](auto&& declare) {
    micro_batch step(2);
    declare(step);
    const result<void> done = step.run(here, 4);
    return done.ok() ? std::string() : done.fault().message();
  };
  const auto nothing = [](const micro_chunk&) {};
  CHECK(text([&](auto& s) { s.stage("a", 0, nothing), s.stage("a", 0, nothing); }).find("\"a\"") !=
        std::string::npos);
  CHECK(text([&](auto& s) { s.update("v", sgd{}, [] {}), s.update("v", sgd{}, [] {}); }).find("\"v\"") !=
        std::string::npos);
  CHECK(text([&](auto& s) { s.sum_gradient("b", [] { return matrix_view<float>(); }); }).find("\"b\"") !=
        std::string::npos);
  CHECK(text([&](auto& s) { s.stage("a", -1, nothing); }).find("resource") != std::string::npos);
  CHECK(text([&](auto& s) { s.stage("a", 1, nothing); }).find("threads of their own") != std::string::npos);
  micro_batch none(0);
  CHECK(none.run(here, 4).code() == errc::invalid_value);
}

// --- a row that several parts use ----------------------------------------------------------------------

constexpr index_t rows = 6, width = 4, hotness = 2;

dense_table<f32_rows> trained_table() {
  dense_table<f32_rows> table(rows, f32_rows(width, {.state_floats = width}));
  table.initialize(inline_executor{}, row_init::uniform{.seed = 3, .bound = 0.5F});
  return table;
}
std::vector<float> values_of(const dense_table<f32_rows>& table) {
  const auto* const first = reinterpret_cast<const float*>(table.view().data());
  return {first, first + static_cast<std::size_t>(table.bytes()) / sizeof(float)};
}

// [micro_batch]
TEST_CASE("micro_batch: a table and a stack get one step each, with the gradient of the batch") {
  constexpr index_t samples = 11;
  const exact_batch drawn(samples, 3);
  const fixed_hotness_view<> bags(drawn.ids.data(), samples, hotness);  // ids 0 ... 4: many duplicates
  std::vector<float> label(at(samples)), pooled(at(samples * width)), gradient(pooled.size()),
      slope(label.size());
  for (std::size_t i = 0; i < label.size(); ++i) label[i] = drawn.labels[i] > 0 ? 1.0F : 0.0F;
  const matrix_view<const float> labels(label.data(), samples, 1);
  const matrix_view<float> x(pooled.data(), samples, width), dx(gradient.data(), samples, width);
  const inline_executor here;
  thread_pool pool(1);
  const adagrad optimizer{.learning_rate = 0.1F};

  const auto train = [&](index_t parts, int resources) {
    dense_table<f32_rows> table = trained_table();
    mlp<> tower({width, 3, 1}, mlp_output::linear, counter_rng(9));
    int steps = 0;
    micro_batch step(parts);
    step.stage("lookup", 0, [&](const micro_chunk& chunk) {
      return lookup(here, table.view(), chunk.of(bags), combiner::sum, chunk.of(x));
    });
    step.stage("tower", resources - 1, [&](const micro_chunk& chunk) -> status {
      if (const status s = tower.forward(here, chunk.of(x)); !s) return s;
      const matrix_view<float> d(slope.data() + chunk.first, chunk.count, 1);
      if (const status s = logistic_loss_backward(here, tower.output(), chunk.of(labels), d); !s) return s;
      if (const status s = tower.backward(here, d); !s) return s;
      const matrix_view<float> of_chunk = chunk.of(dx);
      for (index_t i = 0; i < chunk.count; ++i) {
        std::copy_n(tower.input_gradient().row(i), width, of_chunk.row(i));
      }
      return {};
    });
    step.layer("tower", tower);
    step.sum_gradient("tower", [&] { return tower.gradients(); });
    step.sample_gradient("tower", [&] { return dx; });
    step.update("tower", optimizer, [&] { return tower.step(here, optimizer); });
    step.update("rows", optimizer, [&] {
      ++steps;
      return update(here, table.view(), bags, combiner::sum, dx, optimizer);
    });
    for (int batch = 0; batch < 3; ++batch) step.run(pool, samples).or_throw();
    CHECK(steps == 3);
    std::vector<float> all = values_of(table);
    all.insert(all.end(), tower.parameters().data_handle(),
               tower.parameters().data_handle() + tower.parameters().extent(1));
    return all;
  };
  const std::vector<float> whole = train(1, 1);
  for (index_t parts = 1; parts <= 12; ++parts) {
    const std::vector<float> in_parts = train(parts, 2);
    CHECK(in_parts == train(parts, 1));  // the bits, whatever the resources
    CHECK((parts > 1 || in_parts == whole));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      CHECK(std::abs(in_parts[i] - whole[i]) <= 2e-5F * (1 + std::abs(whole[i])));
    }
  }
  // Two updates for a row that two parts use are caught: Adagrad's steps add up to something else.
  dense_table<f32_rows> twice = trained_table(), once = trained_table();
  update(here, once.view(), bags, combiner::sum, matrix_view<const float>(dx), optimizer).or_throw();
  for (index_t m = 0; m < 2; ++m) {
    const micro_chunk chunk = chunk_of(samples, 2, m);
    update(here, twice.view(), chunk.of(bags), combiner::sum, matrix_view<const float>(chunk.of(dx)),
           optimizer)
        .or_throw();
  }
  const std::vector<float> a = values_of(once), b = values_of(twice);
  float furthest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) furthest = std::max(furthest, std::abs(a[i] - b[i]));
  CHECK(furthest > 1e-3F);
}
// [micro_batch]

TEST_CASE("micro_batch: sparse gradients of the parts are summed row by row") {
  for (index_t samples = 1; samples <= 12; ++samples) {
    const exact_batch drawn(samples, static_cast<std::uint64_t>(40 + samples));
    const fixed_hotness_view<> bags(drawn.ids.data(), samples, hotness);
    std::vector<float> g(at(samples * width));
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<float>(i % 11) - 5;
    const matrix_view<const float> gradient(g.data(), samples, width);
    const inline_executor here;
    sparse_gradient whole, of_chunk;
    row_gradients(here, rows, bags, combiner::sum, gradient, whole).or_throw();
    for (index_t parts = 1; parts <= 5; ++parts) {
      int updates = 0;
      micro_batch step(parts, loss_reduction::sum);
      step.stage("gradient", 0, [&](const micro_chunk& chunk) {
        return row_gradients(here, rows, chunk.of(bags), combiner::sum, chunk.of(gradient), of_chunk);
      });
      step.sum_gradient("gradient", [&]() -> sparse_gradient& { return of_chunk; });
      step.update("rows", sgd{}, [&] {
        ++updates;
        CHECK(of_chunk.rows == whole.rows);
        CHECK(of_chunk.values == whole.values);  // integers
      });
      step.run(here, samples).or_throw();
      step.run(here, samples).or_throw();
      CHECK(updates == 2);
    }
  }
}

// --- the schedule -------------------------------------------------------------------------------------

// A discrete simulation of the library's choice of tasks: the time at which the last one ends.
index_t makespan(index_t chunks, const std::vector<index_t>& resource_of,
                 const std::vector<std::vector<index_t>>& duration) {
  const auto stages = static_cast<index_t>(resource_of.size());
  const index_t resources = *std::max_element(resource_of.begin(), resource_of.end()) + 1;
  std::vector<index_t> done(at(stages), 0), free_at(at(resources), 0);
  std::vector<detail::chunk_task> running(at(resources));
  index_t now = 0;
  while (true) {
    bool any = false;
    for (index_t r = 0; r < resources; ++r) {
      if (running[at(r)].stage < 0) {
        detail::chunk_task task;
        const auto choice = detail::next_task(
            stages, chunks, r, [&](index_t s) { return resource_of[at(s)]; },
            [&](index_t s) { return done[at(s)]; }, task);
        if (choice == detail::chunk_choice::found) {
          running[at(r)] = task;
          free_at[at(r)] = now + duration[at(task.stage)][at(task.chunk)];
        }
      }
      any = any || running[at(r)].stage >= 0;
    }
    if (!any) return now;
    index_t next = -1;
    for (index_t r = 0; r < resources; ++r) {
      if (running[at(r)].stage >= 0 && (next < 0 || free_at[at(r)] < next)) next = free_at[at(r)];
    }
    now = next;
    for (index_t r = 0; r < resources; ++r) {
      if (running[at(r)].stage >= 0 && free_at[at(r)] == now) {
        ++done[at(running[at(r)].stage)];
        running[at(r)] = {};
      }
    }
  }
}

TEST_CASE("micro_batch: the makespan on simulated resources is the bound of the schedule") {
  std::mt19937_64 random(deeprec_test::seed());
  for (int draw = 0; draw < 300; ++draw) {
    const auto stages = static_cast<index_t>(random() % 5 + 1);
    const auto chunks = static_cast<index_t>(random() % 8 + 1);
    std::vector<std::vector<index_t>> duration(at(stages));
    std::vector<index_t> apart, together(at(stages), 0);
    index_t fill = 0, bottleneck = 0;
    for (index_t s = 0; s < stages; ++s) {
      const auto d = static_cast<index_t>(random() % 9 + 1);
      duration[at(s)].assign(at(chunks), d);
      apart.push_back(s);
      fill += d;
      bottleneck = std::max(bottleneck, d);
    }
    // A resource for each stage: fill, then the bottleneck for each further chunk. One for all: the sum.
    CHECK(makespan(chunks, apart, duration) == fill + (chunks - 1) * bottleneck);
    CHECK(makespan(chunks, together, duration) == chunks * fill);
    // Chunks of any durations: the recurrence end(s, m) = max(end(s - 1, m), end(s, m - 1)) + duration(s, m).
    std::vector<index_t> end(at(stages), 0);
    for (index_t m = 0; m < chunks; ++m) {
      for (index_t s = 0; s < stages; ++s) {
        index_t& d = duration[at(s)][at(m)];
        d = static_cast<index_t>(random() % 9 + 1);
        end[at(s)] = std::max(end[at(s)], s > 0 ? end[at(s - 1)] : 0) + d;
      }
    }
    CHECK(makespan(chunks, apart, duration) == end.back());
  }
}

TEST_CASE("micro_batch: stages of different chunks run at once") {
  thread_pool pool(1);
  micro_batch step(2);
  std::atomic<int> second_begun{0};
  // Stage b of chunk 0 ends only when stage a of chunk 1 has begun.
  step.stage("a", 0, [&](const micro_chunk& chunk) {
    if (chunk.number == 1) second_begun = 1;
  });
  step.stage("b", 1, [&](const micro_chunk& chunk) {
    while (chunk.number == 0 && second_begun.load() == 0) std::this_thread::yield();
  });
  CHECK(step.run(pool, 2).ok());
}

// --- failures -------------------------------------------------------------------------------------------

TEST_CASE("micro_batch: a failure of any stage of any chunk ends the step without an update, and is named") {
  struct live {
    explicit live(std::atomic<int>& n) : count(n) { ++count; }
    ~live() { --count; }
    std::atomic<int>& count;
  };
  std::atomic<int> alive{0};
  for (const int kind : {0, 1, 2}) {  // a status, an exception, a stop request
    for (const char* const bad_stage : {"a", "b", "c"}) {
      for (index_t bad_chunk = 0; bad_chunk < 3; ++bad_chunk) {
        for (int starved = -2; starved < 3; ++starved) {
          baton schedule(starved);
          std::stop_source stop;
          int updates = 0;
          bool bad = true;
          errc code = errc::ok;
          std::string thrown, part;
          index_t chunk_named = -1;
          const auto body = [&]<class Wait>(auto& executor, Wait) {
            micro_batch<Wait> step(3);
            for (const char* const name : {"a", "b", "c"}) {
              step.stage(name, name[0] - 'a', [&, name](const micro_chunk& chunk) -> status {
                baton_gate();
                const live here(alive);
                if (!bad || std::string(name) != bad_stage || chunk.number != bad_chunk) return {};
                if (kind == 1) throw std::runtime_error(name);
                if (kind == 2) stop.request_stop();
                return kind == 0 ? status(errc::io_error, "gone") : status();
              });
            }
            step.update("v", sgd{}, [&] { ++updates; });
            try {
              code = step.run(executor, 3, stop.get_token()).code();
            } catch (const std::runtime_error& e) {
              thrown = e.what();
            }
            part = step.report().part;
            chunk_named = step.report().chunk;
            CHECK(updates == 0);
            bad = false;
            CHECK(step.run(executor, 3).ok());  // the next batch
            CHECK(updates == 1);
          };
          if (starved == -2) {
            thread_pool pool(1);
            body(pool, adaptive_wait{});
          } else {
            baton_executor threads(schedule);
            schedule.begin();
            body(threads, baton_wait{});
            schedule.leave();
          }
          CHECK(alive.load() == 0);
          if (kind == 2) {
            CHECK(code == errc::stopped);
          } else {
            CHECK(part == bad_stage);
            CHECK(chunk_named == bad_chunk);
            CHECK((kind == 0 ? code == errc::io_error : thrown == bad_stage));
          }
        }
      }
    }
  }
}

TEST_CASE("micro_batch: the update that fails is named, and the executor may end first") {
  auto pool = std::make_unique<thread_pool>(1);
  micro_batch step(2);
  step.stage("a", 1, [](const micro_chunk&) {});
  step.update("first", sgd{}, [] {});
  step.update("second", sgd{}, [] { return status(errc::io_error, "gone"); });
  CHECK(step.run(*pool, 2).code() == errc::io_error);
  CHECK(step.report().part == "second");
  CHECK(step.report().chunk == -1);
  pool.reset();
  thread_pool narrow(thread_pool_options{.threads = 1, .task_threads = 1});
  micro_batch wide(2);
  wide.stage("a", 1, [](const micro_chunk&) {});
  wide.stage("b", 2, [](const micro_chunk&) {});
  CHECK(wide.run(narrow, 2).code() == errc::would_block);
}

}  // namespace
