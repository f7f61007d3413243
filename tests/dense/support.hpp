// What the tests of dense/ share: owned matrices, random values, and an executor of many threads
// that hands out pieces in a scrambled order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <deeprec/core/executor.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>

#include "support/seed.hpp"

namespace dense_test {

using deeprec::index_t;
using deeprec::matrix_view;

/// Rows x columns with `pad` sentinels after each row, the first element `offset` floats into
/// memory that is aligned to 64 bytes.
struct matrix {
  static constexpr float sentinel = -12345.5F;

  matrix(index_t how_many, index_t width, index_t pad = 0, index_t offset = 0)
      : storage(static_cast<std::size_t>(how_many * (width + pad) + offset + 32), sentinel),
        rows(how_many),
        columns(width),
        stride(width + pad) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    first = static_cast<index_t>((64 - address % 64) % 64 / sizeof(float)) + offset;
  }
  matrix(const matrix& other) : matrix(other.rows, other.columns, other.stride - other.columns) {
    copy(other);
  }
  matrix& operator=(const matrix& other) {
    copy(other);
    return *this;
  }
  void copy(const matrix& other) {
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < columns; ++j) (*this)(i, j) = other(i, j);
    }
  }
  void fill(std::mt19937_64& random, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    for (index_t i = 0; i < rows; ++i) {
      for (index_t j = 0; j < columns; ++j) (*this)(i, j) = normal(random);
    }
  }
  float& operator()(index_t i, index_t j) {
    return storage[static_cast<std::size_t>(first + i * stride + j)];
  }
  float operator()(index_t i, index_t j) const {
    return storage[static_cast<std::size_t>(first + i * stride + j)];
  }
  matrix_view<float> view() { return {storage.data() + first, rows, columns, stride}; }
  matrix_view<const float> view() const { return {storage.data() + first, rows, columns, stride}; }
  /// Nothing outside the rows was written.
  bool padding_untouched() const {
    for (index_t p = 0; p < static_cast<index_t>(storage.size()); ++p) {
      const index_t at = p - first;
      const bool inside = at >= 0 && at < rows * stride && at % stride < columns;
      if (!inside && storage[static_cast<std::size_t>(p)] != sentinel) return false;
    }
    return true;
  }

  std::vector<float> storage;
  index_t rows, columns, stride, first;
};

inline bool same_bits(matrix_view<const float> a, matrix_view<const float> b) {
  if (a.extent(0) != b.extent(0) || a.extent(1) != b.extent(1)) return false;
  for (index_t i = 0; i < a.extent(0); ++i) {
    if (a.extent(1) > 0 &&
        std::memcmp(a.row(i), b.row(i), sizeof(float) * static_cast<std::size_t>(a.extent(1))) != 0)
      return false;
  }
  return true;
}
inline bool same_bits(const matrix& a, const matrix& b) { return same_bits(a.view(), b.view()); }

/// A bulk executor that starts its threads anew for every call and deals the pieces out in an order
/// that differs from call to call.
class scrambled_threads {
 public:
  explicit scrambled_threads(int threads) : threads_(threads) {}

  template <class Body>
  void parallel_for(index_t n, index_t grain, Body&& body) {
    if (n <= 0) return;
    const index_t pieces = (n + grain - 1) / grain;
    std::vector<index_t> order(static_cast<std::size_t>(pieces));
    std::iota(order.begin(), order.end(), index_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    std::atomic<index_t> next{0};
    const auto work = [&](int worker) {
      for (index_t at = next++; at < pieces; at = next++) {
        const index_t piece = order[static_cast<std::size_t>(at)];
        body(piece * grain, std::min(n, (piece + 1) * grain), worker);
      }
    };
    std::vector<std::thread> crew;
    for (int w = 1; w < threads_; ++w) crew.emplace_back(work, w);
    work(0);
    for (std::thread& t : crew) t.join();
  }
  [[nodiscard]] int concurrency() const { return threads_; }

 private:
  int threads_;
  std::mt19937 random_{7};
};
static_assert(deeprec::BulkExecutor<scrambled_threads>);

inline constexpr int thread_counts[] = {1, 2, 3, 8};

/// A layer that oneDNN multiplies by its own bf16 kernels, where the machine has such.
inline deeprec::gemm_backend::problem wide_bf16_layer() {
  return {.m = 64,
          .n = 512,
          .k = 256,
          .a_stride = 256,
          .b_stride = 256,
          .c_stride = 512,
          .b = deeprec::gemm_operand::transposed,
          .inputs = deeprec::gemm_storage::bf16};
}

}  // namespace dense_test
