// Trains click models with deeprec's primitives, on Criteo's click log or on data of its shape, and
// says how good they are and where the time goes.
//
//   train_ctr --data train.txt --model dlrm --model lr --epochs 1
//
// Rows that don't fit --memory are read again in each epoch. The same seed gives the same weights, bit for
// bit, for any number of threads and any --prefetch; also where training stopped in between (--save, --load).
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <deeprec/dense/metrics/metrics.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "click_models.hpp"
#include "ctr_input.hpp"
#include "ctr_rows.hpp"
#include "data_schema.hpp"
#include "history_models.hpp"
#include "opened_text.hpp"
#include "options.hpp"
#include "rank_run.hpp"
#include "report.hpp"
#include "run_files.hpp"
#include "run_journal.hpp"
#include "saved_model.hpp"
#include "synthetic.hpp"
#include "table_sizes.hpp"

namespace {

using namespace ctr;
using deeprec::thread_pool;

std::atomic<bool> interrupted{false};  // read by the thread that reads rows as well
std::atomic<int> interrupted_by{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

constexpr int interrupts[] = {SIGINT, SIGTERM, SIGHUP};

// The first one asks to end after this step, the second ends at once.
void on_interrupt(int signal) {
  interrupted = true;
  interrupted_by = signal;
  for (const int any : interrupts) std::signal(any, SIG_DFL);
}
void expect_interrupts() {
  pipes_end = &interrupted;
  for (const int any : interrupts) {
    // With nohup a run goes on when its terminal is closed.
    if (std::signal(any, on_interrupt) == SIG_IGN && any == SIGHUP) std::signal(any, SIG_IGN);
  }
}

void name_skipped(const skipped_rows& skipped) {
  for (const std::string& one : skipped.first) std::fprintf(stderr, "train_ctr: left out: %s\n", one.c_str());
  if (skipped.count > 0)
    std::fprintf(stderr, "train_ctr: %s bad rows are left out\n", std::to_string(skipped.count).c_str());
}

score planted_score(ctr_input& input, const options& o) {
  score result;
  result.name = "planted";
  result.seed = o.seed;
  result.set_auc(input.planted_area);
  result.log_loss = input.planted_loss.value();
  return result;
}

int end_of_run() {
  if (!interrupted) return 0;
  std::fprintf(stderr, "train_ctr: interrupted; the figures are of the steps done so far\n");
  return 128 + interrupted_by;
}

/// Trains and tests the models of click logs with the seed of the options.
data_facts run_click_models(thread_pool& pool, const options& o, rank_run* ranks, run_journal& journal,
                            std::vector<score>& scores) {
  ctr_input input;
  input.ranks = ranks;
  input.journal = &journal;
  // Ranks end together, behind a step.
  const auto ends_here = [&] { return ranks == nullptr && interrupted.load(); };
  if (o.columns != nullptr && o.columns->columns.has_bags()) {
    for (const auto& [is, name] :
         {std::pair(ranks != nullptr, "--ranks"), std::pair(o.has_raw_keys(), "--keys raw"),
          std::pair(o.importance, "--importance"), std::pair(!o.export_to.empty(), "--export")}) {
      if (is) throw failure(o.schema + ": a column of use tokens is not for " + name);
    }
  }
  survey(pool, input, o, ends_here);
  if (o.table_rows == "auto") {
    input.tables = fitted(*input.tables, o.columns != nullptr ? o.columns->rows : std::vector<index_t>());
  }
  const ctr_rows& rows = *input.rows;
  const data_facts facts{.rows = rows.rows() - rows.rows(row_use::nothing),
                         .train_rows = rows.rows(row_use::train),
                         .valid_rows = input.rows_to_validate(),
                         .test_rows = input.to_test().rows(row_use::test),
                         .window = rows.window(),
                         .is_kept = rows.is_kept(),
                         .table_rows = input.tables->rows(),
                         .skipped = input.skipped};
  if (scores.empty()) name_skipped(facts.skipped);
  const auto count = [](index_t number) { return std::to_string(number); };
  const bool validates = !o.valid.empty();
  if (!interrupted &&
      (facts.train_rows == 0 || facts.test_rows == 0 || (validates && facts.valid_rows == 0))) {
    throw failure((o.data.empty() ? "" : input.source->name() + ": ") +
                  "too few rows: " + count(facts.train_rows) + " to train, " +
                  (validates ? count(facts.valid_rows) + " to validate, " : "") + count(facts.test_rows) +
                  " to test");
  }
  std::printf("%s rows to train, %s%s to test, %s; seed %s, %d threads, gemm by %s\n",
              count(facts.train_rows).c_str(),
              validates ? (count(facts.valid_rows) + " to validate, ").c_str() : "",
              count(facts.test_rows).c_str(), order_of(rows).c_str(), std::to_string(o.seed).c_str(),
              o.threads, gemm_words(o).c_str());
  std::fflush(stdout);
  for (const std::string& name : o.models) {
    if (ends_here()) break;
    scores.push_back(find_click_model(name)->train(pool, input, o, interrupted));
  }
  if (o.data.empty()) scores.push_back(planted_score(input, o));
  return facts;
}

int run(options& o, rank_run* ranks) {
  if (!o.schema.empty()) o.columns = std::make_shared<data_schema>(read_schema(o.schema));
  check_files(o);
  if (o.threads == 0) o.threads = deeprec::default_concurrency();
  thread_pool pool({.threads = o.threads});
  if (!o.synthesize.empty()) {
    const auto made = make_synthetic(o);
    write_text(pool, *made, o.synthesize);
    return 0;
  }
  if (!o.predict.empty() || !o.evaluate.empty()) {
    const saved_model saved(o.load);
    const click_model_runs* const model = find_click_model(saved.name());
    if (const std::string schema = saved.schema(); !schema.empty())
      o.columns = std::make_shared<data_schema>(schema_of(schema, o.load + ": schema"));
    const bool of_histories = is_history_model(saved.name());
    for (const auto& [is, name] :
         {std::pair(o.skip_bad > 0, "--skip-bad"), std::pair(!o.group.empty(), "--group")}) {
      if (is && of_histories)
        throw failure(std::string(name) + " is not for din and dssm (" + o.load + " is of one)");
    }
    find_group(o);
    if (saved.has_raw_keys()) o.keys = "raw";
    if (of_histories && !o.predict.empty()) {
      predict_histories(pool, o, saved, interrupted);
    } else if (model == nullptr && !of_histories) {
      throw failure(o.load + ": has a model of an unknown name: " + saved.name());
    } else if (!o.predict.empty()) {
      model->predict(pool, o, saved, interrupted);
    } else {
      skipped_rows skipped;
      const score found = of_histories ? evaluate_histories(pool, o, saved, interrupted)
                                       : model->evaluate(pool, o, saved, interrupted, skipped);
      name_skipped(skipped);
      if (found.rows == 0 && !interrupted) throw failure(o.evaluate + ": too few rows: 0 to evaluate");
      report({found}, {.rows = found.rows, .test_rows = found.rows, .skipped = skipped}, o, interrupted);
      return end_of_run();
    }
    return interrupted ? 128 + interrupted_by : 0;
  }
  find_group(o);
  run_journal journal(o);
  std::vector<score> scores;
  data_facts facts;
  const std::uint64_t first_seed = o.seed;
  for (int again = 0; again < o.repeat && !interrupted; ++again, ++o.seed) {
    const data_facts found = is_history_model(o.models.front())
                                 ? run_history_models(pool, o, journal, scores, interrupted)
                                 : run_click_models(pool, o, ranks, journal, scores);
    if (again == 0) facts = found;  // the rows of --seed
  }
  o.seed = first_seed;
  report(scores, facts, o, interrupted, journal.fault());
  return end_of_run();
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  if (const std::optional<int> code = parse(o, argc, argv)) return *code;
  expect_interrupts();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write
  std::unique_ptr<rank_run> ranks;
  const auto failed = [&] {
    if (ranks != nullptr && ranks->size() > 1) ranks->abort();  // the others may wait
    return 1;
  };
  try {
    if (o.ranks) {
      ranks = begin_ranks();
      if (ranks->rank() > 0) {  // the first one reports
        for (std::string* const path : {&o.json, &o.log, &o.report, &o.tensorboard}) path->clear();
        if (std::freopen("/dev/null", "w", stdout) == nullptr) throw failure("/dev/null: can't be written");
      }
    }
    return run(o, ranks.get());
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr,
        "train_ctr: out of memory: the model, a batch or the rows need more than this process may use "
        "(less with smaller --bottom, --top, --width, --table-rows, --batch-size, --rows or --memory)\n");
    return failed();
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    const int code = failed();
    return interrupted ? 128 + interrupted_by : code;  // a pipe that ended early may lack a part of a row
  }
}
