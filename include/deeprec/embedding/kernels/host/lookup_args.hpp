// Arguments of the lookup kernels in every region: plain pointers and sizes, no views.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/embedding/detail/row_elements.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/row_runs.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A power of two up to 64 that divides base and stride.
inline index_t common_alignment(std::uintptr_t base, index_t stride) {
  const std::uintptr_t bits = base | static_cast<std::uintptr_t>(stride) | 64;
  return static_cast<index_t>(bits & (~bits + 1));
}

/// Row of a position by arithmetic on its id, of a class type.
template <class Id>
struct direct_rows {
  const std::byte* base;
  index_t stride;
  const Id* ids;
  index_t rows;            // ids are valid in [0, rows)
  std::int64_t padding;    // -1 when there is none
  const float* pruned_by;  // weights; an id whose weight is not above 0 is absent; null: they prune nothing

  DEEPREC_INLINE const std::byte* operator()(index_t position) const { return row(id_number(ids[position])); }
  /// True when the id at a position counts as absent, where ids are filtered.
  DEEPREC_INLINE bool absent(index_t position) const { return absent(id_number(ids[position]), position); }
  /// Calls f(k, row, absent(k)) for the rows of the positions [begin, begin + count).
  template <class F>
  DEEPREC_INLINE void for_each(index_t begin, index_t count, const F& f) const {
    for (index_t k = 0; k < count; ++k) {
      const auto number = id_number(ids[begin + k]);
      f(k, row(number), absent(number, begin + k));
    }
  }
  static stored_numbers stored(index_t) { return {}; }
  /// A power of two up to 64 that divides every row's address.
  [[nodiscard]] index_t alignment() const {
    return common_alignment(reinterpret_cast<std::uintptr_t>(base), stride);
  }
  /// One row, at position 0.
  static direct_rows only(const std::byte* const* row) {
    static constexpr Id zero{};
    return {*row, 0, &zero, 1, -1, nullptr};
  }

 private:
  template <class Number>
  [[nodiscard]] DEEPREC_INLINE const std::byte* row(Number number) const {
    return row_of_number(reinterpret_cast<std::uintptr_t>(base), stride, number);
  }
  template <class Number>
  [[nodiscard]] DEEPREC_INLINE bool absent(Number number, index_t position) const {
    return is_absent(number, rows, padding) || (pruned_by != nullptr && !(pruned_by[position] > 0.0F));
  }
};

/// Row of a position by the number that is stored for it, an id of any integer type or the row's address: one
/// type, so that all batches share their kernels.
///
///   row = base + number * stride         of an address: base 0, stride 1
class rows_by_number {
 public:
  rows_by_number() = default;
  /// Rows by ids, which are valid in [0, rows). padding: -1 when there is none. pruned_by: weights; an id
  /// whose weight is not above 0 is absent; null: they prune nothing.
  template <std::integral Id>
  rows_by_number(const std::byte* base, index_t stride, const Id* ids, index_t rows, std::int64_t padding,
                 const float* pruned_by)
      : base_(reinterpret_cast<std::uintptr_t>(base)),
        stride_(stride),
        numbers_(ids),
        first_position_(0),
        narrow_bits_(std::is_signed_v<Id> ? std::int64_t{-1} : std::int64_t{0xffffffff}),
        least_(0),
        count_(static_cast<std::uint64_t>(rows)),
        padding_(padding),
        pruned_by_(pruned_by),
        wide_(sizeof(Id) == 8) {}
  /// Rows by the addresses of the positions from first_position on; null: the id at the position is absent.
  rows_by_number(const std::byte* const* addresses, index_t first_position)
      : base_(0),
        stride_(1),
        numbers_(addresses),
        first_position_(first_position),
        narrow_bits_(0xffffffff),
        least_(1),
        count_(~std::uint64_t{0}),
        padding_(-1),
        pruned_by_(nullptr),
        wide_(sizeof(addresses[0]) == 8) {}
  /// A power of two up to 64 that divides every row's address.
  [[nodiscard]] index_t alignment() const { return common_alignment(base_, stride_); }
  /// One row, at position 0.
  static rows_by_number only(const std::byte* const* row) { return {row, 0}; }

