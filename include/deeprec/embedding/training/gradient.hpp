// Gradients of a pooled lookup that are returned instead of applied.
//
//   row_gradients(ctx, R, bags, pooling, g, out)   out.rows (U) ascending, out.values (U,D): one row for each
//                                                  row of the table that the batch used
//   weight_gradients(ctx, table, bags, pooling, g, out (N))
//
// g is the gradient of lookup's output (B,D), `pooling` the one that lookup was given. To apply row gradients
// directly, without storing them: update (update.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <numeric>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include <deeprec/core/batch_traits.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
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
#include <deeprec/embedding/tables/row_source.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/owns.hpp>
#include <deeprec/support/scratch_block.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/embedding/training/detail/position_dots.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The gradient of the rows of a table that a batch used. Keeps its memory when it is filled again.
///
/// @space   host; memory comes from the resource given to the constructor
/// @threads concurrent readers are safe; a writer needs exclusive access
struct sparse_gradient {
  explicit sparse_gradient(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : rows(memory), values(memory) {}

  std::pmr::vector<index_t> rows;  ///< (U), ascending
  std::pmr::vector<float> values;  ///< (U,D)

  /// (U,D)
  [[nodiscard]] matrix_view<const float> view(index_t width) const noexcept {
    return {values.data(), static_cast<index_t>(rows.size()), width};
  }
};

/// Sums of sparse gradients: a row that several of them have is there once.
template <>
struct batch_traits<sparse_gradient> {
  static void clear(sparse_gradient& sum) noexcept {
    sum.rows.clear();
    sum.values.clear();
  }
  /// sum += weight * part, for rows of the same width; allocates where the sum has more rows than ever.
  static void accumulate(sparse_gradient& sum, const sparse_gradient& part, float weight) {
    if (part.rows.empty()) return;
    const std::size_t width = part.values.size() / part.rows.size();
    std::size_t before = sum.rows.size(), added = part.rows.size(), all = 0;
    for (std::size_t i = 0, j = 0; i < before || j < added; ++all) {
      const bool from_sum = i < before && (j == added || sum.rows[i] <= part.rows[j]);
      const bool from_part = j < added && (i == before || part.rows[j] <= sum.rows[i]);
      i += from_sum ? 1 : 0;
      j += from_part ? 1 : 0;
    }
    sum.rows.resize(all);
    sum.values.resize(all * width);
    // From the last row on, so that no row is overwritten before it has moved.
    while (all > 0) {
      --all;
      const bool from_sum = before > 0 && (added == 0 || sum.rows[before - 1] >= part.rows[added - 1]);
      const bool from_part = added > 0 && (before == 0 || part.rows[added - 1] >= sum.rows[before - 1]);
      const index_t row = from_sum ? sum.rows[before - 1] : part.rows[added - 1];
      float* const to = sum.values.data() + all * width;
      const auto columns = static_cast<index_t>(width);
      if (from_sum && before - 1 != all) {
        std::copy_n(sum.values.data() + (before - 1) * width, width, to);
      }
      if (from_part) {
        const float* const values = part.values.data() + (added - 1) * width;
        if (from_sum) {
          detail::add_weighted(to, values, weight, columns);
        } else {
          detail::scale_into(to, values, weight, columns);
        }
      }
      sum.rows[all] = row;
      before -= from_sum ? 1 : 0;
      added -= from_part ? 1 : 0;
    }
  }
};

namespace detail {
inline auto arrays_of(const sparse_gradient& gradient) noexcept {
  return std::tie(gradient.rows, gradient.values);
}
}  // namespace detail

namespace detail {

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
  if (owns(arrays_of(out), given.bags(), gradient)) {
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

}  // namespace detail

/// The gradient of each row that a batch used.
///
/// @shape    table_rows R · bags as given to lookup · gradient of lookup's output (B,D) · out (U) and (U,D)
/// @dtype    f32
/// @space    host
/// @pre      out owns no memory of the inputs
/// @post     out.rows ascends; each row of the batch once
/// @numerics as update. The gradient with respect to the pooled rows: it does not flow through max_norm,
///           which needs the rows (rejected by a static_assert)
/// @cost     O(N*D) and a sort of the ids; allocates what out lacks, and about 50 bytes per id and per bag
///           and 4 * D per 4096 ids from the context's resource
/// @threads  reentrant
/// @error    as lookup; shape_mismatch for a null gradient; unsupported when out owns memory of the bags or
///           of the gradient. On an error out is as before
/// @example  @snippet tests/embedding/gradient_test.cpp row_gradients
template <class Context, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor, index_t table_rows, const Bags& bags,
                                      const Pooling& pooling, matrix_view<const float> gradient,
                                      sparse_gradient& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "row_gradients", detail::in_spaces<typename Bags::space>);
  if (!call) return call.stopped();
  detail::check_row_gradients_pooling<detail::pooling_for<Pooling>>();
  if (const status s =
          detail::check_gradient(gradient, gradient.extent(1), bags.bags(), detail::row_gradients_texts);
      !s) {
    return s;
  }
  if (table_rows < 0) return {errc::shape_mismatch, "row_gradients: table_rows must not be negative"};
  return detail::or_out_of_memory("row_gradients", [&] {
    return detail::gather_gradients(
        ctx, detail::unresolved_rows(detail::numbered_rows{table_rows}, bags, detail::as_pooling(pooling)),
        gradient, out);
  });
}

