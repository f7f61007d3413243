// Regressions of the embedding verbs: which ids and weights are looked at, which fault is named, bits of a
// bag.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/support/number_keys.hpp>

#include "support/hashed_source.hpp"
#include "support/isas.hpp"

using namespace deeprec;

namespace {

inline_executor here;
const float nan_weight = std::numeric_limits<float>::quiet_NaN();

// Not inlined: of arrays of known, small sizes g++ warns about branches that are never taken.
[[gnu::noinline]] std::vector<float> floats(std::initializer_list<float> values) { return values; }

}  // namespace

TEST_CASE("e03: the weight of an absent id is not looked at") {
  std::vector<float> rows = floats({1, 2, 3}), out = floats({0});
  const std::vector<float> weights = floats({nan_weight, 1});
  const std::vector<std::int64_t> offsets{0, 2}, negative{-1, 2}, padded{0, 2};
  const auto table = as_table(matrix_view(rows.data(), 3, 1));
  const matrix_view<float> to(out.data(), 1, 1);
  const jagged_view<> bags(offsets.data(), 1, negative.data(), 2, weights.data());
  status s = fused_lookup(here, table, bags, combiner::sum, to);
  CHECK_MESSAGE(s.ok(), s.message());
  CHECK(out[0] == 3.0F);
  jagged_batch<> clean;
  index_t dropped = 0;
  REQUIRE(prune_invalid(here, bags, prune_rule::by_id, clean, dropped).ok());
  out[0] = 0;
  CHECK(lookup(here, table, clean.view(), combiner::sum, to).ok());
  CHECK(out[0] == 3.0F);

  const jagged_view<> with_padding(offsets.data(), 1, padded.data(), 2, weights.data());
  out[0] = 0;
  s = lookup(here, table, with_padding, pooling{combiner::sum, padding::id{0}}, to);
  CHECK_MESSAGE(s.ok(), s.message());
  CHECK(out[0] == 3.0F);
  const std::vector<float> g = floats({1});
  std::vector<float> of_weights = floats({7, 7});
  s = weight_gradients(here, table, with_padding,
                       pooling{combiner::mean(combiner::by_weight), padding::id{0}},
                       matrix_view<const float>(g.data(), 1, 1), of_weights);
  CHECK_MESSAGE(s.ok(), s.message());
  CHECK(of_weights == std::vector<float>{0, 0});
  s = update(here, table, with_padding, pooling{combiner::mean, padding::id{0}}, matrix_view(g.data(), 1, 1),
             sgd{1.0F});
  CHECK_MESSAGE(s.ok(), s.message());
  CHECK(rows == std::vector<float>{1, 2, 2});
  CHECK(lookup(here, table, with_padding, combiner::sum, to).code() == errc::weight_is_nan);
}

TEST_CASE("e06: a group names its smallest feature, whatever is wrong with the others") {
  std::vector<float> rows = floats({1, 2, 3}), out = floats({0, 0}), g = out;
  const auto table = as_table(matrix_view(rows.data(), 3, 1));
  const std::vector<std::int64_t> good{0, 1}, bad_id{-1}, falling{1, 0}, id{0};
  const std::vector<jagged_view<>> bags{{good.data(), 1, bad_id.data(), 1},
                                        {falling.data(), 1, id.data(), 1}};
  feature_group<> group;
  group.add(table, combiner::sum);
  group.add(table, combiner::sum);
  const status looked = lookup(here, group, bags, matrix_view<float>(out.data(), 1, 2));
  CHECK(looked.code() == errc::id_out_of_range);
  CHECK(looked.place().table == 0);
  feature_group<sgd> updates;
  updates.add(table, combiner::sum);
  updates.add(table, pooling{combiner::sum, max_norm{1.0F}});  // another norm
  const status updated = update(here, updates, bags, matrix_view<const float>(g.data(), 1, 2), sgd{1.0F});
  CHECK(updated.code() == errc::id_out_of_range);
  CHECK(updated.place().table == 0);
}

