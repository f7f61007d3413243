// The fused sparse lookup against its stages written down as plain loops, which share nothing with it.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory_resource>
#include <vector>

#include <deeprec/embedding/batches/partitioned_table.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "embedding/support.hpp"
#include "support/entries.hpp"

namespace {

using namespace embedding_test;

/// Counts the bytes that are asked of it, and the largest piece.
class counting_memory final : public std::pmr::memory_resource {
 public:
  std::size_t bytes = 0;
  std::size_t largest = 0;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    bytes += size;
    largest = (std::max)(largest, size);
    return std::pmr::new_delete_resource()->allocate(size, alignment);
  }
  void do_deallocate(void* p, std::size_t size, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(p, size, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }
};

struct entry {
  std::int64_t id;
  float weight;
};

enum class stage_mistake { none, keeps_negative_weights, forgets_fill };

/// prune, fill, gather and combine, one after the other, in float and from left to right.
std::vector<float> stage_by_stage(const std::vector<std::vector<double>>& table,
                                  const entry_list<std::int64_t, std::int64_t>& batch, bool weighted,
                                  pooled_as how, std::int64_t fill, float cap, index_t width,
                                  stage_mistake mistake = stage_mistake::none) {
  const auto columns = static_cast<std::size_t>(width);
  std::vector<std::vector<entry>> bags(static_cast<std::size_t>(batch.bags));
  for (std::size_t k = 0; k < batch.ids.size(); ++k) {
    const float weight = weighted ? batch.weights[k] : 1.0F;
    if (batch.ids[k] < 0) continue;
    if (how != pooled_as::sum && !(weight > 0.0F) && mistake != stage_mistake::keeps_negative_weights)
      continue;
    bags[static_cast<std::size_t>(batch.rows[k])].push_back({batch.ids[k], weight});
  }
  std::vector<float> out;
  for (auto& bag : bags) {
    const bool filled = bag.empty() && fill >= 0 && mistake != stage_mistake::forgets_fill;
    if (filled) bag.push_back({fill, 1.0F});
    std::vector<float> total(columns,
                             how == pooled_as::maximum ? -std::numeric_limits<float>::infinity() : 0.0F);
    double weights = 0;
    double squares = 0;
    for (const entry& e : bag) {
      std::vector<float> row(columns);
      double norm = 0;
      for (std::size_t j = 0; j < columns; ++j) {
        row[j] = static_cast<float>(table[static_cast<std::size_t>(e.id)][j]);
        norm += table[static_cast<std::size_t>(e.id)][j] * table[static_cast<std::size_t>(e.id)][j];
      }
      norm = std::sqrt(norm);
      for (std::size_t j = 0; j < columns; ++j) {
        if (cap > 0 && norm > static_cast<double>(cap)) {
          row[j] = static_cast<float>(static_cast<double>(row[j]) * static_cast<double>(cap) / norm);
        }
        if (how == pooled_as::maximum) {
          total[j] = (std::max)(total[j], row[j]);
        } else {
          total[j] = total[j] + row[j] * e.weight;
        }
      }
      weights += static_cast<double>(e.weight);
      squares += static_cast<double>(e.weight) * static_cast<double>(e.weight);
    }
    const double by = bag.empty() || how == pooled_as::sum || how == pooled_as::maximum ? 1.0
                      : how == pooled_as::mean_by_count  ? static_cast<double>(bag.size())
                      : how == pooled_as::mean_by_weight ? weights
                                                         : std::sqrt(squares);
    for (const float x : total) out.push_back(bag.empty() ? 0.0F : x / static_cast<float>(by));
  }
  return out;
}

bool near(const std::vector<float>& a, const std::vector<float>& b, float relative) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= relative * (std::fabs(a[i]) + 4.0F))) return false;
  }
  return true;
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

