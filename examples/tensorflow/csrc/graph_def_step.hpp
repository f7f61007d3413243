// A step of TensorFlow as the passes read it: a GraphDef, what the session is to compute, and what ops cost.
//
//   NodeDef                op_info                        condition
//   Const                  constant
//   Stage, Unstage         stage_put, stage_take          container and shared_name
//   Placeholder...         placeholder
//   Switch, Merge, ...     control_flow
//   VarHandleOp, ...       variable                       its output is a resource or a reference
//   IteratorV2, FIFOQueue  constant                       the same of an input source: on both sides
//   random op, py_func     external                       any other stateful op
//   LookupTableFindV2      id_lookup                      on a table that is initialized once
//
// Kinds follow from the OpDef (stateful, reference, resource) or the op, never from names of nodes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/graph/ir/graph_adaptor.hpp>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/step_stats.pb.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace deeprec_tf {

using deeprec::index_t;

/// Seconds of ops and bytes of their outputs, the means of steps that TensorFlow traced.
class step_costs {
 public:
  void add(const tensorflow::StepStats& step) {
    for (const auto& device : step.dev_stats()) {
      for (const auto& node : device.node_stats()) {
        auto& [seconds, times] = seconds_[node.node_name()];
        seconds += 1e-9 * static_cast<double>(nanoseconds(node));
        ++times;
        for (const auto& output : node.output()) {
          std::int64_t& most = bytes_[{node.node_name(), output.slot()}];
          most = std::max(most, output.tensor_description().allocation_description().requested_bytes());
        }
      }
    }
  }
  [[nodiscard]] double seconds(const std::string& node) const {
    const auto found = seconds_.find(node);
    return found == seconds_.end() ? 0 : found->second.first / found->second.second;
  }
  [[nodiscard]] std::int64_t bytes(const std::string& node, int port) const {
    const auto found = bytes_.find({node, port});
    return found == bytes_.end() ? 0 : found->second;
  }

 private:
  static std::int64_t nanoseconds(const tensorflow::NodeExecStats& node) {
    const std::int64_t fine = node.op_end_rel_nanos() - node.op_start_rel_nanos();
    return fine > 0
               ? fine
               : std::max(std::int64_t{0}, 1000 * (node.op_end_rel_micros() - node.op_start_rel_micros()));
  }

  // The sum over the traced runs that had the node: a put and a step may be traced apart.
  std::unordered_map<std::string, std::pair<double, int>> seconds_;
  std::map<std::pair<std::string, int>, std::int64_t> bytes_;
};

/// The graph must outlive it and stay as it is.
class graph_def_step {
 public:
  /// An input of a node: an output of another, or a control edge (port -1).
  struct input {
    index_t node = 0;
    int port = 0;
  };

  /// @error InvalidArgument, with the node's name: an op that is not registered, an input or a target that is
  ///        no node of the graph, two nodes of one name
  static absl::StatusOr<graph_def_step> make(const tensorflow::GraphDef& graph,
                                             const std::vector<tensorflow::tstring>& targets,
                                             step_costs costs) {
    graph_def_step step(graph, std::move(costs));
    if (absl::Status s = step.read(targets); !s.ok()) return s;
    return step;
  }

  [[nodiscard]] index_t size() const { return graph_->node_size(); }
  [[nodiscard]] const tensorflow::NodeDef& node(index_t v) const { return graph_->node(static_cast<int>(v)); }
  [[nodiscard]] const std::vector<input>& inputs(index_t v) const { return inputs_[at(v)]; }
  [[nodiscard]] bool has_node(const std::string& name) const { return number_of_.count(name) != 0; }
  /// The type of an output.
  [[nodiscard]] tensorflow::DataType type(index_t v, index_t port) const { return types_[at(v)][at(port)]; }
  /// In a loop of control flow an edge leads back: from NextIteration. It belongs to no order of a step.
  [[nodiscard]] bool is_back_edge(const input& in) const {
    const std::string& op = node(in.node).op();
    return op == "NextIteration" || op == "RefNextIteration";
  }
  [[nodiscard]] deeprec::op_info op(index_t v) const {
    return {.name = node(v).name(),
            .kind = kinds_[at(v)],
            .place = place_of(node(v)),
            .effects = effects_[at(v)],
            .cost = costs_.seconds(node(v).name()),
            .stage = stages_[at(v)]};
  }
  [[nodiscard]] std::int64_t bytes(const input& in) const {
    return costs_.bytes(node(in.node).name(), in.port);
  }

