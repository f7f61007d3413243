#include <deeprec/embedding/lookup/lookup.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "embedding/support.hpp"

using namespace embedding_test;

TEST_CASE("lookup: the documentation's example") {
  /// [lookup]
  std::vector<float> weights{0, 0, 1, 10, 2, 20, 3, 30};        // (R=4, D=2): your own memory
  std::vector<std::int64_t> offsets{0, 2, 2, 3}, ids{1, 3, 2};  // bags {1, 3}, {}, {2}
  std::vector<float> out(3 * 2);
  lookup(inline_executor{}, as_table(matrix_view(weights.data(), 4, 2)),
         jagged_view(offsets.data(), 3, ids.data(), 3), combiner::sum, matrix_view(out.data(), 3, 2))
      .or_throw();
  /// [lookup]
  CHECK(out == std::vector<float>{4, 40, 0, 0, 2, 20});
}

TEST_CASE("lookup: widths 1 to 67 and 0 to 5 bags, every ISA, inside guard pages") {
  std::mt19937_64 random(seed());
  for (index_t width = 1; width <= 67; ++width) {
    CAPTURE(width);
    const guarded_table<float> f32(random, 13, width);
    const guarded_table<f16> half(random, 13, width);
    const guarded_table<bf16> brain(random, 13, width);
    for (index_t bags = 0; bags <= 5; ++bags) {
      CAPTURE(bags);
      const auto made = make_batch(random, every_shape[bags % 5], bags, 13, 3);
      check_every_isa<float>(f32, made, false, combiner::sum);
      check_every_isa<float>(half, made, true, combiner::mean);
      check_every_isa<float>(brain, made, false, combiner::mean);
    }
  }
}

TEST_CASE("lookup: wide rows go panel by panel") {
  std::mt19937_64 random(seed() + 1);
  for (const index_t width : {127, 128, 129, 130, 200, 256, 257, 300, 511, 513, 1000}) {
    CAPTURE(width);
    const guarded_table<float> f32(random, 50, width);
    const guarded_table<bf16> brain(random, 50, width);
    const auto made = make_batch(random, shape_of_batch::uniform, 7, 50, 5);
    check_every_isa<float>(f32, made, false, combiner::sum);
    check_every_isa<float>(f32, made, true, combiner::mean(combiner::by_weight));
    check_every_isa<bf16>(brain, made, false, combiner::mean);
  }
}

TEST_CASE("lookup: every shape of batch, combiner, id and offset type, and output type") {
  std::mt19937_64 random(seed() + 2);
  const guarded_table<float> f32(random, 1000, 24);
  const guarded_table<f16> half(random, 1000, 24);
  for (const shape_of_batch shape : every_shape) {
    const auto wide = make_batch<std::int64_t, std::int64_t>(random, shape, 200, 1000, 20);
    const auto narrow = make_batch<std::int32_t, std::int32_t>(random, shape, 200, 1000, 20);
    const auto mixed = make_batch<std::uint32_t, std::int64_t>(random, shape, 200, 1000, 20);
    const auto unsigned_ids = make_batch<std::uint64_t, std::int32_t>(random, shape, 200, 1000, 20);
    for (const bool weighted : {false, true}) {
      check_every_isa<float>(f32, wide, weighted, combiner::sum);
      check_every_isa<float>(f32, narrow, weighted, combiner::mean);
      check_every_isa<float>(f32, mixed, weighted, combiner::mean(combiner::by_weight));
      check_every_isa<f16>(half, unsigned_ids, weighted, combiner::sum);
      check_every_isa<bf16>(f32, wide, weighted, combiner::mean);
    }
  }
}

