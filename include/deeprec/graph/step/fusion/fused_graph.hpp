// The result of fuse(): the graph that was made, and what became of which ops.
#pragma once

#include <string>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/graph/step/step_editor.hpp>
#include <deeprec/graph/step/step_graph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// A match that was replaced; the macro op has the name of the last of the ops.
struct fused_ops {
  std::string pattern;
  std::vector<std::string> ops;  ///< by the ops of the pattern
  std::string kind;              ///< of the macro op
};
/// Ops of the shape of a pattern that are no match of it.
struct refused_ops {
  std::string pattern;
  std::vector<std::string> ops;
  std::string why;
};

/// A graph made from another one.
struct fused_graph {
  step_graph graph;
  moved_values moved;
  std::vector<fused_ops> fused;      ///< in the order in which they were
  std::vector<refused_ops> refused;  ///< of the graph that was made; the first ones
};

/// A line for each match and each refusal.
///
/// @cost    O(their ops)
/// @threads reentrant
/// @error   throws std::bad_alloc
[[nodiscard]] inline std::string explain(const fused_graph& made) {
  const auto list = [](const std::vector<std::string>& ops) {
    std::string text;
    for (const std::string& name : ops) (text += text.empty() ? "'" : ", '") += name + "'";
    return text;
  };
  std::string text = "fuse: " + std::to_string(made.fused.size()) + " matches\n";
  for (const fused_ops& f : made.fused)
    text += "  " + f.pattern + ": " + list(f.ops) + " -> '" + f.ops.back() + "', " + f.kind + '\n';
  for (const refused_ops& r : made.refused)
    text += "  not " + r.pattern + ": " + list(r.ops) + ": " + r.why + '\n';
  return text;
}

}}  // namespace deeprec::DEEPREC_ABI
