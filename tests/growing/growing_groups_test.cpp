// Growing tables in feature groups, and in table files.
#include <deeprec/embedding/growing/growing_table.hpp>

#include <doctest/doctest.h>

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "growing/twins.hpp"

using namespace growing_test;

namespace {

constexpr index_t bags = 60, few = 30, many = 900, wide = 17, narrow = 9;

/// Three features over two tables, and one over a third: users twice, items, tags.
struct features {
  sampled users{bags, wide, many, 1}, items{bags, narrow, many, 2, shape_of_batch::uniform, 40},
      again{bags, wide, many, 3, shape_of_batch::many_empty}, tags{bags, narrow, few, 4};
  std::vector<jagged_view<>> batches{users.view(), items.view(true), again.view(), tags.view()};
  std::vector<float> gradient;
  static constexpr index_t total = wide + narrow + wide + narrow;

  features() {
    for (const sampled* one : {&users, &items, &again, &tags})
      gradient.insert(gradient.end(), one->gradient.begin(), one->gradient.end());
  }
  [[nodiscard]] matrix_view<const float> slope() const { return {gradient.data(), bags, total}; }
};

template <class Group>
void add_all(Group& group, const auto& users, const auto& items, const auto& tags) {
  group.add(users, combiner::sum);
  group.add(items, combiner::sqrtn);
  group.add(users, pooling{combiner::mean, empty_bag::default_row{3}});
  group.add(tags, pooling{combiner::mean, bounds::skip});
}

/// Steps of a group: the plain verbs, or resolved features.
template <class O>
void train(const context_ref& ctx, const feature_group<O>& group, const features& of, bool resolves,
           bool inserts, transcript& found) {
  std::vector<float> out(at(bags * features::total));
  const matrix_view<float> to(out.data(), bags, features::total);
  O optimizer{.learning_rate = 0.1F};
  for (int step = 0; step < 3; ++step) {
    if (resolves) {
      auto rows =
          inserts ? resolve(ctx, group, of.batches, keys::find_or_insert) : resolve(ctx, group, of.batches);
      REQUIRE(rows.ok());
      found.add(lookup(ctx, rows.value(), to));
      found.add(update(ctx, rows.value(), of.slope(), optimizer));
    } else {
      found.add(lookup(ctx, group, of.batches, to));
      found.add(update(ctx, group, of.batches, of.slope(), optimizer));
    }
    found.add(out);
    next_step(optimizer);
  }
  CHECK(found.faults == 0);
}

template <class O, class ItemFormat>
void check_groups(bool resolves) {
  const features of;
  const f32_rows user_format(wide, room_for<O>(wide)), tag_format(narrow, room_for<O>(narrow));
  const ItemFormat item_format(narrow, room_for<O>(narrow));
  same_in_every_setting(
      [&](const context_ref& ctx) {
        auto users = dense_of(user_format, many), tags = dense_of(tag_format, few);
        auto items = dense_of(item_format, many);
        feature_group<O> group;
        add_all(group, users.view(), items.view(), tags.view());
        CHECK(group.tables() == 3);
        transcript found;
        train(ctx, group, of, false, false, found);
        for (index_t r = 0; r < many; ++r) found.add(row_of(users, r));
        for (index_t r = 0; r < many; ++r) found.add(row_of(items, r));
        for (index_t r = 0; r < few; ++r) found.add(row_of(tags, r));
        return found;
      },
      [&](const context_ref& ctx, const table_kind& kind) {
        const auto users = growing_of(user_format, kind), tags = growing_of(tag_format, kind);
        const auto items = growing_of(item_format, kind);
        fill(ctx, *users, many);
        fill(ctx, *items, many);
        fill(ctx, *tags, few);
        feature_group<O> group;
        add_all(group, users->rows(), items->rows(), tags->rows());
        CHECK(group.tables() == 3);
        transcript found;
        train(ctx, group, of, resolves, false, found);
        for (index_t r = 0; r < many; ++r) found.add(row_of(*users, r));
        for (index_t r = 0; r < many; ++r) found.add(row_of(*items, r));
        for (index_t r = 0; r < few; ++r) found.add(row_of(*tags, r));
        return found;
      });
}

struct folder {
  folder() {
    std::string name = std::filesystem::temp_directory_path().string() + "/deeprec_XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path + '/' + name; }
  std::string path;
};

}  // namespace

TEST_CASE("feature_group: growing tables, and features that share one, have the bits of dense tables") {
  check_groups<rowwise_adagrad, bf16_rows>(false);
  check_groups<adam, split_bf16_rows>(false);
}
TEST_CASE("feature_group: resolved features of growing tables have the bits of dense tables") {
  check_groups<rowwise_adagrad, bf16_rows>(true);
  check_groups<adam, f32_rows>(true);
}

TEST_CASE("feature_group: rows that are born while the group is trained have the bits of dense tables") {
  const features of;
  const f32_rows user_format(wide, room_for<adagrad>(wide)), narrow_format(narrow, room_for<adagrad>(narrow));
  std::vector<bool> of_users(at(many)), of_items(at(many)), of_tags(at(few));
  for (const sampled* one : {&of.users, &of.again})
    for (const std::int64_t id : one->made.ids) of_users[at(id)] = true;
  for (const std::int64_t id : of.items.made.ids) of_items[at(id)] = true;
  for (const std::int64_t id : of.tags.made.ids) of_tags[at(id)] = true;
  of_users[3] = true;  // the default row of empty bags
  const auto list = [](auto& table, const std::vector<bool>& used, transcript& found) {
    for (std::size_t r = 0; r < used.size(); ++r) {
      if (used[r]) found.add(row_of(table, static_cast<index_t>(r)));
    }
  };
  same_in_every_setting(
      [&](const context_ref& ctx) {
        auto users = dense_of(user_format, many), tags = dense_of(narrow_format, few);
        auto items = dense_of(narrow_format, many);
        feature_group<adagrad> group;
        add_all(group, users.view(), items.view(), tags.view());
        transcript found;
        train(ctx, group, of, true, false, found);
        list(users, of_users, found);
        list(items, of_items, found);
        list(tags, of_tags, found);
        return found;
      },
      [&](const context_ref& ctx, const table_kind& kind) {
        const auto users = growing_of(user_format, kind), tags = growing_of(narrow_format, kind);
        const auto items = growing_of(narrow_format, kind);
        const std::int64_t three = 3;
        const std::byte* row = nullptr;
        REQUIRE(users->rows().insert(ctx, &three, 1, &row).ok());
        feature_group<adagrad> group;
        add_all(group, users->rows(), items->rows(), tags->rows());
        transcript found;
        train(ctx, group, of, true, true, found);
        list(*users, of_users, found);
        list(*items, of_items, found);
        list(*tags, of_tags, found);
        CHECK(users->size() == std::count(of_users.begin(), of_users.end(), true));
        CHECK(tags->statistics().pins == 0);
        return found;
      });
}

TEST_CASE(
    "feature_group: absent keys of growing tables are named with their feature, counted, or defaulted") {
  executors executor;
  const context_ref ctx(executor.all()[2]);
  features of;
  const f32_rows user_format(wide, room_for<adagrad>(wide)), narrow_format(narrow, room_for<adagrad>(narrow));
  const auto users = growing_of(user_format, every_kind[0]), tags = growing_of(narrow_format, every_kind[0]);
  const auto items = growing_of(narrow_format, every_kind[0]);
  fill(ctx, *users, many);
  fill(ctx, *items, many);
  fill(ctx, *tags, few);
  index_t skipped = 0;
  feature_group<adagrad> group;
  group.add(users->rows(), combiner::sum);
  group.add(items->rows(), combiner::sqrtn);
  group.add(users->rows(), combiner::mean);
  group.add(tags->rows(), pooling{combiner::mean, bounds::skip(skipped)});
  std::vector<float> out(at(bags * features::total));
  const matrix_view<float> to(out.data(), bags, features::total);
  of.tags.made.ids[2] = -1;
  CHECK(lookup(ctx, group, of.batches, to).ok());
  CHECK(skipped == 1);
  of.items.made.ids[7] = -4;
  const status absent = update(ctx, group, of.batches, of.slope(), adagrad{});
  CHECK(absent.code() == errc::id_out_of_range);
  CHECK(absent.place().table == 1);
  CHECK(absent.place().position == 7);
  CHECK(absent.place().value == -4);
  CHECK(resolve(ctx, group, of.batches).code() == errc::id_out_of_range);
  CHECK(skipped == 1);
  CHECK(resolve(ctx, group, of.batches, keys::find_or_insert).ok());
  CHECK(items->size() == many + 1);
  CHECK(tags->size() == few + 1);
}

TEST_CASE("table files: a growing table is loaded into others, with values and state, and trains on") {
  const folder there;
  const std::string path = there / "model.drt";
  executors executor;
  const auto check = [&](const auto& format, const auto& optimizer) {
    using format_type = std::remove_cvref_t<decltype(format)>;
    const context_ref ctx(executor.all()[3]);
    const sampled batch(bags, format.width(), many, 5), later(bags, format.width(), many, 6);
    const auto trained = growing_of(format, every_kind[0]);
    const auto step = [&](growing_table<format_type>& table, const sampled& one) {
      const auto rows = resolve(ctx, table.rows(), one.view(), combiner::sum, keys::find_or_insert);
      REQUIRE(rows.ok());
      REQUIRE(update(ctx, rows.value(), one.slope(), optimizer).ok());
    };
    step(*trained, batch);
    {
      const auto rows = name_rows<std::uint64_t>("items", trained->rows());
      CHECK(std::is_sorted(rows.keys().begin(), rows.keys().end()));
      REQUIRE(save_tables(path, rows.tables(), {.step = 7, .numbers = {}}, {.block_bytes = 4000}).ok());
    }
    const auto all_of = [&](growing_table<format_type>& table) {
      transcript found;
      for (index_t r = 0; r < many; ++r) {
        found.add(std::vector<index_t>{r});
        found.add(row_of(table, r));
      }
      return found;
    };
    const transcript expected = all_of(*trained);
    step(*trained, later);
    const transcript expected_later = all_of(*trained);
    for (const table_kind& kind : every_kind) {
      const auto restored = growing_of(format, kind);
      REQUIRE(restored->admit_by(filters::counter{3}).ok());
      {
        auto rows = name_rows<std::uint64_t>("items", restored->rows(), path);
        REQUIRE(rows.ok());
        const auto state = load_tables(path, rows.value().tables());
        REQUIRE(state.ok());
        CHECK(state.value().step == 7);
      }
      CHECK(all_of(*restored) == expected);
      CHECK(restored->statistics().candidates == 0);
      // A key of the file has its row at once; another one when it has come three times.
      const std::int64_t keys_of_batch[] = {batch.made.ids[0], 123456};
      for (int turn = 1; turn <= 3; ++turn) {
        const std::byte* rows_of_batch[2];
        REQUIRE(restored->rows().insert(ctx, keys_of_batch, 2, rows_of_batch).ok());
        CHECK(rows_of_batch[0] != nullptr);
        CHECK((rows_of_batch[1] != nullptr) == (turn == 3));
      }
      REQUIRE(restored->admit_by(filters::counter{1}).ok());
      step(*restored, later);
      CHECK(all_of(*restored) == expected_later);
    }
  };
  check(f32_rows(narrow, room_for<adagrad>(narrow)), adagrad{});
  check(bf16_rows(narrow, room_for<rowwise_adagrad>(narrow)), rowwise_adagrad{});
}

TEST_CASE("table files: a growing table over the ids 0 .. R-1 is the file of a dense table") {
  const folder there;
  const std::string path = there / "model.drt", other = there / "dense.drt";
  executors executor;
  const context_ref ctx(executor.all()[1]);
  const f32_rows format(narrow, room_for<adagrad>(narrow));
  const auto growing = growing_of(format, every_kind[1]);
  fill(ctx, *growing, few);
  dense_table<f32_rows> dense = dense_of(format, few), loaded(few, format);
  const sampled batch(bags, narrow, few, 7);
  REQUIRE(update(ctx, growing->rows(), batch.view(), combiner::sum, batch.slope(), adagrad{}).ok());
  REQUIRE(update(ctx, dense.view(), batch.view(), combiner::sum, batch.slope(), adagrad{}).ok());
  const auto rows = name_rows<std::int64_t>("items", growing->rows());
  REQUIRE(save_tables(path, rows.tables()).ok());
  load_options options;
  options.others = load_options::unknown::ignore;
  REQUIRE(load_tables(path, {name_table("items", loaded.view())}, options).ok());
  for (index_t r = 0; r < few; ++r) CHECK(row_of(loaded, r) == row_of(dense, r));
}

TEST_CASE("table files: keys of any value are saved and loaded; a table that is too small refuses them") {
  const folder there;
  const std::string path = there / "model.drt";
  executors executor;
  const context_ref ctx(executor.all()[0]);
  const std::vector<std::int64_t> some = {0, -1, -2, INT64_MIN, INT64_MAX, 5};
  const f32_rows format(narrow);
  const auto trained = growing_of(format, every_kind[0]), again = growing_of(format, every_kind[1]);
  REQUIRE(trained->rows().insert(some.data(), 6).ok());
  const auto rows = name_rows<std::int64_t>("items", trained->rows());
  CHECK(std::vector<std::int64_t>(rows.keys().begin(), rows.keys().end()) ==
        std::vector<std::int64_t>{INT64_MIN, -2, -1, 0, 5, INT64_MAX});
  REQUIRE(save_tables(path, rows.tables()).ok());
  {
    auto named = name_rows<std::int64_t>("items", again->rows(), path);
    REQUIRE(named.ok());
    REQUIRE(load_tables(path, named.value().tables()).ok());
  }
  CHECK(again->size() == 6);
  for (const std::int64_t key : some) CHECK(row_of(*again, key) == row_of(*trained, key));
  growing_options small;
  small.most_rows = 5;
  growing_table<f32_rows> refuses(format, first_values, small);
  const auto refused = name_rows<std::int64_t>("items", refuses.rows(), path);
  CHECK(refused.code() == errc::invalid_value);
  CHECK(refuses.statistics().refused == 1);
}
