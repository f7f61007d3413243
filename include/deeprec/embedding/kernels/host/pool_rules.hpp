// The rules of pooling that kernels of the host and of devices share: which ids count, how a bag is divided
// and finished, and the checks of a pooling.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/pooling.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// True for an id outside [0, rows): one comparison for both ends.
template <class Id>
DEEPREC_HD DEEPREC_INLINE bool is_bad_id(Id id, index_t rows) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(id)) >= static_cast<std::uint64_t>(rows);
}

/// True for an id that counts as absent where ids are filtered: a bad one, or the padding id.
template <class Id>
DEEPREC_HD DEEPREC_INLINE bool is_absent(Id id, index_t rows, std::int64_t padding) {
  return is_bad_id(id, rows) || static_cast<std::int64_t>(id) == padding;
}

/// Tests for NaN by the bits, so that -ffast-math can't remove the test.
DEEPREC_HD DEEPREC_INLINE bool is_nan(float x) {
  return (bit_cast_to<std::uint32_t>(x) & 0x7fffffffU) > 0x7f800000U;
}

/// A bag with more ids than this is summed in chunks of this many, and the chunks by a fixed tree.
inline constexpr index_t chunk_positions = 4096;

/// Divisor of a bag's sum. Combiners that add differ in nothing else, so kernels take this at run time.
enum class divide_by : unsigned char { one, count, weight, root };

template <class Combiner>
constexpr divide_by divisor_of() {
  if constexpr (std::is_same_v<Combiner, combiner::mean_t<combiner::by_count_t>>) {
    return divide_by::count;
  } else if constexpr (std::is_same_v<Combiner, combiner::mean_t<combiner::by_weight_t>>) {
    return divide_by::weight;
  } else if constexpr (std::is_same_v<Combiner, combiner::sqrtn_t>) {
    return divide_by::root;
  } else {
    return divide_by::one;
  }
}

/// Number of the ids in a bag's sum, and sums over their weights.
struct pool_counts {
  index_t used = 0;
  double weight_sum = 0;
  double weight_squares = 0;

  DEEPREC_HD DEEPREC_INLINE void add(double weight) {
    ++used;
    weight_sum += weight;
    weight_squares += weight * weight;
  }
  /// The divisor; 0 means that the bag becomes zeros.
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE double divisor(divide_by rule) const {
    return rule == divide_by::one      ? 1.0
           : rule == divide_by::count  ? static_cast<double>(used)
           : rule == divide_by::weight ? weight_sum
                                       : ::sqrt(weight_squares);
  }
};

/// identity: the neutral element of the fold (0 or -inf); for chunks of a long bag.
enum class when_empty : unsigned char { zeros, default_row, keep, identity };
enum class when_stored : unsigned char { overwrite, accumulate };

template <class Pooling>
constexpr when_empty empty_of() {
  return std::is_same_v<typename Pooling::empty_mode, empty_bag::default_row> ? when_empty::default_row
         : std::is_same_v<typename Pooling::empty_mode, empty_bag::keep_t>    ? when_empty::keep
                                                                              : when_empty::zeros;
}
template <class Pooling>
constexpr when_stored stored_of() {
  return std::is_same_v<typename Pooling::output_mode, output::accumulate_t> ? when_stored::accumulate
                                                                             : when_stored::overwrite;
}

/// Compile-time choices of a kernel's inner loop, besides the types of its arguments.
enum class fold : unsigned char { add, maximum };
enum class ids_are : unsigned char { present, filtered };

/// The compile-time properties of a pooling. Poolings that are equal in these share their kernels.
template <fold Fold, ids_are Ids, bool Clips>
struct kernel_traits {
  static constexpr fold folding = Fold;
  static constexpr ids_are ids = Ids;
  static constexpr bool clips = Clips;
};

