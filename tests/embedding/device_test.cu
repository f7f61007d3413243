// Everything that has a device form, on a device: the same vectors, the same oracle.

#include <deeprec/embedding/batches/device_batches.cuh>
#include <deeprec/embedding/groups/lookup_features.cuh>
#include <deeprec/embedding/lookup/fused_lookup.cuh>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.cuh>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/training/gradient.cuh>
#include <deeprec/embedding/training/update.cuh>
#include <deeprec/exec/cuda/cuda_staging.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/memory/cuda_memory.hpp>
#include <deeprec/ops/row_select.cuh>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/plan/cuda_stream_pool.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "support/batches.hpp"
#include "support/entries.hpp"
#include "support/on_device.hpp"
#include "support/oracle.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using bags_type = jagged_view<std::int64_t, std::int32_t, device_space>;
using made_batch = batch<std::int64_t, std::int32_t>;
using device_batch = batch_on_both<>;
template <class Id = std::int64_t>
using device_out = jagged_out<Id, index_t, device_space>;
template <class Format>
using device_table = table_on_both<Format>;

template <class Format, class Combiner>
void check_lookup(Format format, shape_of_batch shape, bool weighted, Combiner how, index_t hotness = 7) {
  std::mt19937_64 random(seed());
  const index_t rows = 300, bags = 60, width = format.width();
  const device_table<Format> table(format, rows, random);
  const auto made = make_batch<std::int64_t, std::int32_t>(random, shape, bags, rows, hotness);
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(static_cast<std::size_t>(bags * width), std::nanf("")));
  cuda_stream stream;
  lookup(stream, table.view(), batch.view(weighted), how, out.matrix(bags, width)).or_throw();
  stream.synchronize().or_throw();
  const auto answer = back(out, static_cast<std::size_t>(bags * width));
  for (index_t b = 0; b < bags; ++b) {
    const auto expected = pool_one(table.values, made.view(weighted), b, width, kind(how));
    for (index_t j = 0; j < width; ++j) {
      const auto at = static_cast<std::size_t>(j);
      const double bound =
          (2.0 * expected.used + 8) * 0x1p-24 * (expected.magnitude[at] + 4 * expected.used) + 1e-30;
      const double got = static_cast<double>(answer[static_cast<std::size_t>(b * width + j)]);
      REQUIRE_MESSAGE(std::fabs(got - expected.value[at]) <= bound, "bag " << b << " column " << j);
    }
  }
}

}  // namespace

TEST_CASE("device: lookup") {
  for (const shape_of_batch shape : every_shape) {
    check_lookup(f32_rows(128), shape, false, combiner::sum);
    check_lookup(f32_rows(17), shape, true, combiner::mean);
    check_lookup(bf16_rows(24), shape, true, combiner::sqrtn);
    check_lookup(int8_rows(128), shape, false, combiner::sum);
  }
  check_lookup(f32_rows(128), shape_of_batch::one_huge, true, combiner::sum,
               600);  // one bag of 36000 ids, in chunks
}

TEST_CASE("device: a bad bag is zeros, skipped ids are counted, and the place comes with synchronize()") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(8), 10, random);
  made_batch made;
  made.ids = {1, 2, 10, 3, -1};
  made.weights.assign(5, 1.0F);
  made.offsets = {0, 2, 4, 5};
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(3 * 8, 7.0F));
  cuda_stream stream;
  lookup(stream, table.view(), batch.view(false), combiner::sum, out.matrix(3, 8)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::id_out_of_range);
  CHECK(found.place() == fault_place{.bag = 1, .position = 2, .value = 10});
  CHECK(stream.synchronize().ok());
  const auto answer = back(out, 3 * 8);
  for (std::size_t j = 8; j < 24; ++j) CHECK(answer[j] == 0.0F);
  index_t skipped = 0;
  lookup(stream, table.view(), batch.view(false), pooling{combiner::sum, bounds::skip(skipped)},
         out.matrix(3, 8))
      .or_throw();
  CHECK(stream.synchronize().ok());
  CHECK(skipped == 2);
}

TEST_CASE("n10: device: a table without memory, or with a negative number of rows, is refused") {
  made_batch made;
  made.ids = {1};
  made.weights.assign(1, 1.0F);
  made.offsets = {0, 1};
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(4)), memory = to_device(std::vector<float>(40));
  cuda_stream stream;
  const auto look = [&](const table_view<f32_rows, device_space>& table) {
    const status alone = lookup(stream, table, batch.view(false), combiner::sum, out.matrix(1, 4));
    feature_group<lookups_only, bags_type, float> group;
    group.add(table, combiner::sum);
    const std::vector<bags_type> bags{batch.view(false)};
    CHECK(lookup(stream, group, std::span<const bags_type>(bags), out.matrix(1, 4)).code() == alone.code());
    return alone;
  };
  auto* const rows = static_cast<std::byte*>(static_cast<void*>(memory.matrix(10, 4).data_handle()));
  CHECK(look({rows, 10, f32_rows(4)}).ok());
  CHECK(look({nullptr, 10, f32_rows(4)}).code() == errc::shape_mismatch);
  CHECK(look({rows, -10, f32_rows(4)}).code() == errc::shape_mismatch);
  stream.synchronize().or_throw();
}

