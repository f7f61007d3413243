// The rows of a direct table in parts, so that each thread does all of an update for its own: no pass over
// ids is shared, and no thread reads what another one wrote.
//
//   thread 0    scan all ids: keys and gradients of its rows | group | step      rows h(row) in [0, 1/2)
//   thread 1    scan all ids: keys and gradients of its rows | group | step      rows h(row) in [1/2, 1)
//
// Positions are numbered within a part, in order: the sums of a row are those of the whole table.
// Not here: rows of more than chunk_positions positions, whose chunks all threads share afterwards
// (step_long_groups).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/kernel_tuning.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// The time of an update of so many positions on one thread, about: passes over ids, rows read and written.
inline double ns_of_update(const kernel_tuning& tuning, index_t positions, index_t table_rows,
                           index_t stride) noexcept {
  return static_cast<double>(positions) * (20 + 2 * ns_of_row(tuning, table_rows, stride));
}

/// The rows of one of some parts of a table, by a hash: neighbours, and rows at any stride, are spread.
class table_part {
 public:
  static constexpr index_t most = bulk_parts::most;

  table_part(index_t number, index_t parts) noexcept
      : first_(bound(number, parts)), end_(bound(number + 1, parts)) {}

  [[nodiscard]] DEEPREC_INLINE bool has(index_t row) const noexcept {
    return hash(row) - first_ < end_ - first_;
  }
  /// True for rows of the parts before this one.
  [[nodiscard]] DEEPREC_INLINE bool is_of_earlier_part(index_t row) const noexcept {
    return hash(row) < first_;
  }

  /// How many parts an update of that time may have: one for each thread, none of which is short.
  template <class Context>
  static index_t most_parts(const Context& ctx, index_t table_rows, double ns) {
    const auto threads = static_cast<index_t>(threads_at_once(*ctx.executor));
    const double pieces = ns / static_cast<double>(ctx.tuning->piece_ns);
    const index_t some = (std::min)({threads, most, static_cast<index_t>((std::min)(pieces, 1e6))});
    return some < 2 || table_rows / some < least_rows ? 1 : some;
  }
  /// How many it has now; a thread that sleeps takes part in a long one only.
  template <class Context>
  static index_t parts(const Context& ctx, index_t table_rows, double ns) {
    return is_shared(ctx, ns) ? most_parts(ctx, table_rows, ns) : 1;
  }

 private:
  static constexpr index_t least_rows = 64;  // of a part: with few rows, parts are not equal

  // Another factor than that of the filter of row_groups, whose words one part would share.
  [[nodiscard]] static DEEPREC_INLINE std::uint64_t hash(index_t row) noexcept {
    return static_cast<std::uint64_t>(row) * 0xd6e8feb86659fd93U >> 32;
  }
  static std::uint64_t bound(index_t number, index_t parts) noexcept {
    return (static_cast<std::uint64_t>(number) << 32) / static_cast<std::uint64_t>(parts);
  }

  std::uint64_t first_, end_;
};

/// Positions of a part, and of those before it; absent ids may count.
struct part_sizes {
  index_t earlier = 0;
  index_t positions = 0;

  template <class Resolution>
  void add(const Resolution& rows, const table_part& given) noexcept {
    const table_part part = given;
    const index_t begin = rows.bags().first_position(), end = begin + rows.positions();
    index_t before = 0, within = 0;
    for (index_t k = begin; k < end; ++k) {
      const index_t row = rows.number(k);
      before += part.is_of_earlier_part(row) ? 1 : 0;
      within += part.has(row) ? 1 : 0;
    }
    if constexpr (fills<typename Resolution::pooling_type>) {
      const index_t row = default_number(rows);
      if (part.is_of_earlier_part(row)) before += rows.bags().bags();
      if (part.has(row)) within += rows.bags().bags();
    }
    earlier += before;
    positions += within;
  }
};

/// The positions of a part, grouped, and their gradients.
class part_groups {
 public:
  /// table: its size, with the positions of all parts.
  part_groups(std::byte* place, index_t bytes, const part_sizes& part, const batch_groups_size& table,
              index_t width)
      : block_(place, bytes),
        groups_(block_.take<std::byte>(batch_groups::bytes_for(size_of(part, table))).data(),
                size_of(part, table)),
        pass_(block_, {.positions = part.positions + 1, .width = width, .workers = 1}) {}
  part_groups(const part_groups&) = delete;

