#include "queue/baseline.hpp"

#include <atomic_queue/atomic_queue.h>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

// Items of 8 bytes are their own flags (never 0); B takes its capacity at run time, at least 64.
template <bool Spsc>
struct flag_queue {
  explicit flag_queue(std::size_t capacity) : q(static_cast<unsigned>(capacity)) {}
  bool try_push(const std::uint64_t& v) { return q.try_push(v); }
  bool try_pop(std::uint64_t& v) { return q.try_pop(v); }
  void push(const std::uint64_t& v) { q.push(v); }
  void pop(std::uint64_t& v) { v = q.pop(); }
  atomic_queue::AtomicQueueB<std::uint64_t, std::allocator<std::uint64_t>, 0, true, false, Spsc> q;
};
template <class T, bool Spsc>
struct state_queue {
  explicit state_queue(std::size_t capacity) : q(static_cast<unsigned>(capacity)) {}
  bool try_push(const T& v) { return q.try_push(v); }
  bool try_pop(T& v) { return q.try_pop(v); }
  void push(const T& v) { q.push(v); }
  void pop(T& v) { v = q.pop(); }
  atomic_queue::AtomicQueueB2<T, std::allocator<T>, true, false, Spsc> q;
};
// Two slots, known when it is compiled.
struct tiny_queue {
  explicit tiny_queue(std::size_t) {}
  bool try_push(const std::uint64_t& v) { return q.try_push(v); }
  bool try_pop(std::uint64_t& v) { return q.try_pop(v); }
  void push(const std::uint64_t& v) { q.push(v); }
  void pop(std::uint64_t& v) { v = q.pop(); }
  atomic_queue::AtomicQueue<std::uint64_t, 2, 0, true, true, false, true> q;
};

}  // namespace

void add_atomic_queue(std::vector<contender>& to) {
  using narrow = flag_queue<true>;
  to.push_back(
      {"atomic_queue B optimist", kind::spsc_8, spsc<narrow, std::uint64_t, wait::own>, holds<narrow>});
  to.push_back({"atomic_queue B try", kind::spsc_8, spsc<narrow, std::uint64_t, wait::spin>, holds<narrow>});
  to.push_back({"atomic_queue B2 optimist", kind::spsc_8,
                spsc<state_queue<std::uint64_t, true>, std::uint64_t, wait::own>,
                holds<state_queue<std::uint64_t, true>>});
  to.push_back({"atomic_queue<2> optimist", kind::spsc_two, spsc<tiny_queue, std::uint64_t, wait::own>,
                holds<tiny_queue>});
  to.push_back({"atomic_queue<2> try", kind::spsc_two, spsc<tiny_queue, std::uint64_t, wait::spin>,
                holds<tiny_queue>});
  to.push_back({"atomic_queue B2 optimist", kind::spsc_64, spsc<state_queue<wide, true>, wide, wait::own>});
  to.push_back({"atomic_queue B2 try", kind::spsc_64, spsc<state_queue<wide, true>, wide, wait::spin>});
  to.push_back({"atomic_queue B optimist", kind::round_trip, round_trip<narrow, std::uint64_t, wait::own>});
  to.push_back(
      {"atomic_queue<2> optimist", kind::round_trip, round_trip<tiny_queue, std::uint64_t, wait::own>});
  using flags = flag_queue<false>;
  using states = state_queue<std::uint64_t, false>;
  to.push_back(
      {"atomic_queue B yield", kind::mpmc, mpmc<flags, std::uint64_t, wait::yield>, nullptr, 100'000});
  to.push_back(
      {"atomic_queue B patient", kind::mpmc, mpmc<flags, std::uint64_t, wait::patient>, nullptr, 100'000});
  to.push_back(
      {"atomic_queue B own", kind::mpmc, mpmc<flags, std::uint64_t, wait::own>, nullptr, 100'000, 1});
  to.push_back(
      {"atomic_queue B2 yield", kind::mpmc, mpmc<states, std::uint64_t, wait::yield>, nullptr, 50'000});
  to.push_back(
      {"atomic_queue B2 patient", kind::mpmc, mpmc<states, std::uint64_t, wait::patient>, nullptr, 50'000});
  to.push_back(
      {"atomic_queue B2 own", kind::mpmc, mpmc<states, std::uint64_t, wait::own>, nullptr, 50'000, 1});
}

}  // namespace DEEPREC_BASELINE_NS