TEST_CASE("device: a group of tables gives the bits of one lookup each, 16 bytes to a lane or 4") {
  std::mt19937_64 random(seed());
  for (const index_t last : {16, 17}) {  // an odd width of all: no row of out is aligned
    const device_table<f32_rows> floats(f32_rows(64), 100, random);
    const device_table<int8_rows> codes(int8_rows(40), 90, random);
    const device_table<bf16_rows> halves(bf16_rows(last), 80, random);
    std::vector<device_batch> batches;
    std::vector<bags_type> bags;
    for (int t = 0; t < 3; ++t)
      batches.emplace_back(make_batch<std::int64_t, std::int32_t>(random, every_shape[t], 33, 80, 5));
    for (const auto& b : batches) bags.push_back(b.view(false));
    feature_group<lookups_only, bags_type, float> group;
    group.add(floats.view(), combiner::sum);
    group.add(codes.view(), combiner::mean);
    group.add(halves.view(), combiner::max);
    const index_t width = 64 + 40 + last;
    const auto n = static_cast<std::size_t>(33 * width);
    const auto out = to_device(std::vector<float>(n)), alone = to_device(std::vector<float>(n));
    const auto all = alone.matrix(33, width);
    cuda_stream stream;
    lookup(stream, group, std::span<const bags_type>(bags), out.matrix(33, width)).or_throw();
    lookup(stream, floats.view(), bags[0], combiner::sum, all.columns(0, 64)).or_throw();
    lookup(stream, codes.view(), bags[1], combiner::mean, all.columns(64, 40)).or_throw();
    lookup(stream, halves.view(), bags[2], combiner::max, all.columns(104, last)).or_throw();
    stream.synchronize().or_throw();
    CHECK(std::memcmp(back(out, n).data(), back(alone, n).data(), n * sizeof(float)) == 0);
    const matrix_view<float, device_space> null(nullptr, 33, width);
    CHECK(lookup(stream, group, std::span<const bags_type>(bags), null).message() ==
          "shape mismatch: lookup: out must not be null");
    CHECK(lookup(stream, floats.view(), bags[0], combiner::sum,
                 matrix_view<float, device_space>(nullptr, 33, 64))
              .message() == "shape mismatch: lookup: out must not be null");
  }
}

TEST_CASE("device: a group of more tables than a launch has, and what is wrong with one of them") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(4), 10, random);
  const index_t tables = 100;
  std::vector<device_batch> batches;
  std::vector<bags_type> bags;
  feature_group<lookups_only, bags_type, float> group;
  std::vector<float> expected(static_cast<std::size_t>(2 * 4 * tables));
  for (index_t t = 0; t < tables; ++t) {
    made_batch made;
    made.ids = {t % 10, t == 97 ? 10 : (t + 1) % 10, 3};
    made.weights.assign(3, 1.0F);
    made.offsets = {0, 1, 3};
    batches.emplace_back(made);
    group.add(table.view(), combiner::sum);
    for (std::size_t j = 0; j < 4; ++j) {
      const auto value = [&](std::int64_t id) {
        return static_cast<float>(table.values[static_cast<std::size_t>(id)][j]);
      };
      const std::size_t at = static_cast<std::size_t>(4 * t) + j;
      expected[at] = value(made.ids[0]);
      expected[static_cast<std::size_t>(4 * tables) + at] = t == 97 ? 0 : value(made.ids[1]) + value(3);
    }
  }
  for (const auto& b : batches) bags.push_back(b.view(false));
  const auto out = to_device(std::vector<float>(expected.size(), 7.0F));
  cuda_stream stream;
  lookup(stream, group, std::span<const bags_type>(bags), out.matrix(2, 4 * tables)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::id_out_of_range);
  CHECK(found.place() == fault_place{.table = 97, .bag = 1, .position = 1, .value = 10});
  CHECK(back(out, expected.size()) == expected);
}

