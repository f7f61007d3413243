// What async_embedding makes of a graph, and its options.
#pragma once

#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/step/step_editor.hpp>
#include <deeprec/graph/step/step_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

struct async_embedding_options {
  index_t window = 2;                           ///< W; 1 is synchronous training
  std::vector<std::string> kinds = {"lookup"};  ///< of the ops that are lookups
  std::string stage = "async embedding";        ///< the name of the stage behind them
};

/// A graph whose lookups run ahead.
struct async_graph {
  step_graph graph;
  moved_values moved;
  index_t window = 1;
  std::vector<index_t> lookups;  ///< ops of the graph that was made
  std::vector<index_t> ahead;    ///< the ops that a step runs before the new stage, these included
  index_t stage = -1;            ///< the new stage; -1: with a window of 1 the graph is a copy
};

}}  // namespace deeprec::DEEPREC_ABI
