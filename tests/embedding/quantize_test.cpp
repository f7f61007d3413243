// The row formats' own codecs, and quantize and dequantize.
#include <deeprec/embedding/tables/quantize.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <random>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::seed;

namespace {

using int8_f16_rows = quantized_rows<8, f16>;
using int4_f32_rows = quantized_rows<4, float>;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <class Format>
std::vector<std::byte> encoded(const Format& format, const std::vector<float>& values) {
  std::vector<std::byte> row(static_cast<std::size_t>(format.row_bytes()), std::byte{0xee});
  format.encode(values.data(), row.data());
  return row;
}
template <class Format>
std::vector<float> decoded(const Format& format, const std::vector<std::byte>& row) {
  std::vector<float> values(static_cast<std::size_t>(format.width()));
  format.decode(row.data(), values.data());
  return values;
}

/// Rows of all kinds: of any size, far from zero, tiny, constant, with one outlier.
std::vector<float> any_row(std::mt19937_64& random, index_t width) {
  std::uniform_real_distribution<float> unit(-1, 1);
  std::vector<float> row(static_cast<std::size_t>(width));
  const float size = std::ldexp(1.0F, static_cast<int>(random() % 24) - 14);
  const float shift = random() % 2 == 0 ? 0.0F : 1000.0F * unit(random);
  for (float& x : row) x = size * unit(random) + shift;
  if (random() % 4 == 0) std::fill(row.begin(), row.end(), row[0]);
  if (random() % 4 == 0) row[random() % row.size()] = 60000.0F * unit(random);
  return row;
}

/// Whether a row comes back to within half a step, and the roundings of code * scale + bias.
template <class Format, class Encode>
bool within_half_a_step(const Format& format, const std::vector<float>& values, Encode encode) {
  std::vector<std::byte> row(static_cast<std::size_t>(format.row_bytes()));
  encode(values, row);
  const auto scale = static_cast<double>(format.scale(row.data()));
  const auto bias = static_cast<double>(format.bias(row.data()));
  const std::vector<float> back = decoded(format, row);
  const double rounding = 0x1p-23 * (scale * Format::levels + std::fabs(bias)) + 1e-44;
  for (std::size_t j = 0; j < values.size(); ++j) {
    const double error = std::fabs(static_cast<double>(back[j]) - static_cast<double>(values[j]));
    if (!(error <= scale / 2 + rounding)) return false;
  }
  return true;
}

template <class Format>
dense_table<Format> made_from(const std::vector<float>& values, index_t rows, const Format& format) {
  dense_table<Format> table(rows, format);
  quantize(inline_executor{}, matrix_view(values.data(), rows, format.width()), table.view()).or_throw();
  return table;
}

}  // namespace

TEST_CASE("quantize: the documentation's example") {
  /// [quantize]
  std::vector<float> weights{0, 1, 2, 255, -1, -1, -1, -1};  // (R=2, D=4)
  dense_table<int8_rows> small(2, 4);
  quantize(inline_executor{}, matrix_view(weights.data(), 2, 4), small.view()).or_throw();
  std::vector<float> back(2 * 4);
  dequantize(inline_executor{}, small.view(), matrix_view(back.data(), 2, 4)).or_throw();
  /// [quantize]
  CHECK(back == weights);
}

