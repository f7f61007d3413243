// Puts macro ops in the place of what patterns match, until none matches.
//
//   round    for each pattern, for each op of the type of its last op, in order: the first match is taken;
//            a macro op of that type is the next one
//   matched  'mul' 'sum'  =>  'sum' (macro): its values, order, role, after(); then 'mul' 'sum' are erased
//
// Each match is applied before the next one is looked for, so matches never overlap. Not here: what matches
// (pattern_matcher.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/step/detail/graph_edit.hpp>
#include <deeprec/graph/step/detail/step_core.hpp>
#include <deeprec/graph/step/fusion/detail/fusion_order.hpp>
#include <deeprec/graph/step/fusion/detail/pattern_matcher.hpp>
#include <deeprec/graph/step/fusion/detail/pattern_parts.hpp>
#include <deeprec/graph/step/fusion/fused_graph.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>
#include <deeprec/graph/step/step_editor.hpp>
#include <deeprec/graph/step/step_graph.hpp>
#include <deeprec/graph/step/type_id.hpp>
#include <deeprec/plan/digraph.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline fault refuse_pattern(const pattern_parts& p, const char* rule, const std::string& was = {}) {
  std::string text = std::string("fuse: ") + rule + " ('" + p.name + "'";
  if (!was.empty()) text += ": " + was;
  return {status(errc::invalid_value, fault_place{.operation = "fuse"}), {}, text + ')'};
}

/// What is wrong with a pattern, whatever the graph is.
inline result<void> check_pattern(const pattern_parts& p) {
  if (!p.make) return refuse_pattern(p, "a pattern must say what it becomes");
  if (p.ops.empty()) return refuse_pattern(p, "a pattern must have an op");
  const auto op_text = [&](std::size_t q) {
    return "op " + std::to_string(q) + " of the pattern, " + std::string(p.ops[q].kind);
  };
  std::vector<bool> used(p.wild.size());
  std::vector<digraph::edge> both;
  for (std::size_t q = 0; q < p.ops.size(); ++q) {
    for (const pattern_argument& argument : p.ops[q].arguments) {
      for (const pattern_cell& cell : argument) {
        if (cell.pattern != p.id)
          return refuse_pattern(p, "an op of a pattern must take what is of the pattern", op_text(q));
        if (cell.op < 0) {
          used[static_cast<std::size_t>(cell.port)] = true;
        } else {
          both.push_back({static_cast<digraph::number>(cell.op), static_cast<digraph::number>(q)});
          both.push_back({static_cast<digraph::number>(q), static_cast<digraph::number>(cell.op)});
        }
      }
    }
  }
  const digraph beside(p.ops.size(), both);
  std::vector<bool> reached(p.ops.size());
  std::vector<digraph::number> open{0};
  reached[0] = true;
  while (!open.empty()) {
    const digraph::number q = open.back();
    open.pop_back();
    for (const digraph::number r : beside.after(q)) {
      if (reached[static_cast<std::size_t>(r)]) continue;
      reached[static_cast<std::size_t>(r)] = true;
      open.push_back(r);
    }
  }
  for (std::size_t q = 0; q < reached.size(); ++q) {
    if (!reached[q])
      return refuse_pattern(p, "the ops of a pattern must be connected by what they make", op_text(q));
  }
  std::vector<bool> passed(p.wild.size());
  for (const pattern_cell& cell : p.passed) {
    if (cell.pattern != p.id || cell.op >= 0 || !used[static_cast<std::size_t>(cell.port)])
      return refuse_pattern(p, "the macro op must take wildcards that ops of the pattern take");
    passed[static_cast<std::size_t>(cell.port)] = true;
  }
  for (std::size_t w = 0; w < p.wild.size(); ++w) {
    if (p.wild[w].is_access && used[w] && !passed[w])
      return refuse_pattern(p, "the macro op must access the variables that its ops access");
  }
  for (std::size_t i = 0; i < p.outputs.size(); ++i) {
    const pattern_cell& out = p.outputs[i];
    if (out.pattern != p.id || out.op < 0)
      return refuse_pattern(p, "the macro op must stand for values that ops of the pattern make");
    for (std::size_t j = 0; j < i; ++j) {
      if (p.outputs[j].op == out.op && p.outputs[j].port == out.port)
        return refuse_pattern(p, "the macro op must stand for each value once");
    }
  }
  return {};
}

