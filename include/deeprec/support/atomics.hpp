// The atomics policy of everything that is free of locks: atomic types, fences, sleeping and waking.
//
//   std_atomics        std::atomic, futexes, membarrier: the default
//   (a test scheduler  with the same members explores every interleaving: tests/queue/)
//
// Every access has a name (`access`), so that a test can weaken exactly one of them and must detect that. In
// std_atomics the name costs nothing. A comment at each access justifies its memory order. Not here: any
// queue.
#pragma once

#if defined(__linux__)
#  include <linux/futex.h>
#  include <linux/membarrier.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#endif

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <thread>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The atomic accesses of the library, by name. Each access that is stronger than relaxed, and each fence,
/// has its own name.
enum class access : unsigned char {
  // slot_ring: the state of a slot changes free -> full -> free of the next lap.
  slot_seen_free,    ///< producer reads the state
  slot_number_free,  ///< the same, by number
  slot_publish,      ///< producer writes "full"
  slot_hole,         ///< producer writes "full, but nothing in it"
  slot_seen_full,    ///< consumer reads the state
  slot_release,      ///< consumer writes "free"
  close_mark,        ///< the closed bit is set
  open_mark,         ///< the closed bit is cleared
  closed_end,        ///< consumer reads the closed bit
  closed_put,        ///< producer reads the closed bit
  closed_asked,      ///< is_closed() reads it
  // spsc_ring
  count_publish,    ///< producer writes how many it has published
  count_seen,       ///< consumer reads it
  count_seen_n,     ///< the same, for a batch
  taken_publish,    ///< consumer writes how many it has released
  taken_publish_n,  ///< the same, for a batch
  taken_seen,       ///< producer reads it
  taken_seen_n,     ///< the same, for a batch
  taken_seen_size,  ///< was_size() reads it
  flag_seen_free,
  flag_publish,
  flag_seen_full,
  flag_release,  ///< the same by a flag in each slot
  // event_count
  waiter_leave,      ///< a waiter deregisters
  epoch_raise,       ///< a notifier makes the keys of all waiters stale
  notify_one_fence,  ///< between what was published and waiters_seen
  notify_all_fence,  ///< the same
  wait_fence,        ///< between waiter_count and the second check
  // staging_queue, staging_pool
  cancel_mark,
  resume_mark,
  cancel_seen,
  stack_seen,        ///< pop() reads the top
  stack_seen_again,  ///< the same, by an exchange that failed
  stack_push,
  // bulk_board (exec/)
  bulk_open,         ///< a caller publishes its call
  bulk_join,         ///< a worker enters it
  bulk_leave,        ///< it leaves
  bulk_left,         ///< the caller reads how many are inside
  bulk_left_asleep,  ///< the same, when it sleeps
  bulk_take,         ///< a caller takes a slot
  bulk_give_back,    ///< it gives it back
  bulk_wake_fence,   ///< between the bit of a call and the number of those who poll
  fork_call,         ///< a fork asks for helpers
  fork_bit,          ///< its bit is set
  fork_clear,        ///< who took the last call clears it
  // op_runner and its ready sets (plan/)
  op_counted,   ///< an op has ended: it is counted for a successor
  end_counted,  ///< the same for an op without successors
  run_ended,    ///< the owner reads whether all of them have
  ready_add,    ///< an op is ready for any thread
  deque_push,   ///< the same in the deque of a thread
  deque_seen,
  rank_add,      ///< the same by its rank
  rank_part,     ///< and in the bits of the words that hold some
  rank_clear,    ///< who took the last op of a word clears its bit
  rank_take,     ///< a thread takes it
  ready_seen,    ///< a thread finds it
  crew_publish,  ///< the epoch of what is ready goes on
  crew_look,     ///< read before a last look at what is ready
  // stale_window (pipeline/)
  version_publish,   ///< an update of a shard has ended
  version_read,      ///< a lookup reads the version of its shard
  version_applied,   ///< an update reads whether the one before it has ended
  passed_publish,    ///< a lookup has read its shard
  passed_seen,       ///< an update reads how many have
  shard_shared,      ///< hogwild: a lookup enters its shard
  shard_left,        ///< it leaves
  shard_taken,       ///< an update enters
  shard_given_back,  ///< it leaves
  // reclaimer (memory/)
  pin_enter,     ///< a reader writes its epoch to a place
  pin_leave,     ///< it empties the place, on whichever thread
  pin_seen,      ///< the owner of the memory reads a place
  pin_fence,     ///< between a reader's place and its first read
  crowd_enter,   ///< a reader that found no place
  crowd_fence,   ///< between its entry and its first read
  crowd_leave,   ///< it leaves
  crowd_seen,    ///< the owner reads how many there are
  epoch_next,    ///< the owner begins an epoch, after it unlinked
  epoch_seen,    ///< a reader reads the epoch
  unlink_fence,  ///< between the stores that unlink and the reads of places
  // thread_channel (comm/)
  letter_post,        ///< a rank hands its message over
  letter_take,        ///< the receiver begins to copy it
  letter_taken,       ///< it has copied it
  letter_seen_taken,  ///< the sender reads that, and its block is its own again
  letter_withdraw,    ///< the same where it takes its messages back
  // key_index (embedding/growing/)
  code_publish,     ///< a key's code, after its row and its key
  code_erase,       ///< the code of an erased key
  code_seen,        ///< a reader reads the code of a key that it found
  segment_publish,  ///< a directory gets a segment that holds keys
  segment_seen,     ///< a reader reads where a segment is
  root_publish,     ///< a share of the hashes gets a directory
  root_seen,        ///< a reader reads it
  // row_claim (embedding/growing/)
  row_settle,   ///< the row is copied
  row_settled,  ///< who is going to change the row reads that it is
  // versioned (serving/)
  model_publish,  ///< a version becomes the current one
  model_seen,     ///< a reader reads which one is

