// An optimizer's step on one row by a team of lanes, a panel of its columns at a time.
//
//   stepped_row      the weights and state that a lane has loaded: several rows are in flight
//   row_in_step      with the gradient; a row of one panel is read once
//   step_row_after   the wrappers' transforms, outermost first, then the optimizer on every column
//
// Not here: which rows a team steps, and their gradients (device_update.hpp).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/embedding/kernels/device/device_fold.hpp>
#include <deeprec/embedding/kernels/device/device_rows.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

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

}}}  // namespace deeprec::DEEPREC_ABI::detail
