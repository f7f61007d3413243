// Growing tables: what they refuse, with which words; and memory that is refused at every allocation in turn.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <stop_token>
#include <string>
#include <vector>

#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/memory/limited_resource.hpp>
#include <deeprec/optim/adagrad.hpp>

#include "growing/growing_model.hpp"
#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table_type = growing_table<f32_rows>;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// --- what is refused, and how it is named

std::string fault_of(const f32_rows& format, const growing_options& options) {
  const status s = table_type::fault_of(format, options);
  std::string thrown = "ok";
  try {
    const table_type made(format, first_values, options);
  } catch (const error& fault) {
    thrown = fault.what();
    CHECK(fault.code() == s.code());
  }
  CHECK(thrown == s.message());
  return thrown;
}

TEST_CASE("growing table: a format or options of which no table can be made are named") {
  const f32_rows format(4);
  const std::string invalid = "invalid value: growing_table: ";
  CHECK(fault_of(f32_rows(0), {}) == invalid + "width must be at least 1");
  CHECK(fault_of(format, {.most_rows = 0}) == invalid + "most_rows must be at least 1");
  CHECK(fault_of(format, {.most_rows = -3}) == invalid + "most_rows must be at least 1; value -3");
  CHECK(fault_of(format, {.memory = nullptr}) == invalid + "memory must not be null");
  for (const index_t bytes :
       {index_t{2048}, index_t{4095}, index_t{5000}, index_t{1} << 27, index_t{-4096}}) {
    CHECK(fault_of(format, {.granule_bytes = bytes}) ==
          invalid + "granule_bytes must be a power of two from 4096 to 64 MB; value " +
              std::to_string(bytes));
  }
  CHECK(fault_of(format, {.granule_bytes = 0}) ==
        invalid + "granule_bytes must be a power of two from 4096 to 64 MB");
  // A header of 64 bytes, facts of 16 and up to 63 bytes of alignment: 4096 hold one row of 3968 bytes at
  // most.
  CHECK(fault_of(f32_rows(992), {.granule_bytes = 4096}) == "ok");
  CHECK(fault_of(f32_rows(993), {.granule_bytes = 4096}) ==
        invalid + "granule_bytes must be enough for one row; value 4096");
  CHECK(fault_of(f32_rows(1 << 25), {}) ==
        invalid + "granule_bytes must be enough for one row; value 2097152");
  CHECK(fault_of(f32_rows(std::numeric_limits<index_t>::max() / 2), {}) ==
        invalid + "granule_bytes must be enough for one row; value 2097152");
  CHECK(fault_of(format, {.granule_bytes = index_t{64} << 20, .memory = std::pmr::new_delete_resource()}) ==
        "ok");
  CHECK_THROWS_AS((table_type(0, state_of<adagrad>, first_values)), error);
  CHECK_THROWS_WITH_AS(table_type(format, initial_row()),
                       "invalid value: growing_table: initialise must not be empty", error);
}

TEST_CASE("growing table: a constructor whose memory is refused throws, and gives back what it had") {
  for (long n = 0; n < 4; ++n) {
    allowance allowed{.left = n};
    refusing_resource memory(allowed);
    bool refused = false;
    try {
      const table_type made(f32_rows(4), first_values, {.memory = &memory});
    } catch (const error& fault) {
      refused = fault.code() == errc::out_of_memory;
    }
    CHECK(refused == (allowed.refused > 0));
    CHECK(memory.held == 0);
    CHECK((n != 0 || refused));
  }
}

