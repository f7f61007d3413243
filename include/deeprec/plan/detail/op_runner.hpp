// A run of a graph on the threads that come: counters, and a ready set that is a parameter.
//
//   owner    restart(); first helpers are called; own(): works until every op has ended, and sleeps where it
//            finds none
//   helper   help(): works until no op is ready, and leaves; an op that makes several ready calls it back
//
// What an op does, and how helpers are called, is the team's:
//
//   team.execute(op)          runs the op; never throws
//   team.patience(is_owner)   how long a thread without an op polls
//   team.call(mine, helpers)  calls helpers to help()
//   team.help_bulk()          the owner, without an op: takes part in bulk work of ops. False: there is none
//
// Not here: what fails, and threads (plan_run.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/plan/detail/crew.hpp>
#include <deeprec/plan/detail/ready_ops.hpp>
#include <deeprec/plan/digraph.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// @threads restart and own: the owner; help: any other
template <class Ready, class Atomics = std_atomics>
class op_runner {
 public:
  using number = typename Atomics::template atomic<std::int32_t>;
  using local = typename Ready::local;

  /// @param missing  raw memory, one for each op
  /// @param ready    as `graph`, outlives this
  op_runner(const digraph& graph, std::span<number> missing, Ready& ready) noexcept
      : graph_(&graph), missing_(missing), ready_(&ready) {
    for (std::size_t v = 0; v < missing_.size(); ++v) ::new (&missing_[v]) number(before(v));
  }

  /// @param helpers  the most at once
  /// @return         how many ops are ready
  int restart(int helpers) noexcept {
    const auto order = Atomics::at(access::looked_at, std::memory_order_relaxed);
    if (running_) {  // was not run to its end
      for (std::size_t v = 0; v < missing_.size(); ++v) missing_[v].store(before(v), order);
    }
    running_ = true;
    ready_->restart();
    crew_.restart(helpers);
    std::int32_t ends = 0;
    int first = 0;
    for (std::size_t v = 0; v < missing_.size(); ++v) {
      if (graph_->after(static_cast<std::int32_t>(v)).empty()) ++ends;
      if (before(v) != 0) continue;
      ready_->first(static_cast<std::int32_t>(v));
      ++first;
    }
    ends_left_.store(ends, order);
    return first;
  }
  /// How many helpers may be called for so many ops; they count as called.
  int calls_for(int ops) noexcept { return crew_.publish(ops); }
  /// Every op has ended. By the owner, when no helper is inside.
  void end() noexcept { running_ = false; }
  /// So many helpers more are called, or fewer than counted.
  void count(int helpers) noexcept { crew_.count(helpers); }
  /// The owner may help with bulk work.
  void bulk_begins() noexcept { static_cast<void>(crew_.publish(0)); }
  void hand_over(local& mine) noexcept { ready_->hand_over(mine); }

  // acquire: what the ops wrote
  [[nodiscard]] bool ended() const noexcept {
    return ends_left_.load(Atomics::at(access::run_ended, std::memory_order_acquire)) == 0;
  }

  template <class Team>
  void own(Team& team) {
    work(team, [&](local& mine) { return wait(mine, team); });
  }
  template <class Team>
  void help(Team& team) {
    work(team, [&](local& mine) { return last_look(mine, team.patience(false)); });
  }

 private:
  std::int32_t before(std::size_t v) const noexcept {
    return static_cast<std::int32_t>(graph_->before(static_cast<std::int32_t>(v)).size());
  }

  template <class Team, class Idle>
  void work(Team& team, const Idle& idle) {
    local mine;
    ready_->enter(mine);
    while (true) {
      std::int32_t op = ready_->take(mine);
      if (op == no_op) op = idle(mine);
      if (op == no_op) break;
      team.execute(op);
      finish(op, mine, team);
    }
    ready_->leave(mine);
  }

  // Counts the op for its successors, and has helpers called for those that others may take.
  template <class Team>
  void finish(std::int32_t op, local& mine, Team& team) {
    const auto after = graph_->after(op);
    if (after.empty()) {
      // acq_rel: what the ops wrote is visible to the owner
      if (ends_left_.fetch_sub(1, Atomics::at(access::end_counted, std::memory_order_acq_rel)) == 1)
        crew_.publish(1);
      return;
    }
    int published = 0;
    for (const std::int32_t v : after) {
      number& missing = missing_[static_cast<std::size_t>(v)];
      // acq_rel: what the predecessors wrote is visible to the op
      if (missing.fetch_sub(1, Atomics::at(access::op_counted, std::memory_order_acq_rel)) != 1) continue;
      // For the next run.
      missing.store(before(static_cast<std::size_t>(v)),
                    Atomics::at(access::looked_at, std::memory_order_relaxed));
      ready_->made_ready(mine, v, published);
    }
    ready_->settle(mine, published);
    if (published == 0) return;
    const int calls = crew_.publish(published);
    if (calls > 0) team.call(mine, calls);
  }

  // An op that comes within `patience`.
  template <class Aside>
  std::int32_t poll(local& mine, std::chrono::nanoseconds patience, const Aside& aside) {
    if (patience.count() <= 0) return no_op;
    auto give_up = Atomics::now() + patience;
    do {
      for (int i = 0; i < 32; ++i) {
        if (const std::int32_t op = ready_->take(mine); op != no_op) return op;
        if (ended()) return no_op;
        if (aside()) give_up = Atomics::now() + patience;
        Atomics::relax();
      }
    } while (Atomics::now() < give_up);
    return no_op;
  }
  template <class Team>
  std::int32_t wait(local& mine, Team& team) {
    std::int32_t op = poll(mine, team.patience(true), [&] { return team.help_bulk(); });
    while (op == no_op && !ended()) {
      const auto seen = crew_.look();
      op = ready_->take(mine);
      if (op == no_op && !ended() && !team.help_bulk()) crew_.sleep(seen);
    }
    return op;
  }
  std::int32_t last_look(local& mine, std::chrono::nanoseconds patience) {
    std::int32_t op = poll(mine, patience, [] { return false; });
    while (op == no_op) {
      const auto seen = crew_.look();
      op = ready_->take(mine);
      if (op == no_op && crew_.leave(seen)) break;
    }
    return op;
  }

  const digraph* graph_;
  std::span<number> missing_;  // of an op: predecessors that have not ended
  Ready* ready_;
  crew<Atomics> crew_;
  alignas(64) number ends_left_{0};  // ops without successors
  bool running_ = false;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
