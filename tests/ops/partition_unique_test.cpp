// Distinct ids by owner, against a std::map of each owner that is asked id by id.
#include <deeprec/ops/partition_unique.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/id_lists.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using deeprec_test::seed;

using deeprec_test::every_kind;
using deeprec_test::ids_are;
using deeprec_test::make_ids;

namespace {

enum class mistake { none, collision, slot, order, count, owner };

/// By the book, or with a mistake that an implementation could make.
template <class Id, class Index, class Rule>
unique_parts<Id, Index> oracle(const std::vector<Id>& list, const Rule& rule, mistake wrong = mistake::none) {
  const auto owners = static_cast<std::size_t>(rule.owners());
  std::vector<std::map<std::uint64_t, std::size_t>> numbers(owners);
  std::vector<std::vector<Id>> ids(owners);
  std::vector<std::vector<std::size_t>> counts(owners);
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (const Id id : list) {
    const owned_id<Id> place = rule(id);
    const auto owner = static_cast<std::size_t>(place.owner);
    // With the mistake, ids that share an entry of a small table are one.
    const auto key = wrong == mistake::collision ? mix64(static_cast<std::uint64_t>(id)) % 64
                                                 : static_cast<std::uint64_t>(id);
    const auto [found, is_new] = numbers[owner].try_emplace(key, ids[owner].size());
    if (is_new) {
      ids[owner].push_back(place.local);
      counts[owner].push_back(0);
    }
    if (!(wrong == mistake::count && is_new)) ++counts[owner][found->second];
    places.emplace_back(owner, found->second);
  }
  unique_parts<Id, Index> out;
  out.first.push_back(0);
  for (std::size_t o = 0; o < owners; ++o) {
    if (wrong == mistake::order) std::sort(ids[o].begin(), ids[o].end());
    out.ids.insert(out.ids.end(), ids[o].begin(), ids[o].end());
    for (const std::size_t count : counts[o]) out.counts.push_back(static_cast<Index>(count));
    out.first.push_back(static_cast<Index>(out.ids.size()));
  }
  for (const auto& [owner, number] : places) {
    out.slots.push_back(static_cast<Index>(static_cast<std::size_t>(out.first[owner]) + number));
  }
  if (wrong == mistake::slot && !out.slots.empty() && out.ids.size() > 1) {
    auto& last = out.slots.back();
    last = static_cast<Index>(static_cast<std::size_t>(last) + 1 == out.ids.size() ? last - 1 : last + 1);
  }
  if (wrong == mistake::owner && owners > 1) ++out.first[1];
  return out;
}

/// What is promised of a result.
template <class Id, class Index, class Rule>
bool holds(const std::vector<Id>& list, const Rule& rule, const unique_parts<Id, Index>& out) {
  const auto owners = static_cast<std::size_t>(rule.owners());
  const std::size_t distinct = out.ids.size();
  if (out.first.size() != owners + 1 || out.slots.size() != list.size() || out.counts.size() != distinct ||
      out.first[0] != 0 || static_cast<std::size_t>(out.first[owners]) != distinct ||
      !std::is_sorted(out.first.begin(), out.first.end())) {
    return false;
  }
  std::vector<std::size_t> counts(distinct);
  std::vector<Id> id_of(distinct);
  std::vector<std::size_t> next(out.first.begin(), out.first.end());  // the slot of an owner's next new id
  for (std::size_t k = 0; k < list.size(); ++k) {
    const auto slot = static_cast<std::size_t>(out.slots[k]);
    const owned_id<Id> place = rule(list[k]);
    const auto owner = static_cast<std::size_t>(place.owner);
    if (slot >= distinct || slot < static_cast<std::size_t>(out.first[owner]) ||
        slot >= static_cast<std::size_t>(out.first[owner + 1]) || out.ids[slot] != place.local) {
      return false;
    }
    if (counts[slot]++ == 0) {
      if (next[owner]++ != slot) return false;
      id_of[slot] = list[k];
    }
    if (id_of[slot] != list[k]) return false;
  }
  for (std::size_t s = 0; s < distinct; ++s) {
    if (counts[s] == 0 || static_cast<std::size_t>(out.counts[s]) != counts[s]) return false;
  }
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == list.size();
}

template <class Id, class Index>
bool equal(const unique_parts<Id, Index>& a, const unique_parts<Id, Index>& b) {
  return a.ids == b.ids && a.first == b.first && a.slots == b.slots && a.counts == b.counts;
}

std::vector<std::uint16_t> slot_owners(std::mt19937_64& random, index_t owners) {
  std::vector<std::uint16_t> table(owner_by_slots::slots);
  for (auto& owner : table) owner = static_cast<std::uint16_t>(random() % static_cast<std::uint64_t>(owners));
  return table;
}

/// Calls f(rule) for both rules and several numbers of owners.
template <class F>
void with_rules(std::mt19937_64& random, const F& f) {
  for (const index_t owners : {1, 2, 3, 7, 8, 1000}) {
    CAPTURE(owners);
    f(owner_by_modulo(owners));
    const auto table = slot_owners(random, owners);
    f(owner_by_slots{table, owners});
  }
}

template <class Id, class Index>
void check_types(std::uint64_t salt) {
  std::mt19937_64 random(seed() + salt);
  const inline_executor here;
  unique_parts<Id, Index> out;  // reused
  for (const ids_are kind : every_kind) {
    for (const std::size_t n : {0U, 1U, 2U, 63U, 64U, 65U, 1000U, 5000U}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(n);
      const auto list = make_ids<Id>(random, kind, n);
      with_rules(random, [&](const auto& rule) {
        REQUIRE(partition_unique(here, list, rule, out).ok());
        CHECK(holds(list, rule, out));
        CHECK(equal(out, oracle<Id, Index>(list, rule)));

        // In memory of the caller, which has more room: the same, and nothing after it.
        const auto owners = static_cast<std::size_t>(rule.owners());
        std::vector<Id> ids(n + 2, Id{77});
        std::vector<Index> first(owners + 1, Index{76}), slots(n + 2, Index{78}), counts(n + 2, Index{79});
        REQUIRE(
            partition_unique(here, list, rule, unique_parts_out<Id, Index>{ids, first, slots, counts}).ok());
        const auto distinct = static_cast<index_t>(out.ids.size());
        CHECK(std::equal(out.ids.begin(), out.ids.end(), ids.begin()));
        CHECK(std::equal(out.first.begin(), out.first.end(), first.begin()));
        CHECK(std::equal(out.slots.begin(), out.slots.end(), slots.begin()));
        CHECK(std::equal(out.counts.begin(), out.counts.end(), counts.begin()));
        CHECK(std::count(ids.begin() + distinct, ids.end(), Id{77}) ==
              static_cast<std::ptrdiff_t>(n + 2) - distinct);
        CHECK(std::count(counts.begin() + distinct, counts.end(), Index{79}) ==
              static_cast<std::ptrdiff_t>(n + 2) - distinct);
        CHECK(slots[n] == Index{78});
        CHECK(slots[n + 1] == Index{78});
      });
    }
  }
}

}  // namespace

