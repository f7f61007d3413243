// What fusion takes, and what it gives.
//
//   graph/fuse/ops:1e5         a graph of 10^5 ops with 10^3 matches of a pattern of three: seconds
//   graph/fuse/dlrm/batch:512  the forward pass of a DLRM whose lookups and layers are ops one by one, over
//                              the graph that fuse() makes of it, on one thread
//   graph/fuse/elements/rows:N eight element-wise ops on (N,256) over the expression that they become
//
// The model: 13 numbers through 512, 256 and 16; 26 safe lookups of 16 columns, one id in a bag, zipf(1.05)
// over at most 200,000 rows; their dot products; 512, 256 and 1. Lookups are prune, fill, unique, gather and
// combine, and their rows are put side by side, which becomes one lookup of a group; layers are product, bias
// and activation. The pooled rows are compared bit by bit, the outputs within 1e-4.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/hash.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/embedding/tables/dense_table.hpp>
#include <deeprec/exec/inline_executor.hpp>
#include <deeprec/graph/ops/column_ops.hpp>
#include <deeprec/graph/ops/dense_ops.hpp>
#include <deeprec/graph/ops/element_fusions.hpp>
#include <deeprec/graph/ops/element_ops.hpp>
#include <deeprec/graph/ops/fusions.hpp>
#include <deeprec/graph/ops/lookup_ops.hpp>
#include <deeprec/graph/step/fusion/fuse.hpp>
#include <deeprec/graph/step/step_program.hpp>

#include "support/criteo_trace.hpp"
#include "support/figures.hpp"
#include "support/random_layers.hpp"
#include "support/zipf.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

// ---- 10^5 ops ----

struct first_op {
  using output = float;
  void operator()(const float& x, float& y) const { y = x + 1; }
};
struct second_op {
  static constexpr bool commutative = true;
  using output = float;
  void operator()(const float& a, const float& b, float& y) const { y = a + b; }
};
struct third_op {
  using output = float;
  void operator()(const float& x, float& y) const { y = 2 * x; }
};
struct other_op {
  using output = float;
  void operator()(const float& a, const float& b, float& y) const { y = a - b; }
};
struct all_three {
  using output = float;
  void operator()(const float& a, const float& b, float& y) const { y = 2 * (b + (a + 1)); }
};

// first, second, third in a row 1000 times; first and second alone, and other ops, between them.
step_graph many_ops() {
  step_graph g;
  std::vector<value<float>> values{g.source<float>("read", [](float& x) { return x = 1, true; })};
  std::uint64_t draw = 1;
  const auto recent = [&]() -> const value<float>& {
    draw = mix64(draw);
    return values[values.size() - 1 - draw % std::min<std::size_t>(values.size(), 300)];
  };
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 97; ++k) {
      if (k % 8 == 0) {
        values.push_back(g.add("first", first_op{}, recent()));
      } else if (k % 8 == 1) {
        // Of which both a second op and another one take the value.
        values.push_back(g.add("second", second_op{}, values.back(), recent()));
        values.push_back(g.add("third", third_op{}, values.back()));
        values.push_back(g.add("other", other_op{}, values[values.size() - 2], recent()));
        k += 2;
      } else {
        values.push_back(g.add("other", other_op{}, recent(), recent()));
      }
    }
    const auto a = g.add("a", first_op{}, recent());
    const auto b = g.add("b", second_op{}, recent(), a);
    values.push_back(g.add("c", third_op{}, b));
  }
  return g;
}

