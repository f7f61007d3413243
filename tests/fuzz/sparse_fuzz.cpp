// libFuzzer: bags and entries of any shape, sound or not, through the stages of a sparse lookup. What is not
// sound must be refused with its first fault; what is must come out as plain loops say.
//
// The first eight bytes choose sizes and kinds; then three bytes for each entry: row or offset, id, weight.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include <deeprec/embedding/batches/fill_empty_bags.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/dedup_rows.hpp>
#include <deeprec/ops/unique.hpp>

#include "support/entries.hpp"

namespace {

using namespace deeprec;
using deeprec_test::bag_list;
using deeprec_test::bags_of;
using deeprec_test::bits_of;

const inline_executor here;

void require(bool holds) {
  if (!holds) std::abort();
}

struct choices {
  index_t bags;
  index_t parts;
  index_t rows;  // of the table
  bool weighted;
  bool by_weights;    // how to prune
  bool sound;         // rows and offsets are made to be inside
  bool ends_implied;  // PyTorch's offsets
  bool by_mod;
};

/// Bytes 0 .. 199 are small ids, the others negative ones and the ends of the type.
template <class Id>
Id id_of(std::uint8_t byte) {
  constexpr Id lowest = std::numeric_limits<Id>::min();
  constexpr Id largest = std::numeric_limits<Id>::max();
  if (byte < 200) return static_cast<Id>(byte % 40);
  if (byte < 220) return static_cast<Id>(200 - byte - 1);
  if (byte < 240) return static_cast<Id>(lowest + static_cast<Id>(byte % 2));
  return static_cast<Id>(largest - static_cast<Id>(byte % 2));
}

float weight_of(std::uint8_t byte) {
  constexpr float special[] = {
      0.0F,  -0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
      1e-40F};
  return byte < 6 ? special[byte] : static_cast<float>(byte) / 32.0F - 2.0F;
}

template <class Id>
index_t entries_in(const bag_list<Id>& bags) {
  index_t n = 0;
  for (const auto& bag : bags) n += static_cast<index_t>(bag.size());
  return n;
}

template <class Id>
bag_list<Id> pruned(bag_list<Id> bags, bool by_weights) {
  for (auto& bag : bags) {
    std::erase_if(bag, [&](const auto& entry) {
      if constexpr (std::is_signed_v<Id>) {
        if (entry.first < 0) return true;
      }
      return by_weights && !(std::bit_cast<float>(entry.second) > 0.0F);
    });
  }
  return bags;
}

template <class Id>
void check_unique(const std::pmr::vector<Id>& ids, const unique_ids<Id, std::int32_t>& found) {
  std::vector<Id> first;
  std::vector<std::int32_t> counts;
  require(found.inverse.size() == ids.size());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto at = std::find(first.begin(), first.end(), ids[k]) - first.begin();
    if (at == static_cast<std::ptrdiff_t>(first.size())) {
      first.push_back(ids[k]);
      counts.push_back(0);
    }
    require(found.inverse[k] == at);
    ++counts[static_cast<std::size_t>(at)];
  }
  require(std::equal(first.begin(), first.end(), found.ids.begin(), found.ids.end()));
  require(std::equal(counts.begin(), counts.end(), found.counts.begin(), found.counts.end()));
}

template <class Id>
void check_partition(const std::pmr::vector<Id>& ids, const choices& chosen,
                     const partitioned_ids<Id>& dealt) {
  require(dealt.part.size() == ids.size() && dealt.permutation.size() == ids.size());
  require(dealt.parts() == chosen.parts && dealt.offsets.front() == 0);
  require(dealt.offsets.back() == static_cast<index_t>(dealt.ids.size()));
  std::set<index_t> positions;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto id = static_cast<index_t>(ids[k]);
    if (id < 0 || id >= chosen.rows) {
      require(dealt.part[k] == -1 && dealt.permutation[k] == -1);
      continue;
    }
    const part_place at = chosen.by_mod ? partition_strategy::mod_place(id, chosen.parts)
                                        : partition_strategy::div_place(id, chosen.rows, chosen.parts);
    const index_t position = dealt.permutation[k];
    require(dealt.part[k] == at.part && at.local < part_rows(at.part, chosen.rows, chosen.parts));
    require(dealt.offsets[static_cast<std::size_t>(at.part)] <= position &&
            position < dealt.offsets[static_cast<std::size_t>(at.part) + 1]);
    require(static_cast<index_t>(dealt.ids[static_cast<std::size_t>(position)]) == at.local);
    require(positions.insert(position).second);
  }
  require(positions.size() == dealt.ids.size());
}

