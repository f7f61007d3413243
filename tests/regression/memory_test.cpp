// Ownership of outputs, refused memory, sizes that don't fit, and who asks a context's memory resource.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/children.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("e01: a batch of empty bags is not filled in place") {
  CHECK(in_child([] {
          jagged_batch<> b;
          b.offsets.assign(4, 0);  // three empty bags, and no ids ever
          std::vector<std::uint8_t> empty(3, 9);
          const status s = fill_empty_bags(inline_executor{}, b.view(), std::int64_t{7}, b, empty);
          const bool untouched =
              b.offsets == std::pmr::vector<index_t>(4, 0) && b.ids.empty() && empty[0] == 9;
          return s.code() == errc::unsupported && untouched ? 0 : 1;
        }) == 0);
}

TEST_CASE("e01b: offsets that out owns are not pruned in place") {
  const std::vector<std::int64_t> ids{-1, 5, 6};
  jagged_batch<> out;
  out.offsets = {0, 1, 3};
  out.ids.reserve(8);
  index_t dropped = 77;
  const jagged_view<> bags(out.offsets.data(), 2, ids.data(), 3);
  CHECK(prune_invalid(inline_executor{}, bags, prune_rule::by_id, out, dropped).code() == errc::unsupported);
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 1, 3});
  CHECK(dropped == 77);
}

TEST_CASE("e01c: rows of entries that out owns are not pruned in place") {
  const std::vector<std::int64_t> ids{5, -1, 6};
  jagged_batch<> out;
  out.offsets = {1, 0, 0};
  index_t dropped = 77;
  const coo_view<> entries(out.offsets.data(), ids.data(), 3, 2);
  CHECK(prune_invalid(inline_executor{}, entries, prune_rule::by_id, out, dropped).code() ==
        errc::unsupported);
  CHECK(out.offsets == std::pmr::vector<index_t>{1, 0, 0});
}

TEST_CASE("e02: weights that out owns are not sorted in place") {
  const std::vector<std::int64_t> rows{1, 0}, ids{5, 6};
  jagged_batch<> out;
  out.weights = {10.0F, 20.0F};
  const coo_view<> entries(rows.data(), ids.data(), 2, 2, out.weights.data());
  CHECK(to_jagged(inline_executor{}, entries, out).code() == errc::unsupported);
  CHECK(out.weights == std::pmr::vector<float>{10.0F, 20.0F});
}

TEST_CASE("e04: initialize asks the context's memory in no parallel body") {
  marking_executor marking;
  watching_resource memory;
  dense_table<f32_rows> table(200'000, 64), expected(200'000, 64);
  context ctx{marking};
  ctx.memory = &memory;
  table.initialize(ctx, row_init::uniform{.seed = 1});
  CHECK(memory.allocations > 0);
  CHECK(memory.misplaced == 0);
  expected.initialize(inline_executor{}, row_init::uniform{.seed = 1});
  CHECK(std::memcmp(table.view().data(), expected.view().data(), table.bytes()) == 0);
}

// The thread sanitizer sees two threads in the arena, whenever they come.
TEST_CASE("e04b: a reader of text asks an arena that is not thread-safe") {
  std::string text;
  for (int line = 0; line < 20'000; ++line) text += "1 7:2 " + std::to_string(line + 8) + ":1\n";
  const auto ids_of = [&](auto& executor, std::pmr::memory_resource* memory) {
    context ctx(executor);
    ctx.memory = memory;
    auto reader = read_text(ctx, libsvm_format{}, text, {.chunk_bytes = 4096}).or_throw();
    std::vector<std::int64_t> ids;
    sparse_batch batch;
    while (reader.next(batch, 1000).or_throw() > 0) {
      ids.insert(ids.end(), batch.feature(0).ids(), batch.feature(0).ids() + batch.feature(0).end_position());
    }
    return ids;
  };
  thread_pool pool(4);
  inline_executor here;
  std::pmr::monotonic_buffer_resource arena;
  const std::vector<std::int64_t> ids = ids_of(pool, &arena);
  CHECK(ids.size() == 40'000);
  CHECK(ids == ids_of(here, std::pmr::new_delete_resource()));
}

TEST_CASE("e09: a batch of more ids than can be counted is refused") {
  const std::vector<float> rows{1, 2, 3};
  std::vector<float> out{-7, -7};
  const std::vector<std::int64_t> ids{0, 1, 2, 0};
  const fixed_hotness_view<> bags(ids.data(), 2, index_t{1} << 62);
  CHECK(bags.validate().code() == errc::shape_mismatch);
  const auto table = as_table(matrix_view(rows.data(), 3, 1));
  CHECK(lookup(inline_executor{}, table, bags, combiner::sum, matrix_view(out.data(), 2, 1)).code() ==
        errc::shape_mismatch);
  CHECK(out == std::vector<float>{-7, -7});
}

TEST_CASE("e12: a lookup that is refused memory is a status, and has written nothing") {
  const std::vector<float> rows{1, 2, 3};
  std::vector<float> out{-7, -7};
  const std::vector<std::int64_t> ids(5001, 2), offsets{0, 1, 5001};
  inline_executor here;
  context ctx{here};
  ctx.memory = std::pmr::null_memory_resource();
  errc code = errc::ok;
  try {
    const jagged_view<> bags(offsets.data(), 2, ids.data(), 5001);
    code = lookup(ctx, as_table(matrix_view(rows.data(), 3, 1)), bags, combiner::sum,
                  matrix_view(out.data(), 2, 1))
               .code();
  } catch (const std::bad_alloc&) {
  }
  CHECK(code == errc::out_of_memory);
  CHECK(out == std::vector<float>{-7, -7});
}

TEST_CASE("e12b: an update of a group that is refused memory steps no table") {
  const std::vector<std::int64_t> ids(40'000, 1);
  const std::vector<float> gradient{1, 1};
  for (long granted = 0;; ++granted) {
    std::vector<float> large(3, 2), small(3, 2);
    feature_group<sgd, fixed_hotness_view<>> group;
    group.add(as_table(matrix_view(large.data(), 3, 1)), combiner::sum);
    group.add(as_table(matrix_view(small.data(), 3, 1)), combiner::sum);
    const std::vector<fixed_hotness_view<>> batches{{ids.data(), 1, 40'000}, {ids.data(), 1, 4}};
    allowance shared{.left = granted};
    refusing_resource memory(shared);
    inline_executor here;
    context ctx{here};
    ctx.memory = &memory;
    errc code = errc::io_error;
    try {
      code = update(ctx, group, batches, matrix_view<const float>(gradient.data(), 1, 2), sgd{}).code();
    } catch (const std::bad_alloc&) {
    }
    CAPTURE(granted);
    if (code == errc::ok) {
      CHECK(large[1] != 2);
      CHECK(granted > 0);
      break;
    }
    CHECK(code == errc::out_of_memory);
    CHECK(large == std::vector<float>(3, 2));
    CHECK(small == std::vector<float>(3, 2));
  }
}

TEST_CASE("e17: the gradient of rows without columns names its rows") {
  const std::vector<std::int64_t> ids{4, 2, 4};
  sparse_gradient out;
  out.rows = {9, 9};
  const matrix_view<const float> gradient(nullptr, 1, 0);
  REQUIRE(row_gradients(inline_executor{}, 5, fixed_hotness_view<>(ids.data(), 1, 3), combiner::sum, gradient,
                        out)
              .ok());
  CHECK(out.rows == std::pmr::vector<index_t>{2, 4});
}
