// expect: "deeprec::step_graph::add: the op can't be called with these inputs and outputs. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

#include <string>

struct double_it {
  using output = int;
  void operator()(const int& in, int& out) const { out = 2 * in; }
};

void build(deeprec::step_graph& g) {
#if DEEPREC_MUST_FAIL
  const auto in = g.constant("text", std::string("two"));
#else
  const auto in = g.constant("number", 2);
#endif
  g.add("double", double_it{}, in);
}