/// unique and partition; gather and combine are lookups, whose kernels would take minutes to build here.
template <class Id>
void check_ids(const jagged_batch<Id>& bags, const choices& chosen) {
  unique_ids<Id, std::int32_t> found;
  require(unique(here, bags.ids, found).ok());
  check_unique(bags.ids, found);

  partitioned_ids<Id> dealt;
  index_t left_out = 0;
  const auto deal = [&](const auto& bounds) {
    return chosen.by_mod
               ? partition(here, found.ids, chosen.rows, chosen.parts, partition_strategy::mod, bounds, dealt)
               : partition(here, found.ids, chosen.rows, chosen.parts, partition_strategy::div, bounds,
                           dealt);
  };
  require(deal(bounds::skip(left_out)).ok());
  check_partition(found.ids, chosen, dealt);
  const status checked = deal(bounds::check);
  require(checked.ok() == (left_out == 0));
  if (!checked) {
    std::size_t slot = 0;
    while (static_cast<std::uint64_t>(static_cast<std::int64_t>(found.ids[slot])) <
           static_cast<std::uint64_t>(chosen.rows)) {
      ++slot;
    }
    require(checked.code() == errc::id_out_of_range &&
            checked.place().position == static_cast<index_t>(slot));
    check_partition(found.ids, chosen, dealt);  // as it was
  }
}

/// Every stage of a sound batch whose bags are known.
template <class Batch, class Id>
void check_stages(const Batch& batch, const bag_list<Id>& meaning, const choices& chosen) {
  jagged_batch<Id> valid, filled;
  index_t dropped = -1;
  require((chosen.by_weights ? prune_invalid(here, batch, prune_rule::by_id_and_weight, valid, dropped)
                             : prune_invalid(here, batch, prune_rule::by_id, valid, dropped))
              .ok());
  auto expected = pruned(meaning, chosen.by_weights && chosen.weighted);
  require(valid.view().validate().ok() && bags_of(valid.view()) == expected);
  require(dropped == entries_in(meaning) - entries_in(expected));

  std::vector<std::uint8_t> empty(meaning.size(), 9);
  require(fill_empty_bags(here, valid.view(), std::nullopt, filled, empty).ok());
  require(bags_of(filled.view()) == expected);
  require(fill_empty_bags(here, valid.view(), Id{5}, filled, empty).ok());
  for (std::size_t b = 0; b < expected.size(); ++b) {
    require(empty[b] == (expected[b].empty() ? 1 : 0));
    if (expected[b].empty()) expected[b] = {{Id{5}, bits_of(1.0F)}};
  }
  require(filled.view().validate().ok() && bags_of(filled.view()) == expected);
  check_ids(filled, chosen);
}

template <class Id>
void check_entries(const choices& chosen, const std::vector<std::uint8_t>& bytes) {
  std::vector<std::int32_t> rows;
  std::vector<Id> ids;
  std::vector<float> weights;
  index_t bad = -1;
  for (std::size_t i = 0; i + 2 < bytes.size(); i += 3) {
    const auto byte = static_cast<std::int32_t>(static_cast<std::int8_t>(bytes[i]));
    if (chosen.sound && chosen.bags == 0) break;
    const std::int32_t row = chosen.sound ? static_cast<std::int32_t>(bytes[i] % chosen.bags) : byte;
    if (bad < 0 && (row < 0 || row >= chosen.bags)) bad = static_cast<index_t>(rows.size());
    rows.push_back(row);
    ids.push_back(id_of<Id>(bytes[i + 1]));
    weights.push_back(weight_of(bytes[i + 2]));
  }
  const auto n = static_cast<index_t>(ids.size());
  const coo_view<Id, std::int32_t> coo(rows.data(), ids.data(), n, chosen.bags,
                                       chosen.weighted ? weights.data() : nullptr);
  jagged_batch<Id> bags;
  index_t dropped = 0;
  const status s = to_jagged(here, coo, bags);
  require(s.ok() == (bad < 0) && coo.validate().ok() == s.ok());
  if (!s) {
    require(s.code() == errc::invalid_value && s.place().position == bad);
    require(prune_invalid(here, coo, prune_rule::by_id, bags, dropped).place() == s.place());
    require(bags.ids.empty() && bags.offsets.empty());
    return;
  }
  const auto meaning = bags_of(coo);
  require(bags.view().validate().ok() && bags_of(bags.view()) == meaning);
  check_stages(coo, meaning, chosen);
  check_stages(bags.view(), meaning, chosen);
}

