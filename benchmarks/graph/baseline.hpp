// A graph of tiny ops, and other libraries that run it. No header of ours here: the peers are compiled with
// -O2 and with -O3 -march=native.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace graph_bench {

/// An op mixes the values of two earlier ones into its own: two loads, a multiplication, a store.
struct graph {
  struct op {
    std::uint32_t first, second;  // of the layer before; in the first layer the op itself
    int kind;
  };
  std::vector<op> ops;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
};

/// Kinds differ in code, so that each is a function of its own.
template <int Kind>
inline void run_op(std::uint64_t* values, std::uint32_t self, const graph::op& op) {
  values[self] = (values[op.first] * (2 * Kind + 3)) ^ (values[op.second] + Kind);
}

inline void run_op(int kind, std::uint64_t* values, std::uint32_t self, const graph::op& op) {
  switch (kind) {
    case 0:
      return run_op<0>(values, self, op);
    case 1:
      return run_op<1>(values, self, op);
    case 2:
      return run_op<2>(values, self, op);
    case 3:
      return run_op<3>(values, self, op);
    case 4:
      return run_op<4>(values, self, op);
    case 5:
      return run_op<5>(values, self, op);
    case 6:
      return run_op<6>(values, self, op);
    default:
      return run_op<7>(values, self, op);
  }
}

/// Layers of `width` ops, each after one or two of the layer before.
inline graph layered(std::size_t ops, std::size_t width, int kinds) {
  std::mt19937 random(7);
  graph made;
  for (std::size_t v = 0; v < ops; ++v) {
    const auto self = static_cast<std::uint32_t>(v);
    graph::op op{self, self, static_cast<int>(random() % static_cast<unsigned>(kinds))};
    if (v >= width) {
      const std::size_t layer = (v / width - 1) * width;
      op.first = static_cast<std::uint32_t>(layer + random() % width);
      op.second = static_cast<std::uint32_t>(layer + random() % width);
      made.edges.emplace_back(op.first, self);
      if (op.second != op.first) made.edges.emplace_back(op.second, self);
    }
    made.ops.push_back(op);
  }
  return made;
}

inline std::vector<std::uint64_t> first_values(const graph& of) {
  std::vector<std::uint64_t> made(of.ops.size());
  for (std::size_t v = 0; v < made.size(); ++v) made[v] = v * 0x9e3779b97f4a7c15u + 1;
  return made;
}

/// A graph of another library, built once.
class runner {
 public:
  virtual ~runner() = default;
  virtual void run() = 0;
};
struct peer {
  const char* name;
  runner* (*make)(const graph&, std::uint64_t* values, int threads);
};

}  // namespace graph_bench

namespace o2 {
void add_tbb(std::vector<graph_bench::peer>& to);
void add_taskflow(std::vector<graph_bench::peer>& to);
}  // namespace o2
namespace native {
void add_tbb(std::vector<graph_bench::peer>& to);
void add_taskflow(std::vector<graph_bench::peer>& to);
}  // namespace native
