// The positions of resolved batches grouped by row, for backward passes: one group for each row that the
// batches use.
//
//   direct tables     sorted by row number, where row number and position fit one 64-bit key
//   numbered sources  the same, by the numbers that the source gives its rows
//   other sources     sorted by ordinal: rows are numbered in the order of their first position
//
// Where several features share a table, the positions of all their batches are numbered consecutively, so
// each row has one group. A bag that becomes the default row has one more position, after those of its batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/kernels/host/batch_rows.hpp>
#include <deeprec/embedding/kernels/host/row_groups.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/key_hash.hpp>
#include <deeprec/support/number_keys.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail { inline namespace DEEPREC_UNIT {

/// Sizes that determine the memory of batch_groups.
struct batch_groups_size {
  index_t positions = 0;  // of all batches, default rows included
  index_t rows = 0;       // of the table, or the numbers of a source; -1: keys have no bound
  bool is_direct = true;  // else the addresses of rows are kept
  const std::byte* base = nullptr;
  index_t stride = 0;

  /// A large number where it is not known.
  [[nodiscard]] index_t table_rows() const noexcept {
    return rows < 0 || !is_direct ? (std::numeric_limits<index_t>::max)() : rows;
  }
  [[nodiscard]] bool by_ordinal() const noexcept { return rows < 0 || !row_groups::fits(positions, rows); }
  [[nodiscard]] bool keeps_addresses() const noexcept { return !is_direct || by_ordinal(); }
};

/// The upper bound of the positions that a batch adds.
template <class Bags, class Pooling>
index_t grouped_positions(const Bags& bags, const Pooling&) noexcept {
  return capped_sum(most_positions(bags), fills<Pooling> ? (std::max)(bags.bags(), index_t{0}) : 0);
}

template <class Resolution>
inline constexpr bool leaves_out_ids =
    kernel_policy<typename Resolution::pooling_type>::ids == ids_are::filtered || Resolution::is_keyed;

/// Whether every position is in a group, and nothing else.
template <class Resolution>
inline constexpr bool uses_all = !leaves_out_ids<Resolution> && !fills<typename Resolution::pooling_type> &&
                                 !requires(const Resolution& resolved) { resolved.source().default_row(); };

/// The size for batches of a source, without positions.
template <RowSource Source>
batch_groups_size groups_of_source(const Source& source) noexcept {
  batch_groups_size size{.rows = -1, .is_direct = DirectRowSource<Source>};
  if constexpr (DirectRowSource<Source>) {
    size.rows = source.rows();
    size.base = source.data();
    size.stride = source.format().stride_bytes();
  } else if constexpr (NumberedRowSource<Source>) {
    size.rows = source.row_numbers();
  }
  return size;
}
/// The size for one batch.
template <class Rows>
batch_groups_size groups_size(const Rows& rows) noexcept {
  batch_groups_size size = groups_of_source(rows.source());
  size.positions = grouped_positions(rows.bags(), rows.pooling());
  return size;
}

/// The row of each group, for kernels. Passed by value: a compiler must assume that a store changes what a
/// reference refers to.
struct group_rows {
  group_keys keys;
  const std::byte* base;
  index_t stride;
  const std::byte* const* addresses;  // of a position; null: rows by arithmetic on their numbers
  const index_t* numbers;             // the same

  [[nodiscard]] DEEPREC_INLINE std::byte* address(index_t group) const noexcept {
    const std::byte* const row =
        addresses == nullptr ? base + keys.row(group) * stride : addresses[keys.first_position(group)];
    return const_cast<std::byte*>(row);
  }
  /// The number of the row of a group: its id, or its key.
  [[nodiscard]] DEEPREC_INLINE index_t number(index_t group) const noexcept {
    return numbers == nullptr ? keys.row(group) : numbers[keys.first_position(group)];
  }
};

/// Whether the row of a position gets its gradient. row_at: resolved.rows().
template <class Resolution>
DEEPREC_INLINE bool is_used_position(const Resolution& resolved, const typename Resolution::rows_type& row_at,
                                     index_t position) {
  if constexpr (leaves_out_ids<Resolution>) {
    if (row_at.absent(position)) return false;
  }
  if constexpr (requires { resolved.source().default_row(); }) {
    if (row_at(position) == resolved.source().default_row()) return false;
  }
  return true;
}
/// Whether a bag became the default row: it has no present id.
template <class Resolution>
DEEPREC_INLINE bool is_filled_bag(const Resolution& resolved, const typename Resolution::rows_type& row_at,
                                  index_t bag) {
  const auto ranges = resolved.bags().ranges();
  for (index_t k = ranges.begin(bag); k < ranges.end(bag); ++k) {
    if (!leaves_out_ids<Resolution> || !row_at.absent(k)) return false;
  }
  return true;
}
/// The number of the row of empty bags; -1: none.
template <class Resolution>
index_t default_number(const Resolution& resolved) {
  if constexpr (fills<typename Resolution::pooling_type>) {
    return static_cast<index_t>(resolved.pooling().template get<empty_bag::default_row>().id);
  } else {
    return -1;
  }
}

