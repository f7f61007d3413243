// Many tables stepped in one call: the bits of one update for each table, whoever runs the pieces.
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory_resource>
#include <random>
#include <span>
#include <vector>

#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/seed.hpp"
#include "support/trained_rows.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A third of the ids are among a tenth of the rows.
ragged_batch feature_batch(std::mt19937_64& random, index_t bags, index_t rows, index_t longest) {
  return {random, bags, longest, [&] {
            const auto among = static_cast<std::uint64_t>(random() % 3 == 0 ? (rows + 9) / 10 : rows);
            return random() % among;
          }};
}

/// Three tables; one is large enough that all threads work on it, one has a row with more slots than a chunk.
struct tables {
  dense_table<f32_rows> users = table_of<f32_rows>(500, 17, 1);
  dense_table<bf16_rows> items = table_of<bf16_rows>(9000, 32, 2);
  dense_table<f32_rows> tags = table_of<f32_rows>(2, 5, 3);
  bool operator==(const tables& other) const {
    return bytes_of(users) == bytes_of(other.users) && bytes_of(items) == bytes_of(other.items) &&
           bytes_of(tags) == bytes_of(other.tags);
  }
};

constexpr index_t bags = 700;

}  // namespace

TEST_CASE(
    "feature_group: update: features with tables of their own get the bits of one update each, on any number "
    "of "
    "threads") {
  std::mt19937_64 random(seed());
  const ragged_batch users = feature_batch(random, bags, 500, 4),
                     items = feature_batch(random, bags, 9000, 120),
                     tags = feature_batch(random, bags, 2, 30);
  REQUIRE(items.ids.size() > 32768);
  const std::vector<float> values = normals(random, bags * (17 + 32 + 5));
  const matrix_view<const float> gradient(values.data(), bags, 17 + 32 + 5);
  const rowwise_adagrad optimizer{.learning_rate = 0.1F};
  const std::vector<jagged_view<>> batches{users.view(), items.view(true), tags.view()};

  tables expected;
  inline_executor here;
  const auto part = [&](index_t first, index_t width) {
    return matrix_view<const float>(values.data() + first, bags, width, 17 + 32 + 5);
  };
  REQUIRE(update(here, expected.users.view(), batches[0], combiner::sum, part(0, 17), optimizer).ok());
  REQUIRE(update(here, expected.items.view(), batches[1], combiner::sqrtn, part(17, 32), optimizer).ok());
  REQUIRE(update(here, expected.tags.view(), batches[2], combiner::mean, part(49, 5), optimizer).ok());

  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    tables got;
    feature_group<rowwise_adagrad> group;
    CHECK(group.add(got.users.view(), combiner::sum) == 0);
    CHECK(group.add(got.items.view(), combiner::sqrtn) == 1);
    CHECK(group.add(got.tags.view(), combiner::mean) == 2);
    CHECK(group.tables() == 3);
    thread_pool pool(threads);
    const status s = update(pool, group, batches, gradient, optimizer);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(got == expected);
  }
}

