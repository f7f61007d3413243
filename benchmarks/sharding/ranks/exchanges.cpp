// Exchanges of mpi_ranks, against plain MPI and beside other work.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/mpi_ranks.hpp>

#include "sharding/ranks/plain_mpi.hpp"
#include "sharding/ranks/ranks.hpp"
#include "sharding/ranks/rounds.hpp"

namespace deeprec_bench {

namespace {

using namespace deeprec;
using namespace std::chrono_literals;

mpi_ranks world() { return mpi_ranks::over(MPI_COMM_WORLD, {.calls = mpi_calls::one_thread}).or_throw(); }

// Blocks of one size to all ranks and from all, written once.
struct blocks {
  blocks(const mpi_ranks& comm, std::size_t bytes) : out(index(comm.size())), in(index(comm.size())) {
    for (int r = 0; r < comm.size(); ++r) {
      to.push_back(out[index(r)].make(static_cast<index_t>(bytes)));
      from.push_back(in[index(r)].make(static_cast<index_t>(bytes)));
      std::memset(payload_of(to.back()).data(), 17 * comm.rank() + r, bytes);
      std::memset(payload_of(from.back()).data(), 0xee, bytes);
      plain_to.push_back(reinterpret_cast<char*>(payload_of(to.back()).data()));
      plain_from.push_back(reinterpret_cast<char*>(payload_of(from.back()).data()));
    }
  }
  [[nodiscard]] bool right(int me) const {
    bool all = true;
    for (std::size_t r = 0; r < from.size(); ++r) {
      const auto expected = static_cast<std::byte>(17 * static_cast<int>(r) + me);
      const std::span<std::byte> payload = payload_of(from[r]);
      if (static_cast<int>(r) != me)
        all = all && std::all_of(payload.begin(), payload.end(), [&](std::byte b) { return b == expected; });
    }
    return all;
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  std::vector<message_room> out, in;
  std::vector<std::span<std::byte>> to, from;
  std::vector<char*> plain_to, plain_from;
};

}  // namespace

void rounds_of_exchanges(const std::vector<std::size_t>& sizes) {
  mpi_ranks comm = world();
  plain_exchange plain;
  std::vector<blocks> all;
  for (const std::size_t bytes : sizes) all.emplace_back(comm, bytes);
  index_t step = 0;
  const auto ours = [&](blocks& b) {
    exchange x{.kind = message_kind::rows, .step = ++step, .to = b.to, .from = b.from};
    complete(comm, x, within(60s)).or_throw();
  };
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ours(all[i]);
    require_everywhere(all[i].right(comm.rank()), "an exchange");
  }
  for (int round = 0; another_round(); ++round) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks& b = all[i];
      const std::size_t times = std::clamp<std::size_t>((std::size_t{32} << 20) / sizes[i], 4, 1000);
      double took[2];
      for (const int side : {round % 2, 1 - round % 2}) {
        took[side] = seconds_together([&] {
          for (std::size_t k = 0; k < times; ++k) {
            if (side == 0)
              plain.run(b.plain_to.data(), b.plain_from.data(), sizes[i]);
            else
              ours(b);
          }
        });
      }
      seconds.push_back(took[0] / static_cast<double>(times));
      seconds.push_back(took[1] / static_cast<double>(times));
    }
    tell(seconds);
  }
}

void rounds_beside_a_timer(std::size_t bytes) {
  using clock = std::chrono::steady_clock;
  mpi_ranks comm = world();
  blocks b(comm, bytes);
  index_t step = 0;
  exchange x;
  const auto begin = [&] {
    x = {.kind = message_kind::rows, .step = ++step, .to = b.to, .from = b.from};
    comm.begin(x).or_throw();
  };
  const auto end = [&] {
    if (comm.wait(x, within(60s)) != queue_result::ok) x.outcome.or_throw();
  };
  double timer = seconds_together([&] { begin(), end(); });
  require_everywhere(b.right(comm.rank()), "an exchange");
  // What a rank computes for as long as the exchange takes, on a processor of its own: here a timer, which
  // polls.
  const auto compute = [&](bool polls) {
    const auto until =
        clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(timer));
    while (clock::now() < until) {
      std::this_thread::sleep_for(50us);
      if (polls) static_cast<void>(comm.poll(x));
    }
  };
  while (another_round()) {
    const double alone = seconds_together([&] { begin(), end(); });
    const double computed = seconds_together([&] { compute(false); });
    const double both = seconds_together([&] {
      begin();
      compute(true);
      end();
    });
    tell({alone, computed, both});
    timer = 0.75 * timer + 0.25 * alone;
    MPI_Bcast(&timer, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  }
}

}  // namespace deeprec_bench
