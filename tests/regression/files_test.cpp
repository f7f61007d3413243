// Regressions of table files: results that throw, sizes that a file claims, whose state a table holds.
#include <unistd.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/files/table_file.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/embedding/tables/separate_state.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/optimizers.hpp>

#include "support/hashed_source.hpp"
#include "support/sanitizers.hpp"
#include "support/test_resources.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

/// A path that nobody else has, without a file at the begin and at the end.
struct scratch_file {
  explicit scratch_file(const char* name) : path("/tmp/deeprec_" + std::to_string(::getpid()) + "_" + name) {}
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
  refusing_resource memory(few);
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

#if !DEEPREC_TEST_SANITIZED  // they end the process where so much is requested
TEST_CASE("n05: a table that is too large for a block is refused by the save") {
  const scratch_file file("n05_block");
  const float one = 1;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&one);
  const const_named_table huge[] = {{{"huge", "f32", index_t{1} << 60, 1, 4, 4, 0}, bytes, 0}};
  const auto saved = save_tables(file.path, huge, {}, {.block_bytes = (std::numeric_limits<index_t>::max)()});
  CHECK(saved.code() == errc::out_of_memory);
  CHECK(::access(file.path.c_str(), F_OK) != 0);
}
#endif

namespace {

std::string contents_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline_executor here;

}  // namespace

TEST_CASE_TEMPLATE("n14: rows that were made for an optimizer are not stepped by one of another name", Format,
                   f32_rows, bf16_rows, split_bf16_rows) {
  dense_table<Format> table(4, 8, state_of<momentum>);
  table.initialize(here, row_init::normal{.seed = 1});
  const std::vector<std::int64_t> ids{1, 2};
  const std::vector<float> g(16, 1.0F);
  const fixed_hotness_view<> bags(ids.data(), 2, 1);
  const matrix_view<const float> gradient(g.data(), 2, 8);
  REQUIRE(update(here, table.view(), bags, combiner::sum, gradient, momentum{}).ok());
  const auto refused = update(here, table.view(), bags, combiner::sum, gradient, rmsprop{});
  CHECK(refused.code() == errc::unsupported);
  CHECK(update(here, table.view(), bags, combiner::sum, gradient, with_weight_decay(momentum{}, 0.1F)).ok());
  CHECK(update(here, table.view(), bags, combiner::sum, gradient, sgd{}).ok());  // has no state
  feature_group<adagrad, fixed_hotness_view<>> group;
  group.add(table.view(), combiner::sum);
  const std::vector<fixed_hotness_view<>> batches{bags};
  const status of_group = update(here, group, batches, gradient, adagrad{});
  CHECK(of_group.code() == errc::unsupported);
  CHECK(of_group.place().table == 0);
  // Nobody's state: whoever steps it.
  dense_table<Format> free(4, Format(8, {.state_floats = 8}));
  CHECK(update(here, free.view(), bags, combiner::sum, gradient, rmsprop{}).ok());
  std::vector<float> state(32, 0.0F);
  dense_table<Format> rows(4, Format(8));
  const auto apart = with_state(rows.view(), matrix_view<float>(state.data(), 4, 8), rmsprop::name.data());
  CHECK(update(here, apart, bags, combiner::sum, gradient, momentum{}).code() == errc::unsupported);
  CHECK(update(here, apart, bags, combiner::sum, gradient, rmsprop{}).ok());
}

TEST_CASE("n14: a file keeps whose state a table holds, and another optimizer's is refused by name") {
  const scratch_file file("n14");
  dense_table<f32_rows> table(3, 2, state_of<adam>), other(3, 2, state_of<ftrl>);
  dense_table<f32_rows> anybody(3, f32_rows(2, {.state_floats = 4}));
  table.initialize(here, row_init::normal{.seed = 1});
  std::vector<float> moments(6, 0.5F), back(6);
  const auto dense = [](std::vector<float>& values, const char* owner) {
    named_table made = name_table("state", as_table(matrix_view<float>(values.data(), 1, 6)));
    made.state_owner = owner;
    return made;
  };
  save_tables(file.path, {name_table("items", table.view()), dense(moments, "adam")}).or_throw();
  const auto info = describe_file(file.path).or_throw();
  CHECK(info.version == 2);
  CHECK(info.tables[0].state_owner == "adam");
  CHECK(info.tables[1].state_owner == "adam");
  const auto refused = load_tables(file.path, {name_table("items", other.view()), dense(back, "adam")});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.code() == errc::unsupported);
  CHECK(refused.fault().reason() == "table \"items\": the state of adam in the file, of ftrl here");
  CHECK(load_tables(file.path, {name_table("items", table.view()), dense(back, "adagrad")}).code() ==
        errc::unsupported);
  CHECK(back == std::vector<float>(6));
  CHECK(load_tables(file.path, {name_table("items", table.view()), dense(back, "adam")}).ok());
  CHECK(back == moments);
  CHECK(load_tables(file.path, {name_table("items", anybody.view()), dense(back, "")}).ok());

  // Every byte that is flipped or missing is refused, as in files of version 1.
  const std::string good = contents_of(file.path);
  const auto loaded = [&](const std::string& bytes) {
    put(file.path, bytes);
    return load_tables(file.path, {name_table("items", table.view()), dense(back, "adam")}).ok();
  };
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    CAPTURE(at);
    REQUIRE_FALSE(loaded(bad));
    REQUIRE_FALSE(loaded(good.substr(0, at)));
  }
  CHECK(loaded(good));

  // Tables that don't tell are saved as before, and such files are loaded by everybody.
  save_tables(file.path, {name_table("items", anybody.view())}).or_throw();
  CHECK(describe_file(file.path).or_throw().version == 1);
  CHECK(load_tables(file.path, {name_table("items", other.view())}).ok());
  const std::string long_owner(70'000, 'x');
  named_table named = name_table("items", anybody.view());
  named.state_owner = long_owner;
  CHECK(save_tables(file.path, {named}).code() == errc::invalid_value);
}
