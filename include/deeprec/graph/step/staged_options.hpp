// Options of a staged_program.
#pragma once

#include <cstddef>
#include <functional>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/step/op_schedule.hpp>
#include <deeprec/graph/step/step_program.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct staged_options {
  std::size_t capacity = 2;  ///< steps that wait at a cut; with stale reads at least the window - 1
  int producers = 1;         ///< threads that run the ops before the first cut, steps in order
  /// Of the values of all steps in flight.
  std::pmr::memory_resource* memory = std::pmr::get_default_resource();
  /// Scratch memory of the ops before a cut: thread-safe.
  std::pmr::memory_resource* staged_memory = std::pmr::get_default_resource();
  /// Feeds the placeholders of a step, before the ops behind the last cut.
  std::function<void(step_state&)> feed{};
  sample_cut samples{};                         ///< of the ops behind the last cut
  op_schedule schedule = op_schedule::in_turn;  ///< of the same, for whole batches
};

}}  // namespace deeprec::DEEPREC_ABI
