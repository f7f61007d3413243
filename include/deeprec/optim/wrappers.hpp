// Optimizers that wrap an optimizer: they change a row's gradient or weights before its step.
//
//   clipped_by_norm{with_weight_decay{adam{}, 1e-4F}, 1.0F}
//
//   gradient of the row ──> clipped by its norm ──> + rate * w ──> adam      outermost first
//
//   with_gradient_scale    g *= factor             loss scale, or clip_factor of a norm over all tables
//   clipped_by_value       g = clamp(g, -limit, limit)
//   clipped_by_norm        g *= min(1, limit / |g|), |g| over the row
//   with_weight_decay      g += rate * w           L2, in the gradient and so in any moments of it
//   with_decoupled_decay   w *= 1 - learning_rate * rate, not in the gradient (AdamW)
//
// They have no state and work with every optimizer, user-defined ones too. Only rows that a batch uses decay.
// Global norms: global_norm.hpp.
#pragma once

#include <string_view>

#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

namespace detail {

/// The learning rate of the innermost optimizer.
template <class O>
constexpr float learning_rate_of(const O& optimizer) noexcept {
  if constexpr (requires { optimizer.learning_rate; }) {
    return optimizer.learning_rate;
  } else if constexpr (requires { optimizer.optimizer; }) {
    return learning_rate_of(optimizer.optimizer);
  } else {
    static_assert(always_false<O>,
                  "deeprec::with_decoupled_decay: the optimizer has no learning_rate. Fix: "
                  "give it such a member, of type float.");
    return 0;
  }
}

/// The form of a wrapper for one batch: a fixed transform, or one that depends on the gradient's norm.
template <class Rows, class Transform>
struct transformed_rows {
  static constexpr bool needs_norm = false;
  Rows optimizer;
  Transform transform;
  DEEPREC_HD Transform begin_transform(float) const noexcept { return transform; }
};

template <class Rows>
struct norm_clipped_rows {
  static constexpr bool needs_norm = true;
  Rows optimizer;
  float limit;
  DEEPREC_HD steps::scale_gradient begin_transform(float squares) const noexcept {
    const float norm = scalar::sqrt(squares);
    return {norm > limit ? limit / norm : 1.0F};
  }
};

}  // namespace detail

template <class O>
struct with_gradient_scale {
  static constexpr std::string_view name = optimizer_name<O>;
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool steps_on_sums = deeprec::steps_on_sums<O>;

  O optimizer;
  float factor = 1;

  [[nodiscard]] constexpr auto prepare() const {
    using rows = detail::transformed_rows<detail::prepared_t<O>, steps::scale_gradient>;
    return rows{detail::prepare(optimizer), {factor}};
  }
};
template <class O>
with_gradient_scale(O, float) -> with_gradient_scale<O>;

/// NaN stays NaN; infinity becomes the limit.
template <class O>
struct clipped_by_value {
  static constexpr std::string_view name = optimizer_name<O>;
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool steps_on_sums = deeprec::steps_on_sums<O>;

  O optimizer;
  float limit = 1;

  [[nodiscard]] constexpr auto prepare() const {
    using rows = detail::transformed_rows<detail::prepared_t<O>, steps::clip_gradient>;
    return rows{detail::prepare(optimizer), {limit}};
  }
};
template <class O>
clipped_by_value(O, float) -> clipped_by_value<O>;

/// A norm of NaN clips nothing, so NaN stays in its element. Squares that overflow (|g| of 1.8e19 and more)
/// make zeros of the finite elements and NaN of the infinite ones.
template <class O>
struct clipped_by_norm {
  static constexpr std::string_view name = optimizer_name<O>;
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool steps_on_sums = deeprec::steps_on_sums<O>;

  O optimizer;
  float limit = 1;

  [[nodiscard]] constexpr auto prepare() const {
    using rows = detail::norm_clipped_rows<detail::prepared_t<O>>;
    return rows{detail::prepare(optimizer), limit};
  }
};
template <class O>
clipped_by_norm(O, float) -> clipped_by_norm<O>;

template <class O>
struct with_weight_decay {
  static constexpr std::string_view name = optimizer_name<O>;
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool steps_on_sums = deeprec::steps_on_sums<O>;

  O optimizer;
  float rate = 0;

  [[nodiscard]] constexpr auto prepare() const {
    using rows = detail::transformed_rows<detail::prepared_t<O>, steps::decay_weight>;
    return rows{detail::prepare(optimizer), {rate}};
  }
};
template <class O>
with_weight_decay(O, float) -> with_weight_decay<O>;

/// As in PyTorch; for TensorFlow's, which leaves the learning rate out, divide `rate` by it.
template <class O>
struct with_decoupled_decay {
  static constexpr std::string_view name = optimizer_name<O>;
  static constexpr int row_state = O::row_state;
  static constexpr int element_state = O::element_state;
  static constexpr bool needs_mean_square = O::needs_mean_square;
  static constexpr bool steps_on_sums = deeprec::steps_on_sums<O>;

  O optimizer;
  float rate = 0;

  [[nodiscard]] constexpr auto prepare() const {
    using rows = detail::transformed_rows<detail::prepared_t<O>, steps::shrink_weight>;
    const double lost = static_cast<double>(detail::learning_rate_of(optimizer)) * static_cast<double>(rate);
    return rows{detail::prepare(optimizer), {static_cast<float>(1.0 - lost)}};
  }
};
template <class O>
with_decoupled_decay(O, float) -> with_decoupled_decay<O>;

}}  // namespace deeprec::DEEPREC_ABI
