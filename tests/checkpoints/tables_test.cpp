// Several tables in one folder: parts of the keys, all row formats, filters, dense values; tables that come
// and go.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/files/named_table.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

constexpr key_type all_keys = 300;

bool is_part(key_type key, std::size_t part, std::size_t parts) { return mix64(key) % parts == part; }

named_table table_of(const std::string& name, std::vector<float>& values) {
  return name_table(name,
                    as_table(matrix_view<float>(values.data(), static_cast<index_t>(values.size()), 1)));
}

/// Random changes of rows of a part of the keys.
void change_part(trained_table& table, std::mt19937_64& random, std::size_t part, std::size_t parts) {
  std::vector<key_type> ids;
  for (const key_type key : table.draw(all_keys, 40))
    if (is_part(key, part, parts)) ids.push_back(key);
  table.begin_step();
  if (ids.empty()) return;
  random() % 5 == 0 ? table.erase(ids) : table.train(ids);
  if (random() % 6 == 0) table.evict(6);
}

}  // namespace

TEST_CASE("checkpoint: tables of 1 to 7 parts of the keys are saved in one folder and restored into others") {
  for (std::size_t parts = 1; parts <= 7; ++parts) {
    CAPTURE(parts);
    std::mt19937_64 random(seed() + parts);
    temporary_folder folder;
    std::vector<std::unique_ptr<trained_table>> tables;
    checkpoint_folder saves(folder.path());
    for (std::size_t p = 0; p < parts; ++p) {
      tables.push_back(std::make_unique<trained_table>(seed() + 10 * p));
      saves.add("part " + std::to_string(p), **tables.back()).or_throw();
    }
    for (int cut = 0; cut < 5; ++cut) {
      for (int calls = 0; calls < 4; ++calls)
        for (std::size_t p = 0; p < parts; ++p) change_part(*tables[p], random, p, parts);
      auto taken = take(saves, cut == 0);
      std::vector<keyed_content> then;
      for (auto& table : tables) then.push_back(table->content());
      for (std::size_t p = 0; p < parts; ++p) change_part(*tables[p], random, p, parts);
      written(std::move(taken));
      for (std::size_t p = 0; p < parts; ++p)
        REQUIRE(restored(folder.path(), "part " + std::to_string(p)).content == then[p]);
    }
  }
}

TEST_CASE("checkpoint: a folder is restored into tables of any number of parts of the keys") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  for (int cut = 0; cut < 5; ++cut) {
    table.change(all_keys, 5);
    save(saves, cut == 0);
  }
  const keyed_content whole = table.content();
  REQUIRE(whole.rows.size() > 50);
  for (std::size_t parts = 1; parts <= 7; ++parts) {
    CAPTURE(parts);
    keyed_content joined;
    joined.step = whole.step;
    for (std::size_t p = 0; p < parts; ++p) {
      const apply_options options{.takes = [&](std::string_view name, key_type key) {
        return name == "items" && is_part(key, p, parts);
      }};
      const read_back part = restored(folder.path(), "items", [](auto&) {}, options);
      CHECK(part.content.step == whole.step);
      for (const auto& [key, row] : part.content.rows) {
        CHECK(is_part(key, p, parts));
        joined.rows[key] = row;
      }
    }
    CHECK(joined == whole);
  }
}

TEST_CASE("checkpoint: after a part of the keys was restored the next file is a full one") {
  temporary_folder folder;
  trained_table table(seed()), part(1);
  checkpoint_folder saves(folder.path()), others(folder.path());
  saves.add("items", *table).or_throw();
  others.add("items", *part).or_throw();
  table.step(all_keys);
  save(saves, true);
  REQUIRE(others.restore({.takes = [](std::string_view, key_type key) { return is_part(key, 0, 2); }}).ok());
  CHECK(others.position() == checkpoint_position{});
  CHECK(take(others, false).code() == errc::invalid_value);
  CHECK(restored(folder.path()).content == table.content());
  save(others, true);
  CHECK(restored(folder.path()).content == part.content());
}

namespace {
template <class Format>
void keeps_format() {
  temporary_folder folder;
  trained<Format> table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  for (int cut = 0; cut < 6; ++cut) {
    table.change(all_keys, 5);
    auto taken = take(saves, cut == 0);
    const keyed_content then = table.content();
    table.change(all_keys, 2);
    written(std::move(taken));
    REQUIRE(restored<Format>(folder.path()).content == then);
  }
}
}  // namespace

TEST_CASE("checkpoint: rows of 16 bits, and rows with a second half beside their state, keep all bits") {
  keeps_format<f16_rows>();
  keeps_format<bf16_rows>();
  keeps_format<split_bf16_rows>();
}

