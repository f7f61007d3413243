// What the ops of a plan cost, learnt while runs go on, and what follows from it: the ranks of ops, and
// whether threads pay.
//
//   cost_run run(plan);                         ready_set::cost_model
//   run_on(pool, run).or_throw();               ... some of them are timed
//   run.costs().cost(op), .rank(op)             nanoseconds
//   plan.with_costs(run.costs().all())          another order of the same ops
//
// Costs, ranks and the quota are times of this machine in nanoseconds. No result of a task depends on them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/plan/detail/ranked_ops.hpp>
#include <deeprec/plan/detail/tick_clock.hpp>
#include <deeprec/plan/list_schedule.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// How the runs of one cost_run are scheduled.
///
/// Runs 1 and 2 are timed op by op on the calling thread; then ever fewer, one of 256 at last. Where a list
/// schedule of the costs on the executor's threads, with a call of helpers at its begin, is no shorter than
/// 0.99 of their sum, runs stay on the calling thread. Else three runs of each way are measured and the
/// faster one is taken; the other is measured again after 16 runs, 32, ... 1024. Four runs in a row that take
/// half as long or half as long again as before begin all of this again; the next time it takes eight, and so
/// on.
///
/// @threads as the run that it belongs to; between two runs
class op_costs {
 public:
  static constexpr index_t bytes_of(index_t ops) noexcept {
    using block = detail::scratch_block;
    return 3 * block::bytes_of<float>(ops) + 4 * block::bytes_of<std::int32_t>(ops);
  }
  op_costs(const task_plan& plan, detail::scratch_block& block)
      : plan_(&plan),
        cost_(block.take<float>(plan.size())),
        rank_(block.take<float>(plan.size())),
        seen_(block.take<float>(plan.size())),
        at_(block.take<std::int32_t>(plan.size())),
        place_(block.take<std::int32_t>(plan.size())),
        scratch_{block.take<std::int32_t>(plan.size()), block.take<std::int32_t>(plan.size())} {
    for (index_t v = 0; v < plan.size(); ++v) cost_[index(v)] = static_cast<float>(plan.cost(v));
    std::fill(seen_.begin(), seen_.end(), 0.0F);
    // Back to back: what a reading takes.
    std::int64_t least = (std::numeric_limits<std::int64_t>::max)(), last = clock_.now();
    for (int i = 0; i < 16; ++i) {
      const std::int64_t now = clock_.now();
      least = (std::min)(least, now - last);
      last = now;
    }
    reading_ = static_cast<float>(least);
    rank();
    sort();
  }

  /// Of an op, ns; before any was timed, as in the plan.
  [[nodiscard]] double cost(index_t op) const noexcept { return static_cast<double>(cost_[index(op)]); }
  /// Of an op: its cost and that of the longest way behind it.
  [[nodiscard]] double rank(index_t op) const noexcept { return static_cast<double>(rank_[index(op)]); }
  /// For task_plan::with_costs.
  ///
  /// @error throws std::bad_alloc
  [[nodiscard]] std::vector<double> all() const { return {cost_.begin(), cost_.end()}; }
  /// What it takes until a helper that is called begins, ns.
  [[nodiscard]] double call_ns() const noexcept { return call_ns_; }
  /// Whether the last run was on threads, or on its caller's alone.
  [[nodiscard]] bool was_on_threads() const noexcept { return now_.threads; }
  /// Runs whose ops were timed.
  [[nodiscard]] std::int64_t timed_runs() const noexcept { return all_timed_; }

  // --- for runs ------------------------------------------------------------------------------------

