// Where callers of parallel_for put their work, and workers find it.
//
//   caller                                       worker
//   opens a slot, sets its bit     ────────>     polls the bits, joins a slot that is open
//   takes pieces by a counter                    takes pieces by the same counter
//                     who takes the last piece closes the slot
//   waits until the count is 0     <────────     leaves
//
// A fork is a slot without pieces: it counts calls, which workers take one each; its owner waits at its end.
//
// "Open" and the number of workers inside are one word: nobody joins a slot that is closed, so at 0 no worker
// looks at the call any more. Neither side locks, and neither makes a system call while the other one polls.
// Not here: threads, and what a piece is (thread_pool.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/exec/detail/polling.hpp>
#include <deeprec/queue/event_count.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads run, help, forks and the two scopes: any thread; work: one thread for each worker
/// Slots: calls that are shared at once, at most 62; a call beyond them runs on its own thread
template <class Atomics = std_atomics, class Polling = polling, int Slots = 32>
class bulk_board {
 public:
  using piece_call = void (*)(const void* body, index_t begin, index_t end, int worker);
  using nanoseconds = std::chrono::nanoseconds;

  /// @param workers  threads that call work()
  /// @param helpers  the most that a call wakes
  /// @param spin     how long an idle worker polls before it sleeps
  bulk_board(int workers, int helpers, nanoseconds spin) noexcept
      : workers_(workers), helpers_(helpers), spin_(spin) {}

  /// Calls every piece: the caller and the workers that join in. Returns when none of them runs any more.
  ///
  /// @param inside  the fork that the caller works in, or null
  /// @pre     n > 0, grain > 0
  /// @error   what the body of the smallest begin threw
  void run(piece_call call, const void* body, index_t n, index_t grain, int worker,
           const forked_work* inside = nullptr) {
    const index_t pieces = (n - 1) / grain + 1;
    const int at = take_slot();
    if (at < 0) {  // more calls at once than slots: this one is not shared
      for (index_t piece = 0; piece < pieces; ++piece) {
        const index_t begin = piece * grain;
        call(body, begin, n - begin > grain ? begin + grain : n, worker);
      }
      return;
    }
    slot& s = slots_[static_cast<std::size_t>(at)];
    s.call = call, s.body = body, s.inside = inside;
    s.n = n, s.grain = grain, s.pieces = pieces;
    // relaxed: published with the state
    s.cursor.store(0, Atomics::at(access::looked_at, std::memory_order_relaxed));
    // release: who joins sees the call
    s.state.store(is_open, Atomics::at(access::bulk_open, std::memory_order_release));
    // relaxed: a hint; a worker that is about to sleep looks again behind a fence
    open_.fetch_or(bit(at), Atomics::at(access::bulk_hint, std::memory_order_relaxed));
    wake(pieces - 1);
    if (inside != nullptr) inside->bulk_begins(inside->body);
    if (take_pieces(at, worker) == pieces) call_over_helpers();
    wait_until_left(s);
#if DEEPREC_EXCEPTIONS
    std::exception_ptr failure = std::exchange(s.failure, nullptr);
#endif
    give_slot_back(at);
#if DEEPREC_EXCEPTIONS
    if (failure) std::rethrow_exception(failure);
#endif
  }

  /// A slot for a fork: helpers run call(body, 0, 1, worker) for each call that call_fork() adds. -1: none.
  [[nodiscard]] int open_fork(piece_call call, const void* body) noexcept {
    const int at = take_slot();
    if (at < 0) return at;
    slot& s = slots_[static_cast<std::size_t>(at)];
    s.call = call, s.body = body, s.inside = nullptr;
    s.pieces = 0;
    return at;
  }
  /// By the owner and by helpers inside.
  void call_fork(int at, int calls) noexcept {
    slot& s = slots_[static_cast<std::size_t>(at)];
    // release: who joins sees the fork
    s.state.fetch_add(static_cast<std::uint64_t>(calls) * one_call,
                      Atomics::at(access::fork_call, std::memory_order_release));
    // release: who clears the bit after this sees the calls
    open_.fetch_or(bit(at), Atomics::at(access::fork_bit, std::memory_order_release));
    wake(calls);
  }
  /// By the owner. From here on no call begins; returns when none runs any more.
  void end_fork(int at) noexcept {
    slot& s = slots_[static_cast<std::size_t>(at)];
    // relaxed, as all of them are of the one order of the word's changes
    s.state.fetch_and(~all_calls, Atomics::at(access::fork_end, std::memory_order_relaxed));
    wait_until_left(s);
    // Behind the wait: a helper that left may have set it again.
    open_.fetch_and(~bit(at), Atomics::at(access::bulk_hint, std::memory_order_relaxed));
    give_slot_back(at);
  }

