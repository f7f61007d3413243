// Runs the ops of a step on the threads of an executor, beside each other.
#pragma once

#include <memory>
#include <memory_resource>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/exec/executor_ref.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/op_schedule.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/ready_sets.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

template <class Ready>
class scheduled_run final : public step_runner {
 public:
  /// @param plan outlives this
  scheduled_run(const task_plan& plan, std::pmr::memory_resource* memory) : run_(plan, memory) {}
  [[nodiscard]] result<void> run(const context<executor_ref>& on, step_storage& step) override {
    return run_on(on, run_, static_cast<step_cells*>(&step));
  }

 private:
  basic_plan_run<Ready> run_;
};

/// Null: one op after the other.
///
/// @param plan outlives what is made
inline std::unique_ptr<step_runner> make_scheduled_run(op_schedule schedule, const task_plan& plan,
                                                       std::pmr::memory_resource* memory) {
  switch (schedule) {
    case op_schedule::in_turn:
      break;
    case op_schedule::as_ready:
      return std::make_unique<scheduled_run<ready_set::first_in_first_out>>(plan, memory);
    case op_schedule::stealing:
      return std::make_unique<scheduled_run<ready_set::work_stealing>>(plan, memory);
    case op_schedule::by_cost:
      return std::make_unique<scheduled_run<ready_set::cost_model>>(plan, memory);
  }
  return nullptr;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
