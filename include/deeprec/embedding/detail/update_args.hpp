// What the update kernels of every region are given.
#pragma once

#include <cstddef>
#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/jagged_view.hpp>
#include <deeprec/embedding/detail/lookup_args.hpp>
#include <deeprec/embedding/detail/row_groups.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

/// The gradient of a row is a pooled lookup: its groups are bags, their ids the rows (bags of the batch) of
/// the output's gradient.
using gradient_args = pool_args<direct_rows<std::uint32_t>, std::uint32_t, float>;
using gradient_policy = kernel_traits<fold::add, ids_are::present, false>;

template <class Format>
struct update_args {
  const row_groups& groups;
  gradient_args gradient;
  float max_norm;  // rows were scaled down to this norm; 0: they were not
  std::byte* rows;
  Format format;
};

/// Groups whose gradients lie in scratch at once: (groups_at_once, D) floats.
inline constexpr index_t groups_at_once = 16;

}  // namespace deeprec::inline DEEPREC_ABI::detail