  template <class Resolution>
  void add(const Resolution& rows, matrix_view<const float> gradient, const table_part& given) {
    const table_part part = given;
    const auto lists = pass_.begin_numbered(rows);
    const index_t before = numbered_;
    numbered_ += groups_.add_numbered([&](std::uint64_t* keys, int bits) {
      const auto row_at = rows.rows();
      const auto ranges = rows.bags().ranges();
      const float* const weights = rows.bags().weights();
      const std::byte** const gradient_of = lists.gradient_of;
      float* const scale_of = lists.scale_of;
      index_t count = 0;
      const auto write = [&](index_t row, const std::byte* from, float scale, bool used) {
        keys[count] = static_cast<std::uint64_t>(row) << bits | static_cast<std::uint64_t>(before + count);
        gradient_of[count] = from;
        if (scale_of != nullptr) scale_of[count] = scale;
        count += part.has(row) && used ? 1 : 0;
      };
      const index_t bags = rows.bags().bags();
      for (index_t b = 0; b < bags; ++b) {
        const auto* const from = static_cast<const std::byte*>(static_cast<const void*>(gradient.row(b)));
        const float scale = backward_pass::scale_of_bag(rows, row_at, b);
        for (index_t k = ranges.begin(b), end = ranges.end(b); k < end; ++k) {
          write(rows.number(k), from, weights == nullptr ? scale : weights[k] * scale,
                is_used_position(rows, row_at, k));
        }
      }
      if constexpr (fills<typename Resolution::pooling_type>) {
        const index_t row = default_number(rows);
        if (part.has(row)) {
          for (index_t b = 0; b < bags; ++b) {
            write(row, static_cast<const std::byte*>(static_cast<const void*>(gradient.row(b))), 1.0F,
                  is_filled_bag(rows, row_at, b));
          }
        }
      }
      return count;
    });
    pass_.end_numbered(numbered_ - before);
  }
  template <class Context>
  void group(const Context& ctx) {
    groups_.group(ctx, group_order::any);
    pass_.arrange(ctx, groups_.groups());
  }
  [[nodiscard]] const batch_groups& groups() const noexcept { return groups_; }
  [[nodiscard]] const backward_pass& pass() const noexcept { return pass_; }

 private:
  // One more than there are: a scan writes a key before it knows whether it is one of the part.
  static batch_groups_size size_of(const part_sizes& part, batch_groups_size table) noexcept {
    table.positions = part.positions + 1;
    return table;
  }

  scratch_block block_;
  batch_groups groups_;
  backward_pass pass_;
  index_t numbered_ = 0;
};

/// Memory for the groups of all parts of a table, which are made where their sizes become known. They own
/// nothing, and are not destroyed.
class parts_memory {
 public:
  /// Upper bound, for so many positions of all parts together.
  static index_t bytes_for(index_t positions, index_t width, index_t parts) noexcept {
    return capped_sum(scratch_block::bytes_of<place>(parts),
                      offset_of({.earlier = positions}, positions, width, parts));
  }

  /// Takes bytes_for(...) of the block. table: its size, with the positions of all parts.
  parts_memory(scratch_block& block, const batch_groups_size& table, index_t width, index_t parts)
      : table_(table),
        width_(width),
        places_(block.take<place>(parts)),
        memory_(block.take<std::byte>(offset_of({.earlier = table.positions}, table.positions, width, parts))
                    .data()) {}

  /// On any thread.
  part_groups& make(index_t number, const part_sizes& sizes) noexcept {
    place& to = places_[static_cast<std::size_t>(number)];
    const index_t from = offset_of(sizes, table_.positions, width_, number);
    const index_t bytes = sizes.positions * bytes_a_position(width_) + bytes_a_part(table_.positions, width_);
    return *(to.made = ::new (static_cast<void*>(to.bytes))
                 part_groups(memory_ + from, bytes, sizes, table_, width_));
  }
  [[nodiscard]] const part_groups& operator[](index_t number) const noexcept {
    return *places_[static_cast<std::size_t>(number)].made;
  }

  // Upper bounds: a part of n positions takes bytes_a_position * n + bytes_a_part.
  static index_t bytes_a_position(index_t width) noexcept { return 52 + width / 1024; }
  static index_t bytes_a_part(index_t of_table, index_t width) noexcept {
    return capped_sum(of_table < 4096 ? 4096 : 20480, capped_product(width, 8));
  }

 private:
  struct place {
    part_groups* made;
    alignas(part_groups) std::byte bytes[sizeof(part_groups)];
  };

  // Where a part begins.
  static index_t offset_of(const part_sizes& part, index_t of_table, index_t width, index_t number) noexcept {
    return capped_sum(capped_round_up(capped_product(part.earlier, bytes_a_position(width)), 64),
                      capped_product(number, capped_round_up(bytes_a_part(of_table, width), 64) + 64));
  }

  batch_groups_size table_;
  index_t width_;
  std::span<place> places_;
  std::byte* memory_;
};

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
