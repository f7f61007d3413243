// Files that are not what they should be: damaged, cut off, of other tables, with numbers that don't fit.
// What is read is a file that was written, or a fault that says what is wrong; tables stay as they were.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/embedding/checkpoints/apply_delta.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_folder.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/memory/counting_resource.hpp>

#include "checkpoints/checkpoint_support.hpp"
#include "checkpoints/file_parts.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// full-1 and delta-2 of a small table with a counter, and what they stand for.
struct small_chain {
  static void counts(trained_table::table_type& table) { table.admit_by(filters::counter{2}).or_throw(); }
  small_chain() {
    counts(*table);
    saves.add("items", *table).or_throw();
    table.begin_step();
    table.train({1, 1, 2, 2, static_cast<key_type>(-1), static_cast<key_type>(-1), 3});
    save(saves, true);
    of_full = table.content();
    table.begin_step();
    table.train({2, 5, 5});
    table.erase({1});
    save(saves, false);
    of_delta = table.content();
    REQUIRE(of_full.rows.size() == 3);
    REQUIRE(of_delta.rows.size() == 3);
    REQUIRE(of_full.candidates.size() == 1);
  }
  [[nodiscard]] std::string full() const { return path_of(folder, true, 1); }
  [[nodiscard]] std::string delta() const { return path_of(folder, false, 2); }

  temporary_folder folder;
  trained_table table{seed()};
  checkpoint_folder saves{folder.path()};
  keyed_content of_full, of_delta;
};

/// What a restore of a folder says, and what the table holds then.
struct outcome {
  errc code = errc::ok;
  std::string message;
  read_back read;
  bool is_unchanged = false;
};
outcome try_restore(const std::string& folder) {
  trained_table table(1);
  small_chain::counts(*table);
  table.begin_step();
  table.train({70, 70, 71, 71, 72});
  const keyed_content before = table.content();
  checkpoint_folder saves(folder);
  saves.add("items", *table).or_throw();
  auto read = saves.restore();
  if (!read)
    return {read.code(), read.fault().message(), {table.content(), {}, {}, 0}, table.content() == before};
  REQUIRE(read.value());
  outcome found{errc::ok, {}, {table.content(), read.value()->at, read.value()->state, 0}, false};
  for (const fault& one : read.value()->passed_over) found.message += one.message() + '\n';
  found.read.passed_over = read.value()->passed_over.size();
  // A delta may follow only what is the newest.
  CHECK(saves.position() == (found.read.passed_over == 0 ? found.read.at : checkpoint_position{}));
  return found;
}

/// A delta that was changed: it is passed over, and says why; apply_delta refuses it too.
void bad_delta(const char* what, const std::function<void(file_parts&)>& change, const std::string& message) {
  CAPTURE(std::string(what));
  small_chain chain;
  file_parts parts = parts_of(chain.delta());
  change(parts);
  write_parts(chain.delta(), parts);
  const outcome found = try_restore(chain.folder.path());
  // What does not fit the tables is a fault, and what is no delta of this chain is left out.
  CAPTURE(found.message);
  CHECK(found.message.find(message) != std::string::npos);
  CHECK(found.read.content.rows == chain.of_full.rows);  // the file before
  if (found.code == errc::ok) CHECK(found.read.at.number == 1);
}
/// The first row of a table comes twice.
void double_row(file_parts& file, const std::string& table) {
  std::vector<std::string> rows = file.rows_of(table);
  rows.insert(rows.begin(), rows.front());
  file.set_rows(table, rows);
}
void bad_full(const char* what, const std::function<void(file_parts&)>& change, errc code,
              const std::string& message) {
  CAPTURE(std::string(what));
  small_chain chain;
  file_parts parts = parts_of(chain.full());
  change(parts);
  write_parts(chain.full(), parts);
  const outcome found = try_restore(chain.folder.path());
  CAPTURE(found.message);
  CHECK(found.code == code);
  CHECK(found.message.find(message) != std::string::npos);
  CHECK(found.message.find(chain.full()) != std::string::npos);
  CHECK(found.is_unchanged);
}

}  // namespace

