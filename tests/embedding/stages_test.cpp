// A lookup in stages: prune, fill, unique, partition, gather, combine; each against plain loops, and all of
// them together against a scalar composition, bit by bit.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/lookup/gather.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/exec/thread_pool.hpp>
#include <deeprec/ops/unique.hpp>

#include "support/entries.hpp"
#include "support/seed.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Id>
bool below_zero(Id id) {
  if constexpr (std::is_signed_v<Id>) return id < 0;
  return false;
}

template <class Id>
bag_list<Id> pruned(bag_list<Id> bags, bool by_weights) {
  for (auto& bag : bags) {
    std::erase_if(bag, [&](const auto& entry) {
      float weight;
      std::memcpy(&weight, &entry.second, 4);
      return below_zero(entry.first) || (by_weights && !(weight > 0.0F));
    });
  }
  return bags;
}

template <class Id>
index_t entries_in(const bag_list<Id>& bags) {
  index_t n = 0;
  for (const auto& bag : bags) n += static_cast<index_t>(bag.size());
  return n;
}

/// Memory of the caller for bags, with two more elements than the operation may write.
template <class Id, class Offset>
struct room {
  room(index_t bags, index_t n, bool weighted)
      : offsets(static_cast<std::size_t>(bags) + 3, Offset{77}),
        ids(static_cast<std::size_t>(n) + 2, Id{78}),
        weights(ids.size(), -79.0F),
        out{{offsets.data(), bags + 1}, {ids.data(), n}, {}} {
    if (weighted) out.weights = {weights.data(), n};
  }
  /// The bags, when they are those of an owner and nothing else is written.
  void check(const jagged_batch<Id>& expected) const {
    CHECK(bags_of(out.view()) == bags_of(expected.view()));
    bool same = out.offsets[0] == 0;
    for (std::size_t i = offsets.size() - 2; i < offsets.size(); ++i) same &= offsets[i] == Offset{77};
    const std::size_t end = out.weights.empty() ? 0 : ids.size() - 2;
    for (std::size_t k = ids.size() - 2; k < ids.size(); ++k) same &= ids[k] == Id{78};
    for (std::size_t k = end; k < ids.size(); ++k) same &= weights[k] == -79.0F;
    CHECK(same);
  }
  std::vector<Offset> offsets;
  std::vector<Id> ids;
  std::vector<float> weights;
  jagged_out<Id, Offset> out;
};

/// The operations with memory of the caller write what they write with an owner.
template <class Id, class Offset>
void check_given(const coo_view<Id, std::int32_t>& coo, bool weights_given) {
  const inline_executor here;
  const index_t count = coo.bags(), n = coo.id_count();
  const bool weighted = coo.weights() != nullptr || weights_given;
  jagged_batch<Id> expected, filled;
  index_t dropped = 0;
  const room<Id, Offset> bags(count, n, weighted);
  REQUIRE(to_jagged(here, coo, expected).ok());
  REQUIRE(to_jagged(here, coo, bags.out).ok());
  bags.check(expected);
  const auto check = [&](auto how) {
    const room<Id, Offset> from_entries(count, n, weighted), from_bags(count, n, weighted);
    REQUIRE(prune_invalid(here, coo, how, expected, dropped).ok());
    REQUIRE(prune_invalid(here, coo, how, from_entries.out).ok());
    from_entries.check(expected);
    REQUIRE(prune_invalid(here, bags.out.view(), how, from_bags.out).ok());
    from_bags.check(expected);
    for (const auto& filling : {std::optional<Id>{}, std::optional<Id>{33}}) {
      std::vector<std::uint8_t> empty(static_cast<std::size_t>(count)), empty_too(empty.size() + 1, 9);
      const room<Id, Offset> to(count, n + (filling ? count : 0), weighted);
      REQUIRE(fill_empty_bags(here, expected.view(), filling, filled, empty).ok());
      REQUIRE(fill_empty_bags(here, from_bags.out.view(), filling, to.out, {empty_too.data(), count}).ok());
      to.check(filled);
      CHECK(std::equal(empty.begin(), empty.end(), empty_too.begin()));
      CHECK(empty_too.back() == 9);
    }
  };
  check(prune_rule::by_id);
  check(prune_rule::by_id_and_weight);
}

