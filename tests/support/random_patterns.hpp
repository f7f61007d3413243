// Random graphs and patterns of ops over whole numbers, both as lists: built as a step_graph and a
// step_pattern, and matched here by trying everything.
#pragma once

#include <deeprec/core/hash.hpp>
#include <deeprec/graph/step/fusion/step_pattern.hpp>
#include <deeprec/graph/step/step_graph.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace deeprec_test {

using deeprec::index_t;
using word = std::uint64_t;

enum class fusable : unsigned char { neg, add, sub, sum, two, peek, bump, log, stage };

// What each op computes; of `two` the second output is mix64 of the first.
inline word computed(fusable kind, word salt, const std::vector<word>& in, word& variable) {
  word h = deeprec::mix64(salt * 16 + static_cast<word>(kind));
  if (kind == fusable::add) return h + (deeprec::mix64(in[0] ^ h) + deeprec::mix64(in[1] ^ h));
  for (const word x : in) h = deeprec::mix64(h ^ x);
  if (kind == fusable::peek) h = deeprec::mix64(h + variable);
  if (kind == fusable::bump) variable = h = deeprec::mix64(h + variable);
  return h;
}

struct neg_op {
  using output = word;
  word salt;
  void operator()(const word& a, word& out) const {
    word none = 0;
    out = computed(fusable::neg, salt, {a}, none);
  }
};
struct add_op {
  using output = word;
  static constexpr bool commutative = true;
  word salt;
  void operator()(const word& a, const word& b, word& out) const {
    word none = 0;
    out = computed(fusable::add, salt, {a, b}, none);
  }
};
struct sub_op {
  using output = word;
  word salt;
  void operator()(const word& a, const word& b, word& out) const {
    word none = 0;
    out = computed(fusable::sub, salt, {a, b}, none);
  }
};
struct sum_op {
  using output = word;
  word salt;
  void operator()(deeprec::op_list<const word> in, word& out) const {
    word none = 0;
    out = computed(fusable::sum, salt, {in.begin(), in.end()}, none);
  }
};
struct two_op {
  using outputs = deeprec::op_outputs<word, word>;
  word salt;
  void operator()(const word& a, word& out, word& more) const {
    word none = 0;
    out = computed(fusable::two, salt, {a}, none);
    more = deeprec::mix64(out);
  }
};
struct peek_op {
  using output = word;
  word salt;
  void operator()(const word& a, const word& variable, word& out) const {
    word same = variable;
    out = computed(fusable::peek, salt, {a}, same);
  }
};
struct bump_op {
  using output = word;
  word salt;
  void operator()(const word& a, word& variable, word& out) const {
    out = computed(fusable::bump, salt, {a}, variable);
  }
};
struct log_op {
  using output = word;
  word salt;
  std::vector<word>* log;
  void operator()(const word& a, word& out) const {
    word none = 0;
    log->push_back(out = computed(fusable::log, salt, {a}, none));
  }
};

struct described_node {
  fusable kind = fusable::neg;
  std::vector<index_t> inputs{};  // values, by their place among all; 0: the source's
  index_t variable = 0;           // of peek and bump
  index_t after = -1;             // an op
  bool kept = false;              // its values
  bool gradient = false;
};
struct described_dag {
  std::vector<described_node> ops;
  index_t variables = 2;
  static index_t outputs(const described_node& op) {
    return op.kind == fusable::two     ? 2
           : op.kind == fusable::stage ? static_cast<index_t>(op.inputs.size())
                                       : 1;
  }
  /// Of each value: its op, by the place among all, and its port. The source is op -1.
  [[nodiscard]] std::vector<std::pair<index_t, index_t>> makers() const {
    std::vector<std::pair<index_t, index_t>> made{{-1, 0}};
    for (std::size_t v = 0; v < ops.size(); ++v) {
      for (index_t p = 0; p < outputs(ops[v]); ++p) made.emplace_back(static_cast<index_t>(v), p);
    }
    return made;
  }
};

