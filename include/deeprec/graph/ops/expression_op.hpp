// Several functions of elements as one op: what element_fusions() puts in the place of a chain or a tree of
// element-wise ops.
//
//   steps    0 add x0 x1     1 sigmoid 0     2 multiply_row 1 r0          x0, x1: matrices; r0: a row
//   tile     |x0 x1 ─> 0 ─> 1 ─> out|        1024 elements at a time, in the cache: memory is read and
//            |x0 x1 ─> ...                   written once, whatever the number of steps
//
// The bits are those of the ops one by one. Not here: reductions, matrices of different shapes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ops/detail/element_blocks_args.hpp>
#include <deeprec/graph/ops/element_function.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/op_attribute.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/ops/expression.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/graph/ops/detail/element_blocks.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What a step of an expression takes: a matrix, a row, or what an earlier step made.
struct element_operand {
  enum class from : std::uint8_t { matrix, row, step };
  from of = from::matrix;
  index_t at = 0;  ///< its number among them
};
/// A function and its operands; `a` is no row, `b` is of binary functions, `by` of those with a number.
struct element_step {
  element_function function = element_function::copy;
  element_operand a{};
  element_operand b{};
  float by = 0;
};

/// "0 add x0 x1, 1 sigmoid 0, 2 multiply 1 r0": numbers are those of steps.
///
/// @cost    O(steps)
/// @threads reentrant
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::string to_string(const std::vector<element_step>& steps) {
  std::string text;
  const auto put = [&](const element_operand& o) {
    constexpr const char* letters[] = {" x", " r", " "};
    text += letters[static_cast<std::size_t>(o.of)] + std::to_string(o.at);
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(i) + ' ' + to_string(steps[i].function);
    put(steps[i].a);
    if (is_binary(steps[i].function)) put(steps[i].b);
    if (takes_number(steps[i].function)) text += ' ' + attribute_value(steps[i].by).text();
  }
  return text;
}

/// y = the value of the last step: matrices (B,D), rows (1,D), y (B,D).
template <class Row = matrix_view<float>>
class expression_op {
 public:
  static constexpr const char* kind = "expression";
  static constexpr bool sample_wise = true;
  using output = matrix_value;

