#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/training/update.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/batches.hpp"
#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Optimizer>
row_layout room_for(index_t width) {
  return {.state_floats = Optimizer::row_state + Optimizer::element_state * width};
}

template <class T>
std::vector<double> decoded(table_view<plain_rows<T>> table, index_t row) {
  std::vector<float> values(static_cast<std::size_t>(table.width()));
  table.format().decode(table.row(row), values.data());
  return {values.begin(), values.end()};
}

// Gradient of each used row in double, then the optimizer's formula in double.
struct oracle_update {
  std::map<long long, std::vector<double>> gradient;
  std::map<long long, std::vector<double>> magnitude;

  oracle_update(const jagged_view<>& bags, matrix_view<const float> from, pooled_as how) {
    for (index_t b = 0; b < bags.bags(); ++b) {
      double weights = 0;
      const auto n = static_cast<double>(bags.offsets()[b + 1] - bags.offsets()[b]);
      for (auto k = bags.offsets()[b]; k < bags.offsets()[b + 1]; ++k) {
        weights += bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]);
      }
      const double by = how == pooled_as::sum ? 1.0 : how == pooled_as::mean_by_count ? n : weights;
      for (auto k = bags.offsets()[b]; k < bags.offsets()[b + 1]; ++k) {
        const double w = bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]);
        auto& row = gradient[bags.ids()[k]];
        auto& size = magnitude[bags.ids()[k]];
        row.resize(static_cast<std::size_t>(from.extent(1)));
        size.resize(row.size());
        for (std::size_t j = 0; j < row.size(); ++j) {
          const double g = w / by * static_cast<double>(from(b, static_cast<index_t>(j)));
          row[j] += g;
          size[j] += std::fabs(g);
        }
      }
    }
  }
};

std::vector<double> stepped(const sgd& o, std::vector<double> row, const std::vector<double>& g,
                            std::vector<double>&) {
  for (std::size_t j = 0; j < row.size(); ++j) row[j] -= static_cast<double>(o.learning_rate) * g[j];
  return row;
}
std::vector<double> stepped(const rowwise_adagrad& o, std::vector<double> row, const std::vector<double>& g,
                            std::vector<double>& state) {
  double squares = 0;
  for (const double x : g) squares += x * x;
  state[0] += squares / static_cast<double>(g.size());
  for (std::size_t j = 0; j < row.size(); ++j) {
    row[j] -=
        static_cast<double>(o.learning_rate) * g[j] / (std::sqrt(state[0]) + static_cast<double>(o.epsilon));
  }
  return row;
}
std::vector<double> stepped(const adagrad& o, std::vector<double> row, const std::vector<double>& g,
                            std::vector<double>& state) {
  for (std::size_t j = 0; j < row.size(); ++j) {
    state[j] += g[j] * g[j];
    row[j] -=
        static_cast<double>(o.learning_rate) * g[j] / (std::sqrt(state[j]) + static_cast<double>(o.epsilon));
  }
  return row;
}

