// Products of the layers of DLRM and what stands between them, on one thread.
#include <deeprec/deeprec.hpp>  // in every commit; folders move

#include "support/bodies.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bodies_of;

template <std::uint64_t Seed>
void fill_floats(float* to, index_t n) {
  for (index_t i = 0; i < n; ++i) to[i] = draw_float(Seed, static_cast<std::uint64_t>(i));
}

/// A layer's product by weights that were packed before; Steps: bias and ReLU too.
template <int Batch, int In, int Out, gemm_math Math = gemm_math::f32, bool Steps = false>
struct packed {
  static constexpr double items = 2.0 * Batch * In * Out * 1e-3;

  explicit packed(const host& h)
      : x(h.memory<float>("x", Batch * In, fill_floats<16>)),
        w(h.memory<float>("w", Out * In, fill_floats<17>)),
        bias(h.memory<float>("bias", Out, fill_floats<18>)),
        y(h.memory<float>("y", Batch * Out)),
        weights(matrix_view<const float>(w, index_t{Out}, index_t{In})) {
    if (Math == gemm_math::bf16 && best_isa() != isa::avx512_bf16)
      throw absent("no bf16 products on this machine");
    desc.b = gemm_operand::transposed;
    desc.math = Math;
    if (!Steps) return;
    desc.bias = matrix_view<const float>(bias, 1, index_t{Out});
    desc.activation = gemm_activation::relu;
  }
  void run() {
    must(gemm(here, desc, matrix_view<const float>(x, index_t{Batch}, index_t{In}), weights,
              matrix_view<float>(y, index_t{Batch}, index_t{Out})));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(y, index_t{Batch} * Out);
  }

  float *x, *w, *bias, *y;
  gemm_weights weights;
  gemm_desc desc;
  inline_executor here;
};

/// Forward and backward of a layer.
template <int Batch, int In, int Out>
struct trained {
  static constexpr double items = 6.0 * Batch * In * Out * 1e-3;

  explicit trained(const host& h)
      : x(h.memory<float>("x", Batch * In, fill_floats<16>), index_t{Batch}, index_t{In}),
        dx(h.memory<float>("dx", Batch * In), index_t{Batch}, index_t{In}),
        w(h.memory<float>("w", Out * In, fill_floats<17>), index_t{Out}, index_t{In}),
        dw(h.memory<float>("dw", Out * In), index_t{Out}, index_t{In}),
        bias(h.memory<float>("bias", Out, fill_floats<18>), 1, index_t{Out}),
        db(h.memory<float>("db", Out), 1, index_t{Out}),
        y(h.memory<float>("y", Batch * Out), index_t{Batch}, index_t{Out}),
        dy(h.memory<float>("dy", Batch * Out, fill_floats<19>), index_t{Batch}, index_t{Out}),
        weights(w, weight_reuse::few) {}
  void run() {
    weights.changed();
    must(linear_forward(here, x, weights, bias, y, {.activation = gemm_activation::relu}));
    must(linear_backward(here, x, dy, weights, dw, db, dx, {}));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(y.data_handle(), index_t{Batch} * Out) +
           checksum_of(dw.data_handle(), index_t{Out} * In) +
           checksum_of(dx.data_handle(), index_t{Batch} * In) + checksum_of(db.data_handle(), Out);
  }

  matrix_view<const float> x;
  matrix_view<float> dx;
  matrix_view<const float> w;
  matrix_view<float> dw;
  matrix_view<const float> bias;
  matrix_view<float> db, y;
  matrix_view<const float> dy;
  gemm_weights weights;
  inline_executor here;
};

/// DLRM's upper stack, forward and backward.
template <int Batch>
struct stack {
  static constexpr double items = Batch;

  explicit stack(const host& h)
      : x(h.memory<float>("x", Batch * 479, fill_floats<20>), index_t{Batch}, 479),
        dy(h.memory<float>("dy", Batch, fill_floats<21>), index_t{Batch}, 1),
        layers({479, 512, 256, 1}, mlp_output::linear, counter_rng(22)) {}
  void run() {
    must(layers.forward(here, x));
    must(layers.backward(here, dy));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(layers.output().data_handle(), Batch) +
           checksum_of(layers.weight_gradient(0).data_handle(), 479 * 512);
  }

  matrix_view<const float> x, dy;
  mlp<> layers;
  inline_executor here;
};

/// The dot products between 27 vectors of 16, forward and backward.
struct interaction {
  static constexpr index_t batch = 256, width = 16, tables = 26, out = width + 27 * 26 / 2;
  static constexpr double items = batch;

  explicit interaction(const host& h)
      : dense(h.memory<float>("dense", batch * width, fill_floats<23>), batch, width),
        ddense(h.memory<float>("ddense", batch * width), batch, width),
        pooled(h.memory<float>("pooled", batch * width * tables, fill_floats<24>), batch, width * tables),
        dpooled(h.memory<float>("dpooled", batch * width * tables), batch, width * tables),
        y(h.memory<float>("y", batch * out), batch, out),
        dy(h.memory<float>("dy", batch * out, fill_floats<25>), batch, out) {}
  void run() {
    must(dot_interaction_forward(here, dense, pooled, y));
    must(dot_interaction_backward(here, dense, pooled, dy, ddense, dpooled));
  }
  std::uint64_t checksum() {
    run();
    return checksum_of(y.data_handle(), batch * out) +
           checksum_of(dpooled.data_handle(), batch * width * tables);
  }

  matrix_view<const float> dense;
  matrix_view<float> ddense;
  matrix_view<const float> pooled;
  matrix_view<float> dpooled, y;
  matrix_view<const float> dy;
  inline_executor here;
};

constexpr gemm_math f32 = gemm_math::f32, half = gemm_math::bf16;

}  // namespace

DEEPREC_BODIES(body<packed<1, 512, 256, f32, true>>("gemm/layer/m:1", "kflop"),
               body<packed<16, 512, 256, f32, true>>("gemm/layer/m:16", "kflop"),
               body<packed<128, 512, 256>>("gemm/f32/512-256/m:128", "kflop"),
               body<packed<2048, 479, 1024>>("gemm/f32/479-1024/m:2048", "kflop"),
               body<packed<2048, 512, 256, half>>("gemm/bf16/512-256/m:2048", "kflop"),
               body<packed<2048, 13, 512, half, true>>("gemm/epilogue/13-512/m:2048", "kflop"),
               body<packed<2048, 512, 256, half, true>>("gemm/epilogue/512-256/m:2048", "kflop"),
               body<trained<128, 512, 256>>("gemm/backward/512-256/m:128", "kflop"),
               body<stack<128>>("gemm/mlp/m:128", "sample"),
               body<interaction>("gemm/dot_interaction", "sample"))