template <class Pooling>
using kernel_policy =
    kernel_traits<std::is_same_v<typename Pooling::combiner, combiner::max_t> ? fold::maximum : fold::add,
                  std::is_same_v<typename Pooling::bounds_mode, bounds::skip_t> ||
                          !std::is_same_v<typename Pooling::padding_mode, padding::none_t>
                      ? ids_are::filtered
                      : ids_are::present,
                  std::is_same_v<typename Pooling::norm_mode, max_norm>>;

/// The id that counts as absent; -1, which is never valid, when there is none.
template <class Pooling>
constexpr std::int64_t padding_of(const Pooling& pooling) {
  if constexpr (std::is_same_v<typename Pooling::padding_mode, padding::id>) {
    return pooling.template get<padding::id>().id;
  } else {
    return -1;
  }
}

template <class Pooling>
inline constexpr bool prunes = std::is_same_v<typename Pooling::padding_mode, padding::prune_t>;
/// With sum TensorFlow keeps every weight.
template <class Pooling>
inline constexpr bool prunes_weights =
    prunes<Pooling> && !std::is_same_v<typename Pooling::combiner, combiner::sum_t>;
template <class Pooling>
inline constexpr bool skips = std::is_same_v<typename Pooling::bounds_mode, bounds::skip_t>;
/// Whether empty bags become a row of the table.
template <class Pooling>
inline constexpr bool fills = std::is_same_v<typename Pooling::empty_mode, empty_bag::default_row>;

/// The counter of skipped ids; null when there is none.
template <class Pooling>
index_t* skip_counter_of(const Pooling& pooling) noexcept {
  if constexpr (skips<Pooling>) {
    return pooling.template get<bounds::skip_t>().skipped;
  } else {
    return nullptr;
  }
}

/// Adds to the counter of a policy `skip`, null when there is none. Calls on other threads may share it.
inline void add_skipped(index_t* counter, index_t count) noexcept {
  if (counter != nullptr && count != 0) __atomic_fetch_add(counter, count, __ATOMIC_RELAXED);
}

/// The cap on a row's norm; 0 when there is none.
template <class Pooling>
constexpr float max_norm_of(const Pooling& pooling) {
  if constexpr (std::is_same_v<typename Pooling::norm_mode, max_norm>) {
    return pooling.template get<max_norm>().cap;
  } else {
    return 0.0F;
  }
}

/// Checks that the cap on norms, if there is one, is above 0.
template <class Pooling>
status check_max_norm(Pooling pooling) {
  if constexpr (std::is_same_v<typename Pooling::norm_mode, max_norm>) {
    if (!(pooling.template get<max_norm>().cap > 0.0F))
      return {errc::invalid_value, "pooling: max_norm must be above 0"};
  }
  return {};
}

inline status check_default_row_id(std::int64_t id, index_t rows) {
  if (!is_bad_id(id, rows)) return {};
  return {errc::id_out_of_range, "pooling: default_row must be a row of the table", {.value = id}};
}

/// Checks that the default row, if there is one, is a row of a table of that many rows.
template <class Pooling>
status check_default_row(const Pooling& pooling, index_t rows) {
  if constexpr (fills<Pooling>) {
    return check_default_row_id(pooling.template get<empty_bag::default_row>().id, rows);
  }
  return {};
}

/// True for an id that is a fault, or is counted as skipped: neither in [0, rows) nor padding.
template <class Pooling, class Id>
bool is_stray_id(Id id, index_t rows, std::int64_t padding) noexcept {
  if (!is_bad_id(id, rows)) return false;
  if constexpr (prunes<Pooling> && std::is_signed_v<Id>) return id >= 0;
  if constexpr (std::is_same_v<typename Pooling::padding_mode, padding::id>) {
    return static_cast<std::int64_t>(id) != padding;
  }
  return true;
}

/// The texts of the errors of a gradient.
struct gradient_texts {
  const char* width;
  const char* bags;
  const char* null;
};
inline constexpr gradient_texts update_gradient{"update: gradient.extent(1) must be the row width D",
                                                "update: gradient.extent(0) must be the number of bags B",
                                                "update: gradient must not be null"};