/// The same, for rows that were resolved; of a keyed source, out.rows are its keys.
///
/// @error as row_gradients, except for ids and weights
template <class Context, class Source, class Bags, class Pooling>
DEEPREC_PER_UNIT status row_gradients(Context&& context_or_executor,
                                      const resolved_rows<Source, Bags, Pooling>& rows,
                                      matrix_view<const float> gradient, sparse_gradient& out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "row_gradients");
  if (!call) return call.stopped();
  detail::check_row_gradients_pooling<Pooling>();
  if (const status s = detail::check_gradient(gradient, rows.source().format().width(), rows.bags().bags(),
                                              detail::row_gradients_texts);
      !s) {
    return s;
  }
  return detail::or_out_of_memory("row_gradients",
                                  [&] { return detail::gather_gradients(ctx, rows, gradient, out); });
}

namespace detail {

inline constexpr gradient_texts weight_gradients_texts{
    "weight_gradients: gradient.extent(1) must be the row width D",
    "weight_gradients: gradient.extent(0) must be the number of bags B",
    "weight_gradients: gradient must not be null"};

/// Checks the shapes of weight_gradients and runs it.
template <class Context, class Rows>
DEEPREC_PER_UNIT status check_and_dot(const Context& ctx, const Rows& rows,
                                      matrix_view<const float, space_for<Context>> gradient,
                                      std::span<float> out) {
  using combiner_type = typename Rows::pooling_type::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::weight_gradients: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(Storage<typename Rows::source_type::format_type::element>,
                "deeprec::weight_gradients: rows are not an array of floats. Fix: a table of plain_rows.");
  if (const status s = check_gradient(gradient, rows.source().format().width(), rows.bags().bags(),
                                      weight_gradients_texts);
      !s) {
    return s;
  }
  if (!out.empty() && out.data() == nullptr)
    return {errc::shape_mismatch, "weight_gradients: out must not be null"};
  if (const status s = check_max_norm(rows.pooling()); !s) return s.in_operation("weight_gradients");
  return or_out_of_memory("weight_gradients",
                          [&] { return weight_gradients_on(ctx.backend(), ctx, rows, gradient, out); });
}

}  // namespace detail

/// The gradient of each weight of a batch, as if every id had one.
///
/// @shape    table (R,D) · bags as given to lookup · gradient of lookup's output (B,D) · out (N): one for
///           each id of the bags, from the first offset to the last; ids behind it are in no bag
/// @dtype    rows f32, f16 or bf16; the rest f32
/// @space    host
/// @pre      out overlaps no input
/// @post     absent ids get 0
/// @numerics dot products in f32, one sum per vector lane; the sum over a bag in f64. Between ISAs
///           |err| <= 2 D u sum|x g|
/// @cost     O(N*D); no allocation, except for row sources other than tables: 8 bytes per id
/// @threads  reentrant; a concurrent writer of the table's rows is not safe
/// @error    as lookup; shape_mismatch for a null gradient or out. On an error nothing is written
/// @example  @snippet tests/embedding/gradient_test.cpp weight_gradients
template <class Context, RowSource Source, BagBatch Bags, class Pooling>
DEEPREC_PER_UNIT status weight_gradients(Context&& context_or_executor, const Source& table, const Bags& bags,
                                         const Pooling& pooling,
                                         matrix_arg<const float, space_for<Context>> gradient,
                                         std::span<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "weight_gradients",
                               detail::in_spaces<typename Source::space, typename Bags::space>);
  if (!call) return call.stopped();
  return detail::check_and_dot(ctx, detail::unresolved_rows(table, bags, detail::as_pooling(pooling)),
                               gradient, out);
}

