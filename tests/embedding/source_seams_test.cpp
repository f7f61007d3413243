// What a keyed row source may offer beside find(): insertion that moves no row, a find that can fail, and a
// look at the rows that an update steps.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include <deeprec/core/contract.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/embedding/files/named_rows.hpp>
#include <deeprec/embedding/groups/feature_group.hpp>
#include <deeprec/embedding/groups/lookup_features.hpp>
#include <deeprec/embedding/groups/resolved_features.hpp>
#include <deeprec/embedding/groups/update_features.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/embedding/training/update.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/sgd.hpp>

#include "support/hashed_source.hpp"

using namespace deeprec;
using deeprec_test::hashed_rows;
using deeprec_test::hashed_table;

namespace {

constexpr index_t width = 3;
using key = std::uint64_t;
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

/// Rows that never move, in memory for `capacity` of them. A key is admitted once it has come admit_at times.
struct stable_table {
  explicit stable_table(std::size_t capacity) : values(capacity * at(width)) {}
  std::vector<float> values;
  std::unordered_map<key, std::size_t> rows;
  std::unordered_map<key, int> seen;
  int admit_at = 1;
  key fails_at = 0;     // insert() fails at this key
  key unreachable = 0;  // find() fails at this key
  std::mutex mutex;     // of what update() tells
  std::atomic<int> found{0}, guards{0};
  int inserts = 0, guards_at_insert = 0;
  int holds = 0, holds_at_insert = 0;
  std::vector<key> shown;  // rows that a batch held while it inserted, by their first value; 0: absent
  std::vector<key> inserted;
  std::map<std::size_t, index_t> occurrences;  // of rows that were told
  std::map<std::size_t, float> told_value;     // their first value then
  int calls = 0;

  float* row(std::size_t r) { return values.data() + r * at(width); }
};

class stable_rows {
 public:
  using format_type = f32_rows;
  using space = host_space;
  using byte_type = std::byte;

  explicit stable_rows(stable_table& table) : table_(&table), format_(width) {}
  [[nodiscard]] const f32_rows& format() const { return format_; }
  [[nodiscard]] const void* identity() const { return table_; }
  status find(const key* keys, index_t n, const std::byte** addresses) const {
    table_->found += static_cast<int>(n);
    for (index_t k = 0; k < n; ++k) {
      if (keys[k] == table_->unreachable && keys[k] != 0)
        return {errc::io_error,
                "stable_rows: the tier must be within reach",
                {.value = static_cast<std::int64_t>(keys[k])}};
      const auto it = table_->rows.find(keys[k]);
      addresses[k] = it == table_->rows.end() ? nullptr : bytes(it->second);
    }
    return {};
  }
  template <class Context>
  status insert(const Context& ctx, const key* keys, index_t n, const std::byte** addresses) const {
    static_cast<void>(ctx.executor->concurrency());
    ++table_->inserts;
    table_->guards_at_insert = table_->guards;
    table_->holds_at_insert = table_->holds;
    table_->inserted.insert(table_->inserted.end(), keys, keys + n);
    for (index_t k = 0; k < n; ++k) {
      if (keys[k] == table_->fails_at && keys[k] != 0) return {errc::out_of_memory, "stable_rows::insert"};
      ++table_->seen[keys[k]];
    }
    for (index_t k = 0; k < n; ++k) {
      addresses[k] = nullptr;
      if (table_->seen[keys[k]] < table_->admit_at) continue;
      const auto [it, is_new] = table_->rows.emplace(keys[k], table_->rows.size());
      if (is_new) std::fill_n(table_->row(it->second), width, static_cast<float>(keys[k]));
      addresses[k] = bytes(it->second);
    }
    return {};
  }
  struct held {
    stable_table* table;
    held(stable_table& of, const std::byte* const* rows, index_t n) : table(&of) {
      ++table->holds;
      table->shown.clear();
      for (index_t k = 0; k < n; ++k) table->shown.push_back(rows[k] == nullptr ? 0 : first_value(rows[k]));
    }
    held(held&& other) noexcept : table(std::exchange(other.table, nullptr)) {}
    held& operator=(held&&) = delete;
    ~held() {
      if (table != nullptr) --table->holds;
    }
    static key first_value(const std::byte* row) {
      return static_cast<key>(*static_cast<const float*>(static_cast<const void*>(row)));
    }
  };
  [[nodiscard]] held hold(const std::byte* const* rows, index_t n) const { return {*table_, rows, n}; }
  void before_step(std::byte* const* rows, const index_t* occurrences, index_t n) const noexcept {
    const std::lock_guard lock(table_->mutex);
    ++table_->calls;
    for (index_t i = 0; i < n; ++i) {
      const auto* const value = static_cast<const float*>(static_cast<const void*>(rows[i]));
      const auto r = static_cast<std::size_t>(value - table_->values.data()) / at(width);
      table_->occurrences[r] += occurrences[i];
      table_->told_value.emplace(r, *value);
    }
  }
  class pin {
   public:
    explicit pin(stable_table& table) : table_(&table) { ++table.guards; }
    pin(pin&& other) noexcept : table_(std::exchange(other.table_, nullptr)) {}
    pin& operator=(pin&& other) noexcept {
      std::swap(table_, other.table_);
      return *this;
    }
    ~pin() {
      if (table_ != nullptr) --table_->guards;
    }