/// Checks that out fits a lookup of rows of that width, and that weights are not given to a maximum.
template <class Bags, class Out, class OutSpace>
status check_pool_shapes(index_t width, const Bags& bags, bool one_row_per_bag, bool takes_weights,
                         const matrix_view<Out, OutSpace>& out) {
  if (const status s = expect_size(out.extent(1), width, "lookup: out.extent(1) must be the row width D");
      !s) {
    return s;
  }
  if (one_row_per_bag) {
    if (const status s =
            expect_size(out.extent(0), bags.bags(), "lookup: out.extent(0) must be the number of bags B");
        !s) {
      return s;
    }
  }
  if (out.stride(0) < out.extent(1) && out.extent(0) > 1) {
    return {errc::shape_mismatch, "lookup: out.stride(0) must be at least out.extent(1)"};
  }
  if (const status s = out.validate("lookup: out must not be null"); !s) return s;
  if (!takes_weights && bags.weights() != nullptr) {
    return {errc::unsupported, "lookup: combiner::max must have no weights"};
  }
  return {};
}

/// The same, and the cap on norms, for a pooling.
template <class Bags, class Pooling, class Out, class OutSpace>
status lookup_shapes(index_t width, const Bags& bags, Pooling pooling,
                     const matrix_view<Out, OutSpace>& out) {
  using combiner_type = typename Pooling::combiner;
  if (const status s = check_pool_shapes(width, bags, !std::is_same_v<combiner_type, combiner::concat_t>,
                                         !std::is_same_v<combiner_type, combiner::max_t>, out);
      !s) {
    return s;
  }
  return check_max_norm(pooling);
}

/// Checks a gradient of a lookup's output (B,D).
template <class Gradient>
status check_gradient(const Gradient& gradient, index_t width, index_t bags, const gradient_texts& texts) {
  if (const status s = expect_size(gradient.extent(1), width, texts.width); !s) return s;
  if (const status s = expect_size(gradient.extent(0), bags, texts.bags); !s) return s;
  return gradient.validate(texts.null, row_overlap::permitted);  // one row may serve all bags
}

/// Upper bound of the positions of a batch that was not checked yet; 0 where its checks will refuse it.
template <class Bags>
index_t most_positions(const Bags& bags) noexcept {
  const index_t stored = bags.id_count();
  if (bags.bags() <= 0 || stored <= 0 || !fits_memory(stored, sizeof(typename Bags::id_type))) return 0;
  if constexpr (requires { bags.offsets(); }) {
    if (bags.offsets() == nullptr) return 0;
  }
  const index_t begin = bags.first_position();
  const index_t end = bags.end_position();
  return begin < 0 || begin > end || end > stored ? stored : end - begin;
}

inline namespace DEEPREC_UNIT {

/// longest_bag of a batch with more than chunk_positions ids.
template <class Bags>
index_t find_longest_bag(const Bags& bags) noexcept {
  const index_t most = most_positions(bags);
  if (most <= chunk_positions) return 0;
  if constexpr (requires { bags.hotness(); }) {
    return bags.hotness();
  } else {
    const auto ranges = bags.ranges();
    std::uint64_t longest = 0;
    for (index_t bag = 0; bag < bags.bags(); ++bag) {
      longest = (std::max)(longest, static_cast<std::uint64_t>(ranges.end(bag)) -
                                        static_cast<std::uint64_t>(ranges.begin(bag)));
    }
    return static_cast<index_t>((std::min)(longest, static_cast<std::uint64_t>(most)));
  }
}

/// The positions of the longest bag; 0 where the batch has no more than chunk_positions. For a batch that was
/// not checked yet, a number up to most_positions.
template <class Bags>
DEEPREC_INLINE index_t longest_bag(const Bags& bags) noexcept {
  return bags.id_count() <= chunk_positions ? 0 : find_longest_bag(bags);
}

}  // namespace DEEPREC_UNIT

}}}  // namespace deeprec::DEEPREC_ABI::detail
