// A stack of fully connected layers with ReLU between them: owns weights, gradients, activations
// and the optimizer's state.
//
//   mlp<> tower({479, 64, 1}, mlp_output::linear, counter_rng(seed));
//   tower.forward(pool, x);                  x ─> [W0 relu] ─> [W1] ─> tower.output()
//   tower.backward(pool, gradient);          tower.input_gradient() <─ ... <─ gradient
//   tower.step(pool, adagrad{.learning_rate = 0.01F});
//
// After the first step with the largest batch nothing is allocated. Not here: dropout, batch norm.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

#include <deeprec/core/random.hpp>
#include <deeprec/dense/linear.hpp>
#include <deeprec/dense/relu.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/row_optimizer.hpp>

namespace deeprec::inline DEEPREC_ABI {

/// What follows the last layer.
enum class mlp_output : std::uint8_t { linear, relu };

/// Spread of the first weights (uniform, zero mean): he = variance 2 / I, glorot = 2 / (I + O).
enum class weight_init : std::uint8_t { he, glorot };

/// Whether a backward pass also makes the gradient of its input.
enum class input_gradient : std::uint8_t { compute, skip };

/// @threads one thread at a time; the work inside is spread over the context's executor
template <class Engine = default_gemm_engine>
class mlp {
 public:
  /// @param sizes  width of the input, of every hidden layer, and of the output
  /// @param rng    layer l takes its weights from the stream first_stream + l; biases start at 0
  /// @pre     at least two sizes, each at least 1
  /// @post    the same weights for the same arguments, on every machine
  /// @cost    O(weights)
  /// @threads reentrant
  /// @error   bad_alloc where the resource has no memory
  mlp(std::vector<index_t> sizes, mlp_output last, counter_rng rng,
      weight_init init = weight_init::he, std::uint64_t first_stream = 0,
      std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : sizes_(std::move(sizes)),
        last_(last),
        parameters_(memory),
        gradients_(memory),
        state_(memory),
        activations_(memory),
        deltas_(memory) {
    DEEPREC_EXPECTS(sizes_.size() >= 2);
    for (std::size_t l = 0; l + 1 < sizes_.size(); ++l) {
      DEEPREC_EXPECTS(sizes_[l] >= 1 && sizes_[l + 1] >= 1);
      first_.push_back(parameter_count_);
      parameter_count_ += (sizes_[l] + 1) * sizes_[l + 1];
    }
    parameters_.resize(static_cast<std::size_t>(parameter_count_));
    gradients_.resize(parameters_.size());
    for (int l = 0; l < layers(); ++l) {
      const auto in = static_cast<double>(size(l));
      const auto out = static_cast<double>(size(l + 1));
      const double variance = init == weight_init::he ? 2 / in : 2 / (in + out);
      const double bound = std::sqrt(3 * variance);
      float* w = weights(l).data_handle();
      for (index_t i = 0; i < size(l) * size(l + 1); ++i) {
        const double u = rng.uniform(first_stream + static_cast<std::uint64_t>(l),
                                     static_cast<std::uint64_t>(i));
        w[i] = static_cast<float>((2 * u - 1) * bound);
      }
    }
  }

  [[nodiscard]] int layers() const noexcept { return static_cast<int>(sizes_.size()) - 1; }
  /// Width of the input (0), of hidden layers, of the output (layers()).
  [[nodiscard]] index_t size(int i) const noexcept { return sizes_[static_cast<std::size_t>(i)]; }

  /// Weights of layer l (O,I) and its bias (1,O); writable, for loading and averaging.
  [[nodiscard]] matrix_view<float> weights(int l) noexcept { return weights_in(parameters_, l); }
  [[nodiscard]] matrix_view<float> bias(int l) noexcept { return bias_in(parameters_, l); }
  [[nodiscard]] matrix_view<const float> weights(int l) const noexcept {
    return weights_in(parameters_, l);
  }
  [[nodiscard]] matrix_view<const float> bias(int l) const noexcept {
    return bias_in(parameters_, l);
  }
  [[nodiscard]] matrix_view<const float> weight_gradient(int l) const noexcept {
    return weights_in(gradients_, l);
  }
  [[nodiscard]] matrix_view<const float> bias_gradient(int l) const noexcept {
    return bias_in(gradients_, l);
  }
  /// All parameters as one row: layer by layer, its weights and then its bias.
  [[nodiscard]] matrix_view<float> parameters() noexcept {
    return {parameters_.data(), 1, parameter_count_};
  }

  /// The optimizer's state as one row, for saving and loading; width 0 before the first step() or
  /// make_state().
  [[nodiscard]] matrix_view<float> state() noexcept {
    return {state_.data(), 1, static_cast<index_t>(state_.size())};
  }

  /// Output of the last forward pass (B,O).
  [[nodiscard]] matrix_view<const float> output() const noexcept {
    return activation_in(activations_, layers());
  }
  /// Gradient of the input after a backward pass that computed it (B,I).
  [[nodiscard]] matrix_view<const float> input_gradient() const noexcept {
    return delta_in(deltas_, 0);
  }

  /// Runs the layers; the result is output().
  ///
  /// @shape    input (B,I)
  /// @dtype    float
  /// @space    host
  /// @pre      input stays as it is until backward() has run
  /// @numerics linear_forward, relu_forward
  /// @cost     one gemm() a layer; allocates when B is larger than ever before
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    shape_mismatch · out_of_memory · what gemm() says
  template <class Context>
  [[nodiscard]] status forward(Context&& ctx, matrix_view<const float> input) {
    const auto where = as_context(ctx);
    if (input.extent(1) != size(0)) {
      return {errc::shape_mismatch, "mlp::forward: the input's width is not size(0)"};
    }
    if (const status grown = reserve(input.extent(0)); !grown) return grown;
    batch_ = input.extent(0);
    input_ = input;
    for (int l = 0; l < layers(); ++l) {
      const matrix_view<float> y = activation_in(activations_, l + 1);
      const matrix_view<const float> x = input_of(l);
      if (const status s = linear_forward<Engine>(where, x, weights(l), bias(l), y); !s) return s;
      if (rectified(l)) {
        if (const status s = relu_forward(where, y, y); !s) return s;
      }
    }
    return {};
  }

  /// Makes every gradient, for the gradient of the last forward pass's output.
  ///
  /// @shape    output_gradient (B,O)
  /// @pre      forward() ran, and its input is unchanged
  /// @post     weight_gradient, bias_gradient and (if asked for) input_gradient() are overwritten
  /// @numerics linear_backward, relu_backward
  /// @cost     two gemm() a layer
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    shape_mismatch · what gemm() says
  template <class Context>
  [[nodiscard]] status backward(Context&& ctx, matrix_view<const float> output_gradient,
                                deeprec::input_gradient wanted = deeprec::input_gradient::compute) {
    const auto where = as_context(ctx);
    if (!detail::has_shape(output_gradient, batch_, size(layers()))) {
      return {errc::shape_mismatch, "mlp::backward: output_gradient is not (B,O)"};
    }
    matrix_view<const float> dy = output_gradient;
    for (int l = layers() - 1; l >= 0; --l) {
      if (rectified(l)) {
        const matrix_view<float> dz = delta_in(deltas_, l + 1);
        if (const status s = relu_backward(where, activation_in(activations_, l + 1), dy, dz); !s)
          return s;
        dy = dz;
      }
      const bool last = l == 0 && wanted == deeprec::input_gradient::skip;
      const matrix_view<float> dx = last ? matrix_view<float>{} : delta_in(deltas_, l);
      const matrix_view<const float> x = input_of(l);
      const status s = linear_backward<Engine>(where, x, dy, weights(l), weights_in(gradients_, l),
                                               bias_in(gradients_, l), dx);
      if (!s) return s;
      dy = dx;
    }
    return {};
  }

  /// Makes the state that step() of this kind of optimizer needs, zeroed, if it isn't there.
  ///
  /// @cost     O(state) the first time
  /// @threads  one thread at a time
  /// @error    unsupported: the state belongs to an optimizer of another kind (reset_state()) ·
  ///           out_of_memory
  template <RowOptimizer O>
  [[nodiscard]] status make_state(const O&) {
    constexpr int kind = 1 + O::row_state * 256 + O::element_state;
    if (state_kind_ == kind) return {};
    if (state_kind_ != 0) {
      return {errc::unsupported, "mlp::step: the state belongs to an optimizer of another kind"};
    }
    index_t rows = 0;
    for (int l = 0; l < layers(); ++l) rows += size(l + 1) + 1;
    const index_t needed = O::row_state * rows + O::element_state * parameter_count_;
    if (const status s = grow(state_, needed); !s) return s;
    state_kind_ = kind;
    return {};
  }

  /// One step of an optimizer on every row: a neuron's weights are a row, a layer's bias is a row.
  ///
  /// @numerics apply_rows
  /// @cost     O(weights); the first step allocates and zeroes the optimizer's state
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    unsupported: the state belongs to an optimizer of another kind (reset_state()) ·
  ///           out_of_memory
  template <RowOptimizer O, class Context>
  [[nodiscard]] status step(Context&& ctx, const O& optimizer) {
    const auto where = as_context(ctx);
    if (const status s = make_state(optimizer); !s) return s;
    float* state = state_.data();
    for (int l = 0; l < layers(); ++l) {
      const auto stepped = [&](matrix_view<const float> g, matrix_view<float> w) {
        const index_t row_floats = O::row_state + O::element_state * w.extent(1);
        const matrix_view<float> of_rows(state, w.extent(0), row_floats);
        state += w.extent(0) * row_floats;
        return apply_rows(where, g, optimizer, w, of_rows);
      };
      if (const status s = stepped(weight_gradient(l), weights(l)); !s) return s;
      if (const status s = stepped(bias_gradient(l), bias(l)); !s) return s;
    }
    return {};
  }

  /// Forgets the optimizer's state, so that the next step may be another optimizer's.
  void reset_state() noexcept {
    state_.clear();
    state_kind_ = 0;
  }

 private:
  using floats = std::pmr::vector<float>;

  [[nodiscard]] bool rectified(int l) const noexcept {
    return l + 1 < layers() || last_ == mlp_output::relu;
  }
  [[nodiscard]] matrix_view<const float> input_of(int l) const noexcept {
    if (l == 0) return input_;
    return activation_in(activations_, l);
  }
  template <class Floats>
  [[nodiscard]] auto weights_in(Floats& all, int l) const noexcept {
    return matrix_view(all.data() + first_[static_cast<std::size_t>(l)], size(l + 1), size(l));
  }
  template <class Floats>
  [[nodiscard]] auto bias_in(Floats& all, int l) const noexcept {
    return matrix_view(all.data() + first_[static_cast<std::size_t>(l)] + size(l) * size(l + 1),
                       index_t{1}, size(l + 1));
  }
  [[nodiscard]] index_t columns_before(int i) const noexcept {
    index_t sum = 0;
    for (int l = 0; l < i; ++l) sum += size(l);
    return sum;
  }
  // One buffer for each kind: (capacity, size(i)) after (capacity, size(i - 1)).
  template <class Floats>
  [[nodiscard]] auto activation_in(Floats& all, int i) const noexcept {
    return matrix_view(all.data() + (columns_before(i) - size(0)) * capacity_, batch_, size(i));
  }
  template <class Floats>
  [[nodiscard]] auto delta_in(Floats& all, int i) const noexcept {
    return matrix_view(all.data() + columns_before(i) * capacity_, batch_, size(i));
  }

  [[nodiscard]] static status grow(floats& buffer, index_t count) {
#if DEEPREC_EXCEPTIONS
    try {
      buffer.assign(static_cast<std::size_t>(count), 0.0F);
    } catch (const std::bad_alloc&) {
      return {errc::out_of_memory, "mlp"};
    }
#else
    buffer.assign(static_cast<std::size_t>(count), 0.0F);
#endif
    return {};
  }
  [[nodiscard]] status reserve(index_t batch) {
    if (batch <= capacity_) return {};
    const index_t all = columns_before(layers() + 1);
    if (const status s = grow(activations_, (all - size(0)) * batch); !s) return s;
    if (const status s = grow(deltas_, all * batch); !s) return s;
    capacity_ = batch;
    return {};
  }

  std::vector<index_t> sizes_;
  std::vector<index_t> first_;  // where each layer's weights begin
  mlp_output last_;
  index_t parameter_count_ = 0;
  index_t capacity_ = 0;
  index_t batch_ = 0;
  int state_kind_ = 0;
  matrix_view<const float> input_;
  floats parameters_;
  floats gradients_;
  floats state_;
  floats activations_;
  floats deltas_;
};

}  // namespace deeprec::inline DEEPREC_ABI