TEST_CASE("e07: a max_norm that is not above 0 is refused by every verb that takes one") {
  for (const float cap : {0.0F, -1.0F, nan_weight}) {
    CAPTURE(cap);
    std::vector<float> rows = floats({1, 2, 3}), out = floats({0}), g = floats({1}), of_weights = floats({7});
    const std::vector<std::int64_t> offsets{0, 1}, ids{2};
    const auto table = as_table(matrix_view(rows.data(), 3, 1));
    const jagged_view<> bags(offsets.data(), 1, ids.data(), 1);
    const auto how = pooling{combiner::sum, max_norm{cap}};
    const matrix_view<const float> gradient(g.data(), 1, 1);
    CHECK(lookup(here, table, bags, how, matrix_view(out.data(), 1, 1)).code() == errc::invalid_value);
    CHECK(weight_gradients(here, table, bags, how, gradient, of_weights).code() == errc::invalid_value);
    CHECK(update(here, table, bags, how, gradient, sgd{1.0F}).code() == errc::invalid_value);
    feature_group<sgd> updates;
    updates.add(table, how);
    const std::vector<jagged_view<>> batch{bags};
    CHECK(update(here, updates, batch, gradient, sgd{1.0F}).code() == errc::invalid_value);
    CHECK(of_weights[0] == 7.0F);
    CHECK(rows == std::vector<float>{1, 2, 3});
  }
}

TEST_CASE("e14: the sign of a bag's zero does not depend on the other bags, and concat keeps it") {
  const std::vector<float> rows = floats({-0.0F, -1});
  const auto table = as_table(matrix_view(rows.data(), 2, 1));
  const auto both = [&](const auto& how, bool negative) {
    std::vector<float> a = floats({0, 0}), b = a;
    const std::vector<std::int64_t> one{0, 1, 2}, two{0, 1, 3}, ids{0, 1, 1};
    CHECK(lookup(here, table, jagged_view<>(one.data(), 2, ids.data(), 2), how, matrix_view(a.data(), 2, 1))
              .ok());
    CHECK(lookup(here, table, jagged_view<>(two.data(), 2, ids.data(), 3), how, matrix_view(b.data(), 2, 1))
              .ok());
    CHECK(std::signbit(a[0]) == negative);
    CHECK(std::signbit(b[0]) == negative);
  };
  both(combiner::max, true);
  both(combiner::sum, false);
  both(combiner::mean, false);
  std::vector<float> copied = floats({0, 0}), largest = floats({0});
  const std::vector<std::int64_t> one{0, 1, 2}, ids{0, 1};
  CHECK(lookup(here, table, jagged_view<>(one.data(), 2, ids.data(), 2), combiner::concat,
               matrix_view(copied.data(), 2, 1))
            .ok());
  CHECK(std::signbit(copied[0]));
  // gather and then the largest is the largest.
  CHECK(gather(here, table, ids, matrix_view(copied.data(), 2, 1)).ok());
  CHECK(combine(here, matrix_view<const float>(copied.data(), 2, 1),
                jagged_view<>(one.data(), 1, ids.data(), 1), combiner::max, matrix_view(largest.data(), 1, 1))
            .ok());
  CHECK(std::signbit(largest[0]));
}

TEST_CASE("n08: the maximum norm of quantized rows is that of their columns, at any width") {
  // Every column is 2: D columns have the norm 2 sqrt(D), and D of them are scaled to 1 / sqrt(D).
  const auto check = [](const auto& format) {
    const index_t D = format.width();
    const std::vector<float> values(static_cast<std::size_t>(D), 2.0F);
    std::vector<std::byte> bytes(static_cast<std::size_t>(format.row_bytes()));
    format.encode(values.data(), bytes.data());
    const const_table_view<std::remove_cvref_t<decltype(format)>> table(bytes.data(), 1, format);
    const std::vector<std::int64_t> ids{0, 0};
    std::vector<float> out(values.size());
    for (const isa which : deeprec_test::runnable_isas()) {
      CAPTURE(static_cast<int>(which));
      for (const index_t in_bag : {1, 2}) {  // a copy, and a sum
        const status s = lookup(deeprec_test::on(here, which), table,
                                fixed_hotness_view<std::int64_t>(ids.data(), 1, in_bag),
                                pooling{combiner::mean, max_norm{1.0F}}, matrix_view(out.data(), 1, D));
        CHECK_MESSAGE(s.ok(), s.message());
        CHECK(out[0] == doctest::Approx(1 / std::sqrt(static_cast<double>(D))).epsilon(1e-5));
      }
    }
  };
  for (const index_t D : {1, 7, 10, 20, 24, 50, 100}) {
    CAPTURE(D);
    check(int8_rows(D));
    check(int4_rows(D));
  }
}