TEST_CASE("quantized_rows: bytes are those of FBGEMM's fused rows") {
  const std::vector<float> values{-1, 254, 3, 0, 99};  // scale 1, bias -1
  auto int8_last = bytes_of({0, 255, 4, 1, 100});
  append(int8_last, 1.0F);
  append(int8_last, -1.0F);
  CHECK(encoded(int8_rows(5), values) == int8_last);

  std::vector<std::byte> int8_first;
  append(int8_first, f16(1.0F));
  append(int8_first, f16(-1.0F));
  for (const int code : {0, 255, 4, 1, 100}) int8_first.push_back(static_cast<std::byte>(code));
  const int8_f16_rows table_batched(5, {.place = scale_bias::first, .stride_bytes = 16});
  CHECK(encoded(table_batched, values) == int8_first);
  CHECK(table_batched.row_bytes() == 9);
  CHECK(table_batched.stride_bytes() == 16);

  const std::vector<float> few{0.5F, 8, 2, 3.5F, 1};  // scale 0.5, bias 0.5: codes 0 15 3 6 1
  auto int4_last = bytes_of({0xf0, 0x63, 0x01});
  append(int4_last, f16(0.5F));
  append(int4_last, f16(0.5F));
  CHECK(encoded(int4_rows(5), few) == int4_last);
  std::vector<std::byte> int4_first;
  append(int4_first, f16(0.5F));
  append(int4_first, f16(0.5F));
  for (const int both : {0xf0, 0x63, 0x01}) int4_first.push_back(static_cast<std::byte>(both));
  CHECK(encoded(int4_rows(5, {.place = scale_bias::first}), few) == int4_first);

  CHECK(decoded(int8_rows(5), int8_last) == values);
  CHECK(decoded(table_batched, int8_first) == values);
  CHECK(decoded(int4_rows(5), int4_last) == few);
  CHECK(decoded(int4_rows(5, {.place = scale_bias::first}), int4_first) == few);
  CHECK(int4_rows(5).code(int4_last.data(), 3) == 6);
  CHECK(int4_rows(5).scale(int4_last.data()) == 0.5F);
  CHECK(int4_rows(5).row_bytes() == 7);
  CHECK(int4_rows(4).row_bytes() == 6);
  CHECK(int8_rows(12).stride_bytes() == 20);
}

TEST_CASE("quantized_rows: ties go to the even code") {
  const auto row = encoded(int8_rows(6), {0, 255, 0.5F, 1.5F, 2.5F, 2.4999998F});
  CHECK(std::vector<std::byte>(row.begin(), row.begin() + 6) == bytes_of({0, 255, 0, 2, 2, 2}));
}

TEST_CASE_TEMPLATE("quantized_rows: every value comes back to within half a step", Format, int8_rows,
                   int8_f16_rows, int4_rows, int4_f32_rows) {
  std::mt19937_64 random(seed());
  bool cut_off_is_caught = false;
  for (int trial = 0; trial < 3000; ++trial) {
    const auto width = static_cast<index_t>(1 + random() % 40);
    const Format format(width, {.place = trial % 2 == 0 ? scale_bias::first : scale_bias::last});
    const std::vector<float> values = any_row(random, width);
    REQUIRE(format.first_unfit(values.data()) == -1);
    CHECK(within_half_a_step(format, values,
                             [&](const auto& from, auto& row) { format.encode(from.data(), row.data()); }));
    // Broken: every code cut off instead of rounded.
    cut_off_is_caught |= !within_half_a_step(format, values, [&](const auto& from, auto& row) {
      auto lower = from;
      const auto range =
          *std::max_element(from.begin(), from.end()) - *std::min_element(from.begin(), from.end());
      for (float& x : lower) x = std::max(x - 0.4F * range / Format::levels, from[0]);
      format.encode(lower.data(), row.data());
    });
  }
  CHECK(cut_off_is_caught);
}

TEST_CASE("quantized_rows: constant rows come back as they were where f32 keeps the bias") {
  for (const float c : {0.0F, -0.0F, 1.0F / 3.0F, -1e30F, 1e-45F}) {
    CHECK(decoded(int8_rows(3), encoded(int8_rows(3), {c, c, c})) == std::vector<float>{c, c, c});
  }
  CHECK(decoded(int4_rows(2), encoded(int4_rows(2), {2.5F, 2.5F})) == std::vector<float>{2.5F, 2.5F});
  const float third = 1.0F / 3.0F;  // between two halves: the lower one is the bias
  const auto near = decoded(int4_rows(1), encoded(int4_rows(1), {third}));
  CHECK(near[0] == doctest::Approx(third).epsilon(1e-5));
}

