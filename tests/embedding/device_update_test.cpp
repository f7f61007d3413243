// The bodies of the device's update kernels, on the host: same vectors, same oracle. The sort is the
// host's.

#include <deeprec/embedding/training/detail/device_update.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/batches.hpp"
#include "support/seed.hpp"
#include "support/teams.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using batch_task = detail::pool_task<std::int64_t, detail::offset_ranges<std::int64_t>, float>;
using made_batch = batch<std::int64_t, std::int64_t>;

template <class Pooling>
detail::chosen_rules chosen() {
  using rules = detail::rules_of<Pooling>;
  return {rules::adding(), rules::filtered(), rules::clips(), rules::checks(), rules::prunes()};
}

/// What the kernels do, one after the other.
template <int Vec, class Optimizer, class Format, class Pooling, class Rounding = rounding::nearest_t>
device_fault update_as_device(const made_batch& made, bool weighted, const std::vector<float>& gradient,
                              const Pooling& how, const Optimizer& optimizer, std::byte* table, index_t rows,
                              Format format, int lanes, bool chunked, const Rounding& rounding = {}) {
  const auto bags = made.view(weighted);
  device_fault fault{};
  auto batch = detail::task_of<batch_task>(
      basic_table_view<Format, device_space, std::byte>(table, rows, format), how, weighted);
  detail::set_bags(batch, bags);
  batch.fault = &fault;
  const bool fills = batch.empty == detail::when_empty::default_row;
  const auto n = static_cast<std::size_t>(bags.id_count() + (fills ? bags.bags() : 0));
  std::vector<std::uint32_t> keys(n, detail::absent_key), values(n), bag_of(n), order(n), sorted_keys(n),
      ids(n);
  std::vector<float> scale(static_cast<std::size_t>(bags.bags())), factors(n);
  const bool divides = batch.divide != detail::divide_by::one;
  const detail::expanded_positions slots{keys.data(), values.data(), weighted ? bag_of.data() : nullptr,
                                         divides || fills ? scale.data() : nullptr};
  on_team(lanes, [&](const auto& team) {
    for (index_t b = 0; b < bags.bags(); ++b) detail::expand_bag(chosen<Pooling>(), team, batch, b, slots);
  });
  // As the radix sort: stable, by the low bits only.
  const std::uint32_t mask = static_cast<std::uint32_t>((std::uint64_t{1} << detail::key_bits(rows)) - 1);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return (keys[a] & mask) < (keys[b] & mask); });
  for (std::size_t i = 0; i < n; ++i) {
    sorted_keys[i] = keys[order[i]];
    ids[i] = values[order[i]];
    if (sorted_keys[i] != detail::absent_key && (divides || weighted)) {
      factors[i] =
          detail::factor_of_position(slots, made.weights.data(), bags.id_count(), values[order[i]], ids[i]);
    }
  }
  const auto prepared = detail::prepare(optimizer);
  detail::step_task<typename Format::element, std::remove_const_t<decltype(prepared)>, Rounding> task{
      {}, sorted_keys.data(), static_cast<index_t>(n), 0, prepared, rounding};
  detail::set_rows(task, table_view<Format>(table, rows, format));
  if constexpr (detail::rules_of<Pooling>::clips()) task.max_norm = batch.max_norm;
  task.gradient.table = reinterpret_cast<const std::byte*>(gradient.data());
  task.gradient.stride = format.width() * 4;
  task.gradient.width = format.width();
  task.gradient.ids = ids.data();
  task.gradient.weights = divides || weighted ? factors.data() : nullptr;
  task.gradient.id_count = static_cast<index_t>(n);
  const index_t records = chunked ? detail::chunk_sums::records(task.entries) : 0;
  std::vector<float> sums(static_cast<std::size_t>(records * format.width()));
  std::vector<detail::chunk_count> counts(static_cast<std::size_t>(records));
  if (chunked) task.gradient.chunks = {sums.data(), counts.data()};
  const int panels = static_cast<int>((format.width() + lanes * Vec - 1) / (lanes * Vec));
  on_team(lanes, [&](const auto& team) {
    for (index_t r = 0; r < records; ++r) {
      for (int p = 0; p < panels; ++p) detail::sum_run_chunk<Vec>(team, task, r, p);
    }
  });
  on_team(lanes, [&](const auto& team) {  // another launch: it sees all that the first one wrote
    for (index_t i = 0; i < task.entries; i += lanes) {
      detail::step_crossing_runs<Optimizer, Vec>(team, task, i, panels > 1);
      if (panels == 1) detail::step_inner_runs<Optimizer, Vec>(team, task, i);
    }
  });
  return fault;
}