TEST_CASE("checkpoint: files that are written again in parts are the same") {
  small_chain chain;
  for (const std::string& path : {chain.full(), chain.delta()}) write_parts(path, parts_of(path));
  const outcome found = try_restore(chain.folder.path());
  CHECK(found.read.content.rows == chain.of_delta.rows);
  CHECK(found.read.at.number == 2);
}

TEST_CASE("checkpoint: of a file with any one bit changed nothing is taken") {
  small_chain chain;
  for (const bool full : {true, false}) {
    const std::string path = full ? chain.full() : chain.delta();
    const std::string bytes = bytes_of(path);
    trained_table served(1);
    small_chain::counts(*served);
    checkpoint_position at{chain.saves.position().chain, 1};
    const keyed_content before = served.content();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        CAPTURE(full);
        CAPTURE(i);
        CAPTURE(bit);
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
        write_bytes(path, changed);
        if (!full) {
          REQUIRE_FALSE(apply_delta(path, "items", *served, at).ok());
          REQUIRE(served.content() == before);
        }
        if (bit != static_cast<int>(i % 8)) continue;  // one bit of each byte through the folder
        const outcome found = try_restore(chain.folder.path());
        if (full) {
          REQUIRE(found.code == errc::invalid_value);
          REQUIRE(found.is_unchanged);
        } else {
          REQUIRE(found.code == errc::ok);
          REQUIRE(found.read.passed_over == 1);
          REQUIRE(found.read.content == chain.of_full);
        }
      }
    }
    write_bytes(path, bytes);
  }
}

TEST_CASE("checkpoint: of a file that is cut off, or too long, nothing is taken") {
  small_chain chain;
  for (const bool full : {true, false}) {
    const std::string path = full ? chain.full() : chain.delta();
    const std::string bytes = bytes_of(path);
    for (std::size_t length = 0; length <= bytes.size() + 1; ++length) {
      if (length == bytes.size()) continue;
      CAPTURE(length);
      write_bytes(path, length > bytes.size() ? bytes + 'x' : bytes.substr(0, length));
      const outcome found = try_restore(chain.folder.path());
      if (full) {
        REQUIRE(found.code == errc::invalid_value);
      } else {
        REQUIRE(found.read.content == chain.of_full);
        REQUIRE(found.read.passed_over == 1);
      }
    }
    write_bytes(path, bytes);
  }
}

TEST_CASE("checkpoint: where the newest chain is damaged, the one before is read") {
  small_chain chain;
  chain.table.begin_step();
  chain.table.train({8, 8});
  save(chain.saves, true);
  chain.table.train({9, 9});
  save(chain.saves, false);
  const std::string full = path_of(chain.folder, true, 3), bytes = bytes_of(full);
  write_bytes(full, bytes.substr(0, bytes.size() - 1));
  const outcome found = try_restore(chain.folder.path());
  CHECK(found.read.content.rows == chain.of_delta.rows);
  CHECK(found.read.at.number == 2);
  CHECK(found.read.passed_over == 1);
  CHECK(found.message.find("truncated") != std::string::npos);
  CHECK(found.message.find(full) != std::string::npos);
  // With that one damaged too there is nothing to read. The fault is that of the newest.
  write_bytes(chain.full(), "");
  const outcome none = try_restore(chain.folder.path());
  CHECK(none.code == errc::invalid_value);
  CHECK(none.message.find(full) != std::string::npos);
}

