// A graph cut into a worker's part and parts at the servers that have its variables: the input of
// subgraph_partition, its result, and what crosses.
//
//   worker     ids ──┐                 ┌─> mlp ─> gradient ──┐
//   server 0         └─> unique ─> gather (table)            └─> update (table)
//                        call 0, a pull                          call 1, a push
//
// A call is two messages: a request with all that is fed, a response with all that is fetched. Not here: how
// parts are found (subgraph_partition.hpp); sending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A variable, and the server that has it.
struct variable_owner {
  index_t variable = 0;
  index_t server = 0;
};

/// What is paid, in any one unit: that of the ops' costs, where they are known.
struct partition_options {
  double cost_per_byte = 1;
  double cost_per_message = 1000;
  double server_cost =
      1;  ///< times the cost of an op: the price of moving it to a server, which many workers share
  index_t most_priced = 20'000;  ///< partitions that are compared at most
};

/// Messages and bytes of one step.
struct part_traffic {
  index_t messages = 0;
  double bytes = 0;
};

/// A value that a call brings to its part or back, once for however many ops use it.
struct part_value {
  index_t source = 0;
  index_t source_port = 0;
  std::int64_t bytes = 0;
};

/// Ops that a server runs in one call.
struct server_part {
  index_t server = 0;
  bool pushes = false;            ///< one of its ops writes a variable
  std::vector<index_t> ops = {};  ///< each after what it needs
  std::vector<part_value>
      feeds;  ///< from the worker: also values of other parts, which the worker has fetched
  std::vector<part_value> fetches = {};  ///< to the worker
};

/// What the worker does next: one of its ops, or a call.
struct part_step {
  index_t op = -1;
  index_t part = -1;
};

/// @threads immutable once made; thread-safe
struct graph_parts {
  static constexpr index_t worker = -1;      ///< a part of an op
  static constexpr index_t everywhere = -2;  ///< no part: a constant, or the handle of a server's variable

  std::vector<index_t> part;  ///< of each op: an index of `parts`, `worker` or `everywhere`
  std::vector<server_part> parts;
  std::vector<part_step> steps;  ///< the worker's ops and the calls, each after what it needs
  std::vector<index_t> moved;    ///< ops of parts that could be the worker's, ascending
  /// Of each op why it must be where it is; null: it may move.
  std::vector<const char*> bound;
  part_traffic separate;  ///< nothing moved, and each value a message of its own
  part_traffic unmoved;   ///< nothing moved, values joined in calls
  part_traffic traffic;   ///< of these parts
  double unmoved_price = 0;
  double price = 0;  ///< of the bytes, the messages and the moved ops; never above unmoved_price
};

}}  // namespace deeprec::DEEPREC_ABI
