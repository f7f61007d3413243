// Lists of tasks, their plans and runners, traces.
#pragma once

#include <deeprec/plan/digraph.hpp>
#include <deeprec/plan/effects.hpp>
#include <deeprec/plan/list_schedule.hpp>
#include <deeprec/plan/op_costs.hpp>
#include <deeprec/plan/plan_run.hpp>
#include <deeprec/plan/ready_sets.hpp>
#include <deeprec/plan/stream_plan.hpp>
#include <deeprec/plan/task_error.hpp>
#include <deeprec/plan/task_list.hpp>
#include <deeprec/plan/task_plan.hpp>
#include <deeprec/plan/trace_recorder.hpp>