TEST_CASE("device: of many faults the first is reported, and 64 counters at once are counted with") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(4), 10, random);
  made_batch made;
  for (int b = 0; b < 500; ++b) {
    for (int k = 0; k < 3; ++k) made.ids.push_back(b >= 37 ? 10 + b : k);
    made.offsets.push_back(static_cast<std::int32_t>(made.ids.size()));
  }
  made.weights.assign(made.ids.size(), 1.0F);
  const device_batch batch(made);
  const auto out = to_device(std::vector<float>(500 * 4));
  cuda_stream stream;
  for (int again = 0; again < 3; ++again) {
    lookup(stream, table.view(), batch.view(false), combiner::sum, out.matrix(500, 4)).or_throw();
    CHECK(stream.synchronize().place() == fault_place{.bag = 37, .position = 111, .value = 47});
  }
  const auto skipping = [&](index_t& counter) {
    return lookup(stream, table.view(), batch.view(false), pooling{combiner::sum, bounds::skip(counter)},
                  out.matrix(500, 4));
  };
  std::vector<std::vector<index_t>> all(3, std::vector<index_t>(64));
  for (std::vector<index_t>& counters : all) {  // others each time, all alive: no address comes twice
    for (index_t& c : counters) skipping(c).or_throw();
    index_t one_more = 0;
    CHECK(skipping(one_more).code() == errc::unsupported);
    stream.synchronize().or_throw();
    CHECK(counters == std::vector<index_t>(64, 3 * (500 - 37)));
  }
}

TEST_CASE("device: stages keep inside of their room whatever the offsets, and drop no weights") {
  made_batch made;
  made.ids = {1, 2, 3, 4, 5, 6};
  made.weights.assign(6, 2.0F);
  made.offsets = {0, 6, 0, 6};  // the first and the last bag are fine by themselves
  const device_batch batch(made);
  device_array<index_t> offsets(4);
  const auto ids = to_device(std::vector<std::int64_t>(12, -7));
  const auto weights = to_device(std::vector<float>(12, -7.0F));
  device_array<std::uint8_t> empty(3);
  const device_out<> out{offsets.view(), first_of(ids, 9), first_of(weights, 9)};
  cuda_stream stream;
  fill_empty_bags(stream, batch.view(true), 0, out, empty.view()).or_throw();
  CHECK(stream.synchronize().code() == errc::offsets_decreasing);
  const auto around = back(ids, 12);
  for (std::size_t k = 9; k < 12; ++k) CHECK(around[k] == -7);
  prune_invalid(stream, batch.view(true), prune_rule::by_id, out).or_throw();
  CHECK(stream.synchronize().code() == errc::offsets_decreasing);
  const device_out<> no_weights{out.offsets, out.ids, {}};
  CHECK(fill_empty_bags(stream, batch.view(true), 0, no_weights, empty.view()).code() ==
        errc::shape_mismatch);
  CHECK(prune_invalid(stream, batch.view(true), prune_rule::by_id, no_weights).code() ==
        errc::shape_mismatch);
  const auto rows = to_device(std::vector<std::int64_t>{0, 1, 1, 2, 0, 2});
  const coo_view<std::int64_t, std::int64_t, device_space> entries(rows.data(), batch.ids.data(), 6, 3,
                                                                   batch.weights.data());
  CHECK(to_jagged(stream, entries, no_weights).code() == errc::shape_mismatch);
  const auto null = [](const std::string& verb) { return "shape mismatch: " + verb + " must not be null"; };
  for (const device_out<>& nowhere : {device_out<>{{nullptr, 4}, out.ids, out.weights},
                                      device_out<>{out.offsets, {nullptr, 9}, out.weights},
                                      device_out<>{out.offsets, out.ids, {nullptr, 9}}}) {
    CHECK(fill_empty_bags(stream, batch.view(true), 0, nowhere, empty.view()).message() ==
          null("fill_empty_bags: out"));
    CHECK(prune_invalid(stream, batch.view(true), prune_rule::by_id, nowhere).message() ==
          null("prune_invalid: out"));
    CHECK(to_jagged(stream, entries, nowhere).message() == null("to_jagged: out"));
  }
  CHECK(fill_empty_bags(stream, batch.view(true), 0, out, {nullptr, 3}).message() ==
        null("fill_empty_bags: empty"));
  const array_view<const std::int64_t, device_space> list = batch.list();
  const array_view<std::int64_t, device_space> no_ids(nullptr, 6);
  const array_view<std::int32_t, device_space> no_numbers(nullptr, 6);
  const array_view<index_t, device_space> no_indices(nullptr, 6);
  CHECK(unique(stream, list, unique_out<std::int64_t, std::int32_t, device_space>{}).message() ==
        "shape mismatch: unique: out must have room for N ids");
  CHECK(
      unique(stream, list,
             unique_out<std::int64_t, std::int32_t, device_space>{no_ids, no_numbers, no_numbers, no_indices})
          .message() == null("unique: out"));
  const auto parted = [&](const partition_out<std::int64_t, index_t, device_space>& to) {
    return partition(stream, list, 10, 5, partition_strategy::mod, bounds::check, to).message();
  };
  CHECK(parted({}) == "shape mismatch: partition: out must have room for N ids and P + 1 offsets");
  CHECK(parted({no_numbers, no_indices, no_indices, no_ids}) == null("partition: out"));
  for (const device_out<>& short_of : {device_out<>{out.offsets.subview(0, 3), out.ids, out.weights},
                                       device_out<>{out.offsets, out.ids.subview(0, 5), out.weights},
                                       device_out<>{out.offsets, out.ids, out.weights.subview(0, 8)}}) {
    CHECK(fill_empty_bags(stream, batch.view(true), 0, short_of, empty.view()).code() ==
          errc::shape_mismatch);
    CHECK(prune_invalid(stream, batch.view(true), prune_rule::by_id, short_of).code() ==
          errc::shape_mismatch);
    CHECK(to_jagged(stream, entries, short_of).code() == errc::shape_mismatch);
  }
  const device_out<> in_place{out.offsets, {batch.ids.data(), 6}, {weights.data(), 6}};
  CHECK(prune_invalid(stream, batch.view(true), prune_rule::by_id, in_place).code() == errc::unsupported);
  CHECK(to_jagged(stream, entries, in_place).code() == errc::unsupported);
  to_jagged(stream, entries, out).or_throw();
  stream.synchronize().or_throw();
  CHECK(back(ids, 6) == std::vector<std::int64_t>{1, 5, 2, 3, 4, 6});
  CHECK(back(weights, 1)[0] == 2.0F);
}

