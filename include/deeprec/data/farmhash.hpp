// Rows of tokens as TensorFlow computes them, so that a model trained there keeps its rows. Needs FarmHash:
// the component deeprec::farmhash.
//
//   "68fd1e64" ──Fingerprint64──> 64 bits ──modulo rows──> row            tf.strings.to_hash_bucket_fast
//
//   criteo_format{.rows = criteo_format::same_size(1'000'000), .bucket = farmhash_bucket}
//
// Not here: to_hash_bucket_strong, which has a key, and the old to_hash_bucket.
#pragma once

#include <farmhash.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The row that tf.strings.to_hash_bucket_fast(token, num_buckets = rows) gives: a bucket_function, for the
/// option bucket of formats. Every feature hashes alike.
///
/// @pre      rows > 0
/// @cost     O(bytes of the token); about 15 ns for one of 8 bytes
/// @threads  reentrant
/// @error    none
/// @source   FarmHash's Fingerprint64 (Pike 2014), the same on every machine
inline index_t farmhash_bucket(std::string_view token, int /*feature*/, index_t rows) noexcept {
  const std::uint64_t hash = ::NAMESPACE_FOR_HASH_FUNCTIONS::Fingerprint64(token.data(), token.size());
  return static_cast<index_t>(hash % static_cast<std::uint64_t>(rows));
}

static_assert(std::is_same_v<decltype(&farmhash_bucket), bucket_function>);

}}  // namespace deeprec::DEEPREC_ABI