  /// @pre each step takes matrices, rows and earlier steps; there is one
  explicit expression_op(std::vector<element_step> steps) : steps_(std::move(steps)) {
    DEEPREC_EXPECTS(!steps_.empty());
    give_slots();
  }
  [[nodiscard]] const std::vector<element_step>& steps() const noexcept { return steps_; }
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("steps", to_string(steps_));
  }

  status operator()(const step_call& call, op_list<const matrix_value> in, op_list<const Row> row_list,
                    matrix_value& y) const {
    if (in.empty()) return {errc::shape_mismatch, "expression: there must be a matrix"};
    const index_t rows = in[0].rows(), columns = in[0].columns();
    for (const matrix_value& x : in) {
      if (x.rows() != rows || x.columns() != columns)
        return {
            errc::shape_mismatch,
            "expression: all matrices must have the shape of the first",
            {.is = x.rows() != rows ? x.rows() : x.columns(), .must_be = x.rows() != rows ? rows : columns}};
    }
    for (const Row& r : row_list) {
      const matrix_view<const float> row(r);
      if (row.extent(0) != 1 || row.extent(1) != columns)
        return {errc::shape_mismatch,
                "expression: a row must be (1,D), with the columns of the matrices",
                {.is = row.extent(1), .must_be = columns}};
    }
    const matrix_view<float> out = y.make(rows, columns);
    if (rows == 0 || columns == 0) return {};
    const index_t width = (std::min)(columns, block), height = block / width;
    const index_t across = (columns + width - 1) / width, tiles = (rows + height - 1) / height * across;
    const double passes = static_cast<double>(steps_.size()) + static_cast<double>(in.size());
    const double ns = passes * detail::ns_of_bytes(*call.on.tuning, rows * columns * index_t{sizeof(float)});
    const index_t bytes = detail::scratch_block::bytes_of<float>(slots_ * width * height);
    const int workers =
        detail::is_shared(call.on, ns) ? static_cast<int>(call.on.executor->concurrency()) : 1;
    const detail::scratch_block scratch(call.on.memory, bytes * (std::max)(workers, 1));
    detail::run_bulk(
        call.on, {tiles, detail::grain_for(*call.on.tuning, tiles, ns), ns},
        [&](index_t begin, index_t end, int worker) {
          auto* const slots = static_cast<float*>(static_cast<void*>(scratch.data() + bytes * worker));
          with_isa_up_to_avx512(call.on.instruction_set, [&](auto region) {
            for (index_t t = begin; t < end; ++t) {
              const index_t i = t / across * height, j = t % across * width;
              run(region, in, row_list, {i, j, (std::min)(height, rows - i), (std::min)(width, columns - j)},
                  slots, out);
            }
          });
        });
    return {};
  }

 private:
  // Elements of a tile: those of a few values are in the first cache at once.
  static constexpr index_t block = 1024;
  struct tile {
    index_t row, column, rows, columns;
  };
  struct place {
    const float* first;
    index_t stride;
  };

  // All steps for a tile; slots: a dense matrix of the tile's shape for each.
  template <class Region>
  void run(Region region, const op_list<const matrix_value>& in, const op_list<const Row>& row_list,
           const tile& at, float* slots, const matrix_view<float>& out) const {
    const auto slot = [&](index_t step) {
      return slots + slot_[static_cast<std::size_t>(step)] * at.rows * at.columns;
    };
    const auto operand = [&](const element_operand& o) -> place {
      if (o.of == element_operand::from::step) return {slot(o.at), at.columns};
      if (o.of == element_operand::from::row)
        return {matrix_view<const float>(row_list[o.at]).row(0) + at.column, 0};
      const matrix_view<const float> x = in[o.at].view();
      return {x.row(at.row) + at.column, x.stride(0)};
    };
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const element_step& step = steps_[i];
      const bool last = i + 1 == steps_.size();
      const place a = operand(step.a), b = is_binary(step.function) ? operand(step.b) : a;
      apply_block(region, step.function,
                  detail::element_block{
                      a.first, b.first, last ? out.row(at.row) + at.column : slot(static_cast<index_t>(i)),
                      a.stride, b.stride, last ? out.stride(0) : at.columns, at.rows, at.columns, step.by});
    }
  }
  // A value has a slot until the last step that takes it, which may write to the same one.
  void give_slots() {
    std::vector<std::size_t> last(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      last[i] = i;
      for_each_taken(steps_[i], [&](std::size_t taken) { last[taken] = i; });
    }
    slot_.assign(steps_.size(), 0);
    std::vector<index_t> free;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      std::vector<index_t> ends;
      for_each_taken(steps_[i], [&](std::size_t taken) {
        if (last[taken] == i) ends.push_back(slot_[taken]);
      });
      std::sort(ends.begin(), ends.end());
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      free.insert(free.end(), ends.begin(), ends.end());
      if (i + 1 == steps_.size()) break;
      if (free.empty()) free.push_back(slots_++);
      slot_[i] = free.back();
      free.pop_back();
      if (last[i] == i) free.push_back(slot_[i]);  // nobody takes it
    }
  }
  template <class F>
  static void for_each_taken(const element_step& step, const F& f) {
    if (step.a.of == element_operand::from::step) f(static_cast<std::size_t>(step.a.at));
    if (is_binary(step.function) && step.b.of == element_operand::from::step)
      f(static_cast<std::size_t>(step.b.at));
  }

  std::vector<element_step> steps_;
  std::vector<index_t> slot_;  // of each step's value but the last one's
  index_t slots_ = 0;
};

}}  // namespace deeprec::DEEPREC_ABI
