// The tensor operators and a chain of element-wise operations, f32, at sizes of layers and beyond the
// second-level cache.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include <span>
#include <vector>

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

constexpr inline_executor on_this_thread;

void fill(float* to, index_t n) { fill_rows(reinterpret_cast<char*>(to), n * index_t{sizeof(float)}); }

struct stitch {
  static constexpr index_t parts = 40, count = 2500, width = 64, rows = parts * count;
  static constexpr double items = rows;

  explicit stitch(const host& h)
      : order(h.memory<std::int32_t>("order", rows, by_7919)),
        data(h.memory<float>("data", rows * width, fill)),
        out(h.memory<float>("out", rows * width)) {
    for (index_t k = 0; k < parts; ++k) {
      indices.emplace_back(order + k * count, count);
      from.emplace_back(data + k * count * width, count, width);
    }
  }
  static void by_7919(std::int32_t* to, index_t n) {  // a prime that does not divide n
    for (index_t i = 0; i < n; ++i) to[i] = static_cast<std::int32_t>(i * 7919 % n);
  }
  void run() { must(dynamic_stitch(on_this_thread, indices, from, matrix_view(out, rows, width))); }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, rows * width);
  }

  std::int32_t* order;
  float *data, *out;
  std::vector<array_view<const std::int32_t>> indices;
  std::vector<matrix_view<const float>> from;
};

template <int Rows, int Columns>
struct transposed {
  static constexpr double items = double{Rows} * Columns;

  explicit transposed(const host& h)
      : in(h.memory<float>("in", index_t{Rows} * Columns, fill)),
        out(h.memory<float>("out", index_t{Rows} * Columns)) {}
  void run() {
    must(transpose(on_this_thread, matrix_view<const float>(in, Rows, Columns),
                   matrix_view(out, Columns, Rows)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, index_t{Rows} * Columns);
  }

  float *in, *out;
};

struct tiled {
  static constexpr index_t rows = 512, columns = 50, down = 2, across = 50;
  static constexpr double items = rows * columns * down * across;

  explicit tiled(const host& h)
      : in(h.memory<float>("in", rows * columns, fill)),
        out(h.memory<float>("out", rows * columns * down * across)) {}
  void run() {
    must(tile(on_this_thread, matrix_view<const float>(in, rows, columns), down, across,
              matrix_view(out, rows * down, columns * across)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, rows * columns * down * across);
  }

  float *in, *out;
};

struct summed {
  static constexpr index_t rows = 8192, columns = 512;
  static constexpr double items = rows * columns;

  explicit summed(const host& h)
      : in(h.memory<float>("in", rows * columns, fill)), out(h.memory<float>("out", columns)) {}
  void run() {
    must(column_sums(on_this_thread, matrix_view<const float>(in, rows, columns),
                     array_view<float>(out, columns)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, columns);
  }

  float *in, *out;
};

struct segment_means {
  static constexpr index_t rows = 51'200, width = 128, count = 51'200, segments = 5'120;
  static constexpr double items = count;

  explicit segment_means(const host& h)
      : data(h.memory<float>("data", rows * width, fill)),
        indices(h.memory<std::int64_t>("indices", count,
                                       [](std::int64_t* to, index_t n) {
                                         for (index_t i = 0; i < n; ++i)
                                           to[i] = draw_below(15, static_cast<std::uint64_t>(i), rows);
                                       })),
        numbers(h.memory<std::int32_t>("segments", count,
                                       [](std::int32_t* to, index_t n) {
                                         for (index_t i = 0; i < n; ++i)
                                           to[i] = static_cast<std::int32_t>(i / 10);
                                       })),
        out(h.memory<float>("out", segments * width)) {}
  void run() {
    must(sparse_segment(on_this_thread, matrix_view<const float>(data, rows, width),
                        std::span<const std::int64_t>(indices, std::size_t{count}),
                        std::span<const std::int32_t>(numbers, std::size_t{count}), combiner::mean,
                        matrix_view(out, segments, width)));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, segments * width);
  }

  float* data;
  std::int64_t* indices;
  std::int32_t* numbers;
  float* out;
};

/// Bias, ReLU and a product of rows: as a layer's activations, or of more bytes than a cache.
template <int Rows>
struct chained {
  static constexpr index_t rows = Rows, columns = 512;
  static constexpr double items = double{Rows} * columns;

  explicit chained(const host& h)
      : a(h.memory<float>("a", rows * columns, fill)),
        b(h.memory<float>("b", rows * columns, fill)),
        bias(h.memory<float>("bias", columns, fill)),
        out(h.memory<float>("out", rows * columns)) {}
  void run() {
    using namespace deeprec::expr;
    const matrix_view<const float> x(a, rows, columns), y(b, rows, columns);
    must(evaluate(on_this_thread, assign(matrix_view(out, rows, columns),
                                         relu(in(x) + row(array_view<const float>(bias, columns))) * in(y))));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(out, rows * columns);
  }

  float *a, *b, *bias, *out;
};

}  // namespace

DEEPREC_BODIES(body<stitch>("ops/dynamic_stitch", "row"),
               body<transposed<1024, 64>>("ops/transpose/small", "element"),
               body<transposed<4096, 4096>>("ops/transpose/large", "element"),
               body<tiled>("ops/tile", "element"), body<summed>("ops/column_sums", "element"),
               body<segment_means>("ops/sparse_segment_mean", "row"),
               body<chained<128>>("ops/expression/layer", "element"),
               body<chained<32768>>("ops/expression/large", "element"))