TEST_CASE("lookup: the same bits on 1 to 8 threads, long bags included") {
  std::mt19937_64 random(seed() + 3);
  const guarded_table<float> table(random, 500, 40);
  auto made = make_batch(random, shape_of_batch::skewed, 300, 500, 10);
  // Long bags: one chunk more, exactly on the border, one below, and several chunks.
  for (const index_t size : {4095, 4096, 4097, 8192, 30011}) {
    for (index_t k = 0; k < size; ++k) {
      made.ids.push_back(static_cast<std::int64_t>(random() % 500));
      made.weights.push_back(0.5F);
    }
    made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
  }
  for (const bool weighted : {false, true}) {
    for (const isa which : runnable_isas()) {
      inline_executor here;
      const auto bags = made.view(weighted);
      const auto alone =
          looked_up<float>(on(here, which), table.view, bags, combiner::mean(combiner::by_weight));
      CHECK(agrees<float>(table.values, bags, {alone.data(), bags.bags(), 40}, pooled_as::mean_by_weight));
      for (int threads = 1; threads <= 8; ++threads) {
        thread_pool pool(threads);
        CHECK(same_bits(
            alone, looked_up<float>(on(pool, which), table.view, bags, combiner::mean(combiner::by_weight))));
      }
    }
  }
}

TEST_CASE(
    "lookup: splitting a batch changes nothing, for every combiner, zeros of both signs and every ISA") {
  std::mt19937_64 random(seed() + 4);
  for (const index_t width : {5, 33}) {
    CAPTURE(width);
    guarded_table<float> floats(random, 100, width);
    guarded_table<bf16> halves(random, 100, width);
    for (index_t r = 0; r < 100; ++r) {
      for (index_t j = 0; j < width; j += 1 + r % 3) {
        const float zero = (r + j) % 2 == 0 ? -0.0F : 0.0F;
        floats.set(r, j, zero);
        halves.set(r, j, zero);
      }
    }
    auto made = make_batch(random, shape_of_batch::uniform, 30, 100, 3);
    for (index_t b = 0; b < 30; ++b) {  // one id, and none
      if (b % 3 != 0) {
        made.ids.push_back(b);
        made.weights.push_back(b % 2 == 0 ? 1.0F : -1e-42F);
      }
      made.offsets.push_back(static_cast<std::int64_t>(made.ids.size()));
    }
    const auto check = [&](const auto& how, bool takes_weights) {
      check_bags_apart(floats.view, made.view(), how);
      check_bags_apart(halves.view, made.view(), how);
      if (takes_weights) check_bags_apart(floats.view, made.view(true), how);
    };
    check(combiner::sum, true);
    check(combiner::mean, true);
    check(combiner::mean(combiner::by_weight), true);
    check(combiner::sqrtn, true);
    check(combiner::max, false);
    check(pooling{combiner::sum, max_norm{0.5F}}, true);
    check(pooling{combiner::max, max_norm{0.5F}}, false);
    check(pooling{combiner::mean, empty_bag::default_row{1}}, true);
    check(pooling{combiner::max, empty_bag::default_row{1}}, false);
  }
}

TEST_CASE(
    "lookup: what each combiner makes of -0, alone, as the default row, among others and in a long bag") {
  const std::vector<float> rows{-0.0F, 0.0F, -1.0F};
  const auto table = as_table(matrix_view(rows.data(), 3, 1));
  // Bag 1 is empty, bag 3 is longer than a chunk.
  std::vector<std::int64_t> ids{0, 2, 0, 2}, offsets{0, 1, 1, 4};
  ids.insert(ids.end(), 4097, 0);
  offsets.push_back(static_cast<std::int64_t>(ids.size()));
  const jagged_view<> bags(offsets.data(), 4, ids.data(), offsets.back());
  inline_executor here;
  for (const isa which : runnable_isas()) {
    CAPTURE(to_string(which));
    const auto minus = [&](const jagged_view<>& of, const auto& how) {
      const auto out = looked_up<float>(on(here, which), table, of, how);
      std::string signs;
      for (index_t b = 0; b < of.bags(); ++b) {
        const float x = out[static_cast<std::size_t>(b)];
        signs += x != 0.0F ? 'x' : std::signbit(x) ? '-' : '+';
      }
      return signs;
    };
    CHECK(minus(bags, pooling{combiner::sum, empty_bag::default_row{0}}) == "++x+");
    CHECK(minus(bags, pooling{combiner::mean, empty_bag::default_row{0}}) == "++x+");
    CHECK(minus(bags, pooling{combiner::sqrtn, empty_bag::default_row{0}}) == "++x+");
    CHECK(minus(bags, pooling{combiner::max, empty_bag::default_row{0}}) == "----");
    CHECK(minus(bags.slice(0, 1), combiner::sum) == "+");
    CHECK(minus(bags.slice(0, 1), combiner::max) == "-");
    // Of zeros with both signs, the last.
    std::vector<std::int64_t> both{0, 1, 1, 0}, ranges{0, 2, 4};
    CHECK(minus(jagged_view<>(ranges.data(), 2, both.data(), 4), combiner::max) == "+-");
    float copied[2];
    REQUIRE(lookup(on(here, which), table, jagged_view<>(ranges.data(), 1, both.data(), 2), combiner::concat,
                   matrix_view<float>(copied, 2, 1))
                .ok());
    CHECK(std::signbit(copied[0]));
    CHECK_FALSE(std::signbit(copied[1]));
  }
}