template <class Id>
void check_prune_and_fill(std::mt19937_64& random, entries_are kind) {
  const inline_executor here;
  jagged_batch<Id> bags, from_jagged, from_entries, filled;  // reused
  for (const index_t count : {0, 1, 5, 300}) {
    for (const index_t entries : {0, 1, 7, 900}) {
      for (const bool weighted : {false, true}) {
        CAPTURE(count);
        CAPTURE(entries);
        CAPTURE(weighted);
        const auto made = make_entries<Id, std::int32_t>(random, kind, count, 50, entries);
        const auto coo = made.view(weighted);
        REQUIRE(to_jagged(here, coo, bags).ok());
        check_given<Id, std::int32_t>(coo, entries == 7);
        check_given<Id, std::int64_t>(coo, entries == 900);
        const auto check = [&](auto how, bool by_weights) {
          const auto expected = pruned(bags_of(coo), by_weights);
          index_t dropped = -1, dropped_too = -1;
          REQUIRE(prune_invalid(here, coo, how, from_entries, dropped).ok());
          REQUIRE(prune_invalid(here, bags.view(), how, from_jagged, dropped_too).ok());
          CHECK(bags_of(from_entries.view()) == expected);
          CHECK(bags_of(from_jagged.view()) == expected);
          CHECK(dropped == coo.id_count() - entries_in(expected));
          CHECK(dropped_too == dropped);
        };
        check(prune_rule::by_id, false);
        check(prune_rule::by_id_and_weight, weighted);

        std::vector<std::uint8_t> empty(static_cast<std::size_t>(count), 7);
        auto expected = bags_of(from_jagged.view());
        REQUIRE(fill_empty_bags(here, from_jagged.view(), std::nullopt, filled, empty).ok());
        CHECK(bags_of(filled.view()) == expected);
        REQUIRE(fill_empty_bags(here, from_jagged.view(), 33, filled, empty).ok());
        for (std::size_t b = 0; b < expected.size(); ++b) {
          CHECK(empty[b] == (expected[b].empty() ? 1 : 0));
          if (expected[b].empty()) expected[b] = {{Id{33}, bits_of(1.0F)}};
        }
        CHECK(bags_of(filled.view()) == expected);
        CHECK(filled.view().validate().ok());
      }
    }
  }
}

/// The rows of a table dealt to parts, as tables of their own.
struct parts_of_table {
  template <class Strategy>
  parts_of_table(matrix_view<const float> table, index_t parts, Strategy) {
    for (index_t p = 0; p < parts; ++p) {
      rows.emplace_back();
      counts.push_back(part_rows(p, table.extent(0), parts));
    }
    for (index_t id = 0; id < table.extent(0); ++id) {
      part_place at = partition_strategy::mod_place(id, parts);
      if (std::is_same_v<Strategy, partition_strategy::div_t>)
        at = partition_strategy::div_place(id, table.extent(0), parts);
      auto& to = rows[static_cast<std::size_t>(at.part)];
      REQUIRE(static_cast<index_t>(to.size()) == at.local * table.extent(1));  // in order by both
      to.insert(to.end(), table.row(id), table.row(id) + table.extent(1));
    }
    for (std::size_t p = 0; p < rows.size(); ++p) {
      views.push_back(as_table(matrix_view<const float>(rows[p].data(), counts[p], table.extent(1))));
    }
  }
  std::vector<std::vector<float>> rows;
  std::vector<index_t> counts;
  std::vector<const_table_view<f32_rows>> views;
};

std::vector<float> random_floats(std::mt19937_64& random, index_t count) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

enum class pool { sum, mean, sqrtn, largest };

/// Everything at once in plain float loops, left to right.
template <class Id>
std::vector<float> scalar_composition(const bag_list<Id>& bags, matrix_view<const float> table,
                                      std::optional<Id> default_id, pool how) {
  const index_t width = table.extent(1);
  std::vector<float> out;
  for (auto bag : pruned(bags, false)) {
    if (bag.empty() && default_id) bag.push_back({*default_id, 0});
    for (index_t j = 0; j < width; ++j) {
      float total = how == pool::largest && !bag.empty() ? -INFINITY : 0.0F;
      for (const auto& [id, weight] : bag) {
        const float x = table(static_cast<index_t>(id), j);
        total = how == pool::largest ? (std::max)(total, x) : total + x;
      }
      const auto n = static_cast<double>(bag.size());
      if (!bag.empty() && how == pool::mean) total /= static_cast<float>(n);
      if (!bag.empty() && how == pool::sqrtn) total /= static_cast<float>(std::sqrt(n));
      out.push_back(total);
    }
  }
  return out;
}

