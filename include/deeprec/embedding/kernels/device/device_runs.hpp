// Search for runs of equal keys in sorted order, on the device.
//
//   keys     3 3 3 7 9 9 - -        absent ids have the largest key, and come last
//   runs     0     3 4              found from any position by exponential search and bisection
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr std::uint32_t absent_key = 0xffffffffU;

/// Bits that tell rows [0, rows) from each other and from absent_key, whose low bits are all set.
DEEPREC_HD constexpr int key_bits(index_t rows) noexcept {
  int bits = 1;
  while (bits < 32 && rows >> bits != 0) ++bits;
  return bits;
}

/// The end of the run of equal keys that begins at `begin`.
template <class Key>
DEEPREC_HD index_t end_of_run(const Key* keys, index_t n, index_t begin) {
  const Key key = keys[begin];
  index_t step = 1;
  index_t inside = begin;
  DEEPREC_ROLLED
  while (inside + step < n && keys[inside + step] == key) {
    inside += step;
    step *= 2;
  }
  index_t high = inside + step < n ? inside + step : n;  // past the run, or the end
  DEEPREC_ROLLED
  while (high - inside > 1) {
    const index_t middle = inside + (high - inside) / 2;
    (keys[middle] == key ? inside : high) = middle;
  }
  return high;
}
/// The start of the run that holds a position.
template <class Key>
DEEPREC_HD index_t begin_of_run(const Key* keys, index_t position) {
  const Key key = keys[position];
  index_t step = 1;
  index_t inside = position;
  DEEPREC_ROLLED
  while (inside - step >= 0 && keys[inside - step] == key) {
    inside -= step;
    step *= 2;
  }
  index_t low = inside - step >= 0 ? inside - step : -1;  // before the run, or -1
  DEEPREC_ROLLED
  while (inside - low > 1) {
    const index_t middle = low + (inside - low) / 2;
    (keys[middle] == key ? inside : low) = middle;
  }
  return inside;
}

/// The first position whose key is not below `key`.
DEEPREC_HD inline index_t first_not_below(const std::uint32_t* keys, index_t n, std::uint32_t key) {
  index_t low = 0;
  DEEPREC_ROLLED
  for (index_t high = n; low < high;) {
    const index_t middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
