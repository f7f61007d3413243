// Updates in parts of a table's rows: each row and each position is in one part, and no bit depends on how
// many parts there are.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/refusing_resource.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

#include "support/seed.hpp"
#include "support/trained_rows.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_test;
using deeprec::detail::backward_pass;
using deeprec::detail::batch_groups;
using deeprec::detail::batch_groups_size;
using deeprec::detail::bulk_parts;
using deeprec::detail::part_sizes;
using deeprec::detail::parts_memory;
using deeprec::detail::scratch_block;
using deeprec::detail::table_part;

/// Shares work of a microsecond, by threads that are not there.
struct eager_pool {
  explicit eager_pool(int threads)
      : pool(thread_pool_options{.threads = threads, .oversubscribe = true}), ctx{pool} {
    tuning.parked_ns = tuning.polling_ns = 0;
    tuning.piece_ns = 1000;
    ctx.tuning = &tuning;
  }
  thread_pool pool;
  kernel_tuning tuning = host_tuning();
  context<thread_pool> ctx;
};

/// Half of the ids are one row where `hot`.
ragged_batch made_batch(std::mt19937_64& random, index_t bags, index_t rows, int longest, bool hot) {
  return {random, bags, longest, [&]() -> std::int64_t {
            const auto any = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows));
            return hot && random() % 2 == 0 ? 7 : any;
          }};
}

/// The rows after an update of a table of its own.
template <class Format, class Context, class Pooling, class Rounding = rounding::nearest_t>
std::vector<std::byte> updated(const Context& ctx, const jagged_view<>& bags,
                               const std::vector<float>& values, index_t rows, index_t width,
                               const Pooling& pooling, const Rounding& rounding = {}) {
  dense_table<Format> table = table_of<Format>(rows, width);
  const status s =
      update(ctx, table.view(), bags, pooling, matrix_view<const float>(values.data(), bags.bags(), width),
             rowwise_adagrad{.learning_rate = 0.1F}, rounding);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return bytes_of(table);
}

}  // namespace

TEST_CASE("bulk_parts: every unit once, whoever begins, of equal parts and of given ones") {
  for (const int threads : {1, 2, 3, 8, 40}) {
    CAPTURE(threads);
    eager_pool eager(threads);
    for (const index_t units : {0, 1, 2, 7, 64, 1001}) {
      CAPTURE(units);
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(units));
      const auto see = [&](index_t begin, index_t end, int) {
        for (index_t i = begin; i < end; ++i) seen[static_cast<std::size_t>(i)].fetch_add(1);
      };
      detail::run_bulk_in_parts(eager.ctx, {units, 3, 1e6}, see);
      CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 1; }));
      if (threads > bulk_parts::most) continue;
      std::vector<index_t> firsts(static_cast<std::size_t>(threads) + 1, units / 3);
      firsts.front() = 0;
      firsts.back() = units;
      bulk_parts given(threads, firsts.data(), 1);
      detail::run_bulk_in_parts(eager.ctx, given, 1e6, see);
      CHECK(std::all_of(seen.begin(), seen.end(), [](const auto& n) { return n == 2; }));
    }
  }
}

TEST_CASE(
    "table_part: a row is in one part, which is earlier for those behind it only; parts are about equal") {
  for (const index_t parts : {1, 2, 3, 8, 32}) {
    CAPTURE(parts);
    for (const index_t step : {1, 2, 64, 4096, 1 << 20}) {  // rows at any stride
      CAPTURE(step);
      std::vector<index_t> sizes(static_cast<std::size_t>(parts));
      const index_t rows = 32000;
      for (index_t k = 0; k < rows; ++k) {
        index_t found = 0, own = parts, wrong = 0;
        for (index_t p = 0; p < parts; ++p) {
          const table_part part(p, parts);
          if (part.has(k * step)) ++found, own = p, ++sizes[static_cast<std::size_t>(p)];
          if (part.is_of_earlier_part(k * step) != (own < p)) ++wrong;
        }
        if (found != 1) FAIL_CHECK("row " << k * step << " is in " << found << " parts");
        if (wrong != 0) FAIL_CHECK("row " << k * step << " is misplaced by " << wrong << " parts");
      }
      const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
      CHECK(*most - *least < rows / parts);
    }
  }
}

