// A cut in words, and the reasons of ops that stay.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/graph/ir/flat_graph.hpp>
#include <deeprec/graph/passes/detail/op_words.hpp>
#include <deeprec/graph/passes/stage_cut.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

class cut_words {
 public:
  cut_words(const flat_graph& g, const stage_cut& cut, index_t most)
      : g_(g), cut_(cut), most_(most), words_{g, most} {}

  /// What keeps an op behind the cut; empty where it is not, or where nothing does.
  std::string reason(index_t op) {
    const auto side = cut_.side[at(op)];
    if (is_before_cut(side) || side == op_side::undone || side == op_side::earlier) return {};
    const std::vector<index_t> path = barrier_path(cut_, op);
    if (path.empty()) {
      if (!is_before_cut(cut_.farthest_side[at(op)])) return {};
      return cut_.changes() ? "could move; the price is lower without" : "could move";
    }
    if (path.size() == 1) return seed_word(op) + variables_of(op);
    std::string text = "is reached from " + named(path[0]) + " (" + seed_word(path[0]) + ')';
    if (path.size() > 2) text += " by way of " + listed({path.begin() + 1, path.end() - 1});
    return text;
  }

  std::string text() {
    text_ = "smart_stage: ";
    if (!cut_.changes()) {
      text_ += "the graph stays as it is: " + cut_.reason + '\n';
    } else {
      for (std::size_t s = 0; s < cut_.stages.size(); ++s) say_stage(static_cast<index_t>(s));
      say_costs();
    }
    for (const kept_stage& kept : cut_.kept)
      text_ += "  stage '" + kept.name + "' stays where it is: " + kept.reason + '\n';
    if (cut_.changes()) say_placement();
    say_border();
    return std::move(text_);
  }

 private:
  static std::size_t at(index_t i) noexcept { return static_cast<std::size_t>(i); }
  static std::string number(double x) { return op_words::number(x); }
  static std::string counted(index_t n, const char* what) { return op_words::counted(n, what); }
  [[nodiscard]] std::string named(index_t op) const { return words_.named(op); }
  [[nodiscard]] std::string listed(const std::vector<index_t>& ops) const { return words_.listed(ops); }

  void say_stage(index_t stage) {
    std::vector<index_t> moved;
    for (index_t v = 0; v < g_.size(); ++v) {
      if (cut_.stage_of[at(v)] == stage && cut_.side[at(v)] != op_side::staged) moved.push_back(v);
    }
    index_t values = 0;
    double bytes = 0;
    for (const staged_value& value : cut_.values) {
      if (value.stage != stage) continue;
      ++values;
      bytes += static_cast<double>(value.bytes);
    }
    text_ += "stage '" + cut_.stages[at(stage)].name +
             "': " + counted(static_cast<index_t>(moved.size()), "op") + " moved before the cut, " +
             counted(values, "value") + " of " + number(bytes) + " bytes " +
             (values == 1 ? "crosses\n" : "cross\n");
    if (!moved.empty()) text_ += "  moved: " + listed(moved) + '\n';
  }
  void say_cost(const char* whose, const cut_cost& c) {
    text_ += std::string("  ") + whose + ": stage " + number(c.stage) + ", rest " + number(c.rest) + ", " +
             number(c.bytes) + " bytes, price " + number(c.price) + '\n';
  }
  void say_costs() {
    static constexpr const char* names[] = {"unchanged", "the farthest cut", "the user's own cut",
                                            "a cut between"};
    say_cost((std::string("chosen, ") + names[static_cast<std::size_t>(cut_.choice)]).c_str(), cut_.cost);
    say_cost("the farthest cut", cut_.farthest_cost);
    say_cost("the user's cut", cut_.user_cost);
  }
  void say_placement() {
    if (cut_.staged_place == op_place::any) return;
    std::vector<index_t> overruled;
    for (index_t v = 0; v < g_.size(); ++v) {
      if (is_before_cut(cut_.side[at(v)]) && g_.place(v) != op_place::any && g_.place(v) != cut_.staged_place)
        overruled.push_back(v);
    }
    text_ += std::string("  the staged part is placed on the ") +
             (cut_.staged_place == op_place::cpu ? "CPU" : "device");
    if (!overruled.empty()) text_ += ", also " + listed(overruled) + ", placed elsewhere before";
    text_ += '\n';
  }
  // The ops after the cut that use something staged, or the user's stage itself.
  void say_border() {
    std::vector<index_t> border;
    std::vector<bool> seen(at(g_.size()));
    for (index_t v = 0; v < g_.size(); ++v) {
      const bool staged = is_before_cut(cut_.side[at(v)]);
      const bool taken = cut_.side[at(v)] == op_side::undone || is_before_cut(cut_.farthest_side[at(v)]);
      if (!staged && !taken) continue;
      for (index_t e = g_.out_begin(v); e < g_.out_end(v); ++e) {
        const index_t w = g_.destination(e);
        if (seen[at(w)] || is_before_cut(cut_.side[at(w)]) || cut_.side[at(w)] == op_side::undone) continue;
        seen[at(w)] = true;
        border.push_back(w);
      }
    }
    std::sort(border.begin(), border.end());
    index_t said = 0;
    for (const index_t w : border) {
      const std::string why = reason(w);
      if (why.empty() || said++ >= most_) continue;
      const bool is_seed = cut_.barrier[at(w)] == w;
      text_ += "  stays: " + named(w) + (is_seed ? ", " : ", which ") + why + '\n';
    }
    if (said > most_) text_ += "  and " + counted(said - most_, "op") + " more at the border\n";
  }
  // " ('table')": the variables that an op has handles of.
  [[nodiscard]] std::string variables_of(index_t op) const {
    std::vector<index_t> handles;
    if (has_effect(g_.effects(op), op_effects::target)) return {};
    for (const auto e : g_.in(op)) {
      if (g_.kind(g_.source(e)) == op_kind::variable) handles.push_back(g_.source(e));
    }
    return handles.empty() ? std::string() : " (" + listed(handles) + ")";
  }
  [[nodiscard]] std::string seed_word(index_t op) const {
    switch (g_.kind(op)) {
      case op_kind::variable:
        return "a variable";
      case op_kind::placeholder:
        return "a placeholder";
      case op_kind::control_flow:
        return "control flow";
      default:
        break;
    }
    if (has_effect(g_.effects(op), op_effects::target)) return "a target";
    if (has_effect(g_.effects(op), op_effects::writes)) return "it writes a variable";
    const bool reads = has_effect(g_.effects(op), op_effects::reads) && g_.kind(op) != op_kind::id_lookup;
    return reads ? "it reads a variable" : "it is external";
  }

  const flat_graph& g_;
  const stage_cut& cut_;
  index_t most_;
  op_words words_;
  std::string text_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
