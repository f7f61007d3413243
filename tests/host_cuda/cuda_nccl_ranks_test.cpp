// Exchanges of ranks with a device each, under an NCCL that runs here.
#include <deeprec/comm/cuda_nccl_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_blocks.hpp"
#include "nccl.h"
#include "owned_stream.hpp"

using namespace deeprec;
using namespace std::chrono_literals;
using deeprec_test::blocks_of_rank;
using deeprec_test::fill;
using deeprec_test::right;
using deeprec_test::size_of;

namespace {

/// Memory of the device, of which an allocation may be refused.
class device_blocks : public std::pmr::memory_resource {
 public:
  int refuse_after = -1;

 private:
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* made = nullptr;
    if (refuse_after-- == 0 || cudaMalloc(&made, bytes) != cudaSuccess) throw std::bad_alloc();
    return made;
  }
  void do_deallocate(void* dead, std::size_t, std::size_t) override { cudaFree(dead); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// n ranks, each with a stream, in one thread.
struct job {
  explicit job(int n) : memory(static_cast<std::size_t>(n)), streams(static_cast<std::size_t>(n)) {
    host_nccl::settings() = {};
    const host_nccl::world world(n);
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ranks.push_back(cuda_nccl_ranks::over(world.comm(r), streams[i].it).or_throw());
      blocks.push_back(std::make_unique<blocks_of_rank>(n, &memory[i]));
    }
  }
  ~job() { host_nccl::settings() = {}; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  cuda_nccl_ranks& rank(int r) { return ranks[static_cast<std::size_t>(r)]; }
  blocks_of_rank& of(int r) { return *blocks[static_cast<std::size_t>(r)]; }
  exchange message(int r, index_t step, bool known = false, message_kind kind = message_kind::rows) {
    blocks_of_rank& b = of(r);
    fill(b, r, step);
    for (int s = 0; known && s < size(); ++s) {
      const auto i = static_cast<std::size_t>(s);
      b.from[i] = s == r ? b.to[i] : b.in[i].make(size_of(s, r, step));
    }
    exchange x{.kind = kind, .step = step, .to = b.to, .from = b.from};
    if (!known) x.rooms = b.in;
    return x;
  }
  /// Polls all that were begun until they have ended, or `looks` times.
  bool end(std::vector<exchange>& all, int looks = 10000) {
    std::vector<bool> ended(all.size());
    for (; looks > 0; --looks) {
      host_cuda::work_some();
      for (std::size_t r = 0; r < all.size(); ++r)
        ended[r] = ended[r] || ranks[r].poll(all[r]) != queue_result::not_now;
      if (std::all_of(ended.begin(), ended.end(), [](bool e) { return e; })) return true;
    }
    return false;
  }

  std::vector<device_blocks> memory;
  std::vector<deeprec_test::owned_stream> streams;
  std::vector<cuda_nccl_ranks> ranks;
  std::vector<std::unique_ptr<blocks_of_rank>> blocks;
};

}  // namespace

TEST_CASE("cuda_nccl_ranks: each message arrives whole at its rank, of sizes that are known or not") {
  const std::size_t before = host_cuda::things_alive();
  for (const int n : {1, 2, 3, 5}) {
    for (const int looks : {0, 3}) {
      job j(n);
      host_nccl::settings().looks = looks;
      for (index_t t = 0; t < 20; ++t) {
        CAPTURE(n);
        CAPTURE(t);
        std::vector<exchange> all;
        for (int r = 0; r < n; ++r) all.push_back(j.message(r, t, t % 2 == 1));
        for (int r = 0; r < n; ++r) REQUIRE(j.rank(r).begin(all[static_cast<std::size_t>(r)]).ok());
        REQUIRE(j.end(all));
        for (int r = 0; r < n; ++r) {
          CHECK(all[static_cast<std::size_t>(r)].outcome.ok());
          CHECK(right(j.of(r), r, t));
        }
      }
      CHECK(host_nccl::settings().fault == "");
    }
  }
  CHECK(host_nccl::alive() == 0);
  CHECK(host_cuda::things_alive() == before);
}

TEST_CASE("cuda_nccl_ranks: exchanges in flight are issued in one order, however the ranks poll") {
  const int n = 3;
  for (const int looks : {0, 2}) {
    job j(n);
    host_nccl::settings().looks = looks;
    const auto depth = static_cast<index_t>(j.rank(0).most_in_flight());
    std::vector<std::vector<exchange>> x(static_cast<std::size_t>(n));
    std::vector<std::vector<std::unique_ptr<blocks_of_rank>>> blocks(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) {
      const auto i = static_cast<std::size_t>(r);
      for (index_t t = 0; t <= depth; ++t) {
        blocks[i].push_back(std::make_unique<blocks_of_rank>(n, &j.memory[i]));
        fill(*blocks[i].back(), r, t);
        x[i].push_back({.kind = message_kind::ids,
                        .step = t,
                        .to = blocks[i].back()->to,
                        .from = blocks[i].back()->from,
                        .rooms = blocks[i].back()->in});
      }
    }
    const int last = n - 1;  // begins an exchange when the one before it has ended
    for (int r = 0; r < last; ++r) {
      for (index_t t = 0; t < depth; ++t)
        REQUIRE(j.rank(r).begin(x[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)]).ok());
      CHECK(j.rank(r).begin(x[static_cast<std::size_t>(r)].back()).code() == errc::would_block);
    }
    auto* next = x[static_cast<std::size_t>(last)].data();
    REQUIRE(j.rank(last).begin(*next).ok());
    // Of the others the last exchange alone is polled, of the first rank more often.
    for (int look = 0; look < 3000; ++look) {
      host_cuda::work_some();
      const int r = look % 7 < 4 ? 0 : look % last;
      static_cast<void>(j.rank(r).poll(x[static_cast<std::size_t>(r)][static_cast<std::size_t>(depth - 1)]));
      if (j.rank(last).poll(*next) != queue_result::not_now && next->step + 1 < depth)
        REQUIRE(j.rank(last).begin(*++next).ok());
    }
    for (int r = 0; r < n; ++r) {
      for (index_t t = 0; t < depth; ++t) {
        const auto i = static_cast<std::size_t>(r);
        REQUIRE(j.rank(r).poll(x[i][static_cast<std::size_t>(t)]) == queue_result::ok);
        CHECK(right(*blocks[i][static_cast<std::size_t>(t)], r, t));
      }
    }
    CHECK(host_nccl::settings().fault == "");
  }
}

