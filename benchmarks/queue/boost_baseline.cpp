#include "queue/baseline.hpp"

#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

template <class T>
struct pair_queue {
  explicit pair_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.push(v); }
  bool try_pop(T& v) { return q.pop(v); }
  boost::lockfree::spsc_queue<T> q;
};
template <class T>
struct any_queue {
  explicit any_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.bounded_push(v); }
  bool try_pop(T& v) { return q.pop(v); }
  boost::lockfree::queue<T, boost::lockfree::fixed_sized<true>> q;
};

}  // namespace

void add_boost(std::vector<contender>& to) {
  using narrow = pair_queue<std::uint64_t>;
  to.push_back({"boost spsc spin", kind::spsc_8, spsc<narrow, std::uint64_t, wait::spin>, holds<narrow>});
  to.push_back({"boost spsc pause", kind::spsc_8, spsc<narrow, std::uint64_t, wait::pause>, holds<narrow>});
  to.push_back({"boost spsc spin", kind::spsc_64, spsc<pair_queue<wide>, wide, wait::spin>});
  to.push_back({"boost spsc pause", kind::spsc_64, spsc<pair_queue<wide>, wide, wait::pause>});
  to.push_back({"boost spsc pause", kind::round_trip, round_trip<narrow, std::uint64_t, wait::pause>});
  to.push_back({"boost spsc spin", kind::round_trip, round_trip<narrow, std::uint64_t, wait::spin>});
  using shared = any_queue<std::uint64_t>;
  to.push_back({"boost queue yield", kind::mpmc, mpmc<shared, std::uint64_t, wait::yield>, nullptr, 40'000});
  to.push_back(
      {"boost queue patient", kind::mpmc, mpmc<shared, std::uint64_t, wait::patient>, nullptr, 40'000});
}

}  // namespace DEEPREC_BASELINE_NS
