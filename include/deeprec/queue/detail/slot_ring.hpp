// The lock-free core of mpmc_ring, reorder_buffer and staging_queue: a ring with a state in each slot.
//
//   position  = | lap | index | closed |      tail_: next to fill, head_: next to empty
//   state     = | lap |  ...  hole full |     free(lap) -> full(lap) -> free(lap + 1)
//
// A thread owns the slot of position p once its compare-exchange has moved tail_ (head_) past p; the slot's
// state passes it to the other side. A position numbers an item and is filled once. Not here: waiting, and
// the choice of the thread to wake.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

// Positions and states may wrap: they are compared by their difference, and compared laps differ by at most
// two.
template <class T, class Atomics, class Seq>
class slot_ring {
  static_assert(std::is_unsigned_v<Seq>);
  using difference = std::make_signed_t<Seq>;
  static constexpr auto relaxed = std::memory_order_relaxed;
  static constexpr auto acquire = std::memory_order_acquire;
  static constexpr auto release = std::memory_order_release;
  static constexpr Seq closed_bit = 1;
  static constexpr Seq full_bit = 1;
  static constexpr Seq hole_bit = 2;
  static constexpr Seq one = 2;  // one position further

 public:
  struct slot {
    explicit slot(Seq first) noexcept : state(first) {}
    typename Atomics::template atomic<Seq> state;
    alignas(T) std::byte bytes[sizeof(T)];
    T* item() noexcept { return std::launder(reinterpret_cast<T*>(bytes)); }
  };
  struct token {
    slot* place = nullptr;
    Seq position = 0;
  };

  // True when positions can number that many slots with three bits left for laps, and one block of memory can
  // hold them.
  static constexpr bool can_have(std::size_t capacity) noexcept {
    constexpr std::size_t countable = std::size_t{1} << (sizeof(Seq) * 8 - 4 < 40 ? sizeof(Seq) * 8 - 4 : 40);
    return capacity >= 1 && capacity <= countable && capacity <= most_bytes / stride_of(capacity);
  }

  // first_lap: the lap of the first position; tests choose it so that positions wrap.
  slot_ring(std::size_t capacity, std::pmr::memory_resource* memory, Seq first_lap)
      : capacity_(capacity),
        index_mask_(static_cast<Seq>((Seq{2} << index_bits(capacity)) - 2)),
        end_index_(static_cast<Seq>(capacity * 2)),
        half_stride_(stride_of(capacity) / 2),
        memory_(memory),
        tail_(first_position(first_lap)),
        head_(first_position(first_lap)) {
    slots_ = static_cast<std::byte*>(memory_->allocate(capacity_ * half_stride_ * 2, alignment));
    for (std::size_t i = 0; i < capacity_; ++i) {
      ::new (slots_ + i * half_stride_ * 2) slot(first_position(first_lap));
    }
  }
  ~slot_ring() {
    for (std::size_t i = 0; i < capacity_; ++i) {
      slot* s = std::launder(reinterpret_cast<slot*>(slots_ + i * half_stride_ * 2));
      // relaxed: no other thread uses the ring any more. All slots are checked: there may be gaps
      // (claim_number).
      const Seq state = s->state.load(Atomics::at(detail::access::statistic, relaxed));
      if ((state & full_bit) != 0 && (state & hole_bit) == 0) std::destroy_at(s->item());
      std::destroy_at(s);
    }
    memory_->deallocate(slots_, capacity_ * half_stride_ * 2, alignment);
  }
  slot_ring(const slot_ring&) = delete;
  slot_ring& operator=(const slot_ring&) = delete;

  // ok: the caller owns the slot and must call publish() or publish_hole(). closed, not_now: no effect.
  queue_result claim(token& mine) noexcept {
    // relaxed: a stale position is detected by the slot's state or by the compare-exchange.
    Seq p = tail_.load(Atomics::at(detail::access::position, relaxed));
    while (true) {
      if (p & closed_bit) return closed();
      slot* s = slot_of(p);
      // acquire, with the consumer's release store: its reads of the previous item happened before.
      const Seq state = s->state.load(Atomics::at(detail::access::slot_seen_free, acquire));
      const auto ahead = static_cast<difference>(static_cast<Seq>(state - lap_of(p)));
      if (ahead == 0) {
        // relaxed: only hands out numbers; data goes through the slot's state. Fails once the ring is closed.
        if (tail_.compare_exchange_weak(p, next(p), Atomics::at(detail::access::tail_claim, relaxed),
                                        relaxed)) {
          mine = {s, p};
          return queue_result::ok;
        }
      } else if (ahead < 0) {  // the slot still holds the item of the previous lap
        return queue_result::not_now;
      } else {
        p = tail_.load(Atomics::at(detail::access::position, relaxed));
      }
    }
  }

