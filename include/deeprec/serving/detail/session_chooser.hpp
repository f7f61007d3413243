// What a session_group keeps to choose sessions: one class template, specialized for each choice. next(n)
// returns the session of a request, in [0, n); ended(session) follows, where the choice counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/serving/session_choice.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Choice, class Atomics>
struct session_chooser {
  static constexpr bool is_defined = false;
  static constexpr bool counts = false;
};

template <class Atomics>
class session_chooser<session_choice::round_robin_t, Atomics> {
 public:
  static constexpr bool is_defined = true;
  static constexpr bool counts = false;
  explicit session_chooser(index_t) noexcept {}

  index_t next(index_t sessions) noexcept {
    // relaxed: a number
    return static_cast<index_t>(
        requests_.fetch_add(1, Atomics::at(access::session_turn, std::memory_order_relaxed)) %
        static_cast<std::uint64_t>(sessions));
  }

 private:
  typename Atomics::template atomic<std::uint64_t> requests_{0};
};

template <class Atomics>
class session_chooser<session_choice::by_thread_t, Atomics> {
 public:
  static constexpr bool is_defined = true;
  static constexpr bool counts = false;
  explicit session_chooser(index_t) noexcept {}

  // Throws std::bad_alloc, and has changed nothing then.
  index_t next(index_t sessions) { return number_of_thread() % sessions; }

 private:
  index_t number_of_thread() {
    // A thread mostly asks one group. Marks are never used again, numbers of threads are the group's.
    struct answer {
      std::uint64_t mark = 0;
      index_t number = 0;
    };
    thread_local answer last;
    if (last.mark != mark_) {
      const std::lock_guard lock(mutex_);
      const auto found =
          numbers_.try_emplace(std::this_thread::get_id(), static_cast<index_t>(numbers_.size()));
      last = {mark_, found.first->second};
    }
    return last.number;
  }
  static std::uint64_t next_mark() noexcept {
    static std::atomic<std::uint64_t> marks{0};
    return marks.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: a number
  }

  const std::uint64_t mark_ = next_mark();
  std::mutex mutex_;
  std::unordered_map<std::thread::id, index_t> numbers_;
};

template <class Atomics>
class session_chooser<session_choice::least_busy_t, Atomics> {
 public:
  static constexpr bool is_defined = true;
  static constexpr bool counts = true;
  explicit session_chooser(index_t sessions) : requests_(static_cast<std::size_t>(sessions)) {}

  // Without a lock: requests that come at once may see the same numbers, and then follow each other.
  index_t next(index_t sessions) noexcept {
    const auto first =
        static_cast<index_t>(turn_.fetch_add(1, relaxed()) % static_cast<std::uint64_t>(sessions));
    index_t chosen = first;
    std::uint32_t fewest = at(first).load(relaxed());
    for (index_t i = 1; i < sessions && fewest > 0; ++i) {
      const index_t other = (first + i) % sessions;
      const std::uint32_t here = at(other).load(relaxed());
      if (here < fewest) chosen = other, fewest = here;
    }
    at(chosen).fetch_add(1, relaxed());
    return chosen;
  }
  void ended(index_t session) noexcept { at(session).fetch_sub(1, relaxed()); }

 private:
  using word = typename Atomics::template atomic<std::uint32_t>;
  struct alignas(64) line {
    word requests{0};
  };
  static auto relaxed() noexcept { return Atomics::at(access::session_turn, std::memory_order_relaxed); }
  [[nodiscard]] word& at(index_t session) noexcept {
    return requests_[static_cast<std::size_t>(session)].requests;
  }

  std::vector<line> requests_;
  typename Atomics::template atomic<std::uint64_t> turn_{0};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
