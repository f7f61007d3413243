// One-hot features as in a CTR model, for bodies: tables of 24 to 4 M rows.
#pragma once

#include <cstdint>

#include "support/bodies.hpp"

namespace deeprec_bodies_of {

/// A third of the tables is tiny, the rest grows to 4 M rows.
inline deeprec::index_t rows_of(deeprec::index_t feature) {
  return feature % 3 == 0 ? 24 + feature : deeprec::index_t{1000} << (feature / 2);
}

/// The ids of `parts` batches of Batch bags for each feature.
template <int Batch>
std::int64_t* ids_of_features(const host& h, deeprec::index_t features, deeprec::index_t parts) {
  return h.memory<std::int64_t>("ids", parts * features * Batch, [&](std::int64_t* to, std::int64_t n) {
    for (std::int64_t k = 0; k < n; ++k) {
      to[k] = draw_below(8, static_cast<std::uint64_t>(k), rows_of(k / Batch % features));
    }
  });
}

}  // namespace deeprec_bodies_of
