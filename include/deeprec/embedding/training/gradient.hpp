// Gradients of a pooled lookup that are returned instead of applied.
//
//   row_gradients(ctx, bags, g, pooling, R, out)   out.rows (U) ascending, out.values (U,D): one row for each
//                                                  row of the table that the batch used
//   weight_gradients(ctx, table, bags, g, pooling, out (N))
//
// g is the gradient of lookup's output (B,D), `pooling` the one that lookup was given. To apply row gradients
// directly, without storing them: update (update.hpp).
#pragma once

#include <memory_resource>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/core/verb.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/pooling.hpp>
#include <deeprec/embedding/tables/table_view.hpp>
#include <deeprec/embedding/training/detail/backward.hpp>
#include <deeprec/embedding/training/detail/position_dots_kernels.hpp>
#include <deeprec/memory/owns.hpp>
#include <deeprec/simd/dispatch.hpp>

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

namespace detail {
inline auto arrays_of(const sparse_gradient& gradient) noexcept {
  return std::tie(gradient.rows, gradient.values);
}
}  // namespace detail

/// The gradient of each row that a batch used.
///
/// @shape    bags as given to lookup · gradient of lookup's output (B,D) · table_rows R · out (U) and (U,D)
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
template <class Context, BagBatch Bags, MemorySpace Space, class Columns, class Pooling, class = detail::unit>
[[nodiscard]] status row_gradients(Context&& context_or_executor, const Bags& bags,
                                   matrix_view<const float, Space, Columns> gradient, const Pooling& pooling,
                                   index_t table_rows, sparse_gradient& out) {
  const auto ctx = detail::as_context(context_or_executor);
  using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
  using combiner_type = typename policies::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::row_gradients: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(!detail::kernel_policy<policies>::clips,
                "deeprec::row_gradients: the gradient through max_norm needs the table. Fix: update.");
  if (const status s = detail::expect_size(gradient.extent(0), bags.bags(),
                                           "row_gradients: gradient.extent(0) must be the number of bags B");
      !s) {
    return s;
  }
  if (!gradient.valid()) return gradient.validate("row_gradients: gradient must not be null");
  if (table_rows < 0) return {errc::shape_mismatch, "row_gradients: table_rows must not be negative"};
  return detail::or_out_of_memory([&] {
    return row_gradients_on(ctx.backend(), ctx, bags, matrix_view<const float, Space>(gradient),
                            detail::as_pooling(pooling), table_rows, out);
  });
}

template <class... Args>
status row_gradients_on(any_backend, const Args&...) {
  return detail::no_backend<Args...>();
}

template <class Context, class Bags, class Pooling, class = detail::unit>
status row_gradients_on(host_backend, const Context& ctx, const Bags& bags, matrix_view<const float> gradient,
                        const Pooling& pooling, index_t table_rows, sparse_gradient& out) {
  if (const status s = detail::check_backward(ctx, bags, table_rows, pooling); !s) return s;
  if (detail::owns(detail::arrays_of(out), bags, gradient)) {
    return {errc::unsupported, "row_gradients: out must not own memory of the inputs"};
  }
  const index_t width = gradient.extent(1);
  const detail::backward_size size{.positions = bags.end_position() - bags.first_position(),
                                   .bags = bags.bags(),
                                   .width = width,
                                   .workers = 0};
  detail::backward_plan plan(ctx.memory, size);
  plan.add(ctx, bags, gradient, table_rows, pooling);
  plan.group(ctx, table_rows);
  const index_t groups = plan.groups().groups();
  const auto floats = static_cast<std::size_t>(detail::capped_product(groups, width));
  out.rows.reserve(static_cast<std::size_t>(groups));
  out.values.reserve(floats);
  detail::count_skipped(bags, table_rows, pooling);
  out.rows.resize(static_cast<std::size_t>(groups));
  out.values.resize(floats);
  if (groups == 0) return {};
  detail::gradient_args pooled = plan.pooled(width);
  pooled.out = out.values.data();
  ctx.executor->parallel_for(groups, 256, [&](index_t begin, index_t end, int) {
    for (index_t g = begin; g < end; ++g) out.rows[static_cast<std::size_t>(g)] = plan.groups().row(g);
    if (width == 0) return;
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      return pool_bags<float>(region, detail::gradient_policy{}, pooled, begin, end);
    });
  });
  for (index_t g = 0; width > 0 && plan.groups().size() > detail::chunk_positions && g < groups; ++g) {
    if (plan.groups().starts()[g + 1] - plan.groups().starts()[g] > detail::chunk_positions) {
      detail::pool_long_bag<float, detail::gradient_policy>(ctx, pooled, g, plan.long_bags());
    }
  }
  return {};
}

