// Bodies of the sparse operations on a device, for one thread or one team, between the scans and sorts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/device_batch.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>
#include <deeprec/embedding/kernels/device_pool.hpp>
#include <deeprec/embedding/kernels/device_runs.hpp>
#include <deeprec/embedding/kernels/pool_rules.hpp>
#include <deeprec/exec/device_fault.hpp>
#include <deeprec/ops/unique.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Clamps a position to [0, n], so that bad offsets read nothing outside the ids.
DEEPREC_HD constexpr index_t clamp_position(index_t position, index_t n) {
  return position < 0 ? 0 : position > n ? n : position;
}

/// prune_invalid: copies entry k when it is valid. kept (N + 1): an exclusive scan over the flags of all ids.
template <class Id, class Valid>
DEEPREC_HD void keep_position(index_t k, index_t first, index_t end, const Valid& valid, const Id* ids,
                              const float* weights, const index_t* kept, const device_bags<Id>& out) {
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
template <class Id>
DEEPREC_HD void number_position(index_t at, index_t n, const std::uint64_t* keys,
                                const std::uint32_t* positions, const index_t* numbers,
                                const device_unique<Id>& out) {
  const index_t begin = begin_of_run(keys, at);
  const index_t number = numbers[positions[begin]];
  out.inverse[positions[at]] = static_cast<std::int32_t>(number);
  if (at != begin) return;
  out.ids[number] = static_cast<Id>(keys[at]);
  out.counts[number] = static_cast<std::int32_t>(end_of_run(keys, n, at) - at);
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
template <class Strategy, class Id>
DEEPREC_HD bool part_of_position(index_t k, const Id* ids, index_t rows, index_t parts,
                                 const device_partition<Id>& out, std::uint32_t* keys) {
  const bool bad = is_bad_id(ids[k], rows);
  const part_place at =
      bad ? part_place{-1, -1} : place_in_part<Strategy>(static_cast<index_t>(ids[k]), rows, parts);
  out.part[k] = static_cast<std::int32_t>(at.part);
  out.permutation[k] = -1;
  keys[k] = static_cast<std::uint32_t>(bad ? parts : at.part);
  return !bad;
}
/// partition, after the sort: writes sorted index `at`.
template <class Strategy, class Id>
DEEPREC_HD void put_in_part(index_t at, const Id* ids, index_t rows, index_t parts, const std::uint32_t* keys,
                            const std::uint32_t* positions, const device_partition<Id>& out) {
  if (keys[at] >= static_cast<std::uint32_t>(parts)) return;
  const std::uint32_t position = positions[at];
  out.permutation[position] = at;
  out.ids[at] =
      static_cast<Id>(place_in_part<Strategy>(static_cast<index_t>(ids[position]), rows, parts).local);
}

/// fill_empty_bags, one team per bag: copies the bag's ids to out.offsets[bag], or writes the default id.
template <class Id, class Team>
DEEPREC_HD void fill_bag(const Team& team, index_t bag, index_t begin, index_t end, const Id* ids,
                         const float* weights, Id default_id, const device_bags<Id>& out,
                         std::uint8_t* empty) {
  const index_t to = out.offsets[bag];
  // Bad offsets can make bags overlap, and the sum of their sizes exceed the room.
  if (end - begin > out.room - to) end = begin + (out.room > to ? out.room - to : 0);
  if (team.lane() == 0) {
    empty[bag] = begin == end ? 1 : 0;
    if (begin == end && out.offsets[bag + 1] > to && to < out.room) {
      out.ids[to] = default_id;
      if (out.weights != nullptr) out.weights[to] = 1.0F;
    }
  }
  DEEPREC_ROLLED
  for (index_t k = begin + team.lane(); k < end; k += team.lanes()) {
    out.ids[to + k - begin] = ids[k];
    if (out.weights != nullptr) out.weights[to + k - begin] = weights == nullptr ? 1.0F : weights[k];
  }
}

/// to_jagged, before the sort: writes the row of entry k as its key; B for a row outside the batch, which is
/// reported.
template <class Team, class Coo>
DEEPREC_HD void key_entry(const Team& alone, index_t k, const Coo& coo, std::uint32_t* keys,
                          std::uint32_t* positions, device_fault* fault) {
  const index_t row = coo.row(k);
  const bool bad = row < 0 || row >= coo.bags();
  keys[k] = static_cast<std::uint32_t>(bad ? coo.bags() : row);
  positions[k] = static_cast<std::uint32_t>(k);
  if (bad) alone.report(fault, errc::invalid_value, -1, -1, k, row);
}
/// to_jagged, after the sort: writes the id at sorted index i, and offset i.
template <class Coo, class Id>
DEEPREC_HD void place_entry(index_t i, const Coo& coo, const std::uint32_t* keys,
                            const std::uint32_t* positions, const device_bags<Id>& out) {
  const index_t n = coo.id_count();
  if (i < n && keys[i] < static_cast<std::uint32_t>(coo.bags())) {
    const std::uint32_t position = positions[i];
    out.ids[i] = coo.ids()[position];
    if (out.weights != nullptr) out.weights[i] = coo.weights() == nullptr ? 1.0F : coo.weights()[position];
  }
  if (i <= coo.bags()) out.offsets[i] = first_not_below(keys, n, static_cast<std::uint32_t>(i));
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
