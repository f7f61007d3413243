// What deeprec requires of an executor, as two concepts. A host framework's pool models the first with a few
// lines.
//
//   bulk   parallel_for(n, grain, body)   splits [0, n) at multiples of grain and calls
//                                         body(begin, end, worker) for pieces that cover it;
//                                         bodies never wait for each other
//   task   post(work, stop_token)         runs work that may block. Returns ok, or an error (would_block:
//                                         no thread is free now) that leaves the work with the caller.
//                                         Accepted work waits for no other work
//          post(work, stop_token, handle) the same; the handle (core/task_handle.hpp) joins and stops it
//
// Optional members of a bulk executor:
//
//   polls()                       true while idle threads poll for work and begin in about a microsecond;
//                                 without it they are taken to sleep
//   processors()                  how many of its threads run at once, where it has more of them
//   stay_awake(), may_sleep()     between them idle threads poll for longer: see awake
//   fork(work), call_helpers(work, n), help_bulk(work), join(work)
//                                 idle threads are called to a piece of work while it goes on, and nobody
//                                 waits for them before the end: see ForkingExecutor
//
// worker is below concurrency(), and no two bodies of one call run with the same worker at once.
// The result of a verb depends on the grain that it chose, never on concurrency() or on which thread ran
// which piece.
#pragma once

#include <concepts>
#include <stop_token>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

class task_handle;

namespace detail {
struct any_bulk_body {
  void operator()(index_t, index_t, int) const {}
};
struct any_task {
  void operator()(const std::stop_token&) const {}
};
}  // namespace detail

template <class E>
concept BulkExecutor = requires(E& executor, index_t n, detail::any_bulk_body body) {
  executor.parallel_for(n, n, body);
  { executor.concurrency() } -> std::convertible_to<int>;
};

/// Work to which idle threads of an executor are called while it goes on. It lives with the thread that
/// forks, which works too, until join() has returned.
struct forked_work {
  /// A helper's part of it: runs until nothing is left to do now, and waits for nobody.
  void (*help)(void* body, int worker) noexcept;
  /// A thread inside has called parallel_for: the thread that forked, if it waits, may take part (help_bulk).
  void (*bulk_begins)(void* body) noexcept;
  void* body;

  // The executor's.
  const void* executor = nullptr;
  forked_work* outer = nullptr;
  int place = -1;
};

/// A bulk executor whose threads can be called to help by a thread that does not wait for them.
///
///   if (executor.fork(work)) {             false: not now; parallel_for instead
///     executor.call_helpers(work, 2);      two calls of work.help, on threads that are idle or become it
///     ...                                  again and again, by this thread and by helpers
///     executor.help_bulk(work);            pieces of the bulk work that a thread inside shares; false: none
///     executor.join(work);                 calls that have not begun are dropped; waits for those inside
///   }
///
/// A helper's number is below concurrency(), not that of the thread that forks, and no two helpers of one
/// work have the same at once. Between its calls a helper is free for other work. Forks of a thread nest.
/// call_helpers does not block and allocates nothing.
template <class E>
concept ForkingExecutor = BulkExecutor<E> && requires(E& executor, forked_work& work, int calls) {
  { executor.fork(work) } -> std::same_as<bool>;
  { executor.help_bulk(work) } -> std::same_as<bool>;
  executor.call_helpers(work, calls);
  executor.join(work);
};

template <class E>
concept TaskExecutor =
    requires(E& executor, detail::any_task task, std::stop_token stop, task_handle& handle) {
      { executor.post(task, stop) } -> std::convertible_to<status>;
      { executor.post(task, stop, handle) } -> std::convertible_to<status>;
    };

/// While it exists, idle threads of the executor poll for work: around the verbs of a step, whose serial
/// parts are shorter than it takes to wake a thread. Nothing for an executor without stay_awake().
///
///   const awake scope(pool);
///
/// @cost    two atomic additions; the processors on which threads poll, at most 5 ms after the last call
/// @threads any number at once, on one executor too; may be nested
/// @error   none
template <class E>
class [[nodiscard]] awake {
 public:
  explicit awake(E& executor) noexcept : executor_(&executor) {
    if constexpr (can_stay_awake) executor_->stay_awake();
  }
  awake(const awake&) = delete;
  awake& operator=(const awake&) = delete;
  ~awake() {
    if constexpr (can_stay_awake) executor_->may_sleep();
  }

 private:
  static constexpr bool can_stay_awake = requires(E& e) { e.stay_awake(), e.may_sleep(); };
  E* executor_;
};

/// The tag of the host backend. An executor selects another backend by its member type `backend`.
struct host_backend {};

/// Converts from every tag: a verb's overload for it is chosen where the backend has none.
struct any_backend {
  template <class Tag>
  explicit(false) any_backend(Tag) noexcept {}
};

namespace detail {

/// The space of the memory that the verbs of a backend access: its member type `space`, or the host's.
template <class Backend>
struct backend_space {
  using type = host_space;
};
template <class Backend>
  requires requires { typename Backend::space; }
struct backend_space<Backend> {
  using type = typename Backend::space;
};

template <class E>
struct executor_backend {
  using type = host_backend;
};

template <class E>
  requires requires { typename E::backend; }
struct executor_backend<E> {
  using type = typename E::backend;
};

}  // namespace detail

template <class E>
concept Executor = BulkExecutor<E> || !std::same_as<typename detail::executor_backend<E>::type, host_backend>;

}}  // namespace deeprec::DEEPREC_ABI
