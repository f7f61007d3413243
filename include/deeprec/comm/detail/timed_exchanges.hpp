// How long exchanges of these ranks take.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/comm/rank_values.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The blocks of exchanges that are timed.
struct timed_blocks {
  timed_blocks(int ranks, std::pmr::memory_resource* memory)
      : out(memory),
        in(memory),
        to(static_cast<std::size_t>(ranks), memory),
        from(to, memory),
        times(ranks, memory) {
    for (int r = 0; r < ranks; ++r) {
      out.emplace_back(memory);
      in.emplace_back(memory);
    }
  }
  std::pmr::vector<message_room> out, in;
  std::pmr::vector<std::span<std::byte>> to, from;
  rank_values<double> times;
};

/// The shortest of some exchanges, at the rank where that took longest.
template <class Clock, class Comm>
result<double> exchange_seconds(Comm& comm, index_t bytes, timed_blocks& blocks, const wait_limit& limit) {
  double best = 0;
  status refused;
  for (int k = 0; k < 5; ++k) {
    const status room = or_out_of_memory("measure_link", [&] {
      for (std::size_t r = 0; r < blocks.to.size(); ++r) blocks.to[r] = blocks.out[r].make(bytes);
      return status();
    });
    const auto begun = Clock::now();
    exchange x{.step = bytes, .fault = room, .to = blocks.to, .from = blocks.from, .rooms = blocks.in};
    const status s = complete(comm, x, limit);
    const bool alone = x.agreed.ok() && s.code() == errc::out_of_memory;
    if (!s && !alone) return s;
    if (alone) refused = s;
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    if (k == 0 || took < best) best = took;  // the first one also allocates
  }
  if (const status s = blocks.times.trade(comm, bytes, best, refused, limit); !s) return s;
  for (int r = 0; r < comm.size(); ++r) best = (std::max)(best, blocks.times.of(r));
  return best;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
