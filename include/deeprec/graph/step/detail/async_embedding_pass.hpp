// How async_embedding edits a graph: which ops run ahead, what they read stale, and the stage behind them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/async_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_inputs.hpp>
#include <deeprec/graph/step/step_editor.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/step_handles.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class async_embedding_pass {
 public:
  async_embedding_pass(const step_graph& from, const flat_graph& flat, const async_embedding_options& options)
      : g_(from.core()), flat_(flat), options_(options), edit_(from) {}

  result<async_graph> run() {
    for (index_t v = 0; v < g_.size(); ++v) {
      const step_op& op = g_.op(v);
      if (op.node != nullptr &&
          std::find(options_.kinds.begin(), options_.kinds.end(), op.kind_name) != options_.kinds.end())
        lookups_.push_back(v);
    }
    if (lookups_.empty()) return refuse("an op must be of a kind of lookups", kinds());
    if (options_.window == 1) return finish(-1);
    mark_ahead();
    if (!read_stale()) return refuse("a lookup must read what an op behind it changes", kinds());
    return finish(add_stage());
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] bool is_ahead(index_t op) const { return ahead_[at(op)]; }
  static fault refuse(const char* rule, const std::string& was) {
    return {errc::invalid_value, std::string("async_embedding: ") + rule + " (" + was + ')'};
  }
  [[nodiscard]] std::string kinds() const {
    std::string all;
    for (const std::string& kind : options_.kinds) all += (all.empty() ? "'" : ", '") + kind + "'";
    return all.empty() ? "none" : all;
  }

  // What lookups need runs ahead with them.
  void mark_ahead() {
    ahead_.assign(at(g_.size()), false);
    for (const index_t v : lookups_) ahead_[at(v)] = true;
    for (std::size_t i = flat_.order().size(); i-- > 0;) {
      const index_t v = flat_.order()[i];
      for (index_t e = flat_.out_begin(v); e < flat_.out_end(v); ++e)
        ahead_[at(v)] = ahead_[at(v)] || is_ahead(flat_.destination(e));
    }
  }
  // Lookups read stale what ops that stay change; whether there is one that does.
  bool read_stale() {
    bool any = false;
    std::vector<const step_input*> changed;
    for (index_t v = 0; v < g_.size(); ++v) {
      for (const step_input& in : g_.op(v).inputs) {
        if (!is_ahead(v) && in.is_variable() && in.changes()) changed.push_back(&in);
      }
    }
    for (const index_t v : lookups_) {
      edit_.edit().change(v, [&](step_op& op) {
        for (step_input& in : op.inputs) {
          if (!in.is_variable() || in.use != variable_use::read || g_.is_local(in)) continue;
          if (std::none_of(changed.begin(), changed.end(),
                           [&](const step_input* other) { return other->overlaps(in); }))
            continue;
          in.use = variable_use::stale_read;
          in.window = options_.window;
          any = true;
        }
      });
    }
    return any;
  }
  // Of each value that an op ahead makes and another one takes, once.
  index_t add_stage() {
    step_op stage{.name = options_.stage, .kind_name = "stage", .kind = op_kind::stage};
    std::map<std::pair<index_t, index_t>, index_t> port_of;
    struct use {
      index_t op, input, port;
    };
    std::vector<use> uses;
    for (index_t v = 0; v < g_.size(); ++v) {
      if (is_ahead(v)) continue;
      const auto& inputs = g_.op(v).inputs;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const port_ref& from = inputs[i].from;
        if (inputs[i].is_variable() || !is_ahead(from.op) || g_.op(from.op).kind == op_kind::constant)
          continue;
        const auto [found, is_new] =
            port_of.emplace(std::pair(from.op, from.port), static_cast<index_t>(stage.inputs.size()));
        if (is_new) stage.inputs.push_back({{edit_.edit().core().id(), from.op, from.port}});
        uses.push_back({v, static_cast<index_t>(i), found->second});
      }
    }
    stage.outputs.resize(stage.inputs.size());
    step_core& made = edit_.edit().core();
    const index_t added = made.add(std::move(stage));
    edit_.edit().follow();
    for (const use& u : uses) edit_.edit().redirect(u.op, u.input, {made.id(), added, u.port});
    return added;
  }
  result<async_graph> finish(index_t stage) {
    result<edited_graph> made = edit_.finish();
    if (!made) return made.fault();
    async_graph out{
        std::move(made.value().graph), std::move(made.value().moved), options_.window, {}, {}, -1};
    for (const index_t v : lookups_) out.lookups.push_back(out.moved.op(v));
    for (index_t v = 0; stage >= 0 && v < g_.size(); ++v) {
      if (is_ahead(v) && g_.op(v).node != nullptr) out.ahead.push_back(out.moved.op(v));
    }
    if (stage >= 0) out.stage = out.graph.size() - 1;  // it was added last
    return {std::move(out)};
  }

  const step_core& g_;
  const flat_graph& flat_;
  const async_embedding_options& options_;
  step_editor edit_;
  std::vector<index_t> lookups_;
  std::vector<bool> ahead_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
