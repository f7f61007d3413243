// Groups of positions by row: in any order they are the groups in ascending order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/embedding/kernels/host/row_groups.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/support/scratch_block.hpp>

#include "embedding/support.hpp"

namespace {

using namespace embedding_test;
using deeprec::detail::group_order;
using deeprec::detail::row_groups;
using deeprec::detail::scratch_block;

struct group {
  index_t row;
  std::vector<index_t> positions;
  bool operator==(const group&) const = default;
};

struct grouped {
  std::vector<group> groups;
  index_t first_repeated;
};

/// rows[k] is the row of position k; -1: left out. In two batches, the second by add_all where it has no gap.
grouped group_rows_of(thread_pool& pool, const std::vector<index_t>& rows, index_t bound, group_order order) {
  context ctx{pool};
  kernel_tuning eager = host_tuning();  // shares passes that take a microsecond
  eager.parked_ns = eager.polling_ns = 0;
  ctx.tuning = &eager;
  const auto n = static_cast<index_t>(rows.size());
  scratch_block block(std::pmr::get_default_resource(), row_groups::bytes_for(n));
  row_groups groups;
  groups.reserve(block, n);
  const index_t half = n / 2;
  groups.add(ctx, 0, half, [&](index_t k) { return rows[static_cast<std::size_t>(k)]; });
  const auto of_second = [&](index_t k) { return rows[static_cast<std::size_t>(half + k)]; };
  if (std::all_of(rows.begin() + half, rows.end(), [](index_t row) { return row >= 0; })) {
    groups.add_all(ctx, half, n - half, of_second);
  } else {
    groups.add(ctx, half, n - half, of_second);
  }
  groups.group(ctx, bound, order);
  grouped found{{}, groups.first_repeated()};
  for (index_t g = 0; g < groups.groups(); ++g) {
    group& here = found.groups.emplace_back(group{groups.row(g), {}});
    for (index_t i = groups.starts()[g]; i < groups.starts()[g + 1]; ++i) {
      here.positions.push_back(groups.position(i));
    }
  }
  return found;
}

/// The groups by plain loops, in ascending order of their rows.
std::vector<group> expected_groups(const std::vector<index_t>& rows, index_t bound) {
  std::vector<std::vector<index_t>> of_row(static_cast<std::size_t>(bound));
  for (std::size_t k = 0; k < rows.size(); ++k) {
    if (rows[k] >= 0) of_row[static_cast<std::size_t>(rows[k])].push_back(static_cast<index_t>(k));
  }
  std::vector<group> groups;
  for (index_t r = 0; r < bound; ++r) {
    if (!of_row[static_cast<std::size_t>(r)].empty())
      groups.push_back({r, of_row[static_cast<std::size_t>(r)]});
  }
  return groups;
}

/// What is wrong with groups in any order; empty: nothing.
std::string fault_of(grouped found, const std::vector<group>& expected) {
  index_t last = -1;
  for (index_t g = 0; g < found.first_repeated; ++g) {
    const group& single = found.groups[static_cast<std::size_t>(g)];
    if (single.positions.size() != 1) return "a group before first_repeated() has more positions than one";
    if (single.positions[0] <= last) return "rows that are used once are not in the order of their positions";
    last = single.positions[0];
  }
  const auto rest = found.groups.begin() + found.first_repeated;
  const auto by_row = [](const group& a, const group& b) { return a.row < b.row; };
  if (!std::is_sorted(rest, found.groups.end(), by_row)) return "the other rows don't ascend";
  std::sort(found.groups.begin(), found.groups.end(), by_row);
  return found.groups == expected ? "" : "other groups";
}

std::vector<index_t> made_rows(const std::string& kind, index_t n, index_t bound, std::uint64_t seed) {
  const counter_rng rng(seed);
  std::vector<index_t> rows;
  for (index_t k = 0; k < n; ++k) {
    const auto draw = rng.bits(1, static_cast<std::uint64_t>(k));
    const index_t any = hash_bucket(draw, bound);
    rows.push_back(kind == "different" ? k * 7 % bound
                   : kind == "one row" ? bound - 1
                   : kind == "pairs"   ? k / 2
                   : kind == "skewed"  ? hash_bucket(draw, 1 + any)
                   : kind == "gaps"    ? (any % 3 == 0 ? -1 : any)
                                       : any);
  }
  return rows;
}

}  // namespace

TEST_CASE("row_groups: in any order, the groups of the ascending order, on 1 and 3 threads") {
  thread_pool one(1), three(3);
  std::uint64_t seed = 1;
  index_t singles = 0;
  for (const char* kind : {"uniform", "different", "one row", "pairs", "skewed", "gaps"}) {
    for (const index_t n : {0, 1, 2, 3, 5, 64, 1000, 16383, 16384, 32770, 70001}) {
      const index_t bound = 100003;
      CAPTURE(kind);
      CAPTURE(n);
      CAPTURE(++seed);
      const std::vector<index_t> rows = made_rows(kind, n, bound, seed);
      const std::vector<group> expected = expected_groups(rows, bound);
      const grouped ascending = group_rows_of(three, rows, bound, group_order::ascending);
      CHECK(ascending.groups == expected);
      CHECK(ascending.first_repeated == 0);
      const grouped alone = group_rows_of(one, rows, bound, group_order::any);
      CHECK(fault_of(alone, expected) == "");
      const grouped shared = group_rows_of(three, rows, bound, group_order::any);
      CHECK(shared.groups == alone.groups);
      CHECK(shared.first_repeated == alone.first_repeated);
      singles += alone.first_repeated;
    }
  }
  CHECK(singles > 300000);  // most of the rows that are used once are found
}

TEST_CASE("row_groups: the comparison above finds a lost position, a torn group and a wrong order") {
  thread_pool one(1);
  const std::vector<index_t> rows = made_rows("uniform", 3000, 2000, 9);
  const std::vector<group> expected = expected_groups(rows, 2000);
  const grouped good = group_rows_of(one, rows, 2000, group_order::any);
  REQUIRE(good.first_repeated > 2);
  REQUIRE(fault_of(good, expected) == "");
  grouped lost = good;
  lost.groups.back().positions.pop_back();
  CHECK(fault_of(lost, expected) != "");
  grouped torn = good;
  for (std::size_t g = 0; g < torn.groups.size(); ++g) {
    if (torn.groups[g].positions.size() < 2) continue;
    torn.groups.push_back({torn.groups[g].row, {torn.groups[g].positions.back()}});
    torn.groups[g].positions.pop_back();
    break;
  }
  CHECK(fault_of(torn, expected) != "");
  grouped disordered = good;
  std::swap(disordered.groups[0], disordered.groups[1]);
  CHECK(fault_of(disordered, expected) != "");
}
