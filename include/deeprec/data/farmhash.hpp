// TensorFlow's rows of tokens: tf.strings.to_hash_bucket_fast. Needs FarmHash: component deeprec::farmhash.
//
//   "68fd1e64" ──> Fingerprint64, 64 bits ──> modulo rows ──> row
//
//   auto reader = read_files(pool, criteo_format{.rows = ..., .row_of = farmhash_bucket}, {path}).or_throw();
//
// A kernel built for TensorFlow includes the <farmhash.h> of its wheel and needs no library but TensorFlow's.
#pragma once

#include <farmhash.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/data/text_format.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The row of a token as tf.strings.to_hash_bucket_fast(token, num_buckets = rows) gives it: a token_row.
///
/// @pre      rows > 0
/// @numerics Fingerprint64(token) modulo rows, unsigned; the same for every feature
/// @cost     O(bytes of the token)
/// @threads  reentrant
/// @error    none
/// @source   TensorFlow, core/kernels/string_to_hash_bucket_fast_op.h; FarmHash, Fingerprint64
[[nodiscard]] inline index_t farmhash_bucket(std::string_view token, int /*feature*/, index_t rows) noexcept {
  const std::uint64_t hash = ::util::Fingerprint64(token.data(), token.size());
  return static_cast<index_t>(hash % static_cast<std::uint64_t>(rows));
}

static_assert(std::is_convertible_v<decltype(&farmhash_bucket), token_row>);

}}  // namespace deeprec::DEEPREC_ABI
