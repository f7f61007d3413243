// The context of a reader, which keeps a reference to its executor.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The context of a verb's argument of type T&&, which must not be an executor that is a temporary.
template <class T>
[[nodiscard]] auto lasting_context(std::remove_reference_t<T>& context_or_executor) noexcept {
  static_assert(std::is_lvalue_reference_v<T> || is_context<std::remove_cvref_t<T>>,
                "deeprec::batch_reader: the executor is a temporary, and the reader keeps a reference to it. "
                "Fix: give the executor a name.");
  return as_context(context_or_executor);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
