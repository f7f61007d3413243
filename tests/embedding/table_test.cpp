#include <deeprec/embedding/tables/dense_table.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

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
  alone.initialize(inline_executor{}, row_init::uniform{.seed = 7, .bound = 0.5F});
  for (int threads = 1; threads <= 4; ++threads) {
    thread_pool pool(threads);
    dense_table<Format> together(20000, 37);
    together.initialize(pool, row_init::uniform{.seed = 7, .bound = 0.5F});
    CHECK(same_rows(alone, together));
  }
  dense_table<Format> other(20000, 37);
  other.initialize(inline_executor{}, row_init::uniform{.seed = 8, .bound = 0.5F});
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
  table.initialize(pool, row_init::uniform{.seed = 1, .bound = 0.1F});
  CHECK(std::abs(moments()[0]) < 5 * 0.0577 / 800);
  CHECK(moments()[1] == doctest::Approx(0.01 / 3).epsilon(0.01));
  CHECK(moments()[2] <= 0.1F);
  table.initialize(pool, row_init::normal{.seed = 1, .deviation = 0.1F});
  CHECK(std::abs(moments()[0]) < 5 * 0.1 / 800);
  CHECK(moments()[1] == doctest::Approx(0.01).epsilon(0.01));
}

TEST_CASE("plain_rows: optimizer state beside the row is aligned, zeroed, and outside the row") {
  const bf16_rows format(5, {.state_floats = 2});
  CHECK(format.row_bytes() == 10);
  CHECK(format.stride_bytes() == 20);
  dense_table<bf16_rows> table(100, format);
  table.initialize(inline_executor{}, row_init::uniform{.seed = 3});
  for (index_t i = 0; i < 100; ++i) {
    float* state = format.state(table.view().row(i));
    CHECK(reinterpret_cast<std::uintptr_t>(state) % alignof(float) == 0);
    CHECK(state[0] == 0.0F);
    CHECK(state[1] == 0.0F);
    CHECK(reinterpret_cast<std::byte*>(state) - table.view().row(i) == 12);
  }
  CHECK(f32_rows(3).stride_bytes() == 12);
  CHECK(f32_rows(16).stride_bytes() == 64);
  CHECK(f32_rows(3).state(nullptr) == nullptr);
}

TEST_CASE("dense_table: the state of an optimizer has its floats behind each row, in every format") {
  const auto floats = [](const auto& table) { return table.format().state_floats(); };
  CHECK(state_floats_of<sgd>(7) == 0);
  CHECK(state_floats_of<rowwise_adagrad>(7) == 1);
  CHECK(state_floats_of<adagrad>(7) == 7);
  CHECK(state_floats_of<rowwise_adam>(7) == 8);
  CHECK(state_floats_of<clipped_by_norm<adam>>(7) == 14);
  CHECK_FALSE(fits_memory(state_floats_of<adam>((std::numeric_limits<index_t>::max)()), 1));
  CHECK(floats(dense_table<f32_rows>(3, 7, state_of<sgd>)) == 0);
  CHECK(floats(dense_table<bf16_rows>(3, 7, state_of<adam>, std::pmr::new_delete_resource())) == 14);
  CHECK(floats(dense_table<split_bf16_rows>(3, 7, state_of<adagrad>)) == 7);
  CHECK(floats(dense_table<f32_rows>(3, 8, state_of<rowwise_adam>)) == 9);
  CHECK(dense_table<f32_rows>(3, 7, state_of<adagrad>).width() == 7);
}

TEST_CASE("dense_table: moves, and a table that can't be had is an error, not a crash") {
  dense_table<f32_rows> table(100, 8);
  table.initialize(inline_executor{}, row_init::uniform{.seed = 3});
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

// A width, or a state, whose bytes are more than a number can say.
TEST_CASE_TEMPLATE("dense_table: sizes that memory can't hold don't wrap", Format, plain_rows<e4m3>,
                   bf16_rows, f32_rows, plain_rows<double>, split_bf16_rows, int8_rows, int4_rows) {
  constexpr index_t largest = std::numeric_limits<index_t>::max();
  for (const index_t width : {largest, largest - 5, largest / 2 + 1, index_t{1} << 62, index_t{1} << 61}) {
    CAPTURE(width);
    const Format format(width);
    CHECK(format.row_bytes() >= (index_t{1} << 60));
    CHECK(format.stride_bytes() >= format.row_bytes());
    for (const index_t count : {index_t{1}, index_t{2}, index_t{4}, index_t{8}, index_t{1} << 32, largest}) {
      CHECK_THROWS_AS(dense_table<Format>(count, format), error);
    }
    CHECK(dense_table<Format>(0, format).bytes() == 0);
    if constexpr (std::is_constructible_v<Format, index_t, row_layout>) {
      const Format with_state(8, {.state_floats = width});
      CHECK(with_state.stride_bytes() >= (index_t{1} << 60));
      CHECK_THROWS_AS(dense_table<Format>(4, with_state), error);
    }
  }
}

TEST_CASE("dense_table: initialize without memory for its scratch is an error, and no row is written") {
  dense_table<f32_rows> table(100, 8);
  inline_executor here;
  context ctx{here};
  ctx.memory = std::pmr::null_memory_resource();
  CHECK_THROWS_AS(table.initialize(ctx, row_init::uniform{.seed = 3}), error);
  float first = -1;
  std::memcpy(&first, table.view().data(), sizeof(first));
  CHECK(first == 0);
}

TEST_CASE("dense_table: lies on huge pages where the system gives them") {
  thread_pool pool(2);
  dense_table<f32_rows> table(1 << 20, 16);
  table.initialize(pool, row_init::uniform{.seed = 3});
  const huge_page_report report = huge_page_resource::shared()->report();
  CHECK(report.mapped >= table.bytes());
  CHECK(reinterpret_cast<std::uintptr_t>(table.view().data()) % huge_page_size == 0);
  if (report.transparent_huge == 0) MESSAGE("SKIPPED: this system gave no transparent huge pages");
}
