// A model that is replaced while it is read, by the standard library: std::atomic<std::shared_ptr>, and a
// std::shared_ptr under a std::shared_mutex.
#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "serving/baseline.hpp"

namespace DEEPREC_BASELINE_NS {
namespace {

using serving_bench::small_model;

class atomic_holder {
 public:
  void publish(std::uint64_t number) {
    now_.store(std::make_shared<const small_model>(number), std::memory_order_release);
  }
  template <class Use>
  void read(Use use) const {
    const std::shared_ptr<const small_model> held = now_.load(std::memory_order_acquire);
    use(*held);
  }

 private:
  std::atomic<std::shared_ptr<const small_model>> now_{std::make_shared<const small_model>(1)};
};

class locked_holder {
 public:
  void publish(std::uint64_t number) {
    auto next = std::make_shared<const small_model>(number);
    const std::lock_guard lock(mutex_);
    now_.swap(next);
  }
  template <class Use>
  void read(Use use) const {
    std::shared_ptr<const small_model> held;
    {
      const std::shared_lock lock(mutex_);
      held = now_;
    }
    use(*held);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::shared_ptr<const small_model> now_ = std::make_shared<const small_model>(1);
};

}  // namespace

serving_bench::holder atomic_shared_ptr() { return serving_bench::holder_of<atomic_holder>(); }
serving_bench::holder locked_shared_ptr() { return serving_bench::holder_of<locked_holder>(); }

}  // namespace DEEPREC_BASELINE_NS
