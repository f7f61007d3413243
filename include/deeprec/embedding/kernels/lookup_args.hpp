// Arguments of the lookup kernels in every region: plain pointers and sizes, no views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/embedding/kernels/pool_rules.hpp>
#include <deeprec/embedding/tables/row_elements.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Row of a position by arithmetic on its id.
template <class Id>
struct direct_rows {
  const std::byte* base;
  index_t stride;
  const Id* ids;
  index_t rows;            // ids are valid in [0, rows)
  std::int64_t padding;    // -1 when there is none
  const float* pruned_by;  // weights; an id whose weight is not above 0 is absent; null: they prune nothing

  DEEPREC_INLINE const std::byte* operator()(index_t position) const {
    return base + static_cast<index_t>(id_number(ids[position])) * stride;
  }
  /// True when the id at a position counts as absent, where ids are filtered.
  DEEPREC_INLINE bool absent(index_t position) const {
    return is_absent(id_number(ids[position]), rows, padding) ||
           (pruned_by != nullptr && !(pruned_by[position] > 0.0F));
  }
  /// A power of two up to 64 that divides every row's address.
  [[nodiscard]] DEEPREC_INLINE index_t alignment() const {
    const std::uintptr_t bits =
        reinterpret_cast<std::uintptr_t>(base) | static_cast<std::uintptr_t>(stride) | 64;
    return static_cast<index_t>(bits & (~bits + 1));
  }
  /// One row, at position 0.
  static direct_rows only(const std::byte* const* row) {
    static constexpr Id zero{};
    return {*row, 0, &zero, 1, -1, nullptr};
  }
};

/// Row of a position by its address; null: the id at the position counts as absent.
struct located_rows {
  const std::byte* const* addresses;  // of position first_position
  index_t first_position;

  DEEPREC_INLINE const std::byte* operator()(index_t position) const {
    return addresses[position - first_position];
  }
  DEEPREC_INLINE bool absent(index_t position) const { return (*this)(position) == nullptr; }
  [[nodiscard]] DEEPREC_INLINE index_t alignment() const { return 1; }
  /// One row, at position 0.
  static located_rows only(const std::byte* const* row) { return {row, 0}; }
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

/// Rows is direct_rows or located_rows.
template <class Rows, class Out>
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
  bool sums;  // true: a single row is a sum of one; false (concat): a copy
  when_empty empty;
  when_stored stored;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
