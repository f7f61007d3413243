// expect: "deeprec::step_graph: a const variable can't be written. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

void build(deeprec::step_graph& g, const int& held) {
  const auto v = g.variable("v", held);
#if DEEPREC_MUST_FAIL
  g.add("use", [](const int&) {}, g.write(v));
#else
  g.add("use", [](const int&) {}, g.read(v));
#endif
}