/// The same by the stages.
template <class Executor, class Coo, class Strategy>
std::vector<float> in_stages(Executor& executor, const Coo& coo, const parts_of_table& tables, index_t rows,
                             index_t width, Strategy strategy,
                             std::optional<typename Coo::id_type> default_id, pool how) {
  using id_type = typename Coo::id_type;
  jagged_batch<id_type> valid, bags;
  index_t dropped = 0;
  REQUIRE(prune_invalid(executor, coo, prune_rule::by_id, valid, dropped).ok());
  std::vector<std::uint8_t> empty(static_cast<std::size_t>(coo.bags()));
  REQUIRE(fill_empty_bags(executor, valid.view(), default_id, bags, empty).ok());
  unique_ids<id_type, std::int32_t> different;
  REQUIRE(unique(executor, bags.ids, different).ok());
  partitioned_ids<id_type> dealt;
  const auto parts = static_cast<index_t>(tables.views.size());
  REQUIRE(partition(executor, different.ids, rows, parts, strategy, dealt).ok());
  const auto count = static_cast<index_t>(different.ids.size());
  std::vector<float> fetched(static_cast<std::size_t>(count * width), NAN);
  const matrix_view<float> gathered(fetched.data(), count, width);
  REQUIRE(gather(executor, tables.views, dealt, gathered).ok());
  std::vector<float> out(static_cast<std::size_t>(coo.bags() * width), NAN);
  const matrix_view<float> to(out.data(), coo.bags(), width);
  const jagged_view<std::int32_t, index_t> inverse(bags.offsets.data(), bags.bags(), different.inverse.data(),
                                                   bags.id_count());
  switch (how) {
    case pool::sum:
      REQUIRE(combine(executor, gathered, inverse, combiner::sum, to).ok());
      break;
    case pool::mean:
      REQUIRE(combine(executor, gathered, inverse, combiner::mean, to).ok());
      break;
    case pool::sqrtn:
      REQUIRE(combine(executor, gathered, inverse, combiner::sqrtn, to).ok());
      break;
    case pool::largest:
      REQUIRE(combine(executor, gathered, inverse, combiner::max, to).ok());
      break;
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("prune_invalid, fill_empty_bags: bags and entries, with and without weights") {
  std::mt19937_64 random(seed() + 340);
  for (const entries_are kind : every_entries) {
    CAPTURE(static_cast<int>(kind));
    check_prune_and_fill<std::int64_t>(random, kind);
    check_prune_and_fill<std::int32_t>(random, kind);
    check_prune_and_fill<std::uint32_t>(random, kind);  // no id is negative
  }
}

TEST_CASE("prune_invalid: the comparison tells the two rules apart, and -0 is no weight") {
  const std::vector<std::int64_t> offsets{0, 3, 6}, ids{7, -1, 9, 4, 4, -3};
  const std::vector<float> weights{0.5F, 1, 0, 1, -0.0F, NAN};
  const jagged_view<> bags(offsets.data(), 2, ids.data(), 6, weights.data());
  jagged_batch<> out;
  index_t dropped = 0;
  REQUIRE(prune_invalid(inline_executor{}, bags, prune_rule::by_id, out, dropped).ok());
  CHECK(bags_of(out.view()) == pruned(bags_of(bags), false));
  CHECK(bags_of(out.view()) != pruned(bags_of(bags), true));
  CHECK(dropped == 2);
  REQUIRE(prune_invalid(inline_executor{}, bags, prune_rule::by_id_and_weight, out, dropped).ok());
  CHECK(out.ids == std::pmr::vector<std::int64_t>{7, 4});
  CHECK(out.weights == std::pmr::vector<float>{0.5F, 1});
  CHECK(dropped == 4);
}

TEST_CASE("prune_invalid, fill_empty_bags: slices, fixed hotness and PyTorch's offsets") {
  const std::vector<std::int64_t> offsets{2, 2, 5, 6}, ids{9, 9, 1, -2, 3, -4, 9};
  const inline_executor here;
  jagged_batch<> out, filled;
  index_t dropped = 0;
  std::vector<std::uint8_t> empty(3);
  REQUIRE(
      prune_invalid(here, jagged_view<>(offsets.data(), 3, ids.data(), 7), prune_rule::by_id, out, dropped)
          .ok());
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 0, 2, 2});
  CHECK(dropped == 2);
  REQUIRE(fill_empty_bags(here, jagged_view<>(offsets.data(), 3, ids.data(), 7), 5, filled, empty).ok());
  CHECK(filled.ids == std::pmr::vector<std::int64_t>{5, 1, -2, 3, -4});
  CHECK(empty == std::vector<std::uint8_t>{1, 0, 0});
  REQUIRE(prune_invalid(here, jagged_view<>::torch(offsets.data(), 3, ids.data(), 7), prune_rule::by_id, out,
                        dropped)
              .ok());
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 0, 2, 3});
  CHECK(out.ids == std::pmr::vector<std::int64_t>{1, 3, 9});
  REQUIRE(prune_invalid(here, fixed_hotness_view<>(ids.data(), 3, 2), prune_rule::by_id, out, dropped).ok());
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 2, 3, 4});
  CHECK(out.ids == std::pmr::vector<std::int64_t>{9, 9, 1, 3});
}

