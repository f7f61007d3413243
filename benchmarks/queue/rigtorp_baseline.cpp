#include "queue/baseline.hpp"

#include <rigtorp/MPMCQueue.h>
#include <rigtorp/SPSCQueue.h>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

template <class T>
struct pair_queue {
  explicit pair_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.try_push(v); }
  bool try_pop(T& v) {
    T* const front = q.front();
    if (front == nullptr) return false;
    v = *front;
    q.pop();
    return true;
  }
  rigtorp::SPSCQueue<T> q;
};
template <class T>
struct any_queue {
  explicit any_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.try_push(v); }
  bool try_pop(T& v) { return q.try_pop(v); }
  void push(const T& v) { q.push(v); }
  void pop(T& v) { q.pop(v); }
  rigtorp::MPMCQueue<T> q;
};

}  // namespace

void add_rigtorp(std::vector<contender>& to) {
  using narrow = pair_queue<std::uint64_t>;
  to.push_back({"rigtorp spsc", kind::spsc_8, spsc<narrow, std::uint64_t, wait::spin>, holds<narrow>});
  to.push_back({"rigtorp spsc pause", kind::spsc_8, spsc<narrow, std::uint64_t, wait::pause>, holds<narrow>});
  to.push_back({"rigtorp spsc pause", kind::spsc_64, spsc<pair_queue<wide>, wide, wait::pause>});
  to.push_back({"rigtorp spsc pause", kind::round_trip, round_trip<narrow, std::uint64_t, wait::pause>});
  to.push_back({"rigtorp spsc", kind::spsc_64, spsc<pair_queue<wide>, wide, wait::spin>});
  to.push_back({"rigtorp spsc", kind::round_trip, round_trip<narrow, std::uint64_t, wait::spin>});
  using shared = any_queue<std::uint64_t>;
  to.push_back(
      {"rigtorp mpmc yield", kind::mpmc, mpmc<shared, std::uint64_t, wait::yield>, nullptr, 100'000});
  to.push_back(
      {"rigtorp mpmc patient", kind::mpmc, mpmc<shared, std::uint64_t, wait::patient>, nullptr, 100'000});
  to.push_back({"rigtorp mpmc own", kind::mpmc, mpmc<shared, std::uint64_t, wait::own>, nullptr, 100'000, 1});
}

}  // namespace DEEPREC_BASELINE_NS
