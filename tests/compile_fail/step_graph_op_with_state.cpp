// expect: "deeprec::step_graph::add: the call operator of the op is not const. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

void build(deeprec::step_graph& g) {
#if DEEPREC_MUST_FAIL
  g.add<int>("count", [n = 0](int& out) mutable { out = n++; });
#else
  g.add<int>("count", [n = 0](int& out) { out = n; });
#endif
}
