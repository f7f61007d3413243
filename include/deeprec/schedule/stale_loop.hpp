// A training loop under a stale window: requests of later batches are on their way while one is computed.
//
//   next ──> fetch x W ──> compute ──> apply          each step has a slot until its update is applied
//   in order  at once      in order    in order
//
//   stale_window window(4, shards);
//   stale_loop loop(window);                          buffers of the caller: one for each of loop.slots()
//   loop.run(pool, next, fetch, compute, apply).or_throw();
//
// next, fetch and apply run on threads of the executor, compute on the caller's. fetch calls window.read(),
// apply calls window.apply(), for each shard. Not here: what is fetched, and optimizers.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory_resource>
#include <new>
#include <optional>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/queue/waiting_room.hpp>
#include <deeprec/schedule/detail/first_failure.hpp>
#include <deeprec/schedule/stale_window.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A step of a stale_loop: its number t, from 0, and the slot whose buffers belong to it until its update has
/// been applied.
struct stale_step {
  index_t number = 0;
  index_t slot = 0;
};

/// How a run of a stale_loop ended.
struct stale_report {
  status outcome;              ///< of the part that failed first; ok for an exception
  const char* part = nullptr;  ///< "next", "fetch", "compute", "apply" or "post"; null: none failed
  index_t step = -1;           ///< the step in which it failed
  index_t steps = 0;           ///< steps whose updates were applied
  wait_counts slots;           ///< waits of the requests for a slot, since construction
  wait_counts fetched;         ///< waits of compute for rows: latency that the window does not hide
  wait_counts computed;        ///< waits of apply for gradients
};

