// A graph with a cut in it as a GraphDef: the nodes of before, and a Stage and an Unstage for each new stage.
//
//   hash ─> Stage    Unstage ─> lookup      inputs follow the edges of the cut graph; the rest is as it was
#pragma once

#include <cctype>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

#include "graph_def_step.hpp"

namespace deeprec_tf {

class staged_graph_writer {
 public:
  staged_graph_writer(const tensorflow::GraphDef& before, const graph_def_step& step,
                      const deeprec::flat_graph& flat, const deeprec::stage_cut& cut,
                      const deeprec::staged_graph& staged)
      : before_(before), step_(step), flat_(flat), cut_(cut), staged_(staged) {}

  tensorflow::GraphDef run() {
    *made_.mutable_library() = before_.library();
    *made_.mutable_versions() = before_.versions();
    name_ops();
    for (index_t v = 0; v < staged_.graph.size(); ++v) write(v);
    return std::move(made_);
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }

  std::string free_name(const std::string& wish) {
    std::string name = wish;
    for (int i = 1; step_.has_node(name) || !taken_.insert(name).second; ++i)
      name = wish + "_" + std::to_string(i);
    return name;
  }
  // Characters that a name of a node may have.
  static std::string as_scope(std::string_view text) {
    std::string scope;
    for (const char c : text) {
      const bool fine =
          std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-' || c == '/';
      scope += fine ? c : '_';
    }
    return scope;
  }

  void name_ops() {
    std::vector<bool> used(at(flat_.size()));
    names_.resize(at(staged_.graph.size()));
    for (index_t v = 0; v < staged_.graph.size(); ++v) {
      const index_t origin = staged_.origin[at(v)];
      if (origin < 0) continue;
      // Of a constant there may be two; the handle of an input is one resource, by its name.
      const bool again = used[at(origin)] && step_.node(origin).op() == "Const";
      names_[at(v)] = again ? free_name(step_.node(origin).name() + "_staged") : step_.node(origin).name();
      used[at(origin)] = true;
    }
    for (std::size_t s = 0; s < staged_.puts.size(); ++s) {
      const std::string scope = "smart_stage/" + as_scope(cut_.stages[s].name);
      names_[at(staged_.puts[s])] = free_name(scope + "/put");
      names_[at(staged_.takes[s])] = free_name(scope + "/take");
      stage_of_[staged_.puts[s]] = stage_of_[staged_.takes[s]] = s;
    }
  }

  void write(index_t v) {
    const index_t origin = staged_.origin[at(v)];
    if (!written_.insert(names_[at(v)]).second) return;
    tensorflow::NodeDef& node = *made_.add_node();
    if (origin >= 0) {
      node = step_.node(origin);
      node.clear_input();
      drop_lost_colocation(node);
      if (staged_.graph.place(v) != flat_.place(origin)) move_to_cpu(*node.mutable_device());
    } else {
      describe_stage(v, node);
    }
    node.set_name(names_[at(v)]);
    write_inputs(v, origin, node);
  }

  void write_inputs(index_t v, index_t origin, tensorflow::NodeDef& node) {
    std::map<index_t, std::string> data;
    std::set<std::string> control;
    for (const auto e : staged_.graph.in(v)) {
      const std::string& from = names_[at(staged_.graph.source(e))];
      if (staged_.graph.is_control(e)) {
        control.insert("^" + from);
      } else {
        data[staged_.graph.destination_port(e)] = tensor_name(from, staged_.graph.source_port(e));
      }
    }
    // Edges that lead back are no part of the order of a step.
    if (origin >= 0) {
      index_t port = 0;
      for (const auto& in : step_.inputs(origin)) {
        const std::string& from = step_.node(in.node).name();
        if (in.port < 0) {
          if (step_.is_back_edge(in)) control.insert("^" + from);
        } else {
          if (step_.is_back_edge(in)) data[port] = tensor_name(from, in.port);
          ++port;
        }
      }
    }
    for (const auto& [port, text] : data) node.add_input(text);
    for (const std::string& text : control) node.add_input(text);
  }
  static std::string tensor_name(const std::string& node, index_t port) {
    return port == 0 ? node : node + ":" + std::to_string(port);
  }

  // The user's own Stage with the types of what crosses now, under a name of its own.
  void describe_stage(index_t v, tensorflow::NodeDef& node) {
    const std::size_t s = stage_of_.at(v);
    const deeprec::cut_stage& stage = cut_.stages[s];
    const bool put = staged_.puts[s] == v;
    node = step_.node(put ? stage.puts[0] : stage.takes[0]);
    node.clear_input();
    auto& attrs = *node.mutable_attr();
    attrs.erase("_class");
    attrs.erase("_output_shapes");
    attrs["shared_name"].set_s(names_[at(staged_.puts[s])]);
    auto& types = *attrs["dtypes"].mutable_list();
    types.Clear();
    for (const deeprec::staged_value& value : cut_.values) {
      if (value.stage == static_cast<index_t>(s))
        types.add_type(tensorflow::BaseType(step_.type(value.source, value.source_port)));
    }
  }

  void drop_lost_colocation(tensorflow::NodeDef& node) const {
    const auto found = node.mutable_attr()->find("_class");
    if (found == node.mutable_attr()->end()) return;
    tensorflow::AttrValue kept;
    for (const std::string& text : found->second.list().s()) {
      const bool lost = text.rfind("loc:@", 0) == 0 && is_undone(text.substr(5));
      if (!lost) kept.mutable_list()->add_s(text);
    }
    if (kept.list().s().empty()) {
      node.mutable_attr()->erase("_class");
    } else {
      found->second = kept;
    }
  }
  [[nodiscard]] bool is_undone(const std::string& name) const {
    for (const deeprec::cut_stage& stage : cut_.stages) {
      for (const index_t v : stage.puts)
        if (step_.node(v).name() == name) return true;
      for (const index_t v : stage.takes)
        if (step_.node(v).name() == name) return true;
    }
    return false;
  }
  // "/job:worker/task:0/device:GPU:1" to "/job:worker/task:0/device:CPU:0"
  static void move_to_cpu(std::string& device) {
    const std::size_t last = device.rfind('/');
    device = (last == std::string::npos ? std::string() : device.substr(0, last)) + "/device:CPU:0";
  }

  const tensorflow::GraphDef& before_;
  const graph_def_step& step_;
  const deeprec::flat_graph& flat_;
  const deeprec::stage_cut& cut_;
  const deeprec::staged_graph& staged_;
  tensorflow::GraphDef made_;
  std::vector<std::string> names_;
  std::unordered_map<index_t, std::size_t> stage_of_;
  std::set<std::string> taken_;
  std::set<std::string> written_;
};

}  // namespace deeprec_tf
