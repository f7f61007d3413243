// Rows of split floats: their layout, their lookups, and the table of their upper halves.
#include <deeprec/embedding/tables/split_bf16_rows.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "embedding/support.hpp"

using namespace embedding_test;

namespace {

// Normal floats in rows laid out by hand, ending at a guard page; and what their upper halves are.
struct split_table {
  split_table(std::mt19937_64& random, index_t rows, index_t width, index_t gap = 0)
      : stride(4 * width + gap),
        bytes(static_cast<std::size_t>(rows * stride - gap)),
        behind_fence(bytes.size(), fence::before),
        high(static_cast<std::size_t>(rows * width)),
        view(bytes.data(), rows, split_bf16_rows(width, {.stride_bytes = stride})) {
    std::normal_distribution<float> normal(0, 1);
    for (index_t r = 0; r < rows; ++r) {
      values.emplace_back();
      for (index_t j = 0; j < width; ++j) {
        const float x = normal(random);
        const auto word = std::bit_cast<std::uint32_t>(x);
        const std::uint16_t halves[2] = {static_cast<std::uint16_t>(word >> 16),
                                         static_cast<std::uint16_t>(word & 0xffff)};
        std::memcpy(bytes.data() + r * stride + 2 * j, &halves[0], 2);
        std::memcpy(bytes.data() + r * stride + 2 * width + 2 * j, &halves[1], 2);
        high[static_cast<std::size_t>(r * width + j)] = bf16::from_bits(halves[0]);
        values.back().push_back(static_cast<double>(x));
      }
    }
    front = behind_fence.data();
    if (bytes.size() > 0) std::memcpy(front, bytes.data(), bytes.size());
  }
  table_view<split_bf16_rows> at(fence side) const {
    if (side == fence::behind) return view;
    return {front, view.rows(), view.format()};
  }
  index_t stride;
  guarded<std::byte> bytes;
  guarded<std::byte> behind_fence;  // the same bytes
  std::byte* front = nullptr;
  guarded<bf16> high;  // (R, D)
  table_view<split_bf16_rows> view;
  std::vector<std::vector<double>> values;
};

}  // namespace

TEST_CASE("split_bf16_rows: lookups read both halves, every width, combiner and ISA, inside guard pages") {
  std::mt19937_64 random(seed() + 110);
  const auto check = [&](index_t width) {
    CAPTURE(width);
    const split_table table(random, 13, width, width % 2 * 6);
    const auto made = make_batch(random, every_shape[width % 5], 4, 13, 3);
    check_every_isa<float>(table, made, false, combiner::sum);
    check_every_isa<float>(table, made, true, combiner::sum);
    check_every_isa<float>(table, made, width % 2 == 0, combiner::mean);
    check_every_isa<float>(table, made, false, combiner::max);
    auto single = made;
    single.offsets.clear();
    for (std::size_t k = 0; k <= single.ids.size(); ++k) {
      single.offsets.push_back(static_cast<std::int64_t>(k));
    }
    check_every_isa<float>(table, single, width % 2 == 1, combiner::sum);
  };
  for (index_t width = 1; width <= 67; ++width) check(width);
  for (const index_t width : {127, 128, 129, 200, 257, 1000}) check(width);
}

TEST_CASE("split_bf16_rows: sums have the bits of the same floats in one piece") {
  std::mt19937_64 random(seed() + 111);
  const split_table table(random, 60, 37);
  dense_table<f32_rows> whole(60, 37);
  std::vector<float> row(37);
  for (index_t r = 0; r < 60; ++r) {
    table.view.format().decode(table.view.row(r), row.data());
    for (std::size_t j = 0; j < 37; ++j) {
      CHECK(static_cast<double>(row[j]) == table.values[static_cast<std::size_t>(r)][j]);
    }
    whole.format().encode(row.data(), whole.view().row(r));
  }
  const auto made = make_batch(random, shape_of_batch::skewed, 40, 60, 8);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    CHECK(same_bits(looked_up<float>(on(here, which), table.view, made.view(true), combiner::mean),
                    looked_up<float>(on(here, which), whole.view(), made.view(true), combiner::mean)));
  }
}

TEST_CASE("split_bf16_rows: the table of upper halves is a table of bf16 in the same memory") {
  std::mt19937_64 random(seed() + 112);
  for (const index_t width : {1, 16, 37, 130}) {
    const split_table table(random, 60, width, 2);
    const auto made = make_batch(random, shape_of_batch::uniform, 40, 60, 8);
    inline_executor here;
    const auto halves = high_halves(table.view);
    CHECK(halves.data() == table.view.data());
    const auto apart = as_table(matrix_view<const bf16>(table.high.data(), 60, width));
    for (const isa which : runnable_isas()) {
      CHECK(same_bits(looked_up<float>(on(here, which), halves, made.view(), combiner::sum),
                      looked_up<float>(on(here, which), apart, made.view(), combiner::sum)));
    }
    // As floats they are further off than the comparison of whole rows allows.
    const auto rough = looked_up<float>(context(here), halves, made.view(), combiner::sum);
    CHECK_FALSE(agrees<float>(table.values, made.view(), {rough.data(), 40, width}, pooled_as::sum));
  }
}

