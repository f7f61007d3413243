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
#include <type_traits>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/detail/bag_passes.hpp>
#include <deeprec/embedding/batches/jagged_batch.hpp>
#include <deeprec/support/verb.hpp>

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

/// The checks of fill_empty_bags that read no memory.
template <class Bags, class Id>
status check_fill(const Bags& bags, const std::optional<Id>& default_id, index_t flags) noexcept {
  if (const status s =
          expect_size(flags, bags.bags(), "fill_empty_bags: empty.size() must be the number of bags B");
      !s) {
    return s;
  }
  return check_default_id(default_id);
}

}  // namespace detail

/// The batch with one entry default_id, of weight 1, in every bag that had none; in memory of the caller.
///
/// @shape   bags: B bags, N ids · out: offsets (B+1), room for N ids (with a default id N + B) and, where the
///          batch has them, weights · empty (B): 1 where bag b was empty, else 0
/// @dtype   offsets of 32 or 64 bits
/// @space   all reachable from the context
/// @pre     empty shares no byte with the batch
/// @post    with std::nullopt for default_id empty bags stay empty; empty is written anyway. out.weights, if
///          any, are 1 where the batch has none
/// @cost    host: O(N + B), two passes. Device: two launches and a scan over B
/// @threads reentrant; the same result for any number of threads. Device: one thread per stream
/// @error   shape_mismatch, offsets_* (device: from synchronize()); id_out_of_range when default_id is
///          negative (where TensorFlow takes a negative id, pass std::nullopt); unsupported when out shares
///          memory with the batch or with empty, and when the ids do not fit the offsets. On an error nothing
///          is written
/// @source  SparseFillEmptyRows of TensorFlow
template <class Context, BagBatch Bags, class Offset, MemorySpace OutSpace>
DEEPREC_PER_UNIT status
fill_empty_bags(Context&& context_or_executor, const Bags& bags,
                std::type_identity_t<std::optional<typename Bags::id_type>> default_id,
                const jagged_out<typename Bags::id_type, Offset, OutSpace>& out,
                std::type_identity_t<array_view<std::uint8_t, OutSpace>> empty) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "fill_empty_bags", detail::in_spaces<typename Bags::space, OutSpace>);
  if (!call) return call.stopped();
  if (const status s = detail::check_fill(bags, default_id, empty.size()); !s) return s;
  const index_t most = capped_sum(bags.id_count(), default_id.has_value() ? bags.bags() : 0);
  if (const status s = detail::check_room(out, bags.bags(), most, bags.weights(),
                                          "fill_empty_bags: out must have room for B bags and N + B ids",
                                          "fill_empty_bags: out must not be null");
      !s) {
    return s;
  }
  if (!empty.valid()) return {errc::shape_mismatch, "fill_empty_bags: empty must not be null"};
  return detail::or_out_of_memory("fill_empty_bags", [&] {
    return fill_empty_bags_on(ctx.backend(), ctx, bags, default_id, out, empty);
  });
}

/// The same, for a batch that grows as needed. Host only.
///
/// @shape   bags: B bags · out: B bags, and weights as in the batch, or none · empty (B)
/// @pre     as for memory of the caller
/// @cost    as for memory of the caller; allocates what out lacks for N ids and, with a default id, B more
/// @threads reentrant
/// @error   as for memory of the caller, and out_of_memory. On an error out and empty are as before
/// @example @snippet tests/embedding/stages_test.cpp stages
template <class Context, BagBatch Bags>
DEEPREC_PER_UNIT status
fill_empty_bags(Context&& context_or_executor, const Bags& bags,
                std::type_identity_t<std::optional<typename Bags::id_type>> default_id,
                jagged_batch<typename Bags::id_type>& out, array_view<std::uint8_t> empty) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "fill_empty_bags", detail::in_spaces<typename Bags::space>);
  if (!call) return call.stopped();
  if (const status s = detail::check_fill(bags, default_id, empty.size()); !s) return s;
  return detail::or_out_of_memory("fill_empty_bags", [&] {
    return fill_empty_bags_on(ctx.backend(), ctx, bags, default_id, out, empty);
  });
}

template <class... Args>
status fill_empty_bags_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

// Out: jagged_batch or const jagged_out
template <class Context, class Bags, class Id, class Out, MemorySpace Space>
DEEPREC_PER_UNIT status fill_empty_bags_on(host_backend, const Context& ctx, const Bags& bags,
                                           const std::optional<Id>& default_id, Out& out,
                                           array_view<std::uint8_t, Space> empty) {
  if (const status s = bags.validate(); !s) return s;
  if (detail::shares_bytes(detail::arrays_of(out), bags, empty)) {
    return {errc::unsupported, "fill_empty_bags: out must share no memory with the batch or empty"};
  }
  const index_t positions = bags.end_position() - bags.first_position();
  const index_t most = capped_sum(positions, default_id.has_value() ? bags.bags() : 0);
  detail::reserve(out, bags.bags(), most, bags.weights());
  detail::fill_bags(ctx, bags, default_id, out, empty.data());
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
