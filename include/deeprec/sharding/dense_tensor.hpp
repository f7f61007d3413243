// A dense parameter of a model and its gradient, in the memory of the caller.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/matrix_view.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A row is what an optimizer that keeps state for rows takes for one: of a layer the weights of a neuron,
/// and the bias.
///
/// @shape parameters, gradient (R,W), rows one behind the other; or empty
struct dense_tensor {
  matrix_view<float> parameters{};
  matrix_view<const float> gradient{};
};

}}  // namespace deeprec::DEEPREC_ABI