TEST_CASE("feature_group: update: a row that features share has one step, with the sum of their gradients") {
  std::mt19937_64 random(seed() + 1);
  for (const index_t longest : {3, 90}) {  // by one thread, by all
    CAPTURE(longest);
    const index_t rows = 300, width = 9;
    const ragged_batch first = feature_batch(random, bags, rows, longest),
                       second = feature_batch(random, bags, rows, longest);
    const std::vector<float> values = normals(random, bags * 2 * width);
    const rowwise_adagrad optimizer{.learning_rate = 0.5F};
    const std::vector<jagged_view<>> batches{first.view(), second.view(true)};

    auto table = table_of<f32_rows>(rows, width, 7);
    // In double: the gradients of both, then the formula once.
    std::vector<std::vector<double>> sums(static_cast<std::size_t>(rows));
    const auto collect = [&](const ragged_batch& batch, index_t column, bool mean_of_weights) {
      for (std::size_t b = 0; b < static_cast<std::size_t>(bags); ++b) {
        double total = 0;
        for (auto k = batch.offsets[b]; k < batch.offsets[b + 1]; ++k) {
          total += static_cast<double>(batch.weights[static_cast<std::size_t>(k)]);
        }
        for (auto k = batch.offsets[b]; k < batch.offsets[b + 1]; ++k) {
          auto& of_row = sums[static_cast<std::size_t>(batch.ids[static_cast<std::size_t>(k)])];
          of_row.resize(static_cast<std::size_t>(width));
          const double w =
              mean_of_weights ? static_cast<double>(batch.weights[static_cast<std::size_t>(k)]) / total : 1.0;
          for (std::size_t j = 0; j < of_row.size(); ++j) {
            of_row[j] +=
                w *
                static_cast<double>(
                    values[b * 2 * static_cast<std::size_t>(width) + static_cast<std::size_t>(column) + j]);
          }
        }
      }
    };
    collect(first, 0, false);
    collect(second, width, true);
    std::vector<std::vector<float>> before;
    for (index_t r = 0; r < rows; ++r) {
      before.emplace_back(static_cast<std::size_t>(width));
      table.view().format().decode(table.view().row(r), before.back().data());
    }
    feature_group<rowwise_adagrad> group;
    group.add(table.view(), combiner::sum);
    group.add(table.view(), combiner::mean(combiner::by_weight));
    CHECK(group.tables() == 1);
    thread_pool pool(3);
    const status s =
        update(pool, group, batches, matrix_view<const float>(values.data(), bags, 2 * width), optimizer);
    REQUIRE_MESSAGE(s.ok(), s.message());
    index_t used = 0;
    for (index_t r = 0; r < rows; ++r) {
      std::vector<float> after(static_cast<std::size_t>(width));
      table.view().format().decode(table.view().row(r), after.data());
      const auto& g = sums[static_cast<std::size_t>(r)];
      double squares = 0;
      for (const double x : g) squares += x * x;
      used += g.empty() ? 0 : 1;
      for (std::size_t j = 0; j < after.size(); ++j) {
        const auto from = static_cast<double>(before[static_cast<std::size_t>(r)][j]);
        const double expected =
            g.empty() ? from : from - 0.5 * g[j] / (std::sqrt(squares / static_cast<double>(width)) + 1e-8);
        CHECK(static_cast<double>(after[j]) == doctest::Approx(expected).epsilon(1e-4));
      }
    }
    CHECK(used > rows / 2);
  }
}

TEST_CASE(
    "feature_group: update: features that share a table give the bits of one batch with the slots of both") {
  std::mt19937_64 random(seed() + 2);
  const index_t rows = 40, width = 24;
  const ragged_batch first = feature_batch(random, bags, rows, 5),
                     second = feature_batch(random, bags, rows, 5);
  const std::vector<float> values = normals(random, 2 * bags * width);
  ragged_batch both = first;
  for (std::size_t b = 1; b < second.offsets.size(); ++b) {
    both.offsets.push_back(second.offsets[b] + static_cast<std::int64_t>(first.ids.size()));
  }
  both.ids.insert(both.ids.end(), second.ids.begin(), second.ids.end());
  auto expected = table_of<f32_rows>(rows, width, 7);
  auto got = table_of<f32_rows>(rows, width, 7);
  const inline_executor here;
  const sgd optimizer{.learning_rate = 0.1F};
  REQUIRE(update(here, expected.view(), both.view(), combiner::mean,
                 matrix_view<const float>(values.data(), 2 * bags, width), optimizer)
              .ok());
  feature_group<sgd> group;
  group.add(got.view(), combiner::mean);
  group.add(got.view(), combiner::mean);
  const std::vector<jagged_view<>> batches{first.view(), second.view()};
  const std::vector<matrix_view<const float>> gradients{{values.data(), bags, width},
                                                        {values.data() + bags * width, bags, width}};
  REQUIRE(update(here, group, batches, std::span<const matrix_view<const float>>(gradients), optimizer).ok());
  CHECK(bytes_of(got) == bytes_of(expected));
}

