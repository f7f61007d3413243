// Bodies of the lookup kernels: pooling of one bag by a team of lanes (device_fold.hpp).
//
// A bag of more than device_long_bag positions is summed in chunks first (device_chunks.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/device/device_chunks.hpp>
#include <deeprec/embedding/kernels/device/device_fold.hpp>
#include <deeprec/embedding/kernels/device/device_rows.hpp>
#include <deeprec/embedding/kernels/device/device_task.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Writes a lane's columns to out.
template <int Vec, class Task>
DEEPREC_HD DEEPREC_INLINE void put_columns(const Task& task, index_t row, index_t column,
                                           const float (&total)[Vec]) {
  using out_type = std::remove_pointer_t<decltype(task.out)>;
  out_type* const out = task.out + row * task.out_stride + column;
  alignas(16) out_type stored[Vec];
  if (task.stored == when_stored::accumulate) {
    read_words<sizeof(stored), false>(stored, out);
    for (int v = 0; v < Vec; ++v) stored[v] = static_cast<out_type>(static_cast<float>(stored[v]) + total[v]);
  } else {
    for (int v = 0; v < Vec; ++v) stored[v] = static_cast<out_type>(total[v]);
  }
  write_words<sizeof(stored)>(out, stored);
}

/// The fault in a bag's offsets, with its value; ok when there is none.
DEEPREC_HD DEEPREC_INLINE errc border_fault(index_t begin, index_t end, index_t id_count,
                                            std::int64_t& value) {
  if (begin < 0) {
    value = begin;
    return errc::offsets_negative;
  }
  if (end < begin) {
    value = end;
    return errc::offsets_decreasing;
  }
  value = end;
  return end > id_count ? errc::offsets_beyond_ids : errc::ok;
}

/// Reports the id or weight at a bad position; the bag becomes zeros.
template <class Rules, class Team, class Task>
DEEPREC_HD void report_position(const Rules& rules, const Team& team, const Task& task, index_t bag,
                                index_t position) {
  const auto id = task.ids[position];
  team.report(task.fault, task.stray(rules, id) ? errc::id_out_of_range : errc::weight_is_nan, task.number,
              bag, position, static_cast<std::int64_t>(id));
}

/// Folds the default row, the result of an empty bag, into `total`.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD void take_default(const Rules& rules, const Team& team, const Task& task, index_t column,
                             float (&total)[Vec]) {
  const std::byte* const row = task.row(task.default_row);
  const float factor = rules.clips() ? clip_of<Element, Vec>(team, task, row) : 1.0F;
  if (column >= task.width) return;
  float x[Vec];
  read_row<Element, Vec>(row, task.parts, column, x);
  fold_row<Vec>(rules, total, x, factor);
}

/// Divides a sum by what the combiner divides by.
template <int Vec, class Task>
DEEPREC_HD DEEPREC_INLINE void divide_columns(const Task& task, pool_counts& counts, float (&total)[Vec]) {
  if (task.divide == divide_by::one) return;
  if (task.weights == nullptr) counts.weight_sum = counts.weight_squares = static_cast<double>(counts.used);
  const double divisor = counts.divisor(task.divide);
  for (int v = 0; v < Vec; ++v) {
    total[v] = divisor == 0.0 ? 0.0F : total[v] / static_cast<float>(divisor);
  }
}

