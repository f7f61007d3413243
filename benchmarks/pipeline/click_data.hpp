// Clicks drawn from a planted model, so that there is something to learn: 13 numbers, and an id in each of 26
// slots, whose tables lie behind each other in one.
//
//   logit = -1.5 + sum over slots of 0.35 weight(id) + sum over pairs of neighbours of 0.2 <factors, factors>
//   label = 1 with the probability of that logit
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>

namespace pipeline_bench {

inline constexpr deeprec::index_t slots = 26, numbers = 13;

/// Samples [0, samples) with the ids of all slots as numbers of rows of one table.
struct click_data {
  deeprec::index_t samples;
  deeprec::index_t table_rows = 0;
  std::vector<std::int32_t> ids;
  std::vector<float> dense, labels;
  std::vector<float> planted;  ///< logits

  /// Slot s has rows_of(s) rows; the ids of a slot are log-uniform: rank k has a share of about 1 / k.
  template <class RowsOf>
  click_data(deeprec::index_t count, std::uint64_t seed, RowsOf rows_of) : samples(count) {
    using namespace deeprec;
    const counter_rng rng(seed);
    std::vector<index_t> first_row;
    for (index_t s = 0; s < slots; ++s) first_row.push_back(table_rows), table_rows += rows_of(s);
    constexpr int factors = 4;
    std::vector<float> weights(static_cast<std::size_t>(table_rows * (1 + factors)));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(rng.normal(1, i));
    for (index_t i = 0; i < count; ++i) {
      std::uint64_t draw = static_cast<std::uint64_t>(i) * 64;
      const auto next = [&] { return rng.uniform(2, draw++); };
      double logit = -1.5;
      const float* before = nullptr;
      for (index_t s = 0; s < slots; ++s) {
        const auto rows = static_cast<double>(rows_of(s));
        const auto id = static_cast<index_t>(std::pow(rows, next())) - 1;
        const index_t row = first_row[static_cast<std::size_t>(s)] + id;
        ids.push_back(static_cast<std::int32_t>(row));
        const float* const of_id = weights.data() + row * (1 + factors);
        logit += 0.35 * static_cast<double>(of_id[0]);
        for (int c = 1; s % 2 == 1 && c <= factors; ++c) {
          logit += 0.2 * static_cast<double>(before[c]) * static_cast<double>(of_id[c]);
        }
        before = of_id;
      }
      for (index_t n = 0; n < numbers; ++n) dense.push_back(static_cast<float>(next() * 2 - 1));
      planted.push_back(static_cast<float>(logit));
      labels.push_back(next() < sigmoid(logit) ? 1.0F : 0.0F);
    }
  }

  /// `count` samples as bags of one id each, slots of a sample behind each other.
  [[nodiscard]] deeprec::fixed_hotness_view<std::int32_t> bags(deeprec::index_t first,
                                                               deeprec::index_t count) const {
    return {ids.data() + first * slots, count * slots, 1};
  }
  [[nodiscard]] deeprec::matrix_view<const float> numbers_of(deeprec::index_t first,
                                                             deeprec::index_t count) const {
    return {dense.data() + first * numbers, count, numbers};
  }
  [[nodiscard]] deeprec::matrix_view<const float> labels_of(deeprec::index_t first,
                                                            deeprec::index_t count) const {
    return {labels.data() + first, count, 1};
  }
};

}  // namespace pipeline_bench