TEST_CASE(
    "feature_group: update: tables for one thread each keep to the memory that was asked for together") {
  // What goes beyond it would come from the default resource, which has nothing here.
  struct without_default {
    std::pmr::memory_resource* before = std::pmr::set_default_resource(std::pmr::null_memory_resource());
    ~without_default() { std::pmr::set_default_resource(before); }
  };
  std::mt19937_64 random(seed() + 4);
  const inline_executor here;
  auto ctx = detail::as_context(here);
  ctx.memory = std::pmr::new_delete_resource();
  const sgd optimizer{.learning_rate = 0.1F};
  for (const index_t batch : {0, 1, 3, 300, 3000}) {
    for (const index_t longest : {0, 1, 9}) {
      for (const index_t width : {1, 17, 256}) {
        for (const index_t rows : {1, 2, 70000}) {  // one row: one group, of many chunks
          CAPTURE(batch);
          CAPTURE(longest);
          CAPTURE(width);
          CAPTURE(rows);
          const ragged_batch first = feature_batch(random, batch, rows, longest),
                             second = feature_batch(random, batch, rows, longest);
          const std::vector<float> values = normals(random, batch * 2 * width);
          auto table = table_of<f32_rows>(rows, width, 7);
          feature_group<sgd> group;
          group.add(table.view(), pooling(combiner::mean(combiner::by_weight), empty_bag::default_row{0}));
          group.add(table.view(), combiner::sqrtn);
          const std::vector<jagged_view<>> batches{first.view(true), second.view()};
          const without_default none;
          CHECK_NOTHROW(CHECK(update(ctx, group, batches,
                                     matrix_view<const float>(values.data(), batch, 2 * width), optimizer)
                                  .ok()));
        }
      }
    }
  }
}

TEST_CASE("feature_group: update: what is wrong is named with its feature, and nothing is written") {
  std::mt19937_64 random(seed() + 3);
  const ragged_batch users = feature_batch(random, bags, 500, 3),
                     items = feature_batch(random, bags, 9000, 3);
  ragged_batch bad = items;
  bad.ids.back() = 9000;
  const std::vector<float> values = normals(random, bags * (17 + 32));
  const matrix_view<const float> gradient(values.data(), bags, 17 + 32);
  const rowwise_adagrad optimizer;
  const inline_executor here;
  tables model;
  const tables before;
  feature_group<rowwise_adagrad> group;
  group.add(model.users.view(), combiner::sum);
  group.add(model.items.view(), combiner::sum);

  const std::vector<jagged_view<>> with_bad{users.view(), bad.view()};
  const status s = update(here, group, with_bad, gradient, optimizer);
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().table == 1);
  CHECK(s.place().value == 9000);
  CHECK(s.place().position == static_cast<index_t>(bad.ids.size()) - 1);
  CHECK(model == before);

  const std::vector<jagged_view<>> good{users.view(), items.view()};
  const std::vector<jagged_view<>> one{users.view()};
  CHECK(update(here, group, one, gradient, optimizer).code() == errc::shape_mismatch);
  CHECK(update(here, group, good, matrix_view<const float>(values.data(), bags, 17), optimizer).code() ==
        errc::shape_mismatch);
  CHECK(update(here, group, good, matrix_view<const float>(values.data(), bags - 1, 17 + 32), optimizer)
            .place()
            .table == 0);
  const std::vector<matrix_view<const float>> parts{{values.data(), bags, 17}, {values.data(), bags, 31}};
  const status narrow =
      update(here, group, good, std::span<const matrix_view<const float>>(parts), optimizer);
  CHECK(narrow.code() == errc::shape_mismatch);
  CHECK(narrow.place().table == 1);
  CHECK(model == before);

  feature_group<rowwise_adagrad> two_norms;
  two_norms.add(model.users.view(), combiner::sum);
  two_norms.add(model.users.view(), pooling(combiner::sum, max_norm{1.0F}));
  const std::vector<jagged_view<>> twice{users.view(), users.view()};
  const status norms =
      update(here, two_norms, twice, matrix_view<const float>(values.data(), bags, 34), optimizer);
  CHECK(norms.code() == errc::shape_mismatch);
  CHECK(norms.place().table == 1);
  feature_group<rowwise_adagrad> two_shapes;
  two_shapes.add(model.users.view(), combiner::sum);
  two_shapes.add(table_view<f32_rows>(model.users.view().data(), 499, model.users.view().format()),
                 combiner::sum);
  CHECK(update(here, two_shapes, twice, matrix_view<const float>(values.data(), bags, 34), optimizer)
            .place()
            .table == 1);
  dense_table<f32_rows> stateless(500, f32_rows(17));
  feature_group<rowwise_adagrad> no_room;
  no_room.add(stateless.view(), combiner::sum);
  const status room =
      update(here, no_room, one, matrix_view<const float>(values.data(), bags, 17), optimizer);
  CHECK(room.code() == errc::shape_mismatch);
  CHECK(room.place().table == 0);
  CHECK(update(here, group, good, matrix_view<const float>(nullptr, bags, 17 + 32), optimizer).message() ==
        "shape mismatch: update: gradient must not be null");
  CHECK(model == before);
}