   private:
    stable_table* table_;
  };
  [[nodiscard]] pin guard() const { return pin(*table_); }
  template <class F>
  void for_each_row(F&& f) const {
    for (const auto& [k, r] : table_->rows) f(k, bytes(r));
  }
  [[nodiscard]] index_t size() const { return static_cast<index_t>(table_->rows.size()); }

 private:
  [[nodiscard]] const std::byte* bytes(std::size_t r) const {
    return static_cast<const std::byte*>(static_cast<const void*>(table_->row(r)));
  }
  stable_table* table_;
  f32_rows format_;
};

static_assert(StableGrowingRowSource<stable_rows, key> && !GrowingRowSource<stable_rows, key> &&
              AdmittingRowSource<stable_rows, key> && ObservedRowSource<stable_rows> &&
              EvictingRowSource<stable_rows>);
static_assert(!StableGrowingRowSource<hashed_rows<f32_rows>, key> &&
              !ObservedRowSource<hashed_rows<f32_rows>>);

fixed_hotness_view<key> pairs_of(const std::vector<key>& keys) {
  return {keys.data(), static_cast<index_t>(keys.size()) / 2, 2};
}
std::vector<float> looked_up(const auto& rows, index_t bags) {
  inline_executor here;
  std::vector<float> out(at(bags * width), -1);
  REQUIRE(lookup(here, rows, matrix_view<float>(out.data(), bags, width)).ok());
  return out;
}

// --- insertion that moves no row

TEST_CASE("row source: where rows never move, resolve keeps its guard and finds nothing again") {
  thread_pool pool({.threads = 3, .oversubscribe = true});
  stable_table table(100);
  const stable_rows source(table);
  const std::vector<key> keys = {7, 8, 7, 9, 8, 7};
  const auto first = resolve(pool, source, pairs_of(keys), combiner::sum, keys::find_or_insert);
  REQUIRE(first.ok());
  CHECK(table.found == 6);
  CHECK(table.inserts == 1);
  CHECK(table.guards_at_insert == 1);
  CHECK(table.inserted == keys);  // as often as the batch has them, in order
  CHECK(looked_up(first.value(), 3) == std::vector<float>{15, 15, 15, 16, 16, 16, 15, 15, 15});
  // While other rows are resolved as well: nothing waits for their guards.
  const std::vector<key> more = {7, 10};
  const auto second = resolve(pool, source, pairs_of(more), combiner::sum, keys::find_or_insert);
  REQUIRE(second.ok());
  CHECK(table.guards_at_insert == 2);
  CHECK(table.found == 8);
  CHECK(table.inserted == std::vector<key>{7, 8, 7, 9, 8, 7, 10});
  CHECK(table.shown == std::vector<key>{7, 0});
  CHECK(table.holds_at_insert == 1);
  CHECK(table.holds == 0);
  CHECK(looked_up(second.value(), 1) == std::vector<float>{17, 17, 17});
  // Nothing is absent: no insertion.
  REQUIRE(resolve(pool, source, pairs_of(more), combiner::sum, keys::find_or_insert).ok());
  CHECK(table.inserts == 2);
}

TEST_CASE("row source: keys that are refused stay absent, and count as often as they came") {
  inline_executor here;
  stable_table table(100);
  table.admit_at = 3;
  const stable_rows source(table);
  const std::vector<key> keys = {7, 8, 7, 9, 8, 7};
  const auto checked = resolve(here, source, pairs_of(keys), combiner::sum, keys::find_or_insert);
  CHECK(checked.code() == errc::id_out_of_range);
  CHECK(checked.fault().place().position == 1);
  CHECK(table.rows.size() == 1);  // 7 came three times
  const auto skipped =
      resolve(here, source, pairs_of(keys), pooling{combiner::sum, bounds::skip}, keys::find_or_insert);
  REQUIRE(skipped.ok());
  CHECK(table.rows.size() == 2);  // 8: twice, and twice again
  CHECK(looked_up(skipped.value(), 3) == std::vector<float>{15, 15, 15, 7, 7, 7, 15, 15, 15});
  table.fails_at = 9;
  const auto failed = resolve(here, source, pairs_of(keys), combiner::sum, keys::find_or_insert);
  CHECK(failed.code() == errc::out_of_memory);
  CHECK(table.guards == 1);  // that of `skipped`
  CHECK(table.holds == 0);
}

TEST_CASE("row source: a group of stable and of moving tables admits the keys of both") {
  for (const int threads : {1, 3}) {
    thread_pool pool({.threads = threads, .oversubscribe = true});
    stable_table table(100), other(100);
    hashed_table<f32_rows> moving(
        f32_rows(width), [](key k, float* values) { std::fill_n(values, width, static_cast<float>(k)); });
    feature_group<sgd, fixed_hotness_view<key>> group;
    group.add(stable_rows(table), combiner::sum);
    group.add(hashed_rows<f32_rows>(moving), combiner::sum);
    group.add(stable_rows(other), combiner::sum);
    const std::vector<key> a = {7, 8, 7, 9}, b = {1, 2, 3, 4}, c = {5, 5, 6, 5};
    const fixed_hotness_view<key> batches[] = {pairs_of(a), pairs_of(b), pairs_of(c)};
    auto rows = resolve(pool, group, batches, keys::find_or_insert);
    REQUIRE(rows.ok());
    CHECK(table.guards_at_insert == 1);
    CHECK(table.found == 4);
    CHECK(other.inserted == c);
    CHECK(table.shown == std::vector<key>(4));
    CHECK(other.holds_at_insert == 1);
    CHECK(table.holds + other.holds == 0);
    std::vector<float> out(at(2 * 3 * width));
    REQUIRE(lookup(pool, rows.value(), matrix_view<float>(out.data(), 2, 3 * width)).ok());
    CHECK(out == std::vector<float>{15, 15, 15, 3, 3, 3, 10, 10, 10, 16, 16, 16, 7, 7, 7, 11, 11, 11});
  }
}

// --- a find that fails

TEST_CASE("row source: where find fails, every verb returns its status, and inserts and trains nothing") {
  thread_pool pool({.threads = 2, .oversubscribe = true});
  stable_table table(100);
  const stable_rows source(table);
  const std::vector<key> keys = {7, 8, 7, 9, 8, 7};
  REQUIRE(resolve(pool, source, pairs_of(keys), combiner::sum, keys::find_or_insert).ok());
  const std::vector<float> before = table.values;
  table.unreachable = 9;
  std::vector<float> out(at(3 * width), -1), slope(out.size(), 1);
  const matrix_view<float> to(out.data(), 3, width);
  const matrix_view<const float> gradient(slope.data(), 3, width);
  const status from_lookup = lookup(pool, source, pairs_of(keys), combiner::sum, to);
  CHECK(from_lookup.code() == errc::io_error);
  CHECK(from_lookup.place().value == 9);
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == -1; }));
  CHECK(update(pool, source, pairs_of(keys), combiner::sum, gradient, sgd{}).code() == errc::io_error);
  CHECK(resolve(pool, source, pairs_of(keys), combiner::sum).code() == errc::io_error);
  CHECK(resolve(pool, source, pairs_of(keys), pooling{combiner::sum, bounds::skip}).code() == errc::io_error);
  const std::vector<key> with_new = {20, 9};
  CHECK(resolve(pool, source, pairs_of(with_new), combiner::sum, keys::find_or_insert).code() ==
        errc::io_error);
  CHECK(table.inserts == 1);
  feature_group<sgd, fixed_hotness_view<key>> group;
  group.add(source, combiner::sum);
  group.add(source, combiner::mean);
  const fixed_hotness_view<key> batches[] = {pairs_of(with_new), pairs_of(with_new)};
  CHECK(resolve(pool, group, batches, keys::find_or_insert).code() == errc::io_error);
  std::vector<float> wide(at(2 * width));
  CHECK(lookup(pool, group, batches, matrix_view<float>(wide.data(), 1, 2 * width)).code() == errc::io_error);
  CHECK(update(pool, group, batches, matrix_view<const float>(wide.data(), 1, 2 * width), sgd{}).code() ==
        errc::io_error);
  CHECK(table.inserts == 1);
  CHECK_THROWS_AS(static_cast<void>(name_rows<key>("rows", source)), error);
  const auto key_of_default =
      lookup(pool, source, pairs_of({7, 8}), pooling{combiner::sum, empty_bag::default_row{9}},
             matrix_view<float>(out.data(), 1, width));
  CHECK(key_of_default.code() == errc::io_error);
  CHECK(table.values == before);
  CHECK(table.guards == 0);
  table.unreachable = 0;
  CHECK(lookup(pool, source, pairs_of(keys), combiner::sum, to).ok());
}

