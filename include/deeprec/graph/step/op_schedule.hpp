// On which threads, and in which order, a step runs its ops.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Of a step_program, and of what lies behind the last cut of a staged_program. The bits are the same. On
/// threads an op begins when those that it needs have ended, ops of one step run at once, so the resource of
/// the context is thread-safe, and values share no memory (place_values). Where steps run beside each other
/// on all processors, as requests to sessions do, an executor of one thread serves most.
enum class op_schedule : std::uint8_t {
  in_turn,   ///< one after the other on the calling thread
  as_ready,  ///< on the executor's threads; what became ready first comes first
  stealing,  ///< on the executor's threads; each goes on with what it made ready
  by_cost,   ///< by learnt costs: the longest way first, on the calling thread where threads don't pay
};

}}  // namespace deeprec::DEEPREC_ABI
