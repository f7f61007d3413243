// The ops of a run in the order in which they became ready. Any thread adds one, and any takes the next.
//
//   places   | 4 | 1 | 2 | - | - |      a place is written once in a run and taken once
//                  head    tail          -: not ready yet
//
// A ready set of op_runner: what a thread keeps for itself is the first op that its last one made ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

constexpr std::int32_t no_op = -1;

/// @threads every member but restart and first: any
template <class Atomics = std_atomics>
class ready_ops {
 public:
  using number = typename Atomics::template atomic<std::int32_t>;
  /// What a thread of the run keeps for itself.
  struct local {
    std::int32_t next = no_op;
  };

  /// @param places  raw memory, one for each op
  explicit ready_ops(std::span<number> places) noexcept : places_(places) {
    for (number& n : places_) ::new (&n) number(no_op);
  }

  /// No op is ready. By one thread, before the others begin.
  void restart() noexcept {
    const auto order = Atomics::at(access::looked_at, std::memory_order_relaxed);
    const auto used = static_cast<std::size_t>(tail_.load(order));
    for (number& n : places_.first(used)) n.store(no_op, order);
    head_.store(0, order);
    tail_.store(0, order);
  }
  /// Before the others begin.
  void first(std::int32_t op) noexcept { add(op); }

  void enter(local&) noexcept {}
  void leave(local&) noexcept {}
  /// The op that the caller has just run made this one ready.
  void made_ready(local& mine, std::int32_t op, int& published) noexcept {
    if (mine.next == no_op) {
      mine.next = op;
    } else {
      add(op);
      ++published;
    }
  }
  /// After the last of them.
  void settle(local&, int& /*published*/) noexcept {}
  /// What the caller keeps is for everybody.
  void hand_over(local& mine) noexcept {
    if (mine.next != no_op) add(std::exchange(mine.next, no_op));
  }
  /// The next op of the caller; no_op where there is none now.
  std::int32_t take(local& mine) noexcept {
    if (mine.next != no_op) return std::exchange(mine.next, no_op);
    const auto n = static_cast<std::int32_t>(places_.size());
    std::int32_t at = head_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while (at < n) {
      // acquire: add()
      const std::int32_t op = places_[static_cast<std::size_t>(at)].load(
          Atomics::at(access::ready_seen, std::memory_order_acquire));
      if (op == no_op) return no_op;
      // relaxed: the op was acquired, and each place is taken once
      if (head_.compare_exchange_weak(at, at + 1, Atomics::at(access::ready_claim, std::memory_order_relaxed),
                                      std::memory_order_relaxed)) {
        return op;
      }
    }
    return no_op;
  }

 private:
  void add(std::int32_t op) noexcept {
    const std::int32_t at = tail_.fetch_add(1, Atomics::at(access::ready_claim, std::memory_order_relaxed));
    // release: what the op's predecessors wrote
    places_[static_cast<std::size_t>(at)].store(op,
                                                Atomics::at(access::ready_add, std::memory_order_release));
  }

  std::span<number> places_;
  alignas(64) number head_{0};
  alignas(64) number tail_{0};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