TEST_CASE("checkpoint: a row without state, of one float, is saved") {
  temporary_folder folder;
  growing_table<f32_rows> table(f32_rows(1), first_values, {.granule_bytes = 4096});
  checkpoint_folder saves(folder.path());
  saves.add("w", table).or_throw();
  table.begin_step(3);
  REQUIRE(train(table, keys_from(0, 100)).ok());
  save(saves, true);
  REQUIRE(train(table, keys_from(50, 100)).ok());
  save(saves, false);
  growing_table<f32_rows> other(f32_rows(1), first_values);
  checkpoint_folder reader(folder.path());
  reader.add("w", other).or_throw();
  REQUIRE(reader.restore().ok());
  CHECK(keyed_content_of(other) == keyed_content_of(table));
}

TEST_CASE("checkpoint: counts of keys that wait for their row are in full files") {
  const auto counts = [](growing_table<f32_rows>& table) { table.admit_by(filters::counter{3}).or_throw(); };
  temporary_folder folder;
  trained_table table(seed());
  counts(*table);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  for (int cut = 0; cut < 8; ++cut) {
    table.change(all_keys, 4);
    const bool full = cut % 3 == 0;
    auto taken = take(saves, full);
    const keyed_content then = table.content();
    table.change(all_keys, 2);
    written(std::move(taken));
    const keyed_content read = restored(folder.path(), "items", counts).content;
    CHECK(read.rows == then.rows);
    if (full) CHECK(read == then);
    if (full) CHECK(!read.candidates.empty());
    // A table without the filter takes the rows.
    CHECK(restored(folder.path()).content.rows == then.rows);
    CHECK(restored(folder.path()).content.candidates.empty());
  }
  // Counting goes on where it stood: what is trained next is admitted alike.
  save(saves, true);
  trained_table other(1);
  counts(*other);
  checkpoint_folder reader(folder.path());
  reader.add("items", *other).or_throw();
  REQUIRE(reader.restore().ok());
  for (trained_table* one : {&table, &other}) {
    (*one)->begin_step(1000);
    REQUIRE(train(**one, keys_from(0, 50, 7)).ok());
    REQUIRE(train(**one, keys_from(0, 50, 5)).ok());
  }
  CHECK(other.content() == table.content());
}

TEST_CASE("checkpoint: the state of a Bloom filter is in full files") {
  const auto filters_by = [](std::uint32_t occurrences) {
    return [occurrences](growing_table<f32_rows>& table) {
      table.admit_by(filters::counting_bloom{occurrences, 500, 0.01}).or_throw();
    };
  };
  for (const std::uint32_t occurrences : {3U, 300U}) {  // counters of 8 and of 16 bits
    temporary_folder folder;
    trained_table table(seed());
    filters_by(occurrences)(*table);
    checkpoint_folder saves(folder.path());
    saves.add("items", *table).or_throw();
    table.change(all_keys, 8);
    auto taken = take(saves, true);
    const keyed_content then = table.content();
    table.change(all_keys, 4);
    CHECK(table.content().filter != then.filter);
    written(std::move(taken));
    CHECK(restored(folder.path(), "items", filters_by(occurrences)).content == then);
    CHECK(restored(folder.path()).content.rows == then.rows);
    // Another size doesn't fit.
    trained_table other(1);
    filters_by(occurrences == 3 ? 300 : 3)(*other);
    checkpoint_folder reader(folder.path());
    reader.add("items", *other).or_throw();
    CHECK(reader.restore().code() == errc::shape_mismatch);
    CHECK(other->size() == 0);
  }
}

TEST_CASE("checkpoint: dense tables and growing ones are of the same moment") {
  temporary_folder folder;
  trained_table table(seed());
  dense_table<f32_rows> dense(7, 3);
  std::vector<float> weights(5), read_weights(5);
  const auto fill = [&](float value) {
    dense.initialize(inline_executor{},
                     [value](index_t, float* values, index_t width) { std::fill_n(values, width, value); });
    for (float& w : weights) w = value;
  };
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  saves.add(name_table("dense", dense.view())).or_throw();
  saves.add(table_of("w", weights)).or_throw();
  for (int cut = 0; cut < 6; ++cut) {
    const auto at = static_cast<float>(cut);
    table.change(all_keys, 3);
    fill(at);
    auto taken = saves.take_full({.step = 5, .numbers = {{"optimizer's time", static_cast<index_t>(cut)}}});
    const keyed_content then = table.content();
    table.change(all_keys, 3);
    fill(-1);
    written(std::move(taken));
    trained_table other(1);
    dense_table<f32_rows> read(7, 3);
    checkpoint_folder reader(folder.path());
    reader.add("items", *other).or_throw();
    reader.add(name_table("dense", read.view())).or_throw();
    reader.add(table_of("w", read_weights)).or_throw();
    const auto got = reader.restore().or_throw();
    REQUIRE(got);
    CHECK(got->state.whole("optimizer's time") == cut);
    CHECK(other.content() == then);
    CHECK(read_weights == std::vector<float>(5, at));
    for (index_t r = 0; r < 7; ++r)
      for (index_t j = 0; j < 3; ++j) {
        float values[3];
        read.view().format().decode(read.view().row(r), values);
        CHECK(values[j] == at);
      }
  }
}

