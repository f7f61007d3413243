// Where the values of a step lie that share memory: what plan_memory makes and place_values takes
// (plan_memory.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Where the values of a step keep their content: offsets in one block.
struct value_plan {
  struct placed_value {
    index_t op, port;
    std::int64_t begin, end;  ///< places in the order of ops: made, and last needed before `end`
    std::size_t offset, bytes;
  };
  std::uint64_t graph = 0;  ///< that it is of
  std::vector<placed_value> values;
  std::size_t bytes = 0;        ///< of the block
  std::size_t live_bytes = 0;   ///< the most that live at once: no plan is below
  std::size_t apart_bytes = 0;  ///< of all values, each in memory of its own
};

}}  // namespace deeprec::DEEPREC_ABI