struct dag_world {
  word variables[4] = {1, 2, 3, 4};
  std::vector<word> log;
  word drawn = 0;
};
struct built_dag {
  deeprec::step_graph graph{};
  std::vector<deeprec::value<word>> values{};
  std::vector<index_t> numbers{};  // of the ops
};

inline built_dag build(const described_dag& from, dag_world& world) {
  built_dag made;
  deeprec::step_graph& g = made.graph;
  std::vector<deeprec::variable<word>> variables;
  for (index_t v = 0; v < from.variables; ++v)
    variables.push_back(g.variable("v" + std::to_string(v), world.variables[v]));
  made.values.push_back(
      g.source<word>("read", [&world](word& out) { return out = deeprec::mix64(++world.drawn), true; }));
  word salt = 0;
  for (const described_node& op : from.ops) {
    const std::string name = "op" + std::to_string(salt++);
    const auto in = [&](std::size_t i) { return made.values[static_cast<std::size_t>(op.inputs[i])]; };
    const auto refine = [&](const auto& added) {
      made.numbers.push_back(added.op());
      if (op.after >= 0) {
        // A handle of the op by any value of it.
        const auto makers = from.makers();
        for (std::size_t v = 0; v < made.values.size(); ++v) {
          if (makers[v].first != op.after) continue;
          added.after(made.values[v]);
          break;
        }
      }
      if (op.gradient) added.role(deeprec::op_role::gradient);
      made.values.push_back(added.template get<0>());
      if constexpr (std::remove_cvref_t<decltype(added)>::outputs() > 1)
        made.values.push_back(added.template get<1>());
      if (op.kept) g.keep(made.values.back());
    };
    std::vector<deeprec::value<word>> list;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) list.push_back(in(i));
    switch (op.kind) {
      case fusable::neg:
        refine(g.add(name, neg_op{salt}, in(0)));
        break;
      case fusable::add:
        refine(g.add(name, add_op{salt}, in(0), in(1)));
        break;
      case fusable::sub:
        refine(g.add(name, sub_op{salt}, in(0), in(1)));
        break;
      case fusable::sum:
        refine(g.add(name, sum_op{salt}, list));
        break;
      case fusable::two:
        refine(g.add(name, two_op{salt}, in(0)));
        break;
      case fusable::peek:
        refine(g.add(name, peek_op{salt}, in(0), g.read(variables[static_cast<std::size_t>(op.variable)])));
        break;
      case fusable::bump:
        refine(g.add(name, bump_op{salt}, in(0), g.write(variables[static_cast<std::size_t>(op.variable)])));
        break;
      case fusable::log:
        refine(g.add(name, log_op{salt, &world.log}, in(0)).external());
        break;
      case fusable::stage:
        made.numbers.push_back(g.size());
        for (const auto& v : g.stage(name, list)) made.values.push_back(v);
        break;
    }
  }
  return made;
}

// ---- patterns ----

/// An input: an output of an op of the pattern, or wildcard `port` where op is -1.
struct described_cell {
  index_t op = -1, port = 0;
};
struct described_pattern_op {
  fusable kind = fusable::neg;
  std::vector<described_cell> inputs;
};
/// At most one op accesses a variable.
struct described_pattern {
  std::vector<described_pattern_op> ops;
  index_t wildcards = 0;
  std::vector<described_cell> outputs;  // one or two
  std::set<index_t> any_number{};       // wildcards, of sums
};

