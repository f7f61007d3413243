// expect: "deeprec::step_pattern::becomes: the macro op has other outputs than those that it stands for"
#include <deeprec/graph/step/fusion/step_pattern.hpp>

struct float_op {
  using output = float;
  void operator()(const float& in, float& out) const { out = in; }
};
struct double_op {
  using output = double;
  void operator()(const float& in, double& out) const { out = in; }
};

void build(deeprec::step_pattern& p) {
  const auto x = p.any<float>();
  const auto y = p.op<float_op>(x);
#if DEEPREC_MUST_FAIL
  p.becomes(y, [](const deeprec::pattern_match&) { return double_op{}; }, x);
#else
  p.becomes(y, [](const deeprec::pattern_match&) { return float_op{}; }, x);
#endif
}