TEST_CASE("partition_unique: ids of any value by owner, by first appearance, with slots and counts") {
  check_types<std::int64_t, std::int64_t>(410);
  check_types<std::int64_t, std::int32_t>(411);
  check_types<std::int32_t, std::int32_t>(412);
  check_types<std::uint32_t, std::uint64_t>(413);
  check_types<std::uint64_t, std::uint32_t>(414);
}

TEST_CASE("partition_unique: every list of up to six of four ids, for one to three owners") {
  const inline_executor here;
  const std::int64_t of[] = {-1, 0, std::numeric_limits<std::int64_t>::min(), 5};
  unique_parts<> out;
  bool all = true;
  for (std::size_t n = 0; n <= 6; ++n) {
    std::vector<std::int64_t> list(n);
    for (std::uint64_t word = 0; word < std::uint64_t{1} << (2 * n); ++word) {
      for (std::size_t k = 0; k < n; ++k) list[k] = of[word >> (2 * k) & 3];
      for (index_t owners = 1; owners <= 3; ++owners) {
        const owner_by_modulo rule(owners);
        REQUIRE(partition_unique(here, list, rule, out).ok());
        all = all && holds(list, rule, out) && equal(out, oracle<std::int64_t, std::int64_t>(list, rule));
      }
    }
  }
  CHECK(all);
}