void a_thousand_matches(benchmark::State& state) {
  const step_graph g = many_ops();
  step_pattern p("first, second, third");
  const auto x = p.any<float>(), y = p.any<float>();
  p.becomes(
      p.op<third_op>(p.op<second_op>(p.op<first_op>(x), y)), [](const pattern_match&) { return all_three{}; },
      x, y);
  figures f("graph/fuse/ops:1e5");
  f.sample([&] {
    std::size_t fused = 0;
    f.add("seconds", seconds_of([&] { fused = fuse(g, {p}).or_throw().fused.size(); }));
    if (fused != 1000) state.SkipWithError("wrong answer: not a thousand matches");
    f.note("floor", seconds_of([&] { step_editor(g).finish().or_throw(); }));  // a copy, checked
  });
  state.counters["ops"] = static_cast<double>(g.size());
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(a_thousand_matches)->Name("graph/fuse/ops:1e5")->Iterations(1)->UseManualTime();

// ---- DLRM ----

constexpr index_t batch = 512, width = 16, batches = 16;
constexpr std::size_t features = 26;
using table_type = table_view<f32_rows>;
using by_weight = combiner::mean_t<combiner::by_weight_t>;

struct model {
  std::vector<dense_table<f32_rows>> tables;
  std::vector<table_type> views;
  std::vector<std::unique_ptr<random_layer>> bottom, top;
  std::vector<std::vector<float>> dense;          // of each batch
  std::vector<std::vector<jagged_batch<>>> bags;  // batch, feature
  index_t next = 0;
  step_graph graph{};
  value<matrix_value> output{}, pooled{};

  model() {
    const inline_executor here;
    for (std::size_t t = 0; t < features; ++t) {
      tables.emplace_back(std::min(criteo_rows[t], index_t{200'000}), width);
      tables.back().initialize(here, row_init::uniform{.seed = t, .bound = 0.05F});
    }
    for (const dense_table<f32_rows>& t : tables)
      views.push_back(table_type(const_cast<dense_table<f32_rows>&>(t).view()));
    bottom = random_layers({13, 512, 256, width});
    top = random_layers({width + 27 * 26 / 2, 512, 256, 1});
    std::uint64_t draw = 5;
    for (index_t i = 0; i < batches; ++i) {
      std::vector<float> numbers(static_cast<std::size_t>(batch * 13));
      for (float& x : numbers) x = static_cast<float>((draw = mix64(draw)) >> 40) * 0x1p-24F;
      dense.push_back(std::move(numbers));
      std::vector<jagged_batch<>> all(features);
      for (std::size_t t = 0; t < features; ++t) {
        all[t].offsets.push_back(0);
        for (index_t b = 0; b < batch; ++b) {
          draw = mix64(draw);
          all[t].ids.push_back(zipf_id(draw, tables[t].view().rows()));
          all[t].offsets.push_back(b + 1);
        }
      }
      bags.push_back(std::move(all));
    }
    describe();
  }

  void describe() {
    step_graph& g = graph;
    const auto begin = g.source<index_t>("read", [this](index_t& i) { return i = next++ % batches, true; });
    const auto numbers = g.add<matrix_value>(
        "numbers",
        [this](const index_t& i, matrix_value& x) {
          x.refer({dense[static_cast<std::size_t>(i)].data(), batch, 13});
        },
        begin);
    const auto layers = [&](value<matrix_value> x, std::vector<std::unique_ptr<random_layer>>& of,
                            const char* name) {
      for (std::size_t i = 0; i < of.size(); ++i) {
        const auto w = g.variable("w", of[i]->weights), b = g.variable("b", of[i]->bias);
        x = g.add(name, add_row_op<>{}, g.add(name, matmul_op<>{}, x, g.read(w)), g.read(b));
        const bool last = &of == &top && i + 1 == of.size();
        x = g.add(name, activate_op{last ? gemm_activation::sigmoid : gemm_activation::relu}, x);
      }
      return x;
    };
    const value<matrix_value> low = layers(numbers, bottom, "bottom");
    std::vector<value<matrix_value>> rows;
    for (std::size_t t = 0; t < features; ++t) {
      const auto table = g.variable("table", views[t]);
      const auto ids = g.add<jagged_batch<>>(
          "ids",
          [this, t](const index_t& i, jagged_batch<>& to) {
            const jagged_batch<>& from = bags[static_cast<std::size_t>(i)][t];
            to.offsets = from.offsets;
            to.ids = from.ids;
          },
          begin);
      const auto filled = g.add("fill", fill_op<>{}, g.add("prune", prune_op<>{}, ids)).template get<0>();
      const auto distinct = g.add("unique", unique_op<>{}, filled);
      const auto gathered = g.add("gather", gather_op<table_type>{}, distinct, g.read(table));
      rows.push_back(g.add("combine", combine_op<by_weight>{}, gathered, distinct, filled));
    }
    pooled = g.add("pooled", concat_columns_op{}, rows);
    g.keep(pooled);
    const auto crossed = g.add<matrix_value>(
        "interaction",
        [](const step_call& call, const matrix_value& a, const matrix_value& b, matrix_value& out) {
          return dot_interaction_forward<decltype(call.on), host_space>(
              call.on, a.view(), b.view(), out.make(a.rows(), width + 27 * 26 / 2));
        },
        low, pooled);
    output = layers(crossed, top, "top");
    g.keep(output);
  }
};

bool same(const matrix_view<const float>& a, const matrix_view<const float>& b, float within) {
  for (index_t i = 0; i < a.extent(0); ++i) {
    for (index_t j = 0; j < a.extent(1); ++j) {
      if (within == 0 ? std::memcmp(&a(i, j), &b(i, j), sizeof(float)) != 0
                      : !(std::abs(a(i, j) - b(i, j)) <= within))
        return false;
    }
  }
  return a.extent(0) == b.extent(0) && a.extent(1) == b.extent(1) && a.extent(0) > 0;
}

void dlrm(benchmark::State& state) {
  model m;
  std::vector<step_pattern> patterns = linear_fusions();
  patterns.push_back(lookup_fusion<table_type, by_weight>());
  for (step_pattern& p : lookup_columns_fusions<table_type, by_weight>()) patterns.push_back(std::move(p));
  const fused_graph made = fuse(m.graph, patterns).or_throw();
  const step_program before = step_program::compile(m.graph).or_throw();
  const step_program after = step_program::compile(made.graph).or_throw();
  step_state of_before = before.make_state(), of_after = after.make_state();
  const inline_executor here;
  const auto run = [&](const step_program& program, step_state& of) {
    for (index_t i = 0; i < batches; ++i) program.run(here, of).or_throw();
  };
  if (made.fused.size() != 2 * features + 12)
    state.SkipWithError("wrong answer: not every layer and lookup is fused");
  run(before, of_before);
  run(after, of_after);
  if (!same(of_before.get(m.pooled).view(), of_after.get(*made.moved(m.pooled)).view(), 0) ||
      !same(of_before.get(m.output).view(), of_after.get(*made.moved(m.output)).view(), 1e-4F))
    state.SkipWithError("wrong answer: the fused graph gives others");
  figures f("graph/fuse/dlrm/batch:512");
  f.sample([&] {
    const auto [fused, ops] =
        f.pair("speedup", "", [&] { run(after, of_after); }, [&] { run(before, of_before); });
    f.note("fused_us", fused / batches * 1e6);
    f.note("ops_us", ops / batches * 1e6);
  });
  state.counters["ops"] = static_cast<double>(m.graph.size());
  state.counters["fused_ops"] = static_cast<double>(made.graph.size());
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(dlrm)->Name("graph/fuse/dlrm/batch:512")->Iterations(1)->UseManualTime();

// ---- element-wise ops ----

// A gated residual: (x + y) gate(x) scaled, shifted and clipped, as a framework writes it.
void elements(benchmark::State& state) {
  const index_t rows = state.range(0), columns = 256;
  std::vector<float> numbers(static_cast<std::size_t>((2 * rows + 2) * columns));
  std::uint64_t draw = 3;
  for (float& x : numbers) x = static_cast<float>((draw = mix64(draw)) >> 40) * 0x1p-22F - 2;
  const auto part = [&](index_t first, index_t count) {
    return matrix_view<float>(numbers.data() + first * columns, count, columns);
  };
  matrix_view<float> row = part(2 * rows, 1), other_row = part(2 * rows + 1, 1);
  step_graph g;
  const auto r = g.variable("scale", row), s = g.variable("shift", other_row);
  const auto x = g.source<matrix_value>("x", [&](matrix_value& to) { return to.refer(part(0, rows)), true; });
  const auto y =
      g.add<matrix_value>("y", [&](const matrix_value&, matrix_value& to) { to.refer(part(rows, rows)); }, x);
  const auto sum = g.add("sum", add_op{}, x, y);
  const auto gate = g.add("gate", activate_op{gemm_activation::sigmoid}, x);
  const auto gated = g.add("gated", multiply_op{}, sum, gate);
  const auto scaled = g.add("scaled", multiply_row_op<>{}, gated, g.read(r));
  const auto shifted = g.add("shifted", add_row_op<>{}, scaled, g.read(s));
  const auto above = g.add("above", activate_op{gemm_activation::relu}, shifted);
  const auto half = g.add("half", scale_op{0.5F}, above);
  const auto end = g.add("end", add_op{}, half, x);
  g.keep(end);
  const fused_graph made = fuse(g, element_fusions()).or_throw();
  const step_program before = step_program::compile(g).or_throw();
  const step_program after = step_program::compile(made.graph).or_throw();
  step_state of_before = before.make_state(), of_after = after.make_state();
  const inline_executor here;
  const index_t steps = std::max<index_t>(1, 4096 / rows);
  const auto run = [&](const step_program& program, step_state& of) {
    for (index_t i = 0; i < steps; ++i) program.run(here, of).or_throw();
  };
  run(before, of_before);
  run(after, of_after);
  if (made.graph.kind_name(made.moved(end)->op()) != "expression" || made.graph.size() != 5 ||
      !same(of_before.get(end).view(), of_after.get(*made.moved(end)).view(), 0))
    state.SkipWithError("wrong answer: not one expression, or other bits");
  figures f("graph/fuse/elements/rows:" + std::to_string(rows));
  f.sample([&] {
    const auto [fused, ops] =
        f.pair("speedup", "", [&] { run(after, of_after); }, [&] { run(before, of_before); });
    f.note("fused_us", fused / static_cast<double>(steps) * 1e6);
    f.note("ops_us", ops / static_cast<double>(steps) * 1e6);
  });
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(elements)
    ->Name("graph/fuse/elements")
    ->ArgName("rows")
    ->Arg(512)
    ->Arg(8192)
    ->Iterations(1)
    ->UseManualTime();

}  // namespace
