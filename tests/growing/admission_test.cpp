// Admission: the batch of the N-th occurrence, on every path; counters that saturate; shares within their
// intervals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/embedding/growing/admission.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>

#include "growing/growing_support.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

using table_type = growing_table<f32_rows>;

struct filtered : table_type {
  template <class Filter>
  explicit filtered(const Filter& filter, growing_options options = {})
      : table_type(f32_rows(2), first_values, options) {
    admit_by(filter).or_throw();
  }
};
std::vector<key_type> times(key_type key, std::size_t count) { return std::vector<key_type>(count, key); }
/// Inserts; whether each position got the address of its key's row.
bool is_read(table_type& table, const std::vector<key_type>& keys) {
  inline_executor here;
  std::vector<const std::byte*> rows(keys.size());
  table.rows().insert(context(here), keys.data(), static_cast<index_t>(keys.size()), rows.data()).or_throw();
  std::map<key_type, const std::byte*> found;
  for (const key_type key : keys) found.emplace(key, nullptr);
  for (auto& [key, row] : found) row = address_of(table, key);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (rows[k] != found[keys[k]]) return false;
  }
  return true;
}
/// Of how many tries a share is expected to hit: one run in a thousand is farther away.
bool is_share(double hits, double tries, double share) {
  return std::abs(hits - tries * share) <= 3.29 * std::sqrt(tries * share * (1 - share)) + 1;
}

// --- N occurrences

template <class Filter>
void admits_at_the_last(const Filter& filter) {
  const std::size_t n = std::max<std::size_t>(filter.occurrences, 1);
  CAPTURE(filter.occurrences);
  if (n <= 300) {  // one at a time, with other keys between
    filtered table(filter);
    for (std::size_t i = 1; i <= n; ++i) {
      CHECK_FALSE(holds(table, 7));
      REQUIRE(is_read(table, {1000 + i, 7, 2000 + i}));
    }
    CHECK(holds(table, 7));
    CHECK(table.size() == (n == 1 ? 3 : 1));
  }
  {  // within a batch: all of its positions read the row
    filtered table(filter);
    std::vector<key_type> keys = times(7, n);
    keys.insert(keys.begin() + static_cast<std::ptrdiff_t>(n / 2), 8);
    REQUIRE(is_read(table, keys));
    CHECK(holds(table, 7));
    CHECK(holds(table, 8) == (n == 1));
  }
  for (std::size_t cut = 1; cut < n;
       cut += std::max<std::size_t>(n / 4, 1)) {  // over two batches, in training
    filtered table(filter);
    REQUIRE(train(table, times(7, cut)).ok());
    REQUIRE(is_read(table, times(8, n - 1)));
    CHECK(table.size() == 0);
    REQUIRE(train(table, times(7, n - cut)).ok());
    CHECK(keys_in(table) == std::vector<key_type>{7});
    REQUIRE(is_read(table, {8}));
    CHECK(table.size() == 2);
  }
}

TEST_CASE("hazard H8: the N-th occurrence admits on every path, and counters saturate") {
  for (const std::uint32_t n : {0U, 1U, 2U, 3U, 100U}) admits_at_the_last(filters::counter{n});
  for (const std::uint32_t n : {0U, 1U, 2U, 3U, 254U, 255U, 256U, 257U, 65534U, 65535U})
    admits_at_the_last(filters::counting_bloom{n, 1000, 1e-6});
}

TEST_CASE("admission: filters::counter counts to 2^24 - 2, and no farther") {
  constexpr std::uint32_t most = filters::counter::most;
  constexpr std::size_t batch = 1'000'000;
  filtered table(filters::counter{most}, {.most_rows = 1});
  const auto count_of_7 = [&] { return content_of(table).candidates[7]; };
  const std::vector<key_type> many = times(7, batch);
  for (std::size_t came = 0; came + batch < most; came += batch) REQUIRE(insert(table, many).ok());
  REQUIRE(insert(table, times(7, most % batch - 1)).ok());
  CHECK(count_of_7() == most - 1);
  CHECK(table.size() == 0);
  const key_type other = 8;
  REQUIRE(table.rows().insert(&other, 1).ok());  // the table is full
  REQUIRE(insert(table, many).ok());
  CHECK(count_of_7() == most);
  CHECK(table.statistics().refused == 1);
  REQUIRE(insert(table, many).ok());
  CHECK(count_of_7() == most);
  inline_executor here;
  REQUIRE(table.erase(here, std::vector<key_type>{8}).value() == 1);
  REQUIRE(insert(table, {7}).ok());
  CHECK(keys_in(table) == std::vector<key_type>{7});
  CHECK(table.statistics().candidates == 0);
}

