// The name of a type as text, without RTTI: what the compiler calls it.
#pragma once

#include <cstddef>
#include <string_view>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class T>
constexpr std::string_view type_name() noexcept {
  // "... type_name() [with T = name; std::string_view = ...]", "... type_name() [T = name]"
  const std::string_view function = __PRETTY_FUNCTION__;
  const std::size_t at = function.find("T = ");
  if (at == std::string_view::npos) return function;
  const std::string_view rest = function.substr(at + 4);
  const std::size_t semicolon = rest.find("; std::string_view");
  return rest.substr(0, semicolon == std::string_view::npos ? rest.rfind(']') : semicolon);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
