// A step as it was written down, with its faults: ops with inputs, in the order of adding, and the order of
// their effects.
//
// Nothing is refused while ops are added. Not here: faults (step_checks.hpp), handles (step_graph.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/detail/step_nodes.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>
#include <deeprec/graph/step/op_attribute.hpp>
#include <deeprec/graph/step/step_handles.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

struct step_op {
  std::string name;
  const char* kind_name = "opaque";  // a literal
  op_kind kind = op_kind::plain;
  op_role role = op_role::forward;
  op_place place = op_place::any;
  bool target = false;
  bool external = false;
  bool is_source = false;
  bool sample_wise = false;
  double cost = 0;
  std::vector<step_input> inputs{};          // cells
  std::vector<port_ref> after{};             // ops
  std::vector<const value_type*> outputs{};  // of a stage: null, its values are those of its inputs
  std::vector<std::int64_t> bytes{};         // of the outputs
  std::shared_ptr<const step_node> node{};   // null: nothing is run
  std::shared_ptr<const void> constant{};    // the value of a constant; what makes a local
  std::shared_ptr<const void> identity{};    // of a local: bytes that no other variable has
  std::vector<index_t> kept{};               // outputs that the caller reads

  [[nodiscard]] attribute_list attributes() const {
    attribute_list all;
    if (node != nullptr) node->attributes(all);
    return all;
  }
};

class step_core {
 public:
  step_core() : id_(new_id()) {}

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] index_t size() const noexcept { return static_cast<index_t>(ops_.size()); }
  [[nodiscard]] const step_op& op(index_t i) const { return ops_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] step_op& change(index_t i) noexcept {
    ++changes_;
    return ops_[static_cast<std::size_t>(i)];
  }
  index_t add(step_op&& op) {
    if (op.name.empty()) op.name = op.kind_name;
    op.bytes.resize(op.outputs.size());
    ops_.push_back(std::move(op));
    return size() - 1;
  }
  [[nodiscard]] bool owns(const port_ref& ref) const noexcept {
    return ref.graph == id_ && 0 <= ref.op && ref.op < size();
  }
  /// How often change() was called.
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }
  /// The same ops by the same numbers, as a graph of its own. Both call the same objects.
  [[nodiscard]] step_core copy() const {
    step_core made;
    made.ops_ = ops_;
    const auto move = [&](port_ref& ref) {
      if (ref.graph == id_) ref.graph = made.id_;
    };
    for (step_op& op : made.ops_) {
      for (step_input& in : op.inputs) move(in.from);
      for (port_ref& u : op.after) move(u);
    }
    return made;
  }
  /// Whether an input is a variable that each step in flight has for itself.
  [[nodiscard]] bool is_local(const step_input& in) const {
    return in.is_variable() && op(in.from.op).identity != nullptr;
  }
  /// The type of a value; none where it is not one of this graph.
  [[nodiscard]] type_id type_of(port_ref ref) const {
    for (index_t stages = 0; stages <= size() && owns(ref); ++stages) {
      const step_op& maker = op(ref.op);
      const auto port = static_cast<std::size_t>(ref.port);
      if (ref.port < 0 || port >= maker.outputs.size()) break;
      if (maker.kind != op_kind::stage) return maker.outputs[port]->type;
      ref = maker.inputs[port].from;
    }
    return {};
  }
  /// Where a value is made: through stages, which only hand it on.
  ///
  /// @pre flatten() found no fault
  [[nodiscard]] port_ref made_at(port_ref ref) const {
    while (op(ref.op).kind == op_kind::stage)
      ref = op(ref.op).inputs[static_cast<std::size_t>(ref.port)].from;
    return ref;
  }

 private:
  static std::uint64_t new_id() noexcept {
    static std::atomic<std::uint64_t> given{0};
    return given.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  std::uint64_t id_;
  std::uint64_t changes_ = 0;
  std::vector<step_op> ops_;
};

inline std::string named(const step_core& g, index_t op) {
  return "op " + std::to_string(op) + " '" + g.op(op).name + "'";
}
inline fault refuse_step(const step_core& g, index_t op, const char* rule, const std::string& was = {},
                         errc code = errc::invalid_value) {
  std::string text = std::string("step_graph: ") + rule + " (" + named(g, op);
  if (!was.empty()) text += ": " + was;
  return {status(code, fault_place{.item = op}), {}, text + ')'};
}

/// The memory of all variables, cut where one of them begins or ends.
inline memory_pieces pieces_of(const step_core& g) {
  memory_pieces pieces;
  for (index_t v = 0; v < g.size(); ++v) {
    for (const step_input& in : g.op(v).inputs) {
      if (in.is_variable()) pieces.add(in.begin(), in.end());
    }
  }
  pieces.close();
  return pieces;
}

/// Calls edge(earlier, later) for ops that access variables which overlap, one of them changing it, in the
/// order of adding; and for external ops. What follows from other edges is left out.
template <class Edge>
void for_each_effect_edge(const step_core& g, const Edge& edge) {
  const memory_pieces pieces = pieces_of(g);
  std::vector<effect_order> of_piece(pieces.size());
  std::vector<index_t> last(static_cast<std::size_t>(g.size()), -1);  // the op that an op has an edge to
  index_t external = -1;
  for (index_t v = 0; v < g.size(); ++v) {
    const step_op& op = g.op(v);
    const auto join = [&](index_t u) {
      if (u >= 0 && u != v && std::exchange(last[static_cast<std::size_t>(u)], v) != v) edge(u, v);
    };
    for (const step_input& in : op.inputs) {
      if (!in.is_variable() || in.is_stale()) continue;
      pieces.for_each(in.begin(), in.end(), [&](std::size_t piece) {
        const auto number = static_cast<digraph::number>(v);
        if (in.changes()) {
          of_piece[piece].changes(number, join);
        } else {
          of_piece[piece].reads(number, join);
        }
      });
    }
    // The source begins the step, whatever else is external.
    if (op.external && !op.is_source) {
      join(external);
      external = v;
    }
  }
}

/// How many cuts lie behind each op: 0 for ops of the rest. An op of `before` (by number; empty: none) lies
/// before a cut; a stage is one where cuts_here(stage).
template <class Cuts>
std::vector<index_t> cuts_after(const flat_graph& g, const std::vector<bool>& before, const Cuts& cuts_here) {
  std::vector<index_t> cuts(static_cast<std::size_t>(g.size()));
  for (std::size_t i = g.order().size(); i-- > 0;) {
    const index_t v = g.order()[i];
    index_t most = !before.empty() && before[static_cast<std::size_t>(v)] ? 1 : 0;
    for (index_t e = g.out_begin(v); e < g.out_end(v); ++e)
      most = (std::max)(most, cuts[static_cast<std::size_t>(g.destination(e))]);
    if (g.kind(v) == op_kind::stage && cuts_here(v)) ++most;
    cuts[static_cast<std::size_t>(v)] = most;
  }
  return cuts;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