template <class Context, class Source, class Batch, class How>
std::vector<float> fused(const Context& ctx, const Source& source, const Batch& batch, const How& how) {
  const index_t width = source.format().width();
  std::vector<float> out(static_cast<std::size_t>(batch.bags() * width), 99.0F);
  //! [fused_lookup]
  const status s = fused_lookup(ctx, source, batch, how, matrix_view(out.data(), batch.bags(), width));
  //! [fused_lookup]
  REQUIRE_MESSAGE(s.ok(), s.message());
  return out;
}

}  // namespace

TEST_CASE(
    "fused_lookup: the bits of prune, fill, gather and combine, on every ISA and for any number of "
    "threads") {
  std::mt19937_64 random(seed());
  inline_executor here;
  thread_pool pool(3);
  for (const entries_are kind : every_entries) {
    for (const index_t width : {1, 16, 19, 130}) {
      guarded_table<float> table(random, 60, width);
      for (const index_t row : {0, 7, 20}) table.set(row, 0, -0.0F);
      const auto batch = make_entries(random, kind, 40, 60, kind == entries_are::one_bag ? 9000 : 200);
      CAPTURE(static_cast<int>(kind));
      CAPTURE(width);
      const auto check = [&](const auto& how, pooled_as as, std::int64_t fill) {
        const auto expected = stage_by_stage(table.values, batch, false, as, fill, 0, width);
        for (const isa which : runnable_isas()) {
          const auto got = fused(on(here, which), table.view, batch.view(), how);
          // A bag of more than 4096 ids is added in chunks.
          CHECK((kind == entries_are::one_bag ? near(got, expected, 1e-3F) : same(got, expected)));
          CHECK(same(fused(on(pool, which), table.view, batch.view(), how), got));
        }
      };
      check(combiner::sum, pooled_as::sum, -1);
      check(pooling(combiner::mean, empty_bag::default_row{7}), pooled_as::mean_by_count, 7);
      check(pooling(combiner::sqrtn, empty_bag::default_row{0}), pooled_as::sqrtn, 0);
      check(combiner::max, pooled_as::maximum, -1);
    }
  }
}

TEST_CASE("fused_lookup: weights not above 0 are pruned as TensorFlow does, and rows are clipped") {
  std::mt19937_64 random(seed());
  inline_executor here;
  bool negative_seen = false;
  bool fill_seen = false;
  for (const entries_are kind : every_entries) {
    const index_t width = 37;
    const guarded_table<float> table(random, 60, width);
    const auto batch = make_entries(random, kind, 40, 60, 300);
    CAPTURE(static_cast<int>(kind));
    for (const float cap : {0.0F, 0.5F, 6.0F}) {
      const auto check = [&](const auto& plain, const auto& clipped, pooled_as as, bool weighted) {
        const auto expected = stage_by_stage(table.values, batch, weighted, as, 3, cap, width);
        for (const isa which : runnable_isas()) {
          const auto got = cap > 0 ? fused(on(here, which), table.view, batch.view(weighted), clipped)
                                   : fused(on(here, which), table.view, batch.view(weighted), plain);
          CHECK(near(got, expected, 2e-5F));
        }
        negative_seen |= weighted && !near(stage_by_stage(table.values, batch, weighted, as, 3, cap, width,
                                                          stage_mistake::keeps_negative_weights),
                                           expected, 2e-5F);
        fill_seen |= !near(
            stage_by_stage(table.values, batch, weighted, as, 3, cap, width, stage_mistake::forgets_fill),
            expected, 2e-5F);
      };
      const empty_bag::default_row fill{3};
      const max_norm to{cap};
      check(pooling(combiner::mean, fill), pooling(combiner::mean, fill, to), pooled_as::mean_by_count, true);
      check(pooling(combiner::mean(combiner::by_weight), fill),
            pooling(combiner::mean(combiner::by_weight), fill, to), pooled_as::mean_by_weight, true);
      check(pooling(combiner::sqrtn, fill), pooling(combiner::sqrtn, fill, to), pooled_as::sqrtn, true);
      check(pooling(combiner::max, fill), pooling(combiner::max, fill, to), pooled_as::maximum, false);
    }
  }
  CHECK(negative_seen);  // mistakes in these stages would have been noticed
  CHECK(fill_seen);
}

