// Trains click models with deeprec's primitives, on Criteo's click log or on data of its shape, and
// says how good they are and where the time goes.
//
//   train_ctr --data train.txt --model dlrm --model lr --epochs 1
//
// The same seed gives the same weights, bit for bit, for any number of threads; also where training
// stopped in between (--save, --load).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/dense/metrics.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "ctr_data.hpp"
#include "models.hpp"
#include "progress.hpp"
#include "saved_model.hpp"
#include "synthetic.hpp"
#include "wide_deep.hpp"

namespace {

using namespace train_ctr;
using deeprec::thread_pool;

volatile std::sig_atomic_t interrupted = 0;

// The first Ctrl-C asks to end after this step, the second ends at once.
void on_interrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

struct options {
  std::string data;
  std::vector<std::string> models;
  index_t batch_size = 128;
  int epochs = 1;
  int threads = 0;
  std::uint64_t seed = 1;
  double train_fraction = 0.8;
  index_t rows = 500'000;
  std::string planted = "mixed";
  std::string math = "f32";
  bool last_layer_f32 = false;
  std::string load, save;
  std::string json;
  int verbose = 0;
};

/// What a user can mend: one line on stderr, and exit code 1.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct score {
  std::string name;
  double auc = 0;
  double log_loss = 0;
  double samples_per_second = 0;
  index_t samples = 0;
  std::uint64_t checksum = 0;
  stopwatch watch;
};

ctr_data read_criteo(thread_pool& pool, const std::string& path) {
  deeprec::criteo_format format{.rows = deeprec::criteo_format::same_size(index_t{1} << 17)};
  format.missing_dense = std::numeric_limits<float>::quiet_NaN();
  auto reader = read_files(pool, format, {path});
  if (!reader) throw failure(reader.fault().message());
  ctr_data data(format.rows);
  deeprec::sparse_batch batch;
  while (interrupted == 0) {
    const auto rows = reader.value().next(batch, 8192);
    if (!rows) throw failure(rows.fault().message());
    if (rows.value() == 0) break;
    for (index_t i = 0; i < batch.rows(); ++i) {
      data.add(batch.labels()[static_cast<std::size_t>(i)], std::as_const(batch).dense().row(i),
               [&](index_t s) { return batch.feature(s).ids()[i]; });
    }
  }
  return data;
}

/// Rows of tables that fit a quarter of this machine's memory.
index_t table_row_budget() {
  const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return static_cast<index_t>(bytes / 4 / (static_cast<double>(dlrm_options{}.width + 1) * 4));
}

deeprec::mlp_precision precision_of(const options& o) {
  deeprec::mlp_precision how;
  how.math = o.math == "bf16"   ? deeprec::gemm_math::bf16
             : o.math == "tf32" ? deeprec::gemm_math::tf32
                                : deeprec::gemm_math::f32;
  if (o.last_layer_f32) how.last = deeprec::mlp_precision::last_layer::f32;
  return how;
}

template <class Model>
score train_and_test(thread_pool& pool, const ctr_data& data, ctr_split split, const options& o) {
  typename Model::options how;
  how.precision = precision_of(o);
  Model model(pool, data.first_row, o.seed, how);
  score result;
  result.name = Model::name;

  const auto train_rows = static_cast<index_t>(split.train.size());
  training_place place{
      .seed = static_cast<index_t>(o.seed), .data_rows = data.rows, .train_rows = train_rows};
  if (!o.load.empty()) {
    if (const std::string why = load_model(o.load, model, place); !why.empty()) throw failure(why);
  }
  constexpr index_t test_batch = 4096;
  batch_maker maker(std::max(o.batch_size, test_batch));
  {
    const index_t first_epoch = place.trained / train_rows;
    const index_t before = place.trained;
    progress bar(Model::name, static_cast<double>(train_rows * (first_epoch + o.epochs) - before));
    for (index_t epoch = 0; epoch < first_epoch + o.epochs && interrupted == 0; ++epoch) {
      shuffle(split.train, deeprec::counter_rng(o.seed), 10 + static_cast<std::uint64_t>(epoch));
      if (epoch < first_epoch) continue;  // an order follows from the one before
      for (index_t at = place.trained - epoch * train_rows; at < train_rows && interrupted == 0;
           at += o.batch_size) {
        const index_t count = std::min(o.batch_size, train_rows - at);
        result.watch.start();
        const ctr_batch batch = maker.make(pool, data, split.train.data() + at, count);
        result.watch.lap(part::read);
        model.train(pool, batch, result.watch).or_throw();
        result.samples += count;
        place.trained += count;
        ++place.steps;
        bar.show(static_cast<double>(result.samples));
      }
      if (o.save.empty()) continue;
      if (const std::string why = save_model(o.save, model, place); !why.empty()) throw failure(why);
    }
  }
  result.samples_per_second = static_cast<double>(result.samples) / result.watch.total();

  deeprec::auc area;
  deeprec::log_loss loss;
  stopwatch testing;
  const auto test_rows = static_cast<index_t>(split.test.size());
  for (index_t at = 0; at < test_rows; at += test_batch) {
    const index_t count = std::min(test_batch, test_rows - at);
    const ctr_batch batch = maker.make(pool, data, split.test.data() + at, count);
    model.predict(pool, batch, testing).or_throw();
    area.add(model.logits(), batch.labels).or_throw();
    loss.add(model.logits(), batch.labels).or_throw();
  }
  result.auc = area.value();
  result.log_loss = loss.value();
  if (o.verbose > 0 || !o.json.empty()) result.checksum = model.checksum();
  return result;
}

