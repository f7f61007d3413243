// Models of histories: the items that a user had predict the next one.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/dense/metrics/grouped_auc.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>

#include "candidate_lines.hpp"
#include "evaluation.hpp"
#include "graph_training.hpp"
#include "history_models.hpp"
#include "history_rows.hpp"
#include "kept_passes.hpp"
#include "model_options.hpp"
#include "models/din.hpp"
#include "models/dssm.hpp"
#include "options.hpp"
#include "prediction_writer.hpp"
#include "progress.hpp"
#include "rate_schedule.hpp"
#include "report.hpp"
#include "run_journal.hpp"
#include "saved_model.hpp"
#include "step_watch.hpp"

namespace ctr {

namespace {

using deeprec::thread_pool;

/// How well scores tell the held-out items from their negatives, one of each for each user.
class pair_metrics {
 public:
  /// Rows 2 i and 2 i + 1 are the item and its negative.
  void add(matrix_view<const float> scores, matrix_view<const float> labels) {
    users_.clear();
    for (index_t i = 0; i < scores.extent(0); ++i) users_.push_back(rows_++ / 2);
    area_.add(scores, labels).or_throw();
    by_user_.add(scores, labels, users_).or_throw();
  }
  [[nodiscard]] figures read() {
    figures found;
    found.rows = rows_;
    ctr::set_auc(found, area_);
    return found;
  }
  [[nodiscard]] double user_auc() { return by_user_.value(); }

 private:
  deeprec::auc area_;
  deeprec::grouped_auc by_user_;
  std::vector<std::int64_t> users_;
  std::int64_t rows_ = 0;
};

constexpr std::uint64_t test_stream = 0, order_stream = 1ULL << 32, train_stream = 2ULL << 32;
constexpr index_t test_pairs = 512;  // of a batch

/// Calls each(from, to) for batches of the positions that test.
class test_feed {
 public:
  test_feed(const user_histories& data, const options& o) : data_(&data), rng_(o.seed), most_(o.history) {}
  bool operator()(history_batch& batch) {
    batch.clear();
    for (index_t n = 0; n < test_pairs && at_ < data_->test.size(); ++n, ++at_) {
      const history_position& p = data_->test[at_];
      const auto history = data_->history(p, most_);
      batch.append(data_->item(p), history, 1);
      batch.append(data_->negative(p.user, rng_, test_stream, at_), history, 0);
    }
    return batch.rows > 0;
  }

 private:
  const user_histories* data_;
  deeprec::counter_rng rng_;
  index_t most_;
  std::size_t at_ = 0;
};

/// The positions that train, shuffled in each epoch, with or without a negative for each.
class train_feed {
 public:
  train_feed(const user_histories& data, const options& o, bool draws_negatives)
      : data_(&data),
        rng_(o.seed),
        most_(o.history),
        positions_(std::max<index_t>(1, draws_negatives ? o.batch_size / 2 : o.batch_size)),
        draws_negatives_(draws_negatives),
        order_(data.train.size()) {}
  /// Before the first position of an epoch, or the one behind the `skipped` first.
  void begin(index_t epoch, index_t skipped) {
    epoch_ = static_cast<std::uint64_t>(epoch);
    at_ = static_cast<std::size_t>(skipped);
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    for (std::size_t i = order_.size(); i > 1; --i) {
      const auto j =
          static_cast<std::size_t>(rng_.uniform(order_stream + epoch_, i) * static_cast<double>(i));
      std::swap(order_[i - 1], order_[j]);
    }
  }
  bool next(history_batch& batch) {
    batch.clear();
    for (index_t n = 0; n < positions_ && at_ < order_.size(); ++n, ++at_) {
      const history_position& p = data_->train[order_[at_]];
      const auto history = data_->history(p, most_);
      batch.append(data_->item(p), history, 1);
      if (draws_negatives_)
        batch.append(data_->negative(p.user, rng_, train_stream + epoch_, order_[at_]), history, 0);
    }
    return batch.rows > 0;
  }

