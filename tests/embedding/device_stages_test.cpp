// The bodies of the device's stages, on the host: what they answer is what the host's stages are documented
// to. Scans and sorts are the host's.

#include <deeprec/embedding/batches/detail/device_batches.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/lookup/fused_lookup.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "support/entries.hpp"
#include "support/seed.hpp"
#include "support/teams.hpp"

using namespace deeprec;
using namespace deeprec_test;

namespace {

template <class Key>
void sort_stably(std::vector<Key>& keys, std::vector<std::uint32_t>& slots) {
  std::vector<std::uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
  std::vector<Key> sorted(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = keys[order[i]];
  keys = sorted;
  slots = order;
}

/// Entries as the device makes bags of them, in memory that was full of something else.
template <class Id>
struct entry_bags {
  template <class Row, class Wanted = detail::all_entries>
  explicit entry_bags(const coo_view<Id, Row>& coo, bool stable = true, const Wanted& wanted = {})
      : offsets(static_cast<std::size_t>(coo.bags()) + 1, 77),
        ids(static_cast<std::size_t>(coo.id_count()), std::numeric_limits<Id>::max()),
        weights(coo.weights() == nullptr ? 0 : ids.size(), std::nanf("")),
        to{offsets, ids, weights} {
    std::vector<std::uint32_t> keys(ids.size()), slots(ids.size());
    for (index_t k = 0; k < coo.id_count(); ++k) {
      detail::key_entry(solo_team{}, k, coo, wanted, keys.data(), slots.data(), &fault);
      CHECK(slots[static_cast<std::size_t>(k)] == static_cast<std::uint32_t>(k));
    }
    for (const std::uint32_t key : keys) CHECK((index_t{key} >> detail::key_bits(coo.bags())) == 0);
    sort_stably(keys, slots);
    if (!stable) std::reverse(slots.begin(), slots.end());
    for (index_t i = 0; i < (std::max)(coo.id_count(), coo.bags() + 1); ++i) {
      detail::place_entry(i, coo, keys.data(), slots.data(), to);
    }
  }
  jagged_view<Id, index_t> view() const { return to.view(); }
  std::vector<index_t> offsets;
  std::vector<Id> ids;
  std::vector<float> weights;
  device_fault fault{};
  jagged_out<Id> to;
};

template <class Id, class Row>
void check_entries(std::mt19937_64& random) {
  for (const entries_are kind : every_entries) {
    for (const index_t bags : {1, 2, 7, 8, 300}) {
      for (const index_t n : {0, 1, 90}) {
        const auto made = make_entries<Id, Row>(random, kind, bags, 50, n);
        for (const bool weighted : {false, true}) {
          const entry_bags<Id> got(made.view(weighted));
          CHECK(got.fault.code == 0);
          CHECK(bags_of(got.view()) == bags_of(made.view(weighted)));
        }
      }
    }
  }
}

/// fused_lookup of entries as the device does it: bags, and a lookup of them with prune.
template <class Combiner>
std::vector<float> fused_on_lanes(int lanes, const const_table_view<f32_rows, device_space>& table,
                                  const entry_bags<std::int64_t>& bags, const Combiner& how,
                                  device_fault& fault, bool chunked) {
  using task_type = detail::pool_task<std::int64_t, detail::offset_ranges<index_t>, float>;
  const auto policies = detail::with_prune(detail::as_pooling(how));
  using rules = detail::rules_of<std::remove_const_t<decltype(policies)>>;
  std::vector<float> out(static_cast<std::size_t>(bags.to.bags() * table.format().width()), 99.0F);
  auto task = detail::task_of<task_type>(table, policies, bags.view().weights() != nullptr);
  detail::set_bags(task, bags.view());
  task.out = out.data();
  task.out_stride = task.width;
  task.fault = &fault;
  const index_t records = chunked ? detail::chunk_sums::records(task.id_count) : 0;
  std::vector<float> sums(static_cast<std::size_t>(records * task.width), std::nanf(""));
  std::vector<detail::chunk_count> counts(static_cast<std::size_t>(records));
  if (chunked) task.chunks = {sums.data(), counts.data()};
  const int panels = static_cast<int>((task.width + lanes * 4 - 1) / (lanes * 4));
  on_team(lanes, [&](const auto& team) {
    for (int panel = 0; panel < panels; ++panel) {
      for (index_t r = 0; r < records; r += team.lanes())
        detail::sum_chunks_of<float, 4>(rules{}, team, task, r, team.lanes(), panel);
    }
  });
  on_team(lanes, [&](const auto& team) {  // another launch
    for (int panel = 0; panel < panels; ++panel) {
      for (index_t b = 0; b < task.bags; ++b) detail::pool_bag<float, 4>(rules{}, team, task, b, panel);
    }
  });
  return out;
}

}  // namespace

TEST_CASE("device stages: unique numbers ids by their first appearance") {
  std::mt19937_64 random(seed());
  for (int round = 0; round < 20; ++round) {
    const std::size_t n = random() % 60;
    std::vector<std::int64_t> ids(n), of(n);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 9) - 3;
    std::vector<std::uint64_t> keys;
    for (const auto id : ids) keys.push_back(detail::id_key(id));
    std::vector<std::uint32_t> slots;
    sort_stably(keys, slots);
    std::vector<index_t> numbers(n + 1);
    for (std::size_t i = 0; i < n; ++i) numbers[slots[i]] = i == 0 || keys[i - 1] != keys[i] ? 1 : 0;
    std::exclusive_scan(numbers.begin(), numbers.end(), numbers.begin(), index_t{0});
    std::vector<std::int32_t> inverse(n, -1), counts(n, -1);
    const unique_out<std::int64_t, std::int32_t> out{of, inverse, counts, {}};
    for (std::size_t i = 0; i < n; ++i) {
      detail::number_position(static_cast<index_t>(i), static_cast<index_t>(n), keys.data(), slots.data(),
                              numbers.data(), out);
    }
    std::vector<std::int64_t> expected;
    std::map<std::int64_t, std::int32_t> number, count;
    for (const auto id : ids) {
      if (number.emplace(id, static_cast<std::int32_t>(expected.size())).second) expected.push_back(id);
      ++count[id];
    }
    CHECK(numbers[n] == static_cast<index_t>(expected.size()));
    for (std::size_t u = 0; u < expected.size(); ++u) {
      CHECK(of[u] == expected[u]);
      CHECK(counts[u] == count[expected[u]]);
    }
    for (std::size_t k = 0; k < n; ++k) CHECK(inverse[k] == number[ids[k]]);
  }
}

