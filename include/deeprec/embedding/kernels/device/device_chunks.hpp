// The sums of the chunks of long bags, which a kernel makes before that of the lookup.
//
//   chunk      |   0   |   1   |   2   |      at multiples of device_chunk from position 0 of the batch
//   bags       | a |   b ...        | c       a chunk has two records: of the bag that it begins in, and of a
//                                             bag that begins in it and goes on behind it
//
// The set of sums depends on the batch only, and no list of them is made.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/device/device_fold.hpp>
#include <deeprec/embedding/kernels/device/device_rows.hpp>
#include <deeprec/embedding/kernels/device/device_task.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The bag that holds a position: the last one that begins at or before it.
///
/// @tparam Probes  bags looked at at once; more of them are fewer waits for memory
template <int Probes = 1, class Borders>
DEEPREC_HD index_t bag_that_holds(const Borders& ranges, index_t bags, index_t position) {
  index_t low = 0;
  DEEPREC_ROLLED
  for (index_t high = bags; high - low > 1;) {
    const index_t step = (high - low + Probes) / (Probes + 1);
    int begun = 0;
    DEEPREC_UNROLLED
    for (int i = 1; i <= Probes; ++i) {
      begun += low + i * step < high && ranges.begin(low + i * step) <= position ? 1 : 0;
    }
    low += begun * step;
    if (low + step < high) high = low + step;
  }
  return low;
}

/// Writes a record of chunk_sums: the sum over the bag's part of the chunk, if the bag [begin, end) is long.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD void sum_chunk_of(const Rules& rules, const Team& team, const Task& task, index_t record,
                             int panel, index_t bag, index_t begin, index_t end) {
  const index_t from = record / 2 * device_chunk;
  const index_t to = from + device_chunk < task.id_count ? from + device_chunk : task.id_count;
  const bool whole = 0 <= begin && begin < to && from < end && end <= task.id_count;
  const bool mine =
      whole && (record % 2 == 1 ? begin > from : begin <= from) && end - begin > device_long_bag;
  chunk_count count{mine ? bag : -1, -1, 0, 0, 0, 0};
  if (mine) {
    const index_t column = (index_t{panel} * team.lanes() + team.lane()) * Vec;
    float total[Vec];
    start_fold<Vec>(rules, total);
    pool_counts counts;
    count.bad_position =
        fold_positions<Element, Vec>(rules, team, task, begin > from ? begin : from, end < to ? end : to,
                                     column, total, counts, count.stray);
    count.used = counts.used;
    count.weight_sum = counts.weight_sum;
    count.weight_squares = counts.weight_squares;
    if (column < task.width) {
      for (int v = 0; v < Vec; ++v) task.chunks.sums[record * task.width + column + v] = total[v];
    }
  }
  if (panel == 0 && team.lane() == 0) task.chunks.counts[record] = count;
}

/// The position that identifies a record's bag: the first of the chunk, or the last for an odd record.
DEEPREC_HD DEEPREC_INLINE index_t position_of_record(index_t record, index_t positions) {
  const index_t from = record / 2 * device_chunk;
  const index_t to = from + device_chunk < positions ? from + device_chunk : positions;
  return record % 2 == 1 ? to - 1 : from;
}

/// Computes the records [first, first + each), at most one for each lane: a lane looks for the bag of its
/// record, and the team sums the records of long bags.
template <class Element, int Vec, class Rules, class Team, class Task>
DEEPREC_HD void sum_chunks_of(const Rules& rules, const Team& team, const Task& task, index_t first, int each,
                              int panel) {
  const index_t record = first + team.lane();
  const bool here = team.lane() < each && record < chunk_sums::records(task.id_count);
  const index_t bag =
      here ? bag_that_holds<8>(task.ranges, task.bags, position_of_record(record, task.id_count)) : 0;
  const index_t begin = here ? task.ranges.begin(bag) : 0;
  const index_t end = here ? task.ranges.end(bag) : 0;
  const bool is_long = here && end - begin > device_long_bag;
  if (here && !is_long && panel == 0) task.chunks.counts[record] = {-1, -1, 0, 0, 0, 0};
  DEEPREC_ROLLED
  for (unsigned left = team.ballot(is_long); left != 0; left &= left - 1) {
    const int lane = lowest_bit(left);
    sum_chunk_of<Element, Vec>(rules, team, task, first + lane, panel, team.from(bag, lane),
                               team.from(begin, lane), team.from(end, lane));
  }
}

/// Adds the records of a long bag, in order. False when one of them is of another bag: then offsets are not
/// in order, and the bag is summed id by id.
template <int Vec, class Rules, class Team, class Task>
DEEPREC_HD bool add_chunks(const Rules& rules, const Team& team, const Task& task, index_t bag, index_t begin,
                           index_t end, index_t column, float (&total)[Vec], pool_counts& counts,
                           index_t& stray, index_t& bad_position) {
  const index_t last = (end - 1) / device_chunk;
  team.wait_for_earlier_kernels();  // of the one that computes the records
  DEEPREC_ROLLED
  for (index_t chunk = begin / device_chunk; chunk <= last; ++chunk) {
    if (task.chunks.counts[chunk_sums::record(chunk, begin)].bag != bag) return false;
  }
  DEEPREC_ROLLED
  for (index_t chunk = begin / device_chunk; chunk <= last && bad_position < 0; ++chunk) {
    const index_t record = chunk_sums::record(chunk, begin);
    const chunk_count& count = task.chunks.counts[record];
    bad_position = count.bad_position;
    counts.used += count.used;
    counts.weight_sum += count.weight_sum;
    counts.weight_squares += count.weight_squares;
    stray += count.stray;
    if (column >= task.width || count.used == 0) continue;
    const float* const x = task.chunks.sums + record * task.width + column;
    for (int v = 0; v < Vec; ++v) {
      if (rules.adding()) {
        total[v] += x[v];
      } else {
        total[v] = is_nan(total[v]) || total[v] > x[v] ? total[v] : x[v];
      }
    }
  }
  return true;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
