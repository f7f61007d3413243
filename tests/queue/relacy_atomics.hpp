// The atomics of queue/ as Relacy's, so that a second, independent checker looks at the queues.
//
//   relacy_atomics   rl::atomic, Relacy's fences, and sleeping on Relacy's futex
//   checked_item     an item whose memory is an rl::var: every access is checked for data races
//   ground           where a ring's slots lie; knows the rl::var of each slot
//
// Relacy also fails compare-exchanges for no reason, which our explorer doesn't. Its header
// redefines names of the C library and of pthreads and replaces operator new: one translation unit,
// with a main of its own, which includes this header last.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <utility>

#include <deeprec/support/atomics.hpp>

#include <relacy/relacy.hpp>

#undef $
#undef VAR
#undef VAR_T
#undef TLS_T
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

namespace deeprec_test {

// What is broken on purpose: an access becomes relaxed, or a fence is left out.
inline std::optional<deeprec::detail::access> broken_access;

template <class T>
class relacy_atomic {
 public:
  relacy_atomic() : word_(T{}) {}
  relacy_atomic(T first) : word_(first) {}

  T load(rl::memory_order o) const { return word_.load(o, RL_INFO); }
  void store(T value, rl::memory_order o) { word_.store(value, o, RL_INFO); }
  T fetch_add(T by, rl::memory_order o) { return word_.fetch_add(by, o, RL_INFO); }
  T fetch_sub(T by, rl::memory_order o) { return word_.fetch_sub(by, o, RL_INFO); }
  T fetch_or(T by, rl::memory_order o) { return word_.fetch_or(by, o, RL_INFO); }
  T fetch_and(T by, rl::memory_order o) { return word_.fetch_and(by, o, RL_INFO); }
  // The queues read nothing from a failure that would need more than relaxed.
  bool compare_exchange_weak(T& expected, T wanted, rl::memory_order o, std::memory_order) {
    return word_(RL_INFO).compare_exchange_weak(expected, wanted, o, rl::mo_relaxed);
  }
  // Relacy's futex, for a word of any width: looking and falling asleep are one step.
  bool park(std::uint32_t low, bool timed) {
    rl::context& c = rl::ctx();
    c.sched();
    c.atomic_thread_fence_seq_cst();
    {
      const rl::preemption_disabler one_step(c);
      if (static_cast<std::uint32_t>(load(rl::mo_relaxed)) != low) return true;
    }
    return word_.wait(c, timed, true, RL_INFO) != rl::unpark_reason_timeout;
  }
  void wake(int count) {
    rl::context& c = rl::ctx();
    c.sched();
    c.atomic_thread_fence_seq_cst();
    word_.wake(c, count, RL_INFO);  // negative: all
  }

 private:
  rl::atomic<T> word_;
};

struct relacy_atomics {
  template <class T>
  using atomic = relacy_atomic<T>;
  using time_point = std::chrono::steady_clock::time_point;

  static rl::memory_order at(deeprec::detail::access site, std::memory_order order) {
    if (broken_access == site) return rl::mo_relaxed;
    switch (order) {
      case std::memory_order_relaxed:
        return rl::mo_relaxed;
      case std::memory_order_consume:
        return rl::mo_consume;
      case std::memory_order_acquire:
        return rl::mo_acquire;
      case std::memory_order_release:
        return rl::mo_release;
      case std::memory_order_acq_rel:
        return rl::mo_acq_rel;
      case std::memory_order_seq_cst:
        break;
    }
    return rl::mo_seq_cst;
  }
  static void prepare() {}
  // A membarrier can't be expressed here: both are fences, as where the kernel has none.
  static void light_fence(deeprec::detail::access site) {
    if (broken_access != site) rl::atomic_thread_fence(rl::mo_seq_cst, RL_INFO);
  }
  static void heavy_fence(deeprec::detail::access site) { light_fence(site); }
  static void relax() {}
  static void yield() { rl::ctx().yield(1, RL_INFO); }
  static void fetch(const void*) {}
  static void fetch_for_write(const void*) {}
  static time_point now() { return {}; }

  // A deadline may pass at any moment.
  static bool park(relacy_atomic<std::uint64_t>& word, std::uint32_t low, time_point deadline) {
    return word.park(low, deadline != time_point::max());
  }
  static void wake(relacy_atomic<std::uint64_t>& word, int count) { word.wake(count); }
};

// Memory of a ring's slots. Items come and go, the rl::var of their place stays: so a producer that
// makes an item where a consumer still reads the one before is a data race like any other.
class ground final : public std::pmr::memory_resource {
 public:
  ground() { current_ = this; }

  static rl::var<int>* place_of(const void* item) {
    ground& g = *current_;
    const auto* at = static_cast<const std::byte*>(item);
    if (at < g.bytes_.data() || at >= g.bytes_.data() + g.bytes_.size()) return nullptr;  // on a stack
    for (place& p : g.places_) {
      if (p.item == item) return &*p.cell;
      if (p.item == nullptr) {
        p.item = item;
        return &p.cell.emplace(0);
      }
    }
    RL_ASSERT(!"as many places as the largest ring has slots");
    return nullptr;
  }

 private:
  struct place {
    const void* item = nullptr;
    std::optional<rl::var<int>> cell;
  };
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    void* at = bytes_.data();
    std::size_t room = bytes_.size();
    void* const aligned = std::align(alignment, size, at, room);
    RL_ASSERT(aligned != nullptr);
    return aligned;
  }
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  inline static ground* current_ = nullptr;
  std::array<place, 2> places_;
  std::array<std::byte, 1024> bytes_;
};

class checked_item {
 public:
  static constexpr int gone = -1;  // moved from
  checked_item() : checked_item(0) {}
  explicit checked_item(int v) : value_(v) { write(); }
  checked_item(checked_item&& other) noexcept : value_(other.take()) { write(); }
  checked_item& operator=(checked_item&& other) noexcept {
    value_ = other.take();
    write();
    return *this;
  }
  ~checked_item() { write(); }
  [[nodiscard]] int value() const { return value_; }

 private:
  void write() {
    if (auto* place = ground::place_of(this)) (*place)(RL_INFO).store(value_);
  }
  int take() {
    if (auto* place = ground::place_of(this)) {
      RL_ASSERT((*place)(RL_INFO).load() == value_);
      (*place)(RL_INFO).store(gone);  // a move writes to where it came from
    }
    return std::exchange(value_, gone);
  }
  int value_;
};

}  // namespace deeprec_test