  // Relaxed: what they read is confirmed by one of those above, or by an exchange.
  position,    ///< reads of a position
  tail_claim,  ///< producer's compare-exchange
  head_claim,  ///< consumer's compare-exchange
  close_hint,  ///< a word that mirrors the closed bit
  hint_seen,
  looked_at,     ///< reads that only decide whether another thread is woken, or this one tries again
  waiter_count,  ///< a waiter registers
  waiters_seen,  ///< a notifier reads the number of waiters
  bulk_hint,     ///< the bits of the calls
  bulk_claim,    ///< a piece is taken
  bulk_close,    ///< no piece is left
  fork_end,      ///< no call of a fork begins any more
  ready_claim,   ///< a place of what is ready is taken
  deque_take,    ///< an op of a deque is
  crew_leave,    ///< a helper leaves a run, unless the epoch went on
  crew_sleep,    ///< its owner is about to sleep, unless the epoch went on
  bytes_take,
  bytes_give,
  bytes_seen,
  depth_limit,  ///< the limit of records is changed
  depth_seen,
  stack_next,
  stack_guess,
  window_begin,  ///< an exchange: a reading or a writing of a stale_window begins, once
  window_mark,   ///< the end, the cancel and, under exclusion, the version of a stale_window
  window_seen,
  epoch_guess,   ///< the owner reads its own epoch
  row_claim,     ///< an exchange: a thread takes it upon itself to copy a row of a cut
  key_write,     ///< a key, before its code
  key_seen,      ///< the comparison
  key_again,     ///< the second look: after the code, the key is still there
  passed_count,  ///< how many keys went on from a bucket
  letter_look,   ///< a receiver's guess
  letter_back,   ///< a message that nobody has begun to copy is taken back
  channel_end,   ///< a rank abandons a communicator, and the others see it
  letter_free,   ///< a rank that has seen its letter taken may write the next one
  session_turn,  ///< the number of a request at a session_group
  statistic,     ///< counters, and first guesses of an exchange: nothing depends on the value read
};

/// std::atomic, and sleeping on a futex (elsewhere on std::atomic::wait).
///
/// A notifier publishes and then checks for waiters; a waiter registers and then checks for work. Both need a
/// full fence in between. A waiter is about to sleep and can pay for both: with Linux's membarrier its
/// heavy_fence() makes every other thread of the process execute a fence, and light_fence() is a compiler
/// barrier only. Where membarrier is refused, both are fences. A forked child keeps the registration.
///
/// Futexes and membarrier are those of one process: a thread that sleeps on a word in memory that processes
/// share is woken by no thread of another process.
struct std_atomics {
  template <class T>
  using atomic = std::atomic<T>;
  using time_point = std::chrono::steady_clock::time_point;

