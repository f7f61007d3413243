// Combiners and policies of lookup beyond sum and mean, its batches without offsets, and gathers.
#include <deeprec/embedding/lookup/lookup.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "embedding/support.hpp"

using namespace embedding_test;

TEST_CASE("lookup: sqrtn and max of every width and ISA") {
  std::mt19937_64 random(seed() + 20);
  for (const index_t width : {1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 128, 130, 200}) {
    CAPTURE(width);
    const guarded_table<float> f32(random, 40, width);
    const guarded_table<bf16> brain(random, 40, width);
    const auto made = make_batch(random, shape_of_batch::many_empty, 12, 40, 4);
    check_every_isa<float>(f32, made, false, combiner::sqrtn);
    check_every_isa<float>(f32, made, true, combiner::sqrtn);
    check_every_isa<float>(f32, made, false, combiner::max);
    check_every_isa<bf16>(brain, made, false, combiner::max);
  }
}

TEST_CASE("lookup: max takes no weights, and keeps NaN") {
  std::vector<float> rows{1, std::nanf(""), -2, 3, 5, -4};  // (2, 3)
  const auto table = as_table(matrix_view(rows.data(), 2, 3));
  const std::vector<std::int64_t> ids{0, 1, 1, 0};
  const std::vector<float> weights{1, 1, 1, 1};
  std::vector<float> out(6);
  const matrix_view<float> to(out.data(), 2, 3);
  inline_executor here;
  CHECK(lookup(here, table, fixed_hotness_view(ids.data(), 2, 2, weights.data()), combiner::max, to).code() ==
        errc::unsupported);
  for (const isa which : runnable_isas()) {
    REQUIRE(lookup(on(here, which), table, fixed_hotness_view(ids.data(), 2, 2), combiner::max, to).ok());
    for (index_t b = 0; b < 2; ++b) {
      CHECK(to(b, 0) == 3.0F);
      CHECK(std::isnan(to(b, 1)));
      CHECK(to(b, 2) == -2.0F);
    }
  }
}

TEST_CASE("lookup: a padding id counts as absent, may lie anywhere, and is never bad") {
  std::mt19937_64 random(seed() + 21);
  const guarded_table<float> table(random, 50, 21);
  for (const std::int64_t padding :
       {std::int64_t{0}, std::int64_t{49}, std::int64_t{-1}, std::int64_t{-7}, std::int64_t{1} << 40}) {
    CAPTURE(padding);
    auto made = make_batch(random, shape_of_batch::uniform, 40, 50, 6);
    for (std::size_t k = 0; k < made.ids.size(); k += 3) {
      made.ids[k] = padding;
      made.weights[k] = std::numeric_limits<float>::quiet_NaN();  // of an absent slot: nobody looks
    }
    for (const isa which : runnable_isas()) {
      inline_executor here;
      const auto pooled = looked_up<float>(on(here, which), table.view, made.view(true),
                                           pooling{combiner::mean, padding::id{padding}});
      CHECK(agrees<float>(table.values, made.view(true), {pooled.data(), 40, 21}, pooled_as::mean_by_count,
                          padding));
      const auto largest =
          looked_up<float>(on(here, which), table.view, made.view(),
                           pooling{combiner::max, padding::id{padding}, bounds::assume_valid});
      CHECK(agrees<float>(table.values, made.view(), {largest.data(), 40, 21}, pooled_as::maximum, padding));
    }
    // Another bad id is still found, and skip counts it but not the padding.
    made.ids[1] = 50;
    std::vector<float> out(40 * 21);
    const matrix_view<float> to(out.data(), 40, 21);
    inline_executor here;
    CHECK(lookup(here, table.view, made.view(), pooling{combiner::sum, padding::id{padding}}, to)
              .place()
              .position == 1);
    made.weights[1] = std::numeric_limits<float>::quiet_NaN();
    CHECK(
        lookup(here, table.view, made.view(true), pooling{combiner::sum, padding::id{padding}}, to).code() ==
        errc::id_out_of_range);
    made.ids[1] = 17;
    CHECK(
        lookup(here, table.view, made.view(true), pooling{combiner::sum, padding::id{padding}}, to).code() ==
        errc::weight_is_nan);
    made.ids[1] = 50;
    index_t skipped = 0;
    CHECK(lookup(here, table.view, made.view(),
                 pooling{combiner::sum, padding::id{padding}, bounds::skip(skipped)}, to)
              .ok());
    CHECK(skipped == 1);
  }
}

