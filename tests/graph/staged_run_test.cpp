// A staged graph computes the same, step for step: both are interpreted, with a variable that each step
// changes.

#include <deeprec/core/hash.hpp>
#include <deeprec/graph/passes/apply_cut.hpp>
#include <deeprec/graph/passes/explain_cut.hpp>
#include <deeprec/graph/passes/smart_stage.hpp>
#include <deeprec/queue/staging_queue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/random_graphs.hpp"
#include "support/seed.hpp"

using namespace deeprec;

namespace {

using word = std::uint64_t;
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
constexpr word steps = 12;

/// Which ops a stage of this graph needs.
std::vector<bool> ahead_in(const flat_graph& g) {
  std::vector<bool> ahead(at(g.size()));
  for (std::size_t i = g.order().size(); i-- > 0;) {
    const index_t v = g.order()[i];
    const bool put = g.kind(v) == op_kind::stage_put || g.kind(v) == op_kind::stage;
    if (!put && !ahead[at(v)]) continue;
    for (const std::int32_t e : g.in(v)) ahead[at(g.source(e))] = true;
  }
  return ahead;
}

/// Whole-number ops: an output is a hash of the op, the port and the inputs. A `reads` op also reads the
/// state, a `writes` op changes it at the end of a step, an external op that the user does not run ahead does
/// both; an op without inputs yields something else in each step.
class interpreter {
 public:
  /// `origin`: the op that an op was, by which it computes. `ahead`: what the user runs ahead, by origin.
  interpreter(const flat_graph& g, std::vector<index_t> origin, const std::vector<bool>& ahead)
      : g_(g), origin_(std::move(origin)), value_(at(g.size())) {
    for (index_t v = 0; v < g.size(); ++v)
      outside_.push_back(has_effect(g.effects(v), op_effects::external) && !ahead[at(origin_[at(v)])]);
    for (index_t v = 0; v < g.size(); ++v) {
      if (g.kind(v) == op_kind::stage_put) put_[std::string(g.stage_of(v))] = v;
    }
  }

  word output(index_t v, index_t port) const {
    return mix64(value_[at(v)] + static_cast<word>(port) * 0x9e3779b97f4a7c15);
  }

  /// What an edge carries. A take hands out what was put: here, in this step, or in a record.
  word carried(index_t e, const std::map<std::pair<index_t, index_t>, word>* record) const {
    const index_t u = g_.source(e);
    if (g_.kind(u) == op_kind::stage) return carried(input(u, g_.source_port(e)), record);
    if (g_.kind(u) != op_kind::stage_take) return output(u, g_.source_port(e));
    if (record != nullptr && record->count({u, g_.source_port(e)}) != 0)
      return record->at({u, g_.source_port(e)});
    return carried(input(put_.at(std::string(g_.stage_of(u))), g_.source_port(e)), record);
  }
  index_t input(index_t v, index_t port) const {
    for (const std::int32_t e : g_.in(v)) {
      if (g_.destination_port(e) == port) return e;
    }
    return -1;
  }

  /// Runs the ops of one side.
  template <class Of>
  void run(word step, word state, const std::map<std::pair<index_t, index_t>, word>* record,
           Of of_this_side) {
    written_ = state;
    for (const std::int32_t v : g_.order()) {
      if (!of_this_side(v)) continue;
      const op_kind kind = g_.kind(v);
      word h = mix64(static_cast<word>(origin_[at(v)]) + 1);
      bool fed = false;
      for (const std::int32_t e : g_.in(v)) {
        if (g_.is_control(e)) continue;
        fed = true;
        // An id lookup reads no row: the handle is all that it has of the table.
        const bool handle = kind == op_kind::id_lookup && g_.kind(g_.source(e)) == op_kind::variable &&
                            g_.in(g_.source(e)).empty();
        h = mix64(h ^ (handle ? 77 : carried(e, record)));
      }
      if (!fed && kind != op_kind::constant) h = mix64(h ^ (step + 1000));
      const bool reads = has_effect(g_.effects(v), op_effects::reads) && kind != op_kind::id_lookup;
      if (kind == op_kind::variable || reads || outside_[at(v)]) h = mix64(h ^ state);
      value_[at(v)] = h;
      // Writes without an order between them must not depend on it.
      if (has_effect(g_.effects(v), op_effects::writes) || outside_[at(v)]) written_ += mix64(h);
    }
    // The step itself also changes the variable, as an optimizer would.
    written_ = mix64(written_ + step + 1);
  }
  word written() const { return written_; }