  struct way {
    bool threads, timed;
  };
  /// @param call_ns  a first guess
  way begin_run(int threads, double call_ns) noexcept {
    if (call_ns_ < 0) call_ns_ = call_ns;
    if (threads != threads_) restart(threads);
    now_.timed = runs_ == next_timed_;
    now_.threads = threads > 1 && timed_ >= 2 && pays_ && chooses_threads();
    ranks_.quota = static_cast<float>(call_ns_);
    for (std::atomic<std::int64_t>* of : {&called_at_, &waited_, &came_})
      of->store(0, std::memory_order_relaxed);
    steady_ = clock_.steady();
    begun_ = clock_.now();
    return now_;
  }
  /// Not called for a run that failed.
  void end_run() noexcept {
    const auto ticks = static_cast<double>(clock_.now() - begun_);
    const auto ns = static_cast<double>(clock_.steady() - steady_);
    if (ticks <= 0 || ns <= 0) return;
    ++runs_;
    learn_call(ns / ticks);
    if (now_.timed) {
      learn_costs(ns / ticks);
    } else {
      learn_run(ns);
    }
  }
  [[nodiscard]] const detail::op_ranks& ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int64_t ticks() const noexcept { return clock_.now(); }
  /// By the thread that ran the op.
  void took(std::int32_t op, std::int64_t ticks) noexcept {
    seen_[index(op)] = (std::max)(static_cast<float>(ticks) - reading_, 0.0F);
  }
  void called() noexcept {
    std::int64_t none = 0;  // the first of several calls
    called_at_.compare_exchange_strong(none, clock_.now(), std::memory_order_relaxed);
  }
  void came() noexcept {
    if (called_at_.load(std::memory_order_relaxed) == 0) return;
    const std::int64_t at = called_at_.exchange(0, std::memory_order_relaxed);
    if (at == 0) return;
    waited_.fetch_add(clock_.now() - at, std::memory_order_relaxed);
    came_.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  template <class Number>
  static std::size_t index(Number i) noexcept {
    return static_cast<std::size_t>(i);
  }
  struct mean {  // of the last runs of one way
    double ns = 0;
    int runs = 0;
    void add(double more) noexcept {
      ++runs;
      ns += (more - ns) / (std::min)(runs, 8);
    }
  };
  static constexpr double begin_ns = 100;         // of an op on a thread: counters and the ready set
  static constexpr double pays_from = 0.99;       // of the work
  static constexpr double longest_call_ns = 1e6;  // longer: all threads had other work

  void restart(int threads) noexcept {
    threads_ = threads;
    timed_ = odd_ = 0;
    here_ = there_ = {};
    next_timed_ = runs_;
    gap_ = 16;
    next_other_ = runs_ + gap_;
    pays_ = false;
  }
  bool chooses_threads() noexcept {
    if (here_.runs < 3) return false;
    if (there_.runs < 3) return true;
    const bool better = there_.ns < 0.98 * here_.ns;
    if (runs_ < next_other_) return better;
    gap_ = (std::min)(2 * gap_, std::int64_t{1024});
    next_other_ = runs_ + gap_;
    return !better;
  }
  void learn_call(double ns_per_tick) noexcept {
    const std::int64_t waited = waited_.load(std::memory_order_relaxed);
    const std::int64_t calls = came_.load(std::memory_order_relaxed);
    if (calls == 0) return;
    const double ns = std::clamp(static_cast<double>(waited) / static_cast<double>(calls) * ns_per_tick, 0.0,
                                 longest_call_ns);
    call_ns_ += (ns - call_ns_) / 8;
  }
  void learn_run(double ns) noexcept {
    mean& of = now_.threads ? there_ : here_;
    const bool odd = of.runs >= 3 && std::abs(ns - of.ns) > 0.5 * of.ns;
    odd_ = odd ? odd_ + 1 : 0;
    if (odd_ < most_odd_) return of.add(ns);
    most_odd_ = (std::min)(2 * most_odd_, 256);  // a machine whose pace changes is not asked again and again
    restart(threads_);
  }
  void learn_costs(double ns_per_tick) noexcept {
    ++timed_, ++all_timed_;
    const auto scale = static_cast<float>(ns_per_tick);
    double work = 0;
    for (std::size_t v = 0; v < cost_.size(); ++v) {
      const float ns = seen_[v] * scale;
      if (timed_ <= 2) {  // the lesser of two, of which either may have been interrupted
        cost_[v] = timed_ == 1 ? ns : (std::min)(ns, cost_[v]);
      } else {  // one that was interrupted counts as eight times as long, and a change is learnt in some runs
        cost_[v] += ((std::min)(ns, 8 * cost_[v] + 1000) - cost_[v]) / 4;
      }
      work += static_cast<double>(cost_[v]);
    }
    next_timed_ = runs_ + (timed_ == 1 ? 0 : std::int64_t{1} << (std::min)(timed_, 8));
    rank();
    // Most plans of tiny ops are decided by what no schedule can do better.
    const double least = (work + begin_ns * static_cast<double>(cost_.size())) / threads_;
    pays_ = threads_ > 1 && work > 2 * call_ns_ && least < pays_from * work;
    if (!pays_) return;
    sort();
    pays_ =
        list_schedule(plan_->graph(), std::span<const float>(cost_), std::span<const std::int32_t>(place_),
                      {threads_, begin_ns, call_ns_}, scratch_) < pays_from * work;
  }
  void rank() noexcept { upward_ranks(plan_->graph(), plan_->order(), std::span<const float>(cost_), rank_); }
  void sort() noexcept { places_by_rank(std::span<const float>(rank_), at_, place_); }

  const task_plan* plan_;
  detail::tick_clock clock_;
  std::span<float> cost_, rank_;
  std::span<float> seen_;  // ticks, of the last run
  std::span<std::int32_t> at_, place_;
  list_scratch scratch_;
  detail::op_ranks ranks_{place_, at_, cost_, rank_, 0};
  float reading_ = 0;  // ticks
  double call_ns_ = -1;
  int threads_ = 0;
  int timed_ = 0, odd_ = 0, most_odd_ = 4;
  std::int64_t all_timed_ = 0, runs_ = 0, next_timed_ = 0, next_other_ = 0, gap_ = 16;
  bool pays_ = false;
  way now_{false, false};
  mean here_, there_;
  std::int64_t steady_ = 0, begun_ = 0;
  alignas(64) std::atomic<std::int64_t> called_at_{0};
  std::atomic<std::int64_t> waited_{0}, came_{0};  // ticks, calls
};

}}  // namespace deeprec::DEEPREC_ABI
