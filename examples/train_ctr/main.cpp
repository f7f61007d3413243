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
#include "history_models.hpp"
#include "options.hpp"
#include "rank_run.hpp"
#include "report.hpp"
#include "run_files.hpp"
#include "saved_model.hpp"
#include "synthetic.hpp"

namespace {

using namespace ctr;
using deeprec::thread_pool;

std::atomic<bool> interrupted{false};  // read by the thread that reads rows as well
static_assert(std::atomic<bool>::is_always_lock_free);

// The first Ctrl-C asks to end after this step, the second ends at once.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

score planted_score(ctr_input& input) {
  score result;
  result.name = "planted";
  result.set_auc(input.planted_area);
  result.log_loss = input.planted_loss.value();
  return result;
}

int end_of_run() {
  if (!interrupted) return 0;
  std::fprintf(stderr, "train_ctr: interrupted; the figures are of the steps done so far\n");
  return 130;
}

int run(options& o, rank_run* ranks) {
  check_files(o);
  if (o.threads == 0) o.threads = deeprec::default_concurrency();
  thread_pool pool({.threads = o.threads});
  if (!o.synthesize.empty()) {
    const auto made = make_synthetic(o);
    write_text(pool, *made, o.synthesize);
    return 0;
  }
  if (!o.predict.empty()) {
    const saved_model saved(o.load);
    if (is_history_model(saved.name())) {
      predict_histories(pool, o, saved, interrupted);
    } else if (const click_model_runs* const model = find_click_model(saved.name())) {
      model->predict(pool, o, saved, interrupted);
    } else {
      throw failure(o.load + ": has a model of an unknown name: " + saved.name());
    }
    return interrupted ? 130 : 0;
  }
  if (is_history_model(o.models.front())) {
    run_history_models(pool, o, interrupted);
    return end_of_run();
  }
  ctr_input input;
  input.ranks = ranks;
  // Ranks end together, behind a step.
  const auto ends_here = [&] { return ranks == nullptr && interrupted.load(); };
  survey(pool, input, o, ends_here);
  const ctr_rows& rows = *input.rows;
  const index_t to_train = rows.rows(row_use::train), to_test = input.to_test().rows(row_use::test);
  if (!interrupted && (to_train == 0 || to_test == 0)) {
    throw failure("too few rows: " + std::to_string(to_train) + " to train, " + std::to_string(to_test) +
                  " to test");
  }

  std::printf("%lld rows to train, %lld to test, %s; seed %llu, %d threads, gemm by %s\n",
              static_cast<long long>(to_train), static_cast<long long>(to_test), order_of(rows).c_str(),
              static_cast<unsigned long long>(o.seed), o.threads, gemm_words(o).c_str());
  std::fflush(stdout);
  std::vector<score> scores;
  for (const std::string& name : o.models) {
    if (ends_here()) break;
    scores.push_back(find_click_model(name)->train(pool, input, o, interrupted));
  }
  if (o.data.empty()) scores.push_back(planted_score(input));
  report(scores,
         {.rows = rows.rows(),
          .train_rows = to_train,
          .test_rows = to_test,
          .window = rows.window(),
          .is_kept = rows.is_kept(),
          .table_rows = input.tables->rows()},
         o, interrupted);
  return end_of_run();
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  if (const std::optional<int> code = parse(o, argc, argv)) return *code;
  std::signal(SIGINT, on_interrupt);
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
        o.json.clear();
        if (std::freopen("/dev/null", "w", stdout) == nullptr) throw failure("/dev/null: can't be written");
      }
    }
    return run(o, ranks.get());
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr,
        "train_ctr: out of memory: the model, a batch or the rows need more than this process may use "
        "(less with smaller --bottom, --top, --width, --batch-size, --rows or --memory)\n");
    return failed();
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "train_ctr: %s\n", wrong.what());
    return failed();
  }
}
