// Seeded batches of bags: uniform or skewed ids, empty bags, one huge bag, ids at the ends.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <deeprec/core/jagged_view.hpp>

namespace deeprec_test {

using deeprec::index_t;

template <class Id, class Offset>
struct batch {
  std::vector<Offset> offsets{0};
  std::vector<Id> ids;
  std::vector<float> weights;

  deeprec::jagged_view<Id, Offset> view(bool weighted = false) const {
    return {offsets.data(), static_cast<index_t>(offsets.size()) - 1, ids.data(),
            static_cast<index_t>(ids.size()), weighted ? weights.data() : nullptr};
  }
};

enum class shape_of_batch { uniform, skewed, many_empty, one_huge, ends };
inline constexpr shape_of_batch every_shape[] = {shape_of_batch::uniform, shape_of_batch::skewed,
                                                 shape_of_batch::many_empty, shape_of_batch::one_huge,
                                                 shape_of_batch::ends};

template <class Id = std::int64_t, class Offset = std::int64_t>
batch<Id, Offset> make_batch(std::mt19937_64& random, shape_of_batch shape, index_t bags, index_t rows,
                             index_t mean_hotness) {
  batch<Id, Offset> made;
  std::uniform_int_distribution<index_t> any_row(0, rows - 1);
  std::uniform_int_distribution<index_t> any_size(0, 2 * mean_hotness);
  std::uniform_real_distribution<double> unit(0, 1);
  for (index_t b = 0; b < bags; ++b) {
    index_t size = any_size(random);
    if (shape == shape_of_batch::many_empty && b % 4 != 0) size = 0;
    if (shape == shape_of_batch::one_huge) size = b == bags / 2 ? bags * mean_hotness : b % 2;
    for (index_t k = 0; k < size; ++k) {
      index_t id = any_row(random);
      if (shape == shape_of_batch::skewed) {  // P(id < x) = log(1 + x) / log(1 + rows)
        id = static_cast<index_t>(std::pow(static_cast<double>(rows) + 1.0, unit(random)) - 1.0);
        if (id >= rows) id = rows - 1;
      }
      if (shape == shape_of_batch::ends) id = k % 2 == 0 ? 0 : rows - 1;
      made.ids.push_back(static_cast<Id>(id));
      made.weights.push_back(static_cast<float>(unit(random) * 4 - 1));
    }
    made.offsets.push_back(static_cast<Offset>(made.ids.size()));
  }
  return made;
}

}  // namespace deeprec_test
