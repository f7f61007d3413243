// expect: "deeprec::step_graph: an attribute of an op is an enum without names. Fix: "
#include <deeprec/graph/step/step_graph.hpp>

enum class rounding_of_op { up, down };
#if !DEEPREC_MUST_FAIL
inline const char* to_string(rounding_of_op r) { return r == rounding_of_op::up ? "up" : "down"; }
#endif
struct round_op {
  using output = float;
  rounding_of_op how;
  template <class Visit>
  void for_each_attribute(Visit&& visit) const {
    visit("how", how);
  }
  void operator()(const float& in, float& out) const { out = in; }
};

void build(deeprec::step_graph& g) { g.add(round_op{}, g.constant("x", 1.0F)); }
