// Teams of lanes without a device: one lane, and threads in lockstep. The bodies of the device's kernels
// run on them.
#pragma once

#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>

namespace deeprec_test {

inline void keep_smallest(deeprec::device_fault* fault, deeprec::errc code, deeprec::index_t table,
                          deeprec::index_t bag, deeprec::index_t slot, std::int64_t value) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (fault->comes_after(table, bag, slot)) {
    *fault = {0,
              static_cast<int>(code),
              table,
              bag,
              slot,
              value,
              deeprec::device_fault::order_of(table, bag, slot)};
  }
}

/// One lane.
struct solo_team {
  static int lane() { return 0; }
  static int lanes() { return 1; }
  template <class T>
  static T from(T x, int) {
    return x;
  }
  template <class T>
  static T across(T x, int) {
    return x;
  }
  static unsigned ballot(bool says) { return says ? 1 : 0; }
  static void meet() {}
  static void wait_for_earlier_kernels() {}
  static void report(deeprec::device_fault* fault, deeprec::errc code, deeprec::index_t table,
                     deeprec::index_t bag, deeprec::index_t slot, std::int64_t value) {
    keep_smallest(fault, code, table, bag, slot, value);
  }
  static void count(unsigned long long* counter, deeprec::index_t n) {
    if (counter != nullptr) *counter += static_cast<unsigned long long>(n);
  }
};

/// What the lanes of a lockstep_team share.
struct lockstep {
  explicit lockstep(int lanes) : here(static_cast<std::size_t>(lanes)), all_here(lanes) {}
  std::vector<std::uint64_t> here;
  std::barrier<> all_here;
};

class lockstep_team {
 public:
  lockstep_team(lockstep& shared, int lane) : shared_(&shared), lane_(lane) {}
  int lane() const { return lane_; }
  int lanes() const { return static_cast<int>(shared_->here.size()); }
  template <class T>
  T from(T x, int lane) const {
    show(x);
    T theirs;
    std::memcpy(&theirs, &shared_->here[static_cast<std::size_t>(lane)], sizeof(T));
    shared_->all_here.arrive_and_wait();
    return theirs;
  }
  template <class T>
  T across(T x, int bits) const {
    return from(x, lane_ ^ bits);
  }
  unsigned ballot(bool says) const {
    show(says);
    unsigned bits = 0;
    for (std::size_t i = 0; i < shared_->here.size(); ++i) bits |= (shared_->here[i] & 1U) << i;
    shared_->all_here.arrive_and_wait();
    return bits;
  }
  void meet() const { shared_->all_here.arrive_and_wait(); }
  static void wait_for_earlier_kernels() {}
  void report(deeprec::device_fault* fault, deeprec::errc code, deeprec::index_t table, deeprec::index_t bag,
              deeprec::index_t slot, std::int64_t value) const {
    keep_smallest(fault, code, table, bag, slot, value);
  }
  void count(unsigned long long* counter, deeprec::index_t n) const { solo_team::count(counter, n); }

 private:
  template <class T>
  void show(T x) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(T));
    shared_->here[static_cast<std::size_t>(lane_)] = bits;
    shared_->all_here.arrive_and_wait();
  }
  lockstep* shared_;
  int lane_;
};

/// Runs body(team) in every lane; lanes = 1: on this thread.
template <class Body>
void on_team(int lanes, const Body& body) {
  if (lanes == 1) return body(solo_team{});
  lockstep shared(lanes);
  std::vector<std::thread> threads;
  for (int lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] { body(lockstep_team(shared, lane)); });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace deeprec_test
