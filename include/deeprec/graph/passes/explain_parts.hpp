// Parts in words: the calls, what crosses in each, what moved, and why the ops beside the calls did not.
//
//   subgraph_partition: 2 calls; 4 messages of 900 bytes a step, 4 of 4200 with nothing moved, 5 of 4200 with
//   a message for each value
//     call 0 pulls from server 0: 2 ops: 'gather', 'sum'; fed 1 value of 400 bytes, fetched 1 value of 100
//     call 1 pushes to server 0: 1 op: 'update'; ...
//     moved: 'sum'
//     stays at the worker: 'mlp': it is placed on a device
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/graph_parts.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// What subgraph_partition decided, in words. Lists end after `most_listed`.
///
/// @pre     `made` is of this graph
/// @cost    O(ops + edges)
/// @threads reentrant
/// @error   bad_alloc
/// @example @snippet tests/graph/subgraph_partition_test.cpp subgraph_partition
[[nodiscard]] inline std::string explain(const flat_graph& graph, const graph_parts& made,
                                         index_t most_listed = 12) {
  using words = detail::op_words;
  const words in{graph, most_listed};
  const auto size = [](const auto& list) { return static_cast<index_t>(list.size()); };
  const auto values = [&](const std::vector<part_value>& list) {
    double bytes = 0;
    for (const part_value& value : list) bytes += static_cast<double>(value.bytes);
    return words::counted(size(list), "value") + " of " + words::number(bytes) + " bytes";
  };
  const auto traffic = [](const part_traffic& t) {
    return std::to_string(t.messages) + " of " + words::number(t.bytes);
  };
  std::string text = "subgraph_partition: " + words::counted(size(made.parts), "call") + "; " +
                     words::counted(made.traffic.messages, "message") + " of " +
                     words::number(made.traffic.bytes) + " bytes a step, " + traffic(made.unmoved) +
                     " with nothing moved, " + traffic(made.separate) + " with a message for each value\n";
  std::vector<index_t> border;
  std::vector<bool> beside(static_cast<std::size_t>(graph.size()));
  const auto part = [&](index_t v) { return made.part[static_cast<std::size_t>(v)]; };
  for (index_t e = 0; e < graph.edge_count(); ++e) {
    const index_t u = graph.source(e), v = graph.destination(e);
    if (part(u) >= 0 && part(v) == graph_parts::worker) beside[static_cast<std::size_t>(v)] = true;
    if (part(v) >= 0 && part(u) == graph_parts::worker) beside[static_cast<std::size_t>(u)] = true;
  }
  for (index_t v = 0; v < graph.size(); ++v) {
    if (beside[static_cast<std::size_t>(v)]) border.push_back(v);
  }
  for (index_t p = 0; p < size(made.parts); ++p) {
    if (p == most_listed) {
      text += "  and " + words::counted(size(made.parts) - most_listed, "call") + " more\n";
      break;
    }
    const server_part& call = made.parts[static_cast<std::size_t>(p)];
    text += "  call " + std::to_string(p) + (call.pushes ? " pushes to server " : " pulls from server ") +
            std::to_string(call.server) + ": " + words::counted(size(call.ops), "op") + ": " +
            in.listed(call.ops) + "; fed " + values(call.feeds) + ", fetched " + values(call.fetches) + '\n';
  }
  if (!made.moved.empty()) text += "  moved: " + in.listed(made.moved) + '\n';
  for (index_t i = 0; i < size(border); ++i) {
    if (i == most_listed) {
      text += "  and " + words::counted(size(border) - most_listed, "op") + " more beside a call\n";
      break;
    }
    const index_t v = border[static_cast<std::size_t>(i)];
    const char* const why = made.bound[static_cast<std::size_t>(v)];
    text += "  stays at the worker: " + in.named(v) + ": " +
            (why == nullptr ? "the price is lower so" : why) + '\n';
  }
  return text;
}

}}  // namespace deeprec::DEEPREC_ABI