TEST_CASE("growing table: filters that can't be are refused by admit_by, and the one before stays") {
  table_type table(f32_rows(2), first_values);
  REQUIRE(table.admit_by(filters::counting_bloom{2, 100, 0.1}).ok());
  const admission_filter* const before = table.filter();
  const std::string invalid = "invalid value: admit_by: ";
  CHECK(table.admit_by(filters::counter{(1U << 24) - 1}).message() ==
        invalid + "occurrences of filters::counter must be at most 2^24 - 2; value 16777215");
  CHECK(table.admit_by(filters::counting_bloom{65536}).message() ==
        invalid + "occurrences of filters::counting_bloom must be at most 65535; value 65536");
  const std::string bloom =
      invalid + "filters::counting_bloom must have 1 key at least and a false_share in (0, 1)";
  for (const index_t keys : {0, -7})
    CHECK(table.admit_by(filters::counting_bloom{2, keys}).message() == bloom);
  for (const double share : {0.0, 1.0, -0.5, 1.5, double{nan}})
    CHECK(table.admit_by(filters::counting_bloom{2, 10, share}).message() == bloom);
  for (const double share : {0.0, -0.1, 1.0000001, double{nan}, HUGE_VAL}) {
    CHECK(table.admit_by(filters::probabilistic{share}).message() ==
          invalid + "share of filters::probabilistic must be in (0, 1]");
  }
  CHECK(table.filter() == before);
  CHECK(table.admit_by(filters::probabilistic{1}).ok());
  CHECK(table.admit_by(filters::counter{(1U << 24) - 2}).ok());
  CHECK(table.filter() == nullptr);
}

TEST_CASE("growing table: a filter for which there is no memory is refused, and the one before stays") {
  allowance allowed;
  refusing_resource memory(allowed);
  table_type table(f32_rows(2), first_values, {.memory = &memory});
  REQUIRE(table.admit_by(filters::counting_bloom{2, 100, 0.1}).ok());
  const admission_filter* const before = table.filter();
  const index_t bytes = table.statistics().filter_bytes;
  CHECK(bytes > 0);
  allowed.left = 0;
  CHECK(table.admit_by(filters::counting_bloom{300, 100, 0.1}).code() == errc::out_of_memory);
  allowed.left = allowance::unlimited;
  CHECK(table.filter() == before);
  CHECK(table.statistics().filter_bytes == bytes);
  // So is one for any number of keys, before long.
  limited_resource sane(std::size_t{1} << 36);  // sanitizers stop a program that asks for more
  table_type other(f32_rows(2), first_values, {.memory = &sane});
  const index_t most = std::numeric_limits<index_t>::max();
  CHECK(other.admit_by(filters::counting_bloom{2, most, 1e-9}).code() == errc::out_of_memory);
  CHECK(other.admit_by(filters::counting_bloom{300, most, 0.9}).code() == errc::out_of_memory);
  CHECK(other.filter() == nullptr);
}

TEST_CASE("growing table: a default row must have as many values as the width, and memory") {
  allowance allowed;
  refusing_resource memory(allowed);
  table_type table(f32_rows(3), first_values, {.memory = &memory});
  const std::vector<float> few(2, 1.0F), right(3, 1.0F), many(4, 1.0F);
  const std::string text = "shape mismatch: default_row: values must be as many as the width";
  CHECK(table.default_row(few).message() == text + " (is 2, must be 3)");
  CHECK(table.default_row(many).message() == text + " (is 4, must be 3)");
  CHECK(table.rows().default_row() == nullptr);
  allowed.left = 0;
  CHECK(table.default_row(right).code() == errc::out_of_memory);
  CHECK(table.rows().default_row() == nullptr);
  allowed.left = allowance::unlimited;
  CHECK(table.default_row(right).ok());
  CHECK(table.default_row(right).ok());
  CHECK(table.rows().default_row() != nullptr);
}

TEST_CASE("growing table: a stopped erasure or eviction does nothing") {
  inline_executor here;
  table_type table(f32_rows(3), first_values);
  REQUIRE(train(table, keys_from(0, 50)).ok());
  const table_content before = content_of(table);
  std::stop_source source;
  source.request_stop();
  const std::stop_token token = source.get_token();
  context ctx(here);
  ctx.stop = &token;
  CHECK(table.erase(ctx, keys_from(0, 9)).fault().message() == "stopped: growing_table::erase");
  CHECK(evict_rows(ctx, table, evict::least_recent{0}, 0).fault().message() == "stopped: evict_rows");
  CHECK(evict_rows(ctx, table, [](const evictee&) { return true; }, 0).code() == errc::stopped);
  CHECK(content_of(table) == before);
}