  static constexpr std::memory_order at(access, std::memory_order order) noexcept { return order; }

  /// Must be called before light_fence() can be a compiler barrier only.
  static void prepare() noexcept { static_cast<void>(can_barrier()); }

  static void light_fence(access) noexcept {
    // True only once membarrier is registered. From then on every heavy_fence uses it, and an earlier one has
    // called can_barrier() itself, so such a light fence is never paired with a heavy fence without
    // membarrier.
    if (light_fence_is_free()) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      full_fence();
    }
  }
  static void heavy_fence(access) noexcept {
    full_fence();
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
    // acquire: stores before such light fences, made before the end of the pause, are visible after this.
    if (no_fence_is_free.load(std::memory_order_acquire) || !can_barrier() || barrier()) return;
    // Registered, but refused now: by a system call filter, or by the kernel on which a checkpoint was
    // restored.
    if (register_barrier() && barrier()) return;
    barrier_registered.store(false, std::memory_order_seq_cst);
    // A thread may be in a light fence that was free: its stores are visible by the end of this pause.
    timespec pause{0, 1'000'000};
    while (::nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
    full_fence();
    no_fence_is_free.store(true, std::memory_order_release);  // no thread need pause again
#endif
  }
  /// Whether light_fence() relies on membarrier.
  [[nodiscard]] static bool light_fence_is_free() noexcept {
    return barrier_registered.load(std::memory_order_relaxed);
  }

  static void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
  }
  /// Prefetches a line for reading.
  static void fetch(const void* line) noexcept { __builtin_prefetch(line); }
  /// Prefetches a line for writing.
  static void fetch_for_write(const void* line) noexcept {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));  // the builtin needs a flag
#else
    __builtin_prefetch(line, 1);
#endif
  }
  static void yield() noexcept { std::this_thread::yield(); }
  static time_point now() noexcept { return std::chrono::steady_clock::now(); }

  /// Sleeps while the low 32 bits of `word` are `low`; may return spuriously. False: the deadline has passed.
  static bool park(std::atomic<std::uint64_t>& word, std::uint32_t low, time_point deadline) noexcept {
#if defined(__linux__)
    timespec until{};
    timespec* limit = nullptr;
    if (deadline != (time_point::max)()) {
      const auto since = deadline.time_since_epoch();
      if (since.count() <= 0) return false;
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
      until.tv_sec = static_cast<decltype(until.tv_sec)>(seconds.count());
      until.tv_nsec = static_cast<decltype(until.tv_nsec)>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count());
      limit = &until;
    }
    // WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is what steady_clock counts.
    ::syscall(SYS_futex, low_half(word), FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, low, limit, nullptr,
              FUTEX_BITSET_MATCH_ANY);
    return deadline == (time_point::max)() || now() < deadline;
#else
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(seen) != low) return true;
    if (deadline == (time_point::max)()) {
      word.wait(seen, std::memory_order_acquire);
      return true;
    }
    if (now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // no timed wait in the standard
    return true;
#endif
  }

  /// Wakes `count` threads that sleep on the word, or all for a negative count.
  static void wake(std::atomic<std::uint64_t>& word, int count) noexcept {
#if defined(__linux__)
    ::syscall(SYS_futex, low_half(word), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count < 0 ? INT_MAX : count,
              nullptr, nullptr, 0);
#else
    count == 1 ? word.notify_one() : word.notify_all();
#endif
  }

 private:
  static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

  // The kernel reads this half; the program itself never does.
  static void* low_half(std::atomic<std::uint64_t>& word) noexcept {
    return reinterpret_cast<char*>(&word) + (std::endian::native == std::endian::little ? 0 : 4);
  }

  static void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
    __sync_synchronize();  // the thread sanitizer does not model fences, and g++ warns at each
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
  static bool register_barrier() noexcept {
    return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  }
  static bool barrier() noexcept {
    return ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
  }
#endif

  static bool can_barrier() noexcept {
#if defined(__linux__) && !defined(__SANITIZE_THREAD__)
    static const bool registered = [] {
      const bool done = register_barrier();
      barrier_registered.store(done, std::memory_order_seq_cst);
      return done;
    }();
    return registered;
#else
    return false;
#endif
  }

  inline static std::atomic<bool> barrier_registered{false};
  inline static std::atomic<bool> no_fence_is_free{false};  // set after the pause in heavy_fence()
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
