// Exchanges between ranks that are threads: what arrives, and how they end.
#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/thread_ranks.hpp>
#include <deeprec/memory/counting_resource.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_blocks.hpp"
#include "comm/rank_threads.hpp"

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::blocks_of_rank;
using deeprec_test::fill;
using deeprec_test::on_ranks;
using deeprec_test::right;
using deeprec_test::size_of;

namespace {

wait_limit soon() { return within(30s); }

}  // namespace

TEST_CASE("thread_ranks: each message arrives whole at its rank, whatever its size") {
  for (const int n : {1, 2, 3, 5, 8}) {
    std::atomic<int> rights{0};
    const index_t steps = 40;
    on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
      blocks_of_rank b(n);
      for (index_t t = 0; t < steps; ++t) {
        fill(b, comm.rank(), t);
        exchange x{.kind = message_kind::ids, .step = t, .to = b.to, .from = b.from, .rooms = b.in};
        if (complete(comm, x, soon()).ok() && right(b, comm.rank(), t)) ++rights;
      }
    });
    CHECK(rights == n * steps);
  }
}

TEST_CASE(
    "thread_ranks: sizes that the receiver knows land where it says, and the sender's blocks are read no "
    "more") {
  const int n = 4;
  std::atomic<int> rights{0};
  on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    blocks_of_rank b(n);
    const int me = comm.rank();
    for (index_t t = 0; t < 30; ++t) {
      fill(b, me, t);
      std::vector<std::byte*> places;
      for (int r = 0; r < n; ++r) {
        b.from[static_cast<std::size_t>(r)] = r == me
                                                  ? b.to[static_cast<std::size_t>(r)]
                                                  : b.in[static_cast<std::size_t>(r)].make(size_of(r, me, t));
        places.push_back(b.from[static_cast<std::size_t>(r)].data());
      }
      exchange x{.kind = message_kind::rows, .step = t, .to = b.to, .from = b.from};
      bool fine = complete(comm, x, soon()).ok() && right(b, me, t);
      for (std::size_t r = 0; r < places.size(); ++r) {
        fine = fine && b.from[r].data() == places[r];
        if (static_cast<int>(r) == me) continue;
        fine = fine &&
               std::all_of(b.to[r].begin(), b.to[r].end(), [](std::byte c) { return c == std::byte{0xdb}; });
      }
      if (fine) ++rights;
    }
  });
  CHECK(rights == n * 30);
}

TEST_CASE(
    "thread_ranks: several exchanges in flight end in any order; one more is refused and can be begun "
    "later") {
  const int n = 3;
  std::atomic<int> rights{0}, refused{0};
  on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    const int depth = comm.most_in_flight();
    std::vector<blocks_of_rank> blocks;
    std::vector<exchange> x(static_cast<std::size_t>(depth + 1));
    for (int k = 0; k <= depth; ++k) blocks.emplace_back(n);
    for (index_t round = 0; round < 20; ++round) {
      const auto begin = [&](int k) {
        blocks_of_rank& b = blocks[static_cast<std::size_t>(k)];
        const index_t t = round * 10 + k;
        fill(b, comm.rank(), t);
        x[static_cast<std::size_t>(k)] = {
            .kind = message_kind::ids, .step = t, .to = b.to, .from = b.from, .rooms = b.in};
        return comm.begin(x[static_cast<std::size_t>(k)]);
      };
      for (int k = 0; k < depth; ++k) REQUIRE(begin(k).ok());
      if (begin(depth).code() == errc::would_block) ++refused;
      for (int k = depth - 1; k >= 0; --k) {
        const auto i = static_cast<std::size_t>(k);
        if (comm.wait(x[i], soon()) == queue_result::ok && right(blocks[i], comm.rank(), x[i].step)) ++rights;
      }
      REQUIRE(begin(depth).ok());
      if (comm.wait(x.back(), soon()) == queue_result::ok) ++rights;
    }
  });
  CHECK(rights == n * 20 * 5);
  CHECK(refused == n * 20);
}