TEST_CASE("lookup: a bag of one id is a copy of its row") {
  std::mt19937_64 random(seed() + 4);
  const guarded_table<float> table(random, 100, 33);
  inline_executor here;
  std::vector<std::int64_t> is_one_hot(101), rows(100);
  for (std::size_t i = 0; i <= 100; ++i) is_one_hot[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = 0; i < 100; ++i) rows[i] = static_cast<std::int64_t>(99 - i);
  const auto copied = looked_up<float>(context(here), table.view,
                                       jagged_view(is_one_hot.data(), 100, rows.data(), 100), combiner::sum);
  for (index_t i = 0; i < 100; ++i) {
    CHECK(std::memcmp(copied.data() + i * 33, table.view.row(99 - i), 33 * sizeof(float)) == 0);
  }
}

TEST_CASE("lookup: a strided output leaves what lies between its rows alone") {
  std::mt19937_64 random(seed() + 5);
  const guarded_table<float> table(random, 20, 19);
  const auto made = make_batch(random, shape_of_batch::uniform, 8, 20, 3);
  inline_executor here;
  std::vector<float> wide(8 * 50, -7.0F);
  const matrix_view<float> all(wide.data(), 8, 50);
  for (const isa which : runnable_isas()) {
    REQUIRE(lookup(on(here, which), table.view, made.view(), combiner::sum, all.columns(11, 19)).ok());
    CHECK(agrees<float>(table.values, made.view(), all.columns(11, 19), pooled_as::sum));
    for (index_t b = 0; b < 8; ++b) {
      for (index_t j = 0; j < 50; ++j) {
        if (j < 11 || j >= 30) CHECK(all(b, j) == -7.0F);
      }
    }
  }
}

