// Arguments of the stitch kernels: the rows of one operand, type-erased, and the numbers that place them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// In outputs of more bytes than this, the rows that are written with cached stores are prefetched.
inline constexpr index_t stitch_fetch_above = index_t{256} << 10;

/// Prefetch distance in rows: the hardware's prefetches end at each page. Rows of a page and more: 0, none.
inline index_t stitch_rows_ahead(index_t width) noexcept {
  constexpr index_t page = 4096, bytes_ahead = 2 * page, most = 64;
  if (width == 0 || width >= page) return 0;
  return bytes_ahead / width < most ? bytes_ahead / width : most;
}

template <class Index>
struct stitch_args {
  const Index* numbers;  // row i of `from` goes to row numbers[i] of out
  byte_rows<const std::byte> from;
  byte_rows<std::byte> out;
  index_t ahead;  // prefetch distance in rows; 0: none
  store_kind stores;
  bool fetches_out;           // the rows of out are prefetched too
  const std::uint64_t* last;  // for each row of out, 1 + the place of the row that it gets; 0: none
  std::uint64_t first_place;  // the place of row 0 of `from` among the rows of all operands
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
