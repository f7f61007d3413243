// The ops of a step graph as lines of text, and the graph in DOT.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline const char* word_of(variable_use use) noexcept {
  static constexpr const char* words[] = {"reads", "writes", "accumulates", "reads (stale)"};
  return words[static_cast<std::size_t>(use)];
}
/// "a = 1, b = 2"; empty: none.
inline std::string attribute_text(const step_op& op) {
  std::string text;
  for (const auto& [name, held] : op.attributes()) {
    if (!text.empty()) text += ", ";
    (text += name) += " = " + held.text();
  }
  return text;
}

inline std::string op_line(const step_core& g, index_t v) {
  const step_op& op = g.op(v);
  const auto name = [&](const port_ref& ref) {
    if (!g.owns(ref)) return std::string("?");
    const step_op& of = g.op(ref.op);
    return "'" + of.name + "'" + (of.outputs.size() > 1 ? "." + std::to_string(ref.port) : "");
  };
  std::string line = "  " + std::to_string(v) + " '" + op.name + "': " + op.kind_name;
  if (const std::string held = attribute_text(op); !held.empty()) line += " (" + held + ")";
  const char* separator = " of ";
  for (const step_input& in : op.inputs) {
    if (in.is_variable()) continue;
    line += separator + name(in.from);
    separator = ", ";
  }
  for (const step_input& in : op.inputs) {
    if (in.is_variable()) line += std::string(", ") + word_of(in.use) + ' ' + name(in.from);
    if (in.is_variable() && in.use == variable_use::stale_read)
      line += " within " + std::to_string(in.window);
  }
  for (const port_ref& u : op.after) line += ", after " + name({u.graph, u.op, 0});
  if (op.kind == op_kind::id_lookup) line += ", id lookup";
  if (op.role != op_role::forward) line += op.role == op_role::gradient ? ", gradient" : ", apply";
  if (op.place != op_place::any) line += op.place == op_place::cpu ? ", on the CPU" : ", on the device";
  if (op.external || op.is_source) line += ", external";
  if (op.target) line += ", target";
  if (op.cost > 0) {
    char text[48];
    std::snprintf(text, sizeof text, ", %.3g us", 1e6 * op.cost);
    line += text;
  }
  return line + '\n';
}

/// A text in a quoted string of DOT.
inline std::string dot_text(std::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n' || c == '\r') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted;
}

inline std::string dot_node(const step_core& g, index_t v) {
  const step_op& op = g.op(v);
  std::string label = dot_text(op.name);
  if (op.name != op.kind_name) label += "\\n" + dot_text(op.kind_name);
  if (const std::string held = attribute_text(op); !held.empty()) label += "\\n" + dot_text(held);
  std::string line = "n" + std::to_string(v) + " [label=\"" + label + "\"";
  switch (op.kind) {
    case op_kind::variable:
      line += ", shape=box";
      break;
    case op_kind::stage:
      line += ", shape=cds";
      break;
    case op_kind::constant:
    case op_kind::placeholder:
      line += ", shape=plaintext";
      break;
    default:
      break;
  }
  if (op.role == op_role::gradient) line += ", style=dashed";
  if (op.role == op_role::apply) line += ", style=bold";
  if (op.target) line += ", peripheries=2";
  return line + "];\n";
}

inline std::string dot_graph(const step_core& g, const std::vector<bool>& staged) {
  const auto is_staged = [&](index_t v) { return !staged.empty() && staged[static_cast<std::size_t>(v)]; };
  std::string dot = "digraph step {\n  rankdir=LR;\n";
  bool any = false;
  for (index_t v = 0; v < g.size(); ++v) {
    if (is_staged(v)) {
      any = true;
    } else {
      dot += "  " + dot_node(g, v);
    }
  }
  if (any) {
    dot += "  subgraph cluster_staged {\n    label=\"before the cut\";\n";
    for (index_t v = 0; v < g.size(); ++v) {
      if (is_staged(v)) dot += "    " + dot_node(g, v);
    }
    dot += "  }\n";
  }
  const auto edge = [&](index_t u, index_t v, const char* how) {
    dot += "  n" + std::to_string(u) + " -> n" + std::to_string(v) + how + ";\n";
  };
  for (index_t v = 0; v < g.size(); ++v) {
    for (const step_input& in : g.op(v).inputs) {
      if (!g.owns(in.from)) continue;
      if (in.changes()) {
        edge(v, in.from.op, " [color=red]");
      } else {
        edge(in.from.op, v, in.is_variable() ? " [color=gray]" : "");
      }
    }
    for (const port_ref& u : g.op(v).after) {
      if (g.owns(u)) edge(u.op, v, " [style=dashed]");
    }
  }
  for_each_effect_edge(g, [&](index_t u, index_t v) { edge(u, v, " [style=dotted, constraint=false]"); });
  return dot + "}\n";
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
