// What a step gains by streams and by parts at servers: on a simulated device and a simulated network, so
// these figures are arithmetic on a graph, the same on every machine.
//
//   graph/multi_stream/dlrm/streams:4      seconds of one stream over seconds of four
//   graph/star_server/dlrm/servers:8       seconds of messages one by one over seconds of calls
//
// The step is DLRM as a framework builds it, op by op: 26 features, stacks 13-512-256-64-16 and
// 367-512-256-1, batch 512, forward, backward and updates.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/graph/passes/assign_streams.hpp>
#include <deeprec/graph/passes/subgraph_partition.hpp>

#include "../tests/support/stream_simulator.hpp"
#include "support/figures.hpp"

namespace {

using namespace deeprec;
using namespace deeprec_bench;

constexpr index_t batch = 512, features = 26, width = 16;

// Ids in a bag of a feature: one in 16 features, five in 6, thirty in 4.
index_t hotness(index_t feature) { return feature < 16 ? 1 : feature < 22 ? 5 : 30; }

// A kernel's time in microseconds: `start`, and what it moves and computes.
struct machine {
  double start, bytes_per_us, flops_per_us;
  [[nodiscard]] double operator()(double bytes, double flops = 0) const {
    return start + std::max(bytes / bytes_per_us, flops / flops_per_us);
  }
};

class dlrm {
 public:
  explicit dlrm(const machine& takes) : takes_(takes) {
    const index_t read = op("read", 0, op_effects::external);
    std::vector<index_t> pooled, unique;
    for (index_t f = 0; f < features; ++f) {
      const std::string scope = "embedding/c" + std::to_string(f) + "/";
      const index_t n = batch * hotness(f), rows = distinct(f);
      const index_t table = variable(scope + "table");
      unique.push_back(op(scope + "unique", takes_(8.0 * 4 * static_cast<double>(n))));
      feed(read, 2 * f, unique.back(), 8 * n);
      const index_t gather = op(scope + "gather", takes_(2 * row_bytes(rows)), op_effects::reads);
      b_.connect(table, 0, gather, ports_++);
      feed(unique.back(), 0, gather, 8 * rows);
      pooled.push_back(op(scope + "pool", takes_(row_bytes(n) + row_bytes(batch))));
      feed(gather, 0, pooled.back(), static_cast<std::int64_t>(row_bytes(rows)));
      feed(unique.back(), 1, pooled.back(), 8 * n);
      feed(read, 2 * f + 1, pooled.back(), 8 * (batch + 1));
    }
    const index_t bottom[] = {13, 512, 256, 64, 16}, top[] = {367, 512, 256, 1};
    index_t x = stack("bottom", read, 52, bottom, 4);
    const index_t interaction =
        op("interaction", takes_(4.0 * batch * 27 * 16 * 2, 2.0 * batch * 27 * 27 * 16));
    feed(x, 0, interaction, 4 * batch * width);
    for (const index_t p : pooled) feed(p, 0, interaction, 4 * batch * width);
    x = stack("top", interaction, 0, top, 3);
    const index_t loss = op("loss", takes_(8.0 * batch), op_effects::target);
    feed(x, 0, loss, 4 * batch);
    feed(read, 53, loss, 4 * batch);
    const index_t above = back("top", loss, top, 3);
    const index_t crossed =
        op("gradients/interaction", takes_(4.0 * batch * 27 * 16 * 3, 4.0 * batch * 27 * 27 * 16));
    feed(above, 0, crossed, 4 * batch * 367);
    for (const index_t p : pooled) feed(p, 0, crossed, 4 * batch * width);
    back("bottom", crossed, bottom, 4);
    for (index_t f = 0; f < features; ++f) {
      const std::string scope = "embedding/c" + std::to_string(f) + "/";
      const index_t n = batch * hotness(f), rows = distinct(f);
      const index_t sum =
          op("gradients/" + scope + "sum", takes_(row_bytes(batch) + row_bytes(n) + row_bytes(rows)));
      feed(crossed, 1 + f, sum, 4 * batch * width);
      feed(unique[at(f)], 1, sum, 8 * n);
      feed(read, 2 * f + 1, sum, 8 * (batch + 1));
      const index_t update = op("gradients/" + scope + "update", takes_(4 * row_bytes(rows)),
                                op_effects::reads | op_effects::writes);
      b_.connect(tables_[at(f)], 0, update, ports_++);
      feed(sum, 0, update, static_cast<std::int64_t>(row_bytes(rows)));
      feed(unique[at(f)], 0, update, 8 * rows);
    }
    graph = b_.build().or_throw();
  }