TEST_CASE("lookup: a bad id is reported with its place, the smallest one, and nothing is written") {
  std::mt19937_64 random(seed() + 6);
  const index_t rows = 1000;
  const guarded_table<float> table(random, rows, 8);
  const auto good = make_batch(random, shape_of_batch::uniform, 9000, rows, 20);
  const std::int64_t beyond_32_bits = (std::int64_t{1} << 32) + 5;
  for (const std::int64_t bad :
       {std::int64_t{-1}, std::int64_t{rows}, beyond_32_bits, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    CAPTURE(bad);
    auto made = good;
    const auto n = static_cast<index_t>(made.ids.size());
    const index_t first = n / 3;
    for (const index_t slot : {first, first + 70000, n - 1}) {
      made.ids[static_cast<std::size_t>(slot)] = bad;
    }
    index_t bag = 0;
    while (made.offsets[static_cast<std::size_t>(bag) + 1] <= first) ++bag;
    for (int threads = 1; threads <= 3; ++threads) {
      thread_pool pool(threads);
      std::vector<float> out(9000 * 8, -3.0F);
      const status s = lookup(pool, table.view, made.view(), combiner::sum, matrix_view(out.data(), 9000, 8));
      CHECK(s.code() == errc::id_out_of_range);
      CHECK(s.place() == fault_place{.table = -1, .bag = bag, .position = first, .value = bad});
      CHECK(s.message() == "id out of range: lookup: bag " + std::to_string(bag) + ", position " +
                               std::to_string(first) + ", value " + std::to_string(bad));
      CHECK(std::count(out.begin(), out.end(), -3.0F) == 9000 * 8);
      CHECK_THROWS_AS(s.or_throw(), error);
    }
  }
}

TEST_CASE("lookup: skip leaves bad ids out and counts them; the check would have caught them") {
  std::mt19937_64 random(seed() + 7);
  const guarded_table<float> table(random, 50, 21);
  auto made = make_batch(random, shape_of_batch::uniform, 40, 50, 8);
  index_t planted = 0;
  for (std::size_t k = 0; k < made.ids.size(); k += 3) {
    made.ids[k] = k % 2 == 0 ? -1 : 50 + static_cast<std::int64_t>(k);
    ++planted;
  }
  inline_executor here;
  for (const isa which : runnable_isas()) {
    index_t skipped = 0;
    const auto out = looked_up<float>(on(here, which), table.view, made.view(true),
                                      pooling{combiner::mean, bounds::skip(skipped)});
    CHECK(skipped == planted);
    CHECK(agrees<float>(table.values, made.view(true), {out.data(), 40, 21}, pooled_as::mean_by_count));
  }
  std::vector<float> out(40 * 21);
  CHECK(lookup(here, table.view, made.view(), pooling{combiner::mean, bounds::check},
               matrix_view(out.data(), 40, 21))
            .code() == errc::id_out_of_range);
}

TEST_CASE("lookup: assume_valid gives what check gives") {
  std::mt19937_64 random(seed() + 8);
  const guarded_table<bf16> table(random, 50, 65);
  const auto made = make_batch(random, shape_of_batch::skewed, 40, 50, 8);
  inline_executor here;
  CHECK(same_bits(looked_up<float>(context(here), table.view, made.view(), combiner::sum),
                  looked_up<float>(context(here), table.view, made.view(),
                                   pooling{combiner::sum, bounds::assume_valid})));
}

TEST_CASE("lookup: faults of shapes, offsets and weights are told apart, and nothing is written") {
  std::vector<float> weights(10 * 4, 1.0F);
  const auto table = as_table(matrix_view(weights.data(), 10, 4));
  inline_executor here;
  std::vector<float> out(3 * 4, -3.0F);
  const matrix_view<float> three(out.data(), 3, 4);
  const auto answer = [&](std::vector<std::int32_t> offsets, std::vector<float> w = {}, index_t id_count = 4,
                          matrix_view<float> to = {}) {
    const std::vector<std::int64_t> ids{1, 2, 3, 4};
    const status s = lookup(here, table,
                            jagged_view(offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
                                        id_count, w.empty() ? nullptr : w.data()),
                            combiner::sum, to.data_handle() == nullptr ? three : to);
    CHECK(std::count(out.begin(), out.end(), -3.0F) == 12);
    return s;
  };
  CHECK(answer({0, 3, 2, 4}).code() == errc::offsets_decreasing);
  CHECK(answer({0, 3, 2, 4}).place() == fault_place{.bag = 1, .value = 2});
  CHECK(answer({0, 1, 2, 5}).code() == errc::offsets_beyond_ids);
  CHECK(answer({0, 1, 2, 5}).place() == fault_place{.bag = 2, .value = 5});
  CHECK(answer({-1, 1, 2, 4}).code() == errc::offsets_negative);
  CHECK(answer({0, 9, 2, 4}).code() == errc::offsets_beyond_ids);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(answer({0, 1, 2, 4}, {1, 1, nan, nan}).code() == errc::weight_is_nan);
  CHECK(answer({0, 1, 2, 4}, {1, 1, nan, nan}).place().position == 2);
  CHECK(answer({0, 1, 2, 4}, {1, 1, nan, nan}).message() ==
        "weight is not a number: lookup: bag 2, position 2");
  CHECK(answer({0, 1, 2, 4}, {}, 4, matrix_view(out.data(), 3, 3)).code() == errc::shape_mismatch);
  CHECK(answer({0, 1, 2, 4}, {}, 4, matrix_view(out.data(), 2, 4)).code() == errc::shape_mismatch);
  CHECK(answer({0, 1, 2, 4}, {}, 4, matrix_view(out.data(), 3, 4, 2)).code() == errc::shape_mismatch);
  CHECK(answer({0, 1, 2, 4}, {}, 4, matrix_view(out.data(), 3, 3)).message() ==
        "shape mismatch: lookup: out.extent(1) must be the row width D (is 3, must be 4)");
  const std::vector<std::int64_t> offsets{0, 1, 2, 3}, empty_bags(4), ids{1, 2, 3};
  const matrix_view<float> null(nullptr, 3, 4);
  for (const auto& of : {offsets, empty_bags}) {
    const jagged_view<> bags(of.data(), 3, ids.data(), 3);
    CHECK(lookup(here, table, bags, combiner::sum, null).message() ==
          "shape mismatch: lookup: out must not be null");
  }
  CHECK(lookup(here, table, jagged_view<>(offsets.data(), 3, ids.data(), 3), combiner::concat, null)
            .message() == "shape mismatch: lookup: out must not be null");
  const auto no_columns = as_table(matrix_view<float>(nullptr, 10, 0));
  CHECK(lookup(here, no_columns, jagged_view<>(offsets.data(), 3, ids.data(), 3), combiner::sum,
               matrix_view<float>(nullptr, 3, 0))
            .ok());
}

TEST_CASE("lookup: an empty batch, a table without rows, and empty bags") {
  std::vector<float> nothing;
  inline_executor here;
  const auto none = as_table(matrix_view(nothing.data(), 0, 4));
  CHECK(lookup(here, none, jagged_view<>(), combiner::sum, matrix_view(nothing.data(), 0, 4)).ok());
  const std::vector<std::int64_t> offsets{0, 0, 0};
  std::vector<float> out(8, -3.0F);
  CHECK(lookup(here, none, jagged_view<>(offsets.data(), 2, nullptr, 0), combiner::mean,
               matrix_view(out.data(), 2, 4))
            .ok());
  CHECK(out == std::vector<float>(8, 0.0F));
}

TEST_CASE("lookup: NaN and infinity in rows propagate") {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> weights{1, std::nanf(""), inf, 2, 3, -inf};
  const std::vector<std::int64_t> offsets{0, 2}, ids{0, 1};
  std::vector<float> out(3);
  inline_executor here;
  for (const isa which : runnable_isas()) {
    REQUIRE(lookup(on(here, which), as_table(matrix_view(weights.data(), 2, 3)),
                   jagged_view(offsets.data(), 1, ids.data(), 2), combiner::sum,
                   matrix_view(out.data(), 1, 3))
                .ok());
    CHECK(out[0] == 3.0F);
    CHECK(std::isnan(out[1]));
    CHECK(std::isnan(out[2]));
  }
}

namespace {

/// A table in pieces, as a growing table would be: row i lies in piece i / 7.
struct pieces {
  using format_type = f32_rows;
  using space = host_space;
  f32_rows row_format;
  std::vector<std::vector<float>> piece;

  f32_rows format() const { return row_format; }
  index_t rows() const { return static_cast<index_t>(piece.size()) * 7; }
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k) {
      const auto id = static_cast<std::size_t>(ids[k]);
      addresses[k] = static_cast<const std::byte*>(static_cast<const void*>(
          piece.at(id / 7).data() + id % 7 * static_cast<std::size_t>(row_format.width())));
    }
  }
};

}  // namespace