/// Does what the matched ops do.
template <int Outputs, fusable Access>
struct macro_op {
  using outputs =
      std::conditional_t<Outputs == 1, deeprec::op_outputs<word>, deeprec::op_outputs<word, word>>;
  described_pattern of;
  std::vector<word> salts;
  std::vector<index_t> begins;  // of each wildcard, in the list; behind them the end
  void run(deeprec::op_list<const word> in, word& variable, std::vector<word>& out) const {
    std::vector<word> made;
    for (std::size_t q = 0; q < of.ops.size(); ++q) {
      std::vector<word> inputs;
      for (const described_cell& c : of.ops[q].inputs) {
        if (c.op >= 0) {
          inputs.push_back(value(c, made));
          continue;
        }
        for (index_t i = begins[static_cast<std::size_t>(c.port)];
             i < begins[static_cast<std::size_t>(c.port) + 1]; ++i)
          inputs.push_back(in[i]);
      }
      made.push_back(computed(of.ops[q].kind, salts[q], inputs, variable));
    }
    for (const described_cell& c : of.outputs) out.push_back(value(c, made));
  }
  static word value(const described_cell& c, const std::vector<word>& made) {
    const word first = made[static_cast<std::size_t>(c.op)];
    return c.port == 0 ? first : deeprec::mix64(first);
  }
  void operator()(deeprec::op_list<const word> in, word& out) const
    requires(Outputs == 1 && Access == fusable::neg)
  {
    word none = 0;
    std::vector<word> made;
    run(in, none, made);
    out = made[0];
  }
  void operator()(deeprec::op_list<const word> in, word& out, word& more) const
    requires(Outputs == 2 && Access == fusable::neg)
  {
    word none = 0;
    std::vector<word> made;
    run(in, none, made);
    out = made[0], more = made[1];
  }
  void operator()(deeprec::op_list<const word> in, const word& variable, word& out) const
    requires(Outputs == 1 && Access == fusable::peek)
  {
    word same = variable;
    std::vector<word> made;
    run(in, same, made);
    out = made[0];
  }
  void operator()(deeprec::op_list<const word> in, word& variable, word& out) const
    requires(Outputs == 1 && Access == fusable::bump)
  {
    std::vector<word> made;
    run(in, variable, made);
    out = made[0];
  }
};

