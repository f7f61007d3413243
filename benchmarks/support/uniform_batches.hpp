// Batches of bags of uniform ids, as many as it takes for caches to be of no use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "support/machine.hpp"

namespace deeprec_bench {

struct batch {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> ids;
  deeprec::jagged_view<> view() const {
    return {offsets.data(), static_cast<deeprec::index_t>(offsets.size()) - 1, ids.data(),
            static_cast<deeprec::index_t>(ids.size())};
  }
};

/// How many uniform ids of `rows` rows name so many different ones.
inline double uniform_ids_for(double different, double rows) {
  return -rows * std::log1p(-std::min(different / rows, 0.98));
}

/// Different rows that so many uniform ids name.
inline double different_rows(double ids, double rows) { return -rows * std::expm1(-ids / rows); }

/// Batches of about 20,000 uniform ids: twelve, or as many as it takes for their different rows to fill twice
/// the last-level cache, or nearly all rows where they are fewer.
inline std::vector<batch> uniform_batches(deeprec::index_t rows, deeprec::index_t hotness,
                                          deeprec::index_t row_bytes) {
  using deeprec::index_t;
  constexpr index_t ids = 20480;
  const index_t bags = ids / hotness;
  const double needed = uniform_ids_for(static_cast<double>(cold_bytes()) / static_cast<double>(row_bytes),
                                        static_cast<double>(rows)) /
                        static_cast<double>(bags * hotness);
  std::vector<batch> sets(
      static_cast<std::size_t>(std::max<index_t>(12, static_cast<index_t>(needed / 2 + 1) * 2)));
  deeprec::thread_pool two_threads(2);
  two_threads.parallel_for(static_cast<index_t>(sets.size()), 1, [&](index_t begin, index_t end, int) {
    for (auto s = static_cast<std::size_t>(begin); s < static_cast<std::size_t>(end); ++s) {
      const deeprec::counter_rng rng(100 + s);
      for (index_t b = 0; b <= bags; ++b) sets[s].offsets.push_back(b * hotness);
      for (index_t k = 0; k < bags * hotness; ++k) {
        sets[s].ids.push_back(deeprec::hash_bucket(rng.bits(7, static_cast<std::uint64_t>(k)), rows));
      }
    }
  });
  return sets;
}

/// Why these batches are not cold: their rows fit twice the cache; else empty.
inline std::string not_cold(const std::vector<batch>& sets, deeprec::index_t rows,
                            deeprec::index_t row_bytes) {
  double ids = 0;
  for (const batch& set : sets) ids += static_cast<double>(set.ids.size());
  const double bytes = different_rows(ids, static_cast<double>(rows)) * static_cast<double>(row_bytes);
  if (bytes >= 2.0 * static_cast<double>(last_level_cache())) return {};
  return in_megabytes(static_cast<std::size_t>(bytes)) +
         " of different rows are not twice the last-level cache of " + in_megabytes(last_level_cache());
}

}  // namespace deeprec_bench
