// Arguments of the lookup kernels on a device: the rules of the pooling, pointers and sizes, and the storage
// for the sums of the chunks of long bags. The kernels that use them are in device_pool.hpp.
//
//   positions  | chunk 0 | chunk 1 | chunk 2 |      device_chunk positions each
//   records    | 0    1  | 2    3  | 4    5  |      two for each: see chunk_sums
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/device/device_rows.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/exec/cuda/device_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline constexpr index_t device_chunk = 256;
inline constexpr index_t device_long_bag = 2 * device_chunk;
/// Batches of fewer ids have no chunks: a second launch costs more than the longest bag of such a batch.
inline constexpr index_t device_chunked_batch = 1 << 14;

/// Bags that a team takes together where most have one id: each alone is a chain of three waits for memory.
inline constexpr int short_bags_at_once = 4;

/// The rules of a pooling for each id, known at compile time ...
template <bool Adding, bool Filtered, bool Clips, bool Checks, bool Prunes>
struct fixed_rules {
  DEEPREC_HD static constexpr bool adding() { return Adding; }
  DEEPREC_HD static constexpr bool filtered() { return Filtered; }
  DEEPREC_HD static constexpr bool clips() { return Clips; }
  DEEPREC_HD static constexpr bool checks() { return Checks; }
  DEEPREC_HD static constexpr bool prunes() { return Prunes; }
};
/// ... or at run time, for a kernel that many tables share.
struct chosen_rules {
  bool adds = true, filters = false, clips_rows = false, checks_ids = true, prunes_ids = false;
  DEEPREC_HD bool adding() const { return adds; }
  DEEPREC_HD bool filtered() const { return filters; }
  DEEPREC_HD bool clips() const { return clips_rows; }
  DEEPREC_HD bool checks() const { return checks_ids; }
  DEEPREC_HD bool prunes() const { return prunes_ids; }
};

template <class Pooling>
using rules_of = fixed_rules<kernel_policy<Pooling>::folding == fold::add,
                             kernel_policy<Pooling>::ids == ids_are::filtered, kernel_policy<Pooling>::clips,
                             std::is_same_v<typename Pooling::bounds_mode, bounds::check_t>, prunes<Pooling>>;

/// Counts of a chunk of a long bag, in addition to the D floats of its sum.
struct chunk_count {
  index_t bag;           // -1: the chunk belongs to no long bag
  index_t bad_position;  // -1: none
  index_t used;
  index_t stray;
  double weight_sum;
  double weight_squares;
};

/// Two records for each chunk of positions: for the bag that holds its first position, and for the bag that
/// begins inside the chunk and holds its last position.
struct chunk_sums {
  float* sums;  // (2 * chunks, D); null: no bag is long
  chunk_count* counts;

  DEEPREC_HD static constexpr index_t records(index_t positions) {
    return 2 * ((positions + device_chunk - 1) / device_chunk);
  }
  /// The record of a bag's part of a chunk.
  DEEPREC_HD static constexpr index_t record(index_t chunk, index_t bag_begin) {
    return 2 * chunk + (bag_begin > chunk * device_chunk ? 1 : 0);
  }
};

/// Arguments of a lookup kernel.
template <class Id, class Borders, class Out>
struct pool_task {
  const std::byte* table;
  index_t stride;
  index_t rows;
  index_t width;
  device_parts parts;
  const Id* ids;
  Borders ranges;
  const float* weights;
  bool positive_weights;
  index_t bags;
  index_t id_count;
  std::int64_t padding;      // -1 when there is none
  std::int64_t default_row;  // -1 when there is none
  float max_norm;
  Out* out;
  index_t out_stride;
  divide_by divide;
  when_empty empty;
  when_stored stored;
  index_t number;  // of the table, for faults; -1: there is only one
  device_fault* fault;
  unsigned long long* skipped;  // null: not counted
  chunk_sums chunks;
  bool has_padding;

