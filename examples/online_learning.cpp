// Online learning: a process trains on a click log as it comes and writes what changed; another one follows.
//
//   example_online_learning                           synthetic clicks, whose causes drift; both, file by
//                                                     file
//   example_online_learning train LOG FOLDER          trains; a full file each hour, a delta each quarter
//   example_online_learning serve LOG FOLDER          follows FOLDER until the log ends, at the same time or
//                                                     later, and prints the AUC by the age of what it has
//
// LOG is text in Criteo's format, its order that of time; an hour is 1/24 of it. The model is a logistic
// regression over raw 64-bit keys of 26 columns.
#include <deeprec/deeprec.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

using namespace deeprec;

namespace {

constexpr index_t columns = 26, batch_rows = 64, ages = 6;

/// Rows in their order: 26 keys and a label each.
struct click_log {
  std::vector<std::uint64_t> keys;
  std::vector<float> labels;
  [[nodiscard]] index_t steps() const { return static_cast<index_t>(labels.size()) / batch_rows; }
  [[nodiscard]] index_t quarter() const { return std::max(steps() / 96, index_t{1}); }
};
click_log read(const std::string& path) {
  thread_pool pool(1);
  auto reader = read_files(pool, criteo_format{.rows = criteo_format::same_size(0)}, {path}).or_throw();
  click_log read;
  sparse_batch batch;
  while (reader.next(batch, 4096).or_throw() > 0) {
    for (index_t row = 0; row < batch.rows(); ++row) {
      for (index_t c = 0; c < columns; ++c)
        read.keys.push_back(static_cast<std::uint64_t>(batch.feature(c).ids()[row]));
      read.labels.push_back(batch.labels()[static_cast<std::size_t>(row)]);
    }
  }
  return read;
}
/// Keys whose influence changes with time, so that an old model is a worse one.
click_log synthetic(index_t rows) {
  click_log log;
  for (index_t row = 0; row < rows; ++row) {
    const auto bits = [&](std::uint64_t of) {
      return mix64(static_cast<std::uint64_t>(row) * 0x9e3779b97f4a7c15U + of);
    };
    double sum = 0;
    for (std::uint64_t c = 0; c < columns; ++c) {
      const double u = static_cast<double>(bits(c) >> 11) * 0x1p-53;
      log.keys.push_back(mix64(c << 32 | static_cast<std::uint64_t>(200 * u * u)));  // some come often
      const double phase = static_cast<double>(log.keys.back() & 1023) / 163;
      sum += std::sin(phase + 4 * static_cast<double>(row) / static_cast<double>(rows));
    }
    log.labels.push_back(static_cast<double>(bits(99) >> 11) * 0x1p-53 < 1 / (1 + std::exp(-sum)) ? 1.0F
                                                                                                  : 0.0F);
  }
  return log;
}

class model {
 public:
  using table_type = growing_table<f32_rows>;

  model() { table_.default_row(std::vector<float>(1)).or_throw(); }  // of keys that were never trained

  table_type& table() { return table_; }
  matrix_view<const float> predict(const click_log& log, index_t step) {
    lookup(here_, table_.rows(), bags(log, step), combiner::sum,
           matrix_view<float>(scores_.data(), batch_rows, 1))
        .or_throw();
    return {scores_.data(), batch_rows, 1};
  }
  void train(const click_log& log, index_t step) {
    table_.begin_step(static_cast<std::uint64_t>(step));
    auto rows = resolve(here_, table_.rows(), bags(log, step), combiner::sum, keys::find_or_insert);
    rows.or_throw();
    lookup(here_, rows.value(), matrix_view<float>(scores_.data(), batch_rows, 1)).or_throw();
    for (std::size_t i = 0; i < scores_.size(); ++i)
      slopes_[i] =
          (1 / (1 + std::exp(-scores_[i])) - log.labels[static_cast<std::size_t>(step * batch_rows) + i]) /
          batch_rows;
    update(here_, rows.value(), matrix_view<const float>(slopes_.data(), batch_rows, 1),
           adagrad{.learning_rate = 0.2F})
        .or_throw();
  }

