// Bodies of the update kernels, as plain functions of a team of lanes.
//
//   bags ──expand──> (row, position) of each id ──radix sort──> runs of equal rows ──a team each──> a step
//
//   keys        3 3 3 7 9 9 - -     a team takes as many sorted indices as it has lanes, and updates the rows
//   positions   0 4 5 2 1 3 . .     of the runs that begin there, several at once; runs longer than
//                                   device_long_bag are summed in chunks first, like bags
//
// Absent ids have the largest key and come last. The sort compares only as many bits as row numbers have.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/kernels/device/device_runs.hpp>
#include <deeprec/embedding/training/detail/device_positions.hpp>
#include <deeprec/embedding/training/detail/device_row_step.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Arguments of the last kernel of an update. The format as plain numbers: some host compilers lay out empty
/// members differently from nvcc.
template <class Element, class Rows, class Rounding>
struct step_task {
  using element = Element;
  pool_task<std::uint32_t, detail::fixed_ranges, const float>
      gradient;               // its "table" is the gradient, its ids are bags
  const std::uint32_t* keys;  // sorted
  index_t entries;
  float max_norm;
  Rows rows;
  Rounding rounding;
  std::byte* table = nullptr;
  index_t stride = 0;
  row_parts parts{};
  index_t state = -1;  // its offset in a row; -1: there is none

  DEEPREC_HD DEEPREC_INLINE std::byte* row(std::uint32_t key) const { return table + index_t{key} * stride; }
  DEEPREC_HD DEEPREC_INLINE float* state_of(std::uint32_t key) const {
    return state < 0 ? nullptr : static_cast<float*>(static_cast<void*>(row(key) + state));
  }
};

/// Sets the rows that a task updates.
template <class Task, class Table>
void set_rows(Task& task, const Table& table) {
  task.table = table.data();
  task.stride = table.format().stride_bytes();
  task.parts = parts_of(table.format());
  task.state = -1;
  if (table.rows() > 0 && table.format().state_floats() > 0) {
    task.state =
        static_cast<std::byte*>(static_cast<void*>(table.format().state(table.data()))) - table.data();
  }
}

/// True when the element state of the rows can be read 16 bytes at a time, or is read float by float.
template <class Optimizer, class Task>
bool element_state_fits_lanes(const Task& task) noexcept {
  if constexpr (Optimizer::element_state == 0 || Optimizer::row_state % group_columns != 0) {
    return true;
  } else {
    return (reinterpret_cast<std::uintptr_t>(task.table) + static_cast<std::uintptr_t>(task.state)) % 16 ==
               0 &&
           task.stride % 16 == 0;
  }
}

using gradient_rules = fixed_rules<true, false, false, false, false>;

/// False where the run that holds a position has at most device_long_bag positions: a longer one reaches a
/// chunk to one side of it.
template <class Key>
DEEPREC_HD DEEPREC_INLINE bool may_be_long_run(const Key* keys, index_t n, index_t position) {
  const Key key = keys[position];
  const bool before = position >= device_chunk && keys[position - device_chunk] == key;
  const bool after = position + device_chunk < n && keys[position + device_chunk] == key;
  return key != absent_key && (before || after);
}

/// Computes a record of the chunks of long runs.
template <int Vec, class Team, class Task>
DEEPREC_HD void sum_run_chunk(const Team& team, const Task& task, index_t record, int panel) {
  const index_t sorted_index = position_of_record(record, task.entries);
  const bool searched = may_be_long_run(task.keys, task.entries, sorted_index);
  const index_t begin = searched ? begin_of_run(task.keys, sorted_index) : -1;
  const index_t end = searched ? end_of_run(task.keys, task.entries, begin) : -1;
  sum_chunk_of<float, Vec>(gradient_rules{}, team, task.gradient, record, panel, begin, begin, end);
}

/// Takes the step of a row whose panel 0 is loaded.
template <class Optimizer, int Vec, class Team, class Task, class Gradient>
DEEPREC_HD DEEPREC_INLINE void step_loaded(const Team& team, const Task& task, std::uint32_t key,
                                           stepped_row<typename Task::element, Vec, Optimizer>& loaded,
                                           const Gradient& sum) {
  row_in_step<typename Task::element, Vec, Optimizer, Team, Gradient> here(
      team, task.row(key), task.state_of(key), task.parts, task.gradient.width, loaded, sum);
  if (task.max_norm > 0) here.unclip(task.max_norm);
  step_row_after<Optimizer, Vec>(task.rows, no_transforms{}, here, task.rounding, index_t{key});
}

