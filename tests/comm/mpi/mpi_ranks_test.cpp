// Exchanges between processes under mpirun: each process runs every case, in one order.
#include <mpi.h>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/mpi_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_blocks.hpp"

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::blocks_of_rank;
using deeprec_test::fill;
using deeprec_test::right;
using deeprec_test::size_of;
using deeprec_test::trades_whole;

namespace {

wait_limit soon() { return within(60s); }

// MPI lasts as long as the program.
struct mpi_run {
  mpi_run() { MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided); }
  ~mpi_run() { MPI_Finalize(); }
  int provided = 0;
} const the_run;

mpi_calls calls_here() {
  return the_run.provided == MPI_THREAD_MULTIPLE ? mpi_calls::at_once : mpi_calls::one_thread;
}
mpi_ranks world(index_t most_bytes = index_t{1} << 30) {
  return mpi_ranks::over(MPI_COMM_WORLD, {.calls = calls_here(), .most_bytes = most_bytes}).or_throw();
}

}  // namespace

TEST_CASE("mpi_ranks: each message arrives whole at its rank, whatever its size, also in pieces") {
  for (const index_t most : {index_t{64}, index_t{65}, index_t{1000}, index_t{1} << 30}) {
    mpi_ranks comm = world(most);
    blocks_of_rank b(comm.size());
    for (index_t t = 0; t < 40; ++t) CHECK(trades_whole(comm, b, t, soon()));
  }
}