TEST_CASE("thread_ranks: faults of some ranks are the fault of the smallest one, at all of them") {
  const int n = 4;
  std::vector<status> seen(n);
  on_ranks(n, {}, [&](thread_rank<> comm) {
    blocks_of_rank b(n);
    fill(b, comm.rank(), 7);
    exchange x{.kind = message_kind::ids, .step = 7, .to = b.to, .from = b.from, .rooms = b.in};
    if (comm.rank() == 1)
      x.fault = {errc::id_out_of_range, "ids", {.table = 3, .bag = 5, .position = 9, .value = -4}};
    if (comm.rank() == 3) x.fault = {errc::out_of_memory, "none"};
    if (comm.rank() == 3) x.to = {};
    seen[static_cast<std::size_t>(comm.rank())] = complete(comm, x, soon());
    // and the ranks go on
    fill(b, comm.rank(), 8);
    exchange y{.kind = message_kind::ids, .step = 8, .to = b.to, .from = b.from, .rooms = b.in};
    CHECK(complete(comm, y, soon()).ok());
    CHECK(right(b, comm.rank(), 8));
  });
  for (const status& s : seen) {
    CHECK(s.code() == errc::id_out_of_range);
    CHECK(s.place() == fault_place{.table = 3, .bag = 5, .position = 9, .value = -4, .rank = 1});
  }
  CHECK(seen[0].message() ==
        "id out of range: exchange: fault of a rank; rank 1, table 3, bag 5, position 9, value -4");
}

TEST_CASE(
    "thread_ranks: a rank without memory for a message fails alone, and takes part in the next exchange") {
  const int n = 3;
  std::vector<status> first(n), second(n);
  on_ranks(n, {}, [&](thread_rank<> comm) {
    const int me = comm.rank();
    const auto i = static_cast<std::size_t>(me);
    blocks_of_rank b(n);
    std::pmr::memory_resource& none = *std::pmr::null_memory_resource();
    std::vector<message_room> in;
    for (int r = 0; r < n; ++r) in.emplace_back(&none);
    fill(b, me, 1);
    exchange x{.kind = message_kind::ids, .step = 1, .to = b.to, .from = b.from, .rooms = b.in};
    if (me == 2) x.rooms = in;
    first[i] = complete(comm, x, soon());
    exchange y{
        .kind = message_kind::rows, .step = 1, .fault = x.outcome, .to = b.to, .from = b.from, .rooms = b.in};
    second[i] = complete(comm, y, soon());
  });
  CHECK(first[0].ok());
  CHECK(first[1].ok());
  CHECK(first[2].code() == errc::out_of_memory);
  for (const status& s : second) {
    CHECK(s.code() == errc::out_of_memory);
    CHECK(s.place().rank == 2);
  }
}

TEST_CASE("thread_ranks: messages of another kind, step or size end the communicator, and name both sides") {
  struct attempt {
    message_kind kind;
    index_t step, bytes;
    const char* words;
    const char* explained;
  };
  for (const attempt& a :
       {attempt{message_kind::gradients, 16, 8, "all ranks must be at messages of one kind",
                "gradients of step 16 from rank 1, rows of step 16 at this one"},
        attempt{message_kind::rows, 17, 8, "all ranks must be at one step",
                "rows of step 17 from rank 1, rows of step 16 at this one"},
        attempt{message_kind::rows, 16, 9, "a payload must have the bytes that its receiver waits for",
                ""}}) {
    std::vector<status> seen(2);
    std::string words;
    on_ranks(2, {}, [&](thread_rank<> comm) {
      const bool other = comm.rank() == 1;
      blocks_of_rank b(2);
      for (std::size_t r = 0; r < 2; ++r) {
        b.to[r] = b.out[r].make(other ? a.bytes : 8);
        b.from[r] = b.in[r].make(other ? a.bytes : 8);
      }
      exchange x{.kind = other ? a.kind : message_kind::rows,
                 .step = other ? a.step : 16,
                 .to = b.to,
                 .from = b.from};
      seen[static_cast<std::size_t>(comm.rank())] = complete(comm, x, soon());
      if (!other) words = explain(x);
      CHECK(comm.begin(x).code() == errc::closed);
    });
    // One of them sees it first, and the other one this or the end.
    const bool both = std::all_of(seen.begin(), seen.end(), [](const status& s) {
      return s.code() == errc::invalid_value || s.code() == errc::closed;
    });
    CHECK(both);
    const status& found = seen[0].code() == errc::invalid_value ? seen[0] : seen[1];
    CHECK(found.code() == errc::invalid_value);
    CHECK(found.message().find(a.words) != std::string::npos);
    CHECK(found.place().rank == (&found == &seen[0] ? 1 : 0));
    if (seen[0].code() == errc::invalid_value && *a.explained != 0)
      CHECK(words == std::string("exchange: ") + a.explained);
  }
}

