// A growing table over the ids 0 .. R-1 has the bits of a dense table with the same first values: lookups and
// gradients. Updates: growing_updates_test.cpp.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <deeprec/core/coo_view.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/gradient.hpp>

#include "growing/twins.hpp"

using namespace growing_test;

static_assert(KeyedRowSource<growing_rows<f32_rows>, std::int64_t> &&
              KeyedRowSource<growing_rows<f32_rows>, std::uint32_t> &&
              GrowingRowSource<growing_rows<f32_rows>, std::int64_t> &&
              StableGrowingRowSource<growing_rows<f32_rows>, std::int32_t> &&
              ObservedRowSource<growing_rows<f32_rows>> && GuardedRowSource<growing_rows<f32_rows>> &&
              EnumerableRowSource<growing_rows<f32_rows>, std::uint64_t> &&
              WritableRowSource<growing_rows<f32_rows>> && !BoundedRowSource<growing_rows<f32_rows>>);
static_assert(KeyedRowSource<growing_rows<f32_rows, const std::byte>, std::int64_t> &&
              !WritableRowSource<growing_rows<f32_rows, const std::byte>>);

namespace {

constexpr index_t rows = 300, bags = 40;

// A lookup by the plain verb and of resolved rows, in memory that was filled before.
template <class Out = float>
void look_up(const context_ref& ctx, const auto& source, const auto& batch, const auto& how,
             transcript& found) {
  const index_t width = source.format().width();
  std::vector<Out> out(at(batch.bags() * width), Out(-7.0F));
  const matrix_view<Out> to(out.data(), batch.bags(), width);
  found.add(lookup(ctx, source, batch, how, to));
  found.add(out);
  const auto resolved = resolve(ctx, source, batch, how);
  found.add(resolved ? status() : status(resolved.fault()));
  if (!resolved) return;
  std::fill(out.begin(), out.end(), Out(-7.0F));
  found.add(lookup(ctx, resolved.value(), to));
  found.add(out);
}

template <class Format>
void check_lookups(index_t width) {
  CAPTURE(width);
  sampled batch(bags, width, rows);
  batch.made.offsets[3] = batch.made.offsets[2];  // an empty bag, whatever the batch
  same_in_every_setting(
      Format(width), rows, [&](const context_ref& ctx, const auto& source, transcript& found) {
        for (const bool weighted : {false, true}) {
          const jagged_view<> ids = batch.view(weighted);
          look_up(ctx, source, ids, combiner::sum, found);
          look_up(ctx, source, ids, combiner::mean, found);
          look_up(ctx, source, ids, combiner::mean(combiner::by_weight), found);
          look_up(ctx, source, ids, combiner::sqrtn, found);
          look_up(ctx, source, ids, pooling{combiner::sum, max_norm{0.5F}}, found);
          look_up(ctx, source, ids, pooling{combiner::mean, empty_bag::default_row{9}}, found);
          look_up(ctx, source, ids, pooling{combiner::mean, padding::id{4}, empty_bag::keep}, found);
          look_up(ctx, source, ids, pooling{combiner::sum, output::accumulate}, found);
        }
        look_up(ctx, source, batch.view(), combiner::max, found);
        CHECK(found.faults == 0);
      });
}

}  // namespace

TEST_CASE("growing_table: lookups have the bits of a dense table, for every combiner and policy") {
  for (const index_t width : {1, 19, 64}) check_lookups<f32_rows>(width);
}
TEST_CASE("growing_table: lookups of 16-bit and of split rows have the bits of a dense table") {
  check_lookups<f16_rows>(33);
  check_lookups<bf16_rows>(20);
  check_lookups<split_bf16_rows>(17);
}
TEST_CASE("growing_table: rows that can't be trained are looked up") {
  for (const bool weighted : {false, true}) {
    const sampled batch(bags, 24, rows, 3);
    const auto program = [&](const context_ref& ctx, const auto& source, transcript& found) {
      look_up(ctx, source, batch.view(weighted), combiner::mean, found);
      CHECK(found.faults == 0);
    };
    same_in_every_setting(e4m3_rows(24), rows, program);
    same_in_every_setting(int8_rows(24), rows, program);
  }
}