TEST_CASE("to_jagged, prune_invalid, fill_empty_bags: more bags than memory can hold are out of memory") {
  const inline_executor here;
  const std::vector<std::int64_t> of_row{1, 0}, ids{4, 5};
  auto* const nowhere =
      reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 62);  // no memory is there or behind it
  jagged_batch<> out;
  out.offsets = {0, 1};
  out.ids = {8};
  index_t dropped = 77;
  for (const index_t many : {index_t{1} << 61, index_t{1} << 62, std::numeric_limits<index_t>::max()}) {
    CAPTURE(many);
    for (const auto& rows_of : {std::vector<std::int64_t>{0, 1}, of_row}) {
      const coo_view<> entries(rows_of.data(), ids.data(), 2, many);
      CHECK(to_jagged(here, entries, out).code() == errc::out_of_memory);
      CHECK(prune_invalid(here, entries, prune_rule::by_id, out, dropped).code() == errc::out_of_memory);
    }
    const fixed_hotness_view<> empty_bags(nullptr, many, 0);
    CHECK(prune_invalid(here, empty_bags, prune_rule::by_id, out, dropped).code() == errc::out_of_memory);
    const std::span<std::uint8_t> empty(nowhere, static_cast<std::size_t>(many));
    CHECK(fill_empty_bags(here, empty_bags, 3, out, empty).code() == errc::out_of_memory);
  }
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 1});
  CHECK(out.ids == std::pmr::vector<std::int64_t>{8});
  CHECK(dropped == 77);
}

TEST_CASE("prune_invalid, fill_empty_bags: what can't be is said, and out stays as it was") {
  const inline_executor here;
  const std::vector<std::int64_t> rows{0, 3}, ids{4, 5}, offsets{0, 2, 1};
  jagged_batch<> out;
  index_t dropped = 77;
  out.offsets = {0, 1};
  out.ids = {8};
  std::vector<std::uint8_t> empty(2, 9);
  CHECK(prune_invalid(here, coo_view<>(rows.data(), ids.data(), 2, 3), prune_rule::by_id, out, dropped)
            .place() == fault_place{.position = 1, .value = 3});
  CHECK(prune_invalid(here, jagged_view<>(offsets.data(), 2, ids.data(), 2), prune_rule::by_id, out, dropped)
            .message() == "offsets decrease: prune_invalid: bag 1, value 1");
  CHECK(prune_invalid(here, out.view(), prune_rule::by_id, out, dropped).code() == errc::unsupported);
  const jagged_view<> bags(offsets.data(), 1, ids.data(), 2);
  CHECK(fill_empty_bags(here, bags, 3, out, empty).code() == errc::shape_mismatch);
  CHECK(fill_empty_bags(here, bags, -1, out, std::span(empty.data(), 1)).message() ==
        "id out of range: fill_empty_bags: the default id must not be negative; value -1");
  CHECK(fill_empty_bags(here, out.view(), 3, out, std::span(empty.data(), 1)).code() == errc::unsupported);
  CHECK(fill_empty_bags(here, jagged_view<>(offsets.data(), 2, ids.data(), 2), 3, out, empty).message() ==
        "offsets decrease: fill_empty_bags: bag 1, value 1");
  CHECK(out.ids == std::pmr::vector<std::int64_t>{8});
  CHECK(out.offsets == std::pmr::vector<index_t>{0, 1});
  CHECK(dropped == 77);
  CHECK(empty == std::vector<std::uint8_t>{9, 9});
}