TEST_CASE("split_bf16_rows: encode and decode keep every kind of float; NaN is one in both halves") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0F,
                                  -0.0F,
                                  1e-45F,
                                  -3.4e38F,
                                  infinity,
                                  -infinity,
                                  1.0F / 3.0F,
                                  std::bit_cast<float>(0x7f800001U),
                                  std::bit_cast<float>(0xff812345U)};
  const auto width = static_cast<index_t>(values.size());
  const split_bf16_rows format(width);
  std::vector<std::byte> row(static_cast<std::size_t>(format.row_bytes()));
  std::vector<float> back(values.size()), rough(values.size());
  format.encode(values.data(), row.data());
  format.decode(row.data(), back.data());
  format.high().decode(row.data(), rough.data());
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (std::isnan(values[j])) {
      CHECK(std::isnan(back[j]));
      CHECK(std::isnan(rough[j]));
      CHECK(std::signbit(back[j]) == std::signbit(values[j]));
    } else {
      CHECK(std::bit_cast<std::uint32_t>(back[j]) == std::bit_cast<std::uint32_t>(values[j]));
      CHECK(std::fabs(rough[j]) <= std::fabs(values[j]));
    }
  }
}

TEST_CASE("split_bf16_rows: optimizer state beside the row is aligned, zeroed, and outside the row") {
  const split_bf16_rows format(5, {.state_floats = 2});
  CHECK(format.row_bytes() == 20);
  CHECK(format.stride_bytes() == 28);
  dense_table<split_bf16_rows> table(10, format);
  table.initialize(inline_executor{}, row_init::uniform{.seed = 3});
  for (index_t i = 0; i < 10; ++i) {
    float* const state = format.state(table.view().row(i));
    CHECK(reinterpret_cast<std::byte*>(state) - table.view().row(i) == 20);
    CHECK(state[0] == 0.0F);
    CHECK(state[1] == 0.0F);
  }
  CHECK(split_bf16_rows(3).stride_bytes() == 12);
  CHECK(split_bf16_rows(3).state(nullptr) == nullptr);
}

namespace {

// Three steps on a table of floats and on one of split floats that begins with the same bits.
template <class Optimizer>
void check_training(const Optimizer& optimizer, index_t width) {
  const index_t rows = 40;
  const row_layout layout{.state_floats = Optimizer::row_state + Optimizer::element_state * width};
  inline_executor here;
  for (const isa which : runnable_isas()) {
    dense_table<f32_rows> plain(rows, f32_rows(width, layout));
    dense_table<split_bf16_rows> split(rows, split_bf16_rows(width, layout));
    plain.initialize(here, row_init::uniform{.seed = seed(), .bound = 0.5F});
    std::vector<float> values(static_cast<std::size_t>(width));
    for (index_t r = 0; r < rows; ++r) {
      plain.view().format().decode(plain.view().row(r), values.data());
      split.view().format().encode(values.data(), split.view().row(r));
    }
    std::mt19937_64 random(seed() + 111);
    std::normal_distribution<float> normal(0, 1);
    for (int step = 0; step < 3; ++step) {
      const auto made = make_batch(random, shape_of_batch::uniform, 12, rows, 6);
      std::vector<float> gradient(static_cast<std::size_t>(made.view().bags() * width));
      for (float& g : gradient) g = normal(random);
      const matrix_view<const float> from(gradient.data(), made.view().bags(), width);
      REQUIRE(update(on(here, which), plain.view(), made.view(true), combiner::mean, from, optimizer).ok());
      REQUIRE(update(on(here, which), split.view(), made.view(true), combiner::mean, from, optimizer).ok());
    }
    std::vector<float> other(values.size());
    for (index_t r = 0; r < rows; ++r) {
      CAPTURE(r);
      plain.view().format().decode(plain.view().row(r), values.data());
      split.view().format().decode(split.view().row(r), other.data());
      CHECK(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)) == 0);
      const auto floats = static_cast<std::size_t>(layout.state_floats);
      if (floats > 0) {
        CHECK(std::memcmp(plain.view().format().state(plain.view().row(r)),
                          split.view().format().state(split.view().row(r)), floats * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("split_bf16_rows: training gives the bits of f32 rows, every width and ISA") {
  for (const index_t width : {1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 67}) {
    CAPTURE(width);
    check_training(sgd{.learning_rate = 0.1F}, width);
    check_training(adam{}, width);
  }
}
