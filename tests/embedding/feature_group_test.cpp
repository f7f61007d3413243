// Many tables in one call: the bits of one lookup for each feature, whoever runs the pieces.
#include <doctest/doctest.h>

#include <cstring>
#include <span>
#include <vector>

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "embedding/support.hpp"

namespace {

using namespace embedding_test;

/// Five features over three tables, one of them too large for a cache, and a batch for each; B differs unless
/// it is given.
struct model {
  guarded_table<float> users;
  guarded_table<bf16> items;
  guarded_table<float> tags;
  index_t skipped = 0;
  feature_group<> group;
  std::vector<std::vector<std::int64_t>> offsets, ids;
  std::vector<std::vector<float>> weights;
  std::vector<jagged_view<>> bags;

  explicit model(std::mt19937_64& random, index_t same_bags = -1)
      : users(random, 50, 17), items(random, 3000, 64), tags(random, 9, 3) {
    group.add(users.view, combiner::sum);
    group.add(items.view, pooling(combiner::mean(combiner::by_weight), bounds::skip(skipped)));
    group.add(users.view, pooling(combiner::max, empty_bag::default_row{7}));
    group.add(tags.view, pooling(combiner::sqrtn, padding::id{0}));
    group.add(items.view, pooling(combiner::sum, bounds::assume_valid));
    const index_t rows[] = {50, 3000, 50, 9, 3000};
    offsets.resize(5);
    ids.resize(5);
    weights.resize(5);
    for (std::size_t t = 0; t < 5; ++t) {
      const index_t count = same_bags >= 0 ? same_bags : static_cast<index_t>(random() % 400);
      offsets[t].push_back(0);
      for (index_t b = 0; b < count; ++b) {
        const auto length = t == 4 ? 1 : random() % 7 == 0 ? random() % 9000 : random() % 4;
        for (std::size_t k = 0; k < length; ++k) {
          ids[t].push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows[t])));
          weights[t].push_back(static_cast<float>(random() % 16) / 8);
        }
        offsets[t].push_back(static_cast<std::int64_t>(ids[t].size()));
      }
    }
    if (!ids[1].empty()) ids[1][0] = 3000;  // skipped
    views();
  }
  void views() {
    bags.clear();
    for (std::size_t t = 0; t < 5; ++t) {
      bags.emplace_back(offsets[t].data(), static_cast<index_t>(offsets[t].size()) - 1, ids[t].data(),
                        static_cast<index_t>(ids[t].size()), t == 1 ? weights[t].data() : nullptr);
    }
  }

  /// Feature after feature, each by a lookup of its own.
  std::vector<std::vector<float>> one_by_one() {
    std::vector<std::vector<float>> outs;
    inline_executor here;
    const auto look = [&](std::size_t t, const auto& table, const auto& how) {
      outs.emplace_back(static_cast<std::size_t>(bags[t].bags() * table.width()), -1.0F);
      const status s =
          lookup(here, table, bags[t], how, matrix_view(outs[t].data(), bags[t].bags(), table.width()));
      REQUIRE_MESSAGE(s.ok(), s.message());
    };
    look(0, users.view, combiner::sum);
    look(1, items.view, pooling(combiner::mean(combiner::by_weight), bounds::skip));
    look(2, users.view, pooling(combiner::max, empty_bag::default_row{7}));
    look(3, tags.view, pooling(combiner::sqrtn, padding::id{0}));
    look(4, items.view, pooling(combiner::sum, bounds::assume_valid));
    return outs;
  }
};

template <class Executor>
std::vector<std::vector<float>> grouped(Executor& executor, model& m) {
  std::vector<std::vector<float>> outs;
  std::vector<matrix_view<float>> views;
  for (index_t t = 0; t < m.group.features(); ++t) {
    const index_t bags = m.bags[static_cast<std::size_t>(t)].bags();
    outs.emplace_back(static_cast<std::size_t>(bags * m.group.width(t)), -2.0F);
    views.emplace_back(outs.back().data(), bags, m.group.width(t));
  }
  const status s = lookup(executor, m.group, m.bags, views);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return outs;
}

bool equal_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return false;
    if (!a[t].empty() && std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("feature_group: the bits of one lookup per feature, for any number of threads") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 6; ++round) {
    model m(random);
    const auto expected = m.one_by_one();
    const inline_executor here;
    CHECK(equal_bits(grouped(here, m), expected));
    CHECK(m.skipped == (m.ids[1].empty() ? 0 : 1));
    for (const int threads : {1, 2, 3, 8}) {
      thread_pool pool(threads);
      CHECK(equal_bits(grouped(pool, m), expected));
    }
    // The comparison can fail.
    auto broken = expected;
    for (auto& out : broken) {
      if (!out.empty()) {
        out.back() += 1;
        CHECK_FALSE(equal_bits(broken, expected));
        break;
      }
    }
  }
}

