// Optimizer state in a matrix of its own: the bits of state beside the rows.
#include <deeprec/embedding/tables/separate_state.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>

#include "support/batches.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr index_t rows = 50, bags = 40;

/// Three steps with state beside the rows and apart from them: rows and states have the same bits.
template <class T, class Optimizer>
void compare(Optimizer optimizer, index_t width) {
  CAPTURE(width);
  constexpr index_t room = Optimizer::row_state;
  const index_t floats = room + Optimizer::element_state * width;
  thread_pool pool(3);
  dense_table<plain_rows<T>> beside(rows, plain_rows<T>(width, {.state_floats = floats}));
  dense_table<plain_rows<T>> weights(rows, plain_rows<T>(width));
  beside.initialize(pool, row_init::uniform{.seed = 4, .bound = 1.0F});
  weights.initialize(pool, row_init::uniform{.seed = 4, .bound = 1.0F});
  const index_t stride = floats + 3;
  std::vector<float> state(static_cast<std::size_t>(rows * stride), 0.0F);
  const auto apart = with_state(weights.view(), matrix_view<float>(state.data(), rows, floats, stride));
  std::mt19937_64 random(seed());
  std::normal_distribution<float> normal;
  for (int step = 0; step < 3; ++step) {
    const auto made = make_batch(random, shape_of_batch::skewed, bags, rows, 4);
    std::vector<float> gradient(static_cast<std::size_t>(bags * width));
    for (float& g : gradient) g = normal(random);
    const matrix_view<const float> g(gradient.data(), bags, width);
    REQUIRE(update(pool, beside.view(), made.view(), combiner::mean, g, optimizer).ok());
    REQUIRE(update(pool, apart, made.view(), combiner::mean, g, optimizer).ok());
    next_step(optimizer);
  }
  bool changed = false;
  for (index_t r = 0; r < rows; ++r) {
    CHECK(std::memcmp(beside.view().row(r), weights.view().row(r),
                      static_cast<std::size_t>(width) * sizeof(T)) == 0);
    const float* const expected = beside.view().format().state(beside.view().row(r));
    const float* const got = state.data() + r * stride;
    CHECK(std::memcmp(expected, got, static_cast<std::size_t>(floats) * sizeof(float)) == 0);
    CHECK(apart.format().state(apart.row(r)) == got);
    for (index_t c = 0; c < floats; ++c) changed |= got[c] != 0.0F;
    CHECK(std::all_of(got + floats, got + stride, [](float x) { return x == 0.0F; }));
  }
  CHECK(changed);
}

}  // namespace

TEST_CASE("separate_state: rows and states have the bits of state beside the rows") {
  for (const index_t width : {3, 16, 37}) {
    compare<float>(rowwise_adagrad{.learning_rate = 0.1F}, width);
    compare<float>(adam{.learning_rate = 0.1F}, width);
    compare<bf16>(adam{.learning_rate = 0.1F}, width);
  }
}

TEST_CASE("separate_state: state of another size is refused and nothing is written") {
  inline_executor here;
  dense_table<f32_rows> weights(rows, f32_rows(4));
  weights.initialize(here, row_init::uniform{.seed = 4});
  std::vector<float> state(static_cast<std::size_t>(rows * 8));
  const std::int64_t id = 7;
  const std::vector<float> gradient(4, 1.0F);
  const fixed_hotness_view<> batch(&id, 1, 1);
  const matrix_view<const float> g(gradient.data(), 1, 4);
  const std::vector<std::byte> before(weights.view().row(0), weights.view().row(0) + rows * 16);
  const auto refused = [&](matrix_view<float> given) {
    return update(here, with_state(weights.view(), given), batch, combiner::sum, g, adam{}).code() ==
           errc::shape_mismatch;
  };
  CHECK(refused({state.data(), rows - 1, 8}));
  CHECK(refused({state.data(), rows, 7}));
  CHECK(refused({nullptr, 0, 0}));
  CHECK(refused({nullptr, rows, 8}));
  CHECK(refused({state.data(), rows, 8, 7}));
  CHECK(refused({state.data(), rows, index_t{1} << 61}));
  CHECK(std::memcmp(before.data(), weights.view().row(0), before.size()) == 0);
}

TEST_CASE("separate_state: the example of its documentation") {
  inline_executor here;
  std::vector<float> weights(100 * 8, 0.5F), moments(100 * 16, 0.0F);
  const std::vector<std::int64_t> ids{7, 9};
  const std::vector<float> gradient(8, 1.0F);
  //! [with_state]
  const auto table = as_table(matrix_view(weights.data(), 100, 8));
  const status s = update(here, with_state(table, matrix_view(moments.data(), 100, 16)),
                          fixed_hotness_view<>(ids.data(), 1, 2), combiner::sum,
                          matrix_view(gradient.data(), 1, 8), adam{.learning_rate = 0.1F});
  //! [with_state]
  REQUIRE_MESSAGE(s.ok(), s.message());
  CHECK(weights[7 * 8] == doctest::Approx(0.4F));
  CHECK(moments[9 * 16] != 0.0F);
  CHECK(moments[8 * 16] == 0.0F);
}