inline deeprec::step_pattern build(const described_pattern& from, const std::string& name) {
  using deeprec::pattern_match;
  using deeprec::pattern_value;
  using list_type = deeprec::pattern_values<word>;
  deeprec::step_pattern p(name);
  // Single ones, lists, and all of them as the macro op takes them.
  const list_type none = deeprec::step_pattern::list(std::vector<pattern_value<word>>());
  std::vector<std::optional<pattern_value<word>>> single;
  std::vector<list_type> wild;
  list_type taken = none;
  for (index_t w = 0; w < from.wildcards; ++w) {
    if (from.any_number.count(w) > 0) {
      single.emplace_back();
      wild.push_back(p.any_list<word>());
    } else {
      single.emplace_back(p.any<word>());
      wild.push_back(deeprec::step_pattern::list(*single.back()));
    }
    taken = deeprec::step_pattern::list(taken, wild.back());
  }
  std::vector<std::vector<pattern_value<word>>> made;
  std::vector<std::function<word(const pattern_match&)>> salts;
  std::optional<deeprec::pattern_access<const word>> reads;
  std::optional<deeprec::pattern_access<word>> writes;
  for (const described_pattern_op& op : from.ops) {
    std::vector<pattern_value<word>> in;
    list_type list = none;
    for (const described_cell& c : op.inputs) {
      const auto port = static_cast<std::size_t>(c.port);
      if (c.op < 0 && !single[port]) {
        list = deeprec::step_pattern::list(list, wild[port]);
        continue;
      }
      in.push_back(c.op < 0 ? *single[port] : made[static_cast<std::size_t>(c.op)][port]);
      list = deeprec::step_pattern::list(list, in.back());
    }
    const auto added = [&](const auto& handle) {
      salts.push_back([handle](const pattern_match& m) { return m[handle].salt; });
      made.push_back({handle});
    };
    switch (op.kind) {
      case fusable::neg:
        added(p.op<neg_op>(in[0]));
        break;
      case fusable::add:
        added(p.op<add_op>(in[0], in[1]));
        break;
      case fusable::sub:
        added(p.op<sub_op>(in[0], in[1]));
        break;
      case fusable::sum:
        added(p.op<sum_op>(list));
        break;
      case fusable::two: {
        const auto two = p.op<two_op>(in[0]);
        salts.push_back([two](const pattern_match& m) { return m[two].salt; });
        made.push_back({two.get<0>(), two.get<1>()});
        break;
      }
      case fusable::peek:
        reads = p.reads<word>(), added(p.op<peek_op>(in[0], *reads));
        break;
      case fusable::bump:
        writes = p.writes<word>(), added(p.op<bump_op>(in[0], *writes));
        break;
      default:
        break;
    }
  }
  const auto out = [&](std::size_t i) {
    return made[static_cast<std::size_t>(from.outputs[i].op)][static_cast<std::size_t>(from.outputs[i].port)];
  };
  const auto all = [salts](const pattern_match& m) {
    std::vector<word> of;
    for (const auto& salt : salts) of.push_back(salt(m));
    return of;
  };
  const auto begins = [wild](const pattern_match& m) {
    std::vector<index_t> of{0};
    for (const list_type& w : wild) of.push_back(of.back() + static_cast<index_t>(m.places(w).size()));
    return of;
  };
  if (from.outputs.size() == 2) {
    p.becomes(
        std::tuple(out(0), out(1)),
        [=](const pattern_match& m) { return macro_op<2, fusable::neg>{from, all(m), begins(m)}; }, taken);
  } else if (reads) {
    p.becomes(
        out(0), [=](const pattern_match& m) { return macro_op<1, fusable::peek>{from, all(m), begins(m)}; },
        taken, *reads);
  } else if (writes) {
    p.becomes(
        out(0), [=](const pattern_match& m) { return macro_op<1, fusable::bump>{from, all(m), begins(m)}; },
        taken, *writes);
  } else {
    p.becomes(
        out(0), [=](const pattern_match& m) { return macro_op<1, fusable::neg>{from, all(m), begins(m)}; },
        taken);
  }
  return p;
}

// ---- the oracle ----

