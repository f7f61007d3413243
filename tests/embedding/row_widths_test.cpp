// Every verb with a norm, a maximum or a mean over the columns of a row, for every row format, at every width
// of 1 to 260 and on every ISA, against the scalar decoding of the rows in double: the lanes behind the last
// column of a row count nowhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "support/isas.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t widest = 260, table_rows = 6, hotness = 3, bag_count = 4;
// Of each bag its ids, among them one twice.
constexpr std::int64_t bag_ids[] = {0, 1, 2, 3, 4, 5, 5, 0, 5, 2, 4, 1};
constexpr float cap = 0.75F, rate = 0.25F;

// Rows whose mean is far from 0, so that the bias of their codes is, and a row of one value.
template <class Format>
dense_table<Format> table_of(const Format& format, std::mt19937_64& random) {
  dense_table<Format> table(table_rows, format, std::pmr::new_delete_resource());
  std::uniform_real_distribution<float> unit(-1, 1);
  std::vector<float> values(static_cast<std::size_t>(format.width()));
  for (index_t r = 0; r < table_rows; ++r) {
    for (float& x : values) x = r == 3 ? -1.25F : 2.0F * static_cast<float>(r - 2) + unit(random);
    format.encode(values.data(), table.view().row(r));
  }
  return table;
}

using exact_table = std::vector<std::vector<double>>;

template <class Format>
exact_table decoded(const_table_view<Format> table) {
  exact_table rows;
  std::vector<float> values(static_cast<std::size_t>(table.width()));
  for (index_t r = 0; r < table.rows(); ++r) {
    table.format().decode(table.row(r), values.data());
    rows.emplace_back(values.begin(), values.end());
  }
  return rows;
}

double norm_of(const std::vector<double>& row) {
  double squares = 0;
  for (const double x : row) squares += x * x;
  return std::sqrt(squares);
}
exact_table clipped(exact_table rows) {
  for (std::vector<double>& row : rows) {
    const double norm = norm_of(row);
    for (double& x : row) x *= norm > static_cast<double>(cap) ? static_cast<double>(cap) / norm : 1.0;
  }
  return rows;
}

// The roundings of as many numbers of that size, and of a sum of squares.
double bound_of(double size, index_t width) { return (static_cast<double>(width) + 40) * 0x1p-24 * size; }

template <class Combiner>
double pooled(const exact_table& rows, const std::int64_t* ids, index_t count, std::size_t column, Combiner) {
  constexpr bool largest = std::is_same_v<Combiner, combiner::max_t>;
  double total = largest ? -HUGE_VAL : 0.0;
  for (index_t k = 0; k < count; ++k) {
    const double x = rows[static_cast<std::size_t>(ids[k])][column];
    total = largest ? std::max(total, x) : total + x;
  }
  return std::is_same_v<Combiner, combiner::sqrtn_t> ? total / std::sqrt(count)
         : std::is_same_v<Combiner, combiner::mean_t<combiner::by_count_t>>
             ? total / static_cast<double>(count)
             : total;
}

// The largest error of a lookup over its bound; bags of `in_bag` ids, or copies of the rows (concat).
template <class Context, class Table, class Pooling>
double worst_of(const Context& ctx, const Table& table, const exact_table& rows, index_t in_bag,
                const Pooling& how, bool fused = false) {
  using combiner_type = typename Pooling::combiner;
  constexpr index_t ids = bag_count * hotness;
  constexpr bool copies = std::is_same_v<combiner_type, combiner::concat_t>;
  const index_t width = table.width(), bags = ids / in_bag;
  const index_t outs = copies ? ids : bags, of_one = ids / outs;
  std::vector<float> out(static_cast<std::size_t>(outs * width), std::nanf(""));
  const fixed_hotness_view<std::int64_t> batch(bag_ids, bags, in_bag);
  const matrix_view<float> to(out.data(), outs, width);
  if constexpr (copies) {
    REQUIRE(lookup(ctx, table, batch, how, to).ok());
  } else {
    REQUIRE((fused ? fused_lookup(ctx, table, batch, how, to) : lookup(ctx, table, batch, how, to)).ok());
  }
  double worst = 0;
  for (index_t b = 0; b < outs; ++b) {
    for (index_t j = 0; j < width; ++j) {
      const double wanted =
          pooled(rows, bag_ids + b * of_one, of_one, static_cast<std::size_t>(j), combiner_type{});
      const double error = std::fabs(static_cast<double>(to(b, j)) - wanted) / bound_of(20, width);
      worst = error > worst || std::isnan(error) ? error : worst;
    }
  }
  return worst;
}

