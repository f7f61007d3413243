// Trains click models with deeprec's primitives, on Criteo's click log or on data of its shape, and
// says how good they are and where the time goes.
//
//   train_ctr --data train.txt --model dlrm --model lr --epochs 1
//
// Rows that don't fit --memory are read again in each epoch. The same seed gives the same weights, bit for
// bit, for any number of threads and any --prefetch; also where training stopped in between (--save, --load).
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/dense/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/pipeline/pipeline.hpp>
#include <deeprec/staging/staging_pool.hpp>

#include "ctr_data.hpp"
#include "ctr_input.hpp"
#include "ctr_rows.hpp"
#include "graph_training.hpp"
#include "models.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "saved_model.hpp"
#include "synthetic.hpp"
#include "training.hpp"
#include "wide_deep.hpp"

namespace {

using namespace train_ctr;

std::atomic<bool> interrupted{false};  // read by the thread that reads rows as well
static_assert(std::atomic<bool>::is_always_lock_free);

// The first Ctrl-C asks to end after this step, the second ends at once.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

deeprec::mlp_precision precision_of(const options& o) {
  deeprec::mlp_precision how;
  how.math = o.math == "bf16"   ? deeprec::gemm_math::bf16
             : o.math == "tf32" ? deeprec::gemm_math::tf32
                                : deeprec::gemm_math::f32;
  if (o.last_layer_f32) how.last = deeprec::mlp_precision::last_layer::f32;
  return how;
}

// The sizes that were given; the others stay as the model has them.
void set_sizes(dlrm_options& of, const options& o) {
  if (o.width > 0) of.width = o.width;
  if (!o.bottom.empty()) of.bottom = o.bottom;
  if (!o.top.empty()) of.top = o.top;
}
void set_sizes(wide_deep_options& of, const options& o) {
  if (o.width > 0) of.width = o.width;
  if (!o.top.empty()) of.hidden = o.top;
}
void set_sizes(lr_options&, const options&) {}

void add(deeprec::pipeline_statistics& sum, const deeprec::pipeline_statistics& more) {
  if (sum.stages.empty()) {
    sum = more;
    return;
  }
  sum.elapsed += more.elapsed;
  for (std::size_t i = 0; i < sum.stages.size(); ++i) {
    deeprec::stage_statistics& s = sum.stages[i];
    s.items += more.stages[i].items;
    s.busy += more.stages[i].busy;
    s.input_wait += more.stages[i].input_wait;
    s.output_wait += more.stages[i].output_wait;
    s.occupancy = static_cast<double>(s.busy.count()) / static_cast<double>(sum.elapsed.count());
  }
}

template <class Model>
score train_and_test(thread_pool& pool, const ctr_input& input, const options& o) {
  deeprec::executor_ref on_pool(pool);
  typename Model::options how;
  how.precision = precision_of(o);
  set_sizes(how, o);
  Model model(on_pool, input.tables->first_row, o.seed, how);
  typename Model::step step;
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
    if (const std::string why = load_model(o.load, model, place); !why.empty()) throw failure(why);
  }
  const auto save = [&] {
    if (const std::string why = save_model(o.save, model, place); !why.empty()) throw failure(why);
  };
  // A thread that reads has no use for those that train, whose work is short.
  deeprec::inline_executor here;
  const deeprec::executor_ref reading =
      o.prefetch == 0 ? deeprec::executor_ref(pool) : deeprec::executor_ref(here);
  const index_t first_epoch = place.trained / train_rows;
  const index_t end = train_rows * (first_epoch + o.epochs);
  std::atomic<index_t> begun{0};  // steps; the thread that reads looks too
  const auto over = [&] { return interrupted || (o.steps > 0 && begun >= o.steps); };
  std::optional<step_in_parts<Model>> in_parts;
  if (o.micro_batch > 1) {
    using rows_are = typename step_in_parts<Model>::rows_are;
    in_parts.emplace(pool, model, o.micro_batch,
                     o.stale_window > 0 ? rows_are::looked_up_before : rows_are::looked_up_here);
  }
  std::optional<graph_training> as_graph;
  if (o.is_graph()) {
    as_graph.emplace(model, *input.tables,
                     graph_options{.smart_stage = o.smart_stage,
                                   .batch_size = o.batch_size,
                                   .threads = o.threads,
                                   .prefetch = o.prefetch,
                                   .trace = o.trace,
                                   .picture = o.graph});
  }
  {
    row_feed feed(rows, row_use::train);
    progress bar(Model::name, static_cast<double>(end - place.trained));
    while (place.trained < end && !over()) {
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
        const auto no_more = [&, read = begun.load()]() mutable {
          return interrupted || (o.steps > 0 && read++ >= o.steps);
        };
        add(result.stages, as_graph->run(pool, feed, no_more, trained, result.watch));
        begun += place.steps - before;
      } else if (o.stale_window > 0) {
        const auto stop = [&] { return over() || begun++ < 0; };
        add(result.stages, train_in_window(pool, feed, o.batch_size, *input.tables, model, o.stale_window,
                                           in_parts ? &*in_parts : nullptr, result.watch, stop, trained));
      } else {
        add(result.stages, for_each_batch(pool, feed, o.batch_size, Model::ids, *input.tables, o.prefetch,
                                          over, [&](const ctr_batch& batch) {
                                            result.watch.lap(part::read);
                                            ++begun;
                                            model.begin(batch.rows(), step);
                                            if (in_parts) {
                                              in_parts->train(batch, step, result.watch);
                                            } else {
                                              train(on_pool, model, batch, step, result.watch).or_throw();
                                            }
                                            trained(batch.rows());
                                          }));
      }
      if (!o.save.empty()) save();
    }
  }
  if (as_graph) {
    as_graph->write_trace();
    result.graph = as_graph->explain();
  }
  result.samples_per_second =
      static_cast<double>(result.samples) / std::chrono::duration<double>(result.stages.elapsed).count();

  deeprec::auc area;
  deeprec::log_loss loss;
  row_feed feed(input.to_test(), row_use::test);
  feed.begin(reading, 0, 0);
  for_each_batch(
      pool, feed, 4096, Model::ids, *input.tables, std::min(o.prefetch, 2), [] { return false; },
      [&](const ctr_batch& batch) {
        predict(on_pool, model, batch, step).or_throw();
        area.add(model.logits(), batch.labels).or_throw();
        loss.add(model.logits(), batch.labels).or_throw();
      });
  result.auc = area.value();
  result.log_loss = loss.value();
  if (o.verbose > 0 || !o.json.empty()) result.checksum = model.checksum();
  return result;
}

