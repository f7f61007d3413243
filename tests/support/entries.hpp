// Seeded lists of entries in any order, and what they mean: for every bag its (id, weight) pairs, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/coo_view.hpp>
#include <deeprec/core/jagged_view.hpp>

namespace deeprec_test {

using deeprec::index_t;

template <class Id, class Row>
struct entry_list {
  std::vector<Row> rows;
  std::vector<Id> ids;
  std::vector<float> weights;
  index_t bags = 0;

  deeprec::coo_view<Id, Row> view(bool weighted = false) const {
    return {rows.data(), ids.data(), static_cast<index_t>(ids.size()), bags,
            weighted ? weights.data() : nullptr};
  }
};

enum class entries_are { uniform, one_huge_bag, sorted, many_bad, all_bad, one_bag };
inline constexpr entries_are every_entries[] = {entries_are::uniform, entries_are::one_huge_bag,
                                                entries_are::sorted,  entries_are::many_bad,
                                                entries_are::all_bad, entries_are::one_bag};

/// Ids in [0, ids), some of them negative (down to the lowest number) where the kind says bad; weights
/// around 1, where bad also zero, negative and NaN.
template <class Id = std::int64_t, class Row = std::int64_t>
entry_list<Id, Row> make_entries(std::mt19937_64& random, entries_are kind, index_t bags, index_t ids,
                                 index_t entries) {
  entry_list<Id, Row> made;
  made.bags = bags;
  if (bags == 0) return made;
  std::uniform_int_distribution<index_t> any_row(0, bags - 1);
  std::uniform_int_distribution<index_t> any_id(0, ids - 1);
  std::uniform_real_distribution<float> unit(0.25F, 2.0F);
  constexpr Id bad_ids[] = {static_cast<Id>(-1), static_cast<Id>(-7), std::numeric_limits<Id>::min()};
  const float bad_weights[] = {0.0F, -0.0F, -1.5F, std::numeric_limits<float>::quiet_NaN()};
  for (index_t k = 0; k < entries; ++k) {
    index_t row = any_row(random);
    if (kind == entries_are::one_huge_bag && k % 2 == 0) row = bags / 2;
    if (kind == entries_are::one_bag) row = bags - 1;
    const bool bad =
        kind == entries_are::all_bad || (kind == entries_are::many_bad && (row % 3 == 0 || k % 4 == 0));
    made.rows.push_back(static_cast<Row>(row));
    made.ids.push_back(bad ? bad_ids[random() % 3] : static_cast<Id>(any_id(random)));
    made.weights.push_back(kind == entries_are::many_bad && k % 5 == 0 ? bad_weights[random() % 4]
                                                                       : unit(random));
  }
  if (kind == entries_are::sorted) std::sort(made.rows.begin(), made.rows.end());
  return made;
}

/// What a batch means. Weights by their bits, so that NaN equals itself.
template <class Id>
using bag_list = std::vector<std::vector<std::pair<Id, std::uint32_t>>>;

inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

template <class Id, class Row, class Space>
bag_list<Id> bags_of(const deeprec::coo_view<Id, Row, Space>& coo) {
  bag_list<Id> bags(static_cast<std::size_t>(coo.bags()));
  for (index_t k = 0; k < coo.id_count(); ++k) {
    bags[static_cast<std::size_t>(coo.row(k))].emplace_back(
        coo.ids()[k], bits_of(coo.weights() == nullptr ? 1.0F : coo.weights()[k]));
  }
  return bags;
}

template <class Id, class Offset>
bag_list<Id> bags_of(const deeprec::jagged_view<Id, Offset>& view) {
  bag_list<Id> bags(static_cast<std::size_t>(view.bags()));
  for (index_t b = 0; b < view.bags(); ++b) {
    for (index_t k = view.ranges().begin(b); k < view.ranges().end(b); ++k) {
      bags[static_cast<std::size_t>(b)].emplace_back(
          view.ids()[k], bits_of(view.weights() == nullptr ? 1.0F : view.weights()[k]));
    }
  }
  return bags;
}

}  // namespace deeprec_test
