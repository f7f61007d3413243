// Which stream each op of a graph runs on: what a user asks for, and the result of assign_streams.
//
//   stream_requests{.scopes = {{"towers", 1}, {"towers/item", 2}},        the innermost scope applies
//                   .colocated = {{update, table}}}                       update runs where table is
//
//   towers/user/mlp ─> stream 1      towers/item/mlp ─> stream 2      towers2/mlp ─> any: another name
//
// Not here: how streams are found (assign_streams.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/plan/stream_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The ops whose name is `name`, or begins with it and a slash. Scopes nest by their names.
struct stream_scope {
  std::string name;
  int stream = -1;  ///< -1: any, also inside of a scope that names one
};

/// `op` runs on the stream of `leader`, whatever scope it is in.
struct op_colocation {
  index_t op = 0;
  index_t leader = 0;
};

struct stream_requests {
  std::vector<stream_scope> scopes = {};
  std::vector<op_colocation> colocated = {};
};

/// @threads immutable once made; thread-safe
struct stream_assignment {
  stream_plan plan;         ///< its ops are those of the graph, without those that are there before a step
  std::vector<int> stream;  ///< of each op; -1: it is there before a step, and leads nobody
  std::vector<index_t> leader;       ///< of each op the last one of its chain of leaders; itself: none
  std::vector<std::int32_t> scope;   ///< of each op the innermost scope, of `scopes`; -1: none
  std::vector<stream_scope> scopes;  ///< as requested
  std::vector<double> load;          ///< of each stream, the cost of its ops
  double work = 0;                   ///< the cost of all ops
  double longest_path = 0;           ///< the cost of the longest path: no plan takes less
  bool costs_known = false;          ///< false: the graph has none, and each op counts as one
};

}}  // namespace deeprec::DEEPREC_ABI