TEST_CASE("partition_unique: the property catches ids taken for one, a slot, an order, a count, an owner") {
  std::mt19937_64 random(seed() + 415);
  for (const mistake wrong :
       {mistake::collision, mistake::slot, mistake::order, mistake::count, mistake::owner}) {
    CAPTURE(static_cast<int>(wrong));
    for (const std::size_t n : {100U, 1000U}) {
      const auto list = make_ids<std::int64_t>(random, ids_are::wide, n);
      const owner_by_modulo rule(3);
      CHECK(holds(list, rule, oracle<std::int64_t, std::int64_t>(list, rule)));
      CHECK_FALSE(holds(list, rule, oracle<std::int64_t, std::int64_t>(list, rule, wrong)));
    }
  }
}

TEST_CASE("partition_unique: short and long lists, and as many owners as ids or more") {
  std::mt19937_64 random(seed() + 416);
  const inline_executor here;
  unique_parts<> out;
  for (const std::size_t n : {65535U, 65536U, 65537U, 300000U}) {
    for (const ids_are kind : {ids_are::many, ids_are::wide, ids_are::equal, ids_are::distinct}) {
      CAPTURE(n);
      CAPTURE(static_cast<int>(kind));
      const auto list = make_ids<std::int64_t>(random, kind, n);
      const owner_by_modulo rule(5);
      REQUIRE(partition_unique(here, list, rule, out).ok());
      CHECK(holds(list, rule, out));
    }
  }
  for (const index_t owners : {10, 100, 65536, 65537, 1 << 20}) {
    CAPTURE(owners);
    const auto list = make_ids<std::int64_t>(random, ids_are::wide, 50);
    const owner_by_modulo rule(owners);
    REQUIRE(partition_unique(here, list, rule, out).ok());
    CHECK(holds(list, rule, out));
  }
}

TEST_CASE("partition_unique: all ways to find distinct ids agree, for any kind of them") {
  std::mt19937_64 random(seed() + 417);
  // The distinct ids, then the number of the id of each position.
  const auto numbered = [](auto list, std::span<const std::int64_t> ids) {
    detail::scratch_block block(std::pmr::get_default_resource(), list.bytes());
    list.find(block);
    std::vector<std::int64_t> found;
    for (index_t u = 0; u < list.distinct(); ++u) {
      found.push_back(list.id(u));
      CHECK(std::find(ids.begin(), ids.end(), list.id(u)) - ids.begin() == list.first_position(u));
    }
    using number = typename decltype(list)::number_type;
    for (index_t u = 0; u < list.distinct(); ++u) list.set_slot(u, static_cast<number>(u));
    for (index_t k = 0; k < static_cast<index_t>(ids.size()); ++k) found.push_back(list.slot_at(k));
    return found;
  };
  for (const ids_are kind : every_kind) {
    for (const std::size_t n : {1U, 2U, 64U, 1000U, 3000U}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(n);
      const auto ids = make_ids<std::int64_t>(random, kind, n);
      const std::span<const std::int64_t> list(ids);
      const auto by_hash = numbered(detail::short_list<std::int64_t>(list), list);
      CHECK(by_hash == numbered(detail::long_list<std::int64_t>(list), list));
      std::uint64_t largest = 0;
      const bool is_small = detail::all_below(list, 8 * n, largest);
      CHECK((is_small || (kind != ids_are::few && kind != ids_are::many)));
      if (is_small) CHECK(by_hash == numbered(detail::direct_list<std::int64_t>(list, largest), list));
    }
  }
}

TEST_CASE("owner_by_modulo: quotient and rest round down, at the ends of the types too") {
  __extension__ using wide = __int128;
  std::mt19937_64 random(seed() + 418);
  const auto check = [&](auto one, index_t owners) {
    using id_type = decltype(one);
    const owner_by_modulo rule(owners);
    for (int i = 0; i < 400; ++i) {
      using limits = std::numeric_limits<id_type>;
      const auto near = static_cast<id_type>(i % 20);
      const id_type id = i < 20   ? static_cast<id_type>(limits::min() + near)
                         : i < 40 ? static_cast<id_type>(limits::max() - near)
                         : i < 60 ? static_cast<id_type>(near - 10)
                                  : static_cast<id_type>(random() >> random() % 64);
      const wide value = static_cast<wide>(id), n = static_cast<wide>(owners);
      const wide rest = ((value % n) + n) % n;
      CHECK(rule(id) ==
            owned_id<id_type>{static_cast<index_t>(rest), static_cast<id_type>((value - rest) / n)});
    }
  };
  for (const index_t owners : {index_t{1}, index_t{2}, index_t{3}, index_t{7}, index_t{64}, index_t{1000},
                               index_t{65537}, index_t{1} << 31, (index_t{1} << 31) + 1, index_t{1} << 40,
                               (index_t{1} << 62) + 1, std::numeric_limits<index_t>::max()}) {
    CAPTURE(owners);
    check(std::int64_t{}, owners);
    check(std::uint64_t{}, owners);
    check(std::int32_t{}, owners);
    check(std::uint32_t{}, owners);
  }
}

