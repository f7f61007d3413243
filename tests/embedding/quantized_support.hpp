// Tables of codes whose bytes the tests lay out themselves, by FBGEMM's description of its fused rows, and
// the comparison of lookups with sums in double over them. Nothing of the library's own encoding is used.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/tables/quantized_rows.hpp>

#include "embedding/support.hpp"

namespace embedding_test {

/// What the oracle knows of a table: each row's numbers, and how large what is added for one is.
struct exact_rows {
  std::vector<std::vector<double>> values;
  std::vector<double> magnitudes;
};

template <int Bits, class Scale>
struct coded_table {
  using format_type = quantized_rows<Bits, Scale>;

  /// Rows of random codes, scales and biases, `gap` bytes apart, beside a guard page.
  coded_table(std::mt19937_64& random, index_t rows, index_t width, scale_bias place, index_t gap = 0,
              fence side = fence::behind)
      : code_bytes((width * Bits + 7) / 8),
        stride(code_bytes + 2 * index_t{sizeof(Scale)} + gap),
        bytes(static_cast<std::size_t>((rows - 1) * stride + stride - gap), side),
        view(bytes.data(), rows, format_type(width, {.place = place, .stride_bytes = stride})) {
    std::uniform_real_distribution<float> unit(0, 1);
    for (index_t r = 0; r < rows; ++r) {
      std::byte* const row = bytes.data() + r * stride;
      const Scale scale = static_cast<Scale>(0.001F + 0.1F * unit(random));
      const Scale bias = static_cast<Scale>(6.0F * unit(random) - 4.0F);
      std::byte* const codes = row + (place == scale_bias::first ? 2 * sizeof(Scale) : 0);
      std::byte* const pair = row + (place == scale_bias::first ? 0 : code_bytes);
      std::memcpy(pair, &scale, sizeof(Scale));
      std::memcpy(pair + sizeof(Scale), &bias, sizeof(Scale));
      const auto s = static_cast<double>(static_cast<float>(scale));
      const auto b = static_cast<double>(static_cast<float>(bias));
      std::memset(codes, 0, static_cast<std::size_t>(code_bytes));
      std::vector<double> numbers;
      for (index_t j = 0; j < width; ++j) {
        const auto code = static_cast<unsigned>(random() % (1U << Bits));
        if (Bits == 8) {
          codes[j] = static_cast<std::byte>(code);
        } else {  // the even column in the low nibble
          codes[j / 2] |= static_cast<std::byte>(j % 2 == 0 ? code : code << 4);
        }
        numbers.push_back(code * s + b);
      }
      exact.values.push_back(numbers);
      exact.magnitudes.push_back(((1 << Bits) - 1) * s + std::fabs(b));
    }
  }

  index_t code_bytes;
  index_t stride;
  guarded<std::byte> bytes;
  table_view<format_type> view;
  exact_rows exact;
};

/// Every row of `out` against the oracle, under the bound that lookup's documentation names.
template <class Out, class Bags>
bool agrees_with_codes(const exact_rows& rows, const Bags& bags, matrix_view<const Out> out, pooled_as how) {
  for (index_t b = 0; b < bags.bags(); ++b) {
    const oracle_row expected = pool_one(rows.values, bags, b, out.extent(1), how);
    double magnitude = 0, weights = 0, squares = 0, n = 0;
    for (index_t k = bags.ranges().begin(b); k < bags.ranges().end(b); ++k) {
      const auto id = static_cast<std::int64_t>(bags.ids()[k]);
      if (id < 0 || id >= static_cast<std::int64_t>(rows.values.size())) continue;
      const double w = bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]);
      const double added = std::fabs(w) * rows.magnitudes[static_cast<std::size_t>(id)];
      magnitude = how == pooled_as::maximum ? std::fmax(magnitude, added) : magnitude + added;
      weights += w;
      squares += w * w;
      n += 1;
    }
    const double by = how == pooled_as::mean_by_count    ? n
                      : how == pooled_as::mean_by_weight ? std::fabs(weights)
                      : how == pooled_as::sqrtn          ? std::sqrt(squares)
                                                         : 1.0;
    if (by == 0) magnitude = 0;
    const double rounding = 2 * (n + 3) * 0x1p-24 * (by == 0 ? 0.0 : magnitude / by);
    for (index_t j = 0; j < out.extent(1); ++j) {
      const double wanted = expected.value[static_cast<std::size_t>(j)];
      const double bound = rounding + storage_roundoff<Out>() * std::fabs(wanted) + 1e-30;
      if (!(std::fabs(static_cast<double>(out(b, j)) - wanted) <= bound)) {
        MESSAGE("bag ", b, " column ", j, ": ", static_cast<double>(out(b, j)), " for ", wanted, " (bound ",
                bound, ")");
        return false;
      }
    }
  }
  return true;
}

/// Sums by the definition in lookup's documentation, for regions with fused multiplication: each code times
/// (scale * weight) is added in order with one rounding, the biases in double. `rounded`: the products are
/// rounded, which is wrong.
template <int Bits, class Scale, class Bags>
std::vector<float> sums_by_definition(const coded_table<Bits, Scale>& table, const Bags& bags,
                                      bool rounded = false) {
  const auto width = static_cast<std::size_t>(table.view.width());
  std::vector<float> sums;
  for (index_t b = 0; b < bags.bags(); ++b) {
    std::vector<float> total(width, 0.0F);
    double bias = 0;
    for (index_t k = bags.ranges().begin(b); k < bags.ranges().end(b); ++k) {
      const std::byte* const row = table.view.row(static_cast<index_t>(bags.ids()[k]));
      const float weight = bags.weights() == nullptr ? 1.0F : bags.weights()[k];
      const float scale = table.view.format().scale(row) * weight;
      for (std::size_t j = 0; j < width; ++j) {
        const auto code = static_cast<float>(
            detail::code_at<Bits>(row + table.view.format().parts().values, static_cast<index_t>(j)));
        volatile const float product = code * scale;
        total[j] = rounded ? product + total[j] : std::fma(code, scale, total[j]);
      }
      bias += static_cast<double>(table.view.format().bias(row) * weight);
    }
    for (const float x : total) sums.push_back(x + static_cast<float>(bias));
  }
  return sums;
}