class batch_groups {
 public:
  batch_groups(std::pmr::memory_resource* memory, const batch_groups_size& size)
      : block_(memory, bytes_for(size)), size_(size) {
    take();
  }
  /// Uses bytes_for(size) bytes that the caller owns.
  batch_groups(std::byte* place, const batch_groups_size& size)
      : block_(place, bytes_for(size)), size_(size) {
    take();
  }

  static index_t bytes_for(const batch_groups_size& size) noexcept {
    const index_t n = size.positions;
    const index_t sorted = row_groups::bytes_for(n);
    if (!size.keeps_addresses()) return sorted;
    const index_t kept = capped_sum(sorted, capped_sum(scratch_block::bytes_of<const std::byte*>(n),
                                                       scratch_block::bytes_of<index_t>(n)));
    if (!size.by_ordinal()) return kept;
    const index_t words = scratch_block::bytes_of<std::uint32_t>(n);
    const index_t table =
        scratch_block::bytes_of<std::uint32_t>(static_cast<index_t>(key_entries((std::min)(n, most_keys))));
    index_t bytes = kept;
    for (const index_t part : {words, words, words, words, table}) bytes = capped_sum(bytes, part);
    return bytes;
  }

  /// Adds the positions of a batch; returns the number of its first position.
  template <class Context, class Resolution>
  index_t add(const Context& ctx, const Resolution& resolved) {
    const index_t number = numbered_;
    const index_t positions = resolved.positions();
    constexpr bool fills_bags = fills<typename Resolution::pooling_type>;
    numbered_ += positions + (fills_bags ? resolved.bags().bags() : 0);
    const auto row_at = resolved.rows();
    const index_t first = resolved.bags().first_position();
    const auto is_used = [&](index_t position) { return is_used_position(resolved, row_at, position); };
    const auto is_filled = [&](index_t bag) { return is_filled_bag(resolved, row_at, bag); };
    if (!size_.keeps_addresses()) {
      if constexpr (Resolution::is_direct && uses_all<Resolution>) {
        groups_.add_all(ctx, number, positions, [ids = resolved.bags().ids() + first](index_t k) {
          return static_cast<index_t>(id_number(ids[k]));
        });
      } else if constexpr (Resolution::is_direct) {
        groups_.add(ctx, number, numbered_ - number, [&](index_t k) {
          if constexpr (fills_bags) {
            if (k >= positions) {
              return is_filled(k - positions) ? default_number(resolved) : index_t{-1};
            }
          }
          return is_used(first + k) ? resolved.number(first + k) : index_t{-1};
        });
      }
      return number;
    }
    const index_t count = numbered_ - number;
    const auto is_grouped = [&](index_t k) {
      return k >= positions ? is_filled(k - positions) : is_used(first + k);
    };
    const bool by_ordinal = size_.by_ordinal();
    run_bulk(ctx, {count, index_t{1} << 14, 3.0 * static_cast<double>(count)},
             [&](index_t begin, index_t end, int) {
               for (index_t k = begin; k < end; ++k) {
                 const bool at_bag = k >= positions;
                 const auto to = static_cast<std::size_t>(number + k);
                 if (by_ordinal) ordinals_[to] = is_grouped(k) ? 0 : in_no_group;
                 addresses_[to] = at_bag ? resolved.default_row() : row_at(first + k);
                 numbers_[to] = at_bag ? default_number(resolved) : resolved.number(first + k);
               }
             });
    if constexpr (!Resolution::is_direct && NumberedRowSource<typename Resolution::source_type>) {
      if (!by_ordinal) {
        groups_.add(ctx, number, count, [&](index_t k) {
          return is_grouped(k) ? static_cast<index_t>(resolved.source().row_number(
                                     addresses_[static_cast<std::size_t>(number + k)]))
                               : index_t{-1};
        });
      }
    }
    return number;
  }

  /// The same as of row_groups, where groups are not by ordinal.
  template <class Fill>
  index_t add_numbered(const Fill& fill) {
    return groups_.add_numbered(fill);
  }

  /// Groups the added positions.
  template <class Context>
  void group(const Context& ctx, group_order order) {
    ascending_ = order == group_order::ascending && !size_.keeps_addresses();
    if (!size_.by_ordinal()) {
      groups_.group(ctx, size_.rows, order);
      return;
    }
    const index_t rows = number_rows();
    groups_.add(ctx, 0, numbered_, [&](index_t k) {
      const std::uint32_t ordinal = ordinals_[static_cast<std::size_t>(k)];
      return ordinal == in_no_group ? index_t{-1} : index_t{ordinal};
    });
    groups_.group(ctx, rows, group_order::any);
  }

