// The tiles that a batch is cut into: what changes with the number of rows, and what does not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <set>
#include <vector>

#include <deeprec/dense/gemm/detail/gemm_borders.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/exec/inline_executor.hpp>

#include "dense/support.hpp"
#include "support/needs.hpp"

using namespace dense_test;
using namespace deeprec;

namespace {

/// Rows that the pieces write, each once and in order.
bool covers(const detail::gemm_pieces& pieces, index_t total) {
  index_t next = 0;
  for (index_t i = 0; i < pieces.count(); ++i) {
    const detail::gemm_piece piece = pieces[i];
    if (piece.begin < 0 || piece.begin + piece.skipped != next || piece.skipped >= piece.size) return false;
    if (pieces.size_of(piece.kind) != piece.size) return false;
    if (pieces.is_overlapped(piece.kind) != (piece.skipped > 0)) return false;
    next = piece.begin + (std::min)(piece.size, piece.skipped + piece.filled);
  }
  return next == total;
}

}  // namespace

TEST_CASE("gemm: pieces cover every row once, and have few heights") {
  using detail::gemm_rest;
  for (const index_t block : {16, 64, 256}) {
    std::set<index_t> heights, depths;
    for (index_t total = 1; total < 700; ++total) {
      CAPTURE(total);
      CAPTURE(block);
      const detail::gemm_pieces rows(total, block, gemm_rest::overlapped);
      CHECK(covers(rows, total));
      for (int kind = 0; total >= 16 && kind < rows.kinds(); ++kind) heights.insert(rows.size_of(kind));
      for (const gemm_rest rest : {gemm_rest::one_piece, gemm_rest::powers})
        CHECK(covers(detail::gemm_pieces(total, block, rest), total));
      for (const gemm_rest rest : {gemm_rest::filled, gemm_rest::filled_whole})
        CHECK(covers(detail::gemm_pieces(total, 8192, rest), total));
      for (const gemm_rest rest : {gemm_rest::filled_few, gemm_rest::filled_whole_few}) {
        const detail::gemm_pieces depth(total, 8192, rest);
        CHECK(covers(depth, total));
        for (int kind = 1; total >= 128 && total < 512 && kind < depth.kinds(); ++kind) {
          depths.insert(depth.size_of(kind));
          const index_t filled = depth[kind - 1].filled;
          CHECK(depth.size_of(kind) - filled < (std::max)(index_t{8}, filled / 8 + 1));
        }
      }
    }
    for (const index_t h : heights)
      CHECK((h == 0 || h == 4 || h == 8 || (h % 16 == 0 && (h & (h - 1)) == 0)));
    CHECK(depths.size() <= 4 + 9 + 16);  // of remainders, from 128, from 256
  }
}

#if defined(DEEPREC_WITH_ONEDNN)
TEST_CASE("gemm: 64 batch sizes in training, forward and backward, make few primitives") {
  struct width {
    index_t in, out;
  };
  for (const width w : {width{72, 56}, width{448, 256}}) {
    CAPTURE(w.in);
    constexpr index_t most = 256;
    matrix x(most, w.in), dy(most, w.out), weights(w.out, w.in), bias(1, w.out), y(most, w.out);
    matrix dw(w.out, w.in), db(1, w.out), dx(most, w.in);
    inline_executor here;
    const gemm_weights kept(weights.view(), weight_reuse::few);
    const auto step = [&](index_t m) {
      const linear_options how{.activation = gemm_activation::relu};
      REQUIRE(linear_forward(here, x.view().rows(0, m), kept, bias.view(), y.view().rows(0, m), how).ok());
      REQUIRE(linear_backward(here, x.view().rows(0, m), dy.view().rows(0, m), kept, dw.view(), db.view(),
                              dx.view().rows(0, m))
                  .ok());
    };
    const auto made_by = [&](index_t from, index_t to) {
      const std::size_t before = onednn_gemm::cache_report().made;
      for (index_t m = from; m < to; ++m) step(m);
      return onednn_gemm::cache_report().made - before;
    };
    const bool few_rows = detail::onednn_isa() >= isa::avx512;  // else 15 sizes of last rows, and more depths
    CHECK(made_by(128, 192) <= (few_rows ? 36 : 90));
    CHECK(made_by(192, 256) <= (few_rows ? 30 : 60));
    CHECK(made_by(128, 256) == 0);
  }
}

TEST_CASE("gemm: 64 batch sizes by packed weights make a dozen primitives") {
  constexpr index_t in = 88, out = 40, most = 192;
  matrix x(most, in), weights(out, in), bias(1, out), y(most, out);
  inline_executor here;
  const gemm_weights kept(weights.view(), weight_reuse::many);
  if (deeprec_test::lacks(detail::onednn_isa() >= isa::avx512,
                          "AVX-512 and no lower DEEPREC_ISA or DNNL_MAX_CPU_ISA"))
    return;
  const std::size_t before = onednn_gemm::cache_report().made;
  for (index_t m = 128; m < 192; ++m) {
    REQUIRE(linear_forward(here, x.view().rows(0, m), kept, bias.view(), y.view().rows(0, m),
                           {.activation = gemm_activation::relu})
                .ok());
  }
  CHECK(onednn_gemm::cache_report().made - before <= 12);  // six heights, with and without oneDNN's ReLU
}

TEST_CASE("gemm: a row has the same bits in every batch from 16 rows on") {
  if (deeprec_test::lacks(detail::onednn_isa() >= isa::avx512 && active_isa() == best_isa(),
                          "AVX-512, DEEPREC_ISA unset, no lower DNNL_MAX_CPU_ISA"))
    return;
  std::mt19937_64 random(deeprec_test::seed());
  inline_executor here;
  struct shape {
    index_t k, n;
  };
  for (const shape s : {shape{13, 64}, shape{70, 48}, shape{100, 100}, shape{300, 33}}) {
    constexpr index_t most = 64;
    matrix x(most, s.k), w(s.n, s.k), bias(1, s.n), residual(most, s.n), old(most, s.n);
    for (matrix* m : {&x, &w, &bias, &residual, &old}) m->fill(random);
    for (const weight_reuse reuse : {weight_reuse::few, weight_reuse::many}) {
      const gemm_weights kept(w.view(), reuse);
      for (int steps = 0; steps < 4; ++steps) {
        const auto multiply = [&](index_t m, matrix& y) {
          gemm_desc desc{.b = gemm_operand::transposed};
          if (steps > 0) desc.bias = bias.view();
          if (steps == 1) desc.activation = gemm_activation::relu;
          if (steps == 2) desc.residual = residual.view().rows(0, m);
          if (steps == 3) {
            desc.c = gemm_output::accumulate;
            desc.activation = gemm_activation::gelu;
          }
          y = old;
          REQUIRE(gemm(here, desc, x.view().rows(0, m), kept, y.view().rows(0, m)).ok());
        };
        matrix all(most, s.n), some(most, s.n);
        multiply(most, all);
        for (index_t m = 16; m < most; ++m) {
          multiply(m, some);
          CAPTURE(m);
          CAPTURE(s.n);
          CAPTURE(steps);
          CHECK(same_bits(all.view().rows(0, m), some.view().rows(0, m)));
          CHECK(same_bits(old.view().rows(m, most - m), some.view().rows(m, most - m)));  // nothing after
        }
      }
    }
  }
}
#endif
