// A stack of fully connected layers with ReLU between them: owns weights and their casts, gradients,
// activations and the optimizer's state.
//
//   mlp<> tower({479, 64, 1});               or ({479, 64, 1}, mlp_output::relu, counter_rng(seed), ...)
//   tower.forward(pool, x);                  x ─> [W0 relu] ─> [W1] ─> tower.output()
//   tower.backward(pool, gradient);          tower.input_gradient() <─ ... <─ gradient
//   tower.step(pool, adagrad{.learning_rate = 0.01F});
//
// Weights, casts, gradients, activations and state are in the memory resource of the constructor; after the
// first step with the largest batch only the casts of bf16 and TF32 are allocated again, after each step.
// Products take their scratch from the context's resource. Not here: dropout (dropout.hpp), batch norm.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string_view>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/random.hpp>
#include <deeprec/dense/layers/detail/mlp_shape.hpp>
#include <deeprec/dense/layers/detail/mlp_state.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/dense/layers/relu.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What follows the last layer.
enum class mlp_output : std::uint8_t { linear, relu };

/// Spread of the first weights (uniform, zero mean): he = variance 2 / I, glorot = 2 / (I + O).
enum class weight_init : std::uint8_t { he, glorot };

/// Whether a backward pass also makes the gradient of its input.
enum class compute_input_gradient : std::uint8_t { no, yes };

/// Arithmetic and storage of a stack. Weights, gradients and optimizer state are always float.
struct mlp_precision {
  /// Arithmetic of the last layer: as the other layers, or f32, which DeepRec recommends with bf16.
  enum class last_layer : std::uint8_t { as_the_rest, f32 };

  gemm_math math = gemm_math::f32;  ///< of all products, forward and backward
  last_layer last = last_layer::as_the_rest;
  gemm_storage hidden = gemm_storage::f32;   ///< storage of the hidden layers' outputs
  weight_reuse weights = weight_reuse::few;  ///< many: for inference
};

/// @threads one thread at a time; the work inside is spread over the context's executor
template <class Backends = host_gemm_backends>
class mlp {
 public:
  /// A row of the output depends on its row of the input only: see micro_batch.
  static constexpr bool sample_wise = true;

  /// @param sizes  width of the input, of every hidden layer, and of the output
  /// @param rng    layer l takes its weights from the stream first_stream + l; biases start at 0
  /// @param memory  of weights and of all that depends on them or on the batch; casts of bf16 and TF32 are
  ///                given back and allocated again after each step
  /// @param precision  arithmetic and storage
  /// @pre     at least two sizes, each at least 1
  /// @post    the same weights for the same arguments, on every machine
  /// @cost    O(weights)
  /// @threads reentrant
  /// @error   bad_alloc, or length_error for more weights than can be counted
  mlp(std::vector<index_t> sizes, mlp_output last, counter_rng rng, weight_init init = weight_init::he,
      std::uint64_t first_stream = 0, std::pmr::memory_resource* memory = std::pmr::get_default_resource(),
      mlp_precision precision = {})
      : shape_(std::move(sizes)),
        last_(last),
        precision_(precision),
        parameters_(static_cast<std::size_t>(shape_.parameters()), memory),
        state_(memory),
        own_(shape_.sizes(), precision.hidden, shape_.parameters(), memory) {
    for (int l = 0; l < layers(); ++l) {
      const auto in = static_cast<double>(size(l)), out = static_cast<double>(size(l + 1));
      const double variance = init == weight_init::he ? 2 / in : 2 / (in + out);
      detail::fill_uniform(shape_.weights_in(parameters_, l), rng,
                           first_stream + static_cast<std::uint64_t>(l), std::sqrt(3 * variance));
    }
    make_operands();
  }
  /// A linear output, and weights of one seed: the other arguments have their defaults.
  explicit mlp(std::vector<index_t> sizes, std::uint64_t seed = 0)
      : mlp(std::move(sizes), mlp_output::linear, counter_rng(seed)) {}
  mlp(mlp&&) noexcept = default;  // moves the memory resource too, so views stay valid
  /// Takes over the other stack, and keeps its own memory resource.
  ///
  /// @pre     afterwards `other` is only assigned to or destroyed
  /// @post    this holds the other's weights, gradients, state and results; views of them stay valid where
  ///          the two resources are equal, else the data is copied and views must be taken again
  /// @cost    O(1); between resources that differ O(weights + batch), and the weights are cast again
  /// @threads one thread at a time, for both
  /// @error   bad_alloc between resources that differ: then nothing has changed
  // NOLINTNEXTLINE(performance-noexcept-move-constructor): it copies between different resources
  mlp& operator=(mlp&& other) {
    if (this == &other) return *this;
    std::pmr::memory_resource* const memory = parameters_.get_allocator().resource();
    if (*memory == *other.parameters_.get_allocator().resource()) {
      take(other);
    } else {
      mlp copy(other, memory);
      take(copy);
    }
    return *this;
  }

