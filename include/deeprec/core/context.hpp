// The first argument of every verb: its executor, the resource of its scratch memory, and its instruction
// set.
//
//   thread_pool pool(4);
//   lookup(pool, ...);                                   // a plain executor converts
//   context ctx{pool}; ctx.memory = &arena;              // or set more
//   lookup(ctx, ...);
#pragma once

#include <memory_resource>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/executor.hpp>
#include <deeprec/core/isa.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Refers to an executor; owns nothing. Copy it freely.
///
/// @threads as the executor: two threads may use one context when they may use one executor
template <class E>
struct context {
  static_assert(Executor<E>,
                "deeprec::context: not an executor. Fix: give it parallel_for(n, grain, body) and "
                "concurrency() (see deeprec/core/executor.hpp), or pass a deeprec::thread_pool.");

  explicit(false) context(E& who) noexcept : executor(&who) {}

  /// The tag that selects the backend of a verb: the executor's member type `backend`, else host_backend.
  [[nodiscard]] static constexpr auto backend() noexcept {
    return typename detail::executor_backend<std::remove_cv_t<E>>::type{};
  }

  E* executor;
  /// Scratch memory of verbs. Only the calling thread allocates from it, never a parallel body; a
  /// batch_reader does so on the executor's threads, one at a time. So it need not be thread-safe. When it
  /// refuses, a verb returns out_of_memory.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  isa instruction_set = active_isa();
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

}}  // namespace deeprec::DEEPREC_ABI
