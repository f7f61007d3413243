// Lookups of fp8 rows.
#include <deeprec/embedding/lookup/lookup.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "embedding/support.hpp"

using namespace embedding_test;

TEST_CASE_TEMPLATE("fp8 rows: every width, combiner and ISA, inside guard pages", T, e4m3, e5m2) {
  std::mt19937_64 random(seed() + 100);
  const auto check = [&](index_t width) {
    CAPTURE(width);
    const guarded_table<T> table(random, 13, width);
    const auto made = make_batch(random, every_shape[width % 5], 4, 13, 3);
    check_every_isa<float>(table, made, false, combiner::sum);
    check_every_isa<float>(table, made, true, combiner::sum);
    check_every_isa<float>(table, made, width % 2 == 0, combiner::mean);
    check_every_isa<float>(table, made, width % 2 == 1, combiner::sqrtn);
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

TEST_CASE("fp8 rows: a matrix of e4m3 is a table, and its NaN stays one in its column") {
  std::vector<e4m3> weights;
  for (const float x : {1.0F, 2.0F, 448.0F, 0.5F, 1000.0F, -448.0F}) weights.push_back(e4m3(x));  // (2, 3)
  const std::vector<std::int64_t> offsets{0, 2}, ids{0, 1};
  std::vector<float> out(3);
  for (const isa which : runnable_isas()) {
    inline_executor here;
    REQUIRE(lookup(on(here, which), as_table(matrix_view<const e4m3>(weights.data(), 2, 3)),
                   jagged_view(offsets.data(), 1, ids.data(), 2), combiner::sum,
                   matrix_view(out.data(), 1, 3))
                .ok());
    CHECK(out[0] == 1.5F);
    CHECK(std::isnan(out[1]));
    CHECK(out[2] == 0.0F);
  }
}

TEST_CASE("fp8 rows: read as the other format they are other numbers") {
  std::mt19937_64 random(seed() + 101);
  const guarded_table<e4m3> table(random, 20, 33);
  const auto made = make_batch(random, shape_of_batch::uniform, 5, 20, 4);
  inline_executor here;
  const table_view<e5m2_rows> other(table.view.data(), 20, e5m2_rows(33));
  const auto right = looked_up<float>(context(here), table.view, made.view(), combiner::sum);
  const auto wrong = looked_up<float>(context(here), other, made.view(), combiner::sum);
  CHECK(agrees<float>(table.values, made.view(), {right.data(), 5, 33}, pooled_as::sum));
  CHECK_FALSE(agrees<float>(table.values, made.view(), {wrong.data(), 5, 33}, pooled_as::sum));
}