// --- rows that are about to be trained

TEST_CASE("row source: update tells each row once before its step, with its positions in the batch") {
  for (const int threads : {1, 2, 5}) {
    thread_pool pool({.threads = threads, .oversubscribe = true});
    stable_table table(400);
    const stable_rows source(table);
    std::vector<key> keys;
    std::map<key, index_t> count;
    for (index_t k = 0; k < 3000; ++k) keys.push_back(1 + static_cast<key>(k * k % 301));
    for (index_t k = 0; k < 5000; ++k) keys.push_back(399);  // one row of many positions
    for (const key k : keys) ++count[k];
    const auto rows = resolve(pool, source, pairs_of(keys), combiner::sum, keys::find_or_insert);
    REQUIRE(rows.ok());
    const index_t bags = static_cast<index_t>(keys.size()) / 2;
    CHECK(looked_up(rows.value(), bags).size() == at(bags * width));
    CHECK(table.calls == 0);  // a lookup tells nothing
    const std::vector<float> slope(at(bags * width), 1.0F);
    const std::vector<float> before = table.values;
    REQUIRE(update(pool, rows.value(), matrix_view<const float>(slope.data(), bags, width),
                   sgd{.learning_rate = 0.5F})
                .ok());
    CHECK(table.occurrences.size() == count.size());
    for (const auto& [k, n] : count) {
      const std::size_t r = table.rows.at(k);
      CHECK(table.occurrences.at(r) == n);
      CHECK(table.told_value.at(r) == before[r * at(width)]);  // not yet stepped
      CHECK(table.row(r)[0] == static_cast<float>(k) - 0.5F * static_cast<float>(n));
    }
  }
}

