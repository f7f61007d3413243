// One thread at a time, in an order that a test chooses: schedules of real threads without a clock.
//
//   baton schedule(starved);       the thread `starved` runs only when no other can go on
//   schedule.begin();              the caller is thread 0, and runs; schedule.leave() at the end
//   baton_executor                 its task k is thread k + 1
//   baton_wait                     a wait strategy: a wait passes the baton on instead of polling
//   baton_gate()                   a point where another thread may be chosen
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/core/task_handle.hpp>
#include <deeprec/queue/wait_strategies.hpp>

namespace deeprec_test {

class baton {
 public:
  // starved: a number in the order of enter(); -1: nobody. seed: 0 is round robin, else a random choice.
  explicit baton(int starved, std::uint64_t seed = 0, int starved_too = -1)
      : starved_{starved, starved_too}, random_(seed), by_chance_(seed != 0) {}

  static baton*& current() {
    static thread_local baton* mine = nullptr;
    return mine;
  }

  // The caller takes part from here on, as thread 0, and runs.
  void begin() {
    const std::lock_guard lock(mutex_);
    register_me(0);
    running_ = last_ = 0;
  }
  // Takes part as this thread, and waits for its turn.
  void enter(int number) {
    std::unique_lock lock(mutex_);
    register_me(number);
    turn_.notify_all();
    turn_.wait(lock, [&] { return running_ == number; });
  }
  // Returns when a thread has entered.
  void until_entered(int number) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] {
      return number < static_cast<int>(threads_.size()) && threads_[static_cast<std::size_t>(number)].entered;
    });
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    threads_[static_cast<std::size_t>(me())].here = false;
    moved();
    running_ = -1;
    choose();
    current() = nullptr;
  }
  // blocked: the caller could not go on; it is asked again after somebody else did something.
  void pass(bool blocked) {
    std::unique_lock lock(mutex_);
    if (!blocked) moved();
    threads_[static_cast<std::size_t>(me())].blocked = blocked;
    choose();
    if (running_ == me()) return;
    turn_.wait(lock, [&] { return running_ == me(); });
  }
  // The caller did something that others may wait for.
  void went_on() {
    const std::lock_guard lock(mutex_);
    moved();
  }

 private:
  struct thread {
    bool entered = false;
    bool here = false;
    bool blocked = false;
  };
  static int& me() {
    static thread_local int number = -1;
    return number;
  }
  void register_me(int number) {
    current() = this;
    me() = number;
    if (number >= static_cast<int>(threads_.size())) threads_.resize(static_cast<std::size_t>(number) + 1);
    threads_[static_cast<std::size_t>(number)] = {true, true, false};
  }
  [[nodiscard]] bool is_starved(int t) const { return t == starved_[0] || t == starved_[1]; }
  void moved() {
    for (thread& t : threads_) t.blocked = false;
  }
  void choose() {
    const int n = static_cast<int>(threads_.size());
    const auto may_run = [&](int t, bool starved) {
      const thread& one = threads_[static_cast<std::size_t>(t)];
      return one.here && !one.blocked && is_starved(t) == starved;
    };
    for (const bool starved : {false, true}) {
      std::vector<int> able;
      for (int k = 1; k <= n; ++k) {
        const int t = (last_ + k) % n;
        if (may_run(t, starved)) able.push_back(t);
      }
      if (able.empty()) continue;
      last_ = running_ = by_chance_ ? able[random_() % able.size()] : able.front();
      turn_.notify_all();
      return;
    }
    bool any = false;
    for (const thread& t : threads_) any = any || t.here;
    if (!any) return;
    // Everybody waits: each is asked once more.
    if (++asked_again_ > 1'000'000) {
      std::fputs("baton: every thread waits\n", stderr);
      std::abort();
    }
    moved();
    choose();
  }

  int starved_[2];
  std::mt19937_64 random_;
  bool by_chance_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<thread> threads_;
  int running_ = -1;
  int last_ = 0;
  int asked_again_ = 0;
};

inline void baton_gate() {
  if (baton::current() != nullptr) baton::current()->pass(false);
}

// As spin_wait, but each look that fails passes the baton on.
struct baton_wait {
  static constexpr bool parks = false;
  static constexpr bool timed = false;
  template <class Atomics, class Look>
  static deeprec::queue_result busy(Look&) {
    return deeprec::queue_result::not_now;
  }
  template <class Atomics, class Look, class Expired>
  static deeprec::queue_result look(Look& look, Expired& expired, std::uint64_t) {
    for (bool first = true;; first = false) {
      const deeprec::queue_result found = look();
      if (found != deeprec::queue_result::not_now) {
        return found;
      }
      if (const auto e = expired(); e != deeprec::queue_result::not_now) return e;
      if (baton::current() != nullptr) {
        if (first) baton::current()->went_on();  // what it did before it came here
        baton::current()->pass(true);
      } else {
        Atomics::yield();
      }
    }
  }
};

// Tasks on threads that take part in a schedule: task k is thread k + 1; thread 0 is the caller.
class baton_executor {
 public:
  explicit baton_executor(baton& schedule) : schedule_(&schedule) {}
  ~baton_executor() {
    for (std::thread& t : threads_) t.join();
  }
  template <class Task>
  deeprec::status post(Task&& task, std::stop_token stop) {
    return start(deeprec::runnable_task(std::forward<Task>(task), std::move(stop), {}, nullptr));
  }
  template <class Task>
  deeprec::status post(Task&& task, std::stop_token stop, deeprec::task_handle& handle) {
    return start(deeprec::runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle));
  }

 private:
  deeprec::status start(deeprec::runnable_task task) {
    const int number = static_cast<int>(threads_.size()) + 1;
    threads_.emplace_back([this, number, run = std::move(task)]() mutable {
      schedule_->enter(number);
      run();
      schedule_->leave();
      run.finish();
    });
    schedule_->until_entered(number);
    return {};
  }
  baton* schedule_;
  std::vector<std::thread> threads_;
};

}  // namespace deeprec_test