TEST_CASE("device: stages write offsets, positions and numbers of the types that they are given") {
  made_batch made;
  made.ids = {7, -1, 9, 4, 4, -3};
  made.weights = {1, 1, 0, 1, 2, 1};
  made.offsets = {0, 3, 3, 6};
  const device_batch batch(made);
  device_array<std::int32_t> offsets(4), more_offsets(4), permutation(6), part(6), part_offsets(3);
  device_array<std::int64_t> ids(6), filled_ids(9), local(6), different(6), inverse(6), counts(6);
  device_array<float> weights(6);
  device_array<std::uint8_t> empty(3);
  device_array<index_t> size(1);
  cuda_stream stream;
  const jagged_out<std::int64_t, std::int32_t, device_space> pruned{offsets.view(), ids.view(),
                                                                    weights.view()},
      filled{more_offsets.view(), filled_ids.view(), {}};
  // Entries in any order are pruned as bags are.
  const auto rows = to_device(std::vector<std::int32_t>{2, 0, 2, 0, 1, 0});
  const coo_view<std::int64_t, std::int32_t, device_space> entries(rows.data(), batch.ids.data(), 6, 3,
                                                                   batch.weights.data());
  prune_invalid(stream, entries, prune_rule::by_id_and_weight, pruned).or_throw();
  stream.synchronize().or_throw();
  CHECK(back(offsets, 4) == std::vector<std::int32_t>{0, 1, 2, 3});
  CHECK(back(ids, 3) == std::vector<std::int64_t>{4, 4, 7});
  CHECK(back(weights, 3) == std::vector<float>{1, 2, 1});
  prune_invalid(stream, batch.view(true), prune_rule::by_id, pruned).or_throw();
  const jagged_view<std::int64_t, std::int32_t, device_space> unweighted(offsets.data(), 3, ids.data(), 6);
  fill_empty_bags(stream, unweighted, 2, filled, empty.view()).or_throw();
  unique(stream, batch.list(),
         unique_out<std::int64_t, std::int64_t, device_space>{different.view(), inverse.view(), counts.view(),
                                                              size.view()})
      .or_throw();
  index_t skipped = 0;
  partition(stream, batch.list(), 10, 2, partition_strategy::mod, bounds::skip(skipped),
            partition_out<std::int64_t, std::int32_t, device_space>{part.view(), permutation.view(),
                                                                    part_offsets.view(), local.view()})
      .or_throw();
  stream.synchronize().or_throw();
  CHECK(back(offsets, 4) == std::vector<std::int32_t>{0, 2, 2, 4});
  CHECK(back(weights, 4) == std::vector<float>{1, 0, 1, 2});
  CHECK(back(more_offsets, 4) == std::vector<std::int32_t>{0, 2, 3, 5});
  CHECK(back(filled_ids, 5) == std::vector<std::int64_t>{7, 9, 2, 4, 4});
  CHECK(back(size, 1)[0] == 5);
  CHECK(back(inverse, 6) == std::vector<std::int64_t>{0, 1, 2, 3, 3, 4});
  CHECK(back(counts, 5) == std::vector<std::int64_t>{1, 1, 1, 2, 1});
  CHECK(skipped == 2);
  CHECK(back(part, 6) == std::vector<std::int32_t>{1, -1, 1, 0, 0, -1});
  CHECK(back(permutation, 6) == std::vector<std::int32_t>{2, -1, 3, 0, 1, -1});
  CHECK(back(part_offsets, 3) == std::vector<std::int32_t>{0, 2, 4});
  CHECK(back(local, 4) == std::vector<std::int64_t>{2, 2, 3, 4});
  // No bags: one offset.
  const jagged_out<std::int64_t, std::int32_t, device_space> none{{offsets.data() + 3, 1}, {}, {}};
  const jagged_view<std::int64_t, std::int32_t, device_space> no_bags;
  for (int verb = 0; verb < 2; ++verb) {
    REQUIRE(cudaMemsetAsync(offsets.data(), 0x11, 4 * sizeof(std::int32_t), stream.get()) == cudaSuccess);
    (verb == 0 ? prune_invalid(stream, no_bags, prune_rule::by_id, none)
               : fill_empty_bags(stream, no_bags, 2, none, {}))
        .or_throw();
    stream.synchronize().or_throw();
    CHECK(back(offsets, 4) == std::vector<std::int32_t>{0x11111111, 0x11111111, 0x11111111, 0});
  }
}