// --- memory that is refused

/// A call that may be refused memory, on a table that has lived before.
struct attempt {
  const char* name;
  std::function<void(table_type&)> prepare;
  std::function<status(const context<thread_pool>&, table_type&)> call;
  growing_options options{.granule_bytes = 4096};
};

std::vector<attempt> attempts() {
  const auto fresh = keys_from(5000, 700, 3);
  std::vector<key_type> often = fresh;  // each third one comes three times
  for (std::size_t k = 0; k < fresh.size(); k += 3) often.insert(often.end(), 2, fresh[k]);
  const auto inserts = [often](const auto& ctx, table_type& table) { return insert(ctx, table, often); };
  const auto evicting = [](when_full full) { return growing_options{300, full, 4096}; };
  std::vector<attempt> all;
  all.push_back({"insert", {}, inserts});
  all.push_back({"insert, refusing", {}, inserts, {300, when_full::refuse, 4096}});
  all.push_back({"insert, least recent", {}, inserts, evicting(when_full::evict_least_recent)});
  all.push_back({"insert, least frequent", {}, inserts, evicting(when_full::evict_least_frequent)});
  for (const when_full full : {when_full::refuse, when_full::evict_least_recent}) {
    const growing_options options{full == when_full::refuse ? index_t{1} << 40 : 300, full, 4096};
    all.push_back(
        {"counter", [](table_type& t) { t.admit_by(filters::counter{3}).or_throw(); }, inserts, options});
    all.push_back({"bloom",
                   [](table_type& t) { t.admit_by(filters::counting_bloom{3, 900, 0.2}).or_throw(); },
                   inserts, options});
    all.push_back({"probabilistic", [](table_type& t) { t.admit_by(filters::probabilistic{0.3}).or_throw(); },
                   inserts, options});
    all.push_back({"user's", [](table_type& t) { t.admit_by(std::make_unique<parity_filter>()).or_throw(); },
                   inserts, options});
  }
  all.push_back({"insert without the filter",
                 [](table_type& t) { t.admit_by(filters::counter{3}).or_throw(); },
                 [fresh](const auto&, table_type& table) {
                   return table.rows().insert(fresh.data(), static_cast<index_t>(fresh.size()));
                 }});
  all.push_back({"erase", {}, [](const auto& ctx, table_type& table) {
                   return status_of(table.erase(ctx, keys_from(100, 700)));
                 }});
  all.push_back({"step_ttl", {}, [](const auto& ctx, table_type& table) {
                   return status_of(evict_rows(ctx, table, evict::step_ttl{5}));
                 }});
  all.push_back({"l2_below", {}, [](const auto& ctx, table_type& table) {
                   return status_of(evict_rows(ctx, table, evict::l2_below{0.3F}));
                 }});
  all.push_back({"least_recent", {}, [](const auto& ctx, table_type& table) {
                   return status_of(evict_rows(ctx, table, evict::least_recent{50}));
                 }});
  all.push_back({"least_frequent", {}, [](const auto& ctx, table_type& table) {
                   return status_of(evict_rows(ctx, table, evict::least_frequent{100}));
                 }});
  all.push_back({"predicate", {}, [](const auto& ctx, table_type& table) {
                   return status_of(
                       evict_rows(ctx, table, [](const evictee& row) { return row.key % 3 == 1; }));
                 }});
  return all;
}