/// The gradient of every row that a valid batch used, in double.
template <class Combiner>
std::map<std::int64_t, std::vector<double>> gradients(const made_batch& made, bool weighted,
                                                      const std::vector<float>& gradient, index_t width,
                                                      Combiner) {
  std::map<std::int64_t, std::vector<double>> of;
  for (std::size_t b = 0; b + 1 < made.offsets.size(); ++b) {
    detail::pool_counts counts;
    for (auto k = made.offsets[b]; k < made.offsets[b + 1]; ++k) {
      counts.add(weighted ? static_cast<double>(made.weights[static_cast<std::size_t>(k)]) : 1.0);
    }
    const double by = counts.divisor(detail::divisor_of<Combiner>());
    for (auto k = made.offsets[b]; k < made.offsets[b + 1]; ++k) {
      auto& g = of[made.ids[static_cast<std::size_t>(k)]];
      g.resize(static_cast<std::size_t>(width));
      const double w = weighted ? static_cast<double>(made.weights[static_cast<std::size_t>(k)]) : 1.0;
      for (std::size_t j = 0; j < g.size(); ++j) {
        g[j] += by == 0 ? 0 : w / by * static_cast<double>(gradient[b * g.size() + j]);
      }
    }
  }
  return of;
}

template <class format_type, int Vec, class Optimizer, class Combiner>
double worst(Optimizer optimizer, Combiner how, shape_of_batch shape, bool weighted, int lanes, index_t width,
             bool chunked = false, bool broken = false, float size_of_gradient = 1) {
  std::mt19937_64 random(seed());
  std::normal_distribution<float> normal;
  const index_t rows = 40, bags = 24, states = Optimizer::row_state + Optimizer::element_state * width;
  const format_type format(width, {.state_floats = states});
  const auto made = make_batch(random, shape, bags, rows, chunked ? 90 : 5);
  std::vector<float> gradient(static_cast<std::size_t>(bags * width));
  for (float& g : gradient) g = size_of_gradient * normal(random);
  std::vector<std::byte> table(static_cast<std::size_t>(rows * format.stride_bytes()) + 16);
  std::byte* const first = table.data() + (16 - reinterpret_cast<std::uintptr_t>(table.data()) % 16) % 16;
  std::vector<std::vector<float>> weights(rows, std::vector<float>(static_cast<std::size_t>(width)));
  std::vector<std::vector<float>> state(rows, std::vector<float>(static_cast<std::size_t>(states) + 1));
  for (std::size_t r = 0; r < weights.size(); ++r) {
    std::byte* const row = first + static_cast<index_t>(r) * format.stride_bytes();
    for (float& w : weights[r]) w = normal(random);
    format.encode(weights[r].data(), row);
    format.decode(row, weights[r].data());
  }
  const auto of = gradients(made, weighted, gradient, width, how);
  double error = 0;
  for (int step = 0; step < 2; ++step) {
    CHECK(update_as_device<Vec>(made, weighted && !broken, gradient, pooling{how}, optimizer, first, rows,
                                format, lanes, chunked)
              .code == 0);
    for (const auto& [r, g] : of) {
      const std::vector<float> as_float(g.begin(), g.end());
      apply_row(optimizer, weights[static_cast<std::size_t>(r)].data(), as_float.data(),
                state[static_cast<std::size_t>(r)].data(), width);
    }
    next_step(optimizer);
  }
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::size_t r = 0; r < weights.size(); ++r) {
    format.decode(first + static_cast<index_t>(r) * format.stride_bytes(), row.data());
    for (std::size_t j = 0; j < row.size(); ++j) {
      error = std::fmax(error, std::fabs(static_cast<double>(row[j]) - static_cast<double>(weights[r][j])));
    }
  }
  return error;
}

}  // namespace

