// The ops of a run in a deque for each thread, and threads that steal.
//
//   thread 0   pushes and pops here  | 9 7 5 |  other threads steal here: the op that has waited for longest
//   thread 1                         | 8 6   |
//   what was ready at the beginning, and what a full deque does not hold, is in a ready_ops
//
// Both ends of a deque are one word, which every change exchanges: no fence, and no order to get wrong. A
// ready set of op_runner.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Deques: of as many threads at once, at most 63; a thread beyond them has the shared ops and steals.
///
/// @threads every member but restart and first: any
template <class Atomics = std_atomics, int Deques = 63, int Capacity = 128>
class stealing_ops {
 public:
  using number = typename Atomics::template atomic<std::int32_t>;
  static constexpr int deques = Deques;
  struct local {
    std::int32_t next = no_op;
    int deque = Deques;
  };
  struct alignas(64) deque {
    // | pushes 32 | first 16 | size 16 |: no op is pushed twice in a run, so no word comes back.
    typename Atomics::template atomic<std::uint64_t> ends{0};
    number ops[Capacity];
  };

  /// @param places  raw memory, one for each op
  /// @param own     raw memory of `Deques` deques
  stealing_ops(std::span<number> places, std::span<deque> own) noexcept : shared_(places), deques_(own) {
    for (deque& d : deques_) ::new (&d) deque();
  }

  void restart() noexcept {
    shared_.restart();
    const auto order = Atomics::at(access::looked_at, std::memory_order_relaxed);
    for (deque& d : deques_) d.ends.store(0, order);
    taken_.store(0, order);
  }
  void first(std::int32_t op) noexcept { shared_.first(op); }

  void enter(local& mine) noexcept {
    // relaxed, here and in leave(): whoever leaves has left nothing in its deque
    std::uint64_t taken = taken_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while (true) {
      const int at = std::countr_one(taken);
      if (at >= Deques) return;
      if (taken_.compare_exchange_weak(taken, taken | bit(at),
                                       Atomics::at(access::ready_claim, std::memory_order_relaxed),
                                       std::memory_order_relaxed)) {
        mine.deque = at;
        return;
      }
    }
  }
  void leave(local& mine) noexcept {
    if (mine.deque == Deques) return;
    taken_.fetch_and(~bit(mine.deque), Atomics::at(access::ready_claim, std::memory_order_relaxed));
  }

  void made_ready(local& mine, std::int32_t op, int& published) noexcept {
    if (mine.next == no_op) {
      mine.next = op;
    } else {
      push(mine, op);
      ++published;
    }
  }
  void settle(local&, int& /*published*/) noexcept {}
  void hand_over(local& mine) noexcept {
    if (mine.next != no_op) push(mine, std::exchange(mine.next, no_op));
  }

  std::int32_t take(local& mine) noexcept {
    if (mine.next != no_op) return std::exchange(mine.next, no_op);
    if (mine.deque < Deques) {
      if (const std::int32_t op = take_from(mine.deque, true); op != no_op) return op;
    }
    typename ready_ops<Atomics>::local none;
    if (const std::int32_t op = shared_.take(none); op != no_op) return op;
    // relaxed: who pushed what a publisher announced had entered before. The ones above this one first
    std::uint64_t taken = taken_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    const std::uint64_t below = mine.deque < Deques ? bit(mine.deque) - 1 : 0;
    for (std::uint64_t part : {taken & ~below, taken & below}) {
      for (; part != 0; part &= part - 1) {
        if (const std::int32_t op = take_from(std::countr_zero(part), false); op != no_op) return op;
      }
    }
    return no_op;
  }

 private:
  static constexpr std::uint64_t one_push = std::uint64_t{1} << 32;
  static constexpr std::uint64_t one_first = std::uint64_t{1} << 16;
  static constexpr std::uint64_t firsts = 0xffff0000;
  static_assert(Deques <= 63 && Capacity < 0xffff && (Capacity & (Capacity - 1)) == 0);
  static constexpr std::uint64_t bit(int at) noexcept { return std::uint64_t{1} << at; }
  static constexpr std::size_t size(std::uint64_t ends) noexcept { return ends & 0xffff; }
  static constexpr std::size_t first(std::uint64_t ends) noexcept { return ends >> 16 & 0xffff; }
  static constexpr std::size_t place(std::size_t i) noexcept { return i % Capacity; }

  void push(local& mine, std::int32_t op) noexcept {
    if (mine.deque == Deques) return shared_.first(op);
    deque& d = deques_[static_cast<std::size_t>(mine.deque)];
    // relaxed: only this thread pushes, and first + size is the same whoever steals
    const std::uint64_t ends = d.ends.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    if (size(ends) == Capacity) return shared_.first(op);
    d.ops[place(first(ends) + size(ends))].store(op,
                                                 Atomics::at(access::looked_at, std::memory_order_relaxed));
    // release: the op, and what its predecessors wrote
    d.ends.fetch_add(one_push + 1, Atomics::at(access::deque_push, std::memory_order_release));
  }
  // Of the own deque the newest op, of another one the oldest.
  std::int32_t take_from(int at, bool own) noexcept {
    deque& d = deques_[static_cast<std::size_t>(at)];
    while (true) {
      // acquire: push()
      std::uint64_t ends = d.ends.load(Atomics::at(access::deque_seen, std::memory_order_acquire));
      if (size(ends) == 0) return no_op;
      // relaxed: pushed before `ends`; a place that was used again since makes the exchange fail
      const std::int32_t op = d.ops[place(first(ends) + (own ? size(ends) - 1 : 0))].load(
          Atomics::at(access::looked_at, std::memory_order_relaxed));
      const std::uint64_t others_rest = (ends & ~firsts) | ((ends + one_first) & firsts);
      // relaxed: no push has the ends of another one
      if (d.ends.compare_exchange_weak(ends, (own ? ends : others_rest) - 1,
                                       Atomics::at(access::deque_take, std::memory_order_relaxed),
                                       std::memory_order_relaxed)) {
        return op;
      }
    }
  }

  ready_ops<Atomics> shared_;
  std::span<deque> deques_;
  alignas(64) typename Atomics::template atomic<std::uint64_t> taken_{0};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
