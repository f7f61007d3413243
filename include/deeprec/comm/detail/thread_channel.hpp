// The communicator of threads behind its ends: letters from each rank to each other one, by the number of the
// exchange.
//
//   letter of exchange k, rank a to b, lies at [a][b][k mod depth]:
//   free ── a: begin ──> posted ── b: copies ──> taking ──> taken ── a: sees it ──> free
//                          └─────── a: abandons ────────> withdrawn
//
// The receiver copies, from block to block, once. The sender's exchange ends when all of its letters are
// taken, so its blocks are read by nobody after that; where it ends early it withdraws them, and waits out a
// copy that has begun.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <vector>

#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/sum_in_order.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class letter_state : std::uint32_t { free, posted, taking, taken, withdrawn };

struct copies_bytes {
  static void copy(std::byte* to, const std::byte* from, index_t bytes) { std::copy_n(from, bytes, to); }
};

/// @param Copy   of payloads; a test sees who reads and writes
/// @param Depth  exchanges of a rank in flight
template <class Wait, class Atomics, class Copy = copies_bytes, int Depth = 4>
class thread_channel {
 public:
  static constexpr int depth = Depth;
  static constexpr std::byte poison{0xdb};

  thread_channel(int size, bool poisons, std::uint32_t generation, std::pmr::memory_resource* memory)
      : size_(size),
        poisons_(poisons),
        generation_(generation),
        letters_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * depth, memory),
        desks_(static_cast<std::size_t>(size), memory),
        marks_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size) * depth * 2, memory),
        sums_(memory) {
    for (int r = 0; r < size; ++r) sums_.emplace_back(memory);
    unsigned char* marks = marks_.data();
    for (desk& d : desks_) {
      for (flight& f : d.flights) {
        f.received = marks;
        f.delivered = marks += size;
        marks += size;
      }
    }
  }

  [[nodiscard]] int size() const noexcept { return size_; }
  /// The blocks of a rank's sums.
  [[nodiscard]] sum_in_order& summing(int rank) noexcept { return sums_[index(rank)]; }

  status begin(int me, exchange& x) {
    if (const status s = check_blocks(x, me, size_); !s) return s;
    desk& mine = desk_of(me);
    flight& f = mine.flights[mine.next % depth];
    if (f.of != nullptr) return too_many_in_flight(depth);
    if (ended() != 0) return end_status();
    number_exchange(x, mine.next++);
    f.of = &x;
    f.left = 2 * (size_ - 1);
    f.local = {};
    f.fails = false;
    if (!x.fault.ok()) agree(x, me, own_fault(x, me), f.agreed_by);
    for (int r = 0; r < size_; ++r) {
      f.received[index(r)] = f.delivered[index(r)] = r == me;
      if (r == me) continue;
      letter& l = at(me, r, x.number);
      // relaxed: its last state was this rank's own, or seen by it
      l.header = header_of(x, generation_, x.fault.ok() ? x.to[index(r)].size() : sizeof(message_header));
      l.payload = x.fault.ok() ? x.to[index(r)].data() + sizeof(message_header) : nullptr;
      // release: the receiver reads header, payload and its bytes
      l.state.store(letter_state::posted, Atomics::at(access::letter_post, std::memory_order_release));
      desk_of(r).room.notify_all();
    }
    if (!x.rooms.empty() && x.fault.ok()) x.from[index(me)] = x.to[index(me)];
    return {};
  }

  queue_result poll(int me, exchange& x) {
    flight& f = desk_of(me).flights[x.number % depth];
    if (f.of != &x) return result_of(x);  // it has ended
    if (f.fails) return settle(me, x, f);
    for (int r = 0; r < size_; ++r) {
      if (!f.received[index(r)] && !receive(me, r, x, f)) return fail(me, x, f, x.outcome);
    }
    for (int r = 0; r < size_ && f.left > 0; ++r) {
      if (f.delivered[index(r)]) continue;
      letter& l = at(me, r, x.number);
      // acquire: the receiver's reads of the blocks are over
      if (l.state.load(Atomics::at(access::letter_seen_taken, std::memory_order_acquire)) !=
          letter_state::taken)
        continue;
      // relaxed: only this rank writes a free letter
      l.state.store(letter_state::free, Atomics::at(access::letter_free, std::memory_order_relaxed));
      f.delivered[index(r)] = true;
      --f.left;
    }
    if (f.left == 0) return finish(me, x, f);
    if (ended() != 0) return fail(me, x, f, end_status());
    return queue_result::not_now;
  }

  queue_result wait(int me, exchange& x, const wait_limit& limit) {
    return desk_of(me).room.wait_for([&] { return poll(me, x); }, limit, wake_nobody());
  }

  [[nodiscard]] rank_list awaited(int me, const exchange& x) const {
    rank_list list;
    const flight& f = desks_[index(me)].flights[x.number % depth];
    for (int r = 0; r < size_ && f.of == &x; ++r) {
      if (!f.received[index(r)]) list.push_back(r);
    }
    return list;
  }

  void abandon(int me, const status& why) {
    end(me);
    desk& mine = desk_of(me);
    for (flight& f : mine.flights) {
      if (f.of == nullptr) continue;
      exchange& x = *f.of;
      if (fail(me, x, f, why) == queue_result::not_now)
        static_cast<void>(mine.room.wait_for([&] { return settle(me, x, f); }, {}, wake_nobody()));
    }
  }

 private:
  struct alignas(64) letter {
    typename Atomics::template atomic<letter_state> state{letter_state::free};
    const std::byte* payload = nullptr;
    message_header header{};
  };
  // An exchange of a rank that has begun and not ended.
  struct flight {
    exchange* of = nullptr;
    status local{};
    bool fails = false;
    int agreed_by = 0, left = 0;
    unsigned char* received = nullptr;  // by ranks
    unsigned char* delivered = nullptr;
  };
  struct desk {
    waiting_room<Wait, Atomics, 1> room;
    std::uint64_t next = 0;
    flight flights[depth];
  };

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }
  desk& desk_of(int rank) noexcept { return desks_[index(rank)]; }
  letter& at(int from, int to, std::uint64_t number) noexcept {
    return letters_[(index(from) * index(size_) + index(to)) * depth + number % depth];
  }

  // relaxed: nothing else depends on it, and who waits is woken after it
  [[nodiscard]] std::uint32_t ended() const noexcept {
    return ended_by_.load(Atomics::at(access::channel_end, std::memory_order_relaxed));
  }
  void end(int me) noexcept {
    std::uint32_t by = 0;
    while (by == 0 &&
           !ended_by_.compare_exchange_weak(by, static_cast<std::uint32_t>(me) + 1,
                                            Atomics::at(access::channel_end, std::memory_order_relaxed),
                                            std::memory_order_relaxed)) {
    }
    for (desk& d : desks_) d.room.notify_all();
  }
  [[nodiscard]] status end_status() const noexcept { return abandoned_by(static_cast<int>(ended()) - 1); }

  // False: the message does not belong to the exchange, and x.outcome is why.
  bool receive(int me, int from, exchange& x, flight& f) {
    letter& l = at(from, me, x.number);
    // relaxed: a guess
    letter_state seen = l.state.load(Atomics::at(access::letter_look, std::memory_order_relaxed));
    do {
      if (seen != letter_state::posted) return true;
      // acquire: header and payload
    } while (!l.state.compare_exchange_weak(seen, letter_state::taking,
                                            Atomics::at(access::letter_take, std::memory_order_acquire),
                                            std::memory_order_relaxed));
    x.outcome = check_header(l.header, from, generation_, x);
    if (x.outcome.ok() && x.rooms.empty())
      x.outcome = check_bytes(l.header, from, x.from[index(from)].size());
    const bool belongs = x.outcome.ok();
    if (belongs) {
      if (l.header.code != 0) {
        agree(x, from, l.header.fault(from), f.agreed_by);
      } else if (f.local.ok()) {
        copy(l, from, x, f);
      }
      f.received[index(from)] = true;
      --f.left;
    }
    // release: the block is not read after this
    l.state.store(letter_state::taken, Atomics::at(access::letter_taken, std::memory_order_release));
    desk_of(from).room.notify_all();
    return belongs;
  }

  void copy(const letter& l, int from, exchange& x, flight& f) {
    if (!x.rooms.empty() && make_block(x, from, l.header.bytes).empty()) {
      f.local = no_memory_for(from);
      return;
    }
    const std::span<std::byte> to = x.from[index(from)];
    put_message_header(to, l.header);
    Copy::copy(to.data() + sizeof(message_header), l.payload, l.header.bytes);
  }

  // All letters have been taken, and all messages have come.
  queue_result finish(int me, exchange& x, flight& f) {
    if (poisons_ && x.fault.ok()) {
      for (int r = 0; r < size_; ++r) {
        if (r != me) std::fill(x.to[index(r)].begin(), x.to[index(r)].end(), poison);
      }
    }
    x.outcome = x.agreed.ok() ? f.local : x.agreed;
    f.of = nullptr;
    return result_of(x);
  }

  // It ends when nobody reads its blocks.
  queue_result fail(int me, exchange& x, flight& f, const status& why) {
    f.fails = true;
    f.local = why;
    if (ended() == 0) end(me);
    return settle(me, x, f);
  }
  queue_result settle(int me, exchange& x, flight& f) {
    for (int r = 0; r < size_; ++r) {
      if (f.delivered[index(r)]) continue;
      letter& l = at(me, r, x.number);
      // acquire: a copy that was under way is over
      letter_state seen = l.state.load(Atomics::at(access::letter_withdraw, std::memory_order_acquire));
      if (seen == letter_state::taking) return queue_result::not_now;
      // relaxed: the receiver has read nothing
      if (seen == letter_state::posted &&
          !l.state.compare_exchange_weak(seen, letter_state::withdrawn,
                                         Atomics::at(access::letter_back, std::memory_order_relaxed),
                                         std::memory_order_relaxed))
        --r;  // again
    }
    x.outcome = f.local;
    f.of = nullptr;
    return queue_result::failed;
  }

  int size_;
  bool poisons_;
  std::uint32_t generation_;
  std::pmr::vector<letter> letters_;
  std::pmr::vector<desk> desks_;
  std::pmr::vector<unsigned char> marks_;
  std::pmr::vector<sum_in_order> sums_;                           // by ranks
  typename Atomics::template atomic<std::uint32_t> ended_by_{0};  // 1 + the rank
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