TEST_CASE(
    "cuda_nccl_ranks: a fault of ranks is that of the smallest one, at all ranks, and no payload of theirs") {
  job j(4);
  for (index_t t = 0; t < 3; ++t) {
    std::vector<exchange> all;
    for (int r = 0; r < 4; ++r) all.push_back(j.message(r, t));
    all[2].fault = {errc::invalid_value, "resolve", {.table = 3, .position = 17}};
    if (t == 1) all[1].fault = {errc::id_out_of_range, "resolve", {.table = 1}};
    if (t == 2) all[0].fault = all[1].fault = all[3].fault = all[2].fault;
    for (int r = 0; r < 4; ++r) REQUIRE(j.rank(r).begin(all[static_cast<std::size_t>(r)]).ok());
    REQUIRE(j.end(all));
    for (const exchange& x : all) {
      CHECK(x.outcome.place().rank == (t == 0 ? 2 : t == 1 ? 1 : 0));
      CHECK(x.outcome.code() == (t == 1 ? errc::id_out_of_range : errc::invalid_value));
      CHECK(x.outcome.place().table == (t == 1 ? 1 : 3));
    }
  }
  std::vector<exchange> all;  // and it goes on
  for (int r = 0; r < 4; ++r) all.push_back(j.message(r, 9));
  for (int r = 0; r < 4; ++r) REQUIRE(j.rank(r).begin(all[static_cast<std::size_t>(r)]).ok());
  REQUIRE(j.end(all));
  for (int r = 0; r < 4; ++r) CHECK(right(j.of(r), r, 9));
  CHECK(host_nccl::settings().fault == "");
}

TEST_CASE(
    "cuda_nccl_ranks: another step, kind or size is an error at a rank that names the other, and an end at "
    "all") {
  for (const int what : {0, 1, 2}) {
    job j(3);
    std::vector<exchange> all;
    for (int r = 0; r < 3; ++r) all.push_back(j.message(r, 4, what == 2));
    if (what == 0) all[1].step = 5;
    if (what == 1) all[1].kind = message_kind::gradients;
    if (what == 2) j.of(1).to[0] = j.of(1).out[0].make(size_of(1, 0, 4) + 8);
    for (int r = 0; r < 3; ++r) REQUIRE(j.rank(r).begin(all[static_cast<std::size_t>(r)]).ok());
    REQUIRE(j.end(all));
    int found = 0;  // by whoever looks first; the others learn that it has ended
    for (int r = 0; r < 3; ++r) {
      const status& s = all[static_cast<std::size_t>(r)].outcome;
      const bool finds = s.code() == errc::invalid_value;
      found += finds ? 1 : 0;
      CHECK((finds || s.code() == errc::closed));
      if (finds) CHECK((r == 1 ? s.place().rank != 1 : s.place().rank == 1));
    }
    CHECK(found > 0);
    exchange next = j.message(0, 5);
    CHECK(j.rank(0).begin(next).code() == errc::closed);
  }
  CHECK(host_nccl::alive() == 0);
}

