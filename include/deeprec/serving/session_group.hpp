// N sessions over one model that nobody writes: what a request needs for itself, so that N requests run at
// once without sharing it.
//
//   session_group group(4, [&](index_t i) { return session(i); });   an executor, memory, buffers of its own
//   ...                                                              on any thread, for each request
//   auto session = group.acquire();                                  waits while that session is busy
//   auto model = models.read();                                      versioned<T>: the newest model
//   lookup(session->ctx, model->table, bags, combiner::sum, session->out);
//
// or, where a request is a step of a graph (step_program.hpp), with a step_state in the session:
//
//   session->values.feed(request, ...);   program.run(session->ctx, session->values);
//
// Sessions live as long as the group, models come and go: a new version needs no new session. Not here:
// queues of requests; a request waits for the session that was chosen for it, in no certain order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/queue/staging_pool.hpp>
#include <deeprec/queue/wait_strategies.hpp>
#include <deeprec/serving/detail/session_chooser.hpp>
#include <deeprec/serving/session_choice.hpp>
#include <deeprec/support/atomics.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Sessions, each of which serves one request at a time.
///
/// @pre     the group outlives its leases; its threads are of one process (event_count)
/// @threads every member but constructor and destructor is thread-safe
/// @error   the constructor throws deeprec::error: invalid_value for fewer than one session; and what make()
///          and allocations throw
template <class Session, class Choice = session_choice::round_robin_t, class Wait = adaptive_wait,
          class Atomics = detail::std_atomics>
class session_group {
  using chooser = detail::session_chooser<Choice, Atomics>;
  static_assert(chooser::is_defined,
                "deeprec::session_group: unknown choice. Fix: session_choice::round_robin, "
                "session_choice::by_thread or session_choice::least_busy.");
  // A session and the wait for it: a pool of one. By address, since a session need not be movable.
  using place = staging_pool<std::unique_ptr<Session>, Wait, Atomics>;

  // A request as the choice counts it, to its end.
  class counted {
   public:
    counted() noexcept = default;
    counted(chooser& by, index_t session) noexcept : by_(&by), session_(session) {}
    counted(counted&& other) noexcept : by_(std::exchange(other.by_, nullptr)), session_(other.session_) {}
    counted& operator=(counted&& other) noexcept {
      std::swap(by_, other.by_);
      std::swap(session_, other.session_);
      return *this;
    }
    ~counted() { end(); }
    void end() noexcept {
      if constexpr (chooser::counts) {
        if (by_ != nullptr) std::exchange(by_, nullptr)->ended(session_);
      }
    }

   private:
    chooser* by_ = nullptr;
    index_t session_ = -1;
  };

 public:
  /// Exclusive use of a session for the lifetime of the lease; movable.
  ///
  /// @threads one thread at a time; may be passed to another thread
  class lease {
   public:
    lease() noexcept = default;

    explicit operator bool() const noexcept { return static_cast<bool>(held_); }
    /// Ok, or the reason why there is no session.
    [[nodiscard]] const status& outcome() const noexcept { return outcome_; }
    /// The number of the session, in [0, N); -1 where none was chosen.
    [[nodiscard]] index_t index() const noexcept { return index_; }
    /// @pre the lease has a session
    [[nodiscard]] Session& operator*() const noexcept { return **held_; }
    /// @pre the lease has a session
    [[nodiscard]] Session* operator->() const noexcept { return held_->get(); }
    /// Ends the lease early.
    void give_back() noexcept {
      held_.give_back();
      counted_.end();
    }

   private:
    friend session_group;
    lease(typename place::lease&& held, index_t index, const status& outcome, counted&& request) noexcept
        : counted_(std::move(request)), held_(std::move(held)), index_(index), outcome_(outcome) {}

    counted counted_;  // ends after the session was given back
    typename place::lease held_;
    index_t index_ = -1;
    status outcome_;
  };

  /// @param sessions  N
  /// @param make      called as make(i) for i in [0, N), in this order; returns a Session, which need not be
  ///                  movable
  template <class Make>
  session_group(index_t sessions, Make&& make, Choice = {}) : choose_((std::max)(sessions, index_t{1})) {
    if (sessions < 1) {
      detail::raise(errc::invalid_value,
                    "session_group: sessions must be at least 1 (was " + std::to_string(sessions) + ")");
    }
    for (index_t i = 0; i < sessions; ++i) {
      sessions_.emplace_back(1u, [&] { return std::unique_ptr<Session>(new Session(make(i))); });
    }
  }
  session_group(const session_group&) = delete;
  session_group& operator=(const session_group&) = delete;

  /// The session that the choice gives to this request; waits while it is leased.
  ///
  /// @cost    an atomic exchange, and the choice: round_robin another one, by_thread a mutex where the thread
  ///          asked another group last, least_busy O(N). No allocation but for a thread that comes to
  ///          by_thread
  /// @threads thread-safe. A thread that holds a lease and asks again may get the same session, and then
  ///          waits for itself: give a limit, or give the lease back
  /// @error   an empty lease; outcome() is timed_out or stopped, of the limit, or out_of_memory
  [[nodiscard]] lease acquire(const wait_limit& limit = {}) {
    index_t chosen = -1;
#if DEEPREC_EXCEPTIONS
    try {
      chosen = choose_.next(size());
    } catch (const std::bad_alloc&) {
      return lease({}, -1,
                   {errc::out_of_memory, "session_group::acquire: no memory for the number of a thread"}, {});
    }
#else
    chosen = choose_.next(size());
#endif
    counted request(choose_, chosen);
    typename place::lease held = sessions_[static_cast<std::size_t>(chosen)].acquire(limit);
    const status outcome = held ? status()
                                : status(to_errc(held.result()),
                                         "session_group::acquire: the session is in use", {.item = chosen});
    if (!held) request.end();
    return lease(std::move(held), chosen, outcome, std::move(request));
  }

  /// N.
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(sessions_.size()); }
  /// Statistics of the waits for a session.
  [[nodiscard]] wait_counts acquire_waits(index_t session) const noexcept {
    return sessions_[static_cast<std::size_t>(session)].acquire_waits();
  }

 private:
  std::deque<place> sessions_;
  chooser choose_;
};

template <class Make>
session_group(index_t, Make&&) -> session_group<std::remove_cvref_t<std::invoke_result_t<Make&, index_t>>>;
template <class Make, class Choice>
session_group(index_t, Make&&, Choice)
    -> session_group<std::remove_cvref_t<std::invoke_result_t<Make&, index_t>>, Choice>;

}}  // namespace deeprec::DEEPREC_ABI