  [[nodiscard]] int layers() const noexcept { return shape_.layers(); }
  /// Width of the input (0), of hidden layers, of the output (layers()).
  [[nodiscard]] index_t size(int i) const noexcept { return shape_.size(i); }

  [[nodiscard]] const mlp_precision& precision() const noexcept { return precision_; }

  /// Weights of layer l (O,I) and its bias (1,O).
  [[nodiscard]] matrix_view<const float> weights(int l) const noexcept {
    return shape_.weights_in(parameters_, l);
  }
  [[nodiscard]] matrix_view<const float> bias(int l) const noexcept { return shape_.bias_in(parameters_, l); }
  /// The same, for loading and averaging. Such a view may be written at any time, so from then on weights are
  /// cast again in every forward pass, until weights_settled().
  [[nodiscard]] matrix_view<float> writable_weights(int l) noexcept {
    written_from_outside_ = true;
    return shape_.weights_in(parameters_, l);
  }
  [[nodiscard]] matrix_view<float> writable_bias(int l) noexcept {
    written_from_outside_ = true;
    return shape_.bias_in(parameters_, l);
  }
  [[nodiscard]] matrix_view<const float> weight_gradient(int l) const noexcept {
    return shape_.weights_in(own_.gradients_, l);
  }
  [[nodiscard]] matrix_view<const float> bias_gradient(int l) const noexcept {
    return shape_.bias_in(own_.gradients_, l);
  }
  /// All gradients as one row, in the order of parameters(). Writable: what step() takes, for gradients that
  /// are summed over several passes.
  [[nodiscard]] matrix_view<float> gradients() noexcept { return own_.gradients(); }
  /// All parameters as one row: layer by layer, its weights and then its bias. Writable, as
  /// writable_weights(l), unless the stack is const.
  [[nodiscard]] matrix_view<float> parameters() noexcept {
    written_from_outside_ = true;
    return {parameters_.data(), 1, shape_.parameters()};
  }
  [[nodiscard]] matrix_view<const float> parameters() const noexcept {
    return {parameters_.data(), 1, shape_.parameters()};
  }

  /// Declares that writable views of weights, biases and parameters are not written any more: casts are kept
  /// again.
  ///
  /// @cost    O(layers)
  /// @threads one thread at a time
  /// @error   none
  void weights_settled() noexcept {
    written_from_outside_ = false;
    forget_casts();
  }

  /// The optimizer's state as one row, for saving and loading; width 0 before the first step() or
  /// make_state().
  [[nodiscard]] matrix_view<float> state() noexcept { return state_.values(); }
  /// The name of the optimizer whose state it is, to be saved with it; empty before the first step() or
  /// make_state(), and for an optimizer without a name.
  [[nodiscard]] std::string_view state_owner() const noexcept { return state_.owner(); }

  /// Output of the last forward pass (B,O).
  [[nodiscard]] matrix_view<const float> output() const noexcept { return own_.output(); }
  /// Gradient of the input (B,I), after a backward pass that computed it.
  [[nodiscard]] matrix_view<const float> input_gradient() const noexcept { return own_.input_gradient(); }

  /// The stack's own activations and gradients: those of forward() and backward() without a pass, and of
  /// step().
  [[nodiscard]] mlp_pass& own_pass() noexcept { return own_; }
  /// Activations and gradients apart from the stack's own: passes over parts of a batch on several threads.
  ///
  /// @param memory  of the pass; null: that of the stack
  /// @cost    O(weights)
  /// @threads thread-safe, while the stack is not written to
  /// @error   bad_alloc
  [[nodiscard]] mlp_pass make_pass(std::pmr::memory_resource* memory = nullptr) const {
    return {shape_.sizes(), precision_.hidden, shape_.parameters(),
            memory != nullptr ? memory : parameters_.get_allocator().resource()};
  }

