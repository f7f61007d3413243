// Exchanges over a link that knows no tags: calls meet by their order, and their sizes must be equal.
#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/ordered_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/ordered_threads.hpp"
#include "comm/rank_blocks.hpp"

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::blocks_of_rank;
using deeprec_test::exchange_of;
using deeprec_test::fill;
using deeprec_test::on_ordered_ranks;
using deeprec_test::ordered_board;
using deeprec_test::ordered_thread_link;
using deeprec_test::ordered_thread_rank;
using deeprec_test::right;
using deeprec_test::size_of;
using deeprec_test::trades_whole;

namespace {

wait_limit soon() { return within(30s); }

}  // namespace

TEST_CASE("exchange: a header that counts fewer than 0 bytes is an error that names its rank") {
  exchange x{.kind = message_kind::rows, .step = 3};
  message_header h = detail::header_of(x, 5, sizeof(message_header));
  CHECK(detail::check_header(h, 2, 5, x).ok());
  h.bytes = -8;
  const status s = detail::check_header(h, 2, 5, x);
  CHECK(s.code() == errc::invalid_value);
  CHECK(s.place().rank == 2);
}

TEST_CASE("ordered_ranks: each message arrives whole at its rank, whether its size is known or not") {
  for (const int n : {1, 2, 3, 5}) {
    std::atomic<int> rights{0};
    const index_t steps = 40;
    const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
      blocks_of_rank b(n);
      for (index_t t = 0; t < steps; ++t) rights += trades_whole(comm, b, t, soon()) ? 1 : 0;
    });
    CHECK(whole);
    CHECK(rights == n * steps);
  }
}

TEST_CASE("ordered_ranks: calls meet in one order whatever each rank polls between them") {
  const int n = 3;
  std::atomic<int> rights{0};
  const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
    const int depth = comm.most_in_flight(), me = comm.rank();
    std::vector<blocks_of_rank> blocks;
    std::vector<exchange> x(static_cast<std::size_t>(depth));
    for (int k = 0; k < depth; ++k) blocks.emplace_back(n);
    for (index_t round = 0; round < 20; ++round) {
      for (int k = 0; k < depth; ++k) {
        const auto i = static_cast<std::size_t>(k);
        fill(blocks[i], me, round * 10 + k);
        x[i] = exchange_of(blocks[i], message_kind::ids, round * 10 + k);
        REQUIRE(comm.begin(x[i]).ok());
        // One rank waits for each, one looks at some, one at none.
        if (me == 1) static_cast<void>(comm.poll(x[i / 2]));
        if (me == 2) REQUIRE(comm.wait(x[i], soon()) == queue_result::ok);
      }
      for (int k = depth - 1; k >= 0; --k) {
        const auto i = static_cast<std::size_t>(k);
        if (comm.wait(x[i], soon()) == queue_result::ok && right(blocks[i], me, x[i].step)) ++rights;
      }
    }
  });
  CHECK(whole);
  CHECK(rights == n * 20 * 4);
}

TEST_CASE("ordered_ranks: one exchange more than may be in flight is refused, and can be begun later") {
  std::atomic<bool> refused{false};
  std::atomic<int> rights{0};
  const bool whole = on_ordered_ranks(2, [&](ordered_thread_rank comm, ordered_board&) {
    const int me = comm.rank(), count = comm.most_in_flight() + 1;
    while (me == 1 && !refused) std::this_thread::yield();
    std::vector<blocks_of_rank> blocks;
    std::vector<exchange> x(static_cast<std::size_t>(count));
    for (int k = 0; k < count; ++k) {
      const auto i = static_cast<std::size_t>(k);
      blocks.emplace_back(2);
      fill(blocks[i], me, k);
      x[i] = exchange_of(blocks[i], message_kind::ids, k);
      if (me == 0 && k == count - 1) {
        CHECK(comm.begin(x[i]).code() == errc::would_block);
        refused = true;
        REQUIRE(comm.wait(x[0], soon()) == queue_result::ok);
      }
      REQUIRE(comm.begin(x[i]).ok());
      if (me == 1) REQUIRE(comm.wait(x[i], soon()) == queue_result::ok);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (comm.wait(x[i], soon()) == queue_result::ok && right(blocks[i], me, x[i].step)) ++rights;
    }
  });
  CHECK(whole);
  CHECK(rights == 10);
}