TEST_CASE(
    "checkpoint: a delta in the middle that is damaged or missing ends the chain, and the next file is a "
    "full one") {
  for (const bool is_missing : {false, true}) {
    small_chain chain;
    chain.table.train({2, 2});
    save(chain.saves, false);
    chain.table.train({3, 3});
    save(chain.saves, false);
    const std::string damaged = path_of(chain.folder, false, 3);
    if (is_missing) {
      std::filesystem::remove(damaged);
    } else {
      write_bytes(damaged, bytes_of(damaged) + "x");
    }
    trained_table other(1);
    small_chain::counts(*other);
    checkpoint_folder reader(chain.folder.path());
    reader.add("items", *other).or_throw();
    const auto read = reader.restore().or_throw();
    REQUIRE(read);
    CHECK(read->at.number == 2);
    CHECK(other.content().rows == chain.of_delta.rows);
    REQUIRE(read->passed_over.size() == 1);
    CHECK(read->passed_over[0].message().find(is_missing ? "from 3 to 4" : "corrupted") != std::string::npos);
    CHECK(reader.position() == checkpoint_position{});
    CHECK(take(reader, false).code() == errc::invalid_value);
    other.begin_step();
    save(reader, true);
    CHECK(reader.position().number == 5);
    CHECK(try_restore(chain.folder.path()).read.content == other.content());
  }
}

TEST_CASE("checkpoint: deltas with numbers that don't fit are passed over") {
  bad_delta("another chain", [](file_parts& f) { f.number("checkpoint, chain") ^= 2; }, "");
  bad_delta(
      "a gap", [](file_parts& f) { f.number("checkpoint, to") = 2, f.number("checkpoint, from") = 3; },
      "its place in a chain can't be");
  bad_delta(
      "of the full file's number", [](file_parts& f) { f.number("checkpoint, from") = 2; },
      "its place in a chain can't be");
  bad_delta(
      "longer than its name", [](file_parts& f) { f.number("checkpoint, to") = 9; },
      "is the file 9, and its name has another number");
  bad_delta(
      "no chain", [](file_parts& f) { f.number("checkpoint, chain") = 0; }, "its place in a chain can't be");
  bad_delta(
      "no number of a chain", [](file_parts& f) { f.remove_number("checkpoint, chain"); },
      "no checkpoint: has no number \"checkpoint, chain\"");
  bad_delta(
      "no to", [](file_parts& f) { f.remove_number("checkpoint, to"); },
      "no checkpoint: has no number \"checkpoint, to\"");
  bad_delta(
      "a full file by its numbers", [](file_parts& f) { f.number("checkpoint, from") = 0; },
      "is a full file, and not a delta");
  bad_delta(
      "no step", [](file_parts& f) { f.remove_number("items, step"); },
      "table \"items\": has no number, step");
  bad_delta(
      "a step before the first", [](file_parts& f) { f.number("items, step") = 7; },
      "its numbers don't fit together");
  bad_delta(
      "records of later steps", [](file_parts& f) { --f.number("items, step"); },
      "its step is after that of the file");
  bad_delta(
      "a step of 2^32", [](file_parts& f) { f.number("items, step") += index_t{1} << 32; },
      "its numbers don't fit together");
  bad_delta(
      "fewer rows than records", [](file_parts& f) { f.number("items, rows") = 1; },
      "its numbers don't fit together");
  bad_delta(
      "rows below 0", [](file_parts& f) { f.number("items, rows") = -1; }, "its numbers don't fit together");
  bad_delta(
      "more rows than records, of all", [](file_parts& f) { f.number("items, whole") = 1; },
      "its numbers don't fit together");
}

TEST_CASE("checkpoint: deltas of other tables, and records that can't be") {
  bad_delta(
      "another name", [](file_parts& f) { f.table("items, records").name = "users, records"; },
      "table \"items, records\" is not in the file");
  bad_delta(
      "another format", [](file_parts& f) { f.table("items, records").format = "f16 records"; },
      "format f16 records in the file, f32 records here");
  bad_delta(
      "another width", [](file_parts& f) { f.table("items, records").width = 6; },
      "width 6 in the file, 5 here");
  bad_delta(
      "another optimizer", [](file_parts& f) { f.table("items, records").state_owner = "adam"; },
      "the state of adam in the file, of adagrad here");
  bad_delta(
      "other floats of state",
      [](file_parts& f) {
        table_entry& records = f.table("items, records");
        records.state_floats -= 1;
        records.row_bytes += 4;
      },
      "in the file, ");
  bad_delta(
      "erased keys of 4 bytes",
      [](file_parts& f) {
        f.table("items, erased").row_bytes = 4;
        f.table("items, erased").rows = 2;
      },
      "row bytes 4 in the file, 8 here");
  bad_delta(
      "erased keys first",
      [](file_parts& f) {
        std::swap(f.tables[0], f.tables[1]);
        std::swap(f.bytes[0], f.bytes[1]);
      },
      "erased keys come before the records");
  bad_delta(
      "a key that is erased twice", [](file_parts& f) { double_row(f, "items, erased"); },
      "key 1 is not larger than the one before it");
  bad_delta(
      "a frequency of 2^24", [](file_parts& f) { f.bytes_of("items, records")[16 + 3] = 1; },
      "its frequency can't be");
  bad_delta(
      "bytes that are zero", [](file_parts& f) { f.bytes_of("items, records")[20] = 1; },
      "its frequency can't be");
  bad_delta(
      "a step before the table's first",
      [](file_parts& f) { std::memset(f.bytes_of("items, records").data() + 8, 0, 8); },
      "its step is before the first one of the table");
}

