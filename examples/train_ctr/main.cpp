// Trains click models with deeprec's primitives, on Criteo's click log or on data of its shape, and
// says how good they are and where the time goes.
//
//   train_ctr --data train.txt --model dlrm --model lr --epochs 1
//
// Rows that don't fit --memory are read again in each epoch. The same seed gives the same weights, bit for
// bit, for any number of threads and any --prefetch; also where training stopped in between (--save, --load).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
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
#include "ctr_rows.hpp"
#include "memory_limit.hpp"
#include "models.hpp"
#include "progress.hpp"
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

struct options {
  std::string data, test;
  std::vector<std::string> models;
  index_t batch_size = 128;
  int epochs = 1;
  index_t steps = 0;
  int threads = 0;
  index_t stale_window = 0;
  index_t micro_batch = 1;
  int prefetch = 16;  // a few milliseconds of reading, so that not every batch wakes a thread
  std::uint64_t seed = 1;
  double train_fraction = 0.8;
  std::string memory;
  index_t window = 0;
  index_t rows = 500'000;
  std::string planted = "mixed";
  std::string synthesize;
  std::string math = "f32";
  bool last_layer_f32 = false;
  std::string load, save;
  index_t save_every = 0;
  std::string json;
  int verbose = 0;
};

/// All rows: those to train, and those to test, which are of the same source or of another one.
struct ctr_input {
  std::unique_ptr<row_source> source, test_source;
  std::optional<ctr_rows> rows, test_rows;
  std::optional<ctr_tables> tables;
  deeprec::auc planted_area;
  deeprec::log_loss planted_loss;

  [[nodiscard]] const ctr_rows& to_test() const { return test_rows ? *test_rows : *rows; }
};

struct score {
  std::string name;
  double auc = 0;
  double log_loss = 0;
  double samples_per_second = 0;
  index_t samples = 0;
  std::uint64_t checksum = 0;
  stopwatch watch;
  deeprec::pipeline_statistics stages;
};

/// Rows of tables that fit a quarter of the memory.
index_t table_row_budget() {
  return usable_memory() / 4 / ((dlrm_options{}.width + 1) * static_cast<index_t>(sizeof(float)));
}

std::unique_ptr<synthetic_rows> make_synthetic(const options& o) {
  return std::make_unique<synthetic_rows>(
      o.rows, table_row_budget(), o.seed,
      o.planted == "product" ? planted_model::product : planted_model::mixed);
}

/// Reads all rows once: which are kept, and how often ids are used.
void survey(thread_pool& pool, ctr_input& input, const options& o) {
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
  input.tables.emplace(input.source->table_rows());
  input.rows.emplace(*input.source, o.test.empty() ? o.train_fraction : 2, memory, o.window, o.seed);
  const auto stop = [] { return interrupted.load(); };
  input.rows->survey(pool, stop, [&](const sparse_batch& chunk, index_t row, row_use use) {
    if (use == row_use::train) {
      input.tables->count(chunk, row);
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

deeprec::mlp_precision precision_of(const options& o) {
  deeprec::mlp_precision how;
  how.math = o.math == "bf16"   ? deeprec::gemm_math::bf16
             : o.math == "tf32" ? deeprec::gemm_math::tf32
                                : deeprec::gemm_math::f32;
  if (o.last_layer_f32) how.last = deeprec::mlp_precision::last_layer::f32;
  return how;
}

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
  typename Model::options how;
  how.precision = precision_of(o);
  Model model(pool, input.tables->first_row, o.seed, how);
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
      };
      if (o.stale_window > 0) {
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
                                              train(pool, model, batch, step, result.watch).or_throw();
                                            }
                                            trained(batch.rows());
                                            if (o.save_every > 0 && place.steps % o.save_every == 0 &&
                                                place.trained % train_rows != 0) {
                                              save();
                                              result.watch.start();
                                            }
                                          }));
      }
      if (!o.save.empty()) save();
    }
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
        predict(pool, model, batch, step).or_throw();
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

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

