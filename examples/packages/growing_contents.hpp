// The contents of a growing table as arrays, in ascending order of the keys: what a checkpoint keeps.
//
//   const auto facts = deeprec_packages::facts_of(table);
//   deeprec_packages::insert_keys(made, keys, steps, frequencies);      rows of a new table, then values
//
// What filters::counter has counted of keys that wait is not part of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/embedding/growing/eviction.hpp>
#include <deeprec/embedding/growing/growing_table.hpp>
#include <deeprec/exec/inline_executor.hpp>

namespace deeprec_packages {

/// A row of a growing table.
struct row_fact {
  std::int64_t key;
  std::int64_t step;       ///< of the last update, or of the birth
  std::int64_t frequency;  ///< positions that trained it
  const std::byte* row;
};

/// All rows. The caller holds the guard of the table's rows while it reads them.
template <class Format>
deeprec::result<std::vector<row_fact>> facts_of(deeprec::growing_table<Format>& table) {
  std::vector<row_fact> all;
  all.reserve(static_cast<std::size_t>(table.size()));
  deeprec::inline_executor here;
  // A policy that chooses none sees the facts.
  const auto list = [&](const deeprec::evictee& row) {
    all.push_back({static_cast<std::int64_t>(row.key), static_cast<std::int64_t>(row.step),
                   static_cast<std::int64_t>(row.frequency), row.row});
    return false;
  };
  if (const auto swept = deeprec::evict_rows(here, table, list, 0); !swept) return swept.fault();
  std::sort(all.begin(), all.end(), [](const row_fact& a, const row_fact& b) { return a.key < b.key; });
  return all;
}

/// Makes rows for keys in a table without rows, and what the table knows of them: rows of one step at a time.
/// A key that is there twice gets one row, and one for which a full table has no room none: the caller
/// compares sizes.
///
/// @pre steps are not negative, frequencies from 0 to 2^24 - 1
template <class Format>
deeprec::status insert_keys(deeprec::growing_table<Format>& table, std::span<const std::int64_t> keys,
                            const std::int64_t* steps, const std::int64_t* frequencies) {
  using deeprec::index_t;
  std::vector<index_t> order(keys.size());
  std::iota(order.begin(), order.end(), index_t{0});
  std::stable_sort(order.begin(), order.end(), [&](index_t a, index_t b) { return steps[a] < steps[b]; });
  std::vector<std::int64_t> of_step;
  std::vector<index_t> trained;
  for (std::size_t from = 0; from < order.size();) {
    const std::int64_t step = steps[order[from]];
    of_step.clear();
    trained.clear();
    for (; from < order.size() && steps[order[from]] == step; ++from) {
      of_step.push_back(keys[static_cast<std::size_t>(order[from])]);
      trained.push_back(frequencies[order[from]]);
    }
    const auto rows = static_cast<index_t>(of_step.size());
    table.begin_step(static_cast<std::uint64_t>(step));
    if (const deeprec::status s = table.rows().insert(of_step.data(), rows); !s) return s;
    const auto pinned = table.rows().guard();
    std::vector<const std::byte*> places(of_step.size());
    table.rows().find(of_step.data(), rows, places.data());
    std::size_t found = 0;  // of a full table some have no row
    for (std::size_t k = 0; k < places.size(); ++k) {
      if (places[k] == nullptr) continue;
      places[found] = places[k];
      trained[found++] = trained[k];
    }
    table.rows().before_step(const_cast<std::byte* const*>(places.data()), trained.data(),
                             static_cast<index_t>(found));
  }
  return {};
}

}  // namespace deeprec_packages
