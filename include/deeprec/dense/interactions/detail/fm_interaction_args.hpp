// What the kernels of the factorization machine's interaction work on.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/dense/detail/float_rows.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Samples of `tables` vectors of `width`, side by side. `summed`: the output has one column.
struct fm_forward_args {
  float_rows<const float> pooled;
  float_rows<float> output;
  index_t tables;
  index_t width;
  bool summed;
};

struct fm_backward_args {
  float_rows<const float> pooled;
  float_rows<const float> output_gradient;
  float_rows<float> pooled_gradient;
  index_t tables;
  index_t width;
  bool summed;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