TEST_CASE("lookup: a row source that resolves ids gives the bits of the table it holds") {
  std::mt19937_64 random(seed() + 9);
  const guarded_table<float> table(random, 70, 37);
  pieces source{f32_rows(37), {}};
  for (index_t p = 0; p < 10; ++p) {
    source.piece.emplace_back(7 * 37);
    std::memcpy(source.piece.back().data(), table.view.row(7 * p), 7 * 37 * sizeof(float));
  }
  auto made = make_batch(random, shape_of_batch::skewed, 500, 70, 30);
  thread_pool pool(3);
  CHECK(same_bits(looked_up<float>(context(pool), table.view, made.view(true), combiner::mean),
                  looked_up<float>(context(pool), source, made.view(true), combiner::mean)));
  made.ids[11] = -4;  // in skip mode the source is never asked about a bad id
  made.ids[12] = 70;
  index_t skipped = 0;
  CHECK(same_bits(
      looked_up<float>(context(pool), table.view, made.view(), pooling{combiner::sum, bounds::skip}),
      looked_up<float>(context(pool), source, made.view(), pooling{combiner::sum, bounds::skip(skipped)})));
  CHECK(skipped == 2);
}

TEST_CASE("lookup: no allocation on the hot path") {
  std::mt19937_64 random(seed() + 10);
  const guarded_table<float> table(random, 70, 37);
  const auto made = make_batch(random, shape_of_batch::skewed, 500, 70, 30);
  std::vector<float> out(500 * 37);
  thread_pool pool(2);
  context ctx{pool};
  ctx.memory = std::pmr::null_memory_resource();  // throws when asked
  CHECK(lookup(ctx, table.view, made.view(true), combiner::mean, matrix_view(out.data(), 500, 37)).ok());
}