TEST_CASE("cuda_nccl_ranks: a rank that is silent is an end by the limit, and one that leaves is told") {
  job j(2);
  host_nccl::settings().tells = false;
  exchange x = j.message(0, 0);
  REQUIRE(j.rank(0).begin(x).ok());
  CHECK(j.rank(0).wait(x, within(1ms)) == queue_result::timed_out);
  CHECK(j.rank(0).awaited(x) == rank_list{1});
  host_nccl::settings().tells = true;
  j.rank(1).abandon({errc::stopped, "stop"});
  CHECK(j.rank(0).wait(x, within(10s)) == queue_result::failed);
  CHECK(x.outcome.code() == errc::closed);
  CHECK(j.rank(0).awaited(x).empty());
  CHECK(j.rank(0).begin(x).code() == errc::closed);
  CHECK(j.rank(1).duplicate().fault().code() == errc::closed);
}

TEST_CASE("cuda_nccl_ranks: memory that a message lacks ends the communicator") {
  job j(3);
  std::vector<exchange> all;
  for (int r = 0; r < 3; ++r) all.push_back(j.message(r, 1));
  j.memory[1].refuse_after = 1;
  for (int r = 0; r < 3; ++r) REQUIRE(j.rank(r).begin(all[static_cast<std::size_t>(r)]).ok());
  REQUIRE(j.end(all));
  CHECK(all[1].outcome.code() == errc::out_of_memory);
  CHECK(all[0].outcome.code() == errc::closed);
  CHECK(all[2].outcome.code() == errc::closed);
}

TEST_CASE(
    "cuda_nccl_ranks: whatever call of CUDA or NCCL is refused, there is a status, and nothing is left") {
  const std::size_t before = host_cuda::things_alive();
  for (const bool of_nccl : {false, true}) {
    int refused = 0;
    for (int call = 0; call < 200; ++call) {
      host_nccl::settings() = {};
      const host_nccl::world world(2);
      device_blocks memory[2];
      const deeprec_test::owned_stream streams[2];
      {
        blocks_of_rank blocks[2] = {blocks_of_rank(2, &memory[0]), blocks_of_rank(2, &memory[1])};
        for (int r = 0; r < 2; ++r) {
          fill(blocks[r], r, 0);
          for (auto& room : blocks[r].in) room.make(4000);
        }
        if (of_nccl)
          host_nccl::settings().refuse_after = call;
        else
          host_cuda::refuse_after(call);
        std::vector<cuda_nccl_ranks> ranks;
        for (int r = 0; r < 2; ++r) {
          auto made = cuda_nccl_ranks::over(world.comm(r), streams[r].it);
          if (!made) {
            CHECK((made.fault().code() == errc::device_error || made.fault().code() == errc::out_of_memory));
            break;
          }
          ranks.push_back(std::move(made).value());
        }
        if (ranks.size() == 2) {
          std::vector<exchange> all;
          for (auto& b : blocks)
            all.push_back({.kind = message_kind::rows, .to = b.to, .from = b.from, .rooms = b.in});
          for (std::size_t r = 0; r < 2; ++r) REQUIRE(ranks[r].begin(all[r]).ok());
          int open = 2;
          for (int look = 0; look < 10000 && open > 0; ++look) {
            host_cuda::work_some();
            open = 0;
            for (std::size_t r = 0; r < 2; ++r)
              open += ranks[r].poll(all[r]) == queue_result::not_now ? 1 : 0;
          }
          CHECK(open == 0);
          const bool good = all[0].outcome.ok() && all[1].outcome.ok();
          if (good)
            for (int r = 0; r < 2; ++r) CHECK(right(blocks[r], r, 0));
          if (!good) ++refused;
        } else {
          ++refused;
          for (int r = static_cast<int>(ranks.size()); r < 2; ++r)
            CHECK(ncclCommAbort(world.comm(r)) == ncclSuccess);
        }
      }
      host_cuda::refuse_after(-1);
      host_cuda::forget_failure();
    }
    CHECK(refused > 8);
  }
  host_nccl::settings() = {};
  CHECK(host_nccl::alive() == 0);
  CHECK(host_cuda::things_alive() == before);
}

TEST_CASE("cuda_nccl_ranks: duplicates, and parts by color and key") {
  job j(4);
  std::vector<int> sizes(4), numbers(4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      auto twin = j.rank(r).duplicate();
      auto part = j.rank(r).split(r == 3 ? -1 : r % 2, -r, within(60s));
      const auto i = static_cast<std::size_t>(r);
      if (!twin || twin.value().size() != 4 || twin.value().rank() != r) return;
      sizes[i] = part ? part.value().size() : part.fault().code() == errc::unsupported ? 100 : -1;
      numbers[i] = part ? part.value().rank() : 0;
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(sizes == std::vector<int>{2, 1, 2, 100});
  CHECK(numbers == std::vector<int>{1, 0, 0, 0});
  host_nccl::settings().tells = false;  // who waits alone
  CHECK(j.rank(0).split(0, 0, within(1ms)).fault().code() == errc::timed_out);
}
