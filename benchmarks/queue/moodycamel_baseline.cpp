#include "queue/baseline.hpp"

#include <concurrentqueue/blockingconcurrentqueue.h>
#include <concurrentqueue/concurrentqueue.h>
#if defined(HAVE_READERWRITERQUEUE)
#  include <readerwriterqueue/readerwriterqueue.h>
#endif

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

// Not bounded by itself: it never takes new memory after the first.
template <class T>
struct any_queue {
  explicit any_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.try_enqueue(v); }
  bool try_pop(T& v) { return q.try_dequeue(v); }
  moodycamel::ConcurrentQueue<T> q;
};
template <class T>
struct unbounded_queue {
  explicit unbounded_queue(std::size_t capacity) : q(capacity) {}
  bool try_push(const T& v) { return q.enqueue(v); }
  bool try_pop(T& v) { return q.try_dequeue(v); }
  moodycamel::ConcurrentQueue<T> q;
};
template <class T>
struct blocking_queue {
  explicit blocking_queue(std::size_t capacity) : q(capacity) {}
  void push(const T& v) { q.enqueue(v); }
  void pop(T& v) { q.wait_dequeue(v); }
  moodycamel::BlockingConcurrentQueue<T> q;
};

}  // namespace

void add_moodycamel(std::vector<contender>& to) {
  using narrow = any_queue<std::uint64_t>;
  to.push_back(
      {"moodycamel CQ", kind::spsc_8, spsc<narrow, std::uint64_t, wait::spin>, holds<narrow>, 50'000});
  to.push_back({"moodycamel CQ", kind::spsc_64, spsc<any_queue<wide>, wide, wait::spin>, nullptr, 50'000});
  to.push_back(
      {"moodycamel CQ", kind::round_trip, round_trip<narrow, std::uint64_t, wait::spin>, nullptr, 10'000});
  using shared = unbounded_queue<std::uint64_t>;
  to.push_back(
      {"moodycamel CQ yield", kind::mpmc, mpmc<shared, std::uint64_t, wait::yield>, nullptr, 100'000});
  to.push_back(
      {"moodycamel CQ patient", kind::mpmc, mpmc<shared, std::uint64_t, wait::patient>, nullptr, 100'000});
  to.push_back({"moodycamel BlockingCQ", kind::mpmc,
                mpmc<blocking_queue<std::uint64_t>, std::uint64_t, wait::own>, nullptr, 50'000});
#if defined(HAVE_READERWRITERQUEUE)
  struct pair_queue {
    explicit pair_queue(std::size_t capacity) : q(capacity) {}
    bool try_push(const std::uint64_t& v) { return q.try_enqueue(v); }
    bool try_pop(std::uint64_t& v) { return q.try_dequeue(v); }
    moodycamel::ReaderWriterQueue<std::uint64_t> q;
  };
  struct wide_queue {
    explicit wide_queue(std::size_t capacity) : q(capacity) {}
    bool try_push(const wide& v) { return q.try_enqueue(v); }
    bool try_pop(wide& v) { return q.try_dequeue(v); }
    moodycamel::ReaderWriterQueue<wide> q;
  };
  to.push_back(
      {"moodycamel RWQ", kind::spsc_8, spsc<pair_queue, std::uint64_t, wait::spin>, holds<pair_queue>});
  to.push_back({"moodycamel RWQ pause", kind::spsc_8, spsc<pair_queue, std::uint64_t, wait::pause>,
                holds<pair_queue>});
  to.push_back(
      {"moodycamel RWQ pause", kind::round_trip, round_trip<pair_queue, std::uint64_t, wait::pause>});
  to.push_back({"moodycamel RWQ", kind::spsc_64, spsc<wide_queue, wide, wait::spin>});
  to.push_back({"moodycamel RWQ", kind::round_trip, round_trip<pair_queue, std::uint64_t, wait::spin>});
#endif
}

}  // namespace DEEPREC_BASELINE_NS
