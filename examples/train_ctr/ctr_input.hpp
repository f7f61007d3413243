// All rows of a run, and what is counted before training.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>

#include "ctr_rows.hpp"
#include "memory_limit.hpp"
#include "models/ctr_data.hpp"
#include "options.hpp"
#include "row_source.hpp"
#include "synthetic.hpp"

namespace ctr {

class rank_run;

/// All rows: those to train, and those to test, which are of the same source or of another one.
struct ctr_input {
  std::unique_ptr<row_source> source, test_source;
  std::optional<ctr_rows> rows, test_rows;
  std::optional<ctr_tables> tables;
  deeprec::auc planted_area;
  deeprec::log_loss planted_loss;
  rank_run* ranks = nullptr;  ///< null: one process

  [[nodiscard]] const ctr_rows& to_test() const { return test_rows ? *test_rows : *rows; }
};

/// Rows of tables that fit a quarter of the memory.
inline index_t table_row_budget() {
  return usable_memory() / 4 / ((index_t{16} + 1) * static_cast<index_t>(sizeof(float)));
}

inline std::unique_ptr<synthetic_rows> make_synthetic(const options& o) {
  return std::make_unique<synthetic_rows>(
      o.rows, table_row_budget(), o.seed,
      o.planted == "product" ? planted_model::product : planted_model::mixed);
}

/// Reads all rows once: which are kept, and how often ids are used. Ends early once stop() is true.
template <class Stop>
void survey(deeprec::executor_ref pool, ctr_input& input, const options& o, const Stop& stop) {
  index_t memory = o.memory.empty() ? usable_memory() / 4 : parse_bytes(o.memory);
  if (!o.test.empty()) memory /= 2;
  synthetic_rows* made = nullptr;
  if (o.data.empty()) {
    auto rows = make_synthetic(o);
    made = rows.get();
    input.source = std::move(rows);
  } else {
    input.source = std::make_unique<text_rows>(o.data, memory);
  }
  if (o.has_raw_keys()) {
    input.tables.emplace(key_rules{.admit = o.admit, .ttl = o.ttl, .capacity = o.capacity});
  } else {
    input.tables.emplace(input.source->table_rows());
  }
  input.rows.emplace(*input.source, o.test.empty() ? o.train_fraction : 2, memory, o.window, o.seed);
  input.rows->survey(pool, stop, [&](const sparse_batch& chunk, index_t row, row_use use) {
    if (use == row_use::train) {
      if (!input.tables->raw) input.tables->count(chunk, row);
    } else if (made != nullptr) {
      const matrix_view<const float> logit(&made->planted_logits()[static_cast<std::size_t>(row)], 1, 1);
      const matrix_view<const float> label(&chunk.labels()[static_cast<std::size_t>(row)], 1, 1);
      input.planted_area.add(logit, label).or_throw();
      input.planted_loss.add(logit, label).or_throw();
    }
  });
  if (o.test.empty()) return;
  input.test_source = std::make_unique<text_rows>(o.test, memory);
  input.test_rows.emplace(*input.test_source, -1, memory, o.window, o.seed);
  input.test_rows->survey(pool, stop, [](const sparse_batch&, index_t, row_use) {});
}

}  // namespace ctr
