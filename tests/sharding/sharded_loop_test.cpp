// A window over tables of many ranks, against one process that looks up in the tables of an earlier step.
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/sharding/placement.hpp>
#include <deeprec/sharding/sharded_loop.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/rank_threads.hpp"
#include "sharding/loop_trial.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr std::chrono::seconds minute(60);

std::vector<loop_trial::outcome> run(const loop_trial& trial, bool restless = true) {
  std::vector<loop_trial::outcome> all(static_cast<std::size_t>(trial.ranks()));
  on_ranks(trial.ranks(), {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    all[static_cast<std::size_t>(comm.rank())] = trial.at_rank(comm, restless, minute);
  });
  return all;
}
// With the definition of one window, and the ranks at another.
bool same(std::vector<index_t> steps_of, index_t window, index_t of_definition, index_t requests = 0,
          bool restless = true) {
  loop_trial trial{std::move(steps_of), window, requests};
  trial.expect(of_definition);
  bool fine = true;
  for (const auto& o : run(trial, restless)) {
    if (!o.ended) MESSAGE(o.ended.message());
    fine = fine && o.ended.ok() && o.fine && o.updates == trial.steps();
  }
  return fine;
}

}  // namespace

TEST_CASE("sharded_loop: lookup t sees the updates of all ranks up to t - W, and no others") {
  for (int n = 1; n <= 4; ++n) {
    CAPTURE(n);
    for (index_t window = 1; window <= 4; ++window) {
      CAPTURE(window);
      for (const bool restless : {false, true})
        CHECK(same(std::vector<index_t>(static_cast<std::size_t>(n), 7), window, window,
                   restless ? window + n % 3 : 0, restless));
    }
  }
}
TEST_CASE("sharded_loop: a window that is one too long or too short is seen") {
  CHECK(!same({9, 9, 9}, 2, 3));
  CHECK(!same({9, 9, 9}, 2, 1));
  CHECK(!same({9, 9, 9}, 4, 3));
}
TEST_CASE("sharded_loop: numbers of batches that differ: no rank waits, and each batch is trained on") {
  for (index_t window = 1; window <= 3; ++window) {
    CHECK(same({3, 5, 0}, window, window));
    CHECK(same({0, 0, 6}, window, window));
    CHECK(same({1, 0}, window, window));
    CHECK(same({0, 0}, window, window));
  }
}

TEST_CASE(
    "sharded_loop: a fault of one rank is that of all; the steps before it are whole, later ones not "
    "applied") {
  for (const loop_fault f : {loop_fault::id, loop_fault::no_batch, loop_fault::compute}) {
    CAPTURE(static_cast<int>(f));
    for (index_t window = 1; window <= 3; ++window) {
      CAPTURE(window);
      for (const index_t at : {0, 3, 8}) {
        CAPTURE(at);
        loop_trial trial{{9, 9, 9}, window};
        trial.fault = f;
        trial.faulty = 1;
        trial.at = at;
        trial.expect(window);
        for (const auto& o : run(trial)) {
          CHECK(o.ended.code() == (f == loop_fault::id         ? errc::id_out_of_range
                                   : f == loop_fault::no_batch ? errc::io_error
                                                               : errc::weight_is_nan));
          CHECK(o.ended.place().rank == 1);
          CHECK(o.updates == at);
          CHECK(o.fine);
        }
      }
    }
  }
}
TEST_CASE("sharded_loop: a stop of one rank stops all of them between two steps") {
  for (index_t window = 1; window <= 3; ++window) {
    loop_trial trial{std::vector<index_t>(3, 30), window};
    trial.fault = loop_fault::stop;
    trial.faulty = 2;
    trial.at = 4;
    trial.expect(window);
    trial.fault = loop_fault::stop;
    const auto all = run(trial);
    for (const auto& o : all) {
      CHECK(o.ended.code() == errc::stopped);
      CHECK(o.ended.place().rank == 2);
      CHECK(o.updates == all[0].updates);
      CHECK(o.updates > 4);
      CHECK(o.updates < 30);
      CHECK(o.fine);
    }
  }
}
TEST_CASE("sharded_loop: a part that throws ends all ranks") {
  loop_trial trial{{9, 9}, 2};
  trial.fault = loop_fault::throws;
  trial.faulty = 1;
  trial.at = 3;
  trial.expect(2);
  const auto all = run(trial);
  CHECK(all[1].ended.code() == errc::cancelled);
  CHECK(all[0].ended.code() == errc::closed);
  CHECK(all[0].ended.place().rank == 1);
}
TEST_CASE("sharded_loop: a window without an update, and fewer requests than it, are refused") {
  on_ranks(1, {}, [&](thread_rank<> comm) {
    using loop_type = sharded_loop<sgd, thread_rank<>>;
    CHECK(loop_type::make(comm, 0).code() == errc::invalid_value);
    CHECK(loop_type::make(comm, 3, {.requests = 2}).code() == errc::invalid_value);
    CHECK(loop_type::make(comm, 3, {.requests = 3}).ok());
  });
}
TEST_CASE("sharded_loop: an example; another run follows") {
  std::atomic<index_t> bags_seen{0};
  on_ranks(2, {}, [&](thread_rank<> comm) {
    const int me = comm.rank();
    dense_table<f32_rows> part(part_rows(me, 10, 2), f32_rows(4));
    const std::vector<std::int64_t> offsets{0, 2}, ids{3, 8};
    const std::vector<jagged_view<>> batch{{offsets.data(), 1, ids.data(), 2}};
    for (index_t k = 0; k < 1; ++k) {
      //! [sharded_loop]
      auto loop = sharded_loop<sgd, thread_rank<>>::make(comm, 2).or_throw();
      loop.add(part.view(), combiner::sum, placement::rows{10});
      thread_pool pool(static_cast<int>(loop.slots()));
      sgd optimizer{.learning_rate = 0.5F};
      const auto next = [&](stale_step step) {
        return step.number < 3 + me ? std::optional<std::span<const jagged_view<>>>(batch) : std::nullopt;
      };
      const auto compute = [&](stale_step, matrix_view<const float> pooled, matrix_view<float> gradient) {
        bags_seen += pooled.extent(0);
        for (index_t b = 0; b < gradient.extent(0); ++b)
          std::fill_n(gradient.row(b), gradient.extent(1), 1.0F);
      };
      loop.run(pool, next, compute, optimizer).or_throw();
      //! [sharded_loop]
      loop.run(pool, next, compute, optimizer).or_throw();
      CHECK(loop.updates() == 4);
    }
    // Rows 3 and 8: a gradient of 1 from each of 3 + 4 batches, twice.
    const index_t row = me == 1 ? 1 : 4;
    CHECK(reinterpret_cast<const float*>(part.view().row(row))[0] == -7.0F);
    CHECK(reinterpret_cast<const float*>(part.view().row(0))[0] == 0.0F);
  });
  CHECK(bags_seen == 14);
}
