// Items that count themselves, and whose moves may throw.
#pragma once

#include <atomic>
#include <stdexcept>
#include <utility>

namespace deeprec_test {

// Every constructor and assignment asks may_throw(); a moved-from item is empty, and still an item.
class fragile {
 public:
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> until{-1};  // moves until one throws; negative: never

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
  ~fragile() { --alive; }
  [[nodiscard]] int value() const { return value_; }

 private:
  static void may_throw() {
    if (until.load() >= 0 && until.fetch_sub(1) == 0) throw std::runtime_error("a move that throws");
  }
  int value_;
};

}  // namespace deeprec_test
