// The part and the local row of each id of a list, and the ids in order of their parts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/divider.hpp>
#include <deeprec/embedding/batches/partition_strategy.hpp>
#include <deeprec/embedding/detail/group_positions.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Parts and local rows of many ids, without a division: the divisors are fixed. Ids are in [0, rows).
template <class Strategy>
class placing;

template <>
class placing<partition_strategy::div_t> {
 public:
  placing(index_t rows, index_t parts)
      : each_(rows / parts),
        extras_(rows % parts),
        in_long_parts_(extras_ * (each_ + (extras_ > 0 ? 1 : 0))),
        by_long_((std::max)(index_t{1}, each_ + (extras_ > 0 ? 1 : 0))),
        by_short_((std::max)(index_t{1}, each_)) {}
  DEEPREC_INLINE index_t part(index_t id) const {
    return id < in_long_parts_ ? by_long_(id) : by_short_(id - extras_);
  }
  DEEPREC_INLINE index_t local(index_t id, index_t part) const {
    return id - part * each_ - (std::min)(part, extras_);
  }

 private:
  index_t each_;
  index_t extras_;
  index_t in_long_parts_;
  divider by_long_;
  divider by_short_;
};

template <>
class placing<partition_strategy::mod_t> {
 public:
  placing(index_t, index_t parts) : parts_(parts), by_parts_(parts) {}
  DEEPREC_INLINE index_t part(index_t id) const { return id - by_parts_(id) * parts_; }
  DEEPREC_INLINE index_t local(index_t id, index_t) const { return by_parts_(id); }

 private:
  index_t parts_;
  divider by_parts_;
};

/// Ids per piece of work.
inline constexpr index_t partition_piece = index_t{1} << 16;

/// id_out_of_range for the first id outside [0, rows).
template <class Context, class Id>
status check_ids(const Context& ctx, array_view<const Id> ids, index_t rows) {
  return first_fault(ctx, {ids.size(), partition_piece, static_cast<double>(ids.size())},
                     [id = ids.data(), rows](index_t begin, index_t end) -> status {
                       bool any = false;
                       for (index_t k = begin; k < end; ++k) any |= is_bad_id(id[k], rows);
                       if (!any) return {};
                       index_t k = begin;
                       while (!is_bad_id(id[k], rows)) ++k;
                       return {errc::id_out_of_range,
                               {.position = k, .value = static_cast<std::int64_t>(id[k])}};
                     });
}

/// Returns the number of ids that are in a part. Out: partitioned_ids or const partition_out.
template <class Context, class Id, class Strategy, class Out>
index_t partition_ids(const Context& ctx, array_view<const Id> ids, index_t rows, index_t parts, Strategy,
                      Out& out) {
  const index_t n = ids.size();
  constexpr bool grows = requires { out.ids.resize(std::size_t{}); };
  // All memory is allocated before anything is written.
  if constexpr (grows) {
    const auto count = static_cast<std::size_t>(n);
    out.part.reserve(count);
    out.permutation.reserve(count);
    out.offsets.reserve(static_cast<std::size_t>(parts) + 1);
    out.ids.reserve(count);
  }
  group_counts counts(ctx.memory, n, parts);
  if constexpr (grows) {
    out.part.resize(static_cast<std::size_t>(n));
    out.permutation.resize(static_cast<std::size_t>(n));
    out.offsets.resize(static_cast<std::size_t>(parts) + 1);
  }
  const placing<Strategy> places(rows, parts);
  std::int32_t* const part = out.part.data();
  auto* const permutation = out.permutation.data();
  using position_type = std::remove_pointer_t<decltype(permutation)>;
  run_bulk(ctx, {n, partition_piece, 2.0 * static_cast<double>(n)}, [&](index_t begin, index_t end, int) {
    for (index_t k = begin; k < end; ++k) {
      const Id id = ids.data()[k];
      const bool bad = is_bad_id(id, rows);
      part[k] = bad ? -1 : static_cast<std::int32_t>(places.part(static_cast<index_t>(id)));
      permutation[k] = -1;
    }
  });
  Id* grouped = nullptr;
  index_t placed = 0;
  group_positions(
      ctx, counts, [&](index_t k) { return index_t{part[k]}; }, out.offsets.data(),
      [&](index_t total) {
        placed = total;
        if constexpr (grows) out.ids.resize(static_cast<std::size_t>(total));
        grouped = out.ids.data();
      },
      [&](index_t k, index_t p, index_t sorted_index) {
        permutation[k] = static_cast<position_type>(sorted_index);
        grouped[sorted_index] = static_cast<Id>(places.local(static_cast<index_t>(ids.data()[k]), p));
      });
  return placed;
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