TEST_CASE(
    "ordered_ranks: faults of some ranks are the fault of the smallest one, at all of them, where sizes are "
    "known to some") {
  const int n = 4;
  std::vector<status> seen(n);
  std::atomic<int> rights{0};
  const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
    const int me = comm.rank();
    blocks_of_rank b(n);
    fill(b, me, 7);
    for (int r = 0; r < n && me == 0; ++r)
      b.from[static_cast<std::size_t>(r)] = b.in[static_cast<std::size_t>(r)].make(size_of(r, me, 7));
    exchange x = exchange_of(b, message_kind::gradients, 7);
    if (me == 0) x.rooms = {};
    if (me == 1) x.fault = {errc::id_out_of_range, "ids", {.table = 3, .bag = 5, .position = 9, .value = -4}};
    if (me == 3) {
      x.fault = {errc::out_of_memory, "none"};
      x.to = {};
    }
    seen[static_cast<std::size_t>(me)] = complete(comm, x, soon());
    fill(b, me, 8);
    exchange y = exchange_of(b, message_kind::ids, 8);
    if (complete(comm, y, soon()).ok() && right(b, me, 8)) ++rights;
  });
  CHECK(whole);
  CHECK(rights == n);
  for (const status& s : seen) {
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place() == fault_place{.table = 3, .bag = 5, .position = 9, .value = -4, .rank = 1});
  }
}

TEST_CASE("ordered_ranks: a rank without memory for a message fails alone, and takes part in the next one") {
  const int n = 3;
  std::vector<status> first(n), second(n);
  const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
    const int me = comm.rank();
    const auto i = static_cast<std::size_t>(me);
    blocks_of_rank b(n);
    std::vector<message_room> none;
    for (int r = 0; r < n; ++r) none.emplace_back(std::pmr::null_memory_resource());
    fill(b, me, 1);
    exchange x = exchange_of(b, message_kind::ids, 1);
    if (me == 2) x.rooms = none;
    first[i] = complete(comm, x, soon());
    exchange y = exchange_of(b, message_kind::rows, 1);
    y.fault = x.outcome;
    second[i] = complete(comm, y, soon());
  });
  CHECK(whole);
  CHECK(first[0].ok());
  CHECK(first[1].ok());
  CHECK(first[2].code() == errc::out_of_memory);
  for (const status& s : second) {
    CHECK(s.code() == errc::out_of_memory);
    CHECK(s.place().rank == 2);
  }
}

TEST_CASE("ordered_ranks: a link without memory refuses the beginning, or ends the communicator") {
  for (const int refused : {0, 1}) {
    std::vector<status> seen(2);
    const bool whole = on_ordered_ranks(2, [&](ordered_thread_rank given, ordered_board& board) {
      const int me = given.rank();
      ordered_thread_rank comm(ordered_thread_link{&board, me, me == 1 ? refused : -1});
      blocks_of_rank b(2);
      fill(b, me, 1);
      exchange x = exchange_of(b, message_kind::ids, 1);
      if (me == 1 && refused == 0) {
        CHECK(comm.begin(x).code() == errc::out_of_memory);
        CHECK(comm.begin(x).ok());  // nothing was sent: it may be called again
        seen[1] = comm.wait(x, soon()) == queue_result::ok ? status() : x.outcome;
      } else {
        seen[static_cast<std::size_t>(me)] =
            complete(comm, x, me == 1 || refused == 0 ? soon() : within(200ms));
      }
      if (refused == 1) CHECK(comm.begin(x).code() == errc::closed);
    });
    CHECK(whole);
    CHECK(seen[0].code() == (refused == 0 ? errc::ok : errc::timed_out));
    CHECK(seen[1].code() == (refused == 0 ? errc::ok : errc::out_of_memory));
  }
}

TEST_CASE("ordered_ranks: messages of another kind, step or size end the communicator, and name the rank") {
  struct attempt {
    message_kind kind;
    index_t step, bytes;
    const char* words;
  };
  for (const attempt& a :
       {attempt{message_kind::gradients, 16, 8, "all ranks must be at messages of one kind"},
        attempt{message_kind::rows, 17, 8, "all ranks must be at one step"},
        attempt{message_kind::rows, 16, 9, "a payload must have the bytes that its receiver waits for"}}) {
    const int n = 3;
    std::vector<status> seen(n), after(n);
    const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
      const auto i = static_cast<std::size_t>(comm.rank());
      const bool other = comm.rank() == 1;
      blocks_of_rank b(n);
      for (std::size_t r = 0; r < b.to.size(); ++r) {
        b.to[r] = b.out[r].make(other ? a.bytes : 8);
        b.from[r] = b.in[r].make(8);
      }
      exchange x{.kind = other ? a.kind : message_kind::rows,
                 .step = other ? a.step : 16,
                 .to = b.to,
                 .from = b.from};
      seen[i] = complete(comm, x, soon());
      // A rank that has seen nothing learns of it by its next exchange.
      fill(b, comm.rank(), 18);
      exchange y = exchange_of(b, message_kind::rows, 18);
      after[i] = complete(comm, y, soon());
    });
    CHECK(whole);
    for (std::size_t r = 0; r < seen.size(); ++r) {
      CHECK(after[r].code() == errc::closed);
      if (r == 1 && a.bytes != 8) {
        CHECK(seen[r].ok());
        continue;
      }
      CHECK(seen[r].code() == errc::invalid_value);
      CHECK(seen[r].message().find(a.words) != std::string::npos);
      CHECK(seen[r].place().rank == (r == 1 ? 0 : 1));
    }
  }
}