TEST_CASE("device: a pending error of an earlier call is not reported by a verb") {
  const auto ids = to_device(std::vector<std::int64_t>{4, 4, 2});
  device_array<std::int64_t> different(3);
  device_array<std::int32_t> inverse(3), counts(3);
  device_array<index_t> size(1);
  cuda_stream stream;
  void* nothing = nullptr;
  REQUIRE(cudaMalloc(&nothing, std::size_t{1} << 60) != cudaSuccess);
  unique(stream, first_of(ids, 3), unique_out{different.view(), inverse.view(), counts.view(), size.view()})
      .or_throw();
  stream.synchronize().or_throw();
  CHECK(back(size, 1)[0] == 2);
}

TEST_CASE("device: unique of ids with a run as long as the batch") {
  for (const std::size_t n : {std::size_t{1}, std::size_t{33}, std::size_t{5000}}) {
    std::vector<std::int32_t> ids(n, -4);
    ids[n / 2] = 9;
    const auto given = to_device(ids);
    device_array<std::int32_t> different(n), inverse(n), counts(n);
    device_array<index_t> size(1);
    cuda_stream stream;
    unique(stream, first_of(given, n),
           unique_out{different.view(), inverse.view(), counts.view(), size.view()})
        .or_throw();
    stream.synchronize().or_throw();
    if (n == 1) {
      CHECK(back(size, 1)[0] == 1);
      continue;
    }
    CHECK(back(size, 1)[0] == 2);
    CHECK(back(different, 2) == std::vector<std::int32_t>{-4, 9});
    CHECK(back(counts, 2) == std::vector<std::int32_t>{static_cast<std::int32_t>(n) - 1, 1});
    std::vector<std::int32_t> expected(n);
    expected[n / 2] = 1;
    CHECK(back(inverse, n) == expected);
  }
}

TEST_CASE("device: row_select of words of every size, more rows than a team has at once, in place") {
  std::mt19937_64 random(seed());
  for (const index_t width : {64, 60, 33}) {  // bytes: 16, 4 and 1 to a word
    for (const index_t rows : {1, 3, 4, 21}) {
      std::vector<std::uint8_t> a(static_cast<std::size_t>(rows * width)), b(a.size()),
          cond(static_cast<std::size_t>(rows));
      for (auto& x : a) x = static_cast<std::uint8_t>(random());
      for (auto& x : b) x = static_cast<std::uint8_t>(random());
      for (auto& x : cond) x = random() % 2 == 0 ? 0 : static_cast<std::uint8_t>(1 + random() % 255);
      std::vector<std::uint8_t> expected = b;
      for (std::size_t r = 0; r < cond.size(); ++r) {
        if (cond[r] == 0) continue;
        std::copy_n(a.begin() + static_cast<index_t>(r) * width, width,
                    expected.begin() + static_cast<index_t>(r) * width);
      }
      const auto then = to_device(a), otherwise = to_device(b), flags = to_device(cond);
      const auto out = to_device(std::vector<std::uint8_t>(a.size()));
      cuda_stream stream;
      row_select(stream, first_of(flags, cond.size()), then.matrix(rows, width),
                 otherwise.matrix(rows, width), out.matrix(rows, width))
          .or_throw();
      row_select(stream, first_of(flags, cond.size()), then.matrix(rows, width),
                 otherwise.matrix(rows, width), otherwise.matrix(rows, width))
          .or_throw();
      stream.synchronize().or_throw();
      CHECK(back(out, a.size()) == expected);
      CHECK(back(otherwise, a.size()) == expected);
    }
  }
}