TEST_CASE("device stages: partition deals ids as the strategies say, in order, and leaves bad ones out") {
  std::mt19937_64 random(seed());
  const index_t rows = 10;
  for (const index_t parts : {1, 3, 4, 16}) {
    std::vector<std::int64_t> ids(40), local(40, -7);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 14) - 2;
    std::vector<std::int32_t> part(40);
    std::vector<index_t> permutation(40), offsets(static_cast<std::size_t>(parts) + 1);
    const partition_out<> out{part, permutation, offsets, local};
    std::vector<std::uint32_t> keys(40), slots;
    int left_out = 0;
    for (index_t k = 0; k < 40; ++k) {
      left_out +=
          detail::part_of_position<partition_strategy::div_t>(k, ids.data(), rows, parts, out, keys.data())
              ? 0
              : 1;
    }
    sort_stably(keys, slots);
    for (index_t i = 0; i < 40; ++i) {
      detail::put_in_part<partition_strategy::div_t>(i, ids.data(), rows, parts, keys.data(), slots.data(),
                                                     out);
    }
    for (index_t p = 0; p <= parts; ++p) {
      offsets[static_cast<std::size_t>(p)] =
          detail::first_not_below(keys.data(), 40, static_cast<std::uint32_t>(p));
    }
    CHECK(offsets.back() == 40 - left_out);
    index_t before = -1;
    for (std::size_t k = 0; k < 40; ++k) {
      const part_place at = partition_strategy::div_place(ids[k], rows, parts);
      CHECK(part[k] == at.part);
      if (at.part < 0) {
        CHECK(permutation[k] == -1);
        continue;
      }
      const index_t to = permutation[k];
      CHECK(local[static_cast<std::size_t>(to)] == at.local);
      CHECK(to >= offsets[static_cast<std::size_t>(at.part)]);
      CHECK(to < offsets[static_cast<std::size_t>(at.part) + 1]);
      if (at.part == 0) {  // stable
        CHECK(to > before);
        before = to;
      }
    }
  }
}