TEST_CASE("feature_group: features lie side by side in one matrix, and its stride is kept") {
  std::mt19937_64 random(seed());
  model m(random, 33);
  const auto expected = m.one_by_one();
  const index_t stride = m.group.total_width() + 5;
  CHECK(m.group.total_width() == 17 + 64 + 17 + 3 + 64);
  std::vector<float> out(static_cast<std::size_t>(33 * stride), 77.0F);
  thread_pool pool(2);
  //! [feature_group]
  // group.add(users, sum); group.add(items, mean); ... ; bags: a vector of one batch per feature
  const status s = lookup(pool, m.group, m.bags, matrix_view(out.data(), 33, m.group.total_width(), stride));
  //! [feature_group]
  REQUIRE_MESSAGE(s.ok(), s.message());
  for (index_t b = 0; b < 33; ++b) {
    const float* const row = out.data() + b * stride;
    for (index_t t = 0; t < 5; ++t) {
      const index_t width = m.group.width(t);
      CHECK(std::memcmp(row + m.group.offset(t), expected[static_cast<std::size_t>(t)].data() + b * width,
                        static_cast<std::size_t>(width) * sizeof(float)) == 0);
    }
    for (index_t j = m.group.total_width(); j < stride; ++j) CHECK(row[j] == 77.0F);
  }
}

TEST_CASE("feature_group: the fault of the smallest feature is named, and nothing is written") {
  std::mt19937_64 random(seed());
  model m(random, 40);
  for (const int threads : {1, 4}) {
    thread_pool pool(threads);
    auto& late = m.ids[2];
    auto& early = m.ids[0];
    const auto kept_late = late.back();
    const auto kept_early = early.back();
    late.back() = 50;
    early.back() = -3;
    std::vector<float> out(static_cast<std::size_t>(40 * m.group.total_width()), 5.0F);
    const auto run = [&] {
      return lookup(pool, m.group, m.bags, matrix_view(out.data(), 40, m.group.total_width()));
    };
    status s = run();
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place().table == 0);
    CHECK(s.place().position == static_cast<index_t>(early.size()) - 1);
    CHECK(s.place().value == -3);
    early.back() = kept_early;
    s = run();
    CHECK(s.place().table == 2);
    CHECK(s.place().value == 50);
    late.back() = kept_late;
    for (const float x : out) REQUIRE(x == 5.0F);
    CHECK(run().ok());
    CHECK(out[0] != 5.0F);

    m.offsets[3][2] = 1 << 30;
    m.views();
    s = run();
    CHECK(s.place().table == 3);
    CHECK((s.code() == errc::offsets_beyond_ids || s.code() == errc::offsets_decreasing));
    m.offsets[3][2] = m.offsets[3][1];
    m.views();
    REQUIRE(run().ok());
  }
  const inline_executor here;
  CHECK(lookup(here, m.group, m.bags, matrix_view<float>(nullptr, 40, m.group.total_width())).message() ==
        "shape mismatch: lookup: out must not be null");
  std::vector<float> out(10);
  CHECK(lookup(here, m.group, std::span<const jagged_view<>>(m.bags).first(4),
               matrix_view(out.data(), 1, m.group.total_width()))
            .code() == errc::shape_mismatch);
  CHECK(lookup(here, m.group, m.bags, matrix_view(out.data(), 1, 10)).code() == errc::shape_mismatch);
}

TEST_CASE("feature_group: of faults of every kind, that of the smallest feature is named") {
  std::mt19937_64 random(seed());
  const guarded_table<float> table(random, 9, 4);
  const std::vector<std::int64_t> good_offsets{0, 2, 2}, falling{0, 2, 1}, good_ids{3, 4}, bad_ids{3, 9};
  const std::vector<float> nan_weights{1, std::nanf("")};
  std::vector<float> out(3 * 8, 5.0F);
  enum { ids, offsets, weights, width, null_out, norm, fill, kinds };
  for (int early = 0; early < kinds; ++early) {
    for (int late = 0; late < kinds; ++late) {
      for (const std::size_t first : {0U, 1U}) {
        CAPTURE(early);
        CAPTURE(late);
        feature_group<> group;
        std::vector<jagged_view<>> bags(3, {good_offsets.data(), 2, good_ids.data(), 2});
        std::vector<matrix_view<float>> outs;
        for (std::size_t t = 0; t < 3; ++t) {
          const int kind = t == first ? early : t == first + 1 ? late : static_cast<int>(kinds);
          if (kind == norm) {
            group.add(table.view, pooling{combiner::sum, max_norm{0.0F}});
          } else if (kind == fill) {
            group.add(table.view, pooling{combiner::sum, empty_bag::default_row{9}});
          } else {
            group.add(table.view, combiner::sum);
          }
          if (kind == ids) bags[t] = {good_offsets.data(), 2, bad_ids.data(), 2};
          if (kind == offsets) bags[t] = {falling.data(), 2, good_ids.data(), 2};
          if (kind == weights) bags[t] = {good_offsets.data(), 2, good_ids.data(), 2, nan_weights.data()};
          outs.emplace_back(kind == null_out ? nullptr : out.data() + 8 * t, 2, kind == width ? 3 : 4);
        }
        for (const int threads : {1, 3}) {
          thread_pool pool(threads);
          const status s = lookup(pool, group, bags, outs);
          CHECK_FALSE(s.ok());
          CHECK(s.place().table == static_cast<index_t>(first));
        }
      }
    }
  }
  CHECK(out == std::vector<float>(3 * 8, 5.0F));
}