TEST_CASE("to_jagged, prune_invalid, fill_empty_bags: memory of the caller that will not do is refused") {
  const inline_executor here;
  std::vector<std::int64_t> rows{1, 0, 1}, ids{4, 5, -6}, offsets{0, 2, 3};
  std::vector<float> weights{1, 2, 3};
  const coo_view<> entries(rows.data(), ids.data(), 3, 2, weights.data());
  const jagged_view<> bags(offsets.data(), 2, ids.data(), 3, weights.data());
  std::vector<std::int32_t> to_offsets(3, 77);
  std::vector<std::int64_t> to_ids(5, 78), wide_offsets(3, 77);
  std::vector<float> to_weights(5, -79);
  std::vector<std::uint8_t> empty(2, 9);
  using out = jagged_out<std::int64_t, std::int32_t>;
  const out fine{to_offsets, to_ids, to_weights};
  const auto refused = [&](const auto& to, errc code, const char* text) {
    const auto check = [&](const std::string& verb, const status& s) {
      CAPTURE(verb);
      CHECK(s.code() == code);
      if (text != nullptr) CHECK(s.message().starts_with("shape mismatch: " + verb + ": out must " + text));
    };
    check("to_jagged", to_jagged(here, entries, to));
    check("prune_invalid", prune_invalid(here, entries, prune_rule::by_id, to));
    check("prune_invalid", prune_invalid(here, bags, prune_rule::by_id, to));
    check("fill_empty_bags", fill_empty_bags(here, bags, 7, to, empty));
  };
  const char* const no_room = "have room";
  const char* const null = "not be null";
  refused(out{fine.offsets.subview(0, 2), fine.ids, fine.weights}, errc::shape_mismatch, no_room);
  refused(out{fine.offsets, fine.ids.subview(0, 2), fine.weights.subview(0, 2)}, errc::shape_mismatch,
          no_room);
  refused(out{fine.offsets, fine.ids, {}}, errc::shape_mismatch, no_room);
  refused(out{fine.offsets, fine.ids, fine.weights.subview(0, 4)}, errc::shape_mismatch, no_room);
  refused(out{{nullptr, 3}, fine.ids, fine.weights}, errc::shape_mismatch, null);
  refused(out{fine.offsets, {nullptr, 5}, fine.weights}, errc::shape_mismatch, null);
  refused(out{fine.offsets, fine.ids, {nullptr, 5}}, errc::shape_mismatch, null);
  std::vector<std::int64_t> same_ids{4, 5, -6, 0, 0};
  std::vector<float> same_weights{1, 2, 3, 0, 0};
  const coo_view<> of_same(rows.data(), same_ids.data(), 3, 2, same_weights.data());
  const jagged_view<> bags_of_same(offsets.data(), 2, same_ids.data(), 3, same_weights.data());
  for (const out& shared :
       {out{fine.offsets, same_ids, fine.weights}, out{fine.offsets, fine.ids, same_weights}}) {
    CHECK(to_jagged(here, of_same, shared).code() == errc::unsupported);
    CHECK(prune_invalid(here, of_same, prune_rule::by_id, shared).code() == errc::unsupported);
    CHECK(prune_invalid(here, bags_of_same, prune_rule::by_id, shared).code() == errc::unsupported);
    CHECK(fill_empty_bags(here, bags_of_same, 7, shared, empty).code() == errc::unsupported);
  }
  const jagged_out<> shared_offsets{offsets, to_ids, to_weights};
  CHECK(prune_invalid(here, bags, prune_rule::by_id, shared_offsets).code() == errc::unsupported);
  CHECK(fill_empty_bags(here, bags, 7, shared_offsets, empty).code() == errc::unsupported);
  // One id each needs room for the default ids, and empty is part of the shape.
  CHECK(fill_empty_bags(here, bags, 7, out{fine.offsets, fine.ids.subview(0, 4), fine.weights.subview(0, 4)},
                        empty)
            .code() == errc::shape_mismatch);
  CHECK(fill_empty_bags(here, bags, std::nullopt,
                        out{fine.offsets, fine.ids.subview(0, 2), fine.weights.subview(0, 2)}, empty)
            .code() == errc::shape_mismatch);
  CHECK(fill_empty_bags(here, bags, 7, fine, {empty.data(), 1}).code() == errc::shape_mismatch);
  CHECK(fill_empty_bags(here, bags, 7, fine, {nullptr, 2}).message() ==
        "shape mismatch: fill_empty_bags: empty must not be null");
  CHECK(fill_empty_bags(here, bags, -1, fine, empty).code() == errc::id_out_of_range);
  auto* const bytes = static_cast<std::uint8_t*>(static_cast<void*>(to_ids.data()));
  CHECK(fill_empty_bags(here, bags, 7, fine, {bytes, 2}).code() == errc::unsupported);
  // Offsets that can't hold the number of ids, which is more than there is memory for.
  const index_t many = index_t{1} << 31;
  const out too_many{fine.offsets, {to_ids.data(), many}, {to_weights.data(), many}};
  CHECK(prune_invalid(here, jagged_view<>(offsets.data(), 2, ids.data(), many), prune_rule::by_id, too_many)
            .code() == errc::unsupported);
  CHECK(to_jagged(here, coo_view<>(rows.data(), ids.data(), many, 2), too_many).code() == errc::unsupported);
  // Faults of the batch.
  rows[1] = 2;
  offsets[1] = 4;
  CHECK(to_jagged(here, entries, fine).place() == fault_place{.position = 1, .value = 2});
  CHECK(prune_invalid(here, entries, prune_rule::by_id, fine).place() ==
        fault_place{.position = 1, .value = 2});
  CHECK(prune_invalid(here, bags, prune_rule::by_id, fine).code() == errc::offsets_beyond_ids);
  CHECK(fill_empty_bags(here, bags, 7, fine, empty).code() == errc::offsets_beyond_ids);
  CHECK(to_offsets == std::vector<std::int32_t>(3, 77));
  CHECK(to_ids == std::vector<std::int64_t>(5, 78));
  CHECK(to_weights == std::vector<float>(5, -79));
  CHECK(empty == std::vector<std::uint8_t>(2, 9));
}

