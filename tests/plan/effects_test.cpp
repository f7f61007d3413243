// The memory of an operand, and the order of ops whose memory overlaps.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/dense/gemm/bit_matrix_view.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/separate_state.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/plan/effects.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/task_list.hpp>
#include <deeprec/plan/task_plan.hpp>

#include "support/hashed_source.hpp"

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

TEST_CASE("effects: the bytes of entries, of bags of one size, of arrays, and of masks") {
  const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6};
  const std::vector<float> weights(6, 1);
  const std::vector<std::int64_t> rows{0, 0, 1, 0, 1, 1, 2, 0, 2, 1, 2, 2};
  const effects of_entries = reads(coo_view(rows.data(), ids.data(), 6, 3, weights.data()));
  CHECK(count(of_entries) == 3);
  CHECK(has(of_entries, rows.data(), 6 * 8));
  CHECK(has(of_entries, ids.data(), 6 * 4));
  CHECK(has(of_entries, weights.data(), 6 * 4));
  // Indices of two columns: up to the row of the last entry, whose second column is not read.
  const effects of_pairs = reads(coo_view<std::int32_t>::tensorflow(rows.data(), ids.data(), 6, 3));
  CHECK(count(of_pairs) == 2);
  CHECK(has(of_pairs, rows.data(), 11 * 8));
  CHECK(has(of_pairs, ids.data(), 6 * 4));
  CHECK(count(reads(coo_view(rows.data(), ids.data(), 0, 3))) == 0);

  const effects of_fixed = reads(fixed_hotness_view(ids.data(), 3, 2, weights.data()));
  CHECK(count(of_fixed) == 2);  // no offsets
  CHECK(has(of_fixed, ids.data(), 6 * 4));
  CHECK(has(of_fixed, weights.data(), 6 * 4));
  CHECK(count(reads(fixed_hotness_view(ids.data(), 3, 0))) == 0);

  const effects of_array = updates(array_view(ids.data() + 1, 4));
  CHECK(count(of_array) == 1);  // of a view its elements, and not the view itself
  CHECK(has(of_array, ids.data() + 1, 4 * 4));
  CHECK(has(reads(array_view<const std::int32_t, device_space>(ids.data(), 6)), ids.data(), 6 * 4));
  CHECK(count(reads(array_view<float>())) == 0);

  // Rows of bits begin at multiples of 128 bits: the last words of a row may be written too.
  using bits = bit_matrix_view<std::uint64_t>;
  std::vector<std::uint64_t> words(bits::words_for(3, 130));
  CHECK(count(writes(bits(words.data(), 3, 130))) == 1);
  CHECK(has(writes(bits(words.data(), 3, 130)), words.data(), 3 * 4 * 8));
  CHECK(count(writes(bits())) == 0);
}

TEST_CASE("effects: a table has its rows, and its state where that is stored apart") {
  std::vector<float> values(4 * 8), moments(4 * 6);
  const auto table = as_table(matrix_view(values.data(), 4, 8));
  const matrix_view<float> state(moments.data(), 4, 5, 6);
  const effects apart = updates(with_state(table, state));
  CHECK(count(apart) == 2);
  CHECK(has(apart, values.data(), 4 * 8 * 4));
  CHECK(has(apart, moments.data(), (3 * 6 + 5) * 4));  // not behind the state of the last row
  CHECK(count(updates(with_state(table, matrix_view<float>(moments.data(), 4, 0)))) == 1);  // no state
  // An owner is itself and what it owns: whoever replaces it is ordered as well.
  dense_table<f32_rows> owner(4, f32_rows(8));
  const effects owned = updates(owner);
  CHECK(count(owned) == 2);
  CHECK(has(owned, &owner, static_cast<index_t>(sizeof(owner))));
  CHECK(has(owned, owner.view().data(), 4 * owner.view().format().stride_bytes()));
}

TEST_CASE("effects: views of one growing table are one object, its identity()") {
  using table_type = deeprec_test::hashed_table<f32_rows>;
  const auto zeros = [](std::uint64_t, float* row) { row[0] = row[1] = 0; };
  table_type users(f32_rows(2), zeros), items(f32_rows(2), zeros);
  const deeprec_test::hashed_rows<f32_rows> first(users), second(users), other(items);
  CHECK(count(updates(first)) == 1);
  CHECK(has(updates(first), &users, 1));
  CHECK(has(reads(second), &users, 1));
  task_list work;
  const index_t step = work.add("step", {}), look = work.add("look", {}), apart = work.add("apart", {});
  work.affects(step, updates(first));
  work.affects(look, reads(second));
  work.affects(apart, reads(other));
  const task_plan plan = task_plan::compile(work).or_throw();
  CHECK(plan.indegree(look) == 1);
  CHECK(plan.indegree(apart) == 0);
}

TEST_CASE("effects: a vector that grows has its elements and itself") {
  std::vector<std::int64_t> ids(3, 7);
  const effects found = writes(ids);
  CHECK(count(found) == 2);
  CHECK(has(found, ids.data(), 3 * 8));
  CHECK(has(found, &ids, static_cast<index_t>(sizeof(ids))));
  const std::vector<float> none;
  CHECK(count(reads(none)) == 1);
  CHECK(has(reads(none), &none, static_cast<index_t>(sizeof(none))));
  const std::array<float, 3> fixed{};
  CHECK(count(reads(fixed)) == 1);
  // Its elements lie elsewhere once it has grown: who reads them still follows who made them.
  std::vector<float> made;
  task_list work;
  const index_t grow = work.add("grow", {});
  work.affects(grow, writes(made));
  made.resize(100);
  const index_t read = work.add("read", {});
  work.affects(read, reads(made));
  const task_plan plan = task_plan::compile(work).or_throw();
  CHECK(plan.indegree(read) == 1);
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
