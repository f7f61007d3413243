// expect: "deeprec::step_graph::add: a variable is passed without its access. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

void build(deeprec::step_graph& g, int& held) {
  const auto v = g.variable("v", held);
#if DEEPREC_MUST_FAIL
  g.add("use", [](const int&) {}, v);
#else
  g.add("use", [](const int&) {}, g.read(v));
#endif
}