  DEEPREC_HD DEEPREC_INLINE const std::byte* row(std::int64_t id) const { return table + id * stride; }
  /// True where row_by_32_bits() and is_bad_row() can be called.
  bool fits_32_bits() const noexcept { return rows >> 32 == 0 && stride >> 32 == 0; }
  DEEPREC_HD DEEPREC_INLINE const std::byte* row_by_32_bits(Id id) const {
    return table +
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(id)) * static_cast<std::uint32_t>(stride);
  }
  DEEPREC_HD DEEPREC_INLINE bool is_bad_row(Id id) const {
    const auto bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(id));
    return (bits >> 32) != 0 || static_cast<std::uint32_t>(bits) >= static_cast<std::uint32_t>(rows);
  }
  DEEPREC_HD DEEPREC_INLINE bool absent(Id id, float weight) const {
    return is_absent(id, rows, padding) || (positive_weights && !(weight > 0.0F));
  }
  /// True for an id that is a fault where ids are checked, and is counted by skip.
  template <class Rules>
  DEEPREC_HD DEEPREC_INLINE bool stray(const Rules& rules, Id id) const {
    const auto as_signed = static_cast<std::int64_t>(id);
    return is_bad_id(id, rows) && !(std::is_signed_v<Id> && rules.prunes() && as_signed < 0) &&
           !(has_padding && as_signed == padding);
  }
  /// True for what is reported where ids are checked: a stray id, or a NaN weight of an id that isn't absent.
  template <class Rules>
  DEEPREC_HD DEEPREC_INLINE bool bad(const Rules& rules, Id id, float weight) const {
    return stray(rules, id) || (is_nan(weight) && !(rules.filtered() && absent(id, weight)));
  }
};

/// A task with the fields that table and pooling determine; batch, output and stream are set later.
template <class Task, class Source, class Pooling>
Task task_of(const Source& table, const Pooling& pooling, bool weighted) {
  using element = typename Source::format_type::element;
  Task task{};
  task.table = table.data();
  task.stride = table.format().stride_bytes();
  task.rows = table.rows();
  task.width = table.format().width();
  static_cast<row_parts&>(task.parts) = parts_of(table.format());
  task.parts.kind = kind_of_element<element>;
  task.positive_weights = weighted && prunes_weights<Pooling>;
  task.padding = padding_of(pooling);
  task.has_padding = std::is_same_v<typename Pooling::padding_mode, padding::id>;
  if constexpr (fills<Pooling>) {
    task.default_row = pooling.template get<empty_bag::default_row>().id;
  }
  if constexpr (std::is_same_v<typename Pooling::norm_mode, max_norm>) {
    task.max_norm = pooling.template get<max_norm>().cap;
  }
  task.divide = divisor_of<typename Pooling::combiner>();
  task.empty = empty_of<Pooling>();
  task.stored = stored_of<Pooling>();
  task.number = -1;
  return task;
}

/// Checks of a batch in device memory that don't read it.
template <class Bags>
status device_shapes(const Bags& bags) {
  if (bags.bags() < 0 || bags.id_count() < 0) {
    return {errc::shape_mismatch, "jagged_view: numbers of bags and ids must not be negative"};
  }
  if (bags.id_count() > 0 && bags.ids() == nullptr)
    return {errc::shape_mismatch, "jagged_view: ids must not be null"};
  if constexpr (requires { bags.offsets(); }) {
    if (bags.bags() > 0 && bags.offsets() == nullptr)
      return {errc::shape_mismatch, "jagged_view: offsets must not be null"};
  }
  return {};
}

/// The same, and of the table.
template <class Source, class Bags>
status device_shapes(const Source& table, const Bags& bags) {
  if (const status s = check_source(table); !s) return s;
  return device_shapes(bags);
}

/// Sets the batch of a task.
template <class Task, class Bags>
void set_bags(Task& task, const Bags& bags) {
  task.ids = bags.ids();
  task.ranges = bags.ranges();
  task.weights = bags.weights();
  task.bags = bags.bags();
  task.id_count = bags.id_count();
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
