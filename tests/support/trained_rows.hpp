// Bags of random lengths, gradients and tables, for tests that compare the bytes of rows after updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/adagrad.hpp>

namespace deeprec_test {

/// Bags of 0 to `longest` ids; draw() returns an id.
struct ragged_batch {
  std::vector<std::int64_t> offsets{0}, ids;
  std::vector<float> weights;

  template <class Draw>
  ragged_batch(std::mt19937_64& random, deeprec::index_t bags, deeprec::index_t longest, const Draw& draw) {
    for (deeprec::index_t b = 0; b < bags; ++b) {
      for (auto n = random() % static_cast<std::uint64_t>(longest + 1); n > 0; --n) {
        ids.push_back(static_cast<std::int64_t>(draw()));
        weights.push_back(0.25F + static_cast<float>(random() % 16) / 8);
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  [[nodiscard]] deeprec::jagged_view<> view(bool weighted = false) const {
    return {offsets.data(), static_cast<deeprec::index_t>(offsets.size()) - 1, ids.data(),
            static_cast<deeprec::index_t>(ids.size()), weighted ? weights.data() : nullptr};
  }
};

inline std::vector<float> normals(std::mt19937_64& random, deeprec::index_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  std::normal_distribution<float> normal;
  for (float& x : values) x = normal(random);
  return values;
}

/// Rows with the state of row-wise Adagrad.
template <class Format>
deeprec::dense_table<Format> table_of(deeprec::index_t rows, deeprec::index_t width,
                                      std::uint64_t seed_of_rows = 1) {
  deeprec::dense_table<Format> table(rows,
                                     Format(width, {.state_floats = deeprec::rowwise_adagrad::row_state}));
  table.initialize(deeprec::inline_executor{},
                   deeprec::row_init::uniform{.seed = seed_of_rows, .bound = 1.0F});
  return table;
}
template <class Format>
std::vector<std::byte> bytes_of(const deeprec::dense_table<Format>& table) {
  const auto view = table.view();
  return {view.row(0), view.row(0) + view.rows() * view.format().stride_bytes()};
}

}  // namespace deeprec_test
