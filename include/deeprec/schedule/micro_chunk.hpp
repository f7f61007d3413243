// A part of a batch, by numbers of samples, and how large the parts are.
//
//   B = 10, 4 parts      | 0 1 2 | 3 4 5 | 6 7 | 8 9 |      the first B % 4 parts have one sample more
//
//   chunk.of(bags)       the bags of the part, as a view: batch_traits<T>::split
//   chunk.lane           the private memory that the part may use: activations, gradients of weights
//
// Not here: what is done with the parts (micro_batch.hpp).
#pragma once

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What the loss of a batch is of the losses of its samples.
enum class loss_reduction : unsigned char { mean, sum };

/// How a batch is cut where every part runs on one thread, by the number of samples alone.
///
///   micro_lanes{.parts = 4}        4 parts, whatever the size of the batch
struct micro_lanes {
  index_t most = 16;    ///< lanes: threads that share a batch, each with private memory
  index_t fewest = 64;  ///< samples of a part: with fewer, products of matrices lose more than a thread gains
  index_t samples = 128;  ///< of a part at most: its activations stay in a core's caches
  index_t parts = 0;      ///< of a batch, but no more than samples; 0: by the sizes above
};

/// Whether each row of the output of a layer, or of an op of a step graph, depends on its row of the input
/// only, so that the outputs for the parts of a batch are those for the batch. True where the type declares
/// `static constexpr bool sample_wise = true;`. False for statistics over the batch (batch normalisation),
/// and for random numbers that are drawn by the place in the batch.
template <class L>
inline constexpr bool is_sample_wise = requires { requires static_cast<bool>(L::sample_wise); };

/// A part of a batch: samples [first, first + count), number `number` of `chunks`.
struct micro_chunk {
  index_t number = 0;
  index_t chunks = 1;
  index_t first = 0;
  index_t count = 0;
  /// Of the part's gradient in that of the batch: count / B where the loss is a mean, 1 where it is a sum.
  float weight = 1;
  /// By lanes: parts of one lane never run at once. Which lane a part is given depends on timing. By
  /// resources, and where a step has a barrier, each part is a lane of its own.
  index_t lane = 0;

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

/// The number of parts of a batch by lanes; 0 for an empty batch.
///
/// @pre     most, fewest and samples of at least 1
/// @cost    O(1)
/// @threads reentrant
/// @error   none
[[nodiscard]] constexpr index_t chunk_count(index_t samples, const micro_lanes& by) noexcept {
  if (samples <= 0) return 0;
  if (by.parts > 0) return chunk_count(samples, by.parts);
  const index_t share = (samples - 1) / by.most + 1;
  const index_t least = share < by.fewest ? by.fewest : share;
  const index_t rows = least < by.samples ? least : by.samples;
  return (samples - 1) / rows + 1;
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
  return {number, chunks, first, count, weight, number};
}

}}  // namespace deeprec::DEEPREC_ABI