/// Lookups with fused multiplication against the definition, bit for bit.
template <int Bits, class Scale>
void check_bits_of_codes(scale_bias place) {
  std::mt19937_64 random(seed() + 100 + Bits);
  inline_executor here;
  bool rounding_shows = false;
  for (const index_t width :
       {1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 112, 127, 128, 129, 200, 300}) {
    CAPTURE(width);
    const coded_table<Bits, Scale> table(random, 40, width, place, width % 2 == 0 ? 0 : 3);
    const auto made = make_batch(random, shape_of_batch::uniform, 9, 40, 12);
    for (const bool weighted : {false, true}) {
      const auto bags = made.view(weighted);
      const std::vector<float> expected = sums_by_definition(table, bags);
      const std::vector<float> broken = sums_by_definition(table, bags, true);
      const std::size_t bytes = expected.size() * sizeof(float);
      rounding_shows |= std::memcmp(expected.data(), broken.data(), bytes) != 0;
      for (const isa which : runnable_isas()) {
        if (which == isa::portable) continue;
        CAPTURE(std::string(to_string(which)));
        const auto out = looked_up<float>(on(here, which), table.view, bags, combiner::sum);
        CHECK(std::memcmp(out.data(), expected.data(), bytes) == 0);
      }
    }
  }
  CHECK(rounding_shows);
}

/// One lookup on every ISA against the oracle; the ISAs with fused multiplication give the same bits.
template <class Out, class View, class Batch, class Combiner>
void check_codes_on_every_isa(const View& table, const exact_rows& rows, const Batch& made, bool weighted,
                              Combiner how, fence side = fence::behind) {
  inline_executor here;
  const guarded_batch fenced(made, side);
  const auto bags = fenced.view(weighted);
  std::vector<guarded<Out>> fused;
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    auto out = looked_up<Out>(on(here, which), table, bags, how, side);
    CHECK(agrees_with_codes<Out>(rows, bags, {out.data(), bags.bags(), table.width()}, kind(how)));
    if (which != isa::portable) fused.push_back(std::move(out));
    if (fused.size() > 1) CHECK(same_bits(fused.front(), fused.back()));
  }
}

/// One id in each bag: the other kernel.
inline batch<std::int64_t, std::int64_t> is_one_hot(std::mt19937_64& random, index_t bags, index_t rows) {
  batch<std::int64_t, std::int64_t> made;
  for (index_t b = 0; b < bags; ++b) {
    made.ids.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows)));
    made.weights.push_back(static_cast<float>(b % 5) - 1.5F);
    made.offsets.push_back(b + 1);
  }
  return made;
}

/// Widths 1 to 67, every combiner, weights, one-hot; then panels of wide rows. `Half` is the type of out in
/// places.
template <int Bits, class Scale, class Half>
void check_lookups_of_codes(scale_bias place) {
  std::mt19937_64 random(seed() + Bits);
  const auto check = [&](index_t width, fence side) {
    CAPTURE(width);
    CAPTURE(static_cast<int>(side));
    const coded_table<Bits, Scale> table(random, 13, width, place, width % 3, side);
    const auto made = make_batch(random, every_shape[width % 5], 4, 13, 3);
    check_codes_on_every_isa<float>(table.view, table.exact, made, false, combiner::sum, side);
    check_codes_on_every_isa<float>(table.view, table.exact, made, true, combiner::sum, side);
    check_codes_on_every_isa<float>(table.view, table.exact, made, width % 2 == 0, combiner::mean, side);
    check_codes_on_every_isa<float>(table.view, table.exact, made, width % 2 == 1, combiner::sqrtn, side);
    check_codes_on_every_isa<float>(table.view, table.exact, made, false, combiner::max, side);
    check_codes_on_every_isa<Half>(table.view, table.exact, made, width % 2 == 0, combiner::sum, side);
    const auto single = is_one_hot(random, 9, 13);
    check_codes_on_every_isa<float>(table.view, table.exact, single, width % 2 == 1, combiner::sum, side);
    check_codes_on_every_isa<float>(table.view, table.exact, single, false, combiner::mean, side);
    // Bags of one id and an empty one, first in a batch with longer ones, then alone.
    auto mixed = single;
    for (int k = 0; k < 3; ++k) {
      mixed.ids.push_back(k);
      mixed.weights.push_back(0.5F);
    }
    mixed.offsets.push_back(12);
    mixed.offsets.push_back(12);
    check_bags_apart(table.view, mixed.view(), pooling{combiner::sum, empty_bag::default_row{3}});
    check_bags_apart(table.view, mixed.view(true), combiner::sum);
    check_bags_apart(table.view, mixed.view(width % 2 == 0), combiner::mean);
    check_bags_apart(table.view, mixed.view(), combiner::max);
  };
  for (index_t width = 1; width <= 67; ++width) {
    for (const fence side : every_fence) check(width, side);
  }
  for (const index_t width : {95, 96, 113, 127, 128, 129, 143, 144, 161, 200, 257, 1000}) {
    for (const fence side : every_fence) check(width, side);
  }
}

}  // namespace embedding_test
