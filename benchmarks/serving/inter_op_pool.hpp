// The ops of all requests on one pool of threads, as the sessions of TensorFlow run them: Eigen's pool, the
// rule of its executor for ready ops, a caller that waits.
//
//   caller ── a closure ──> pool: first ops, and each that became ready: cheap ones on the same thread, of
//      └── waits <──────────┘     the others all but the last as closures of their own
//
// TensorFlow sends each of the first ops as a closure, which was slower here; so they follow the rule too.
// Source: tensorflow/core/common_runtime, executor.cc (ScheduleReady).
#pragma once

#if __has_include(<Eigen/ThreadPool>)
#  include <Eigen/ThreadPool>
#else
#  include <unsupported/Eigen/CXX11/ThreadPool>
#endif

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/context.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace serving_bench {

/// @threads run: thread-safe, with a state of its own each
class inter_op_pool {
 public:
  /// @param plan  outlives this; no op without a task follows one that has one
  /// @param ns    of each op; one that takes fewer than 8000 cycles, as TensorFlow has it, is cheap
  inter_op_pool(const deeprec::task_plan& plan, const std::vector<double>& ns, int threads)
      : plan_(&plan), pool_(threads) {
    constexpr double expensive_ns = 8000 / 3.0;
    for (deeprec::index_t v = 0; v < plan.size(); ++v) {
      int before = 0;
      for (const std::int32_t u : plan.predecessors(v)) before += plan.has_task(u) ? 1 : 0;
      before_.push_back(before);
      expensive_.push_back(ns[static_cast<std::size_t>(v)] > expensive_ns);
      if (!plan.has_task(v)) continue;
      ++ops_;
      if (before == 0) first_.push_back(static_cast<std::int32_t>(v));
    }
  }

  /// False: an op failed.
  bool run(const deeprec::environment& env, deeprec::step_state& state) {
    deeprec::detail::step_storage& storage = deeprec::detail::state_access::storage(state);
    deeprec::executor_ref executor = here_;
    const deeprec::context<deeprec::executor_ref> ctx(executor, env);
    const deeprec::step_call call{ctx, storage.step};
    const deeprec::detail::call_in_flight guard(storage, call);
    request now{static_cast<deeprec::detail::step_cells*>(&storage), ops_, before_};
    pool_.Schedule([this, &now] { process(now, begin); });
    std::unique_lock lock(now.mutex);
    now.ended.wait(lock, [&] { return now.has_ended; });
    return now.right.load();
  }

 private:
  static constexpr std::int32_t begin = -1;

  struct request {
    request(deeprec::detail::step_cells* values, int ops, const std::vector<int>& before)
        : cells(values), left(ops), missing(before.size()) {
      for (std::size_t v = 0; v < before.size(); ++v) missing[v].store(before[v], std::memory_order_relaxed);
    }
    deeprec::detail::step_cells* cells;
    std::atomic<int> left;
    std::vector<std::atomic<int>> missing;
    std::atomic<bool> right{true};
    std::mutex mutex;
    std::condition_variable ended;
    bool has_ended = false;
  };

  void process(request& r, std::int32_t first) {
    std::deque<std::int32_t> here{first};
    while (!here.empty()) {
      const std::int32_t op = here.front();
      here.pop_front();
      if (op != begin && !plan_->call(op, r.cells).ok()) r.right = false;
      std::int32_t kept = -1;  // the expensive op that may stay
      for (const std::int32_t next :
           op == begin ? std::span<const std::int32_t>(first_) : plan_->successors(op)) {
        if (op != begin && r.missing[static_cast<std::size_t>(next)].fetch_sub(1) != 1) continue;
        if (!expensive_[static_cast<std::size_t>(next)]) {
          here.push_back(next);
        } else if (const std::int32_t other = std::exchange(kept, next); other >= 0) {
          pool_.Schedule([this, &r, other] { process(r, other); });
        }
      }
      if (kept >= 0) {
        if (here.empty()) {
          here.push_back(kept);
        } else {
          pool_.Schedule([this, &r, kept] { process(r, kept); });
        }
      }
      if (op == begin || r.left.fetch_sub(1) != 1) continue;
      // Under the lock: the request goes when its caller has it.
      const std::lock_guard lock(r.mutex);
      r.has_ended = true;
      r.ended.notify_one();
      return;
    }
  }

  const deeprec::task_plan* plan_;
  deeprec::inline_executor here_;
  std::vector<int> before_;
  std::vector<bool> expensive_;
  std::vector<std::int32_t> first_;
  int ops_ = 0;
  Eigen::ThreadPool pool_;  // last: its threads end first
};

}  // namespace serving_bench