TEST_CASE(
    "admission: counts are those of the key: erasure forgets them, a row that was evicted starts anew") {
  inline_executor here;
  filtered table(filters::counter{3});
  REQUIRE(insert(table, {1, 1, 2, 3, 3, 3}).ok());
  CHECK(table.statistics().candidates == 2);
  REQUIRE(table.erase(here, std::vector<key_type>{1, 1, 9}).value() == 0);
  CHECK(table.statistics().candidates == 1);
  REQUIRE(insert(table, {1, 1, 2, 2}).ok());
  CHECK(keys_in(table) == std::vector<key_type>{3, 2});
  table.begin_step(5);
  REQUIRE(evict_rows(here, table, evict::least_recent{0}, 0).value() == 2);
  REQUIRE(insert(table, {2, 2, 1}).ok());
  CHECK(keys_in(table) == std::vector<key_type>{1});
  REQUIRE(insert(table, {2}).ok());
  CHECK(holds(table, 2));
  // Another filter decides about candidates as about other keys.
  REQUIRE(insert(table, {30, 31}).ok());
  CHECK(table.statistics().candidates == 2);
  REQUIRE(table.admit_by(filters::probabilistic{1e-300}).ok());
  REQUIRE(insert(table, {30}).ok());
  CHECK(table.statistics().candidates == 2);
  REQUIRE(table.admit_by(filters::probabilistic{1}).ok());
  REQUIRE(insert(table, {30}).ok());
  CHECK(table.statistics().candidates == 1);
  REQUIRE(table.admit_by(filters::counter{0}).ok());
  REQUIRE(insert(table, {31, 32}).ok());
  CHECK(table.statistics().candidates == 0);
  CHECK(table.size() == 5);
}

// --- counting Bloom filters

/// A line of counters as it has to be, given the places of each key.
template <class Counter>
class line_model {
 public:
  explicit line_model(std::size_t counters) : counters_(counters) {}

  bool add(const std::vector<std::size_t>& places, std::uint64_t occurrences, std::uint64_t wanted) {
    std::uint64_t least = ~std::uint64_t{0};
    for (const std::size_t p : places) least = std::min<std::uint64_t>(least, counters_[p]);
    const std::uint64_t raised = std::min<std::uint64_t>(least + occurrences, static_cast<Counter>(-1));
    for (const std::size_t p : places) counters_[p] = std::max(counters_[p], static_cast<Counter>(raised));
    return raised >= wanted;
  }
  [[nodiscard]] bool is(std::span<const std::byte> state) const {
    return std::ranges::equal(std::as_bytes(std::span(counters_)), state);
  }

 private:
  std::vector<Counter> counters_;
};
bool admit_one(admission_filter& filter, key_type key, std::uint32_t occurrences = 1) {
  unsigned char admitted = 2;
  filter.admit({&key, 1}, {&occurrences, 1}, 0, {&admitted, 1});
  CHECK(admitted <= 1);
  return admitted == 1;
}
template <class Counter>
std::vector<Counter> counters_of(admission_filter& filter) {
  std::vector<Counter> counters(filter.state().size() / sizeof(Counter));
  std::memcpy(counters.data(), filter.state().data(), filter.state().size());
  return counters;
}
template <class Counter>
std::vector<std::size_t> places_of(admission_filter& filter, key_type key) {
  std::ranges::fill(filter.state(), std::byte{0});
  admit_one(filter, key);
  const auto counters = counters_of<Counter>(filter);
  std::vector<std::size_t> places;
  for (std::size_t p = 0; p < counters.size(); ++p) {
    if (counters[p] != 0) places.push_back(p);
  }
  return places;
}