TEST_CASE("device: stages of a sparse lookup, and a step of them in a graph") {
  made_batch made;
  made.ids = {7, -1, 9, 4, 4, -3};
  made.weights.assign(6, 1.0F);
  made.offsets = {0, 3, 3, 6};
  const device_batch batch(made);
  device_array<index_t> offsets(4), filled_offsets(4), size(1), permutation(6), part_offsets(4);
  device_array<std::int64_t> ids(6), filled_ids(9), different(6), local(6);
  device_array<std::uint8_t> empty(3);
  device_array<std::int32_t> inverse(6), counts(6), part(6);
  const device_out<> pruned{offsets.view(), ids.view(), {}};
  const device_out<> filled{filled_offsets.view(), filled_ids.view(), {}};
  cuda_stream stream;
  for (int again = 0; again < 2; ++again) {  // the second time from a graph
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    for (void* const of_last_time :
         {static_cast<void*>(filled_offsets.data()), static_cast<void*>(inverse.data())}) {
      REQUIRE(cudaMemsetAsync(of_last_time, 0xff, 6 * sizeof(std::int32_t), stream.get()) == cudaSuccess);
    }
    REQUIRE(cudaMemsetAsync(filled_ids.data(), 0xff, 9 * sizeof(std::int64_t), stream.get()) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(part.data(), 0x77, 6 * sizeof(std::int32_t), stream.get()) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(size.data(), 0xff, sizeof(index_t), stream.get()) == cudaSuccess);
    if (again == 1) cuda_runtime::begin_capture(stream.get()).or_throw();
    prune_invalid(stream, batch.view(false), prune_rule::by_id, pruned).or_throw();
    fill_empty_bags(stream, pruned.view(), 2, filled, empty.view()).or_throw();
    unique(stream, batch.list(), unique_out{different.view(), inverse.view(), counts.view(), size.view()})
        .or_throw();
    partition(stream, batch.list(), 10, 3, partition_strategy::mod, bounds::skip,
              partition_out{part.view(), permutation.view(), part_offsets.view(), local.view()})
        .or_throw();
    if (again == 1) {
      cuda_runtime::end_capture(stream.get(), graph).or_throw();
      cuda_runtime::instantiate(exec, graph).or_throw();
      cuda_runtime::launch(exec, stream.get()).or_throw();
    }
    stream.synchronize().or_throw();
    CHECK(back(filled_offsets, 4) == std::vector<index_t>{0, 2, 3, 5});
    CHECK(back(filled_ids, 5) == std::vector<std::int64_t>{7, 9, 2, 4, 4});
    CHECK(back(empty, 3) == std::vector<std::uint8_t>{0, 1, 0});
    CHECK(back(size, 1)[0] == 5);
    CHECK(back(inverse, 6) == std::vector<std::int32_t>{0, 1, 2, 3, 3, 4});
    CHECK(back(part, 6) == std::vector<std::int32_t>{1, -1, 0, 1, 1, -1});
    if (again == 1) {
      cuda_runtime::end_exec(exec);
      cuda_runtime::end_graph(graph);
    }
  }
}