TEST_CASE("fused_lookup: one id a bag takes the copying kernel, with the same answer") {
  std::mt19937_64 random(seed());
  inline_executor here;
  const guarded_table<float> table(random, 60, 24);
  entry_list<std::int64_t, std::int64_t> batch;
  batch.bags = 50;
  for (index_t b = 0; b < 50; ++b) {
    batch.rows.push_back(b);
    batch.ids.push_back(b % 5 == 0 ? -2 : b);
    batch.weights.push_back(b % 7 == 0 ? 0.0F : 1.5F);
  }
  for (const bool weighted : {false, true}) {
    const auto expected = stage_by_stage(table.values, batch, weighted, pooled_as::sum, 4, 2.0F, 24);
    CHECK(near(fused(on(here, best_isa()), table.view, batch.view(weighted),
                     pooling(combiner::sum, empty_bag::default_row{4}, max_norm{2.0F})),
               expected, 1e-6F));
    // A pruned entry's weight may be anything.
    auto odd = batch;
    for (std::size_t k = 0; k < odd.ids.size(); ++k) {
      if (odd.ids[k] < 0) odd.weights[k] = std::numeric_limits<float>::quiet_NaN();
    }
    std::swap(odd.rows[0], odd.rows[1]);  // not one in each row, in order
    std::swap(odd.ids[0], odd.ids[1]);
    std::swap(odd.weights[0], odd.weights[1]);
    CHECK(near(fused(on(here, best_isa()), table.view, odd.view(weighted),
                     pooling(combiner::sum, empty_bag::default_row{4}, max_norm{2.0F})),
               expected, 1e-6F));
  }
  const auto zeros_for_empty =
      stage_by_stage(table.values, batch, false, pooled_as::mean_by_count, -1, 0, 24);
  CHECK(same(fused(on(here, best_isa()), table.view, batch.view(), combiner::mean), zeros_for_empty));
}

TEST_CASE("fused_lookup: parts of a table give the bits of the whole table, under div and mod") {
  std::mt19937_64 random(seed());
  inline_executor here;
  thread_pool pool(2);
  const index_t width = 21;
  const index_t rows = 47;
  const guarded_table<float> whole(random, rows, width);
  const auto batch = make_entries(random, entries_are::many_bad, 30, rows, 400);
  const auto expected = fused(on(here, best_isa()), whole.view, batch.view(),
                              pooling(combiner::mean, empty_bag::default_row{46}));
  const auto in_parts = [&](auto strategy, index_t parts) {
    std::vector<std::vector<float>> memory(static_cast<std::size_t>(parts));
    std::vector<index_t> sizes(memory.size());
    for (index_t i = 0; i < rows; ++i) {
      const part_place at = std::is_same_v<decltype(strategy), partition_strategy::div_t>
                                ? partition_strategy::div_place(i, rows, parts)
                                : partition_strategy::mod_place(i, parts);
      auto& part = memory[static_cast<std::size_t>(at.part)];
      auto& size = sizes[static_cast<std::size_t>(at.part)];
      REQUIRE(at.local == size);
      ++size;
      for (const double x : whole.values[static_cast<std::size_t>(i)]) part.push_back(static_cast<float>(x));
    }
    std::vector<const_table_view<f32_rows>> views;
    for (std::size_t p = 0; p < memory.size(); ++p) {
      views.emplace_back(static_cast<const std::byte*>(static_cast<const void*>(memory[p].data())), sizes[p],
                         f32_rows(width));
    }
    const partitioned_table table(views, strategy);
    CHECK(same(
        fused(on(here, best_isa()), table, batch.view(), pooling(combiner::mean, empty_bag::default_row{46})),
        expected));
    CHECK(same(fused(on(pool, isa::portable), table, batch.view(),
                     pooling(combiner::mean, empty_bag::default_row{46})),
               expected));
  };
  for (const index_t parts : {1, 2, 3, 10, 47, 60}) {  // more parts than rows as well
    in_parts(partition_strategy::div, parts);
    in_parts(partition_strategy::mod, parts);
  }
}

