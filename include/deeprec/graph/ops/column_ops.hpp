// Columns of matrices as ops of a step graph: parts of them, side by side, in another type; fuse() joins them
// (column_fusions.hpp).
//
//   x (B,6) ─┬─> columns 0, 2 ─┐
//            └─> columns 4, 2 ──> concat_columns ─> (B,4)         of a split an op for each part
//   x (B,6) ────────────────────> concat_columns ─> (B,4)         its parts: x 4..6, x 0..2
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/ops/cast.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Columns [first, first + count) of a matrix: y refers to them.
struct columns_op {
  static constexpr const char* kind = "columns";
  static constexpr bool sample_wise = true;
  using output = matrix_value;
  index_t first = 0;
  index_t count = 0;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("first", first);
    visit("count", count);
  }
  status operator()(const matrix_value& x, matrix_value& y) const {
    if (first < 0 || count < 0 || first > x.columns() - count)
      return {errc::shape_mismatch,
              "columns: x must have the columns",
              {.is = x.columns(), .must_be = first + count}};
    y.refer(x.view().columns(first, count));
    return {};
  }
};

/// y = x in another type: float, bf16 or f16 (cast).
template <class To, class From = float>
struct cast_op {
  static constexpr const char* kind = "cast";
  static constexpr bool sample_wise = true;
  using output = basic_matrix_value<To>;
  status operator()(const step_call& call, const basic_matrix_value<From>& x,
                    basic_matrix_value<To>& y) const {
    return cast(call.on, x.view(), y.make(x.rows(), x.columns()));
  }
};

/// Columns of an input of concat_columns.
struct column_part {
  index_t input = 0;
  index_t first = 0;
  index_t count = -1;  ///< -1: all
};

/// Columns side by side, of matrices with the same rows: all of each, or the parts. One part, of the same
/// type, is referred to.
template <class T = float>
struct concat_columns_as_op {
  static constexpr const char* kind = "concat_columns";
  static constexpr bool sample_wise = true;
  using output = basic_matrix_value<T>;
  std::vector<column_part> parts{};  ///< none: all of each input
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    std::string text;
    for (const column_part& p : parts) {
      text += (text.empty() ? "" : ", ") + std::to_string(p.input);
      if (p.count >= 0) text += ": " + std::to_string(p.first) + ".." + std::to_string(p.first + p.count);
    }
    if (!parts.empty()) visit("parts", text);
  }
  status operator()(const step_call& call, op_list<const matrix_value> in, basic_matrix_value<T>& out) const {
    const index_t rows = in.empty() ? 0 : in[0].rows();
    for (const matrix_value& x : in) {
      if (x.rows() != rows)
        return {errc::shape_mismatch,
                "concat_columns: all matrices must have the rows of the first",
                {.is = x.rows(), .must_be = rows}};
    }
    const index_t count = parts.empty() ? in.size() : static_cast<index_t>(parts.size());
    for (const column_part& p : parts) {
      if (p.input < 0 || p.input >= in.size())
        return {errc::shape_mismatch,
                "concat_columns: a part must name an input",
                {.item = p.input, .at_most = in.size() - 1}};
    }
    index_t columns = 0;
    for (index_t i = 0; i < count; ++i) {
      const column_part p = part(in, i);
      if (p.first < 0 || p.first > in[p.input].columns() - p.count)
        return {errc::shape_mismatch,
                "concat_columns: a matrix must have the columns of its part",
                {.is = in[p.input].columns(), .must_be = p.first + p.count}};
      columns += p.count;
    }
    if constexpr (std::is_same_v<T, float>) {
      if (count == 1 && !parts.empty()) {
        out.refer(view(in, part(in, 0)));
        return {};
      }
      const matrix_view<float> to = out.make(rows, columns);
      for (index_t i = 0; i < rows; ++i) {
        float* at = to.row(i);
        for (index_t k = 0; k < count; ++k) {
          const column_part p = part(in, k);
          at = std::copy_n(in[p.input].view().row(i) + p.first, p.count, at);
        }
      }
    } else {
      const matrix_view<T> to = out.make(rows, columns);
      index_t first = 0;
      for (index_t k = 0; k < count; ++k) {
        const column_part p = part(in, k);
        if (const status s = cast(call.on, view(in, p), to.columns(first, p.count)); !s) return s;
        first += p.count;
      }
    }
    return {};
  }

 private:
  [[nodiscard]] column_part part(const op_list<const matrix_value>& in, index_t i) const {
    column_part p = parts.empty() ? column_part{.input = i} : parts[static_cast<std::size_t>(i)];
    if (p.count < 0) p = {p.input, 0, in[p.input].columns()};
    return p;
  }
  static matrix_view<const float> view(const op_list<const matrix_value>& in, const column_part& p) {
    return in[p.input].view().columns(p.first, p.count);
  }
};
using concat_columns_op = concat_columns_as_op<float>;

}}  // namespace deeprec::DEEPREC_ABI
