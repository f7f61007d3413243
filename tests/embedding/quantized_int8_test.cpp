// Lookups of int8 rows in both of FBGEMM's layouts.
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include <deeprec/exec/thread_pool.hpp>

#include "embedding/quantized_support.hpp"

using namespace embedding_test;

TEST_CASE("int8_rows: codes before f32 scale and bias, every width, combiner and ISA, inside guard pages") {
  check_lookups_of_codes<8, float, f16>(scale_bias::last);
}

TEST_CASE("int8_rows: sums have the bits of the definition on every ISA with fused multiplication") {
  check_bits_of_codes<8, float>(scale_bias::last);
}

TEST_CASE("int8_rows: long bags in chunks, default rows, skipped ids and threads") {
  std::mt19937_64 random(seed() + 80);
  const coded_table<8, float> table(random, 300, 24, scale_bias::last);
  batch<std::int64_t, std::int64_t> made;
  for (const index_t size : {3, 9000, 0, 4097, 5000}) {
    for (index_t k = 0; k < size; ++k) {
      made.ids.push_back(size == 5000 ? -1 : static_cast<std::int64_t>(random() % 300));
      made.weights.push_back(0.25F + static_cast<float>(k % 5));
    }
    made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
  }
  for (std::size_t k = 10; k < 4200; ++k) made.ids[k] = -1;
  const auto bags = made.view(true);
  for (const isa which : runnable_isas()) {
    CAPTURE(std::string(to_string(which)));
    inline_executor here;
    const auto alone =
        looked_up<float>(on(here, which), table.view, bags, pooling{combiner::mean, bounds::skip});
    CHECK(agrees_with_codes<float>(table.exact, bags, {alone.data(), 5, 24}, pooled_as::mean_by_count));
    for (int threads = 1; threads <= 4; ++threads) {
      thread_pool pool(threads);
      CHECK(same_bits(
          alone, looked_up<float>(on(pool, which), table.view, bags, pooling{combiner::mean, bounds::skip})));
    }
    // Bags 2 and 4 are empty, the latter long: both become row 8.
    const auto filled = looked_up<float>(on(here, which), table.view, bags,
                                         pooling{combiner::sum, bounds::skip, empty_bag::default_row{8}});
    for (const std::size_t bag : {std::size_t{2}, std::size_t{4}}) {
      for (std::size_t j = 0; j < 24; ++j) {
        CHECK(static_cast<double>(filled[bag * 24 + j]) ==
              doctest::Approx(table.exact.values[8][j]).epsilon(1e-5));
      }
    }
  }
}

namespace {

// A table of int8 rows that resolves its ids.
struct resolving {
  using format_type = int8_rows;
  using space = host_space;
  const_table_view<int8_rows> table;
  int8_rows format() const { return table.format(); }
  index_t rows() const { return table.rows(); }
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k) addresses[k] = table.row(static_cast<index_t>(ids[k]));
  }
};

}  // namespace

TEST_CASE("int8_rows: a row source that resolves ids, and an output that accumulates") {
  std::mt19937_64 random(seed() + 81);
  const coded_table<8, float> table(random, 50, 37, scale_bias::last);
  const auto made = make_batch(random, shape_of_batch::skewed, 60, 50, 6);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    const auto direct = looked_up<float>(on(here, which), table.view, made.view(), combiner::sum);
    CHECK(same_bits(direct,
                    looked_up<float>(on(here, which), resolving{table.view}, made.view(), combiner::sum)));
    guarded<float> twice(direct.size());
    for (std::size_t i = 0; i < twice.size(); ++i) twice[i] = 100.0F;
    REQUIRE(lookup(on(here, which), table.view, made.view(), pooling{combiner::sum, output::accumulate},
                   matrix_view<float>(twice.data(), 60, 37))
                .ok());
    for (std::size_t i = 0; i < twice.size(); ++i) CHECK(twice[i] == 100.0F + direct[i]);
  }
}

TEST_CASE("int8_rows: the comparison catches a bias left out of one bag, and one wrong column") {
  std::mt19937_64 random(seed() + 82);
  const coded_table<8, float> table(random, 50, 37, scale_bias::last);
  const auto made = make_batch(random, shape_of_batch::uniform, 5, 50, 6);
  inline_executor here;
  auto out = looked_up<float>(context(here), table.view, made.view(), combiner::sum);
  REQUIRE(agrees_with_codes<float>(table.exact, made.view(), {out.data(), 5, 37}, pooled_as::sum));
  const float before = out[100];
  out[100] = before * 1.00002F;
  CHECK_FALSE(agrees_with_codes<float>(table.exact, made.view(), {out.data(), 5, 37}, pooled_as::sum));
  out[100] = before;
  const auto bias = table.view.format().bias(table.view.row(made.ids[0]));
  for (std::size_t j = 0; j < 37; ++j) out[j] -= bias;
  CHECK_FALSE(agrees_with_codes<float>(table.exact, made.view(), {out.data(), 5, 37}, pooled_as::sum));
}