TEST_CASE("lookup: the comparison with the oracle catches a wrong order of magnitude of one column") {
  std::mt19937_64 random(seed() + 11);
  const guarded_table<float> table(random, 70, 37);
  const auto made = make_batch(random, shape_of_batch::uniform, 5, 70, 6);
  inline_executor here;
  auto out = looked_up<float>(context(here), table.view, made.view(), combiner::sum);
  REQUIRE(agrees<float>(table.values, made.view(), {out.data(), 5, 37}, pooled_as::sum));
  out[100] *= 1.0001F;
  CHECK_FALSE(agrees<float>(table.values, made.view(), {out.data(), 5, 37}, pooled_as::sum));
}

TEST_CASE("lookup: a table of more than 2^31 elements") {
  const index_t rows = (index_t{1} << 31) / 16 + 1000;  // 16 columns of 2 bytes: 4.3 GB of addresses
  huge_page_resource ordinary;
  std::byte* memory = nullptr;
  const auto bytes = static_cast<std::size_t>(rows) * 32;
  try {
    memory = static_cast<std::byte*>(ordinary.allocate(bytes, 64));
  } catch (const std::bad_alloc&) {
    MESSAGE("SKIPPED: no 4.3 GB of address space");
    return;
  }
  table_view<bf16_rows> table(memory, rows, bf16_rows(16));
  const std::vector<std::int64_t> offsets{0, 3}, ids{0, rows - 1, rows / 2};
  for (const std::int64_t id : ids) {
    const std::vector<float> row(16, static_cast<float>(id % 100));
    table.format().encode(row.data(), table.row(id));
  }
  std::vector<float> out(16);
  CHECK(lookup(inline_executor{}, table, jagged_view(offsets.data(), 1, ids.data(), 3), combiner::sum,
               matrix_view(out.data(), 1, 16))
            .ok());
  CHECK(out[15] == static_cast<float>((rows - 1) % 100 + rows / 2 % 100));
  ordinary.deallocate(memory, bytes, 64);
}

TEST_CASE_TEMPLATE("lookup: one bad id is found at every place of a batch, next to every kind of end", Id,
                   std::int32_t, std::int64_t, std::uint32_t, std::uint64_t) {
  const auto max = static_cast<index_t>((std::numeric_limits<std::int32_t>::max)());
  for (const index_t rows : {index_t{1}, index_t{2}, index_t{1000}, max, max + 1, max + 2, 2 * max + 2}) {
    for (const Id bad : {static_cast<Id>(rows), static_cast<Id>(-1), (std::numeric_limits<Id>::max)(),
                         (std::numeric_limits<Id>::min)()}) {
      const bool is_bad = detail::is_bad_id(bad, rows);
      for (index_t place = 0; place < 37; ++place) {
        std::vector<Id> ids(37, static_cast<Id>(rows <= max ? rows - 1 : 7));
        ids[static_cast<std::size_t>(place)] = bad;
        for (const isa which : runnable_isas()) {
          const index_t found = detail::first_bad_position<pooling<combiner::sum_t>>(
              which, ids.data(), nullptr, 0, 37, rows, -1);
          if (found != (is_bad ? place : 37)) FAIL("rows ", rows, " place ", place, " found ", found);
        }
      }
    }
  }
}
