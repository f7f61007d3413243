// expect: "deeprec::step_graph::add: the op can't be called with these inputs and outputs. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

struct count_up {
  void operator()(int& it) const { ++it; }
};

void build(deeprec::step_graph& g, int& held) {
  const auto v = g.variable("v", held);
#if DEEPREC_MUST_FAIL
  g.add("count", count_up{}, g.read(v));
#else
  g.add("count", count_up{}, g.write(v));
#endif
}