TEST_CASE("device update: as many bits as a row's number has") {
  CHECK(detail::key_bits(1) == 1);
  CHECK(detail::key_bits(2) == 2);
  CHECK(detail::key_bits(255) == 8);
  CHECK(detail::key_bits(256) == 9);
  CHECK(detail::key_bits(index_t{1} << 31) == 32);
  CHECK(detail::key_bits(0xfffffffe) == 32);
  for (const index_t rows : {1, 2, 3, 4, 7, 8, 100, 127, 128}) {  // absent sorts behind the last row
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << detail::key_bits(rows)) - 1);
    CHECK(static_cast<std::uint32_t>(rows - 1) < (detail::absent_key & mask));
  }
}

TEST_CASE("device update: runs of equal keys are found from any of their positions") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint32_t> keys;
    for (std::uint32_t key = 0; key < 12; ++key)
      keys.insert(keys.end(), random() % (key % 3 == 0 ? 40 : 3), key);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto range = std::equal_range(keys.begin(), keys.end(), keys[i]);
      const index_t begin = detail::begin_of_run(keys.data(), static_cast<index_t>(i));
      CHECK(begin == range.first - keys.begin());
      CHECK(detail::end_of_run(keys.data(), static_cast<index_t>(keys.size()), begin) ==
            range.second - keys.begin());
    }
  }
}

TEST_CASE("device update: every kind of optimizer, by lanes in lockstep") {
  for (const int lanes : {1, 4}) {
    CHECK(worst<f32_rows, 4>(sgd{.learning_rate = 0.1F}, combiner::sum, shape_of_batch::skewed, false, lanes,
                             20) < 1e-5);
    CHECK(worst<f32_rows, 4>(rowwise_adagrad{.learning_rate = 0.1F}, combiner::mean, shape_of_batch::skewed,
                             true, lanes, 40) < 1e-4);
    CHECK(worst<f32_rows, 4>(rowwise_adagrad{.learning_rate = 0.1F}, combiner::mean, shape_of_batch::skewed,
                             false, lanes, 40, false, false, 4e18F) < 1e-4);  // the sum overflows
  }
  CHECK(worst<f32_rows, 1>(adam{.learning_rate = 0.1F, .epsilon = 1e-2F}, combiner::sqrtn,
                           shape_of_batch::many_empty, true, 1, 7) < 1e-4);
  CHECK(worst<f32_rows, 4>(clipped_by_norm{with_weight_decay{adagrad{.learning_rate = 0.1F}, 0.1F}, 0.5F},
                           combiner::sum, shape_of_batch::uniform, false, 4, 12) < 1e-4);
  CHECK(worst<bf16_rows, 4>(sgd{.learning_rate = 0.1F}, combiner::sum, shape_of_batch::uniform, false, 1, 8) <
        0.02);
  CHECK(worst<split_bf16_rows, 4>(sgd{.learning_rate = 0.1F}, combiner::sum, shape_of_batch::uniform, true, 1,
                                  8) < 1e-5);
  CHECK(worst<f32_rows, 4>(sgd{.learning_rate = 0.1F}, combiner::sum, shape_of_batch::uniform, true, 1, 8,
                           false,
                           true) > 1e-2);  // broken
}

TEST_CASE(
    "device update: runs of many slots are summed in chunks, with the same rows for any number of lanes") {
  CHECK(worst<f32_rows, 4>(sgd{.learning_rate = 0.01F}, combiner::sum, shape_of_batch::ends, true, 1, 8,
                           true) < 1e-3);
  CHECK(worst<f32_rows, 4>(sgd{.learning_rate = 0.01F}, combiner::sum, shape_of_batch::ends, false, 2, 8,
                           true) < 1e-3);
  CHECK(worst<f32_rows, 4>(sgd{.learning_rate = 0.01F}, combiner::sum, shape_of_batch::skewed, false, 1, 8,
                           true) < 1e-3);
}

