// A task that runs on another thread: the caller's side, and the executor's.
//
//   task_handle handle;
//   pool.post([&](std::stop_token stop) { return copy_batches(stop); }, {}, handle).or_throw();
//   handle.request_stop();
//   handle.join().or_throw();                    // the status that the task returned
//
//   status post(Task&& task, std::stop_token stop, task_handle& handle) {        // in an executor
//     threads.run(runnable_task(std::forward<Task>(task), std::move(stop), {}, &handle));
//     return {};
//   }
//
// A task takes a std::stop_token or nothing, and returns a status or nothing.
#pragma once

#include <cstdio>
#include <exception>
#include <stop_token>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/detail/task_state.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A callable that an executor's post() accepts: it takes a std::stop_token or nothing.
template <class Task>
concept TaskWork = detail::task_returning<Task, void> || detail::task_returning<Task, status>;

/// The caller's side of a posted task; empty until post() fills it. It may outlive the executor. A child that
/// fork() made has no thread for a task that had not ended: an inherited handle does not wait for it.
///
/// @threads one thread at a time; the task runs on another
class task_handle {
 public:
  task_handle() noexcept = default;
  task_handle(task_handle&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  /// Ends the task of this handle first, as the destructor.
  task_handle& operator=(task_handle&& other) noexcept {
    if (this != &other) {
      end();
      state_ = std::exchange(other.state_, nullptr);
    }
    return *this;
  }
  /// As std::jthread: requests a stop and waits for the task. The task's status is lost; an exception is
  /// reported on stderr.
  ///
  /// A task of another process is left alone.
  ///
  /// @pre not called from the task itself
  ~task_handle() { end(); }

  /// Whether there is a task whose outcome was not taken by join().
  [[nodiscard]] bool joinable() const noexcept { return state_ != nullptr; }
  /// Whether the task has ended; true for an empty handle, and where the task is another process's.
  [[nodiscard]] bool done() const noexcept {
    return state_ == nullptr || state_->has_ended() || state_->is_lost();
  }
  /// Triggers the task's stop token. False for an empty handle, for a task that takes no token, and when a
  /// stop was requested before.
  bool request_stop() noexcept { return state_ != nullptr && state_->request_stop(); }

  /// Waits for the end of the task, whose captures are destroyed by then. The handle is empty afterwards.
  ///
  /// @pre     not called from the task itself
  /// @cost    blocks
  /// @threads one at a time
  /// @error   the status that the task returned; ok for an empty handle; cancelled when the executor dropped
  ///          the task; unsupported where the task is another process's. Rethrows the exception of the task
  status join() {
    if (state_ == nullptr) return {};
    if (state_->is_lost()) {
      state_ = nullptr;  // left alone: it is as the threads of the parent left it
      return {errc::unsupported,
              "task_handle::join: must be called in the process of the task (called in a child of it)"};
    }
    state_->wait();
    const status outcome = state_->outcome();
#if DEEPREC_EXCEPTIONS
    const std::exception_ptr failure = state_->take_failure();
    detach();
    if (failure) std::rethrow_exception(failure);
#else
    detach();
#endif
    return outcome;
  }
  /// Empties the handle: the task runs on, and its outcome is lost.
  void detach() noexcept {
    if (state_ != nullptr) std::exchange(state_, nullptr)->release();
  }

 private:
  friend class runnable_task;
  void end() noexcept {
    if (state_ == nullptr || state_->is_lost()) return;
    state_->request_stop();
    state_->wait();
    if (state_->take_failure() != nullptr) {
      std::fputs("deeprec::task_handle: a task threw, and join() was not called\n", stderr);
    }
    detach();
  }

  detail::task_state* state_ = nullptr;
};

/// The executor's side of a posted task: post() makes one, and a thread calls it once. Destroyed without a
/// call, it ends its task as cancelled.
///
/// @threads one thread at a time
class runnable_task {
 public:
  runnable_task() noexcept = default;
  /// @param task moved or copied from
  /// @param user the token given to post()
  /// @param executor a token that the executor triggers at its end
  /// @param handle filled in, where not null; then it must be empty
  /// @pre     handle == nullptr || !handle->joinable()
  /// @cost    one allocation, which holds the task; a second one (a std::stop_source) when the task takes a
  ///          token that more than one party may trigger: user, executor, and any handle
  /// @threads reentrant
  /// @error   throws std::bad_alloc, and what the task's constructor throws; then `task` was not moved from,
  ///          unless its own move threw
  template <class Task>
    requires TaskWork<std::decay_t<Task>>
  runnable_task(Task&& task, std::stop_token user, std::stop_token executor, task_handle* handle) {
    DEEPREC_EXPECTS(handle == nullptr || !handle->joinable());
    state_ = new detail::task_state_of<std::decay_t<Task>>(std::forward<Task>(task), std::move(user),
                                                           std::move(executor), handle != nullptr);
    if (handle != nullptr) handle->state_ = state_;
  }
  runnable_task(runnable_task&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  runnable_task& operator=(runnable_task&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~runnable_task() {
    if (state_ == nullptr) return;
    if (!state_->has_ended()) state_->finish();
    state_->release();
  }

  /// Calls the task, then destroys it and what it captured.
  ///
  /// @pre     not empty; called once
  /// @cost    the task's
  /// @threads any thread
  /// @error   rethrows the exception of a task without a handle
  void operator()() { state_->run(); }

  /// Wakes join(). Without this call the destructor does.
  ///
  /// @pre     not empty; called once
  /// @cost    some 100 ns; a system call when a thread waits in join()
  /// @threads any thread
  /// @error   none
  void finish() noexcept { state_->finish(); }

 private:
  detail::task_state* state_ = nullptr;
};

}}  // namespace deeprec::DEEPREC_ABI
