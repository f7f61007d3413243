#include "queue/baseline.hpp"

#include <oneapi/tbb/concurrent_queue.h>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

template <class T>
struct bounded_queue {
  explicit bounded_queue(std::size_t capacity) { q.set_capacity(static_cast<std::ptrdiff_t>(capacity)); }
  bool try_push(const T& v) { return q.try_push(v); }
  bool try_pop(T& v) { return q.try_pop(v); }
  void push(const T& v) { q.push(v); }
  void pop(T& v) { q.pop(v); }
  oneapi::tbb::concurrent_bounded_queue<T> q;
};

}  // namespace

void add_tbb(std::vector<contender>& to) {
  using narrow = bounded_queue<std::uint64_t>;
  to.push_back(
      {"oneTBB bounded spin", kind::spsc_8, spsc<narrow, std::uint64_t, wait::spin>, holds<narrow>, 20'000});
  to.push_back(
      {"oneTBB bounded spin", kind::spsc_64, spsc<bounded_queue<wide>, wide, wait::spin>, nullptr, 10'000});
  to.push_back({"oneTBB bounded spin", kind::round_trip, round_trip<narrow, std::uint64_t, wait::spin>,
                nullptr, 10'000});
  to.push_back(
      {"oneTBB bounded yield", kind::mpmc, mpmc<narrow, std::uint64_t, wait::yield>, nullptr, 10'000});
  to.push_back(
      {"oneTBB bounded patient", kind::mpmc, mpmc<narrow, std::uint64_t, wait::patient>, nullptr, 10'000});
  to.push_back({"oneTBB bounded own", kind::mpmc, mpmc<narrow, std::uint64_t, wait::own>, nullptr, 10'000});
}

}  // namespace DEEPREC_BASELINE_NS