template <class T, class Optimizer, class Combiner>
void check_update(const Optimizer& optimizer, Combiner how, index_t width, bool weighted) {
  CAPTURE(width);
  std::mt19937_64 random(seed() + static_cast<std::uint64_t>(width));
  const index_t rows = 60;
  auto made = make_batch(random, shape_of_batch::skewed, 40, rows, 4);
  for (float& w : made.weights) w = std::fabs(w) + 0.25F;  // no cancellation of the denominator
  std::vector<float> gradient(static_cast<std::size_t>(40 * width));
  std::normal_distribution<float> normal(0, 1);
  for (float& g : gradient) g = normal(random);
  const matrix_view<const float> g(gradient.data(), 40, width);
  const oracle_update oracle(made.view(weighted), g, kind(how));
  const double rounding = std::is_same_v<T, float> ? 0x1p-24 : std::is_same_v<T, f16> ? 0x1p-11 : 0x1p-8;
  thread_pool pool(3);
  const plain_rows<T> format(width, room_for<Optimizer>(width));
  dense_table<plain_rows<T>> initial(rows, format);
  initial.initialize(pool, row_init::uniform{.seed = 5, .bound = 1.0F});
  for (const isa which : every_isa) {
    if (which > best_isa()) continue;
    CAPTURE(to_string(which));
    context ctx{pool};
    ctx.instruction_set = which;
    for (const fence side : every_fence) {
      CAPTURE(static_cast<int>(side));
      guarded<std::byte> bytes(static_cast<std::size_t>(rows * format.stride_bytes()), side);
      std::memcpy(bytes.data(), initial.view().data(), bytes.size());
      const table_view<plain_rows<T>> table(bytes.data(), rows, format);
      const auto ids = guarded<std::int64_t>::copy_of(made.ids, side);
      const auto offsets = guarded<std::int64_t>::copy_of(made.offsets, side);
      const auto weights = guarded<float>::copy_of(made.weights, side);
      const auto of_out = guarded<float>::copy_of(gradient, side);
      const jagged_view<> bags(offsets.data(), 40, ids.data(), static_cast<index_t>(ids.size()),
                               weighted ? weights.data() : nullptr);
      std::map<long long, std::vector<double>> state;
      for (int step = 0; step < 3; ++step) {
        std::vector<std::vector<double>> before;
        for (index_t r = 0; r < rows; ++r) before.push_back(decoded(table, r));
        const status s =
            update(ctx, table, bags, how, matrix_view<const float>(of_out.data(), 40, width), optimizer);
        REQUIRE_MESSAGE(s.ok(), s.message());
        for (index_t r = 0; r < rows; ++r) {
          const std::vector<double> after = decoded(table, r);
          const auto found = oracle.gradient.find(r);
          if (found == oracle.gradient.end()) {
            CHECK(after == before[static_cast<std::size_t>(r)]);  // a row that was not used
            continue;
          }
          auto& row_state = state[r];
          row_state.resize(static_cast<std::size_t>(std::max<index_t>(1, width)));
          const auto expected =
              stepped(optimizer, before[static_cast<std::size_t>(r)], found->second, row_state);
          for (std::size_t j = 0; j < after.size(); ++j) {
            const double bound = 1e-5 * (1 + std::fabs(expected[j])) + 1e-5 * oracle.magnitude.at(r)[j] +
                                 2 * rounding * std::fabs(expected[j]);
            if (!(std::fabs(after[j] - expected[j]) <= bound)) {
              FAIL_CHECK("row ", r, " column ", j, ": ", after[j], " for ", expected[j]);
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("update: the documentation's example") {
  /// [update]
  dense_table<f32_rows> table(4, f32_rows(2, {.state_floats = rowwise_adagrad::row_state}));
  const std::vector<std::int64_t> offsets{0, 2}, ids{1, 1};  // row 1 twice in one bag
  const std::vector<float> gradient{3, 4};                   // d loss / d out, (B=1, D=2)
  update(inline_executor{}, table.view(), jagged_view(offsets.data(), 1, ids.data(), 2), combiner::sum,
         matrix_view(gradient.data(), 1, 2), rowwise_adagrad{.learning_rate = 0.1F})
      .or_throw();
  /// [update]
  const double root = std::sqrt((36.0 + 64.0) / 2);
  CHECK(decoded(table.view(), 1)[0] == doctest::Approx(-0.1 * 6 / root));
  CHECK(decoded(table.view(), 1)[1] == doctest::Approx(-0.1 * 8 / root));
  CHECK(decoded(table.view(), 0)[0] == 0.0);
}

TEST_CASE("update: gradient, then the optimizer, for every optimizer, format and combiner") {
  for (const index_t width : {1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 100}) {
    check_update<float>(sgd{.learning_rate = 0.1F}, combiner::sum, width, false);
    check_update<float>(rowwise_adagrad{.learning_rate = 0.1F}, combiner::mean, width, false);
    check_update<float>(adagrad{.learning_rate = 0.1F}, combiner::mean(combiner::by_weight), width, true);
    check_update<float>(rowwise_adagrad{.learning_rate = 0.1F}, combiner::sum, width, true);
  }
  for (const index_t width : {5, 16, 40}) {
    check_update<f16>(adagrad{.learning_rate = 0.1F}, combiner::sum, width, false);
    check_update<bf16>(rowwise_adagrad{.learning_rate = 0.1F}, combiner::mean, width, true);
  }
}

TEST_CASE("update: the gradient is that of lookup, by central differences") {
  std::mt19937_64 random(seed());
  const index_t rows = 12, width = 5, bags = 9;
  auto made = make_batch(random, shape_of_batch::uniform, bags, rows, 3);
  for (float& w : made.weights) w = std::fabs(w) + 0.25F;
  std::vector<float> direction(static_cast<std::size_t>(bags * width));
  std::normal_distribution<float> normal(0, 1);
  for (float& x : direction) x = normal(random);
  // loss(table) = sum of direction * lookup(table); the lookup is linear, so a large step is exact.
  const auto check_combiner = [&](auto how, bool weighted) {
    dense_table<f32_rows> table(rows, width);
    table.initialize(inline_executor{}, row_init::uniform{.seed = 2, .bound = 1.0F});
    const auto loss = [&] {
      std::vector<float> out(direction.size());
      lookup(inline_executor{}, table.view(), made.view(weighted), how, matrix_view(out.data(), bags, width))
          .or_throw();
      double total = 0;
      for (std::size_t i = 0; i < out.size(); ++i) {
        total += static_cast<double>(out[i]) * static_cast<double>(direction[i]);
      }
      return total;
    };
    dense_table<f32_rows> updated(rows, width);
    updated.initialize(inline_executor{}, row_init::zeros{});
    update(inline_executor{}, updated.view(), made.view(weighted), how,
           matrix_view(direction.data(), bags, width), sgd{.learning_rate = -1.0F})
        .or_throw();  // rows now hold the gradient
    for (index_t r = 0; r < rows; ++r) {
      for (index_t j = 0; j < width; ++j) {
        auto* weight = static_cast<float*>(static_cast<void*>(table.view().row(r))) + j;
        const float original = *weight;
        *weight = original + 0.5F;
        const double up = loss();
        *weight = original - 0.5F;
        const double down = loss();
        *weight = original;
        const double got = decoded(updated.view(), r)[static_cast<std::size_t>(j)];
        CHECK(got == doctest::Approx(up - down).epsilon(1e-4).scale(1));
      }
    }
  };
  check_combiner(combiner::sum, false);
  check_combiner(combiner::sum, true);
  check_combiner(combiner::mean, false);
  check_combiner(combiner::mean, true);
  check_combiner(combiner::mean(combiner::by_weight), true);
}

TEST_CASE("update: the same bits on 1 to 8 threads, with one id holding half of the batch") {
  std::mt19937_64 random(seed() + 1);
  auto made = make_batch(random, shape_of_batch::skewed, 3000, 5000, 6);
  for (std::size_t k = 0; k < made.ids.size(); k += 2) made.ids[k] = 17;
  std::vector<float> gradient(3000 * 20);
  std::normal_distribution<float> normal(0, 1);
  for (float& g : gradient) g = normal(random);
  std::vector<std::byte> first;
  for (int threads = 1; threads <= 8; ++threads) {
    thread_pool pool(threads);
    dense_table<f32_rows> table(5000, f32_rows(20, room_for<rowwise_adagrad>(20)));
    table.initialize(pool, row_init::uniform{.seed = 5});
    for (int step = 0; step < 3; ++step) {
      update(pool, table.view(), made.view(true), combiner::mean, matrix_view(gradient.data(), 3000, 20),
             rowwise_adagrad{})
          .or_throw();
    }
    const std::vector<std::byte> bytes(table.view().data(), table.view().data() + table.bytes());
    if (first.empty()) first = bytes;
    CHECK(bytes == first);
  }
}

TEST_CASE("update: bad input is reported and the table stays as it was") {
  dense_table<f32_rows> table(10, f32_rows(4, room_for<rowwise_adagrad>(4)));
  table.initialize(inline_executor{}, row_init::uniform{.seed = 5});
  const std::vector<std::byte> before(table.view().data(), table.view().data() + table.bytes());
  const std::vector<float> gradient(3 * 4, 1.0F);
  const auto unchanged = [&] { return std::memcmp(before.data(), table.view().data(), before.size()) == 0; };
  const auto answer = [&](std::vector<std::int64_t> offsets, std::vector<std::int64_t> ids, auto how,
                          index_t width, auto optimizer) {
    return update(inline_executor{}, table.view(),
                  jagged_view(offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
                              static_cast<index_t>(ids.size())),
                  how, matrix_view(gradient.data(), 3, width), optimizer);
  };
  const status bad_id = answer({0, 1, 2, 3}, {1, 10, -1}, combiner::sum, 4, sgd{});
  CHECK(bad_id.code() == errc::id_out_of_range);
  CHECK(bad_id.place() == fault_place{.bag = 1, .position = 1, .value = 10});
  CHECK(answer({0, 2, 1, 3}, {1, 2, 3}, combiner::sum, 4, sgd{}).code() == errc::offsets_decreasing);
  CHECK(answer({0, 1, 2, 3}, {1, 2, 3}, combiner::sum, 3, sgd{}).code() == errc::shape_mismatch);
  CHECK(answer({0, 1, 3}, {1, 2, 3}, combiner::sum, 4, sgd{}).code() == errc::shape_mismatch);
  CHECK(answer({0, 1, 2, 3}, {1, 2, 3}, combiner::sum, 4, adagrad{}).message() ==
        "shape mismatch: update: the rows must have room for the optimizer's state: dense_table(rows, width, "
        "state_of<optimizer>), or row_layout::state_floats (is 1, must be 4)");
  for (const float cap : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(answer({0, 1, 2, 3}, {1, 2, 3}, pooling{combiner::sum, max_norm{cap}}, 4, sgd{}).message() ==
          "invalid value: update: pooling: max_norm must be above 0");
  }
  const std::vector<std::int64_t> three{0, 1, 2, 3};
  const std::vector<float> nans(3, std::numeric_limits<float>::quiet_NaN());
  const jagged_view<> with_nans(three.data(), 3, three.data(), 3, nans.data());
  CHECK(update(inline_executor{}, table.view(), with_nans, pooling{combiner::sum, padding::id{0}},
               matrix_view(gradient.data(), 3, 4), sgd{})
            .place()
            .position == 1);
  CHECK(update(inline_executor{}, table.view(), with_nans, combiner::sum,
               matrix_view<const float>(nullptr, 3, 4), sgd{})
            .message() == "shape mismatch: update: gradient must not be null");
  CHECK(unchanged());
  const std::vector<std::int64_t> none{-1, -2, -3};
  CHECK(update(inline_executor{}, table.view(), jagged_view<>(three.data(), 3, none.data(), 3, nans.data()),
               pooling{combiner::sum, padding::prune}, matrix_view(gradient.data(), 3, 4), sgd{})
            .ok());
  CHECK(unchanged());
  index_t skipped = 0;
  CHECK(answer({0, 1, 2, 3}, {1, 10, -1}, pooling{combiner::sum, bounds::skip(skipped)}, 4, sgd{}).ok());
  CHECK(skipped == 2);
  CHECK_FALSE(unchanged());
}

namespace {

/// A user's own optimizer: plain floats, no vector form.
struct sign_descent {
  static constexpr int row_state = 0;
  static constexpr int element_state = 1;
  static constexpr bool needs_mean_square = false;
  struct step {
    float operator()(float weight, float gradient, float& count) const {
      count += 1;
      return weight - (gradient > 0 ? 1.0F : gradient < 0 ? -1.0F : 0.0F) / count;
    }
  };
  step begin_row(float*, float) const { return {}; }
};

}  // namespace

TEST_CASE("update: an optimizer of the user's own needs floats only") {
  static_assert(RowOptimizer<sign_descent>);
  dense_table<f32_rows> table(2, f32_rows(19, room_for<sign_descent>(19)));
  const std::vector<std::int64_t> offsets{0, 1}, ids{1};
  std::vector<float> gradient(19, 0.25F);
  gradient[18] = -3.0F;
  for (int i = 0; i < 2; ++i) {
    update(inline_executor{}, table.view(), jagged_view(offsets.data(), 1, ids.data(), 1), combiner::sum,
           matrix_view(gradient.data(), 1, 19), sign_descent{})
        .or_throw();
  }
  CHECK(decoded(table.view(), 1)[0] == -1.5);
  CHECK(decoded(table.view(), 1)[18] == 1.5);
  CHECK(decoded(table.view(), 0)[0] == 0.0);
}