TEST_CASE("growing_table: outputs of 16 bits, batches without offsets, and bags of more than 4096 ids") {
  const index_t width = 20;
  const sampled batch(bags, width, rows, 1, shape_of_batch::one_huge, 150);
  REQUIRE(batch.made.ids.size() > 4096);
  same_in_every_setting(
      f32_rows(width), rows, [&](const context_ref& ctx, const auto& source, transcript& found) {
        look_up(ctx, source, batch.view(true), combiner::mean, found);
        look_up<bf16>(ctx, source, batch.view(), combiner::mean, found);
        look_up<f16>(ctx, source, fixed_hotness_view<>(batch.made.ids.data(), 50, 7), combiner::sum, found);
        look_up(ctx, source, fixed_hotness_view<>(batch.made.ids.data(), 200, 1), combiner::sum, found);
        CHECK(found.faults == 0);
      });
}

TEST_CASE("growing_table: gathers and fused lookups have the bits of a dense table") {
  const index_t width = 20;
  sampled batch(bags, width, rows, 2);
  batch.made.weights[2] = -1;
  batch.made.weights[9] = 0;
  const auto n = static_cast<index_t>(batch.made.ids.size());
  std::vector<std::int64_t> row_of_entry;
  for (index_t k = 0; k < n; ++k) row_of_entry.push_back(k * 17 % bags);
  const coo_view<> entries(row_of_entry.data(), batch.made.ids.data(), n, bags, batch.made.weights.data());
  const std::vector<std::uint32_t> narrow(batch.made.ids.begin(), batch.made.ids.end());
  const auto program = [&](const context_ref& ctx, const auto& source, transcript& found) {
    std::vector<float> out(at((std::max)(n, bags) * width), -7.0F);
    found.add(gather(ctx, source, batch.made.ids, matrix_view<float>(out.data(), n, width)));
    found.add(out);
    found.add(gather(ctx, source, narrow, matrix_view<float>(out.data(), n, width)));
    found.add(out);
    const matrix_view<float> pooled(out.data(), bags, width);
    found.add(fused_lookup(ctx, source, entries, combiner::mean, pooled));
    found.add(out);
    found.add(fused_lookup(ctx, source, entries,
                           pooling{combiner::sqrtn, empty_bag::default_row{7}, max_norm{1}}, pooled));
    found.add(out);
    look_up(ctx, source, batch.view(true), pooling{combiner::mean, padding::prune}, found);
    CHECK(found.faults == 0);
  };
  same_in_every_setting(f32_rows(width), rows, program);
  same_in_every_setting(split_bf16_rows(width), rows, program);
}

TEST_CASE("growing_table: keys without a row are the ids out of range of a dense table") {
  const index_t width = 20;
  sampled batch(bags, width, rows, 4);
  std::vector<std::int64_t>& ids = batch.made.ids;
  ids[5] = rows;
  ids[6] = -1;
  ids[17] = std::numeric_limits<std::int64_t>::min();
  ids.back() = std::numeric_limits<std::int64_t>::max();
  sampled with_nan = batch;
  with_nan.made.weights[3] = std::numeric_limits<float>::quiet_NaN();
  same_in_every_setting(
      f32_rows(width), rows, [&](const context_ref& ctx, const auto& source, transcript& found) {
        look_up(ctx, source, batch.view(), combiner::mean, found);
        look_up(ctx, source, batch.view(true), combiner::sqrtn, found);
        CHECK(found.faults == 4);
        look_up(ctx, source, batch.view(true), pooling{combiner::mean, bounds::skip}, found);
        look_up(ctx, source, batch.view(), pooling{combiner::sum, bounds::skip, empty_bag::keep}, found);
        look_up(ctx, source, batch.view(), pooling{combiner::max, bounds::skip, padding::id{-1}}, found);
        index_t skipped = 0;
        look_up(ctx, source, batch.view(), pooling{combiner::mean, bounds::skip(skipped)}, found);
        CHECK(skipped == 8);
        std::vector<float> out(ids.size() * at(width));
        found.add(gather(ctx, source, ids,
                         matrix_view<float>(out.data(), static_cast<index_t>(ids.size()), width)));
        CHECK(found.faults == 5);
        look_up(ctx, source, with_nan.view(true), combiner::sum, found);
        CHECK(found.faults == 7);
      });
}

