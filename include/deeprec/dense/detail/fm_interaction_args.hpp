// What the kernels of the factorization machine's interaction work on.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Rows of floats, `stride` apart.
template <class Float>
struct fm_rows {
  Float* first;
  index_t stride;

  [[nodiscard]] DEEPREC_INLINE Float* row(index_t i) const noexcept { return first + i * stride; }
};

/// Samples of `tables` vectors of `width`, side by side. `summed`: the output has one column.
struct fm_forward_args {
  fm_rows<const float> pooled;
  fm_rows<float> output;
  index_t tables;
  index_t width;
  bool summed;
};

struct fm_backward_args {
  fm_rows<const float> pooled;
  fm_rows<const float> output_gradient;
  fm_rows<float> pooled_gradient;
  index_t tables;
  index_t width;
  bool summed;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