 private:
  graph_def_step(const tensorflow::GraphDef& graph, step_costs costs)
      : graph_(&graph), costs_(std::move(costs)) {}

  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  static deeprec::op_place place_of(const tensorflow::NodeDef& node) {
    const std::string& device = node.device();
    if (device.empty()) return deeprec::op_place::any;
    return device.find("CPU") != std::string::npos || device.find("cpu") != std::string::npos
               ? deeprec::op_place::cpu
               : deeprec::op_place::device;
  }

  absl::Status read(const std::vector<tensorflow::tstring>& targets) {
    for (index_t v = 0; v < size(); ++v) {
      if (!number_of_.emplace(node(v).name(), v).second)
        return absl::InvalidArgumentError("deeprec: names of nodes must differ (two are '" + node(v).name() +
                                          "')");
    }
    if (absl::Status s = read_inputs(); !s.ok()) return s;
    if (absl::Status s = read_ops(); !s.ok()) return s;
    std::vector<index_t> open;
    for (const tensorflow::tstring& target : targets) {
      const auto found =
          number_of_.find(std::string(tensorflow::ParseTensorName(std::string_view(target)).node()));
      if (found == number_of_.end())
        return absl::InvalidArgumentError("deeprec: a target must be in the graph ('" + std::string(target) +
                                          "' is not)");
      make_target(found->second);
      open.push_back(found->second);
    }
    keep_unneeded(std::move(open));
    return absl::OkStatus();
  }

  void make_target(index_t v) { effects_[at(v)] = effects_[at(v)] | deeprec::op_effects::target; }

  // An op that no target needs stays where it is, as targets do: before the cut it would run for each record.
  void keep_unneeded(std::vector<index_t> open) {
    std::vector<bool> needed(at(size()));
    const auto need = [&](index_t v) {
      if (!needed[at(v)]) open.push_back(v);
      needed[at(v)] = true;
    };
    for (const index_t v : open) needed[at(v)] = true;
    while (!open.empty()) {
      const index_t v = open.back();
      open.pop_back();
      for (const input& in : inputs_[at(v)]) need(in.node);
      if (kinds_[at(v)] != deeprec::op_kind::stage_take) continue;
      for (index_t u = 0; u < size(); ++u) {
        if (kinds_[at(u)] == deeprec::op_kind::stage_put && stages_[at(u)] == stages_[at(v)]) need(u);
      }
    }
    for (index_t v = 0; v < size(); ++v) {
      if (!needed[at(v)] && kinds_[at(v)] == deeprec::op_kind::plain) make_target(v);
    }
  }

  absl::Status read_inputs() {
    inputs_.resize(at(size()));
    for (index_t v = 0; v < size(); ++v) {
      for (const std::string& text : node(v).input()) {
        const tensorflow::TensorId id = tensorflow::ParseTensorName(text);
        const auto found = number_of_.find(std::string(id.node()));
        if (found == number_of_.end())
          return absl::InvalidArgumentError("deeprec: inputs must be nodes of the graph ('" + text +
                                            "' of '" + node(v).name() + "' is not)");
        inputs_[at(v)].push_back({found->second, id.index()});
      }
    }
    return absl::OkStatus();
  }