TEST_CASE("parts_memory: what the groups of a part take is below the bounds that places come from") {
  for (const index_t width : {1, 16, 64, 1000, 5000}) {
    for (const index_t n : {0, 1, 2, 63, 1000, 4094, 4095, 4096, 16383, 16384, 100000, 3000000}) {
      const batch_groups_size size{.positions = n + 1, .rows = 1000000};
      const index_t taken = scratch_block::bytes_of<std::byte>(batch_groups::bytes_for(size)) +
                            backward_pass::bytes_for({.positions = n + 1, .width = width, .workers = 1});
      CAPTURE(width);
      CAPTURE(n);
      CHECK(taken <= n * parts_memory::bytes_a_position(width) + parts_memory::bytes_a_part(n, width));
    }
  }
}

TEST_CASE(
    "update: in parts, the bits of one thread, for every policy, and for a row that fills many chunks") {
  std::mt19937_64 random(seed());
  inline_executor here;
  for (const index_t bags : {1, 40, 3000}) {
    for (const bool hot : {false, true}) {
      CAPTURE(bags);
      CAPTURE(hot);
      const index_t rows = 6001, width = 17;
      const ragged_batch batch = made_batch(random, bags, rows, 20, hot);
      const std::vector<float> values = normals(random, bags * width);
      const context alone{here};
      const auto on_each = [&](const char* what, const auto& run) {
        CAPTURE(what);
        const std::vector<std::byte> expected = run(alone);
        for (const int threads : {1, 2, 3, 8}) {
          CAPTURE(threads);
          eager_pool eager(threads);
          if (bags == 3000 && threads > 1) {
            REQUIRE(table_part::parts(eager.ctx, rows, 20.0 * static_cast<double>(batch.ids.size())) ==
                    threads);
          }
          CHECK(run(eager.ctx) == expected);
        }
      };
      on_each("sum", [&](const auto& ctx) {
        return updated<f32_rows>(ctx, batch.view(), values, rows, width, combiner::sum);
      });
      on_each("mean with weights", [&](const auto& ctx) {
        return updated<bf16_rows>(ctx, batch.view(true), values, rows, width, combiner::mean);
      });
      on_each("sqrtn, padding, default row", [&](const auto& ctx) {
        return updated<f32_rows>(ctx, batch.view(), values, rows, width,
                                 pooling{combiner::sqrtn, padding::id{7}, empty_bag::default_row{11}});
      });
      on_each("max_norm", [&](const auto& ctx) {
        return updated<f32_rows>(ctx, batch.view(), values, rows, width,
                                 pooling{combiner::sum, max_norm{0.5F}});
      });
      on_each("stochastic rounding", [&](const auto& ctx) {
        return updated<bf16_rows>(ctx, batch.view(), values, rows, width, combiner::sum,
                                  rounding::stochastic{.seed = 3, .step = 5});
      });
    }
  }
}

TEST_CASE("update: the comparison above finds a part that is left out") {
  std::mt19937_64 random(seed());
  const index_t rows = 6001, width = 8;
  const ragged_batch batch = made_batch(random, 300, rows, 20, false);
  const std::vector<float> values = normals(random, 300 * width);
  inline_executor here;
  const std::vector<std::byte> expected =
      updated<f32_rows>(context{here}, batch.view(), values, rows, width, combiner::sum);
  dense_table<f32_rows> table = table_of<f32_rows>(rows, width);
  const detail::unresolved_rows given(table.view(), batch.view(), detail::as_pooling(combiner::sum));
  auto resolved = given.resolution();
  REQUIRE(resolved.open().ok());
  const context alone{here};
  const auto size = detail::groups_size(given);
  scratch_block block(std::pmr::get_default_resource(), parts_memory::bytes_for(size.positions, width, 3));
  parts_memory memory(block, size, width, 3);
  index_t positions = 0;
  for (index_t p = 0; p < 3; ++p) {
    CHECK(bytes_of(table) != expected);  // before the last part as well
    const table_part part(p, 3);
    part_sizes sizes;
    sizes.add(resolved, part);
    CHECK(sizes.earlier == positions);
    positions += sizes.positions;
    auto& groups = memory.make(p, sizes);
    groups.add(resolved, matrix_view<const float>(values.data(), 300, width), part);
    groups.group(alone);
    CHECK(groups.groups().groups().size() == sizes.positions);
    detail::step_groups(alone, groups.groups(), groups.pass(), table.view(), 0.0F,
                        rowwise_adagrad{.learning_rate = 0.1F}, rounding::nearest);
  }
  CHECK(positions == static_cast<index_t>(batch.ids.size()));
  CHECK(bytes_of(table) == expected);
}