void print(const std::vector<score>& scores, const options& o) {
  std::printf("%-8s %8s %9s %11s", "model", "auc", "logloss", "samples/s");
  for (const char* name : part_names) std::printf(" %9s", name);
  std::printf("\n");
  for (const score& s : scores) {
    std::printf("%-8s %8.4f %9.4f", s.name.c_str(), s.auc, s.log_loss);
    if (s.samples > 0) {
      std::printf(" %11.0f", s.samples_per_second);
      for (std::size_t p = 0; p < part_names.size(); ++p) {
        std::printf(" %7.0f %%", 100 * s.watch.seconds(p) / s.watch.total());
      }
    }
    std::printf("\n");
    if (o.verbose > 0 && s.samples > 0) {
      std::printf("         checksum of the weights %s\n", hex(s.checksum).c_str());
    }
  }
  for (const score& s : scores) {
    if (s.stages.stages.empty()) continue;
    // What the others wait for; of the training, its longest part.
    std::string slowest = s.stages.bottleneck();
    if (slowest == "train") {
      std::size_t longest = static_cast<std::size_t>(part::lookup);
      for (std::size_t p = longest; p < part_names.size(); ++p) {
        if (s.watch.seconds(p) > s.watch.seconds(longest)) longest = p;
      }
      slowest += std::string(", most of all ") + part_names[longest];
    }
    std::printf("%s: %.1f s;", s.name.c_str(), std::chrono::duration<double>(s.stages.elapsed).count());
    for (const deeprec::stage_statistics& stage : s.stages.stages) {
      std::printf(" %s %.0f %%,", stage.name, 100 * stage.occupancy);
    }
    std::printf(" bottleneck: %s; %lld MB of memory at most\n", slowest.c_str(),
                static_cast<long long>(peak_megabytes()));
  }
  std::fflush(stdout);
}

void write_json(const std::vector<score>& scores, const ctr_input& input, const options& o) {
  nlohmann::json out = {{"data", o.data.empty() ? "synthetic" : o.data},
                        {"rows", input.rows->rows()},
                        {"train_rows", input.rows->rows(row_use::train)},
                        {"test_rows", input.to_test().rows(row_use::test)},
                        {"window", input.rows->window()},
                        {"kept", input.rows->is_kept()},
                        {"peak_megabytes", peak_megabytes()},
                        {"table_rows", input.tables->rows()},
                        {"prefetch", o.prefetch},
                        {"stale_window", o.stale_window},
                        {"micro_batch", o.micro_batch},
                        {"batch_size", o.batch_size},
                        {"epochs", o.epochs},
                        {"threads", o.threads},
                        {"seed", o.seed},
                        {"math", o.math},
                        {"last_layer_f32", o.last_layer_f32},
                        {"isa", to_string(deeprec::active_isa())},
                        {"gemm", to_string(deeprec::host_gemm_backends{})},
                        {"interrupted", interrupted.load()},
                        {"models", nlohmann::json::array()}};
  for (const score& s : scores) {
    nlohmann::json one = {{"model", s.name}, {"auc", s.auc}, {"logloss", s.log_loss}};
    if (s.samples > 0) {
      one["samples"] = s.samples;
      one["samples_per_second"] = s.samples_per_second;
      one["checksum"] = hex(s.checksum);
      for (std::size_t p = 0; p < part_names.size(); ++p) {
        one["share"][part_names[p]] = s.watch.seconds(p) / s.watch.total();
      }
    }
    out["models"].push_back(one);
  }
  std::ofstream file(o.json);
  file << out.dump(2) << '\n';
  if (!file.flush()) throw failure("cannot write " + o.json);
}

