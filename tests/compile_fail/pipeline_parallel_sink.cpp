// expect: "deeprec::pipeline: a source and a sink have one thread. Fix: "
#include <deeprec/pipeline/stages.hpp>

auto make() {
#if DEEPREC_MUST_FAIL
  return deeprec::sink("use", [](int) {}).parallel(2);
#else
  return deeprec::sink("use", [](int) {}).own_thread();
#endif
}
using made = decltype(make());
