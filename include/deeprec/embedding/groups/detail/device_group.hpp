// The features of a group whose batches are in device memory, and the lookups of one launch, with the blocks
// of the grid that belong to each table.
//
//   blocks    |  table 0  |1|   table 2    |3|        a block finds its table by bisection of first_block
#pragma once

#include <limits>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/device/device_pool.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/embedding/tables/table_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Tables of one launch: as many as fit the 32 KB of a kernel's arguments.
inline constexpr int tables_at_once = 96;

template <class Bags, class Out>
struct device_feature {
  using task_type = pool_task<typename Bags::id_type, decltype(std::declval<const Bags&>().ranges()), Out>;
  task_type task;
  chosen_rules rules;
  index_t* skipped;
  int vec;             // columns that a lane reads at once, if the output allows it; 1: one
  bool takes_weights;  // false for combiner::max
  bool positive;       // prunes weights
};

template <class Bags, class Out, class Source, class Pooling>
device_feature<Bags, Out> device_feature_of(const Source& table, const Pooling& pooling) {
  static_assert(DirectRowSource<Source>,
                "deeprec::feature_group: this row source has no device form. Fix: pass a table_view.");
  static_assert(
      reachable_as<typename Source::space, device_space>,
      "deeprec::feature_group: a table in host memory in a group of batches in device memory. Fix: copy "
      "it to the device and use a view with device_space.");
  using element = typename Source::format_type::element;
  using rules = rules_of<Pooling>;
  using feature = device_feature<Bags, Out>;
  feature made{};
  made.task = task_of<typename feature::task_type>(table, pooling, true);
  made.rules = {rules::adding(), rules::filtered(), rules::clips(), rules::checks(), rules::prunes()};
  made.skipped = skip_counter_of(pooling);
  made.vec = rows_fit_lanes<element, group_columns>(made.task.table, made.task.stride, made.task.parts,
                                                    made.task.width)
                 ? group_columns
                 : 1;
  made.takes_weights = rules::adding();
  made.positive = made.task.positive_weights;
  return made;
}

/// One lookup of a launch of many.
template <class Task>
struct group_entry {
  Task task;
  chosen_rules rules;
  short lanes;
  short panels;
  bool wide;  // group_columns at a time; else one
};

/// The rules of the most frequent lookups: adding, all ids checked and used.
using plain_rules = fixed_rules<true, false, false, true, false>;

/// True for a lookup by plain_rules of floats, 16 bytes at a time.
template <class Task>
bool is_plain(const group_entry<Task>& entry) noexcept {
  const chosen_rules& r = entry.rules;
  return entry.wide && entry.task.parts.kind == element_kind::f32 && r.adds && !r.filters && !r.clips_rows &&
         r.checks_ids && !r.prunes_ids;
}

/// A launch of many lookups, as a kernel's argument.
template <class Task>
struct group_launch {
  int tables;
  unsigned first_block[tables_at_once + 1];
  group_entry<Task> entries[tables_at_once];
};

/// The table that a block works for.
DEEPREC_HD inline int table_of_block(const unsigned* first_block, int tables, unsigned block) {
  int low = 0;
  for (int high = tables; high - low > 1;) {
    const int middle = (low + high) / 2;
    (first_block[middle] <= block ? low : high) = middle;
  }
  return low;
}

/// Checks the shapes of a lookup of a group and fills its entry. Sets `units` to teams * panels.
template <class Bags, class Out>
status make_entry(const device_feature<Bags, Out>& feature, const Bags& bags,
                  matrix_view<Out, device_space> out,
                  group_entry<typename device_feature<Bags, Out>::task_type>& entry, index_t& units) {
  if (const status s = check_pool_shapes(feature.task.width, bags, true, feature.takes_weights, out); !s) {
    return s;
  }
  if (feature.rules.clips() && !(feature.task.max_norm > 0.0F))
    return {errc::invalid_value, "pooling: max_norm must be above 0"};
  if (!has_table_memory(feature.task.table, feature.task.rows, feature.task.width))
    return table_memory_fault(feature.task.rows);
  if (const status s = device_shapes(bags); !s) return s;
  if (feature.task.empty == when_empty::default_row) {
    if (const status s = check_default_row_id(feature.task.default_row, feature.task.rows); !s) return s;
  }
  entry.task = feature.task;
  entry.rules = feature.rules;
  set_bags(entry.task, bags);
  entry.task.positive_weights = feature.positive && bags.weights() != nullptr;
  entry.task.out = out.data_handle();
  entry.task.out_stride = out.stride(0);
  entry.wide =
      feature.vec > 1 && out_fits_lanes(out.data_handle(), out.stride(0), feature.task.width, feature.vec);
  const lane_shape shape = lanes_of(feature.task.width, entry.wide ? feature.vec : 1);
  entry.lanes = static_cast<short>(shape.lanes);
  entry.panels = static_cast<short>(shape.panels);
  if (shape.panels > (std::numeric_limits<short>::max)())
    return {errc::unsupported, "lookup: the row width D must fit 31 bits"};
  units = out.empty() ? 0 : bags.bags() * shape.panels;
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
