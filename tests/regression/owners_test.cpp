// Regressions of move assignment: every public type that owns memory takes the place of another one, whatever
// resources the two have.
#include <doctest/doctest.h>

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/dense/metrics/grouped_auc.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/ops/dedup_rows.hpp>
#include <deeprec/ops/unique.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/queue/staging_pool.hpp>

#include "support/hashed_source.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

inline_executor here;

using keyed_rows = hashed_rows<f32_rows>;
using keyed_bags = jagged_view<std::uint64_t>;
using sums = decltype(detail::as_pooling(combiner::sum));
using keyed_group = feature_group<sgd, keyed_bags>;

// The traits do not see a body that does not compile: each assignment is made.
template <class T>
void assign(T& to, T& from) {
  static_assert(std::is_move_constructible_v<T> && std::is_move_assignable_v<T>);
  to = std::move(from);
}
template <class... T>
constexpr int movable() {
  static_cast<void>(std::tuple(&assign<T>...));
  return static_cast<int>(sizeof...(T));
}
static_assert(
    movable<dense_table<f32_rows>, jagged_batch<>, unique_ids<>, partitioned_ids<>, unique_rows<>,
            sparse_gradient, feature_group<>, keyed_group, named_table, const_named_table, training_state,
            named_rows<std::uint64_t, keyed_rows>, resolved_rows<keyed_rows, keyed_bags, sums>,
            resolved_rows<table_view<f32_rows>, jagged_view<>, sums>,
            resolved_rows<table_view<f32_rows>, fixed_hotness_view<>,
                          pooling<combiner::sum_t, bounds::skip_t, empty_bag::default_row, max_norm>>,
            resolved_features<feature_group<>>, resolved_features<keyed_group>, sparse_batch,
            batch_reader<libsvm_format, inline_executor>, task_list, task_plan, flat_graph, step_graph,
            step_program, step_state, staged_program, auc, grouped_auc, result<dense_table<f32_rows>>,
            staging_pool<int>::lease>() > 0);

/// A table of three keyed rows and a batch of it.
struct keyed {
  explicit keyed(float first)
      : table(f32_rows(1),
              [first](std::uint64_t key, float* values) { values[0] = first + static_cast<float>(key); }) {
    REQUIRE(table.insert(keys.data(), 3).ok());
  }
  [[nodiscard]] keyed_rows source() { return keyed_rows(table); }
  [[nodiscard]] keyed_bags bags() const { return {offsets.data(), 2, keys.data(), 3}; }

  std::vector<std::uint64_t> keys{1, 2, 3};
  std::vector<std::int64_t> offsets{0, 2, 3};
  hashed_table<f32_rows> table;
};

/// make(memory) twice, in two resources; the first is assigned the second, and the second ends before
/// check(the first) runs.
template <class Make, class Check>
void assign_from_another_resource(const Make& make, const Check& check) {
  allowance unlimited;
  refusing_resource first(unlimited), second(unlimited);
  {
    auto one = make(&first, 0.0F);
    std::optional other(make(&second, 10.0F));
    one = std::move(*other);
    other.reset();
    check(one);
    one = make(&first, 20.0F);
    one = make(&second, 10.0F);
    check(one);
  }
  CHECK(first.held == 0);
  CHECK(second.held == 0);
}

}  // namespace

TEST_CASE("n01: resolved rows and features take the place of others, with their memory and their guards") {
  keyed small(0), large(10), other(20);
  const auto of = [&](float first) -> keyed& { return first == 0 ? small : first == 10 ? large : other; };
  const auto in = [](std::pmr::memory_resource* memory) {
    context ctx(here);
    ctx.memory = memory;
    return ctx;
  };
  std::vector<float> out(2), g(2, 1.0F);
  const matrix_view<float> pooled(out.data(), 2, 1);
  const matrix_view<const float> gradient(g.data(), 2, 1);
  float stepped = 0;
  const auto check = [&](const auto& rows) {
    REQUIRE(lookup(here, rows, pooled).ok());
    CHECK(out == std::vector<float>{23 - 2 * stepped, 13 - stepped});
    REQUIRE(update(here, rows, gradient, sgd{0.5F}).ok());
    stepped += 0.5F;
  };
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        return resolve(in(memory), of(first).source(), of(first).bags(), combiner::sum).or_throw();
      },
      check);
  large.table.move_all([] {});  // no guard is left behind
  small.table.move_all([] {});

  keyed_group groups[3];
  std::vector<keyed_bags> batches[3];
  for (const float first : {0.0F, 10.0F, 20.0F}) {
    const auto i = static_cast<std::size_t>(first / 10);
    groups[i].add(of(first).source(), combiner::sum);
    batches[i].push_back(of(first).bags());
  }
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        const auto i = static_cast<std::size_t>(first / 10);
        return resolve(in(memory), groups[i], batches[i]).or_throw();
      },
      check);
  large.table.move_all([] {});
  small.table.move_all([] {});
}

TEST_CASE("n01: owners of lists and tables take the place of others") {
  const std::vector<std::int64_t> ids{5, 3, 5, 4};
  const auto shifted = [&](float first) {
    std::vector<std::int64_t> made = ids;
    for (auto& id : made) id += static_cast<std::int64_t>(first);
    return made;
  };
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        unique_ids<> made(memory);
        REQUIRE(unique(here, shifted(first), made).ok());
        return made;
      },
      [](const unique_ids<>& made) { CHECK(made.ids == std::pmr::vector<std::int64_t>{15, 13, 14}); });
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        partitioned_ids<> made(memory);
        REQUIRE(partition(here, shifted(first), 100, 2, partition_strategy::mod, made).ok());
        return made;
      },
      [](const partitioned_ids<>& made) { CHECK(made.ids == std::pmr::vector<std::int64_t>{7, 7, 6, 7}); });
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        dense_table<f32_rows> made(100, 1, memory);
        made.initialize(here, [&](index_t, float* values, index_t) { values[0] = first; });
        return made;
      },
      [](const dense_table<f32_rows>& made) {
        CHECK(*reinterpret_cast<const float*>(made.view().row(99)) == 10.0F);
      });
  keyed tables[3] = {keyed(0), keyed(10), keyed(20)};
  assign_from_another_resource(
      [&](std::pmr::memory_resource* memory, float first) {
        keyed& of = tables[static_cast<std::size_t>(first / 10)];
        return name_rows<std::uint64_t>("rows", of.source(), memory);
      },
      [](const named_rows<std::uint64_t, keyed_rows>& made) {
        CHECK(*reinterpret_cast<const float*>(made.tables()[0].addresses[2]) == 13.0F);
        CHECK(made.keys()[2] == 3);
      });
  for (keyed& of : tables) of.table.move_all([] {});
}