namespace {

/// Steps some rows of a table, saves it, loads it over another one and steps both once more: the same bits.
template <class Format>
void saved_with_its_slots(const std::string& path, const Format& format) {
  inline_executor here;
  const index_t width = format.width();
  dense_table<Format> table(rows, format), back(rows, format);
  const auto state_of = [](auto& t, index_t r) { return t.view().format().state(t.view().row(r)); };
  // Every slot is there from the begin: zeros, in memory that was used before as well.
  for (dense_table<Format>* made : {&table, &back}) {
    std::fill_n(made->view().data(), made->bytes(), std::byte{0x7f});  // 3.4e38 as a float
    made->initialize(here, row_init::uniform{.seed = 4, .bound = 1.0F});
    for (index_t r = 0; r < rows; ++r) {
      for (index_t c = 0; c < format.state_floats(); ++c) CHECK(state_of(*made, r)[c] == 0.0F);
    }
  }
  std::mt19937_64 random(seed() + 7);
  adam optimizer{.learning_rate = 0.1F};
  const auto step = [&](dense_table<Format>& t, std::uint64_t stream) {
    std::mt19937_64 ids(stream);
    const auto made = make_batch(ids, shape_of_batch::skewed, 10, rows, 3);
    std::vector<float> gradient(static_cast<std::size_t>(10 * width));
    for (float& g : gradient) g = std::normal_distribution<float>()(ids);
    REQUIRE(update(here, t.view(), made.view(), combiner::sum,
                   matrix_view<const float>(gradient.data(), 10, width), optimizer)
                .ok());
  };
  for (int i = 0; i < 3; ++i) step(table, random());
  const const_named_table out[] = {name_table("t", table.view())};
  REQUIRE(save_tables(path, out, {.step = 3, .numbers = {}}));
  step(back, random());  // what is loaded over is another history
  const named_table in[] = {name_table("t", back.view())};
  REQUIRE(load_tables(path, in).or_throw().step == 3);
  const std::uint64_t next = random();
  step(table, next);
  step(back, next);
  index_t stepped = 0, untouched = 0;
  for (index_t r = 0; r < rows; ++r) {
    CHECK(std::memcmp(table.view().row(r), back.view().row(r),
                      static_cast<std::size_t>(format.row_bytes())) == 0);
    const float* const slots = state_of(table, r);
    const auto count = static_cast<std::size_t>(format.state_floats());
    CHECK(std::memcmp(slots, state_of(back, r), count * sizeof(float)) == 0);
    const bool zero = std::all_of(slots, slots + count, [](float x) { return x == 0.0F; });
    ++(zero ? untouched : stepped);
    CHECK(std::none_of(slots, slots + count, [](float x) { return !(x > -1e3F && x < 1e3F); }));
  }
  CHECK(stepped > 5);
  CHECK(untouched > 5);
  // A file never has some slots of a row without the others: other numbers of slots are other tables.
  dense_table<f32_rows> fewer(rows, f32_rows(width, {.state_floats = width}));
  const named_table part[] = {name_table("t", fewer.view(), detail::format_name(format))};
  const auto answer = load_tables(path, part);
  REQUIRE_FALSE(answer);
  CHECK(answer.fault().code() == errc::shape_mismatch);
  CHECK(answer.fault().message().find("floats of state") != std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace

TEST_CASE("hazard H11: a row is saved with all of its slots at once, and every slot has a value") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("deeprec_h11_" + std::to_string(::getpid()))).string();
  saved_with_its_slots(path, f32_rows(5, {.state_floats = 10}));
  saved_with_its_slots(path, split_bf16_rows(5, {.state_floats = 10}));
  // Slots that lie apart are a table of their own in the same file: one header, one end, all or nothing.
  dense_table<f32_rows> weights(rows, f32_rows(5)), weights_back(rows, f32_rows(5));
  std::vector<float> state(rows * 10), state_back(rows * 10, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i);
  inline_executor here;
  weights.initialize(here, row_init::uniform{.seed = 4});
  const const_named_table out[] = {
      name_table("w", weights.view()),
      name_table("w slots", as_table(matrix_view<const float>(state.data(), rows, 10)))};
  REQUIRE(save_tables(path, out));
  const named_table rows_alone[] = {name_table("w", weights_back.view())};
  CHECK_FALSE(load_tables(path, rows_alone));  // not without its slots, unless asked to
  const named_table in[] = {name_table("w", weights_back.view()),
                            name_table("w slots", as_table(matrix_view<float>(state_back.data(), rows, 10)))};
  REQUIRE(load_tables(path, in));
  CHECK(state_back == state);
  CHECK(std::memcmp(weights.view().data(), weights_back.view().data(), weights.bytes()) == 0);
  std::filesystem::remove(path);
}