TEST_CASE("ordered_ranks: a message of another generation ends it, at both ranks") {
  std::vector<status> seen(2);
  const bool whole = on_ordered_ranks(2, [&](ordered_thread_rank given, ordered_board& board) {
    const int me = given.rank();
    ordered_thread_rank comm(ordered_thread_link{&board, me}, {.generation = me == 0 ? 4U : 5U});
    blocks_of_rank b(2);
    fill(b, me, 1);
    exchange x = exchange_of(b, message_kind::ids, 1);
    seen[static_cast<std::size_t>(me)] = complete(comm, x, soon());
  });
  CHECK(whole);
  CHECK(seen[0].message() ==
        "invalid value: exchange: a message must be of this generation of the job; rank 1 (is 5, must be 4)");
  CHECK(seen[1].place().rank == 0);
}

TEST_CASE("ordered_ranks: a silent rank is named when the limit has passed, and blocks are free then") {
  const int n = 4;
  std::vector<status> seen(n);
  std::atomic<int> ended{0};
  const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board& board) {
    const int me = comm.rank();
    if (me == 2) {
      while (ended < n - 1) std::this_thread::yield();
      CHECK(board.calls(2) == 0);
      return;
    }
    {
      blocks_of_rank b(n);
      fill(b, me, 5);
      exchange x = exchange_of(b, message_kind::gradients, 5);
      REQUIRE(comm.begin(x).ok());
      while (comm.awaited(x).size() > 1) std::this_thread::yield();
      CHECK(comm.awaited(x) == rank_list{2});
      CHECK(comm.wait(x, within(20ms)) == queue_result::timed_out);
      comm.abandon({errc::timed_out, "given up"});
      seen[static_cast<std::size_t>(me)] = x.outcome;
      CHECK(comm.poll(x) == queue_result::failed);
      exchange y = exchange_of(b, message_kind::gradients, 6);
      CHECK(comm.begin(y).code() == errc::closed);
    }
    CHECK(board.calls(me) == 1);  // no word that the silent rank would take for its payloads
    ++ended;
  });
  CHECK(whole);
  for (const int r : {0, 1, 3}) CHECK(seen[static_cast<std::size_t>(r)].code() == errc::timed_out);
}

TEST_CASE("ordered_ranks: who abandons between exchanges tells the others, also those that have begun one") {
  const int n = 3;
  std::vector<status> seen(n);
  const bool whole = on_ordered_ranks(n, [&](ordered_thread_rank comm, ordered_board&) {
    const int me = comm.rank();
    blocks_of_rank b(n);
    fill(b, me, 0);
    exchange x = exchange_of(b, message_kind::rows, 0);
    REQUIRE(complete(comm, x, soon()).ok());
    if (me == 2) return comm.abandon({errc::io_error, "of its own"});
    exchange y = exchange_of(b, message_kind::gradients, 0);
    seen[static_cast<std::size_t>(me)] = complete(comm, y, soon());
    CHECK(comm.begin(y).code() == errc::closed);
  });
  CHECK(whole);
  for (const int r : {0, 1}) {
    CHECK(seen[static_cast<std::size_t>(r)].code() == errc::closed);
    CHECK(seen[static_cast<std::size_t>(r)].place().rank == 2);
  }
}

TEST_CASE("ordered_ranks: the end of the link ends what is in flight") {
  status seen, after;
  const bool whole = on_ordered_ranks(2, [&](ordered_thread_rank comm, ordered_board& board) {
    if (comm.rank() == 1) return board.leave();
    blocks_of_rank b(2);
    fill(b, 0, 0);
    exchange x = exchange_of(b, message_kind::rows, 0);
    seen = complete(comm, x, soon());
    after = complete(comm, x, soon());
  });
  CHECK(whole);
  CHECK(seen.code() == errc::closed);
  CHECK(after.code() == errc::closed);
}

TEST_CASE("ordered_ranks: another communicator needs a link of its own") {
  ordered_board board(1);
  ordered_thread_rank comm(ordered_thread_link{&board, 0});
  CHECK(comm.duplicate().fault().code() == errc::unsupported);
  CHECK(comm.split(0, 0).fault().code() == errc::unsupported);
}
