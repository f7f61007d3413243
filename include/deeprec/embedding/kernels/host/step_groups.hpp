// One optimizer step for every row of a backward pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <deeprec/core/config.hpp>
#include <deeprec/core/contract.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/detail/row_elements.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/update_args.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/optim/apply_row_kernels.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/kernels/host/split_values.inl"
#include <deeprec/simd/foreach_region.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/kernels/host/update.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Format>
inline constexpr bool has_trainable_rows =
    std::is_same_v<typename Format::element, float> || std::is_same_v<typename Format::element, f16> ||
    std::is_same_v<typename Format::element, bf16> || std::is_same_v<typename Format::element, split_float>;

/// Calls before_step of the source, where it has one, for the rows of the groups [begin, end) for which
/// takes(positions).
template <RowSource Source, class Takes>
void observe_step([[maybe_unused]] const Source& source, [[maybe_unused]] const batch_groups& grouped,
                  [[maybe_unused]] index_t begin, [[maybe_unused]] index_t end,
                  [[maybe_unused]] const Takes& takes) {
  if constexpr (ObservedRowSource<Source>) {
    constexpr index_t most = 128;
    std::byte* rows[most];
    index_t occurrences[most];
    const index_t* const starts = grouped.groups().starts();
    const group_rows row_of = grouped.rows();
    index_t n = 0;
    for (index_t group = begin; group < end; ++group) {
      const index_t positions = starts[group + 1] - starts[group];
      if (!takes(positions)) continue;
      rows[n] = row_of.address(group);
      occurrences[n] = positions;
      if (++n < most) continue;
      source.before_step(rows, occurrences, n);
      n = 0;
    }
    if (n > 0) source.before_step(rows, occurrences, n);
  }
}

/// The arguments of the kernels of step_short_groups and step_long_groups.
template <RowSource Source>
update_args<typename Source::format_type> update_args_of(const batch_groups& grouped,
                                                         const backward_pass& pass, const Source& source,
                                                         float max_norm) {
  return {grouped.rows(), pass.gradients(), pass.pooled(), max_norm, source.format()};
}

/// Steps the rows of groups of up to chunk_positions positions. max_norm: the norm that lookups scaled rows
/// down to; 0: none. No allocation.
template <class Context, RowSource Source, class Optimizer, class Rounding>
DEEPREC_PER_UNIT void step_short_groups(const Context& ctx, const batch_groups& grouped,
                                        const backward_pass& pass, const Source& source, float max_norm,
                                        const Optimizer& optimizer, Rounding rounding) {
  using element = typename Source::format_type::element;
  const row_groups& groups = grouped.groups();
  if (groups.groups() == 0 || source.format().width() == 0) return;
  DEEPREC_EXPECTS(grouped.has_distinct_rows());  // keys that share a row: the source must number its rows
  const auto args = update_args_of(grouped, pass, source, max_norm);
  const auto rows = prepare(optimizer);
  // A row is read and written; the gradients of its positions are read.
  const kernel_tuning& tuning = *ctx.tuning;
  const auto& format = args.format;
  const double ns = 2 * ns_of_row(tuning, grouped.table_rows(), format.stride_bytes()) *
                        static_cast<double>(groups.groups()) +
                    ns_of_bytes(tuning, groups.size() * format.width() * index_t{sizeof(float)});
  // The first fetches of a piece have no work to hide their latency: large pieces, but enough of them.
  const index_t large = std::clamp(groups.groups() / 64, index_t{64}, index_t{1024});
  const index_t grain = (std::max)(grain_for(tuning, groups.groups(), ns), large);
  run_bulk(ctx, {groups.groups(), grain, ns}, [&](index_t begin, index_t end, int worker) {
    observe_step(source, grouped, begin, end, [](index_t positions) { return positions <= chunk_positions; });
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      update_rows<element, Optimizer>(region, rows, rounding, args, begin, end, pass.sums_of(worker));
    });
  });
}

/// The same, of groups of more positions.
template <class Context, RowSource Source, class Optimizer, class Rounding>
DEEPREC_PER_UNIT void step_long_groups(const Context& ctx, const batch_groups& grouped,
                                       const backward_pass& pass, const Source& source, float max_norm,
                                       const Optimizer& optimizer, Rounding rounding) {
  using element = typename Source::format_type::element;
  const row_groups& groups = grouped.groups();
  if (groups.size() <= chunk_positions || source.format().width() == 0) return;
  const auto args = update_args_of(grouped, pass, source, max_norm);
  const auto rows = prepare(optimizer);
  for (index_t group = groups.first_repeated(); group < groups.groups(); ++group) {
    const index_t* const starts = groups.starts() + group;
    if (starts[1] - starts[0] <= chunk_positions) continue;
    observe_step(source, grouped, group, group + 1, [](index_t) { return true; });
    gradient_args pooled = args.gradient;
    pooled.ranges = detail::offset_ranges<index_t>{starts, -1, -1};
    pooled.out = pass.sums_of(0);
    pool_long_bag<float, gradient_policy>(ctx, pooled, 0, pass.long_bags());
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      update_row<element, Optimizer>(region, rows, rounding, args, group, pass.sums_of(0));
    });
  }
}

/// Both.
template <class Context, RowSource Source, class Optimizer, class Rounding>
DEEPREC_PER_UNIT void step_groups(const Context& ctx, const batch_groups& grouped, const backward_pass& pass,
                                  const Source& source, float max_norm, const Optimizer& optimizer,
                                  Rounding rounding) {
  step_short_groups(ctx, grouped, pass, source, max_norm, optimizer, rounding);
  step_long_groups(ctx, grouped, pass, source, max_norm, optimizer, rounding);
}

/// shape_mismatch where the rows of a format have no room for the state of an optimizer, unsupported where
/// they hold another one's.
template <class Optimizer, class Format>
status check_state_of(const Format& format) noexcept {
  const index_t needed = state_floats_of<Optimizer>(format.width());
  if (format.state_floats() >= needed) {
    const std::string_view owner = state_owner_of(format);
    if (needed == 0 || owner.empty() || optimizer_name<Optimizer>.empty() ||
        owner == optimizer_name<Optimizer>) {
      return {};
    }
    return {errc::unsupported,
            "update: the state of the rows must be this optimizer's (it is that of format().state_owner())"};
  }
  return {errc::shape_mismatch,
          "update: the rows must have room for the optimizer's state: dense_table(rows, width, "
          "state_of<optimizer>), or row_layout::state_floats",
          {.is = format.state_floats(), .must_be = needed}};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