 private:
  const user_histories* data_;
  deeprec::counter_rng rng_;
  index_t most_, positions_;
  bool draws_negatives_;
  std::vector<std::uint32_t> order_;
  std::size_t at_ = 0;
  std::uint64_t epoch_ = 0;
};

template <class Model>
score train_and_test(thread_pool& pool, const user_histories& data, const options& o, run_journal& journal,
                     const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  typename Model::options how = options_of<Model>(o);
  if constexpr (requires { how.temperature; }) {
    if (o.temperature > 0) how.temperature = o.temperature;
  }
  Model model(on_pool, data.tables, o.seed, how);
  const auto positions = static_cast<index_t>(data.train.size());
  training_place place{.seed = static_cast<index_t>(o.seed),
                       .data_rows = positions + static_cast<index_t>(data.test.size()),
                       .train_rows = positions,
                       .hash = static_cast<index_t>(data.hash())};
  const item_vocabulary vocabulary(data.tables, data.item_ids, o.history);
  const auto load = [&](const std::string& path) {
    item_vocabulary loaded = vocabulary;
    if (const std::string why = load_model(path, model, loaded, place); !why.empty()) throw failure(why);
  };
  if (!o.load.empty()) load(o.load);
  const index_t of_step = std::max<index_t>(1, Model::draws_negatives ? o.batch_size / 2 : o.batch_size);
  const index_t epochs = place.trained / positions + o.epochs;
  journal.begin(Model::name, o.seed);
  step_watch<Model> looked_at(model, how, rate_schedule(o, (positions + of_step - 1) / of_step * epochs),
                              journal, true, o.validate);
  looked_at.begin(place.steps);
  score result;
  result.name = Model::name;
  result.seed = o.seed;
  std::atomic<bool> is_unwritten{false};  // the thread that reads looks too
  const auto save = [&] {
    if (is_unwritten) return;
    result.unwritten = save_model(o.save, model, how, vocabulary, place);
    is_unwritten = !result.unwritten.empty();
  };
  const auto make_graph = [&](graph_use use) {
    return [&, use](reader_of<history_batch> read) {
      return make_graph_step(model, data.tables, std::move(read), use);
    };
  };
  graph_training<history_batch> steps(make_graph(graph_use::train), graph_options_of(o));
  kept_passes passes(result, place, journal, o.patience, save);
  bool is_best = false;  // there was no better pass for long
  const auto test = [&] {
    pair_metrics pairs;
    deeprec::log_loss loss;
    predict_by_graph<history_batch>(on_pool, make_graph(graph_use::predict), test_feed(data, o),
                                    [&](matrix_view<const float> scores, matrix_view<const float> labels) {
                                      pairs.add(scores, labels);
                                      if (Model::gives_logits) loss.add(scores, labels).or_throw();
                                    });
    figures found = pairs.read();
    if (Model::gives_logits) found.log_loss = loss.value();
    result.set(found);
    result.user_auc = pairs.user_auc();
    return found;
  };
  // The pairs that test, between two steps.
  const auto look_at = [&](bool ends_epoch) {
    if (!passes.is_due(ends_epoch)) return;
    evaluation pass{.epoch = (place.trained + positions - 1) / positions,
                    .step = place.steps,
                    .ends_epoch = ends_epoch,
                    .of = o.validate ? "valid" : "test",
                    .train_loss = Model::gives_logits ? looked_at.take_loss() : undefined,
                    .found = test()};
    if (passes.add(pass)) is_best = true;
  };
  constexpr index_t rows_of_position = Model::draws_negatives ? 2 : 1;
  const index_t end = positions * (place.trained / positions + o.epochs);
  progress bar(Model::name, static_cast<double>((end - place.trained) * rows_of_position));
  train_feed feed(data, o, Model::draws_negatives);
  index_t begun = 0;  // steps
  const auto over = [&] {
    return interrupted || is_unwritten || is_best || (o.steps > 0 && begun >= o.steps);
  };
  std::chrono::steady_clock::duration beside{};  // within the training, and not of it
  while (place.trained < end && !over()) {
    feed.begin(place.trained / positions, place.trained % positions);
    const auto read = [&](history_batch& batch) {
      if (over() || !feed.next(batch)) return false;
      ++begun;
      return true;
    };
    const auto trained = [&](index_t rows) {
      result.samples += rows;
      place.trained += rows / rows_of_position;
      ++place.steps;
      looked_at.stepped(place.steps, (place.trained - 1) / positions + 1, place.trained);
      bar.show(static_cast<double>(result.samples));
      const bool within = place.trained % positions != 0;
      const bool looks = o.valid_every > 0 && place.steps % o.valid_every == 0 && within;
      const bool saves = o.save_every > 0 && place.steps % o.save_every == 0 && within;
      if (!looks && !saves) return;
      const auto at = std::chrono::steady_clock::now();
      if (looks) look_at(false);
      if (saves) save();
      beside += std::chrono::steady_clock::now() - at;
      result.watch.start();
    };
    add(result.stages, steps.run(pool, read, trained, result.watch));
    const bool whole_epoch = place.trained % positions == 0;
    if (whole_epoch && !interrupted && (o.patience > 0 || place.trained < end)) look_at(true);
    if (!o.save.empty() && o.patience == 0) save();
  }
  result.stages.elapsed -= std::chrono::duration_cast<decltype(result.stages.elapsed)>(beside);
  result.graph = steps.explain();
  result.memory = steps.memory();
  result.samples_per_second =
      static_cast<double>(result.samples) / std::chrono::duration<double>(result.stages.elapsed).count();

  if (result.kept_step > 0 && result.kept_step != place.steps && !is_unwritten) {
    load(o.save);
    test();
  } else {
    look_at(place.trained % positions == 0);
  }
  result.steps = journal.take_steps();
  if (!o.report.empty()) result.uses = uses_of_tables(model);
  if (o.verbose > 0 || !o.json.empty()) result.checksum = checksum(model);
  result.write([&] { steps.write_trace(); });
  return result;
}

/// A saved model with its tables, which are there before it is filled.
template <class Model>
class loaded_history_model {
 public:
  loaded_history_model(deeprec::executor_ref pool, const options& o, const saved_model& saved) {
    typename Model::options how;
    how.precision = precision_of(o);
    saved.get_sizes(how);
    saved.get_sizes(known_);
    tables_.items = known_.items;
    tables_.categories = known_.categories;
    tables_.unknown = unknown_item;
    model_.emplace(pool, tables_, 0, how);
    saved.load(*model_, known_);
    tables_.category_of = known_.category_of;
  }
  /// Predicts the candidates of a file; each(scores, labels) follows each batch. They have labels or not.
  template <class Each>
  void predict(deeprec::executor_ref pool, const std::string& path, candidate_labels labels,
               bool shows_progress, const std::atomic<bool>& interrupted, const Each& each) {
    candidate_lines rows(path, known_, labels, shows_progress);
    predict_by_graph<history_batch>(
        pool,
        [&](reader_of<history_batch> read) {
          return make_graph_step(*model_, tables_, std::move(read), graph_use::predict);
        },
        [&](history_batch& batch) { return !interrupted && rows.next(batch, 2 * test_pairs); }, each);
  }

