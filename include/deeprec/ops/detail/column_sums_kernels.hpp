// The kernel of column_sums in the three regions that it is compiled for.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of a partial sum. A sum of partial sums errs less than one chain of additions.
inline constexpr index_t rows_of_part = 64;
/// Columns whose partial sums are kept in the first-level cache.
inline constexpr index_t column_panel = 512;
/// Panels of more bytes are prefetched: they come from beyond most second-level caches.
inline constexpr index_t fetch_sums_above = index_t{1} << 20;

}}}  // namespace deeprec::DEEPREC_ABI::detail

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/column_sums.inl"
#include <deeprec/simd/foreach_region.hpp>