TEST_CASE("mpi_ranks: a message of two pieces and a byte arrives whole (2 GiB: DEEPREC_LARGE_MESSAGES=1)") {
  std::vector<index_t> pieces = {64, 1000, 1 << 20};
  if (std::getenv("DEEPREC_LARGE_MESSAGES") != nullptr) pieces.push_back(index_t{1} << 30);
  for (const index_t most : pieces) {
    for (const bool known : {false, true}) {
      mpi_ranks comm = world(most);
      const int n = comm.size(), me = comm.rank();
      const auto payload = [&](int from, int to) {
        return from == 0 && to == 1 ? 2 * most + 1 - index_t{sizeof(message_header)} : index_t{8};
      };
      const auto byte_at = [](std::size_t i) { return static_cast<std::byte>(i * 0x9e37'79b9 >> 13); };
      blocks_of_rank b(n);
      for (int r = 0; r < n; ++r) {
        const auto i = static_cast<std::size_t>(r);
        b.to[i] = b.out[i].make(payload(me, r));
        const std::span<std::byte> bytes = payload_of(b.to[i]);
        for (std::size_t k = 0; k < bytes.size(); ++k) bytes[k] = byte_at(k);
        if (known) b.from[i] = b.in[i].make(payload(r, me));
      }
      exchange x{.kind = message_kind::rows, .step = 1, .to = b.to, .from = b.from};
      if (!known) x.rooms = b.in;
      REQUIRE(complete(comm, x, within(600s)).ok());
      for (int r = 0; r < n; ++r) {
        const std::span<std::byte> bytes = payload_of(b.from[static_cast<std::size_t>(r)]);
        bool same = static_cast<index_t>(bytes.size()) == payload(r, me);
        for (std::size_t k = 0; r != me && same && k < bytes.size(); ++k) same = bytes[k] == byte_at(k);
        CHECK((same || r == me));
      }
    }
  }
}

TEST_CASE("mpi_ranks: several exchanges in flight end in any order") {
  mpi_ranks comm = world();
  const int n = comm.size(), depth = comm.most_in_flight();
  std::vector<blocks_of_rank> blocks;
  std::vector<exchange> x(static_cast<std::size_t>(depth + 1));
  for (int k = 0; k <= depth; ++k) blocks.emplace_back(n);
  for (index_t round = 0; round < 20; ++round) {
    const auto begin = [&](int k) {
      const auto i = static_cast<std::size_t>(k);
      fill(blocks[i], comm.rank(), round * 10 + k);
      x[i] = {.kind = message_kind::ids,
              .step = round * 10 + k,
              .to = blocks[i].to,
              .from = blocks[i].from,
              .rooms = blocks[i].in};
      return comm.begin(x[i]);
    };
    for (int k = 0; k < depth; ++k) REQUIRE(begin(k).ok());
    CHECK(begin(depth).code() == errc::would_block);
    for (int k = depth - 1; k >= 0; --k) {
      const auto i = static_cast<std::size_t>(k);
      REQUIRE(comm.wait(x[i], soon()) == queue_result::ok);
      CHECK(right(blocks[i], comm.rank(), x[i].step));
    }
    REQUIRE(begin(depth).ok());
    REQUIRE(comm.wait(x.back(), soon()) == queue_result::ok);
  }
}

TEST_CASE(
    "mpi_ranks: faults of some ranks are the fault of the smallest one, at all of them, also of long "
    "messages") {
  for (const bool known : {false, true}) {
    mpi_ranks comm = world(100);
    const int n = comm.size(), me = comm.rank();
    blocks_of_rank b(n);
    fill(b, me, 7);
    for (int r = 0; r < n && known; ++r)
      b.from[static_cast<std::size_t>(r)] = b.in[static_cast<std::size_t>(r)].make(size_of(r, me, 7));
    exchange x{.kind = message_kind::ids, .step = 7, .to = b.to, .from = b.from};
    if (!known) x.rooms = b.in;
    if (me == n - 1)
      x.fault = {errc::id_out_of_range, "ids", {.table = 3, .bag = 5, .position = 9, .value = -4}};
    const status s = complete(comm, x, soon());
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place() == fault_place{.table = 3, .bag = 5, .position = 9, .value = -4, .rank = n - 1});
    fill(b, me, 8);
    exchange y{.kind = message_kind::ids, .step = 8, .to = b.to, .from = b.from, .rooms = b.in};
    CHECK(complete(comm, y, soon()).ok());
    CHECK(right(b, me, 8));
  }
}

TEST_CASE("mpi_ranks: a rank without memory for messages fails alone, and takes part in the next exchange") {
  for (const index_t most : {index_t{100}, index_t{1} << 30}) {
    mpi_ranks comm = world(most);
    const int n = comm.size(), me = comm.rank();
    blocks_of_rank b(n);
    std::vector<message_room> none;
    for (int r = 0; r < n; ++r) none.emplace_back(std::pmr::null_memory_resource());
    fill(b, me, 1);
    exchange x{.kind = message_kind::ids, .step = 1, .to = b.to, .from = b.from, .rooms = b.in};
    if (me == n - 1) x.rooms = none;
    CHECK(complete(comm, x, soon()).code() == (me == n - 1 ? errc::out_of_memory : errc::ok));
    exchange y{
        .kind = message_kind::rows, .step = 1, .fault = x.outcome, .to = b.to, .from = b.from, .rooms = b.in};
    const status s = complete(comm, y, soon());
    CHECK(s.code() == errc::out_of_memory);
    CHECK(s.place().rank == n - 1);
    fill(b, me, 2);
    exchange z{.kind = message_kind::rows, .step = 2, .to = b.to, .from = b.from, .rooms = b.in};
    CHECK(complete(comm, z, soon()).ok());
    CHECK(right(b, me, 2));
  }
}

TEST_CASE("mpi_ranks: messages of another step or size end the communicator, and name the rank") {
  for (const int way : {0, 1, 2}) {  // another step; too short; too long
    mpi_ranks comm = world();
    const int n = comm.size(), me = comm.rank();
    const bool other = me == 1;
    blocks_of_rank b(n);
    for (std::size_t r = 0; r < b.to.size(); ++r) {
      b.to[r] = b.out[r].make(other && way > 0 ? 16 * way - 8 : 16);
      b.from[r] = b.in[r].make(16);
    }
    exchange x{.kind = message_kind::rows, .step = other && way == 0 ? 17 : 16, .to = b.to, .from = b.from};
    const status s = complete(comm, x, soon());
    if (n == 2 || other || way > 0) {
      // At the rank whose blocks differ, others are right: with a step of its own it sees theirs.
      if (other && way > 0) {
        CHECK((s.ok() || s.code() == errc::closed));
      } else {
        CHECK((s.code() == errc::invalid_value || s.code() == errc::closed));
        CHECK(s.place().rank >= 0);
      }
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST_CASE(
    "mpi_ranks: a rank that does not come is named when the limit has passed; who comes later is told") {
  mpi_ranks comm = world();
  const int n = comm.size(), me = comm.rank();
  blocks_of_rank b(n);
  fill(b, me, 5);
  exchange x{.kind = message_kind::gradients, .step = 5, .to = b.to, .from = b.from, .rooms = b.in};
  if (me != 1) {
    REQUIRE(comm.begin(x).ok());
    // The messages of the others come first, unless one of them gives up before.
    while (comm.awaited(x).size() > 1 && comm.poll(x) == queue_result::not_now) std::this_thread::yield();
    const queue_result r = comm.wait(x, within(50ms));
    CHECK((r == queue_result::timed_out || r == queue_result::failed));
    if (r == queue_result::timed_out) {
      CHECK(comm.awaited(x) == rank_list{1});
      comm.abandon({errc::timed_out, "given up"});
    } else {
      CHECK(x.outcome.code() == errc::closed);
    }
    CHECK(comm.begin(x).code() == errc::closed);
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
    // Messages of the others may have come before their end: it is seen by the next exchange at the latest.
    status s = complete(comm, x, soon());
    if (s.ok()) {
      fill(b, me, 6);
      exchange y{.kind = message_kind::gradients, .step = 6, .to = b.to, .from = b.from, .rooms = b.in};
      s = complete(comm, y, soon());
    }
    CHECK(s.code() == errc::closed);
    CHECK(s.place().rank != 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("mpi_ranks: duplicates are apart, also for two threads at once; groups are numbered by key") {
  mpi_ranks comm = world();
  mpi_ranks second = comm.duplicate().or_throw();
  const auto run = [](mpi_ranks& on, index_t first) {
    blocks_of_rank b(on.size());
    int rights = 0;
    for (index_t t = first; t < first + 50; ++t) {
      fill(b, on.rank(), t);
      exchange x{.kind = message_kind::ids, .step = t, .to = b.to, .from = b.from, .rooms = b.in};
      rights += complete(on, x, soon()).ok() && right(b, on.rank(), t) ? 1 : 0;
    }
    return rights;
  };
  if (calls_here() == mpi_calls::at_once) {
    int beside = 0;
    std::thread other([&] { beside = run(second, 1000); });
    CHECK(run(comm, 0) == 50);
    other.join();
    CHECK(beside == 50);
  } else {
    MESSAGE("this MPI has no MPI_THREAD_MULTIPLE: two threads at once are not tested");
    CHECK(run(comm, 0) == 50);
    CHECK(run(second, 1000) == 50);
  }
  result<mpi_ranks> half = comm.split(comm.rank() == 0 ? -1 : 0, -comm.rank());
  if (comm.rank() == 0) {
    CHECK(half.fault().code() == errc::unsupported);
  } else {
    CHECK(half.value().size() == comm.size() - 1);
    CHECK(half.value().rank() == comm.size() - 1 - comm.rank());
    CHECK(run(half.value(), 0) == 50);
  }
}

TEST_CASE("mpi_ranks: options that MPI can't do are refused") {
  CHECK(mpi_ranks::over(MPI_COMM_WORLD, {.most_bytes = 63}).fault().code() == errc::invalid_value);
  CHECK(mpi_ranks::over(MPI_COMM_WORLD, {.most_bytes = index_t{1} << 31}).fault().code() ==
        errc::invalid_value);
  const auto made = mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::at_once});
  CHECK(static_cast<bool>(made) == (the_run.provided == MPI_THREAD_MULTIPLE));
  if (!made) CHECK(made.fault().code() == errc::unsupported);
}

// Of a sum that does not end: tests/sharding/mpi/lost_rank.cpp, since MPI_Finalize must not follow it.
TEST_CASE("mpi_ranks: sums of any length are those of all ranks, in pieces as in one") {
  for (const index_t most : {index_t{64}, index_t{1000}, index_t{1} << 30}) {
    mpi_ranks comm = world(most);
    for (const std::size_t length : {0, 1, 15, 16, 17, 1000}) {
      std::vector<float> values(length);
      for (std::size_t i = 0; i < length; ++i)
        values[i] = static_cast<float>(i) + static_cast<float>(comm.rank());
      REQUIRE(comm.sum(values, soon()).ok());
      const int n = comm.size();
      bool same = true;
      for (std::size_t i = 0; i < length; ++i)
        same = same && values[i] == static_cast<float>(n) * static_cast<float>(i) +
                                        static_cast<float>(n * (n - 1) / 2);
      CHECK(same);
    }
  }
}