score planted_score(ctr_input& input) {
  score result;
  result.name = "planted";
  result.auc = input.planted_area.value();
  result.log_loss = input.planted_loss.value();
  return result;
}

int run(options& o) {
  if (!o.json.empty() && !std::ofstream(o.json, std::ios::app)) {
    throw failure("cannot write " + o.json);
  }
  if (!o.save.empty()) {  // not after hours of training
    const std::filesystem::path folder = std::filesystem::path(o.save).parent_path();
    if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
      throw failure("cannot write " + o.save);
  }
  if (o.threads == 0) o.threads = deeprec::default_concurrency();
  thread_pool pool({.threads = o.threads});
  if (!o.synthesize.empty()) {
    const auto made = make_synthetic(o);
    write_text(pool, *made, o.synthesize);
    return 0;
  }
  ctr_input input;
  survey(pool, input, o, [] { return interrupted.load(); });
  const ctr_rows& rows = *input.rows;
  const index_t to_train = rows.rows(row_use::train), to_test = input.to_test().rows(row_use::test);
  if (!interrupted && (to_train == 0 || to_test == 0)) {
    throw failure("too few rows: " + std::to_string(to_train) + " to train, " + std::to_string(to_test) +
                  " to test");
  }

  std::printf("%lld rows to train, %lld to test, %s; seed %llu, %d threads, gemm by %s\n",
              static_cast<long long>(to_train), static_cast<long long>(to_test), order_of(rows).c_str(),
              static_cast<unsigned long long>(o.seed), o.threads,
              to_string(deeprec::host_gemm_backends{}).c_str());
  std::fflush(stdout);
  std::vector<score> scores;
  for (const std::string& name : o.models) {
    if (interrupted) break;
    scores.push_back(name == dlrm::name        ? train_and_test<dlrm>(pool, input, o)
                     : name == wide_deep::name ? train_and_test<wide_deep>(pool, input, o)
                                               : train_and_test<logistic_regression>(pool, input, o));
  }
  if (o.data.empty()) scores.push_back(planted_score(input));
  print(scores, o);
  if (!o.json.empty()) write_json(scores, input, o, interrupted);
  if (!interrupted) return 0;
  std::fprintf(stderr, "train_ctr: interrupted; the figures are of the steps done so far\n");
  return 130;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  if (const std::optional<int> code = parse(o, argc, argv)) return *code;
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write
  try {
    return run(o);
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 1;
  }
}