/// The same, for rows that were resolved.
///
/// @error as weight_gradients, except for ids and weights
template <class Context, class Source, class Bags, class Pooling>
DEEPREC_PER_UNIT status weight_gradients(Context&& context_or_executor,
                                         const resolved_rows<Source, Bags, Pooling>& rows,
                                         matrix_arg<const float, space_for<Context>> gradient,
                                         std::span<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  const detail::verb_call call(ctx, "weight_gradients");
  if (!call) return call.stopped();
  return detail::check_and_dot(ctx, rows, gradient, out);
}

namespace detail {

// Turns the dot products of a bag into gradients, with the derivatives of the denominator.
template <class Args>
void divide_bag(const Args& args, detail::divide_by divide, index_t bag, float* of_position) {
  const auto weight_of = [&](index_t k) {
    return args.weights == nullptr ? 1.0 : static_cast<double>(args.weights[k]);
  };
  detail::pool_counts counts;
  double weighted = 0;  // gradient . pooled row, times the denominator
  for (index_t k = args.ranges.begin(bag); k < args.ranges.end(bag); ++k) {
    if (args.row_of.absent(k)) continue;
    counts.add(weight_of(k));
    weighted += weight_of(k) * static_cast<double>(of_position[k]);
  }
  const double by = counts.divisor(divide);
  for (index_t k = args.ranges.begin(bag); k < args.ranges.end(bag); ++k) {
    if (args.row_of.absent(k) || by == 0.0) {
      of_position[k] = 0.0F;
      continue;
    }
    const double through_divisor = divide == detail::divide_by::weight ? weighted / (by * by)
                                   : divide == detail::divide_by::root
                                       ? weighted * weight_of(k) / (by * by * by)
                                       : 0.0;
    of_position[k] = static_cast<float>(static_cast<double>(of_position[k]) / by - through_divisor);
  }
}

}  // namespace detail

template <class... Args>
status weight_gradients_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Rows>
DEEPREC_PER_UNIT status weight_gradients_on(host_backend, const Context& ctx, const Rows& given,
                                            matrix_view<const float> gradient, std::span<float> out) {
  index_t bytes = 0;
  if constexpr (!detail::is_resolved<Rows>) bytes = given.address_bytes();
  detail::scratch_block block(ctx.memory, bytes);
  decltype(auto) rows = given.resolution();
  if constexpr (!detail::is_resolved<Rows>) {
    if (const status s = detail::resolve_in(ctx, rows, block); !s) return s;
  }
  using pooling_type = typename Rows::pooling_type;
  using element = typename Rows::source_type::format_type::element;
  const auto& bags = rows.bags();
  const index_t first = bags.first_position();
  if (const status s =
          detail::expect_size(static_cast<index_t>(out.size()), rows.positions(),
                              "weight_gradients: out.size() must be the number of ids in bags N");
      !s) {
    return s;
  }
  detail::pool_args<const float, decltype(rows.rows())> args{};
  args.row_of = rows.rows();
  args.ranges = bags.ranges();
  args.weights = bags.weights();
  args.table_rows = rows.table_rows();
  args.width = gradient.extent(1);
  args.parts = detail::parts_of(rows.source().format());
  args.end_position = bags.end_position();
  args.tuning = ctx.tuning;
  args.max_norm = detail::max_norm_of(rows.pooling());
  args.filters = detail::kernel_policy<pooling_type>::ids == detail::ids_are::filtered;
  args.out = gradient.data_handle();
  args.out_stride = gradient.stride(0);
  constexpr detail::divide_by divide = detail::divisor_of<typename pooling_type::combiner>();
  const double ns = rows.ns_of_rows(*ctx.tuning);
  detail::run_bulk(ctx, {bags.bags(), detail::grain_for(*ctx.tuning, bags.bags(), ns), ns},
                   [&](index_t begin, index_t end, int) {
                     with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
                       position_dots<element>(region, args, first, out.data(), begin, end);
                     });
                     if constexpr (divide != detail::divide_by::one) {
                       for (index_t bag = begin; bag < end; ++bag) {
                         detail::divide_bag(args, divide, bag, out.data() - first);
                       }
                     }
                   });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
