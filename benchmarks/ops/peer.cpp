// The operators as C functions, for benchmarks/ops/tensorflow_peer.py, which documents them.
#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/embedding/lookup/sparse_segment.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/ops/column_sums.hpp>
#include <deeprec/ops/dynamic_stitch.hpp>
#include <deeprec/ops/row_select.hpp>
#include <deeprec/ops/tile.hpp>
#include <deeprec/ops/transpose.hpp>

namespace {

using namespace deeprec;

constexpr inline_executor here;

template <class Op>
int repeat(std::int64_t calls, const Op& op) {
  for (std::int64_t i = 0; i < calls; ++i) {
    if (!op().ok()) return 1;
  }
  return 0;
}

}  // namespace

extern "C" {

int deeprec_peer_row_select(const std::uint8_t* cond, const float* then, const float* otherwise, float* out,
                            std::int64_t rows, std::int64_t width, std::int64_t calls) {
  return repeat(calls, [&] {
    return row_select(here, array_view<const std::uint8_t>(cond, rows),
                      matrix_view<const float>(then, rows, width),
                      matrix_view<const float>(otherwise, rows, width), matrix_view(out, rows, width));
  });
}

int deeprec_peer_dynamic_stitch(const std::int32_t* const* indices, const float* const* data,
                                std::int64_t parts, std::int64_t rows, std::int64_t width, float* out,
                                std::int64_t out_rows, std::int64_t calls) {
  std::vector<array_view<const std::int32_t>> places;
  std::vector<matrix_view<const float>> from;
  for (std::int64_t p = 0; p < parts; ++p) {
    places.emplace_back(indices[p], rows);
    from.emplace_back(data[p], rows, width);
  }
  return repeat(calls, [&] {
    return dynamic_stitch(here, std::span<const array_view<const std::int32_t>>(places),
                          std::span<const matrix_view<const float>>(from), matrix_view(out, out_rows, width));
  });
}

int deeprec_peer_transpose(const float* in, float* out, std::int64_t rows, std::int64_t cols,
                           std::int64_t calls) {
  return repeat(calls, [&] {
    return transpose(here, matrix_view<const float>(in, rows, cols), matrix_view(out, cols, rows));
  });
}

int deeprec_peer_tile(const float* in, float* out, std::int64_t rows, std::int64_t cols,
                      std::int64_t times_down, std::int64_t times_across, std::int64_t calls) {
  return repeat(calls, [&] {
    return tile(here, matrix_view<const float>(in, rows, cols), times_down, times_across,
                matrix_view(out, rows * times_down, cols * times_across));
  });
}

int deeprec_peer_bias_add_grad(const float* in, float* out, std::int64_t rows, std::int64_t cols,
                               std::int64_t calls) {
  return repeat(calls, [&] {
    return column_sums(here, matrix_view<const float>(in, rows, cols), array_view<float>(out, cols));
  });
}

int deeprec_peer_sparse_segment_mean(const float* data, std::int64_t data_rows, std::int64_t width,
                                     const std::int64_t* indices, const std::int64_t* segments,
                                     std::int64_t entries, float* out, std::int64_t out_rows,
                                     std::int64_t calls) {
  return repeat(calls, [&] {
    return sparse_segment(here, matrix_view<const float>(data, data_rows, width),
                          array_view<const std::int64_t>(indices, entries),
                          array_view<const std::int64_t>(segments, entries), combiner::mean,
                          matrix_view(out, out_rows, width));
  });
}

}  // extern "C"