/// A table with rows of two steps, and candidates where it counts.
std::unique_ptr<table_type> table_for(const attempt& of, std::pmr::memory_resource* memory) {
  growing_options options = of.options;
  options.memory = memory;
  auto made = std::make_unique<table_type>(f32_rows(6, {.state_floats = 6}), first_values, options);
  if (of.prepare) of.prepare(*made);
  const std::vector<key_type> old = keys_from(0, 150);
  made->begin_step(1);
  REQUIRE(made->rows().insert(old.data(), 150).ok());
  REQUIRE(train(*made, keys_from(100, 100)).ok());
  made->begin_step(10);
  REQUIRE(train(*made, keys_from(50, 60)).ok());
  REQUIRE(insert(*made, keys_from(5000, 100)).ok());
  inline_executor here;
  REQUIRE(made->erase(here, keys_from(60, 5)).ok());
  made->begin_step(11);
  return made;
}
bool balances(const table_type& table, const refusing_resource& memory) {
  const growing_statistics now = table.statistics();
  return now.index_bytes + now.row_bytes + now.filter_bytes == static_cast<index_t>(memory.held);
}

void refuse_each(const attempt& of, int pool_threads, bool of_context, bool pinned) {
  thread_pool pool(threads(pool_threads));
  table_content expected;
  growing_statistics numbers;
  for (long n = -1;; ++n) {  // -1: a run that nothing refuses
    CAPTURE(of.name);
    CAPTURE(n);
    CAPTURE(of_context);
    allowance of_table, of_scratch;
    refusing_resource memory(of_table), scratch(of_scratch);
    const auto table = table_for(of, &memory);
    const auto pin = pinned ? table->rows().guard() : reclaimer::pin();
    context ctx(pool);
    ctx.memory = &scratch;
    const table_content before = content_of(*table);
    const growing_statistics then = table->statistics();
    if (n >= 0) (of_context ? of_scratch : of_table).left = n;
    const status s = of.call(ctx, *table);
    of_scratch.left = of_table.left = allowance::unlimited;
    CHECK(scratch.held == 0);
    CHECK(balances(*table, memory));
    if (n < 0) {
      REQUIRE(s.ok());
      expected = content_of(*table);
      numbers = table->statistics();
      CHECK((expected == before) == false);
      continue;
    }
    const bool was_refused = of_table.refused + of_scratch.refused > 0;
    if (!s) {
      CHECK(was_refused);
      CHECK(s.code() == errc::out_of_memory);
      REQUIRE(content_of(*table) == before);
      const growing_statistics now = table->statistics();
      CHECK(now.rows == then.rows);
      CHECK(now.candidates == then.candidates);
      CHECK(now.refused == then.refused);
      CHECK(now.evicted == then.evicted);
      REQUIRE(of.call(ctx, *table).ok());
    }
    REQUIRE(content_of(*table) == expected);
    const growing_statistics now = table->statistics();
    CHECK(now.refused == numbers.refused);
    CHECK(now.evicted == numbers.evicted);
    CHECK(now.waiting_rows == numbers.waiting_rows);
    CHECK(balances(*table, memory));
    if (!was_refused) break;
  }
}

TEST_CASE(
    "growing table: a call that is refused memory changes nothing, and its repetition is as if it was "
    "first") {
  for (const attempt& of : attempts()) {
    for (const bool of_context : {false, true}) {
      refuse_each(of, 1, of_context, false);
      refuse_each(of, 3, of_context, true);
    }
  }
}

TEST_CASE("growing table: a resolve that is refused memory leaves rows without steps, and works afterwards") {
  for (const bool of_context : {false, true}) {
    for (long n = 0;; ++n) {
      allowance of_table, of_scratch;
      refusing_resource memory(of_table), scratch(of_scratch);
      table_type table(f32_rows(6), first_values, {.granule_bytes = 4096, .memory = &memory});
      inline_executor here;
      context ctx(here);
      ctx.memory = &scratch;
      const auto keys = keys_from(0, 300);
      (of_context ? of_scratch : of_table).left = n;
      const status s = status_of(resolve_new(ctx, table, keys));
      of_scratch.left = of_table.left = allowance::unlimited;
      CHECK(scratch.held == 0);
      CHECK((s.ok() || s.code() == errc::out_of_memory));
      CHECK((table.size() == 0 || table.size() == 300));
      CHECK(table.statistics().pins == 0);
      REQUIRE(train(table, keys).ok());
      CHECK(keys_in(table) == keys);
      if (s) break;
    }
  }
}

}  // namespace