template <class Counter>
void two_keys_of_a_line(std::uint32_t wanted, const std::vector<std::uint32_t>& occurrences) {
  filtered table(filters::counting_bloom{wanted, 1, sizeof(Counter) == 1 ? 0.001 : 0.003});
  admission_filter& filter = *table.filter();
  REQUIRE(filter.state().size() == 64);  // a line: all keys are in it
  key_type one = 1;                      // of three counters
  while (places_of<Counter>(filter, one).size() < 3) ++one;
  const auto first = places_of<Counter>(filter, one);
  std::map<std::size_t, key_type> others;  // by how many they share with it
  for (key_type key = one + 1; key < 3000; ++key) {
    std::vector<std::size_t> shared;
    std::ranges::set_intersection(first, places_of<Counter>(filter, key), std::back_inserter(shared));
    others.emplace(shared.size(), key);
  }
  REQUIRE(others.size() >= 3);
  for (const auto& one_of_them : others) {
    const key_type other = one_of_them.second;
    const std::size_t shared = one_of_them.first;
    CAPTURE(shared);
    const auto second = places_of<Counter>(filter, other);
    for (unsigned turns = 0; turns < 256; ++turns) {
      std::ranges::fill(filter.state(), std::byte{0});
      line_model<Counter> model(64 / sizeof(Counter));
      std::uint64_t came[2] = {0, 0};
      bool same = true, is_late = false, is_early = false;
      for (unsigned t = 0; t < 8; ++t) {
        const unsigned which = turns >> t & 1;
        const std::uint32_t count = occurrences[t % occurrences.size()];
        came[which] += count;
        const bool admitted = admit_one(filter, which == 0 ? one : other, count);
        same = same && admitted == model.add(which == 0 ? first : second, count, wanted) &&
               model.is(filter.state());
        is_late = is_late || (!admitted && came[which] >= wanted);
        is_early = is_early || (admitted && (shared == 0 ? came[which] : came[0] + came[1]) < wanted);
      }
      CHECK((same && !is_late && !is_early));
    }
  }
}

