// The bodies of the device's stages, on the host: what they answer is what the host's stages are documented
// to. Scans and sorts are the host's.

#include <deeprec/embedding/detail/device_stages.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

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

}  // namespace

TEST_CASE("device stages: unique numbers ids by their first appearance") {
  std::mt19937_64 random(seed());
  for (const int lanes : {1, 4}) {
    for (int round = 0; round < 10; ++round) {
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
      on_team(lanes, [&](const auto& team) {
        for (std::size_t i = 0; i < n; ++i) {
          detail::number_run(team, static_cast<index_t>(i), static_cast<index_t>(n), keys.data(),
                             slots.data(), numbers.data(),
                             device_unique<>{of.data(), inverse.data(), counts.data(), nullptr});
        }
      });
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
}

TEST_CASE("device stages: partition deals ids as the strategies say, in order, and leaves bad ones out") {
  std::mt19937_64 random(seed());
  const index_t rows = 10;
  for (const index_t parts : {1, 3, 4, 16}) {
    std::vector<std::int64_t> ids(40), local(40, -7);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 14) - 2;
    std::vector<std::int32_t> part(40);
    std::vector<index_t> permutation(40), offsets(static_cast<std::size_t>(parts) + 1);
    const device_partition<> out{part.data(), permutation.data(), offsets.data(), local.data()};
    std::vector<std::uint32_t> keys(40), slots;
    int left_out = 0;
    for (index_t k = 0; k < 40; ++k) {
      left_out += detail::part_of_slot<div_strategy>(k, ids.data(), rows, parts, out, keys.data()) ? 0 : 1;
    }
    sort_stably(keys, slots);
    for (index_t i = 0; i < 40; ++i) {
      detail::put_in_part<div_strategy>(i, ids.data(), rows, parts, keys.data(), slots.data(), out);
    }
    for (index_t p = 0; p <= parts; ++p) {
      offsets[static_cast<std::size_t>(p)] =
          detail::first_not_below(keys.data(), 40, static_cast<std::uint32_t>(p));
    }
    CHECK(offsets.back() == 40 - left_out);
    index_t before = -1;
    for (std::size_t k = 0; k < 40; ++k) {
      const part_place at = div_place(ids[k], rows, parts);
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
  const std::vector<index_t> borders{1, 4, 4, 7};  // a slice: slots 0 and 7 are not its own
  const detail::valid_entries<by_id_and_weight_t, std::int64_t> valid{ids.data(), weights.data()};
  std::vector<index_t> kept(9);
  for (index_t k = 0; k < 8; ++k) kept[static_cast<std::size_t>(k)] = valid(k) ? 1 : 0;
  std::exclusive_scan(kept.begin(), kept.end(), kept.begin(), index_t{0});
  std::vector<std::int64_t> out_ids(8);
  std::vector<float> out_weights(8);
  std::vector<index_t> offsets(4);
  const device_bags<> out{offsets.data(), out_ids.data(), out_weights.data(), 3, 8};
  for (index_t k = 0; k < 8; ++k)
    detail::keep_slot(k, 1, 7, valid, ids.data(), weights.data(), kept.data(), out);
  for (std::size_t b = 0; b < 4; ++b) offsets[b] = kept[static_cast<std::size_t>(borders[b])] - kept[1];
  CHECK(offsets == std::vector<index_t>{0, 1, 1, 3});
  CHECK(out_ids[0] == 7);
  CHECK(out_ids[1] == 4);
  CHECK(out_ids[2] == 4);
  CHECK(out_weights[2] == 2.0F);

  std::vector<index_t> filled_offsets{0, 1, 2, 4};
  std::vector<std::int64_t> filled(4, -7);
  std::vector<std::uint8_t> empty(3, 9);
  const device_bags<> full{filled_offsets.data(), filled.data(), nullptr, 3, 4};
  on_team(2, [&](const auto& team) {
    for (index_t b = 0; b < 3; ++b) {
      detail::fill_bag(team, b, offsets[static_cast<std::size_t>(b)],
                       offsets[static_cast<std::size_t>(b) + 1], out_ids.data(), nullptr, std::int64_t{2},
                       full, empty.data());
    }
  });
  CHECK(filled == std::vector<std::int64_t>{7, 2, 4, 4});
  CHECK(empty == std::vector<std::uint8_t>{0, 1, 0});
  CHECK(detail::clamp_slot(-4, 8) == 0);
  CHECK(detail::clamp_slot(1000, 8) == 8);
}