// Whether copies of rows are what their scalar decoding gives, to the bit.
template <class Context, class Table>
bool copies_decoded(const Context& ctx, const Table& table, const exact_table& rows) {
  const index_t width = table.width();
  std::vector<float> out(static_cast<std::size_t>(bag_count * hotness * width));
  const matrix_view<float> to(out.data(), bag_count * hotness, width);
  const fixed_hotness_view<std::int64_t> batch(bag_ids, bag_count, hotness);
  REQUIRE(lookup(ctx, table, batch, combiner::concat, to).ok());
  bool same = true;
  for (index_t k = 0; k < bag_count * hotness; ++k) {
    const std::vector<double>& row = rows[static_cast<std::size_t>(bag_ids[k])];
    for (index_t j = 0; j < width; ++j) {
      same &= static_cast<double>(to(k, j)) == row[static_cast<std::size_t>(j)];
    }
  }
  return same;
}

template <class Format>
void check_lookups(const Format& format) {
  std::mt19937_64 random(seed());
  inline_executor here;
  const dense_table<Format> table = table_of(format, random);
  const exact_table plain = decoded(table.view()), short_rows = clipped(plain);
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    const auto ctx = on(here, which);
    const auto small = [&](const exact_table& rows, index_t in_bag, const auto& how, bool fused = false) {
      CAPTURE(in_bag);
      CHECK(worst_of(ctx, table.view(), rows, in_bag, how, fused) <= 1.0);
    };
    for (const index_t in_bag : {index_t{1}, hotness}) {
      small(plain, in_bag, pooling{combiner::mean});
      small(plain, in_bag, pooling{combiner::max});
      small(short_rows, in_bag, pooling{combiner::sum, max_norm{cap}}, true);
      small(short_rows, in_bag, pooling{combiner::mean, max_norm{cap}});
      small(short_rows, in_bag, pooling{combiner::max, max_norm{cap}});
    }
    CHECK(copies_decoded(ctx, table.view(), plain));
    small(short_rows, hotness, pooling{combiner::concat, max_norm{cap}});
  }
}

