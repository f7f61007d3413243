// A list of ids as an argument of verbs: any type with data() and size() over integers of 32 or 64 bits, such
// as std::span, std::vector and std::array.
#pragma once

#include <concepts>
#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class R>
concept IdRange = requires(const R& range) {
  requires IdInteger<std::remove_cvref_t<decltype(*std::data(range))>>;
  { std::size(range) } -> std::convertible_to<std::size_t>;
};

/// A read-only span of the ids of a list.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <IdRange R>
auto id_span(const R& range) noexcept {
  using id_type = std::remove_cvref_t<decltype(*std::data(range))>;
  return std::span<const id_type>(std::data(range), std::size(range));
}

}}  // namespace deeprec::DEEPREC_ABI
