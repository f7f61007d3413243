// One optimizer step for every row of a planned backward pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/embedding/kernels/lookup_job.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/backward.hpp>
#include <deeprec/embedding/training/detail/row_groups.hpp>
#include <deeprec/embedding/training/detail/update_kernels.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/simd/dispatch.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Format>
inline constexpr bool has_trainable_rows =
    std::is_same_v<typename Format::element, float> || std::is_same_v<typename Format::element, f16> ||
    std::is_same_v<typename Format::element, bf16> || std::is_same_v<typename Format::element, split_float>;

/// max_norm: the norm that lookups scaled rows down to; 0: none. Uses the plan's memory; no allocation.
template <class Context, class Format, class Optimizer, class Rounding, class = detail::unit>
void step_groups(const Context& ctx, const backward_plan& plan, table_view<Format> table, float max_norm,
                 const Optimizer& optimizer, const Rounding& rounding) {
  using element = typename Format::element;
  const index_t width = table.width();
  const row_groups& groups = plan.groups();
  if (groups.groups() == 0 || width == 0) return;
  const update_args<Format> args{groups, plan.pooled(width), max_norm, table.data(), table.format()};
  const auto rows = prepare(optimizer);
  // The first fetches of a piece have no work to hide their latency: large pieces, but enough of them.
  const index_t piece = std::clamp<index_t>(groups.groups() / 32, 256, 4096);
  ctx.executor->parallel_for(groups.groups(), piece, [&](index_t begin, index_t end, int worker) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      update_rows<element, Optimizer>(region, rows, rounding, args, begin, end, plan.sums_of(worker));
    });
  });
  if (groups.size() <= chunk_positions) return;
  for (index_t group = 0; group < groups.groups(); ++group) {
    const index_t* const starts = groups.starts() + group;
    if (starts[1] - starts[0] <= chunk_positions) continue;
    gradient_args pooled = args.gradient;
    pooled.ranges = detail::offset_ranges<index_t>{starts, -1, -1};
    pooled.out = plan.sums_of(0);
    pool_long_bag<float, gradient_policy>(ctx, pooled, 0, plan.long_bags());
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      update_row<element, Optimizer>(region, rows, rounding, args, group, plan.sums_of(0));
    });
  }
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
