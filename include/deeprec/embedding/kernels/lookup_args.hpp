// Arguments of the lookup kernels in every region: plain pointers and sizes, no views.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_elements.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Row of a position by arithmetic on its id.
template <class Id>
struct direct_rows {
  const std::byte* base;
  index_t stride;
  const Id* ids;
  DEEPREC_INLINE const std::byte* operator()(index_t position) const {
    return base + static_cast<index_t>(ids[position]) * stride;
  }
  /// One row, at position 0.
  static direct_rows only(const std::byte* const* row, const Id* zero) { return {*row, 0, zero}; }
};

/// Row of a position as a row source resolved it.
struct resolved_rows {
  const std::byte* const* addresses;  // of position first_position
  index_t first_position;
  DEEPREC_INLINE const std::byte* operator()(index_t position) const {
    return addresses[position - first_position];
  }
  template <class Id>
  static resolved_rows only(const std::byte* const* row, const Id*) {
    return {row, 0};
  }
};

/// Begin and end of the bags of a valid batch, for offsets of any type and for bags of a fixed size: one
/// type, so that all batches share their kernels.
class bag_ranges {
 public:
  bag_ranges() = default;
  template <class Offset>
  bag_ranges(detail::offset_ranges<Offset> theirs)
      : offsets_(theirs.offsets),
        wide_(sizeof(Offset) == 8),
        implied_bag_(theirs.implied_bag),
        implied_end_(theirs.implied_end) {}
  bag_ranges(detail::fixed_ranges theirs) : hotness_(theirs.hotness) {}

  [[nodiscard]] DEEPREC_INLINE index_t begin(index_t bag) const {
    return offsets_ == nullptr ? bag * hotness_ : offset(bag);
  }
  [[nodiscard]] DEEPREC_INLINE index_t end(index_t bag) const {
    if (offsets_ == nullptr) return (bag + 1) * hotness_;
    return bag == implied_bag_ ? implied_end_ : offset(bag + 1);
  }

 private:
  [[nodiscard]] DEEPREC_INLINE index_t offset(index_t number) const {
    return wide_ ? at<index_t>(number) : index_t{at<std::uint32_t>(number)};
  }
  // memcpy, since offsets may be of another type of this size: long and long long are two types.
  template <class T>
  [[nodiscard]] DEEPREC_INLINE T at(index_t number) const {
    T offset;
    __builtin_memcpy(&offset, static_cast<const char*>(offsets_) + number * index_t{sizeof(T)}, sizeof(T));
    return offset;
  }

  const void* offsets_ = nullptr;  // null: every bag has hotness_ ids
  bool wide_ = false;
  index_t hotness_ = 0;
  index_t implied_bag_ = -1;
  index_t implied_end_ = -1;
};

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
  [[nodiscard]] DEEPREC_HD DEEPREC_INLINE double divisor(divide_by how) const {
    return how == divide_by::one      ? 1.0
           : how == divide_by::count  ? static_cast<double>(used)
           : how == divide_by::weight ? weight_sum
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

template <class Rows, class Id, class Out>
struct pool_args {
  Rows row_of;
  const Id* ids;
  bag_ranges ranges;
  const float* weights;   // null: all 1
  bool positive_weights;  // ids whose weight is not above 0 are absent
  index_t rows;           // ids are valid in [0, rows)
  std::int64_t padding;   // -1 when there is none
  index_t width;          // D
  index_t end_position;   // one past the last position of the batch: the limit for prefetching
  float max_norm;         // rows are scaled down to this norm; 0: they are not
  const std::byte* default_row;
  row_parts parts;  // of each row; plain rows have none
  Out* out;
  index_t out_stride;
  divide_by divide;
  bool sums;  // true: a single row is a sum of one; false (concat): a copy
  when_empty empty;
  when_stored stored;

  /// True when the id at a position counts as absent, where ids are filtered.
  DEEPREC_HD DEEPREC_INLINE bool absent(index_t position) const {
    return is_absent(ids[position], rows, padding) || (positive_weights && !(weights[position] > 0.0F));
  }
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