  /// Takes pieces of the newest open call, or a call of a fork; with `inside`, only pieces of a call that a
  /// thread in that fork has made. False: there is none.
  bool help(int worker, const forked_work* inside = nullptr) {
    // relaxed: only a hint, the slot's own word decides
    std::uint64_t bits = open_.load(Atomics::at(access::bulk_hint, std::memory_order_relaxed)) & ~is_stopping;
    while (bits != 0) {
      const int at = 63 - std::countl_zero(bits);
      slot& s = slots_[static_cast<std::size_t>(at)];
      if (join(at, inside != nullptr)) {
        const bool takes = inside == nullptr || s.inside == inside;
        if (takes && s.pieces > 0) take_pieces(at, worker);
        if (takes && s.pieces == 0) s.call(s.body, 0, 1, worker);
        leave(s);
        if (takes) return true;
      }
      bits &= ~bit(at);
    }
    return false;
  }

  /// What a worker does until stop().
  void work(int worker) {
    nanoseconds patience = spin_;
    while (true) {
      if (help(worker)) continue;
      const auto idle_from = Atomics::now();
      wait_for_work(idle_from, patience);
      if (stopping()) return;
      const nanoseconds waited = Atomics::now() - idle_from;
      patience = spin_.count() > 0 && waited <= longest_extra ? spin_ + waited : spin_;
    }
  }

  /// Returns when there may be something to do: polls until the time is over, then sleeps.
  void wait_for_work(typename event_count<Atomics>::time_point from, nanoseconds patience) noexcept {
    if (poll_for_work(from, patience)) return;
    const auto key = idle_.prepare();
    if (has_bits()) {
      idle_.cancel();
    } else {
      idle_.wait(key);
    }
  }

  /// Ends work() in all workers. No call may be running.
  void stop() noexcept {
    open_.fetch_or(is_stopping, Atomics::at(access::bulk_hint, std::memory_order_relaxed));
    idle_.notify_all();
  }

  /// Between these two, which nest, idle workers poll for longest_awake before they sleep.
  void stay_awake() noexcept {
    awake_.fetch_add(1, Atomics::at(access::statistic, std::memory_order_relaxed));
  }
  void may_sleep() noexcept {
    awake_.fetch_sub(1, Atomics::at(access::statistic, std::memory_order_relaxed));
  }

  /// False while all workers sleep.
  [[nodiscard]] bool polls() const noexcept { return static_cast<int>(idle_.was_waiting()) < workers_; }

 private:
  // A worker polls for spin_, and as long again as the last call kept it waiting where that was at most
  // longest_extra: calls that come in bursts find it awake, and polling costs no more than twice the wait.
  static constexpr nanoseconds longest_extra = std::chrono::microseconds(200);
  static constexpr nanoseconds longest_awake = std::chrono::milliseconds(5);
  static constexpr nanoseconds longest_wait =
      std::chrono::microseconds(200);  // of a caller, before it sleeps
  static constexpr nanoseconds between_calls_over = std::chrono::milliseconds(2);
  static_assert(Slots <= 62);

  // slot::state: | calls of a fork 30 | open 1 | the caller sleeps 1 | workers inside 32 |
  static constexpr std::uint64_t one_call = std::uint64_t{1} << 34;
  static constexpr std::uint64_t all_calls = ~(one_call - 1);
  static constexpr std::uint64_t is_open = std::uint64_t{1} << 33;
  static constexpr std::uint64_t caller_sleeps = std::uint64_t{1} << 32;
  static constexpr std::uint32_t inside(std::uint64_t state) noexcept {
    return static_cast<std::uint32_t>(state);
  }
  static constexpr std::uint64_t is_stopping = std::uint64_t{1} << 63;  // in open_
  static constexpr std::uint64_t bit(int at) noexcept { return std::uint64_t{1} << at; }

  // One line: a worker that joins needs no second one. state and cursor change; the rest is the owner's, who
  // writes it while the slot is closed and nobody is inside.
  struct alignas(64) slot {
    typename Atomics::template atomic<std::uint64_t> state{0};
    typename Atomics::template atomic<std::int64_t> cursor{0};  // hands out the numbers of pieces, in order
    piece_call call = nullptr;
    const void* body = nullptr;
    index_t n = 0;
    index_t grain = 1;
    index_t pieces = 0;                   // 0: a fork
    const forked_work* inside = nullptr;  // where the call was made
    // Under failing_.
    std::exception_ptr failure;
    index_t failed_at = 0;
  };

