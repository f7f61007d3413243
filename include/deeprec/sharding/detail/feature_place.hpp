// A feature of a sharded_group: where its rows are, and how its gradients are summed before they are sent.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/training/gradient.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/sharding/detail/step_buffers.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

enum class placed : std::uint8_t { by_modulo, by_slot, whole };

template <class Bags>
struct feature_place {
  /// Gradients of the slots of a batch; null of a group that does not train.
  using sum_gradients = status (*)(const context<executor_ref>&, std::span<const slot_number> counts,
                                   const slot_bags<Bags>& slots, matrix_view<const float> gradient,
                                   std::span<const matrix_view<float>> outs);

  placed how = placed::whole;
  int rank = -1;       ///< of a whole table
  index_t count = -1;  ///< rows of the table
  index_t width = 0;
  index_t column = 0;   ///< the first one of the joint output
  index_t served = -1;  ///< its first feature at this rank as an owner
  index_t pooled = -1;  ///< its feature over received rows
  sum_gradients sum = nullptr;

  [[nodiscard]] bool is_whole() const noexcept { return how == placed::whole; }
  /// Of a row as it is sent.
  [[nodiscard]] index_t row_bytes() const noexcept { return width * index_t{sizeof(float)}; }
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

template <class Mode>
inline constexpr bool is_default_row = std::is_same_v<Mode, empty_bag::default_row>;

}}}  // namespace deeprec::DEEPREC_ABI::detail