/// A pattern of more ops makes them fewer; one of one op that makes an op of a pattern of one op, and so on,
/// must not come back to itself.
inline result<void> check_patterns(std::span<const step_pattern> patterns) {
  std::vector<const pattern_parts*> single;
  for (const step_pattern& p : patterns) {
    if (result<void> fine = check_pattern(p.parts()); !fine) return fine;
    if (p.parts().ops.size() == 1) single.push_back(&p.parts());
  }
  std::vector<digraph::edge> makes;
  for (std::size_t a = 0; a < single.size(); ++a) {
    for (std::size_t b = 0; b < single.size(); ++b) {
      if (single[a]->macro == single[b]->ops[0].type)
        makes.push_back({static_cast<digraph::number>(a), static_cast<digraph::number>(b)});
    }
  }
  const digraph order_of(single.size(), makes);
  for (const auto& one : single) {
    if (one->macro == one->ops[0].type)
      return refuse_pattern(*one, "a pattern must not match what it makes",
                            "it makes " + std::string(one->macro_kind));
  }
  const std::vector<digraph::number> order = order_of.order_as_ready();
  if (order.size() == single.size()) return {};
  const std::vector<digraph::number> cycle = order_of.cycle(order);
  return refuse_pattern(*single[static_cast<std::size_t>(cycle.front())],
                        "patterns must not match what they make", cycle_text(cycle, [&](digraph::number n) {
                          return "'" + single[static_cast<std::size_t>(n)]->name + "'";
                        }));
}

template <class Rules = match_rules>
class graph_fuser {
 public:
  /// @pre flat is that of the graph
  graph_fuser(const step_graph& graph, const flat_graph& flat)
      : editor_(graph), stages_(stage_classes(flat)), order_(flat) {}

  /// The ops of all matches, by the ops of the pattern, in the order of their last ops.
  ///
  /// @pre check_pattern found nothing; nothing was fused
  std::vector<std::vector<index_t>> matches(const pattern_parts& pattern) {
    std::vector<std::vector<index_t>> all;
    pattern_matcher<Rules> matcher(editor_.edit(), order_, stages_);
    matcher.aim(pattern);
    const ops_by_type ops = by_type();
    const auto last = ops.find(pattern.ops.back().type);
    if (last == ops.end()) return all;
    for (const index_t v : last->second) {
      const std::size_t before = all.size();
      matcher.search(
          v,
          [&](const pattern_binding& found) {
            if (std::find(all.begin() + static_cast<std::ptrdiff_t>(before), all.end(), found.ops) ==
                all.end())
              all.push_back(found.ops);
            return false;
          },
          [](const pattern_binding&, const match_refusal&) {});
    }
    return all;
  }