  // The slot of the n-th position, from 0: the caller, the only one with the number n, owns it once it is
  // free. Not to be combined with claim().
  queue_result claim_number(std::uint64_t n, token& mine) noexcept {
    const auto index = static_cast<Seq>(n % capacity_);
    const auto lap = static_cast<Seq>(static_cast<Seq>(n / capacity_) * lap_unit());
    const auto p = static_cast<Seq>(lap | static_cast<Seq>(index * one));
    slot* s = slot_of(p);
    // acquire: as in claim(). No compare-exchange: only the caller has this number.
    if (s->state.load(Atomics::at(detail::access::slot_number_free, acquire)) != lap_of(p))
      return queue_result::not_now;
    mine = {s, p};
    return queue_result::ok;
  }

  void publish(token mine) noexcept {
    // release, with the acquire in take(): the item is complete.
    mine.place->state.store(static_cast<Seq>(lap_of(mine.position) | full_bit),
                            Atomics::at(detail::access::slot_publish, release));
  }
  // Instead of publish(): consumers skip this slot.
  void publish_hole(token mine) noexcept {
    // release: the caller's accesses to the slot happen before the consumer frees it.
    mine.place->state.store(static_cast<Seq>(lap_of(mine.position) | full_bit | hole_bit),
                            Atomics::at(detail::access::slot_hole, release));
  }

  // ok: the caller owns the item and must call release_slot(). closed: no item will follow.
  // holes: set to true when holes were skipped, which frees their slots.
  queue_result take(token& mine, bool& holes) noexcept {
    Seq p = head_.load(Atomics::at(detail::access::position, relaxed));  // relaxed: as in claim()
    while (true) {
      slot* s = slot_of(p);
      // acquire, with the producer's release store: the item is complete.
      const Seq state = s->state.load(Atomics::at(detail::access::slot_seen_full, acquire));
      const auto wanted = static_cast<Seq>(lap_of(p) | full_bit);
      const auto ahead = static_cast<difference>(static_cast<Seq>((state & ~hole_bit) - wanted));
      if (ahead == 0) {
        // relaxed: as in claim()
        if (!head_.compare_exchange_weak(p, next(p), Atomics::at(detail::access::head_claim, relaxed),
                                         relaxed))
          continue;
        mine = {s, p};
        if (!(state & hole_bit)) return queue_result::ok;
        release_slot(mine);
        holes = true;
        p = next(p);
      } else if (ahead < 0) {  // nothing published here yet
        // Reads a word that rarely changes, so that waiting consumers don't take the cache line of tail_ from
        // the producers. relaxed: a consumer that sees it before the closed bit tries again when close()
        // wakes it.
        if (closing_.load(Atomics::at(detail::access::hint_seen, relaxed)) == 0) return queue_result::not_now;
        // Closed, and this position was never claimed: the end. A position that is claimed but not published
        // is waited for. acquire: everything before close() is visible. head_ can't have passed p: it is at
        // most tail_.
        const Seq tail = tail_.load(Atomics::at(detail::access::closed_end, acquire));
        return tail == static_cast<Seq>(p | closed_bit) ? queue_result::closed : queue_result::not_now;
      } else {
        p = head_.load(Atomics::at(detail::access::position, relaxed));
      }
    }
  }

  void release_slot(token mine) noexcept {
    // release, with the acquire in claim(): the item was read, moved and destroyed before.
    mine.place->state.store(static_cast<Seq>(lap_of(mine.position) + lap_unit()),
                            Atomics::at(detail::access::slot_release, release));
  }

  // Sets one bit of tail_: a claim comes either before it (and is delivered) or after it (and fails).
  void close() noexcept {
    // release: a thread that gets `closed` sees what the closing thread did before. acquire, with reopen(): a
    // bit that is set after it was cleared has a hint that is set after it was cleared. A hint alone is
    // harmless; a bit without it would leave consumers asleep.
    tail_.fetch_or(closed_bit, Atomics::at(detail::access::close_mark, std::memory_order_acq_rel));
    closing_.store(1, Atomics::at(detail::access::close_hint, relaxed));  // relaxed: the bit decides
  }
  void reopen() noexcept {
    closing_.store(0, Atomics::at(detail::access::close_hint, relaxed));  // consumers ignore the bit alone
    // release: a thread that then finds it open sees everything before; with close(), as above.
    tail_.fetch_and(static_cast<Seq>(~closed_bit), Atomics::at(detail::access::open_mark, release));
  }
  [[nodiscard]] bool is_closed() const noexcept {
    // acquire, with close() and reopen(): everything before them is visible
    return (tail_.load(Atomics::at(detail::access::closed_asked, acquire)) & closed_bit) != 0;
  }