score planted_score(const synthetic_data& made, const std::vector<index_t>& test) {
  deeprec::auc area;
  deeprec::log_loss loss;
  for (const index_t row : test) {
    const auto at = static_cast<std::size_t>(row);
    const matrix_view<const float> logit(&made.planted_logits[at], 1, 1);
    const matrix_view<const float> label(&made.data.labels[at], 1, 1);
    area.add(logit, label).or_throw();
    loss.add(logit, label).or_throw();
  }
  score result;
  result.name = "planted";
  result.auc = area.value();
  result.log_loss = loss.value();
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
  std::fflush(stdout);
}

void write_json(const std::vector<score>& scores, const ctr_data& data, const ctr_split& split,
                const options& o) {
  nlohmann::json out = {{"data", o.data.empty() ? "synthetic" : o.data},
                        {"rows", data.rows},
                        {"train_rows", split.train.size()},
                        {"test_rows", split.test.size()},
                        {"table_rows", data.first_row.back()},
                        {"batch_size", o.batch_size},
                        {"epochs", o.epochs},
                        {"threads", o.threads},
                        {"seed", o.seed},
                        {"math", o.math},
                        {"last_layer_f32", o.last_layer_f32},
                        {"isa", to_string(deeprec::active_isa())},
                        {"gemm", to_string(deeprec::host_gemm_backends{})},
                        {"interrupted", interrupted != 0},
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
  synthetic_data made =
      o.data.empty() ? make_synthetic(pool, o.rows, table_row_budget(), o.seed,
                                      o.planted == "product" ? planted_model::product : planted_model::mixed)
                     : synthetic_data{read_criteo(pool, o.data), {}};
  ctr_data& data = made.data;
  const ctr_split split = split_rows(data.rows, o.train_fraction, o.seed);
  if (interrupted == 0 && (split.train.empty() || split.test.empty())) {
    throw failure("too few rows: " + std::to_string(split.train.size()) + " to train, " +
                  std::to_string(split.test.size()) + " to test");
  }
  data.share_rare_rows(split.train, 2);

  std::printf("%lld rows to train, %lld to test; seed %llu, %d threads, gemm by %s\n",
              static_cast<long long>(split.train.size()), static_cast<long long>(split.test.size()),
              static_cast<unsigned long long>(o.seed), o.threads,
              to_string(deeprec::host_gemm_backends{}).c_str());
  std::fflush(stdout);
  std::vector<score> scores;
  for (const std::string& name : o.models) {
    if (interrupted != 0) break;
    scores.push_back(name == dlrm::name        ? train_and_test<dlrm>(pool, data, split, o)
                     : name == wide_deep::name ? train_and_test<wide_deep>(pool, data, split, o)
                                               : train_and_test<logistic_regression>(pool, data, split, o));
  }
  if (!made.planted_logits.empty()) scores.push_back(planted_score(made, split.test));
  print(scores, o);
  if (!o.json.empty()) write_json(scores, data, split, o);
  if (interrupted == 0) return 0;
  std::fprintf(stderr, "train_ctr: interrupted; the figures are of the steps done so far\n");
  return 130;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app("Trains click models: on a Criteo file, or on data of its shape.", "train_ctr");
  app.add_option("--data", o.data, "Criteo text, tab or comma (default: synthetic data)")
      ->check(CLI::ExistingFile);
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
  app.add_option("--threads", o.threads, "0: one for each processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the split, the order, the first weights")->capture_default_str();
  app.add_option("--train-fraction", o.train_fraction, "the rest of the rows tests")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--rows", o.rows, "of synthetic data")
      ->check(CLI::Range(10, 1 << 28))
      ->capture_default_str();
  app.add_option("--planted", o.planted,
                 "what decides the clicks of synthetic data: mixed, or product (of two tokens alone)")
      ->check(CLI::IsMember({"mixed", "product"}))
      ->capture_default_str();
  app.add_option("--save", o.save, "after every epoch, write the one model to this file");
  app.add_option("--load", o.load, "train on from this file, for --epochs more")->check(CLI::ExistingFile);
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
  if (o.models.empty()) o.models = {dlrm::name, logistic_regression::name};

  std::signal(SIGINT, on_interrupt);
  try {
    return run(o);
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return 1;
  }
}
