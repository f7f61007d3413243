// A step cut by samples: which ops run for parts of the batch, and what passes between them and the others.
//
//   level 0, whole batch   resolve                        values of level 0 ── refer ──> a part's own values
//   level 1, parts         lookup  forward  loss  backward  (for each part, one op after the other)
//   level 2, whole batch   steps of stacks and rows       a part's values ── join, sum ──> those of the batch
//
// An op is at the first level of its kind that lies behind all ops it needs. Not here: runs (lane_run.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/detail/step_layout.hpp>
#include <deeprec/graph/step/detail/step_values.hpp>
#include <deeprec/plan/task_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A value that passes between the whole batch and its parts.
struct passed_value {
  std::int32_t slot;
  const value_parts* parts;
  index_t maker;
  index_t user;  // -1: the caller
};

struct lane_level {
  task_plan plan;
  bool by_parts = false;
  std::vector<passed_value> cut{};     // before a part's ops
  std::vector<passed_value> joined{};  // behind them
};

class lane_plan {
 public:
  /// @pre the graph has no fault
  lane_plan(const step_core& g, const flat_graph& flat, const step_layout& layout,
            const std::vector<bool>& here)
      : g_(g), flat_(flat), layout_(layout), here_(here) {}

  /// The levels; none where no op is sample-wise.
  result<std::vector<lane_level>> make(task_order order) {
    find_locals_of_whole();
    for (index_t v = 0; v < g_.size(); ++v) {
      if (!is_by_parts(v)) continue;
      if (auto wrong = refuse_op(v)) return *std::move(wrong);
    }
    find_levels();
    std::vector<lane_level> levels;
    if (last_ == 0) return {std::move(levels)};
    for (index_t k = 0; k <= last_; ++k) {
      result<task_plan> plan =
          plan_steps(g_, layout_, order, [&](index_t v) { return runs(v) && level(v) == k; });
      if (!plan) return plan.fault();
      levels.push_back({std::move(plan).value(), k % 2 == 1});
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      if (auto wrong = pass_inputs(v, levels)) return *std::move(wrong);
    }
    for (index_t v = 0; v < g_.size(); ++v) {
      for (const index_t port : g_.op(v).kept) {
        const port_ref made = g_.made_at({g_.id(), v, port});
        if (!is_by_parts(made.op)) continue;
        if (auto wrong = join(made, -1, levels)) return *std::move(wrong);
      }
    }
    return {std::move(levels)};  // nvcc would copy it
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] bool runs(index_t v) const { return here_[at(v)] && g_.op(v).node != nullptr; }
  [[nodiscard]] bool is_by_parts(index_t v) const { return runs(v) && g_.op(v).sample_wise; }
  [[nodiscard]] index_t level(index_t v) const { return levels_[at(v)]; }

  [[nodiscard]] std::optional<fault> refuse_op(index_t v) const {
    const step_op& op = g_.op(v);
    if (op.external || op.is_source) {
      return refuse_step(g_, v, "a sample-wise op must not be external: its parts run at once", {},
                         errc::unsupported);
    }
    if (std::all_of(op.inputs.begin(), op.inputs.end(), [&](const step_input& in) {
          return in.is_variable() || g_.op(in.from.op).kind == op_kind::constant;
        })) {
      return refuse_step(g_, v, "a sample-wise op must take a value that has samples");
    }
    for (const step_input& in : op.inputs) {
      if (!in.is_variable()) continue;
      const std::string name = "'" + g_.op(in.from.op).name + "'";
      if (in.changes() && !g_.is_local(in)) {
        return refuse_step(g_, v,
                           "a sample-wise op must change no variable but locals: its parts run at once",
                           "it writes " + name, errc::unsupported);
      }
      // A local of a part is none of the whole batch.
      if (const index_t other = user_of_local_[at(in.from.op)]; other >= 0) {
        return refuse_step(g_, v, "a local must be of sample-wise ops, or of ops of the whole batch",
                           named(g_, other) + " accesses " + name + " too", errc::unsupported);
      }
    }
    return std::nullopt;
  }