TEST_CASE("checkpoint: a table that is added or removed needs a full file next") {
  temporary_folder folder;
  trained_table a(seed()), b(seed() + 1);
  std::vector<float> weights(4, 2.0F);
  checkpoint_folder saves(folder.path());
  saves.add("a", *a).or_throw();
  a.step(all_keys);
  b.step(all_keys);
  save(saves, true);

  saves.add("b", *b).or_throw();
  CHECK(saves.position() == checkpoint_position{});
  CHECK(take(saves, false).code() == errc::invalid_value);
  save(saves, true);
  a.step(all_keys);
  b.step(all_keys);
  save(saves, false);
  CHECK(restored(folder.path(), "a").content == a.content());
  CHECK(restored(folder.path(), "b").content == b.content());

  REQUIRE(saves.remove("b").ok());
  CHECK(take(saves, false).code() == errc::invalid_value);
  CHECK(b->state().changes == nullptr);
  b.step(all_keys);
  save(saves, true);
  CHECK(restored(folder.path(), "a").content == a.content());
  // The newest file does not fit a table that it doesn't have: nothing changes.
  trained_table other(1);
  checkpoint_folder reader(folder.path());
  reader.add("b", *other).or_throw();
  const auto refused = reader.restore();
  CHECK(refused.code() == errc::shape_mismatch);
  CHECK(refused.fault().message().find("table \"b, records\" is not in the file") != std::string::npos);
  CHECK(other->size() == 0);

  saves.add(table_of("w", weights)).or_throw();
  CHECK(take(saves, false).code() == errc::invalid_value);
  saves.add("b", *b).or_throw();  // it may come back
  save(saves, true);
  CHECK(restored(folder.path(), "b").content == b.content());
}

TEST_CASE("checkpoint: names, options and calls that can't be are refused") {
  temporary_folder folder;
  trained_table a(1), b(1);
  std::vector<float> weights(4);
  checkpoint_folder saves(folder.path());
  REQUIRE(saves.add("a", *a).ok());
  CHECK(saves.add("a", *b).code() == errc::invalid_value);
  CHECK(saves.add("", *b).code() == errc::invalid_value);
  CHECK(saves.add("again", *a).code() == errc::invalid_value);
  // Names of its tables in files.
  for (const char* name : {"a, records", "a, erased", "a, candidates", "a, filter"})
    CHECK(saves.add(table_of(name, weights)).code() == errc::invalid_value);
  REQUIRE(saves.add(table_of("a, others", weights)).ok());
  CHECK(saves.remove("b").code() == errc::invalid_value);
  CHECK(b->state().changes == nullptr);

  CHECK(saves.take_delta({}).code() == errc::invalid_value);
  CHECK(saves.take_full({.step = 0, .numbers = {{"checkpoint, to", index_t{7}}}}).code() ==
        errc::invalid_value);
  {
    auto cut = saves.take_full({});
    REQUIRE(cut.ok());
    CHECK(cut.value().is_running());
    CHECK(saves.take_full({}).code() == errc::would_block);
    CHECK(saves.take_delta({}).code() == errc::would_block);
    CHECK(saves.restore().code() == errc::would_block);
    CHECK(saves.add("b", *b).code() == errc::invalid_value);
    CHECK(saves.remove("a").code() == errc::invalid_value);
    checkpoint_cut moved = std::move(cut.value());
    CHECK_FALSE(cut.value().is_running());
    CHECK(cut.value().write().code() == errc::invalid_value);
    CHECK(moved.write().ok());
    CHECK_FALSE(moved.is_running());
    CHECK(moved.write().code() == errc::invalid_value);
  }
  REQUIRE(saves.add("b", *b).ok());

  trained_table c(1);
  for (const checkpoint_options& bad :
       {checkpoint_options{.copy_budget = 0}, checkpoint_options{.copy_budget = -1},
        checkpoint_options{.block_bytes = 0}, checkpoint_options{.memory = nullptr}}) {
    checkpoint_folder other(folder.path(), bad);
    CHECK(other.add("c", *c).code() == errc::invalid_value);
    CHECK(c->state().changes == nullptr);
  }
  // At least the chain that was just written stays.
  checkpoint_folder others(folder.path(), {.kept_chains = 0});
  REQUIRE(others.add("c", *c).ok());
  save(others, true);
  save(others, false);
  CHECK(folder.names().size() == 2);
  CHECK(restored(folder.path(), "c").at == others.position());
}

TEST_CASE("checkpoint: the caller's numbers may have the names of a table's numbers") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  table.step(all_keys);
  const training_state state{
      .step = 9, .numbers = {{"items, step", index_t{1}}, {"items, rows", index_t{-5}}, {"rate", 0.5}}};
  written(saves.take_full(state));
  table.step(all_keys);
  written(saves.take_delta(state));
  const read_back read = restored(folder.path());
  CHECK(read.content == table.content());
  CHECK(read.state == state);
}

TEST_CASE("checkpoint: a folder whose tables have ended can end") {
  temporary_folder folder;
  checkpoint_folder saves(folder.path());
  trained_table table(seed());
  REQUIRE(saves.add("items", *table).ok());
  table.step(all_keys);
}