  int take_slot() noexcept {
    // relaxed: a first guess for the exchange
    std::uint64_t taken = taken_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while (true) {
      const int at = std::countr_one(taken);
      if (at >= Slots) return -1;
      // acquire: what the owner before has read of the slot
      if (taken_.compare_exchange_weak(taken, taken | bit(at),
                                       Atomics::at(access::bulk_take, std::memory_order_acquire),
                                       std::memory_order_relaxed)) {
        return at;
      }
    }
  }

  void give_slot_back(int at) noexcept {
    // release: the next owner writes to the slot after this one has read it
    taken_.fetch_and(~bit(at), Atomics::at(access::bulk_give_back, std::memory_order_release));
  }
  // Wakes a worker for each piece that none polls for.
  void wake(index_t wanted) noexcept {
    // Bit, fence, number of those who poll here; number, fence, bit in wait_for_work(): a worker that
    // stopped polling before it could see the bit is not counted here, or looks again.
    Atomics::light_fence(access::bulk_wake_fence);
    const index_t polling = polling_.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    const index_t more = (std::min)(wanted, index_t{helpers_}) - polling;
    if (more <= 0) return;
    if (more >= workers_) {
      idle_.notify_all();
    } else {
      for (index_t k = 0; k < more; ++k) idle_.notify_one();
    }
  }

  // A caller that got no help: a worker may wait for the processor that the caller keeps busy, since Linux
  // wakes a thread where it ran last even beside an idle processor, and moves it some milliseconds later. It
  // is let in, and sees which processor it has to leave.
  void call_over_helpers() noexcept {
    const auto order = Atomics::at(access::statistic, std::memory_order_relaxed);
    if (unhelped_.fetch_add(1, order) % 4 != 3) return;
    const std::int64_t now = Atomics::now().time_since_epoch().count();
    if (now - called_over_.load(order) < between_calls_over.count()) return;
    called_over_.store(now, order);
    shared_processor_.store(Polling::processor(), order);
    Atomics::yield();
    shared_processor_.store(-1, order);  // who was not let in does not share it
  }
  void leave_shared_processor() noexcept {
    const auto order = Atomics::at(access::statistic, std::memory_order_relaxed);
    const int shared = shared_processor_.load(order);
    if (shared >= 0 && shared == Polling::processor()) Polling::leave(shared);
  }

  // Calls with pieces only, or forks as well.
  bool join(int at, bool pieces) noexcept {
    slot& s = slots_[static_cast<std::size_t>(at)];
    // relaxed: a first guess for the exchange
    std::uint64_t seen = s.state.load(Atomics::at(access::looked_at, std::memory_order_relaxed));
    while ((seen & (pieces ? is_open : is_open | all_calls)) != 0) {
      const std::uint64_t to = (seen & is_open) != 0 ? seen + 1 : seen - one_call + 1;
      // acquire: the call
      if (s.state.compare_exchange_weak(seen, to, Atomics::at(access::bulk_join, std::memory_order_acquire),
                                        std::memory_order_relaxed)) {
        if ((to & (is_open | all_calls)) == 0) clear_bit_of_fork(at);
        return true;
      }
    }
    return false;
  }
  // By a helper that took the last call. Calls that were added since get the bit and a wake-up again.
  void clear_bit_of_fork(int at) noexcept {
    slot& s = slots_[static_cast<std::size_t>(at)];
    // acquire: the calls that were added before the bit which is cleared was set
    open_.fetch_and(~bit(at), Atomics::at(access::fork_clear, std::memory_order_acquire));
    const std::uint64_t calls =
        s.state.load(Atomics::at(access::looked_at, std::memory_order_relaxed)) / one_call;
    if (calls == 0) return;
    open_.fetch_or(bit(at), Atomics::at(access::bulk_hint, std::memory_order_relaxed));
    wake(static_cast<index_t>(calls));
  }
  void leave(slot& s) noexcept {
    // release: what the pieces wrote. From here on the slot may be another call's
    const std::uint64_t before =
        s.state.fetch_sub(1, Atomics::at(access::bulk_leave, std::memory_order_release));
    if (inside(before) == 1 && (before & caller_sleeps) != 0) Atomics::wake(s.state, 1);
  }
  // By every thread of the call that finds no piece left. Who took the last one may be late; and the caller
  // has to know of all workers inside before it counts them: it has changed the word, or seen it closed by
  // one of them.
  void close(int at) noexcept {
    slot& s = slots_[static_cast<std::size_t>(at)];
    // relaxed, as all of them are of the one order of the word's changes
    if ((s.state.load(Atomics::at(access::looked_at, std::memory_order_relaxed)) & is_open) == 0) return;
    open_.fetch_and(~bit(at), Atomics::at(access::bulk_hint, std::memory_order_relaxed));
    s.state.fetch_and(~is_open, Atomics::at(access::bulk_close, std::memory_order_relaxed));
  }

