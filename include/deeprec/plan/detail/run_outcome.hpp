// What became of the ops of one run on threads: the first failure in the order of the plan, whichever came
// first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/plan/detail/thrown_task.hpp>
#include <deeprec/plan/detail/watched_ops.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads execute: any; the others: the owner of the run
class run_outcome {
 public:
  explicit run_outcome(const task_plan& plan) noexcept : plan_(&plan) {}

  [[nodiscard]] const task_plan& plan() const noexcept { return *plan_; }
  void restart(const environment& env, void* step) noexcept {
    env_ = &env;
    step_ = step;
    // relaxed, here and where an op fails: the first call of a helper, and its end, publish them
    failed_at_.store((std::numeric_limits<std::int32_t>::max)(), std::memory_order_relaxed);
    stopped_.store(false, std::memory_order_relaxed);
  }
  void execute(std::int32_t op) {
    const auto at = static_cast<std::int32_t>(plan_->position(op));
    // relaxed: only a number. What comes before the failure in the order runs, so that the first failure in
    // the order is found, whichever happens first.
    if (at > failed_at_.load(std::memory_order_relaxed)) return;
    if (stopped_.load(std::memory_order_relaxed)) return;
    if (env_->stop != nullptr && env_->stop->stop_requested()) {
      stopped_.store(true, std::memory_order_relaxed);
      return;
    }
    if (!plan_->has_task(op)) return;
    detail::op_spans span(*plan_, env_->trace);
    span.begin(op);
#if DEEPREC_EXCEPTIONS
    try {
      if (const status s = plan_->call(op, step_); !s) note(at, s, nullptr);
    } catch (...) {
      note(at, {}, std::current_exception());
    }
#else
    if (const status s = plan_->call(op, step_); !s) note(at, s, nullptr);
#endif
  }
  void note(std::int32_t at, const status& why, std::exception_ptr thrown) {
    const std::lock_guard lock(mutex_);
    if (at > failed_at_.load(std::memory_order_relaxed)) return;
    why_ = why;
    thrown_ = std::move(thrown);
    failed_at_.store(at, std::memory_order_relaxed);
  }

  [[nodiscard]] result<void> outcome() {
    const std::int32_t at = failed_at_.load(std::memory_order_relaxed);
    if (index(at) < plan_->order().size()) {
      const index_t op = plan_->order()[index(at)];
#if DEEPREC_EXCEPTIONS
      if (const std::exception_ptr thrown = std::exchange(thrown_, nullptr)) {
        detail::throw_task_error(*plan_, op, thrown);
      }
#endif
      return detail::task_fault(*plan_, op, why_);
    }
    if (stopped_.load(std::memory_order_relaxed)) return status(errc::stopped, {.operation = "run_on"});
    return {};
  }

 private:
  template <class Number>
  static std::size_t index(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }

  const task_plan* plan_;
  const environment* env_ = nullptr;
  void* step_ = nullptr;
  status why_;
  std::exception_ptr thrown_;
  std::mutex mutex_;
  alignas(64) std::atomic<std::int32_t> failed_at_{0};
  std::atomic<bool> stopped_{false};
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
