// One verb, many backends.
//
//   status lookup(ctx, ...)  ──checks──>  lookup_on(host_backend{}, ctx, ...)
//                                         lookup_on(cuda_backend{}, ctx, ...)   (lookup.cuh)
//
// A verb is ONE function template; a backend is an overload that takes a tag. The tag's namespace is searched
// when the call is instantiated (ADL), so generic host code works for a device once the .cuh is included.
#pragma once

#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class...>
inline constexpr bool always_false = false;

/// The body of a verb's overload for any_backend: doesn't compile, and names the missing header.
template <class... Args>
status no_backend() {
  static_assert(always_false<Args...>,
                "deeprec::backend: this verb has none for this context. Fix: include the verb's .cuh "
                "(for a CUDA context, in a file compiled by nvcc) or deeprec/deeprec.cuh.");
  return {};
}

/// The backend tag of a context type.
template <class Context>
using backend_of = decltype(Context::backend());

/// The memory spaces of the operands of a call.
template <MemorySpace... Spaces>
struct operand_spaces {};
template <MemorySpace... Spaces>
inline constexpr operand_spaces<Spaces...> in_spaces{};

/// One call of a verb, from its first statement to its end: its context must reach its operands, its stop
/// token is checked, and it is traced.
///
///   const detail::verb_call call(ctx, "lookup", detail::in_spaces<typename Source::space, OutSpace>);
///   if (!call) return call.stopped();
class verb_call {
 public:
  /// @param name a string literal
  template <class Context, MemorySpace... Spaces>
  DEEPREC_INLINE verb_call(const Context& given, const char* name, operand_spaces<Spaces...> = {}) noexcept
      : verb_call(static_cast<const environment&>(given), name, unchecked{}) {
    if constexpr (std::is_same_v<typename backend_space<backend_of<Context>>::type, host_space>) {
      static_assert((reachable_as<Spaces, host_space> && ...),
                    "deeprec::context: device memory given to a host context. Fix: copy it, or pass a device "
                    "context.");
    } else {
      static_assert(
          (reachable_as<Spaces, device_space> && ...),
          "deeprec::context: host memory given to a device context. Fix: copy it to the device, and "
          "use views with device_space.");
    }
  }
  verb_call(const verb_call&) = delete;
  verb_call& operator=(const verb_call&) = delete;
  DEEPREC_INLINE ~verb_call() {
    if (trace_ != nullptr) [[unlikely]]
      trace_->end(name_);
  }

  explicit operator bool() const noexcept { return may_run_; }
  [[nodiscard]] status stopped() const noexcept { return {errc::stopped, name_}; }

 protected:
  struct unchecked {};
  DEEPREC_INLINE verb_call(const environment& given, const char* name, unchecked) noexcept
      : trace_(given.trace), name_(name), may_run_(given.stop == nullptr || !given.stop->stop_requested()) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->begin(name_);
  }

 private:
  trace_sink* trace_;
  const char* name_;
  bool may_run_;
};

/// The same, of a verb that runs on the host only.
class host_call : public verb_call {
 public:
  template <class Context, MemorySpace... Spaces>
  DEEPREC_INLINE host_call(const Context& given, const char* name, operand_spaces<Spaces...> = {}) noexcept
      : verb_call(static_cast<const environment&>(given), name, unchecked{}) {
    constexpr bool on_host = std::is_same_v<backend_of<Context>, host_backend>;
    static_assert(on_host,
                  "deeprec::backend: this verb runs on the host only. Fix: pass an executor of the host; "
                  "docs/cuda.md lists what runs on a device.");
    static_assert(!on_host || (reachable_as<Spaces, host_space> && ...),
                  "deeprec::context: device memory given to a host context. Fix: copy it, or pass a device "
                  "context.");
  }
};

/// The context that a verb which has begun passes to other verbs: without the stop token, since they are
/// parts of a call that completes.
template <class E>
[[nodiscard]] context<E> begun(context<E> given) noexcept {
  given.stop = nullptr;
  return given;
}

/// The status of a call for which a memory resource refused.
inline status refused_memory() {
  return {errc::out_of_memory, "the context's memory resource could not allocate scratch or room for out"};
}

/// Calls f, a backend, and returns its status or result, or errc::out_of_memory where a memory resource
/// refused. A host backend requests all of its memory before it writes to an output, so after out_of_memory
/// nothing was written, unless a row source or an executor of the caller threw. Without exceptions the
/// resource that refuses ends the program.
template <class F>
DEEPREC_INLINE auto or_out_of_memory(F&& f) -> std::invoke_result_t<F> {
#if DEEPREC_EXCEPTIONS
  try {
    return f();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {  // more elements than an array can have
  } catch (const error& refused) {
    if (refused.code() != errc::out_of_memory) throw;
  }
  return refused_memory();
#else
  return f();
#endif
}

/// The same; faults without an operation get this one, a literal. It does not call the other: one frame less
/// on the way of every verb.
template <class F>
DEEPREC_INLINE status or_out_of_memory(const char* operation, F&& f) {
#if DEEPREC_EXCEPTIONS
  try {
    return status(f()).in_operation(operation);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  } catch (const error& refused) {
    if (refused.code() != errc::out_of_memory) throw;
  }
  return refused_memory().in_operation(operation);
#else
  return status(f()).in_operation(operation);
#endif
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