// Gradients of weights, and a step by the mean square of a gradient that flows through the norm.
template <class Format>
void check_gradients(const Format& format) {
  std::mt19937_64 random(seed() + 1);
  inline_executor here;
  const index_t width = format.width();
  const auto columns = static_cast<std::size_t>(width);
  const dense_table<Format> original = table_of(format, random);
  const exact_table plain = decoded(original.view()), short_rows = clipped(plain);
  std::vector<float> g(columns * bag_count);
  std::uniform_real_distribution<float> unit(-1, 1);
  for (float& x : g) x = unit(random);
  const matrix_view<const float> gradient(g.data(), bag_count, width);
  const fixed_hotness_view<std::int64_t> bags(bag_ids, bag_count, hotness);
  const auto how = pooling{combiner::mean, max_norm{cap}};
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    const auto ctx = on(here, which);
    if constexpr (Storage<typename Format::element>) {
      std::vector<float> dots(bag_count * hotness, std::nanf(""));
      REQUIRE(weight_gradients(ctx, original.view(), bags, how, gradient, dots).ok());
      for (index_t k = 0; k < bag_count * hotness; ++k) {
        double dot = 0;
        for (index_t j = 0; j < width; ++j) {
          dot += short_rows[static_cast<std::size_t>(bag_ids[k])][static_cast<std::size_t>(j)] *
                 static_cast<double>(gradient(k / hotness, j)) / hotness;
        }
        CAPTURE(k);
        CHECK(std::fabs(static_cast<double>(dots[static_cast<std::size_t>(k)]) - dot) <=
              bound_of(std::sqrt(static_cast<double>(width)), width));
      }
    }
    if constexpr (detail::has_trainable_rows<Format>) {
      dense_table<Format> table(table_rows, format, std::pmr::new_delete_resource());
      std::memcpy(table.view().data(), original.view().data(), original.bytes());
      REQUIRE(update(ctx, table.view(), bags, how, gradient,
                     rowwise_adagrad{.learning_rate = rate, .epsilon = 1e-6F})
                  .ok());
      const exact_table stepped = decoded(std::as_const(table).view());
      for (std::size_t r = 0; r < table_rows; ++r) {
        CAPTURE(r);
        std::vector<double> of_row(columns);
        for (index_t k = 0; k < bag_count * hotness; ++k) {
          if (bag_ids[k] != static_cast<std::int64_t>(r)) continue;
          for (std::size_t j = 0; j < columns; ++j) {
            of_row[j] += static_cast<double>(gradient(k / hotness, static_cast<index_t>(j))) / hotness;
          }
        }
        const double norm = norm_of(plain[r]);
        if (norm > static_cast<double>(cap)) {
          double along = 0;
          for (std::size_t j = 0; j < columns; ++j) along += plain[r][j] * of_row[j];
          for (std::size_t j = 0; j < columns; ++j) {
            of_row[j] = static_cast<double>(cap) / norm * (of_row[j] - plain[r][j] * along / (norm * norm));
          }
        }
        double squares = 0;
        for (const double x : of_row) squares += x * x;
        const double mean_square = squares / static_cast<double>(width);
        const double state = static_cast<double>(*format.state(table.view().row(static_cast<index_t>(r))));
        CHECK(std::fabs(state - mean_square) <= bound_of(mean_square, width) + 1e-7);
        // The step of a gradient that vanishes but for its rounding is any.
        if (mean_square < 1e-4) continue;
        const double factor = static_cast<double>(rate) / std::sqrt(mean_square);
        std::vector<float> wanted(columns);
        for (std::size_t j = 0; j < columns; ++j) {
          wanted[j] = static_cast<float>(plain[r][j] - factor * of_row[j]);
        }
        for (std::size_t j = 0; j < columns; ++j) {
          const double step = std::is_same_v<typename Format::element, bf16>  ? 0x1p-7
                              : std::is_same_v<typename Format::element, f16> ? 0x1p-10
                                                                              : 0x1p-24;
          CHECK(std::fabs(stepped[r][j] - static_cast<double>(wanted[j])) <=
                step * (std::fabs(static_cast<double>(wanted[j])) + 1) +
                    bound_of(4, width) / std::sqrt(mean_square));
        }
      }
    }
  }
}

template <class Format>
void check_every_width() {
  for (index_t width = 1; width <= widest; ++width) {
    CAPTURE(width);
    check_lookups(Format(width));
    if constexpr (detail::has_trainable_rows<Format>) {
      check_gradients(Format(width, {.state_floats = 1}));
    } else if constexpr (Storage<typename Format::element>) {
      check_gradients(Format(width));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("row widths: norms, maxima and means of rows of floats", Format, f32_rows, f16_rows,
                   bf16_rows, split_bf16_rows) {
  check_every_width<Format>();
}

TEST_CASE_TEMPLATE("row widths: norms, maxima and means of rows of fp8", Format, e4m3_rows, e5m2_rows) {
  check_every_width<Format>();
}

using int8_f16_rows = quantized_rows<8, f16>;
using int4_f32_rows = quantized_rows<4, float>;

TEST_CASE_TEMPLATE("row widths: norms, maxima and means of rows of codes", Format, int8_rows, int8_f16_rows,
                   int4_rows, int4_f32_rows) {
  check_every_width<Format>();
}
