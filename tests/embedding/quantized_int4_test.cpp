// Lookups of int4 rows in both of FBGEMM's layouts.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "embedding/quantized_support.hpp"

using namespace embedding_test;

TEST_CASE("int4_rows: codes before f16 scale and bias, every width, combiner and ISA, inside guard pages") {
  check_lookups_of_codes<4, f16, bf16>(scale_bias::last);
}

TEST_CASE("int4_rows: scale and bias first, every width, combiner and ISA, inside guard pages") {
  check_lookups_of_codes<4, f16, bf16>(scale_bias::first);
}

TEST_CASE("int4_rows: sums have the bits of the definition on every ISA with fused multiplication") {
  check_bits_of_codes<4, f16>(scale_bias::last);
  check_bits_of_codes<4, f16>(scale_bias::first);
}

TEST_CASE("int4_rows: rows read by the wrong layout are caught, and rows of swapped nibbles") {
  std::mt19937_64 random(seed() + 90);
  coded_table<4, f16> table(random, 50, 37, scale_bias::last);
  const auto made = make_batch(random, shape_of_batch::uniform, 5, 50, 6);
  inline_executor here;
  const auto right = [&](const table_view<int4_rows>& view) {
    const auto out = looked_up<float>(context(here), view, made.view(), combiner::sum);
    return agrees_with_codes<float>(table.exact, made.view(), {out.data(), 5, 37}, pooled_as::sum);
  };
  REQUIRE(right(table.view));
  CHECK_FALSE(right({table.view.data(), 50, int4_rows(37, {.place = scale_bias::first})}));
  for (index_t r = 0; r < 50; ++r) {
    std::byte* const row = table.view.row(r);
    for (index_t i = 0; i < table.code_bytes; ++i) row[i] = (row[i] << 4) | (row[i] >> 4);
  }
  CHECK_FALSE(right(table.view));
}

TEST_CASE("int4_rows: an odd width leaves what lies behind the last column of out alone") {
  std::mt19937_64 random(seed() + 91);
  const coded_table<4, f16> table(random, 20, 33, scale_bias::last);
  const auto made = make_batch(random, shape_of_batch::uniform, 8, 20, 3);
  inline_executor here;
  std::vector<float> wide(8 * 40, -7.0F);
  const matrix_view<float> all(wide.data(), 8, 40);
  for (const isa which : runnable_isas()) {
    REQUIRE(lookup(on(here, which), table.view, made.view(), combiner::sum, all.columns(3, 33)).ok());
    CHECK(agrees_with_codes<float>(table.exact, made.view(), all.columns(3, 33), pooled_as::sum));
    for (index_t b = 0; b < 8; ++b) {
      for (index_t j = 0; j < 40; ++j) {
        if (j < 3 || j >= 36) CHECK(all(b, j) == -7.0F);
      }
    }
    REQUIRE(lookup(on(here, which), table.view, made.view(), pooling{combiner::sum, output::accumulate},
                   all.columns(3, 33))
                .ok());
    CHECK(all(7, 36) == -7.0F);
  }
}
