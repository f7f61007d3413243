// The search for batches of keys in the key index, in the regions that it is compiled for.
//
//   find_keys(region, directory, keys, n, codes)
//
// Vectors are loaded from memory that another thread may write to (docs/adr). A lane may be old, never torn:
// a hit is confirmed by atomic loads, and a miss that is old comes before the insertion.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/growing/detail/key_segment.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// For each of 1024 shares of the hashes the directory of its shard: the address of its words | the bits that
/// choose one.
struct key_directory {
  static constexpr std::size_t shares = 1024;
  key_hash hash;
  alignas(64) std::array<std::atomic<std::uint64_t>, shares> roots;

  [[nodiscard]] DEEPREC_INLINE std::uint64_t segment_of(std::uint64_t h) const noexcept {
    using A = std_atomics;
    const std::uint64_t root = roots[share_of(h)].load(A::at(access::root_seen, std::memory_order_acquire));
    const auto* const words = reinterpret_cast<const std::atomic<std::uint64_t>*>(root & ~std::uint64_t{63});
    return words[directory_place(h, static_cast<int>(root & 63))].load(
        A::at(access::segment_seen, std::memory_order_acquire));
  }
  [[nodiscard]] std::uint32_t find(std::uint64_t h, std::uint64_t key) const noexcept {
    return segment_word<std_atomics>::unpack(segment_of(h)).find(h, key);
  }
};

/// Keys whose lines are on their way at a time.
inline constexpr index_t keys_at_once = 64;

/// Hashes of some keys, and the addresses of their home buckets.
struct key_homes {
  std::uint64_t hash[keys_at_once];
  std::uint64_t home[keys_at_once];
};

}}}  // namespace deeprec::DEEPREC_ABI::detail

// clang-format off: the order of these is what they mean
#include <deeprec/simd/begin_portable.hpp>
#include <deeprec/embedding/growing/detail/key_lines_portable.inl>
#include <deeprec/embedding/growing/detail/key_probe.inl>
#include <deeprec/simd/end_portable.hpp>

#if DEEPREC_X86
#include <deeprec/simd/begin_avx2.hpp>
#include <deeprec/embedding/growing/detail/key_lines_avx2.inl>
#include <deeprec/embedding/growing/detail/key_probe.inl>
#include <deeprec/simd/end_avx2.hpp>

#include <deeprec/simd/begin_avx512.hpp>
#include <deeprec/embedding/growing/detail/key_lines_avx512.inl>
#include <deeprec/embedding/growing/detail/key_probe.inl>
#include <deeprec/simd/end_avx512.hpp>
#endif
// clang-format on
