// The positions of a batch as (row, position) pairs for a sort, written by teams of lanes.
//
//   bags      | 3 3 | 7 - | |      keys       3 3 7 - 3     (-: an absent id; the last: an empty bag, row 3)
//                                  values     positions, or bags where no id has a factor of its own
//
// A bad bag is reported, and its ids count as absent. Not here: the sort, and steps (device_update.hpp).
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/kernels/device/device_runs.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Output of the expansion of a batch.
struct expanded_positions {
  std::uint32_t* keys;    // (N, plus B where empty bags become a row)
  std::uint32_t* values;  // positions; bags where no id has a factor of its own
  std::uint32_t* bag_of;  // of a position; null where values are bags
  float* bag_scale;  // (B): factor of its ids; -1 (no weights): empty, becomes the default row. Null: all 1
};

/// Writes the keys of a bag's positions, and its factor. A bad bag is reported, and counts as absent.
template <class Rules, class Team, class Task>
DEEPREC_HD void expand_bag(const Rules& rules, const Team& team, const Task& task, index_t bag,
                           const expanded_positions& to) {
  const index_t begin = task.ranges.begin(bag);
  const index_t end = task.ranges.end(bag);
  const bool fills = task.empty == when_empty::default_row;
  std::int64_t value = 0;
  const errc wrong = border_fault(begin, end, task.id_count, value);
  if (wrong != errc::ok) {
    if (team.lane() == 0) team.report(task.fault, wrong, task.number, bag, -1, value);
    return;
  }
  index_t bad_position = -1;
  index_t stray = 0;
  index_t used = 0;
  double sum = 0;
  double squares = 0;
  DEEPREC_ROLLED
  for (index_t first = begin; first < end && bad_position < 0; first += team.lanes()) {
    const index_t position = first + team.lane();
    const bool here = position < end;
    const auto id = task.ids[here ? position : begin];
    const float weight = here && task.weights != nullptr ? task.weights[position] : 1.0F;
    const bool is_stray = here && task.stray(rules, id);
    if (rules.checks()) {
      const unsigned any = team.ballot(here && task.bad(rules, id, weight));
      if (any != 0) bad_position = first + lowest_bit(any);
    }
    if (rules.filtered() && task.skipped != nullptr) stray += bits_in(team.ballot(is_stray));
    const bool present = here && !(rules.filtered() && task.absent(id, weight));
    used += bits_in(team.ballot(present));
    sum += present ? static_cast<double>(weight) : 0.0;
    squares += present ? static_cast<double>(weight) * static_cast<double>(weight) : 0.0;
  }
  if (team.lane() == 0) {
    if (bad_position >= 0) report_position(rules, team, task, bag, bad_position);
    if (stray > 0) team.count(task.skipped, stray);
  }
  if (bad_position >= 0) return;
  if (to.bag_scale != nullptr) {
    for (int step = team.lanes() / 2; step > 0; step /= 2) {
      sum += team.across(sum, step);
      squares += team.across(squares, step);
    }
    const pool_counts counts{used, sum, squares};
    const double divisor = counts.divisor(task.divide);
    float scale = divisor == 0.0 ? 0.0F : static_cast<float>(1.0 / divisor);
    if (fills && used == 0) scale = -1.0F;
    if (team.lane() == 0) to.bag_scale[bag] = scale;
  }
  DEEPREC_ROLLED
  for (index_t position = begin + team.lane(); position < end; position += team.lanes()) {
    const auto id = task.ids[position];
    const float weight = task.weights == nullptr ? 1.0F : task.weights[position];
    const bool absent = rules.filtered() && task.absent(id, weight);
    to.keys[position] = absent ? absent_key : static_cast<std::uint32_t>(id);
    to.values[position] = static_cast<std::uint32_t>(to.bag_of == nullptr ? bag : position);
    if (to.bag_of != nullptr) to.bag_of[position] = static_cast<std::uint32_t>(bag);
  }
  if (fills && used == 0 && team.lane() == 0) {
    const index_t entry = task.id_count + bag;
    to.keys[entry] = static_cast<std::uint32_t>(task.default_row);
    to.values[entry] = static_cast<std::uint32_t>(to.bag_of == nullptr ? bag : entry);
  }
}

/// The bag and the factor of an entry, by its value after the sort.
DEEPREC_HD inline float factor_of_position(const expanded_positions& of, const float* weights,
                                           index_t positions, std::uint32_t value, std::uint32_t& bag) {
  if (of.bag_of == nullptr) {
    bag = value;
  } else if (value >= positions) {
    bag = static_cast<std::uint32_t>(value - positions);
    return 1.0F;
  } else {
    bag = of.bag_of[value];
  }
  const float scale = of.bag_scale == nullptr ? 1.0F : of.bag_scale[bag];
  if (of.bag_of == nullptr && scale < 0) return 1.0F;  // with weights a scale may be negative
  return of.bag_of == nullptr || weights == nullptr ? scale : weights[value] * scale;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