 private:
  static fixed_hotness_view<std::uint64_t> bags(const click_log& log, index_t step) {
    return {log.keys.data() + step * batch_rows * columns, batch_rows, columns};
  }

  inline_executor here_;
  table_type table_{1, state_of<adagrad>, row_init::zeros{}};
  std::vector<float> scores_ = std::vector<float>(batch_rows), slopes_ = scores_;
};

/// `written`, where given, is called when a file is on the disk, and the next step waits for it.
void train(const click_log& log, const std::string& folder, const std::function<void()>& written = {}) {
  model trained;
  checkpoint_folder saves(folder, {.kept_chains = 1 << 20});  // all stay, for who follows later
  saves.add("weights", trained.table()).or_throw();
  const index_t quarter = log.quarter();
  std::thread saver;
  for (index_t step = 0; step < log.steps(); ++step) {
    if (step % quarter == 0) {
      if (saver.joinable()) saver.join();
      const training_state at{.step = static_cast<std::uint64_t>(step), .numbers = {}};
      auto cut = (step % (4 * quarter) == 0 ? saves.take_full(at) : saves.take_delta(at)).or_throw();
      saver = std::thread([taken = std::move(cut)]() mutable { taken.write().or_throw(); });
      if (written) {
        saver.join();
        written();
      }
    }
    trained.train(log, step);
  }
  if (saver.joinable()) saver.join();
  std::printf("trained %lld steps, %lld keys\n", static_cast<long long>(log.steps()),
              static_cast<long long>(trained.table().size()));
}

/// Files that have come predict the rows that follow them: how well, by the quarters of an hour that they are
/// old.
class server {
 public:
  server(const click_log& log, std::string folder) : log_(log), files_(std::move(folder)) {
    files_.add("weights", served_.table()).or_throw();
  }
  /// Whether a file has come.
  bool follow() {
    if (!files_.poll().or_throw()) return false;
    const index_t quarter = log_.quarter();
    last_ = static_cast<index_t>(files_.state().step);
    for (index_t ahead = 0; ahead < ages * quarter && last_ + ahead < log_.steps(); ++ahead) {
      const index_t step = last_ + ahead;
      by_age_[static_cast<std::size_t>(ahead / quarter)]
          .add(served_.predict(log_, step),
               matrix_view<const float>(log_.labels.data() + step * batch_rows, batch_rows, 1))
          .or_throw();
    }
    return true;
  }
  [[nodiscard]] bool is_at_end() const { return last_ + log_.quarter() >= log_.steps(); }
  double auc_of(index_t age) { return by_age_[static_cast<std::size_t>(age)].value(); }
  void report() {
    for (index_t age = 0; age < ages; ++age)
      std::printf("%lld quarters of an hour old: AUC %.4f\n", static_cast<long long>(age), auc_of(age));
  }

 private:
  const click_log& log_;
  model served_;
  checkpoint_reader files_;
  std::vector<auc> by_age_ = std::vector<auc>(ages);
  index_t last_ = -1;  // the step of the last file
};

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "train" && argc == 4) return train(read(argv[2]), argv[3]), 0;
  if (what == "serve" && argc == 4) {
    const click_log log = read(argv[2]);
    server following(log, argv[3]);
    while (!following.is_at_end()) {
      if (!following.follow()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return following.report(), 0;
  }
  if (argc > 1) {
    std::fprintf(stderr, "usage: %s [train LOG FOLDER | serve LOG FOLDER]\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("deeprec_online_learning " + std::to_string(::getpid()));
  const click_log log = synthetic(40'000);
  server following(log, folder.string());
  train(log, folder.string(), [&] { following.follow(); });
  following.report();
  std::filesystem::remove_all(folder);
  return following.auc_of(0) > following.auc_of(ages - 1) ? 0 : 1;  // what is older predicts worse
}
