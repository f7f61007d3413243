// A lookup by any executor gives the bits that inline_executor gives.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/batches.hpp"
#include "support/seed.hpp"

namespace deeprec_test {

/// What differs; empty when nothing does.
template <class E>
std::string lookup_bits_fault(E& executor) {
  using namespace deeprec;
  constexpr index_t rows = 5000, width = 24, bags = 700;
  const inline_executor alone;
  dense_table<f32_rows> table(rows, width);
  table.initialize(alone, row_init::uniform{.seed = seed()});
  const auto& readable = table;
  std::mt19937_64 random(seed());
  for (const shape_of_batch shape : every_shape) {
    const auto batch = make_batch(random, shape, bags, rows, 20);  // one_huge: a bag of 14000 ids
    for (const bool weighted : {false, true}) {
      const std::size_t size = static_cast<std::size_t>(bags * width);
      std::vector<float> expected(size, -1.0F), got(size, -2.0F);
      lookup(alone, readable.view(), batch.view(weighted), combiner::mean,
             matrix_view(expected.data(), bags, width))
          .or_throw();
      lookup(executor, readable.view(), batch.view(weighted), combiner::mean,
             matrix_view(got.data(), bags, width))
          .or_throw();
      if (std::memcmp(expected.data(), got.data(), size * sizeof(float)) != 0) {
        return "other bits, shape " + std::to_string(static_cast<int>(shape)) +
               (weighted ? ", weighted" : "");
      }
      feature_group<> group;
      group.add(readable.view(), combiner::mean);
      const jagged_view<> features[] = {batch.view(weighted)};
      got.assign(size, -3.0F);
      lookup(executor, group, std::span<const jagged_view<>>(features), matrix_view(got.data(), bags, width))
          .or_throw();
      if (std::memcmp(expected.data(), got.data(), size * sizeof(float)) != 0) {
        return "other bits of a group, shape " + std::to_string(static_cast<int>(shape)) +
               (weighted ? ", weighted" : "");
      }
    }
    auto bad = batch;
    if (bad.ids.size() < 3) continue;
    bad.ids[bad.ids.size() - 1] = rows;
    bad.ids[bad.ids.size() / 2] = -1;
    std::vector<float> out(static_cast<std::size_t>(bags * width));
    const status found =
        lookup(executor, readable.view(), bad.view(), combiner::mean, matrix_view(out.data(), bags, width));
    if (found.code() != errc::id_out_of_range ||
        found.place().position != static_cast<index_t>(bad.ids.size() / 2)) {
      return "not the smallest bad id: " + found.message();
    }
  }
  return {};
}

}  // namespace deeprec_test
