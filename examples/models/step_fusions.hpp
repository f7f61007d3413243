// Patterns of ops of click models for deeprec::fuse: a token's hash and bucket in one pass over the batch.
//
//   hash C1 ── bucket C1   =>   bucket C1 (hash_bucket)         26 times
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/graph/step/fusion/step_pattern.hpp>

#include "step_ops.hpp"

namespace ctr {

/// A token's fingerprint to a row of its table.
struct hash_bucket_op {
  static constexpr const char* kind = "hash_bucket";
  using output = slot_rows;
  hash_op hash;
  bucket_token_op bucket;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    hash.for_each_attribute(visit);
    bucket.for_each_attribute(visit);
  }
  void operator()(const raw_rows& in, slot_rows& out) const {
    const std::span<const std::int64_t> from = in.tokens(hash.column);
    const std::span<const std::int32_t> offsets = in.offsets(hash.column);
    out.offsets.assign(offsets.begin(), offsets.end());
    out.ids.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i)
      out.ids[i] = static_cast<row_id>(bucket.tables->row_of(bucket.slot, id_of(from[i], hash.ids)));
  }
};

inline std::vector<deeprec::step_pattern> click_fusions() {
  deeprec::step_pattern p("hash, bucket");
  const auto raw = p.any<raw_rows>();
  const auto ids = p.op<hash_op>(raw);
  const auto rows = p.op<bucket_token_op>(ids);
  p.becomes(rows, [=](const deeprec::pattern_match& m) { return hash_bucket_op{m[ids], m[rows]}; }, raw);
  return {p};
}

}  // namespace ctr
