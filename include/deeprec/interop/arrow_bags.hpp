// Arrays of Arrow as batches, without a copy: by the structs of Arrow's C data interface, which every version
// and language of Arrow exports. Includes no header of Arrow: the functions are templates over structs with
// the documented fields of ArrowSchema and ArrowArray.
//
//   jagged_view<std::int64_t, std::int32_t> bags;
//   if (status s = from_arrow(schema, array, bags); !s) ...         list<int64>: offsets and ids are Arrow's
//   lookup(ctx, table.view(), bags, combiner::sum, out);
//
//   from_arrow(schema, array, numbers)        a span of numbers: float32, int64 ...
//
// Not here: ownership (release the array when the view is no longer used), nulls, and conversions
// (data/parquet_reader.hpp).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The fields of an ArrowSchema and an ArrowArray that these templates use.
template <class Schema, class Array>
concept ArrowData = requires(const Schema& schema, const Array& array) {
  { schema.format } -> std::convertible_to<const char*>;
  { schema.children[0]->format } -> std::convertible_to<const char*>;
  { array.length } -> std::convertible_to<std::int64_t>;
  { array.null_count } -> std::convertible_to<std::int64_t>;
  { array.offset } -> std::convertible_to<std::int64_t>;
  { array.buffers[0] } -> std::convertible_to<const void*>;
  { array.children[0]->length } -> std::convertible_to<std::int64_t>;
};

namespace detail {

/// The format of a number in Arrow's C data interface; empty: none.
template <class T>
constexpr std::string_view arrow_format() noexcept {
  if constexpr (std::is_same_v<T, float>) return "f";
  if constexpr (std::is_same_v<T, double>) return "g";
  if constexpr (std::is_same_v<T, std::int32_t>) return "i";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "I";
  if constexpr (std::is_same_v<T, std::int64_t>) return "l";
  if constexpr (std::is_same_v<T, std::uint64_t>) return "L";
  return {};
}

/// A null count of -1 is not computed; without a bitmap there is no null.
template <class Array>
bool has_nulls(const Array& array) noexcept {
  return array.null_count != 0 && array.buffers[0] != nullptr;
}

}  // namespace detail

/// The numbers of an array.
///
/// @dtype   float, double, and integers of 32 or 64 bits, as the array has them
/// @post    on a fault the view is as before
/// @cost    O(1); nothing is copied
/// @threads reentrant
/// @error   unsupported: an array of another type, or with nulls
template <class Schema, class Array, class T>
  requires(ArrowData<Schema, Array>)
status from_arrow(const Schema& schema, const Array& array, std::span<const T>& numbers) noexcept {
  static_assert(!detail::arrow_format<T>().empty(),
                "deeprec::from_arrow: numbers are float, double, or integers of 32 or 64 bits. Fix: "
                "std::span<const float>.");
  if (std::string_view(schema.format) != detail::arrow_format<T>())
    return {errc::unsupported, "from_arrow: the array must have the numbers of the view (has another type)"};
  if (detail::has_nulls(array))
    return {
        errc::unsupported, "from_arrow: the array must have no null (has some)", {.is = array.null_count}};
  const auto* const first = static_cast<const T*>(array.buffers[1]);
  numbers = {array.length == 0 ? nullptr : first + array.offset, static_cast<std::size_t>(array.length)};
  return {};
}

/// The lists of an array, as bags: its offsets and the ids are Arrow's memory.
///
/// @dtype   ids and offsets as the array has them: offsets of 32 bits of a list, of 64 of a large_list
/// @post    on a fault the view is as before
/// @cost    O(1); nothing is copied
/// @threads reentrant
/// @error   unsupported: an array of another type, or with nulls, of which its elements are some as well
template <class Schema, class Array, class Id, class Offset>
  requires(ArrowData<Schema, Array>)
status from_arrow(const Schema& schema, const Array& array, jagged_view<Id, Offset>& bags) noexcept {
  constexpr std::string_view lists = sizeof(Offset) == 8 ? "+L" : "+l";
  if (std::string_view(schema.format) != lists) {
    return {errc::unsupported,
            sizeof(Offset) == 8
                ? "from_arrow: the array must be a large_list, for offsets of 64 bits (has another type)"
                : "from_arrow: the array must be a list, for offsets of 32 bits (has another type)"};
  }
  if (detail::has_nulls(array))
    return {
        errc::unsupported, "from_arrow: the array must have no null (has some)", {.is = array.null_count}};
  std::span<const Id> ids;
  if (const status s = from_arrow(*schema.children[0], *array.children[0], ids); !s) return s;
  const auto* const offsets = static_cast<const Offset*>(array.buffers[1]);
  bags = {array.length == 0 ? nullptr : offsets + array.offset, array.length, ids.data(),
          static_cast<index_t>(ids.size())};
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
