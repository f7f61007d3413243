// The scores of one model with several seeds: their mean and their standard deviation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "evaluation.hpp"

namespace ctr {

/// Of the values that are defined; NaN: of none, and the deviation of less than two.
struct mean_and_deviation {
  double mean = undefined, deviation = undefined;
};

inline mean_and_deviation mean_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  mean_and_deviation of;
  if (values.empty()) return of;
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  of.mean = sum / count;
  for (const double value : values) squares += (value - of.mean) * (value - of.mean);
  if (values.size() > 1) of.deviation = std::sqrt(squares / (count - 1));
  return of;
}

struct spread {
  std::string name;
  std::size_t seeds = 0;
  mean_and_deviation auc, log_loss, calibration, group_auc;
};

/// For each name, in the order of their first score. Where the run was interrupted, without the last seed.
template <class Score>
std::vector<spread> spreads_of(std::vector<Score> scores, bool interrupted) {
  std::vector<spread> all;
  if (interrupted && !scores.empty()) {
    std::erase_if(scores, [last = scores.back().seed](const Score& of) { return of.seed == last; });
  }
  for (const Score& first : scores) {
    if (std::any_of(all.begin(), all.end(), [&](const spread& of) { return of.name == first.name; }))
      continue;
    std::vector<double> areas, losses, ratios, by_group;
    for (const Score& of : scores) {
      if (of.name != first.name) continue;
      areas.push_back(of.auc);
      losses.push_back(of.log_loss);
      ratios.push_back(of.calibration);
      by_group.push_back(of.group_auc);
    }
    all.push_back(
        {first.name, areas.size(), mean_of(areas), mean_of(losses), mean_of(ratios), mean_of(by_group)});
  }
  return all;
}

}  // namespace ctr