/// One panel of one bag: the body of the lookup kernel.
///
/// @tparam AtOnce  0: by fold_positions. Else by each_position, for rules that use each id, no weights, and a
///                 task that fits_32_bits()
template <class Element, int Vec, int AtOnce = 0, class Rules, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void pool_bag(const Rules& rules, const Team& team, const Task& task, index_t bag,
                                        int panel) {
  const index_t column = (index_t{panel} * team.lanes() + team.lane()) * Vec;
  const index_t begin = task.ranges.begin(bag);
  const index_t end = task.ranges.end(bag);
  const bool speaks = panel == 0 && team.lane() == 0;
  float total[Vec];
  start_fold<Vec>(rules, total);
  pool_counts counts;
  index_t stray = 0;
  std::int64_t value = 0;
  const errc wrong = border_fault(begin, end, task.id_count, value);
  bool bad = wrong != errc::ok;
  if (bad) {
    if (speaks) team.report(task.fault, wrong, task.number, bag, -1, value);
  } else {
    index_t bad_position = -1;
    const bool in_chunks =
        task.chunks.sums != nullptr && end - begin > device_long_bag &&
        add_chunks<Vec>(rules, team, task, bag, begin, end, column, total, counts, stray, bad_position);
    if (!in_chunks) {
      if constexpr (AtOnce == 0) {
        bad_position =
            fold_positions<Element, Vec>(rules, team, task, begin, end, column, total, counts, stray);
      } else {
        each_position<Element, Vec, AtOnce, Rules, Task> rows(task, begin, end, column);
        bad_position = rows.fold(rules, total) ? -1 : rows.first_bad(begin);
        counts.used = end - begin;
      }
    }
    bad = bad_position >= 0;
    if (bad && speaks) report_position(rules, team, task, bag, bad_position);
  }
  if (speaks && stray > 0) team.count(task.skipped, stray);
  if (bad) {
    for (int v = 0; v < Vec; ++v) total[v] = 0.0F;
  } else if (counts.used == 0) {
    if (task.empty == when_empty::keep) return;
    if (task.empty == when_empty::default_row) {
      take_default<Element, Vec>(rules, team, task, column, total);
    } else {
      for (int v = 0; v < Vec; ++v) total[v] = 0.0F;
    }
  } else {
    divide_columns<Vec>(task, counts, total);
  }
  if (column < task.width) put_columns<Vec>(task, bag, column, total);
}

/// pool_bag of bags [first, first + short_bags_at_once), by each_position: where they have one id each, their
/// rows are in flight together.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void pool_short_bags(const Rules& rules, const Team& team, const Task& task,
                                               index_t first, int panel) {
  using id_type = std::remove_cv_t<std::remove_pointer_t<decltype(task.ids)>>;
  constexpr int at_once = short_bags_at_once;
  const index_t column = (index_t{panel} * team.lanes() + team.lane()) * Vec;
  const index_t from = column < task.width ? column : 0;
  bool single = first + at_once <= task.bags;  // all of them
  id_type ids[at_once];
  typename row_lane<Element, Vec>::raw rows[at_once];
  if (single) {
    index_t begins[at_once];
    DEEPREC_UNROLLED
    for (int i = 0; i < at_once; ++i) {
      begins[i] = task.ranges.begin(first + i);
      const index_t end = task.ranges.end(first + i);
      single = single & (begins[i] >= 0) & (end == begins[i] + 1) & (end <= task.id_count);
    }
    if (single) {
      DEEPREC_UNROLLED
      for (int i = 0; i < at_once; ++i) ids[i] = task.ids[begins[i]];
      DEEPREC_UNROLLED
      for (int i = 0; i < at_once; ++i)  // NOLINT(modernize-loop-convert): unrolled, as the loop above
        single = single & !task.is_bad_row(ids[i]);
    }
  }
  if (!single) {
    DEEPREC_ROLLED
    for (index_t bag = first; bag < task.bags && bag < first + at_once; ++bag) {
      pool_bag<Element, Vec, 4>(rules, team, task, bag, panel);
    }
    return;
  }
  DEEPREC_UNROLLED
  for (int i = 0; i < at_once; ++i) {
    row_lane<Element, Vec>::load(task.row_by_32_bits(ids[i]), task.parts, from, rows[i]);
  }
  if (column >= task.width) return;
  DEEPREC_UNROLLED
  for (int i = 0; i < at_once; ++i) {
    float x[Vec], total[Vec];
    row_lane<Element, Vec>::decode(rows[i], task.parts, x);
    start_fold<Vec>(rules, total);
    fold_row<Vec>(rules, total, x, 1.0F);  // a divisor would be 1
    put_columns<Vec>(task, first + i, column, total);
  }
}