TEST_CASE("H5: a negative id under mod partitioning reads no part") {
  const std::vector<float> rows(12, 3.0F);
  std::vector<const_table_view<f32_rows>> parts;
  for (int p = 0; p < 3; ++p) {
    parts.emplace_back(static_cast<const std::byte*>(static_cast<const void*>(rows.data() + p * 4)), 2,
                       f32_rows(2));
  }
  const partitioned_table table(parts, partition_strategy::mod);
  const std::vector<std::int64_t> offsets{0, 2, 3, 4},
      ids{-1, 5, -1, std::numeric_limits<std::int64_t>::min()};
  const jagged_view bags(offsets.data(), 3, ids.data(), 4);
  inline_executor here;
  std::vector<float> out(6, 9.0F);
  const matrix_view view(out.data(), 3, 2);
  REQUIRE(fused_lookup(here, table, bags, combiner::sum, view).ok());
  CHECK(out == std::vector<float>{3, 3, 0, 0, 0, 0});
  // Where nothing is pruned it is a fault that names its place, and nothing is written.
  std::vector<float> untouched(6, 9.0F);
  const status s = lookup(here, table, bags, combiner::sum, matrix_view(untouched.data(), 3, 2));
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().bag == 0);
  CHECK(s.place().position == 0);
  CHECK(s.place().value == -1);
  CHECK(untouched == std::vector<float>(6, 9.0F));
}

TEST_CASE("fused_lookup: nothing of size N x D is allocated") {
  std::mt19937_64 random(seed());
  const index_t width = 64;
  const guarded_table<float> table(random, 60, width);
  inline_executor here;
  for (const entries_are kind : {entries_are::uniform, entries_are::sorted}) {
    const auto batch = make_entries(random, kind, 100, 60, 5000);
    counting_memory memory;
    context<inline_executor> ctx(here);
    ctx.memory = &memory;
    const auto out = fused(ctx, table.view, batch.view(), combiner::mean);
    const std::size_t rows_of_all = 5000 * 64 * sizeof(float);
    CHECK(memory.bytes < rows_of_all / 4);
    if (kind == entries_are::sorted) CHECK(memory.bytes == 101 * sizeof(index_t));
    CHECK(memory.largest <= 5000 * 16);
  }
}

TEST_CASE("fused_lookup: an id beyond the table is a fault, not pruned") {
  std::mt19937_64 random(seed());
  const guarded_table<float> table(random, 10, 4);
  const std::vector<std::int64_t> offsets{0, 2, 4}, ids{-1, 3, 10, 2};
  const jagged_view bags(offsets.data(), 2, ids.data(), 4);
  inline_executor here;
  std::vector<float> out(8, 9.0F);
  const status s = fused_lookup(here, table.view, bags, combiner::sum, matrix_view(out.data(), 2, 4));
  CHECK(s.code() == errc::id_out_of_range);
  CHECK(s.place().bag == 1);
  CHECK(s.place().value == 10);
  CHECK(out == std::vector<float>(8, 9.0F));
  index_t skipped = 0;
  CHECK(fused_lookup(here, table.view, bags, pooling(combiner::sum, bounds::skip(skipped)),
                     matrix_view(out.data(), 2, 4))
            .ok());
  CHECK(skipped == 1);  // the negative one is pruned, not skipped
  CHECK(fused_lookup(here, table.view, bags, pooling(combiner::sum, max_norm{0.0F}),
                     matrix_view(out.data(), 2, 4))
            .code() == errc::invalid_value);
  // No entries, no bags.
  CHECK(fused_lookup(here, table.view, coo_view<>(nullptr, nullptr, 0, 2), combiner::sum,
                     matrix_view(out.data(), 2, 4))
            .ok());
  CHECK(out == std::vector<float>(8, 0.0F));
  CHECK(fused_lookup(here, table.view, coo_view<>(), combiner::sum, matrix_view<float>(nullptr, 0, 4)).ok());
}
