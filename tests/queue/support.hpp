// Items that count themselves, and whose moves may throw; and whether threads sleep.
#pragma once

#include <dirent.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "support/sanitizers.hpp"

namespace deeprec_test {

// Every constructor and assignment asks may_throw(); a moved-from item is empty, and still an item.
class fragile {
 public:
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> until{-1};  // moves until one throws; negative: never
  // One that is destroyed while an exception passes takes this long: other threads see what is left by then.
  static inline std::chrono::microseconds lingers{0};

  explicit fragile(int v = 0) : value_(v) { ++alive; }
  fragile(fragile&& other) : value_(0) {
    may_throw();
    value_ = std::exchange(other.value_, 0);
    ++alive;
  }
  fragile& operator=(fragile&& other) {
    may_throw();
    value_ = std::exchange(other.value_, 0);
    return *this;
  }
  ~fragile() {
    if (lingers.count() != 0 && std::uncaught_exceptions() != 0) std::this_thread::sleep_for(lingers);
    --alive;
  }
  [[nodiscard]] int value() const { return value_; }

 private:
  static void may_throw() {
    if (until.load() >= 0 && until.fetch_sub(1) == 0) throw std::runtime_error("a move that throws");
  }
  int value_;
};

// How many of our threads sleep, by the kernel's word. Without /proc: all that anybody waits for.
inline int sleeping_threads() {
  int count = -DEEPREC_TEST_TSAN;  // the thread sanitizer's own thread
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return 1 << 20;
  {
    while (const dirent* entry = readdir(tasks)) {
      std::string line;
      std::getline(std::ifstream(std::string("/proc/self/task/") + entry->d_name + "/stat"), line);
      const std::size_t name_end = line.rfind(')');
      count +=
          name_end != std::string::npos && line.size() > name_end + 2 && line[name_end + 2] == 'S' ? 1 : 0;
    }
    closedir(tasks);
  }
  return count;
}

// Returns when `count` threads wait at a side of a queue, whose counts are given, and sleep.
template <class Counts>
void until_asleep(unsigned count, Counts counts) {
  while (counts().waiting < count || sleeping_threads() < static_cast<int>(count)) std::this_thread::yield();
}

}  // namespace deeprec_test
