// Gradients against central differences of an oracle in double.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include <deeprec/core/matrix_view.hpp>

namespace dense_test {

inline std::vector<double> doubles_of(const std::vector<float>& v) { return {v.begin(), v.end()}; }
inline std::vector<double> doubles_of(deeprec::matrix_view<const float> m) {
  std::vector<double> out;
  for (deeprec::index_t i = 0; i < m.extent(0); ++i) {
    for (deeprec::index_t j = 0; j < m.extent(1); ++j) out.push_back(static_cast<double>(m(i, j)));
  }
  return out;
}

/// The largest distance of a gradient from central differences of f with respect to x, relative to the
/// largest component.
inline double difference_error(const std::vector<double>& g, std::vector<double>& x,
                               const std::function<double()>& f) {
  REQUIRE(g.size() == x.size());
  double worst = 0, scale = 1e-3;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    constexpr double h = 1e-6;
    x[i] = kept + h;
    const double up = f();
    x[i] = kept - h;
    const double down = f();
    x[i] = kept;
    const double slope = (up - down) / (2 * h);
    scale = std::max(scale, std::abs(slope));
    worst = std::max(worst, std::abs(g[i] - slope));
  }
  return worst / scale;
}
inline double difference_error(deeprec::matrix_view<const float> gradient, std::vector<double>& x,
                               const std::function<double()>& f) {
  return difference_error(doubles_of(gradient), x, f);
}
inline constexpr double small_difference = 2e-5;

}  // namespace dense_test