  flat_graph graph;
  [[nodiscard]] const std::vector<index_t>& variables() const { return tables_; }

 private:
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
  // Of the ids of a batch six in ten are distinct.
  static index_t distinct(index_t f) { return batch * hotness(f) * 6 / 10; }
  static double row_bytes(index_t rows) { return 4.0 * width * static_cast<double>(rows); }

  index_t op(const std::string& name, double cost, op_effects effects = op_effects::none) {
    return b_.add({.name = name, .effects = effects, .cost = cost});
  }
  index_t variable(const std::string& name) {
    tables_.push_back(b_.add({.name = name, .kind = op_kind::variable}));
    return tables_.back();
  }
  // Ports of inputs need only differ.
  void feed(index_t from, index_t port, index_t to, std::int64_t bytes) {
    b_.connect(from, port, to, ports_++, bytes);
  }
  index_t stack(const std::string& name, index_t x, index_t port, const index_t* sizes, int layers) {
    for (int l = 0; l < layers; ++l) {
      const std::string scope = name + "/" + std::to_string(l) + "/";
      const auto in = static_cast<double>(sizes[l]), out = static_cast<double>(sizes[l + 1]);
      weights_[name + std::to_string(l)] = variable(scope + "weights");
      const index_t weights = op(scope + "read", takes_(0), op_effects::reads);
      b_.connect(tables_.back(), 0, weights, ports_++);
      reads_[name + std::to_string(l)] = weights;
      inputs_[name + std::to_string(l)] = {x, l == 0 ? port : 0};
      const index_t product =
          op(scope + "product", takes_(4 * (batch * (in + out) + in * out), 2 * batch * in * out));
      feed(x, l == 0 ? port : 0, product, 4 * batch * sizes[l]);
      feed(weights, 0, product, 4 * sizes[l] * sizes[l + 1]);
      x = op(scope + "activation", takes_(8 * batch * out));
      feed(product, 0, x, 4 * batch * sizes[l + 1]);
    }
    return x;
  }
  // The gradient of the input of the lowest layer.
  index_t back(const std::string& name, index_t gradient, const index_t* sizes, int layers) {
    for (int l = layers - 1; l >= 0; --l) {
      const std::string layer = name + std::to_string(l),
                        scope = "gradients/" + name + "/" + std::to_string(l) + "/";
      const auto in = static_cast<double>(sizes[l]), out = static_cast<double>(sizes[l + 1]);
      const double takes = takes_(4 * (batch * (in + out) + in * out), 2 * batch * in * out);
      const index_t slope = op(scope + "activation", takes_(12 * batch * out));
      feed(gradient, 0, slope, 4 * batch * sizes[l + 1]);
      const index_t weights = op(scope + "weights", takes);
      feed(slope, 0, weights, 4 * batch * sizes[l + 1]);
      feed(inputs_[layer].first, inputs_[layer].second, weights, 4 * batch * sizes[l]);
      const index_t update =
          op(scope + "update", takes_(12 * in * out), op_effects::reads | op_effects::writes);
      b_.connect(weights_[layer], 0, update, ports_++);
      feed(weights, 0, update, 4 * sizes[l] * sizes[l + 1]);
      b_.control(reads_[layer], update);
      gradient = op(scope + "input", takes);
      feed(slope, 0, gradient, 4 * batch * sizes[l + 1]);
      feed(reads_[layer], 0, gradient, 4 * sizes[l] * sizes[l + 1]);
    }
    return gradient;
  }

