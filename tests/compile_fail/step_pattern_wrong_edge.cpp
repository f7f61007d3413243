// expect: "deeprec::step_graph::add: the op can't be called with these inputs and outputs. Fix: "
#include <deeprec/graph/step/fusion/step_pattern.hpp>

struct twice_op {
  using output = float;
  void operator()(const float& in, float& out) const { out = 2 * in; }
};
struct text_value {};

void build(deeprec::step_pattern& p) {
#if DEEPREC_MUST_FAIL
  static_cast<void>(p.op<twice_op>(p.any<text_value>()));
#else
  static_cast<void>(p.op<twice_op>(p.any<float>()));
#endif
}