  [[nodiscard]] const row_groups& groups() const noexcept { return groups_; }
  [[nodiscard]] index_t table_rows() const noexcept { return size_.table_rows(); }
  /// Whether no row has two groups: true but for a keyed source of keys that share rows.
  [[nodiscard]] bool has_distinct_rows() const {
    if (addresses_.empty() || !size_.by_ordinal()) return true;
    std::vector<const std::byte*> each;
    for (index_t g = 0; g < groups_.groups(); ++g) each.push_back(rows().address(g));
    std::sort(each.begin(), each.end());
    return std::adjacent_find(each.begin(), each.end()) == each.end();
  }
  /// True where groups are in ascending order of their rows' numbers.
  [[nodiscard]] bool ascending() const noexcept { return ascending_; }

  /// The rows of the groups; valid as long as the groups.
  [[nodiscard]] group_rows rows() const noexcept {
    return {groups_.keys(), size_.base, size_.stride, addresses_.empty() ? nullptr : addresses_.data(),
            numbers_.empty() ? nullptr : numbers_.data()};
  }

 private:
  void take() {
    groups_.reserve(block_, size_.positions);
    if (!size_.keeps_addresses()) return;
    addresses_ = block_.take<const std::byte*>(size_.positions);
    numbers_ = block_.take<index_t>(size_.positions);
    if (!size_.by_ordinal()) return;
    if (size_.positions > most_keys) refuse_memory();
    ordinals_ = block_.take<std::uint32_t>(size_.positions);
    present_ = block_.take<std::uint32_t>(size_.positions);
    of_present_ = block_.take<std::uint32_t>(size_.positions);
    first_ = block_.take<std::uint32_t>(size_.positions);
    table_ = block_.take<std::uint32_t>(static_cast<index_t>(key_entries(size_.positions)));
  }

  // For number_keys: the k-th position in a group, by its row's number.
  struct row_numbers {
    const index_t* numbers;
    const std::uint32_t* present;
    std::uint32_t* first;  // position of an ordinal
    const key_seed& seed;
    std::uint32_t known = 0;

    [[nodiscard]] std::uint64_t hash(index_t k) const {
      return id_hash(seed, static_cast<std::uint64_t>(numbers[present[k]]));
    }
    [[nodiscard]] bool same(index_t k, std::uint32_t ordinal) const {
      return numbers[first[ordinal]] == numbers[present[k]];
    }
    void add(index_t k) { first[known++] = present[k]; }
    void again(std::uint32_t) {}
    void fetch(std::uint32_t ordinal) const { __builtin_prefetch(first + ordinal); }
  };

  // Numbers the rows in the order of their first position; returns how many there are.
  index_t number_rows() {
    index_t count = 0;
    for (index_t k = 0; k < numbered_; ++k) {
      if (ordinals_[static_cast<std::size_t>(k)] != in_no_group) {
        present_[static_cast<std::size_t>(count++)] = static_cast<std::uint32_t>(k);
      }
    }
    std::fill(table_.begin(), table_.end(), 0U);
    row_numbers keys{numbers_.data(), present_.data(), first_.data(), process_key_seed()};
    number_keys(table_, count, keys, of_present_.data());
    for (index_t k = 0; k < count; ++k) {
      ordinals_[present_[static_cast<std::size_t>(k)]] = of_present_[static_cast<std::size_t>(k)];
    }
    return keys.known;
  }

  static constexpr std::uint32_t in_no_group = static_cast<std::uint32_t>(-1);

  scratch_block block_;
  batch_groups_size size_;
  row_groups groups_;
  index_t numbered_ = 0;
  bool ascending_ = false;
  // Where rows are not found by arithmetic:
  std::span<const std::byte*> addresses_;  // of a position
  std::span<index_t> numbers_;
  // By ordinal only:
  std::span<std::uint32_t> ordinals_;    // of a position
  std::span<std::uint32_t> present_;     // positions in groups
  std::span<std::uint32_t> of_present_;  // their ordinals
  std::span<std::uint32_t> first_;
  std::span<std::uint32_t> table_;
};

/// Groups the positions of one resolved batch in scratch.
template <class Context, class Resolution>
batch_groups group_in(const Context& ctx, const Resolution& rows, group_order order, scratch_block& scratch) {
  const batch_groups_size size = groups_size(rows);
  batch_groups groups(scratch.take<std::byte>(batch_groups::bytes_for(size)).data(), size);
  groups.add(ctx, rows);
  groups.group(ctx, order);
  return groups;
}

/// Upper bound of the scratch that group_in takes for a batch.
template <class Rows>
index_t group_bytes(const Rows& rows) noexcept {
  return scratch_block::bytes_of<std::byte>(batch_groups::bytes_for(groups_size(rows)));
}

/// The groups of resolved rows, or of rows that were resolved in scratch, which are made in scratch.
template <class Context, class Rows, class Resolution>
decltype(auto) groups_of(const Context& ctx, const Rows& given, const Resolution& rows, group_order order,
                         scratch_block& scratch) {
  if constexpr (is_resolved<Rows>) {
    return given.groups(ctx, order);
  } else {
    return group_in(ctx, rows, order, scratch);
  }
}

}}}}  // namespace deeprec::DEEPREC_ABI::detail::DEEPREC_UNIT