  /// @pre check_patterns found nothing
  result<fused_graph> run(std::span<const step_pattern> patterns, index_t most_refused) {
    fused_graph made;
    for (bool again = true; std::exchange(again, false);) {
      made.refused.clear();
      auto ops = by_type();
      for (const step_pattern& p : patterns) {
        const pattern_parts& pattern = p.parts();
        pattern_matcher<Rules> matcher(editor_.edit(), order_, stages_);
        matcher.aim(pattern);
        const auto refused = [&](const pattern_binding& found, const match_refusal& why) {
          if (static_cast<index_t>(made.refused.size()) < most_refused)
            made.refused.push_back({pattern.name, names(found.ops), why_text(why)});
        };
        const auto found = ops.find(pattern.ops.back().type);
        if (found == ops.end()) continue;
        for (index_t v : found->second) {
          const auto search = [&] {
            return matcher.search(
                v,
                [&](const pattern_binding& match) {
                  std::vector<std::string> of = names(match.ops);
                  if (!put(pattern, match)) {
                    refused(match, {"the op that it becomes declines", match.ops.back()});
                    return false;
                  }
                  made.fused.push_back({pattern.name, std::move(of), std::string(pattern.macro_kind)});
                  return true;
                },
                refused);
          };
          while (search()) {
            again = true;
            // A macro op of this type may take more at once.
            if (pattern.macro != pattern.ops.back().type) break;
            v = editor_.graph().size() - 1;
          }
        }
      }
    }
    if (!made.fused.empty()) {
      for (index_t v = 0; v < editor_.graph().size(); ++v) {
        if (!editor_.is_erased(v)) editor_.edit().set_order(v, {order_.place(v), v});
      }
    }
    result<edited_graph> edited = editor_.finish();
    if (!edited) return edited.fault();
    made.graph = std::move(edited.value().graph);
    made.moved = std::move(edited.value().moved);
    return {std::move(made)};  // nvcc would copy it
  }

 private:
  using ops_by_type = std::unordered_map<type_id, std::vector<index_t>>;

  [[nodiscard]] const step_core& core() { return editor_.edit().core(); }
  [[nodiscard]] const step_op& op(index_t v) { return core().op(v); }

  ops_by_type by_type() {
    ops_by_type ops;
    for (index_t v = 0; v < core().size(); ++v) {
      if (!editor_.is_erased(v) && op(v).node != nullptr) ops[op(v).node->type()].push_back(v);
    }
    for (auto& [type, of] : ops)
      std::sort(of.begin(), of.end(),
                [&](index_t a, index_t b) { return order_.place(a) < order_.place(b); });
    return ops;
  }
  std::vector<std::string> names(const std::vector<index_t>& ops) {
    std::vector<std::string> all;
    all.reserve(ops.size());
    for (const index_t v : ops) all.push_back(op(v).name);
    return all;
  }
  std::string why_text(const match_refusal& why) {
    std::string text = why.why;
    text += " ('" + op(why.op).name + "'";
    if (why.other >= 0) text += ", '" + op(why.other).name + "'";
    return text + ')';
  }

  // Puts the macro op in the place of a match; false: it declines, and nothing was changed.
  bool put(const pattern_parts& pattern, const pattern_binding& match) {
    graph_edit& edit = editor_.edit();
    const std::vector<index_t> set = match.ops;
    const std::string name = op(set.back()).name;
    edit.follow();
    if (!pattern.make(match, editor_.graph(), editor_.graph(), name)) return false;
    const index_t by = editor_.graph().size() - 1;
    edit.follow();
    edit.change(by, [&](step_op& made) {
      const step_op& last = op(set.back());
      made.role = last.role;
      made.place = last.place;
      made.sample_wise = last.sample_wise;
      for (const index_t v : set) {
        made.sample_wise = made.sample_wise && op(v).sample_wise;
        made.target = made.target || op(v).target;
        made.cost += op(v).cost;
      }
      for (std::size_t p = 0; p < pattern.outputs.size(); ++p) {
        const pattern_cell& out = pattern.outputs[p];
        made.bytes[p] = op(set[static_cast<std::size_t>(out.op)]).bytes[static_cast<std::size_t>(out.port)];
      }
    });
    for (const index_t v : set) edit.come_after(by, v, set);
    for (std::size_t p = 0; p < pattern.outputs.size(); ++p) {
      const pattern_cell& out = pattern.outputs[p];
      edit.redirect({core().id(), set[static_cast<std::size_t>(out.op)], out.port},
                    {core().id(), by, static_cast<index_t>(p)});
    }
    for (const index_t v : set) edit.redirect_order(v, by);
    for (const index_t v : set) edit.erase(v);
    order_.fuse(set, by);
    stages_.push_back(stages_[static_cast<std::size_t>(set.back())]);
    return true;
  }

  step_editor editor_;
  std::vector<index_t> stages_;
  fusion_order order_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
