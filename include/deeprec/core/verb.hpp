// One verb, many backends.
//
//   status lookup(ctx, ...)  ──checks──>  backend<verbs::lookup, host_backend>::run(ctx, ...)
//                                         backend<verbs::lookup, cuda_backend>::run(ctx, ...)   (.cuh)
//
// A verb is ONE function template; a backend is a specialisation of `backend`, found when the call is
// instantiated, so host code that calls a verb works for a device once the .cuh is included.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>

namespace deeprec::inline DEEPREC_ABI {

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

}  // namespace deeprec::inline DEEPREC_ABI
