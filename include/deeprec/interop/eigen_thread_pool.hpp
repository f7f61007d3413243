// Eigen's thread pool (TensorFlow's as well) as a bulk executor.
//
//   Eigen::ThreadPool pool(8);
//   eigen_executor threads(pool);                                       // a ThreadPoolInterface
//   eigen_executor threads(context->eigen_device<Eigen::ThreadPoolDevice>());  // or a device on one
//   lookup(threads, table, bags, combiner::sum, out);
//
//   caller ──Schedule──> helper 1, helper 2 ...     all of them take pieces; a helper that starts when
//      └──── takes pieces itself                    none is left returns at once
//
// The caller never waits for a helper that has not begun, so a call from a thread of the pool can't
// deadlock, however busy the pool is. Needs Eigen's ThreadPool module ("unsupported" up to Eigen 3.4).
#pragma once

#if __has_include(<Eigen/ThreadPool>)
#  include <Eigen/ThreadPool>
#else
#  include <unsupported/Eigen/CXX11/ThreadPool>
#endif

#include <condition_variable>
#include <memory>
#include <mutex>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/interop/detail/bulk_pieces.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Bulk executor on a ThreadPoolInterface, which it refers to and which must outlive it.
///
/// @threads every member is thread-safe; parallel_for may be nested
class eigen_executor {
 public:
  explicit eigen_executor(Eigen::ThreadPoolInterface& pool) : eigen_executor(pool, pool.NumThreads()) {}
  /// @param threads concurrency(), the caller included; at least 1
  eigen_executor(Eigen::ThreadPoolInterface& pool, int threads)
      : pool_(&pool), concurrency_(threads > 1 ? threads : 1) {}
  /// @param device an Eigen::ThreadPoolDevice: its pool, with as many threads as the device may use
  template <class Device>
    requires requires(const Device& device) {
      device.getPool()->NumThreads();
      device.numThreads();
    }
  explicit eigen_executor(const Device& device)
      : eigen_executor(*device.getPool(), static_cast<int>(device.numThreads())) {}

  [[nodiscard]] int concurrency() const noexcept { return concurrency_; }

  /// Calls body(begin, end, worker) for [0, n) in pieces of `grain` (the last may be shorter).
  ///
  /// @pre     grain > 0; bodies don't wait for each other
  /// @cost    where there is more than one piece: one allocation, and one closure of Eigen for each helper
  /// @threads thread-safe; may be nested
  /// @error   no exception reaches the pool's threads: the one of the smallest begin is rethrown here,
  ///          once no body runs any more; pieces that had not begun are dropped
  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) const {
    detail::run_pieces(n, grain, concurrency_, body, [this](int width, const auto& run) {
      const auto crew = std::make_shared<helpers>();
      const end_on_exit guard{*crew};
      for (int helper = 1; helper < width; ++helper) {
        pool_->Schedule([crew, callee = std::addressof(run)] {
          if (const int worker = crew->enter(); worker > 0) {
            (*callee)(worker);
            crew->leave();
          }
        });
      }
      run(0);
    });
  }

 private:
  // Outlives the call, because a helper may start late; the body that it would run does not.
  class helpers {
   public:
    // A worker number from 1, or 0 where the call has ended.
    int enter() {
      std::lock_guard lock(mutex_);
      if (over_) return 0;
      ++inside_;
      return ++entered_;
    }
    void leave() {
      std::lock_guard lock(mutex_);
      if (--inside_ == 0) left_.notify_all();
    }
    void end() {
      std::unique_lock lock(mutex_);
      over_ = true;
      left_.wait(lock, [this] { return inside_ == 0; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable left_;
    int inside_ = 0;
    int entered_ = 0;
    bool over_ = false;
  };
  // Waits for the helpers also when Schedule throws std::bad_alloc.
  struct end_on_exit {
    helpers& crew;
    ~end_on_exit() { crew.end(); }
  };

  Eigen::ThreadPoolInterface* pool_;
  int concurrency_;
};

static_assert(BulkExecutor<const eigen_executor>);

}}  // namespace deeprec::DEEPREC_ABI
