// A whole vector of a row or the first lanes of its last one, as a type: a kernel is written once for both.
//
//   for (; j + lanes <= width; j += lanes) columns(row, full_place{j});
//   if (j < width) columns(row, part_place{j, static_cast<int>(width - j)});
//
//   template <class Place> void columns(float* row, Place at) { store_at(row, load_at(row, at) + x, at); }
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/simd/vectors.hpp>

#define DEEPREC_REGION_SOURCE "deeprec/simd/detail/places.inl"
#include <deeprec/simd/foreach_region.hpp>
