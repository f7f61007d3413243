// All rows of a run, and what is counted before training.
#pragma once

#include <cstdint>
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
#include "table_sizes.hpp"

namespace ctr {

class rank_run;
class run_journal;

/// All rows: those to train, to validate and to test, which are of the same source or of others.
struct ctr_input {
  std::unique_ptr<row_source> source, test_source, valid_source;
  std::optional<ctr_rows> rows, test_rows, valid_rows;
  std::optional<ctr_tables> tables;
  deeprec::auc planted_area;
  deeprec::log_loss planted_loss;
  rank_run* ranks = nullptr;  ///< null: one process
  skipped_rows skipped;
  run_journal* journal = nullptr;  ///< is there where models are trained

  [[nodiscard]] const ctr_rows& to_test() const { return test_rows ? *test_rows : *rows; }
  [[nodiscard]] index_t rows_to_validate() const {
    return valid_rows ? valid_rows->rows(row_use::test) : rows ? rows->rows(row_use::valid) : 0;
  }
  /// Of the rows that validate: a score of others is no measure for theirs.
  [[nodiscard]] std::uint64_t hash_to_validate() const {
    return valid_rows ? valid_rows->hash()
                      : rows->hash() ^ static_cast<std::uint64_t>(rows->rows(row_use::valid));
  }
  /// The rows that validate, beside a feed of those that train.
  [[nodiscard]] row_feed to_validate() const {
    if (valid_rows) return {*valid_rows, row_use::test};
    return {*rows, row_use::valid, valid_source.get()};
  }
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
  memory /= 1 + (o.test.empty() ? 0 : 1) + (o.valid.empty() ? 0 : 1);
  synthetic_rows* made = nullptr;
  if (o.data.empty()) {
    auto rows = make_synthetic(o);
    made = rows.get();
    input.source = std::move(rows);
  } else {
    input.source = file_rows_of(o, o.data, memory);
  }
  if (o.has_raw_keys()) {
    input.tables.emplace(key_rules{.admit = o.admit, .ttl = o.ttl, .capacity = o.capacity},
                         input.source->columns());
  } else {
    input.tables.emplace(first_table_sizes(o, *input.source), input.source->columns());
  }
  // Places of rows are below 1.
  const double train_fraction = o.test.empty() ? o.train_fraction : 1;
  input.rows.emplace(*input.source, train_fraction, memory, o.window, o.seed, o.valid_fraction());
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
  input.skipped = input.source->skipped();
  const auto count = [&](const std::string& path, std::unique_ptr<row_source>& source,
                         std::optional<ctr_rows>& rows) {
    source = file_rows_of(o, path, memory);
    rows.emplace(*source, -1, memory, o.window, o.seed);
    rows->survey(pool, stop, [](const sparse_batch&, index_t, row_use) {});
    input.skipped.add(source->skipped());
  };
  if (!o.test.empty()) count(o.test, input.test_source, input.test_rows);
  if (o.valid.empty()) return;
  if (o.valid_fraction() == 0) {
    count(o.valid, input.valid_source, input.valid_rows);
  } else if (!input.rows->is_kept()) {  // read again beside those that train
    if (o.data.empty()) {
      input.valid_source = make_synthetic(o);
    } else {
      input.valid_source = file_rows_of(o, o.data, memory);
    }
  }
}

}  // namespace ctr