TEST_CASE("feature_group: update: of faults of every kind, that of the smallest feature is named") {
  std::vector<float> table(9 * 4, 1.0F), other_table(9 * 4, 2.0F), third(9 * 4, 3.0F), roomy(9 * 5, 4.0F);
  const std::vector<float> gradient(2 * 4, 1.0F), nan_weights{1, std::nanf("")};
  const std::vector<std::int64_t> good_offsets{0, 2, 2}, falling{0, 2, 1}, good_ids{3, 4}, bad_ids{3, 9};
  enum { ids, offsets, weights, width, null_gradient, norm, fill, no_room, other_shape, kinds };
  const auto with_room = [](std::vector<float>& rows) {
    return table_view<f32_rows>(static_cast<std::byte*>(static_cast<void*>(rows.data())), 7,
                                f32_rows(4, {.state_floats = 1}));
  };
  for (int early = 0; early < kinds; ++early) {
    for (int late = 0; late < kinds; ++late) {
      for (const std::size_t first : {0U, 1U}) {
        CAPTURE(early);
        CAPTURE(late);
        if (first == 0 && early == other_shape) continue;  // nobody before it has another shape
        feature_group<rowwise_adagrad> group;
        std::vector<float>* const rows[] = {&table, &other_table, &third};
        std::vector<jagged_view<>> batches(3, {good_offsets.data(), 2, good_ids.data(), 2});
        std::vector<matrix_view<const float>> gradients;
        for (std::size_t t = 0; t < 3; ++t) {
          const int kind = t == first ? early : t == first + 1 ? late : static_cast<int>(kinds);
          const auto view = with_room(*rows[t]);
          if (kind == norm) {
            group.add(view, pooling{combiner::sum, max_norm{0.0F}});
          } else if (kind == fill) {
            group.add(view, pooling{combiner::sum, empty_bag::default_row{7}});
          } else if (kind == no_room) {
            group.add(as_table(matrix_view(rows[t]->data(), 9, 4)), combiner::sum);
          } else if (kind == other_shape) {
            group.add(table_view<f32_rows>(with_room(*rows[0]).data(), 6, view.format()), combiner::sum);
          } else {
            group.add(view, combiner::sum);
          }
          if (kind == ids) batches[t] = {good_offsets.data(), 2, bad_ids.data(), 2};
          if (kind == offsets) batches[t] = {falling.data(), 2, good_ids.data(), 2};
          if (kind == weights) batches[t] = {good_offsets.data(), 2, good_ids.data(), 2, nan_weights.data()};
          gradients.emplace_back(kind == null_gradient ? nullptr : gradient.data(), 2, kind == width ? 3 : 4);
        }
        inline_executor here;
        const status s = update(here, group, batches, std::span<const matrix_view<const float>>(gradients),
                                rowwise_adagrad{});
        CHECK_FALSE(s.ok());
        CHECK(s.place().table == static_cast<index_t>(first));
      }
    }
  }
  CHECK(table == std::vector<float>(9 * 4, 1.0F));
}