  // Ops before a cut are ops of the whole batch too.
  void find_locals_of_whole() {
    user_of_local_.assign(at(g_.size()), -1);
    for (index_t v = 0; v < g_.size(); ++v) {
      if (g_.op(v).node == nullptr || is_by_parts(v)) continue;
      for (const step_input& in : g_.op(v).inputs) {
        if (g_.is_local(in)) user_of_local_[at(in.from.op)] = v;
      }
    }
  }

  void find_levels() {
    levels_.assign(at(g_.size()), 0);
    for (const index_t v : flat_.order()) {
      index_t& mine = levels_[at(v)];
      if (runs(v) && (mine % 2 == 1) != g_.op(v).sample_wise) ++mine;
      if (!here_[at(v)]) mine = 0;
      if (is_by_parts(v)) last_ = (std::max)(last_, mine);
      for (index_t e = flat_.out_begin(v); e < flat_.out_end(v); ++e) {
        index_t& next = levels_[at(flat_.destination(e))];
        next = (std::max)(next, mine);
      }
    }
    if (last_ == 0) return;
    for (index_t v = 0; v < g_.size(); ++v) {
      if (runs(v)) last_ = (std::max)(last_, level(v));
    }
  }

  std::optional<fault> pass_inputs(index_t user, std::vector<lane_level>& levels) const {
    if (!runs(user)) return std::nullopt;
    const bool by_parts = is_by_parts(user);
    for (const step_input& in : g_.op(user).inputs) {
      if (in.is_variable()) continue;
      const port_ref made = g_.made_at(in.from);
      if (!by_parts) {
        if (!is_by_parts(made.op)) continue;
        if (auto wrong = join(made, user, levels)) return wrong;
        continue;
      }
      if (is_by_parts(made.op) || g_.op(made.op).kind == op_kind::constant) continue;
      if (auto wrong = cut(made, user, levels[at(level(user))])) return wrong;
    }
    return std::nullopt;
  }
  std::optional<fault> cut(const port_ref& made, index_t user, lane_level& in) const {
    const value_parts& parts = g_.op(made.op).outputs[at(made.port)]->parts;
    if (parts.refer == nullptr) {
      return refuse_step(g_, user,
                         "a sample-wise op must take values that are cut by samples (batch_traits: refer)",
                         "that of " + named(g_, made.op) + " is not", errc::unsupported);
    }
    const std::int32_t slot = layout_.slot_of(made.op, made.port);
    if (std::none_of(in.cut.begin(), in.cut.end(), [&](const passed_value& v) { return v.slot == slot; }))
      in.cut.push_back({slot, &parts, made.op, user});
    return std::nullopt;
  }
  std::optional<fault> join(const port_ref& made, index_t user, std::vector<lane_level>& levels) const {
    const value_parts& parts = g_.op(made.op).outputs[at(made.port)]->parts;
    if (parts.join == nullptr && parts.gradient == nullptr) {
      return refuse_step(g_, made.op,
                         "what leaves sample-wise ops must be joined or summed (batch_traits: make_room and "
                         "join, or gradient)",
                         user < 0 ? std::string("its value is kept") : named(g_, user) + " takes its value",
                         errc::unsupported);
    }
    const std::int32_t slot = layout_.slot_of(made.op, made.port);
    std::vector<passed_value>& joined = levels[at(level(made.op))].joined;
    if (std::none_of(joined.begin(), joined.end(), [&](const passed_value& v) { return v.slot == slot; }))
      joined.push_back({slot, &parts, made.op, user});
    return std::nullopt;
  }

  const step_core& g_;
  const flat_graph& flat_;
  const step_layout& layout_;
  const std::vector<bool>& here_;
  std::vector<index_t> user_of_local_;  // of each local: an op of the whole batch; -1: none
  std::vector<index_t> levels_;         // of each op
  index_t last_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
