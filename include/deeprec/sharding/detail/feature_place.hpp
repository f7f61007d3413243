// Where the rows of a feature of a sharded_group are, and how its gradients are summed before they are sent.
// A feature whose columns lie at several ranks has a place for each, as if it were so many whole tables.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>
#include <deeprec/sharding/detail/step_layout.hpp>
#include <deeprec/sharding/placement.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class placed : std::uint8_t { by_modulo, by_slot, whole, replicated };

template <class Bags>
struct feature_place {
  /// Gradients of the slots of a batch; null of a group that does not train.
  using sum_gradients = status (*)(const context<executor_ref>&, std::span<const slot_number> counts,
                                   const slot_bags<Bags>& slots, matrix_view<const float> gradient,
                                   std::span<const matrix_view<float>> outs);

  placed how = placed::whole;
  index_t feature = 0;
  int rank = -1;       ///< of a whole table
  index_t count = -1;  ///< rows of the table
  index_t width = 0;
  index_t column = 0;   ///< the first one of the joint output
  index_t served = -1;  ///< its first feature at this rank as an owner
  sum_gradients sum = nullptr;
  bool in_order = false;  ///< gradients of bags are sent, not of distinct rows
  divide_by divide = divide_by::one;
  std::size_t cuts = 1;  ///< parts of the batch, whose distinct rows have a gradient each
  pooled_at pool = pooled_at::bag;
  bool has_sums = false;           ///< owners may add the rows of bags: another feature over what came
  index_t row_bytes = 0;           ///< of a row as it is sent
  index_t gradient_row_bytes = 0;  ///< and of a row of gradients

  [[nodiscard]] bool is_whole() const noexcept { return how == placed::whole; }
  /// Every rank is asked for all distinct ids, and sends no rows.
  [[nodiscard]] bool is_replicated() const noexcept { return how == placed::replicated; }
  /// What a rank is asked for: the owner's number among the parts of unique_parts.
  [[nodiscard]] std::size_t part_of(int owner) const noexcept {
    return is_replicated() ? 0 : static_cast<std::size_t>(owner);
  }
  /// Whether gradients are those of bags.
  [[nodiscard]] bool has_bag_gradients(const request_entry& e) const noexcept {
    return is_whole() || in_order || e.pooled != 0;
  }
  /// Whether the owner is told what gradients are of: bags with each of their ids, or ids of parts; else of
  /// the distinct ids.
  [[nodiscard]] bool has_uses(const request_entry& e) const noexcept {
    return !is_whole() && (has_bag_gradients(e) || cuts > 1);
  }
  /// Rows of a reply, rows of gradients, and bytes of the arrays of a request.
  [[nodiscard]] index_t reply_rows(const request_entry& e) const noexcept {
    return is_replicated() ? 0 : is_whole() || e.pooled != 0 ? e.bags : e.ids;
  }
  [[nodiscard]] index_t gradient_rows(const request_entry& e) const noexcept {
    return is_whole() || has_uses(e) ? e.bags : e.ids;
  }
  [[nodiscard]] index_t request_bytes(const request_entry& e) const noexcept {
    return array_bytes(e, is_whole() || has_uses(e), is_whole());
  }
  /// Bytes of what is asked, and of what it brings.
  [[nodiscard]] index_t bytes(const request_entry& e) const noexcept {
    return request_bytes(e) + reply_rows(e) * row_bytes + gradient_rows(e) * gradient_row_bytes;
  }
  /// Whether `owner` has rows of it.
  [[nodiscard]] bool is_at(int owner) const noexcept { return !is_whole() || rank == owner; }
};

template <class Combiner, class Bags>
status sum_slot_gradients(const context<executor_ref>& ctx, std::span<const slot_number> counts,
                          const slot_bags<Bags>& slots, matrix_view<const float> gradient,
                          std::span<const matrix_view<float>> outs) {
  using of_slots = deeprec::pooling<Combiner, bounds::assume_valid_t>;
  return row_gradients(ctx, counts, slots, of_slots(Combiner(), bounds::assume_valid), gradient, outs);
}

/// The same pooling, without a counter: ids that are skipped were counted before.
constexpr bounds::skip_t uncounted_policy(const bounds::skip_t&) noexcept { return {}; }
template <class Policy>
constexpr Policy uncounted_policy(const Policy& policy) noexcept {
  return policy;
}
template <class Combiner, class... Policies>
constexpr auto uncounted(const pooling<Combiner, Policies...>& of) noexcept {
  return pooling<Combiner, Policies...>(Combiner(), uncounted_policy(of.template get<Policies>())...);
}

template <class Mode>
inline constexpr bool is_default_row = std::is_same_v<Mode, empty_bag::default_row>;

}}}  // namespace deeprec::DEEPREC_ABI::detail
