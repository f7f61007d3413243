// The one oracle: plain scalar C++ in double. It shares nothing with the library but its views.
#pragma once

#include <cmath>
#include <vector>

#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/pooling.hpp>

namespace deeprec_test {

using deeprec::index_t;

enum class pooled_as { sum, mean_by_count, mean_by_weight, sqrtn, maximum };

constexpr pooled_as kind(deeprec::combiner::sum_t) { return pooled_as::sum; }
constexpr pooled_as kind(deeprec::combiner::mean_t<deeprec::combiner::by_count_t>) {
  return pooled_as::mean_by_count;
}
constexpr pooled_as kind(deeprec::combiner::mean_t<deeprec::combiner::by_weight_t>) {
  return pooled_as::mean_by_weight;
}
constexpr pooled_as kind(deeprec::combiner::sqrtn_t) { return pooled_as::sqrtn; }
constexpr pooled_as kind(deeprec::combiner::max_t) { return pooled_as::maximum; }

/// A pooled row, and the bound on its error in units of one rounding.
struct oracle_row {
  std::vector<double> value;
  std::vector<double> magnitude;  // sum of |w x| after the division
  int used = 0;                   // ids that were there
};

/// Row b of a lookup; ids outside the table, and `padding`, count as absent. `table` holds the rows' exact
/// values.
template <class Bags>
oracle_row pool_one(const std::vector<std::vector<double>>& table, const Bags& bags, index_t b, index_t width,
                    pooled_as how, long long padding = -1) {
  oracle_row row{std::vector<double>(static_cast<std::size_t>(width)),
                 std::vector<double>(static_cast<std::size_t>(width))};
  double weights = 0;
  double squares = 0;
  for (index_t k = bags.ranges().begin(b); k < bags.ranges().end(b); ++k) {
    const auto id = static_cast<long long>(bags.ids()[k]);
    if (id < 0 || id >= static_cast<long long>(table.size()) || id == padding) continue;
    const double w = bags.weights() == nullptr ? 1.0 : static_cast<double>(bags.weights()[k]);
    row.used += 1;
    weights += w;
    squares += w * w;
    for (std::size_t j = 0; j < row.value.size(); ++j) {
      const double x = table[static_cast<std::size_t>(id)][j];
      if (how == pooled_as::maximum) {
        row.value[j] = row.used == 1 ? x : std::fmax(row.value[j], x);
      } else {
        row.value[j] += w * x;
        row.magnitude[j] += std::fabs(w * x);
      }
    }
  }
  if (how == pooled_as::sum || how == pooled_as::maximum || row.used == 0) return row;
  const double by = how == pooled_as::mean_by_count    ? row.used
                    : how == pooled_as::mean_by_weight ? weights
                                                       : std::sqrt(squares);
  for (std::size_t j = 0; j < row.value.size(); ++j) {
    row.value[j] = by == 0 ? 0.0 : row.value[j] / by;
    row.magnitude[j] = by == 0 ? 0.0 : row.magnitude[j] / std::fabs(by);
  }
  return row;
}

}  // namespace deeprec_test