TEST_CASE("quantized_rows: huge and tiny rows fit f32 scale and bias") {
  const std::vector<float> huge{-1e38F, 2e38F, 0.0F};
  CHECK(within_half_a_step(int8_rows(3), huge, [&](const auto& from, auto& row) {
    int8_rows(3).encode(from.data(), row.data());
  }));
  const std::vector<float> tiny{0.0F, 357e-45F, 100e-45F};
  CHECK(within_half_a_step(int8_rows(3), tiny, [&](const auto& from, auto& row) {
    int8_rows(3).encode(from.data(), row.data());
  }));
}

TEST_CASE("quantized_rows: a row that can't be encoded decodes to NaN, and says which column it is") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto all_nan = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isnan(x); });
  };
  const auto check = [&](const auto& format, const std::vector<float>& values, index_t column) {
    CHECK(format.first_unfit(values.data()) == column);
    CHECK(all_nan(decoded(format, encoded(format, values))));
  };
  check(int8_rows(3), {1, nan, 3}, 1);
  check(int8_rows(3), {1, 2, -inf}, 2);
  check(int4_rows(3), {inf, nan, 3}, 0);
  check(int4_rows(3), {1, -70000, 3}, 1);  // no f16 bias
  check(int4_rows(3), {1, 2, 3e6F}, 2);    // no f16 scale
  check(int8_f16_rows(3), {1, 2, 3e7F}, 2);
  check(int8_rows(3), {1, -3e38F, 3e38F}, 2);  // 255 * scale is no float
  CHECK(int8_rows(3).first_unfit(std::vector<float>{1, -70000, 3e30F}.data()) == -1);
}

TEST_CASE_TEMPLATE("quantize: the bytes of encode, for any number of threads and any stride; gaps stay",
                   Format, int8_rows, int4_rows, bf16_rows, e4m3_rows, split_bf16_rows) {
  std::mt19937_64 random(seed() + 1);
  const index_t rows = 3000, width = 37, source_stride = 41;
  std::vector<float> source(static_cast<std::size_t>(rows * source_stride));
  std::uniform_real_distribution<float> unit(-1, 1);
  for (float& x : source) x = unit(random);
  const matrix_view<const float> view(source.data(), rows, width, source_stride);
  const index_t tight = Format(width).stride_bytes();
  const Format format = [&] {
    if constexpr (requires { Format(width, quantized_layout{}); }) {
      return Format(width, quantized_layout{.stride_bytes = tight + 6});
    } else {
      return Format(width, row_layout{.stride_bytes = tight + 6});
    }
  }();
  const auto size = static_cast<std::size_t>(rows * format.stride_bytes());
  std::vector<std::byte> expected(size, std::byte{0x5a});
  for (index_t r = 0; r < rows; ++r) format.encode(view.row(r), expected.data() + r * format.stride_bytes());
  std::vector<float> back(static_cast<std::size_t>(rows * width)), row(static_cast<std::size_t>(width));
  for (int threads = 1; threads <= 4; ++threads) {
    thread_pool pool(threads);
    context ctx{pool};
    ctx.memory = std::pmr::null_memory_resource();  // throws when asked
    std::vector<std::byte> bytes(size, std::byte{0x5a});
    const table_view<Format> table(bytes.data(), rows, format);
    REQUIRE(quantize(ctx, view, table).ok());
    CHECK(bytes == expected);
    REQUIRE(dequantize(ctx, table, matrix_view(back.data(), rows, width)).ok());
    for (index_t r = 0; r < rows; ++r) {
      format.decode(table.row(r), row.data());
      if (std::memcmp(row.data(), back.data() + r * width, row.size() * sizeof(float)) != 0) {
        FAIL("row ", r, " of dequantize is not what decode gives");
      }
    }
  }
}

