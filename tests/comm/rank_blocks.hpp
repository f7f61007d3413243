// What ranks send each other in tests: every byte of a message follows from its two ranks and its step.
#pragma once

#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/hash.hpp>

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

}  // namespace deeprec_test
