// Checkpoints of growing tables while training goes on.
//
//   checkpoint/full    a full file of 2 M rows, D = 64 with Adagrad's state: the time of a file of the same
//                      bytes from one buffer over that of the save (of_raw); both synced to the disk
//   checkpoint/pace    training steps while such a file is written to memory by another thread, each on its
//                      own processor: their pace over that alone (of_alone)
//   checkpoint/cut     the pause of a cut of 100 growing tables, and what a dense table of 100 MB adds
//   checkpoint/delta   a delta of 1 % of the rows into memory: its bytes over those of the records, and ns a
//                      row that changed
//
// What is written is restored and compared before anything is timed. DEEPREC_BENCH_FOLDER: where the file of
// checkpoint/full is; by default the folder for temporary files.
#include <benchmark/benchmark.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "support/add.hpp"
#include "support/figures.hpp"
#include "support/machine.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t rows = 2'000'000, width = 64, bags = 2048;
constexpr std::size_t record_bytes = 24 + 2 * width * sizeof(float);

std::uint64_t key_of(std::uint64_t i) { return mix64(i + 1); }

/// A folder that is removed.
class folder {
 public:
  explicit folder(const std::string& in) : path_(in + "/deeprec_bench_checkpoint") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};
std::string disk() {
  const char* const named = std::getenv("DEEPREC_BENCH_FOLDER");
  return named != nullptr ? named : std::filesystem::temp_directory_path().string();
}

/// A table in training.
class model {
 public:
  using table_type = growing_table<f32_rows>;

  explicit model(index_t keys)
      : table_(width, state_of<adagrad>, row_init::uniform{.seed = 1, .bound = 0.1F}) {
    std::vector<std::uint64_t> some;
    std::vector<const std::byte*> places(1 << 16);
    const context ctx{here_};
    for (index_t from = 0; from < keys; from += 1 << 16) {
      some.clear();
      for (index_t i = from; i < std::min(keys, from + (1 << 16)); ++i)
        some.push_back(key_of(static_cast<std::uint64_t>(i)));
      table_.rows().insert(ctx, some.data(), static_cast<index_t>(some.size()), places.data()).or_throw();
    }
    gradient_.resize(static_cast<std::size_t>(bags * width), 0.01F);
  }
  table_type& operator*() { return table_; }

  /// Keys of a step, uniform below a number.
  void draw(index_t below) {
    ids_.resize(bags);
    for (std::uint64_t& id : ids_)
      id = key_of(static_cast<std::uint64_t>(hash_bucket(mix64(++drawn_ * 0xd1342543de82ef95U), below)));
  }
  void step() {
    table_.begin_step(++step_);
    const fixed_hotness_view<std::uint64_t> batch(ids_.data(), bags, 1);
    auto resolved = resolve(here_, table_.rows(), batch, combiner::sum, keys::find_or_insert);
    resolved.or_throw();
    update(here_, resolved.value(), matrix_view<const float>(gradient_.data(), bags, width), adagrad{})
        .or_throw();
  }

 private:
  inline_executor here_;
  table_type table_;
  std::vector<std::uint64_t> ids_;
  std::vector<float> gradient_;
  std::uint64_t drawn_ = 0, step_ = 0;
};

/// Whether a folder restores to what a table holds.
bool is_right(const std::string& path, growing_table<f32_rows>& table) {
  growing_table<f32_rows> read(width, state_of<adagrad>, row_init::uniform{.seed = 2, .bound = 0.1F});
  checkpoint_folder files(path);
  files.add("items", read).or_throw();
  if (!files.restore().or_throw() || read.size() != table.size()) return false;
  bool right = true;
  const auto bytes = static_cast<std::size_t>(table.format().stride_bytes());
  auto there = read.rows();
  const auto held = there.guard();
  table.rows().for_each_row([&](std::uint64_t key, const std::byte* row) {
    const std::byte* found = nullptr;
    there.find(&key, 1, &found);
    right = right && found != nullptr && std::memcmp(row, found, bytes) == 0;
  });
  return right;
}

void write_raw(const std::string& path, const std::vector<std::byte>& bytes) {
  constexpr std::size_t block = std::size_t{4} << 20;
  const std::string beside = path + ".saving";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    const std::size_t n = std::min(block, bytes.size() - at);
    if (::write(file, bytes.data() + at, n) != static_cast<ssize_t>(n)) std::abort();
  }
  if (::fsync(file) != 0 || ::rename(beside.c_str(), path.c_str()) != 0) std::abort();
  ::close(file);
}

void full(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(4 * rows * record_bytes).unfit.empty()) return state.SkipWithError("unfit: no memory");
  model trained(rows);
  const folder to(disk());
  checkpoint_folder saves(to.path(), {.kept_chains = 1});
  saves.add("items", *trained).or_throw();
  saves.take_full({}).or_throw().write().or_throw();
  if (!is_right(to.path(), *trained)) return state.SkipWithError("wrong answer: other rows were restored");
  for (auto _ : state) {
    figures f(name);
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * record_bytes, std::byte{1});
    f.sample([&] {
      const auto [ours, theirs] = f.pair(
          "of_raw", "", [&] { saves.take_full({}).or_throw().write().or_throw(); },
          [&] { write_raw(to.path() + "/raw", bytes); });
      f.note("megabytes_per_second", static_cast<double>(bytes.size()) / ours * 1e-6);
      f.note("raw_megabytes_per_second", static_cast<double>(bytes.size()) / theirs * 1e-6);
    });
    f.report(state);
  }
}

