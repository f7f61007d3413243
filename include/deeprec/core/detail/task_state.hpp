// What a task_handle and the executor of its task share: the task, its outcome, its stop tokens.
#pragma once

#include <atomic>
#include <concepts>
#include <exception>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/process_mark.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Task>
struct task_result {
  using type = struct none;
};
template <class Task>
  requires std::invocable<Task&, std::stop_token>
struct task_result<Task> {
  using type = std::invoke_result_t<Task&, std::stop_token>;
};
template <class Task>
  requires(std::invocable<Task&> && !std::invocable<Task&, std::stop_token>)
struct task_result<Task> {
  using type = std::invoke_result_t<Task&>;
};
template <class Task, class Returns>
concept task_returning = std::same_as<typename task_result<Task>::type, Returns>;

/// What a handle and an executor share. Freed by the last of them.
class task_state {
 public:
  task_state(bool has_handle, std::stop_source source)
      : source_(std::move(source)), owners_(has_handle ? 2 : 1), has_handle_(has_handle) {}
  task_state(const task_state&) = delete;
  task_state& operator=(const task_state&) = delete;
  virtual ~task_state() = default;

  /// Calls the task and destroys it. An exception is kept for the handle; without one it passes through.
  void run() {
    outcome_ = {};
#if DEEPREC_EXCEPTIONS
    std::exception_ptr failure;
    try {
      outcome_ = call();
    } catch (...) {
      failure = std::current_exception();
    }
    drop();
    if (failure && !has_handle_) std::rethrow_exception(failure);
    failure_ = std::move(failure);
#else
    outcome_ = call();
    drop();
#endif
  }
  void finish() noexcept {
    ended_.store(1, std::memory_order_release);
    ended_.notify_all();
  }
  void release() noexcept {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  [[nodiscard]] bool has_ended() const noexcept { return ended_.load(std::memory_order_acquire) != 0; }
  /// It had not ended when fork() made this process, which has no thread for it.
  [[nodiscard]] bool is_lost() const noexcept { return made_in_.is_inherited() && !has_ended(); }
  void wait() const noexcept { ended_.wait(0, std::memory_order_acquire); }
  bool request_stop() noexcept { return source_.request_stop(); }

  // Valid once it has ended.
  [[nodiscard]] const status& outcome() const noexcept { return outcome_; }
  [[nodiscard]] std::exception_ptr take_failure() noexcept { return std::exchange(failure_, nullptr); }

 protected:
  std::stop_source source_;

 private:
  virtual status call() = 0;
  virtual void drop() noexcept = 0;

  status outcome_{errc::cancelled, "post: the executor must run the tasks that it accepts (dropped one)"};
  std::exception_ptr failure_;
  std::atomic<int> ended_{0};
  std::atomic<int> owners_;
  const process_mark made_in_;
  [[maybe_unused]] const bool has_handle_;  // without exceptions only given
};

template <class Task>
class task_state_of final : public task_state {
  static constexpr bool takes_token = std::invocable<Task&, std::stop_token>;

 public:
  template <class Given>
  task_state_of(Given&& given, std::stop_token user, std::stop_token executor, bool has_handle)
      : task_state(has_handle, source_for(user, executor, has_handle)), task_(std::forward<Given>(given)) {
    if constexpr (takes_token) {
      if (source_.stop_possible()) {
        token_ = source_.get_token();
        static_cast<void>(on_user_.emplace(std::move(user), trigger{&source_}));
        static_cast<void>(on_executor_.emplace(std::move(executor), trigger{&source_}));
      } else {
        token_ = user.stop_possible() ? std::move(user) : std::move(executor);
      }
    }
  }

 private:
  struct trigger {
    std::stop_source* source;
    void operator()() const noexcept { source->request_stop(); }
  };
  // A source of its own, which allocates, only where more than one party can stop the task.
  static std::stop_source source_for(const std::stop_token& user, const std::stop_token& executor,
                                     bool has_handle) {
    const int parties = int{has_handle} + int{user.stop_possible()} + int{executor.stop_possible()};
    if (takes_token && (has_handle || parties > 1)) return {};
    return std::stop_source(std::nostopstate);
  }
  status call() override {
    const auto run = [&]() -> decltype(auto) {
      if constexpr (takes_token) {
        return (*task_)(std::move(token_));
      } else {
        return (*task_)();
      }
    };
    if constexpr (task_returning<Task, status>) {
      return run();
    } else {
      run();
      return {};
    }
  }
  void drop() noexcept override {
    on_user_.reset();
    on_executor_.reset();
    task_.reset();
  }

  std::optional<Task> task_;
  std::stop_token token_;
  std::optional<std::stop_callback<trigger>> on_user_;
  std::optional<std::stop_callback<trigger>> on_executor_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
