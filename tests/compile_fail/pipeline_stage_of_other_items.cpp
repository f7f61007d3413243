// expect: "deeprec::pipeline: a stage can't take what the stage before it returns. Fix: "
#include <deeprec/pipeline/pipeline.hpp>

#include <optional>
#include <string>

auto line() {
  return deeprec::source("read", [] { return std::optional<std::string>(); }) |
#if DEEPREC_MUST_FAIL
         deeprec::stage("parse", [](int i) { return i; }) |
#else
         deeprec::stage("parse", [](std::string&& s) { return s.size(); }) |
#endif
         deeprec::sink("use", [](std::size_t) {});
}
using made = decltype(line());
