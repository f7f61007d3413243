// The reclaimer, and the slots and segments of the key index, under Relacy: as they are, and weakened at one
// access at a time, which it has to notice. Built only where Relacy's header is found. Here every fence is a
// full one; what membarrier needs on top is explored by reclaimer_orders_test.cpp.
#include <deeprec/embedding/growing/detail/key_segment.hpp>
#include <deeprec/memory/reclaimer.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "queue/relacy_runs.hpp"  // last: it brings macros

namespace {

using namespace deeprec_test;
using deeprec::detail::access;
using deeprec::detail::code_free;
using bucket = deeprec::detail::basic_key_bucket<relacy_atomics>;
using segment = deeprec::detail::key_segment<relacy_atomics>;
using words = deeprec::detail::segment_word<relacy_atomics>;

constexpr std::uint64_t a = 7, b = 9;

enum class mistake { none, not_over, slot_not_over, not_ended };

// What readers and the thread that writes share. Not in place: Relacy allocates its suites without regard to
// their alignment.
struct shared {
  deeprec::basic_reclaimer<1, relacy_atomics> readers;
  std::array<bucket, 3> lines;
  std::array<segment, 3> segments{segment{&lines[0], 0}, segment{&lines[1], 0}, segment{&lines[2], 0}};
  words::word directory;
  std::array<rl::var<int>, 4> rows;    // the key that each belongs to
  std::array<rl::var<int>, 3> memory;  // of each segment, for its reuse