/// All matches, as sets of the ops' places by the ops of the pattern: every assignment, every rule, by its
/// definition.
inline std::set<std::vector<index_t>> brute_matches(const described_dag& g, const described_pattern& p,
                                                    bool look_at_private = true, bool look_at_paths = true) {
  const auto n = static_cast<index_t>(g.ops.size());
  const auto makers = g.makers();
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<bool>> reach(at(n), std::vector<bool>(at(n)));
  const auto changes = [](const described_node& op) { return op.kind == fusable::bump; };
  const auto accesses = [](const described_node& op) {
    return op.kind == fusable::bump || op.kind == fusable::peek;
  };
  for (index_t v = 0; v < n; ++v) {
    const described_node& op = g.ops[at(v)];
    for (const index_t in : op.inputs) {
      if (makers[at(in)].first >= 0) reach[at(makers[at(in)].first)][at(v)] = true;
    }
    if (op.after >= 0) reach[at(op.after)][at(v)] = true;
    for (index_t u = 0; u < v; ++u) {
      const described_node& other = g.ops[at(u)];
      const bool both = accesses(op) && accesses(other) && op.variable == other.variable;
      if ((both && (changes(op) || changes(other))) ||
          (op.kind == fusable::log && other.kind == fusable::log))
        reach[at(u)][at(v)] = true;
    }
  }
  for (index_t k = 0; k < n; ++k) {
    for (index_t i = 0; i < n; ++i) {
      for (index_t j = 0; j < n && reach[at(i)][at(k)]; ++j) {
        if (reach[at(k)][at(j)]) reach[at(i)][at(j)] = true;
      }
    }
  }
  const auto stages = [&](index_t v) {
    std::set<index_t> before;
    for (index_t s = 0; s < n; ++s) {
      if (g.ops[at(s)].kind == fusable::stage && reach[at(v)][at(s)]) before.insert(s);
    }
    return before;
  };
  std::set<std::vector<index_t>> found;
  std::vector<index_t> ops(p.ops.size());
  const auto legal = [&] {
    const auto inside = [&](index_t v) { return std::find(ops.begin(), ops.end(), v) != ops.end(); };
    // Any order of the inputs of commutative ops, any lengths of lists.
    bool fits = false;
    std::vector<std::optional<std::vector<index_t>>> wild(at(p.wildcards));
    for (std::size_t orders = 0; orders < (std::size_t{1} << ops.size()) && !fits; ++orders) {
      // The cells of op q from c on take its inputs from i on, and those of later ops all of theirs.
      const std::function<bool(std::size_t, std::size_t, std::size_t)> lie = [&](std::size_t q, std::size_t c,
                                                                                 std::size_t i) {
        if (q == ops.size()) return true;
        const bool exchanged = (orders >> q & 1U) != 0;
        if (exchanged && p.ops[q].kind != fusable::add) return false;
        const std::vector<index_t>& in = g.ops[at(ops[q])].inputs;
        const std::vector<described_cell>& cells = p.ops[q].inputs;
        if (c == cells.size()) return i == in.size() && lie(q + 1, 0, 0);
        const auto input = [&](std::size_t k) { return in[exchanged ? in.size() - 1 - k : k]; };
        if (cells[c].op >= 0)
          return i < in.size() && makers[at(input(i))] == std::pair(ops[at(cells[c].op)], cells[c].port) &&
                 lie(q, c + 1, i + 1);
        const bool any_number = p.any_number.count(cells[c].port) > 0;
        for (std::size_t count = any_number ? 0 : 1; i + count <= in.size() && (any_number || count == 1);
             ++count) {
          std::vector<index_t> taken;
          bool outside = true;
          for (std::size_t k = i; k < i + count; ++k) {
            taken.push_back(input(k));
            outside = outside && (makers[at(input(k))].first < 0 || !inside(makers[at(input(k))].first));
          }
          auto& held = wild[at(cells[c].port)];
          if (!outside || (held && *held != taken)) continue;
          const auto before = held;
          held = taken;
          const bool all = lie(q, c + 1, i + count);
          held = before;
          if (all) return true;
        }
        return false;
      };
      fits = lie(0, 0, 0);
    }
    if (!fits) return false;
    for (const index_t v : ops) {
      if (g.ops[at(v)].gradient != g.ops[at(ops[0])].gradient || stages(v) != stages(ops[0])) return false;
    }
    for (std::size_t q = 0; q < ops.size() && look_at_private; ++q) {
      const described_node& op = g.ops[at(ops[q])];
      for (index_t port = 0; port < described_dag::outputs(op); ++port) {
        bool is_output = false;
        for (const described_cell& c : p.outputs)
          is_output = is_output || (c.op == static_cast<index_t>(q) && c.port == port);
        if (is_output) continue;
        if (op.kept && port == described_dag::outputs(op) - 1) return false;
        for (index_t u = 0; u < n; ++u) {
          for (const index_t in : g.ops[at(u)].inputs) {
            if (makers[at(in)] == std::pair(ops[q], port) && !inside(u)) return false;
          }
        }
      }
    }
    for (index_t w = 0; w < n && look_at_paths; ++w) {
      if (inside(w)) continue;
      bool from = false, to = false;
      for (const index_t v : ops) from = from || reach[at(v)][at(w)], to = to || reach[at(w)][at(v)];
      if (from && to) return false;
    }
    return true;
  };
  const std::function<void(std::size_t)> choose = [&](std::size_t q) {
    if (q == ops.size()) {
      if (legal()) found.insert(ops);
      return;
    }
    for (index_t v = 0; v < n; ++v) {
      if (g.ops[at(v)].kind != p.ops[q].kind) continue;
      if (std::find(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(q), v) !=
          ops.begin() + static_cast<std::ptrdiff_t>(q))
        continue;
      ops[q] = v;
      choose(q + 1);
    }
  };
  choose(0);
  return found;
}

