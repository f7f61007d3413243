// Memory that is refused: to a cut, to the copies of its rows, to the lists of changes, to a restore, to a
// delta that is applied. Every allocation in turn: a status, and nothing is lost.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/apply_delta.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

TEST_CASE("checkpoint: a cut that is refused memory is a status, and the next one has its changes") {
  for (const bool full : {false, true}) {
    int failed = 0;
    for (long n = 0;; ++n) {
      CAPTURE(full);
      CAPTURE(n);
      temporary_folder folder;
      allowance allowed;
      refusing_resource memory(allowed);
      trained_table table(seed());
      {
        checkpoint_folder saves(folder.path(), {.block_bytes = 512, .memory = &memory});
        saves.add("items", *table).or_throw();
        table.change(200, 3);
        save(saves, true);
        const keyed_content first = table.content();
        // Changes, a cut, changes while it is written: all with the lists and copies that they need.
        allowed.left = n;
        table.change(200, 3);
        auto taken = take(saves, full);
        const keyed_content then = table.content();
        table.change(200, 3);
        const status written = taken ? status_of(taken.value().write()) : status_of(taken);
        table.change(200, 1);
        allowed.left = allowance::unlimited;
        if (written.ok()) {
          CHECK(restored(folder.path()).content == then);
        } else {
          ++failed;
          CHECK(written.code() == errc::out_of_memory);
          CHECK(restored(folder.path()).content == first);
        }
        save(saves, false);
        REQUIRE(restored(folder.path()).content == table.content());
      }
      CHECK(memory.held == 0);
      if (allowed.refused == 0) break;
    }
    CHECK(failed > 3);
  }
}

TEST_CASE("checkpoint: a restore that is refused memory is a status, and the next one completes it") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path(), {.block_bytes = 512});
  saves.add("items", *table).or_throw();
  for (int cut = 0; cut < 4; ++cut) {
    table.change(200, 4);
    save(saves, cut == 0);
  }
  const keyed_content whole = table.content();
  for (const bool is_used : {false, true}) {
    int failed = 0;
    for (long n = 0;; ++n) {
      CAPTURE(n);
      allowance allowed;
      refusing_resource memory(allowed), of_table(allowed);
      {
        trained_table other(1, {.granule_bytes = 4096, .memory = &of_table});
        checkpoint_folder reader(folder.path());
        reader.add("items", *other).or_throw();
        other->begin_step(101);
        if (is_used) other.train(keys_from(0, 150));
        allowed.left = n;
        const auto read = reader.restore({.takes = {}, .memory = &memory});
        allowed.left = allowance::unlimited;
        if (!read) {
          ++failed;
          CHECK(read.code() == errc::out_of_memory);
          REQUIRE(reader.restore().ok());
        }
        REQUIRE(other.content() == whole);
        CHECK(memory.held == 0);
        save(reader, false);
        std::filesystem::remove(path_of(folder, false, reader.position().number));
      }
      CHECK(of_table.held == 0);
      if (allowed.refused == 0) break;
    }
    CHECK(failed > 3);
  }
}

TEST_CASE("apply_delta: a delta that is refused memory is completed by the same one again") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path(), {.block_bytes = 512});
  saves.add("items", *table).or_throw();
  table.change(200, 4);
  save(saves, true);
  const keyed_content before = table.content();
  table.change(200, 8);
  save(saves, false);
  const std::string delta = path_of(folder, false, 2);
  int failed = 0, changed = 0;
  for (long n = 0;; ++n) {
    CAPTURE(n);
    allowance allowed;
    refusing_resource memory(allowed), of_table(allowed);
    trained_table other(1, {.granule_bytes = 4096, .memory = &of_table});
    checkpoint_position at;
    {
      temporary_folder apart;
      std::filesystem::copy(path_of(folder, true, 1), path_of(apart, true, 1));
      checkpoint_folder reader(apart.path());
      reader.add("items", *other).or_throw();
      at = reader.restore().or_throw()->at;
    }
    const checkpoint_position stands = at;
    allowed.left = n;
    const auto applied = apply_delta(delta, "items", *other, at, {.takes = {}, .memory = &memory});
    allowed.left = allowance::unlimited;
    if (!applied) {
      ++failed;
      changed += other.content() == before ? 0 : 1;
      CHECK(applied.code() == errc::out_of_memory);
      CHECK(at == stands);
      REQUIRE(apply_delta(delta, "items", *other, at).ok());
    }
    REQUIRE(other.content() == table.content());
    CHECK(at == saves.position());
    CHECK(memory.held == 0);
    if (allowed.refused == 0) break;
  }
  CHECK(failed > 3);
  CHECK(changed > 0);
}