 private:
  item_vocabulary known_;
  history_tables tables_;
  std::optional<Model> model_;
};

template <class Model>
void predict_file(thread_pool& pool, const options& o, const saved_model& saved,
                  const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  loaded_history_model<Model> loaded(on_pool, o, saved);
  prediction_writer out(o, Model::gives_logits ? "probability" : "cosine");
  loaded.predict(on_pool, o.predict, candidate_labels::absent, shows_progress(o.output), interrupted,
                 [&](matrix_view<const float> scores, matrix_view<const float>) {
                   for (index_t i = 0; i < scores.extent(0); ++i) {
                     out.add(Model::gives_logits ? probability_of(scores(i, 0)) : scores(i, 0));
                   }
                 });
  if (!interrupted) out.close();
}

/// How good a saved model is for the candidates of a file, which have labels.
template <class Model>
score evaluate_file(thread_pool& pool, const options& o, const saved_model& saved,
                    const std::atomic<bool>& interrupted) {
  deeprec::executor_ref on_pool(pool);
  loaded_history_model<Model> loaded(on_pool, o, saved);
  deeprec::auc area;
  deeprec::log_loss loss;
  score result;
  result.name = Model::name;
  loaded.predict(on_pool, o.evaluate, candidate_labels::present, true, interrupted,
                 [&](matrix_view<const float> scores, matrix_view<const float> labels) {
                   area.add(scores, labels).or_throw();
                   if (Model::gives_logits) loss.add(scores, labels).or_throw();
                 });
  result.set_auc(area);
  result.rows = area.positives() + area.negatives();
  result.log_loss = Model::gives_logits ? loss.value() : undefined;
  return result;
}

/// The uses of an item as its score.
score popularity(const user_histories& data, const options& o) {
  score result;
  result.name = "popular";
  result.seed = o.seed;
  result.log_loss = std::numeric_limits<double>::quiet_NaN();
  pair_metrics pairs;
  test_feed feed(data, o);
  std::vector<float> scores;
  for (history_batch batch; feed(batch);) {
    scores.clear();
    for (const row_id item : batch.targets) {
      scores.push_back(static_cast<float>(data.tables.uses[static_cast<std::size_t>(item)]));
    }
    pairs.add({scores.data(), batch.rows, 1}, {batch.labels.data(), batch.rows, 1});
  }
  result.set(pairs.read());
  result.user_auc = pairs.user_auc();
  return result;
}

}  // namespace

data_facts run_history_models(thread_pool& pool, const options& o, run_journal& journal,
                              std::vector<score>& scores, const std::atomic<bool>& interrupted) {
  const user_histories data = o.data.empty() ? user_histories::generate(o.rows, o.seed)
                                             : user_histories::read(o.data, o.items, o.validate);
  if (data.train.empty() || data.test.empty()) {
    throw failure("too few histories: " + std::to_string(data.train.size()) + " positions to train, " +
                  std::to_string(data.test.size()) + " to test");
  }
  std::printf(
      "%lld users, %lld items, %lld categories; %zu positions to train, %zu to test; seed %llu, %d threads, "
      "gemm by %s\n",
      static_cast<long long>(data.users()), static_cast<long long>(data.tables.items),
      static_cast<long long>(data.tables.categories), data.train.size(), data.test.size(),
      static_cast<unsigned long long>(o.seed), o.threads, gemm_words(o).c_str());
  std::fflush(stdout);
  if (!o.test_rows.empty()) {
    candidate_writer out(o.test_rows, data.item_ids);
    test_feed feed(data, o);
    for (history_batch batch; feed(batch);) out.add(batch);
    out.close();
  }
  for (const std::string& name : o.models) {
    if (interrupted) break;
    scores.push_back(name == din::name ? train_and_test<din>(pool, data, o, journal, interrupted)
                                       : train_and_test<dssm>(pool, data, o, journal, interrupted));
  }
  scores.push_back(popularity(data, o));
  return {.rows = static_cast<index_t>(data.train.size() + data.test.size()),
          .train_rows = static_cast<index_t>(data.train.size()),
          .test_rows = static_cast<index_t>(data.test.size()),
          .table_rows = data.tables.first_row().back()};
}

score evaluate_histories(thread_pool& pool, const options& o, const saved_model& saved,
                         const std::atomic<bool>& interrupted) {
  return (saved.name() == din::name ? evaluate_file<din> : evaluate_file<dssm>)(pool, o, saved, interrupted);
}

void predict_histories(thread_pool& pool, const options& o, const saved_model& saved,
                       const std::atomic<bool>& interrupted) {
  (saved.name() == din::name ? predict_file<din> : predict_file<dssm>)(pool, o, saved, interrupted);
}

}  // namespace ctr
