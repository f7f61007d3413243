// What every model of a click log is run for: training with the rows of a run, and predictions of a saved
// model. Instantiated in run_*.cpp, since each takes long to compile.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/statistics.hpp>

#include "click_models.hpp"
#include "click_predictions.hpp"
#include "ctr_input.hpp"
#include "ctr_rows.hpp"
#include "dead_units.hpp"
#include "evaluation.hpp"
#include "export_run.hpp"
#include "graph_training.hpp"
#include "kept_passes.hpp"
#include "model_options.hpp"
#include "models/step_fusions.hpp"
#include "models/table_use.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "prediction_bins.hpp"
#include "progress.hpp"
#include "rank_training.hpp"
#include "rate_schedule.hpp"
#include "report.hpp"
#include "row_source.hpp"
#include "run_journal.hpp"
#include "saved_model.hpp"
#include "step_watch.hpp"
#include "table_sizes.hpp"
#include "training.hpp"

namespace ctr {

template <class Model>
score train_and_test(thread_pool& pool, ctr_input& input, const options& o,
                     const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  const typename Model::options how = options_of<Model>(o);
  std::optional<Model> made(std::in_place, on_pool, *input.tables, o.seed, how);
  Model& model = *made;
  model.control().dropout = o.dropout;
  model.control().dropout_seed = deeprec::mix64(o.seed);
  score result;
  result.name = Model::name;
  result.seed = o.seed;

  const ctr_rows& rows = *input.rows;
  const index_t train_rows = rows.rows(row_use::train);
  training_place place{.seed = static_cast<index_t>(o.seed),
                       .data_rows = rows.rows(),
                       .train_rows = train_rows,
                       .window = rows.window(),
                       .hash = static_cast<index_t>(rows.hash()),
                       .valid_hash = static_cast<index_t>(input.hash_to_validate())};
  const auto load = [&](const std::string& path, load_use use) {
    token_vocabulary words(*input.tables);
    if (const std::string why = load_model(path, model, words, place, use); !why.empty()) throw failure(why);
    if (!words.is_raw) add_known(*input.tables, words.known);  // of all data so far
  };
  if (!o.load.empty()) load(o.load, o.new_data ? load_use::new_data : load_use::go_on);
  std::atomic<bool> is_unwritten{false};  // the thread that reads looks too
  const auto save = [&] {
    if (is_unwritten) return;
    result.unwritten = save_model(o.save, model, how, token_vocabulary(*input.tables), place);
    is_unwritten = !result.unwritten.empty();
  };
  // A thread that reads has no use for those that train, whose work is short.
  deeprec::inline_executor here;
  const deeprec::executor_ref reading =
      o.prefetch == 0 ? deeprec::executor_ref(pool) : deeprec::executor_ref(here);
  if (!o.export_to.empty()) {
    export_before(o, model, how, rows, input.to_test(), *input.tables, reading);
  }
  const index_t first_epoch = place.trained / train_rows;
  const index_t end = train_rows * (first_epoch + o.epochs);
  std::atomic<index_t> begun{0};     // steps; the thread that reads looks too
  std::atomic<bool> is_best{false};  // there was no better validation for long
  const auto over = [&] {
    return interrupted || is_unwritten || is_best || (o.steps > 0 && begun >= o.steps);
  };
  [[maybe_unused]] std::optional<by_hand<Model>> hand(std::in_place, pool, model, o);
  std::optional<by_ranks<Model>> together;
  if (input.ranks != nullptr) together.emplace(*input.ranks, pool, model, o);
  std::optional<graph_training<raw_rows>> as_graph;
  const auto make_graph = [&](row_reader read) {
    return make_graph_step(model, *input.tables, std::move(read), graph_use::train);
  };
  if (!together && (o.is_graph() || !stepped_by_hand<Model>)) {
    graph_options as = graph_options_of(o);
    as.parts = o.micro_batch;
    if (o.fusion) as.fusions = click_fusions();
    as_graph.emplace(make_graph, as);
  }

  input.journal->begin(Model::name, o.seed);
  const index_t steps_of_epoch = (train_rows + o.batch_size - 1) / o.batch_size;
  step_watch<Model> steps(model, how, rate_schedule(o, steps_of_epoch * (first_epoch + o.epochs)),
                          *input.journal, o.stale_window == 0, input.rows_to_validate() > 0);
  steps.begin(place.steps);
  kept_passes passes(result, place, *input.journal, o.patience, save);
  std::chrono::steady_clock::duration beside{};  // within the training, and not of it
  // Between two steps: the rows that validate, or that test.
  const auto look_at = [&](const char* of, const ctr_rows* test, bool ends_epoch) {
    if (!passes.is_due(ends_epoch)) return;
    click_metrics metrics;
    row_feed feed = test == nullptr ? input.to_validate() : row_feed(*test, row_use::test);
    feed.begin(reading, 0, 0);
    const bool whole = predict_rows(
        on_pool, model, *input.tables, feed, [&] { return interrupted.load(); }, {},
        [&](matrix_view<const float> logits, matrix_view<const float> labels, const raw_rows& raw) {
          add_to(metrics, o, logits, labels, raw);
        });
    if (!whole) return;
    evaluation pass{.epoch = (place.trained + train_rows - 1) / train_rows,
                    .step = place.steps,
                    .ends_epoch = ends_epoch,
                    .of = of,
                    .train_loss = steps.take_loss(),
                    .found = metrics.read()};
    if (passes.add(pass)) is_best = true;
  };
  const bool validates = input.rows_to_validate() > 0;
  {
    row_feed feed(rows, row_use::train);
    progress bar(Model::name, static_cast<double>(end - place.trained));
    // Over ranks an interruption ends all of them behind the same step.
    const auto out_of_steps = [&] { return o.steps > 0 && begun >= o.steps; };
    const auto ended = [&] { return together ? together->ended() || out_of_steps() : over(); };
    while (place.trained < end && !ended()) {
      const index_t epoch = place.trained / train_rows;
      feed.begin(reading, static_cast<std::uint64_t>(epoch), place.trained % train_rows);
      result.watch.start();
      const auto trained = [&](index_t count) {
        result.samples += count;
        place.trained += count;
        ++place.steps;
        steps.stepped(place.steps, epoch + 1, place.trained);
        bar.show(static_cast<double>(result.samples));
        const bool within = place.trained % train_rows != 0;
        const bool looks = validates && o.valid_every > 0 && place.steps % o.valid_every == 0 && within;
        const bool saves = o.save_every > 0 && place.steps % o.save_every == 0 && within;
        if (!looks && !saves) return;
        const auto at = std::chrono::steady_clock::now();
        if (looks) look_at("valid", nullptr, false);
        if (saves) save();
        beside += std::chrono::steady_clock::now() - at;
        result.watch.start();
      };
      if (as_graph) {
        const index_t before = place.steps;
        const auto read = [&, steps_begun = begun.load()](raw_rows& raw) mutable {
          if (interrupted || is_unwritten || is_best || (o.steps > 0 && steps_begun++ >= o.steps))
            return false;
          raw.clear(o.batch_size, input.tables->columns);
          feed.next(o.batch_size, [&](const sparse_batch& chunk, index_t row) { raw.append(chunk, row); });
          return raw.rows > 0;
        };
        add(result.stages, as_graph->run(pool, read, trained, result.watch));
        begun += place.steps - before;
      } else if (together) {
        add(result.stages,
            together->run(feed, *input.tables, begun, interrupted, out_of_steps, trained, result.watch));
      } else if constexpr (stepped_by_hand<Model>) {
        add(result.stages, hand->run(feed, *input.tables, begun, {&steps.rates(), place.steps}, over, trained,
                                     result.watch));
      }
      const bool whole_epoch = place.trained % train_rows == 0;
      if (validates) {
        if (whole_epoch && !interrupted) look_at("valid", nullptr, true);
      } else if (!together && whole_epoch && !interrupted && place.trained < end &&
                 (rows.is_kept() || result.passes.empty())) {
        // The test at the end is that of the last epoch. Rows that are read again are so once.
        look_at("test", &input.to_test(), true);
      }
      if (!o.save.empty() && o.patience == 0) save();
    }
  }
  // The training ended before its first validation.
  if (o.patience > 0 && result.kept_step == 0) save();
  if (as_graph) result.graph = as_graph->explain();
  result.memory = as_graph ? as_graph->memory() : hand->memory();
  result.stages.elapsed -= std::chrono::duration_cast<decltype(result.stages.elapsed)>(beside);
  result.samples_per_second =
      static_cast<double>(result.samples) / std::chrono::duration<double>(result.stages.elapsed).count();

  if (result.kept_step > 0 && result.kept_step != place.steps && !is_unwritten) {
    hand.reset();
    made.emplace(on_pool, *input.tables, o.seed, how);  // raw keys of later steps have no rows
    load(o.save, load_use::go_on);
  }
  click_metrics metrics;
  std::vector<float> exported;
  row_feed feed(input.to_test(), row_use::test);
  feed.begin(reading, 0, 0);
  if (together) {
    deeprec::auc area;
    deeprec::log_loss loss;
    together->test(feed, *input.tables, area, loss);
    result.set_auc(area);
    result.log_loss = loss.value();
  } else {
    predict_rows(
        on_pool, model, *input.tables, feed, [] { return false; }, {},
        [&](matrix_view<const float> logits, matrix_view<const float> labels, const raw_rows& raw) {
          add_to(metrics, o, logits, labels, raw);
          if (!o.report.empty()) result.predictions.add(logits, labels, raw.row_weights());
          if (o.export_to.empty()) return;
          for (index_t i = 0; i < logits.extent(0); ++i) exported.push_back(logits(i, 0));
        });
    evaluation pass{.epoch = (place.trained + train_rows - 1) / train_rows,
                    .step = result.kept_step > 0 ? result.kept_step : place.steps,
                    .ends_epoch = place.trained % train_rows == 0,
                    .of = "test",
                    .train_loss = validates ? undefined : steps.take_loss(),
                    .found = metrics.read()};
    result.set(pass.found);
    input.journal->pass(pass);
    if (!validates) result.passes.push_back(pass);
  }
  if (o.importance && !interrupted) {
    result.importance =
        importance_of(on_pool, model, *input.tables, input.to_test(), o, result.log_loss, interrupted);
  }
  result.steps = input.journal->take_steps();
  result.has_raw_keys = input.tables->raw.has_value();
  result.tables = model.counts();
  if (!o.report.empty() && !interrupted) {
    result.uses = uses_of_tables(model);
    row_feed rows_of_test(input.to_test(), row_use::test);
    rows_of_test.begin(reading, 0, 0);
    result.layers = dead_units_of(on_pool, model, *input.tables, rows_of_test);
  }
  if (o.verbose > 0 || !o.json.empty()) result.checksum = checksum(model);
  if (as_graph) result.write([&] { as_graph->write_trace(); });
  if (!o.export_to.empty()) {
    result.write([&] {
      npy_file<float> file(std::filesystem::path(o.export_to) / "test_logits.npy", 1);
      for (const float& logit : exported) file.add(&logit);
      file.close();
    });
  }
  return result;
}

template <class Model>
inline constexpr click_model_runs runs_of_model = {Model::name, train_and_test<Model>, predict_file<Model>,
                                                   evaluate_file<Model>};

}  // namespace ctr