TEST_CASE("owner_by_slots: the owner of the id's slot; the id stays") {
  std::mt19937_64 random(seed() + 419);
  const auto table = slot_owners(random, 9);
  const owner_by_slots rule{table, 9};
  for (int i = 0; i < 1000; ++i) {
    const auto id = static_cast<std::int64_t>(random() >> i % 60) * (i % 2 == 0 ? 1 : -1);
    const std::uint64_t slot = mix64(static_cast<std::uint64_t>(id)) & 0xffff;
    CHECK(rule(id) == owned_id<std::int64_t>{table[slot], id});
    const auto narrow = static_cast<std::int32_t>(id);
    CHECK(rule(narrow).owner == rule(std::int64_t{narrow}).owner);
  }
}

namespace {

/// Owner 3 of all ids but 100, which has one that is not there.
struct stray_rule {
  index_t stray;
  [[nodiscard]] index_t owners() const { return 4; }
  owned_id<std::int64_t> operator()(std::int64_t id) const { return {id == 100 ? stray : 3, id}; }
};
struct no_owners {
  [[nodiscard]] index_t owners() const { return 0; }
  owned_id<std::int64_t> operator()(std::int64_t id) const { return {0, id}; }
};

}  // namespace

TEST_CASE("partition_unique: an owner out of range is named with the first position of its id") {
  const inline_executor here;
  for (const std::size_t n : {20U, 70000U}) {  // short and long lists
    for (const index_t stray :
         {index_t{4}, index_t{-1}, std::numeric_limits<index_t>::min(), index_t{1} << 32}) {
      std::vector<std::int64_t> list(n);
      std::iota(list.begin(), list.end(), std::int64_t{1000});
      list[7] = list[13] = 100;
      unique_parts<> out;
      out.ids = {77};
      const status s = partition_unique(here, list, stray_rule{stray}, out);
      CHECK(s.code() == errc::invalid_value);
      CHECK(s.place().position == 7);
      CHECK(s.place().value == stray);
      CHECK(s.place().at_most == 3);
      CHECK(out.ids == std::pmr::vector<std::int64_t>{77});
      CHECK(out.slots.empty());
    }
  }
  CHECK(partition_unique(here, std::vector<std::int64_t>{5, 100}, stray_rule{4},
                         *std::make_unique<unique_parts<>>())
            .message() ==
        "invalid value: partition_unique: rule must give an owner in [0, owners()); position 1, value 4 "
        "(must be "
        "at most 3)");
}

TEST_CASE("partition_unique: what can't be is said, and out stays as it was") {
  const inline_executor here;
  std::vector<std::int64_t> memory{3, 3, 5};
  unique_parts<> out;
  REQUIRE(partition_unique(here, memory, owner_by_modulo(2), out).ok());
  const auto before = out;
  const auto refused = [&](const auto& ids, const auto& rule, errc code) {
    CHECK(partition_unique(here, ids, rule, out).code() == code);
    CHECK(equal(out, before));
  };
  refused(out.ids, owner_by_modulo(2), errc::unsupported);
  refused(out.slots, owner_by_modulo(2), errc::unsupported);
  refused(memory, owner_by_modulo(0), errc::invalid_value);
  refused(memory, owner_by_modulo(-3), errc::invalid_value);
  refused(memory, no_owners{}, errc::invalid_value);
  std::vector<std::uint16_t> table(owner_by_slots::slots);
  refused(memory, owner_by_slots{table, 0}, errc::invalid_value);
  refused(memory, owner_by_slots{std::span(table).first(65535), 2}, errc::shape_mismatch);
  refused(memory, owner_by_slots{{}, 2}, errc::shape_mismatch);
  table[owner_by_slots::slot_of(std::int64_t{5})] = 2;
  refused(memory, owner_by_slots{table, 2}, errc::invalid_value);
  CHECK(partition_unique(here, memory, owner_by_modulo(0), out).message() ==
        "invalid value: partition_unique: owner_by_modulo: owners must be at least 1");
  unique_parts<std::int64_t, std::int32_t> narrow;
  const std::span<const std::int64_t> huge(memory.data(), std::size_t{1} << 31);  // never read
  CHECK(partition_unique(here, huge, owner_by_modulo(2), narrow).code() == errc::unsupported);
  CHECK(partition_unique(here, memory, owner_by_modulo(index_t{1} << 31), narrow).code() ==
        errc::unsupported);
}

