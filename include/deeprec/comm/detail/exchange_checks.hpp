// What engines share: the header of a message, whether one belongs to an exchange, and a wait by polling.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <thread>

#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/message_room.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The header of this rank's messages.
inline message_header header_of(const exchange& x, std::uint32_t generation, std::size_t block) noexcept {
  message_header h;
  h.kind = x.kind;
  h.generation = generation;
  h.step = x.step;
  if (x.fault.ok()) {
    h.bytes = static_cast<std::int64_t>(block - sizeof(message_header));
  } else {
    const fault_place& place = x.fault.place();
    h.code = static_cast<std::int32_t>(x.fault.code());
    h.table = place.table;
    h.bag = place.bag;
    h.position = place.position;
    h.value = place.value;
  }
  return h;
}

/// The fault of this rank with the place that the others read, and its own words.
inline status own_fault(const exchange& x, int rank) noexcept {
  const status as_sent = header_of(x, 0, 0).fault(rank);
  return {as_sent.code(), x.fault.detail(), as_sent.place()};
}

/// The beginning of an exchange that its engine has accepted.
inline void number_exchange(exchange& x, std::uint64_t number) noexcept {
  x.number = number;
  x.agreed = x.outcome = {};
  x.mismatch = {};
}
/// Of two faults that of the smaller rank. `by`: the rank of x.agreed, where it is a fault.
inline void agree(exchange& x, int rank, const status& s, int& by) noexcept {
  if (!x.agreed.ok() && rank > by) return;
  x.agreed = s;
  by = rank;
}
inline queue_result result_of(const exchange& x) noexcept {
  return x.outcome.ok() ? queue_result::ok : queue_result::failed;
}

inline status too_many_in_flight(int most) noexcept {
  return {
      errc::would_block, "exchange: too many exchanges of a communicator are in flight", {.at_most = most}};
}
inline status abandoned_by(int rank) noexcept {
  fault_place place{};
  place.rank = rank;
  return {errc::closed, "exchange: a rank has abandoned the communicator", place};
}
inline status no_memory_for(int rank) noexcept {
  fault_place place{};
  place.rank = rank;
  return {errc::out_of_memory, "exchange: no memory for a message", place};
}

/// The wait of an engine that moves bytes while it is called: until look() returns anything but not_now.
/// Other threads run after a while.
template <class Look>
queue_result wait_by_polling(const Look& look, const wait_limit& limit) {
  using clock = std::chrono::steady_clock;
  for (unsigned looks = 1;; ++looks) {
    const queue_result r = look();
    if (r != queue_result::not_now) return r;
    if (looks > 256) std::this_thread::yield();
    if (looks % 32 != 0) continue;
    if (limit.stop.stop_requested()) return queue_result::stopped;
    if (limit.deadline != (clock::time_point::max)() && clock::now() >= limit.deadline)
      return queue_result::timed_out;
  }
}

/// Whether a message belongs to the exchange; not its size.
inline status check_header(const message_header& h, int sender, std::uint32_t generation, exchange& x) {
  fault_place place{};
  place.rank = sender;
  if (h.magic != message_header::mark || h.version != message_header::format) {
    return {errc::invalid_value, "exchange: a message must have this version's header, in this byte order",
            place};
  }
  if (h.generation != generation) {
    place.is = h.generation;
    place.must_be = generation;
    return {errc::invalid_value, "exchange: a message must be of this generation of the job", place};
  }
  if (h.bytes < 0) return {errc::invalid_value, "exchange: a payload must have at least 0 bytes", place};
  if (h.kind == x.kind && h.step == x.step) return {};
  x.mismatch = {sender, h.kind, h.step};
  if (h.kind == x.kind) {
    place.is = h.step;
    place.must_be = x.step;
    return {errc::invalid_value, "exchange: all ranks must be at one step", place};
  }
  return {errc::invalid_value, "exchange: all ranks must be at messages of one kind", place};
}

/// The block of a message whose size its receiver did not know; empty where there is no memory for it.
inline std::span<std::byte> make_block(exchange& x, int sender, index_t payload_bytes) {
  std::span<std::byte>& block = x.from[static_cast<std::size_t>(sender)];
  message_room& room = x.rooms[static_cast<std::size_t>(sender)];
  block = {};
#if DEEPREC_EXCEPTIONS
  try {
    block = room.make(payload_bytes);
  } catch (const std::bad_alloc&) {
  }
#else
  block = room.make(payload_bytes);
#endif
  return block;
}

/// The size of a message whose receiver knows it.
inline status check_bytes(const message_header& h, int sender, std::size_t block) {
  const index_t room = static_cast<index_t>(block) - index_t{sizeof(message_header)};
  if (h.code != 0 || h.bytes == room) return {};
  fault_place place{};
  place.rank = sender;
  place.is = h.bytes;
  place.must_be = room;
  return {errc::invalid_value, "exchange: a payload must have the bytes that its receiver waits for", place};
}

/// The number of ranks of the blocks, and their sizes.
inline status check_blocks(const exchange& x, int rank, int size) {
  const auto n = static_cast<std::size_t>(size);
  if (x.to.size() != n && (x.fault.ok() || !x.to.empty())) {
    return {errc::shape_mismatch,
            "exchange: to must have a block for each rank",
            {.is = static_cast<index_t>(x.to.size()), .must_be = size}};
  }
  if (x.from.size() != n || (!x.rooms.empty() && x.rooms.size() != n))
    return {errc::shape_mismatch,
            "exchange: from and rooms must have a block for each rank",
            {.is = static_cast<index_t>(x.from.size()), .must_be = size}};
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    const auto i = static_cast<std::size_t>(r);
    if ((x.fault.ok() && x.to[i].size() < sizeof(message_header)) ||
        (x.rooms.empty() && x.from[i].size() < sizeof(message_header)))
      return {errc::shape_mismatch, "exchange: a block must have room for a header", {.item = r}};
  }
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