TEST_CASE("lookup: an empty bag becomes zeros, a row of the table, or stays as it was") {
  std::mt19937_64 random(seed() + 22);
  const guarded_table<f16> table(random, 30, 19);
  auto made = make_batch(random, shape_of_batch::many_empty, 16, 30, 3);
  for (std::size_t k = 0; k < made.ids.size(); k += 2) made.ids[k] = -1;  // some bags empty by this
  inline_executor here;
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    std::vector<float> out(16 * 19, -3.0F);
    const matrix_view<float> to(out.data(), 16, 19);
    const auto check_rows = [&](auto expected_when_empty) {
      for (index_t b = 0; b < 16; ++b) {
        const oracle_row row = pool_one(table.values, made.view(), b, 19, pooled_as::sum);
        for (index_t j = 0; j < 19; ++j) {
          const auto i = static_cast<std::size_t>(j);
          const double wanted = row.used == 0 ? expected_when_empty(i) : row.value[i];
          CHECK(static_cast<double>(to(b, j)) == doctest::Approx(wanted).epsilon(1e-5));
        }
      }
    };
    REQUIRE(lookup(on(here, which), table.view, made.view(),
                   pooling{combiner::sum, empty_bag::keep, bounds::skip}, to)
                .ok());
    check_rows([](std::size_t) { return -3.0; });
    REQUIRE(lookup(on(here, which), table.view, made.view(),
                   pooling{combiner::sum, empty_bag::default_row{7}, bounds::skip}, to)
                .ok());
    check_rows([&](std::size_t j) { return table.values[7][j]; });
    REQUIRE(lookup(on(here, which), table.view, made.view(),
                   pooling{combiner::sum, empty_bag::zeros, bounds::skip}, to)
                .ok());
    check_rows([](std::size_t) { return 0.0; });
    const status bad = lookup(on(here, which), table.view, made.view(),
                              pooling{combiner::sum, empty_bag::default_row{30}, bounds::skip}, to);
    CHECK(bad.code() == errc::id_out_of_range);
    CHECK(bad.place().value == 30);
  }
}

TEST_CASE("hazard H9: no id is reserved, and no default row lies before the table") {
  using limits = std::numeric_limits<std::int64_t>;
  std::vector<float> rows{1, 2, 3};  // (3, 1), and nothing before it that may be read
  guarded<float> at_border = guarded<float>::copy_of(rows);
  const auto table = as_table(matrix_view<float>(at_border.data(), 3, 1));
  inline_executor here;
  for (const isa which : runnable_isas()) {
    // -1, -2 and the ends of the type are ids outside the table, like any other.
    for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{-2}, std::int64_t{-3}, std::int64_t{3},
                                  limits::min(), limits::min() + 1, limits::max()}) {
      CAPTURE(id);
      const std::vector<std::int64_t> ids{0, id, 2, 1}, offsets{0, 3, 4};
      const jagged_view<std::int64_t, std::int64_t> bags(offsets.data(), 2, ids.data(), 4);
      std::vector<float> out{-7, -7};
      const matrix_view<float> to(out.data(), 2, 1);
      const status bad = lookup(on(here, which), table, bags, combiner::sum, to);
      CHECK(bad.code() == errc::id_out_of_range);
      CHECK(bad.place().position == 1);
      CHECK(bad.place().value == id);
      CHECK(out == std::vector<float>{-7, -7});
      index_t skipped = 0;
      REQUIRE(lookup(on(here, which), table, bags, pooling{combiner::sum, bounds::skip(skipped)}, to).ok());
      CHECK(skipped == 1);
      CHECK(out == std::vector<float>{4, 2});
    }
    // A default row is an id of the table. (The published one was key % 4096, negative for such keys.)
    const std::vector<std::int64_t> ids{1}, offsets{0, 0, 1};
    const jagged_view<std::int64_t, std::int64_t> bags(offsets.data(), 2, ids.data(), 1);
    for (const index_t row : {index_t{-1}, index_t{-5}, index_t{3}, limits::min(), limits::max()}) {
      CAPTURE(row);
      std::vector<float> out{-7, -7};
      const matrix_view<float> to(out.data(), 2, 1);
      const status bad =
          lookup(on(here, which), table, bags, pooling{combiner::sum, empty_bag::default_row{row}}, to);
      CHECK_FALSE(bad.ok());
      CHECK(bad.place().value == row);
      CHECK(out == std::vector<float>{-7, -7});
      REQUIRE(
          lookup(on(here, which), table, bags, pooling{combiner::sum, empty_bag::default_row{2}}, to).ok());
      CHECK(out == std::vector<float>{3, 2});
    }
  }
}

