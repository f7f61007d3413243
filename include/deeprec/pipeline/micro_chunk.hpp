// A part of a batch, by numbers of samples, and how large the parts are.
//
//   B = 10, 4 parts      | 0 1 2 | 3 4 5 | 6 7 | 8 9 |      the first B % 4 parts have one sample more
//
//   chunk.of(bags)       the bags of the part, as a view: batch_traits<T>::split
//
// Not here: what is done with the parts (micro_batch.hpp).
#pragma once

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What the loss of a batch is of the losses of its samples.
enum class loss_reduction : unsigned char { mean, sum };

/// A part of a batch: samples [first, first + count), number `number` of `chunks`.
struct micro_chunk {
  index_t number = 0;
  index_t chunks = 1;
  index_t first = 0;
  index_t count = 0;
  /// Of the part's gradient in that of the batch: count / B where the loss is a mean, 1 where it is a sum.
  float weight = 1;

  /// This part of a value, as a view.
  ///
  /// @pre     batch_traits<T>::check(value).ok(); the value has the samples of the batch
  /// @cost    as batch_traits<T>::split
  /// @threads reentrant
  /// @error   none
  template <class T>
  [[nodiscard]] auto of(const T& value) const {
    static_assert(
        SplittableBatch<T>,
        "deeprec::micro_chunk: no way to split this type. Fix: specialize deeprec::batch_traits for "
        "it (deeprec/core/batch_traits.hpp).");
    return batch_traits<T>::split(value, first, count);
  }
};

/// The number of parts of a batch: `wanted`, but no more than samples; 0 for an empty batch.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr index_t chunk_count(index_t samples, index_t wanted) noexcept {
  const index_t parts = wanted < 1 ? 1 : wanted;
  return samples < parts ? (samples < 0 ? 0 : samples) : parts;
}

/// Part m: the first samples % chunks parts have one sample more than the others.
///
/// @pre     0 <= number < chunk_count(samples, wanted)
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr micro_chunk chunk_of(index_t samples, index_t wanted, index_t number,
                                             loss_reduction reduction = loss_reduction::mean) noexcept {
  const index_t chunks = chunk_count(samples, wanted);
  const index_t each = samples / chunks, longer = samples % chunks;
  const index_t count = each + (number < longer ? 1 : 0);
  const index_t first = number * each + (number < longer ? number : longer);
  const float weight = reduction == loss_reduction::sum || chunks == 1
                           ? 1.0F
                           : static_cast<float>(static_cast<double>(count) / static_cast<double>(samples));
  return {number, chunks, first, count, weight};
}

}}  // namespace deeprec::DEEPREC_ABI
