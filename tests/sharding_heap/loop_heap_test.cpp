// What steps of a sharded_loop allocate: nothing. operator new is replaced, so this is a program of its own.
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_loop.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/rank_threads.hpp"
#include "support/counted_new.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr int ranks = 3;
constexpr index_t rows = 200, width = 8, bags = 40, ids_of_bag = 3;
constexpr index_t first_counted = 40, last_counted = 140, steps = 160;

/// Some batches of a rank, each of three features, in turn.
class batches {
 public:
  explicit batches(int rank) {
    for (index_t b = 0; b <= bags; ++b) offsets_.push_back(b * ids_of_bag);
    for (std::uint64_t k = 0; k < kinds * features * bags * ids_of_bag; ++k)
      ids_.push_back(static_cast<std::int64_t>(mix64(k + static_cast<std::uint64_t>(rank) * 100'000) % rows));
    for (std::size_t k = 0; k < kinds * features; ++k)
      views_.emplace_back(offsets_.data(), bags, ids_.data() + k * bags * ids_of_bag, bags * ids_of_bag);
  }
  [[nodiscard]] std::span<const jagged_view<>> of(index_t step) const {
    return std::span(views_).subspan(static_cast<std::size_t>(step) % kinds * features, features);
  }

 private:
  static constexpr std::size_t kinds = 5, features = 3;
  std::vector<std::int64_t> offsets_, ids_;
  std::vector<jagged_view<>> views_;
};

// What all ranks allocate in the counted steps of rank 0. `leaks`: a rank allocates in each step.
std::size_t news_of_steps(index_t window, bool leaks = false) {
  std::size_t before = 0, behind = 0;
  on_ranks(ranks, {}, [&](thread_rank<> comm) {
    const int me = comm.rank();
    dense_table<f32_rows> part(part_rows(me, rows, ranks), width, state_of<rowwise_adagrad>),
        whole(me == 1 ? rows : 0, width, state_of<rowwise_adagrad>),
        copy(rows, width, state_of<rowwise_adagrad>);
    auto loop = sharded_loop<rowwise_adagrad, thread_rank<>>::make(comm, window).or_throw();
    loop.add(part.view(), combiner::mean, placement::rows{rows});
    loop.add(whole.view(), combiner::sum, placement::whole{1, rows});
    loop.add(copy.view(), combiner::sum, placement::replicated{rows});
    const batches mine(me);
    thread_pool pool(static_cast<int>(loop.slots()));
    rowwise_adagrad optimizer{.learning_rate = 0.1F};
    std::vector<std::unique_ptr<index_t>> kept;
    const auto next = [&](stale_step step) {
      return step.number < steps ? std::optional(mine.of(step.number)) : std::nullopt;
    };
    const auto compute = [&](stale_step step, matrix_view<const float> pooled, matrix_view<float> gradient) {
      if (me == 0 && step.number == first_counted) before = news.load();
      if (me == 0 && step.number == last_counted) behind = news.load();
      if (leaks && me == 2) kept.push_back(std::make_unique<index_t>(step.number));
      for (index_t b = 0; b < gradient.extent(0); ++b)
        std::copy_n(pooled.row(b), gradient.extent(1), gradient.row(b));
    };
    loop.run(pool, next, compute, optimizer).or_throw();
    CHECK(loop.updates() == steps);
  });
  return behind - before;
}

}  // namespace

TEST_CASE("sharded_loop: steps allocate nothing once their buffers have grown") {
  for (const index_t window : {1, 2, 4}) {
    CAPTURE(window);
    CHECK(news_of_steps(window) == 0);
  }
  CHECK(news_of_steps(2, true) > 0);  // it counts, at any rank
}
