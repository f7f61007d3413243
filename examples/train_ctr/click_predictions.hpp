// What models of click logs predict: the rows of a feed, how much each slot tells, and the rows of a file by
// a saved model.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ctr_rows.hpp"
#include "evaluation.hpp"
#include "graph_training.hpp"
#include "memory_limit.hpp"
#include "model_options.hpp"
#include "options.hpp"
#include "prediction_writer.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "row_source.hpp"
#include "saved_model.hpp"

namespace ctr {

using deeprec::thread_pool;

inline constexpr std::uint64_t importance_stream = 1ULL << 40;

/// Predicts the rows of a feed. change(rows), which may be empty, is called before a batch is predicted;
/// each(logits, labels, rows) follows it. False: interrupted() became true.
template <class Model>
bool predict_rows(
    deeprec::executor_ref pool, Model& model, const ctr_tables& tables, row_feed& feed,
    const std::function<bool()>& interrupted, const std::function<void(raw_rows&)>& change,
    const std::function<void(matrix_view<const float>, matrix_view<const float>, const raw_rows&)>& each) {
  const raw_rows* rows = nullptr;
  bool ended = false;
  predict_by_graph<raw_rows>(
      pool,
      [&](row_reader read) { return make_graph_step(model, tables, std::move(read), graph_use::predict); },
      [&](raw_rows& raw) {
        if (ended = interrupted(); ended) return false;
        raw.clear(ctr_rows::chunk_rows, tables.columns);
        feed.next(ctr_rows::chunk_rows,
                  [&](const sparse_batch& chunk, index_t row) { raw.append(chunk, row); });
        if (change) change(raw);
        rows = &raw;
        return raw.rows > 0;
      },
      [&](matrix_view<const float> logits, matrix_view<const float> labels) { each(logits, labels, *rows); });
  return !ended;
}

/// Adds to the figures, with the groups that the options name.
inline void add_to(click_metrics& of, const options& o, matrix_view<const float> logits,
                   matrix_view<const float> labels, const raw_rows& rows) {
  const std::int64_t* groups = rows.groups.empty() ? nullptr : rows.groups.data();
  if (o.group_column > 0) {
    const std::span<const std::int64_t> tokens = rows.tokens(o.group_column - 1);
    if (static_cast<index_t>(tokens.size()) != rows.rows)
      throw failure("--group: each row must have one token in " + o.group);
    groups = tokens.data();
  }
  of.add(logits, labels, rows.row_weights(), groups);
}

/// How much each slot tells: its values change places within each chunk of the rows.
template <class Model>
std::vector<slot_importance> importance_of(deeprec::executor_ref pool, Model& model, const ctr_tables& tables,
                                           const ctr_rows& test, const options& o, double log_loss,
                                           const std::atomic<bool>& interrupted) {
  std::vector<slot_importance> all;
  for (index_t slot = 0; slot < tables.columns.slots() && !interrupted; ++slot) {
    const deeprec::counter_rng rng(o.seed);
    std::uint64_t draws = 0;
    deeprec::log_loss shuffled;
    row_feed feed(test, row_use::test);
    feed.begin(pool, 0, 0);
    const bool whole = predict_rows(
        pool, model, tables, feed, [&] { return interrupted.load(); },
        [&](raw_rows& rows) {
          for (index_t i = rows.rows; i > 1; --i) {
            const auto j = static_cast<index_t>(
                rng.uniform(importance_stream + static_cast<std::uint64_t>(slot), draws++) *
                static_cast<double>(i));
            rows.swap_slot(slot, i - 1, j);
          }
        },
        [&](matrix_view<const float> logits, matrix_view<const float> labels, const raw_rows& raw) {
          add_to(shuffled, logits, labels, raw.row_weights()).or_throw();
        });
    if (whole) all.push_back({tables.columns.slot_name(slot), shuffled.value() - log_loss});
  }
  return all;
}

/// A saved model of a click log with its tables, which are there before it is filled.
template <class Model>
class loaded_model {
 public:
  loaded_model(deeprec::executor_ref pool, const options& o, const saved_model& saved)
      : words_(words_in(o, saved)),
        tables_(words_.is_raw ? ctr_tables(key_rules{}, words_.columns)
                              : ctr_tables(words_.ids, words_.columns)) {
    typename Model::options how;
    how.precision = precision_of(o);
    saved.get_sizes(how);
    if (!words_.is_raw) words_.known = tables_.known();  // none yet
    model_.emplace(pool, tables_, 0, how);
    saved.load(*model_, words_);
    if (!words_.is_raw) tables_.set_known(words_.known);
  }
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const ctr_tables& tables() const { return tables_; }

