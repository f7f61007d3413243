// What the kernels of the attention unit work on, the offsets of histories, and how samples are shared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/detail/float_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Offsets of histories as a view of const 32-bit or 64-bit numbers in the space of the other operands.
template <MemorySpace Space, class Offsets>
auto history_offsets(const Offsets& offsets) noexcept {
  using narrow = array_view<const std::int32_t, Space>;
  using wide = array_view<const std::int64_t, Space>;
  constexpr bool is_narrow = std::is_convertible_v<const Offsets&, narrow>;
  static_assert(
      is_narrow || std::is_convertible_v<const Offsets&, wide>,
      "deeprec::attention: offsets are no contiguous range of integers in the space of the keys. Fix: "
      "array_view<const std::int64_t>(data, samples + 1), or <const std::int32_t>.");
  if constexpr (is_narrow) {
    return narrow(offsets);
  } else {
    return wide(offsets);
  }
}

/// Offsets of samples + 1 elements: from 0 up to the number of positions, none smaller than the one before.
/// The fault doesn't name its verb.
template <class Offset, MemorySpace Space>
DEEPREC_PER_UNIT status check_offsets(array_view<const Offset, Space> offsets, index_t samples,
                                      index_t positions) noexcept {
  if (!offsets.valid()) return expect_size(0, samples + 1, "offsets must not be null");
  if (const status s = expect_size(offsets.size(), samples + 1, "offsets must be (B+1)"); !s) return s;
  if (offsets[0] < 0) return {errc::offsets_negative, {.bag = 0, .value = static_cast<index_t>(offsets[0])}};
  if (const status s = expect_size(offsets[0], 0, "offsets must begin with 0"); !s) return s;
  if (!in_order(offsets.data(), samples)) {
    for (index_t b = 0; b < samples; ++b) {
      if (offsets[b + 1] < offsets[b])
        return {errc::offsets_decreasing, {.bag = b, .value = static_cast<index_t>(offsets[b + 1])}};
    }
  }
  return expect_size(offsets[samples], positions, "the last of offsets must be keys.extent(0)");
}

/// Which samples a piece of the work holds. A sample without positions is a unit as well:
///
///   offsets   0 3 3 5        units of sample b: offsets[b] + b .. offsets[b+1] + b + 1
///   units     aaaa b ccc
template <class Offset>
struct history_ranges {
  const Offset* offsets;
  index_t samples;

  [[nodiscard]] DEEPREC_INLINE index_t begin(index_t b) const noexcept {
    return static_cast<index_t>(offsets[b]);
  }
  [[nodiscard]] DEEPREC_INLINE index_t end(index_t b) const noexcept {
    return static_cast<index_t>(offsets[b + 1]);
  }
  [[nodiscard]] index_t units() const noexcept { return begin(samples) + samples; }
  /// The first sample whose first unit is `unit` or a later one.
  [[nodiscard]] index_t first_from(index_t unit) const noexcept {
    index_t low = 0, high = samples;
    while (low < high) {
      const index_t middle = low + (high - low) / 2;
      if (begin(middle) + middle < unit) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  /// The sample that holds a position.
  [[nodiscard]] index_t sample_of(index_t position) const noexcept {
    const Offset* const next =
        std::upper_bound(offsets, offsets + samples, position,
                         [](index_t at, Offset offset) { return at < static_cast<index_t>(offset); });
    return static_cast<index_t>(next - offsets) - 1;
  }
};
template <class Offset>
history_ranges(const Offset*, index_t) -> history_ranges<Offset>;

/// The history of one sample.
struct history {
  float_rows<const float> keys;
  index_t length;
  index_t width;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
