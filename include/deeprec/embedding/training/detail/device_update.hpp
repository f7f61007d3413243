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

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/kernels/device/device_runs.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

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

/// Writes the values of a row.
template <class Element, int Vec>
struct lane_writer {
  template <class Rounding>
  DEEPREC_HD DEEPREC_INLINE static void write(std::byte* row, row_parts, index_t column, const float* x,
                                              [[maybe_unused]] const Rounding& rounding,
                                              [[maybe_unused]] index_t number) {
    alignas(16) Element stored[Vec];
    for (int v = 0; v < Vec; ++v) {
      if constexpr (std::is_same_v<Rounding, rounding::stochastic> && !std::is_same_v<Element, float>) {
        stored[v] = detail::round_with<Element>(
            x[v], rounding.word(static_cast<std::uint64_t>(number), static_cast<std::uint64_t>(column + v)));
      } else {
        stored[v] = static_cast<Element>(x[v]);
      }
    }
    write_words<sizeof(stored)>(row + column * index_t{sizeof(Element)}, stored);
  }
};
template <int Vec>
struct lane_writer<split_float, Vec> {
  template <class Rounding>
  DEEPREC_HD DEEPREC_INLINE static void write(std::byte* row, row_parts parts, index_t column, const float* x,
                                              const Rounding&, index_t) {
    alignas(16) std::uint16_t high[Vec];
    alignas(16) std::uint16_t low[Vec];
    for (int v = 0; v < Vec; ++v) {
      const auto bits = bit_cast_to<std::uint32_t>(x[v]);
      high[v] = static_cast<std::uint16_t>(bits >> 16);
      low[v] = static_cast<std::uint16_t>(bits);
    }
    write_words<sizeof(high)>(row + parts.values + 2 * column, high);
    write_words<sizeof(low)>(row + parts.others + 2 * column, low);
  }
};

/// The gradient transforms of wrappers, outermost first.
struct no_transforms {
  DEEPREC_HD void operator()(float&, float&) const {}
};
template <class Before, class Transform>
struct transforms_of {
  Before before;
  Transform transform;
  DEEPREC_HD DEEPREC_INLINE void operator()(float& weight, float& gradient) const {
    before(weight, gradient);
    if constexpr (requires { scalar::take_transform(transform, weight, gradient); }) {
      scalar::take_transform(transform, weight, gradient);
    } else {
      transform(weight, gradient);
    }
  }
};

/// What one lane holds of a row that an optimizer steps: weights and element state of a panel, and the row
/// state. load() only moves bytes, so that several rows can be in flight.
template <class Element, int Vec, class Optimizer>
struct stepped_row {
  static constexpr int of_row = Optimizer::row_state;
  static constexpr int of_element = Optimizer::element_state;
  using lane = row_lane<Element, Vec, false>;

  DEEPREC_HD DEEPREC_INLINE void load(const std::byte* row, row_parts parts, const float* state,
                                      index_t column, index_t width) {
    if (column >= width) return;
    lane::load(row, parts, column, weights);
    for (int k = 0; k < of_element; ++k) {
      const float* const from = state + of_row + k * width + column;
      if constexpr (of_row % Vec == 0) {
        read_words<sizeof(elements[0]), false>(elements[k], from);
      } else {
        for (int v = 0; v < Vec; ++v) elements[k][v] = from[v];
      }
    }
  }
  DEEPREC_HD DEEPREC_INLINE void load_row_state(const float* state) {
    for (int i = 0; i < of_row; ++i) row_state[i] = state[i];
  }
  DEEPREC_HD DEEPREC_INLINE void put_elements(float* state, index_t column, index_t width) const {
    for (int k = 0; k < of_element; ++k) {
      float* const to = state + of_row + k * width + column;
      if constexpr (of_row % Vec == 0) {
        write_words<sizeof(elements[0])>(to, elements[k]);
      } else {
        for (int v = 0; v < Vec; ++v) to[v] = elements[k][v];
      }
    }
  }

  typename lane::raw weights;
  alignas(16) float elements[of_element > 0 ? of_element : 1][Vec];
  float row_state[of_row > 0 ? of_row : 1];
};

/// A row during its optimizer step: weights, element state and gradient of one panel at a time. A row of one
/// panel is read once.
template <class Element, int Vec, class Optimizer, class Team, class Gradient>
class row_in_step {
 public:
  using words = stepped_row<Element, Vec, Optimizer>;

  /// @param loaded  its panel 0 and its row state, in flight or there
  DEEPREC_HD DEEPREC_INLINE row_in_step(const Team& team, std::byte* row, float* state, row_parts parts,
                                        index_t width, words& loaded, const Gradient& sum)
      : team_(team), row_(row), state_(state), parts_(parts), width_(width), words_(loaded), gradient_(sum) {}

  DEEPREC_HD DEEPREC_INLINE int panels() const {
    const index_t each = index_t{team_.lanes()} * Vec;
    return static_cast<int>((width_ + each - 1) / each);
  }
  DEEPREC_HD DEEPREC_INLINE index_t column(int panel) const {
    return (index_t{panel} * team_.lanes() + team_.lane()) * Vec;
  }
  DEEPREC_HD const Team& team() const { return team_; }
  DEEPREC_HD index_t width() const { return width_; }
  DEEPREC_HD DEEPREC_INLINE float* row_state() const { return words_.row_state; }
  DEEPREC_HD float (&elements() const)[words::of_element > 0 ? words::of_element : 1][Vec] {
    return words_.elements;
  }
  /// One lane writes the row state, once all lanes have read it.
  DEEPREC_HD DEEPREC_INLINE void put_row_state() const {
    if constexpr (words::of_row > 0) {
      team_.meet();
      for (int i = 0; i < words::of_row; ++i) {
        if (team_.lane() == 0) state_[i] = words_.row_state[i];
      }
    }
  }