// ---- at random ----

inline index_t inputs_of(fusable kind, std::mt19937_64& random) {
  return kind == fusable::add || kind == fusable::sub ? 2
         : kind == fusable::sum                       ? static_cast<index_t>(1 + random() % 3)
         : kind == fusable::stage                     ? static_cast<index_t>(1 + random() % 2)
                                                      : 1;
}

inline described_dag random_dag(std::mt19937_64& random, index_t most) {
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  described_dag g;
  const index_t n = 2 + below(most - 1);
  index_t values = 1;
  const index_t width = 2 + below(6), gradients = below(3) == 0 ? n / 2 : n;
  const index_t stage = below(3) == 0 ? below(n) : -1;
  for (index_t v = 0; v < n; ++v) {
    described_node op;
    static constexpr fusable kinds[] = {fusable::neg,  fusable::neg, fusable::add, fusable::add,
                                        fusable::sub,  fusable::sub, fusable::sum, fusable::two,
                                        fusable::peek, fusable::bump};
    op.kind = v == stage ? fusable::stage : below(30) == 0 ? fusable::log : kinds[below(10)];
    const index_t count = inputs_of(op.kind, random);
    for (index_t i = 0; i < count; ++i) op.inputs.push_back(values - 1 - below(std::min(values, width)));
    op.variable = below(g.variables);
    const bool plain = op.kind != fusable::stage;
    if (plain && v > 0 && below(6) == 0) op.after = below(v);
    op.kept = plain && below(12) == 0;
    op.gradient = plain && v >= gradients;
    values += described_dag::outputs(op);
    g.ops.push_back(std::move(op));
  }
  return g;
}

/// Ops that are connected, of which the last takes a value of another one, or of itself alone.
inline described_pattern random_pattern(std::mt19937_64& random, index_t most) {
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  described_pattern p;
  const index_t n = 1 + below(most);
  std::vector<described_cell> values;
  bool accesses = false;
  std::vector<bool> used;
  for (index_t q = 0; q < n; ++q) {
    static constexpr fusable kinds[] = {fusable::neg, fusable::add, fusable::add,  fusable::sub,
                                        fusable::sum, fusable::two, fusable::peek, fusable::bump};
    described_pattern_op op;
    do {
      op.kind = kinds[below(8)];
    } while (accesses && (op.kind == fusable::peek || op.kind == fusable::bump));
    accesses = accesses || op.kind == fusable::peek || op.kind == fusable::bump;
    const index_t count = inputs_of(op.kind, random);
    for (index_t i = 0; i < count; ++i) {
      // The first input joins the op to the ones before.
      if (!values.empty() && (i == 0 || below(2) == 0)) {
        const auto which = static_cast<std::size_t>(below(static_cast<index_t>(values.size())));
        op.inputs.push_back(values[which]);
        used[which] = true;
      } else if (const index_t known = p.wildcards > 0 ? below(p.wildcards) : 0;
                 p.wildcards > 0 && below(3) == 0 &&
                 (op.kind == fusable::sum || p.any_number.count(known) == 0)) {
        op.inputs.push_back({-1, known});
      } else {
        if (op.kind == fusable::sum && below(2) == 0) p.any_number.insert(p.wildcards);
        op.inputs.push_back({-1, p.wildcards++});
      }
    }
    if (op.kind == fusable::sum && below(2) == 0) {
      // Beside the first input: before it, or behind all.
      p.any_number.insert(p.wildcards);
      op.inputs.insert(below(2) == 0 ? op.inputs.begin() : op.inputs.end(), {-1, p.wildcards++});
    }
    if (op.kind == fusable::add && below(2) == 0) std::swap(op.inputs[0], op.inputs[1]);
    const bool two = op.kind == fusable::two;
    values.push_back({q, 0});
    used.push_back(false);
    if (two) {
      values.push_back({q, 1});
      used.push_back(false);
    }
    p.ops.push_back(std::move(op));
  }
  p.outputs.push_back(values.back());
  if (!accesses && below(3) == 0 && values.size() > 1)
    p.outputs.push_back(values[static_cast<std::size_t>(below(static_cast<index_t>(values.size()) - 1))]);
  return p;
}

