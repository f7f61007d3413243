// What one batch, or one part of a batch, needs of a stack of fully connected layers besides its weights:
// activations, their gradients and those of the weights.
//
//   mlp<> tower({479, 64, 1});
//   mlp_pass mine = tower.make_pass();            one for each thread
//   tower.forward(here, mine, x);                 reads the weights only: any number of passes at once
//   tower.backward(here, mine, gradient);         mine.gradients(), mine.input_gradient()
//
// Not here: the arithmetic (mlp.hpp), dropout (dropout.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

template <class Backends>
class mlp;

class mlp_pass;

namespace detail {
class mlp_state;
struct hidden_dropout;

/// What dropout does to the output of a hidden layer (B,O), and to the gradient of its input.
struct dropout_calls {
  status (*forward)(const context<executor_ref>& on, mlp_pass& pass, int layer);
  status (*backward)(const context<executor_ref>& on, mlp_pass& pass, int layer);
};
}  // namespace detail

/// What a pass drops of the outputs of hidden layers: set_dropout().
struct mlp_dropout {
  float rate = 0;          ///< the probability, in [0, 1)
  std::uint64_t seed = 0;  ///< of a step and a stack
  index_t first_row = 0;   ///< the place of the first row of the pass among those of the step
};

/// @threads one thread at a time; several passes of one stack on several threads, where their memory resource
///          allows it
class mlp_pass {
 public:
  mlp_pass(mlp_pass&&) noexcept = default;  // views stay valid
  mlp_pass& operator=(mlp_pass&&) = default;
  /// Output of the last forward pass (B,O).
  [[nodiscard]] matrix_view<const float> output() const noexcept { return output_in(activations_); }
  /// Calls use(l, x) for the output (B,O) of each hidden layer l, from 0, in the last forward pass: a
  /// matrix_view of float, or of bf16 where the backends store those.
  ///
  /// @cost    that of the calls
  /// @threads one thread at a time
  /// @error   none
  template <class Use>
  void for_each_hidden(const Use& use) const {
    for (int l = 1; l < layers(); ++l) {
      const float* const first = activations_.data() + (columns_before(l) - size(0)) * capacity_;
      if (hidden_ == gemm_storage::f32) {
        use(l - 1, matrix_view<const float>(first, batch_, size(l)));
      } else {
        use(l - 1, matrix_view<const bf16>(reinterpret_cast<const bf16*>(first), batch_, size(l)));
      }
    }
  }
  /// Gradient of the input (B,I), after a backward pass that computed it.
  [[nodiscard]] matrix_view<const float> input_gradient() const noexcept { return delta_in(deltas_, 0); }
  /// The gradients of all parameters as one row, in the order of mlp::parameters(). Writable.
  [[nodiscard]] matrix_view<float> gradients() noexcept {
    return {gradients_.data(), 1, static_cast<index_t>(gradients_.size())};
  }

  /// Makes room for a batch, which forward() does otherwise.
  ///
  /// @post    what was allocated for a smaller batch has been replaced: its results are gone
  /// @cost    O(batch x columns of all layers) where it is larger than ever before
  /// @threads one thread at a time
  /// @error   out_of_memory; then nothing has changed
  [[nodiscard]] status reserve(index_t batch) {
    if (batch <= capacity_) return {};
    const index_t all = columns_before(layers() + 1);
    if (batch > (std::numeric_limits<index_t>::max)() / all) return {errc::out_of_memory, "mlp"};
    floats activations(activations_.get_allocator()), deltas(deltas_.get_allocator());
    if (const status s = grow(activations, (all - size(0)) * batch); !s) return s;
    if (const status s = grow(deltas, all * batch); !s) return s;
    activations_.swap(activations);  // the last results stay valid until both are allocated
    deltas_.swap(deltas);
    capacity_ = batch;
    return {};
  }

 private:
  template <class Backends>
  friend class mlp;
  friend class detail::mlp_state;
  friend struct detail::hidden_dropout;
  using floats = std::pmr::vector<float>;
  template <class Floats>
  using view_of = matrix_view<std::conditional_t<std::is_const_v<Floats>, const float, float>>;

  mlp_pass(std::vector<index_t> sizes, gemm_storage hidden, index_t parameters,
           std::pmr::memory_resource* memory)
      : sizes_(std::move(sizes)),
        hidden_(hidden),
        gradients_(static_cast<std::size_t>(parameters), memory),
        activations_(memory),
        deltas_(memory) {}
  mlp_pass(const mlp_pass& other, std::pmr::memory_resource* memory)
      : sizes_(other.sizes_),
        hidden_(other.hidden_),
        capacity_(other.capacity_),
        batch_(other.batch_),
        dropout_(other.dropout_),
        dropping_(other.dropping_),
        input_(other.input_),
        gradients_(other.gradients_, memory),
        activations_(other.activations_, memory),
        deltas_(other.deltas_, memory) {}

  [[nodiscard]] bool is_of(const std::vector<index_t>& sizes, gemm_storage hidden) const noexcept {
    return sizes_ == sizes && hidden_ == hidden;
  }
  [[nodiscard]] int layers() const noexcept { return static_cast<int>(sizes_.size()) - 1; }
  [[nodiscard]] index_t size(int i) const noexcept { return sizes_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] index_t columns_before(int i) const noexcept {
    index_t sum = 0;
    for (int l = 0; l < i; ++l) sum += size(l);
    return sum;
  }
  // One buffer for each kind: (capacity, size(i)) after (capacity, size(i - 1)).
  template <class Floats>
  [[nodiscard]] view_of<Floats> output_in(Floats& all) const noexcept {
    return view_of<Floats>(all.data() + (columns_before(layers()) - size(0)) * capacity_, batch_,
                           size(layers()));
  }
  template <class Floats>
  [[nodiscard]] view_of<Floats> delta_in(Floats& all, int i) const noexcept {
    return view_of<Floats>(all.data() + columns_before(i) * capacity_, batch_, size(i));
  }
  // Calls f with the output of layer i - 1; those of hidden layers may be bf16.
  template <class F>
  status with_activation(int i, F&& f) {
    if (i == layers()) return f(output_in(activations_));
    float* const first = activations_.data() + (columns_before(i) - size(0)) * capacity_;
    if (hidden_ == gemm_storage::f32) return f(matrix_view<float>(first, batch_, size(i)));
    return f(matrix_view<bf16>(reinterpret_cast<bf16*>(first), batch_, size(i)));
  }
  template <class F>
  status with_input(int l, F&& f) {
    if (l == 0) return f(input_);
    return with_activation(l, [&](const auto& x) {
      using element = typename std::remove_cvref_t<decltype(x)>::element_type;
      return f(matrix_view<const element>(x));
    });
  }
  [[nodiscard]] static status grow(floats& buffer, index_t count) {
    if (static_cast<std::size_t>(count) > buffer.max_size()) return {errc::out_of_memory, "mlp"};
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

  std::vector<index_t> sizes_;
  gemm_storage hidden_;
  index_t capacity_ = 0;
  index_t batch_ = 0;
  mlp_dropout dropout_;
  const detail::dropout_calls* dropping_ = nullptr;  // null: nothing is dropped
  matrix_view<const float> input_;
  floats gradients_;
  floats activations_;
  floats deltas_;
};

}}  // namespace deeprec::DEEPREC_ABI
