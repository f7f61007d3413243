// The checks of scores, labels and weights that metrics share.
#pragma once

#include <cmath>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Checks that no score is NaN and that labels are in [0, 1]; the error has the first row that fails.
inline status check_scored(matrix_view<const float> scores, matrix_view<const float> labels) {
  if (!well_formed(scores) || scores.extent(1) != 1) {
    return {errc::shape_mismatch, "metric: scores must be (B,1)"};
  }
  if (!well_formed(labels) || !has_shape(labels, scores.extent(0), 1)) {
    return {errc::shape_mismatch, "metric: labels must be (B,1)"};
  }
  for (index_t i = 0; i < scores.extent(0); ++i) {
    if (std::isnan(*scores.row(i))) {
      return {errc::invalid_value, "metric: a score must not be NaN", {.row = i}};
    }
    const float label = *labels.row(i);
    if (!(label >= 0 && label <= 1)) {
      return {errc::invalid_value, "metric: a label must be in [0, 1]", {.row = i}};
    }
  }
  return {};
}

/// Checks that weights are in [0, 2^20]; the error has the first row that fails.
inline status check_weights(matrix_view<const float> weights, index_t batch) {
  if (!well_formed(weights) || !has_shape(weights, batch, 1)) {
    return {errc::shape_mismatch, "metric: weights must be (B,1)"};
  }
  for (index_t i = 0; i < batch; ++i) {
    if (!(*weights.row(i) >= 0 && *weights.row(i) <= 0x1p20F)) {
      return {errc::invalid_value, "metric: a weight must be in [0, 2^20]", {.row = i}};
    }
  }
  return {};
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
