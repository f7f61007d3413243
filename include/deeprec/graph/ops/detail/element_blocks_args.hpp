// What the kernel of a step of an expression works on.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Blocks of rows x columns; strides in elements: 0 repeats a row. `out` may be a or b.
struct element_block {
  const float* a;
  const float* b;  // of functions of one element: a
  float* out;
  index_t a_stride, b_stride, out_stride;
  index_t rows, columns;
  float by;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