TEST_CASE("row source: update tells nothing of rows without a gradient") {
  inline_executor here;
  stable_table table(100);
  const stable_rows source(table);
  const std::vector<key> keys = {7, 8};
  REQUIRE(resolve(here, source, pairs_of(keys), combiner::sum, keys::find_or_insert).ok());
  const std::vector<key> with_absent = {7, 50};
  const std::vector<float> slope(at(width), 1.0F);
  REQUIRE(update(here, source, pairs_of(with_absent), pooling{combiner::sum, bounds::skip},
                 matrix_view<const float>(slope.data(), 1, width), sgd{})
              .ok());
  CHECK(table.occurrences == std::map<std::size_t, index_t>{{table.rows.at(7), 1}});
  feature_group<sgd, fixed_hotness_view<key>> group;
  group.add(source, combiner::sum);
  group.add(source, combiner::sum);
  const fixed_hotness_view<key> batches[] = {pairs_of(keys), pairs_of(keys)};
  table.occurrences.clear();
  const std::vector<float> wide(at(2 * width), 1.0F);
  REQUIRE(update(here, group, batches, matrix_view<const float>(wide.data(), 1, 2 * width), sgd{}).ok());
  CHECK(table.occurrences == std::map<std::size_t, index_t>{{table.rows.at(7), 2}, {table.rows.at(8), 2}});
}

}  // namespace

