// expect: "deeprec::pipeline: a source is called without arguments and returns its next item.*Fix: "
#include <deeprec/pipeline/pipeline.hpp>

#include <optional>

auto line() {
#if DEEPREC_MUST_FAIL
  return deeprec::source("read", [] { return 1; }) | deeprec::sink("use", [](int) {});
#else
  return deeprec::source("read", [] { return std::optional<int>(1); }) | deeprec::sink("use", [](int) {});
#endif
}
using made = decltype(line());
