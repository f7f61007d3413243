// One step on a row: for scalar code, and in the three regions that it is compiled for.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/rounding.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/simd/rounding_vectors.hpp>
#include <deeprec/simd/vectors.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace scalar {
// The vector primitives for one float: the reference for every faster path.
inline constexpr int lanes = 1;
DEEPREC_INLINE float zero() { return 0; }
DEEPREC_INLINE float add_lanes(float x) { return x; }
template <class T>
DEEPREC_INLINE float load(const T* p) {
  return static_cast<float>(*p);
}
template <class T>
DEEPREC_INLINE float load_first(const T* p, int n) {
  return n > 0 ? load(p) : 0.0F;
}
DEEPREC_INLINE float last_to_front(float x, int n) { return n > 0 ? x : 0.0F; }
template <class T>
DEEPREC_INLINE void store(T* p, float x) {
  *p = static_cast<T>(x);
}
template <class T>
DEEPREC_INLINE void store_first(T* p, float x, int n) {
  if (n > 0) store(p, x);
}
#include <deeprec/simd/rounding_portable.inl>

#include <deeprec/optim/detail/apply_row.inl>
}}}  // namespace deeprec::DEEPREC_ABI::scalar

#define DEEPREC_REGION_SOURCE "deeprec/optim/detail/apply_row.inl"
#include <deeprec/simd/foreach_region.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/optim/detail/step_rows.inl"
#include <deeprec/simd/foreach_region.hpp>
