// The result of apply_cut: a graph whose stages are where a cut put them.
#pragma once

#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A graph made from another one.
struct staged_graph {
  flat_graph graph;
  std::vector<index_t> origin;  ///< of each op, its number in the graph before; -1: a new put or take
  std::vector<index_t> puts;    ///< of each stage of the cut
  std::vector<index_t> takes;
};

}}  // namespace deeprec::DEEPREC_ABI