TEST_CASE("admission: a counting Bloom filter counts two keys of a line as it has to, in all orders") {
  for (const std::uint32_t wanted : {2U, 3U, 255U}) {
    two_keys_of_a_line<std::uint8_t>(wanted, {1});
    two_keys_of_a_line<std::uint8_t>(wanted, {1, 2, 100, 252});
    two_keys_of_a_line<std::uint8_t>(wanted, {1, ~0U, 255, 256});
  }
  for (const std::uint32_t wanted : {256U, 65535U}) {
    two_keys_of_a_line<std::uint16_t>(wanted, {1, 255, 40'000});
    two_keys_of_a_line<std::uint16_t>(wanted, {65534, 1, ~0U, 65536});
  }
}

TEST_CASE(
    "admission: a counting Bloom filter at its design point admits the share of others that it was made "
    "for") {
  constexpr std::size_t keys = 200'000, others = 1'000'000;
  struct point {
    std::uint32_t wanted;
    double share;
  };
  for (const point& of : {point{200, 1e-3}, point{200, 0.1}, point{1000, 1e-3}, point{1000, 0.05}}) {
    const std::uint32_t wanted = of.wanted;
    const double share = of.share;
    CAPTURE(wanted);
    CAPTURE(share);
    filtered table(filters::counting_bloom{wanted, keys, share, 5});
    const auto admitted_of = [&](key_type first, std::size_t count, std::uint32_t occurrences) {
      std::vector<key_type> drawn(count);
      for (std::size_t k = 0; k < count; ++k) drawn[k] = mix64(first + k);
      const std::vector<std::uint32_t> came(count, occurrences);
      std::vector<unsigned char> admitted(count);
      table.filter()->admit(drawn, came, 0, admitted);
      return static_cast<double>(std::count(admitted.begin(), admitted.end(), 1));
    };
    CHECK(admitted_of(1, keys, wanted - 1) <
          0.4 * keys);                       // not too soon, of keys that are counted at the same time
    CHECK(admitted_of(1, keys, 1) == keys);  // never too late
    const double hits = admitted_of(key_type{1} << 40, others, 1);
    CAPTURE(hits);
    CHECK(is_share(hits, others, share));
  }
}

TEST_CASE("admission: a counting Bloom filter that is saved and loaded into another table goes on alike") {
  for (const std::uint32_t n : {3U, 300U}) {
    const filters::counting_bloom filter{n, 50, 0.2, 11};  // keys come too early now and then: alike
    filtered first(filter), second(filter);
    const auto batch = [&](key_type step) {
      std::vector<key_type> keys;
      for (key_type k = 0; k < 60; ++k) keys.insert(keys.end(), n / 3, mix64(k * step) % 300);
      return keys;
    };
    for (key_type step = 1; step < 6; ++step) REQUIRE(insert(first, batch(step)).ok());
    const auto rows = keys_in(first);
    CHECK(rows.size() > 10);
    REQUIRE(second.filter()->state().size() == first.filter()->state().size());
    std::ranges::copy(first.filter()->state(), second.filter()->state().begin());
    REQUIRE(second.rows().insert(rows.data(), static_cast<index_t>(rows.size())).ok());
    for (key_type step = 6; step < 12; ++step) {
      REQUIRE(insert(first, batch(step)).ok());
      REQUIRE(insert(second, batch(step)).ok());
      REQUIRE(content_of(first) == content_of(second));
    }
    CHECK(keys_in(first).size() > rows.size());
  }
}

// --- by chance, and by the user

TEST_CASE(
    "admission: filters::probabilistic admits its share of occurrences, the same for any threads and runs") {
  constexpr std::size_t count = 40'000;
  for (const double share : {0.001, 0.25, 0.9}) {
    CAPTURE(share);
    std::vector<std::vector<key_type>> runs;
    for (const int n : {1, 2, 3, 7, 1}) {
      thread_pool pool(threads(n));
      filtered table(filters::probabilistic{share, 77});
      table.begin_step(10);
      REQUIRE(insert(context(pool), table, keys_from(0, count)).ok());
      CHECK(is_share(static_cast<double>(table.size()), count, share));
      runs.push_back(keys_in(table));
      REQUIRE(insert(context(pool), table, keys_from(0, count)).ok());
      CHECK(keys_in(table) == runs.back());  // the same step, key and occurrence
      table.begin_step(11);
      REQUIRE(insert(context(pool), table, keys_from(0, count)).ok());
      CHECK(is_share(static_cast<double>(table.size()), count, 1 - (1 - share) * (1 - share)));
    }
    for (const auto& run : runs) CHECK(run == runs.front());
    filtered thrice(filters::probabilistic{share, 77}), other(filters::probabilistic{share, 78});
    thrice.begin_step(10);
    other.begin_step(10);
    std::vector<key_type> keys = keys_from(0, count);
    REQUIRE(insert(other, keys).ok());
    CHECK(keys_in(other) != runs.front());
    for (int more = 0; more < 2; ++more) keys.insert(keys.end(), keys.begin(), keys.begin() + count);
    REQUIRE(insert(thrice, keys).ok());
    CHECK(is_share(static_cast<double>(thrice.size()), count, 1 - std::pow(1 - share, 3)));
  }
  filtered all(filters::probabilistic{1});
  REQUIRE(insert(all, keys_from(0, count)).ok());
  CHECK(all.size() == index_t{count});
}

class told_filter final : public admission_filter {
 public:
  using call = std::tuple<std::vector<key_type>, std::vector<std::uint32_t>, std::uint64_t>;
  explicit told_filter(std::vector<call>& calls) : calls_(calls) {}
  void admit(std::span<const std::uint64_t> keys, std::span<const std::uint32_t> occurrences,
             std::uint64_t step, std::span<unsigned char> admitted) noexcept override {
    calls_.push_back({{keys.begin(), keys.end()}, {occurrences.begin(), occurrences.end()}, step});
    for (std::size_t k = 0; k < keys.size(); ++k) admitted[k] = keys[k] % 2 == 0 ? 1 : 0;
  }
  [[nodiscard]] index_t bytes() const noexcept override { return 123; }

 private:
  std::vector<call>& calls_;
};

TEST_CASE(
    "admission: a user's filter gets absent keys that differ, in the order of first positions, and the "
    "step") {
  std::vector<told_filter::call> calls;
  table_type table(f32_rows(2), first_values);
  REQUIRE(table.admit_by(std::make_unique<told_filter>(calls)).ok());
  CHECK(table.statistics().filter_bytes == 123);
  table.begin_step(1'000'000'000'000);
  REQUIRE(is_read(table, {9, 4, 9, static_cast<key_type>(-1), 4, 9, 0}));
  CHECK(keys_in(table) == std::vector<key_type>{4, 0});
  table.begin_step(1'000'000'000'007);
  REQUIRE(train(table, {4, 9, 6, 0, 9}).ok());
  REQUIRE(train(table, {4, 6, 0}).ok());  // nothing is absent
  const key_type odd = 9;
  REQUIRE(table.rows().insert(&odd, 1).ok());  // the filter is not asked
  const std::vector<told_filter::call> expected = {
      {{9, 4, static_cast<key_type>(-1), 0}, {3, 2, 1, 1}, 1'000'000'000'000},
      {{9, 6}, {2, 1}, 1'000'000'000'007}};
  CHECK(calls == expected);
  CHECK(keys_in(table) == std::vector<key_type>{4, 0, 6, 9});
  REQUIRE(table.admit_by(std::unique_ptr<admission_filter>()).ok());
  REQUIRE(insert(table, {11}).ok());
  CHECK(holds(table, 11));
}

}  // namespace
