// Random step graphs over whole numbers, as descriptions: built as often as needed, each time with variables
// of their own, and run in every way there is.
#pragma once

#include <deeprec/core/hash.hpp>
#include <deeprec/graph/step/step_graph.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace deeprec_test {

using deeprec::index_t;
using word = std::uint64_t;

enum class step_kind {
  pure,
  pair,
  constant,
  reads,
  reads_both,
  stale,
  writes,
  writes_both,
  adds,
  external,
  id_lookup,
  stage
};

struct described_op {
  step_kind kind = step_kind::pure;
  std::vector<std::size_t> inputs{};  // values, by their place among all
  std::size_t variable = 0;
  std::size_t after = 0;  // a value + 1; 0: none
  bool target = false;
};
struct described_steps {
  std::size_t variables = 0;
  word steps = 0;
  std::vector<described_op> ops;
};

/// An object of which the whole and each member are variables.
struct word_pair {
  word held[2] = {5, 5};
};
/// What steps change: variables, and what is outside of the graph.
struct step_world {
  std::vector<word_pair> pairs;
  std::vector<word> log;
  word drawn = 0;

  [[nodiscard]] word& variable(std::size_t v) { return pairs[v / 2].held[v % 2]; }
  [[nodiscard]] std::vector<word> variables() const {
    std::vector<word> all;
    for (const word_pair& p : pairs) all.insert(all.end(), {p.held[0], p.held[1]});
    return all;
  }
};

inline word mixed(word salt, const deeprec::op_list<const word>& in) {
  word h = deeprec::mix64(salt + 1);
  for (const word& x : in) h = deeprec::mix64(h ^ x);
  return h;
}
struct pure_op {
  static constexpr const char* kind = "pure";
  using output = word;
  word salt;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("salt", salt);
  }
  void operator()(deeprec::op_list<const word> in, word& out) const { out = mixed(salt, in); }
};
struct pair_op {
  using outputs = deeprec::op_outputs<word, word>;
  word salt;
  deeprec::status operator()(const deeprec::step_call& call, deeprec::op_list<const word> in, word& first,
                             word& second) const {
    first = mixed(salt, in) + static_cast<word>(call.step);
    second = deeprec::mix64(first);
    return {};
  }
};
struct reading_op {
  using output = word;
  word salt;
  void operator()(deeprec::op_list<const word> in, const word& state, word& out) const {
    out = deeprec::mix64(mixed(salt, in) ^ state);
  }
};
struct writing_op {
  using output = word;
  word salt;
  deeprec::status operator()(deeprec::op_list<const word> in, word& state, word& out) const {
    out = deeprec::mix64(mixed(salt, in) + state);
    state = deeprec::mix64(out + 7);
    return {};
  }
};
struct reading_both_op {
  using output = word;
  word salt;
  void operator()(deeprec::op_list<const word> in, const word_pair& state, word& out) const {
    out = deeprec::mix64(mixed(salt, in) ^ state.held[0]) + state.held[1];
  }
};
struct writing_both_op {
  using output = word;
  word salt;
  void operator()(deeprec::op_list<const word> in, word_pair& state, word& out) const {
    out = deeprec::mix64(mixed(salt, in) + state.held[0]) ^ state.held[1];
    state.held[salt % 2] = deeprec::mix64(out + 7);
  }
};
struct adding_op {
  word salt;
  void operator()(deeprec::op_list<const word> in, word& sum) const { sum += mixed(salt, in); }
};
struct logging_op {
  using output = word;
  word salt;
  std::vector<word>* log;
  void operator()(deeprec::op_list<const word> in, word& out) const {
    out = deeprec::mix64(mixed(salt, in) + (log->empty() ? 1 : log->back()));
    log->push_back(out);
  }
};
/// Accesses a table without reading its rows.
struct finding_op {
  static constexpr const char* kind = "find";
  static constexpr bool id_lookup = true;
  using output = word;
  word salt;
  void operator()(deeprec::op_list<const word> in, const word&, word& out) const { out = mixed(salt, in); }
};
/// Accesses a variable that the graph does not know of.
template <class Op, class State>
struct hiding_op {
  using output = word;
  Op op;
  State* state;
  auto operator()(deeprec::op_list<const word> in, word& out) const { return op(in, *state, out); }
};

template <class Op, class State>
hiding_op(Op, State*) -> hiding_op<Op, State>;

/// A graph, and the values that a step makes.
struct built_steps {
  deeprec::step_graph graph{};
  std::vector<deeprec::value<word>> values{};
  std::vector<index_t> stages{};
};

