// A call of update on the host: its sizes and times, and the way by parts of the table.
#pragma once

#include <algorithm>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/step_groups.hpp>
#include <deeprec/embedding/kernels/host/table_parts.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A call of update on the host: sizes and times.
template <class Rows>
struct update_job {
  const Rows& rows;
  index_t width;

  /// Whether parts of the table may be updated apart from each other.
  [[nodiscard]] bool in_parts() const noexcept {
    if constexpr (!is_resolved<Rows> && DirectRowSource<typename Rows::source_type>) {
      return !groups_size(rows).by_ordinal();
    } else {
      return false;
    }
  }
  [[nodiscard]] double ns(const kernel_tuning& tuning) const noexcept {
    return ns_of_update(tuning, grouped_positions(rows.bags(), rows.pooling()), rows.source().rows(),
                        rows.source().format().stride_bytes());
  }
  template <class Context>
  [[nodiscard]] backward_size size_on(const Context& ctx) const noexcept {
    return {.positions = grouped_positions(rows.bags(), rows.pooling()),
            .width = width,
            .workers = static_cast<index_t>(ctx.executor->concurrency())};
  }
  /// Upper bound; reads offsets.
  template <class Context>
  [[nodiscard]] index_t scratch_bytes(const Context& ctx) const noexcept {
    const index_t pass = backward_pass::bytes_for(size_on(ctx));
    if constexpr (is_resolved<Rows>) {
      return pass;
    } else {
      const index_t whole = capped_sum(pass, capped_sum(rows.address_bytes(), group_bytes(rows)));
      return (std::max)(whole, bytes_of_parts(ctx));
    }
  }

 private:
  template <class Context>
  [[nodiscard]] index_t bytes_of_parts(const Context& ctx) const noexcept {
    if constexpr (DirectRowSource<typename Rows::source_type>) {
      if (!in_parts()) return 0;
      const backward_size size = size_on(ctx);
      const index_t parts = table_part::most_parts(ctx, rows.source().rows(), ns(*ctx.tuning));
      return parts < 2 ? 0 : parts_memory::bytes_for(size.positions, size.width, parts);
    }
    return 0;
  }
};

/// The whole update of each part on one thread, then the rows of many positions on all.
template <class Context, class Rows, class Resolution, class Optimizer, class Rounding>
DEEPREC_PER_UNIT void update_in_parts(const Context& ctx, const update_job<Rows>& job, const Resolution& rows,
                                      matrix_view<const float> gradient, const Optimizer& optimizer,
                                      const Rounding& rounding, index_t parts, scratch_block& scratch) {
  const backward_size size = job.size_on(ctx);
  parts_memory memory(scratch, groups_size(job.rows), size.width, parts);
  run_bulk_in_parts(ctx, {parts, 1, job.ns(*ctx.tuning)}, [&](index_t begin, index_t end, int) {
    inline_executor here;
    const auto alone = ctx.rebind(here);
    for (index_t p = begin; p < end; ++p) {
      const table_part part(p, parts);
      part_sizes of_part;
      of_part.add(rows, part);
      part_groups& groups = memory.make(p, of_part);
      groups.add(rows, gradient, part);
      groups.group(alone);
      step_short_groups(alone, groups.groups(), groups.pass(), rows.source(), max_norm_of(rows.pooling()),
                        optimizer, rounding);
    }
  });
  if (size.positions <= chunk_positions) return;
  for (index_t p = 0; p < parts; ++p) {
    step_long_groups(ctx, memory[p].groups(), memory[p].pass(), rows.source(), max_norm_of(rows.pooling()),
                     optimizer, rounding);
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