  void give_row(std::uint32_t code, std::uint64_t key) {
    rows.at(code)(RL_INFO).store(static_cast<int>(key));
  }
  std::uint32_t find(const segment& in, std::uint64_t key) {
    const std::uint32_t code = in.find(0, key);
    if (code != code_free) RL_ASSERT(rows.at(code)(RL_INFO).load() == static_cast<int>(key));
    return code;
  }
  template <mistake Wrong, class F>
  bool is_over_after(const F& f) {
    f();
    const std::uint64_t ended = Wrong == mistake::not_ended ? readers.epoch() - 1 : readers.unlinked();
    return Wrong == mistake::not_over || readers.over(ended);
  }
};

// a is erased; b gets its slot and its row.
template <mistake Wrong, int Readers>
struct reused : rl::test_suite<reused<Wrong, Readers>, Readers + 1> {
  std::unique_ptr<shared> all = std::make_unique<shared>();
  void before() {
    all->give_row(1, a);
    all->segments[0].put(0, a, 1);
  }
  void thread(unsigned index) {
    const segment& keys = all->segments[0];
    if (index < Readers) {
      const auto pin = all->readers.enter();
      static_cast<void>(all->find(keys, index == 0 ? a : b));
    } else if (all->template is_over_after<Wrong>([&] { keys.erase(0, a); })) {
      all->give_row(1, b);
      keys.free_erased();
      keys.put(0, b, 1);
    }
  }
};

// The slot belongs to a, to b, to a again.
template <mistake Wrong>
struct there_and_back : rl::test_suite<there_and_back<Wrong>, 2> {
  std::unique_ptr<shared> all = std::make_unique<shared>();
  void before() {
    all->give_row(1, a);
    all->segments[0].put(0, a, 1);
  }
  void thread(unsigned index) {
    const segment& keys = all->segments[0];
    constexpr bool asks = Wrong != mistake::slot_not_over;
    if (index == 0) {
      const auto pin = all->readers.enter();
      static_cast<void>(all->find(keys, a));
      return;
    }
    if (!all->template is_over_after<Wrong>([&] { keys.erase(0, a); }) && asks) return;
    all->give_row(2, b);
    keys.free_erased();
    keys.put(0, b, 2);
    if (!all->template is_over_after<Wrong>([&] { keys.erase(0, b); }) && asks) return;
    all->give_row(3, a);
    keys.free_erased();
    keys.put(0, a, 3);
  }
};

// The segment of a and b is replaced by another one, and its memory is used again.
template <mistake Wrong>
struct replaced : rl::test_suite<replaced<Wrong>, 2> {
  std::unique_ptr<shared> all = std::make_unique<shared>();
  void before() {
    all->give_row(1, a);
    all->give_row(2, b);
    all->segments[0].put(0, a, 1);
    all->segments[0].put(0, b, 2);
    all->memory[0](RL_INFO).store(0);
    words::store(all->directory, all->segments[0]);
  }
  void thread(unsigned index) {
    if (index == 0) {
      const auto pin = all->readers.enter();
      const segment found = words::load(all->directory);
      const auto which = static_cast<std::size_t>(found.buckets() - all->lines.data());
      RL_ASSERT(all->memory.at(which)(RL_INFO).load() == 0);
      RL_ASSERT(all->find(found, b) != code_free);
      RL_ASSERT(all->memory.at(which)(RL_INFO).load() == 0);
      return;
    }
    const segment &old = all->segments[0], &made = all->segments[1];
    all->memory[1](RL_INFO).store(0);
    old.for_each([&](std::uint64_t key, std::uint32_t code) { made.put(0, key, code); });
    if (!all->template is_over_after<Wrong>([&] { words::store(all->directory, made); })) return;
    all->memory[0](RL_INFO).store(1);
    old.change(0, b, 1);
  }
};

// a was erased long ago, and its slot is given to b: the lines of find and put, so that each can be wrong.
template <bool LooksAgain, bool KeyFirst>
struct dead_slot : rl::test_suite<dead_slot<LooksAgain, KeyFirst>, 2> {
  std::unique_ptr<shared> all = std::make_unique<shared>();
  void before() {
    all->give_row(1, a);
    all->segments[0].put(0, a, 1);
    all->segments[0].erase(0, a);
  }
  void thread(unsigned index) {
    auto& key = all->lines[0].keys[0];
    auto& code = all->lines[0].codes[0];
    if (index == 0) {
      if (key.load(rl::mo_relaxed) != a) return;
      const std::uint32_t seen = code.load(rl::mo_acquire);
      if (!deeprec::detail::is_held(seen) || (LooksAgain && key.load(rl::mo_relaxed) != a)) return;
      RL_ASSERT(all->rows.at(seen)(RL_INFO).load() == static_cast<int>(a));
      return;
    }
    all->give_row(2, b);
    if (KeyFirst) key.store(b, rl::mo_relaxed);
    code.store(2, rl::mo_release);
    if (!KeyFirst) key.store(b, rl::mo_relaxed);
  }
};

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) executions = std::strtoull(arguments[1], nullptr, 10);
  using enum mistake;
  holds<reused<none, 1>>("slot and row: find a | erase a, put b", rl::sched_random);
  holds<reused<none, 2>>("slot and row: find a | find b | erase a, put b", rl::sched_random);
  holds<there_and_back<none>>("slot of a, of b, of a: find a | write", rl::sched_random);
  holds<dead_slot<true, true>>("slot of an erased key: find a | put b", rl::sched_random);
  holds<replaced<none>>("segment: find b | replace", rl::sched_random);

  // All orders with at most so many switches away from a thread that could have gone on.
  holds<reused<none, 1>>("slot and row: find a | erase a, put b", rl::sched_bound, 3);
  holds<there_and_back<none>>("slot of a, of b, of a: find a | write", rl::sched_bound, 3);
  holds<replaced<none>>("segment: find b | replace", rl::sched_bound, 3);

  breaks<reused<none, 1>>("reclaimer: pin_leave", access::pin_leave);
  breaks<reused<none, 1>>("reclaimer: pin_seen", access::pin_seen);
  breaks<reused<none, 1>>("reclaimer: no pin_fence", access::pin_fence);
  breaks<reused<none, 1>>("reclaimer: no unlink_fence", access::unlink_fence);
  breaks<reused<none, 1>>("reclaimer: epoch_next", access::epoch_next);
  breaks<reused<none, 2>>("reclaimer: no crowd_fence", access::crowd_fence);
  breaks<reused<none, 2>>("reclaimer: crowd_leave", access::crowd_leave);
  breaks<reused<none, 2>>("reclaimer: crowd_seen", access::crowd_seen);
  breaks<reused<none, 2>>("slot: code_publish", access::code_publish);
  breaks<reused<none, 2>>("slot: code_seen", access::code_seen);
  breaks<replaced<none>>("segment: segment_publish", access::segment_publish);
  breaks<replaced<none>>("segment: segment_seen", access::segment_seen);
  breaks<reused<not_over, 1>>("slot and row without over()", {});
  breaks<reused<not_ended, 1>>("slot and row without unlinked()", {});
  breaks<there_and_back<slot_not_over>>("slot without over(), twice", {}, rl::test_result_user_assert_failed,
                                        rl::sched_bound);
  breaks<dead_slot<false, true>>("no second look at the key", {}, rl::test_result_user_assert_failed);
  breaks<dead_slot<true, false>>("code before key", {}, rl::test_result_user_assert_failed);
  breaks<replaced<not_over>>("segment without over()", {});
  breaks<replaced<not_ended>>("segment without unlinked()", {});

  std::printf(failures == 0 ? "all as expected\n" : "%d not as expected\n", failures);
  return failures == 0 ? 0 : 1;
}
