// partition_unique after its checks: distinct ids are numbered, ask the rule for their owner, and get slots.
//
//   distinct id   owner  number among its owner's          slot = first[owner] + number
//   7             1      0                                 1
//   1             1      1                                 2
//   8             0      0                                 0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/distinct_ids.hpp>
#include <deeprec/ops/owner_rules.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Room for an answer. Memory of the caller has it.
template <class Out>
void size_parts(Out& out, std::size_t distinct, std::size_t owners, std::size_t n) {
  if constexpr (requires { out.ids.resize(n); }) {
    out.ids.reserve(distinct);  // all allocations, before anything changes
    out.first.reserve(owners + 1);
    out.slots.reserve(n);
    out.counts.reserve(distinct);
    out.ids.resize(distinct);
    out.first.resize(owners + 1);
    out.slots.resize(n);
    out.counts.resize(distinct);
  }
}

/// The body of partition_unique, for a list (distinct_ids.hpp) of its ids.
template <class List, class Context, class Id, class Rule, class Out>
status partition_numbered(const Context& ctx, List list, std::span<const Id> ids, const Rule& rule,
                          Out& out) {
  using number_type = typename List::number_type;
  using index_type = typename Out::index_type;
  using place_type = std::conditional_t<sizeof(number_type) == 2, std::uint32_t, std::uint64_t>;
  constexpr int bits = 8 * sizeof(number_type);
  const auto n = static_cast<index_t>(ids.size());
  const auto owners = static_cast<index_t>(rule.owners());
  index_t bytes = list.bytes();
  for (const index_t part : {scratch_block::bytes_of<place_type>(n), scratch_block::bytes_of<Id>(n),
                             scratch_block::bytes_of<std::uint32_t>(owners)}) {
    bytes = capped_sum(bytes, part);
  }
  scratch_block block(ctx.memory, bytes);
  list.find(block);
  // Of a distinct id: its owner, and its number among its owner's.
  place_type* const places = block.take<place_type>(n).data();
  Id* const local = block.take<Id>(n).data();
  std::uint32_t* const starts = block.take<std::uint32_t>(owners).data();  // counts of owners, then first
  std::fill_n(starts, static_cast<std::size_t>(owners), 0U);
  const index_t distinct = list.distinct();
  for (index_t u = 0; u < distinct; ++u) {
    const owned_id<Id> place = rule(list.id(u));
    if (static_cast<std::uint64_t>(place.owner) >= static_cast<std::uint64_t>(owners)) [[unlikely]] {
      return {errc::invalid_value,
              "partition_unique: rule must give an owner in [0, owners())",
              {.position = list.first_position(u), .value = place.owner, .at_most = owners - 1}};
    }
    places[u] = static_cast<place_type>(place.owner) << bits | starts[place.owner]++;
    local[u] = place.local;
  }
  size_parts(out, static_cast<std::size_t>(distinct), static_cast<std::size_t>(owners), ids.size());
  index_type* const first = out.first.data();
  std::uint32_t next = 0;
  for (index_t o = 0; o < owners; ++o) {
    first[o] = static_cast<index_type>(next);
    next += std::exchange(starts[o], next);
  }
  first[owners] = static_cast<index_type>(next);
  Id* const to = out.ids.data();
  index_type* const counts = out.counts.data();
  for (index_t u = 0; u < distinct; ++u) {
    const std::uint32_t slot =
        starts[places[u] >> bits] + static_cast<std::uint32_t>(static_cast<number_type>(places[u]));
    list.set_slot(u, static_cast<number_type>(slot));
    to[slot] = local[u];
  }
  std::fill_n(counts, static_cast<std::size_t>(distinct), index_type{0});
  index_type* const slots = out.slots.data();
  for (index_t k = 0; k < n; ++k) {
    const number_type slot = list.slot_at(k);
    slots[k] = static_cast<index_type>(slot);
    ++counts[slot];
  }
  return {};
}

/// The checks of partition_unique that don't depend on the memory of out.
template <class Rule, class Id, class Index>
status check_rule(const array_view<const Id>& list, const Rule& rule) {
  if constexpr (requires { rule.check(); }) {
    if (const status s = rule.check(); !s) return s.in_operation("partition_unique");
  }
  const auto owners = static_cast<index_t>(rule.owners());
  if (owners < 1)
    return {errc::invalid_value, "partition_unique: rule must have an owner at least", {.value = owners}};
  const index_t most = std::cmp_less((std::numeric_limits<Index>::max)(), most_keys)
                           ? static_cast<index_t>((std::numeric_limits<Index>::max)())
                           : most_keys;
  if (list.size() > most || owners > most) {
    return {errc::unsupported,
            "partition_unique: N and the owners must be below 2^32 - 1 and fit the index type of out"};
  }
  return {};
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