TEST_CASE("partition_unique: memory of the caller without room, null, or shared is refused") {
  const inline_executor here;
  std::vector<std::int64_t> list{7, 1, 7}, ids(3, -5);
  std::vector<std::int32_t> first(3, -5), slots(3, -5), counts(3, -5);
  using out = unique_parts_out<std::int64_t, std::int32_t>;
  const out given{ids, first, slots, counts};
  const auto refused = [&](const out& to, errc code) {
    CHECK(partition_unique(here, list, owner_by_modulo(2), to).code() == code);
  };
  refused({given.ids.subview(0, 2), given.first, given.slots, given.counts}, errc::shape_mismatch);
  refused({given.ids, given.first.subview(0, 2), given.slots, given.counts}, errc::shape_mismatch);
  refused({given.ids, given.first, given.slots.subview(0, 2), given.counts}, errc::shape_mismatch);
  refused({given.ids, given.first, given.slots, given.counts.subview(0, 2)}, errc::shape_mismatch);
  refused({{nullptr, 3}, given.first, given.slots, given.counts}, errc::shape_mismatch);
  refused({given.ids, {nullptr, 3}, given.slots, given.counts}, errc::shape_mismatch);
  refused({given.ids, given.first, {nullptr, 3}, given.counts}, errc::shape_mismatch);
  refused({given.ids, given.first, given.slots, {nullptr, 3}}, errc::shape_mismatch);
  refused({list, given.first, given.slots, given.counts}, errc::unsupported);
  std::vector<std::uint16_t> table(owner_by_slots::slots);
  const array_view<std::int32_t> of_table(static_cast<std::int32_t*>(static_cast<void*>(table.data())), 3);
  CHECK(partition_unique(here, list, owner_by_slots{table, 2},
                         out{given.ids, given.first, of_table, given.counts})
            .code() == errc::unsupported);
  CHECK(ids == std::vector<std::int64_t>(3, -5));
  for (const auto& unchanged : {first, slots, counts}) CHECK(unchanged == std::vector<std::int32_t>(3, -5));
}

TEST_CASE("partition_unique: an example in memory of the caller") {
  //! [partition_unique_given]
  std::array<std::int32_t, 5> ids{}, slots{}, counts{};
  std::array<std::int32_t, 3> first{};
  const unique_parts_out<std::int32_t, std::int32_t> out{ids, first, slots, counts};
  partition_unique(inline_executor{}, std::array<std::int32_t, 5>{7, 1, 8, 1, 7}, owner_by_modulo(2), out)
      .or_throw();
  CHECK(first == std::array<std::int32_t, 3>{0, 1, 3});
  CHECK(ids == std::array<std::int32_t, 5>{4, 3, 0, 0, 0});  // 8, then 7 and 1
  CHECK(slots == std::array<std::int32_t, 5>{1, 2, 0, 2, 1});
  CHECK(counts == std::array<std::int32_t, 5>{1, 2, 2, 0, 0});
  //! [partition_unique_given]
}

TEST_CASE("partition_unique: an example") {
  //! [partition_unique]
  unique_parts<> out;
  partition_unique(inline_executor{}, std::array<std::int64_t, 5>{7, 1, 8, 1, 7}, owner_by_modulo(2), out)
      .or_throw();
  CHECK(out.first == std::pmr::vector<std::int64_t>{0, 1, 3});
  CHECK(out.ids == std::pmr::vector<std::int64_t>{4, 3, 0});
  CHECK(out.slots == std::pmr::vector<std::int64_t>{1, 2, 0, 2, 1});
  CHECK(out.counts == std::pmr::vector<std::int64_t>{1, 2, 2});
  //! [partition_unique]
}
