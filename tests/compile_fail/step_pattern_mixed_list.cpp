// expect: "deeprec::step_pattern::list: elements of different types. Fix: values of one type"
#include <deeprec/graph/step/fusion/step_pattern.hpp>

void build(deeprec::step_pattern& p) {
  const auto whole = p.any_list<float>();
#if DEEPREC_MUST_FAIL
  static_cast<void>(p.list(whole, p.any<double>()));
#else
  static_cast<void>(p.list(whole, p.any<float>()));
#endif
}
