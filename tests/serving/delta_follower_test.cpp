// A follower keeps tables at the newest files while others look rows up, and publishes dense values whole.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/serving/delta_follower.hpp>
#include <deeprec/serving/versioned.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using namespace std::chrono_literals;

template <class Until>
void wait(const Until& until) {
  while (!until()) std::this_thread::sleep_for(1ms);
}

}  // namespace

TEST_CASE("delta_follower: tables follow a trainer while rows are looked up, dense values are whole") {
  temporary_folder folder;
  trained_table table(seed()), served(1);
  std::vector<float> weights(1000), staged(weights.size());
  const auto named = [](std::vector<float>& of) {
    return name_table("weights", as_table(matrix_view<float>(of.data(), 10, 100)));
  };
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  saves.add(named(weights)).or_throw();
  checkpoint_reader files(folder.path());
  files.add("items", *served).or_throw();
  files.add(named(staged)).or_throw();

  versioned<std::vector<float>> dense;
  delta_follower follower(files, {.every = 1ms, .applied = [&](const checkpoint_reader&) {
                                    dense.publish(std::make_unique<std::vector<float>>(staged)).or_throw();
                                  }});
  std::atomic<bool> ends{false};
  std::atomic<index_t> mixed{0}, read{0};
  std::thread reader([&] {
    while (!ends.load()) {
      const auto now = dense.read();
      if (!now) continue;
      read.fetch_add(1);
      for (const float w : *now) mixed.fetch_add(w == now->front() ? 0 : 1);
    }
  });
  for (int cut = 0; cut < 40; ++cut) {
    table.step(300);
    if (cut % 3 == 0) table.evict(5);
    std::fill(weights.begin(), weights.end(), static_cast<float>(cut + 1));
    const training_state state{.step = table.steps(), .numbers = {}};
    auto taken = cut % 10 == 0 ? saves.take_full(state) : saves.take_delta(state);
    taken.or_throw().write().or_throw();
  }
  wait([&] { return follower.report().at == saves.position(); });
  wait([&] { return read.load() > 0; });
  ends.store(true);
  reader.join();
  CHECK(mixed.load() == 0);
  const follower_report report = follower.report();
  CHECK(report.step == table.steps());
  CHECK(report.applied > 0);
  CHECK(report.failed == 0);
  CHECK(dense.read()->front() == 40.0F);
  CHECK(served.content() == table.content());
}

TEST_CASE("delta_follower: a folder that can't be listed is a fault of each poll, and the next one goes on") {
  temporary_folder folder;
  const std::string path = folder.path() + "/models";
  std::ofstream(path) << "a file where a folder should be";
  trained_table table(seed()), served(1);
  checkpoint_reader files(path);
  files.add("items", *served).or_throw();
  delta_follower follower(files, {.every = 1h, .applied = {}});
  wait([&] { return follower.report().polls == 1; });
  CHECK(follower.report().failed == 1);
  CHECK(follower.report().last_fault.find("cannot open the folder") != std::string::npos);

  std::filesystem::remove(path);
  checkpoint_folder saves(path);
  saves.add("items", *table).or_throw();
  table.step(100);
  saves.take_full({.step = table.steps(), .numbers = {}}).or_throw().write().or_throw();
  follower.poll_now();
  wait([&] { return follower.report().applied == 1; });
  CHECK(served.content() == table.content());
  CHECK(follower.report().failed == 1);
}