namespace {

/// fused_lookup of entries on a device and on the host: eager, then as a graph.
template <class Id, class Row, class How>
void check_entries(entries_are kind, index_t n, const How& how, bool weighted) {
  std::mt19937_64 random(seed());
  const index_t width = 20, rows = 60, bags = 40;
  const device_table<f32_rows> table(f32_rows(width), rows, random);
  const auto bytes = back(table.on_device, static_cast<std::size_t>(rows * width) * sizeof(float));
  const auto made = make_entries<Id, Row>(random, kind, bags, rows, n);
  std::vector<float> expected(static_cast<std::size_t>(bags * width));
  inline_executor here;
  fused_lookup(here, const_table_view<f32_rows>(bytes.data(), rows, f32_rows(width)), made.view(weighted),
               how, matrix_view(expected.data(), bags, width))
      .or_throw();
  const auto of_rows = to_device(made.rows);
  const auto ids = to_device(made.ids);
  const auto weights = to_device(made.weights);
  const auto out = to_device(std::vector<float>(expected.size(), std::nanf("")));
  const coo_view<Id, Row, device_space> entries(of_rows.data(), ids.data(), n, bags,
                                                weighted ? weights.data() : nullptr);
  cuda_stream stream;
  std::vector<float> first;
  for (int again = 0; again < 2; ++again) {  // the second time from a graph
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (again == 1) cuda_runtime::begin_capture(stream.get()).or_throw();
    fused_lookup(stream, table.view(), entries, how, out.matrix(bags, width)).or_throw();
    if (again == 1) {
      cuda_runtime::end_capture(stream.get(), graph).or_throw();
      REQUIRE(cudaMemsetAsync(out.data(), 0xff, expected.size() * sizeof(float), stream.get()) ==
              cudaSuccess);
      cuda_runtime::instantiate(exec, graph).or_throw();
      cuda_runtime::launch(exec, stream.get()).or_throw();
    }
    stream.synchronize().or_throw();
    const auto answer = back(out, expected.size());
    if (again == 0) first = answer;
    CHECK(std::memcmp(first.data(), answer.data(), answer.size() * sizeof(float)) == 0);
    if (again == 1) {
      cuda_runtime::end_exec(exec);
      cuda_runtime::end_graph(graph);
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    REQUIRE(first[i] == doctest::Approx(expected[i]).epsilon(1e-4).scale(n > 1000 ? 1000 : 1));
  }
}

}  // namespace

TEST_CASE("device: fused_lookup of entries in any order is the host's, also from a graph") {
  for (const entries_are kind : every_entries) {
    check_entries<std::int64_t, std::int64_t>(kind, 300, combiner::sum, false);
    check_entries<std::int32_t, std::int32_t>(kind, 300, pooling(combiner::mean, empty_bag::default_row{7}),
                                              true);
  }
  // Chunks of long bags lie behind the bags in the stream's scratch.
  check_entries<std::int64_t, std::int64_t>(entries_are::one_huge_bag, 40000, combiner::sum, false);
  check_entries<std::int32_t, std::int32_t>(entries_are::one_bag, 40000,
                                            pooling(combiner::mean, empty_bag::default_row{7}), true);
}

TEST_CASE(
    "device: a framework's stream with a workspace gives the bits of a cuda_stream, and a fault is polled") {
  std::mt19937_64 random(seed());
  const index_t width = 20, rows = 60, bags = 40, n = 900;
  const device_table<f32_rows> table(f32_rows(width), rows, random);
  const auto made = make_entries<std::int64_t, std::int64_t>(random, every_entries[0], bags, rows, n);
  const auto of_rows = to_device(made.rows), ids = to_device(made.ids);
  const coo_view<std::int64_t, std::int64_t, device_space> entries(of_rows.data(), ids.data(), n, bags);
  const auto count = static_cast<std::size_t>(bags * width);
  const auto out = to_device(std::vector<float>(count)), expected = to_device(std::vector<float>(count));
  cuda_stream own;
  fused_lookup(own, table.view(), entries, combiner::sum, expected.matrix(bags, width)).or_throw();

  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
  {
    cuda_workspace work;
    for (int call = 0; call < 2;
         ++call) {  // an executor for each call, as an operator of a framework makes it
      const cuda_executor on(stream, work);
      REQUIRE(cudaMemsetAsync(out.data(), 0xff, count * sizeof(float), stream) == cudaSuccess);
      fused_lookup(on, table.view(), entries, combiner::sum, out.matrix(bags, width)).or_throw();
      CHECK(on.synchronize().ok());
      own.synchronize().or_throw();
      CHECK(back(out, count) == back(expected, count));
    }
    std::vector<std::int64_t> wrong(static_cast<std::size_t>(bags), 1);
    wrong[7] = rows;
    const auto bad = to_device(wrong);
    const fixed_hotness_view<std::int64_t, device_space> batch(bad.data(), bags, 1);
    const cuda_executor on(stream, work);
    lookup(on, table.view(), batch, combiner::sum, out.matrix(bags, width)).or_throw();
    CHECK(on.poll().ok());  // enqueues the copy
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(on.poll().place().bag == 7);
    CHECK(on.synchronize().place().value == rows);

    std::stop_source source;
    source.request_stop();
    const std::stop_token token = source.get_token();
    context<const cuda_executor> ctx(on);
    ctx.stop = &token;
    const unique_out<std::int64_t, std::int32_t, device_space> none{};
    CHECK(unique(ctx, bad.view(), none).code() == errc::stopped);
  }
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("device: an entry whose row is outside is left out, and its place comes with synchronize()") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(20), 60, random);
  const auto rows = to_device(std::vector<std::int64_t>{2, 0, 5, 2, -1});
  const auto ids = to_device(std::vector<std::int64_t>{4, 9, 1, 60, 2});
  const auto out = to_device(std::vector<float>(3 * 20, 7.0F));
  cuda_stream stream;
  const coo_view<std::int64_t, std::int64_t, device_space> entries(rows.data(), ids.data(), 5, 3);
  fused_lookup(stream, table.view(), entries, combiner::sum, out.matrix(3, 20)).or_throw();
  const status found = stream.synchronize();
  CHECK(found.code() == errc::invalid_value);
  CHECK(found.place() == fault_place{.position = 2, .value = 5});
  const auto answer = back(out, 60);
  for (std::size_t j = 0; j < 20; ++j) {
    CHECK(answer[j] == static_cast<float>(table.values[9][j]));
    CHECK(answer[20 + j] == 0.0F);
    CHECK(answer[40 + j] == 0.0F);  // id 60 is a fault of its own
  }
  CHECK(fused_lookup(stream, table.view(), entries, combiner::sum, out.matrix(2, 20)).code() ==
        errc::shape_mismatch);
  CHECK(stream.synchronize().ok());
}

