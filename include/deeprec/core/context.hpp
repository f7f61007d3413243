// The first argument of every verb: its executor, the resource of its scratch memory, its instruction set and
// tuning, a stop token and a trace sink.
//
//   thread_pool pool(4);
//   lookup(pool, ...);                                   // a plain executor converts
//   context ctx{pool}; ctx.memory = &arena;              // or set more
//   lookup(ctx, ...);
//   lookup(ctx.rebind(other_pool), ...);                 // the same on another executor
#pragma once

#include <memory_resource>
#include <stop_token>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/isa.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/trace.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a context has besides its executor. Owns nothing: what it points to must outlive the calls.
struct environment {
  /// Scratch memory of verbs on the host. Only the calling thread allocates from it, never a parallel body; a
  /// batch_reader does so on the executor's threads, one at a time. So it need not be thread-safe, unless
  /// what resolve() returns, which keeps it, is used or destroyed by another thread. When it refuses, a verb
  /// returns out_of_memory. On a device scratch belongs to the stream's cuda_workspace.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  isa instruction_set = active_isa();
  /// Changes no bit of a result. Not null.
  const kernel_tuning* tuning = &host_tuning();
  /// Null: never stopped. A verb checks the token once, before it does anything else: after a request it
  /// returns errc::stopped, and a call that has begun completes.
  const std::stop_token* stop = nullptr;
  /// Null: no trace. Receives the begin and the end of each call.
  trace_sink* trace = nullptr;
};

/// Refers to an executor; owns nothing. Copy it freely.
///
/// @threads as the executor: two threads may use one context when they may use one executor
template <class E>
struct context : environment {
  static_assert(Executor<E>,
                "deeprec::context: not an executor. Fix: give it parallel_for(n, grain, body) and "
                "concurrency() (see deeprec/core/executor.hpp), or pass a deeprec::thread_pool.");

  explicit(false) context(E& given) noexcept : executor(&given) {}
  context(E& given, const environment& rest) noexcept : environment(rest), executor(&given) {}

  /// The tag that selects the backend of a verb: the executor's member type `backend`, else host_backend.
  [[nodiscard]] static constexpr auto backend() noexcept {
    return typename detail::executor_backend<std::remove_cv_t<E>>::type{};
  }

  /// The same environment on another executor.
  template <class Other>
  [[nodiscard]] context<Other> rebind(Other& other) const noexcept {
    return {other, *this};
  }

  E* executor;
};

namespace detail {

template <class T>
inline constexpr bool is_context = false;

template <class E>
inline constexpr bool is_context<context<E>> = true;

/// Returns a context unchanged, and wraps a plain executor in one.
template <class T>
auto as_context(T&& context_or_executor) noexcept {
  using plain = std::remove_cvref_t<T>;
  if constexpr (is_context<plain>) {
    return context_or_executor;
  } else {
    return context<std::remove_reference_t<T>>(context_or_executor);
  }
}

}  // namespace detail

/// The context type that a verb makes of its first argument.
template <class T>
using context_for = decltype(detail::as_context(std::declval<T&>()));
/// The space of the memory that verbs with this first argument access.
template <class T>
using space_for = typename detail::backend_space<decltype(context_for<T>::backend())>::type;

}}  // namespace deeprec::DEEPREC_ABI
