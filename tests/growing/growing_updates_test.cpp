// Updates of a growing table over the ids 0 .. R-1 leave the bits of a dense table: every optimizer.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <deeprec/core/rounding.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "growing/every_optimizer.hpp"
#include "growing/twins.hpp"

using namespace growing_test;

namespace {

constexpr index_t rows = 300, bags = 40;

}  // namespace

TEST_CASE("growing_table: updates by every optimizer have the bits of a dense table") {
  const index_t width = 19;
  with_every_optimizer([&](const auto& optimizer) {
    train_both<f32_rows>(optimizer, width, rows, bags, combiner::sum, rounding::nearest);
  });
}

TEST_CASE("growing_table: updates through every pooling have the bits of a dense table") {
  for (const index_t width : {1, 8, 67}) {
    CAPTURE(width);
    const rowwise_adagrad optimizer{.learning_rate = 0.1F};
    const auto train = [&](const auto& how) {
      train_both<f32_rows>(optimizer, width, rows, bags, how, rounding::nearest);
    };
    train(combiner::mean);
    train(combiner::mean(combiner::by_weight));
    train(pooling{combiner::sqrtn, empty_bag::default_row{9}});
    train(pooling{combiner::mean, max_norm{0.75F}});
    train(pooling{combiner::sum, padding::id{4}});
    train(pooling{combiner::mean, padding::prune, bounds::skip});
  }
}

TEST_CASE("growing_table: a row of more than 4096 positions is stepped with the bits of a dense table") {
  const index_t width = 12;
  const sampled huge(bags, width, 20, 9, shape_of_batch::one_huge, 400);
  same_in_every_setting(f32_rows(width, room_for<adagrad>(width)), 20,
                        [&](const context_ref& ctx, const auto& source, transcript& found) {
                          for (const bool weighted : {false, true}) {
                            found.add(update(ctx, source, huge.view(weighted), combiner::mean, huge.slope(),
                                             adagrad{.learning_rate = 0.1F}));
                          }
                          CHECK(found.faults == 0);
                        });
}

TEST_CASE("growing_table: rows that are born while they are trained have the bits of a dense table") {
  const index_t width = 19;
  const auto train = [&](const auto& format, const auto& optimizer) {
    using format_type = std::remove_cvref_t<decltype(format)>;
    using optimizer_type = std::remove_cvref_t<decltype(optimizer)>;
    const format_type with_state(width, room_for<optimizer_type>(width));
    std::vector<sampled> batches;
    std::vector<bool> used(at(rows));
    for (std::uint64_t step = 0; step < 4; ++step) {
      batches.emplace_back(bags, width, rows, 20 + step);
      for (const std::int64_t id : batches.back().made.ids) used[at(id)] = true;
    }
    const auto train_all = [&](const context_ref& ctx, auto& table, const auto& source, transcript& found) {
      optimizer_type own = optimizer;
      std::vector<float> out(at(bags * width));
      const matrix_view<float> to(out.data(), bags, width);
      for (const sampled& batch : batches) {
        if constexpr (DirectRowSource<std::remove_cvref_t<decltype(source)>>) {
          found.add(lookup(ctx, source, batch.view(true), combiner::mean, to));
          found.add(update(ctx, source, batch.view(true), combiner::mean, batch.slope(), own));
        } else {
          table.begin_step(table.step() + 1);
          const auto resolved = resolve(ctx, source, batch.view(true), combiner::mean, keys::find_or_insert);
          REQUIRE(resolved.ok());
          found.add(lookup(ctx, resolved.value(), to));
          found.add(update(ctx, resolved.value(), batch.slope(), own));
        }
        found.add(out);
        next_step(own);
      }
      for (index_t r = 0; r < rows; ++r) {
        if (used[at(r)]) found.add(row_of(table, r));
      }
    };
    same_in_every_setting(
        [&](const context_ref& ctx) {
          auto table = dense_of(with_state, rows);
          transcript found;
          train_all(ctx, table, table.view(), found);
          return found;
        },
        [&](const context_ref& ctx, const table_kind& kind) {
          const auto table = growing_of(with_state, kind);
          transcript found;
          train_all(ctx, *table, table->rows(), found);
          for (index_t r = 0; r < rows; ++r) CHECK(row_of(*table, r).empty() == !used[at(r)]);
          return found;
        });
  };
  train(f32_rows(), rowwise_adagrad{});
  train(f32_rows(), adam{});
  train(bf16_rows(), adagrad{});
  train(split_bf16_rows(), ftrl{});
}