TEST_CASE("gather: rows of one table, and of a table in parts, in the order of the ids") {
  std::mt19937_64 random(seed() + 341);
  const inline_executor here;
  constexpr index_t rows = 50, width = 19, n = 300;
  const auto values = random_floats(random, rows * width);
  const matrix_view<const float> table(values.data(), rows, width);
  std::vector<std::int32_t> ids(n);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % rows);
  std::vector<float> expected, out(n * width), parted(n * width);
  for (const std::int32_t id : ids) expected.insert(expected.end(), table.row(id), table.row(id) + width);
  const matrix_view<float> to(out.data(), n, width), to_parted(parted.data(), n, width);
  REQUIRE(gather(here, as_table(table), ids, to).ok());
  CHECK(same_bits(out, expected));
  partitioned_ids<std::int32_t> dealt;
  for (const index_t parts : {1, 3, 50, 60}) {
    const parts_of_table by_div(table, parts, partition_strategy::div),
        by_mod(table, parts, partition_strategy::mod);
    REQUIRE(partition(here, ids, rows, parts, partition_strategy::div, dealt).ok());
    REQUIRE(gather(here, by_div.views, dealt, to_parted).ok());
    CHECK(same_bits(parted, expected));
    REQUIRE(partition(here, ids, rows, parts, partition_strategy::mod, dealt).ok());
    REQUIRE(gather(here, by_mod.views, dealt, to_parted).ok());
    CHECK(same_bits(parted, expected));
  }
}

