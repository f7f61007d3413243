// How a bag becomes one row: the combiner, what happens to a bad id, and in which order numbers are added.
//
//   lookup(ctx, table, bags, sum, out);                            a combiner is a pooling
//   lookup(ctx, table, bags, pooling{mean(by_weight), skip}, out);  a combiner and further policies
//
//   combiner              row of bag b                             empty bag
//   sum                   sum_k w[k] * x[k]                        zeros
//   mean, mean(by_count)  sum_k w[k] * x[k] / number of ids        zeros
//   mean(by_weight)       sum_k w[k] * x[k] / sum_k w[k]           zeros, also when the weights sum to 0
//
// Without weights w = 1. Policies are empty tags, or small values; a pooling holds each kind once.
#pragma once

#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec::inline DEEPREC_ABI {

// --- combiners -----------------------------------------------------------------------------------
struct by_count_t {};
struct by_weight_t {};
inline constexpr by_count_t by_count{};
inline constexpr by_weight_t by_weight{};

struct sum_t {};
template <class Denominator>
struct mean_t {
  /// The mean over another denominator: mean(by_weight).
  template <class Other>
  constexpr mean_t<Other> operator()(Other) const noexcept {
    static_assert(std::is_same_v<Other, by_count_t> || std::is_same_v<Other, by_weight_t>,
                  "deeprec::mean: unknown denominator. Fix: mean(by_count) or mean(by_weight).");
    return {};
  }
};
inline constexpr sum_t sum{};
inline constexpr mean_t<by_count_t> mean{};

template <class T>
inline constexpr bool is_combiner = false;
template <>
inline constexpr bool is_combiner<sum_t> = true;
template <class Denominator>
inline constexpr bool is_combiner<mean_t<Denominator>> = true;

// --- what happens to an id outside [0, rows) -----------------------------------------------------
/// The default. The call fails with the place of the first bad id. On the host nothing is written; on a
/// device the bad bag becomes zeros and the executor's synchronize() reports the place.
struct check_t {};
/// The id counts as absent, as if the bag did not hold it; the number of such ids is added to *skipped.
struct skip_t {
  index_t* skipped = nullptr;
  constexpr skip_t operator()(index_t& counter) const noexcept { return {&counter}; }
};
/// No check: a bad id reads memory that is not the table's.
struct assume_valid_t {};
inline constexpr check_t check{};
inline constexpr skip_t skip{};
inline constexpr assume_valid_t assume_valid{};

template <class T>
inline constexpr bool is_bounds_mode = std::is_same_v<T, check_t> || std::is_same_v<T, skip_t> ||
                                       std::is_same_v<T, assume_valid_t>;

/// A combiner and a bounds mode.
template <class Combiner, class Bounds = check_t>
struct pooling {
  static_assert(is_combiner<Combiner>,
                "deeprec::pooling: the first policy is the combiner. Fix: pooling{sum, skip}.");
  static_assert(is_bounds_mode<Bounds>,
                "deeprec::pooling: not a bounds mode. Fix: check, skip or assume_valid.");
  using combiner = Combiner;
  using bounds_mode = Bounds;

  constexpr explicit pooling(Combiner, Bounds mode = {}) noexcept : bounds(mode) {}

  [[no_unique_address]] Bounds bounds;
};

template <class T>
inline constexpr bool is_pooling = false;
template <class Combiner, class Bounds>
inline constexpr bool is_pooling<pooling<Combiner, Bounds>> = true;

/// A combiner alone, completed by the defaults; a pooling as it is.
template <class T>
constexpr auto as_pooling(const T& policy) noexcept {
  if constexpr (is_pooling<T>) {
    return policy;
  } else {
    static_assert(is_combiner<T>,
                  "deeprec::lookup: not a combiner. Fix: sum, mean, or pooling{sum, skip}.");
    return pooling<T>(policy);
  }
}

}  // namespace deeprec::inline DEEPREC_ABI
