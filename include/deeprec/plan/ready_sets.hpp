// The ready sets that a run of a plan on threads can have: a parameter of basic_plan_run.
#pragma once

#include <deeprec/core/config.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// In which order threads take the ops that are ready, and what they keep for themselves.
namespace ready_set {
/// What became ready first comes first, for all threads from one list.
struct first_in_first_out {};
/// Each thread takes what it made ready last, and another one's oldest where it has none.
struct work_stealing {};
/// What the longest way follows comes first; cheap ops stay with their thread or go several at once; and
/// where threads don't pay, a run stays on its caller's. By costs that are learnt while runs go on: see
/// op_costs.
struct cost_model {};
}  // namespace ready_set

}}  // namespace deeprec::DEEPREC_ABI