TEST_CASE("gather: an id that partition left out gives zeros") {
  const inline_executor here;
  const std::vector<float> values{1, 2, 3, 4};
  const parts_of_table tables(matrix_view<const float>(values.data(), 4, 1), 2, partition_strategy::mod);
  const std::vector<std::int64_t> ids{3, -1, 0, 4};
  partitioned_ids<> dealt;
  REQUIRE(partition(here, ids, 4, 2, partition_strategy::mod, bounds::skip, dealt).ok());
  std::vector<float> out(4, -1.0F);
  REQUIRE(gather(here, tables.views, dealt, matrix_view(out.data(), 4, 1)).ok());
  CHECK(out == std::vector<float>{4, 0, 1, 0});
}

TEST_CASE("gather: bad ids and shapes are named with their place, and nothing is written") {
  const inline_executor here;
  const std::vector<float> values{1, 2, 3, 4};
  const matrix_view<const float> table(values.data(), 4, 1);
  std::vector<float> out(3, -1.0F);
  const matrix_view<float> to(out.data(), 3, 1);
  CHECK(gather(here, as_table(table), std::vector<int>{0, 4, -1}, to).message() ==
        "id out of range: gather: position 1, value 4");
  CHECK(gather(here, as_table(table), std::vector<int>{0, 1}, to).code() == errc::shape_mismatch);
  parts_of_table tables(table, 2, partition_strategy::div);
  partitioned_ids<int> dealt;
  REQUIRE(partition(here, std::vector<int>{3, 0, 2}, 4, 2, partition_strategy::div, dealt).ok());
  CHECK(gather(here, tables.views, dealt, to.rows(0, 2)).code() == errc::shape_mismatch);
  const matrix_view<float> null(nullptr, 3, 1);
  CHECK(gather(here, tables.views, dealt, null).message() == "shape mismatch: gather: out must not be null");
  CHECK(gather(here, as_table(table), std::vector<int>{0, 1, 9}, null).message() ==
        "shape mismatch: lookup: out must not be null");
  CHECK(gather(here, std::span(tables.views.data(), 1), dealt, to).code() == errc::shape_mismatch);
  tables.views[1] = const_table_view<f32_rows>(tables.views[1].data(), 1, f32_rows(1));  // a row is missing
  CHECK(gather(here, tables.views, dealt, to).message() ==
        "id out of range: gather: table 1, position 0, value 1");
  tables.views[1] = const_table_view<f32_rows>(tables.views[1].data(), 1, f32_rows(2));
  CHECK(gather(here, tables.views, dealt, to).message() ==
        "shape mismatch: gather: out.extent(1) must be the row width D; table 1 (is 1, must be 2)");
  CHECK(out == std::vector<float>{-1, -1, -1});
}

TEST_CASE("stages: prune, fill, unique, partition, gather and combine give the bits of plain loops") {
  std::mt19937_64 random(seed() + 342);
  const inline_executor here;
  constexpr index_t rows = 101, width = 17;
  const auto values = random_floats(random, rows * width);
  const matrix_view<const float> table(values.data(), rows, width);
  for (const entries_are kind : every_entries) {
    for (const index_t entries : {-1, 0, 1, 30, 3000}) {
      const index_t bags = entries < 0 ? 0 : entries < 2 ? 1 + 4 * (1 - entries) : 64;
      const auto made = make_entries(random, kind, bags, rows, entries);
      for (const index_t parts : {1, 4, 200}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(entries);
        CAPTURE(parts);
        const parts_of_table by_div(table, parts, partition_strategy::div),
            by_mod(table, parts, partition_strategy::mod);
        for (const pool how : {pool::sum, pool::mean, pool::sqrtn, pool::largest}) {
          for (const std::optional<std::int64_t> filling : {std::optional<std::int64_t>{}, {7}}) {
            const auto expected = scalar_composition(bags_of(made.view()), table, filling, how);
            CHECK(same_bits(
                in_stages(here, made.view(), by_div, rows, width, partition_strategy::div, filling, how),
                expected));
            CHECK(same_bits(
                in_stages(here, made.view(), by_mod, rows, width, partition_strategy::mod, filling, how),
                expected));
          }
        }
      }
    }
  }
}

