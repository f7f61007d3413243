// Histories of a queue: what was called, when it began and ended, what it answered; and whether a queue that
// does one thing at a time could have given the same answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/queue/wait_strategies.hpp>

namespace deeprec_test {

enum class call { put, take, close, cancel, resume };

struct event {
  call what = call::put;
  int value = 0;  // put, or taken
  deeprec::queue_result answer = deeprec::queue_result::ok;
  std::uint32_t before = 0;  // bit k: event k ended before this one began
};

// The oracle: a deque, and three rules.
struct sequential_queue {
  std::size_t capacity;
  bool closed = false;
  bool cancelled = false;
  std::deque<int> items{};

  // Whether the answer is right now; changes the state when it is. A call that ran beside others (`beside`)
  // may say "not now" because one of them was in the middle of it.
  bool apply(const event& e, bool beside) {
    using deeprec::queue_result;
    switch (e.answer) {
      case queue_result::timed_out:
      case queue_result::stopped:
        return true;
      case queue_result::cancelled:
        return cancelled;
      case queue_result::failed:
        return false;
      default:
        break;
    }
    switch (e.what) {
      case call::put:
        if (e.answer == queue_result::closed) return closed;
        if (e.answer == queue_result::not_now) return beside || items.size() >= capacity;
        if (closed || cancelled || items.size() >= capacity) return false;
        items.push_back(e.value);
        return true;
      case call::take:
        if (e.answer == queue_result::closed) return closed && items.empty();
        if (e.answer == queue_result::not_now) return beside || items.empty();
        if (cancelled || items.empty() || items.front() != e.value) return false;
        items.pop_front();
        return true;
      case call::close:
        closed = true;
        return true;
      case call::cancel:
        cancelled = true;
        return true;
      case call::resume:
        closed = cancelled = false;
        return true;
    }
    return false;
  }
  [[nodiscard]] std::string key() const {
    std::string k{closed ? 'c' : '-', cancelled ? 'x' : '-'};
    for (const int i : items) k += std::to_string(i) + ',';
    return k;
  }
};

// Wing and Gong's search, remembering where it has been (Lowe).
inline bool linearizable(const std::vector<event>& history, const sequential_queue& begin) {
  const std::size_t n = history.size();
  std::vector<bool> beside(n, false);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      const bool ordered = (history[i].before >> k & 1u) != 0 || (history[k].before >> i & 1u) != 0;
      if (i != k && !ordered) beside[i] = true;
    }
  }
  std::set<std::pair<std::uint32_t, std::string>> seen;
  std::vector<std::pair<std::uint32_t, sequential_queue>> open{{0u, begin}};
  const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << n) - 1);
  while (!open.empty()) {
    auto [done, state] = std::move(open.back());
    open.pop_back();
    if (done == all) return true;
    for (std::size_t i = 0; i < n; ++i) {
      if ((done >> i & 1u) != 0 || (history[i].before & ~done) != 0) continue;
      sequential_queue after = state;
      if (!after.apply(history[i], beside[i])) continue;
      const std::uint32_t mask = done | 1u << i;
      if (seen.emplace(mask, after.key()).second) open.emplace_back(mask, std::move(after));
    }
  }
  return false;
}

inline std::string to_string(const std::vector<event>& history) {
  static const char* const calls[] = {"put", "take", "close", "cancel", "resume"};
  static const char* const answers[] = {"ok",     "not now",   "timed out", "stopped",
                                        "closed", "cancelled", "failed"};
  std::string text;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const event& e = history[i];
    text.append("\n  ").append(std::to_string(i)).append(": ").append(calls[static_cast<int>(e.what)]);
    text.append(" ").append(std::to_string(e.value)).append(" -> ");
    text.append(answers[static_cast<int>(e.answer)]).append(", after");
    for (std::size_t k = 0; k < history.size(); ++k) {
      if ((e.before >> k & 1u) != 0) text.append(" ").append(std::to_string(k));
    }
  }
  return text;
}

}  // namespace deeprec_test
