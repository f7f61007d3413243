// Bodies of the update kernels, as plain functions of a team of lanes.
//
//   bags ──expand──> (row, position) of each id ──radix sort──> runs of equal rows ──a team each──> a step
//
//   keys        3 3 3 7 9 9 - -     one team per sorted index; the team at the start of a run updates the row
//   positions   0 4 5 2 1 3 . .     runs longer than device_long_bag are summed in chunks first, like bags
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
#include <deeprec/embedding/kernels/device_pool.hpp>
#include <deeprec/embedding/kernels/device_runs.hpp>
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

/// A row during its optimizer step: weights and gradient of one panel at a time. A row of one panel is read
/// once.
template <class Element, int Vec, class Team, class Gradient>
class row_in_step {
 public:
  DEEPREC_HD row_in_step(const Team& team, std::byte* row, row_parts parts, index_t width,
                         const Gradient& sum)
      : team_(team), row_(row), parts_(parts), width_(width), gradient_(sum) {}

  DEEPREC_HD int panels() const {
    const index_t each = index_t{team_.lanes()} * Vec;
    return static_cast<int>((width_ + each - 1) / each);
  }
  DEEPREC_HD index_t column(int panel) const { return (index_t{panel} * team_.lanes() + team_.lane()) * Vec; }
  DEEPREC_HD const Team& team() const { return team_; }
  DEEPREC_HD index_t width() const { return width_; }

  /// Loads weights and gradient of a panel; called by every lane.
  DEEPREC_HD void fetch(int panel) {
    if (panel == held_) return;
    held_ = panel;
    const index_t c = column(panel);
    if (c < width_) {  // in flight while the gradient is summed
      typename row_lane<Element, Vec, false>::raw r;
      row_lane<Element, Vec, false>::load(row_, parts_, c, r);
      row_lane<Element, Vec, false>::decode(r, parts_, weight);
    }
    gradient_(c, gradient);
    for (int v = 0; v < Vec; ++v) {
      if (c >= width_) gradient[v] = weight[v] = 0.0F;
      if (clipped_) gradient[v] = factor_ * ::fmaf(weight[v], along_, gradient[v]);
    }
  }
  /// Turns the gradient of x * min(1, cap / ||x||) into that of x.
  DEEPREC_HD void unclip(float cap) {
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
  DEEPREC_HD void put(int panel, const Rounding& rounding, index_t number) {
    if (column(panel) < width_)
      lane_writer<Element, Vec>::write(row_, parts_, column(panel), weight, rounding, number);
  }

  float weight[Vec];
  float gradient[Vec];

 private:
  const Team& team_;
  std::byte* row_;
  row_parts parts_;
  index_t width_;
  const Gradient& gradient_;
  int held_ = -1;
  bool clipped_ = false;
  float factor_ = 1;
  float along_ = 0;
};

/// The sum of the squared gradient after the transforms.
template <int Vec, class Transforms, class Row>
DEEPREC_HD float squares_behind(const Transforms& transforms, Row& row) {
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
DEEPREC_HD void step_row_behind(const Rows& rows, const Transforms& transforms, Row& row, float* state,
                                const Rounding& rounding, index_t number) {
  if constexpr (GradientTransform<Rows>) {
    float squares = 0;
    if constexpr (Rows::needs_norm) squares = squares_behind<Vec>(transforms, row);
    const auto transform = rows.begin_transform(squares);
    const transforms_of<Transforms, std::remove_const_t<decltype(transform)>> all{transforms, transform};
    step_row_behind<Optimizer, Vec>(rows.optimizer, all, row, state, rounding, number);
  } else {
    constexpr int of_row = Optimizer::row_state;
    constexpr int of_element = Optimizer::element_state;
    float mean_square = 0;
    if constexpr (Optimizer::needs_mean_square) {
      const auto count = static_cast<float>(row.width() > 0 ? row.width() : 1);
      mean_square = squares_behind<Vec>(transforms, row) / count;
      if (!(mean_square <= 0x1.fffffep127F)) {  // the sum has left the range of float: in smaller units
        const transforms_of<Transforms, steps::scale_gradient> smaller{transforms, {0x1p-80F}};
        mean_square = squares_behind<Vec>(smaller, row) / count * 0x1p80F * 0x1p80F;
      }
    }
    // Each lane begins the row on a copy of its state; the copies agree, and one lane writes them back.
    float mine[of_row > 0 ? of_row : 1] = {};
    for (int i = 0; i < of_row; ++i) mine[i] = state[i];
    const auto step = rows.begin_row(mine, mean_square);
    row.team().meet();  // all lanes have read
    for (int i = 0; i < of_row; ++i) {
      if (row.team().lane() == 0) state[i] = mine[i];
    }
    float* const elements = of_element == 0 ? nullptr : state + of_row;
    const index_t width = row.width();
    DEEPREC_ROLLED
    for (int p = 0; p < row.panels(); ++p) {
      row.fetch(p);
      const index_t c = row.column(p);
      if (c >= width) continue;
      for (int v = 0; v < Vec; ++v) {
        float w = row.weight[v];
        float g = row.gradient[v];
        transforms(w, g);
        if constexpr (of_element == 0) {
          w = step(w, g);
        } else if constexpr (of_element == 1) {
          w = step(w, g, elements[c + v]);
        } else {
          w = step(w, g, elements[c + v], elements[width + c + v]);
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

using gradient_rules = fixed_rules<true, false, false, false, false>;

/// Computes a record of the chunks of long runs.
template <int Vec, class Team, class Task>
DEEPREC_HD void sum_run_chunk(const Team& team, const Task& task, index_t record, int panel) {
  const index_t sorted_index = position_of_record(record, task.entries);
  const bool present = task.keys[sorted_index] != absent_key;
  const index_t begin = present ? begin_of_run(task.keys, sorted_index) : -1;
  const index_t end = present ? end_of_run(task.keys, task.entries, begin) : -1;
  sum_chunk_of<float, Vec>(gradient_rules{}, team, task.gradient, record, panel, begin, begin, end);
}

/// The team at a sorted index: where a run begins, takes the step of its row.
template <class Optimizer, int Vec, class Team, class Task>
DEEPREC_HD DEEPREC_INLINE void step_run(const Team& team, const Task& task, index_t sorted_index) {
  const std::uint32_t key = task.keys[sorted_index];
  if (key == absent_key || (sorted_index > 0 && task.keys[sorted_index - 1] == key)) return;
  const index_t end = end_of_run(task.keys, task.entries, sorted_index);
  const auto sum = [&](index_t column, float(&total)[Vec]) {
    const gradient_rules rules;
    start_fold<Vec>(rules, total);
    pool_counts counts;
    index_t stray = 0;
    index_t bad_position = -1;
    const bool in_chunks = task.gradient.chunks.sums != nullptr && end - sorted_index > device_long_bag &&
                           add_chunks<Vec>(rules, task.gradient, sorted_index, sorted_index, end, column,
                                           total, counts, stray, bad_position);
    if (!in_chunks) {
      fold_positions<float, Vec>(rules, team, task.gradient, sorted_index, end, column, total, counts, stray);
    }
  };
  std::byte* const row = task.table + index_t{key} * task.stride;
  float* const state = task.state < 0 ? nullptr : static_cast<float*>(static_cast<void*>(row + task.state));
  row_in_step<typename Task::element, Vec, Team, decltype(sum)> here(team, row, task.parts,
                                                                     task.gradient.width, sum);
  if (task.max_norm > 0) here.unclip(task.max_norm);
  step_row_behind<Optimizer, Vec>(task.rows, no_transforms{}, here, state, task.rounding, index_t{key});
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