TEST_CASE("lookup: output::accumulate adds to the old values, once per column") {
  std::mt19937_64 random(seed() + 23);
  for (const index_t width : {1, 5, 8, 13, 16, 17, 24, 40, 100, 128, 129, 150, 300}) {
    CAPTURE(width);
    const guarded_table<float> table(random, 30, width);
    const auto made = make_batch(random, shape_of_batch::uniform, 9, 30, 4);
    inline_executor here;
    for (const isa which : runnable_isas()) {
      const auto once = looked_up<float>(on(here, which), table.view, made.view(), combiner::mean);
      guarded<float> twice(once.size());
      for (std::size_t i = 0; i < once.size(); ++i) twice[i] = 100.0F;
      REQUIRE(lookup(on(here, which), table.view, made.view(), pooling{combiner::mean, output::accumulate},
                     matrix_view(twice.data(), 9, width))
                  .ok());
      for (std::size_t i = 0; i < once.size(); ++i) CHECK(twice[i] == 100.0F + once[i]);
    }
  }
}

TEST_CASE("lookup: fixed hotness and PyTorch's offsets give the bits of the same bags with offsets") {
  std::mt19937_64 random(seed() + 24);
  const guarded_table<float> table(random, 60, 37);
  for (const index_t hotness : {0, 1, 2, 7}) {
    const index_t bags = 23;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(bags * hotness));
    std::vector<float> weights(ids.size(), 0.5F);
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % 60);
    std::vector<std::int64_t> offsets;
    for (index_t b = 0; b <= bags; ++b) offsets.push_back(b * hotness);
    const auto guarded_ids = guarded<std::int32_t>::copy_of(ids);
    const auto without_last =
        guarded<std::int64_t>::copy_of(std::vector<std::int64_t>(offsets.begin(), offsets.end() - 1));
    thread_pool pool(2);
    const std::vector<const float*> both{nullptr, weights.data()};
    for (const float* w : both) {
      const auto plain =
          looked_up<float>(context(pool), table.view,
                           jagged_view(offsets.data(), bags, ids.data(), bags * hotness, w), combiner::mean);
      CHECK(same_bits(
          plain, looked_up<float>(context(pool), table.view,
                                  fixed_hotness_view(guarded_ids.data(), bags, hotness, w), combiner::mean)));
      CHECK(same_bits(plain,
                      looked_up<float>(context(pool), table.view,
                                       jagged_view<std::int32_t, std::int64_t>::torch(
                                           without_last.data(), bags, guarded_ids.data(), bags * hotness, w),
                                       combiner::mean)));
    }
  }
}

TEST_CASE("lookup: PyTorch's offsets are validated, sliced and reported like others") {
  std::vector<float> rows(10 * 2, 1.0F);
  const auto table = as_table(matrix_view(rows.data(), 10, 2));
  const std::vector<std::int64_t> ids{1, 2, 3, 4, 10};
  const std::vector<std::int64_t> offsets{0, 2, 2};
  const auto batch = jagged_view<>::torch(offsets.data(), 3, ids.data(), 5);
  std::vector<float> out(6);
  const status s = lookup(inline_executor{}, table, batch, combiner::sum, matrix_view(out.data(), 3, 2));
  CHECK(s.place() == fault_place{.bag = 2, .position = 4, .value = 10});
  CHECK(batch.slice(0, 2).end_position() == 2);
  CHECK(batch.slice(1, 2).end_position() == 5);
  CHECK(jagged_view<>::torch(offsets.data(), 3, ids.data(), 1).validate().code() == errc::offsets_beyond_ids);
  const std::vector<std::int64_t> falling{3, 2, 2};
  CHECK(jagged_view<>::torch(falling.data(), 3, ids.data(), 5).validate().code() == errc::offsets_decreasing);
}