TEST_CASE("b02: gather, concat, and the pooling of one id read the values of dequantize, on every ISA") {
  const auto check = [](const auto& format) {
    using format_type = std::remove_cvref_t<decltype(format)>;
    const index_t R = 9, D = format.width();
    dense_table<format_type> table(R, format, std::pmr::new_delete_resource());
    std::vector<float> values(static_cast<std::size_t>(R * D)), expected(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 1.7F);
    REQUIRE(quantize(here, matrix_view<const float>(values.data(), R, D), table.view()).ok());
    REQUIRE(dequantize(here, table.view(), matrix_view(expected.data(), R, D)).ok());
    std::vector<std::int64_t> ids, offsets{0};
    for (index_t r = 0; r < R; ++r) {
      ids.push_back(r);
      offsets.push_back(r + 1);
    }
    const std::vector<float> ones(ids.size(), 1.0F);
    // Bags of one id alone, and in a batch with one of two ids.
    const jagged_view<> single(offsets.data(), R, ids.data(), R),
        weighted(offsets.data(), R, ids.data(), R, ones.data());
    const std::span<const std::int64_t> list(ids);
    ids.push_back(0);
    ids.push_back(1);
    offsets.push_back(R + 2);
    const jagged_view<> mixed(offsets.data(), R + 1, ids.data(), R + 2);
    std::vector<float> out(static_cast<std::size_t>((R + 2) * D));
    const auto same = [&](const char* what, index_t rows, const auto& call) {
      CAPTURE(std::string(what));
      std::fill(out.begin(), out.end(), nan_weight);
      const status s = call(matrix_view<float>(out.data(), rows, D));
      CHECK_MESSAGE(s.ok(), s.message());
      CHECK(std::memcmp(out.data(), expected.data(), expected.size() * sizeof(float)) == 0);
    };
    for (const isa which : deeprec_test::runnable_isas()) {
      CAPTURE(static_cast<int>(which));
      const auto ctx = deeprec_test::on(here, which);
      const auto from = std::as_const(table).view();
      same("gather", R, [&](const auto& to) { return gather(ctx, from, list.first(R), to); });
      same("concat", R, [&](const auto& to) { return lookup(ctx, from, single, combiner::concat, to); });
      same("concat, weighted", R,
           [&](const auto& to) { return lookup(ctx, from, weighted, combiner::concat, to); });
      same("sum", R, [&](const auto& to) { return lookup(ctx, from, single, combiner::sum, to); });
      same("max", R, [&](const auto& to) { return lookup(ctx, from, single, combiner::max, to); });
      same("sum, mixed", R + 1, [&](const auto& to) { return lookup(ctx, from, mixed, combiner::sum, to); });
      same("mean, mixed", R + 1,
           [&](const auto& to) { return lookup(ctx, from, mixed, combiner::mean, to); });
      same("max, mixed", R + 1, [&](const auto& to) { return lookup(ctx, from, mixed, combiner::max, to); });
    }
  };
  for (const index_t D : {1, 7, 16, 33, 100}) {
    CAPTURE(D);
    check(int8_rows(D));
    check(int4_rows(D));
    check(quantized_rows<8, f16>(D));
  }
}

