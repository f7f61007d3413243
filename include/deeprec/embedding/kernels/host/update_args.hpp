// Arguments of the update kernels in every region.
#pragma once

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/kernels/host/batch_groups.hpp>
#include <deeprec/embedding/kernels/host/lookup_args.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The gradient of a row is a pooled lookup: groups are its bags, and the rows that are added are the
/// gradients of the batch's bags.
using gradient_args = pool_args<float>;
using gradient_policy = kernel_traits<fold::add, ids_are::present, false>;

template <class Format>
struct update_args {
  group_rows rows;
  const std::byte* const* gradients;  // of a sorted index
  gradient_args gradient;             // of groups of several
  float max_norm;                     // rows were scaled down to this norm; 0: they were not
  Format format;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