  /// Loads weights, element state and gradient of a panel; called by every lane.
  DEEPREC_HD DEEPREC_INLINE void fetch(int panel) {
    if (panel == held_) return;
    const index_t c = column(panel);
    if (panel != loaded_) words_.load(row_, parts_, state_, c, width_);
    held_ = loaded_ = panel;
    gradient_(c, gradient);  // the row is in flight meanwhile
    if (c < width_) words::lane::decode(words_.weights, parts_, weight);
    for (int v = 0; v < Vec; ++v) {
      if (c >= width_) gradient[v] = weight[v] = 0.0F;
      if (clipped_) gradient[v] = factor_ * ::fmaf(weight[v], along_, gradient[v]);
    }
  }
  /// Turns the gradient of x * min(1, cap / ||x||) into that of x.
  DEEPREC_HD DEEPREC_INLINE void unclip(float cap) {
    float squares = 0;
    float products = 0;
    DEEPREC_ROLLED
    for (int p = 0; p < panels(); ++p) {
      fetch(p);
      for (int v = 0; v < Vec; ++v) {
        squares = ::fmaf(weight[v], weight[v], squares);
        products = ::fmaf(weight[v], gradient[v], products);
      }
    }
    squares = sum_across(team_, squares);
    products = sum_across(team_, products);
    const float norm = ::sqrtf(squares);
    if (!(norm > cap)) return;
    factor_ = cap / norm;
    along_ = -products / squares;
    clipped_ = true;
    held_ = -1;
  }
  template <class Rounding>
  DEEPREC_HD DEEPREC_INLINE void put(int panel, const Rounding& rounding, index_t number) {
    if (column(panel) >= width_) return;
    lane_writer<Element, Vec>::write(row_, parts_, column(panel), weight, rounding, number);
    words_.put_elements(state_, column(panel), width_);
  }

  float weight[Vec];
  float gradient[Vec];

 private:
  const Team& team_;
  std::byte* row_;
  float* state_;
  row_parts parts_;
  index_t width_;
  words& words_;
  const Gradient& gradient_;
  int loaded_ = 0;
  int held_ = -1;
  bool clipped_ = false;
  float factor_ = 1;
  float along_ = 0;
};

/// The sum of the squared gradient after the transforms.
template <int Vec, class Transforms, class Row>
DEEPREC_HD DEEPREC_INLINE float squares_after(const Transforms& transforms, Row& row) {
  float squares = 0;
  DEEPREC_ROLLED
  for (int p = 0; p < row.panels(); ++p) {
    row.fetch(p);
    for (int v = 0; v < Vec; ++v) {
      float w = row.weight[v];
      float g = row.gradient[v];
      transforms(w, g);
      if (row.column(p) < row.width()) squares = ::fmaf(g, g, squares);
    }
  }
  return sum_across(row.team(), squares);
}

/// Collects the transforms of the wrappers down to the optimizer, then steps all columns.
template <class Optimizer, int Vec, class Rows, class Transforms, class Row, class Rounding>
DEEPREC_HD DEEPREC_INLINE void step_row_after(const Rows& rows, const Transforms& transforms, Row& row,
                                              const Rounding& rounding, index_t number) {
  if constexpr (GradientTransform<Rows>) {
    float squares = 0;
    if constexpr (Rows::needs_norm) squares = squares_after<Vec>(transforms, row);
    const auto transform = rows.begin_transform(squares);
    const transforms_of<Transforms, std::remove_const_t<decltype(transform)>> all{transforms, transform};
    step_row_after<Optimizer, Vec>(rows.optimizer, all, row, rounding, number);
  } else {
    constexpr int of_element = Optimizer::element_state;
    float mean_square = 0;
    if constexpr (Optimizer::needs_mean_square) {
      const auto count = static_cast<float>(row.width() > 0 ? row.width() : 1);
      mean_square = squares_after<Vec>(transforms, row) / count;
      if (!(mean_square <= 0x1.fffffep127F)) {  // the sum has left the range of float: in smaller units
        const transforms_of<Transforms, steps::scale_gradient> smaller{transforms, {0x1p-80F}};
        mean_square = squares_after<Vec>(smaller, row) / count * 0x1p80F * 0x1p80F;
      }
    }
    // Each lane begins the row on a copy of its state; the copies agree, and one lane writes them back.
    const auto step = rows.begin_row(row.row_state(), mean_square);
    row.put_row_state();
    auto& elements = row.elements();
    DEEPREC_ROLLED
    for (int p = 0; p < row.panels(); ++p) {
      row.fetch(p);
      if (row.column(p) >= row.width()) continue;
      for (int v = 0; v < Vec; ++v) {
        float w = row.weight[v];
        float g = row.gradient[v];
        transforms(w, g);
        if constexpr (of_element == 0) {
          w = step(w, g);
        } else if constexpr (of_element == 1) {
          w = step(w, g, elements[0][v]);
        } else {
          w = step(w, g, elements[0][v], elements[1][v]);
        }
        row.weight[v] = w;
      }
      row.put(p, rounding, number);
    }
  }
}

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