template <class Id>
void check_bags(const choices& chosen, const std::vector<std::uint8_t>& bytes) {
  std::vector<std::int32_t> offsets;
  std::vector<Id> ids;
  std::vector<float> weights;
  for (std::size_t i = 0; i + 2 < bytes.size(); i += 3) {
    ids.push_back(id_of<Id>(bytes[i + 1]));
    weights.push_back(weight_of(bytes[i + 2]));
  }
  const auto n = static_cast<index_t>(ids.size());
  const index_t stored = chosen.bags + (chosen.ends_implied ? 0 : 1);
  for (index_t b = 0; b < stored; ++b) {
    const std::size_t i = static_cast<std::size_t>(3 * b);
    const std::int32_t before = offsets.empty() ? 0 : offsets.back();
    const std::int32_t byte = i < bytes.size() ? static_cast<std::int8_t>(bytes[i]) : before;
    const std::int32_t step = i < bytes.size() ? bytes[i] % 5 : 0;
    offsets.push_back(chosen.sound ? static_cast<std::int32_t>((std::min)(n, index_t{before} + step)) : byte);
  }
  const float* const given = chosen.weighted ? weights.data() : nullptr;
  using view = jagged_view<Id, std::int32_t>;
  const view bags = chosen.ends_implied ? view::torch(offsets.data(), chosen.bags, ids.data(), n, given)
                                        : view(offsets.data(), chosen.bags, ids.data(), n, given);
  bool sound = true;
  for (std::size_t b = 0; b < offsets.size() && chosen.bags > 0; ++b) {
    sound = sound && offsets[b] >= (b == 0 ? 0 : offsets[b - 1]) && offsets[b] <= n;
  }
  require(bags.validate().ok() == sound);
  if (!sound) {
    jagged_batch<Id> out;
    index_t dropped = 0;
    std::vector<std::uint8_t> empty(static_cast<std::size_t>(chosen.bags));
    require(prune_invalid(here, bags, prune_rule::by_id, out, dropped).place() == bags.validate().place());
    require(fill_empty_bags(here, bags, Id{0}, out, empty).code() == bags.validate().code());
    require(out.ids.empty() && out.offsets.empty());
    return;
  }
  check_stages(bags, bags_of(bags), chosen);
}

void check_dedup(const std::vector<std::uint8_t>& bytes, index_t columns) {
  const auto rows = static_cast<index_t>(bytes.size()) / columns;
  const matrix_view<const std::uint8_t> in(bytes.data(), rows, columns);
  unique_rows<std::int32_t> found;
  require(dedup_rows(here, in, found).ok());
  require(static_cast<index_t>(found.inverse.size()) == rows);
  for (std::size_t u = 1; u < found.rows.size(); ++u) require(found.rows[u - 1] < found.rows[u]);
  std::vector<std::uint8_t> kept(found.rows.size() * static_cast<std::size_t>(columns));
  std::vector<std::uint8_t> laid(static_cast<std::size_t>(rows * columns));
  const matrix_view<std::uint8_t> once(kept.data(), static_cast<index_t>(found.rows.size()), columns);
  require(gather_rows(here, in, found.rows, once).ok());
  require(gather_rows(here, once, found.inverse, matrix_view(laid.data(), rows, columns)).ok());
  require(std::equal(laid.begin(), laid.end(), bytes.begin()));
  std::set<std::vector<std::uint8_t>> different;
  for (index_t b = 0; b < rows; ++b) different.emplace(in.row(b), in.row(b) + columns);
  require(different.size() == found.rows.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8) return 0;
  const choices chosen{.bags = data[1] % 40,
                       .parts = 1 + data[2] % 50,
                       .rows = data[3] % 45,
                       .weighted = (data[4] & 1) != 0,
                       .by_weights = (data[4] & 2) != 0,
                       .sound = (data[4] & 4) == 0,
                       .ends_implied = (data[4] & 8) != 0,
                       .by_mod = (data[4] & 16) != 0};
  const std::vector<std::uint8_t> bytes(data + 8, data + size);  // ends where the sanitizer sees
  switch (data[0] % 5) {
    case 0:
      check_entries<std::int64_t>(chosen, bytes);
      break;
    case 1:
      check_entries<std::int32_t>(chosen, bytes);
      break;
    case 2:
      check_bags<std::int32_t>(chosen, bytes);
      break;
    case 3:
      check_bags<std::uint64_t>(chosen, bytes);
      break;
    default:
      check_dedup(bytes, 1 + data[5] % 9);
      break;
  }
  return 0;
}
