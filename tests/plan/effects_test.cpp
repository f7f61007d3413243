// The memory of an operand, and the order of ops whose memory overlaps.
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/plan/effects.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_list.hpp>
#include <deeprec/plan/task_plan.hpp>

using namespace deeprec;

namespace {

std::uintptr_t address(const void* of) { return reinterpret_cast<std::uintptr_t>(of); }

bool has(const effects& all, const void* begin, index_t bytes) {
  for (const effect& one : all) {
    if (one.begin == address(begin) && one.end - one.begin == static_cast<std::uintptr_t>(bytes)) return true;
  }
  return false;
}
index_t count(const effects& all) { return static_cast<index_t>(all.end() - all.begin()); }

}  // namespace

TEST_CASE("effects: the bytes of every kind of operand") {
  std::vector<float> values(40);
  const matrix_view matrix(values.data(), 3, 4, 10);
  CHECK(has(reads(matrix), values.data(),
            (2 * 10 + 4) * 4));  // with the gaps between rows, not behind the last
  CHECK(has(writes(matrix.columns(1, 2)), values.data() + 1, (2 * 10 + 2) * 4));
  CHECK(count(reads(matrix_view<float>())) == 0);

  const std::vector<std::int64_t> offsets{0, 2, 3}, ids{1, 2, 3};
  const std::vector<float> weights{1, 2, 3};
  const effects of_bags = reads(jagged_view(offsets.data(), 2, ids.data(), 3, weights.data()));
  CHECK(count(of_bags) == 3);
  CHECK(has(of_bags, offsets.data(), 24));
  CHECK(has(of_bags, ids.data(), 24));
  CHECK(has(of_bags, weights.data(), 12));
  CHECK(count(reads(jagged_view(offsets.data(), 2, ids.data(), 3))) == 2);

  const auto table = as_table(matrix_view(values.data(), 4, 10));
  CHECK(has(updates(table), values.data(), 160));
  CHECK(updates(table).begin()->mode == access_mode::updates);
  CHECK(has(reads(std::span<const float>(values).subspan(2, 5)), values.data() + 2, 20));
  CHECK(has(writes(values), values.data(), 160));
  struct counters {
    int a, b;
  } some{};
  CHECK(has(updates(some), &some, 8));
  CHECK(has(reads(some.b), &some.b, 4));
}

TEST_CASE("effects: what accesses overlapping memory keeps its order, whatever the order of kinds") {
  for (const task_order order : {task_order::as_added, task_order::by_kind}) {
    std::vector<float> rows{0, 0, 1, 10, 2, 20, 3, 30}, x(2 * 4), weights(2, 1);
    std::vector<std::int64_t> offsets{0, 1, 2}, ids{1, 3}, made(2, 0);
    const auto table = as_table(matrix_view(rows.data(), 4, 2));
    const matrix_view<float> all(x.data(), 2, 4);
    inline_executor here;
    task_list work;
    float sum = 0;
    int step = 0;
    // Lookups into two blocks of columns of one matrix, then an op that reads the matrix. The ids and weights
    // of the second one are made by other ops.
    const jagged_view first_bags(offsets.data(), 2, ids.data(), 2);
    const jagged_view second_bags(offsets.data(), 2, made.data(), 2, weights.data());
    const index_t first = work.add("first", [&] { ++step; });
    const index_t of_ids = work.add("ids", [&](const task_call&) { made = {2, 2}; }, {first});
    work.affects(of_ids, writes(made));
    const index_t of_weights = work.add("weights", [&](const task_call&) { weights = {100, 1}; }, {first});
    work.affects(of_weights, writes(weights));
    const auto look = [&](const jagged_view<>& bags, index_t column) {
      const matrix_view<float> out = all.columns(column, 2);
      const index_t op = work.add(
          "lookup", [&here, table, bags, out] { return lookup(here, table, bags, combiner::sum, out); });
      work.affects(op, reads(table), reads(bags), writes(out));
    };
    look(first_bags, 0);
    look(second_bags, 2);
    work.affects(work.add("tower",
                          [&] {
                            sum = 0;
                            for (const float v : x) sum += v;
                          }),
                 reads(all));
    const task_plan plan = task_plan::compile(work, order).or_throw();
    REQUIRE(run_inline(context{here}, plan).ok());
    CHECK(sum == 1 + 10 + 3 + 30 + 101 * (2 + 20));
    CHECK(step == 1);
  }
}
