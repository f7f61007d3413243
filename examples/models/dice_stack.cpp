#include "dice_stack.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/optim/apply_row.hpp>

namespace ctr {

namespace {

constexpr float momentum = 0.05F;  // of the running averages

}  // namespace

dice_stack::dice_stack(std::vector<index_t> sizes, deeprec::counter_rng rng, deeprec::mlp_precision precision)
    : sizes_(std::move(sizes)), precision_(precision) {
  index_t floats = 0, units = 0;
  for (std::size_t l = 0; l < layers(); ++l) {
    first_.push_back(floats);
    first_unit_.push_back(units);
    floats += sizes_[l + 1] * (sizes_[l] + 1 + (has_dice(l) ? 1 : 0));
    units += has_dice(l) ? sizes_[l + 1] : 0;
  }
  parameters_.resize(static_cast<std::size_t>(floats));
  gradients_.resize(parameters_.size());
  state_.resize(parameters_.size());
  batch_.resize(static_cast<std::size_t>(2 * units));
  averages_.resize(batch_.size());
  for (std::size_t l = 0; l < layers(); ++l) {
    const double bound = std::sqrt(6.0 / static_cast<double>(sizes_[l]));
    float* const w = weights(parameters_, l).data_handle();
    for (index_t i = 0; i < sizes_[l] * sizes_[l + 1]; ++i) {
      const double u = rng.uniform(300 + static_cast<std::uint64_t>(l), static_cast<std::uint64_t>(i));
      w[i] = static_cast<float>((2 * u - 1) * bound);
    }
    if (!has_dice(l)) continue;
    const deeprec::array_view<float> variance = statistics(averages_, l).variance;
    std::fill_n(variance.data(), variance.size(), 1.0F);
  }
}

status dice_stack::forward(const step_context& on, matrix_view<const float> input, deeprec::dice_mode mode) {
  const index_t rows = input.extent(0);
  index_t columns = sizes_.front();
  for (std::size_t l = 0; l < layers(); ++l) columns += (has_dice(l) ? 3 : 1) * sizes_[l + 1];
  memory_.resize(std::max(memory_.size(), static_cast<std::size_t>(rows * columns)));
  float* next = memory_.data();
  const auto take = [&](index_t width) {
    const matrix_view<float> taken(next, rows, width);
    next += rows * width;
    return taken;
  };
  sums_.clear();
  outputs_.clear();
  of_sums_.clear();
  input_ = input;
  input_gradient_ = take(sizes_.front());
  matrix_view<const float> x = input;
  for (std::size_t l = 0; l < layers(); ++l) {
    sums_.push_back(take(sizes_[l + 1]));
    outputs_.push_back(has_dice(l) ? take(sizes_[l + 1]) : sums_.back());
    of_sums_.push_back(has_dice(l) ? take(sizes_[l + 1]) : matrix_view<float>());
    const matrix_view<const float> w = weights(parameters_, l);
    if (const status s = linear_forward(on, x, w, bias(parameters_, l), sums_.back(), {.math = math(l)}); !s)
      return s;
    x = outputs_.back();
    if (!has_dice(l)) continue;
    const bool fixed = mode == deeprec::dice_mode::fixed;
    const deeprec::dice_statistics<> used = statistics(fixed ? averages_ : batch_, l);
    if (const status s =
            dice_forward(on, sums_.back(), alpha(parameters_, l), used, outputs_.back(), {.mode = mode});
        !s) {
      return s;
    }
    if (fixed) continue;
    if (const status s = dice_average(on, used, momentum, statistics(averages_, l)); !s) return s;
  }
  return {};
}

status dice_stack::backward(const step_context& on, matrix_view<const float> output_gradient) {
  matrix_view<const float> dy = output_gradient;
  for (std::size_t l = layers(); l-- > 0;) {
    if (has_dice(l)) {
      if (const status s = dice_backward(on, sums_[l], alpha(parameters_, l), statistics(batch_, l), dy,
                                         of_sums_[l], alpha(gradients_, l));
          !s) {
        return s;
      }
      dy = of_sums_[l];
    }
    const matrix_view<const float> x = l == 0 ? input_ : matrix_view<const float>(outputs_[l - 1]);
    const matrix_view<float> dx = l == 0 ? input_gradient_ : of_sums_[l - 1];
    const matrix_view<const float> w = weights(parameters_, l);
    if (const status s =
            linear_backward(on, x, dy, w, weights(gradients_, l), bias(gradients_, l), dx, {.math = math(l)});
        !s) {
      return s;
    }
    dy = dx;
  }
  return {};
}

status dice_stack::step(const step_context& on, const dense_optimizer& optimizer) {
  return optimizer.visit([&](const auto& one) {
    return apply_rows(on, matrix_view<const float>(as_row(gradients_)), one, parameters(), state());
  });
}

}  // namespace ctr
