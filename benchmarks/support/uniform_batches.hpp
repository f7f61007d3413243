// Batches of bags of uniform ids, as many as it takes for caches to be of no use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/random.hpp>

namespace deeprec_bench {

struct batch {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> ids;
  deeprec::jagged_view<> view() const {
    return {offsets.data(), static_cast<deeprec::index_t>(offsets.size()) - 1, ids.data(),
            static_cast<deeprec::index_t>(ids.size())};
  }
};

/// Batches of about 20,000 uniform ids: twelve, or as many as it takes to touch 96 MB of rows, so that no
/// cache holds them from one turn to the next.
inline std::vector<batch> uniform_batches(deeprec::index_t rows, deeprec::index_t hotness,
                                          deeprec::index_t row_bytes) {
  using deeprec::index_t;
  constexpr index_t ids = 20480;
  const index_t bags = ids / hotness;
  const index_t needed = (index_t{96} << 20) / (ids * row_bytes) / 2 * 2;
  std::vector<batch> sets(static_cast<std::size_t>(std::max<index_t>(12, needed)));
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const deeprec::counter_rng rng(100 + s);
    for (index_t b = 0; b <= bags; ++b) sets[s].offsets.push_back(b * hotness);
    for (index_t k = 0; k < bags * hotness; ++k) {
      sets[s].ids.push_back(deeprec::bucket(rng.bits(7, static_cast<std::uint64_t>(k)), rows));
    }
  }
  return sets;
}

}  // namespace deeprec_bench