TEST_CASE(
    "thread_ranks: a rank that does not come is named when the limit has passed, and blocks are free then") {
  const int n = 4;
  std::vector<status> seen(n);
  std::vector<std::string> words(n);
  on_ranks(n, {}, [&](thread_rank<> comm) {
    const int me = comm.rank();
    if (me == 1 || me == 3) return;
    blocks_of_rank b(n);
    fill(b, me, 5);
    exchange x{.kind = message_kind::gradients, .step = 5, .to = b.to, .from = b.from, .rooms = b.in};
    REQUIRE(comm.begin(x).ok());
    // The message of the other one comes first, unless it gives up before.
    while (comm.awaited(x).size() > 2 && comm.poll(x) == queue_result::not_now) std::this_thread::yield();
    const queue_result r = comm.wait(x, within(20ms));
    CHECK((r == queue_result::timed_out || r == queue_result::failed));
    const rank_list silent = comm.awaited(x);
    if (r == queue_result::timed_out) {
      CHECK(silent == rank_list{1, 3});
      words[static_cast<std::size_t>(me)] = explain(x, silent);
      comm.abandon({errc::timed_out, "given up"});
    }
    seen[static_cast<std::size_t>(me)] = x.outcome;
    CHECK(comm.poll(x) == queue_result::failed);
  });
  const bool first = seen[0].code() == errc::timed_out;
  CHECK((first || seen[2].code() == errc::timed_out));
  CHECK((words[0] + words[2]).find("exchange: gradients of step 5: nothing from ranks 1, 3") == 0);
}

TEST_CASE("complete: names the silent rank, or the stop, and ends the communicator") {
  for (const bool stops : {false, true}) {
    std::stop_source stop;
    status seen, after, other;
    on_ranks(2, {}, [&](thread_rank<> comm) {
      if (comm.rank() == 1) return;
      blocks_of_rank b(2);
      fill(b, 0, 0);
      exchange x{.kind = message_kind::rows, .step = 0, .to = b.to, .from = b.from, .rooms = b.in};
      if (stops) stop.request_stop();
      seen = complete(comm, x, stops ? within(30s, stop.get_token()) : within(5ms));
      after = complete(comm, x, soon());
    });
    CHECK(seen.code() == (stops ? errc::stopped : errc::timed_out));
    CHECK(seen.place().rank == 1);
    CHECK(after.code() == errc::closed);
    CHECK(after.place().rank == 0);
  }
}

TEST_CASE("thread_ranks: who waits for a rank that abandons is told which one") {
  const int n = 3;
  std::vector<status> seen(n);
  on_ranks(n, {}, [&](thread_rank<> comm) {
    blocks_of_rank b(n);
    fill(b, comm.rank(), 0);
    exchange x{.kind = message_kind::rows, .step = 0, .to = b.to, .from = b.from, .rooms = b.in};
    if (comm.rank() == 2) return comm.abandon({errc::io_error, "of its own"});
    seen[static_cast<std::size_t>(comm.rank())] = complete(comm, x, soon());
  });
  for (const int r : {0, 1}) {
    CHECK(seen[static_cast<std::size_t>(r)].code() == errc::closed);
    CHECK(seen[static_cast<std::size_t>(r)].place().rank == 2);
  }
}

