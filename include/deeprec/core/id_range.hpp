// A list of ids, as verbs take it: whatever has data() and size() over integers of 32 or 64 bits, such as a
// std::span, a std::vector, a std::array.
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

/// The ids of a list, to be read.
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
