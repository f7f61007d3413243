// Bodies of the sparse operations on a device, for one thread or one team, between the scans and sorts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/kernels/device/device_runs.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>
#include <deeprec/ops/unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Clamps a position to [0, n], so that bad offsets read nothing outside the ids.
DEEPREC_HD constexpr index_t clamp_position(index_t position, index_t n) {
  return position < 0 ? 0 : position > n ? n : position;
}

/// prune_invalid: copies entry k when it is valid. kept (N + 1): an exclusive scan over the flags of all ids.
template <class Id, class Valid>
DEEPREC_HD void keep_position(index_t k, index_t first, index_t end, const Valid& valid, const Id* ids,
                              const float* weights, const index_t* kept, const bag_entries<Id>& out) {
  if (k < first || k >= end || !valid(k)) return;
  const index_t to = kept[k] - kept[first];
  out.ids[to] = ids[k];
  if (out.weights != nullptr) out.weights[to] = weights == nullptr ? 1.0F : weights[k];
}

/// An id as an unsigned sort key.
template <class Id>
DEEPREC_HD constexpr std::uint64_t id_key(Id id) {
  return static_cast<std::make_unsigned_t<Id>>(id);
}

/// unique, at sorted index `at`: writes the inverse of its position and, where a run begins, the run's id and
/// count. numbers: an exclusive scan over (position k is the first of its id).
template <class Id, class Index, class Space>
DEEPREC_HD void number_position(index_t at, index_t n, const std::uint64_t* keys,
                                const std::uint32_t* positions, const index_t* numbers,
                                const unique_out<Id, Index, Space>& out) {
  const index_t begin = begin_of_run(keys, at);
  const index_t number = numbers[positions[begin]];
  out.inverse.data()[positions[at]] = static_cast<Index>(number);
  if (at != begin) return;
  out.ids.data()[number] = static_cast<Id>(keys[at]);
  out.counts.data()[number] = static_cast<Index>(end_of_run(keys, n, at) - at);
}

/// Part and local row of an id, by either strategy.
template <class Strategy>
DEEPREC_HD part_place place_in_part(index_t id, index_t rows, index_t parts) {
  if constexpr (std::is_same_v<Strategy, partition_strategy::div_t>) {
    return partition_strategy::div_place(id, rows, parts);
  } else {
    return partition_strategy::mod_place(id, parts);
  }
}

/// partition, before the sort: writes the part of id k as its key. For an id that is left out
/// the key is P, and false is returned.
template <class Strategy, class Id, class Position, class Space>
DEEPREC_HD bool part_of_position(index_t k, const Id* ids, index_t rows, index_t parts,
                                 const partition_out<Id, Position, Space>& out, std::uint32_t* keys) {
  const bool bad = is_bad_id(ids[k], rows);
  const part_place at =
      bad ? part_place{-1, -1} : place_in_part<Strategy>(static_cast<index_t>(ids[k]), rows, parts);
  out.part.data()[k] = static_cast<std::int32_t>(at.part);
  out.permutation.data()[k] = -1;
  keys[k] = static_cast<std::uint32_t>(bad ? parts : at.part);
  return !bad;
}
/// partition, after the sort: writes sorted index `at`.
template <class Strategy, class Id, class Position, class Space>
DEEPREC_HD void put_in_part(index_t at, const Id* ids, index_t rows, index_t parts, const std::uint32_t* keys,
                            const std::uint32_t* positions, const partition_out<Id, Position, Space>& out) {
  if (keys[at] >= static_cast<std::uint32_t>(parts)) return;
  const std::uint32_t position = positions[at];
  out.permutation.data()[position] = static_cast<Position>(at);
  out.ids.data()[at] =
      static_cast<Id>(place_in_part<Strategy>(static_cast<index_t>(ids[position]), rows, parts).local);
}

/// fill_empty_bags, one team per bag: copies the bag's ids to offsets[bag] of out, or writes the default id.
template <class Id, class Offset, class Space, class Team>
DEEPREC_HD void fill_bag(const Team& team, index_t bag, index_t begin, index_t end, const Id* ids,
                         const float* weights, Id default_id, const jagged_out<Id, Offset, Space>& out,
                         std::uint8_t* empty) {
  const bag_entries<Id> entries = entries_at(out);
  const index_t room = out.ids.size();
  // Bad offsets can make bags overlap, and the sum of their sizes exceed the room and the type of offsets.
  const index_t to = clamp_position(static_cast<index_t>(out.offsets.data()[bag]), room);
  if (end - begin > room - to) end = begin + room - to;
  if (team.lane() == 0) {
    empty[bag] = begin == end ? 1 : 0;
    if (begin == end && static_cast<index_t>(out.offsets.data()[bag + 1]) > to && to < room) {
      entries.ids[to] = default_id;
      if (entries.weights != nullptr) entries.weights[to] = 1.0F;
    }
  }
  DEEPREC_ROLLED
  for (index_t k = begin + team.lane(); k < end; k += team.lanes()) {
    entries.ids[to + k - begin] = ids[k];
    if (entries.weights != nullptr) entries.weights[to + k - begin] = weights == nullptr ? 1.0F : weights[k];
  }
}

/// The entries that to_jagged keeps.
struct all_entries {
  DEEPREC_HD constexpr bool operator()(index_t) const { return true; }
};

/// Entries to bags, before the sort: writes the row of entry k as its key; B for an entry that is left out
/// and for a row outside the batch, which is reported.
template <class Team, class Coo, class Wanted>
DEEPREC_HD void key_entry(const Team& alone, index_t k, const Coo& coo, const Wanted& wanted,
                          std::uint32_t* keys, std::uint32_t* positions, device_fault* fault) {
  const index_t row = coo.row(k);
  const bool bad = row < 0 || row >= coo.bags();
  keys[k] = static_cast<std::uint32_t>(bad || !wanted(k) ? coo.bags() : row);
  positions[k] = static_cast<std::uint32_t>(k);
  if (bad) alone.report(fault, errc::invalid_value, -1, -1, k, row);
}
/// Entries to bags, after the sort: writes the id at sorted index i, and offset i.
template <class Coo, class Id, class Offset, class Space>
DEEPREC_HD void place_entry(index_t i, const Coo& coo, const std::uint32_t* keys,
                            const std::uint32_t* positions, const jagged_out<Id, Offset, Space>& out) {
  const index_t n = coo.id_count();
  const bag_entries<Id> entries = entries_at(out);
  if (i < n && keys[i] < static_cast<std::uint32_t>(coo.bags())) {
    const std::uint32_t position = positions[i];
    entries.ids[i] = coo.ids()[position];
    if (entries.weights != nullptr)
      entries.weights[i] = coo.weights() == nullptr ? 1.0F : coo.weights()[position];
  }
  if (i <= coo.bags())
    out.offsets.data()[i] = static_cast<Offset>(first_not_below(keys, n, static_cast<std::uint32_t>(i)));
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