TEST_CASE("device stages: entries that stay keep their order, empty bags get the default id") {
  const std::vector<std::int64_t> ids{99, 7, -1, 9, 4, 4, -3, 98};
  const std::vector<float> weights{1, 0.5F, 1, 0, 1, 2, 1, 1};
  const std::vector<index_t> ranges{1, 4, 4, 7};  // a slice: slots 0 and 7 are not its own
  const detail::valid_entries<prune_rule::by_id_and_weight_t, std::int64_t> valid{ids.data(), weights.data()};
  std::vector<index_t> kept(9);
  for (index_t k = 0; k < 8; ++k) kept[static_cast<std::size_t>(k)] = valid(k) ? 1 : 0;
  std::exclusive_scan(kept.begin(), kept.end(), kept.begin(), index_t{0});
  std::vector<std::int64_t> out_ids(8);
  std::vector<float> out_weights(8);
  std::vector<index_t> offsets(4);
  const detail::bag_entries<std::int64_t> out{out_ids.data(), out_weights.data()};
  for (index_t k = 0; k < 8; ++k)
    detail::keep_position(k, 1, 7, valid, ids.data(), weights.data(), kept.data(), out);
  for (std::size_t b = 0; b < 4; ++b) offsets[b] = kept[static_cast<std::size_t>(ranges[b])] - kept[1];
  CHECK(offsets == std::vector<index_t>{0, 1, 1, 3});
  CHECK(out_ids[0] == 7);
  CHECK(out_ids[1] == 4);
  CHECK(out_ids[2] == 4);
  CHECK(out_weights[2] == 2.0F);

  std::vector<index_t> filled_offsets{0, 1, 2, 4};
  std::vector<std::int64_t> filled(4, -7);
  std::vector<std::uint8_t> empty(3, 9);
  const jagged_out<> full{filled_offsets, filled, {}};
  on_team(2, [&](const auto& team) {
    for (index_t b = 0; b < 3; ++b) {
      detail::fill_bag(team, b, offsets[static_cast<std::size_t>(b)],
                       offsets[static_cast<std::size_t>(b) + 1], out_ids.data(), nullptr, std::int64_t{2},
                       full, empty.data());
    }
  });
  CHECK(filled == std::vector<std::int64_t>{7, 2, 4, 4});
  CHECK(empty == std::vector<std::uint8_t>{0, 1, 0});
  std::vector<std::int32_t> overflown{-2, 3, 5};  // sums that bad offsets have made
  std::vector<std::int64_t> room(5, -7);
  const jagged_out<std::int64_t, std::int32_t> small{overflown, {room.data() + 1, 3}, {}};
  for (const index_t b : {0, 1}) {
    detail::fill_bag(solo_team{}, b, index_t{0}, index_t{4}, ids.data(), nullptr, std::int64_t{2}, small,
                     empty.data());
  }
  CHECK(room == std::vector<std::int64_t>{-7, 99, 7, -1, -7});
  CHECK(detail::clamp_position(-4, 8) == 0);
  CHECK(detail::clamp_position(1000, 8) == 8);
}

TEST_CASE("device stages: entries in any order become bags that keep their order") {
  std::mt19937_64 random(seed());
  check_entries<std::int64_t, std::int64_t>(random);
  check_entries<std::int32_t, std::int64_t>(random);
  check_entries<std::uint64_t, std::int32_t>(random);
  const auto made = make_entries(random, entries_are::uniform, 5, 50, 60);
  const entry_bags<std::int64_t> shuffled(made.view(true), false);
  CHECK_FALSE(bags_of(shuffled.view()) == bags_of(made.view(true)));  // the comparison sees an unstable sort
  const entry_bags<std::int64_t> none(coo_view<>(nullptr, nullptr, 0, 0));
  CHECK(none.offsets == std::vector<index_t>{0});

  const auto with_bad = make_entries(random, entries_are::many_bad, 30, 50, 200);
  const auto coo = with_bad.view(true);
  const detail::valid_entries<prune_rule::by_id_and_weight_t, std::int64_t> valid{coo.ids(), coo.weights()};
  jagged_batch<> expected;
  index_t dropped = 0;
  REQUIRE(prune_invalid(inline_executor{}, coo, prune_rule::by_id_and_weight, expected, dropped).ok());
  CHECK(dropped > 0);
  CHECK(bags_of(entry_bags<std::int64_t>(coo, true, valid).view()) == bags_of(expected.view()));
}

