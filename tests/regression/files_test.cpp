// Regressions of table files: results that throw, sizes that a file claims, whose state a table holds.
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/hashed_source.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A path that nobody else has, without a file at the begin and at the end.
struct scratch_file {
  explicit scratch_file(const char* name)
      : path("/tmp/deeprec_" + std::to_string(::getpid()) + "_" + name) {}
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;
  ~scratch_file() { ::unlink(path.c_str()); }
  const std::string path;
};

using keyed_table = hashed_table<f32_rows>;

void all_ones(std::uint64_t, float* values) { std::fill_n(values, 4, 1.0F); }

}  // namespace

TEST_CASE("n05: name_rows returns what memory and what the file refuse") {
  const scratch_file file("n05");
  keyed_table table(f32_rows(4), all_ones);
  const std::uint64_t keys[3] = {1, 2, 3};
  REQUIRE(table.insert(keys, 3).ok());
  const hashed_rows<f32_rows> source(table);
  {
    const auto items = name_rows<std::uint64_t>("items", source);
    save_tables(file.path, items.tables()).or_throw();
  }
  allowance few;
  failing_resource memory(few);
  bool done = false;
  for (long granted = 0; !done; ++granted) {
    few.left = granted;
    const auto rows = name_rows<std::uint64_t>("items", source, file.path, &memory);
    done = rows.ok();
    CHECK((done || rows.code() == errc::out_of_memory));
    if (!done) CHECK(rows.fault().message().find(file.path) == 0);
  }
  CHECK(few.refused > 2);
  CHECK(memory.held == 0);

  // A file whose keys are 2^60 rows of 0 bytes, and one whose keys are others.
  const const_named_table of_nothing[] = {{{"items, keys", "u64", index_t{1} << 60, 1, 0, 0, 0}, nullptr, 0}};
  save_tables(file.path, of_nothing).or_throw();
  auto rows = name_rows<std::uint64_t>("items", source, file.path);
  REQUIRE_FALSE(rows.ok());
  CHECK(rows.code() == errc::shape_mismatch);
  CHECK(rows.fault().reason() == "table \"items, keys\": row bytes 0 in the file, 8 here");
  const std::vector<std::int32_t> narrow{1, 2};
  save_tables(file.path, {name_keys("items, keys", std::span(narrow))}).or_throw();
  rows = name_rows<std::uint64_t>("items", source, file.path);
  CHECK(rows.code() == errc::shape_mismatch);
  save_tables(file.path, {name_keys("others", std::span(narrow))}).or_throw();
  rows = name_rows<std::uint64_t>("items", source, file.path);
  CHECK(rows.code() == errc::shape_mismatch);
}

TEST_CASE("n05: a table that is too large for a block is refused by the save") {
  const scratch_file file("n05_block");
  const float one = 1;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&one);
  const const_named_table huge[] = {{{"huge", "f32", index_t{1} << 60, 1, 4, 4, 0}, bytes, 0}};
  const auto saved =
      save_tables(file.path, huge, {}, {.block_bytes = (std::numeric_limits<index_t>::max)()});
  CHECK(saved.code() == errc::out_of_memory);
  CHECK(::access(file.path.c_str(), F_OK) != 0);
}
