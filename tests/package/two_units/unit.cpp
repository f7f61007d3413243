// Compiled twice, with and without -march=native; UNIT is the name of the functions.
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/layers/relu.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/embedding/tables/quantize.hpp>
#include <deeprec/embedding/tables/quantized_rows.hpp>
#include <deeprec/embedding/tables/split_bf16_rows.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/optim/global_norm.hpp>

#include <vector>

using namespace deeprec;

status UNIT(isa which, matrix_view<const float> weights, jagged_view<> bags, matrix_view<float> out) {
  inline_executor executor;
  context ctx(executor);
  ctx.instruction_set = which;
  return lookup(ctx, as_table(weights), bags, combiner::mean, out);
}

namespace {

template <class Format>
status there_and_back(matrix_view<const float> x, matrix_view<float> out) {
  const inline_executor here;
  const Format format(x.extent(1));
  std::vector<std::byte> memory(static_cast<std::size_t>(x.extent(0) * format.stride_bytes()));
  const table_view<Format> table(memory.data(), x.extent(0), format);
  if (const status s = quantize(here, x, table); !s) return s;
  return dequantize(here, table, out);
}

}  // namespace

/// Loops that are compiled with the unit's flags: of dense layers, of norms, of row formats. Numbers that
/// depend on x (R,C) by exact steps only.
status UNIT(matrix_view<const float> x, std::vector<double>& numbers) {
  const inline_executor here;
  const index_t rows = x.extent(0), width = x.extent(1);
  std::vector<float> memory(static_cast<std::size_t>(rows * (width + width + 2)));
  const matrix_view<float> y(memory.data(), rows, width), dy(memory.data() + rows * width, rows, width);
  const matrix_view<float> column(memory.data() + 2 * rows * width, rows, 1);
  const auto add = [&](matrix_view<const float> all) {
    for (index_t i = 0; i < all.extent(0); ++i) {
      for (index_t j = 0; j < all.extent(1); ++j) numbers.push_back(static_cast<double>(all.row(i)[j]));
    }
  };
  double number = 0;
  const matrix_view<const float> all[] = {x};
  if (const status s = global_norm(here, all, number); !s) return s;
  numbers.push_back(number);
  if (const status s = relu_forward(here, x, y); !s) return s;
  add(y);
  if (const status s = relu_backward(here, y, x, dy); !s) return s;
  add(dy);
  const matrix_view<const float> logits(x.row(0), rows, 1, x.stride(0));
  for (index_t i = 0; i < rows; ++i) *column.row(i) = static_cast<float>(i % 2);
  if (const status s = logistic_loss_forward(here, logits, column, number); !s) return s;
  if (const status s = logistic_loss_backward(here, logits, column, column); !s) return s;
  // x as two vectors of half the width.
  const matrix_view<const float> first(x.row(0), rows, width / 2, x.stride(0));
  const matrix_view<const float> second(x.row(0) + width / 2, rows, width / 2, x.stride(0));
  const matrix_view<float> out(memory.data(), rows, width / 2 + 1);
  if (const status s = dot_interaction_forward(here, first, second, out); !s) return s;
  add(out);
  const matrix_view<float> d_first(dy.row(0), rows, width / 2, width),
      d_second(dy.row(0) + width / 2, rows, width / 2, width);
  if (const status s = dot_interaction_backward(here, first, second, out, d_first, d_second); !s) return s;
  add(dy);
  if (const status s = there_and_back<int8_rows>(x, y); !s) return s;
  add(y);
  if (const status s = there_and_back<int4_rows>(x, y); !s) return s;
  add(y);
  if (const status s = there_and_back<split_bf16_rows>(x, y); !s) return s;
  add(y);
  if (const status s = there_and_back<bf16_rows>(x, y); !s) return s;
  add(y);
  return {};
}