 private:
  static token_vocabulary words_in(const options& o, const saved_model& saved) {
    token_vocabulary words(o.columns != nullptr ? o.columns->columns : ctr_columns());
    words.is_raw = saved.has_raw_keys();
    if (!words.is_raw) saved.get_sizes(words);
    return words;
  }
  token_vocabulary words_;
  ctr_tables tables_;
  std::optional<Model> model_;
};

/// Predicts the rows of a file; each(logits, labels, rows) follows each batch.
template <class Model>
void predict_text(
    deeprec::executor_ref pool, loaded_model<Model>& loaded, row_source& rows, bool shows_how_far,
    const std::atomic<bool>& interrupted,
    const std::function<void(matrix_view<const float>, matrix_view<const float>, const raw_rows&)>& each) {
  rows.rewind(pool);
  progress bar("predict", static_cast<double>(rows.bytes()), progress::unit::bytes, shows_how_far);
  sparse_batch chunk;
  chunk.reshape(rows.shape());
  const raw_rows* of = nullptr;
  predict_by_graph<raw_rows>(
      pool,
      [&](row_reader read) {
        return make_graph_step(loaded.model(), loaded.tables(), std::move(read), graph_use::predict);
      },
      [&](raw_rows& raw) {
        if (interrupted) return false;
        raw.clear(ctr_rows::chunk_rows, loaded.tables().columns);
        const index_t got = rows.next(chunk, ctr_rows::chunk_rows);
        for (index_t r = 0; r < got; ++r) raw.append(chunk, r);
        bar.show(static_cast<double>(rows.bytes_read()));
        of = &raw;
        return got > 0;
      },
      [&](matrix_view<const float> logits, matrix_view<const float> labels) { each(logits, labels, *of); });
}

/// Writes the probability of each row of a file, in its order; of a pipe as its rows arrive. Labels may lack.
template <class Model>
void predict_file(thread_pool& pool, const options& o, const saved_model& saved,
                  const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  loaded_model<Model> loaded(on_pool, o, saved);
  const std::unique_ptr<row_source> rows = file_rows_of(o, o.predict, usable_memory() / 4, text_use::predict);
  const bool is_live = is_pipe(o.predict);
  if (is_live) rows->take_as_they_arrive();
  std::string names;
  if (o.columns != nullptr && o.writes_names()) {
    for (const deeprec::csv_column& column : o.columns->format.columns) {
      if (column.use == deeprec::csv_use::name) names = column.name;
    }
  }
  prediction_writer out(o, "probability", names);
  predict_text<Model>(on_pool, loaded, *rows, shows_progress(o.output), interrupted,
                      [&](matrix_view<const float> logits, matrix_view<const float>, const raw_rows& raw) {
                        for (index_t i = 0; i < logits.extent(0); ++i) {
                          out.add(probability_of(logits(i, 0)),
                                  names.empty() ? std::string() : raw.names[static_cast<std::size_t>(i)]);
                        }
                        if (is_live) out.flush();
                      });
  if (!interrupted) out.close();
}

/// How good a saved model is for the rows of a file, which have labels.
template <class Model>
score evaluate_file(thread_pool& pool, const options& o, const saved_model& saved,
                    const std::atomic<bool>& interrupted, skipped_rows& skipped) {
  deeprec::executor_ref on_pool(pool);
  loaded_model<Model> loaded(on_pool, o, saved);
  const std::unique_ptr<row_source> rows =
      file_rows_of(o, o.evaluate, usable_memory() / 4, text_use::evaluate);
  click_metrics metrics;
  score result;
  result.name = Model::name;
  predict_text<Model>(
      on_pool, loaded, *rows, true, interrupted,
      [&](matrix_view<const float> logits, matrix_view<const float> labels, const raw_rows& raw) {
        add_to(metrics, o, logits, labels, raw);
        if (!o.report.empty()) result.predictions.add(logits, labels, raw.row_weights());
      });
  skipped = rows->skipped();
  result.set(metrics.read());
  return result;
}

}  // namespace ctr
