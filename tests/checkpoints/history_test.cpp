// Random histories with cuts at random points: what is restored is what the table was at the cut.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_reader.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("checkpoint: a full file and its deltas are the table at the cut") {
  for (std::uint64_t round = 0; round < 6; ++round) {
    const std::uint64_t base = seed() + round;
    CAPTURE(base);
    std::mt19937_64 random(base);
    temporary_folder folder;
    trained_table table(base);
    checkpoint_folder saves(folder.path());
    saves.add("items", *table).or_throw();
    for (int cut = 0; cut < 12; ++cut) {
      for (int calls = static_cast<int>(random() % 6); calls > 0; --calls) table.change(300);
      const training_state state{.step = table.steps(), .numbers = {{"rate", 0.5}}};
      auto taken = cut == 0 || random() % 5 == 0 ? saves.take_full(state) : saves.take_delta(state);
      taken.or_throw();
      const keyed_content then = table.content();
      for (int calls = static_cast<int>(random() % 4); calls > 0; --calls) table.change(300);
      taken.value().write().or_throw();
      for (int calls = static_cast<int>(random() % 4); calls > 0; --calls) table.change(300);

      trained_table other(1);
      checkpoint_folder reader(folder.path());
      reader.add("items", *other).or_throw();
      auto read = reader.restore();
      read.or_throw();
      REQUIRE(read.value().has_value());
      CHECK(read.value()->state == state);
      CHECK(read.value()->at == saves.position());
      CHECK(read.value()->passed_over.empty());
      REQUIRE(other.content() == then);
    }
  }
}

TEST_CASE("checkpoint_reader: follows deltas, and full files where a chain ends or breaks") {
  temporary_folder folder;
  trained_table table(seed()), served(1);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  checkpoint_reader files(folder.path());
  files.add("items", *served).or_throw();
  CHECK_FALSE(files.poll().or_throw());  // the folder is empty

  const auto write = [&](bool full) {
    table.step(200);
    table.evict(7);
    const training_state state{.step = table.steps(), .numbers = {}};
    auto cut = full ? saves.take_full(state) : saves.take_delta(state);
    cut.or_throw();
    cut.value().write().or_throw();
  };
  const auto follows = [&] {
    REQUIRE(files.poll().or_throw());
    CHECK(files.position() == saves.position());
    CHECK(files.state().step == table.steps());
    REQUIRE(served.content() == table.content());
    CHECK_FALSE(files.poll().or_throw());
  };
  write(true);
  follows();
  write(false);
  follows();
  write(false);
  write(false);
  follows();
  write(true);  // the next chain
  write(false);
  follows();

  write(false);
  const std::string digits = std::to_string(saves.position().number);
  REQUIRE(std::filesystem::remove(folder.path() + "/delta-" + std::string(12 - digits.size(), '0') + digits +
                                  ".drt"));  // a gap
  write(false);
  CHECK_FALSE(files.poll().or_throw());
  REQUIRE(files.passed_over().size() == 1);
  CHECK(files.passed_over()[0].message().find("a delta is missing") != std::string::npos);
  write(true);
  follows();
}