/// How the rows are read and shuffled, in words.
std::string order_of(const ctr_rows& rows) {
  const std::string read = rows.is_kept() ? "kept" : "read in each epoch";
  return read + (rows.window() == 0 ? "" : ", shuffled in windows of " + std::to_string(rows.window()));
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
  survey(pool, input, o);
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
  if (!o.json.empty()) write_json(scores, input, o);
  if (!interrupted) return 0;
  std::fprintf(stderr, "train_ctr: interrupted; the figures are of the steps done so far\n");
  return 130;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app("Trains click models: on a Criteo file, or on data of its shape.", "train_ctr");
  const auto file = CLI::Validator(
      [](std::string& path) {
        return path == "-" || ::access(path.c_str(), F_OK) == 0 ? "" : "no such file: " + path;
      },
      "FILE");
  const auto bytes = CLI::Validator(
      [](std::string& text) {
        return parse_bytes(text) > 0 ? "" : text + " is no number of bytes, as 512M is";
      },
      "BYTES");
  app.add_option(
         "--data", o.data,
         "Criteo text, tab or comma, also compressed by gzip or zstd; -: the standard input (default: "
         "synthetic data)")
      ->check(file);
  app.add_option("--test", o.test, "test with these rows, and train with all of --data")->check(file);
  app.add_option(
         "--memory", o.memory,
         "what rows may take, for instance 1G; more rows are read again in each epoch (default: a quarter "
         "of the memory)")
      ->check(bytes);
  app.add_option("--window", o.window, "rows that are shuffled at a time; 0: as many as the memory holds")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--prefetch", o.prefetch, "batches that are read ahead; 0: without a thread for it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--stale-window", o.stale_window,
                 "lookups on their way at once: batch t is looked up with the updates up to t - W; 1: "
                 "synchronous; 0: without threads for them")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  app.add_option("--micro-batch", o.micro_batch,
                 "parts of a batch: one is looked up while the one before is computed, with one update")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--model", o.models, "dlrm, wdl or lr; may be repeated (default: dlrm and lr)")
      ->check(CLI::IsMember({dlrm::name, wide_deep::name, logistic_regression::name}));
  app.add_option("--math", o.math, "of the dense layers: f32, bf16 or tf32")
      ->check(CLI::IsMember({"f32", "bf16", "tf32"}))
      ->capture_default_str();
  app.add_flag("--last-layer-f32", o.last_layer_f32, "the last layer in f32 beside --math");
  app.add_option("--batch-size", o.batch_size, "rows of a training step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "passes over the training rows")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", o.steps, "end after so many steps, also within an epoch; 0: don't")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--threads", o.threads, "0: one for each processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the split, the order, the first weights")->capture_default_str();
  app.add_option("--train-fraction", o.train_fraction, "the rest of the rows tests; what a row says decides")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--rows", o.rows, "of synthetic data")
      ->check(CLI::Range(10, 1 << 28))
      ->capture_default_str();
  app.add_option("--planted", o.planted,
                 "what decides the clicks of synthetic data: mixed, or product (of two tokens alone)")
      ->check(CLI::IsMember({"mixed", "product"}))
      ->capture_default_str();
  app.add_option("--synthesize", o.synthesize,
                 "write --rows of synthetic data to this file, and train nothing");
  app.add_option("--save-every", o.save_every, "also save after so many steps; 0: don't")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--save", o.save, "after every epoch, write the one model to this file");
  app.add_option("--load", o.load, "train on from this file, for --epochs more, the begun one included")
      ->check(CLI::ExistingFile);
  app.add_option("--json", o.json, "also write the result to this file");
  app.add_flag("--verbose", o.verbose, "print the checksum of the weights");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 2;
  }
  if (o.models.size() != 1 && !(o.save.empty() && o.load.empty())) {
    std::fprintf(stderr, "train_ctr: --save and --load are for one --model\n");
    return 2;
  }
  if (o.save_every > 0 && o.save.empty()) {
    std::fprintf(stderr, "train_ctr: --save-every needs --save\n");
    return 2;
  }
  if (o.save_every > 0 && o.stale_window > 0) {
    std::fprintf(stderr, "train_ctr: --save-every is not for --stale-window: lookups are on their way\n");
    return 2;
  }
  if (!o.test.empty() && o.data.empty()) {
    std::fprintf(stderr, "train_ctr: --test needs --data\n");
    return 2;
  }
  if (o.models.empty()) o.models = {dlrm::name, logistic_regression::name};

  std::signal(SIGINT, on_interrupt);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write
  try {
    return run(o);
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 1;
  }
}
