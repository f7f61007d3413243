// Tables whose rows are a file: the same rows as any table's, there again after a restart; other tables'
// files are refused.
#include <deeprec/embedding/tables/mapped_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/seed.hpp"
#include "support/temporary_folder.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Format>
bool same_bytes(const dense_table<Format>& a, const dense_table<Format>& b) {
  return a.bytes() == b.bytes() && std::equal(a.view().data(), a.view().data() + a.bytes(), b.view().data());
}

constexpr mapped_file_options to_read{.as = mapped_file_options::use::read};

}  // namespace

TEST_CASE_TEMPLATE("mapped_table: rows of any format are those of a dense_table, and are found again", Format,
                   f32_rows, f16_rows, bf16_rows, e4m3_rows, int8_rows, int4_rows, split_bf16_rows) {
  const temporary_folder folder;
  const std::string path = folder.path() + "/rows";
  thread_pool pool(2);
  for (const index_t rows : {0, 1, 100}) {
    for (const index_t width : {2, 16, 34}) {
      CAPTURE(rows);
      CAPTURE(width);
      const Format format(width);
      dense_table<Format> expected(rows, format);
      {
        auto made = mapped_table<Format>::open(path, rows, format).or_throw();
        CHECK_FALSE(made.found());
        CHECK(same_bytes(made.table(), expected));  // zeros
        expected.initialize(pool, row_init::uniform{.seed = seed()});
        made.table().initialize(pool, row_init::uniform{.seed = seed()});
        CHECK(made.check().ok());
        CHECK(made.flush().ok());
        CHECK(made.close().ok());
        CHECK(made.table().rows() == 0);
      }
      for (const auto& o : {mapped_file_options{}, to_read}) {
        auto again = mapped_table<Format>::open(path, rows, format, o).or_throw();
        CHECK(again.found());
        CHECK(again.was_closed());
        CHECK(again.table().rows() == rows);
        CHECK(again.table().width() == width);
        CHECK(same_bytes(again.table(), expected));
        mapped_table<Format> moved = std::move(again);
        CHECK(same_bytes(moved.table(), expected));
        CHECK(moved.close().ok());
      }
      std::filesystem::remove(path);
    }
  }
}

TEST_CASE("mapped_table: training over restarts is training without") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/rows";
  constexpr index_t rows = 500, width = 12, bags = 64, hotness = 3;
  thread_pool pool(2);
  std::mt19937_64 random(seed());
  dense_table<f32_rows> expected(rows, width, state_of<adagrad>);
  expected.initialize(pool, row_init::uniform{.seed = 5});
  for (int run = 0; run < 4; ++run) {
    auto mapped = mapped_table<f32_rows>::open(path, rows, width, state_of<adagrad>).or_throw();
    CHECK(mapped.found() == (run > 0));
    if (!mapped.found()) mapped.table().initialize(pool, row_init::uniform{.seed = 5});
    for (int step = 0; step < 5; ++step) {
      std::vector<std::int64_t> ids(bags * hotness);
      for (auto& id : ids) id = static_cast<std::int64_t>(random() % rows);
      std::vector<float> gradient(bags * width);
      for (float& g : gradient) g = static_cast<float>(random() % 100) * 0.01F - 0.5F;
      const auto batch = fixed_hotness_view<std::int64_t>(ids.data(), bags, hotness);
      for (dense_table<f32_rows>* const table : {&expected, &mapped.table()}) {
        update(pool, table->view(), batch, combiner::sum,
               matrix_view<const float>(gradient.data(), bags, width), adagrad{})
            .or_throw();
      }
      std::vector<float> a(bags * width), b(bags * width);
      lookup(pool, expected.view(), batch, combiner::mean, matrix_view<float>(a.data(), bags, width))
          .or_throw();
      lookup(pool, mapped.table().view(), batch, combiner::mean, matrix_view<float>(b.data(), bags, width))
          .or_throw();
      CHECK(a == b);
    }
    CHECK(same_bytes(mapped.table(), expected));
    CHECK(mapped.close().ok());
  }
}

TEST_CASE("mapped_table: after close() a lookup is a fault, and no crash") {
  const temporary_folder folder;
  auto mapped = mapped_table<f32_rows>::open(folder.path() + "/rows", 10, 4).or_throw();
  CHECK(mapped.close().ok());
  inline_executor here;
  const std::int64_t id = 3;
  std::vector<float> out(4);
  CHECK(lookup(here, mapped.table().view(), fixed_hotness_view<std::int64_t>(&id, 1, 1), combiner::sum,
               matrix_view<float>(out.data(), 1, 0))
            .code() != errc::ok);
  CHECK(mapped.close().ok());
  CHECK(mapped.check().ok());
}

TEST_CASE("mapped_table: the file of another table is refused, and says what it holds") {
  const temporary_folder folder;
  const std::string path = folder.path() + "/rows";
  {
    auto mapped = mapped_table<f32_rows>::open(path, 100, 16, state_of<adagrad>).or_throw();
    CHECK(mapped.close().ok());
  }
  const std::string holds = "holds \"table of f32, 100 rows of 16, stride 128, state of 16 of adagrad\"";
  const auto is = [&](const auto& opened) {
    CAPTURE(opened.message());
    CHECK(opened.code() == errc::shape_mismatch);
    CHECK(opened.message().find(holds) != std::string::npos);
    CHECK(opened.message().find(path) != std::string::npos);
  };
  is(mapped_table<f32_rows>::open(path, 101, 16, state_of<adagrad>));
  is(mapped_table<f32_rows>::open(path, 100, 17, state_of<adagrad>));
  is(mapped_table<f32_rows>::open(path, 100, 16));
  is(mapped_table<f32_rows>::open(path, 100, f32_rows(16, {.state_floats = 16})));
  is(mapped_table<f32_rows>::open(path, 100, f32_rows(16, {.state_floats = 16, .state_owner = "adam"})));
  is(mapped_table<f32_rows>::open(path, 100, f32_rows(16, {.stride_bytes = 128})));
  is(mapped_table<f32_rows>::open(path, 100, f32_rows(32)));  // as many bytes
  is(mapped_table<bf16_rows>::open(path, 100, 64));           // as many bytes
  is(mapped_table<int8_rows>::open(path, 100, 120));
  CHECK(mapped_table<f32_rows>::open(path, 100, 16, state_of<adagrad>).ok());

  CHECK(mapped_table<f32_rows>::open(path, -1, 16).code() == errc::invalid_value);
  CHECK(mapped_table<f32_rows>::open(folder.path() + "/b", INT64_MAX, 16).code() == errc::invalid_value);
  // A file of tables is no mapped file, and the other way round.
  dense_table<f32_rows> table(10, 4);
  save_tables(folder.path() + "/saved", {name_table("t", table.view())}).or_throw();
  CHECK(mapped_table<f32_rows>::open(folder.path() + "/saved", 10, 4).message().find("no mapped file") !=
        std::string::npos);
  CHECK(describe_file(path).message().find("no file of tables") != std::string::npos);
}
