// The step of each model as a graph: 70 to 90 ops, of which one, the source, is not described.
//
//   read ─│io│─┬─ decode ───────────────────┬─> forward ops ─> loss gradient ─> backward ops ─> steps
//              ├─ bucket x 13 ─┬─ resolve ──┴─> lookup ─┘                            └─> row update
//              └─ hash x 26 ── bucket x 26
//
// The cut "io" of the user stands behind the source. Up to resolve no op reads what training changes: these
// are the ops that smart_stage moves before the cut.
#pragma once

#include <functional>
#include <vector>

#include <deeprec/graph/step_graph.hpp>

#include "models.hpp"
#include "step_ops.hpp"
#include "wide_deep.hpp"

namespace train_ctr {

/// Fills the rows of a step; false: there are none.
using row_reader = std::function<bool(raw_rows&)>;

struct graph_step {
  deeprec::step_graph graph;
  std::vector<part> parts;          ///< of each op
  deeprec::value<raw_rows> source;  ///< the rows of the step
};

/// @param tables, model  outlive the graph
graph_step make_graph_step(dlrm& model, const ctr_tables& tables, row_reader read);
graph_step make_graph_step(logistic_regression& model, const ctr_tables& tables, row_reader read);
graph_step make_graph_step(wide_deep& model, const ctr_tables& tables, row_reader read);

}  // namespace train_ctr