 private:
  const flat_graph& g_;
  std::vector<index_t> origin_;
  std::vector<bool> outside_;  // it reads and changes what is outside of the graph
  std::vector<word> value_;
  std::map<std::string, index_t> put_;
  word written_ = 0;
};

using trace = std::vector<std::vector<word>>;  // of each step, the outputs of the ops that stay in the step

std::vector<index_t> numbers(index_t n) {
  std::vector<index_t> made;
  for (index_t v = 0; v < n; ++v) made.push_back(v);
  return made;
}

trace run_plainly(const flat_graph& g, const std::vector<index_t>& watched) {
  interpreter all(g, numbers(g.size()), ahead_in(g));
  trace outputs;
  word state = 5;
  for (word step = 0; step < steps; ++step) {
    all.run(step, state, nullptr, [&](index_t v) {
      return g.kind(v) != op_kind::stage_put && g.kind(v) != op_kind::stage_take &&
             g.kind(v) != op_kind::stage;
    });
    state = all.written();
    outputs.emplace_back();
    for (const index_t v : watched) outputs.back().push_back(all.output(v, 0));
  }
  return outputs;
}

using record = std::map<std::pair<index_t, index_t>, word>;

trace run_staged(const staged_graph& s, const std::vector<bool>& ahead, const std::vector<index_t>& watched,
                 std::size_t capacity, int threads) {
  const flat_graph& g = s.graph;
  std::vector<bool> staged(at(g.size())), stage_op(at(g.size()));
  for (std::size_t i = 0; i < s.puts.size(); ++i)
    staged[at(s.puts[i])] = true, stage_op[at(s.puts[i])] = stage_op[at(s.takes[i])] = true;
  for (std::size_t i = g.order().size(); i-- > 0;) {
    const index_t v = g.order()[i];
    if (!staged[at(v)]) continue;
    for (const std::int32_t e : g.in(v)) {
      const index_t u = g.source(e);
      if (!(g.kind(u) == op_kind::variable && g.in(u).empty())) staged[at(u)] = true;
    }
  }
  staging_queue<record> queue(capacity);
  std::mutex order;
  word next = 0;
  std::vector<std::thread> producers;
  for (int t = 0; t < threads; ++t) {
    producers.emplace_back([&] {
      interpreter mine(g, s.origin, ahead);
      while (true) {
        std::unique_lock lock(order);
        if (next == steps) return;
        const word step = next++;
        auto position = queue.reserve();
        lock.unlock();
        // The staged part must not read the variable: it sees another state.
        mine.run(step, 0xdead + step, nullptr, [&](index_t v) { return staged[at(v)] && !stage_op[at(v)]; });
        record made;
        for (std::size_t i = 0; i < s.puts.size(); ++i) {
          for (const std::int32_t e : g.in(s.puts[i])) {
            if (!g.is_control(e)) made[{s.takes[i], g.destination_port(e)}] = mine.carried(e, nullptr);
          }
        }
        position.put(std::move(made));
      }
    });
  }
  interpreter rest(g, s.origin, ahead);
  std::vector<index_t> now(watched.size(), -1);
  for (std::size_t i = 0; i < watched.size(); ++i) {
    for (index_t v = g.size(); v-- > 0;) {
      if (s.origin[at(v)] == watched[i] && !staged[at(v)]) now[i] = v;
    }
  }
  trace outputs;
  word state = 5;
  for (word step = 0; step < steps; ++step) {
    const record taken = queue.take().or_throw();
    rest.run(step, state, &taken, [&](index_t v) { return !staged[at(v)] && !stage_op[at(v)]; });
    state = rest.written();
    outputs.emplace_back();
    for (const index_t v : now) outputs.back().push_back(rest.output(v, 0));
  }
  for (std::thread& t : producers) t.join();
  return outputs;
}

}  // namespace