/// Takes the step of the row of one run, of any length and width.
template <class Optimizer, int Vec, class Team, class Task>
DEEPREC_HD void step_run(const Team& team, const Task& task, index_t begin, index_t end) {
  const std::uint32_t key = task.keys[begin];
  stepped_row<typename Task::element, Vec, Optimizer> loaded;
  loaded.load(task.row(key), task.parts, task.state_of(key), index_t{team.lane()} * Vec, task.gradient.width);
  loaded.load_row_state(task.state_of(key));
  const auto sum = [&](index_t column, float(&total)[Vec]) {
    const gradient_rules rules;
    start_fold<Vec>(rules, total);
    pool_counts counts;
    index_t stray = 0;
    index_t bad_position = -1;
    const bool in_chunks = task.gradient.chunks.sums != nullptr && end - begin > device_long_bag &&
                           add_chunks<Vec>(rules, team, task.gradient, begin, begin, end, column, total,
                                           counts, stray, bad_position);
    if (!in_chunks) {
      fold_positions<float, Vec>(rules, team, task.gradient, begin, end, column, total, counts, stray);
    }
  };
  step_loaded<Optimizer, Vec>(team, task, key, loaded, sum);
}

/// As many sorted indices as a team has lanes, and the runs that begin among them.
///
///   keys    3 | 3 7 7 9 4 4 4 | 4     heads at 7, 9 and 4; ends at 3, 7 and 9: the run of 4 goes on behind
struct run_window {
  index_t first;
  std::uint32_t key;  // of the lane; absent_key behind the last entry
  unsigned heads;     // bit i: a run begins at lane i
  unsigned ends;      // bit i: a run ends at lane i

  template <class Team, class Task>
  DEEPREC_HD DEEPREC_INLINE run_window(const Team& team, const Task& task, index_t from) : first(from) {
    const index_t at = first + team.lane();
    const bool here = at < task.entries;
    key = here ? task.keys[at] : absent_key;
    const std::uint32_t before = here && at > 0 ? task.keys[at - 1] : absent_key;
    const std::uint32_t after = at + 1 < task.entries ? task.keys[at + 1] : absent_key;
    heads = team.ballot(key != absent_key && key != before);
    ends = team.ballot(key != after);
  }
  DEEPREC_HD DEEPREC_INLINE bool crosses_end(int head) const { return ends >> head == 0; }
};

/// Steps the rows of runs that go on behind the window in which they begin, or of all runs.
template <class Optimizer, int Vec, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void step_crossing_runs(const Team& team, const Task& task, index_t first,
                                                  bool all) {
  const run_window window(team, task, first);
  DEEPREC_ROLLED
  for (unsigned heads = window.heads; heads != 0; heads &= heads - 1) {
    const int head = lowest_bit(heads);
    if (!all && !window.crosses_end(head)) continue;
    const index_t begin = first + head;
    step_run<Optimizer, Vec>(team, task, begin, end_of_run(task.keys, task.entries, begin));
  }
}

/// Steps the rows of the other runs, where a row is one panel.
template <class Optimizer, int Vec, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void step_inner_runs(const Team& team, const Task& task, index_t first) {
  using element = typename Task::element;
  const run_window window(team, task, first);
  const index_t at = first + team.lane();
  const std::uint32_t bag = at < task.entries ? task.gradient.ids[at] : 0;
  const bool weighted = task.gradient.weights != nullptr;
  const float factor = weighted && at < task.entries ? task.gradient.weights[at] : 1.0F;
  const index_t column = index_t{team.lane()} * Vec;
  const index_t width = task.gradient.width;
  // Where a row has state for each element, its own loads are enough in flight.
  constexpr int ahead = Optimizer::element_state == 0 ? 4 : 0;
  unsigned next = window.heads;
  const auto prefetch = [&] {
    const std::uint32_t key = team.from(window.key, lowest_bit(next));
    next &= next - 1;
    if (column < width) prefetch_line(task.row(key) + column * index_t{sizeof(element)});
  };
  DEEPREC_ROLLED
  for (int i = 0; i < ahead && next != 0; ++i) prefetch();
  DEEPREC_ROLLED
  for (unsigned heads = window.heads; heads != 0; heads &= heads - 1) {
    const int head = lowest_bit(heads);
    if (ahead > 0 && next != 0) prefetch();
    if (window.crosses_end(head)) break;  // it is the last one
    const std::uint32_t key = team.from(window.key, head);
    stepped_row<element, Vec, Optimizer> row;
    row.load(task.row(key), task.parts, task.state_of(key), column, width);
    row.load_row_state(task.state_of(key));
    const auto sum = [&](index_t, float(&total)[Vec]) {
      start_fold<Vec>(gradient_rules{}, total);
      const int last = head + lowest_bit(window.ends >> head);
      DEEPREC_ROLLED
      for (int k = head; k <= last; ++k) {
        const std::uint32_t theirs = team.from(bag, k);
        const float by = weighted ? team.from(factor, k) : 1.0F;
        if (column >= width) continue;
        float x[Vec];
        read_row<float, Vec>(task.gradient.row(theirs), row_parts{}, column, x);
        fold_row<Vec>(gradient_rules{}, total, x, by);
      }
    };
    step_loaded<Optimizer, Vec>(team, task, key, row, sum);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
