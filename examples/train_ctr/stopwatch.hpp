// The time that each part of a step takes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

#include "models/step_maker.hpp"

namespace ctr {

/// Seconds spent in each part: measured from one lap to the next. A part "read" is time in which training
/// waits for rows, or reads them itself.
class stopwatch {
 public:
  void start() { last_ = clock::now(); }
  void lap(part p) {
    const auto now = clock::now();
    seconds_[static_cast<std::size_t>(p)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  void add(part p, double seconds) { seconds_[static_cast<std::size_t>(p)] += seconds; }
  [[nodiscard]] double seconds(std::size_t p) const { return seconds_[p]; }
  [[nodiscard]] double total() const {
    double sum = 0;
    for (const double s : seconds_) sum += s;
    return sum;
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
  std::array<double, part_names.size()> seconds_{};
};

}  // namespace ctr
