// Element-wise expressions over matrices, evaluated in one pass: no temporary matrices, one read of every
// operand, one write of every output.
//
//   using namespace deeprec::expr;
//   evaluate(ctx, assign(out, relu(in(x) + row(bias))),           bf16 or f16 in memory, float in between
//                 assign(kept, select(mask(flags), in(x), 0)));   several outputs of one shape
//
//   leaves       in(matrix (R,C))   row(array of C)   column(array of R)   owned(vector, R, C)   numbers
//                mask(matrix of bytes (R,C))   mask(array of R bytes): a flag for each row
//   numbers      + - * /  - x   multiply_add minimum maximum square sqrt abs   select(flags, a, b)
//                exp sigmoid tanh gelu relu prelu dice dropout
//   flags        < <= > >= == !=   & | !
//
// The functions are in namespace deeprec::expr and are found by the types of their arguments; the leaves need
// the using directive. An expression is a value that holds addresses and sizes: the memory of its leaves must
// outlive it. Not here: broadcasts of matrices, reductions, flags as an output.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/array_view.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/ops/detail/expression_checks.hpp>
#include <deeprec/ops/detail/expression_nodes.hpp>
#include <deeprec/ops/detail/expression_operands.hpp>
#include <deeprec/simd/dispatch.hpp>
#include <deeprec/simd/places.hpp>
#include <deeprec/simd/rounding_vectors.hpp>
#include <deeprec/simd/vectors.hpp>
#include <deeprec/support/bulk.hpp>
#include <deeprec/support/verb.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/ops/detail/expression.inl"
#include <deeprec/simd/foreach_region.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace expr {

/// An expression of numbers.
template <class T>
concept NumberExpression = detail::gives_numbers<T>;
/// An expression of flags.
template <class T>
concept FlagExpression = requires { requires T::gives == yields::flags; };

namespace detail {

/// Operands of a piece of parallel work, in bytes.
inline constexpr index_t piece_bytes = index_t{256} << 10;

}  // namespace detail

/// The elements of a matrix of float, bf16 or f16.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T, MemorySpace Space>
constexpr auto in(matrix_view<T, Space> values) {
  static_assert(detail::on_host<Space>());
  static_assert(detail::holds_numbers<std::remove_cv_t<T>>());
  return matrix_leaf<std::remove_cv_t<T>, yields::numbers>(values.data_handle(), values.extent(0),
                                                           values.extent(1), values.stride(0));
}
template <class T>
  requires(!deeprec::detail::is_matrix_view<std::remove_cvref_t<T>>)
constexpr auto in(T&&) {
  static_assert(deeprec::detail::always_false<T>,
                "deeprec::expr::in: not a matrix_view. Fix: matrix_view<const float>(data, rows, columns) "
                "of memory that outlives the expression, or owned(std::move(vector), rows, columns).");
  return scalar(0);
}

/// C numbers, one for each column, the same for all rows: an array_view or a contiguous container that is no
/// temporary.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Range>
constexpr auto row(Range&& values) {
  static_assert(detail::lasts<Range>());
  const array_view view(values);
  using T = typename decltype(view)::value_type;
  static_assert(detail::on_host<typename decltype(view)::space>());
  static_assert(detail::holds_numbers<T>());
  return row_leaf<T>(view.data(), view.size());
}

/// R numbers, one for each row, the same for all columns: an array_view or a contiguous container that is no
/// temporary.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Range>
constexpr auto column(Range&& values) {
  static_assert(detail::lasts<Range>());
  const array_view view(values);
  using T = typename decltype(view)::value_type;
  static_assert(detail::on_host<typename decltype(view)::space>());
  static_assert(detail::holds_numbers<T>());
  return column_leaf<T, yields::numbers>(view.data(), view.size());
}

/// A matrix (rows, columns) that the expression owns; copies of the expression share it.
///
/// @cost    one allocation
/// @threads reentrant
/// @error   none here; evaluate reports a vector of another size
template <class T>
auto owned(std::vector<T>&& values, index_t rows, index_t columns) {
  static_assert(detail::holds_numbers<T>());
  return owned_leaf<T>(std::move(values), rows, columns);
}