TEST_CASE("device stages: an entry whose row is outside is left out, and the first one is reported") {
  const std::vector<std::int64_t> indices{2, 0, 4, 0, -1, 0, 0, 0, std::numeric_limits<std::int64_t>::min(),
                                          0, 2, 0, 3, 0};  // of a sparse tensor: every other one is a row
  const std::vector<std::int64_t> ids{10, 11, 12, 13, 14, 15, 16};
  const auto coo = coo_view<>::tensorflow(indices.data(), ids.data(), 7, 4);
  const entry_bags<std::int64_t> got(coo);
  CHECK(got.offsets == std::vector<index_t>{0, 1, 1, 3, 4});
  CHECK(std::vector(got.ids.begin(), got.ids.begin() + 4) == std::vector<std::int64_t>{13, 10, 15, 16});
  CHECK(got.fault.as_status().code() == coo.validate().code());
  CHECK(got.fault.as_status().place() == coo.validate().place());
  CHECK(got.fault.as_status().place() == fault_place{.position = 1, .value = 4});
  const coo_view<> all_outside(indices.data(), ids.data(), 3, 0);
  CHECK(entry_bags<std::int64_t>(all_outside).fault.as_status().place() ==
        fault_place{.position = 0, .value = 2});
}

TEST_CASE("device stages: entries in any order, pooled, are the host's fused_lookup") {
  std::mt19937_64 random(seed());
  const index_t width = 12, rows = 60;
  alignas(16) static float memory[60 * 12];
  std::normal_distribution<float> normal(0, 1);
  for (float& x : memory) x = normal(random);
  const auto* const bytes = static_cast<const std::byte*>(static_cast<const void*>(memory));
  const const_table_view<f32_rows> table(bytes, rows, f32_rows(width));
  const const_table_view<f32_rows, device_space> on_device(bytes, rows, f32_rows(width));
  inline_executor here;
  for (const entries_are kind : every_entries) {
    const bool long_bags = kind == entries_are::one_bag || kind == entries_are::one_huge_bag;
    const auto made = make_entries(random, kind, 20, rows, long_bags ? 1500 : 200);
    const auto check = [&](const auto& how, bool weighted) {
      std::vector<float> expected(static_cast<std::size_t>(20 * width), 9.0F);
      REQUIRE(
          fused_lookup(here, table, made.view(weighted), how, matrix_view(expected.data(), 20, width)).ok());
      const entry_bags<std::int64_t> bags(made.view(weighted));
      for (const int lanes : {1, 4}) {
        device_fault fault{};
        const auto got = fused_on_lanes(lanes, on_device, bags, how, fault, long_bags);
        CHECK(fault.code == 0);
        for (std::size_t i = 0; i < got.size(); ++i) {
          REQUIRE(got[i] == doctest::Approx(expected[i]).epsilon(1e-4).scale(long_bags ? 100 : 1));
        }
      }
    };
    check(combiner::sum, false);
    check(pooling(combiner::mean, empty_bag::default_row{7}), true);
    check(pooling(combiner::sqrtn, max_norm{0.5F}), true);
    check(combiner::max, false);
  }
  // An id beyond the table: the slot after sorting, as on the host.
  const std::vector<std::int64_t> entry_rows{1, 0, 1}, ids{3, 4, 60};
  const coo_view<> coo(entry_rows.data(), ids.data(), 3, 2);
  std::vector<float> out(static_cast<std::size_t>(2 * width));
  const status on_host = fused_lookup(here, table, coo, combiner::sum, matrix_view(out.data(), 2, width));
  device_fault fault{};
  fused_on_lanes(1, on_device, entry_bags<std::int64_t>(coo), combiner::sum, fault, false);
  CHECK(fault.as_status().code() == errc::id_out_of_range);
  CHECK(fault.as_status().place() == on_host.place());
  CHECK(fault.as_status().place() == fault_place{.bag = 1, .position = 2, .value = 60});
}