  absl::Status read_ops() {
    const tensorflow::FunctionLibraryDefinition ops(tensorflow::OpRegistry::Global(), graph_->library());
    std::vector<const tensorflow::OpDef*> defs(at(size()));
    types_.resize(at(size()));
    for (index_t v = 0; v < size(); ++v) {
      if (absl::Status s = ops.LookUpOpDef(node(v).op(), &defs[at(v)]); !s.ok()) return s;
      tensorflow::NodeDef complete = node(v);  // a graph may leave out what is the default
      tensorflow::AddDefaultsToNodeDef(*defs[at(v)], &complete);
      tensorflow::DataTypeVector taken, made;
      if (absl::Status s = tensorflow::InOutTypesForNode(complete, *defs[at(v)], &taken, &made); !s.ok())
        return s;
      types_[at(v)].assign(made.begin(), made.end());
      int data = 0;
      for (const input& in : inputs_[at(v)]) data += in.port >= 0 ? 1 : 0;
      if (data != static_cast<int>(taken.size()))
        return absl::InvalidArgumentError("deeprec: a node must have the inputs of its op (" +
                                          std::to_string(taken.size()) + "; '" + node(v).name() + "' has " +
                                          std::to_string(data) + ")");
    }
    for (index_t v = 0; v < size(); ++v) {
      for (const input& in : inputs_[at(v)]) {
        if (in.port >= static_cast<int>(types_[at(in.node)].size()))
          return absl::InvalidArgumentError("deeprec: an input must be an output of a node (" +
                                            std::to_string(in.port) + " of '" + node(in.node).name() +
                                            "', read by '" + node(v).name() + "', is not)");
      }
    }
    kinds_.assign(at(size()), deeprec::op_kind::plain);
    effects_.assign(at(size()), deeprec::op_effects::none);
    stages_.resize(at(size()));
    for (index_t v = 0; v < size(); ++v) read_kind(v, *defs[at(v)]);
    for (index_t v = 0; v < size(); ++v) read_effects(v, *defs[at(v)]);
    return absl::OkStatus();
  }

