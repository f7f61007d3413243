// Arguments of the tile kernel: addresses and byte counts, type-erased.
#pragma once

#include <cstddef>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/ops/detail/byte_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of in of at most this many bytes are repeated from a buffer, in vectors that may span several
/// repeats; longer ones are copied once for each repeat.
inline constexpr index_t tile_pattern_most = 2048;

/// Shorter rows of out cost less without the buffer.
inline constexpr index_t tile_pattern_out = 256;

struct tile_args {
  byte_rows<const std::byte> in;
  byte_rows<std::byte> out;  // a multiple of in's rows, of a multiple of in's width
  store_kind stores;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
