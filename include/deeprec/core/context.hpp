// The first argument of every verb: who runs it, where scratch memory comes from, and with which
// instruction set.
//
//   thread_pool pool(4);
//   lookup(pool, ...);                                   // a plain executor converts
//   context ctx{pool}; ctx.memory = &arena;              // or say more
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

  /// The tag by which a verb finds its backend: host_backend unless the executor names another.
  [[nodiscard]] static constexpr auto backend() noexcept {
    return typename detail::executor_backend<std::remove_cv_t<E>>::type{};
  }

  E* executor;
  /// Scratch of verbs. Asked by the calling thread only, in no parallel body; by a batch_reader on the executor's
  /// threads, one at a time. So it need not be thread-safe. Where it refuses memory, a verb returns out_of_memory.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  isa instruction_set = active_isa();
};

namespace detail {

template <class T>
inline constexpr bool is_context = false;

template <class E>
inline constexpr bool is_context<context<E>> = true;

}  // namespace detail

/// A context as it is; a plain executor wrapped in one.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T>
auto as_context(T&& context_or_executor) noexcept {
  using plain = std::remove_cvref_t<T>;
  if constexpr (detail::is_context<plain>) {
    return context_or_executor;
  } else {
    return context<std::remove_reference_t<T>>(context_or_executor);
  }
}

template <class T>
using context_for = decltype(as_context(std::declval<T&>()));

}}  // namespace deeprec::DEEPREC_ABI