namespace {

/// The hashing trick: the row of a key is its remainder. Several keys have one row.
class hashing_source {
 public:
  using format_type = f32_rows;
  using space = host_space;
  using byte_type = std::byte;

  explicit hashing_source(const table_view<f32_rows>& table) : table_(table) {}
  [[nodiscard]] f32_rows format() const { return table_.format(); }
  void find(const key* keys, index_t n, const std::byte** addresses) const {
    for (index_t k = 0; k < n; ++k)
      addresses[k] = table_.row(static_cast<index_t>(keys[k] % static_cast<key>(table_.rows())));
  }
  [[nodiscard]] index_t row_number(const std::byte* row) const noexcept {
    return (row - table_.data()) / table_.format().stride_bytes();
  }
  [[nodiscard]] index_t row_numbers() const noexcept { return table_.rows(); }

 private:
  table_view<f32_rows> table_;
};
static_assert(NumberedRowSource<hashing_source>);

}  // namespace

TEST_CASE("a numbered row source: keys that share a row step it once, with the bits of a direct table") {
  const f32_rows format(1, {.state_floats = 1});
  const std::vector<float> gradient{3, 4, 5};
  const std::vector<std::int64_t> offsets{0, 1, 2, 3}, ids{1, 1, 2};
  const std::vector<key> keys{1, 5, 2};  // 1 and 5 are row 1
  const matrix_view<const float> slope(gradient.data(), 3, 1);
  for (const int threads : {1, 2, 7}) {
    thread_pool pool(threads);
    std::vector<float> direct(8), hashed(8);
    const auto table_of = [&](std::vector<float>& memory) {
      return table_view<f32_rows>(reinterpret_cast<std::byte*>(memory.data()), 4, format);
    };
    REQUIRE(update(pool, table_of(direct), jagged_view<>(offsets.data(), 3, ids.data(), 3), combiner::sum,
                   slope, adagrad{.learning_rate = 1}));
    REQUIRE(update(pool, hashing_source(table_of(hashed)),
                   jagged_view<key>(offsets.data(), 3, keys.data(), 3), combiner::sum, slope,
                   adagrad{.learning_rate = 1}));
    CHECK(hashed == direct);
    CHECK(hashed[2] == -1);  // one step of 3 + 4; two steps give -1.8
    CHECK(hashed[3] == 49);
  }
}

#if DEEPREC_CONTRACTS
namespace {

/// The same without numbers.
class unnumbered_source {
 public:
  using format_type = f32_rows;
  using space = host_space;
  using byte_type = std::byte;

  explicit unnumbered_source(const table_view<f32_rows>& table) : all_(table) {}
  [[nodiscard]] f32_rows format() const { return all_.format(); }
  void find(const key* keys, index_t n, const std::byte** addresses) const { all_.find(keys, n, addresses); }

 private:
  hashing_source all_;
};

}  // namespace

TEST_CASE("a keyed row source without numbers: keys that share a row break its contract in an update") {
  inline_executor here;
  std::vector<float> memory(8);
  const unnumbered_source source(
      table_view<f32_rows>(reinterpret_cast<std::byte*>(memory.data()), 4, f32_rows(1, {.state_floats = 1})));
  const std::vector<float> gradient{3, 4};
  const auto trained = [&](const std::vector<key>& keys) {
    return update(here, source, fixed_hotness_view<key>(keys.data(), 2, 1), combiner::sum,
                  matrix_view<const float>(gradient.data(), 2, 1), adagrad{.learning_rate = 1});
  };
  const violation_handler before = set_violation_handler(
      [](const contract_violation& violation) { throw std::logic_error(violation.condition); });
  CHECK_THROWS_WITH_AS(static_cast<void>(trained({1, 5})), "grouped.has_distinct_rows()", std::logic_error);
  CHECK(trained({1, 2}).ok());
  CHECK(trained({1, 1}).ok());
  set_violation_handler(before);
}
#endif
