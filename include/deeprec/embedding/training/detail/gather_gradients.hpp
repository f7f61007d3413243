// row_gradients after its checks: the gradients of a batch by row, in order of the rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <numeric>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/kernels/host/backward.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/lookup_kernels.hpp>
#include <deeprec/embedding/kernels/host/pool_job.hpp>
#include <deeprec/embedding/kernels/host/pool_rules.hpp>
#include <deeprec/embedding/kernels/host/resolution.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/resolve.hpp>
#include <deeprec/embedding/tables/row_format.hpp>
#include <deeprec/embedding/training/sparse_gradient.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/overlap.hpp>
#include <deeprec/support/scratch_block.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A direct source of row numbers: rows without memory.
struct numbered_rows {
  using format_type = plain_rows<float>;
  using space = host_space;
  index_t count;

  [[nodiscard]] index_t rows() const noexcept { return count; }
  [[nodiscard]] const std::byte* data() const noexcept { return nullptr; }
  [[nodiscard]] format_type format() const noexcept { return {0}; }
};

template <class Pooling>
constexpr void check_row_gradients_pooling() {
  using combiner_type = typename Pooling::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::row_gradients: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(!kernel_policy<Pooling>::clips,
                "deeprec::row_gradients: the gradient through max_norm needs the table. Fix: update.");
}

inline constexpr gradient_texts row_gradients_texts{
    "row_gradients: gradient.extent(1) must be the row width D",
    "row_gradients: gradient.extent(0) must be the number of bags B",
    "row_gradients: gradient must not be null"};

/// The groups in ascending order of their rows' numbers; empty where they are in that order.
inline std::pmr::vector<index_t> groups_by_number(const batch_groups& grouped,
                                                  std::pmr::memory_resource* memory) {
  std::pmr::vector<index_t> order(memory);
  if (grouped.ascending()) return order;
  order.resize(static_cast<std::size_t>(grouped.groups().groups()));
  std::iota(order.begin(), order.end(), index_t{0});
  std::sort(order.begin(), order.end(),
            [rows = grouped.rows()](index_t a, index_t b) { return rows.number(a) < rows.number(b); });
  return order;
}

/// The body of both forms of row_gradients.
template <class Context, class Rows>
DEEPREC_PER_UNIT status gather_gradients(const Context& ctx, const Rows& given,
                                         matrix_view<const float> gradient, sparse_gradient& out) {
  const index_t width = gradient.extent(1);
  const backward_size size{
      .positions = grouped_positions(given.bags(), given.pooling()), .width = width, .workers = 0};
  index_t bytes = backward_pass::bytes_for(size);
  if constexpr (!is_resolved<Rows>) bytes = capped_sum(bytes, group_bytes(given));
  scratch_block block(ctx.memory, bytes);
  decltype(auto) rows = given.resolution();
  if constexpr (!is_resolved<Rows>) {
    if (const status s = resolve_in(ctx, rows, block); !s) return s;
  }
  decltype(auto) groups = groups_of(ctx, given, rows, group_order::ascending, block);
  if (shares_bytes(arrays_of(out), given.bags(), gradient)) {
    return {errc::unsupported, "row_gradients: out must not own memory of the inputs"};
  }
  backward_pass pass(block, size);
  pass.add(ctx, rows, gradient);
  pass.arrange(ctx, groups.groups());
  const std::pmr::vector<index_t> order = groups_by_number(groups, ctx.memory);
  const index_t count = groups.groups().groups();
  const auto floats = static_cast<std::size_t>(capped_product(count, width));
  out.rows.reserve(static_cast<std::size_t>(count));
  out.values.reserve(floats);
  rows.count_skipped();
  out.rows.resize(static_cast<std::size_t>(count));
  out.values.resize(floats);
  if (count == 0) return {};
  // The gradient of group g becomes row `rank`.
  const auto write = [&](index_t g, index_t rank, index_t n) {
    for (index_t i = 0; i < n; ++i) {
      out.rows[static_cast<std::size_t>(rank + i)] = groups.rows().number(g + i);
    }
    if (width == 0) return;
    gradient_args pooled = pass.pooled();
    pooled.out = out.values.data() + (rank - g) * width;
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      return pool_bags<float>(region, gradient_policy{}, pooled, g, g + n);
    });
  };
  const double ns = ns_of_row(*ctx.tuning, given.bags().bags(), width * index_t{sizeof(float)}) *
                    static_cast<double>(groups.groups().size());
  run_bulk(ctx, {count, 256, ns}, [&](index_t begin, index_t end, int) {
    if (order.empty()) return write(begin, begin, end - begin);
    for (index_t rank = begin; rank < end; ++rank) write(order[static_cast<std::size_t>(rank)], rank, 1);
  });
  if (width == 0 || groups.groups().size() <= chunk_positions) return {};
  const index_t* const starts = groups.groups().starts();
  for (index_t rank = 0; rank < count; ++rank) {
    const index_t g = order.empty() ? rank : order[static_cast<std::size_t>(rank)];
    if (starts[g + 1] - starts[g] <= chunk_positions) continue;
    gradient_args pooled = pass.pooled();
    pooled.out = out.values.data() + (rank - g) * width;
    pool_long_bag<float, gradient_policy>(ctx, pooled, g, pass.long_bags());
  }
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
