// The distinct ids of a list, the number of each id among them, and their counts.
//
//   in        7 1 9 1 7           ids       7 1 9       in the order of their first appearance
//                                 inverse   0 1 2 1 0   in[k] = ids[inverse[k]]
//                                 counts    2 2 1
//
// A row that many bags use is then gathered once. Ids may be any integers, negative ones too. Not here: rows
// (dedup_rows.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/hash.hpp>
#include <deeprec/core/id_range.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The result of unique(). Reuse it: it keeps its memory.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
template <class Id = std::int64_t, class Index = std::int64_t>
struct unique_ids {
  static_assert(IdInteger<Id> && IdInteger<Index>,
                "deeprec::unique_ids: ids and their numbers are integers of 32 or 64 bits. "
                "Fix: unique_ids<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using index_type = Index;

  explicit unique_ids(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : ids(memory), inverse(memory), counts(memory) {}

  std::pmr::vector<Id> ids;         ///< (U)
  std::pmr::vector<Index> inverse;  ///< (N)
  std::pmr::vector<Index> counts;   ///< (U); they sum to N
};

/// Memory of the caller for the result of unique() over N ids.
///
/// @pre     the arrays share no byte
/// @threads as its memory
template <class Id = std::int64_t, class Index = std::int64_t, MemorySpace Space = host_space>
struct unique_out {
  static_assert(IdInteger<Id> && IdInteger<Index>,
                "deeprec::unique_out: ids and their numbers are integers of 32 or 64 bits. "
                "Fix: unique_out<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using index_type = Index;
  using space = Space;

  array_view<Id, Space> ids;            ///< room for N: the first U are distinct ids, by first appearance
  array_view<Index, Space> inverse;     ///< room for N: in[k] = ids[inverse[k]]
  array_view<Index, Space> counts;      ///< room for N: the first U sum to N
  array_view<index_t, Space> distinct;  ///< (1): U
};

template <class Id, class Index, class Space>
unique_out(array_view<Id, Space>, array_view<Index, Space>, array_view<Index, Space>,
           array_view<index_t, Space>) -> unique_out<Id, Index, Space>;

namespace detail { inline namespace DEEPREC_UNIT {

template <class Id, class Index>
auto arrays_of(const unique_ids<Id, Index>& answer) noexcept {
  return std::tie(answer.ids, answer.inverse, answer.counts);
}
template <class Id, class Index, class Space>
auto arrays_of(const unique_out<Id, Index, Space>& answer) noexcept {
  return std::tie(answer.ids, answer.inverse, answer.counts, answer.distinct);
}

/// Sets the number of ids and counts of an owner. Memory of the caller has room for all.
template <class Id, class Index>
void size_distinct(unique_ids<Id, Index>& out, std::size_t size) {
  out.ids.resize(size);
  out.counts.resize(size);
}
template <class Id, class Index, class Space>
void size_distinct(const unique_out<Id, Index, Space>&, std::size_t) noexcept {}

/// The keys of number_keys: ids, appended to out when they are new. out has capacity for `most` of them.
template <class Id, class Index, class Out = unique_ids<Id, Index>>
class id_keys {
 public:
  id_keys(const Id* ids, std::size_t most, Out& out)
      : ids_(ids), most_(most), out_(out), seed_(process_key_seed()) {
    use(static_cast<std::size_t>((std::min)(out.ids.size(), out.counts.size())));
  }
  ~id_keys() = default;
  id_keys(const id_keys&) = delete;
  id_keys& operator=(const id_keys&) = delete;

  std::uint64_t hash(index_t k) const { return id_hash(seed_, static_cast<std::uint64_t>(ids_[k])); }
  bool same(index_t k, std::uint32_t number) const { return known_[number] == ids_[k]; }
  void fetch(std::uint32_t number) const { __builtin_prefetch(known_ + number); }
  void again(std::uint32_t number) { ++counts_[number]; }
  void add(index_t k) {
    if (size_ == room_) use((std::min)(most_, 2 * room_ + 1024));
    known_[size_] = ids_[k];
    counts_[size_++] = 1;
  }
  /// Returns U, the number of ids.
  index_t finish() {
    use(size_);
    return static_cast<index_t>(size_);
  }

 private:
  void use(std::size_t size) {
    size_distinct(out_, size);
    known_ = out_.ids.data();
    counts_ = out_.counts.data();
    room_ = size;
  }

  const Id* ids_;
  std::size_t most_;
  Out& out_;
  key_seed seed_;  // a copy: the loop keeps it in registers
  Id* known_ = nullptr;
  Index* counts_ = nullptr;
  std::size_t size_ = 0;
  std::size_t room_ = 0;
};

}}  // namespace detail::DEEPREC_UNIT

namespace detail {

template <class>
inline constexpr bool is_unique_out = false;
template <class Id, class Index, class Space>
inline constexpr bool is_unique_out<unique_out<Id, Index, Space>> = true;

/// The ids of a list, and the checks of unique that read no memory.
template <class Id, class Index, class Ids>
auto checked_list(const Ids& ids, status& s) noexcept {
  static_assert(IdRange<Ids>,
                "deeprec::unique: ids are no list of integers of 32 or 64 bits. Fix: "
                "std::span(pointer, count), a std::vector or an array_view of them.");
  const auto list = id_view(ids);
  static_assert(std::is_same_v<typename decltype(list)::value_type, Id>,
                "deeprec::unique: out holds ids of another type. Fix: unique_ids<Id> of the list's type.");
  if (std::cmp_greater(list.size(), (std::numeric_limits<Index>::max)()) || list.size() > most_keys)
    s = {errc::unsupported, "unique: N must be below 2^32 - 1 and fit the index type of out"};
  return list;
}

}  // namespace detail

/// Distinct ids in the order of their first appearance, the number of each id among them, and counts; in
/// memory of the caller.
///
/// @shape    ids (N), as data() and size() · out: room for N
/// @dtype    ids of 32 or 64 bits, any value; numbers and counts of 32 or 64 bits
/// @space    ids and out reachable from the context; in device memory as array_view
/// @post     out.ids[out.inverse[k]] = ids[k] · the counts sum to N · a number in inverse is at most one
///           larger than all before it
/// @numerics exact; the same for any number of threads
/// @cost     host: O(N) expected, on the calling thread: a linearly probed table of 2 to 4 entries of 4 bytes
///           an id, or a table indexed by id where all ids are below 4 N; 16 bytes an id at most from the
///           context's resource. To use several threads, the caller runs one list per thread. The hash is
///           seeded with random numbers of the process, so ids can't be chosen to make it slower. Device: a
///           radix sort over the bits of Id, a scan and three launches; 40 bytes an id of the stream's
///           scratch in addition to CUB's
/// @threads  reentrant. Device: one thread per stream
/// @error    shape_mismatch for out; unsupported when N does not fit the type of the numbers, or 32 bits, and
///           when out shares memory with the ids; out_of_memory. On an error nothing is written
/// @example  @snippet tests/ops/unique_test.cpp unique_given
/// @source   UniqueWithCounts of TensorFlow and DeepRec
template <class Context, class Ids, class Out>
  requires detail::is_unique_out<Out>
DEEPREC_PER_UNIT status unique(Context&& context_or_executor, const Ids& ids, const Out& out) {
  const auto ctx = detail::as_context(context_or_executor);
  status s;
  const auto list = detail::checked_list<typename Out::id_type, typename Out::index_type>(ids, s);
  const detail::verb_call call(ctx, "unique",
                               detail::in_spaces<typename decltype(list)::space, typename Out::space>);
  if (!call) return call.stopped();
  if (!s.ok()) return s;
  const index_t n = list.size();
  if (out.ids.size() < n || out.inverse.size() < n || out.counts.size() < n || out.distinct.size() < 1)
    return {errc::shape_mismatch, "unique: out must have room for N ids"};
  if (!out.ids.valid() || !out.inverse.valid() || !out.counts.valid() || !out.distinct.valid())
    return {errc::shape_mismatch, "unique: out must not be null"};
  return detail::or_out_of_memory("unique", [&] { return unique_on(ctx.backend(), ctx, list, out); });
}

/// The same, for an owner that grows as needed. Host only.
///
/// @shape    ids (N), as data() and size() · out: ids (U), inverse (N), counts (U)
/// @cost     as for memory of the caller; out reserves N ids and counts, if all may be distinct
/// @threads  reentrant
/// @error    as for memory of the caller. On an error out is unchanged
/// @example  @snippet tests/ops/unique_test.cpp unique
template <class Context, class Ids, class Id, class Index>
DEEPREC_PER_UNIT status unique(Context&& context_or_executor, const Ids& ids, unique_ids<Id, Index>& out) {
  const auto ctx = detail::as_context(context_or_executor);
  status s;
  const auto list = detail::checked_list<Id, Index>(ids, s);
  const detail::verb_call call(ctx, "unique", detail::in_spaces<typename decltype(list)::space, host_space>);
  if (!call) return call.stopped();
  if (!s.ok()) return s;
  return detail::or_out_of_memory("unique", [&] { return unique_on(ctx.backend(), ctx, list, out); });
}

template <class... Args>
status unique_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

// Out: unique_ids or const unique_out
template <class Context, class Id, MemorySpace Space, class Out>
DEEPREC_PER_UNIT status unique_on(host_backend, const Context& ctx, array_view<const Id, Space> list,
                                  Out& out) {
  if (detail::shares_bytes(detail::arrays_of(out), list))
    return {errc::unsupported, "unique: out must share no memory with the ids"};
  const index_t n = list.size();
  const std::span<const Id> ids(list);
  const std::uint64_t largest = detail::bits_of_all(ids);
  const bool direct = largest < 4 * ids.size();
  const auto below = static_cast<std::size_t>(largest) + 1;
  const std::size_t most = direct ? (std::min)(ids.size(), below) : ids.size();
  // All allocations, before anything is written.
  std::pmr::vector<std::uint32_t> table(n == 0 ? 0 : direct ? below : detail::key_entries(n), ctx.memory);
  if constexpr (requires { out.ids.reserve(most); }) {
    out.inverse.reserve(ids.size());
    out.ids.reserve(most);
    out.counts.reserve(most);
    out.inverse.resize(ids.size());
  }
  detail::id_keys<Id, typename Out::index_type, Out> keys(ids.data(), most, out);
  if (direct) {
    detail::number_small_ids(std::span<std::uint32_t>(table), ids, keys, out.inverse.data());
  } else if (n > 0) {
    detail::number_keys(std::span<std::uint32_t>(table), n, keys, out.inverse.data());
  }
  const index_t distinct = keys.finish();
  if constexpr (requires { out.distinct; }) out.distinct[0] = distinct;
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