TEST_CASE("quantize: the smallest bad row is named with its column, and nothing is written") {
  const index_t rows = 9000, width = 20;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int threads = 1; threads <= 3; ++threads) {
    thread_pool pool(threads);
    std::vector<float> source(static_cast<std::size_t>(rows * width), 1.5F);
    const matrix_view<float> view(source.data(), rows, width);
    view(8000, 3) = nan;
    view(4321, 7) = -std::numeric_limits<float>::infinity();
    view(4321, 9) = nan;
    const auto answer = [&](auto format) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(rows * format.stride_bytes()), std::byte{0x77});
      const status s = quantize(pool, view, table_view<decltype(format)>(bytes.data(), rows, format));
      CHECK(std::count(bytes.begin(), bytes.end(), std::byte{0x77}) ==
            static_cast<std::ptrdiff_t>(bytes.size()));
      return s;
    };
    for (const status& s : {answer(int8_rows(width)), answer(int4_rows(width)), answer(e5m2_rows(width)),
                            answer(f32_rows(width)), answer(split_bf16_rows(width))}) {
      CHECK(s.code() == errc::invalid_value);
      CHECK(s.place().row == 4321);
      CHECK(s.place().column == 7);
      CHECK(s.message() == "invalid value: quantize: values must be finite; row 4321, column 7");
    }
    view(5, 19) = -70000.0F;
    CHECK(answer(int4_rows(width)).message() ==
          "invalid value: quantize: too large for the rows' format; row 5, column 19");
    CHECK(answer(f16_rows(width)).place().column == 19);
    CHECK(answer(e4m3_rows(width)).place().row == 5);
    CHECK(answer(int8_rows(width)).place().row == 4321);
  }
}

TEST_CASE("quantize and dequantize: shapes that differ, and no rows") {
  std::vector<float> source(12, 1.0F);
  dense_table<int8_rows> table(3, 4);
  const inline_executor here;
  CHECK(quantize(here, matrix_view(source.data(), 2, 4), table.view()).code() == errc::shape_mismatch);
  CHECK(quantize(here, matrix_view(source.data(), 3, 3), table.view()).code() == errc::shape_mismatch);
  CHECK(dequantize(here, table.view(), matrix_view(source.data(), 4, 3)).code() == errc::shape_mismatch);
  CHECK(dequantize(here, table.view(), matrix_view(source.data(), 3, 4, 2)).code() == errc::shape_mismatch);
  CHECK(quantize(here, matrix_view<const float>(nullptr, 3, 4), table.view()).message() ==
        "shape mismatch: quantize: source must not be null");
  CHECK(dequantize(here, table.view(), matrix_view<float>(nullptr, 3, 4)).message() ==
        "shape mismatch: dequantize: out must not be null");
  CHECK(quantize(here, matrix_view(source.data(), 0, 4), dense_table<int8_rows>(0, 4).view()).ok());
  const auto copy = made_from(source, 3, int4_rows(4));
  std::vector<float> back(12);
  CHECK(dequantize(here, copy.view(), matrix_view(back.data(), 3, 4)).ok());
  CHECK(back == source);
}

TEST_CASE("dense_table: quantized rows are initialised like others") {
  dense_table<f32_rows> floats(200, 33);
  dense_table<int8_rows> codes(200, 33);
  thread_pool pool(2);
  floats.initialize(pool, row_init::uniform{.seed = 9, .bound = 0.5F});
  codes.initialize(pool, row_init::uniform{.seed = 9, .bound = 0.5F});
  std::vector<float> exact(33), coded(33);
  for (index_t r = 0; r < 200; ++r) {
    floats.format().decode(floats.view().row(r), exact.data());
    codes.format().decode(codes.view().row(r), coded.data());
    for (std::size_t j = 0; j < 33; ++j) CHECK(std::fabs(exact[j] - coded[j]) <= 0.5F / 255.0F);
  }
}
