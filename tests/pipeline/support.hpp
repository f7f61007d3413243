// Items that count themselves, executors that count their tasks, and lines that the tests share.
#pragma once

#include <dirent.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include <deeprec/core/task_handle.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>

namespace deeprec_test {

// Move-only; what was moved from is no item.
class item {
 public:
  static inline std::atomic<int> alive{0};

  explicit item(std::uint64_t v) : value(v) { ++alive; }
  item(item&& other) noexcept : value(std::exchange(other.value, gone)) { ++alive; }
  item& operator=(item&&) = delete;
  ~item() { --alive; }

  static constexpr std::uint64_t gone = ~std::uint64_t{0};
  std::uint64_t value;
};

// A pool that knows how many of its tasks run.
struct counting_pool {
  deeprec::thread_pool threads;
  std::atomic<int> running{0};

  explicit counting_pool(int task_threads = 64)
      : threads(deeprec::thread_pool_options{.threads = 1, .task_threads = task_threads}) {}
  template <class Task>
  deeprec::status post(Task&& task, std::stop_token stop, deeprec::task_handle& handle) {
    return threads.post(
        [this, work = std::forward<Task>(task)]() mutable -> deeprec::status {
          struct count {
            std::atomic<int>& n;
            explicit count(std::atomic<int>& of) : n(of) { ++n; }
            ~count() { --n; }
          } const counted(running);
          if constexpr (std::is_void_v<decltype(work())>) {
            return work(), deeprec::status();
          } else {
            return work();
          }
        },
        std::move(stop), handle);
  }
  template <class Task>
  deeprec::status post(Task&& task, std::stop_token stop = {}) {
    return threads.post([work = std::forward<Task>(task), stop]() mutable { work(stop); });
  }
};

inline int open_files() {
  int n = 0;
  if (DIR* const files = opendir("/proc/self/fd")) {
    while (readdir(files) != nullptr) ++n;
    closedir(files);
  }
  return n;
}

// Counts up to n, then ends; how often it was called.
struct counting_source {
  std::uint64_t n;
  std::uint64_t next = 0;
  int calls = 0;
  int calls_after_end = 0;
  bool ended = false;

  std::optional<item> operator()() {
    ++calls;
    calls_after_end += ended ? 1 : 0;
    if (next == n) {
      ended = true;
      return std::nullopt;
    }
    return item(next++);
  }
  void again() { *this = {n}; }
};

inline std::vector<std::uint64_t> up_to(std::uint64_t n) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t k = 0; k < n; ++k) all.push_back(k);
  return all;
}

}  // namespace deeprec_test
