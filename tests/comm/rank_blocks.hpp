// What ranks send each other in tests: every byte of a message follows from its two ranks and its step.
#pragma once

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "support/seed.hpp"

namespace deeprec_test {

/// The blocks of a rank in its exchanges.
struct blocks_of_rank {
  explicit blocks_of_rank(int ranks, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      out.emplace_back(memory);
      in.emplace_back(memory);
    }
  }
  std::vector<deeprec::message_room> out, in;
  std::vector<std::span<std::byte>> to, from;
};

// What rank `from` sends to rank `to` in a step, of no more than `most` bytes.
inline deeprec::index_t size_of(int from, int to, deeprec::index_t step, deeprec::index_t most = 3000) {
  return static_cast<deeprec::index_t>(
      deeprec::mix64(seed() + static_cast<std::uint64_t>((from * 100 + to) * 1000 + step)) %
      static_cast<std::uint64_t>(most + 1));
}
inline std::byte byte_of(int from, int to, deeprec::index_t step, deeprec::index_t i) {
  return static_cast<std::byte>(from * 37 + to * 11 + step * 5 + i);
}
inline void fill(blocks_of_rank& b, int me, deeprec::index_t step) {
  for (std::size_t r = 0; r < b.to.size(); ++r) {
    const int to = static_cast<int>(r);
    b.to[r] = b.out[r].make(size_of(me, to, step));
    const std::span<std::byte> payload = deeprec::payload_of(b.to[r]);
    for (std::size_t i = 0; i < payload.size(); ++i)
      payload[i] = byte_of(me, to, step, static_cast<deeprec::index_t>(i));
  }
}
inline bool right(const blocks_of_rank& b, int me, deeprec::index_t step) {
  for (std::size_t r = 0; r < b.from.size(); ++r) {
    const int from = static_cast<int>(r);
    const std::span<std::byte> payload = deeprec::payload_of(b.from[r]);
    if (static_cast<deeprec::index_t>(payload.size()) != size_of(from, me, step)) return false;
    for (std::size_t i = 0; i < payload.size(); ++i) {
      if (payload[i] != byte_of(from, me, step, static_cast<deeprec::index_t>(i))) return false;
    }
  }
  return true;
}

/// An exchange of messages whose sizes the receiver does not know.
inline deeprec::exchange exchange_of(blocks_of_rank& b, deeprec::message_kind kind, deeprec::index_t step) {
  return {.kind = kind, .step = step, .to = b.to, .from = b.from, .rooms = b.in};
}
/// Trades the messages of a step twice, sizes not known and known. Whether all came whole, the second time to
/// the places that were given.
template <class Comm>
bool trades_whole(Comm& comm, blocks_of_rank& b, deeprec::index_t step, const deeprec::wait_limit& limit) {
  const int me = comm.rank();
  fill(b, me, step);
  deeprec::exchange x = exchange_of(b, deeprec::message_kind::ids, step);
  if (!complete(comm, x, limit).ok() || !right(b, me, step)) return false;
  std::vector<std::byte*> places;
  for (int r = 0; r < comm.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    b.from[i] = r == me ? b.to[i] : b.in[i].make(size_of(r, me, step));
    if (r != me) std::fill(b.from[i].begin(), b.from[i].end(), std::byte{0});
    places.push_back(b.from[i].data());
  }
  deeprec::exchange y{.kind = deeprec::message_kind::rows, .step = step, .to = b.to, .from = b.from};
  bool fine = complete(comm, y, limit).ok() && right(b, me, step);
  for (std::size_t i = 0; i < places.size(); ++i) fine = fine && b.from[i].data() == places[i];
  return fine;
}

}  // namespace deeprec_test
