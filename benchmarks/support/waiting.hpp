// Waiting for a moment, as a simulated network or store does. No header of deeprec here.
#pragma once

#include <chrono>
#include <thread>

namespace deeprec_bench {

/// A sleeper of a virtual machine wakes 0.12 ms late, which is no property of what is simulated: the last
/// 0.15 ms are polled. (Not more: threads that poll keep others from the processors.)
inline void wait_until(std::chrono::steady_clock::time_point end) {
  std::this_thread::sleep_until(end - std::chrono::microseconds(150));
  while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace deeprec_bench