/// The gradient of each weight of a batch, as if every id had one.
///
/// @shape    table (R,D) · bags as given to lookup · gradient of lookup's output (B,D) · out (N): one for
///           each id of the batch, from its first position on
/// @dtype    rows f32, f16 or bf16; the rest f32
/// @space    host
/// @pre      out overlaps no input
/// @post     absent ids get 0
/// @numerics dot products in f32, one sum per vector lane; the sum over a bag in f64. Between ISAs
///           |err| <= 2 D u sum|x g|
/// @cost     O(N*D); no allocation
/// @threads  reentrant; a concurrent writer of the table's rows is not safe
/// @error    as lookup; shape_mismatch for a null gradient or out. On an error nothing is written
/// @example  @snippet tests/embedding/gradient_test.cpp weight_gradients
template <class Context, RowSource Source, BagBatch Bags, MemorySpace Space, class Columns, class Pooling,
          class = detail::unit>
[[nodiscard]] status weight_gradients(Context&& context_or_executor, const Source& table, const Bags& bags,
                                      matrix_view<const float, Space, Columns> gradient,
                                      const Pooling& pooling, std::span<float> out) {
  const auto ctx = detail::as_context(context_or_executor);
  using policies = std::remove_const_t<decltype(detail::as_pooling(pooling))>;
  using combiner_type = typename policies::combiner;
  static_assert(
      !std::is_same_v<combiner_type, combiner::max_t> && !std::is_same_v<combiner_type, combiner::concat_t>,
      "deeprec::weight_gradients: no gradient for this combiner. Fix: sum, mean or sqrtn.");
  static_assert(DirectRowSource<Source> && Storage<typename Source::format_type::element>,
                "deeprec::weight_gradients: rows are not an array of floats. Fix: a table of plain_rows.");
  if (const status s = detail::expect_size(gradient.extent(1), table.format().width(),
                                           "weight_gradients: gradient.extent(1) must be the row width D");
      !s) {
    return s;
  }
  if (const status s =
          detail::expect_size(gradient.extent(0), bags.bags(),
                              "weight_gradients: gradient.extent(0) must be the number of bags B");
      !s) {
    return s;
  }
  if (!gradient.valid()) return gradient.validate("weight_gradients: gradient must not be null");
  if (!out.empty() && out.data() == nullptr)
    return {errc::shape_mismatch, "weight_gradients: out must not be null"};
  if (const status s = detail::check_max_norm(detail::as_pooling(pooling)); !s) return s;
  return detail::or_out_of_memory([&] {
    return weight_gradients_on(ctx.backend(), ctx, table, bags, matrix_view<const float, Space>(gradient),
                               detail::as_pooling(pooling), out);
  });
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
    if (args.absent(k)) continue;
    counts.add(weight_of(k));
    weighted += weight_of(k) * static_cast<double>(of_position[k]);
  }
  const double by = counts.divisor(divide);
  for (index_t k = args.ranges.begin(bag); k < args.ranges.end(bag); ++k) {
    if (args.absent(k) || by == 0.0) {
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

template <class Context, class Source, class Bags, class Pooling, class = detail::unit>
status weight_gradients_on(host_backend, const Context& ctx, const Source& table, const Bags& bags,
                           matrix_view<const float> gradient, const Pooling& pooling, std::span<float> out) {
  if (const status s = bags.validate(); !s) return s;
  const index_t first = bags.first_position();
  const index_t positions = bags.end_position() - first;
  if (const status s = detail::expect_size(static_cast<index_t>(out.size()), positions,
                                           "weight_gradients: out.size() must be the number of ids N");
      !s) {
    return s;
  }
  if constexpr (std::is_same_v<typename Pooling::bounds_mode, bounds::check_t>) {
    if (const status s = detail::check_positions(ctx, bags, table.rows(), pooling); !s) return s;
  }
  using id_type = typename Bags::id_type;
  detail::pool_args<detail::direct_rows<id_type>, id_type, const float> args{};
  args.row_of = {table.data(), table.format().stride_bytes(), bags.ids()};
  args.ids = bags.ids();
  args.ranges = bags.ranges();
  args.weights = bags.weights();
  args.positive_weights = detail::prunes_weights<Pooling> && bags.weights() != nullptr;
  args.rows = table.rows();
  args.padding = detail::padding_of(pooling);
  args.width = table.format().width();
  args.parts = detail::parts_of(table.format());
  args.end_position = bags.end_position();
  args.max_norm = detail::max_norm_of(pooling);
  args.out = gradient.data_handle();
  args.out_stride = gradient.stride(0);
  constexpr detail::divide_by divide = detail::divisor_of<typename Pooling::combiner>();
  const index_t grain = positions > 0 ? bags.bags() * detail::chunk_positions / positions + 1 : 1;
  ctx.executor->parallel_for(bags.bags(), grain, [&](index_t begin, index_t end, int) {
    with_isa_up_to_avx512(ctx.instruction_set, [&](auto region) {
      position_dots<typename Source::format_type::element>(region, detail::kernel_policy<Pooling>{}, args,
                                                           first, out.data(), begin, end);
    });
    if constexpr (divide != detail::divide_by::one) {
      for (index_t bag = begin; bag < end; ++bag) detail::divide_bag(args, divide, bag, out.data() - first);
    }
  });
  return {};
}

}}  // namespace deeprec::DEEPREC_ABI