  // The number of pieces.
  index_t take_pieces(int at, int worker) {
    slot& s = slots_[static_cast<std::size_t>(at)];
    for (index_t taken = 0;; ++taken) {
      // relaxed: a number carries no data with it
      const index_t piece = s.cursor.fetch_add(1, Atomics::at(access::bulk_claim, std::memory_order_relaxed));
      if (piece >= s.pieces - 1) close(at);
      if (piece >= s.pieces) return taken;
      const index_t begin = piece * s.grain;
      const index_t end = s.n - begin > s.grain ? begin + s.grain : s.n;
#if DEEPREC_EXCEPTIONS
      try {
        s.call(s.body, begin, end, worker);
      } catch (...) {
        {
          std::lock_guard lock(failing_);
          if (!s.failure || begin < s.failed_at) {
            s.failure = std::current_exception();
            s.failed_at = begin;
          }
        }
        // No piece begins any more.
        s.cursor.store(s.pieces, Atomics::at(access::looked_at, std::memory_order_relaxed));
        close(at);
      }
#else
      s.call(s.body, begin, end, worker);
#endif
    }
  }

  void wait_until_left(slot& s) noexcept {
    const auto begun = Atomics::now();
    const bool left = Polling::template until<Atomics>(
        [&] {
          // acquire: what the pieces wrote
          return inside(s.state.load(Atomics::at(access::bulk_left, std::memory_order_acquire))) == 0;
        },
        [&] { return Atomics::now() - begun > longest_wait; });
    if (!left) {
      // relaxed: of one order with the word's other changes
      s.state.fetch_or(caller_sleeps, Atomics::at(access::looked_at, std::memory_order_relaxed));
      while (true) {
        // acquire: what the pieces wrote
        const std::uint64_t seen =
            s.state.load(Atomics::at(access::bulk_left_asleep, std::memory_order_acquire));
        if (inside(seen) == 0) break;
        static_cast<void>(Atomics::park(s.state, inside(seen), (event_count<Atomics>::time_point::max)()));
      }
    }
    s.state.store(0, Atomics::at(access::looked_at, std::memory_order_relaxed));  // nobody else writes to it
  }

  [[nodiscard]] bool has_bits() const noexcept {
    return open_.load(Atomics::at(access::bulk_hint, std::memory_order_relaxed)) != 0;
  }
  [[nodiscard]] bool stopping() const noexcept {
    return (open_.load(Atomics::at(access::bulk_hint, std::memory_order_relaxed)) & is_stopping) != 0;
  }
  bool poll_for_work(typename event_count<Atomics>::time_point from, nanoseconds patience) noexcept {
    if (spin_.count() == 0) return has_bits();
    polling_.fetch_add(1, Atomics::at(access::looked_at, std::memory_order_relaxed));
    const bool found = Polling::template until<Atomics>(
        [&] { return has_bits(); },
        [&] {
          leave_shared_processor();
          const bool awake = awake_.load(Atomics::at(access::statistic, std::memory_order_relaxed)) > 0;
          return Atomics::now() - from > (awake ? longest_awake : patience);
        });
    polling_.fetch_sub(1, Atomics::at(access::looked_at, std::memory_order_relaxed));
    return found;
  }

  const int workers_, helpers_;
  const nanoseconds spin_;
  std::array<slot, Slots> slots_;
  alignas(64) typename Atomics::template atomic<std::uint64_t> open_{0};   // what workers poll
  alignas(64) typename Atomics::template atomic<std::uint64_t> taken_{0};  // slots that have an owner
  typename Atomics::template atomic<int> unhelped_{0};                     // calls
  typename Atomics::template atomic<std::int64_t> called_over_{0};         // when
  alignas(64) typename Atomics::template atomic<int> polling_{0};
  typename Atomics::template atomic<int> awake_{0};
  typename Atomics::template atomic<int> shared_processor_{-1};
  std::mutex failing_;
  event_count<Atomics> idle_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
