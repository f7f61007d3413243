// Exchanges over c10d process groups: test_ranks.py builds this, and calls every case in each process, with
// groups of its own.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/interop/c10d_ranks.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_blocks.hpp"
#include "support/seed.hpp"

// Of PyTorch's logging; doctest has its own.
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

std::uint64_t deeprec_test::seed() { return 1; }  // the same at all ranks

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::blocks_of_rank;
using deeprec_test::exchange_of;
using deeprec_test::fill;
using deeprec_test::right;
using deeprec_test::size_of;
using deeprec_test::trades_whole;

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> group, second_group, world;

wait_limit soon() { return within(60s); }
void meet() { world->barrier()->wait(); }
c10d_ranks ranks_of(const c10::intrusive_ptr<c10d::ProcessGroup>& of = group) {
  return c10d_ranks(c10d_link::over(of).or_throw());
}

// Each process has the failures of its own.
std::int64_t run_case(const std::string& name, const std::string& on, const std::string& beside,
                      const std::string& all) {
  group = c10d::resolve_process_group(on);
  second_group = c10d::resolve_process_group(beside);
  world = c10d::resolve_process_group(all);
  doctest::Context context;
  context.setOption("test-case", name.c_str());
  context.setOption("no-intro", true);
  const int failed = context.run();
  group = second_group = world = {};
  return failed;
}

}  // namespace

TORCH_LIBRARY(deeprec_test, m) {
  m.def("run_case(str name, str group, str second_group, str world) -> int", run_case);
}

TEST_CASE("whole") {
  c10d_ranks comm = ranks_of();
  blocks_of_rank b(comm.size());
  for (index_t t = 0; t < 40; ++t) CHECK(trades_whole(comm, b, t, soon()));
}

TEST_CASE("empty and long") {
  c10d_ranks comm = ranks_of();
  const int n = comm.size(), me = comm.rank();
  for (const index_t bytes : {index_t{0}, index_t{20'000'000}}) {
    blocks_of_rank b(n);
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      b.to[i] = b.out[i].make(r > me ? bytes : 0);
      std::fill(payload_of(b.to[i]).begin(), payload_of(b.to[i]).end(), static_cast<std::byte>(me + 1));
    }
    exchange x = exchange_of(b, message_kind::user, 0);
    REQUIRE(complete(comm, x, soon()).ok());
    for (int r = 0; r < n; ++r) {
      const std::span<std::byte> come = payload_of(b.from[static_cast<std::size_t>(r)]);
      CHECK(static_cast<index_t>(come.size()) == (r < me ? bytes : 0));
      CHECK(std::all_of(come.begin(), come.end(),
                        [r](std::byte c) { return c == static_cast<std::byte>(r + 1); }));
    }
  }
}

TEST_CASE("in flight") {
  c10d_ranks comm = ranks_of();
  const int n = comm.size(), me = comm.rank(), depth = comm.most_in_flight();
  std::vector<blocks_of_rank> blocks;
  std::vector<exchange> x(static_cast<std::size_t>(depth));
  for (int k = 0; k < depth; ++k) blocks.emplace_back(n);
  for (index_t round = 0; round < 20; ++round) {
    for (int k = 0; k < depth; ++k) {
      const auto i = static_cast<std::size_t>(k);
      fill(blocks[i], me, round * 10 + k);
      x[i] = exchange_of(blocks[i], message_kind::ids, round * 10 + k);
      REQUIRE(comm.begin(x[i]).ok());
      if (me == 1) REQUIRE(comm.wait(x[i], soon()) == queue_result::ok);  // the others don't wait
    }
    for (int k = depth - 1; k >= 0; --k) {
      const auto i = static_cast<std::size_t>(k);
      REQUIRE(comm.wait(x[i], soon()) == queue_result::ok);
      CHECK(right(blocks[i], me, x[i].step));
    }
  }
}

TEST_CASE("faults") {
  c10d_ranks comm = ranks_of();
  const int n = comm.size(), me = comm.rank();
  for (const bool known : {false, true}) {
    blocks_of_rank b(n);
    fill(b, me, 7);
    for (int r = 0; r < n && known; ++r)
      b.from[static_cast<std::size_t>(r)] = b.in[static_cast<std::size_t>(r)].make(size_of(r, me, 7));
    exchange x = exchange_of(b, message_kind::ids, 7);
    if (known) x.rooms = {};
    if (me == n - 1)
      x.fault = {errc::id_out_of_range, "ids", {.table = 3, .bag = 5, .position = 9, .value = -4}};
    const status s = complete(comm, x, soon());
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place() == fault_place{.table = 3, .bag = 5, .position = 9, .value = -4, .rank = n - 1});
    fill(b, me, 8);
    exchange y = exchange_of(b, message_kind::ids, 8);
    CHECK(complete(comm, y, soon()).ok());
    CHECK(right(b, me, 8));
  }
}

