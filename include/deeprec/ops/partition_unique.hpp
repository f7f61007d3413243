// The distinct ids of a list by their owners, and the slot of each id among them: what a rank sends to the
// others, and its batch over what comes back.
//
//   in        7 1 8 1 7           owner 0        owner 1          of id: id mod 2
//                                 ids       4  | 3 0              local ids, by first appearance
//                                 first     0    1 3
//                                 slots     1 2 0 2 1             slot of in[k] in ids
//                                 counts    1  | 2 2              of each slot
//
// A batch whose ids are slots reads rows that lie in the order of ids, and row_gradients takes the counts.
// Any integers are ids, negative ones too. Not here: all ids by part, repeated ones as well
// (embedding/batches/partition.hpp).
#pragma once

#include <cstdint>
#include <memory_resource>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/distinct_ids.hpp>
#include <deeprec/ops/detail/partition_list.hpp>
#include <deeprec/ops/owner_rules.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The result of partition_unique(). Reuse it: it keeps its memory.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
template <class Id = std::int64_t, class Index = std::int64_t>
struct unique_parts {
  static_assert(IdInteger<Id> && IdInteger<Index>,
                "deeprec::unique_parts: ids and slots are integers of 32 or 64 bits. "
                "Fix: unique_parts<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using index_type = Index;

  explicit unique_parts(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : ids(memory), first(memory), slots(memory), counts(memory) {}

  std::pmr::vector<Id> ids;        ///< (U): local ids, owner after owner
  std::pmr::vector<Index> first;   ///< (n+1): owner o has ids[first[o] .. first[o+1]]
  std::pmr::vector<Index> slots;   ///< (N): in[k] has become ids[slots[k]]
  std::pmr::vector<Index> counts;  ///< (U); they sum to N
};

/// Memory of the caller for the result of partition_unique() of N ids for n owners.
///
/// @pre     the arrays share no byte
/// @threads as its memory
template <class Id = std::int64_t, class Index = std::int64_t>
struct unique_parts_out {
  static_assert(IdInteger<Id> && IdInteger<Index>,
                "deeprec::unique_parts_out: ids and slots are integers of 32 or 64 bits. "
                "Fix: unique_parts_out<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using index_type = Index;

  array_view<Id> ids;        ///< room for N: the first U = first[n] are local ids, owner after owner
  array_view<Index> first;   ///< (n+1): owner o has ids[first[o] .. first[o+1]]
  array_view<Index> slots;   ///< room for N: in[k] has become ids[slots[k]]
  array_view<Index> counts;  ///< room for N: the first U sum to N
};

template <class Id, class Index>
unique_parts_out(array_view<Id>, array_view<Index>, array_view<Index>, array_view<Index>)
    -> unique_parts_out<Id, Index>;

namespace detail { inline namespace DEEPREC_UNIT {

template <class Id, class Index>
auto arrays_of(const unique_parts<Id, Index>& answer) noexcept {
  return std::tie(answer.ids, answer.first, answer.slots, answer.counts);
}
template <class Id, class Index>
auto arrays_of(const unique_parts_out<Id, Index>& answer) noexcept {
  return std::tie(answer.ids, answer.first, answer.slots, answer.counts);
}

template <class Context, class Id, class Rule, class Out>
DEEPREC_PER_UNIT status partition_list(const Context& ctx, const array_view<const Id>& list, const Rule& rule,
                                       Out& out) {
  const bool shares = [&] {
    if constexpr (requires { rule.owner_of; }) return shares_bytes(arrays_of(out), list, rule.owner_of);
    return shares_bytes(arrays_of(out), list);
  }();
  if (shares) {
    return {errc::unsupported, "partition_unique: out must share no memory with the ids or the rule"};
  }
  const std::span<const Id> ids(list);
  if (list.size() > most_short_ids || static_cast<index_t>(rule.owners()) > most_short_ids)
    return partition_numbered(ctx, long_list<Id>(ids), ids, rule, out);
  std::uint64_t largest = 0;
  if (all_below(ids, 8 * ids.size(), largest))
    return partition_numbered(ctx, direct_list<Id>(ids, largest), ids, rule, out);
  return partition_numbered(ctx, short_list<Id>(ids), ids, rule, out);
}

/// The ids of a list for a result with ids of type Id.
template <class Id, class Rule, class Ids>
auto list_to_part(const Ids& ids) noexcept {
  static_assert(IdRange<Ids>,
                "deeprec::partition_unique: ids are no list of integers of 32 or 64 bits. Fix: "
                "std::span(pointer, count), a std::vector or an array_view of them.");
  const auto list = id_view(ids);
  static_assert(std::is_same_v<typename decltype(list)::value_type, Id>,
                "deeprec::partition_unique: out holds ids of another type. Fix: unique_parts<Id> of the "
                "list's type.");
  static_assert(
      OwnerRule<Rule, Id>,
      "deeprec::partition_unique: no owner rule for these ids. Fix: owner_by_modulo, owner_by_slots, "
      "or a type with owners() and operator()(id) that returns owned_id<Id>.");
  return list;
}

}}  // namespace detail::DEEPREC_UNIT

/// The distinct ids of each owner by first appearance, owner after owner; the slot of each position; and how
/// often each slot comes. In memory of the caller.
///
/// @shape    ids (N), as data() and size() · n = rule.owners() · out: room for N, first (n+1)
/// @dtype    ids of 32 or 64 bits, any value; slots and counts of 32 or 64 bits
/// @space    host
/// @pre      rule gives different ids different places; else the ids of one place have a slot each
/// @post     rule(ids[k]) is {o, out.ids[s]} with s = out.slots[k], out.first[o] <= s < out.first[o+1] · an
///           owner's ids are in the order of their first appearance · the counts sum to N
/// @numerics exact
/// @cost     O(N + n) expected, on the calling thread, with a call of the rule for each distinct id: four
///           passes over the list without a branch on the ids, and two over the distinct ids. From the
///           context's resource 34 bytes an id at most up to 65,536 ids, 48 beyond, and 4 n. Ids can't be
///           chosen to make it slower, as for unique
/// @threads  reentrant
/// @error    shape_mismatch for out; of the rule: invalid_value for less than one owner, or the fault of its
///           check(); invalid_value (position, value) for the first id whose owner is outside [0, n);
///           unsupported when N or n does not fit the type of the slots, or 32 bits, and when out shares
///           memory with the ids or with the rule's table; out_of_memory. On an error nothing is written
/// @example  @snippet tests/ops/partition_unique_test.cpp partition_unique_given
template <class Context, class Ids, class Rule, class Id, class Index>
DEEPREC_PER_UNIT status partition_unique(Context&& context_or_executor, const Ids& ids, const Rule& rule,
                                         const unique_parts_out<Id, Index>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const auto list = detail::list_to_part<Id, Rule>(ids);
  const detail::host_call call(ctx, "partition_unique", detail::in_spaces<typename decltype(list)::space>);
  if (!call) return call.stopped();
  if (const status s = detail::check_rule<Rule, Id, Index>(list, rule); !s) return s;
  const index_t n = list.size();
  if (out.ids.size() < n || out.slots.size() < n || out.counts.size() < n ||
      out.first.size() != static_cast<index_t>(rule.owners()) + 1) {
    return {errc::shape_mismatch, "partition_unique: out must have room for N ids and n + 1 starts"};
  }
  if (!out.ids.valid() || !out.first.valid() || !out.slots.valid() || !out.counts.valid())
    return {errc::shape_mismatch, "partition_unique: out must not be null"};
  return detail::or_out_of_memory("partition_unique",
                                  [&] { return detail::partition_list(ctx, list, rule, out); });
}

/// The same, for an owner that grows as needed.
///
/// @shape    ids (N), as data() and size() · out: ids (U), first (n+1), slots (N), counts (U)
/// @cost     as for memory of the caller; allocates what out lacks
/// @threads  reentrant
/// @error    as for memory of the caller. On an error out is unchanged
/// @example  @snippet tests/ops/partition_unique_test.cpp partition_unique
template <class Context, class Ids, class Rule, class Id, class Index>
DEEPREC_PER_UNIT status partition_unique(Context&& context_or_executor, const Ids& ids, const Rule& rule,
                                         unique_parts<Id, Index>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const auto list = detail::list_to_part<Id, Rule>(ids);
  const detail::host_call call(ctx, "partition_unique", detail::in_spaces<typename decltype(list)::space>);
  if (!call) return call.stopped();
  if (const status s = detail::check_rule<Rule, Id, Index>(list, rule); !s) return s;
  return detail::or_out_of_memory("partition_unique",
                                  [&] { return detail::partition_list(ctx, list, rule, out); });
}

}}  // namespace deeprec::DEEPREC_ABI
