// A table stored in parts and read as one: a row source that finds the part of each id.
//
//   partition_strategy::div    part 0: rows 0 .. 3    part 1: 4 .. 6    part 2: 7 .. 9      V = 10 over P = 3
//   partition_strategy::mod    part 0: rows 0 3 6 9   part 1: 1 4 7     part 2: 2 5 8
//
//   partitioned_table table(parts, partition_strategy::mod);
//   lookup(ctx, table, bags, combiner::sum, out);
//
// The parts and the list of them are not owned. Grouping ids by part, for parts stored elsewhere: partition
// (partition.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/batches/partition.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Ids [0, V) over parts of one format, V the sum of their rows.
///
/// @pre     part p has part_rows(p, V, P) rows; verbs report shape_mismatch with the part where it has not
/// @threads as its tables: concurrent lookups are safe
template <RowFormat Format, class Strategy>
class partitioned_table {
  static_assert(std::is_same_v<Strategy, partition_strategy::div_t> ||
                    std::is_same_v<Strategy, partition_strategy::mod_t>,
                "deeprec::partitioned_table: unknown strategy. Fix: partition_strategy::div or "
                "partition_strategy::mod.");

 public:
  using format_type = Format;
  using space = host_space;

  partitioned_table(std::span<const const_table_view<Format>> parts, Strategy) : parts_(parts) {
    DEEPREC_EXPECTS(!parts.empty());
    for (const auto& part : parts) rows_ += part.rows();
  }

  [[nodiscard]] const Format& format() const noexcept { return parts_[0].format(); }
  /// V
  [[nodiscard]] index_t rows() const noexcept { return rows_; }
  /// Checks the parts: their memory, their numbers of rows, and that their rows have one width and stride.
  ///
  /// @cost    O(P)
  /// @threads reentrant
  /// @error   shape_mismatch with the part, in place of the table
  [[nodiscard]] status validate() const {
    const auto parts = static_cast<index_t>(parts_.size());
    for (index_t p = 0; p < parts; ++p) {
      const const_table_view<Format>& part = parts_[static_cast<std::size_t>(p)];
      if (const status s = detail::check_source(part); !s) return s.in_table(p);
      if (const status s = detail::expect_size(part.rows(), part_rows(p, rows_, parts),
                                               "partitioned_table: part p must have part_rows(p, V, P) rows");
          !s) {
        return s.in_table(p);
      }
      if (part.format().width() != format().width() ||
          part.format().stride_bytes() != format().stride_bytes()) {
        return {
            errc::shape_mismatch, "partitioned_table: parts must have one width and stride", {.table = p}};
      }
    }
    return {};
  }

  /// The addresses of n rows.
  template <class Id>
  void resolve(const Id* ids, index_t n, const std::byte** addresses) const noexcept {
    const auto parts = static_cast<index_t>(parts_.size());
    for (index_t k = 0; k < n; ++k) {
      const part_place at = place_of(static_cast<index_t>(ids[k]), parts);
      addresses[k] = parts_[static_cast<std::size_t>(at.part)].row(at.local);
    }
  }

 private:
  [[nodiscard]] part_place place_of(index_t id, index_t parts) const noexcept {
    if constexpr (std::is_same_v<Strategy, partition_strategy::div_t>) {
      return partition_strategy::div_place(id, rows_, parts);
    } else {
      return partition_strategy::mod_place(id, parts);
    }
  }

  std::span<const const_table_view<Format>> parts_;
  index_t rows_ = 0;
};

template <RowFormat Format, class Strategy>
partitioned_table(const std::vector<const_table_view<Format>>&, Strategy)
    -> partitioned_table<Format, Strategy>;

}}  // namespace deeprec::DEEPREC_ABI