/// @param hide ops that write access their variables behind the graph's back
inline built_steps build_steps(const described_steps& from, step_world& world, bool hide = false) {
  built_steps made;
  deeprec::step_graph& g = made.graph;
  world.pairs.assign((from.variables + 1) / 2, word_pair());
  std::vector<deeprec::variable<word>> variables;
  for (std::size_t v = 0; v < from.variables; ++v)
    variables.push_back(g.variable("v" + std::to_string(v), world.variable(v)));
  std::vector<deeprec::variable<word_pair>> both;
  for (std::size_t p = 0; p < world.pairs.size(); ++p)
    both.push_back(g.variable("both " + std::to_string(p), world.pairs[p]));
  std::vector<deeprec::value<word>>& values = made.values;
  values.push_back(g.source<word>("read", [&world, steps = from.steps](word& out) {
    out = deeprec::mix64(world.drawn + 1000);
    return world.drawn++ < steps;
  }));
  word salt = 0;
  for (const described_op& op : from.ops) {
    ++salt;
    std::vector<deeprec::value<word>> in;
    for (const std::size_t i : op.inputs) in.push_back(values[i % values.size()]);
    const std::string name = "op" + std::to_string(salt);
    const auto refine = [&](const auto& added) {
      if (op.after != 0) added.after(values[(op.after - 1) % values.size()]);
      if (op.target) added.target();
      if constexpr (std::remove_cvref_t<decltype(added)>::outputs() > 0)
        values.push_back(added.template get<0>());
      if constexpr (std::remove_cvref_t<decltype(added)>::outputs() > 1)
        values.push_back(added.template get<1>());
    };
    const auto variable = [&]() -> const auto& { return variables[op.variable % variables.size()]; };
    const auto pair = [&]() -> const auto& { return both[op.variable % both.size()]; };
    const auto write = [&](const auto& how, const auto& to, auto& state) {
      if (hide) {
        refine(g.add(name, hiding_op{how, &state}, in));
      } else {
        refine(g.add(name, how, in, g.write(to)));
      }
    };
    switch (op.kind) {
      case step_kind::pure:
        refine(g.add(name, pure_op{salt}, in));
        break;
      case step_kind::pair:
        refine(g.add(name, pair_op{salt}, in));
        break;
      case step_kind::constant:
        values.push_back(g.constant(name, salt));
        break;
      case step_kind::reads:
        refine(g.add(name, reading_op{salt}, in, g.read(variable())));
        break;
      case step_kind::stale:
        refine(g.add(name, reading_op{salt}, in, g.stale_read(variable(), 1)));
        break;
      case step_kind::writes:
        write(writing_op{salt}, variable(), world.variable(op.variable % variables.size()));
        break;
      case step_kind::reads_both:
        refine(g.add(name, reading_both_op{salt}, in, g.read(pair())));
        break;
      case step_kind::writes_both:
        write(writing_both_op{salt}, pair(), world.pairs[op.variable % both.size()]);
        break;
      case step_kind::adds:
        refine(g.add(name, adding_op{salt}, in, g.accumulate(variable())));
        break;
      case step_kind::external:
        refine(g.add(name, logging_op{salt, &world.log}, in).external());
        break;
      case step_kind::id_lookup:
        refine(g.add(name, finding_op{salt}, in, g.read(variable())));
        break;
      case step_kind::stage:
        made.stages.push_back(g.size());
        for (const deeprec::value<word>& v : g.stage(name, in)) values.push_back(v);
        break;
    }
  }
  return made;
}

/// Ops before a stage, ops behind it, and sometimes a second stage. Most of them check() accepts.
inline described_steps random_steps(std::mt19937_64& random) {
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  described_steps made;
  made.variables = 1 + below(4);
  made.steps = 3 + below(6);
  std::size_t values = 1;
  const auto add = [&](step_kind kind, std::size_t recent) {
    described_op op{.kind = kind};
    const std::size_t count = kind == step_kind::constant ? 0 : below(4) + (kind == step_kind::stage ? 1 : 0);
    for (std::size_t i = 0; i < count; ++i)
      op.inputs.push_back(values - 1 - below(recent < values ? recent : values));
    op.variable = below(8);
    const bool plain = kind != step_kind::constant && kind != step_kind::stage;
    if (plain && below(8) == 0) op.after = 1 + below(values);
    if (plain && below(12) == 0) op.target = true;
    values += kind == step_kind::stage  ? count
              : kind == step_kind::pair ? 2
              : kind == step_kind::adds ? 0
                                        : 1;
    made.ops.push_back(std::move(op));
  };
  const std::size_t before = 1 + below(6), behind = 2 + below(14);
  const bool second = below(4) == 0;
  for (std::size_t i = 0; i < before; ++i) {
    static constexpr step_kind kinds[] = {step_kind::pure, step_kind::pure,     step_kind::pair,
                                          step_kind::pure, step_kind::constant, step_kind::id_lookup};
    const std::size_t dice = below(40);
    add(dice == 0   ? step_kind::writes
        : dice == 1 ? step_kind::external
        : dice == 2 ? step_kind::reads
        : dice == 3 ? step_kind::reads_both
                    : kinds[below(6)],
        4);
  }
  add(step_kind::stage, 3);
  for (std::size_t i = 0; i < behind; ++i) {
    static constexpr step_kind kinds[] = {step_kind::pure,  step_kind::pure,    step_kind::pure,
                                          step_kind::pair,  step_kind::reads,   step_kind::writes,
                                          step_kind::stale, step_kind::adds,    step_kind::id_lookup,
                                          step_kind::pure,  step_kind::constant};
    if (second && i == behind / 3) add(step_kind::stage, 3);
    const std::size_t dice = below(20);
    add(dice == 0   ? step_kind::external
        : dice == 1 ? step_kind::reads_both
        : dice == 2 ? step_kind::writes_both
                    : kinds[below(11)],
        6);
  }
  return made;
}

}  // namespace deeprec_test
