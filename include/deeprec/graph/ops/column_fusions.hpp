// Patterns of columns and of types: what is copied only to be copied again.
//
//   x ─┬─> columns ─┐
//      └─> columns ──> concat_columns ─> cast ─> y        x ─> concat_columns of parts, as bf16 ─> y
//   x ─> cast to bf16 ─> matmul ─> y                      x ─> matmul with bf16 math ─> y
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/matrix_value.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// columns, concat_columns -> concat_columns of parts, each column copied once; parts that are beside each
/// other in one matrix are one, and what is one part is not copied. concat_columns, cast -> the same, which
/// writes bf16 or f16.
///
/// @numerics the bits of the ops one by one
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
[[nodiscard]] inline std::vector<step_pattern> column_fusions() {
  std::vector<step_pattern> all;
  {
    step_pattern p("columns, concat_columns");
    const auto x = p.any<matrix_value>();
    const auto before = p.any_list<matrix_value>(), after = p.any_list<matrix_value>();
    const auto cut = p.op<columns_op>(x);
    const auto y = p.op<concat_columns_op>(p.list(before, cut, after));
    const auto inputs = p.list(before, x, after).once();
    p.becomes(
        y,
        [=](const pattern_match& m) -> std::optional<concat_columns_op> {
          const std::vector<index_t> at = m.places(inputs);
          std::vector<column_part> was = m[y].parts;
          for (std::size_t i = 0; was.size() < at.size() && m[y].parts.empty(); ++i)
            was.push_back({static_cast<index_t>(i)});
          const auto cut_at = static_cast<index_t>(m.places(before).size());
          if (m[cut].first < 0 || m[cut].count < 0) return std::nullopt;
          concat_columns_op made;
          for (column_part part : was) {
            if (part.input < 0 || part.input >= static_cast<index_t>(at.size())) return std::nullopt;
            if (part.input == cut_at && part.first + part.count > m[cut].count) return std::nullopt;
            if (part.input == cut_at)
              part = {part.input, m[cut].first + part.first, part.count < 0 ? m[cut].count : part.count};
            part.input = at[static_cast<std::size_t>(part.input)];
            column_part* const last = made.parts.empty() ? nullptr : &made.parts.back();
            if (last != nullptr && last->input == part.input && last->count >= 0 && part.count >= 0 &&
                last->first + last->count == part.first) {
              last->count += part.count;
            } else {
              made.parts.push_back(part);
            }
          }
          return made;
        },
        inputs);
    all.push_back(std::move(p));
  }
  const auto narrow = [&]<class To>(std::type_identity<To>) {
    step_pattern p("concat_columns, cast");
    const auto list = p.any_list<matrix_value>();
    const auto joined = p.op<concat_columns_op>(list);
    p.becomes(
        p.op<cast_op<To>>(joined),
        [=](const pattern_match& m) { return concat_columns_as_op<To>{m[joined].parts}; }, list);
    all.push_back(std::move(p));
  };
  narrow(std::type_identity<bf16>());
  narrow(std::type_identity<f16>());
  return all;
}

/// A cast and the product that takes it -> a product that casts its tiles: of bf16 to float, and of float to
/// bf16, where the product would multiply in bf16 or the weights are bf16; matmul and linear.
///
/// @numerics of a cast to float as the product of the cast matrix, with its bits where the backend multiplies
///           floats of that shape; to bf16 as gemm() with gemm_math::forced_bf16: the factors are the same
///           where the weights are bf16; otherwise the weights are rounded too, as they were allowed to be
/// @cost     O(1)
/// @threads  reentrant
/// @error    throws std::bad_alloc
template <class Weights = matrix_view<float>, class Row = matrix_view<float>,
          class Backends = host_gemm_backends>
[[nodiscard]] std::vector<step_pattern> cast_fusions() {
  std::vector<step_pattern> all;
  constexpr bool narrow_weights = [] {
    if constexpr (requires { typename Weights::value_type; }) {
      return std::is_same_v<std::remove_const_t<typename Weights::value_type>, bf16>;
    } else {
      return false;
    }
  }();
  // What the product multiplies by when it takes the matrix before the cast; none: other factors.
  const auto math_of = [](bool narrows, gemm_math was) -> std::optional<gemm_math> {
    if (!narrows) return was;
    const bool by_bf16 = was == gemm_math::bf16 || was == gemm_math::forced_bf16;
    if (by_bf16 || (was == gemm_math::f32 && narrow_weights)) return gemm_math::forced_bf16;
    return std::nullopt;
  };
  const auto from_to = [&]<class From, class To>(std::type_identity<From>, std::type_identity<To>) {
    constexpr bool narrows = std::is_same_v<To, bf16>;
    {
      using product = matmul_op<Weights, From, Backends>;
      step_pattern p("cast, matmul");
      const auto x = p.any<basic_matrix_value<From>>();
      const auto w = p.reads<Weights>();
      const auto y = p.op<matmul_op<Weights, To, Backends>>(p.op<cast_op<To, From>>(x), w);
      p.becomes(
          y,
          [=](const pattern_match& m) -> std::optional<product> {
            const std::optional<gemm_math> math = math_of(narrows, m[y].math);
            if (!math) return std::nullopt;
            return product{*math};
          },
          x, w);
      all.push_back(std::move(p));
    }
    {
      using layer = linear_op<Weights, Row, From, Backends>;
      step_pattern p("cast, linear");
      const auto x = p.any<basic_matrix_value<From>>();
      const auto w = p.reads<Weights>();
      const auto b = p.reads<Row>();
      const auto y = p.op<linear_op<Weights, Row, To, Backends>>(p.op<cast_op<To, From>>(x), w, b);
      p.becomes(
          y,
          [=](const pattern_match& m) -> std::optional<layer> {
            const std::optional<gemm_math> math = math_of(narrows, m[y].math);
            if (!math) return std::nullopt;
            return layer{*math, m[y].activation};
          },
          x, w, b);
      all.push_back(std::move(p));
    }
  };
  from_to(std::type_identity<bf16>(), std::type_identity<float>());
  from_to(std::type_identity<float>(), std::type_identity<bf16>());
  return all;
}

}}  // namespace deeprec::DEEPREC_ABI
