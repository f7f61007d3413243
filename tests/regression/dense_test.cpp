// Faults of dense/ that a review found: products, stacks of layers, and what they ask of oneDNN.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <deeprec/dense/gemm.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "support/children.hpp"
#include "support/seed.hpp"

using namespace deeprec;

namespace {

#if defined(DEEPREC_WITH_ONEDNN)
using onednn_first = gemm_backends<onednn_gemm, eigen_gemm>;

/// Weights that serve one batch after the other.
struct served_weights {
  index_t n, k;
  std::vector<float> x, w, y;
  gemm_weights weights;

  served_weights(index_t n_, index_t k_)
      : n(n_),
        k(k_),
        x(static_cast<std::size_t>(64 * k_)),
        w(static_cast<std::size_t>(n_ * k_)),
        y(static_cast<std::size_t>(64 * n_)),
        weights(matrix_view<const float>(w.data(), n_, k_), weight_reuse::many) {
    std::mt19937_64 random(deeprec_test::seed());
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (float& v : w) v = normal(random);
  }
  /// The product of m rows is within the documented bound.
  bool right(index_t m) {
    std::fill(y.begin(), y.end(), -7.0F);
    inline_executor here;
    if (!gemm<onednn_first>(here, {.b = gemm_operand::transposed}, matrix_view<const float>(x.data(), m, k), weights,
                            matrix_view<float>(y.data(), m, n))
             .ok()) {
      return false;
    }
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (index_t p = 0; p < k; ++p) {
          const double t = static_cast<double>(x[static_cast<std::size_t>(i * k + p)]) *
                           static_cast<double>(w[static_cast<std::size_t>(j * k + p)]);
          sum += t;
          size += std::abs(t);
        }
        const double off = std::abs(static_cast<double>(y[static_cast<std::size_t>(i * n + j)]) - sum);
        if (!(off <= (static_cast<double>(k) + 3) * 0x1p-24 * size)) return false;
      }
    }
    return true;
  }
};
#endif

}  // namespace

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("r01: weights packed for one batch size serve every other one") {
  struct order {
    index_t n, k, first, second;
  };
  for (const order o : {order{2048, 64, 64, 1}, order{1024, 1024, 64, 1}, order{1024, 1024, 1, 64}}) {
    CAPTURE(o.n);
    CAPTURE(o.first);
    CHECK(deeprec_test::in_child([&] {
      served_weights served(o.n, o.k);
      if (!served.right(o.first)) return 1;
      if (!served.right(o.second)) return 2;
      return served.weights.forms_made() == 1 ? 0 : 3;
    }) == 0);
  }
}
#endif