/// The pattern of some connected ops of a graph, which it may match there.
inline described_pattern pattern_of(const described_dag& g, std::mt19937_64& random, index_t most) {
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
  const auto makers = g.makers();
  const auto accesses = [&](index_t v) {
    return g.ops[at(v)].kind == fusable::peek || g.ops[at(v)].kind == fusable::bump;
  };
  const auto fits = [&](index_t v, const std::set<index_t>& with) {
    if (v < 0 || g.ops[at(v)].kind == fusable::log || g.ops[at(v)].kind == fusable::stage) return false;
    return !accesses(v) || std::none_of(with.begin(), with.end(), accesses);
  };
  std::set<index_t> ops;
  const auto n = static_cast<index_t>(g.ops.size());
  for (int tries = 0; tries < 20 && ops.empty(); ++tries) {
    if (const index_t v = below(n); fits(v, ops)) ops.insert(v);
  }
  if (ops.empty()) return random_pattern(random, most);
  for (index_t more = below(most + 1); more > 0; --more) {
    std::vector<index_t> beside;
    for (index_t v = 0; v < n; ++v) {
      for (const index_t in : g.ops[at(v)].inputs) {
        const index_t maker = makers[at(in)].first;
        if (ops.count(v) > 0 && ops.count(maker) == 0 && fits(maker, ops)) beside.push_back(maker);
        if (ops.count(maker) > 0 && ops.count(v) == 0 && fits(v, ops)) beside.push_back(v);
      }
    }
    if (beside.empty()) break;
    ops.insert(beside[at(below(static_cast<index_t>(beside.size())))]);
  }
  described_pattern p;
  const std::vector<index_t> list(ops.begin(), ops.end());
  std::vector<described_cell> values;
  for (std::size_t q = 0; q < list.size(); ++q) {
    const described_node& op = g.ops[at(list[q])];
    described_pattern_op made{op.kind, {}};
    const bool lists = op.kind == fusable::sum && below(2) == 0;  // what is beside ops of the pattern, if any
    for (const index_t in : op.inputs) {
      if (lists && ops.count(makers[at(in)].first) == 0) {
        if (made.inputs.empty() || made.inputs.back().op >= 0) {
          p.any_number.insert(p.wildcards);
          made.inputs.push_back({-1, p.wildcards++});
        }
        continue;
      }
      const auto found = std::find(list.begin(), list.end(), makers[at(in)].first);
      made.inputs.push_back(found == list.end() ? described_cell{-1, p.wildcards++}
                                                : described_cell{static_cast<index_t>(found - list.begin()),
                                                                 makers[at(in)].second});
    }
    if (op.kind == fusable::add && below(2) == 0) std::swap(made.inputs[0], made.inputs[1]);
    for (index_t port = 0; port < described_dag::outputs(op); ++port)
      values.push_back({static_cast<index_t>(q), port});
    p.ops.push_back(std::move(made));
  }
  p.outputs.push_back(values.back());
  if (values.size() > 1 && std::none_of(ops.begin(), ops.end(), accesses) && below(2) == 0)
    p.outputs.push_back(values[at(below(static_cast<index_t>(values.size()) - 1))]);
  return p;
}

}  // namespace deeprec_test