namespace {

/// Rows of a format, encoded.
template <class Format>
struct encoded_rows {
  encoded_rows(std::mt19937_64& random, index_t rows, Format format)
      : bytes(static_cast<std::size_t>(rows * format.stride_bytes())), view(bytes.data(), rows, format) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> row(static_cast<std::size_t>(format.width()));
    for (index_t r = 0; r < rows; ++r) {
      for (float& x : row) x = normal(random);
      format.encode(row.data(), view.row(r));
    }
  }
  guarded<std::byte> bytes;
  table_view<Format> view;
};

}  // namespace

TEST_CASE("feature_group: rows of codes, fp8 and split floats give the bits of one lookup each") {
  std::mt19937_64 random(seed() + 5);
  const encoded_rows<int8_rows> bytes(random, 80, int8_rows(33));
  const encoded_rows<int4_rows> nibbles(random, 70, int4_rows(18));
  const encoded_rows<e4m3_rows> eights(random, 60, e4m3_rows(21));
  const encoded_rows<split_bf16_rows> halves(random, 50, split_bf16_rows(40));
  // A batch of one id each, and one of bags of any length: both kernels.
  for (const bool single : {false, true}) {
    std::vector<batch<std::int64_t, std::int64_t>> made;
    std::vector<jagged_view<>> bags;
    for (std::size_t t = 0; t < 6; ++t) {
      made.push_back(make_batch(random, t == 0 ? shape_of_batch::one_huge : every_shape[t % 3],
                                single ? 0 : 300, 50, 16));
      for (index_t b = 0; single && b < 300; ++b) {
        made[t].ids.push_back(static_cast<std::int64_t>(random() % 50));
        made[t].weights.push_back(1.0F + static_cast<float>(b % 3));
        made[t].offsets.push_back(b + 1);
      }
    }
    for (std::size_t t = 0; t < 6; ++t) bags.push_back(made[t].view(t == 1 || t == 4));
    for (const isa which : runnable_isas()) {
      CAPTURE(to_string(which));
      feature_group<> group;
      std::vector<guarded<float>> expected, got;
      inline_executor here;
      const auto add = [&](const auto& rows, const auto& how) {
        expected.push_back(looked_up<float>(on(here, which), rows.view, bags[expected.size()], how));
        group.add(rows.view, how);
      };
      add(bytes, combiner::sum);
      add(bytes, combiner::mean(combiner::by_weight));
      add(nibbles, combiner::mean);
      add(eights, combiner::max);
      add(halves, pooling{combiner::sqrtn, empty_bag::default_row{7}});
      add(nibbles, pooling{combiner::sum, empty_bag::default_row{3}});
      for (const int threads : {1, 2, 5}) {
        std::vector<guarded<float>> outs;
        std::vector<matrix_view<float>> views;
        for (std::size_t t = 0; t < 6; ++t) {
          outs.emplace_back(expected[t].size());
          views.emplace_back(outs[t].data(), 300, group.width(static_cast<index_t>(t)));
        }
        thread_pool pool(threads);
        const status s = lookup(on(pool, which), group, bags, views);
        REQUIRE_MESSAGE(s.ok(), s.message());
        for (std::size_t t = 0; t < 6; ++t) CHECK(same_bits(outs[t], expected[t]));
      }
    }
  }
}

TEST_CASE("feature_group: no features, no bags and no ids are all fine") {
  const inline_executor here;
  const feature_group<> nothing;
  CHECK(lookup(here, nothing, std::span<const jagged_view<>>(), std::span<const matrix_view<float>>()).ok());
  std::mt19937_64 random(seed());
  model m(random, 0);
  CHECK(lookup(here, m.group, m.bags, matrix_view<float>(nullptr, 0, m.group.total_width())).ok());
}

TEST_CASE("feature_group: widths that don't add up to a number fit no output") {
  inline_executor here;
  const f32_rows wide(index_t{1} << 62);
  feature_group<> group;
  for (int t = 0; t < 4; ++t) group.add(const_table_view<f32_rows>(nullptr, 0, wide), combiner::sum);
  CHECK(group.total_width() > 0);
  const std::int64_t offsets[] = {0, 0};
  const std::vector<jagged_view<>> batches(4, jagged_view<>(offsets, 1, nullptr, 0));
  std::vector<float> out(4, -7);
  for (const index_t width : {index_t{0}, index_t{4}, group.total_width()}) {
    CHECK(lookup(here, group, batches, matrix_view<float>(out.data(), 1, width)).code() ==
          errc::shape_mismatch);
  }
  CHECK(out == std::vector<float>(4, -7));
}