TEST_CASE("growing_table: absent keys read its default row, as an id of a dense table with one row more") {
  const index_t width = 20;
  std::vector<float> instead(at(width));
  for (index_t j = 0; j < width; ++j) instead[at(j)] = 0.125F * static_cast<float>(j) - 1;
  sampled batch(bags, width, rows, 5);
  for (std::size_t k = 0; k < batch.made.ids.size(); k += 7) batch.made.ids[k] = rows;
  const auto check = [&](const auto& format) {
    using format_type = std::remove_cvref_t<decltype(format)>;
    const auto program = [&](const context_ref& ctx, const auto& source, transcript& found) {
      for (const bool weighted : {false, true}) {
        look_up(ctx, source, batch.view(weighted), combiner::sum, found);
        look_up(ctx, source, batch.view(weighted), combiner::mean, found);
        look_up(ctx, source, batch.view(weighted), pooling{combiner::sqrtn, bounds::skip}, found);
        look_up(ctx, source, batch.view(weighted),
                pooling{combiner::mean, bounds::assume_valid, max_norm{0.5F}}, found);
      }
      CHECK(found.faults == 0);
    };
    same_in_every_setting(
        [&](const context_ref& ctx) {
          auto table = dense_of(format, rows + 1);
          format.encode(instead.data(), table.view().row(rows));
          transcript found;
          program(ctx, table.view(), found);
          return found;
        },
        [&](const context_ref& ctx, const table_kind& kind) {
          const auto table = growing_of<format_type>(format, kind);
          CHECK(table->default_row(instead).ok());
          fill(ctx, *table, rows);
          transcript found;
          program(ctx, table->rows(), found);
          CHECK(table->size() == rows);
          return found;
        });
  };
  check(f32_rows(width));
  check(bf16_rows(width));
}

TEST_CASE("growing_table: gradients of rows and of weights have the bits of a dense table") {
  const index_t width = 35;
  const sampled batch(bags, width, rows, 6), huge(bags, width, rows, 7, shape_of_batch::one_huge, 150);
  const auto gradients = [&](const context_ref& ctx, const auto& source, const sampled& of, const auto& how,
                             transcript& found) {
    for (const bool weighted : {false, true}) {
      auto resolved = resolve(ctx, source, of.view(weighted), how);
      REQUIRE(resolved.ok());
      if constexpr (std::is_same_v<typename decltype(pooling(how))::norm_mode, detail::any_norm_t>) {
        sparse_gradient of_rows;
        found.add(row_gradients(ctx, resolved.value(), of.slope(), of_rows));
        CHECK(std::is_sorted(of_rows.rows.begin(), of_rows.rows.end()));
        found.add(std::span<const index_t>(of_rows.rows));
        found.add(std::span<const float>(of_rows.values));
      }
      std::vector<float> of_weights(of.made.ids.size(), -7.0F);
      found.add(weight_gradients(ctx, source, of.view(weighted), how, of.slope(), of_weights));
      found.add(of_weights);
      std::fill(of_weights.begin(), of_weights.end(), -7.0F);
      found.add(weight_gradients(ctx, resolved.value(), of.slope(), of_weights));
      found.add(of_weights);
    }
    CHECK(found.faults == 0);
  };
  const auto program = [&](const context_ref& ctx, const auto& source, transcript& found) {
    gradients(ctx, source, batch, pooling{combiner::sum}, found);
    gradients(ctx, source, batch, pooling{combiner::mean}, found);
    gradients(ctx, source, batch, pooling{combiner::sqrtn, empty_bag::default_row{9}}, found);
    gradients(ctx, source, batch, pooling{combiner::mean, max_norm{0.75F}}, found);
    gradients(ctx, source, huge, pooling{combiner::mean(combiner::by_weight)}, found);
  };
  same_in_every_setting(f32_rows(width), rows, program);
  same_in_every_setting(bf16_rows(width), rows, program);
}

TEST_CASE("growing_table: a table of constant rows is read, and a difference in one bit is seen") {
  const index_t width = 8;
  const sampled batch(bags, width, rows, 8);
  const auto found = [&](float changed) {
    const auto table = growing_of(f32_rows(width), every_kind[0]);
    inline_executor here;
    const executor_ref ref(here);
    executor_ref executor = ref;
    fill(context_ref(executor), *table, rows);
    const std::int64_t key = batch.made.ids[0];
    const std::byte* row = nullptr;
    table->rows().find(&key, 1, &row);
    float value = 0;
    std::memcpy(&value, row, sizeof value);
    value *= changed;
    std::memcpy(const_cast<std::byte*>(row), &value, sizeof value);
    transcript heard;
    const growing_table<f32_rows>& readable = *table;
    look_up(context_ref(executor), readable.rows(), batch.view(), combiner::sum, heard);
    return heard;
  };
  CHECK(found(1.0F) == found(1.0F));
  CHECK_FALSE(found(1.0F) == found(1.5F));
}
