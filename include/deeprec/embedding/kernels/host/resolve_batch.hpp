// The steps of a resolution (resolution.hpp) in turn, on the threads of a context.
//
//   opened ──> examine, in pieces ──> admit absent keys, examine again where rows have moved ──> finish
#pragma once

#include <memory_resource>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/first_fault.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

// Loops that compilers may vectorise have the compiler flags of their unit in their names, as kernels do.
inline namespace DEEPREC_UNIT {

template <class Context, class Resolution>
DEEPREC_INLINE void examine_all(const Context& ctx, Resolution& rows, first_position& bad) {
  const double ns = ns_of_examination(rows.positions(), Resolution::is_direct);
  run_bulk(ctx, {rows.positions(), check_positions_at_once, ns},
           [&](index_t begin, index_t end, int) { rows.examine(ctx.instruction_set, begin, end, bad); });
}

/// Inserts the keys that a batch's source does not hold, and examines the batch again.
template <class Context, class Resolution>
status admit_absent(const Context& ctx, Resolution& rows, first_position& bad) {
  using source_type = typename Resolution::source_type;
  using id_type = typename Resolution::id_type;
  if constexpr (StableGrowingRowSource<source_type, id_type>) {
    std::pmr::vector<id_type> absent(ctx.memory);
    rows.list_absent(absent);
    if (!absent.empty()) {
      std::pmr::vector<const std::byte*> places(absent.size(), ctx.memory);
      executor_ref executor(*ctx.executor);
      const context<executor_ref> erased(executor, static_cast<const environment&>(ctx));
      const auto insert = [&] {
        [[maybe_unused]] const auto held = rows.hold_found();
        return rows.source().insert(erased, absent.data(), static_cast<index_t>(absent.size()),
                                    places.data());
      };
      if (const status s = insert(); !s) return s;
      rows.place_admitted(places.data());
    }
  } else if constexpr (GrowingRowSource<source_type, id_type>) {
    std::pmr::vector<id_type> absent(ctx.memory);
    rows.list_absent(absent);
    if (!absent.empty()) {
      rows.drop_guard();
      if (const status s = rows.source().insert(absent.data(), static_cast<index_t>(absent.size())); !s) {
        return s;
      }
      rows.take_guard();
      rows.end_admission();
      examine_all(ctx, rows, bad);
      return {};
    }
  }
  rows.judge_all(bad);
  return {};
}

/// Resolves an opened batch whose addresses have their place.
template <class Context, class Resolution>
DEEPREC_INLINE status resolve_opened(const Context& ctx, Resolution& rows) {
  if constexpr (Resolution::examines) {
    first_position bad;
    examine_all(ctx, rows, bad);
    if (const status s = rows.found(); !s) return s;
    if (rows.admits()) {
      if (const status s = admit_absent(ctx, rows, bad); !s) return s;
    }
    if (const status s = rows.fault(bad); !s) return s;
  }
  return rows.finish();
}

}  // namespace DEEPREC_UNIT
}}}  // namespace deeprec::DEEPREC_ABI::detail
