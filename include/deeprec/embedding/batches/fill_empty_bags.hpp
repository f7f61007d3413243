// Gives every empty bag one entry, a default id, and reports which bags were empty.
//
//   bags    {7 9} {}  {4}         default id 2         bags    {7 9} {2} {4}
//                                                      empty     0    1   0
//
// For zeros instead, no id is needed: leave the bag empty (std::nullopt, or omit this operation); combine and
// lookup return zeros for it. DeepRec looks up id 0 for this case and overwrites the row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/batches/device_batch.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/embedding/batches/prune_invalid.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

template <class Id>
status check_default_id(const std::optional<Id>& id) noexcept {
  if constexpr (std::is_signed_v<Id>) {
    if (id.has_value() && *id < 0) {
      return {errc::id_out_of_range,
              "fill_empty_bags: the default id must not be negative",
              {.value = static_cast<std::int64_t>(*id)}};
    }
  }
  return {};
}

inline namespace DEEPREC_UNIT {

/// out has room for all ids, and one more for each bag.
template <class Context, class Bags, class Id>
void fill_bags(const Context& ctx, const Bags& in, const std::optional<Id>& default_id, jagged_batch<Id>& out,
               std::uint8_t* empty) {
  const auto ranges = in.ranges();
  const index_t bags = in.bags();
  const index_t fills = default_id.has_value() ? 1 : 0;
  const index_t grain = bags_per_piece(bags, in.end_position() - in.first_position());
  out.offsets.resize(static_cast<std::size_t>(bags) + 1);
  index_t* const offsets = out.offsets.data();
  ctx.executor->parallel_for(bags, grain, [&](index_t first, index_t last, int) {
    for (index_t b = first; b < last; ++b) {
      const index_t size = ranges.end(b) - ranges.begin(b);
      empty[b] = size == 0 ? 1 : 0;
      offsets[b + 1] = size == 0 ? fills : size;
    }
  });
  resize_ids(out, sum_sizes(offsets, bags), in.weights());
  ctx.executor->parallel_for(bags, grain, [&](index_t first, index_t last, int) {
    // The ids between two fills are copied in one piece.
    index_t from = ranges.begin(first);
    index_t to = offsets[first];
    for (index_t b = first; b < last; ++b) {
      if (fills == 0 || empty[b] == 0) continue;
      copy_positions(in.ids(), in.weights(), from, ranges.begin(b) - from, out, to);
      to = offsets[b];
      from = ranges.begin(b);
      out.ids.data()[to] = *default_id;
      if (in.weights() != nullptr) out.weights.data()[to] = 1.0F;
      ++to;
    }
    copy_positions(in.ids(), in.weights(), from, ranges.end(last - 1) - from, out, to);
  });
}

}  // namespace DEEPREC_UNIT
}  // namespace detail

/// The batch with one entry default_id, of weight 1, in every bag that had none.
///
/// @shape   bags: B bags · empty (B): 1 where bag b was empty, else 0 · out: B bags
/// @space   bags reachable from the context; out and empty on the host
/// @pre     out owns none of the batch's memory, nor that of empty
/// @post    with std::nullopt for default_id empty bags stay empty; empty is written anyway
/// @cost    O(N + B), two passes. Allocates what out lacks for N ids and, with a default id, B more
/// @threads reentrant; the same result for any number of threads
/// @error   shape_mismatch, offsets_*; id_out_of_range when default_id is negative (where TensorFlow takes a
///          negative id, pass std::nullopt); unsupported when out owns the batch's memory (offsets, ids,
///          weights) or that of empty; out_of_memory. On an error nothing is written
/// @example @snippet tests/embedding/stages_test.cpp stages
/// @source  SparseFillEmptyRows of TensorFlow
template <class Context, BagBatch Bags, class = detail::unit>
[[nodiscard]] status fill_empty_bags(Context&& context_or_executor, const Bags& bags,
                                     std::type_identity_t<std::optional<typename Bags::id_type>> default_id,
                                     jagged_batch<typename Bags::id_type>& out,
                                     std::span<std::uint8_t> empty) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "fill_empty_bags");
  if (!call) return call.stopped();
  if (const status s = detail::expect_size(static_cast<index_t>(empty.size()), bags.bags(),
                                           "fill_empty_bags: empty.size() must be the number of bags B");
      !s) {
    return s;
  }
  if (const status s = detail::check_default_id(default_id); !s) return s;
  return detail::or_out_of_memory("fill_empty_bags", [&] {
    return fill_empty_bags_on(ctx.backend(), ctx, bags, default_id, out, empty);
  });
}

/// One entry default_id in every bag that had none, as fill_empty_bags on the host.
///
/// @shape   bags: B bags, N ids · out: room for B bags and N + B ids · empty (B)
/// @space   device
/// @cost    two launches and a scan over B
/// @threads one thread per stream
/// @error   shape_mismatch; id_out_of_range (a negative default_id); offsets_* from synchronize()
template <class Context, BagBatch Bags, class = detail::unit>
[[nodiscard]] status fill_empty_bags(Context&& context_or_stream, const Bags& bags,
                                     std::type_identity_t<std::optional<typename Bags::id_type>> default_id,
                                     device_bags<typename Bags::id_type> out, std::span<std::uint8_t> empty) {
  const auto ctx = detail::as_context(context_or_stream);
  const detail::verb_call call(ctx, "fill_empty_bags");
  if (!call) return call.stopped();
  if (const status s = detail::check_default_id(default_id); !s) return s;
  return fill_empty_bags_on(ctx.backend(), ctx, bags, default_id, out, empty);
}

template <class... Args>
status fill_empty_bags_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Bags, class Id, class = detail::unit>
status fill_empty_bags_on(host_backend, const Context& ctx, const Bags& bags,
                          const std::optional<Id>& default_id, jagged_batch<Id>& out,
                          std::span<std::uint8_t> empty) {
  static_assert(reachable_as<typename Bags::space, host_space>,
                "deeprec::fill_empty_bags: device memory given to a host context. Fix: copy it first.");
  if (const status s = bags.validate(); !s) return s;
  if (detail::owns(detail::arrays_of(out), bags, empty)) {
    return {errc::unsupported, "fill_empty_bags: out must not own memory of the batch"};
  }
  const index_t positions = bags.end_position() - bags.first_position();
  const index_t most = detail::capped_sum(positions, default_id.has_value() ? bags.bags() : 0);
  detail::reserve(out, bags.bags(), most, bags.weights());
  detail::fill_bags(ctx, bags, default_id, out, empty.data());
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
