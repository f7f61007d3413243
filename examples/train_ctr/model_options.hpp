// The options of a model from those of the program.
#pragma once

#include <string_view>
#include <type_traits>

#include <deeprec/dense/layers/mlp.hpp>

#include "models/optimizers.hpp"
#include "options.hpp"

namespace ctr {

inline deeprec::mlp_precision precision_of(const options& o) {
  using deeprec::gemm_math;
  deeprec::mlp_precision how;
  for (const gemm_math math :
       {gemm_math::bf16, gemm_math::tf32, gemm_math::forced_bf16, gemm_math::forced_tf32}) {
    if (o.math == to_string(math)) how.math = math;
  }
  if (o.last_layer_f32) how.last = deeprec::mlp_precision::last_layer::f32;
  return how;
}

/// The options of a model: the sizes that were given; the others stay as the model has them.
template <class Model>
[[nodiscard]] typename Model::options options_of(const options& o) {
  typename Model::options how;
  how.precision = precision_of(o);
  how.initial_squares = o.initial_squares;
  how.rule = o.optimizer == "sgd" ? step_rule::sgd : step_rule::adagrad;
  how.l2 = o.l2;
  if (o.learning_rate > 0) how.dense_rate = o.learning_rate;
  if (o.row_learning_rate > 0) {
    if constexpr (requires { how.wide_rate; }) how.wide_rate *= o.row_learning_rate / how.row_rate;
    how.row_rate = o.row_learning_rate;
  }
  const auto set = [](auto& size, const auto& given, bool is_given) {
    if constexpr (std::is_same_v<decltype(size), std::remove_cvref_t<decltype(given)>&>) {
      if (is_given) size = given;
    }
  };
  how.for_each_size([&](std::string_view name, auto& size) {
    if (name == "width") set(size, o.width, o.width > 0);
    if (name == "layers") set(size, o.cross_layers, o.cross_layers > 0);
    if (name == "bottom") set(size, o.bottom, !o.bottom.empty());
    if (name == "top") set(size, o.top, !o.top.empty());
    if (name == "attention") set(size, false, o.no_attention);
  });
  return how;
}

}  // namespace ctr