TEST_CASE("device: row_select, the gradients of weights, and concat") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(20), 9, random);
  made_batch made;
  made.ids = {4, 8, 0};
  made.weights = {2, 0.5F, 3};
  made.offsets = {0, 2, 3};
  const device_batch batch(made);
  const auto gradient = to_device(std::vector<float>(2 * 20, 0.25F));
  const auto dots = to_device(std::vector<float>(3)), rows = to_device(std::vector<float>(3 * 20));
  const auto chosen = to_device(std::vector<float>(3 * 20)), gathered = to_device(std::vector<float>(3 * 20));
  const auto cond = to_device(std::vector<std::uint8_t>{1, 0, 255});
  cuda_stream stream;
  weight_gradients(stream, table.view(), batch.view(true), combiner::sum,
                   matrix_view<const float, device_space>(gradient.matrix(2, 20)), std::span(dots.data(), 3))
      .or_throw();
  lookup(stream, table.view(), batch.view(true), combiner::concat, rows.matrix(3, 20)).or_throw();
  gather(stream, table.view(), batch.list(), gathered.matrix(3, 20)).or_throw();
  row_select(stream, first_of(cond, 3), rows.matrix(3, 20), gradient.matrix(1, 20), chosen.matrix(3, 20))
      .or_throw();
  stream.synchronize().or_throw();
  double dot = 0;
  for (const double x : table.values[8]) dot += 0.25 * x;
  CHECK(static_cast<double>(back(dots, 3)[1]) == doctest::Approx(dot).epsilon(1e-4));
  const auto copied = back(gathered, 60);
  CHECK(copied[3] == static_cast<float>(table.values[4][3]));
  CHECK(copied[43] == static_cast<float>(table.values[0][3]));
  const auto answer = back(chosen, 60);
  CHECK(answer[3] == static_cast<float>(2 * table.values[4][3]));
  CHECK(answer[23] == 0.25F);
  CHECK(answer[43] == static_cast<float>(3 * table.values[0][3]));
}

TEST_CASE("device: towers on several streams, eager and as a graph, give the bits of one stream") {
  std::mt19937_64 random(seed());
  const device_table<f32_rows> table(f32_rows(32), 50, random);
  std::vector<device_batch> batches;
  for (int t = 0; t < 6; ++t)
    batches.emplace_back(make_batch<std::int64_t, std::int32_t>(random, every_shape[t % 5], 40, 50, 6));
  task_list work;
  for (int t = 0; t < 6; ++t) work.add({});
  cuda_stream_pool pool(3);
  stream_plan plan;
  plan_streams(work, 3, plan).or_throw();
  const auto out = to_device(std::vector<float>(6 * 40 * 32));
  const auto launch = [&](index_t op, cuda_stream& on) {
    return lookup(on, table.view(), batches[static_cast<std::size_t>(op)].view(true), combiner::mean,
                  matrix_view<float, device_space>(out.data() + op * 40 * 32, 40, 32));
  };
  for (index_t t = 0; t < 6; ++t) launch(t, pool.stream(0)).or_throw();
  pool.synchronize().or_throw();
  const auto expected = back(out, 6 * 40 * 32);
  for (int how = 0; how < 3; ++how) {
    REQUIRE(cudaMemset(out.data(), 0xff, 6 * 40 * 32 * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    (how == 0 ? pool.run_timed(plan, launch) : pool.replay(plan, launch)).or_throw();
    pool.synchronize().or_throw();
    CHECK(std::memcmp(expected.data(), back(out, expected.size()).data(), expected.size() * sizeof(float)) ==
          0);
  }
  CHECK(pool.graphs() == 1);
  std::vector<float> times;
  pool.times(times).or_throw();
  CHECK(times.size() == 3);

  cuda_pool_resource memory;
  void* block = nullptr;
  memory.allocate(1000, pool.stream(1).get(), block).or_throw();
  memory.deallocate(block, pool.stream(1).get()).or_throw();
  cuda_staging staging(pool.stream(2).get());
  packed_layout layout;
  const auto slice = layout.add<float>(100);
  int slot = 0;
  staging.acquire(layout.bytes(), slot).or_throw();
  for (std::size_t i = 0; i < 100; ++i) slice.in(staging.host(slot))[i] = static_cast<float>(i);
  staging.upload(slot, layout.bytes()).or_throw();
  staging.use(slot, pool.stream(0).get()).or_throw();
  REQUIRE(cudaMemcpyAsync(out.data(), slice.in(staging.device(slot)), 400, cudaMemcpyDeviceToDevice,
                          pool.stream(0).get()) == cudaSuccess);
  staging.release(slot, pool.stream(0).get()).or_throw();
  pool.synchronize().or_throw();
  CHECK(back(out, 100)[99] == 99.0F);
}
