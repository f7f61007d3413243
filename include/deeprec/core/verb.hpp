// One verb, many backends.
//
//   status lookup(ctx, ...)  ──checks──>  backend<verbs::lookup, host_backend>::run(ctx, ...)
//                                         backend<verbs::lookup, cuda_backend>::run(ctx, ...)   (.cuh)
//
// A verb is ONE function template; a backend is a specialisation of `backend`, found when the call is
// instantiated, so host code that calls a verb works for a device once the .cuh is included.
#pragma once

#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {
template <class...>
inline constexpr bool always_false = false;
}

template <class Verb, class Backend>
struct backend {
  static_assert(detail::always_false<Verb, Backend>,
                "deeprec::backend: this verb has none for this context. Fix: include the verb's .cuh "
                "(for a CUDA context, in a file compiled by nvcc) or deeprec/deeprec.cuh.");
};

template <class Context>
struct context_backend;
template <class E>
struct context_backend<context<E>> : executor_backend<std::remove_cv_t<E>> {};

/// The backend of a context type: host_backend unless its executor names another.
template <class Context>
using backend_of = typename context_backend<Context>::type;

namespace detail {

/// What f returns; errc::out_of_memory where a memory resource refused. Without exceptions a resource that refuses ends
/// the program itself.
template <class F>
status or_out_of_memory(F&& f) {
#if DEEPREC_EXCEPTIONS
  try {
    return f();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // more elements than an array can have
  } catch (const error& refused) {
    if (refused.code() != errc::out_of_memory) throw;
  }
  return {errc::out_of_memory, "memory for scratch or for out was refused"};
#else
  return f();
#endif
}

/// Calls the backend of a verb. A host backend asks for all of its memory before it writes to an output, so a verb that
/// is refused memory has written nothing, unless a row source or an executor of the caller threw.
template <class Verb, class Context, class... Args>
status run_verb(const Context& ctx, Args&&... args) {
  return or_out_of_memory([&]() -> status {
    return backend<Verb, backend_of<Context>>::run(ctx, std::forward<Args>(args)...);
  });
}

}  // namespace detail

}}  // namespace deeprec::DEEPREC_ABI