namespace {

// Every verb that reads or writes a table, with the status that it returns for the tables given.
template <class Check>
void with_every_verb(matrix_view<float> weights, const Check& check) {
  const auto table = as_table(weights);
  const auto quantized = table_view<int8_rows>(reinterpret_cast<std::byte*>(weights.data_handle()),
                                               weights.extent(0), int8_rows(weights.extent(1)));
  const std::vector<const_table_view<f32_rows>> parts(1, table);
  std::vector<std::int64_t> ids(40, 3), offsets{0, 40};
  std::vector<float> out(40 * 4), g(4, 1.0F), dots(40);
  const matrix_view<float> to(out.data(), 1, 4), all(out.data(), 40, 4);
  const matrix_view<const float> gradient(g.data(), 1, 4);
  const jagged_view<> bags(offsets.data(), 1, ids.data(), 40);
  const fixed_hotness_view<std::int64_t> one(ids.data(), 1, 1);
  check("lookup", lookup(here, table, bags, combiner::sum, to));
  check("lookup of one id", lookup(here, table, one, combiner::sum, to));
  check("lookup, skip", lookup(here, table, bags, pooling{combiner::mean, bounds::skip}, to));
  check("lookup, unchecked", lookup(here, table, bags, pooling{combiner::mean, bounds::assume_valid}, to));
  check("lookup, default row", lookup(here, table, jagged_view<>(offsets.data(), 1, ids.data(), 40),
                                      pooling{combiner::sum, padding::id{3}, empty_bag::default_row{0}}, to));
  check("lookup, concat", lookup(here, table, bags, combiner::concat, all));
  check("lookup of codes", lookup(here, quantized, bags, combiner::sum, to));
  check("gather", gather(here, table, ids, all));
  check("fused_lookup", fused_lookup(here, table, bags, combiner::mean, to));
  check("lookup of parts",
        lookup(here, partitioned_table(parts, partition_strategy::mod), bags, combiner::sum, to));
  check("weight_gradients", weight_gradients(here, table, bags, combiner::sum, gradient, dots));
  check("update", update(here, table, bags, combiner::sum, gradient, sgd{}));
  const auto resolved = resolve(here, table, bags, combiner::sum);
  check("resolve", resolved ? status() : status(resolved.fault()));
  const std::vector<jagged_view<>> batches(1, bags);
  const std::vector<jagged_view<>> small(1, jagged_view<>(offsets.data(), 0, ids.data(), 0));
  feature_group<> lookups;
  lookups.add(table, combiner::sum);
  check("lookup of a group", lookup(here, lookups, batches, to));
  check("lookup of a group, few ids", lookup(here, lookups, small, matrix_view<float>(out.data(), 0, 4)));
  feature_group<sgd> updates;
  updates.add(table, combiner::sum);
  check("update of a group", update(here, updates, batches, gradient, sgd{}));
  partitioned_ids<std::int64_t> of_parts;
  REQUIRE(partition(here, ids, 10, 1, partition_strategy::mod, of_parts).ok());
  check("gather of parts", gather(here, parts, of_parts, all));
  const index_t rows = weights.extent(0);
  if (rows < 0) return;  // no matrix has as many rows
  std::vector<float> floats(static_cast<std::size_t>(rows * 4));
  check("quantize", quantize(here, matrix_view<const float>(floats.data(), rows, 4), quantized));
  check("dequantize", dequantize(here, table, matrix_view(floats.data(), rows, 4)));
}

}  // namespace

TEST_CASE("n10: a table without memory, or with a negative number of rows, is refused by every verb") {
  std::vector<float> memory(10 * 5 * 4);
  int verbs = 0;
  with_every_verb(matrix_view<float>(memory.data(), 10, 4), [&](const char* verb, const status& s) {
    CHECK_MESSAGE(s.ok(), verb, ": ", s.message());
    ++verbs;
  });
  CHECK(verbs > 15);
  const auto refused = [](const char* text) {
    return [text](const char* verb, const status& s) {
      CAPTURE(std::string(verb));
      CHECK(s.code() == errc::shape_mismatch);
      CHECK_MESSAGE(s.message().find(text) != std::string::npos, s.message());
    };
  };
  with_every_verb(matrix_view<float>(nullptr, 10, 4), refused("table: data() must not be null"));
  with_every_verb(matrix_view<float>(memory.data(), -10, 4), refused("table: rows() must not be negative"));
  // Without rows, or without columns, there is nothing to read.
  std::vector<float> out(4);
  const std::vector<std::int64_t> offsets{0, 0}, ids{7};
  const jagged_view<> empty(offsets.data(), 1, nullptr, 0);
  CHECK(lookup(here, as_table(matrix_view<float>(nullptr, 0, 4)), empty, combiner::sum,
               matrix_view(out.data(), 1, 4))
            .ok());
  CHECK(lookup(here, as_table(matrix_view<float>(nullptr, 10, 0)),
               fixed_hotness_view<std::int64_t>(ids.data(), 1, 1), combiner::sum,
               matrix_view<float>(nullptr, 1, 0))
            .ok());
}

