// DeepRec's staging buffer, in our words: records in a deque under one mutex, one condition variable for each
// side, everybody notified by every call, a record copied in, and dropped when a put times out.
#include "queue/baseline.hpp"

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>

namespace DEEPREC_BASELINE_NS {
namespace {

using namespace queue_bench;

class staged_buffer {
 public:
  explicit staged_buffer(std::size_t capacity) : capacity_(capacity) {}

  bool put(const std::uint64_t& record, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!put_cv_.wait_for(lock, timeout, [this] { return records_.size() < capacity_ || cancelled_; })) {
      std::fputs("Prefetching was ignored since timeout.\n", stderr);
      return true;
    }
    if (cancelled_) return false;
    records_.push_back(record);
    lock.unlock();
    take_cv_.notify_all();
    return true;
  }
  bool take(std::uint64_t& record) {
    std::unique_lock lock(mutex_);
    take_cv_.wait(lock, [this] { return !records_.empty() || cancelled_; });
    if (records_.empty()) return false;
    record = std::move(records_.front());
    records_.pop_front();
    lock.unlock();
    put_cv_.notify_all();
    return true;
  }

  void push(const std::uint64_t& v) { put(v, std::chrono::minutes(5)); }
  void pop(std::uint64_t& v) { take(v); }

 private:
  std::mutex mutex_;
  std::condition_variable put_cv_;
  std::condition_variable take_cv_;
  std::deque<std::uint64_t> records_;
  const std::size_t capacity_;
  bool cancelled_ = false;
};

}  // namespace

double staged_buffer_seconds(const spec& s) { return spsc<staged_buffer, std::uint64_t, wait::own>(s); }

}  // namespace DEEPREC_BASELINE_NS
