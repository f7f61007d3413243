// A sparse feature of B samples as a list of entries in any order: row, id, and optionally a weight.
//
//   rows      2  0  2  0  3           N of them, each in [0, B)      bag 0: {7 1}   bag 2: {9 4}
//   ids       9  7  4  1  8           N                              bag 1: {}      bag 3: {8}
//   weights   1 .5  2  1  1           N, or none
//
// The entries of a bag keep the order in which they appear; where rows ascend, slice() is a part of the bags.
// coo_view::tensorflow reads the indices (N,2) of a tf.SparseTensor in place. Lookups take bags: to_jagged
// (embedding/batches/jagged_batch.hpp) makes them.
#pragma once

#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Non-owning list of entries. Trivially copyable.
///
/// @dtype   Id and Row: integers of 32 or 64 bits; weights: float
/// @threads as its memory: concurrent readers are safe
template <class Id = std::int64_t, class Row = std::int64_t, MemorySpace Space = host_space>
class coo_view {
 public:
  static_assert(IdInteger<Id> && IdInteger<Row>,
                "deeprec::coo_view: ids and rows are integers of 32 or 64 bits. "
                "Fix: coo_view<std::int64_t, std::int32_t>.");
  using id_type = Id;
  using row_type = Row;
  using space = Space;

  constexpr coo_view() noexcept = default;
  /// @param rows (N) @param ids (N) @param weights (N), or null for weight 1
  DEEPREC_HD constexpr coo_view(const Row* rows, const Id* ids, index_t entries, index_t bags,
                                const float* weights = nullptr) noexcept
      : rows_(rows), ids_(ids), weights_(weights), entries_(entries), bags_(bags) {}

  /// The indices (N,2) and values (N) of a tf.SparseTensor; the second column of indices is not read.
  DEEPREC_HD static constexpr coo_view tensorflow(const Row* indices, const Id* ids, index_t entries,
                                                  index_t bags, const float* weights = nullptr) noexcept {
    coo_view made(indices, ids, entries, bags, weights);
    made.row_stride_ = 2;
    return made;
  }

  template <MemorySpace From>
    requires(reachable_as<From, Space> && !std::is_same_v<From, Space>)
  DEEPREC_HD constexpr coo_view(const coo_view<Id, Row, From>& other) noexcept
      : coo_view(other.rows(), other.ids(), other.id_count(), other.bags(), other.weights()) {
    row_stride_ = other.row_stride();
    first_row_ = other.first_row();
  }
  template <MemorySpace From>
    requires(!reachable_as<From, Space>)
  coo_view(const coo_view<Id, Row, From>&) = delete;

  [[nodiscard]] DEEPREC_HD constexpr index_t bags() const noexcept { return bags_; }
  /// N, the number of entries.
  [[nodiscard]] DEEPREC_HD constexpr index_t id_count() const noexcept { return entries_; }
  /// The row of entry k is rows()[k * row_stride()] - first_row().
  [[nodiscard]] DEEPREC_HD constexpr const Row* rows() const noexcept { return rows_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t row_stride() const noexcept { return row_stride_; }
  [[nodiscard]] DEEPREC_HD constexpr index_t first_row() const noexcept { return first_row_; }
  [[nodiscard]] DEEPREC_HD constexpr const Id* ids() const noexcept { return ids_; }
  [[nodiscard]] DEEPREC_HD constexpr const float* weights() const noexcept { return weights_; }

  /// The bag of entry k.
  [[nodiscard]] DEEPREC_HD constexpr index_t row(index_t k) const noexcept {
    return static_cast<index_t>(rows_[k * row_stride_]) - first_row_;
  }

  /// Bags [first, first + count), sharing rows, ids and weights.
  ///
  /// @pre     rows_ascend(); 0 <= first, count <= bags() - first
  /// @cost    O(log N); reads rows
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] coo_view slice(index_t first, index_t count) const
    requires(!std::is_same_v<Space, device_space>)
  {
    DEEPREC_EXPECTS(0 <= first && 0 <= count && count <= bags_ - first);
    const index_t begin = first_entry_from(first);
    coo_view part = *this;
    part.entries_ = first_entry_from(first + count) - begin;
    part.rows_ = rows_ + begin * row_stride_;
    part.ids_ = ids_ + begin;
    part.weights_ = weights_ == nullptr ? nullptr : weights_ + begin;
    part.bags_ = count;
    part.first_row_ = first_row_ + first;
    return part;
  }

  /// Whether no entry comes before one of an earlier bag.
  ///
  /// @cost    O(N); reads the rows
  /// @threads reentrant
  /// @error   none
  [[nodiscard]] bool rows_ascend() const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    for (index_t k = 1; k < entries_; ++k) {
      if (row(k) < row(k - 1)) return false;
    }
    return true;
  }

  /// Reports null pointers, negative sizes, and the first entry whose row is outside [0, B).
  ///
  /// @cost    O(N); reads the rows
  /// @threads reentrant
  /// @error   shape_mismatch (a null pointer with a size, a negative size, a size that memory can't hold);
  ///          invalid_value (position = the entry, value = its row)
  [[nodiscard]] status validate() const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    if (const status s = validate_shape(); !s) return s;
    return validate_rows(0, entries_);
  }

  /// The part of validate() that reads the rows, for entries [begin, end).
  ///
  /// @cost    O(end - begin)
  /// @threads reentrant
  /// @error   invalid_value: a row outside [0, B)
  [[nodiscard]] status validate_rows(index_t begin, index_t end) const noexcept
    requires(!std::is_same_v<Space, device_space>)
  {
    for (index_t k = begin; k < end; ++k) {
      if (static_cast<std::uint64_t>(row(k)) >= static_cast<std::uint64_t>(bags_)) {
        return {errc::invalid_value,
                "coo_view: the row of an entry must be in [0, B)",
                {.position = k, .value = row(k)}};
      }
    }
    return {};
  }

  /// The part of validate() that reads no memory.
  ///
  /// @cost    O(1)
  /// @threads reentrant
  /// @error   shape_mismatch
  [[nodiscard]] constexpr status validate_shape() const noexcept {
    if (bags_ < 0 || entries_ < 0) {
      return {errc::shape_mismatch, "coo_view: numbers of bags and entries must not be negative"};
    }
    if (!fits_memory(capped_product(entries_, row_stride_), sizeof(Row)) ||
        !fits_memory(entries_, sizeof(Id))) {
      return {errc::shape_mismatch, "coo_view: ids must fit in memory"};
    }
    if (entries_ > 0 && rows_ == nullptr) return {errc::shape_mismatch, "coo_view: rows must not be null"};
    if (entries_ > 0 && ids_ == nullptr) return {errc::shape_mismatch, "coo_view: ids must not be null"};
    return {};
  }

 private:
  // The first entry of this bag or a later one, where rows ascend.
  [[nodiscard]] index_t first_entry_from(index_t bag) const noexcept {
    index_t low = 0, high = entries_;
    while (low < high) {
      const index_t middle = low + (high - low) / 2;
      if (row(middle) < bag) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  const Row* rows_ = nullptr;
  const Id* ids_ = nullptr;
  const float* weights_ = nullptr;
  index_t entries_ = 0;
  index_t bags_ = 0;
  index_t row_stride_ = 1;
  index_t first_row_ = 0;
};

static_assert(std::is_trivially_copyable_v<coo_view<>>);

}}  // namespace deeprec::DEEPREC_ABI