  DEEPREC_INLINE const std::byte* operator()(index_t position) const { return row_of(number(position)); }
  /// True when the id at a position counts as absent, where ids are filtered.
  DEEPREC_INLINE bool absent(index_t position) const { return absent(number(position), position); }
  /// Calls f(k, row, absent(k)) for the rows of the positions [begin, begin + count).
  template <class F>
  DEEPREC_INLINE void for_each(index_t begin, index_t count, const F& f) const {
    if (wide_) {
      for (index_t k = 0; k < count; ++k) {
        const std::int64_t n = wide(begin + k);
        f(k, row_of(n), absent(n, begin + k));
      }
    } else {
      for (index_t k = 0; k < count; ++k) {
        const std::int64_t n = narrow(begin + k);
        f(k, row_of(n), absent(n, begin + k));
      }
    }
  }
  /// The numbers from a position on, where they are of 64 bits.
  [[nodiscard]] DEEPREC_INLINE stored_numbers stored(index_t position) const {
    if (!wide_) return {};
    return {static_cast<const char*>(numbers_) + (position - first_position_) * 8,
            base_,
            stride_,
            least_,
            count_,
            padding_,
            pruned_by_ == nullptr ? nullptr : pruned_by_ + position};
  }

 private:
  // By integers: the base of addresses is null.
  [[nodiscard]] DEEPREC_INLINE const std::byte* row_of(std::int64_t number) const {
    return row_of_number(base_, stride_, number);
  }
  [[nodiscard]] DEEPREC_INLINE bool absent(std::int64_t n, index_t position) const {
    // Without branches: they would be mispredicted.
    int absent = int{static_cast<std::uint64_t>(n) - least_ >= count_} | int{n == padding_};
    if (pruned_by_ != nullptr) absent |= int{!(pruned_by_[position] > 0.0F)};
    return absent != 0;
  }
  [[nodiscard]] DEEPREC_INLINE std::int64_t number(index_t position) const {
    return wide_ ? wide(position) : narrow(position);
  }
  [[nodiscard]] DEEPREC_INLINE std::int64_t wide(index_t position) const {
    return at<std::int64_t>(position - first_position_);
  }
  [[nodiscard]] DEEPREC_INLINE std::int64_t narrow(index_t position) const {
    return std::int64_t{at<std::int32_t>(position - first_position_)} & narrow_bits_;
  }
  // memcpy, since numbers may be of another type of this size.
  template <class T>
  [[nodiscard]] DEEPREC_INLINE T at(index_t k) const {
    T number;
    __builtin_memcpy(&number, static_cast<const char*>(numbers_) + k * index_t{sizeof(T)}, sizeof(T));
    return number;
  }

  std::uintptr_t base_;
  index_t stride_;
  const void* numbers_;
  index_t first_position_;
  std::int64_t narrow_bits_;  // of a number of 32 bits
  std::uint64_t least_;       // numbers are valid in [least, least + count)
  std::uint64_t count_;
  std::int64_t padding_;
  const float* pruned_by_;
  bool wide_;
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

template <class Out, class Rows = rows_by_number>
struct pool_args {
  Rows row_of;
  bag_ranges ranges;
  const float* weights;  // null: all 1
  index_t table_rows;    // of small tables, which are not prefetched; any large number where it is not known
  index_t width;         // D
  index_t end_position;  // one past the last position of the batch: the limit for prefetching
  float max_norm;        // rows are scaled down to this norm; 0: they are not
  std::int32_t out_ahead;  // prefetch distance of rows that are copied to out; 0: none
  const std::byte* default_row;
  row_parts parts;  // of each row; plain rows have none
  Out* out;
  index_t out_stride;
  const kernel_tuning* tuning;  // of prefetches
  divide_by divide;
  bool filters;  // ids may be absent
  bool sums;     // true: a single row is a sum of one; false (concat, max): a copy
  when_empty empty;
  when_stored stored;
};

/// Number and weights of a bag's ids, without those that are absent. The squares of weights are exact, so
/// fused additions have the same bits.
template <class Args>
DEEPREC_INLINE pool_counts counts_of_bag(const Args& args, index_t bag) {
  pool_counts counts;
  for (index_t position = args.ranges.begin(bag); position < args.ranges.end(bag); ++position) {
    if (args.filters && args.row_of.absent(position)) continue;
    counts.add(args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[position]));
  }
  return counts;
}

inline namespace DEEPREC_UNIT {

/// The same for kernels, once for all regions. Verbs don't call it: the linker would give the compiled
/// component a copy that has the user's flags.
template <class Args>
DEEPREC_APART pool_counts counts_of_kernel(const Args& args, index_t bag) {
  return counts_of_bag(args, bag);
}

}  // namespace DEEPREC_UNIT

}}}  // namespace deeprec::DEEPREC_ABI::detail
