// What a session_group keeps to choose sessions: one class template, specialized for each choice. next(n)
// returns the session of a request, in [0, n).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <unordered_map>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/serving/session_choice.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Choice, class Atomics>
struct session_chooser {
  static constexpr bool is_defined = false;
};

template <class Atomics>
class session_chooser<session_choice::round_robin_t, Atomics> {
 public:
  static constexpr bool is_defined = true;

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

}}}  // namespace deeprec::DEEPREC_ABI::detail
