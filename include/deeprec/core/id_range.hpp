// A list of ids as an argument of verbs: any type with data() and size() over integers of 32 or 64 bits, such
// as std::span, std::vector and std::array, and array_view, which may be of device memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <iterator>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class R>
concept IdRange = requires(const R& range) {
  requires IdInteger<std::remove_cvref_t<decltype(*std::data(range))>>;
  { std::size(range) } -> std::convertible_to<std::size_t>;
};

/// A read-only view of the ids of a list: in the space of an array_view, else of host memory.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <IdRange R>
auto id_view(const R& range) noexcept {
  using id_type = std::remove_cvref_t<decltype(*std::data(range))>;
  if constexpr (detail::is_array_view<R>) {
    return array_view<const id_type, typename R::space>(range);
  } else {
    return array_view<const id_type>(std::data(range), static_cast<index_t>(std::size(range)));
  }
}

}}  // namespace deeprec::DEEPREC_ABI