TEST_CASE("feature_group: update: tables without rows, or with rows of no bytes, are tables of their own") {
  inline_executor here;
  const std::vector<std::int64_t> ranges{0, 0};
  const jagged_view<> nothing(ranges.data(), 1, nullptr, 0);
  dense_table<f32_rows> narrow(0, 4), wide(0, 8), no_columns(3, 0), more_rows(5, 0);
  auto users = table_of<f32_rows>(5, 4, 1);
  const auto before = bytes_of(users);
  feature_group<sgd> group;
  group.add(narrow.view(), combiner::sum);
  group.add(wide.view(), pooling{combiner::sum, max_norm{1.0F}});
  group.add(no_columns.view(), combiner::sum);
  group.add(more_rows.view(), combiner::sum);
  group.add(users.view(), combiner::sum);
  group.add(table_view<f32_rows>(users.view().data(), 0, f32_rows(3)), combiner::sum);  // an empty part of it
  CHECK(group.tables() == 6);
  const std::vector<jagged_view<>> batches(6, nothing);
  const std::vector<float> gradient(static_cast<std::size_t>(group.total_width()), 1.0F);
  const status s = update(here, group, batches,
                          matrix_view<const float>(gradient.data(), 1, group.total_width()), sgd{1.0F});
  CHECK_MESSAGE(s.ok(), s.message());
  CHECK(bytes_of(users) == before);
}

TEST_CASE(
    "feature_group: update: skipped ids of all features are counted, default rows get their gradients") {
  std::mt19937_64 random(seed() + 4);
  ragged_batch users = feature_batch(random, bags, 500, 2), more = feature_batch(random, bags, 500, 2);
  users.ids[0] = -4;
  more.ids[1] = 500;
  const std::vector<float> values = normals(random, bags * 34);
  const sgd optimizer{.learning_rate = 0.1F};
  index_t skipped = 0;
  auto expected = table_of<f32_rows>(500, 17, 1);
  auto got = table_of<f32_rows>(500, 17, 1);
  const std::vector<jagged_view<>> batches{users.view(), more.view()};
  feature_group<sgd> group;
  group.add(got.view(), pooling(combiner::sum, bounds::skip(skipped)));
  group.add(got.view(), pooling(combiner::sum, bounds::skip(skipped), empty_bag::default_row{3}));
  thread_pool pool(2);
  REQUIRE(update(pool, group, batches, matrix_view<const float>(values.data(), bags, 34), optimizer).ok());
  CHECK(skipped == 2);
  // Plain gradient descent adds up: the same in two updates, but for the rounding.
  inline_executor here;
  REQUIRE(update(here, expected.view(), batches[0], pooling(combiner::sum, bounds::skip),
                 matrix_view<const float>(values.data(), bags, 17, 34), optimizer)
              .ok());
  REQUIRE(update(here, expected.view(), batches[1],
                 pooling(combiner::sum, bounds::skip, empty_bag::default_row{3}),
                 matrix_view<const float>(values.data() + 17, bags, 17, 34), optimizer)
              .ok());
  for (index_t r = 0; r < 500; ++r) {
    std::vector<float> a(17), b(17);
    got.view().format().decode(got.view().row(r), a.data());
    expected.view().format().decode(expected.view().row(r), b.data());
    for (std::size_t j = 0; j < a.size(); ++j) CHECK(a[j] == doctest::Approx(b[j]).epsilon(1e-4));
  }
}

TEST_CASE("feature_group: update: an empty group and empty batches are no work") {
  inline_executor here;
  feature_group<sgd> none;
  CHECK(update(here, none, std::span<const jagged_view<>>(), matrix_view<const float>(nullptr, 0, 0), sgd{})
            .ok());
  tables model;
  const tables before;
  feature_group<rowwise_adagrad> group;
  group.add(model.users.view(), combiner::sum);
  const std::int64_t border = 0;
  const std::vector<jagged_view<>> batch{jagged_view<>(&border, 0, nullptr, 0)};
  CHECK(update(here, group, batch, matrix_view<const float>(nullptr, 0, 17), rowwise_adagrad{}).ok());
  group.add(model.items.view(), combiner::sum);  // whose columns begin behind those of the first
  const std::vector<jagged_view<>> two(2, batch[0]);
  CHECK(update(here, group, two, matrix_view<const float>(nullptr, 0, 17 + 32), rowwise_adagrad{}).ok());
  CHECK(model == before);
}