/// Flags for each element: a matrix of bytes or bool, true where a byte is not 0.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class T, MemorySpace Space>
auto mask(matrix_view<T, Space> flags) {
  static_assert(detail::on_host<Space>());
  return matrix_leaf<unsigned char, yields::flags>(detail::bytes_of_flags(flags.data_handle()),
                                                   flags.extent(0), flags.extent(1), flags.stride(0));
}
/// The same, for flags of whole rows: R bytes or bool, an array_view or a container that is no temporary.
template <class Range>
  requires(!deeprec::detail::is_matrix_view<std::remove_cvref_t<Range>>)
auto mask(Range&& flags) {
  static_assert(detail::lasts<Range>());
  const array_view view(flags);
  static_assert(detail::on_host<typename decltype(view)::space>());
  return column_leaf<unsigned char, yields::flags>(detail::bytes_of_flags(view.data()), view.size());
}

// Arithmetic, one rounding to float for each operation.

template <class A, detail::OperandWith<A> B>
constexpr auto operator+(const A& a, const B& b) {
  return detail::make<op::plus>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator-(const A& a, const B& b) {
  return detail::make<op::minus>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator*(const A& a, const B& b) {
  return detail::make<op::times>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator/(const A& a, const B& b) {
  return detail::make<op::over>(a, b);
}
template <NumberExpression A>
constexpr auto operator-(const A& a) {
  return detail::make<op::negated>(a);
}
// a b + c: rounded once in the AVX regions; in the portable one it may round twice.
template <class A, class B, class C>
  requires detail::Operands<A, B, C>
constexpr auto multiply_add(const A& a, const B& b, const C& c) {
  return detail::make<op::multiply_add>(a, b, c);
}
// NaN when either is.
template <class A, detail::OperandWith<A> B>
constexpr auto minimum(const A& a, const B& b) {
  return detail::make<op::minimum>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto maximum(const A& a, const B& b) {
  return detail::make<op::maximum>(a, b);
}
template <NumberExpression A>
constexpr auto square(const A& a) {
  return detail::make<op::square>(a);
}
template <NumberExpression A>
constexpr auto sqrt(const A& a) {
  return detail::make<op::sqrt>(a);
}
template <NumberExpression A>
constexpr auto abs(const A& a) {
  return detail::make<op::abs>(a);
}

// Comparisons: false where either is NaN, except !=.

template <class A, detail::OperandWith<A> B>
constexpr auto operator<(const A& a, const B& b) {
  return detail::make<op::less>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator<=(const A& a, const B& b) {
  return detail::make<op::less_equal>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator>(const A& a, const B& b) {
  return detail::make<op::less>(b, a);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator>=(const A& a, const B& b) {
  return detail::make<op::less_equal>(b, a);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator==(const A& a, const B& b) {
  return detail::make<op::equal>(a, b);
}
template <class A, detail::OperandWith<A> B>
constexpr auto operator!=(const A& a, const B& b) {
  return detail::make<op::inverse>(detail::make<op::equal>(a, b));
}
template <FlagExpression A, FlagExpression B>
constexpr auto operator&(const A& a, const B& b) {
  return detail::make<op::both>(a, b);
}
template <FlagExpression A, FlagExpression B>
constexpr auto operator|(const A& a, const B& b) {
  return detail::make<op::either>(a, b);
}
template <FlagExpression A>
constexpr auto operator!(const A& a) {
  return detail::make<op::inverse>(a);
}
// a where the flag is true, else b. Both are evaluated.
template <FlagExpression Which, class A, class B>
  requires(NumberExpression<A> || detail::Number<A>) && (NumberExpression<B> || detail::Number<B>)
constexpr auto select(const Which& which, const A& a, const B& b) {
  return detail::make<op::select>(which, a, b);
}

// Functions and activations; errors in units in the last place (ulp) of the exact result. NaN stays NaN.

// At most 1.1 ulp; infinity above 88.72, denormals below -87.33, 0 below -103.97.
template <NumberExpression A>
constexpr auto exp(const A& a) {
  return detail::make<op::exp>(a);
}
// 1 / (1 + exp(-x)), at most 3 ulp.
template <NumberExpression A>
constexpr auto sigmoid(const A& a) {
  return detail::make<op::sigmoid>(a);
}
// At most 3 ulp.
template <NumberExpression A>
constexpr auto tanh(const A& a) {
  return detail::make<op::tanh>(a);
}
// In the form with tanh, x/2 (1 + tanh(u)) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): the error
// is at most 2^-21 max(1, |x|). NaN of -infinity.
template <NumberExpression A>
constexpr auto gelu(const A& a) {
  return detail::make<op::gelu>(a);
}
// 0 where x < 0, else x, as relu_forward.
template <NumberExpression A>
constexpr auto relu(const A& a) {
  return detail::make<op::relu>(a);
}
// slope x where x < 0, else x.
template <class A, detail::OperandWith<A> Slope>
constexpr auto prelu(const A& a, const Slope& slope) {
  return detail::make<op::prelu>(a, slope);
}
// p x + (1 - p) alpha x with p = sigmoid((x - mean) scale); scale is 1 / sqrt(variance + epsilon).
template <class A, class Mean, class Scale, class Alpha>
  requires detail::Operands<A, Mean, Scale, Alpha>
constexpr auto dice(const A& a, const Mean& mean, const Scale& scale, const Alpha& alpha) {
  return detail::make<op::dice>(a, mean, scale, alpha);
}

/// Flags of element (i, j) that are false with the probability `rate`, in [0, 1): where
/// words.word(first_row + i, j) < rate 2^32. The same on every ISA and for any number of threads.
///
/// @cost    O(1); evaluated, about ten instructions of a vector for each vector of elements
/// @threads reentrant
/// @error   none here; evaluate reports a rate out of range
constexpr auto random_flags(rounding::stochastic words, float rate, index_t first_row = 0) {
  return random_leaf(words, rate, first_row);
}

/// x times 1 / (1 - rate) where the flag is true, else 0; the factor is rounded to float.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none here; evaluate reports a rate outside [0, 1)
template <NumberExpression A, FlagExpression Keep>
constexpr auto dropout(const A& a, const Keep& keep, float rate) {
  return select(keep, a * keep_factor(rate), 0.0F);
}
/// The same, for random flags: a gradient with the same seed and rate drops the same elements.
template <NumberExpression A>
constexpr auto dropout(const A& a, std::uint64_t seed, float rate) {
  return dropout(a, random_flags({seed, 0}, rate), rate);
}

/// An output of evaluate, float, bf16 or f16, and the expression that it takes its elements from.
///
/// @cost    O(1)
/// @threads reentrant
/// @error   none
template <class Out, MemorySpace Space, class Value>
  requires NumberExpression<Value> || detail::Number<Value>
constexpr auto assign(matrix_view<Out, Space> out, const Value& value) {
  static_assert(!std::is_const_v<Out>,
                "deeprec::expr::assign: out is read only. Fix: matrix_view<float>, not <const float>.");
  static_assert(detail::on_host<Space>());
  static_assert(detail::holds_numbers<std::remove_cv_t<Out>>());
  using part = std::remove_cvref_t<decltype(detail::part(value))>;
  return assignment<Out, part>{out.data_handle(), out.extent(0), out.extent(1), out.stride(0),
                               detail::part(value)};
}

}  // namespace expr

/// Writes every output of the assignments: assign(out, expression), in one pass over all of them.
///
/// @shape    outputs and matrices (R,C), any row stride · rows (C) · columns (R)
/// @dtype    outputs and operands: float, bf16, f16 · masks: bool or bytes, any byte but 0 is true. All
///           arithmetic in float; stores to bf16 and f16 round to nearest even
/// @space    host
/// @pre      an output is a matrix operand (same first element, stride and type), or shares no byte with any
///           operand; outputs share no byte with each other; the memory of the leaves is alive
/// @post     every element of the outputs is written. All expressions see the operands as they were, in
///           place as well
/// @numerics the same bits as the operations one by one with matrices of float between them: every operation
///           rounds once, products are not fused with sums. The same for any number of threads; for
///           + - * / minimum maximum square sqrt abs comparisons select relu prelu dropout on every ISA too,
///           up to the payloads of NaN. exp sigmoid tanh gelu dice multiply_add differ between ISAs within
///           their bounds. NaN follows IEEE 754; minimum and maximum are NaN when either operand is
/// @cost     O(R*C): one read of every operand of the expressions, one write of every output, with
///           non-temporal stores when the outputs together are larger than the tuning's kept_bytes and none
///           is in place. No allocation
/// @threads  reentrant; concurrent calls are safe where their outputs share no byte
/// @error    shape_mismatch, with the number of the operand in place().item: leaves with memory are counted
///           from 0 in the order in which they are written, over all assignments; of an output its own
///           number. invalid_value for a rate of dropout; unsupported when an output overlaps another, or an
///           operand in part. On an error nothing is written
/// @example  @snippet tests/ops/expression_test.cpp dice
///           @snippet tests/ops/expression_test.cpp bias_activation_dropout
///           @snippet tests/ops/expression_test.cpp square_of_sum
/// @source   operator fusion of DeepRec's graph optimizer; expression templates (Veldhuizen 1995)
template <class Context, class... Assignments>
DEEPREC_PER_UNIT status evaluate(Context&& context_or_executor, const Assignments&... assignments) {
  static_assert(sizeof...(Assignments) > 0 && (expr::is_assignment<Assignments> && ...),
                "deeprec::evaluate: takes assignments. Fix: evaluate(ctx, expr::assign(out, expression)).");
  const auto ctx = detail::as_context(context_or_executor);
  const detail::host_call call(ctx, "evaluate");
  if (!call) return call.stopped();
  return detail::or_out_of_memory("evaluate", [&]() -> status {
    const expr::detail::parts<Assignments...> all = expr::detail::parts_of(assignments...);
    constexpr index_t leaf_count = (0 + ... + Assignments::operands);
    expr::detail::operand leaves[leaf_count + 1];
    expr::detail::operand* end_of_leaves = leaves;
    all.list(end_of_leaves);
    expr::detail::operand outs[sizeof...(Assignments)];
    expr::detail::operand* end_of_outs = outs;
    all.each([&](const auto& assignment) { *end_of_outs++ = assignment.out(); });
    expr::detail::layout found;
    if (const status s =
            expr::detail::check_operands(outs, sizeof...(Assignments), leaves, leaf_count, found);
        !s) {
      return s;
    }
    const index_t rows = outs[0].rows, columns = outs[0].columns;
    if (rows == 0 || columns == 0) return {};
    const bool one_row = found.contiguous && !(Assignments::by_row || ...);
    const index_t out_bytes = (Assignments::out_bytes + ...);
    index_t bytes = out_bytes;  // of one element
    for (const auto* leaf = leaves; leaf < end_of_leaves; ++leaf) {
      if (leaf->kind == expr::detail::form::matrix) bytes += expr::detail::size_of(leaf->type);
    }
    const index_t elements = capped_product(rows, columns);
    const bool streamed = !found.in_place && capped_product(elements, out_bytes) > ctx.tuning->kept_bytes;
    const expr::detail::job<Assignments...> work(all, one_row ? 1 : rows, one_row ? rows * columns : columns,
                                                 streamed);
    const index_t grain = (std::max)(index_t{1}, expr::detail::piece_bytes / (bytes * work.piece));
    const double ns = detail::ns_of_bytes(*ctx.tuning, capped_product(elements, bytes));
    detail::run_bulk(ctx, {work.pieces(), grain, ns}, [&](index_t begin, index_t end, int) {
      with_isa_up_to_avx512(ctx.instruction_set,
                            [&](auto region) { evaluate_pieces(region, work, begin, end); });
    });
    return {};
  });
}

}}  // namespace deeprec::DEEPREC_ABI