TEST_CASE(
    "thread_ranks: duplicates are apart, also when threads of a rank use them at once; groups are numbered "
    "by key") {
  const int n = 5;
  std::atomic<int> rights{0};
  on_ranks(n, {.sent = sent_blocks::poisoned}, [&](thread_rank<> comm) {
    thread_rank<> second = comm.duplicate().or_throw();
    const auto run = [&](thread_rank<>& on, index_t first) {
      blocks_of_rank b(n);
      for (index_t t = first; t < first + 50; ++t) {
        fill(b, on.rank(), t);
        exchange x{.kind = message_kind::ids, .step = t, .to = b.to, .from = b.from, .rooms = b.in};
        if (complete(on, x, soon()).ok() && right(b, on.rank(), t)) ++rights;
      }
    };
    std::thread beside([&] { run(second, 1000); });
    run(comm, 0);
    beside.join();
    const int me = comm.rank();
    result<thread_rank<>> part = comm.split(me == 4 ? -1 : me % 2, -me, soon());
    if (me == 4) {
      CHECK(part.fault().code() == errc::unsupported);
      return;
    }
    CHECK(part.value().size() == 2);
    CHECK(part.value().rank() == (me < 2 ? 1 : 0));
    blocks_of_rank b(2);
    fill(b, part.value().rank(), me % 2);
    exchange x{.kind = message_kind::ids, .step = me % 2, .to = b.to, .from = b.from, .rooms = b.in};
    if (complete(part.value(), x, soon()).ok() && right(b, part.value().rank(), me % 2)) ++rights;
  });
  CHECK(rights == n * 100 + 4);
}

TEST_CASE("exchange: blocks that do not fit the ranks are refused before anything is sent") {
  on_ranks(2, {}, [&](thread_rank<> comm) {
    blocks_of_rank b(2);
    fill(b, comm.rank(), 0);
    std::vector<std::span<std::byte>> few(1, b.to[0]), small = b.to;
    small[0] = small[1] = small[0].first(63);
    for (const auto& to : {few, small}) {
      exchange x{.kind = message_kind::ids, .to = to, .from = b.from, .rooms = b.in};
      CHECK(comm.begin(x).code() == errc::shape_mismatch);
    }
    exchange y{.kind = message_kind::ids, .to = b.to, .from = few, .rooms = b.in};
    CHECK(comm.begin(y).code() == errc::shape_mismatch);
    exchange z{.kind = message_kind::ids, .to = b.to, .from = small};
    CHECK(comm.begin(z).code() == errc::shape_mismatch);
    exchange x{.kind = message_kind::ids, .to = b.to, .from = b.from, .rooms = b.in};
    CHECK(complete(comm, x, soon()).ok());
    CHECK(right(b, comm.rank(), 0));
  });
}

TEST_CASE("exchange: nothing is allocated once the rooms are as large as the messages") {
  std::atomic<int> allocations{0};
  on_ranks(2, {}, [&](thread_rank<> comm) {
    counting_resource memory;
    blocks_of_rank b(2, &memory);
    for (int k = 0; k < 20; ++k) {
      const auto before = memory.statistics().allocations;
      fill(b, comm.rank(), k % 10);
      exchange x{.kind = message_kind::ids, .step = k, .to = b.to, .from = b.from, .rooms = b.in};
      REQUIRE(complete(comm, x, soon()).ok());
      if (k >= 10) allocations += static_cast<int>(memory.statistics().allocations - before);
    }
  });
  CHECK(allocations == 0);
}

TEST_CASE("messages: a header of another format, byte order or generation is refused") {
  exchange x{.kind = message_kind::rows, .step = 3};
  message_header h;
  h.kind = message_kind::rows;
  h.step = 3;
  h.generation = 9;
  CHECK(detail::check_header(h, 1, 9, x).ok());
  CHECK(detail::check_header(h, 1, 8, x).message() ==
        "invalid value: exchange: a message must be of this generation of the job; rank 1 (is 9, must be 8)");
  message_header swapped = h;
  swapped.magic = 0x4444'524d;
  CHECK(detail::check_header(swapped, 1, 9, x).code() == errc::invalid_value);
  message_header later = h;
  later.version = 2;
  CHECK(detail::check_header(later, 1, 9, x).code() == errc::invalid_value);
}