TEST_CASE("feature_group: update: the example of its documentation") {
  thread_pool pool(2);
  dense_table<f32_rows> users(100, f32_rows(8, {.state_floats = rowwise_adagrad::row_state}));
  dense_table<f32_rows> items(500, f32_rows(16, {.state_floats = rowwise_adagrad::row_state}));
  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{7, 9, 7};
  const std::vector<jagged_view<>> bags_of{{offsets.data(), 2, ids.data(), 3},
                                           {offsets.data(), 2, ids.data(), 3}};
  const std::vector<float> gradient(2 * 24, 1.0F);
  //! [feature_group update]
  feature_group<rowwise_adagrad> updates;
  updates.add(users.view(), combiner::sum);
  updates.add(items.view(), combiner::mean);
  const status s = update(pool, updates, bags_of, matrix_view(gradient.data(), 2, updates.total_width()),
                          rowwise_adagrad{.learning_rate = 0.1F});
  //! [feature_group update]
  REQUIRE_MESSAGE(s.ok(), s.message());
  std::vector<float> row(8);
  users.view().format().decode(users.view().row(7), row.data());
  CHECK(row[0] == doctest::Approx(-0.1F));  // two gradients of one, normalised by their own size
}

TEST_CASE("feature_group: batches of few ids take no list, and have the bits and faults of those that do") {
  std::mt19937_64 random(deeprec_test::seed());
  const dense_table<f32_rows> users = table_of<f32_rows>(500, 17, 1);
  const dense_table<bf16_rows> items = table_of<bf16_rows>(900, 32, 2);
  inline_executor here;
  const auto of = [&](index_t longest) {
    std::vector<ragged_batch> made;
    for (const index_t rows : {500, 900, 900}) made.push_back(feature_batch(random, 3, rows, longest));
    return made;
  };
  for (int round = 0; round < 50; ++round) {
    // 5 ids a bag at most are 15 of a batch, 9 may be more than 16.
    for (const index_t longest : {0, 1, 5, 9}) {
      std::vector<ragged_batch> made = of(longest);
      if (round % 5 == 4 && !made[2].ids.empty()) made[2].ids.back() = 900;  // a fault of the last feature
      feature_group<> group;
      group.add(users.view(), combiner::mean);
      group.add(items.view(), pooling{combiner::sum, empty_bag::default_row{7}});
      group.add(items.view(), pooling{combiner::sqrtn});
      const std::vector<jagged_view<>> bags{made[0].view(), made[1].view(), made[2].view()};
      std::vector<float> out(3 * 81, -1.0F), expected(3 * 81, -1.0F);
      const matrix_view<float> all(out.data(), 3, 81);
      context ctx(here);
      const status s = lookup(ctx, group, bags, all);
      index_t column = 0;
      status first;
      const auto alone = [&](const auto& source, const auto& how, std::size_t t) {
        if (!first) return;
        first = lookup(here, source, bags[t], how,
                       matrix_view<float>(expected.data() + column, 3, source.format().width(), 81))
                    .in_table(static_cast<index_t>(t));
        column += source.format().width();
      };
      alone(users.view(), pooling{combiner::mean}, 0);
      alone(items.view(), pooling{combiner::sum, empty_bag::default_row{7}}, 1);
      alone(items.view(), pooling{combiner::sqrtn}, 2);
      CHECK(s.ok() == first.ok());
      if (first.ok()) {
        CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
      } else {
        CHECK(s.code() == first.code());
        CHECK(s.place() == first.place());
        CHECK(out == std::vector<float>(3 * 81, -1.0F));  // nothing is written
      }
    }
  }
}
