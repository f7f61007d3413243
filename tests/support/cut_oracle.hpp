// Cuts by brute force, for tests and benchmarks of smart_stage.
#pragma once

#include <deeprec/graph/passes/detail/cut_problem.hpp>
#include <deeprec/graph/passes/detail/stage_region.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace deeprec_test {

/// Calls f(set, figures) for every closed set. Ops are in topological order in a cut_problem.
template <class F>
void for_each_closed_set(const deeprec::detail::cut_problem& p, F f) {
  deeprec::detail::op_set in(p.size(), 0);
  const auto go = [&](const auto& self, std::size_t v) -> void {
    if (v == p.size()) {
      f(in, p.figures(in));
      return;
    }
    self(self, v + 1);
    bool may = true;
    for (const std::int32_t u : p.before[v]) may = may && in[static_cast<std::size_t>(u)] != 0;
    if (!may) return;
    in[v] = 1;
    self(self, v + 1);
    in[v] = 0;
  };
  go(go, 0);
}

/// The least price of all closed sets.
inline double least_price(const deeprec::detail::cut_problem& p, const deeprec::detail::cut_price& price) {
  double least = std::numeric_limits<double>::infinity();
  for_each_closed_set(
      p, [&](const auto&, const deeprec::detail::cut_figures& f) { least = std::min(least, price(f)); });
  return least;
}

}  // namespace deeprec_test