  template <std::size_t N>
  static bool is_one_of(const std::string& op, const std::array<std::string_view, N>& names) {
    return std::find(names.begin(), names.end(), op) != names.end();
  }
  static bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
  }
  /// Makes a resource whose state changes by being read: it belongs to the input of a step, not to the model.
  static bool is_input_source(const std::string& op) {
    return ends_with(op, "Queue") || ends_with(op, "QueueV2") || ends_with(op, "Reader") ||
           ends_with(op, "ReaderV2") || op.find("Iterator") != std::string::npos ||
           op.find("Dataset") != std::string::npos;
  }
  static bool holds_state(tensorflow::DataType type) {
    return tensorflow::IsRefType(type) || type == tensorflow::DT_RESOURCE;
  }

  void read_kind(index_t v, const tensorflow::OpDef& def) {
    using deeprec::op_kind;
    static constexpr std::array<std::string_view, 12> control_flow{
        "Switch",   "RefSwitch", "_SwitchN", "Merge",         "RefMerge",         "Enter",
        "RefEnter", "Exit",      "RefExit",  "NextIteration", "RefNextIteration", "LoopCond"};
    static constexpr std::array<std::string_view, 3> placeholders{"Placeholder", "PlaceholderV2",
                                                                  "PlaceholderWithDefault"};
    const std::string& op = node(v).op();
    if (op == "Stage" || op == "Unstage") {
      kinds_[at(v)] = op == "Stage" ? op_kind::stage_put : op_kind::stage_take;
      const auto& attrs = node(v).attr();
      const auto text = [&](const char* name) {
        const auto found = attrs.find(name);
        return found == attrs.end() ? std::string() : found->second.s();
      };
      const std::string shared = text("shared_name");
      stages_[at(v)] = text("container") + '\n' + (shared.empty() ? node(v).name() : shared);
    } else if (op == "Const") {
      kinds_[at(v)] = op_kind::constant;
    } else if (is_one_of(op, placeholders)) {
      kinds_[at(v)] = op_kind::placeholder;
    } else if (is_one_of(op, control_flow)) {
      kinds_[at(v)] = op_kind::control_flow;
    } else if (def.is_stateful() && std::any_of(types_[at(v)].begin(), types_[at(v)].end(), holds_state)) {
      // The handle of an input source never crosses: ops that initialize, fill or close it belong to no step.
      // A resource that an op makes from a value (TensorArray) lives in one step and never crosses either.
      if (!is_input_source(op)) {
        kinds_[at(v)] = op_kind::variable;
      } else if (inputs_[at(v)].empty()) {
        kinds_[at(v)] = op_kind::constant;
      }
    }
  }

  /// The op that made a resource or a reference, through ops that pass it on.
  [[nodiscard]] index_t maker_of(index_t v) const {
    while (node(v).op() == "Identity" || node(v).op() == "Enter" || node(v).op() == "Switch") {
      if (inputs_[at(v)].empty() || inputs_[at(v)][0].port < 0) break;
      v = inputs_[at(v)][0].node;
    }
    return v;
  }

  void read_effects(index_t v, const tensorflow::OpDef& def) {
    using deeprec::op_effects;
    using deeprec::op_kind;
    static constexpr std::array<std::string_view, 12> readers{"ReadVariableOp",
                                                              "ResourceGather",
                                                              "ResourceGatherNd",
                                                              "VariableShape",
                                                              "VarIsInitializedOp",
                                                              "Identity",
                                                              "LookupTableFindV2",
                                                              "LookupTableSizeV2",
                                                              "LookupTableFind",
                                                              "DeeprecResourceSafeLookup",
                                                              "DeeprecResourceSafeLookupRowGradients",
                                                              "DeeprecResourceSafeLookupWeightGradients"};
    static constexpr std::array<std::string_view, 2> fixed_tables{"HashTable", "HashTableV2"};
    if (kinds_[at(v)] != op_kind::plain) return;
    bool takes_state = false, finds_in_fixed = false;
    for (const input& in : inputs_[at(v)]) {
      if (in.port < 0 || !holds_state(types_[at(in.node)][at(in.port)])) continue;
      const index_t maker = maker_of(in.node);
      if (kinds_[at(maker)] != op_kind::variable) continue;
      takes_state = true;
      finds_in_fixed = finds_in_fixed || is_one_of(node(maker).op(), fixed_tables);
    }
    const std::string& op = node(v).op();
    if (takes_state) {
      // References that are only read reach an op by their variable, so it needs no effect of its own.
      if (finds_in_fixed && (op == "LookupTableFindV2" || op == "LookupTableFind")) {
        kinds_[at(v)] = op_kind::id_lookup;
        effects_[at(v)] = op_effects::reads;
      } else if (def.is_stateful() || writes_reference(def)) {
        effects_[at(v)] = is_one_of(op, readers) ? op_effects::reads : op_effects::reads | op_effects::writes;
      }
    } else if (def.is_stateful() && op != "Assert") {  // stateful only so that it is not pruned
      effects_[at(v)] = op_effects::external;
    }
  }
  static bool writes_reference(const tensorflow::OpDef& def) {
    return std::any_of(def.input_arg().begin(), def.input_arg().end(),
                       [](const auto& arg) { return arg.is_ref(); });
  }

  const tensorflow::GraphDef* graph_;
  step_costs costs_;
  std::unordered_map<std::string, index_t> number_of_;
  std::vector<std::vector<input>> inputs_;
  std::vector<std::vector<tensorflow::DataType>> types_;
  std::vector<deeprec::op_kind> kinds_;
  std::vector<deeprec::op_effects> effects_;
  std::vector<std::string> stages_;
};

}  // namespace deeprec_tf

template <>
struct deeprec::graph_adaptor<deeprec_tf::graph_def_step> {
  static index_t size(const deeprec_tf::graph_def_step& step) { return step.size(); }
  static op_info op(const deeprec_tf::graph_def_step& step, index_t v) { return step.op(v); }
  template <class Each>
  static void for_each_edge(const deeprec_tf::graph_def_step& step, Each each) {
    for (index_t v = 0; v < step.size(); ++v) {
      index_t port = 0;
      for (const auto& in : step.inputs(v)) {
        const bool control = in.port < 0;
        const index_t to = control ? -1 : port++;
        if (step.is_back_edge(in)) continue;
        each(edge_info{in.node, control ? -1 : in.port, v, to, control ? 0 : step.bytes(in), control});
      }
    }
  }
};
