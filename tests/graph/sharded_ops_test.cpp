// Tables of many ranks in a step graph: the bits of the verbs by hand, in a step and with lookups that run
// ahead.
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/ops/sharded_ops.hpp>
#include <deeprec/graph/step/async_embedding.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "comm/rank_threads.hpp"
#include "sharding/loop_trial.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using tables_type = sharded_tables<rowwise_adagrad, thread_rank<>>;

// The tables of a trial at a rank, and its step as a graph.
struct rank_graph {
  rank_graph(const loop_trial& of, thread_rank<> comm, index_t slots)
      : trial(&of),
        me(comm.rank()),
        tables(tables_type::make(comm, slots, {.patience = std::chrono::seconds(60)}).or_throw()) {
    const int n = comm.size();
    const std::vector<table_type> first = trial->tables_with(trial->tables[0]);
    for (std::size_t f = 0; f < trial->features.size(); ++f) {
      const feature& x = trial->features[f];
      const bool holds = x.is_whole() && x.rank == me;
      parts.push_back(make_table(x.is_whole() ? (holds ? x.rows : 0) : part_rows(me, x.rows, n), x.width,
                                 loop_trial::state, 0));
      for (index_t k = 0; k < parts.back().rows(); ++k)
        copy_row(first[f], holds ? k : k * n + me, parts.back(), k);
    }
    for (std::size_t f = 0; f < parts.size(); ++f) {
      const feature& x = trial->features[f];
      if (x.is_whole()) {
        tables.add(parts[f].view(), combiner::sum, placement::whole{x.rank, x.rows});
      } else if (x.what == kind::rows_sum) {
        tables.add(parts[f].view(), combiner::sum, placement::rows{x.rows});
      } else {
        tables.add(parts[f].view(), combiner::mean, placement::rows{x.rows});
      }
    }
    make_graph();
  }
  void make_graph() {
    const auto rows = graph.variable("tables", tables);
    const auto lookups = graph.variable("lookups", front), updates = graph.variable("updates", back);
    const auto read =
        graph.source<index_t>("read", [this](index_t& t) { return (t = next) < end && (++next, true); });
    std::vector<value<jagged_batch<>>> bags;
    for (std::size_t f = 0; f < parts.size(); ++f) {
      bags.push_back(graph.add<jagged_batch<>>(
          "bags",
          [this, f](index_t t, jagged_batch<>& out) {
            const batch& b = trial->batches[static_cast<std::size_t>(t)][static_cast<std::size_t>(me)][f];
            out.offsets.assign(b.offsets.begin(), b.offsets.end());
            out.ids.assign(b.ids.begin(), b.ids.end());
            if (f == 0 && t == bad_step) out.ids.assign(out.ids.size(), 1'000'000);
          },
          read));
    }
    const auto located =
        graph.add("lookup", sharded_lookup_op<tables_type>{}, bags, graph.read(rows), graph.write(lookups));
    const value<matrix_value> gradient = graph.add<matrix_value>(
        "gradient",
        [this](index_t t, const matrix_value& pooled, matrix_value& out) {
          const auto& must_be = trial->outs[static_cast<std::size_t>(t)][static_cast<std::size_t>(me)];
          fine = fine && pooled.rows() * pooled.columns() == static_cast<index_t>(must_be.size()) &&
                 (must_be.empty() || std::memcmp(pooled.view().data_handle(), must_be.data(),
                                                 must_be.size() * sizeof(float)) == 0);
          const auto g = out.make(pooled.rows(), pooled.columns());
          for (index_t b = 0; b < g.extent(0); ++b) {
            for (index_t c = 0; c < g.extent(1); ++c)
              g.row(b)[c] = loop_trial::gradient(t, me, b, c, pooled.view().row(b)[c]);
          }
        },
        read, located.get<0>());
    graph
        .add("update", sharded_update_op<tables_type, rowwise_adagrad>{loop_trial::optimizer()}, bags,
             located.get<1>(), gradient, graph.write(rows), graph.write(updates))
        .role(op_role::apply)
        .target();
  }
  // Whether the rows are those behind a number of updates.
  [[nodiscard]] bool has_rows(index_t updates, int n) const {
    const auto is = loop_trial::rows_of(parts);
    const auto& must_be = trial->tables[static_cast<std::size_t>(updates)];
    for (std::size_t f = 0; f < parts.size(); ++f) {
      const auto floats = static_cast<std::size_t>(trial->features[f].width + loop_trial::state);
      for (index_t k = 0; k < parts[f].rows(); ++k) {
        const auto row = static_cast<std::size_t>(trial->features[f].is_whole() ? k : k * n + me);
        if (std::memcmp(is[f].data() + static_cast<std::size_t>(k) * floats, must_be[f].data() + row * floats,
                        floats * sizeof(float)) != 0)
          return false;
      }
    }
    return true;
  }

