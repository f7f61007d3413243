// A growing table saved while training goes on: a full file, then what changed. Another table follows.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>
using namespace deeprec;

int main() {
  inline_executor here;
  growing_table<f32_rows> items(8, state_of<adagrad>, row_init::uniform{.seed = 1});
  growing_table<f32_rows> served(8, state_of<adagrad>, row_init::zeros{});
  const auto train = [&](std::uint64_t step, std::vector<std::uint64_t> ids) {
    items.begin_step(step);
    const auto n = static_cast<index_t>(ids.size());
    const fixed_hotness_view<std::uint64_t> bags(ids.data(), n, 1);
    const std::vector<float> gradient(ids.size() * 8, 0.1F);
    auto rows = resolve(here, items.rows(), bags, combiner::sum, keys::find_or_insert).or_throw();
    update(here, rows, matrix_view(gradient.data(), n, 8), adagrad{}).or_throw();
  };
  std::filesystem::remove_all("checkpoints");
  checkpoint_folder saves("checkpoints");
  saves.add("items", items).or_throw();
  checkpoint_reader files("checkpoints");
  files.add("items", served).or_throw();

  train(1, {7, 8, 900'000'000'000});
  auto cut = saves.take_full({.step = 1, .numbers = {}}).or_throw();  // between two steps
  std::thread saver([&] { cut.write().or_throw(); });                 // beside the steps that follow
  train(2, {7, 9});
  saver.join();
  files.poll().or_throw();
  std::printf("step %lu: %ld rows\n", files.state().step, served.size());

  saves.take_delta({.step = 2, .numbers = {}}).or_throw().write().or_throw();  // 7 and 9
  files.poll().or_throw();
  std::printf("step %lu: %ld rows\n", files.state().step, served.size());
  std::filesystem::remove_all("checkpoints");
}
