// A block of memory and when it is live: what plans of memory are made from.
//
//   0123456789     time is counted in events, one for each allocation and each release: no clock
//   ├──A──┤        A = {0, 6, bytes}, live before event 6
//         ├─B─┤    B = {6, 10, bytes}, so B may lie where A was
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A block that is live in [begin, end). A block of 0 bytes shares its place with any other.
struct block_lifetime {
  std::int64_t begin = 0, end = 0;  ///< begin < end: what is live at no event has no place
  std::size_t bytes = 0;
  std::size_t alignment = alignof(std::max_align_t);  ///< of its offset; a power of two
};

}}  // namespace deeprec::DEEPREC_ABI
