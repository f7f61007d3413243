#include <deeprec/embedding/dense_table.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

using namespace deeprec;

namespace {
template <class Format>
bool same_rows(const dense_table<Format>& a, const dense_table<Format>& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.view().data(), b.view().data(), a.bytes()) == 0;
}
}  // namespace

TEST_CASE_TEMPLATE("dense_table: initialisation has the same bits for any number of threads", Format,
                   f32_rows, f16_rows, bf16_rows) {
  dense_table<Format> alone(20000, 37);
  alone.initialize(inline_executor{}, uniform_rows{.seed = 7, .bound = 0.5F});
  for (int threads = 1; threads <= 4; ++threads) {
    thread_pool pool(threads);
    dense_table<Format> together(20000, 37);
    together.initialize(pool, uniform_rows{.seed = 7, .bound = 0.5F});
    CHECK(same_rows(alone, together));
  }
  dense_table<Format> other(20000, 37);
  other.initialize(inline_executor{}, uniform_rows{.seed = 8, .bound = 0.5F});
  CHECK_FALSE(same_rows(alone, other));
}

TEST_CASE("dense_table: uniform and normal rows have the moments that they name") {
  thread_pool pool(2);
  dense_table<f32_rows> table(10000, 64);
  const auto moments = [&] {
    double sum = 0, squares = 0, largest = 0;
    std::vector<float> row(64);
    for (index_t i = 0; i < table.rows(); ++i) {
      table.format().decode(table.view().row(i), row.data());
      for (const float x : row) {
        sum += static_cast<double>(x);
        squares += static_cast<double>(x) * static_cast<double>(x);
        largest = std::max(largest, std::abs(static_cast<double>(x)));
      }
    }
    return std::vector<double>{sum / 640000, squares / 640000, largest};
  };
  table.initialize(pool, uniform_rows{.seed = 1, .bound = 0.1F});
  CHECK(std::abs(moments()[0]) < 5 * 0.0577 / 800);
  CHECK(moments()[1] == doctest::Approx(0.01 / 3).epsilon(0.01));
  CHECK(moments()[2] <= 0.1F);
  table.initialize(pool, normal_rows{.seed = 1, .deviation = 0.1F});
  CHECK(std::abs(moments()[0]) < 5 * 0.1 / 800);
  CHECK(moments()[1] == doctest::Approx(0.01).epsilon(0.01));
}

TEST_CASE("plain_rows: optimizer state beside the row is aligned, zeroed, and outside the row") {
  const bf16_rows format(5, {.state_floats = 2});
  CHECK(format.row_bytes() == 10);
  CHECK(format.stride_bytes() == 20);
  dense_table<bf16_rows> table(100, format);
  table.initialize(inline_executor{}, uniform_rows{.seed = 3});
  for (index_t i = 0; i < 100; ++i) {
    float* state = format.state(table.view().row(i));
    CHECK(reinterpret_cast<std::uintptr_t>(state) % alignof(float) == 0);
    CHECK(state[0] == 0.0F);
    CHECK(state[1] == 0.0F);
    CHECK(reinterpret_cast<std::byte*>(state) - table.view().row(i) == 12);
  }
  CHECK(f32_rows(3).stride_bytes() == 12);
  CHECK(plain_rows<float, dim<16>>(dim<16>()).stride_bytes() == 64);
  CHECK(f32_rows(3).state(nullptr) == nullptr);
}

TEST_CASE("dense_table: moves, and a table that can't be had is an error, not a crash") {
  dense_table<f32_rows> table(100, 8);
  table.initialize(inline_executor{}, uniform_rows{.seed = 3});
  const std::byte* rows = table.view().data();
  dense_table<f32_rows> moved(std::move(table));
  CHECK(moved.view().data() == rows);
  CHECK(moved.rows() == 100);
  moved = dense_table<f32_rows>(3, 2);
  CHECK(moved.rows() == 3);
  CHECK_THROWS_AS(dense_table<f32_rows>(index_t{1} << 60, 64), error);
  CHECK_THROWS_AS(dense_table<f32_rows>(index_t{1} << 52, 64), error);
  CHECK_THROWS_AS(dense_table<f32_rows>(-1, 64), error);
}

TEST_CASE("dense_table: lies on huge pages where the system gives them") {
  thread_pool pool(2);
  dense_table<f32_rows> table(1 << 20, 16);
  table.initialize(pool, uniform_rows{.seed = 3});
  const huge_page_report report = huge_page_resource::shared()->report();
  CHECK(report.mapped >= table.bytes());
  CHECK(reinterpret_cast<std::uintptr_t>(table.view().data()) % huge_page_size == 0);
  if (report.transparent_huge == 0) MESSAGE("SKIPPED: this system gave no transparent huge pages");
}