TEST_CASE("growing_table: keys that read the default row are not trained, nor is it") {
  const index_t width = 19;
  const f32_rows format(width, room_for<adagrad>(width));
  const std::vector<float> instead(at(width), 0.5F);
  sampled batch(bags, width, rows, 5);
  for (std::size_t k = 0; k < batch.made.ids.size(); k += 7) batch.made.ids[k] = rows;
  const auto trained = [&](const context_ref& ctx, const auto& source, transcript& found) {
    for (int step = 0; step < 2; ++step) {
      found.add(update(ctx, source, batch.view(), combiner::mean, batch.slope(), adagrad{}));
      std::vector<float> of_weights(batch.made.ids.size());
      found.add(weight_gradients(ctx, source, batch.view(true), combiner::mean, batch.slope(), of_weights));
      found.add(of_weights);
    }
    CHECK(found.faults == 0);
  };
  same_in_every_setting(
      [&](const context_ref& ctx) {
        auto table = dense_of(format, rows + 1);
        transcript found;
        const auto reset = [&] { format.encode(instead.data(), table.view().row(rows)); };
        // The row of the dense table is trained; it is set back for what reads it.
        reset();
        found.add(update(ctx, table.view(), batch.view(), combiner::mean, batch.slope(), adagrad{}));
        reset();
        std::vector<float> of_weights(batch.made.ids.size());
        const auto dots = [&] {
          found.add(weight_gradients(ctx, table.view(), batch.view(true), combiner::mean, batch.slope(),
                                     of_weights));
          found.add(of_weights);
        };
        dots();
        found.add(update(ctx, table.view(), batch.view(), combiner::mean, batch.slope(), adagrad{}));
        reset();
        dots();
        for (index_t r = 0; r < rows; ++r) found.add(row_of(table, r));
        return found;
      },
      [&](const context_ref& ctx, const table_kind& kind) {
        const auto table = growing_of(format, kind);
        CHECK(table->default_row(instead).ok());
        fill(ctx, *table, rows);
        const std::byte* const row = table->rows().default_row();
        const std::vector<std::byte> before(row, row + format.stride_bytes());
        transcript found;
        trained(ctx, table->rows(), found);
        CHECK(std::vector<std::byte>(row, row + format.stride_bytes()) == before);
        CHECK(table->size() == rows);
        for (index_t r = 0; r < rows; ++r) found.add(row_of(*table, r));
        return found;
      });
}

TEST_CASE("growing_table: an update that has a fault changes no row, and counts no position") {
  const index_t width = 19;
  const auto table = growing_of(f32_rows(width, room_for<rowwise_adagrad>(width)), every_kind[0]);
  executors executor;
  const context_ref ctx(executor.all()[2]);
  fill(ctx, *table, rows);
  sampled batch(bags, width, rows, 6);
  batch.made.ids[11] = rows + 4;
  transcript before, after;
  for (index_t r = 0; r < rows; ++r) before.add(row_of(*table, r));
  const status absent =
      update(ctx, table->rows(), batch.view(), combiner::sum, batch.slope(), rowwise_adagrad{});
  CHECK(absent.code() == errc::id_out_of_range);
  CHECK(absent.place().position == 11);
  batch.made.ids[11] = 4;
  CHECK(update(ctx, table->rows(), batch.view(), combiner::sum, batch.slope(), adam{}).code() ==
        errc::shape_mismatch);  // no room for its state
  for (index_t r = 0; r < rows; ++r) after.add(row_of(*table, r));
  CHECK(before == after);
  growing_table<f32_rows> of_adagrad(width, state_of<adagrad>, first_values);
  CHECK(resolve(ctx, of_adagrad.rows(), batch.view(), combiner::sum, keys::find_or_insert).ok());
  CHECK(update(ctx, of_adagrad.rows(), batch.view(), combiner::sum, batch.slope(), momentum{}).code() ==
        errc::unsupported);
  CHECK(update(ctx, of_adagrad.rows(), batch.view(), combiner::sum, batch.slope(), adagrad{}).ok());
}
