// The identity of a type at run time, without RTTI: what passes compare types of ops and values by.
//
//   if (value.type() == type_id_of<matrix>()) ...
//
// It is the address of a variable that each type has. The variable has default visibility, so libraries of
// one process that export the type share it, also where they hide their other symbols. A type that is itself
// hidden, or local to a library, is another type in each of them: then passes find no match, and none is
// wrong.
#pragma once

#include <cstddef>
#include <functional>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

// Not const: linkers merge constants of equal content.
template <class T>
struct [[gnu::visibility("default")]] type_mark {
  static inline char here = 0;
};

}  // namespace detail

/// A type, or none.
///
/// @threads a value type
class type_id {
 public:
  constexpr type_id() = default;
  [[nodiscard]] friend constexpr bool operator==(const type_id&, const type_id&) = default;
  /// Any order, the same throughout the process.
  [[nodiscard]] friend bool operator<(const type_id& a, const type_id& b) noexcept {
    return std::less<>()(a.mark_, b.mark_);
  }
  /// Whether it is a type.
  explicit constexpr operator bool() const noexcept { return mark_ != nullptr; }

 private:
  template <class T>
  friend constexpr type_id type_id_of() noexcept;
  friend struct std::hash<type_id>;
  constexpr explicit type_id(const char* mark) noexcept : mark_(mark) {}
  const char* mark_ = nullptr;
};

/// The identity of T; const T is another type.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T>
[[nodiscard]] constexpr type_id type_id_of() noexcept {
  return type_id(&detail::type_mark<T>::here);
}

}}  // namespace deeprec::DEEPREC_ABI

/// @cond
template <>
struct std::hash<deeprec::type_id> {
  std::size_t operator()(const deeprec::type_id& t) const noexcept {
    return std::hash<const void*>()(t.mark_);
  }
};
/// @endcond