/// Owns the order of the steps and no data. The thread that calls run() computes.
///
/// @threads one thread at a time
template <class Window>
class stale_loop {
 public:
  /// @param window  lookups and updates begin at 0 in each run
  /// @param requests  the number of lookups that are on their way beside the step that computes, and of
  ///                  threads that fetch; at least W; 0: W
  /// @pre     window outlives the loop
  /// @cost    O(requests) from `memory`
  /// @threads reentrant
  /// @error   throws what the resource throws
  explicit stale_loop(Window& window, index_t requests = 0,
                      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : window_(&window),
        requests_(requests <= 0 ? window.window() : requests),
        arrived_(static_cast<std::size_t>(requests_ + 1), memory),
        tasks_(memory) {
    tasks_.resize(static_cast<std::size_t>(requests_) + 1);
  }
  stale_loop(const stale_loop&) = delete;
  stale_loop& operator=(const stale_loop&) = delete;

  [[nodiscard]] index_t requests() const noexcept { return requests_; }
  /// The number of steps that may have buffers at once: requests() + 1.
  [[nodiscard]] index_t slots() const noexcept { return requests_ + 1; }
  /// Of the last run.
  [[nodiscard]] const stale_report& report() const noexcept { return report_; }

  /// Trains until the data end. Each part takes a stale_step and returns nothing or a status.
  ///
  /// @param next     makes the request of a step; false, or a result<bool> that is false: the data end.
  ///                 In order, one at a time
  /// @param fetch    sends the request, reads each shard under window.read(step.number, shard), and brings
  ///                 the rows back. Up to requests() at once
  /// @param compute  makes the gradient; in order, on the caller's thread
  /// @param apply    updates each shard under window.apply(step.number, shard); in order, on one thread
  /// @pre     the executor runs at least requests() + 1 tasks at once. No part calls run()
  /// @post    all threads have left; the window is restarted at the next run
  /// @numerics with staleness::exact the same bits for any timing, any number of requests and of threads;
  ///          W = 1: those of next, fetch, compute, apply in turn
  /// @cost    requests() + 1 tasks are posted; nothing is allocated for a step. A step begins its fetch when
  ///          the update of the step slots() before it has been applied
  /// @threads one at a time
  /// @error   the status of the part that failed first, which report() names; an exception is rethrown here.
  ///          stopped by the token; invalid_value for fewer requests than W, and when fetch or apply left out
  ///          a shard; unsupported when the executor runs tasks on the caller's thread; the status of post().
  ///          Steps whose update had not begun are not applied. Another run may follow
  /// @example @snippet tests/schedule/stale_window_test.cpp stale_loop
  template <class Executor, class Next, class Fetch, class Compute, class Apply>
  [[nodiscard]] status run(Executor& executor, Next&& next, Fetch&& fetch, Compute&& compute, Apply&& apply,
                           const std::stop_token& stop = {}) {
    static_assert(TaskExecutor<Executor>,
                  "deeprec::stale_loop: not an executor of tasks. Fix: give it post(task, stop) and "
                  "post(task, stop, handle) (see deeprec/core/executor.hpp), or pass a thread_pool.");
    static_assert(std::invocable<Next&, stale_step> && std::invocable<Fetch&, stale_step> &&
                      std::invocable<Compute&, stale_step> && std::invocable<Apply&, stale_step>,
                  "deeprec::stale_loop: a part does not take a step. Fix: [&](stale_step step) { ... }.");
    if (requests_ < window_->window()) {
      return {errc::invalid_value,
              "stale_loop::run: requests must be at least the window W",
              {.is = requests_, .must_be = window_->window()}};
    }
    begin();
    const std::thread::id caller = std::this_thread::get_id();
    const auto fetcher = [this, caller, &next, &fetch] {
      task_body(caller, [&] { fetch_steps(next, fetch); });
    };
    const auto applier = [this, caller, &apply] { task_body(caller, [&] { apply_steps(apply); }); };
    {
      const std::stop_callback stopping(stop, [this]() noexcept { cancel(); });
      for (std::size_t k = 0; k < tasks_.size() && !was_cancelled(); ++k) {
        running_.fetch_add(1, std::memory_order_relaxed);
        const bool runs = k == 0 ? post(executor, applier, tasks_[k]) : post(executor, fetcher, tasks_[k]);
        if (!runs) running_.fetch_sub(1, std::memory_order_relaxed);
      }
      compute_steps(compute);
      wait_for(ended_, [this] {
        return running_.load(std::memory_order_acquire) == 0 ? queue_result::ok : queue_result::not_now;
      });
    }
    for (task_handle& task : tasks_) static_cast<void>(task.join());  // it has kept no exception
    return finish(stop);
  }

 private:
  using wait_type = typename Window::wait_type;
  using room = waiting_room<wait_type, detail::std_atomics>;
  static constexpr index_t endless = (std::numeric_limits<index_t>::max)();

  struct arrival {
    std::atomic<index_t> end{0};  // the last step whose rows are in this slot, plus one
  };

  void begin() noexcept {
    window_->restart();
    report_ = {};
    for (arrival& a : arrived_) a.end.store(0, std::memory_order_relaxed);
    for (std::atomic<index_t>* const n : {&next_, &computed_, &applied_})
      n->store(0, std::memory_order_relaxed);
    total_.store(endless, std::memory_order_relaxed);
    turn_.store(0, std::memory_order_relaxed);
    running_.store(0, std::memory_order_relaxed);
    failure_.restart();
  }

  status finish(const std::stop_token& stop) {
    report_.steps = applied_.load(std::memory_order_relaxed);
    report_.slots = free_.counts();
    report_.fetched = fetched_.counts();
    report_.computed = computing_.counts();
    report_.outcome = failure_.outcome();
    if (!report_.outcome.ok()) return report_.outcome;
    if (report_.steps == total_.load(std::memory_order_relaxed)) return {};
    report_.outcome = stop.stop_requested()
                          ? status(errc::stopped, "stale_loop::run")
                          : status(errc::cancelled, "stale_loop::run: the window was cancelled");
    return report_.outcome;
  }

  // A task gets references: nothing else is copied into it. False: it does not run, and that is recorded. No
  // exception leaves while tasks use the caller's stack.
  template <class Executor, class Body>
  bool post(Executor& executor, const Body& body, task_handle& handle) noexcept {
    status posted;
#if DEEPREC_EXCEPTIONS
    try {
      posted = executor.post([&body] { body(); }, std::stop_token{}, handle);
    } catch (const std::bad_alloc&) {
      posted = {errc::out_of_memory, "stale_loop::run"};
    } catch (...) {
      fail("post", -1, std::current_exception());
      return false;
    }
#else
    posted = executor.post([&body] { body(); }, std::stop_token{}, handle);
#endif
    if (posted.ok() && handle.done()) posted = handle.join();  // an error: the executor dropped it
    if (!posted) fail("post", -1, posted);
    return posted.ok();
  }
  template <class Body>
  void task_body(std::thread::id caller, const Body& body) {
    if (std::this_thread::get_id() == caller) {
      fail("post", -1,
           {errc::unsupported, "stale_loop::run: the executor must run tasks on threads of their own"});
    } else {
      body();
    }
    // release: the caller reads what this thread has written
    running_.fetch_sub(1, std::memory_order_release);
    ended_.notify_all();
  }

  // Waits for an answer of look(). False: cancelled.
  template <class Look>
  static bool wait_for(room& here, const Look& look) {
    queue_result found = look();
    if (found == queue_result::not_now) found = here.wait_for(look, wait_limit{}, detail::wake_nobody{});
    return found == queue_result::ok;
  }
  template <class Ready>
  bool wait_unless_cancelled(room& here, const Ready& ready) {
    return wait_for(here, [&] {
      if (was_cancelled()) return queue_result::cancelled;
      return ready() ? queue_result::ok : queue_result::not_now;
    });
  }

  [[nodiscard]] bool was_cancelled() const noexcept { return failure_.was_cancelled(); }
  void cancel() noexcept {
    failure_.cancel();
    window_->cancel();
    for (room* const r : {&free_, &fetched_, &computing_}) r->notify_all();
  }
  // The first failure is kept. The caller reads it when no task runs.
  void fail(const char* part, index_t step, const status& why) noexcept {
    end_by(part, step, failure_.keep(why.in_operation("stale_loop::run")));
  }
  void fail(const char* part, index_t step, std::exception_ptr thrown) noexcept {
    end_by(part, step, failure_.keep(std::move(thrown)));
  }
  void end_by(const char* part, index_t step, bool is_first) noexcept {
    if (is_first) report_.part = part, report_.step = step;
    cancel();
  }

  // Calls a part. No value: it failed, and that is recorded. Else whether there is a step; a part without an
  // answer has one.
  template <bool MayEnd = false, class Part>
  std::optional<bool> call(const char* name, stale_step step, Part& part) {
    const auto caught = [&](const std::exception_ptr& thrown) -> std::optional<bool> {
      fail(name, step.number, thrown);
      return {};
    };
    return detail::caught_by(caught, [&] { return answer<MayEnd>(name, step, part); });
  }
  template <bool MayEnd, class Part>
  std::optional<bool> answer(const char* name, stale_step step, Part& part) {
    using type = std::invoke_result_t<Part&, stale_step>;
    if constexpr (std::is_void_v<type>) {
      part(step);
      return true;
    } else if constexpr (std::is_convertible_v<type, status>) {
      const status s = part(step);
      if (s.ok()) return true;
      // Cancelled by the failure of another part, or by the token: not a failure of its own. An exception
      // that passes an access cancels the window before its part has recorded it.
      const bool by_another = was_cancelled() || window_->was_cancelled();
      if (by_another && (s.code() == errc::cancelled || s.code() == errc::stopped)) {
        cancel();
      } else {
        fail(name, step.number, s);
      }
      return {};
    } else if constexpr (MayEnd && std::is_same_v<type, bool>) {
      return part(step);
    } else {
      static_assert(MayEnd && std::is_same_v<type, result<bool>>,
                    "deeprec::stale_loop: a part returns something else. Fix: nothing or a status; next: "
                    "bool or result<bool>.");
      const type more = part(step);
      if (more.ok()) return more.value();
      fail(name, step.number, more.fault());
      return {};
    }
  }

  template <class Next, class Fetch>
  void fetch_steps(Next& next, Fetch& fetch) {
    while (true) {
      stale_step step;
      // One at a time has the turn: it waits for the slot of the next step, and makes its request.
      const bool mine = wait_unless_cancelled(free_, [&] {
        step.number = next_.load(std::memory_order_relaxed);
        if (step.number == endless) return true;
        // acquire: the slot's last update has been applied
        if (step.number - applied_.load(std::memory_order_acquire) >= slots()) return false;
        // acquire: what the last one who had it wrote, and its number of the next step
        if (turn_.exchange(1, std::memory_order_acquire) != 0) return false;
        if (step.number == next_.load(std::memory_order_relaxed)) return true;
        give_turn();
        return false;
      });
      if (!mine || step.number == endless) return;
      step.slot = step.number % slots();
      const std::optional<bool> more = call<true>("next", step, next);
      if (!more) return give_turn();
      if (!*more) {
        next_.store(endless, std::memory_order_relaxed);
        give_turn();
        return end_at(step.number);
      }
      next_.store(step.number + 1, std::memory_order_relaxed);
      give_turn();
      if (!call("fetch", step, fetch)) return;
      if constexpr (Window::is_exact) {
        if (!was_cancelled() && !window_->has_read(step.number)) {
          return fail("fetch", step.number,
                      {errc::invalid_value, "stale_loop::run: fetch must read each shard under window.read"});
        }
      }
      // release: compute reads the rows
      arrived_[static_cast<std::size_t>(step.slot)].end.store(step.number + 1, std::memory_order_release);
      fetched_.notify_all();
    }
  }
  void give_turn() noexcept {
    turn_.store(0, std::memory_order_release);
    free_.notify_all();
  }
  void end_at(index_t steps) noexcept {
    total_.store(steps, std::memory_order_relaxed);
    window_->end_at(steps);
    for (room* const r : {&free_, &fetched_, &computing_}) r->notify_all();
  }

  template <class Compute>
  void compute_steps(Compute& compute) {
    for (stale_step step;; ++step.number) {
      step.slot = step.number % slots();
      const arrival& rows = arrived_[static_cast<std::size_t>(step.slot)];
      bool end = false;
      const bool there = wait_unless_cancelled(fetched_, [&] {
        if (rows.end.load(std::memory_order_acquire) == step.number + 1) return true;
        return end = total_.load(std::memory_order_relaxed) == step.number;
      });
      if (!there || end) return;
      if (!call("compute", step, compute)) return;
      // release: apply reads the gradient
      computed_.store(step.number + 1, std::memory_order_release);
      computing_.notify_all();
    }
  }

  template <class Apply>
  void apply_steps(Apply& apply) {
    for (stale_step step;; ++step.number) {
      step.slot = step.number % slots();
      bool end = false;
      const bool there = wait_unless_cancelled(computing_, [&] {
        if (computed_.load(std::memory_order_acquire) > step.number) return true;
        return end = total_.load(std::memory_order_relaxed) == step.number;
      });
      if (!there || end) return;
      if (!call("apply", step, apply)) return;
      for (index_t s = 0; Window::is_exact && s < window_->shards() && !was_cancelled(); ++s) {
        if (window_->was_applied(s) <= step.number) {
          return fail(
              "apply", step.number,
              {errc::invalid_value, "stale_loop::run: apply must update each shard under window.apply"});
        }
      }
      // release: the slot is free for another step
      applied_.store(step.number + 1, std::memory_order_release);
      free_.notify_all();
    }
  }

  Window* window_;
  const index_t requests_;
  std::pmr::vector<arrival> arrived_;
  std::pmr::vector<task_handle> tasks_;
  alignas(64) std::atomic<index_t> next_{0};
  std::atomic<int> turn_{0};
  room free_;  // requests wait here for a slot and for their turn
  alignas(64) std::atomic<index_t> computed_{0};
  std::atomic<index_t> total_{endless};
  room fetched_;  // compute
  alignas(64) std::atomic<index_t> applied_{0};
  room computing_;  // apply
  std::atomic<int> running_{0};
  detail::first_failure failure_;
  room ended_;  // the caller, for the end of the tasks
  stale_report report_;
};

}}  // namespace deeprec::DEEPREC_ABI
