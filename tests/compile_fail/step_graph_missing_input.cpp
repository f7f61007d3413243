// expect: "deeprec::step_graph::add: the op can't be called with these inputs and outputs. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

struct sum {
  using output = int;
  void operator()(const int& a, const int& b, int& out) const { out = a + b; }
};

void build(deeprec::step_graph& g) {
  const auto one = g.constant("one", 1);
#if DEEPREC_MUST_FAIL
  g.add("sum", sum{}, one);
#else
  g.add("sum", sum{}, one, one);
#endif
}