TEST_CASE("lookup: bags of one id are copies, weighted and filtered ones too") {
  std::mt19937_64 random(seed() + 25);
  for (const index_t width : {1, 7, 16, 33, 128, 200}) {
    CAPTURE(width);
    guarded_table<float> table(random, 50, width);
    table.set(0, 0, -0.0F);
    auto made = make_batch(random, shape_of_batch::uniform, 0, 50, 1);
    for (index_t b = 0; b < 70; ++b) {
      made.ids.push_back(static_cast<std::int64_t>(b == 3 ? 0 : random() % 50));
      made.weights.push_back(b % 2 == 0 ? 2.0F : -0.5F);
      made.offsets.push_back(b + 1);
    }
    check_every_isa<float>(table, made, false, combiner::sum);
    check_every_isa<float>(table, made, false, combiner::mean);
    check_every_isa<float>(table, made, false, combiner::sqrtn);
    check_every_isa<float>(table, made, false, combiner::max);
    check_every_isa<float>(table, made, true, combiner::sum);
    check_every_isa<float>(table, made, true, combiner::mean(combiner::by_weight));
    check_every_isa<bf16>(table, made, false, combiner::sum);
    // A batch that is no longer one id each goes another way and gives the same rows.
    auto longer = made;
    longer.offsets.push_back(70);
    inline_executor here;
    for (const isa which : runnable_isas()) {
      const auto copied = looked_up<float>(on(here, which), table.view, made.view(), combiner::sum);
      const auto pooled = looked_up<float>(on(here, which), table.view, longer.view(), combiner::sum);
      CHECK(std::memcmp(copied.data(), pooled.data(), copied.size() * sizeof(float)) == 0);
    }
    made.ids[5] = 77;
    made.ids[6] = -1;
    for (const isa which : runnable_isas()) {
      index_t skipped = 0;
      const auto out =
          looked_up<float>(on(here, which), table.view, made.view(),
                           pooling{combiner::sum, bounds::skip(skipped), empty_bag::default_row{9}});
      CHECK(skipped == 2);
      CHECK(std::memcmp(out.data() + 5 * width, table.view.row(9),
                        static_cast<std::size_t>(width) * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("lookup: concat gives a row for each id, of a slice too") {
  std::mt19937_64 random(seed() + 26);
  const guarded_table<f16> table(random, 50, 21);
  const auto made = make_batch(random, shape_of_batch::skewed, 30, 50, 5);
  const auto part = made.view(true).slice(10, 15);
  const index_t slots = part.end_position() - part.first_position();
  thread_pool pool(2);
  for (const isa which : runnable_isas()) {
    guarded<float> out(static_cast<std::size_t>(slots * 21));
    const matrix_view<float> to(out.data(), slots, 21);
    REQUIRE(lookup(on(pool, which), table.view, part, combiner::concat, to).ok());
    for (index_t k = 0; k < slots; ++k) {
      const auto slot = static_cast<std::size_t>(part.first_position() + k);
      for (index_t j = 0; j < 21; ++j) {
        const double x = table.values[static_cast<std::size_t>(made.ids[slot])][static_cast<std::size_t>(j)];
        CHECK(to(k, j) == static_cast<float>(x) * made.weights[slot]);
      }
    }
    CHECK(lookup(on(pool, which), table.view, part, combiner::concat, to.rows(0, slots - 1)).message() ==
          "shape mismatch: lookup: out.extent(0) must be the number of ids N (is " +
              std::to_string(slots - 1) + ", must be " + std::to_string(slots) + ")");
  }
}

TEST_CASE("lookup: long bags follow every policy") {
  std::mt19937_64 random(seed() + 27);
  const guarded_table<float> table(random, 300, 24);
  batch<std::int64_t, std::int64_t> made;
  for (const index_t size : {3, 9000, 0, 4097, 5000}) {
    for (index_t k = 0; k < size; ++k) {
      made.ids.push_back(size == 5000 ? -1 : static_cast<std::int64_t>(random() % 300));
      made.weights.push_back(0.25F + static_cast<float>(k % 5));
    }
    made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
  }
  for (std::size_t k = 10; k < 4200; ++k) made.ids[k] = -1;  // a chunk of absent ids only
  thread_pool pool(3);
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    const auto check_one = [&](auto how, pooled_as as, bool weighted) {
      const auto out = looked_up<float>(on(pool, which), table.view, made.view(weighted), how);
      CHECK(agrees<float>(table.values, made.view(weighted), {out.data(), 5, 24}, as));
    };
    check_one(pooling{combiner::sum, padding::id{-1}}, pooled_as::sum, true);
    check_one(pooling{combiner::mean, bounds::skip}, pooled_as::mean_by_count, true);
    check_one(pooling{combiner::sqrtn, bounds::skip}, pooled_as::sqrtn, true);
    check_one(pooling{combiner::max, padding::id{-1}}, pooled_as::maximum, false);
    std::vector<float> out(5 * 24, 2.0F);
    const matrix_view<float> to(out.data(), 5, 24);
    REQUIRE(lookup(on(pool, which), table.view, made.view(),
                   pooling{combiner::sum, bounds::skip, empty_bag::keep, output::accumulate}, to)
                .ok());
    CHECK(to(4, 3) == 2.0F);
    CHECK(to(2, 3) == 2.0F);
    const oracle_row row = pool_one(table.values, made.view(), 1, 24, pooled_as::sum);
    CHECK(static_cast<double>(to(1, 3)) == doctest::Approx(2.0 + row.value[3]).epsilon(1e-4));
    REQUIRE(lookup(on(pool, which), table.view, made.view(),
                   pooling{combiner::max, bounds::skip, empty_bag::default_row{8}}, to)
                .ok());
    CHECK(static_cast<double>(to(4, 5)) == table.values[8][5]);
    CHECK(static_cast<double>(to(2, 5)) == table.values[8][5]);
  }
}
