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
#include "ctr_input.hpp"
#include "ctr_rows.hpp"
#include "export_run.hpp"
#include "graph_training.hpp"
#include "model_options.hpp"
#include "models/step_fusions.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "progress.hpp"
#include "rank_training.hpp"
#include "report.hpp"
#include "row_source.hpp"
#include "saved_model.hpp"
#include "training.hpp"

namespace ctr {

template <class Model>
score train_and_test(thread_pool& pool, const ctr_input& input, const options& o,
                     const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  const typename Model::options how = options_of<Model>(o);
  Model model(on_pool, *input.tables, o.seed, how);
  score result;
  result.name = Model::name;

  const ctr_rows& rows = *input.rows;
  const index_t train_rows = rows.rows(row_use::train);
  training_place place{.seed = static_cast<index_t>(o.seed),
                       .data_rows = rows.rows(),
                       .train_rows = train_rows,
                       .window = rows.window(),
                       .hash = static_cast<index_t>(rows.hash())};
  if (!o.load.empty()) {
    if (const std::string why = load_model(o.load, model, token_vocabulary(*input.tables), place);
        !why.empty())
      throw failure(why);
  }
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
  std::atomic<index_t> begun{0};  // steps; the thread that reads looks too
  const auto over = [&] { return interrupted || is_unwritten || (o.steps > 0 && begun >= o.steps); };
  [[maybe_unused]] by_hand<Model> hand(pool, model, o);
  std::optional<by_ranks<Model>> together;
  if (input.ranks != nullptr) together.emplace(*input.ranks, pool, model, o);
  std::optional<graph_training<raw_rows>> as_graph;
  const auto make_graph = [&](graph_use use) {
    return [&, use](row_reader read) { return make_graph_step(model, *input.tables, std::move(read), use); };
  };
  if (!together && (o.is_graph() || !stepped_by_hand<Model>)) {
    graph_options as = graph_options_of(o);
    as.parts = o.micro_batch;
    if (o.fusion) as.fusions = click_fusions();
    as_graph.emplace(make_graph(graph_use::train), as);
  }
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
        bar.show(static_cast<double>(result.samples));
        if (o.save_every > 0 && place.steps % o.save_every == 0 && place.trained % train_rows != 0) {
          save();
          result.watch.start();
        }
      };
      if (as_graph) {
        const index_t before = place.steps;
        const auto read = [&, steps = begun.load()](raw_rows& raw) mutable {
          if (interrupted || is_unwritten || (o.steps > 0 && steps++ >= o.steps)) return false;
          raw.clear(o.batch_size);
          feed.next(o.batch_size, [&](const sparse_batch& chunk, index_t row) { raw.append(chunk, row); });
          return raw.rows > 0;
        };
        add(result.stages, as_graph->run(pool, read, trained, result.watch));
        begun += place.steps - before;
      } else if (together) {
        add(result.stages,
            together->run(feed, *input.tables, begun, interrupted, out_of_steps, trained, result.watch));
      } else if constexpr (stepped_by_hand<Model>) {
        add(result.stages, hand.run(feed, *input.tables, begun, over, trained, result.watch));
      }
      if (!o.save.empty()) save();
    }
  }
  if (as_graph) result.graph = as_graph->explain();
  result.memory = as_graph ? as_graph->memory() : hand.memory();
  result.samples_per_second =
      static_cast<double>(result.samples) / std::chrono::duration<double>(result.stages.elapsed).count();

  deeprec::auc area;
  deeprec::log_loss loss;
  std::vector<float> exported;
  row_feed feed(input.to_test(), row_use::test);
  feed.begin(reading, 0, 0);
  if (together) {
    together->test(feed, *input.tables, area, loss);
  } else {
    predict_by_graph<raw_rows>(
        pool, make_graph(graph_use::predict),
        [&](raw_rows& raw) {
          raw.clear(ctr_rows::chunk_rows);
          feed.next(ctr_rows::chunk_rows,
                    [&](const sparse_batch& chunk, index_t row) { raw.append(chunk, row); });
          return raw.rows > 0;
        },
        [&](matrix_view<const float> logits, matrix_view<const float> labels) {
          area.add(logits, labels).or_throw();
          loss.add(logits, labels).or_throw();
          if (o.export_to.empty()) return;
          for (index_t i = 0; i < logits.extent(0); ++i) exported.push_back(logits(i, 0));
        });
  }
  result.set_auc(area);
  result.log_loss = loss.value();
  result.has_raw_keys = input.tables->raw.has_value();
  result.tables = model.counts();
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

/// Writes the probability of each row of a file, in its order, one a line. Labels may lack.
template <class Model>
void predict_file(thread_pool& pool, const options& o, const saved_model& saved,
                  const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  typename Model::options how;
  how.precision = precision_of(o);
  saved.get_sizes(how);
  token_vocabulary words;
  words.is_raw = saved.has_raw_keys();
  if (!words.is_raw) saved.get_sizes(words);
  ctr_tables tables = words.is_raw ? ctr_tables(key_rules{}) : ctr_tables(words.ids);
  if (!words.is_raw) words.known = tables.known();  // none yet
  Model model(on_pool, tables, 0, how);
  saved.load(model, words);
  if (!words.is_raw) tables.set_known(words.known);

  text_rows rows(o.predict, usable_memory() / 4, deeprec::label_column::by_fields);
  rows.rewind(on_pool);
  sparse_batch chunk;
  chunk.reshape(deeprec::criteo_format::shape());
  output_file out(o.output);
  progress bar("predict", static_cast<double>(rows.bytes()), progress::unit::bytes, shows_progress(o.output));
  predict_by_graph<raw_rows>(
      on_pool,
      [&](row_reader read) { return make_graph_step(model, tables, std::move(read), graph_use::predict); },
      [&](raw_rows& raw) {
        if (interrupted) return false;
        raw.clear(ctr_rows::chunk_rows);
        const index_t got = rows.next(chunk, ctr_rows::chunk_rows);
        for (index_t r = 0; r < got; ++r) raw.append(chunk, r);
        bar.show(static_cast<double>(rows.bytes_read()));
        return got > 0;
      },
      [&](matrix_view<const float> logits, matrix_view<const float>) {
        for (index_t i = 0; i < logits.extent(0); ++i) out.number(probability_of(logits(i, 0)));
      });
  if (!interrupted) out.close();
}

template <class Model>
inline constexpr click_model_runs runs_of_model = {Model::name, train_and_test<Model>, predict_file<Model>};

}  // namespace ctr