TEST_CASE("n10: parts that are not those of one table are refused") {
  std::vector<float> memory(10 * 4), out(4);
  const auto part = [&](float* first, index_t rows, index_t width) {
    return const_table_view<f32_rows>(as_table(matrix_view<float>(first, rows, width)));
  };
  const std::vector<std::int64_t> ids{6};
  const auto look = [&](const std::vector<const_table_view<f32_rows>>& parts) {
    return lookup(here, partitioned_table(parts, partition_strategy::mod),
                  fixed_hotness_view<std::int64_t>(ids.data(), 1, 1), combiner::sum,
                  matrix_view(out.data(), 1, 4));
  };
  CHECK(look({part(memory.data(), 4, 4), part(memory.data(), 4, 4)}).ok());
  for (const auto& second : {part(nullptr, 4, 4), part(memory.data(), 3, 4), part(memory.data(), -4, 4)}) {
    const status s = look({part(memory.data(), 5, 4), second});
    CHECK(s.code() == errc::shape_mismatch);
    CHECK(s.place().table >= 0);
  }
  CHECK(look({part(memory.data(), 4, 4), part(memory.data(), 4, 3)}).place().table == 1);
}

TEST_CASE("n11: a resolved batch counts its skipped ids once, and calls on threads may share a counter") {
  std::vector<float> rows(40, 1.0F), out(16), g(16, 1.0F);
  const auto table = as_table(matrix_view(rows.data(), 10, 4));
  const std::vector<std::int64_t> ids{99, 1, 2, 99, 99, 99, -1, 99};  // six of them are bad
  const fixed_hotness_view<std::int64_t> bags(ids.data(), 4, 2);
  const matrix_view<const float> gradient(g.data(), 4, 4);
  index_t skipped = 0;
  const auto how = pooling{combiner::sum, bounds::skip(skipped)};
  {
    const auto resolved = resolve(here, table, bags, how);
    REQUIRE(resolved.ok());
    CHECK(skipped == 6);
    CHECK(lookup(here, resolved.value(), matrix_view(out.data(), 4, 4)).ok());
    CHECK(update(here, resolved.value(), gradient, sgd{}).ok());
    sparse_gradient sparse;
    CHECK(row_gradients(here, resolved.value(), gradient, sparse).ok());
    CHECK(skipped == 6);
  }
  // A call that fails counts nothing; every other call that resolves the batch itself counts it.
  skipped = 0;
  CHECK_FALSE(lookup(here, table, bags, how, matrix_view(out.data(), 3, 4)).ok());
  CHECK(skipped == 0);
  CHECK(lookup(here, table, bags, how, matrix_view(out.data(), 4, 4)).ok());
  CHECK(skipped == 6);
  CHECK(update(here, table, bags, how, gradient, sgd{}).ok());
  CHECK(skipped == 12);

  feature_group<sgd> group;
  group.add(table, how);
  group.add(table, how);
  skipped = 0;
  const std::vector<std::int64_t> offsets{0, 2, 4, 6, 8};
  const std::vector<jagged_view<>> batches(2, jagged_view<>(offsets.data(), 4, ids.data(), 8));
  std::vector<float> both(32), of_both(32, 1.0F);
  {
    const auto resolved = resolve(here, group, batches);
    REQUIRE(resolved.ok());
    CHECK(skipped == 12);
    CHECK(lookup(here, resolved.value(), matrix_view(both.data(), 4, 8)).ok());
    CHECK(update(here, resolved.value(), matrix_view<const float>(of_both.data(), 4, 8), sgd{}).ok());
    CHECK(skipped == 12);
  }
  skipped = 0;
  CHECK(lookup(here, group, batches, matrix_view(both.data(), 4, 8)).ok());
  CHECK(update(here, group, batches, matrix_view<const float>(of_both.data(), 4, 8), sgd{}).ok());
  CHECK(skipped == 24);

  deeprec_test::hashed_table<f32_rows> keyed(f32_rows(4), [](std::uint64_t, float* v) { v[0] = 1; });
  const deeprec_test::hashed_rows<f32_rows> source(keyed);
  const std::vector<std::uint64_t> keys{1, 2};
  skipped = 0;
  {
    const auto resolved = resolve(here, source, fixed_hotness_view<std::uint64_t>(keys.data(), 1, 2), how);
    REQUIRE(resolved.ok());
    CHECK(lookup(here, resolved.value(), matrix_view(out.data(), 1, 4)).ok());
    CHECK(skipped == 2);
  }

  // On two threads: lookups of one resolved batch, and lookups that share a counter.
  skipped = 0;
  const auto resolved = resolve(here, table, bags, how);
  REQUIRE(resolved.ok());
  const auto on_two_threads = [](const auto& call) {
    const auto repeat = [&] {
      inline_executor mine;
      std::vector<float> to(16);
      for (int i = 0; i < 200; ++i) {
        if (!call(mine, matrix_view(to.data(), 4, 4)).ok()) return;
      }
    };
    std::thread one(repeat), two(repeat);
    one.join();
    two.join();
  };
  on_two_threads([&](auto& on, const auto& to) { return lookup(on, resolved.value(), to); });
  CHECK(skipped == 6);
  skipped = 0;
  on_two_threads([&](auto& on, const auto& to) { return lookup(on, table, bags, how, to); });
  CHECK(skipped == 2 * 200 * 6);
}