TEST_CASE("checkpoint: full files that can't be") {
  bad_full(
      "a delta by its numbers",
      [](file_parts& f) { f.number("checkpoint, to") = 1, f.number("checkpoint, from") = 1; },
      errc::invalid_value, "its place in a chain can't be");
  bad_full(
      "another number", [](file_parts& f) { f.number("checkpoint, to") = 4; }, errc::invalid_value,
      "is the file 4, and its name has another number");
  bad_full(
      "without the table", [](file_parts& f) { f.remove_table("items, records"); }, errc::shape_mismatch,
      "table \"items, records\" is not in the file");
  bad_full(
      "without tables", [](file_parts& f) { f.tables.clear(), f.bytes.clear(); }, errc::shape_mismatch,
      "table \"items, records\" is not in the file");
  bad_full(
      "another optimizer", [](file_parts& f) { f.table("items, records").state_owner = "adam"; },
      errc::unsupported, "the state of adam");
  bad_full(
      "other rows than records", [](file_parts& f) { ++f.number("items, rows"); }, errc::invalid_value,
      "its numbers don't fit together");
  bad_full(
      "a key that waits twice", [](file_parts& f) { double_row(f, "items, candidates"); },
      errc::invalid_value, "key 3 is not larger than the one before it");
  bad_full(
      "a first step that is none, and a step", [](file_parts& f) { f.number("items, first step") = -1; },
      errc::invalid_value, "its numbers don't fit together");
  bad_full(
      "a count of 0", [](file_parts& f) { std::memset(f.bytes_of("items, candidates").data() + 8, 0, 8); },
      errc::invalid_value, "its count of occurrences can't be");
  bad_full(
      "a count of 2^56", [](file_parts& f) { f.bytes_of("items, candidates")[15] = 1; }, errc::invalid_value,
      "its count of occurrences can't be");
}

TEST_CASE("checkpoint: a filter's state of several rows is refused") {
  const auto filters = [](trained_table::table_type& table) {
    table.admit_by(filters::counting_bloom{3, 100, 0.1}).or_throw();
  };
  temporary_folder folder;
  trained_table table(seed());
  filters(*table);
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  table.step(100);
  save(saves, true);
  file_parts parts = parts_of(path_of(folder, true, 1));
  parts.table("items, filter").rows = 3;
  std::string& bytes = parts.bytes_of("items, filter");
  bytes = bytes + bytes + bytes;
  write_parts(path_of(folder, true, 1), parts);
  trained_table other(1);
  filters(*other);
  checkpoint_folder reader(folder.path());
  reader.add("items", *other).or_throw();
  const auto refused = reader.restore();
  CHECK(refused.code() == errc::invalid_value);
  CHECK(refused.fault().message().find("table \"items, filter\": must have one row") != std::string::npos);
}