TEST_CASE(
    "device update: bad bags change nothing, empty ones train the default row, norms pass the gradient "
    "on") {
  const f32_rows format(4);
  made_batch made;
  made.ids = {1, 2, 9, 3, 1};
  made.weights.assign(5, 1.0F);
  made.offsets = {0, 2, 4, 4, 5};
  const std::vector<float> gradient{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4};
  const std::vector<float> start(5 * 4, 1.0F);
  const sgd optimizer{.learning_rate = 1.0F};
  for (const bool weighted : {false, true}) {
    alignas(16) float table[20];
    std::copy(start.begin(), start.end(), table);
    const device_fault fault =
        update_as_device<4>(made, weighted, gradient, pooling(combiner::mean, empty_bag::default_row{0}),
                            optimizer, reinterpret_cast<std::byte*>(table), 5, format, 1, false);
    CHECK(fault.as_status().place() == fault_place{.bag = 1, .position = 2, .value = 9});
    CHECK(table[0] == 1 - 3);         // bag 2 was empty
    CHECK(table[4] == 1 - 0.5F - 4);  // bags 0 and 3
    CHECK(table[8] == 1 - 0.5F);
    CHECK(table[12] == 1);  // of the bad bag
  }
  // The weight of an absent slot may be anything; that of another one is a fault of its bag.
  made.weights = {1, std::nanf(""), 1, 1, std::nanf("")};
  made.ids = {1, -1, 2, 3, 1};
  for (const int lanes : {1, 2}) {
    alignas(16) float table[20];
    std::copy(start.begin(), start.end(), table);
    const device_fault fault =
        update_as_device<1>(made, true, gradient, pooling(combiner::sum, padding::prune), optimizer,
                            reinterpret_cast<std::byte*>(table), 5, format, lanes, false);
    CHECK(fault.as_status().code() == errc::weight_is_nan);
    CHECK(fault.as_status().place() == fault_place{.bag = 3, .position = 4, .value = 1});
    CHECK(table[4] == 1 - 1);  // bag 0
    CHECK(table[8] == 1 - 2);
  }
  // x = (1, 1, 1, 1), norm 2, cap 1, g = (4, 0, 0, 0): f * (g - x (x.g) / |x|^2) = (1.5, -0.5, -0.5, -0.5)
  made.ids = {3};
  made.offsets = {0, 1};
  alignas(16) float table[20];
  std::copy(start.begin(), start.end(), table);
  for (const int lanes : {1, 2}) {
    std::copy(start.begin(), start.end(), table);
    update_as_device<1>(made, false, {4, 0, 0, 0}, pooling(combiner::sum, max_norm{1}), optimizer,
                        reinterpret_cast<std::byte*>(table), 5, format, lanes, false);
    CHECK(table[12] == doctest::Approx(1 - 1.5));
    CHECK(table[13] == doctest::Approx(1 + 0.5));
  }
}

TEST_CASE("device update: stochastic rounding has the words of the host") {
  const bf16_rows format(8);
  made_batch made;
  made.ids = {2};
  made.weights = {1};
  made.offsets = {0, 1};
  const std::vector<float> gradient(8, -0.3F);
  const rounding::stochastic how{.seed = seed(), .step = 3};
  alignas(16) bf16 table[3 * 8] = {};
  update_as_device<4>(made, false, gradient, pooling{combiner::sum}, sgd{.learning_rate = 1.0F},
                      reinterpret_cast<std::byte*>(table), 3, format, 1, false, how);
  for (std::uint64_t j = 0; j < 8; ++j)
    CHECK(table[16 + j].bits == detail::round_with<bf16>(0.3F, how.word(2, j)).bits);
}
