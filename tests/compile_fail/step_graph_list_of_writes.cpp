// expect: "deeprec::step_graph::add: an op changes the variables of a list. Fix: pass accesses by"
#include <deeprec/graph/step/step_graph.hpp>

#include <vector>

struct sum_op {
  using output = float;
  void operator()(deeprec::op_list<const float>, float&) const {}
};

void build(deeprec::step_graph& g, float& object) {
  const auto v = g.variable("v", object);
#if DEEPREC_MUST_FAIL
  static_cast<void>(g.add(sum_op{}, std::vector{g.write(v)}));
#else
  static_cast<void>(g.add(sum_op{}, std::vector{g.read(v)}));
#endif
}
