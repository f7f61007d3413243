// Whether an output, given or about to grow, shares memory with an input.
//
//   out.ids    [ size ........ capacity )     all of it may be written to, or freed
//   input             [ offsets )             a shared byte: the verb refuses
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <tuple>

#include <deeprec/core/config.hpp>
#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The bytes of an array; begin = end where there are none.
struct byte_range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

template <class T>
byte_range bytes_at(const T* first, index_t count) noexcept {
  if (first == nullptr || count <= 0) return {};
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  const auto bytes = static_cast<std::uintptr_t>(capped_product(count, index_t{sizeof(T)}));
  return {begin, begin + (std::min)(bytes, (std::numeric_limits<std::uintptr_t>::max)() - begin)};
}

inline bool overlap(const byte_range& a, const byte_range& b) noexcept {
  return a.begin < a.end && b.begin < b.end && a.begin < b.end && b.begin < a.end;
}

/// Whether hits(bytes) holds for an array of an input: of valid bags or entries, a matrix, or a list.
template <class Input, class Hits>
bool any_array(const Input& input, const Hits& hits) noexcept {
  if constexpr (BagBatch<Input>) {
    const auto ranges = input.ranges();
    if constexpr (requires { ranges.offsets; }) {
      const index_t bags = input.bags();
      const index_t stored = bags > 0 && ranges.implied_bag < 0 ? bags + 1 : bags;
      if (hits(bytes_at(ranges.offsets, stored))) return true;
    }
    const index_t positions = input.id_count();
    return hits(bytes_at(input.ids(), positions)) || hits(bytes_at(input.weights(), positions));
  } else if constexpr (requires { input.row_stride(); }) {
    const index_t entries = input.id_count();
    const index_t rows = entries > 0 ? capped_sum(capped_product(entries - 1, input.row_stride()), 1) : 0;
    return hits(bytes_at(input.rows(), rows)) || hits(bytes_at(input.ids(), entries)) ||
           hits(bytes_at(input.weights(), entries));
  } else if constexpr (requires { input.data_handle(); }) {
    if (input.empty()) return false;
    const index_t reach = capped_product(input.extent(0) - 1, input.stride(0));
    const auto* const lowest = input.data_handle() + (reach < 0 ? reach : 0);
    return hits(bytes_at(lowest, capped_sum(reach < 0 ? -reach : reach, input.extent(1))));
  } else {
    return hits(bytes_at(std::data(input), static_cast<index_t>(std::size(input))));
  }
}

/// The elements that an operation may write to: of an owner, up to its capacity.
template <class Array>
index_t room_of(const Array& array) noexcept {
  if constexpr (requires { array.capacity(); }) {
    return static_cast<index_t>(array.capacity());
  } else {
    return array.size();
  }
}

/// True where one of the arrays of an output (std::tie of them) shares a byte with any array of the inputs.
template <class... Arrays, class... Inputs>
bool shares_bytes(const std::tuple<const Arrays&...>& out, const Inputs&... inputs) noexcept {
  return std::apply(
      [&](const Arrays&... array) {
        const auto hits = [&](const byte_range& input) {
          return (overlap(bytes_at(array.data(), room_of(array)), input) || ...);
        };
        return (any_array(inputs, hits) || ...);
      },
      out);
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