namespace {

/// Features of five tables: one takes more time than all others, one is large, two share a table, one has
/// no rows.
struct group_case {
  index_t bags = 500;
  std::vector<ragged_batch> batches;
  std::vector<float> gradient;
  static constexpr index_t widths[6] = {5, 16, 16, 33, 8, 3};

  explicit group_case(std::mt19937_64& random) {
    for (const auto& [rows, longest] :
         {std::pair<index_t, int>{40, 1}, {9000, 60}, {9000, 55}, {50, 3}, {7000, 160}, {1, 0}}) {
      batches.push_back(made_batch(random, bags, rows, longest, rows == 7000));
    }
    index_t all = 0;
    for (const index_t w : widths) all += w;
    gradient = normals(random, bags * all);
  }
  [[nodiscard]] std::vector<jagged_view<>> views() const {
    std::vector<jagged_view<>> made;
    for (std::size_t t = 0; t < batches.size(); ++t) made.push_back(batches[t].view(t == 2));
    return made;
  }
  struct tables {
    dense_table<f32_rows> few = table_of<f32_rows>(40, 5, 1), most = table_of<f32_rows>(9000, 16, 2);
    dense_table<bf16_rows> some = table_of<bf16_rows>(50, 33, 3);
    dense_table<f32_rows> large = table_of<f32_rows>(7000, 8, 4), none = table_of<f32_rows>(0, 3, 5);
    [[nodiscard]] std::vector<std::byte> bytes() const {
      std::vector<std::byte> all;
      const auto add = [&](const auto& table) {
        const std::vector<std::byte> of = bytes_of(table);
        all.insert(all.end(), of.begin(), of.end());
      };
      add(few), add(most), add(some), add(large);
      return all;
    }
  };
  template <class Context>
  status run(const Context& ctx, tables& on, const std::vector<jagged_view<>>& bags_of) const {
    feature_group<rowwise_adagrad> group;
    group.add(on.few.view(), combiner::sum);
    group.add(on.most.view(), combiner::sum);
    group.add(on.most.view(), combiner::mean);
    group.add(on.some.view(), combiner::sqrtn);
    group.add(on.large.view(), combiner::sum);
    group.add(on.none.view(), combiner::sum);
    return update(ctx, group, bags_of, matrix_view<const float>(gradient.data(), bags, group.total_width()),
                  rowwise_adagrad{.learning_rate = 0.1F});
  }
};

/// Refuses the n-th request.
}  // namespace

TEST_CASE("feature_group: update: a table in parts beside whole ones has the bits of one thread") {
  std::mt19937_64 random(seed());
  const group_case made(random);
  REQUIRE(made.batches[4].ids.size() > 32768);  // on all threads
  REQUIRE(made.batches[1].ids.size() + made.batches[2].ids.size() < 32768);
  inline_executor here;
  group_case::tables expected;
  REQUIRE(made.run(context{here}, expected, made.views()).ok());
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    eager_pool eager(threads);
    for (int again = 0; again < 3; ++again) {
      group_case::tables got;
      const status s = made.run(eager.ctx, got, made.views());
      REQUIRE_MESSAGE(s.ok(), s.message());
      CHECK(got.bytes() == expected.bytes());
    }
  }
}

TEST_CASE("feature_group: update: in parts, a fault of one table and a lack of memory write nothing") {
  std::mt19937_64 random(seed());
  group_case made(random);
  eager_pool eager(3);
  const group_case::tables fresh;
  for (const std::size_t t : {1, 4}) {
    group_case bad = made;
    bad.batches[t].ids.back() = 9000;
    group_case::tables got;
    const status s = bad.run(eager.ctx, got, bad.views());
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place().table == static_cast<index_t>(t));
    CHECK(got.bytes() == fresh.bytes());
  }
  int refused = 0;
  for (long n = 0; n < 50; ++n) {
    allowance granted{.left = n};
    refusing_resource memory(granted);
    context ctx = eager.ctx;
    ctx.memory = &memory;
    group_case::tables got;
    const status s = made.run(ctx, got, made.views());
    if (s.ok()) break;
    CHECK(s.code() == errc::out_of_memory);
    CHECK(got.bytes() == fresh.bytes());
    ++refused;
  }
  CHECK(refused > 0);
}
