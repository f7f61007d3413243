// How many ids the columns of hashed tokens have: --table-rows, or as many as the training rows need.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/ctr_data.hpp"
#include "options.hpp"
#include "row_source.hpp"
#include "saved_model.hpp"

namespace ctr {

/// Ids for each one that training rows use, so that few tokens share one: with 4, an eighth of them.
inline constexpr index_t ids_for_each_used = 4;

/// The sizes before rows are counted.
inline std::vector<index_t> first_table_sizes(const options& o, const row_source& source) {
  if (o.new_data) {
    const saved_model saved(o.load);
    if (saved.has_raw_keys()) {
      throw failure(o.load + ": must be a model of --keys hashed (is one of --keys raw)");
    }
    token_vocabulary words(source.columns());
    saved.get_sizes(words);
    return words.ids;
  }
  if (o.table_rows.empty() || o.table_rows == "auto") return source.table_rows();
  return source.table_rows(std::stoll(o.table_rows));
}

/// Tokens that were known before stay so.
///
/// @pre known is that of tables of the same sizes
inline void add_known(ctr_tables& tables, const std::vector<std::uint64_t>& known) {
  for (std::size_t i = 0; i < tables.uses.size(); ++i) {
    if ((known[i / 64] >> i % 64 & 1) != 0) tables.uses[i] = rare_below;
  }
}

/// Tables whose columns are halved while they have more ids than needed. The id of a token in a column of
/// half the ids is half its id, so what was counted holds.
///
/// @param given  ids that a schema gives a column, which stay; 0, or none: it gives none
/// @pre !counted.raw
inline ctr_tables fitted(const ctr_tables& counted, const std::vector<index_t>& given) {
  std::vector<index_t> sizes;
  std::vector<std::vector<std::uint8_t>> uses;
  const index_t integers = counted.columns.integers, slots = counted.columns.slots();
  for (index_t slot = integers; slot < slots; ++slot) {
    const auto* const first = counted.uses.data() + counted.first(slot) + 1;
    std::vector<std::uint8_t> of(first, first + counted.ids(slot));
    const auto used = of.size() - static_cast<std::size_t>(std::count(of.begin(), of.end(), 0));
    const std::size_t enough = std::bit_ceil(std::max<std::size_t>(used, 1)) * ids_for_each_used;
    const auto column = static_cast<std::size_t>(slot - integers);
    const bool stays = column < given.size() && given[column] > 0;
    while (!stays && of.size() % 2 == 0 && of.size() / 2 >= enough) {
      for (std::size_t i = 0; i < of.size() / 2; ++i) {
        of[i] = static_cast<std::uint8_t>(std::min(of[2 * i] + of[2 * i + 1], rare_below));
      }
      of.resize(of.size() / 2);
    }
    sizes.push_back(static_cast<index_t>(of.size()));
    uses.push_back(std::move(of));
  }
  ctr_tables made(sizes, counted.columns);
  for (index_t slot = integers; slot < slots; ++slot) {
    const std::vector<std::uint8_t>& of = uses[static_cast<std::size_t>(slot - integers)];
    std::copy(of.begin(), of.end(), made.uses.begin() + made.first(slot) + 1);
  }
  return made;
}

}  // namespace ctr