TEST_CASE("n12: a batch without ids over a keyed source has a table of 64 entries") {
  CHECK(detail::key_entries(0) == 64);
  for (index_t n = 1; n < 2000; ++n) {
    const std::size_t entries = detail::key_entries(n);
    CHECK((entries & (entries - 1)) == 0);
    CHECK(entries >= (std::max<std::size_t>)(64, 2 * static_cast<std::size_t>(n)));
    CHECK((entries == 64 || entries <= 4 * static_cast<std::size_t>(n)));
  }
  deeprec_test::hashed_table<f32_rows> table(f32_rows(4), [](std::uint64_t, float* v) { v[0] = 1; });
  const deeprec_test::hashed_rows<f32_rows> source(table);
  const std::vector<std::int64_t> offsets{0, 0};
  const std::vector<float> g = floats({1, 1, 1, 1});
  const jagged_view<std::uint64_t> bags(offsets.data(), 1, nullptr, 0);
  CHECK(update(here, source, bags, combiner::sum, matrix_view<const float>(g.data(), 1, 4), sgd{}).ok());
  CHECK(table.size() == 0);
}

namespace {

// A compiler that takes the reads for those of a long reads once. One pointer is given twice, unseen by it.
[[gnu::noinline]] index_t borders_around_a_store(const long long* offsets, long long* same) {
  const detail::bag_ranges ranges(detail::offset_ranges<long long>{offsets, -1, -1});
  const index_t before = ranges.begin(0);
  *same = 7;
  return before + ranges.begin(0);
}

[[gnu::noinline]] float looked_up_after_a_store(long long* offsets, const std::int64_t* ids, float* rows,
                                                float* out) {
  offsets[0] = 0;
  offsets[1] = 2;
  const status s = lookup(here, as_table(matrix_view(rows, 3, 1)),
                          jagged_view<std::int64_t, long long>(offsets, 1, ids, 2),
                          pooling{combiner::sum, bounds::assume_valid}, matrix_view(out, 1, 1));
  return s.ok() ? out[0] : -1.0F;
}

}  // namespace

TEST_CASE("e15: offsets of the type long long are seen as they were just stored") {
  std::vector<long long> offsets{3, 0};
  CHECK(borders_around_a_store(offsets.data(), offsets.data()) == 10);
  std::vector<float> rows = floats({1, 2, 3}), out = floats({0});
  const std::vector<std::int64_t> ids{0, 2};
  CHECK(looked_up_after_a_store(offsets.data(), ids.data(), rows.data(), out.data()) == 4.0F);
}

TEST_CASE("e16: tables without rows are not one table") {
  dense_table<f32_rows> a(0, 4), b(0, 8);
  feature_group<sgd> group;
  group.add(a.view(), combiner::sum);
  group.add(b.view(), combiner::sum);
  const std::vector<std::int64_t> offsets{0, 0};
  const std::vector<jagged_view<>> bags(2, jagged_view<>(offsets.data(), 1, nullptr, 0));
  const std::vector<float> g(12, 1.0F);
  const status s = update(here, group, bags, matrix_view<const float>(g.data(), 1, 12), sgd{1.0F});
  CHECK_MESSAGE(s.ok(), s.message());
}
