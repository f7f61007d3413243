// What a sequence model sees: candidates, and for each the items that its user had before.
//
//   labels      1        0            of B candidates
//   targets     t0       t1           their items
//   offsets     0        3      5
//   positions   p0 p1 p2 p3 p4        the items of all histories, N of them
//
// Items and categories are rows of two tables that lie behind each other, as the slots of a click log do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>

#include "ctr_data.hpp"

namespace ctr {

/// The candidates of a step.
struct history_batch {
  index_t rows = 0;
  std::vector<float> labels;          // (B)
  std::vector<row_id> targets;        // (B)
  std::vector<row_id> positions;      // (N)
  std::vector<std::int32_t> offsets;  // (B + 1)

  void clear() {
    rows = 0;
    labels.clear();
    targets.clear();
    positions.clear();
    offsets.assign(1, 0);
  }
  void append(row_id target, std::span<const row_id> history, float label) {
    labels.push_back(label);
    targets.push_back(target);
    positions.insert(positions.end(), history.begin(), history.end());
    offsets.push_back(static_cast<std::int32_t>(positions.size()));
    ++rows;
  }
  [[nodiscard]] index_t value_bytes() const {
    return static_cast<index_t>(sizeof(float) *
                                (labels.size() + targets.size() + positions.size() + offsets.size()));
  }
};

/// Rows of the tables, targets before positions: (B,K) and (N,K).
struct history_rows_view {
  matrix_view<const float> targets, keys;
  deeprec::array_view<const std::int32_t> offsets;

  history_rows_view(const history_batch& of, matrix_view<const float> rows)
      : targets(rows.rows(0, of.rows)),
        keys(rows.rows(of.rows, rows.extent(0) - of.rows)),
        offsets(of.offsets) {}
};

/// The tables of items and of their categories.
struct history_tables {
  index_t items = 0, categories = 0;  // categories: 0 where none are known
  std::vector<row_id> category_of;    // of each item
  std::vector<index_t> uses;          // of each item, in the part that trains
  /// Of an item that has no row: a row of zeros stands for it, and for its category. None: all have one.
  std::optional<row_id> unknown;

  /// Tables: items, and categories where they are known.
  [[nodiscard]] index_t features() const { return categories > 0 ? 2 : 1; }
  /// Where each table begins among all rows; one more, their number.
  [[nodiscard]] std::vector<index_t> first_row() const {
    if (categories == 0) return {0, items};
    return {0, items, items + categories};
  }
};

}  // namespace ctr