TEST_CASE(
    "smart_stage P4: the staged graph computes the same in each step, for capacities 1 to 8 and several "
    "threads") {
  std::mt19937_64 random(deeprec_test::seed() + 6);
  int compared = 0, moved = 0, wrong_cuts = 0, wrong_seen = 0;
  for (int round = 0; round < 60'000 && compared < 400; ++round) {
    const flat_graph g = deeprec_test::wild_graph(random, 24, false).flat().or_throw();
    const smart_stage_options options{.rule = round % 2 == 0 ? stage_rule::farthest : stage_rule::balanced};
    const stage_cut cut = smart_stage(g, options).or_throw();
    if (!cut.changes() || !cut.kept.empty()) continue;
    // What the user staged of a variable was of another step before, too: no two runs of that are the same.
    bool stale = false;
    std::vector<index_t> watched;
    for (index_t v = 0; v < g.size(); ++v) {
      stale = stale || (is_before_cut(cut.side[at(v)]) && !barrier_path(cut, v).empty());
      if (cut.side[at(v)] == op_side::rest) watched.push_back(v);
    }
    const bool moves = std::count(cut.side.begin(), cut.side.end(), op_side::moved) > 0;
    if (stale || watched.empty() || (!moves && compared >= 20)) continue;
    ++compared;
    for (const op_side s : cut.side) moved += s == op_side::moved ? 1 : 0;
    const trace expected = run_plainly(g, watched);
    const staged_graph staged = apply_cut(g, cut).or_throw();
    const auto capacity = static_cast<std::size_t>(1 + compared % 8);
    const int threads = 1 + compared / 8 % 4;
    if (run_staged(staged, ahead_in(g), watched, capacity, threads) != expected) {
      FAIL("capacity " << capacity << ", " << threads << " threads\n" << explain(g, cut));
    }
    // A cut that stages an op which a variable reaches is seen, if the variable reaches what is compared.
    stage_cut wrong = cut;
    for (index_t v = 0; v < g.size() && wrong_cuts < 40; ++v) {
      if (cut.side[at(v)] != op_side::rest || !has_effect(g.effects(v), op_effects::reads) ||
          has_effect(g.effects(v), op_effects::writes) || g.kind(v) != op_kind::plain ||
          g.out_end(v) == g.out_begin(v))
        continue;
      bool from_staged = true, control = false;
      for (const std::int32_t e : g.in(v))
        from_staged = from_staged && is_before_cut(cut.side[at(g.source(e))]);
      for (index_t e = g.out_begin(v); e < g.out_end(v); ++e) {
        control = control || g.is_control(e) || cut.side[at(g.destination(e))] != op_side::rest;
      }
      if (!from_staged || control) continue;
      wrong.side[at(v)] = op_side::moved;
      wrong.stage_of[at(v)] = 0;
      std::vector<staged_value> values = wrong.values;
      for (index_t e = g.out_begin(v); e < g.out_end(v); ++e) {
        if (e > g.out_begin(v) && g.source_port(e) == g.source_port(e - 1)) continue;
        values.push_back({v, g.source_port(e), 0, 0});
      }
      std::sort(values.begin(), values.end(), [](const staged_value& a, const staged_value& b) {
        return std::pair(a.source, a.source_port) < std::pair(b.source, b.source_port);
      });
      wrong.values = std::move(values);
      std::vector<index_t> others;
      for (const index_t w : watched) {
        if (w != v) others.push_back(w);
      }
      ++wrong_cuts;
      const result<staged_graph> bad = apply_cut(g, wrong);
      const bool same = bad && run_staged(bad.value(), ahead_in(g), others, 1, 1) == run_plainly(g, others);
      wrong_seen += same ? 0 : 1;
      break;
    }
  }
  MESSAGE(compared << " graphs, " << moved << " ops moved; " << wrong_seen << " of " << wrong_cuts
                   << " wrong cuts seen");
  CHECK(compared == 400);
  CHECK(moved > 100);
  CHECK(wrong_cuts > 0);
  CHECK(wrong_seen == wrong_cuts);
}
