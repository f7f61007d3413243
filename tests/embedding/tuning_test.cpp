// Verbs under every tuning: the bits of one thread with the defaults.
#include <deeprec/core/kernel_tuning.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/ops/row_select.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "support/seed.hpp"

using namespace deeprec;

namespace {

constexpr index_t bags = 257, rows = 3000;

struct input {
  std::vector<std::int64_t> offsets{0}, ids, one_hot;
  std::vector<float> gradient;
  std::vector<std::uint8_t> cond;

  input() {
    std::mt19937_64 random(deeprec_test::seed());
    for (index_t b = 0; b < bags; ++b) {
      for (auto n = random() % 20; n > 0; --n) ids.push_back(static_cast<std::int64_t>(random() % rows));
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
      one_hot.push_back(static_cast<std::int64_t>(random() % rows));
      cond.push_back(static_cast<std::uint8_t>(random() % 2));
    }
    gradient.resize(static_cast<std::size_t>(bags * 2 * 70));
    for (float& g : gradient) g = static_cast<float>(random() % 1000) / 500 - 1;
  }
};

// Everything that some verbs wrote, for one width.
template <class Context>
std::vector<float> results(const Context& ctx, const input& in, index_t width) {
  inline_executor here;
  const auto table_of = [&](std::uint64_t seed) {
    dense_table<f32_rows> table(rows, f32_rows(width, {.state_floats = rowwise_adagrad::row_state}));
    table.initialize(here, row_init::uniform{.seed = seed, .bound = 1.0F});
    return table;
  };
  dense_table<f32_rows> first = table_of(1), second = table_of(2);
  const jagged_view<> pooled(in.offsets.data(), bags, in.ids.data(), static_cast<index_t>(in.ids.size()));
  const auto size = static_cast<std::size_t>(bags * 2 * width);
  std::vector<float> out(5 * size);
  const auto part = [&](std::size_t i, index_t columns) {
    return matrix_view<float>(out.data() + i * size, bags, columns);
  };
  const matrix_view<const float> gradient(in.gradient.data(), bags, width);
  CHECK(lookup(ctx, first.view(), pooled, combiner::mean(combiner::by_count), part(0, width)).ok());
  CHECK(
      lookup(ctx, first.view(), fixed_hotness_view(in.one_hot.data(), bags, 1), combiner::sum, part(1, width))
          .ok());
  CHECK(row_select(ctx, in.cond, matrix_view<const float>(part(0, width)),
                   matrix_view<const float>(part(1, width)), part(2, width))
            .ok());
  CHECK(update(ctx, first.view(), pooled, combiner::sum, gradient, rowwise_adagrad{0.1F}).ok());
  feature_group<rowwise_adagrad> group;
  group.add(first.view(), combiner::sum);
  group.add(second.view(), combiner::sum);
  const std::vector<jagged_view<>> both{pooled, pooled};
  CHECK(lookup(ctx, group, both, part(3, 2 * width)).ok());
  CHECK(update(ctx, group, both, matrix_view<const float>(in.gradient.data(), bags, 2 * width),
               rowwise_adagrad{0.1F})
            .ok());
  CHECK(lookup(ctx, group, both, part(4, 2 * width)).ok());
  return out;
}

}  // namespace

TEST_CASE("kernel_tuning: no bit of a result depends on it") {
  const input in;
  inline_executor here;
  thread_pool pool(3);
  for (const index_t width : {index_t{7}, index_t{70}}) {
    const std::vector<float> expected = results(context(here), in, width);
    kernel_tuning least, most;
    for (const tuning_value& v : tuning_values) {
      least.*v.value = v.least;
      most.*v.value = index_t{1} << 40;
    }
    std::vector<kernel_tuning> tunings{least, most, host_tuning()};
    for (const tuning_value& v : tuning_values) {
      for (const kernel_tuning& end : {least, most}) {
        tunings.push_back(host_tuning());
        tunings.back().*v.value = end.*v.value;
      }
    }
    for (std::size_t i = 0; i < tunings.size(); ++i) {
      CAPTURE(i);
      context alone(here);
      alone.tuning = &tunings[i];
      CHECK(results(alone, in, width) == expected);
      context together(pool);
      together.tuning = &tunings[i];
      CHECK(results(together, in, width) == expected);
    }
  }
}