  /// Runs the layers; the result is output().
  ///
  /// @shape    input (B,I)
  /// @dtype    float
  /// @space    host
  /// @pre      input is unchanged until backward() has run
  /// @numerics linear_forward
  /// @cost     one gemm() a layer; allocates when B is larger than ever before
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    shape_mismatch · out_of_memory · errors of gemm()
  template <class Context>
  DEEPREC_PER_UNIT status forward(Context&& context_or_executor, matrix_view<const float> input) {
    if (written_from_outside_) forget_casts();
    return forward(context_or_executor, own_, input);
  }
  /// The same with the activations of a pass; the stack is only read.
  ///
  /// @pre     where a writable view of the weights has been taken, weights_settled() was called after the
  ///          last write
  /// @threads one thread at a time for each pass, while the stack is not written to
  /// @error   as above; shape_mismatch for the pass of a stack of other sizes
  template <class Context>
  DEEPREC_PER_UNIT status forward(Context&& context_or_executor, mlp_pass& pass,
                                  matrix_view<const float> input) const {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "mlp::forward");
    if (!call) return call.stopped();
    if (const status s =
            detail::expect_size(input.extent(1), size(0), "mlp::forward: input.extent(1) must be size(0)");
        !s) {
      return s;
    }
    if (!pass.is_of(shape_.sizes(), precision_.hidden)) {
      return {errc::shape_mismatch, "mlp::forward: pass must be of a stack with these sizes and storage"};
    }
    if (const status grown = pass.reserve(input.extent(0)); !grown) return grown;
    pass.batch_ = input.extent(0);
    pass.input_ = input;
    for (int l = 0; l < layers(); ++l) {
      const status done = pass.with_input(l, [&](const auto& x) {
        return pass.with_activation(l + 1, [&](const auto& y) {
          return linear_forward<Backends>(
              detail::begun(ctx), x, *operands_[static_cast<std::size_t>(l)], bias(l), y,
              {.math = math(l), .activation = rectified(l) ? gemm_activation::relu : gemm_activation::none});
        });
      });
      if (!done) return done;
      if (pass.dropping_ != nullptr && l + 1 < layers()) {
        if (const status s = drop(ctx, pass.dropping_->forward, pass, l); !s) return s;
      }
    }
    return {};
  }

  /// Computes all gradients from the gradient of the last forward pass's output.
  ///
  /// @shape    output_gradient (B,O)
  /// @pre      forward() ran, and its input is unchanged
  /// @post     weight_gradient, bias_gradient and (if asked for) input_gradient() are overwritten
  /// @numerics linear_backward, relu_backward
  /// @cost     two gemm() a layer
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    shape_mismatch · errors of gemm()
  template <class Context>
  DEEPREC_PER_UNIT status backward(Context&& context_or_executor, matrix_view<const float> output_gradient,
                                   compute_input_gradient wanted = compute_input_gradient::yes) {
    return backward(context_or_executor, own_, output_gradient, wanted);
  }
  /// The same of the last forward pass with these activations; the stack is only read.
  ///
  /// @post    pass.gradients() and (if asked for) pass.input_gradient() are overwritten
  /// @threads as forward() with a pass
  /// @error   as above; shape_mismatch for the pass of a stack of other sizes
  template <class Context>
  DEEPREC_PER_UNIT status backward(Context&& context_or_executor, mlp_pass& pass,
                                   matrix_view<const float> output_gradient,
                                   compute_input_gradient wanted = compute_input_gradient::yes) const {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "mlp::backward");
    if (!call) return call.stopped();
    if (!pass.is_of(shape_.sizes(), precision_.hidden)) {
      return {errc::shape_mismatch, "mlp::backward: pass must be of a stack with these sizes and storage"};
    }
    if (!detail::has_shape(output_gradient, pass.batch_, size(layers()))) {
      return {errc::shape_mismatch, "mlp::backward: output_gradient must be (B,O)"};
    }
    matrix_view<const float> dy = output_gradient;
    if (rectified(layers() - 1)) {
      const matrix_view<float> dz = pass.delta_in(pass.deltas_, layers());
      if (const status s = relu_backward(detail::begun(ctx), pass.output(), dy, dz); !s) return s;
      dy = dz;
    }
    for (int l = layers() - 1; l >= 0; --l) {
      const bool last = l == 0 && wanted == compute_input_gradient::no;
      const matrix_view<float> dx = last ? matrix_view<float>{} : pass.delta_in(pass.deltas_, l);
      const status done = pass.with_input(l, [&](const auto& x) {
        linear_options options{.math = math(l)};
        if (l > 0) options.input_mask = x;  // an output of ReLU
        return linear_backward<Backends>(detail::begun(ctx), x, dy, *operands_[static_cast<std::size_t>(l)],
                                         shape_.weights_in(pass.gradients_, l),
                                         shape_.bias_in(pass.gradients_, l), dx, options);
      });
      if (!done) return done;
      if (pass.dropping_ != nullptr && l > 0) {
        if (const status s = drop(ctx, pass.dropping_->backward, pass, l - 1); !s) return s;
      }
      dy = dx;
    }
    return {};
  }

  /// Makes the state that step() of this kind of optimizer needs, zeroed, unless it exists.
  ///
  /// @cost     O(state) the first time
  /// @threads  one thread at a time
  /// @error    unsupported: the state belongs to an optimizer of another name, or has another size
  ///           (reset_state()) · out_of_memory
  template <RowOptimizer O>
  [[nodiscard]] status make_state(const O&) {
    return state_.template make<O>(shape_);
  }

  /// One step of an optimizer on every row: a neuron's weights are a row, a layer's bias is a row.
  ///
  /// @numerics apply_rows
  /// @cost     O(weights); the first step allocates and zeroes the optimizer's state
  /// @threads  one thread at a time; the same bits for any number of workers
  /// @error    as make_state()
  template <RowOptimizer O, class Context>
  DEEPREC_PER_UNIT status step(Context&& context_or_executor, const O& optimizer) {
    return step(context_or_executor, optimizer, own_.gradients());
  }
  /// The same by gradients that lie elsewhere, such as those of a pass or their sum over several.
  ///
  /// @shape    gradients (1, all parameters), in the order of parameters()
  /// @error    as above; shape_mismatch
  template <RowOptimizer O, class Context>
  DEEPREC_PER_UNIT status step(Context&& context_or_executor, const O& optimizer,
                               matrix_view<const float> gradients) {
    const auto ctx = detail::as_context(context_or_executor);
    const detail::host_call call(ctx, "mlp::step");
    if (!call) return call.stopped();
    if (!detail::has_shape(gradients, 1, shape_.parameters()))
      return {errc::shape_mismatch, "mlp::step: gradients must be (1, all parameters)"};
    return state_.step(ctx, optimizer, shape_, gradients, parameters_,
                       [&](int l) { operands_[static_cast<std::size_t>(l)]->changed(); });
  }

  /// Discards the optimizer's state, so that the next step can use another optimizer.
  void reset_state() noexcept { state_.reset(); }

 private:
  using floats = std::pmr::vector<float>;

  mlp(const mlp& other, std::pmr::memory_resource* memory)
      : shape_(other.shape_),
        last_(other.last_),
        precision_(other.precision_),
        written_from_outside_(other.written_from_outside_),
        parameters_(other.parameters_, memory),
        state_(other.state_, memory),
        own_(other.own_, memory) {
    make_operands();
  }
  // From a stack whose resource is equal.
  void take(mlp& other) noexcept {
    shape_ = std::move(other.shape_);
    last_ = other.last_;
    precision_ = other.precision_;
    written_from_outside_ = other.written_from_outside_;
    parameters_ = std::move(other.parameters_);
    state_ = std::move(other.state_);
    own_ = std::move(other.own_);
    operands_ = std::move(other.operands_);
  }
  // The operands are views of parameters_.
  void make_operands() {
    operands_.clear();
    for (int l = 0; l < layers(); ++l) {
      operands_.push_back(std::make_unique<gemm_weights>(
          shape_.weights_in(parameters_, l), precision_.weights, parameters_.get_allocator().resource()));
    }
  }
  [[nodiscard]] bool rectified(int l) const noexcept { return l + 1 < layers() || last_ == mlp_output::relu; }
  [[nodiscard]] gemm_math math(int l) const noexcept {
    return l + 1 == layers() && precision_.last == mlp_precision::last_layer::f32 ? gemm_math::f32
                                                                                  : precision_.math;
  }
  void forget_casts() noexcept {
    for (const auto& w : operands_) w->changed();
  }
  template <class E>
  [[nodiscard]] static status drop(const context<E>& ctx, decltype(detail::dropout_calls::forward) call,
                                   mlp_pass& pass, int layer) {
    executor_ref on(*ctx.executor);
    return call(detail::begun(context<executor_ref>(on, ctx)), pass, layer);
  }
  detail::mlp_shape shape_;
  mlp_output last_;
  mlp_precision precision_;
  bool written_from_outside_ = false;
  std::vector<std::unique_ptr<gemm_weights>> operands_;  // one for each layer, of parameters_
  floats parameters_;
  detail::mlp_state state_;
  mlp_pass own_;  // of forward() and backward() without a pass
};

}}  // namespace deeprec::DEEPREC_ABI