TEST_CASE("no memory") {
  c10d_ranks comm = ranks_of();
  const int n = comm.size(), me = comm.rank();
  blocks_of_rank b(n);
  std::vector<message_room> none;
  for (int r = 0; r < n; ++r) none.emplace_back(std::pmr::null_memory_resource());
  fill(b, me, 1);
  exchange x = exchange_of(b, message_kind::ids, 1);
  if (me == n - 1) x.rooms = none;
  CHECK(complete(comm, x, soon()).code() == (me == n - 1 ? errc::out_of_memory : errc::ok));
  exchange y = exchange_of(b, message_kind::rows, 1);
  y.fault = x.outcome;
  const status s = complete(comm, y, soon());
  CHECK(s.code() == errc::out_of_memory);
  CHECK(s.place().rank == n - 1);
  fill(b, me, 2);
  exchange z = exchange_of(b, message_kind::rows, 2);
  CHECK(complete(comm, z, soon()).ok());
  CHECK(right(b, me, 2));
}

TEST_CASE("another step") {
  c10d_ranks comm = ranks_of();
  const int me = comm.rank();
  blocks_of_rank b(comm.size());
  fill(b, me, 3);
  exchange x = exchange_of(b, me == 1 ? message_kind::gradients : message_kind::rows, me == 1 ? 17 : 16);
  const status s = complete(comm, x, soon());
  CHECK(s.code() == errc::invalid_value);
  CHECK(s.place().rank == (me == 1 ? 0 : 1));
  if (me == 0) {
    CHECK(explain(x) == "exchange: gradients of step 17 from rank 1, rows of step 16 at this one");
  }
  CHECK(comm.begin(x).code() == errc::closed);
  meet();
}

TEST_CASE("another size") {
  c10d_ranks comm = ranks_of();
  const int n = comm.size(), me = comm.rank();
  blocks_of_rank b(n);
  for (std::size_t r = 0; r < b.to.size(); ++r) {
    b.to[r] = b.out[r].make(me == 1 ? 24 : 16);
    b.from[r] = b.in[r].make(16);
  }
  exchange x{.kind = message_kind::rows, .step = 16, .to = b.to, .from = b.from};
  const status s = complete(comm, x, soon());
  CHECK(s.code() == (me == 1 ? errc::ok : errc::invalid_value));
  CHECK(s.place().rank == (me == 1 ? -1 : 1));
  // Who saw nothing is told.
  fill(b, me, 17);
  exchange y = exchange_of(b, message_kind::rows, 17);
  CHECK(complete(comm, y, soon()).code() == errc::closed);
  meet();
}

TEST_CASE("silent") {
  const int n = ranks_of().size();
  c10d_ranks comm = ranks_of();
  const int me = comm.rank();
  if (me == 1) {
    meet();
    blocks_of_rank b(n);
    fill(b, me, 5);
    exchange x = exchange_of(b, message_kind::gradients, 5);
    const status s = complete(comm, x, within(300ms));  // the others are gone
    CHECK((s.code() == errc::timed_out || s.code() == errc::closed));
    CHECK(s.place().rank != 1);
  } else {
    {
      blocks_of_rank b(n);
      fill(b, me, 5);
      exchange x = exchange_of(b, message_kind::gradients, 5);
      REQUIRE(comm.begin(x).ok());
      while (comm.awaited(x).size() > 1) std::this_thread::yield();
      CHECK(comm.awaited(x) == rank_list{1});
      CHECK(comm.wait(x, within(50ms)) == queue_result::timed_out);
      comm.abandon({errc::timed_out, "given up"});
      CHECK(x.outcome.code() == errc::timed_out);
      CHECK(comm.begin(x).code() == errc::closed);
    }  // c10d has none of these blocks
    meet();
  }
  meet();
}

TEST_CASE("two threads") {
  c10d_ranks first = ranks_of(), second = ranks_of(second_group);
  const auto run = [](c10d_ranks& on, index_t step) {
    blocks_of_rank b(on.size());
    int rights = 0;
    for (index_t t = step; t < step + 50; ++t) {
      fill(b, on.rank(), t);
      exchange x = exchange_of(b, message_kind::ids, t);
      rights += complete(on, x, soon()).ok() && right(b, on.rank(), t) ? 1 : 0;
    }
    return rights;
  };
  int beside = 0;
  std::thread other([&] { beside = run(second, 1000); });
  CHECK(run(first, 0) == 50);
  other.join();
  CHECK(beside == 50);
}

TEST_CASE("no group") {
  CHECK(c10d_link::over({}).fault().code() == errc::unsupported);
  c10d_ranks comm = ranks_of();
  CHECK(comm.duplicate().fault().code() == errc::unsupported);
}

// The process of rank 1 has ended.
TEST_CASE("gone") {
  c10d_ranks comm = ranks_of();
  blocks_of_rank b(comm.size());
  status s;
  for (index_t t = 0; t < 100 && s.ok(); ++t) {
    fill(b, comm.rank(), t);
    exchange x = exchange_of(b, message_kind::rows, t);
    s = complete(comm, x, soon());
  }
  CHECK(s.code() == errc::closed);
  CHECK(s.place().rank == (comm.size() == 2 ? 1 : -1));
}