  // Snapshots, possibly stale on return. relaxed: they only decide whether another thread is woken or this
  // one tries again. A thread sees what it was woken for (event_count::leave), and a stale position yields
  // true.
  [[nodiscard]] bool was_claimable() const noexcept {
    const Seq p = tail_.load(Atomics::at(detail::access::position, relaxed));
    if ((p & closed_bit) != 0) return true;
    const Seq state = slot_of(p)->state.load(Atomics::at(detail::access::looked_at, relaxed));
    return static_cast<difference>(static_cast<Seq>(state - lap_of(p))) >= 0;
  }
  [[nodiscard]] bool was_takeable() const noexcept {
    const Seq p = head_.load(Atomics::at(detail::access::position, relaxed));
    return slot_of(p)->state.load(Atomics::at(detail::access::looked_at, relaxed)) != lap_of(p) ||
           closing_.load(Atomics::at(detail::access::looked_at, relaxed)) != 0;
  }
  // Whether the item of this token is the next one to be taken.
  [[nodiscard]] bool is_next(token mine) const noexcept {
    return head_.load(Atomics::at(detail::access::looked_at, relaxed)) == mine.position;
  }
  [[nodiscard]] std::size_t was_size() const noexcept {
    const std::uint64_t taken = number_of(head_.load(Atomics::at(detail::access::statistic, relaxed)));
    const std::uint64_t put = number_of(tail_.load(Atomics::at(detail::access::statistic, relaxed)));
    const std::uint64_t size = (put + range() - taken) % range();     // either may have wrapped
    return size <= range() / 2 ? static_cast<std::size_t>(size) : 0;  // or tail_ may be older than head_
  }
  [[nodiscard]] std::uint64_t claimed_number() const noexcept {
    return number_of(tail_.load(Atomics::at(detail::access::statistic, relaxed)));
  }
  [[nodiscard]] std::uint64_t taken_number() const noexcept {
    return number_of(head_.load(Atomics::at(detail::access::statistic, relaxed)));
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint64_t number_of(token t) const noexcept { return number_of(t.position); }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::size_t alignment = alignof(slot) > line ? alignof(slot) : line;
  // Up to this capacity each slot has its own cache lines. Above it neighbours share lines: the two ends are
  // usually far apart, and half the lines are half the traffic.
  static constexpr std::size_t padded_capacity = 64;
  static constexpr auto most_bytes = static_cast<std::size_t>((std::numeric_limits<std::ptrdiff_t>::max)());

  static constexpr unsigned index_bits(std::size_t capacity) noexcept {
    const auto bits = static_cast<unsigned>(std::bit_width(capacity - 1));
    return bits > 0 ? bits : 1;  // room for the hole bit above the full bit
  }
  static constexpr std::size_t stride_of(std::size_t capacity) noexcept {
    return capacity <= padded_capacity ? (sizeof(slot) + line - 1) / line * line : (sizeof(slot) + 1) / 2 * 2;
  }
  [[nodiscard]] Seq lap_unit() const noexcept { return static_cast<Seq>(index_mask_ + 2); }
  [[nodiscard]] Seq first_position(Seq first_lap) const noexcept {
    return static_cast<Seq>(first_lap * lap_unit());
  }
  [[nodiscard]] Seq lap_of(Seq p) const noexcept { return static_cast<Seq>(p & ~(index_mask_ | closed_bit)); }
  [[nodiscard]] Seq next(Seq p) const noexcept {
    const auto bumped = static_cast<Seq>(p + one);
    return (bumped & index_mask_) == end_index_ ? static_cast<Seq>(lap_of(p) + lap_unit()) : bumped;
  }
  [[nodiscard]] slot* slot_of(Seq p) const noexcept {
    return std::launder(
        reinterpret_cast<slot*>(slots_ + static_cast<std::size_t>(p & index_mask_) * half_stride_));
  }
  [[nodiscard]] std::uint64_t number_of(Seq p) const noexcept {
    const std::uint64_t laps = lap_of(p) / lap_unit();
    return laps * capacity_ + static_cast<std::uint64_t>((p & index_mask_) / 2);
  }
  // The count of item numbers before positions wrap: at most half of what 64 bits hold.
  [[nodiscard]] std::uint64_t range() const noexcept {
    const std::uint64_t laps = static_cast<Seq>(~Seq{0}) / lap_unit() + std::uint64_t{1};
    return laps * capacity_;
  }
  [[nodiscard]] queue_result closed() const noexcept {
    // acquire: everything before close() is visible
    static_cast<void>(tail_.load(Atomics::at(detail::access::closed_put, acquire)));
    return queue_result::closed;
  }

  // Never written after construction: the line stays shared by all cores.
  const std::size_t capacity_;
  const Seq index_mask_;
  const Seq end_index_;
  const std::size_t half_stride_;
  std::pmr::memory_resource* const memory_;
  std::byte* slots_ = nullptr;
  typename Atomics::template atomic<std::uint32_t> closing_{0};  // written by close() and reopen() only
  alignas(2 * line) typename Atomics::template atomic<Seq> tail_;
  alignas(2 * line) typename Atomics::template atomic<Seq> head_;
  [[maybe_unused]] std::byte gap_[2 * line - sizeof(Seq) % (2 * line)];
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
