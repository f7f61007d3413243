// A callable that returns nothing or a status, as one that returns a status.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class... Args, class F>
std::function<status(Args...)> as_status(F&& f) {
  using type = std::invoke_result_t<F&, Args...>;
  static_assert(std::is_copy_constructible_v<std::decay_t<F>>,
                "deeprec::micro_batch: a callable can't be copied. Fix: capture by reference.");
  if constexpr (std::is_void_v<type>) {
    return [work = std::forward<F>(f)](Args... args) mutable {
      work(args...);
      return status();
    };
  } else {
    static_assert(std::is_convertible_v<type, status>,
                  "deeprec::micro_batch: a stage or an update returns something else. Fix: nothing or a "
                  "status.");
    return std::forward<F>(f);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
