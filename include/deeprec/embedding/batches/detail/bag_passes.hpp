// Passes over the bags of a batch: entries that are dropped, empty bags that get one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/support/bulk.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Bags per piece of work: about 4096 ids.
inline index_t bags_per_piece(index_t bags, index_t positions) noexcept {
  return std::clamp<index_t>(positions > 0 ? bags * chunk_positions / positions : bags, 1, chunk_positions);
}

/// Turns the bag sizes in offsets[1 ..] into offsets; returns the last one.
template <class Offset>
index_t sum_sizes(Offset* offsets, index_t bags) noexcept {
  offsets[0] = 0;
  for (index_t b = 0; b < bags; ++b) offsets[b + 1] += offsets[b];
  return static_cast<index_t>(offsets[bags]);
}

/// out has room for all ids.
template <class Context, class Bags, class Valid, class Out>
void prune_bags(const Context& ctx, const Bags& in, const Valid& valid, Out& out) {
  const auto ranges = in.ranges();
  const index_t bags = in.bags();
  const index_t positions = in.end_position() - in.first_position();
  const index_t grain = bags_per_piece(bags, positions);
  const auto ns = static_cast<double>(bags + positions);
  auto* const offsets = size_offsets(out, bags);
  using offset_type = std::remove_pointer_t<decltype(offsets)>;
  run_bulk(ctx, {bags, grain, ns}, [&](index_t first, index_t last, int) {
    for (index_t b = first; b < last; ++b) {
      index_t kept = 0;
      for (index_t k = ranges.begin(b); k < ranges.end(b); ++k) kept += valid(k) ? 1 : 0;
      offsets[b + 1] = static_cast<offset_type>(kept);
    }
  });
  const auto to = size_entries(out, sum_sizes(offsets, bags), in.weights());
  run_bulk(ctx, {bags, grain, ns}, [&](index_t first, index_t last, int) {
    auto at = static_cast<index_t>(offsets[first]);
    const index_t begin = ranges.begin(first);
    const index_t end = ranges.end(last - 1);
    if (static_cast<index_t>(offsets[last]) - at == end - begin) {  // nothing to drop here
      return copy_positions(in.ids(), in.weights(), begin, end - begin, to, at);
    }
    for (index_t k = begin; k < end; ++k) {
      if (!valid(k)) continue;
      to.ids[at] = in.ids()[k];
      if (to.weights != nullptr) to.weights[at] = in.weights() == nullptr ? 1.0F : in.weights()[k];
      ++at;
    }
  });
}

/// Gives empty bags the default id, if there is one; out has room for all ids, and one more for each bag.
template <class Context, class Bags, class Id, class Out>
void fill_bags(const Context& ctx, const Bags& in, const std::optional<Id>& default_id, Out& out,
               std::uint8_t* empty) {
  const auto ranges = in.ranges();
  const index_t bags = in.bags();
  const index_t fills = default_id.has_value() ? 1 : 0;
  const index_t positions = in.end_position() - in.first_position();
  const index_t grain = bags_per_piece(bags, positions);
  const auto ns = static_cast<double>(bags + positions);
  auto* const offsets = size_offsets(out, bags);
  using offset_type = std::remove_pointer_t<decltype(offsets)>;
  run_bulk(ctx, {bags, grain, ns}, [&](index_t first, index_t last, int) {
    for (index_t b = first; b < last; ++b) {
      const index_t size = ranges.end(b) - ranges.begin(b);
      empty[b] = size == 0 ? 1 : 0;
      offsets[b + 1] = static_cast<offset_type>(size == 0 ? fills : size);
    }
  });
  const auto to = size_entries(out, sum_sizes(offsets, bags), in.weights());
  run_bulk(ctx, {bags, grain, ns}, [&](index_t first, index_t last, int) {
    // The ids between two fills are copied in one piece.
    index_t from = ranges.begin(first);
    auto at = static_cast<index_t>(offsets[first]);
    for (index_t b = first; b < last; ++b) {
      if (fills == 0 || empty[b] == 0) continue;
      copy_positions(in.ids(), in.weights(), from, ranges.begin(b) - from, to, at);
      at = static_cast<index_t>(offsets[b]);
      from = ranges.begin(b);
      to.ids[at] = *default_id;
      if (to.weights != nullptr) to.weights[at] = 1.0F;
      ++at;
    }
    copy_positions(in.ids(), in.weights(), from, ranges.end(last - 1) - from, to, at);
  });
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