  const machine takes_;
  flat_graph_builder b_;
  index_t ports_ = 0;
  std::vector<index_t> tables_;
  std::map<std::string, index_t> weights_, reads_;
  std::map<std::string, std::pair<index_t, index_t>> inputs_;
};

// A kernel starts in 2 us, moves 3 TB/s and computes 200 TFLOP/s; an event costs 1 us to record or await.
// Every stream has the whole device.
void streams(benchmark::State& state) {
  constexpr int count = 4;
  constexpr double event = 1;
  const dlrm step({2, 3e6, 2e8});
  const flat_graph& g = step.graph;
  const auto cost = [&](index_t v) { return g.cost(v); };
  const auto simulated = [&](int n, const stream_requests& wanted) {
    const stream_assignment made = assign_streams(g, n, wanted).or_throw();
    deeprec_test::stream_simulator::order edges;
    for (index_t e = 0; e < g.edge_count(); ++e) edges.emplace_back(g.source(e), g.destination(e));
    const deeprec_test::stream_simulator device(made.plan, g.size());
    if (!device.fault(edges).empty()) state.SkipWithError("wrong answer: an edge is not kept");
    return device.makespan(cost, event);
  };
  // DeepRec's rule: each lookup's scope takes the next stream, its gradients too; all else is on stream 0.
  stream_requests by_scope;
  for (index_t f = 0; f < features; ++f) {
    const std::string scope = "embedding/c" + std::to_string(f);
    by_scope.scopes.push_back({scope, static_cast<int>(f % count)});
    by_scope.scopes.push_back({"gradients/" + scope, static_cast<int>(f % count)});
  }
  for (const char* scope : {"read", "bottom", "top", "interaction", "loss", "gradients"})
    by_scope.scopes.push_back({scope, 0});
  figures f("graph/multi_stream/dlrm/streams:4");
  f.sample([&] {
    const double ours = simulated(count, {}), one = simulated(1, {}), scopes = simulated(count, by_scope);
    const stream_assignment made = assign_streams(g, count).or_throw();
    const double limit = std::max(made.longest_path, made.work / count);
    f.add("speedup", std::min(one, scopes) / ours);
    f.add("speedup_one_stream", one / ours);
    f.add("speedup_by_scope", scopes / ours);
    f.add("share_of_limit", limit / ours);
    f.note("waits", static_cast<double>(made.plan.waits()));
    f.note("ops", static_cast<double>(made.plan.steps.size()));
    f.note("microseconds", ours);
  });
  f.say("simulated device");
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(streams)->Name("graph/multi_stream/dlrm/streams:4")->Iterations(1)->UseManualTime();

// As DeepRec's document on async embedding has it: 30 workers of 10 cores, 8 servers of 15, 4 GB/s for each.
// So an op moved to a server counts 2.5 times, and a worker has 8 / 30 of a server's network. A core moves
// 10 GB/s and computes 50 GFLOP/s; a message costs 50 us. Variables go to the servers in turn.
void servers(benchmark::State& state) {
  constexpr index_t count = 8;
  const dlrm step({1, 1e4, 5e4});
  std::vector<variable_owner> owners;
  for (const index_t v : step.variables()) owners.push_back({v, static_cast<index_t>(owners.size()) % count});
  const partition_options options{
      .cost_per_byte = 30 / (8 * 4000.0), .cost_per_message = 50, .server_cost = 2.5};
  const auto network = [&](const part_traffic& t) {
    return options.cost_per_byte * t.bytes + options.cost_per_message * static_cast<double>(t.messages);
  };
  figures f("graph/star_server/dlrm/servers:8");
  f.sample([&] {
    graph_parts made;
    const double seconds =
        seconds_of([&] { made = subgraph_partition(step.graph, count, owners, options).or_throw(); });
    double moved = 0;
    for (const index_t v : made.moved) moved += options.server_cost * step.graph.cost(v);
    const double ours = network(made.traffic) + moved;
    if (made.price > made.unmoved_price) state.SkipWithError("wrong answer: dearer than nothing moved");
    f.add("speedup", std::min(network(made.separate), network(made.unmoved)) / ours);
    f.add("speedup_separate", network(made.separate) / ours);
    f.add("speedup_unmoved", network(made.unmoved) / ours);
    for (const auto& [name, traffic] :
         {std::pair{"separate", made.separate}, {"unmoved", made.unmoved}, {"parts", made.traffic}}) {
      f.note(std::string("messages_") + name, static_cast<double>(traffic.messages));
      f.note(std::string("megabytes_") + name, traffic.bytes / 1e6);
    }
    f.note("moved_ops", static_cast<double>(made.moved.size()));
    f.note("seconds", seconds);
  });
  f.say("simulated network");
  for (auto _ : state) {
  }
  f.report(state);
}
BENCHMARK(servers)->Name("graph/star_server/dlrm/servers:8")->Iterations(1)->UseManualTime();

}  // namespace