TEST_CASE("stages: the comparison catches another order, a bag that was not filled, and another divisor") {
  std::mt19937_64 random(seed() + 343);
  const inline_executor here;
  const auto values = random_floats(random, 101 * 17);
  const matrix_view<const float> table(values.data(), 101, 17);
  const parts_of_table parts(table, 4, partition_strategy::div);
  const auto made = make_entries(random, entries_are::many_bad, 64, 101, 3000);
  const auto staged = in_stages(here, made.view(), parts, 101, 17, partition_strategy::div, {}, pool::mean);
  auto bags = bags_of(made.view());
  CHECK(same_bits(staged, scalar_composition<std::int64_t>(bags, table, {}, pool::mean)));
  CHECK_FALSE(same_bits(staged, scalar_composition<std::int64_t>(bags, table, {}, pool::sqrtn)));
  CHECK_FALSE(same_bits(staged, scalar_composition<std::int64_t>(bags, table, {7}, pool::mean)));
  for (auto& bag : bags) std::reverse(bag.begin(), bag.end());
  CHECK_FALSE(same_bits(staged, scalar_composition<std::int64_t>(bags, table, {}, pool::mean)));
}

TEST_CASE("stages: 1 to 8 threads give the same, with one bag that has half of all ids") {
  std::mt19937_64 random(seed() + 344);
  constexpr index_t rows = 5000, width = 9;
  const auto values = random_floats(random, rows * width);
  const parts_of_table parts(matrix_view<const float>(values.data(), rows, width), 7,
                             partition_strategy::mod);
  for (const entries_are kind : {entries_are::one_huge_bag, entries_are::many_bad, entries_are::sorted}) {
    const auto made = make_entries(random, kind, 2000, rows, 150'000);
    thread_pool one(1);
    const auto expected =
        in_stages(one, made.view(), parts, rows, width, partition_strategy::mod, {3}, pool::mean);
    for (int threads = 2; threads <= 8; threads += 3) {
      thread_pool several(threads);
      CHECK(same_bits(
          in_stages(several, made.view(), parts, rows, width, partition_strategy::mod, {3}, pool::mean),
          expected));
    }
  }
}

TEST_CASE("stages: weights go through them, and the pooled rows are those of lookup") {
  std::mt19937_64 random(seed() + 345);
  const inline_executor here;
  constexpr index_t rows = 60, width = 16, count = 80;
  dense_table<f32_rows> weights_of_model(rows, width);
  weights_of_model.initialize(here, row_init::normal{.seed = 1});
  const auto table = weights_of_model.view();
  const auto made = make_entries(random, entries_are::many_bad, count, rows, 900);
  const auto entries = made.view(true);
  std::vector<std::uint8_t> empty(count);
  std::vector<float> memory, out(count * width), direct(count * width);
  //! [stages]
  jagged_batch<> valid, bags;
  index_t dropped = 0;
  prune_invalid(here, entries, prune_rule::by_id_and_weight, valid, dropped).or_throw();
  fill_empty_bags(here, valid.view(), 0, bags, empty).or_throw();  // row 0 for a bag without ids
  unique_ids<> different;
  unique(here, bags.ids, different).or_throw();
  const auto found = static_cast<index_t>(different.ids.size());
  memory.resize(static_cast<std::size_t>(found * width));
  const matrix_view<float> fetched(memory.data(), found, width);  // (U,D), every row fetched once
  gather(here, table, different.ids, fetched).or_throw();
  const jagged_view<> inverse(bags.offsets.data(), bags.bags(), different.inverse.data(), bags.id_count(),
                              bags.weights.data());
  combine(here, fetched, inverse, combiner::mean(combiner::by_weight), matrix_view(out.data(), count, width))
      .or_throw();
  //! [stages]
  REQUIRE(lookup(here, table, bags.view(), combiner::mean(combiner::by_weight),
                 matrix_view(direct.data(), count, width))
              .ok());
  CHECK(same_bits(out, direct));
  CHECK(dropped > 0);
  CHECK(std::count(empty.begin(), empty.end(), 1) > 0);
  CHECK(found < bags.id_count());
}