TEST_CASE(
    "checkpoint: a file of a table that has more rows than most_rows, or steps before this one's first") {
  temporary_folder folder;
  trained_table table(seed());
  checkpoint_folder saves(folder.path());
  saves.add("items", *table).or_throw();
  table.begin_step();
  table.train(keys_from(0, 100));
  save(saves, true);
  trained_table few(1, {.most_rows = 99, .granule_bytes = 4096}), late(1);
  checkpoint_folder reader(folder.path());
  reader.add("items", *few).or_throw();
  const auto refused = reader.restore();
  CHECK(refused.code() == errc::shape_mismatch);
  CHECK(refused.fault().message().find("has 100 rows in the file, and most_rows is 99") != std::string::npos);
  CHECK(few->size() == 0);
  late->begin_step(5000);
  checkpoint_folder others(folder.path());
  others.add("items", *late).or_throw();
  CHECK(others.restore().fault().message().find("its step is before the first one of the table") !=
        std::string::npos);
  CHECK(late->size() == 0);
}

TEST_CASE("checkpoint: two files with one number, and files with other names") {
  small_chain chain;
  // The delta again, under later names: it is the file 2, and not another.
  for (const std::uint64_t number : {3U, 7U})
    std::filesystem::copy(chain.delta(), path_of(chain.folder, false, number));
  std::filesystem::copy(chain.full(), path_of(chain.folder, true, 5));
  std::filesystem::copy(chain.delta(), path_of(chain.folder, true, 6));
  std::filesystem::copy(chain.full(), path_of(chain.folder, false, 8));
  const outcome found = try_restore(chain.folder.path());
  CHECK(found.read.content.rows == chain.of_delta.rows);
  CHECK(found.read.at.number == 2);
  CHECK(found.message.find("its name has another number") != std::string::npos);
  // Names that are none.
  small_chain other;
  for (const char* name :
       {"full-1.drt", "full-000000000009.drt.saving", "delta-.drt", "full-00000000000x.drt",
        "full-99999999999999999999.drt", "full-9223372036854775807.drt", "notes.txt", "delta-000000000009",
        "-000000000009.drt"})
    write_bytes(other.folder.path() + '/' + name, "x");
  CHECK(try_restore(other.folder.path()).read.content.rows == other.of_delta.rows);
  CHECK(try_restore(other.folder.path()).read.passed_over == 0);
  save(other.saves, true);
  CHECK(other.saves.position().number == 3);
}

TEST_CASE("checkpoint: rows that a header announces and no file has are asked no memory for") {
  small_chain chain;
  file_parts parts = parts_of(chain.full());
  parts.table("items, records").rows = index_t{1} << 31;
  parts.number("items, rows") = index_t{1} << 31;
  std::vector<const_named_table> tables;
  std::uint64_t blocks_bytes = 0;
  constexpr std::uint64_t block_bytes = 4096;
  for (const table_entry& one : parts.tables) {
    tables.emplace_back(one, nullptr, one.row_bytes);
    std::uint64_t length = 0, blocks = 0;
    REQUIRE(detail::packed_length(one, length));
    REQUIRE(detail::blocks_length(length, block_bytes, blocks));
    blocks_bytes += blocks;
  }
  std::uint64_t hash = 0;
  const detail::byte_writer header = detail::header_of(tables, parts.state, block_bytes, blocks_bytes, hash);
  for (const bool is_sparse : {false, true}) {  // without those bytes, and with holes instead
    write_bytes(chain.full(), {reinterpret_cast<const char*>(header.data()), header.size()});
    if (is_sparse) {
      const auto length = static_cast<off_t>(header.size() + blocks_bytes + 8);
      if (::truncate(chain.full().c_str(), length) != 0) {
        MESSAGE("this file system has no files of " << length << " bytes: not tested");
        continue;
      }
    }
    trained_table table(1);
    counting_resource memory;
    checkpoint_folder reader(chain.folder.path());
    reader.add("items", *table).or_throw();
    const auto refused = reader.restore({.takes = {}, .memory = &memory});
    CHECK(refused.code() == errc::invalid_value);
    CHECK(refused.fault().message().find(is_sparse ? "the checksum of bytes" : "truncated") !=
          std::string::npos);
    CHECK(memory.statistics().largest < 100'000);
    CHECK(table->size() == 0);
  }
}