void pace(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(4 * rows * record_bytes).unfit.empty()) return state.SkipWithError("unfit: no memory");
  const std::vector<int> cpus = usable_cpus();
  cpu_set_t before;
  ::sched_getaffinity(0, sizeof(before), &before);
  detail::pin_this_thread(cpus.front());
  model trained(rows);
  const folder to("/dev/shm");
  checkpoint_folder saves(to.path(), {.kept_chains = 1});
  saves.add("items", *trained).or_throw();
  for (auto _ : state) {
    figures f(name);
    if (cpus.size() < 2) f.unfit("one CPU");
    f.sample([&] {
      const auto steps = [&](const auto& goes_on) {
        int count = 0;
        double seconds = 0;
        for (; goes_on(count); ++count) {
          trained.draw(rows);
          seconds += seconds_of([&] { trained.step(); });
        }
        return seconds / std::max(count, 1);
      };
      double alone = 0;
      const auto run_alone = [&] { alone = steps([](int done) { return done < 200; }); };
      if (f.swapped()) run_alone();
      auto cut = saves.take_full({});
      std::atomic<bool> done{false};
      std::thread saver([&] {
        detail::pin_this_thread(cpus.back());
        cut.or_throw().write().or_throw();
        done.store(true, std::memory_order_release);
      });
      int beside_steps = 0;
      const double beside = steps([&](int count) {
        beside_steps = count;
        return !done.load(std::memory_order_acquire);
      });
      saver.join();
      if (!f.swapped()) run_alone();
      f.add("of_alone", alone / beside);
      f.note("us_per_step", beside * 1e6);
      f.note("us_per_step_alone", alone * 1e6);
      f.note("steps_beside", beside_steps);
    });
    if (!is_right(to.path(), *trained)) {
      // Steps went on after the cut: a last file without them.
      saves.take_full({}).or_throw().write().or_throw();
      if (!is_right(to.path(), *trained))
        return state.SkipWithError("wrong answer: other rows were restored");
    }
    f.report(state);
  }
  ::sched_setaffinity(0, sizeof(before), &before);
}

void cut(benchmark::State& state, const std::string& name) {
  std::vector<std::unique_ptr<model>> models;
  const folder to("/dev/shm");
  checkpoint_folder saves(to.path(), {.kept_chains = 1});
  for (int t = 0; t < 100; ++t) {
    models.push_back(std::make_unique<model>(1000));
    saves.add("table " + std::to_string(t), **models.back()).or_throw();
  }
  std::vector<float> dense(std::size_t{25} << 20, 1.0F);
  checkpoint_folder with_dense(to.path() + "/dense", {.kept_chains = 1});
  with_dense.add(name_table("w", as_table(matrix_view<float>(dense.data(), 1 << 10, 25 << 10)))).or_throw();
  for (auto _ : state) {
    figures f(name);
    f.sample([&] {
      for (const auto& one : models) {
        one->draw(1000);
        one->step();
      }
      const double start = clock_now();
      auto taken = saves.take_full({});
      f.add("milliseconds", (clock_now() - start) * 1e3);
      taken.or_throw().write().or_throw();
      const double dense_start = clock_now();
      auto copied = with_dense.take_full({});
      f.note("milliseconds_of_100_MB_dense", (clock_now() - dense_start) * 1e3);
      copied.or_throw();
    });
    f.report(state);
  }
}

void delta(benchmark::State& state, const std::string& name) {
  if (!memory_plan::of(4 * rows * record_bytes).unfit.empty()) return state.SkipWithError("unfit: no memory");
  model trained(rows);
  const folder to("/dev/shm");
  checkpoint_folder saves(to.path(), {.kept_chains = 1});
  saves.add("items", *trained).or_throw();
  saves.take_full({}).or_throw().write().or_throw();
  for (auto _ : state) {
    figures f(name);
    std::vector<bool> changed(static_cast<std::size_t>(rows));
    f.sample([&] {
      const index_t before = (*trained).statistics().rows;
      for (int s = 0; s < 10; ++s) {
        trained.draw(rows);
        trained.step();
      }
      if ((*trained).statistics().rows != before) std::abort();
      const double start = clock_now();
      auto taken = saves.take_delta({});
      const index_t bytes = taken.or_throw().write().or_throw();
      const double seconds = clock_now() - start;
      const auto info =
          describe_file(to.path() + "/" + detail::folder_file{false, saves.position().number}.name());
      const double records = static_cast<double>(info.value().tables.at(0).rows);
      f.add("bytes_of_records", static_cast<double>(bytes) / (records * record_bytes));
      f.add("ns_per_row", seconds * 1e9 / records);
      const std::vector<std::byte> raw(static_cast<std::size_t>(bytes), std::byte{1});
      f.note("raw_ns_per_row", seconds_of([&] { write_raw(to.path() + "/raw", raw); }) * 1e9 / records);
      f.note("rows", records);
    });
    if (!is_right(to.path(), *trained)) return state.SkipWithError("wrong answer: other rows were restored");
    f.report(state);
  }
}

const bool registered = [] {
  add("checkpoint/full", full);
  add("checkpoint/pace", pace);
  add("checkpoint/cut", cut);
  add("checkpoint/delta", delta);
  return true;
}();

}  // namespace
