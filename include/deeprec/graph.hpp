// Step graphs: their intermediate form, passes, and runs.
#pragma once

#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/ir/graph_adaptor.hpp>
#include <deeprec/graph/ir/op_info.hpp>
#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/assign_streams.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/explain_parts.hpp>
#include <deeprec/graph/passes/explain_streams.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>
#include <deeprec/graph/passes/staged_graph.hpp>
#include <deeprec/graph/passes/stream_assignment.hpp>
#include <deeprec/graph/passes/subgraph_partition.hpp>
#include <deeprec/graph/step/describe_graph.hpp>
#include <deeprec/graph/step/lane_steps.hpp>
#include <deeprec/graph/step/plan_memory.hpp>
#include <deeprec/graph/step/staged_options.hpp>
#include <deeprec/graph/step/staged_program.hpp>
#include <deeprec/graph/step/step_costs.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/graph/step/step_program.hpp>
#include <deeprec/graph/step/value_plan.hpp>
