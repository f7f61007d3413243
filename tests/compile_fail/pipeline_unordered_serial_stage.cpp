// expect: "deeprec::pipeline: unordered.. says how a parallel stage ends. Fix: "
#include <deeprec/pipeline/stages.hpp>

auto make() {
#if DEEPREC_MUST_FAIL
  return deeprec::stage("parse", [](int i) { return i; }).unordered();
#else
  return deeprec::stage("parse", [](int i) { return i; }).parallel(2).unordered();
#endif
}
using made = decltype(make());