  const loop_trial* trial;
  int me;
  std::vector<table_type> parts;
  tables_type tables;
  message_channel front, back;
  step_graph graph;
  index_t next = 0, end = 0, bad_step = -1;
  bool fine = true;  // what was looked up; written by one op, in order
};

constexpr index_t all_steps = 8;

bool same(int n, index_t window, index_t of_definition) {
  loop_trial trial{std::vector<index_t>(static_cast<std::size_t>(n), all_steps), window};
  trial.expect(of_definition);
  std::atomic<bool> fine{true};
  on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    rank_graph mine(trial, comm, window);
    mine.end = all_steps;
    const async_graph ahead =
        async_embedding(mine.graph, {.window = window, .kinds = {"sharded_lookup"}}).or_throw();
    thread_pool pool(3);
    staged_program program =
        staged_program::compile(ahead.graph, {.capacity = static_cast<std::size_t>(window) + 1}).or_throw();
    const result<void> ran = program.run(pool, [](step_state&) {});
    if (!ran) MESSAGE(ran.message());
    if (!ran || !mine.fine || !mine.has_rows(all_steps, n)) fine = false;
  });
  return fine;
}

}  // namespace

TEST_CASE("sharded ops: lookups that run ahead see the updates of all ranks up to t - W, and no others") {
  for (int n = 1; n <= 3; ++n) {
    CAPTURE(n);
    for (index_t window = 1; window <= 4; ++window) {
      CAPTURE(window);
      CHECK(same(n, window, window));
    }
  }
  CHECK(!same(3, 2, 3));
  CHECK(!same(3, 3, 1));
}
TEST_CASE("sharded ops: in a step they are the verbs by hand; a fault of one rank is that of all") {
  loop_trial trial{{all_steps, all_steps, all_steps}, 1};
  trial.expect(1);
  on_ranks(3, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    rank_graph mine(trial, comm, 1);
    mine.end = all_steps;
    mine.bad_step = comm.rank() == 1 ? 5 : -1;
    step_program program = step_program::compile(mine.graph).or_throw();
    step_state state = program.make_state();
    inline_executor here;
    result<bool> ran = true;
    index_t done = 0;
    while (ran.ok() && ran.value()) {
      ran = program.run(here, state);
      if (ran.ok()) ++done;
    }
    CHECK(done == 5);
    CHECK(ran.code() == errc::id_out_of_range);
    CHECK(ran.message().find("lookup") != std::string::npos);
    CHECK(mine.fine);
    CHECK(mine.has_rows(5, 3));
  });
}
TEST_CASE("sharded ops: a channel keeps steps from overlapping before a cut") {
  loop_trial trial{{all_steps}, 2};
  trial.expect(2);
  on_ranks(1, {}, [&](thread_rank<> comm) {
    rank_graph mine(trial, comm, 2);
    const async_graph ahead =
        async_embedding(mine.graph, {.window = 2, .kinds = {"sharded_lookup"}}).or_throw();
    const auto made = staged_program::compile(ahead.graph, {.producers = 2});
    CHECK(made.code() == errc::unsupported);
    CHECK(made.message().find("lookup") != std::string::npos);
    CHECK(tables_type::make(comm, 0).code() == errc::invalid_value);
  });
}
