// The optimizer's state of a stack of fully connected layers: in each layer the weights of a neuron are a
// row, and the bias is one.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/dense/layers/detail/mlp_shape.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class mlp_state {
 public:
  using floats = std::pmr::vector<float>;

  explicit mlp_state(std::pmr::memory_resource* memory) : values_(memory) {}
  mlp_state(const mlp_state& other, std::pmr::memory_resource* memory)
      : kind_(other.kind_), owner_(other.owner_), values_(other.values_, memory) {}

  [[nodiscard]] matrix_view<float> values() noexcept {
    return {values_.data(), 1, static_cast<index_t>(values_.size())};
  }
  /// The name of the optimizer; empty before make().
  [[nodiscard]] std::string_view owner() const noexcept { return owner_; }

  /// Zeroed, unless it exists.
  template <RowOptimizer O>
  [[nodiscard]] status make(const mlp_shape& shape) {
    constexpr int kind = 1 + O::row_state * 256 + O::element_state;
    if (kind_ == kind && owner_ == optimizer_name<O>) return {};
    if (kind_ != 0) {
      return {errc::unsupported,
              "mlp::step: the state must be that of an optimizer of this name (it is state_owner()'s; "
              "reset_state() discards it)"};
    }
    index_t rows = 0;
    for (int l = 0; l < shape.layers(); ++l) rows += shape.size(l + 1) + 1;
    const index_t needed = O::row_state * rows + O::element_state * shape.parameters();
    if (const status s = mlp_pass::grow(values_, needed); !s) return s;
    kind_ = kind;
    owner_ = optimizer_name<O>;
    return {};
  }
  void reset() noexcept {
    values_.clear();
    kind_ = 0;
    owner_ = {};
  }

  /// Steps all parameters; changed(l) after those of layer l.
  template <RowOptimizer O, class Context, class Changed>
  DEEPREC_PER_UNIT status step(const Context& ctx, const O& optimizer, const mlp_shape& shape,
                               matrix_view<const float> gradients, floats& parameters,
                               const Changed& changed) {
    if (const status s = make<O>(shape); !s) return s;
    const std::span<const float> all(gradients.data_handle(), static_cast<std::size_t>(shape.parameters()));
    float* state = values_.data();
    for (int l = 0; l < shape.layers(); ++l) {
      const auto stepped = [&](matrix_view<const float> g, matrix_view<float> w) {
        const index_t row_floats = O::row_state + O::element_state * w.extent(1);
        const matrix_view<float> of_rows(state, w.extent(0), row_floats);
        state += w.extent(0) * row_floats;
        return apply_rows(begun(ctx), g, optimizer, w, of_rows);
      };
      if (const status s = stepped(shape.weights_in(all, l), shape.weights_in(parameters, l)); !s) return s;
      if (const status s = stepped(shape.bias_in(all, l), shape.bias_in(parameters, l)); !s) return s;
      changed(l);
    }
    return {};
  }

 private:
  int kind_ = 0;
  std::string_view owner_;
  floats values_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