/// One panel of one row, for concat: row k of out is the row of the k-th id of the batch. It is added to -0,
/// which keeps -0.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void copy_position(const Rules& rules, const Team& team, const Task& task,
                                             index_t k, int panel) {
  const index_t first = task.bags == 0 ? 0 : task.ranges.begin(0);
  const index_t end = task.bags == 0 ? 0 : task.ranges.end(task.bags - 1);
  const index_t position = first + k;
  const index_t column = (index_t{panel} * team.lanes() + team.lane()) * Vec;
  const bool speaks = panel == 0 && team.lane() == 0;
  const bool inside = column < task.width;
  float total[Vec] = {};
  if (first < 0 || end > task.id_count || end < first) {
    if (speaks && k == 0) {
      std::int64_t value = 0;
      team.report(task.fault, border_fault(first, end, task.id_count, value), task.number, 0, -1,
                  first < 0 ? first : end);
    }
  } else if (position < end) {
    const auto id = task.ids[position];
    const float weight = task.weights == nullptr ? 1.0F : task.weights[position];
    const bool stray = task.stray(rules, id);
    if (rules.checks() && task.bad(rules, id, weight)) {
      if (speaks)
        report_position(rules, team, task, bag_that_holds(task.ranges, task.bags, position), position);
    } else if (rules.filtered() && task.absent(id, weight)) {
      if (speaks && stray && task.skipped != nullptr) team.count(task.skipped, 1);
      if (task.empty == when_empty::keep) return;
      if (task.empty == when_empty::default_row) {
        for (int v = 0; v < Vec; ++v) total[v] = -0.0F;
        take_default<Element, Vec>(rules, team, task, column, total);
      }
    } else {
      const std::byte* const row = task.row(static_cast<std::int64_t>(id));
      const float factor = rules.clips() ? clip_of<Element, Vec>(team, task, row) * weight : weight;
      if (inside) {
        float x[Vec];
        read_row<Element, Vec>(row, task.parts, column, x);
        for (int v = 0; v < Vec; ++v) total[v] = ::fmaf(x[v], factor, -0.0F);
      }
    }
  }
  if (inside) put_columns<Vec>(task, k, column, total);
}

/// The gradients of the weights of one bag: out[k] for its ids. task.out is the gradient of lookup's
/// output.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD void dot_positions(const Rules& rules, const Team& team, const Task& task, index_t bag,
                              float* out) {
  const index_t begin = task.ranges.begin(bag);
  const index_t end = task.ranges.end(bag);
  const index_t first = task.ranges.begin(0);
  std::int64_t value = 0;
  const errc wrong = border_fault(begin, end, task.id_count, value);
  if (wrong != errc::ok) {
    if (team.lane() == 0) team.report(task.fault, wrong, task.number, bag, -1, value);
    return;
  }
  if (first < 0 || begin < first) return;  // reported for an earlier bag
  out -= first;
  const float* const gradient = task.out + bag * task.out_stride;
  pool_counts counts;
  double weighted = 0;
  index_t bad_position = -1;
  DEEPREC_ROLLED
  for (index_t position = begin; position < end; ++position) {
    const auto id = task.ids[position];
    const float weight = task.weights == nullptr ? 1.0F : task.weights[position];
    if (rules.checks() && bad_position < 0 && task.bad(rules, id, weight)) bad_position = position;
    float dot = 0;
    if (bad_position < 0 && !(rules.filtered() && task.absent(id, weight))) {
      const std::byte* const row = task.row(static_cast<std::int64_t>(id));
      DEEPREC_ROLLED
      for (index_t c = index_t{team.lane()} * Vec; c < task.width; c += index_t{team.lanes()} * Vec) {
        float x[Vec], g[Vec];
        read_row<Element, Vec>(row, task.parts, c, x);
        read_row<float, Vec>(static_cast<const std::byte*>(static_cast<const void*>(gradient)), row_parts{},
                             c, g);
        for (int v = 0; v < Vec; ++v) dot = ::fmaf(x[v], g[v], dot);
      }
      dot = sum_across(team, dot);
      if (rules.clips()) dot *= clip_of<Element, Vec>(team, task, row);
      counts.add(static_cast<double>(weight));
      weighted += static_cast<double>(weight) * static_cast<double>(dot);
    }
    if (team.lane() == 0) out[position] = dot;
  }
  if (team.lane() != 0) return;
  if (bad_position >= 0) report_position(rules, team, task, bag, bad_position);
  const double by = counts.divisor(task.divide);
  if (task.divide == divide_by::one && bad_position < 0) return;
  DEEPREC_ROLLED
  for (index_t position = begin; position < end; ++position) {
    const auto id = task.ids[position];
    const float weight = task.weights == nullptr ? 1.0F : task.weights[position];
    if (bad_position >= 0 || by == 0.0 || (rules.filtered() && task.absent(id, weight))) {
      out[position] = 0.0F;
      continue;
    }
    const double through = task.divide == divide_by::weight ? weighted / (by * by)
                           : task.divide == divide_by::root
                               ? weighted * static_cast<double>(weight) / (by * by * by)
                               : 0.0;
    out[position] = static_cast<float>(static_cast<double>(out[position]) / by - through);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
